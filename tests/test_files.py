"""Files with secrets are read only where nobody else can read them, and no file is ever half written."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.errors import AlreadyExists, FileRefused
from iop.files import check_private, create_private, make_folder, read_private, read_public, write_atomic, write_private


class FilesCase(SynchronousTestCase):
    """A folder of its own for every test."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        self.path = self.folder / "secret"

    def put(self, data: bytes, mode: int = 0o600) -> Path:
        self.path.write_bytes(data)
        self.path.chmod(mode)
        return self.path

    def refused(self, path: Path, limit: int = 100) -> FileRefused:
        error: FileRefused = self.assertRaises(FileRefused, read_private, path, limit)
        return error


class ReadPrivateTests(FilesCase):
    """What :func:`read_private` takes and refuses."""

    def test_reads_into_a_buffer_that_can_be_zeroed(self) -> None:
        data = read_private(self.put(b"canary"), 100)
        self.assertIsInstance(data, bytearray)
        self.assertEqual(data, b"canary")

    def test_owner_may_have_less_than_0600(self) -> None:
        self.assertEqual(read_private(self.put(b"canary", 0o400), 100), b"canary")

    def test_every_bit_of_group_and_others_is_refused(self) -> None:
        for bit in (0o040, 0o020, 0o010, 0o004, 0o002, 0o001):
            error = self.refused(self.put(b"canary", 0o600 | bit))
            self.assertEqual(error.code, "file_refused")
            self.assertIn(str(self.path), error.message)
            self.assertEqual(error.hint, f"chmod 600 {self.path}")

    def test_another_owner_is_refused(self) -> None:
        self.put(b"canary")
        self.patch(os, "geteuid", lambda: self.path.stat().st_uid + 1)
        error = self.refused(self.path)
        self.assertEqual(error.hint, f"chown {os.geteuid()} {self.path}")

    def test_a_symbolic_link_is_refused(self) -> None:
        link = self.folder / "link"
        link.symlink_to(self.put(b"canary"))
        self.assertIn("symbolic link", self.refused(link).message)

    def test_a_folder_is_refused(self) -> None:
        self.assertIn("not a regular file", self.refused(self.folder).message)

    def test_a_fifo_is_refused_without_waiting_for_its_writer(self) -> None:
        os.mkfifo(self.path, 0o600)
        self.assertIn("not a regular file", self.refused(self.path).message)

    def test_missing(self) -> None:
        error = self.refused(self.path)
        self.assertIn("No such file", error.message)
        self.assertIn(str(self.path), error.hint)

    def test_at_the_limit_and_one_past(self) -> None:
        self.assertEqual(read_private(self.put(b"x" * 100), 100), b"x" * 100)
        self.assertIn("longer than 100 bytes", self.refused(self.put(b"x" * 101)).message)

    def test_empty(self) -> None:
        self.assertEqual(read_private(self.put(b""), 100), b"")

    def test_refusals_leave_no_descriptor_open(self) -> None:
        self.put(b"canary", 0o644)
        before = os.listdir("/proc/self/fd")
        for _ in range(10):
            self.refused(self.path)
        self.assertEqual(len(os.listdir("/proc/self/fd")), len(before))

    def test_no_refusal_shows_what_the_file_holds(self) -> None:
        error = self.refused(self.put(b"canary" * 20))
        self.assertNotIn("canary", f"{error.message} {error.hint} {error!r}")


class CheckPrivateTests(FilesCase):
    """What :func:`check_private` takes and refuses."""

    def test_a_private_file_and_a_link_to_one(self) -> None:
        link = self.folder / "link"
        link.symlink_to(self.put(b"canary"))
        for path in (self.path, link):
            check_private(path)
            self.path.chmod(0o640)
            self.assertEqual(self.assertRaises(FileRefused, check_private, path).hint, f"chmod 600 {path}")
            self.path.chmod(0o600)

    def test_what_is_no_file(self) -> None:
        self.assertIn("No such file", self.assertRaises(FileRefused, check_private, self.path).message)
        self.folder.chmod(0o700)
        self.assertIn("not a regular file", self.assertRaises(FileRefused, check_private, self.folder).message)
        os.mkfifo(self.path, 0o600)
        self.assertIn("not a regular file", self.assertRaises(FileRefused, check_private, self.path).message)


class DescriptorTests(FilesCase):
    """Without a descriptor no file is opened, and it is not the file that is to be looked at."""

    def test_says_what_to_raise(self) -> None:
        self.put(b"canary")
        for number in (errno.EMFILE, errno.ENFILE):

            def refuses(*_: object, number: int = number) -> None:
                raise OSError(number, "too many")

            patcher = self.patch(os, "open", refuses)
            errors: list[FileRefused] = [
                self.assertRaises(FileRefused, read_private, self.path, 100),
                self.assertRaises(FileRefused, write_private, self.path, b"new"),
            ]
            patcher.restore()
            self.assertEqual({error.hint.partition(" that")[0] for error in errors}, {"raise the limit of open files"})
        self.assertEqual(self.path.read_bytes(), b"canary")


class ReadPublicTests(FilesCase):
    """What :func:`read_public` takes and refuses."""

    def test_open_to_all_and_behind_a_link(self) -> None:
        link = self.folder / "link"
        link.symlink_to(self.put(b"public", 0o644))
        self.assertEqual(read_public(link, 100), b"public")

    def test_writable_by_everybody(self) -> None:
        """Whoever may write what names the trusted is trusted, so that is not everybody; a group is chosen."""
        refused = self.assertRaises(FileRefused, read_public, self.put(b"public", 0o646), 100)
        self.assertEqual(refused.hint, f"chmod o-w {self.path}")
        self.assertEqual(read_public(self.put(b"public", 0o664), 100), b"public")

    def test_limit_and_kind_hold_here_too(self) -> None:
        self.assertRaises(FileRefused, read_public, self.put(b"x" * 101), 100)
        self.assertRaises(FileRefused, read_public, self.folder, 100)
        self.assertRaises(FileRefused, read_public, self.folder / "missing", 100)


