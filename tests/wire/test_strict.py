"""Protobuf without its leniency."""

from __future__ import annotations

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import MalformedFrame
from iop.wire.control_pb2 import PrincipalProjection, ProjectedToken, ProjectionOutcome
from iop.wire.runtime_pb2 import (
    Binding,
    LeaseStatement,
    NodeHelloRequest,
    NodeKeyStatement,
    Ping,
    RunBody,
    RuntimeEnvelope,
    SealedLease,
)
from iop.wire.strict import parse_strict

#: Field 500, which no message has, as a varint and as bytes.
UNKNOWN = (b"\xa0\x1f\x01", b"\xa2\x1f\x01x")


def nested(number: int, content: bytes) -> bytes:
    """A length-delimited field, for contents under 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


class ParseTests(SynchronousTestCase):
    def refuse(self, message_type: type[Message], data: bytes) -> None:
        with self.assertRaises(MalformedFrame):
            parse_strict(message_type, data)

    def test_reads_what_was_written(self) -> None:
        """W3: what a plain encoder makes of a message is that message, empty ones included."""
        for message in (
            Ping(),
            Ping(nonce=2**64 - 1),
            RunBody(run=1, data=b"\0" * 70_000, last=True),
            LeaseStatement(lease_id="ü", expires_ms=-1, binding=Binding(principal="p"), issuer_key_id=b"k" * 32),
            PrincipalProjection(generation=3, tokens=[ProjectedToken(token_id="t"), ProjectedToken()]),
        ):
            self.assertEqual(parse_strict(type(message), message.SerializeToString()), message)

    def test_unknown_fields(self) -> None:
        """P35, W3: an unknown field is refused in a message and in anything inside it."""
        for unknown in UNKNOWN:
            self.refuse(Ping, unknown)
            for statement in (LeaseStatement, NodeKeyStatement, SealedLease):
                self.refuse(statement, unknown)
            self.refuse(LeaseStatement, nested(6, unknown))
            self.refuse(PrincipalProjection, nested(3, b"") + nested(3, unknown))
            self.refuse(RuntimeEnvelope, nested(2, Ping(nonce=1).SerializeToString() + unknown))

    def test_wrong_wire_type(self) -> None:
        """P35: a known number with another type is an unknown field."""
        self.refuse(Ping, nested(1, b"x"))

    def test_last_one_wins_is_refused(self) -> None:
        """W3: a value given twice would leave it to the reader which one counts."""
        once = Ping(nonce=1).SerializeToString()
        self.refuse(Ping, once + once)
        self.refuse(RuntimeEnvelope, nested(2, once) + nested(3, once))

    def test_padding(self) -> None:
        """W3: the same number in more bytes than it needs, and a written-out default, are other bytes."""
        self.assertEqual(parse_strict(Ping, b"\x08\x01").nonce, 1)
        self.refuse(Ping, b"\x08\x81\x00")
        self.refuse(Ping, b"\x08\x00")

    def test_other_bytes_of_the_same_length(self) -> None:
        """P35: a number cut to 32 bits makes no room for an unknown field or for padding, and order is fixed."""
        cut = b"\x08\xff\xff\xff\xff\x0f"
        self.refuse(ProjectionOutcome, cut)
        self.refuse(ProjectionOutcome, cut + b"\x78\x80\x80\x80\x01")
        self.refuse(ProjectionOutcome, cut + b"\x10\x81\x80\x80\x80\x80\x00")
        self.refuse(RunBody, b"\x08\x01\x18\x02")
        self.refuse(RunBody, b"\x18\x01\x08\x01")

    def test_what_does_not_parse(self) -> None:
        """P35: broken bytes, also broken text."""
        for data in (b"\xff", b"\x08", b"\x0a\x05a", b"\x0a\x01\xff"):
            self.refuse(NodeHelloRequest, data)

    @given(st.binary(max_size=60))
    def test_any_bytes(self, data: bytes) -> None:
        """P35: any bytes either are a message's own encoding or refused as malformed."""
        try:
            message = parse_strict(RuntimeEnvelope, data)
        except MalformedFrame:
            return
        self.assertEqual(message.SerializeToString(), data)

    def test_every_truncation(self) -> None:
        """P33: no beginning of an envelope passes for the whole, except the beginning that is one itself."""
        whole = RuntimeEnvelope(
            correlation_id=7, node_hello_request=NodeHelloRequest(node_id="node")
        ).SerializeToString()
        for size in range(len(whole)):
            if whole[:size] in (b"", b"\x08\x07"):
                continue
            self.refuse(RuntimeEnvelope, whole[:size])
