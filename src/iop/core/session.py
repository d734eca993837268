"""One peer connection as a machine without I/O (W2-W9, W11).

:data:`iop.core.session_table.TABLE` says for every state and every input whether it is taken; the methods of
:class:`Session` say what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, cast

from google.protobuf.message import Message

from iop.core.correlation import Done, Inbound, Outbound
from iop.core.session_table import ACCEPTED, TABLE, Input, State, Verdict
from iop.errors import (
    Draining,
    FrameTooLarge,
    HandshakeTimeout,
    HelloRefused,
    IopError,
    PeerDisconnected,
    PeerSilent,
    ProtocolViolation,
    RequestTimedOut,
    StrayAnswer,
    UnexpectedMessage,
)
from iop.units import FRAME_BEFORE_HELLO, FRAME_LIMIT, HANDSHAKE_SECONDS, KEEPALIVE_SECONDS, SILENCE_SECONDS
from iop.wire.dialect import PING, PONG, Dialect
from iop.wire.runtime_pb2 import Ping, Pong


class Outlet(Protocol):
    """Where a session's effects go. It has settled its own state before it calls, so it may be called back."""

    def send(self, payload: bytes) -> None:
        """Write one envelope as a frame."""

    def asked(self, request: int, message: Message) -> None:
        """Have the application answer; the answer comes back through :meth:`Session.reply`."""

    def notified(self, message: Message) -> None:
        """Give the application a notification."""

    def closed(self, reason: IopError, flush: bool) -> None:
        """End the transport; called once. ``flush``: only after what was sent has left."""


class _HelloAnswer(Protocol):
    accepted: bool
    code: str
    message: str


