"""The searcher that leak tests stand on finds what is there."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from urllib.parse import quote

from twisted.trial.unittest import SynchronousTestCase

from tests.canaries import Find, Searcher, process_words, spellings, with_children

#: Holds the bytes it is given in the one form it is told, and nothing else of them, until its input ends.
HOLDER = """
import sys
held = bytes.fromhex(sys.stdin.buffer.read(int(sys.argv[1])).decode().swapcase()[::-1])
print("held", flush=True)
sys.stdin.buffer.read()
"""


class SearcherTests(SynchronousTestCase):
    def setUp(self) -> None:
        # with what some encodings leave as it is
        self.marker = b"/" + os.urandom(32)
        self.searcher = Searcher({"marker": self.marker})

    def forms(self, data: bytes) -> set[str]:
        return {find.form for find in self.searcher.in_bytes("here", data)}

    def test_each_encoding_is_found(self) -> None:
        """As independent code spells it, in the middle of something else."""
        self.assertIn("raw", self.forms(b"x" + self.marker + b"y"))
        self.assertIn("hex", self.forms(self.marker.hex().encode()))
        self.assertIn("HEX", self.forms(b"".join(b"%02X" % byte for byte in self.marker)))
        self.assertIn("url", self.forms(quote(self.marker, safe="").encode()))
        self.assertIn("url path", self.forms(quote(self.marker).encode()))
        escaped = "".join(f"%{byte:02x}" for byte in self.marker).encode()
        self.assertIn("url, every byte", self.forms(escaped))
        self.assertIn("url, every byte, upper case", self.forms(escaped.upper()))

    def test_base64_is_found_wherever_it_begins(self) -> None:
        for before in range(7):
            for after in range(4):
                data = os.urandom(before) + self.marker + os.urandom(after)
                self.assertIn(f"base64 at {before % 3}", self.forms(base64.b64encode(data)), (before, after))
                self.assertIn(f"base64url at {before % 3}", self.forms(base64.urlsafe_b64encode(data)), (before, after))

    def test_nothing_else_is_found(self) -> None:
        other = os.urandom(32)
        for form in spellings(other).values():
            self.assertEqual(self.forms(form + self.marker[:-1]), set())

    def test_markers_that_chance_would_find_are_refused(self) -> None:
        self.assertRaises(ValueError, spellings, b"short")

    def test_files_are_searched_by_content_and_name(self) -> None:
        folder = Path(self.mktemp())
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "content").write_bytes(b"\0" * 5_000_000 + self.marker)
        (folder / self.marker.hex()).touch()
        (folder / "clean").write_bytes(b"nothing")
        found = self.searcher.in_files(folder)
        self.assertEqual(
            {(find.place, find.form) for find in found}, {("below/content", "raw"), (self.marker.hex(), "hex")}
        )

    def test_a_find_does_not_show_the_marker(self) -> None:
        """Its report can be printed by a failing test."""
        (find,) = self.searcher.in_bytes("here", self.marker)
        self.assertEqual(find, Find("here", "marker", "raw"))


class ProcessTests(SynchronousTestCase):
    def holder(self, held: bytes, *arguments: str, **environment: str) -> Popen[bytes]:
        """A process that has ``held`` in its memory, and nothing of it in its words."""
        told = held.hex()[::-1].swapcase().encode()
        child = Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", HOLDER, str(len(told)), *arguments],
            stdin=PIPE,
            stdout=PIPE,
            env=os.environ | environment,
        )
        self.addCleanup(child.communicate)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(told)
        child.stdin.flush()
        self.assertEqual(child.stdout.readline(), b"held\n")
        return child

    def test_each_form_is_found_in_memory(self) -> None:
        """Needs root, or a kernel that lets a parent read its child."""
        marker = os.urandom(32)
        searcher = Searcher({"marker": marker})
        for form, spelled in spellings(marker).items():
            found = searcher.in_memory(self.holder(spelled).pid)
            self.assertIn(form, {find.form for find in found})

    def test_nothing_else_is_found_in_memory(self) -> None:
        self.assertEqual(Searcher({"marker": os.urandom(32)}).in_memory(self.holder(os.urandom(32)).pid), [])

    def test_memory_that_cannot_be_read_is_an_error(self) -> None:
        """Never taken for memory in which nothing was found."""
        searcher = Searcher({"marker": os.urandom(32)})
        with self.assertRaises(AssertionError):
            searcher.in_memory(2**22 + 1)

    def test_command_lines_and_environments_are_read(self) -> None:
        words = process_words(self.holder(b"nothing", "an-argument", IOP_TEST_CANARY="a-variable").pid)
        for word in (b"an-argument", b"IOP_TEST_CANARY=a-variable"):
            self.assertIn(word, words)

    def test_descendants_are_known(self) -> None:
        child = self.holder(b"nothing")
        self.assertIn(child.pid, set(with_children(os.getpid())))
