"""SQLite under real processes: two that write, and one that is killed while it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.store import schema
from iop.store.lock import ControlPlaneLock, is_held

#: Denies names until it is killed, or has denied ``count``; prints each once it is acknowledged.
WRITER = """
import os, sys
from pathlib import Path
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import react
from iop.store.sqlite import open_sqlite

path, prefix, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

async def main(reactor):
    store = await open_sqlite(path, "deployment-1", reactor)

    async def work(worker):
        for number in range(worker, count, 4):
            made = await store.denials.deny("node", f"{prefix}{number}", "host:tester")
            os.write(1, f"{made.generation} {prefix}{number}\\n".encode())

    await gatherResults([Deferred.fromCoroutine(work(worker)) for worker in range(4)])
    await store.close()

react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
"""


class ProcessTests(SynchronousTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = Path(self.mktemp()).absolute()
        schema.migrate(self.path, "deployment-1")

    def writer(self, prefix: str, count: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-c", WRITER, str(self.path), prefix, str(count)], stdout=subprocess.PIPE, text=True
        )

        def end() -> None:
            process.kill()
            process.communicate()

        self.addCleanup(end)
        return process

    def denied(self) -> set[str]:
        connection = schema.connect(self.path)
        self.addCleanup(connection.close)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {name for (name,) in connection.execute("SELECT name FROM denials").fetchall()}

    def test_two_processes_write_at_once(self) -> None:
        """P42: every mutation of both is there, and no generation was issued twice."""
        writers = [self.writer(prefix, 200) for prefix in ("a", "b")]
        lines = [line for writer in writers for line in writer.communicate(timeout=60)[0].splitlines()]
        assert [writer.returncode for writer in writers] == [0, 0]
        made = dict(line.split() for line in lines)
        assert sorted(map(int, made)) == list(range(2, 402))
        assert self.denied() == set(made.values())

    def test_killed_while_writing(self) -> None:
        """P46: the file loads, every acknowledged mutation is there, and generation and audit agree with them."""
        for round_number in range(3):
            writer = self.writer(f"r{round_number}-", 1_000_000)
            assert writer.stdout is not None
            acknowledged = [writer.stdout.readline() for _ in range(40 + 25 * round_number)]
            os.kill(writer.pid, signal.SIGKILL)
            # a line that was cut off was not said
            acknowledged += [line for line in writer.stdout if line.endswith("\n")]
            writer.wait()
            names = {line.split()[1] for line in acknowledged}
            denied = self.denied()
            assert names <= denied
            assert schema.status(self.path).generation == 1 + len(denied)
            connection = schema.connect(self.path)
            self.addCleanup(connection.close)
            assert connection.execute("SELECT count(*) FROM audit").fetchall() == [(len(denied),)]

    def test_role_starts_without_the_migration_library(self) -> None:
        """Opening a store imports neither alembic nor SQLAlchemy: they would slow each start, and are needed once."""
        script = "import sys, iop.store.sqlite; sys.exit('sqlalchemy' in sys.modules or 'alembic' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", script], check=False)  # noqa: S603 - ourselves
        assert done.returncode == 0

    def test_lock_of_a_killed_control_plane_is_free(self) -> None:
        hold = (
            "import sys, pathlib; from iop.store.lock import ControlPlaneLock;"
            "lock = ControlPlaneLock.acquire(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-c", hold, str(self.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert is_held(self.path)
            holder.kill()
            holder.wait()
        assert not is_held(self.path)
        ControlPlaneLock.acquire(self.path).release()