class Session:
    """The rules of one connection, seen from one side.

    :param dialect: what may travel.
    :param initiator: whether this side dialled.
    :param outlet: takes the effects.
    :param now: boot time in seconds.
    """

    def __init__(self, dialect: Dialect, *, initiator: bool, outlet: Outlet, now: Callable[[], float]) -> None:
        self.state = State.CONNECTING
        #: The most bytes of the next frame from the peer (W2).
        self.frame_limit = FRAME_BEFORE_HELLO
        self._send_limit = FRAME_BEFORE_HELLO
        self._dialect = dialect
        self._initiator = initiator
        self._outlet = outlet
        self._now = now
        self._asks = dialect.requests(initiator=initiator)
        self._tells = dialect.notes(initiator=initiator) - {PING, PONG}
        self._answers = dialect.requests(initiator=not initiator)
        self._inputs = _inputs(dialect, initiator=initiator)
        self._outbound = Outbound()
        self._inbound = Inbound()
        self._hello_deadline = now() + HANDSHAKE_SECONDS
        # Boot time of the last whole frame in either direction; a dripping one does not count as heard (P34).
        self._heard = self._sent = 0.0
        self._pinged = self._ponged = 0

    def next_wakeup(self) -> float | None:
        """The boot time at which :meth:`tick` is due, or None if never again."""
        if self.state is State.CLOSED:
            return None
        due = self._hello_deadline
        if self.state in ACCEPTED:
            due = min(self._sent + KEEPALIVE_SECONDS, self._heard + SILENCE_SECONDS)
        deadline = self._outbound.next_deadline()
        return due if deadline is None else min(due, deadline)

    # -- from the transport and the clock -----------------------------------------------------------------------------

    def tls_up(self) -> None:
        """The peer's certificate was verified; the hello is due."""
        try:
            if self._admit(Input.TLS_UP):
                self._enter(State.HELLO_DUE)
        except ProtocolViolation as violation:
            self.close(violation)

    def received(self, payload: bytes) -> None:
        """One whole frame came in. Whatever is wrong with it closes the connection (W3, W4)."""
        if self.state is State.CLOSED:
            return
        try:
            correlation_id, kind, message = self._dialect.decode(payload)
            self._heard = self._now()
            happening = self._inputs.get(kind, Input.FOREIGN)
            if self._admit(happening):
                _TAKEN[happening](self, correlation_id, kind, message)
        except ProtocolViolation as violation:
            self.close(violation)

    def tick(self) -> None:
        """Time has passed: ping if nothing was said, give up on who says nothing, fail what is late (W7, W8)."""
        if not self._admit(Input.TICK):
            return
        now = self._now()
        if self.state not in ACCEPTED:
            if now >= self._hello_deadline:
                self.close(HandshakeTimeout(f"TLS handshake and hello took longer than {HANDSHAKE_SECONDS:g} s"))
        elif now >= self._heard + SILENCE_SECONDS:
            self.close(PeerSilent(f"nothing was heard from the peer for {SILENCE_SECONDS:g} s"))
        elif now >= self._sent + KEEPALIVE_SECONDS:
            self._pinged += 1
            self._send(0, Ping(nonce=self._pinged))
        for done in self._outbound.expired(now):
            done(RequestTimedOut("the peer did not answer in time; whether it acted is unknown"))
        self._close_if_drained()

    # -- from the application -----------------------------------------------------------------------------------------

    def ask(self, message: Message, timeout_seconds: float, done: Done) -> float:
        """Send a request; ``done`` gets its answer or its error, once. Answers the boot time at which it gives up.

        Raises, and does not call ``done``, if it may not be sent: :class:`~iop.errors.UnexpectedMessage`,
        :class:`~iop.errors.Draining`, :class:`~iop.errors.PeerDisconnected`, :class:`~iop.errors.TooManyInFlight`,
        :class:`~iop.errors.FrameTooLarge`.
        """
        kind = self._dialect.kind_of(message)
        hello = kind == self._dialect.hello
        self._admit(Input.ASK_HELLO if hello else Input.ASK)
        if kind not in self._asks:
            raise UnexpectedMessage(f"a {kind} is not asked by this side")
        payload = self._encode(self._outbound.next_id, message)
        now = self._now()
        deadline = now + timeout_seconds
        self._outbound.ask(self._asks[kind], deadline, done)
        if hello:
            self._enter(State.HELLO_ASKED)
        self._sent = now
        self._outlet.send(payload)
        return deadline

    def reply(self, request: int, message: Message) -> None:
        """Answer a request of the peer. The answer to the hello opens the session or closes it (W9).

        :class:`~iop.errors.UnexpectedMessage` if it answers nothing, :class:`~iop.errors.FrameTooLarge`.
        """
        if not self._admit(Input.REPLY):
            return
        self._inbound.answer(request, self._dialect.kind_of(message))
        payload = self._encode(request, message)
        refusal = None
        if self.state is State.HELLO_ASKED:
            refusal = _refusal(message)
            if refusal is None:
                self._open()
        self._write(payload)
        if refusal is not None:
            self._close(refusal, flush=True)
        elif self.state is State.DRAINING:
            self._close_if_drained()

    def tell(self, message: Message) -> None:
        """Send a notification; nothing happens on a closed connection.

        :class:`~iop.errors.UnexpectedMessage` if it may not be sent, :class:`~iop.errors.FrameTooLarge`.
        """
        if not self._admit(Input.TELL):
            return
        kind = self._dialect.kind_of(message)
        if kind not in self._tells:
            raise UnexpectedMessage(f"a {kind} is not told by this side")
        self._send(0, message)

    def drain(self) -> None:
        """Ask nothing and take no request any more; close when those in flight are answered."""
        if not self._admit(Input.DRAIN):
            return
        if self.state is State.READY:
            self._enter(State.DRAINING)
            self._close_if_drained()
        else:
            self.close(_drained())

    def close(self, reason: IopError) -> None:
        """End the connection at once, if it has not ended."""
        if self._admit(Input.CLOSE):
            self._close(reason, flush=False)

    # -- what follows from a message of the peer ----------------------------------------------------------------------

    def _take_hello_request(self, correlation_id: int, kind: str, message: Message) -> None:
        self._inbound.asked(correlation_id, self._answers[kind])
        self._enter(State.HELLO_ASKED)
        self._outlet.asked(correlation_id, message)

    def _take_hello_answer(self, correlation_id: int, kind: str, message: Message) -> None:
        done = self._outbound.answered(correlation_id, kind)
        if done is None:
            return
        refusal = _refusal(message)
        if refusal is None:
            self._open()
            done(message)
        else:
            self._close(refusal, flush=False, refused=done)

    def _take_request(self, correlation_id: int, kind: str, message: Message) -> None:
        self._inbound.asked(correlation_id, self._answers[kind])
        self._outlet.asked(correlation_id, message)

    def _take_answer(self, correlation_id: int, kind: str, message: Message) -> None:
        done = self._outbound.answered(correlation_id, kind)
        if done is not None:
            done(message)
            if self.state is State.DRAINING:
                self._close_if_drained()

    def _take_note(self, correlation_id: int, kind: str, message: Message) -> None:
        _no_correlation(correlation_id)
        self._outlet.notified(message)

    def _take_ping(self, correlation_id: int, kind: str, message: Message) -> None:
        _no_correlation(correlation_id)
        self._send(0, Pong(nonce=cast(Ping, message).nonce))

    def _take_pong(self, correlation_id: int, kind: str, message: Message) -> None:
        _no_correlation(correlation_id)
        nonce = cast(Pong, message).nonce
        if not self._ponged < nonce <= self._pinged:
            raise StrayAnswer("a pong that answers no ping")
        self._ponged = nonce

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _admit(self, happening: Input) -> bool:
        """Whether the present state takes an input or skips it; a refusal is raised."""
        verdict = TABLE[self.state, happening]
        if verdict is Verdict.TAKE:
            return True
        if verdict is Verdict.SKIP:
            return False
        if verdict is Verdict.LATE:
            raise _drained()
        if verdict is Verdict.GONE:
            raise PeerDisconnected("the connection has ended")
        raise UnexpectedMessage(
            f"{happening.value} is not possible while the connection is in state {self.state.value}"
        )

    def _enter(self, state: State) -> None:
        """Change the state, and with it how much each side may send in one envelope."""
        self.state = state
        self._send_limit = self._limit(initiator=self._initiator)
        self.frame_limit = self._limit(initiator=not self._initiator)

    def _limit(self, *, initiator: bool) -> int:
        """The most bytes of an envelope that side may send now (W2)."""
        if self.state in ACCEPTED:
            return FRAME_LIMIT if initiator else self._dialect.acceptor_limit
        if self.state is State.HELLO_ASKED and not initiator:
            return self._dialect.hello_answer_limit
        return FRAME_BEFORE_HELLO

    def _open(self) -> None:
        self._enter(State.READY)
        self._heard = self._sent = self._now()

    def _encode(self, correlation_id: int, message: Message) -> bytes:
        payload = self._dialect.encode(correlation_id, message)
        if len(payload) > self._send_limit:
            raise FrameTooLarge(
                f"a {type(message).__name__} of {len(payload)} bytes is above the {self._send_limit} a peer takes"
            )
        return payload

    def _send(self, correlation_id: int, message: Message) -> None:
        self._write(self._encode(correlation_id, message))

    def _write(self, payload: bytes) -> None:
        self._sent = self._now()
        self._outlet.send(payload)

    def _close_if_drained(self) -> None:
        if self.state is State.DRAINING and not self._outbound.waiting and not self._inbound:
            self._close(_drained(), flush=True)

    def _close(self, reason: IopError, *, flush: bool, refused: Done | None = None) -> None:
        """End, once: whoever waits is told (W11), ``refused`` the reason itself."""
        if self.state is State.CLOSED:
            return
        self._enter(State.CLOSED)
        self._inbound.clear()
        if refused is not None:
            refused(reason)
        for done in self._outbound.clear():
            gone = PeerDisconnected("the connection ended before the answer came; whether the peer acted is unknown")
            gone.__cause__ = reason
            done(gone)
        self._outlet.closed(reason, flush)


