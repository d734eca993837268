"""Secrets at rest: they open in their own place, under their own key, and nowhere else."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.at_rest import SECRET_HARD_CAP, Place, open_secret, seal_secret
from iop.crypto.keyring import Keyring, KeyringKey, KeyState
from iop.errors import CannotOpen, KeyMissing, MalformedInput
from iop.records import SealedSecret
from iop.secret import Secret
from tests.crypto.samples import CANARY, bit_flips

PLACE = Place("deployment-1", "slots", "secret", "principal-1", "slot-1", "openai", "openai", 7)
FIRST = "0190a0b1-0000-7000-8000-000000000001"
SECOND = "0190a0b1-0000-7000-8000-000000000002"


def keyring(*states: tuple[str, KeyState]) -> Keyring:
    """A keyring whose keys depend on nothing but their ids."""
    return Keyring(
        KeyringKey(key_id, state, None if state is KeyState.DESTROYED else Secret(key_id.encode()[-1:] * 32))
        for key_id, state in states
    )


class AtRestTests(SynchronousTestCase):
    """security.md, At rest."""

    def setUp(self) -> None:
        self.keyring = keyring((FIRST, KeyState.PRIMARY))
        self.sealed = seal_secret(self.keyring, PLACE, Secret(CANARY))

    def opens(self, place: Place, sealed: SealedSecret, ring: Keyring | None = None) -> bool:
        """Whether the secret comes out; if not, it must be with the uniform error."""
        try:
            opened = open_secret(ring or self.keyring, place, sealed)
        except CannotOpen as error:
            self.assertEqual(error.args, ("the sealed value cannot be opened",))
            self.assertTrue(error.__cause__ is None and (error.__context__ is None or error.__suppress_context__))
            return False
        self.assertEqual(opened.reveal(), CANARY)
        return True

    @settings(deadline=None)
    @given(st.binary(max_size=3000), st.builds(Place, *[st.text(st.characters(codec="utf-8"))] * 7, st.integers(0)))
    def test_round_trip(self, secret: bytes, place: Place) -> None:
        """Any secret comes back in its place, the empty one of profile ``none`` included."""
        ring = keyring((FIRST, KeyState.PRIMARY))
        self.assertEqual(open_secret(ring, place, seal_secret(ring, place, Secret(secret))).reveal(), secret)

    def test_lengths(self) -> None:
        """0 bytes and 64 KiB are sealed, one more is refused."""
        for length in (0, SECRET_HARD_CAP):
            sealed = seal_secret(self.keyring, PLACE, Secret(bytes(length)))
            self.assertEqual(len(open_secret(self.keyring, PLACE, sealed)), length)
        with self.assertRaises(MalformedInput):
            seal_secret(self.keyring, PLACE, Secret(bytes(SECRET_HARD_CAP + 1)))

    def test_form(self) -> None:
        """IOP1, algorithm 1, 24 bytes of nonce, 16 bytes of tag; the plain secret is nowhere (P21)."""
        self.assertEqual(self.sealed.key_id, FIRST)
        for sealed, length in ((self.sealed.box, len(CANARY)), (self.sealed.wrapped_key, 32)):
            self.assertEqual(sealed[:5], b"IOP1\x01")
            self.assertEqual(len(sealed), 5 + 24 + length + 16)
            self.assertNotIn(CANARY, sealed)
        self.assertNotIn(self.sealed.box.hex(), repr(self.sealed))

    def test_moved(self) -> None:
        """P22: moved to any other deployment, row, column, principal, profile, target or revision it does not open."""
        self.assertTrue(self.opens(PLACE, self.sealed))
        opening = []
        for name in (field.name for field in fields(Place)):
            value = getattr(PLACE, name)
            for other in [value + 1, 0, -7] if isinstance(value, int) else [value + "x", "", value[:-1]]:
                changed: dict[str, Any] = {name: other}
                if self.opens(replace(PLACE, **changed), self.sealed):
                    opening.append((name, other))
        self.assertEqual(opening, [])

    def test_shifted(self) -> None:
        """P22: a letter moved from one field to its neighbour is another place."""
        names = [field.name for field in fields(Place)][:-1]
        for left, right in pairwise(names):
            value: str = getattr(PLACE, left)
            changed: dict[str, Any] = {left: value[:-1], right: value[-1] + getattr(PLACE, right)}
            self.assertFalse(self.opens(replace(PLACE, **changed), self.sealed), (left, right))

    def test_mixed(self) -> None:
        """P22: the box of one sealing and the wrapped key of another do not go together, even in one place."""
        again = seal_secret(self.keyring, PLACE, Secret(CANARY))
        self.assertFalse(self.opens(PLACE, replace(self.sealed, box=again.box)))
        self.assertFalse(self.opens(PLACE, replace(self.sealed, wrapped_key=again.wrapped_key)))
        swapped = SealedSecret(FIRST, self.sealed.box, self.sealed.wrapped_key)
        self.assertFalse(self.opens(PLACE, swapped))

    def test_every_bit(self) -> None:
        """Any one bit flipped, header and algorithm included, opens nothing."""
        for name in ("wrapped_key", "box"):
            for flipped in bit_flips(getattr(self.sealed, name)):
                changed: dict[str, Any] = {name: flipped}
                self.assertFalse(self.opens(PLACE, replace(self.sealed, **changed)))

    def test_every_length(self) -> None:
        """Nor does anything shorter, longer or beyond the cap."""
        for name in ("wrapped_key", "box"):
            value: bytes = getattr(self.sealed, name)
            for other in [*(value[:end] for end in range(len(value))), value + b"\0", value + bytes(SECRET_HARD_CAP)]:
                changed: dict[str, Any] = {name: other}
                self.assertFalse(self.opens(PLACE, replace(self.sealed, **changed)))

    def test_fresh_data_key(self) -> None:
        """Sealing the same secret twice shares no byte run beyond the header."""
        again = seal_secret(self.keyring, PLACE, Secret(CANARY))
        self.assertNotEqual(again.box[5:29], self.sealed.box[5:29])
        self.assertNotEqual(again.wrapped_key[29:], self.sealed.wrapped_key[29:])

    def test_missing_key(self) -> None:
        """A key that the keyring never had, or destroyed, is named; nothing else is tried."""
        for ring in (
            keyring((SECOND, KeyState.PRIMARY)),
            keyring((SECOND, KeyState.PRIMARY), (FIRST, KeyState.DESTROYED)),
        ):
            with self.assertRaises(KeyMissing) as caught:
                open_secret(ring, PLACE, self.sealed)
            self.assertIn(FIRST, caught.exception.message)

    def test_wrong_id(self) -> None:
        """No trial decryption: under another key's id it does not open, though the right key is there."""
        ring = keyring((FIRST, KeyState.PRIMARY), (SECOND, KeyState.ADDED))
        self.assertTrue(self.opens(PLACE, self.sealed, ring))
        self.assertFalse(self.opens(PLACE, replace(self.sealed, key_id=SECOND), ring))

    def test_id_is_authenticated(self) -> None:
        """The same key bytes under another id do not unwrap: the id is part of what is authenticated."""
        bytes_of_first = self.keyring.key(FIRST)
        renamed = Keyring([KeyringKey(SECOND, KeyState.PRIMARY, bytes_of_first)])
        self.assertFalse(self.opens(PLACE, replace(self.sealed, key_id=SECOND), renamed))

    def test_states(self) -> None:
        """Only the primary wraps; added and decrypt-only keys unwrap."""
        for state in (KeyState.ADDED, KeyState.DECRYPT_ONLY):
            ring = keyring((FIRST, state), (SECOND, KeyState.PRIMARY))
            self.assertTrue(self.opens(PLACE, self.sealed, ring))
            self.assertEqual(seal_secret(ring, PLACE, Secret(CANARY)).key_id, SECOND)
