"""The lock that a running Control Plane holds beside its database: one at a time, and everybody sees whether one runs.

The kernel gives the lock back when the process ends, however it ends. The file itself stays: taking it away would let
two processes lock two files of one name.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING, Final

from iop.errors import AlreadyRunning, FileRefused

if TYPE_CHECKING:
    from pathlib import Path

#: Whoever looks holds the lock, shared, for an instant; so a Control Plane that starts in it tries again.
_TRIES: Final = 5
_PAUSE_SECONDS: Final = 0.01


def lock_path(database: Path) -> Path:
    """The lock file that belongs to ``database``, whatever links lead to that."""
    database = database.resolve()
    return database.with_name(f"{database.name}.lock")


class ControlPlaneLock:
    """The lock, held. Made by :meth:`acquire`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, database: Path) -> ControlPlaneLock:
        """Become the Control Plane of ``database``. Takes at most 50 ms.

        :raises AlreadyRunning: if another process is.
        :raises FileRefused: if the lock file cannot be opened.
        """
        descriptor = _open(lock_path(database), os.O_CREAT)
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE_SECONDS)
            if _try(descriptor, fcntl.LOCK_EX):
                return cls(descriptor)
        os.close(descriptor)
        raise AlreadyRunning(
            f"a Control Plane runs on {database} already",
            hint="stop it first; one SQLite database serves one Control Plane",
        )

    def release(self) -> None:
        """Let go. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_held(database: Path) -> bool:
    """Whether a Control Plane runs on ``database``. Makes no file, so whoever looks owns nothing afterwards.

    :raises FileRefused: if the lock file cannot be opened.
    """
    path = lock_path(database)
    if not path.exists():
        return False
    descriptor = _open(path, 0)
    try:
        return not _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _open(path: Path, flags: int) -> int:
    try:
        # a FIFO in its place must not hold up the start
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o600)
    except OSError as error:
        there = path.parent.exists()
        hint = f"check what `ls -ld {path.parent} {path}` says" if there else "run `iop store migrate --config FILE`"
        raise FileRefused(f"{path} cannot be opened: {error.strerror}", hint=hint) from error


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
