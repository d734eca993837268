"""Leases: what opens, and everything that does not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields, replace
from traceback import TracebackException
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import crypto_box_seal, crypto_box_SEALBYTES, crypto_sign
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.at_rest import SECRET_HARD_CAP
from iop.crypto.issuer import PinnedIssuers
from iop.crypto.lease import PADDED_SIZES, LeaseStatement, seal_lease
from iop.crypto.node_keys import NodeKeys
from iop.errors import AttestationRefused, CannotOpen, MalformedInput
from iop.records import BINDING_FIELDS
from iop.secret import Secret
from iop.testing.clock import FakeClock
from iop.wire import runtime_pb2
from tests.crypto.independent import u32, varint
from tests.crypto.samples import (
    BINDING,
    CANARY,
    NOW_MS,
    Expectation,
    Recipient,
    bit_flips,
    issuer,
    issuer_private_key,
    lease_statement,
    sealed_lease,
)


def signed(core: bytes, box: bytes, number: int = 1) -> runtime_pb2.SealedLease:
    """Any statement and any box under an issuer's key, as its thief could sign them."""
    message = b"iop/lease/v1\0" + u32(len(core)) + core + hashlib.sha256(box).digest()
    signature = crypto_sign(message, issuer_private_key(number))[:64]
    return runtime_pb2.SealedLease(statement=core, box=box, signature=signature)


class LeaseCase(SynchronousTestCase):
    """A Node with one key, and a lease sealed to it."""

    def setUp(self) -> None:
        self.node = Recipient.new()
        self.sealed = sealed_lease(self.node)
        self.expect = Expectation()

    def opens(self, sealed: runtime_pb2.SealedLease, expect: Expectation | None = None) -> bool:
        """Whether the right secret comes out; if not, it must be with exactly the uniform error (P4)."""
        try:
            opened = (expect or self.expect).open(sealed, self.node.find)
        except CannotOpen as error:
            self.assertEqual((error.args, error.hint), (("the sealed value cannot be opened",), ""))
            self.assertTrue(error.__cause__ is None and (error.__context__ is None or error.__suppress_context__))
            return False
        self.assertEqual(opened.secret.reveal(), CANARY)
        return True

    def assert_refused(self, sealed: runtime_pb2.SealedLease, expect: Expectation | None = None) -> None:
        """It does not open."""
        self.assertFalse(self.opens(sealed, expect))


class OpeningTests(LeaseCase):
    """The Node that it is for opens it."""

    def test_opens(self) -> None:
        """The secret and the statement come back as they were sealed."""
        opened = self.expect.open(self.sealed, self.node.find)
        self.assertEqual(opened.secret.reveal(), CANARY)
        self.assertEqual(opened.statement, lease_statement(self.node))

    def test_opens_again(self) -> None:
        """P5: within its bounds the Edge may reuse it."""
        for _ in range(2):
            self.assertEqual(self.expect.open(self.sealed, self.node.find).secret.reveal(), CANARY)

    @settings(max_examples=60, deadline=None)
    @given(st.binary(max_size=5000))
    def test_round_trip(self, secret: bytes) -> None:
        """Any secret, the empty one included, comes back."""
        node = Recipient.new()
        opened = Expectation().open(sealed_lease(node, secret), node.find)
        self.assertEqual(opened.secret.reveal(), secret)

    def test_sizes(self) -> None:
        """L5: a box has one of five sizes, at the limit and one past; beyond the last nothing is sealed."""
        self.assertEqual(PADDED_SIZES, (256, 1024, 4096, 16384, 65536))
        self.assertEqual(PADDED_SIZES[-1], SECRET_HARD_CAP)
        for size, following in zip(PADDED_SIZES, [*PADDED_SIZES[1:], None], strict=True):
            for length, padded in ((size, size), (size + 1, following)):
                if padded is None:
                    with self.assertRaises(MalformedInput):
                        sealed_lease(self.node, bytes(length))
                    continue
                sealed = sealed_lease(self.node, b"s" * length)
                self.assertEqual(len(sealed.box), crypto_box_SEALBYTES + 32 + 4 + padded)
                self.assertEqual(self.expect.open(sealed, self.node.find).secret.reveal(), b"s" * length)
        self.assertEqual(len(sealed_lease(self.node, b"").box), len(sealed_lease(self.node, b"s" * 256).box))

    def test_not_readable_on_the_way(self) -> None:
        """C21: who carries it reads no secret in it."""
        self.assertNotIn(CANARY, self.sealed.SerializeToString())

    def test_low_order_recipient(self) -> None:
        """P14: nothing is sealed to a key that everybody can open."""
        with self.assertRaises(AttestationRefused):
            seal_lease(issuer(), replace(lease_statement(self.node), recipient_public_key=bytes(32)), Secret(CANARY))