class WriteTests(FilesCase):
    """Writing is all or nothing (P46)."""

    def test_private_is_0600_whatever_the_umask(self) -> None:
        old = os.umask(0)
        self.addCleanup(os.umask, old)
        write_private(self.path, bytearray(b"canary"))
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o600)
        self.assertEqual(read_private(self.path, 100), b"canary")

    def test_mode_whatever_the_umask(self) -> None:
        old = os.umask(0o077)
        self.addCleanup(os.umask, old)
        write_atomic(self.path, b"public", 0o644)
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o644)

    def test_replaces_the_whole_and_leaves_nothing_beside_it(self) -> None:
        write_private(self.path, b"a longer old value")
        write_private(self.path, b"new")
        self.assertEqual(self.path.read_bytes(), b"new")
        self.assertEqual(os.listdir(self.folder), ["secret"])

    def test_replaces_a_link_and_not_what_it_points_to(self) -> None:
        target = self.folder / "target"
        target.write_bytes(b"untouched")
        self.path.symlink_to(target)
        write_private(self.path, b"new")
        self.assertEqual(target.read_bytes(), b"untouched")
        self.assertFalse(self.path.is_symlink())

    def test_order_is_data_then_name_then_folder(self) -> None:
        """P46: the data is on disk before it gets its name, the name before the call returns."""
        steps: list[str] = []
        fsync, rename = os.fsync, os.rename

        def recorded_fsync(descriptor: int) -> None:
            steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "data")
            fsync(descriptor)

        def recorded_rename(source: str, target: Path) -> None:
            steps.append("rename")
            rename(source, target)

        self.patch(os, "fsync", recorded_fsync)
        self.patch(os, "rename", recorded_rename)
        write_private(self.path, b"new")
        self.assertEqual(steps, ["data", "rename", "folder"])

    def test_a_failure_at_any_step_keeps_the_old_and_leaves_nothing_beside_it(self) -> None:
        """P47: a full disk is a clear error."""
        write_private(self.path, b"old")

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        for step in ("fchmod", "fsync", "rename"):
            with self.subTest(step=step):
                patcher = self.patch(os, step, full)
                error = self.assertRaises(FileRefused, write_private, self.path, b"new")
                patcher.restore()
                self.assertIn("No space left", error.message)
                self.assertIn("free some space", error.hint)
                self.assertEqual(self.path.read_bytes(), b"old")
                self.assertEqual(os.listdir(self.folder), ["secret"])

    def test_creates_what_is_not_there(self) -> None:
        create_private(self.path, bytearray(b"canary"), "it is the only one")
        self.assertEqual(read_private(self.path, 100), b"canary")
        self.assertEqual(os.listdir(self.folder), ["secret"])

    def test_creation_leaves_alone_whatever_has_the_name(self) -> None:
        """P46: a file, a folder, and a link that leads nowhere."""
        kinds: list[tuple[Callable[[], object], Callable[[], object]]] = [
            (self.path.touch, self.path.unlink),
            (self.path.mkdir, self.path.rmdir),
            (lambda: self.path.symlink_to("nowhere"), self.path.unlink),
        ]
        for make, clear in kinds:
            make()
            error = self.assertRaises(AlreadyExists, create_private, self.path, b"new", "it is the only one")
            self.assertEqual(error.message, f"{self.path} exists already, and it is the only one")
            self.assertIn("move that one away", error.hint)
            self.assertEqual(os.listdir(self.folder), ["secret"])
            clear()

    def test_of_two_that_create_one_file_at_once_one_is_refused(self) -> None:
        """P46: another process comes between, at the last moment there is."""
        link = os.link

        def beaten(source: str, target: Path) -> None:
            target.write_bytes(b"theirs")
            link(source, target)

        self.patch(os, "link", beaten)
        self.assertRaises(AlreadyExists, create_private, self.path, b"ours", "it is the only one")
        self.assertEqual(self.path.read_bytes(), b"theirs")
        self.assertEqual(os.listdir(self.folder), ["secret"])

    def test_creation_fails_on_a_full_disk_and_leaves_nothing(self) -> None:
        """P47: a full disk is a clear error."""

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        for step in ("fchmod", "fsync", "link"):
            with self.subTest(step=step):
                patcher = self.patch(os, step, full)
                error = self.assertRaises(FileRefused, create_private, self.path, b"new", "it is the only one")
                patcher.restore()
                self.assertIn("free some space", error.hint)
                self.assertEqual(os.listdir(self.folder), [])

    def test_folder(self) -> None:
        folder = self.folder / "a" / "b"
        make_folder(folder)
        make_folder(folder)
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)
        self.path.write_bytes(b"")
        error = self.assertRaises(FileRefused, make_folder, self.path / "c")
        self.assertIn(f"{self.path / 'c'} cannot be made", error.message)
        self.assertIn(str(self.path), error.hint)

    def test_missing_folder_says_how_to_make_it(self) -> None:
        error = self.assertRaises(FileRefused, write_private, self.folder / "no" / "secret", b"new")
        self.assertEqual(error.hint, f"create the folder first: mkdir -p {self.folder / 'no'}")
