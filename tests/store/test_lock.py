from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.errors import AlreadyRunning, FileRefused
from iop.store.lock import ControlPlaneLock, is_held, lock_path


def _open_shared(database: Path) -> int:
    descriptor = os.open(lock_path(database), os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


class LockTests(SynchronousTestCase):
    """One Control Plane per SQLite file, and everybody can see whether it runs."""

    def setUp(self) -> None:
        super().setUp()
        self.database = Path(self.mktemp())

    def acquired(self) -> ControlPlaneLock:
        lock = ControlPlaneLock.acquire(self.database)
        self.addCleanup(lock.release)
        return lock

    def test_nobody_holds_it_and_looking_makes_no_file(self) -> None:
        assert not is_held(self.database)
        assert not lock_path(self.database).exists()

    def test_held_until_released(self) -> None:
        lock = self.acquired()
        assert is_held(self.database)
        assert stat.S_IMODE(lock_path(self.database).stat().st_mode) == 0o600
        lock.release()
        lock.release()
        assert not is_held(self.database)
        self.acquired()

    def test_a_fifo_in_its_place_holds_nobody_up(self) -> None:
        """P34: whoever can make files there cannot make a start wait for ever; the lock is as good on a FIFO."""
        os.mkfifo(lock_path(self.database), 0o600)
        assert not is_held(self.database)
        self.acquired()
        assert is_held(self.database)

    def test_second_is_refused_and_the_first_keeps_it(self) -> None:
        self.acquired()
        refusal = self.assertRaises(AlreadyRunning, ControlPlaneLock.acquire, self.database)
        assert "stop it first" in refusal.hint
        assert is_held(self.database)

    def test_looking_does_not_keep_a_control_plane_out(self) -> None:
        """A look shares the lock for an instant; whoever starts in it tries again."""
        looking = _open_shared(self.database)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                os.close(looking)

        self.patch(time, "sleep", pause)
        self.acquired()
        assert pauses == [0.01, 0.01]

    def test_link_is_not_followed(self) -> None:
        os.symlink(self.database, lock_path(self.database))
        with self.assertRaises(FileRefused):
            ControlPlaneLock.acquire(self.database)

    def test_folder_that_is_not_there(self) -> None:
        with self.assertRaises(FileRefused):
            ControlPlaneLock.acquire(self.database / "missing" / "iop.db")
