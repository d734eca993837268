"""What may travel where."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.message import Message
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import MalformedFrame, UnexpectedMessage
from iop.wire import control_pb2, runtime_pb2
from iop.wire.dialect import CONTROL, PING, PONG, RUNTIME, Dialect
from iop.wire.runtime_pb2 import NodeHelloRequest, Ping, RunBody


def mentioned(dialect: Dialect) -> set[str]:
    """Every kind that a dialect lets travel."""
    kinds = set(dialect.notes_by_initiator | dialect.notes_by_acceptor)
    for requests in (dialect.requests_by_initiator, dialect.requests_by_acceptor):
        kinds |= {*requests.keys(), *requests.values()}
    return kinds


class ClosedListTests(SynchronousTestCase):
    def test_every_kind_has_its_direction(self) -> None:
        """W3: nothing in an envelope is forgotten, nothing is invented."""
        for dialect in (CONTROL, RUNTIME):
            body = dialect.envelope.DESCRIPTOR.oneofs_by_name["body"]
            self.assertEqual(mentioned(dialect), {kind.name for kind in body.fields})
            self.assertEqual(set(dialect.kinds.values()), mentioned(dialect), "each kind has a message type of its own")

    def test_only_correlation_id_and_body(self) -> None:
        """W3: an envelope is a correlation id and one message."""
        for dialect in (CONTROL, RUNTIME):
            outside = [f.name for f in dialect.envelope.DESCRIPTOR.fields if f.containing_oneof is None]
            self.assertEqual(outside, ["correlation_id"])

    def test_hello_is_the_initiators(self) -> None:
        """W9: the dialling side asks the hello, and its answer says whether it is accepted."""
        for dialect in (CONTROL, RUNTIME):
            answer = dialect.requests_by_initiator[dialect.hello]
            (message_type,) = [m for m, kind in dialect.kinds.items() if kind == answer]
            self.assertLessEqual({"accepted", "code", "message"}, set(message_type.DESCRIPTOR.fields_by_name))

    def test_pings_travel_both_ways(self) -> None:
        """W8."""
        for dialect in (CONTROL, RUNTIME):
            for initiator in (True, False):
                self.assertLessEqual({PING, PONG}, dialect.notes(initiator=initiator))

    def test_answers_are_named_after_requests(self) -> None:
        """W4: X_request is answered by X_response and nothing else."""
        for dialect in (CONTROL, RUNTIME):
            for initiator in (True, False):
                for request, answer in dialect.requests(initiator=initiator).items():
                    self.assertEqual(answer, request.removesuffix("_request") + "_response")

    def test_schedule_stays_dead(self) -> None:
        """C45: no message and no field is named schedule, and the old numbers and names are reserved."""
        for file in (control_pb2, runtime_pb2):
            for name, message in file.DESCRIPTOR.message_types_by_name.items():
                self.assertNotIn("schedule", name.lower())
                for field in message.fields:
                    self.assertNotIn("schedule", field.name.lower())
        proto = DescriptorProto()
        control_pb2.ControlEnvelope.DESCRIPTOR.CopyToProto(proto)
        self.assertEqual([(r.start, r.end) for r in proto.reserved_range], [(8, 9), (9, 10)])
        self.assertEqual(list(proto.reserved_name), ["schedule_request", "schedule_response"])
        self.assertTrue(all(field.number not in (8, 9) for field in proto.field))

    def test_no_node_connection_on_the_control_wire(self) -> None:
        """C44: enrolment, status, commands, events, projection, leases: nothing else travels to an Edge or from it."""
        requests = CONTROL.requests_by_initiator.keys() | CONTROL.requests_by_acceptor.keys()
        self.assertEqual(
            requests,
            {
                "edge_hello_request",
                "edge_ready_request",
                "acquire_lease_request",
                "principal_projection_apply_request",
                "edge_status_request",
                "edge_command_request",
                "projection_page_request",
            },
        )
        self.assertEqual(CONTROL.notes_by_initiator, {PING, PONG, "edge_command_event", "edge_node_event"})
        self.assertEqual(CONTROL.notes_by_acceptor, {PING, PONG})


class CodecTests(SynchronousTestCase):
    def test_round_trip_of_every_kind(self) -> None:
        """W3: each kind comes back as itself, with its correlation id."""
        for dialect in (CONTROL, RUNTIME):
            for message_type, kind in dialect.kinds.items():
                for correlation_id in (0, 1, 2**64 - 1):
                    data = dialect.encode(correlation_id, message_type())
                    self.assertEqual(dialect.decode(data), (correlation_id, kind, message_type()))
                    envelope: Callable[..., Message] = dialect.envelope
                    whole = envelope(correlation_id=correlation_id, **{kind: message_type()})
                    self.assertEqual(data, whole.SerializeToString())

    def test_content_comes_back(self) -> None:
        """W3."""
        message = RunBody(run=9, data=b"\0\xff" * 100, last=True)
        self.assertEqual(RUNTIME.decode(RUNTIME.encode(0, message)), (0, "run_body", message))

    def test_no_kind(self) -> None:
        """W3: an envelope without a message."""
        with self.assertRaises(UnexpectedMessage):
            RUNTIME.decode(runtime_pb2.RuntimeEnvelope(correlation_id=3).SerializeToString())

    def test_unknown_kind(self) -> None:
        """P35, W3, C45: a field number without a kind, the dead ones included."""
        for number in (8, 9, 99, 500):
            tag = number << 3 | 2
            field = bytes([tag & 0x7F | 0x80, tag >> 7]) if tag > 127 else bytes([tag])
            with self.assertRaises(MalformedFrame):
                CONTROL.decode(field + b"\x00")

    def test_two_kinds(self) -> None:
        """W3: exactly one message."""
        with self.assertRaises(MalformedFrame):
            RUNTIME.decode(RUNTIME.encode(0, Ping()) + RUNTIME.encode(0, RunBody(run=1)))

    def test_message_of_another_wire(self) -> None:
        """W3: a message this wire has no kind for is not encoded."""
        with self.assertRaises(UnexpectedMessage):
            CONTROL.encode(1, NodeHelloRequest())