_TAKEN: Final[Mapping[Input, Callable[[Session, int, str, Message], None]]] = {
    Input.HELLO_REQUEST: Session._take_hello_request,
    Input.HELLO_ANSWER: Session._take_hello_answer,
    Input.REQUEST: Session._take_request,
    Input.ANSWER: Session._take_answer,
    Input.NOTE: Session._take_note,
    Input.PINGED: Session._take_ping,
    Input.PONGED: Session._take_pong,
}


def _inputs(dialect: Dialect, *, initiator: bool) -> Mapping[str, Input]:
    """What each kind is that the other side may send."""
    inputs = dict.fromkeys(dialect.requests(initiator=not initiator), Input.REQUEST)
    inputs |= dict.fromkeys(dialect.requests(initiator=initiator).values(), Input.ANSWER)
    inputs |= dict.fromkeys(dialect.notes(initiator=not initiator), Input.NOTE)
    inputs |= {PING: Input.PINGED, PONG: Input.PONGED}
    if initiator:
        inputs[dialect.requests_by_initiator[dialect.hello]] = Input.HELLO_ANSWER
    else:
        inputs[dialect.hello] = Input.HELLO_REQUEST
    return inputs


def _refusal(message: Message) -> HelloRefused | None:
    """What a hello's answer refuses with; None if it accepts."""
    answer = cast(_HelloAnswer, message)
    return None if answer.accepted else HelloRefused(answer.code, answer.message)


def _no_correlation(correlation_id: int) -> None:
    if correlation_id:
        raise UnexpectedMessage("a notification with a correlation id")


def _drained() -> Draining:
    return Draining("this side is going away and takes nothing new")
