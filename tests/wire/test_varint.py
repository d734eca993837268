"""Numbers on the wire."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.wire.control_pb2 import ControlEnvelope
from iop.wire.varint import varint

NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)


class VarintTests(SynchronousTestCase):
    @given(NUMBERS)
    @example(127)
    @example(128)
    @example(2**14 - 1)
    @example(2**14)
    @example(2**64 - 1)
    def test_is_what_protobuf_writes(self, number: int) -> None:
        """W3: the shortest encoding, the only one that a peer takes."""
        written = ControlEnvelope(correlation_id=number).SerializeToString()
        self.assertEqual(written, b"\x08" + varint(number) if number else b"")
