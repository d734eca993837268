"""One run as each side sees it (R1-R7, R11): what may come in which phase, and what is to be done about it.

Both machines are total: their tables hold a move for every phase and input. A machine answers each input with a
:class:`Verdict`; whoever drives it writes messages and calls, and decides nothing. An input that a peer may not send
raises a ``ProtocolViolation`` and leaves the phase as it was: the run ends when its connection is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final

from iop.core.flow import WINDOW_CAP, IncomingBody, OutgoingBody
from iop.errors import FlowViolation, UnexpectedMessage
from iop.units import RUN_WINDOW

#: Every code a failed run may carry on the wire (R10).
FAILURE_CODES: Final = frozenset(
    {
        "lease_refused",
        "no_such_provider",
        "not_allowed",
        "cancelled",
        "upstream_unreachable",
        "upstream_busy",
        "upstream_tls",
        "upstream_timeout",
        "upstream_broke",
        "upstream_redirect",
        "upstream_encoded_error",
        "draining",
        "internal",
    }
)


class Verdict(Enum):
    """What is to be done about an input."""

    #: Do what the input says: hand it on, send it, count it.
    PASS = auto()
    #: Nothing; it is late, or repeated, and allowed to be.
    DROP = auto()
    #: The end of a run that was cancelled here, whatever end it was.
    CANCELLED = auto()
    #: The peer broke the wire.
    VIOLATION = auto()
    #: The driver broke its contract; never the peer's doing.
    MISUSE = auto()


# -- the Edge's side --------------------------------------------------------------------------------------------------


class EdgePhase(Enum):
    """Where a run stands at the Edge."""

    #: The request is written; no head came yet.
    ASKED = auto()
    #: The head came, the body follows.
    STREAMING = auto()
    #: Cancelled here; what still comes is dropped until the Node's end.
    CANCELLED = auto()
    ENDED = auto()


class EdgeInput(Enum):
    """What can happen to a run at the Edge: the Node's messages, this side's wishes, the connection's end."""

    HEAD = auto()
    PIECE = auto()
    LAST = auto()
    FAILED = auto()
    CREDIT = auto()
    STARTED = auto()
    CANCEL = auto()
    #: Cancel, unless something was sent upstream.
    STOP = auto()
    LOST = auto()


