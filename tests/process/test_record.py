from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.errors import FileRefused
from iop.process.record import RunRecord, record_path
from iop.units import Role


class RunRecordTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp())

    def test_is_read_as_it_was_written(self) -> None:
        self.assertIsNone(RunRecord.read(self.folder, Role.EDGE))
        record = RunRecord("edge-1", 7, {"api": "127.0.0.1:1"})
        self.assertEqual(record.write(self.folder, Role.EDGE), record_path(self.folder, Role.EDGE))
        self.assertEqual(RunRecord.read(self.folder, Role.EDGE), record)
        self.assertIsNone(RunRecord.read(self.folder, Role.NODE))

    def test_what_no_role_wrote(self) -> None:
        """A pid of 0 or below would mean a group of processes to whoever sends it a signal."""
        self.folder.mkdir()
        for text in ("", "[]", "{}", *(f'{{"name": "n", "pid": {pid}, "addresses": {{}}}}' for pid in (0, -1, '"1"'))):
            record_path(self.folder, Role.EDGE).write_text(text)
            with self.assertRaises(FileRefused):
                RunRecord.read(self.folder, Role.EDGE)