class TamperingTests(LeaseCase):
    """What was changed on the way."""

    def test_every_bit(self) -> None:
        """P4: flipping any one bit of statement, box or signature yields one uniform error and no plaintext."""
        for name in ("statement", "box", "signature"):
            for flipped in bit_flips(getattr(self.sealed, name)):
                sealed = runtime_pb2.SealedLease()
                sealed.CopyFrom(self.sealed)
                setattr(sealed, name, flipped)
                self.assert_refused(sealed)

    def test_every_truncation(self) -> None:
        """P4: nor does a lease open that lost its end, or got a longer one."""
        for name in ("statement", "box", "signature"):
            value: bytes = getattr(self.sealed, name)
            for changed in [*(value[:end] for end in range(len(value))), value + b"\0"]:
                sealed = runtime_pb2.SealedLease()
                sealed.CopyFrom(self.sealed)
                setattr(sealed, name, changed)
                self.assert_refused(sealed)

    def test_parts_of_two_leases(self) -> None:
        """P4: parts of two good leases do not make one."""
        other = sealed_lease(self.node, b"sk-other")
        for name in ("box", "signature"):
            mixed = runtime_pb2.SealedLease()
            mixed.CopyFrom(self.sealed)
            setattr(mixed, name, getattr(other, name))
            self.assert_refused(mixed)

    def test_unpinned_issuer(self) -> None:
        """L7: an issuer that is not pinned signs nothing that counts."""
        self.assert_refused(seal_lease(issuer(2), lease_statement(self.node), Secret(CANARY)))

    def test_second_pinned_issuer(self) -> None:
        """L7: every pinned issuer counts."""
        expect = replace(self.expect, pinned=PinnedIssuers([issuer(2).public_key, issuer().public_key]))
        self.assertEqual(expect.open(self.sealed, self.node.find).secret.reveal(), CANARY)

    def test_issuer_named_in_anothers_statement(self) -> None:
        """L7: the issuer that a statement names is the one that signed it, even if both are pinned."""
        expect = replace(self.expect, pinned=PinnedIssuers([issuer().public_key, issuer(2).public_key]))
        self.assert_refused(signed(self.sealed.statement, self.sealed.box, number=2), expect)

    def test_unknown_fields(self) -> None:
        """P35: a signed statement with a field nobody knows is refused, at every depth."""
        statement = runtime_pb2.LeaseStatement.FromString(self.sealed.statement)
        binding = statement.binding.SerializeToString() + varint(15 << 3) + b"\1"
        deep = runtime_pb2.LeaseStatement()
        deep.CopyFrom(statement)
        deep.binding.ParseFromString(binding)
        for core in (self.sealed.statement + varint(99 << 3) + b"\1", deep.SerializeToString()):
            self.assert_refused(self._boxed(core, CANARY.ljust(256, b"\0")))

    def test_stolen_issuer_key(self) -> None:
        """L7: who stole the issuer key alone cannot put a recorded box under a statement of their own."""
        statement = runtime_pb2.LeaseStatement.FromString(self.sealed.statement)
        statement.edge = "edge-2"
        rewrapped = signed(statement.SerializeToString(deterministic=True), self.sealed.box)
        self.assert_refused(rewrapped, replace(self.expect, edge="edge-2"))

    def test_padding(self) -> None:
        """L7: what follows the secret is zeros, in the smallest size that fits."""
        length = len(CANARY)
        core = self.sealed.statement
        good = self._boxed(core, CANARY.ljust(256, b"\0"), length)
        self.assertEqual(self.expect.open(good, self.node.find).secret.reveal(), CANARY)
        for content, claimed in (
            (CANARY.ljust(255, b"\0") + b"\1", length),
            (CANARY + b"\1" + bytes(255 - length), length),
            (CANARY.ljust(1024, b"\0"), length),
            (CANARY.ljust(300, b"\0"), length),
            (CANARY.ljust(256, b"\0"), length - 1),
            (CANARY.ljust(256, b"\0"), 257),
            (CANARY.ljust(256, b"\0"), 2**32 - 1),
        ):
            self.assert_refused(self._boxed(core, content, claimed))

    def _boxed(self, core: bytes, content: bytes, length: int = len(CANARY)) -> runtime_pb2.SealedLease:
        plain = hashlib.sha256(core).digest() + u32(length) + content
        return signed(core, crypto_box_seal(plain, self.node.public_key))