EDGE_TABLE: Final[Mapping[tuple[EdgePhase, EdgeInput], tuple[EdgePhase, Verdict]]] = {
    (EdgePhase.ASKED, EdgeInput.HEAD): (EdgePhase.STREAMING, Verdict.PASS),
    (EdgePhase.ASKED, EdgeInput.PIECE): (EdgePhase.ASKED, Verdict.VIOLATION),
    (EdgePhase.ASKED, EdgeInput.LAST): (EdgePhase.ASKED, Verdict.VIOLATION),
    (EdgePhase.ASKED, EdgeInput.FAILED): (EdgePhase.ENDED, Verdict.PASS),
    (EdgePhase.ASKED, EdgeInput.CREDIT): (EdgePhase.ASKED, Verdict.PASS),
    (EdgePhase.ASKED, EdgeInput.STARTED): (EdgePhase.ASKED, Verdict.PASS),
    (EdgePhase.ASKED, EdgeInput.CANCEL): (EdgePhase.CANCELLED, Verdict.PASS),
    (EdgePhase.ASKED, EdgeInput.STOP): (EdgePhase.ASKED, Verdict.PASS),
    (EdgePhase.ASKED, EdgeInput.LOST): (EdgePhase.ENDED, Verdict.PASS),
    (EdgePhase.STREAMING, EdgeInput.HEAD): (EdgePhase.STREAMING, Verdict.VIOLATION),
    (EdgePhase.STREAMING, EdgeInput.PIECE): (EdgePhase.STREAMING, Verdict.PASS),
    (EdgePhase.STREAMING, EdgeInput.LAST): (EdgePhase.ENDED, Verdict.PASS),
    (EdgePhase.STREAMING, EdgeInput.FAILED): (EdgePhase.ENDED, Verdict.PASS),
    (EdgePhase.STREAMING, EdgeInput.CREDIT): (EdgePhase.STREAMING, Verdict.PASS),
    # The head said so before it.
    (EdgePhase.STREAMING, EdgeInput.STARTED): (EdgePhase.STREAMING, Verdict.DROP),
    (EdgePhase.STREAMING, EdgeInput.CANCEL): (EdgePhase.CANCELLED, Verdict.PASS),
    (EdgePhase.STREAMING, EdgeInput.STOP): (EdgePhase.STREAMING, Verdict.DROP),
    (EdgePhase.STREAMING, EdgeInput.LOST): (EdgePhase.ENDED, Verdict.PASS),
    (EdgePhase.CANCELLED, EdgeInput.HEAD): (EdgePhase.CANCELLED, Verdict.DROP),
    (EdgePhase.CANCELLED, EdgeInput.PIECE): (EdgePhase.CANCELLED, Verdict.DROP),
    (EdgePhase.CANCELLED, EdgeInput.LAST): (EdgePhase.ENDED, Verdict.CANCELLED),
    (EdgePhase.CANCELLED, EdgeInput.FAILED): (EdgePhase.ENDED, Verdict.PASS),
    (EdgePhase.CANCELLED, EdgeInput.CREDIT): (EdgePhase.CANCELLED, Verdict.DROP),
    (EdgePhase.CANCELLED, EdgeInput.STARTED): (EdgePhase.CANCELLED, Verdict.DROP),
    (EdgePhase.CANCELLED, EdgeInput.CANCEL): (EdgePhase.CANCELLED, Verdict.DROP),
    (EdgePhase.CANCELLED, EdgeInput.STOP): (EdgePhase.CANCELLED, Verdict.DROP),
    (EdgePhase.CANCELLED, EdgeInput.LOST): (EdgePhase.ENDED, Verdict.PASS),
    (EdgePhase.ENDED, EdgeInput.HEAD): (EdgePhase.ENDED, Verdict.VIOLATION),
    (EdgePhase.ENDED, EdgeInput.PIECE): (EdgePhase.ENDED, Verdict.VIOLATION),
    (EdgePhase.ENDED, EdgeInput.LAST): (EdgePhase.ENDED, Verdict.VIOLATION),
    (EdgePhase.ENDED, EdgeInput.FAILED): (EdgePhase.ENDED, Verdict.VIOLATION),
    (EdgePhase.ENDED, EdgeInput.CREDIT): (EdgePhase.ENDED, Verdict.DROP),
    (EdgePhase.ENDED, EdgeInput.STARTED): (EdgePhase.ENDED, Verdict.VIOLATION),
    (EdgePhase.ENDED, EdgeInput.CANCEL): (EdgePhase.ENDED, Verdict.DROP),
    (EdgePhase.ENDED, EdgeInput.STOP): (EdgePhase.ENDED, Verdict.DROP),
    (EdgePhase.ENDED, EdgeInput.LOST): (EdgePhase.ENDED, Verdict.DROP),
}


class Word(Enum):
    """Whether the Node was asked to end a run unless it was started, and has said that it was (R11)."""

    NOT_ASKED = auto()
    OWED = auto()
    STARTED = auto()


