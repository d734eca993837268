"""What may travel on a wire, in which direction, and what answers what (W3, W4).

A *kind* is the name of a field of the envelope's ``oneof``; each carries a message type of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from google.protobuf.message import Message

from iop.errors import UnexpectedMessage
from iop.units import FRAME_BEFORE_HELLO, FRAME_LIMIT, HELLO_ANSWER_LIMIT
from iop.wire.control_pb2 import ControlEnvelope
from iop.wire.runtime_pb2 import RuntimeEnvelope
from iop.wire.strict import parse_strict
from iop.wire.varint import varint

PING: Final = "ping"
PONG: Final = "pong"

_LENGTH_DELIMITED: Final = 2
#: The tag of every envelope's first field: number 1, a varint.
_CORRELATION_ID: Final = b"\x08"


@dataclass(frozen=True)
class Dialect:
    """The closed list of one wire. The initiator is the side that dials, the acceptor the side that listens.

    :param hello: the initiator's first request; its answer has ``accepted``, ``code`` and ``message``.
    :param requests_by_initiator: request kind -> answer kind.
    :param hello_answer_limit: the most bytes of the answer to the hello (W2).
    :param acceptor_limit: the most bytes of the acceptor's envelopes after that; of the initiator's: ``FRAME_LIMIT``.
    """

    envelope: type[ControlEnvelope] | type[RuntimeEnvelope]
    hello: str
    requests_by_initiator: Mapping[str, str]
    requests_by_acceptor: Mapping[str, str]
    notes_by_initiator: frozenset[str]
    notes_by_acceptor: frozenset[str]
    hello_answer_limit: int
    acceptor_limit: int
    #: Message type -> kind.
    kinds: Mapping[type[Message], str] = field(init=False, repr=False)
    #: Message type -> the tag of the envelope's field that carries it.
    _tags: Mapping[type[Message], bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        body = self.envelope.DESCRIPTOR.oneofs_by_name["body"]
        blank = self.envelope()
        kinds = {type(getattr(blank, kind.name)): kind.name for kind in body.fields}
        tags = {type(getattr(blank, kind.name)): varint(kind.number << 3 | _LENGTH_DELIMITED) for kind in body.fields}
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "_tags", tags)

    def requests(self, *, initiator: bool) -> Mapping[str, str]:
        """What that side may ask: request kind -> answer kind."""
        return self.requests_by_initiator if initiator else self.requests_by_acceptor

    def notes(self, *, initiator: bool) -> frozenset[str]:
        """What that side may say without being answered."""
        return self.notes_by_initiator if initiator else self.notes_by_acceptor

    def kind_of(self, message: Message) -> str:
        """The kind that carries ``message``; :class:`~iop.errors.UnexpectedMessage` if this wire has none for it."""
        kind = self.kinds.get(type(message))
        if kind is None:
            raise UnexpectedMessage(f"a {type(message).__name__} does not travel on this wire")
        return kind

    def encode(self, correlation_id: int, message: Message) -> bytes:
        """The bytes of the envelope that carries ``message``; :class:`~iop.errors.UnexpectedMessage` if none does.

        They are what protobuf writes for that envelope, without the copy of ``message`` that it would be made from.
        """
        tag = self._tags.get(type(message))
        if tag is None:
            raise UnexpectedMessage(f"a {type(message).__name__} does not travel on this wire")
        body = message.SerializeToString()
        head = _CORRELATION_ID + varint(correlation_id) if correlation_id else b""
        return b"".join((head, tag, varint(len(body)), body))

    def decode(self, data: bytes) -> tuple[int, str, Message]:
        """Correlation id, kind and message of an envelope.

        :class:`~iop.errors.MalformedFrame` if the bytes are not exactly one envelope, which includes an unknown kind,
        several kinds and unknown fields at any depth; :class:`~iop.errors.UnexpectedMessage` if it is empty (W3, P35).
        """
        envelope = parse_strict(self.envelope, data)
        kind = envelope.WhichOneof("body")
        if kind is None:
            raise UnexpectedMessage("an envelope without a message")
        message: Message = getattr(envelope, kind)
        return envelope.correlation_id, kind, message


#: Control Plane-Edge: the Edge dials. A projection begins in the hello's answer or in a refresh.
CONTROL: Final = Dialect(
    envelope=ControlEnvelope,
    hello="edge_hello_request",
    requests_by_initiator={
        "edge_hello_request": "edge_hello_response",
        "edge_ready_request": "edge_ready_response",
        "acquire_lease_request": "acquire_lease_response",
        "projection_page_request": "projection_page_response",
    },
    requests_by_acceptor={
        "principal_projection_apply_request": "principal_projection_apply_response",
        "edge_status_request": "edge_status_response",
        "edge_command_request": "edge_command_response",
    },
    notes_by_initiator=frozenset({PING, PONG, "edge_command_event", "edge_node_event"}),
    notes_by_acceptor=frozenset({PING, PONG}),
    hello_answer_limit=HELLO_ANSWER_LIMIT,
    acceptor_limit=max(FRAME_LIMIT, HELLO_ANSWER_LIMIT),
)

#: The same wire as an Edge in legacy mode speaks it: nothing of projections and leases is installed (E16, C24).
LEGACY_CONTROL: Final = replace(
    CONTROL,
    requests_by_initiator={"edge_hello_request": "edge_hello_response"},
    requests_by_acceptor={
        "edge_status_request": "edge_status_response",
        "edge_command_request": "edge_command_response",
    },
    hello_answer_limit=FRAME_BEFORE_HELLO,
    acceptor_limit=FRAME_LIMIT,
)

#: Edge-Node: the Node dials. Runs are notifications that name their run.
RUNTIME: Final = Dialect(
    envelope=RuntimeEnvelope,
    hello="node_hello_request",
    requests_by_initiator={
        "node_hello_request": "node_hello_response",
        "node_key_offer_request": "node_key_offer_response",
        "node_key_proof_request": "node_key_proof_response",
        "node_ready_request": "node_ready_response",
    },
    requests_by_acceptor={},
    notes_by_initiator=frozenset({PING, PONG, "run_head", "run_body", "run_credit", "run_failed", "run_started"}),
    notes_by_acceptor=frozenset({PING, PONG, "run_request", "run_body", "run_credit", "run_cancel"}),
    hello_answer_limit=FRAME_BEFORE_HELLO,
    acceptor_limit=FRAME_LIMIT,
)
