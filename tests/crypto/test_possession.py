"""Proof of possession: who has no private key has no answer, and nothing opened is ever returned."""

from __future__ import annotations

import hmac
from typing import Any

from nacl.bindings import crypto_box_seal
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.possession import answer, challenge, check
from iop.errors import AttestationRefused, CannotOpen, PossessionRefused
from iop.secret import Secret
from tests.crypto.independent import prefixed
from tests.crypto.samples import CANARY, Recipient, bit_flips, sealed_lease

EXPORTER = bytes(range(32))


class PossessionTests(SynchronousTestCase):
    """N3, P14."""

    def setUp(self) -> None:
        self.node = Recipient.new()
        self.context: dict[str, Any] = {
            "edge": "edge-1",
            "node": "node-1",
            "public_key": self.node.public_key,
            "exporter": EXPORTER,
        }

    def test_holds(self) -> None:
        """Whoever holds the private key answers, without the nonce being in the answer."""
        sealed, nonce = challenge(self.node.public_key)
        plain = bytes(nonce.reveal())
        answered = answer(self.node.private_key, sealed, **self.context)
        check(nonce, answered, **self.context)
        self.assertEqual(len(answered), 32)
        self.assertNotEqual(answered, plain)

    def test_once(self) -> None:
        """A nonce is good for one answer, right or wrong, and zeroed then."""
        sealed, nonce = challenge(self.node.public_key)
        buffer = nonce.reveal()
        answered = answer(self.node.private_key, sealed, **self.context)
        with self.assertRaises(PossessionRefused):
            check(nonce, bytes(32), **self.context)
        self.assertEqual(buffer, b"")
        with self.assertRaises(PossessionRefused):
            check(nonce, answered, **self.context)

    def test_disposed_nonce(self) -> None:
        """The empty nonce that is left is no key under which an answer could be made up."""
        _, nonce = challenge(self.node.public_key)
        nonce.dispose()
        made_up = _mac_of_nothing(self.context)
        with self.assertRaises(PossessionRefused):
            check(nonce, made_up, **self.context)

    def test_fresh(self) -> None:
        """No two challenges are alike, so no answer is good for another one."""
        first, _ = challenge(self.node.public_key)
        second, nonce = challenge(self.node.public_key)
        self.assertNotEqual(first, second)
        with self.assertRaises(PossessionRefused):
            check(nonce, answer(self.node.private_key, first, **self.context), **self.context)

    def test_context(self) -> None:
        """An answer made for another Edge, Node, key or TLS connection is refused."""
        accepted = []
        for name, other in (
            ("edge", "edge-2"),
            ("node", "node-2"),
            ("public_key", Recipient.new().public_key),
            ("exporter", bytes(32)),
        ):
            sealed, nonce = challenge(self.node.public_key)
            answered = answer(self.node.private_key, sealed, **self.context)
            try:
                check(nonce, answered, **{**self.context, name: other})
            except PossessionRefused:
                continue
            accepted.append(name)
        self.assertEqual(accepted, [])

    def test_names_do_not_run_together(self) -> None:
        """A letter moved from one name to the other is another answer."""
        sealed, nonce = challenge(self.node.public_key)
        answered = answer(self.node.private_key, sealed, **{**self.context, "edge": "edge-1n", "node": "ode-1"})
        with self.assertRaises(PossessionRefused):
            check(nonce, answered, **{**self.context, "edge": "edge-1", "node": "node-1"})

    def test_changed_answer(self) -> None:
        """Any one bit of the answer counts, and so does its length."""
        sealed, nonce = challenge(self.node.public_key)
        answered = answer(self.node.private_key, sealed, **self.context)
        plain = bytes(nonce.reveal())
        for wrong in [b"", answered[:-1], answered + b"\0", plain, *bit_flips(answered)]:
            with self.assertRaises(PossessionRefused):
                check(Secret(plain), wrong, **self.context)
        check(nonce, answered, **self.context)

    def test_exporter_length(self) -> None:
        """Without the connection's 32 bytes there is neither answer nor check."""
        for exporter in (b"", bytes(31), bytes(33)):
            sealed, nonce = challenge(self.node.public_key)
            with self.assertRaises(PossessionRefused):
                answer(self.node.private_key, sealed, **{**self.context, "exporter": exporter})
            with self.assertRaises(PossessionRefused):
                check(nonce, bytes(32), **{**self.context, "exporter": exporter})

    def test_another_key(self) -> None:
        """Who does not hold the private key has no answer."""
        sealed, _ = challenge(self.node.public_key)
        other = Recipient.new()
        for public_key in (self.node.public_key, other.public_key):
            with self.assertRaises(CannotOpen):
                answer(other.private_key, sealed, **{**self.context, "public_key": public_key})

    def test_low_order(self) -> None:
        """P14: no challenge for a key that everybody could answer for."""
        self.assertRaises(AttestationRefused, challenge, bytes(32))
        self.assertRaises(AttestationRefused, challenge, b"short")

    def test_no_oracle(self) -> None:
        """P14: a recorded lease, and anything else that opens but is no challenge, gets no answer."""
        key = self.node.public_key
        boxes = [
            sealed_lease(self.node).box,
            crypto_box_seal(b"", key),
            crypto_box_seal(b"iop/pop/v1\0", key),
            crypto_box_seal(b"iop/pop/v1\0" + CANARY[:31].ljust(31), key),
            crypto_box_seal(b"iop/pop/v1\0" + CANARY.ljust(33), key),
            crypto_box_seal(b"iop/pop/v2\0" + CANARY.ljust(32), key),
            crypto_box_seal(CANARY.ljust(43), key),
            b"",
            bytes(91),
        ]
        for sealed in boxes:
            with self.assertRaises(CannotOpen) as caught:
                answer(self.node.private_key, sealed, **self.context)
            self.assertEqual(caught.exception.args, ("the sealed value cannot be opened",))

    def test_changed_challenge(self) -> None:
        """Any one bit of the challenge counts, and so does its length."""
        sealed, _ = challenge(self.node.public_key)
        for wrong in [sealed[:-1], sealed + b"\0", *bit_flips(sealed)]:
            with self.assertRaises(CannotOpen):
                answer(self.node.private_key, wrong, **self.context)


def _mac_of_nothing(context: dict[str, Any]) -> bytes:
    names = prefixed(context["edge"].encode(), context["node"].encode(), context["public_key"])
    return hmac.digest(b"", b"iop/pop-answer/v1\0" + names + context["exporter"], "sha256")