class EdgeRun:
    """One run at the Edge. It holds the request body and slices it as the Node returns credit.

    :param body: the whole request body.
    :param window: bytes of response body that the Node may have on their way.
    """

    __slots__ = ("_request", "_response", "_word", "phase")

    def __init__(self, body: bytes | bytearray, window: int) -> None:
        self.phase = EdgePhase.ASKED
        self._word = Word.NOT_ASKED
        self._request = OutgoingBody(RUN_WINDOW)
        self._request.put(body)
        self._request.complete()
        self._response = IncomingBody(window, None)

    def _move(self, what: EdgeInput) -> Verdict:
        phase, verdict = EDGE_TABLE[self.phase, what]
        if verdict is Verdict.VIOLATION:
            raise UnexpectedMessage(f"a Node sent {what.name.lower()} for a run that is {self.phase.name.lower()}")
        self.phase = phase
        if phase is EdgePhase.ENDED or phase is EdgePhase.CANCELLED:
            self._request.forget()
        return verdict

    def pieces(self) -> Iterator[tuple[bytes, bool]]:
        """Pieces of the request body to write now, with whether each is the last."""
        if self.phase is EdgePhase.ASKED or self.phase is EdgePhase.STREAMING:
            yield from self._request.pieces()

    def head(self) -> Verdict:
        """The Node sent the response head."""
        return self._move(EdgeInput.HEAD)

    def piece(self, size: int, last: bool) -> Verdict:
        """The Node sent a piece of the response body."""
        if self.phase is not EdgePhase.ENDED:
            self._response.received(size, last)
        return self._move(EdgeInput.LAST if last else EdgeInput.PIECE)

    def failed(self, code: str, started: bool) -> Verdict:
        """The Node ended the run without a whole response."""
        if not started and (self.phase is EdgePhase.STREAMING or self._word is Word.STARTED):
            raise UnexpectedMessage("a Node says that it had not started a run of which it said that it had")
        if code == "cancelled" and self.phase is not EdgePhase.CANCELLED and self._word is not Word.OWED:
            raise UnexpectedMessage("a Node cancelled a run, which nobody asked for")
        return self._move(EdgeInput.FAILED)

    def started(self) -> Verdict:
        """The Node says that the run goes on, since something was sent upstream; on PASS, that is news."""
        if self._word is not Word.OWED:
            raise UnexpectedMessage("a Node says that a run was started, which nobody asked for")
        self._word = Word.STARTED
        return self._move(EdgeInput.STARTED)

    def credited(self, count: int) -> Verdict:
        """The Node returned credit for the request body; on PASS, :meth:`pieces` may have more."""
        verdict = self._move(EdgeInput.CREDIT)
        if verdict is Verdict.PASS:
            self._request.credited(count)
        return verdict

    def handed_on(self, count: int) -> int:
        """The caller took ``count`` response bytes; answers the credit to return now, 0 once it no longer matters."""
        return self._response.handed_on(count) if self.phase is EdgePhase.STREAMING else 0

    def cancel(self) -> Verdict:
        """The caller wants no more; on PASS, tell the Node."""
        return self._move(EdgeInput.CANCEL)

    def stop_unless_started(self) -> Verdict:
        """End the run if nothing was sent upstream; on PASS, ask the Node, which is never asked twice."""
        if self._word is not Word.NOT_ASKED:
            return Verdict.DROP
        verdict = self._move(EdgeInput.STOP)
        if verdict is Verdict.PASS:
            self._word = Word.OWED
        return verdict

    def lost(self) -> Verdict:
        """The connection ended; on PASS, tell the caller."""
        return self._move(EdgeInput.LOST)


# -- the Node's side --------------------------------------------------------------------------------------------------


class NodePhase(Enum):
    """Where a run stands at the Node."""

    #: The upstream was called; it has not answered yet.
    CALLING = auto()
    #: The response head was sent, the body follows.
    STREAMING = auto()
    #: The upstream's answer is whole; its last bytes wait for credit.
    FLUSHING = auto()
    ENDED = auto()


class NodeInput(Enum):
    """What can happen to a run at the Node: the Edge's messages, the connection's end, the upstream's answer."""

    PIECE = auto()
    CREDIT = auto()
    CANCEL = auto()
    #: Cancelled unless it was started, and it was not.
    STOP = auto()
    #: Cancelled unless it was started, and it was.
    STOP_LATE = auto()
    LOST = auto()
    HEAD = auto()
    DATA = auto()
    FINISHED = auto()
    FAILED = auto()
    FLUSHED = auto()


