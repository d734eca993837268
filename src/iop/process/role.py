"""The life of a role's process: harden, read the configuration, prepare, listen, say so, serve, drain, exit 0.

A role provides :class:`IRole` and knows nothing of processes; :class:`RoleProcess` knows nothing of any role.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from twisted.application.service import IServiceCollection, Service
from twisted.internet.defer import Deferred, execute, maybeDeferred
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IReactorCore, IReactorTCP, IReactorThreads, IReactorTime, IReactorUNIX
from twisted.logger import ILogObserver, Logger
from twisted.python.components import Componentized
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface

from iop.errors import Draining, IopError
from iop.net.listener import SPARE_DESCRIPTORS
from iop.process.config import RoleConfig, load
from iop.process.garbage import spare_what_is_there
from iop.process.harden import all_descriptors, hide_memory, no_core_files
from iop.process.listen import bound_address, listen
from iop.process.logs import JsonLog
from iop.process.metrics import new_registry
from iop.process.record import RunRecord, mark_files_read
from iop.process.status import STATUS_CONNECTIONS, status_site
from iop.process.systemd import notify
from iop.units import Role

if TYPE_CHECKING:
    from pathlib import Path

    from prometheus_client import CollectorRegistry
    from twisted.internet.interfaces import IListeningPort

    from iop.interfaces import IClock

#: Seconds a role may take to finish what it began, before its process exits all the same.
DRAIN_SECONDS = 10.0
#: How ``/readyz`` begins to say that a reload changed nothing.
RELOAD_REFUSED: Final = "the last reload was refused"
#: File descriptors that the status listener leaves free: fewer than others do, so that it answers when they cannot.
_STATUS_SPARE = SPARE_DESCRIPTORS // 2

log = Logger()


class IReactor(IReactorCore, IReactorTCP, IReactorUNIX, IReactorThreads, IReactorTime):
    """The reactor, as the process of a role uses it."""


class IRole(Interface):
    """One role's work, as its process starts and ends it."""

    name: str = Attribute("The name in the role's identity.")
    connections: int = Attribute("Connections it has at most, accepted and dialled, by its own limits.")

    def prepare() -> Deferred[None]:
        """Open what the role stands on: files, store, keys. Fails with an ``IopError`` that says what to do."""

    def listen() -> Deferred[dict[str, str]]:
        """Begin to listen and to dial; answers the bound addresses by name, ``{"api": "127.0.0.1:40123"}``."""

    def reload() -> None:
        """Read the files of ``prepare`` that may be replaced again, and put them in force for all that comes after.

        What is under way goes on, unless a peer is not to be trusted any more. All or nothing: raises an ``IopError``
        if one file is not what it should be, and then nothing has changed. Called only after ``listen``.
        """

    def not_ready() -> list[str]:
        """Sentences saying why the role cannot serve now; empty when it can. Callable at any time."""

    def drain() -> Deferred[None]:
        """Stop accepting, finish or cancel what runs, close everything. Called once, at any time after construction."""


class IReloading(Interface):
    """A role that may want to reload for other reasons than SIGHUP."""

    def reload_with(reload: Callable[[], Deferred[None]]) -> None:
        """Called once, before ``prepare``: what SIGHUP does, ``reload`` does, and says how it went.

        It fails with what :meth:`IRole.reload` raised, or with :class:`~iop.errors.Draining` once the process is going
        away.
        """


C = TypeVar("C", bound=RoleConfig)


@dataclass(frozen=True, slots=True)
class RoleKind(Generic[C]):
    """What tells one role's process from another's.

    :param role: whose certificate the process holds.
    :param config: the model of its configuration file.
    :param build: makes the role from its configuration, a clock for decisions, the reactor and the registry that the
        role's metrics belong in.
    :param hides_memory: whether other processes of the same user are kept out of its memory.
    """

    role: Role
    config: type[C]
    build: Callable[[C, IClock, IReactor, CollectorRegistry], IRole]
    hides_memory: bool


