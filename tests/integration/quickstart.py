"""A running ``iop quickstart``, for tests: four real processes on loopback, in a home of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from time import monotonic, sleep
from typing import Any

#: More than it ever takes, on a busy machine too.
SECONDS = 90.0


class RunningQuickstart:
    """``iop quickstart --json`` as a child process.

    :param home: its home folder.
    :param arguments: further options.
    :param environment: further variables.
    """

    def __init__(self, home: Path, *arguments: str, **environment: str) -> None:
        self.home = home.absolute()
        command = [sys.executable, "-m", "iop", "quickstart", "--json", "--home", str(self.home), *arguments]
        self.process = Popen(  # noqa: S603 - our own interpreter
            command, stdout=PIPE, stderr=PIPE, text=True, env=os.environ | environment
        )
        self.told = ""

    def ready(self) -> dict[str, Any]:
        """The line it prints when ready. Blocks, for as long as a start takes."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"no line: {self.end()}")
        document = json.loads(line)
        assert isinstance(document, dict)
        return document

    def end(self) -> tuple[int, str, str]:
        """Wait until it ended: exit code, the rest of stdout, stderr."""
        rest, told = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, rest, told

    def stop(self) -> tuple[int, str, str]:
        """SIGTERM, then :meth:`end`."""
        self.process.terminate()
        return self.end()

    def kill(self) -> None:
        """SIGKILL, whether it runs or not; no process of it is left afterwards."""
        self.process.kill()
        self.process.communicate(timeout=SECONDS)
        deadline = monotonic() + SECONDS
        while left := processes_of(self.home):
            if monotonic() > deadline:
                raise AssertionError(f"left behind: {left}")
            sleep(0.02)


def processes_of(home: Path) -> dict[int, str]:
    """Processes that have ``home`` in their command line, or as their folder."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            folder = os.readlink(entry / "cwd")
        except OSError:
            # it ended while we looked, and a zombie has no folder
            continue
        if str(home) in command or folder == str(home):
            found[int(entry.name)] = command
    return found
