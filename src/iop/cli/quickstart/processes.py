"""The processes of a quickstart: started so that they cannot outlive it, waited for, stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import treq
from twisted.internet.defer import CancelledError, Deferred, DeferredQueue, TimeoutError
from twisted.internet.error import ConnectError, ConnectionClosed, ProcessDone, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import deferLater
from twisted.web.client import ResponseFailed

from iop.errors import IopError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twisted.python.failure import Failure

    from iop.cli.quickstart.home import Home, Member

START_SECONDS = 30.0
#: What people call the stand-in.
PROVIDER = "provider"
#: Longer than a role's own drain deadline.
STOP_SECONDS = 12.0
_POLL_SECONDS = 0.05
_TAIL_LINES = 8
_TAIL_BYTES = 16 * 1024


class QuickstartFailed(IopError):
    """A process of the quickstart did not start, or ended by itself, or the request did not come through."""

    code: ClassVar[str] = "quickstart_failed"


class Child(ProcessProtocol):
    """One process.

    :param name: what people call it.
    :param log: the file its output goes to.
    """

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.running = True
        self.pid = 0
        #: How it ended, in words, once it has.
        self.end = ""
        self.ended: Deferred[Child] = Deferred()

    def processEnded(self, reason: Failure) -> None:
        """See :class:`twisted.internet.interfaces.IProcessProtocol`."""
        self.running = False
        self.end = _end(reason.value)
        self.ended.callback(self)

    def failure(self, what: str) -> QuickstartFailed:
        """An error that shows the last words of its log."""
        end = f" ({self.end})" if self.end else ""
        words = _last_words(self.log)
        return QuickstartFailed(
            f"{self.name} {what}{end}" + (f":\n{words}" if words else ""), hint=f"its whole log: {self.log}"
        )


class Children:
    """All processes of one quickstart."""

    def __init__(self, reactor: Any, home: Home) -> None:
        self._reactor = reactor
        self._home = home
        self._children: list[Child] = []
        self._stopping = False
        #: Processes that ended before :meth:`stop`.
        self.deaths: DeferredQueue[Child] = DeferredQueue()

    def start(self, name: str, program: Sequence[str]) -> Child:
        """Start a program tied to this process's life; its log holds what it says in this run.

        :raises QuickstartFailed: once :meth:`stop` was called.
        """
        if self._stopping:
            raise QuickstartFailed(f"{name} was not started, because everything ends")
        child = Child(name, self._home.log(name))
        output = os.open(child.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        silence = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        command = [sys.executable, "-m", "iop.process.lifeline", str(os.getpid()), *program]
        try:
            process = self._reactor.spawnProcess(
                child,
                command[0],
                command,
                env=dict(os.environ),
                path=str(self._home.root),
                childFDs={0: silence, 1: output, 2: output},
            )
        finally:
            os.close(output)
            os.close(silence)
        child.pid = process.pid
        self._children.append(child)
        child.ended.addCallback(self._ended)
        return child

    async def start_role(self, member: Member) -> Child:
        """Start ``twistd -n iop-ROLE`` and wait until it listens.

        :raises QuickstartFailed: if it ended, or took longer than :data:`START_SECONDS`.
        """
        record = self._home.record(member)
        record.unlink(missing_ok=True)
        twistd = str(Path(sysconfig.get_path("scripts"), "twistd"))
        config = str(self._home.config(member))
        program = [sys.executable, twistd, "-n", "--pidfile=", f"iop-{member.role.value}", "--config", config]
        child = self.start(member.key, program)
        await self.until(child, "did not start", lambda: _has_pid(record, child.pid))
        return child

    async def until(self, child: Child, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something holds of a process that goes on running."""
        for _ in range(int(START_SECONDS / _POLL_SECONDS)):
            if holds():
                return
            if not child.running:
                raise child.failure(what)
            await deferLater(self._reactor, _POLL_SECONDS)
        raise child.failure(f"{what} within {START_SECONDS:.0f} seconds")

    async def until_ready(self, child: Child, status_port: int) -> None:
        """Wait until a role's ``/readyz`` says that it can serve."""
        reasons = ["no answer"]
        for _ in range(int(START_SECONDS / _POLL_SECONDS)):
            try:
                answer = await treq.get(f"http://127.0.0.1:{status_port}/readyz", timeout=2.0, reactor=self._reactor)
                document = await answer.json()
            except (ConnectError, ConnectionClosed, ResponseFailed, CancelledError, TimeoutError):
                document = {"ready": False, "reasons": reasons}
            if document["ready"]:
                return
            reasons = document["reasons"]
            if not child.running:
                raise child.failure("ended before it was ready")
            await deferLater(self._reactor, _POLL_SECONDS)
        raise child.failure(f"is not ready ({'; '.join(reasons)})")

    async def stop(self) -> None:
        """End all of them: in good order first, by force for those that take longer than :data:`STOP_SECONDS`."""
        self._stopping = True
        # the provider last, so that what runs on it can be drained
        for children in ([each for each in self._children if each.name != PROVIDER], self._children):
            await self._stop(children)

    async def _stop(self, children: Sequence[Child]) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in children:
                if child.running:
                    # still ours: nobody but our reactor reaps it, and then it does not run
                    os.kill(child.pid, number)
            for _ in range(int(STOP_SECONDS / _POLL_SECONDS)):
                if not any(child.running for child in children):
                    return
                await deferLater(self._reactor, _POLL_SECONDS)

    def _ended(self, child: Child) -> Child:
        if not self._stopping:
            self.deaths.put(child)
        return child


def _end(reason: BaseException | None) -> str:
    if isinstance(reason, ProcessTerminated) and reason.signal:
        return f"signal {reason.signal}"
    return f"exit code {reason.exitCode}" if isinstance(reason, ProcessTerminated | ProcessDone) else ""


def _has_pid(record: Path, pid: int) -> bool:
    try:
        return bool(json.loads(record.read_bytes())["pid"] == pid)
    except FileNotFoundError:
        return False


def _last_words(log: Path) -> str:
    """The end of a log: what was said to people if anything was, else its last lines."""
    lines = log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").splitlines()
    said = [line for line in lines[-_TAIL_LINES:] if line and not line.startswith("{")]
    return "\n".join(f"  {line}" for line in said or lines[-_TAIL_LINES:])