class RoleProcess(Service, Generic[C]):
    """Runs one role under ``twistd``.

    Whatever goes wrong at the start is logged as ``role.refused``, told to the person at the terminal, and ends the
    process with exit code 1. SIGTERM and SIGINT stop the reactor, which waits for :meth:`stopService`; so a drained
    process exits 0, where twistd's own handling would exit by the signal. A second signal does not wait for the drain.
    SIGHUP has the role read its files again; one that comes during the start takes effect after it.

    :param kind: which role.
    :param path: its configuration file.
    :param clock: time for decisions.
    :param reactor: the reactor the process runs on.
    """

    def __init__(self, kind: RoleKind[C], path: Path, clock: IClock, reactor: IReactor) -> None:
        self._kind = kind
        self._path = path
        self._clock = clock
        self._reactor = reactor
        # the real stdout, because twistd makes a log of sys.stdout
        self._observer = JsonLog(sys.__stdout__ or sys.stdout, kind.role.value)
        self._role: IRole | None = None
        self._status: IListeningPort | None = None
        self._record: Path | None = None
        #: File descriptors that the system allows.
        self._descriptors = 0
        self._started: Deferred[None] = Deferred()
        self._drained: Deferred[None] | None = None
        #: Why the last reload changed nothing, unless it did.
        self._reload_refusal = ""

    def setServiceParent(self, parent: IServiceCollection) -> None:
        """Join twistd's application, and have it log as we do: it looks for the observer there."""
        if isinstance(parent, Componentized):
            Componentized.setComponent(parent, ILogObserver, self._observer)
        Service.setServiceParent(self, parent)

    def startService(self) -> None:
        """Harden at once; do the rest when the reactor runs."""
        Service.startService(self)
        no_core_files()
        self._descriptors = all_descriptors()
        if self._kind.hides_memory:
            hide_memory()
        self._reactor.callWhenRunning(self._run)

    def stopService(self) -> Deferred[None]:
        """Drain the role, within :data:`DRAIN_SECONDS`, then let go of everything."""
        Service.stopService(self)
        return Deferred.fromCoroutine(self._stop())

    def _run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            # through callFromThread, because only that wakes the reactor up
            signal.signal(number, lambda *_: self._reactor.callFromThread(self._signalled))
        signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self._hung_up))
        self._started = Deferred.fromCoroutine(self._start()).addErrback(self._refuse)

    async def _start(self) -> None:
        config = load(self._path, self._kind.config, self._kind.role)
        registry = new_registry()
        role = self._role = self._kind.build(config, self._clock, self._reactor, registry)
        self._observer.name = role.name
        if IReloading.providedBy(role):
            IReloading(role).reload_with(self._reload)
        self._check_descriptors(role.connections)
        await role.prepare()
        if self._going_away():
            return
        # code and what was read stay, and nothing is connected yet: no request waits while they are looked at again
        spare_what_is_there()
        addresses = await role.listen()
        if self._going_away():
            return
        site = status_site(self._not_ready, registry, self._clock)
        self._status = await listen(self._reactor, config.status.listen, site, "[status] listen", _STATUS_SPARE)
        addresses["status"] = bound_address(self._status)
        self._record = RunRecord(role.name, os.getpid(), addresses).write(config.run.directory, self._kind.role)
        notify("READY=1")
        log.info("role.started", pid=os.getpid(), **{f"{key}_address": value for key, value in addresses.items()})

    def _check_descriptors(self, connections: int) -> None:
        """Warn if the system's limit would be reached before the role's own."""
        wanted = descriptors_wanted(connections)
        if self._descriptors < wanted:
            log.warn(
                "role.descriptors_few",
                descriptors=self._descriptors,
                wanted=wanted,
                hint="raise the hard limit of open files: LimitNOFILE= of a systemd unit, `ulimit -Hn` of a shell",
            )

    def _refuse(self, failure: Failure) -> None:
        if self._going_away():
            log.failure("role.start_abandoned", failure)
            return
        log.failure("role.refused", failure)
        error = failure.value
        told = (
            f"Error: {error.message}\n" + (f"Hint: {error.hint}\n" if error.hint else "")
            if isinstance(error, IopError)
            else f"Error: {self._kind.role.value} cannot start ({type(error).__name__}); its log says where\n"
        )
        terminal = sys.__stderr__ or sys.stderr
        terminal.write(told)
        # twistd has no exit code for a reactor that stopped in good order, so the interpreter's last word is ours
        atexit.register(_exit_refused)
        self._stop_reactor()

    def _signalled(self) -> None:
        if self._drained is None:
            self._stop_reactor()
        elif not self._drained.called:
            self._drained.callback(None)

    def _hung_up(self) -> None:
        # what refuses it is told by then
        self._reload().addErrback(lambda _: None)

    def _reload(self) -> Deferred[None]:
        """Have the role read its files again, after the start if that is not over; fails with what refuses it."""
        reloaded: Deferred[None] = Deferred()
        self._started.addCallback(lambda _: execute(self._reload_now).chainDeferred(reloaded))
        return reloaded

    def _reload_now(self) -> None:
        if self._role is None or self._status is None or self._going_away():
            raise Draining("this process is going away")
        try:
            self._role.reload()
        except Exception as error:
            # whatever it is, the process goes on as it was and says so
            log.failure("role.reload_refused", Failure())
            self._reload_refusal = error.message if isinstance(error, IopError) else type(error).__name__
            raise
        log.info("role.reloaded")
        self._reload_refusal = ""
        if self._record is not None:
            mark_files_read(self._record)

    def _stop_reactor(self) -> None:
        # between this call and the drain it may be asked for again
        with suppress(ReactorNotRunning):
            self._reactor.stop()

    async def _stop(self) -> None:
        if self._role is not None:
            log.info("role.draining")
        notify("STOPPING=1")
        drained: Deferred[None] = Deferred()
        self._drained = drained
        deadline = self._clock.call_later(DRAIN_SECONDS, self._overdue)
        if self._role is not None:
            self._role.drain().addErrback(lambda failure: log.failure("role.drain_failed", failure)).addBoth(self._done)
        else:
            self._done(None)
        await drained
        if deadline.active():
            deadline.cancel()
        if self._status is not None:
            await maybeDeferred(self._status.stopListening)
        if self._record is not None:
            self._record.unlink(missing_ok=True)
        log.info("role.stopped")

    def _done(self, _: object) -> None:
        if self._drained is not None and not self._drained.called:
            self._drained.callback(None)

    def _overdue(self) -> None:
        log.warn("role.drain_overdue", seconds=DRAIN_SECONDS)
        self._done(None)

    def _going_away(self) -> bool:
        return self._drained is not None

    def _not_ready(self) -> list[str]:
        if self._going_away() or self._role is None:
            return ["this process is going away"]
        refusal = self._reload_refusal
        return self._role.not_ready() + ([f"{RELOAD_REFUSED}: {refusal}"] if refusal else [])


def descriptors_wanted(connections: int) -> int:
    """File descriptors that a role needs to have its ``connections``, as :class:`IRole` counts them, all at once."""
    return connections + STATUS_CONNECTIONS + SPARE_DESCRIPTORS


def _exit_refused() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