NODE_TABLE: Final[Mapping[tuple[NodePhase, NodeInput], tuple[NodePhase, Verdict]]] = {
    (NodePhase.CALLING, NodeInput.PIECE): (NodePhase.CALLING, Verdict.PASS),
    (NodePhase.CALLING, NodeInput.CREDIT): (NodePhase.CALLING, Verdict.PASS),
    (NodePhase.CALLING, NodeInput.CANCEL): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.CALLING, NodeInput.STOP): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.CALLING, NodeInput.STOP_LATE): (NodePhase.CALLING, Verdict.PASS),
    (NodePhase.CALLING, NodeInput.LOST): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.CALLING, NodeInput.HEAD): (NodePhase.STREAMING, Verdict.PASS),
    (NodePhase.CALLING, NodeInput.DATA): (NodePhase.CALLING, Verdict.MISUSE),
    (NodePhase.CALLING, NodeInput.FINISHED): (NodePhase.CALLING, Verdict.MISUSE),
    (NodePhase.CALLING, NodeInput.FAILED): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.CALLING, NodeInput.FLUSHED): (NodePhase.CALLING, Verdict.MISUSE),
    (NodePhase.STREAMING, NodeInput.PIECE): (NodePhase.STREAMING, Verdict.PASS),
    (NodePhase.STREAMING, NodeInput.CREDIT): (NodePhase.STREAMING, Verdict.PASS),
    (NodePhase.STREAMING, NodeInput.CANCEL): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.STREAMING, NodeInput.STOP): (NodePhase.STREAMING, Verdict.MISUSE),
    (NodePhase.STREAMING, NodeInput.STOP_LATE): (NodePhase.STREAMING, Verdict.PASS),
    (NodePhase.STREAMING, NodeInput.LOST): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.STREAMING, NodeInput.HEAD): (NodePhase.STREAMING, Verdict.MISUSE),
    (NodePhase.STREAMING, NodeInput.DATA): (NodePhase.STREAMING, Verdict.PASS),
    (NodePhase.STREAMING, NodeInput.FINISHED): (NodePhase.FLUSHING, Verdict.PASS),
    (NodePhase.STREAMING, NodeInput.FAILED): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.STREAMING, NodeInput.FLUSHED): (NodePhase.STREAMING, Verdict.MISUSE),
    # The upstream answered before it had read the whole request: the rest of it has nowhere to go.
    (NodePhase.FLUSHING, NodeInput.PIECE): (NodePhase.FLUSHING, Verdict.DROP),
    (NodePhase.FLUSHING, NodeInput.CREDIT): (NodePhase.FLUSHING, Verdict.PASS),
    (NodePhase.FLUSHING, NodeInput.CANCEL): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.FLUSHING, NodeInput.STOP): (NodePhase.FLUSHING, Verdict.MISUSE),
    (NodePhase.FLUSHING, NodeInput.STOP_LATE): (NodePhase.FLUSHING, Verdict.PASS),
    (NodePhase.FLUSHING, NodeInput.LOST): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.FLUSHING, NodeInput.HEAD): (NodePhase.FLUSHING, Verdict.MISUSE),
    (NodePhase.FLUSHING, NodeInput.DATA): (NodePhase.FLUSHING, Verdict.MISUSE),
    (NodePhase.FLUSHING, NodeInput.FINISHED): (NodePhase.FLUSHING, Verdict.MISUSE),
    (NodePhase.FLUSHING, NodeInput.FAILED): (NodePhase.ENDED, Verdict.PASS),
    (NodePhase.FLUSHING, NodeInput.FLUSHED): (NodePhase.ENDED, Verdict.PASS),
    # What the Edge sent before it saw the end, and what the upstream said before it was closed.
    (NodePhase.ENDED, NodeInput.PIECE): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.CREDIT): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.CANCEL): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.STOP): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.STOP_LATE): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.LOST): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.HEAD): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.DATA): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.FINISHED): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.FAILED): (NodePhase.ENDED, Verdict.DROP),
    (NodePhase.ENDED, NodeInput.FLUSHED): (NodePhase.ENDED, Verdict.MISUSE),
}


