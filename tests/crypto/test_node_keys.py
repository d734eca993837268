"""A Node's keys: their life on a fake clock, and keys that nobody may seal to."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import crypto_box_keypair, crypto_scalarmult_base
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.node_keys import NodeKeys, check_recipient_key
from iop.errors import AttestationRefused
from iop.testing.clock import FakeClock
from tests.crypto.samples import NOW_MS

PRIME = 2**255 - 19
#: Every point of order 1, 2, 4 or 8 on the curve and its twist (RFC 7748, 6.1; Bernstein's list).
LOW_ORDER = (
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    PRIME - 1,
    PRIME,
    PRIME + 1,
)


class RecipientKeyTests(SynchronousTestCase):
    """:func:`check_recipient_key`."""

    def test_low_order(self) -> None:
        """P14: all-zero and low-order keys are refused, in each of their encodings."""
        for point in LOW_ORDER:
            for number in (point, point + PRIME, point | 1 << 255):
                if number < 1 << 256:
                    self.assertRaises(AttestationRefused, check_recipient_key, number.to_bytes(32, "little"))

    def test_not_reduced(self) -> None:
        """A key has one encoding: what is not reduced modulo the prime, or uses the unused bit, is refused."""
        for number in (PRIME + 9, (1 << 255) - 1, 9 | 1 << 255, (1 << 256) - 1):
            self.assertRaises(AttestationRefused, check_recipient_key, number.to_bytes(32, "little"))
        check_recipient_key((9).to_bytes(32, "little"))

    def test_length(self) -> None:
        """Exactly 32 bytes."""
        public_key, _ = crypto_box_keypair()
        check_recipient_key(public_key)
        for wrong in (b"", public_key[:31], public_key + b"\0"):
            self.assertRaises(AttestationRefused, check_recipient_key, wrong)

    @settings(deadline=None)
    @given(st.binary(min_size=32, max_size=32))
    def test_every_key_of_a_private_key(self, private_key: bytes) -> None:
        """Whatever a private key gives is accepted."""
        check_recipient_key(crypto_scalarmult_base(private_key))


class NodeKeysTests(SynchronousTestCase):
    """N4 and N5."""

    def setUp(self) -> None:
        self.clock = FakeClock(NOW_MS)
        self.keys = NodeKeys(self.clock)

    def test_pair(self) -> None:
        """The private half belongs to the public one, and is found by it."""
        key = self.keys.current()
        self.assertEqual(crypto_scalarmult_base(bytes(key.private_key.reveal())), key.public_key)
        self.assertIs(self.keys.find(key.public_key), key.private_key)
        self.assertIs(self.keys.find(bytes(32)), None)
        self.assertNotIn(key.private_key.reveal().hex(), repr(key))

    def test_attested_at_birth(self) -> None:
        """N4: birth + 600 s + lease TTL cap + skew."""
        self.assertEqual(self.keys.current().attested_until_ms, NOW_MS + 905_000)
        self.clock.advance(700)
        self.assertEqual(self.keys.current().attested_until_ms, NOW_MS + 700_000 + 905_000)

    def test_replaced(self) -> None:
        """N5: after 600 s of boot time there is a new key, and not before."""
        first = self.keys.current()
        self.assertEqual(first.replaced_at, self.clock.boot() + 600)
        self.clock.advance(599.9)
        self.assertIs(self.keys.current(), first)
        self.clock.advance(0.1)
        second = self.keys.current()
        self.assertNotEqual(second.public_key, first.public_key)
        self.assertIs(self.keys.current(), second)
        self.assertEqual(second.replaced_at, self.clock.boot() + 600)

    def test_destroyed(self) -> None:
        """N5: an old key is zeroed once its attestation expiry plus skew has passed, though nobody asks for it."""
        first = self.keys.current()
        buffer = first.private_key.reveal()
        self.clock.advance(600)
        second = self.keys.current()
        self.clock.advance(309.9)
        self.assertIs(self.keys.find(first.public_key), first.private_key)
        self.clock.advance(0.1)
        self.assertEqual(buffer, b"")
        self.assertIs(self.keys.find(first.public_key), None)
        self.assertIs(self.keys.find(second.public_key), second.private_key)

    def test_late_timer(self) -> None:
        """P45: when a timer is late, a key is gone by boot time all the same."""
        first = self.keys.current()
        (call,) = self.clock.reactor.getDelayedCalls()
        call.delay(1000)
        self.clock.advance(909.9)
        self.assertIs(self.keys.find(first.public_key), first.private_key)
        self.clock.advance(0.1)
        self.assertIs(self.keys.find(first.public_key), None)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_bounded(self) -> None:
        """However long it lives, two keys are held at most, with one timer each."""
        for _ in range(200):
            self.keys.current()
            self.clock.advance(100)
            self.assertLessEqual(len(self.clock.reactor.getDelayedCalls()), 2)

    def test_wall_clock_moved(self) -> None:
        """P45: a wall clock that is moved replaces and destroys nothing."""
        first = self.keys.current()
        for jump_ms in (3_600_000, -7_200_000):
            self.clock.wall_at_boot_ms += jump_ms
            self.assertIs(self.keys.current(), first)
            self.assertIs(self.keys.find(first.public_key), first.private_key)

    def test_dispose(self) -> None:
        """Every key is zeroed and found no more, and no timer is left."""
        first = self.keys.current()
        self.clock.advance(600)
        second = self.keys.current()
        self.keys.dispose()
        for key in (first, second):
            self.assertEqual(key.private_key.reveal(), b"")
            self.assertIs(self.keys.find(key.public_key), None)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_restarted(self) -> None:
        """P5: another process has other keys."""
        self.assertIs(NodeKeys(self.clock).find(self.keys.current().public_key), None)
