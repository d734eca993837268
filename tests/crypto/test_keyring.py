"""The keyring file: what is written, and that nothing but a keyring is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.keyring import KEY_COUNT_LIMIT, Keyring
from iop.errors import AlreadyExists, BadConfig, FileRefused, KeyMissing

IDS = [f"0190a0b1-0000-7000-8000-{number:012x}" for number in range(KEY_COUNT_LIMIT + 1)]


def entry(number: int, state: str, key: object = "ab" * 32) -> dict[str, object]:
    """One key as it stands in the file."""
    return {"id": IDS[number], "state": state, "key": key}


class KeyringTests(SynchronousTestCase):
    """security.md, At rest."""

    def setUp(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir()
        self.path = folder / "keyring.json"

    def written(self, content: bytes) -> Path:
        self.path.write_bytes(content)
        self.path.chmod(0o600)
        return self.path

    def document(self, *keys: object, **changes: object) -> dict[str, Any]:
        return {"format": "iop-keyring", "version": 1, "keys": list(keys), **changes}

    def test_create(self) -> None:
        """One primary key, 0600, and it loads as the same."""
        made = Keyring.create(self.path)
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        loaded = Keyring.load(self.path)
        self.assertEqual(loaded.primary, made.primary)
        self.assertEqual(loaded.key(loaded.primary).reveal(), made.key(made.primary).reveal())
        self.assertEqual(len(made.key(made.primary)), 32)

    def test_create_differs(self) -> None:
        """Two keyrings share nothing."""
        first, second = Keyring.create(self.path), Keyring.create(self.path.with_name("other"))
        self.assertNotEqual(first.primary, second.primary)
        self.assertNotEqual(first.key(first.primary).reveal(), second.key(second.primary).reveal())

    def test_never_over(self) -> None:
        """What is there, a dangling link included, is not written over."""
        Keyring.create(self.path)
        before = self.path.read_bytes()
        link = self.path.with_name("link")
        link.symlink_to("nowhere")
        for path in (self.path, link):
            error = self.assertRaises(AlreadyExists, Keyring.create, path)
            self.assertIn(str(path), error.message)
            self.assertTrue(error.hint)
        self.assertEqual(self.path.read_bytes(), before)
        self.assertTrue(link.is_symlink())

    def test_private(self) -> None:
        """A keyring that others can read, or behind a link, is refused."""
        Keyring.create(self.path)
        link = self.path.with_name("link")
        link.symlink_to(self.path.absolute())
        self.assertRaises(FileRefused, Keyring.load, link)
        self.path.chmod(0o640)
        self.assertRaises(FileRefused, Keyring.load, self.path)
        self.assertRaises(FileRefused, Keyring.load, self.path.with_name("missing"))

    def test_states(self) -> None:
        """All four states load; a destroyed key is known and gone."""
        states = ["primary", "added", "decrypt-only"]
        keys = [entry(number, state) for number, state in enumerate(states)]
        ring = Keyring.load(self.written(json.dumps(self.document(*keys, entry(3, "destroyed", None))).encode()))
        self.assertEqual(ring.primary, IDS[0])
        for number in range(3):
            self.assertEqual(ring.key(IDS[number]).reveal(), b"\xab" * 32)
        for missing in (IDS[3], IDS[4]):
            self.assertIn(missing, self.assertRaises(KeyMissing, ring.key, missing).message)

    def test_long_id_in_error(self) -> None:
        """An id from a row is cut and escaped before it is shown."""
        error = self.assertRaises(KeyMissing, Keyring.create(self.path).key, "a\n" * 1000)
        self.assertNotIn("\n", error.message)
        self.assertLess(len(error.message), 300)

    def test_count(self) -> None:
        """64 keys load, 65 do not."""
        keys = [entry(number, "decrypt-only" if number else "primary") for number in range(KEY_COUNT_LIMIT + 1)]
        self.assertEqual(Keyring.load(self.written(json.dumps(self.document(*keys[:-1])).encode())).primary, IDS[0])
        self.assertRaises(BadConfig, Keyring.load, self.written(json.dumps(self.document(*keys)).encode()))

    def test_refused(self) -> None:
        """Anything that is not exactly a keyring is refused by name and place, and no key is shown."""
        good = entry(0, "primary")
        documents: dict[str, object] = {
            "no object": [],
            "no format": {"version": 1, "keys": [good]},
            "another format": self.document(good, format="iop-issuers"),
            "another version": self.document(good, version=2),
            "version true": self.document(good, version=True),
            "version 1.0": self.document(good, version=1.0),
            "unknown member": self.document(good, more=1),
            "no keys": self.document(),
            "keys no list": self.document(keys={"0": good}),
            "key no object": self.document("ab" * 32),
            "unknown member in a key": self.document({**good, "more": 1}),
            "missing member in a key": self.document({"id": IDS[0], "key": "ab" * 32}),
            "no primary": self.document(entry(0, "added")),
            "two primaries": self.document(good, entry(1, "primary")),
            "one id twice": self.document(good, entry(0, "added")),
            "unknown state": self.document(good, entry(1, "sleeping")),
            "state no text": self.document(good, {"id": IDS[1], "state": 1, "key": "ab" * 32}),
            "state a list": self.document(good, {"id": IDS[1], "state": [], "key": "ab" * 32}),
            "destroyed with a key": self.document(good, entry(1, "destroyed")),
            "primary without key": self.document(entry(0, "primary", None)),
            "short key": self.document(entry(0, "primary", "ab" * 31)),
            "long key": self.document(entry(0, "primary", "ab" * 33)),
            "capital hex": self.document(entry(0, "primary", "AB" * 32)),
            "hex with a blank": self.document(entry(0, "primary", "ab" * 31 + " a")),
            "id no UUID": self.document({**good, "id": "primary"}),
            "id in another form": self.document({**good, "id": IDS[0].replace("-", "")}),
            "id a number": self.document({**good, "id": 1}),
        }
        contents = {name: json.dumps(document).encode() for name, document in documents.items()}
        text = json.dumps(self.document(good))
        contents["duplicate member"] = text.replace('"version": 1', '"version": 1, "version": 1').encode()
        contents["trailing text"] = text.encode() + b"x"
        contents["empty"] = b""
        contents["NUL"] = bytes(64)
        accepted = []
        for name, content in contents.items():
            try:
                Keyring.load(self.written(content))
            except BadConfig as error:
                self.assertIn(os.fspath(self.path), error.message, name)
                self.assertNotIn("abab", error.message + error.hint, name)
            else:
                accepted.append(name)
        self.assertEqual(accepted, [])
