"""What is counted is never less than what travels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.records import RouteEntry, TokenEntry
from iop.store.room import route_bytes, token_bytes
from iop.units import PROJECTION_BYTES, new_id
from iop.wire import control_pb2
from iop.wire.convert import route_to_wire, token_to_wire

TEXTS = st.text(max_size=1024)
NUMBERS = st.integers(0, 2**63 - 1)


class RoomTests(SynchronousTestCase):
    @given(st.builds(RouteEntry, *[TEXTS] * 8, NUMBERS, NUMBERS))
    def test_route(self, entry: RouteEntry) -> None:
        """A route in a projection is never larger than it was counted."""
        texts = [getattr(entry, name) for name in RouteEntry.__slots__[:8]]
        projection = control_pb2.PrincipalProjection(routes=[route_to_wire(entry)])
        self.assertLessEqual(projection.ByteSize(), route_bytes(*texts))

    @given(st.text("0123456789abcdef-", max_size=128), st.text("0123456789abcdef-", max_size=128), NUMBERS)
    def test_token(self, token: str, principal: str, expires_ms: int) -> None:
        """Nor is a token."""
        entry = TokenEntry(token, principal, bytes(32), expires_ms)
        projection = control_pb2.PrincipalProjection(tokens=[token_to_wire(entry)])
        self.assertLessEqual(projection.ByteSize(), token_bytes(token, principal))

    def test_a_hundred_thousand(self) -> None:
        """So many tokens and as many routes have room, with long names and models."""
        one = new_id()
        route = route_bytes(one, one, one, "p" * 63, "t" * 63, "m" * 64, "u" * 64, "s" * 64)
        self.assertLessEqual(100_000 * (token_bytes(one, one) + route), PROJECTION_BYTES)
