"""``iop issuer``, as typed."""

from __future__ import annotations

import json

from iop.crypto.issuer import Issuer, PinnedIssuers
from tests.cli.command import CommandCase, Done


class IssuerCase(CommandCase):
    """The two files."""

    def setUp(self) -> None:
        super().setUp()
        self.key = self.folder / "issuer.key"
        self.public = self.folder / "issuers.json"

    def init(self, *more: str) -> Done:
        return self.iop("issuer", "init", "--key", str(self.key), "--public", str(self.public), *more)


class InitTests(IssuerCase):
    """``iop issuer init``."""

    def test_writes(self) -> None:
        """A private key file, and the set that pins just its public half; the seed is nowhere else (P24)."""
        done = self.init()
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(self.key.stat().st_mode & 0o777, 0o600)
        issuer = Issuer.load(self.key)
        self.assertEqual(list(PinnedIssuers.load(self.public)), [(issuer.key_id, issuer.public_key)])
        seed: str = json.loads(self.key.read_text())["seed"]
        self.assertNotIn(seed, done.out + self.public.read_text())
        self.assertIn(issuer.key_id.hex(), done.out)

    def test_json(self) -> None:
        """One line for programs, with absolute paths."""
        done = self.init("--json")
        self.assertEqual(done.out.count("\n"), 1)
        told = json.loads(done.out)
        self.assertEqual(told["key"], str(self.key.absolute()))
        self.assertEqual(told["public"], str(self.public.absolute()))
        self.assertEqual(told["key_id"], Issuer.load(self.key).key_id.hex())

    def test_key_exists(self) -> None:
        """A key that is there stays, and no public set is written for it."""
        self.init()
        before = self.key.read_bytes()
        self.public.unlink()
        done = self.init()
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn(f"{self.key} exists already", done.err)
        self.assertEqual(self.key.read_bytes(), before)
        self.assertFalse(self.public.exists())

    def test_public_exists(self) -> None:
        """A public set that is there stays, and no key without one is left behind."""
        self.public.write_text("pinned by somebody")
        done = self.init()
        self.assertEqual(done.code, 1)
        self.assertIn(f"{self.public} exists already", done.err)
        self.assertEqual(self.public.read_text(), "pinned by somebody")
        self.assertFalse(self.key.exists())

    def test_public_cannot_be_written(self) -> None:
        """Nothing is left behind, so the same command works once the folder is there."""
        self.public = self.folder / "missing" / "issuers.json"
        self.assertEqual(self.init().code, 1)
        self.assertFalse(self.key.exists())
        self.public.parent.mkdir()
        self.assertEqual(self.init().code, 0)

    def test_one_file_for_both(self) -> None:
        """One name for both files is refused and leaves nothing."""
        self.public = self.key
        self.assertEqual(self.init().code, 1)
        self.assertFalse(self.key.exists())


class ListTests(IssuerCase):
    """``iop issuer list``."""

    def test_table(self) -> None:
        """Each issuer's key id, whole, also on a narrow screen."""
        self.init()
        done = self.iop("issuer", "list", "--public", str(self.public))
        self.assertEqual((done.code, done.err), (0, ""))
        (key_id, _) = next(iter(PinnedIssuers.load(self.public)))
        self.assertIn(key_id.hex(), done.out)

    def test_json(self) -> None:
        """Key ids and public keys for programs."""
        self.init()
        told = json.loads(self.iop("issuer", "list", "--public", str(self.public), "--json").out)
        issuer = Issuer.load(self.key)
        expected = {"key_id": issuer.key_id.hex(), "public_key": issuer.public_key.hex()}
        self.assertEqual(told, {"issuers": [expected]})

    def test_another_file(self) -> None:
        """A file that is no public set, the private key included, is refused without showing what is in it."""
        self.init()
        done = self.iop("issuer", "list", "--public", str(self.key))
        self.assertEqual(done.code, 1)
        seed: str = json.loads(self.key.read_text())["seed"]
        self.assertNotIn(seed, done.err)
        told = json.loads(self.iop("issuer", "list", "--public", str(self.folder / "missing"), "--json").out)
        self.assertEqual(told["error"]["code"], "file_refused")
