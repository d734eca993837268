"""``iop keyring``, as typed."""

from __future__ import annotations

import json

from iop.crypto.keyring import Keyring
from tests.cli.command import CommandCase


class InitTests(CommandCase):
    """``iop keyring init``."""

    def test_writes(self) -> None:
        """A private file that loads, and no key on the screen (P24)."""
        path = self.folder / "keyring.json"
        done = self.iop("keyring", "init", "--out", str(path))
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        ring = Keyring.load(path)
        self.assertIn(ring.primary, done.out)
        self.assertNotIn(ring.key(ring.primary).reveal().hex(), done.out)

    def test_json(self) -> None:
        """One line for programs, with an absolute path."""
        path = self.folder / "keyring.json"
        done = self.iop("keyring", "init", "--out", str(path), "--json")
        self.assertEqual(done.out.count("\n"), 1)
        self.assertEqual(json.loads(done.out), {"keyring": str(path.absolute()), "primary": Keyring.load(path).primary})

    def test_exists(self) -> None:
        """A keyring that is there stays, and the answer says what would have been lost and what to do."""
        path = self.folder / "keyring.json"
        self.iop("keyring", "init", "--out", str(path))
        before = path.read_bytes()
        done = self.iop("keyring", "init", "--out", str(path))
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn(f"{path} exists already", done.err)
        self.assertIn("Hint: name another file", done.err)
        self.assertEqual(path.read_bytes(), before)
        told = json.loads(self.iop("keyring", "init", "--out", str(path), "--json").out)
        self.assertEqual(told["error"]["code"], "already_exists")

    def test_no_folder(self) -> None:
        """A folder that is not there is named with what to do."""
        done = self.iop("keyring", "init", "--out", str(self.folder / "missing" / "keyring.json"))
        self.assertEqual(done.code, 1)
        self.assertIn("mkdir -p", done.err)

    def test_usage(self) -> None:
        """Without --out it says what is missing."""
        done = self.iop("keyring", "init")
        self.assertEqual(done.code, 2)
        self.assertIn("--out", done.err)