class FenceTests(LeaseCase):
    """The Node's own comparison."""

    def test_every_bound_field(self) -> None:
        """P12 at the Node: one row per bound field; any one of them changed, on either side, opens nothing."""
        expectations: dict[str, Expectation] = {
            "token": replace(self.expect, token_id="another"),
            "edge": replace(self.expect, edge="edge-2"),
            "own name": replace(self.expect, node="node-2"),
            "deployment": replace(self.expect, deployment_id="another"),
            "trust domain": replace(self.expect, trust_domain="iop.other"),
        }
        for name in BINDING_FIELDS:
            value = getattr(BINDING, name)
            changed: dict[str, Any] = {name: value + 1 if isinstance(value, int) else value + "x"}
            expectations[name] = replace(self.expect, binding=replace(BINDING, **changed))
        self.assertTrue(self.opens(self.sealed))
        self.assertEqual([row for row, expect in expectations.items() if self.opens(self.sealed, expect)], [])

    def test_every_field_of_the_statement(self) -> None:
        """P12: a good lease that says anything else than what the Node expects is refused; only its id is free."""
        good = lease_statement(self.node)
        changes: dict[str, object] = {
            "binding": replace(BINDING, generation=301),
            "not_before_ms": NOW_MS + 5_001,
            "expires_ms": NOW_MS,
            "recipient_public_key": Recipient.new().public_key,
        }
        opening = []
        for name in (each.name for each in fields(LeaseStatement)):
            changed: dict[str, Any] = {name: changes.get(name, f"{getattr(good, name)}x")}
            if self.opens(seal_lease(issuer(), replace(good, **changed), Secret(CANARY))):
                opening.append(name)
        self.assertEqual(opening, ["lease_id"])

    def test_another_nodes_lease(self) -> None:
        """P12: a lease whose binding names another Node is refused even when the Edge asks for just that."""
        elsewhere = replace(BINDING, node="node-2")
        sealed = seal_lease(issuer(), replace(lease_statement(self.node), binding=elsewhere), Secret(CANARY))
        self.assert_refused(sealed, replace(self.expect, binding=elsewhere))

    def test_validity(self) -> None:
        """L6: from the skew before its beginning until just before its end, without grace."""
        moments = (NOW_MS - 5_001, NOW_MS - 5_000, NOW_MS + 59_999, NOW_MS + 60_000)
        opening = [now_ms for now_ms in moments if self.opens(self.sealed, replace(self.expect, now_ms=now_ms))]
        self.assertEqual(opening, [NOW_MS - 5_000, NOW_MS + 59_999])

    def test_too_long(self) -> None:
        """C22: a lease of more than the hard cap is none, whoever signed it."""
        good = lease_statement(self.node)
        for milliseconds, opens in ((300_000, True), (300_001, False)):
            statement = replace(good, expires_ms=NOW_MS + milliseconds)
            self.assertEqual(self.opens(seal_lease(issuer(), statement, Secret(CANARY))), opens)


class RecipientTests(LeaseCase):
    """Only the key it was sealed to."""

    def test_another_nodes_key(self) -> None:
        """P11: another Node opens nothing, nor does one that lies to itself about which key it looks up."""
        other = Recipient.new()
        finders: list[Callable[[bytes], Secret | None]] = [other.find, lambda public_key: other.private_key]
        for find in finders:
            with self.assertRaises(CannotOpen):
                self.expect.open(self.sealed, find)

    def test_restarted_node(self) -> None:
        """P5: a restarted Node opens none of its predecessor's."""
        clock = FakeClock(NOW_MS)
        keys = NodeKeys(clock)
        statement = replace(lease_statement(self.node), recipient_public_key=keys.current().public_key)
        sealed = seal_lease(issuer(), statement, Secret(CANARY))
        self.assertEqual(self.expect.open(sealed, keys.find).secret.reveal(), CANARY)
        with self.assertRaises(CannotOpen):
            self.expect.open(sealed, NodeKeys(clock).find)

    def test_replaced_key(self) -> None:
        """N5: a lease to a key that was just replaced still opens."""
        clock = FakeClock(NOW_MS)
        keys = NodeKeys(clock)
        statement = replace(lease_statement(self.node), recipient_public_key=keys.current().public_key)
        clock.advance(600)
        self.assertNotEqual(keys.current().public_key, statement.recipient_public_key)
        later = replace(statement, not_before_ms=clock.wall_ms(), expires_ms=clock.wall_ms() + 60_000)
        opened = replace(self.expect, now_ms=clock.wall_ms()).open(
            seal_lease(issuer(), later, Secret(CANARY)), keys.find
        )
        self.assertEqual(opened.secret.reveal(), CANARY)


class LeakTests(LeaseCase):
    """What is seen of it in logs."""

    def test_opened(self) -> None:
        """P25: an opened lease shows no secret."""
        opened = self.expect.open(self.sealed, self.node.find)
        for shown in (repr(opened), str(opened), f"{opened}"):
            self.assertNotIn(CANARY.decode(), shown)

    def test_refused(self) -> None:
        """P25: nor does the traceback of a refusal, its locals included."""
        with self.assertRaises(CannotOpen) as caught:
            replace(self.expect, edge="edge-2").open(self.sealed, self.node.find)
        told = TracebackException.from_exception(caught.exception, capture_locals=True).format()
        self.assertNotIn(CANARY.decode(), "".join(told))
