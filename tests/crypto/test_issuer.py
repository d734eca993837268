"""Issuer keys: the private file, the public set, and whose signature counts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nacl.bindings import crypto_sign_open
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto import issuer as issuer_module
from iop.crypto.issuer import PINNED_LIMIT, Issuer, PinnedIssuers, write_public_set
from iop.errors import AlreadyExists, BadConfig, FileRefused
from tests.crypto.samples import bit_flips, issuer


class IssuerCase(SynchronousTestCase):
    """A folder for key files."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        self.key = self.folder / "issuer.key"
        self.public = self.folder / "issuers.json"


class PrivateTests(IssuerCase):
    """The Control Plane's file."""

    def test_create(self) -> None:
        """0600, loads as the same key, its id is SHA-256 of the public key, no half of it shows."""
        made = Issuer.create(self.key)
        self.assertEqual(self.key.stat().st_mode & 0o777, 0o600)
        loaded = Issuer.load(self.key)
        self.assertEqual(loaded.public_key, made.public_key)
        self.assertEqual(made.key_id, hashlib.sha256(made.public_key).digest())
        self.assertEqual(loaded.sign(b"message"), made.sign(b"message"))
        seed: str = json.loads(self.key.read_text())["seed"]
        self.assertNotIn(seed, repr(vars(made)))

    def test_never_over(self) -> None:
        """An issuer key is not written over."""
        Issuer.create(self.key)
        before = self.key.read_bytes()
        self.assertRaises(AlreadyExists, Issuer.create, self.key)
        self.assertEqual(self.key.read_bytes(), before)

    def test_refused(self) -> None:
        """What is not exactly an issuer key is refused, and what was read is not shown."""
        Issuer.create(self.key)
        self.key.chmod(0o644)
        self.assertRaises(FileRefused, Issuer.load, self.key)
        for document in (
            {"format": "iop-issuer-key", "version": 1, "seed": "ab" * 31},
            {"format": "iop-issuer-key", "version": 2, "seed": "ab" * 32},
            {"format": "iop-keyring", "version": 1, "seed": "ab" * 32},
            {"format": "iop-issuer-key", "version": 1, "seed": "ab" * 32, "more": 1},
            {"format": "iop-issuer-key", "version": 1},
        ):
            self.key.write_text(json.dumps(document))
            self.key.chmod(0o600)
            error = self.assertRaises(BadConfig, Issuer.load, self.key)
            self.assertNotIn("abab", error.message + error.hint)


class PinnedTests(IssuerCase):
    """The set that Nodes pin."""

    def test_round_trip(self) -> None:
        """What is written is what is pinned; everybody may read it."""
        issuers = [issuer(number) for number in range(1, PINNED_LIMIT + 1)]
        write_public_set(self.public, [each.public_key for each in issuers])
        self.assertEqual(self.public.stat().st_mode & 0o777, 0o644)
        pinned = PinnedIssuers.load(self.public)
        self.assertEqual(list(pinned), [(each.key_id, each.public_key) for each in issuers])
        for each in issuers:
            self.assertEqual(pinned.signer(b"message", each.sign(b"message")), each.key_id)

    def test_signer(self) -> None:
        """Nobody else's signature counts, nor one over another message, cut, or with any bit changed."""
        pinned = PinnedIssuers([issuer(1).public_key, issuer(2).public_key])
        signature = issuer(1).sign(b"message")
        self.assertEqual(pinned.signer(b"message", signature), issuer(1).key_id)
        self.assertIs(pinned.signer(b"message", issuer(3).sign(b"message")), None)
        self.assertIs(pinned.signer(b"messages", signature), None)
        self.assertIs(pinned.signer(b"essage", signature + b"m"), None)
        for wrong in [b"", signature[:-1], signature + b"\0", bytes(64), *bit_flips(signature)]:
            self.assertIs(pinned.signer(b"message", wrong), None)

    def test_signature_is_computed_once(self) -> None:
        """What is known to hold is found again, is bounded, and vouches for nothing but itself (P4)."""
        computed: list[bytes] = []

        def count(signed: bytes, public_key: bytes) -> bytes:
            computed.append(signed)
            return crypto_sign_open(signed, public_key)

        self.patch(issuer_module, "crypto_sign_open", count)
        self.patch(issuer_module, "VERIFIED_LIMIT", 2)
        pinned = PinnedIssuers([issuer(1).public_key])
        messages = [b"one", b"two", b"three"]
        for message in [*messages, *messages[1:], messages[0]]:
            self.assertEqual(pinned.signer(message, issuer(1).sign(message)), issuer(1).key_id)
        # "one" had to make room for "three"
        self.assertEqual(len(computed), 4)
        for wrong in bit_flips(issuer(1).sign(b"one")):
            self.assertIs(pinned.signer(b"one", wrong), None)
        self.assertIs(PinnedIssuers([issuer(2).public_key]).signer(b"one", issuer(1).sign(b"one")), None)

    def test_nobody_pinned(self) -> None:
        """An empty set accepts nobody."""
        self.assertIs(PinnedIssuers([]).signer(b"message", issuer().sign(b"message")), None)

    def test_refused(self) -> None:
        """A set that is empty, too large, or has a key twice or under another id, is refused."""
        keys = [issuer(number).public_key for number in range(1, PINNED_LIMIT + 2)]
        entries = [{"key_id": hashlib.sha256(key).hexdigest(), "public_key": key.hex()} for key in keys]
        for wrong in (
            [],
            entries,
            [entries[0], entries[0]],
            [{**entries[0], "key_id": entries[1]["key_id"]}],
            [{**entries[0], "public_key": entries[0]["public_key"][:-2]}],
            [{**entries[0], "more": 1}],
            [{"public_key": entries[0]["public_key"]}],
        ):
            self.public.write_text(json.dumps({"format": "iop-issuers", "version": 1, "issuers": wrong}))
            error = self.assertRaises(BadConfig, PinnedIssuers.load, self.public)
            self.assertIn(str(self.public), error.message)
        self.assertRaises(FileRefused, PinnedIssuers.load, self.folder / "missing")