class NodeRun:
    """One run at the Node. It holds response bytes that wait for credit; :attr:`congested` says to pause the upstream.

    :param body_length: the request body's exact length in bytes, as announced.
    :param window: bytes of response body that the Edge lets be on their way.
    :raises FlowViolation: if the window is not between 1 byte and the cap.
    """

    __slots__ = ("_request", "_response", "phase")

    def __init__(self, body_length: int, window: int) -> None:
        if not 0 < window <= WINDOW_CAP:
            raise FlowViolation("the window of a run is zero or too large")
        self.phase = NodePhase.CALLING
        self._request = IncomingBody(RUN_WINDOW, body_length)
        self._response = OutgoingBody(window)

    def _move(self, what: NodeInput) -> Verdict:
        phase, verdict = NODE_TABLE[self.phase, what]
        if verdict is Verdict.MISUSE:
            raise RuntimeError(f"{what.name.lower()} does not belong to a run that is {self.phase.name.lower()}")
        self.phase = phase
        if phase is NodePhase.ENDED:
            self._response.forget()
        return verdict

    # from the Edge

    def piece(self, size: int, last: bool) -> Verdict:
        """The Edge sent a piece of the request body; on PASS, write it upstream."""
        if self.phase is not NodePhase.ENDED:
            self._request.received(size, last)
        return self._move(NodeInput.PIECE)

    def credited(self, count: int) -> Verdict:
        """The Edge returned credit for the response body; on PASS, :meth:`pieces` may have more."""
        verdict = self._move(NodeInput.CREDIT)
        if verdict is Verdict.PASS:
            self._response.credited(count)
        return verdict

    def cancel(self) -> Verdict:
        """The Edge wants no more; on PASS, close the upstream and send the end."""
        return self._move(NodeInput.CANCEL)

    def stop(self, started: bool) -> Verdict:
        """The Edge wants no more unless the run was started; on PASS, do as :meth:`cancel`, or say that it was.

        :param started: whether anything was sent upstream.
        """
        return self._move(NodeInput.STOP_LATE if started else NodeInput.STOP)

    def lost(self) -> Verdict:
        """The connection to the Edge ended; on PASS, close the upstream."""
        return self._move(NodeInput.LOST)

    # from the upstream

    def handed_on(self, count: int) -> int:
        """The upstream took ``count`` request bytes; answers the credit to return now."""
        if self.phase is NodePhase.CALLING or self.phase is NodePhase.STREAMING:
            return self._request.handed_on(count)
        return 0

    def head(self) -> Verdict:
        """The upstream sent its response head; on PASS, send it on."""
        return self._move(NodeInput.HEAD)

    def data(self, data: bytes) -> Verdict:
        """The upstream sent body bytes; on PASS, :meth:`pieces` has what may travel now."""
        verdict = self._move(NodeInput.DATA)
        if verdict is Verdict.PASS:
            self._response.put(data)
        return verdict

    def finished(self) -> Verdict:
        """The upstream's answer is whole; on PASS, :meth:`pieces` has what may travel now."""
        verdict = self._move(NodeInput.FINISHED)
        if verdict is Verdict.PASS:
            self._response.complete()
        return verdict

    def failed(self) -> Verdict:
        """The upstream failed, or this side gives up; on PASS, send the end."""
        return self._move(NodeInput.FAILED)

    @property
    def congested(self) -> bool:
        """Whether response bytes wait for credit, so that the upstream must pause."""
        return self._response.waiting

    def pieces(self) -> Iterator[tuple[bytes, bool]]:
        """Pieces of the response body to send now; the run is over when the last one was taken."""
        if self.phase is NodePhase.STREAMING or self.phase is NodePhase.FLUSHING:
            for data, last in self._response.pieces():
                if last:
                    self._move(NodeInput.FLUSHED)
                yield data, last
