"""The session machine: every state and every input, then the rules one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.session import Session
from iop.core.session_table import TABLE, Input, State, Verdict
from iop.errors import (
    Draining,
    DuplicateCorrelation,
    FrameTooLarge,
    HandshakeTimeout,
    HelloRefused,
    IopError,
    MalformedFrame,
    PeerDisconnected,
    PeerNotReading,
    PeerSilent,
    RequestTimedOut,
    StrayAnswer,
    TooManyInFlight,
    UnexpectedMessage,
)
from iop.units import (
    FRAME_BEFORE_HELLO,
    FRAME_LIMIT,
    HANDSHAKE_SECONDS,
    HELLO_ANSWER_LIMIT,
    IN_FLIGHT_LIMIT,
    KEEPALIVE_SECONDS,
    SILENCE_SECONDS,
)
from iop.wire.control_pb2 import (
    AcquireLeaseRequest,
    AcquireLeaseResponse,
    EdgeHelloRequest,
    EdgeHelloResponse,
    EdgeReadyResponse,
    PrincipalProjectionApplyRequest,
    PrincipalProjectionApplyResponse,
)
from iop.wire.dialect import CONTROL, RUNTIME, Dialect
from iop.wire.runtime_pb2 import (
    NodeHelloRequest,
    NodeHelloResponse,
    NodeReadyRequest,
    NodeReadyResponse,
    Ping,
    Pong,
    RunBody,
    RunHead,
    RunRequest,
)


@dataclass
class Words:
    """The messages of one dialect, as one side uses them; the requests are None where that side has none."""

    hello: Message
    accept: Message
    ask: Message | None
    ask_answer: Message | None
    asked: Message | None
    asked_answer: Message | None


def words(dialect: Dialect, *, initiator: bool) -> Words:
    """What a test says in ``dialect`` from that side."""
    if dialect is RUNTIME:
        hello, accept = NodeHelloRequest(node_id="n"), NodeHelloResponse(accepted=True)
        ready, nothing = (NodeReadyRequest(), NodeReadyResponse()), (None, None)
        return Words(hello, accept, *(ready + nothing if initiator else nothing + ready))
    lease = (AcquireLeaseRequest(request_id="r"), AcquireLeaseResponse())
    apply = (PrincipalProjectionApplyRequest(), PrincipalProjectionApplyResponse())
    ours, theirs = (lease, apply) if initiator else (apply, lease)
    return Words(EdgeHelloRequest(edge_id="e"), EdgeHelloResponse(accepted=True), *ours, *theirs)


@dataclass
class Bench:
    """A session, its outlet, its clock and its peer."""

    dialect: Dialect
    initiator: bool
    now: float = 1000.0
    sent: list[tuple[int, Message]] = field(default_factory=list)
    delivered: list[tuple[int, Message]] = field(default_factory=list)
    noted: list[Message] = field(default_factory=list)
    ended: list[tuple[IopError, bool]] = field(default_factory=list)
    outcomes: list[Message | IopError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = words(self.dialect, initiator=self.initiator)
        self.session = Session(self.dialect, initiator=self.initiator, outlet=self, now=lambda: self.now)

    # Outlet
    def send(self, payload: bytes) -> None:
        correlation_id, _, message = self.dialect.decode(payload)
        self.sent.append((correlation_id, message))

    def asked(self, request: int, message: Message) -> None:
        self.delivered.append((request, message))

    def notified(self, message: Message) -> None:
        self.noted.append(message)

    def closed(self, reason: IopError, flush: bool) -> None:
        self.ended.append((reason, flush))

    # the test's hands
    def hear(self, correlation_id: int, message: Message) -> None:
        self.session.received(self.dialect.encode(correlation_id, message))

    def ask(self, message: Message | None, timeout_seconds: float = 60.0) -> None:
        assert message is not None
        self.session.ask(message, timeout_seconds, self.outcomes.append)

    def effects(self) -> tuple[int, ...]:
        """How many effects of each sort there were."""
        return len(self.sent), len(self.delivered), len(self.noted), len(self.ended), len(self.outcomes)

    def reason(self) -> IopError:
        """Why it closed, once."""
        ((reason, _),) = self.ended
        return reason

    def reach(self, state: State, in_flight: int = 1) -> Bench:
        """Bring a new session to ``state``; once ready, with requests in flight in each direction that has some."""
        if state is State.CONNECTING:
            return self
        if state is State.CLOSED:
            self.session.close(IopError("closed by the test"))
            return self
        self.session.tls_up()
        if state is State.HELLO_DUE:
            return self
        if self.initiator:
            self.ask(self.words.hello)
        else:
            self.hear(1, self.words.hello)
        if state is State.HELLO_ASKED:
            return self
        if self.initiator:
            self.hear(1, self.words.accept)
        else:
            self.session.reply(1, self.words.accept)
        for number in range(in_flight):
            if self.words.ask is not None:
                self.ask(self.words.ask)
            if self.words.asked is not None:
                self.hear(50 + number, self.words.asked)
        if state is State.DRAINING:
            self.session.drain()
        return self


def ready(dialect: Dialect = CONTROL, *, initiator: bool = True) -> Bench:
    """A session that became ready and has nothing in flight."""
    bench = Bench(dialect, initiator).reach(State.HELLO_ASKED)
    if initiator:
        bench.hear(1, bench.words.accept)
    else:
        bench.session.reply(1, bench.words.accept)
    for record in (bench.sent, bench.delivered, bench.outcomes):
        record.clear()
    return bench


#: Every (dialect, side).
SIDES = [(dialect, initiator) for dialect in (CONTROL, RUNTIME) for initiator in (True, False)]


def ways(bench: Bench) -> dict[Input, Callable[[], None]]:
    """How each input comes about on that side of that dialect, where it exists, in the present state."""
    session, said = bench.session, bench.words
    runtime, initiator = bench.dialect is RUNTIME, bench.initiator
    act: dict[Input, Callable[[], None]] = {
        Input.TLS_UP: session.tls_up,
        Input.PINGED: lambda: bench.hear(0, Ping(nonce=1)),
        Input.DRAIN: session.drain,
        Input.CLOSE: lambda: session.close(IopError("closed by the test")),
        Input.TICK: session.tick,
        # a message of this side's own, coming from the other
        Input.FOREIGN: lambda: bench.hear(60, said.accept if not initiator else said.hello),
        Input.PONGED: lambda: bench.hear(0, Pong(nonce=1)),
    }
    if initiator:
        act[Input.HELLO_ANSWER] = lambda: bench.hear(1, said.accept)
        act[Input.ASK_HELLO] = lambda: bench.ask(said.hello)
    else:
        act[Input.HELLO_REQUEST] = lambda: bench.hear(1, said.hello)
    if said.ask is not None and said.ask_answer is not None:
        answer, answered = said.ask_answer, 2 if initiator else 1
        act[Input.ASK] = lambda: bench.ask(said.ask)
        act[Input.ANSWER] = lambda: bench.hear(answered, answer)
    if said.asked is not None and said.asked_answer is not None:
        asked, reply = said.asked, said.asked_answer
        act[Input.REQUEST] = lambda: bench.hear(99, asked)
        if session.state is not State.HELLO_ASKED:
            act[Input.REPLY] = lambda: session.reply(50, reply)
    if session.state is State.HELLO_ASKED and not initiator:
        act[Input.REPLY] = lambda: session.reply(1, said.accept)
    if runtime:
        act[Input.NOTE] = lambda: bench.hear(0, RunBody(run=1))
        act[Input.TELL] = lambda: session.tell(RunBody(run=1))
    return act


#: Where a taken input leads; where nothing stands, the state stays.
AFTER: dict[tuple[State, Input], State] = {
    (State.CONNECTING, Input.TLS_UP): State.HELLO_DUE,
    (State.HELLO_DUE, Input.HELLO_REQUEST): State.HELLO_ASKED,
    (State.HELLO_DUE, Input.ASK_HELLO): State.HELLO_ASKED,
    (State.HELLO_ASKED, Input.HELLO_ANSWER): State.READY,
    (State.HELLO_ASKED, Input.REPLY): State.READY,
    (State.READY, Input.DRAIN): State.DRAINING,
    **{(state, Input.DRAIN): State.CLOSED for state in (State.CONNECTING, State.HELLO_DUE, State.HELLO_ASKED)},
    **{(state, Input.CLOSE): State.CLOSED for state in State},
}


#: How the application is refused.
RAISED = {Verdict.WRONG: UnexpectedMessage, Verdict.LATE: Draining, Verdict.GONE: PeerDisconnected}


class TotalityTests(SynchronousTestCase):
    def test_table_is_whole(self) -> None:
        """W7, W9: every state has a verdict on every input."""
        self.assertEqual(set(TABLE), {(state, happening) for state in State for happening in Input})

    def test_every_state_and_input(self) -> None:
        """W3, W9: the session does what the table says, for every cell, on every side of every dialect that has it."""
        for state in State:
            for happening in Input:
                reached = 0
                for dialect, initiator in SIDES:
                    bench = Bench(dialect, initiator).reach(state, in_flight=2)
                    self.assertIs(bench.session.state, state)
                    if state in (State.READY, State.DRAINING):
                        # have a ping out, so that a pong answers one
                        bench.now += KEEPALIVE_SECONDS
                        bench.session.tick()
                    way = ways(bench).get(happening)
                    if way is not None:
                        reached += 1
                        self.check(bench, happening, way)
                self.assertGreater(reached, 0, f"nobody saw {happening} in {state}")

    def check(self, bench: Bench, happening: Input, way: Callable[[], None]) -> None:
        state, before = bench.session.state, bench.effects()
        verdict, cell = TABLE[state, happening], f"{happening} in {state}"
        if verdict in RAISED:
            with self.assertRaises(RAISED[verdict]):
                way()
        else:
            way()
        if verdict is Verdict.BREACH:
            ((reason, flush),) = bench.ended
            self.assertIs(type(reason), UnexpectedMessage, cell)
            self.assertFalse(flush, cell)
        elif verdict is not Verdict.TAKE:
            self.assertEqual(bench.effects(), before, cell)
        stays = AFTER.get((state, happening), state) if verdict is Verdict.TAKE else state
        self.assertIs(bench.session.state, State.CLOSED if verdict is Verdict.BREACH else stays, cell)

    @given(st.sampled_from(SIDES), st.lists(st.tuples(st.sampled_from(Input), st.floats(0, 20)), max_size=30))
    def test_any_sequence(self, side: tuple[Dialect, bool], steps: list[tuple[Input, float]]) -> None:
        """W11: in whatever order things happen, a session ends at most once, and by then every request exactly once."""
        bench = Bench(*side)
        asked = 0
        session, said = bench.session, bench.words
        for happening, seconds in steps:
            bench.now += seconds
            try:
                if happening is Input.TLS_UP:
                    session.tls_up()
                elif happening in (Input.HELLO_REQUEST, Input.FOREIGN):
                    bench.hear(1, said.hello)
                elif happening is Input.HELLO_ANSWER:
                    bench.hear(1, said.accept)
                elif happening is Input.REQUEST and said.asked:
                    bench.hear(len(bench.delivered) + 9, said.asked)
                elif happening is Input.ANSWER and said.ask_answer:
                    bench.hear(asked, said.ask_answer)
                elif happening is Input.NOTE:
                    bench.hear(0, RunBody(run=1) if bench.dialect is RUNTIME else Ping())
                elif happening is Input.PINGED:
                    bench.hear(0, Ping(nonce=3))
                elif happening is Input.PONGED:
                    bench.hear(0, Pong(nonce=1))
                elif happening in (Input.ASK_HELLO, Input.ASK):
                    bench.ask(said.hello if happening is Input.ASK_HELLO or said.ask is None else said.ask, 7.0)
                    asked += 1
                elif happening is Input.REPLY and bench.delivered:
                    request, question = bench.delivered[-1]
                    hello = type(question) is type(said.hello)
                    session.reply(request, said.accept if hello or said.asked_answer is None else said.asked_answer)
                elif happening is Input.TELL:
                    session.tell(RunBody(run=1) if bench.dialect is RUNTIME else Ping())
                elif happening is Input.DRAIN:
                    session.drain()
                elif happening is Input.CLOSE:
                    session.close(IopError("closed by the test"))
                elif happening is Input.TICK:
                    session.tick()
            except IopError:
                pass  # what a local misuse gets; that it is the right one is the totality test's
            assert len(bench.ended) == (session.state is State.CLOSED)
            assert len(bench.outcomes) <= asked
        session.close(IopError("the end"))
        assert len(bench.ended) == 1
        assert len(bench.outcomes) == asked
        assert session.next_wakeup() is None

    @given(st.sampled_from(SIDES), st.sampled_from(State), st.binary(max_size=40))
    def test_any_bytes(self, side: tuple[Dialect, bool], state: State, payload: bytes) -> None:
        """P35: a frame of any content, in any state, is judged and never raises."""
        bench = Bench(*side).reach(state)
        bench.session.received(payload)


class HelloTests(SynchronousTestCase):
    def test_accepted(self) -> None:
        """W9: the answer's ``accepted`` makes both sides ready."""
        dialling = Bench(CONTROL, initiator=True).reach(State.HELLO_ASKED)
        self.assertEqual(dialling.sent, [(1, dialling.words.hello)])
        dialling.hear(1, EdgeHelloResponse(accepted=True, deployment_id="d"))
        self.assertEqual(dialling.outcomes, [EdgeHelloResponse(accepted=True, deployment_id="d")])
        self.assertIs(dialling.session.state, State.READY)

        listening = Bench(CONTROL, initiator=False).reach(State.HELLO_ASKED)
        self.assertEqual(listening.delivered, [(1, listening.words.hello)])
        listening.session.reply(1, EdgeHelloResponse(accepted=True))
        self.assertEqual(listening.sent, [(1, EdgeHelloResponse(accepted=True))])
        self.assertIs(listening.session.state, State.READY)

    def test_refused_by_the_acceptor(self) -> None:
        """P3, W9, W10: the refusal leaves, then the connection closes."""
        bench = Bench(CONTROL, initiator=False).reach(State.HELLO_ASKED)
        refusal = EdgeHelloResponse(accepted=False, code="identity_refused", message="not your name")
        bench.session.reply(1, refusal)
        self.assertEqual(bench.sent, [(1, refusal)])
        ((reason, flush),) = bench.ended
        assert isinstance(reason, HelloRefused)
        self.assertEqual((reason.reason, reason.message, flush), ("identity_refused", "not your name", True))

    def test_refused_initiator(self) -> None:
        """W9, W11: the hello fails, once, with what the peer said."""
        bench = Bench(RUNTIME, initiator=True).reach(State.HELLO_ASKED)
        bench.hear(1, NodeHelloResponse(accepted=False, code="already_connected", message="twice"))
        (outcome,) = bench.outcomes
        assert isinstance(outcome, HelloRefused)
        self.assertEqual((outcome.reason, outcome.message), ("already_connected", "twice"))
        self.assertIs(bench.reason(), outcome)

    def test_default_answer_is_a_refusal(self) -> None:
        """W9: an answer that says nothing accepts nothing."""
        bench = Bench(CONTROL, initiator=True).reach(State.HELLO_ASKED)
        bench.hear(1, EdgeHelloResponse())
        self.assertIsInstance(bench.reason(), HelloRefused)

    def test_only_one_hello(self) -> None:
        """W9: a second hello behind the first closes the connection, whatever its id."""
        for correlation_id in (1, 2):
            bench = Bench(CONTROL, initiator=False).reach(State.HELLO_ASKED)
            bench.hear(correlation_id, bench.words.hello)
            self.assertIsInstance(bench.reason(), UnexpectedMessage)

    def test_hello_needs_an_id(self) -> None:
        """W4."""
        bench = Bench(CONTROL, initiator=False).reach(State.HELLO_DUE)
        bench.hear(0, bench.words.hello)
        self.assertIsInstance(bench.reason(), UnexpectedMessage)

    def test_answer_with_another_id(self) -> None:
        """P36, W4: an answer to a hello that was not asked."""
        bench = Bench(CONTROL, initiator=True).reach(State.HELLO_ASKED)
        bench.hear(2, bench.words.accept)
        self.assertIsInstance(bench.reason(), StrayAnswer)

    def test_late_acceptance_opens_nothing(self) -> None:
        """W5, W7: who gave up on a hello is not made ready by its late answer."""
        bench = Bench(CONTROL, initiator=True).reach(State.HELLO_DUE)
        bench.ask(bench.words.hello, 2.0)
        bench.now += 2.0
        bench.session.tick()
        bench.hear(1, bench.words.accept)
        self.assertIs(bench.session.state, State.HELLO_ASKED)
        bench.now += HANDSHAKE_SECONDS - 2.0
        bench.session.tick()
        self.assertIsInstance(bench.reason(), HandshakeTimeout)
        self.assertEqual([type(outcome) for outcome in bench.outcomes], [RequestTimedOut])


class DeadlineTests(SynchronousTestCase):
    def test_handshake_and_hello(self) -> None:
        """P34, W7: one absolute deadline, from the first state to the accepted hello; at it, not before."""
        for state in (State.CONNECTING, State.HELLO_DUE, State.HELLO_ASKED):
            for dialect, initiator in SIDES:
                bench = Bench(dialect, initiator).reach(state)
                self.assertEqual(bench.session.next_wakeup(), 1000.0 + HANDSHAKE_SECONDS)
                bench.now += HANDSHAKE_SECONDS - 0.001
                bench.session.tick()
                self.assertIs(bench.session.state, state)
                bench.now = 1000.0 + HANDSHAKE_SECONDS
                bench.session.tick()
                self.assertIsInstance(bench.reason(), HandshakeTimeout)

    def test_progress_does_not_move_it(self) -> None:
        """P34, W7: neither TLS nor the hello starts the time anew."""
        bench = Bench(CONTROL, initiator=False)
        bench.now += 6
        bench.session.tls_up()
        bench.now += 3
        bench.hear(1, bench.words.hello)
        self.assertEqual(bench.session.next_wakeup(), 1000.0 + HANDSHAKE_SECONDS)
        bench.now += 1
        bench.session.tick()
        self.assertIsInstance(bench.reason(), HandshakeTimeout)

    def test_request_times_out_once(self) -> None:
        """P36, W5: at its deadline; the late answer is discarded, a second one is a stray."""
        bench = ready()
        bench.ask(AcquireLeaseRequest(), 3.0)
        self.assertEqual(bench.session.next_wakeup(), bench.now + 3)
        bench.now += 3
        bench.session.tick()
        self.assertEqual([type(outcome) for outcome in bench.outcomes], [RequestTimedOut])
        bench.hear(2, AcquireLeaseResponse())
        self.assertIs(bench.session.state, State.READY)
        self.assertEqual(len(bench.outcomes), 1)
        bench.hear(2, AcquireLeaseResponse())
        self.assertIsInstance(bench.reason(), StrayAnswer)

    def test_outlet_that_closes(self) -> None:
        """W11: an outlet that gives up on the peer while it sends ends the session once, whatever was being sent."""

        @dataclass
        class Closing(Bench):
            def send(self, payload: bytes) -> None:
                self.session.close(PeerNotReading("enough"))

        for answer in (EdgeHelloResponse(accepted=True), EdgeHelloResponse(accepted=False)):
            bench = Closing(CONTROL, initiator=False).reach(State.HELLO_ASKED)
            bench.session.reply(1, answer)
            self.assertIsInstance(bench.reason(), PeerNotReading)
        asking = Closing(CONTROL, initiator=True).reach(State.HELLO_DUE)
        asking.ask(asking.words.hello)
        self.assertIsInstance(asking.reason(), PeerNotReading)
        self.assertEqual([type(outcome) for outcome in asking.outcomes], [PeerDisconnected])

    def test_who_is_told_may_ask_again(self) -> None:
        """W11: an application that asks anew, or closes, from within its failure."""
        bench = ready()

        def again(outcome: Message | IopError) -> None:
            bench.outcomes.append(outcome)
            bench.ask(AcquireLeaseRequest(), 3.0)

        bench.session.ask(AcquireLeaseRequest(), 3.0, again)
        bench.session.ask(AcquireLeaseRequest(), 3.0, lambda outcome: bench.session.close(Draining("enough")))
        bench.now += 3
        bench.session.tick()
        self.assertEqual([type(outcome) for outcome in bench.outcomes], [RequestTimedOut, PeerDisconnected])
        self.assertIsInstance(bench.reason(), Draining)


class KeepaliveTests(SynchronousTestCase):
    def test_pings_when_it_said_nothing(self) -> None:
        """W8: after 5 s without a word of its own, with a nonce not used before."""
        for dialect, initiator in SIDES:
            bench = ready(dialect, initiator=initiator)
            for nonce in (1, 2):
                self.assertEqual(bench.session.next_wakeup(), bench.now + KEEPALIVE_SECONDS)
                bench.now += KEEPALIVE_SECONDS
                bench.session.tick()
                self.assertEqual(bench.sent[-1], (0, Ping(nonce=nonce)))
                bench.hear(0, Pong(nonce=nonce))
            self.assertEqual(len(bench.sent), 2)

    def test_what_it_says_puts_the_ping_off(self) -> None:
        """W8: anything sent counts."""
        bench = ready(RUNTIME)
        bench.now += KEEPALIVE_SECONDS - 1
        bench.session.tell(RunHead(run=1))
        bench.now += 1
        bench.session.tick()
        self.assertEqual([type(message) for _, message in bench.sent], [RunHead])

    def test_pong_repeats_the_nonce(self) -> None:
        """W8."""
        bench = ready()
        for nonce in (7, 7, 2**64 - 1):
            bench.hear(0, Ping(nonce=nonce))
            self.assertEqual(bench.sent[-1], (0, Pong(nonce=nonce)))

    def test_silent_peer(self) -> None:
        """W8: 15 s without a frame, in ready and in draining, although this side keeps pinging."""
        for state in (State.READY, State.DRAINING):
            bench = Bench(CONTROL, initiator=True).reach(state)
            for _ in range(int(SILENCE_SECONDS) - 1):
                bench.now += 1
                bench.session.tick()
            self.assertIs(bench.session.state, state)
            bench.now += 1
            bench.session.tick()
            self.assertIsInstance(bench.reason(), PeerSilent)

    def test_any_frame_is_a_sign_of_life(self) -> None:
        """W8: a pong is not asked for, something is."""
        bench = ready(RUNTIME)
        for _ in range(10):
            bench.now += SILENCE_SECONDS - 1
            bench.hear(0, RunRequest(run=1))
            bench.session.tick()
        self.assertIs(bench.session.state, State.READY)

    def test_stray_pongs(self) -> None:
        """P36: a pong nobody asked for, one that was heard already, one from the past."""
        for nonces in ([0], [1], [2**64 - 1]):
            bench = ready()
            for nonce in nonces:
                bench.hear(0, Pong(nonce=nonce))
            self.assertIsInstance(bench.reason(), StrayAnswer)
        for nonces in ([1, 1], [2, 1], [3]):
            bench = ready()
            for _ in range(2):
                bench.now += KEEPALIVE_SECONDS
                bench.session.tick()
            for nonce in nonces:
                bench.hear(0, Pong(nonce=nonce))
            self.assertIsInstance(bench.reason(), StrayAnswer)


class CorrelationTests(SynchronousTestCase):
    def test_ids_are_per_direction(self) -> None:
        """W4: the same number may be in flight both ways."""
        bench = ready()
        bench.ask(AcquireLeaseRequest())
        bench.hear(2, PrincipalProjectionApplyRequest())
        bench.session.reply(2, PrincipalProjectionApplyResponse())
        bench.hear(2, AcquireLeaseResponse())
        self.assertEqual(bench.outcomes, [AcquireLeaseResponse()])
        self.assertEqual(bench.ended, [])

    def test_breaches(self) -> None:
        """P36, W4: what closes the connection, by name."""
        apply = PrincipalProjectionApplyRequest()
        cases: list[tuple[type[IopError], list[tuple[int, Message]]]] = [
            (DuplicateCorrelation, [(9, apply), (9, apply)]),
            (UnexpectedMessage, [(0, apply)]),
            (StrayAnswer, [(9, AcquireLeaseResponse())]),
            (StrayAnswer, [(0, AcquireLeaseResponse())]),
            (StrayAnswer, [(2, EdgeReadyResponse())]),
            (UnexpectedMessage, [(2, AcquireLeaseRequest())]),
            (UnexpectedMessage, [(1, Ping())]),
            (UnexpectedMessage, [(1, Pong())]),
        ]
        for expected, frames in cases:
            bench = ready()
            bench.ask(AcquireLeaseRequest())
            for correlation_id, message in frames:
                bench.hear(correlation_id, message)
            self.assertIs(type(bench.reason()), expected)
            self.assertEqual([type(outcome) for outcome in bench.outcomes], [PeerDisconnected])

    def test_notification_with_an_id(self) -> None:
        """W4."""
        bench = ready(RUNTIME, initiator=False)
        bench.hear(1, RunHead(run=1))
        self.assertIsInstance(bench.reason(), UnexpectedMessage)
        self.assertEqual(bench.noted, [])

    def test_wrong_direction(self) -> None:
        """W3: a Node does not open runs, an Edge does not send heads."""
        for initiator, message in ((False, RunRequest(run=1)), (True, RunHead(run=1))):
            bench = ready(RUNTIME, initiator=initiator)
            bench.hear(0, message)
            self.assertIsInstance(bench.reason(), UnexpectedMessage)
            with self.assertRaises(UnexpectedMessage):
                ready(RUNTIME, initiator=not initiator).session.tell(message)

    def test_malformed(self) -> None:
        """P35, W3: a frame that is no envelope."""
        bench = ready()
        bench.session.received(b"\xff")
        self.assertIsInstance(bench.reason(), MalformedFrame)

    def test_in_flight_to_the_peer(self) -> None:
        """W6: 1,024 go out, one more is refused here and does not disturb them."""
        bench = ready()
        for _ in range(IN_FLIGHT_LIMIT):
            bench.ask(AcquireLeaseRequest())
        with self.assertRaises(TooManyInFlight):
            bench.ask(AcquireLeaseRequest())
        self.assertEqual(len(bench.sent), IN_FLIGHT_LIMIT)
        bench.hear(5, AcquireLeaseResponse())
        bench.ask(AcquireLeaseRequest())
        self.assertEqual(len(bench.outcomes), 1)

    def test_in_flight_from_the_peer(self) -> None:
        """W6: 1,024 come in, one more closes."""
        bench = ready()
        for number in range(1, IN_FLIGHT_LIMIT + 1):
            bench.hear(number, PrincipalProjectionApplyRequest())
        self.assertEqual(bench.ended, [])
        bench.hear(IN_FLIGHT_LIMIT + 1, PrincipalProjectionApplyRequest())
        self.assertIsInstance(bench.reason(), TooManyInFlight)
        self.assertEqual(len(bench.delivered), IN_FLIGHT_LIMIT)

    def test_own_mistakes(self) -> None:
        """W3, W4: this side cannot ask, answer or tell what may not travel, and stays usable."""
        bench = ready()
        bench.hear(9, PrincipalProjectionApplyRequest())
        mistakes: list[Callable[[], None]] = [
            lambda: bench.ask(PrincipalProjectionApplyRequest()),
            lambda: bench.ask(AcquireLeaseResponse()),
            lambda: bench.ask(NodeReadyRequest()),
            lambda: bench.session.reply(8, PrincipalProjectionApplyResponse()),
            lambda: bench.session.reply(9, AcquireLeaseResponse()),
            lambda: bench.session.tell(Ping()),
            lambda: bench.session.tell(AcquireLeaseRequest()),
        ]
        for mistake in mistakes:
            with self.assertRaises(UnexpectedMessage):
                mistake()
        self.assertEqual(bench.sent, [])
        bench.session.reply(9, PrincipalProjectionApplyResponse())
        self.assertEqual(len(bench.sent), 1)

    def test_every_request_fails_once(self) -> None:
        """W11: when the connection ends, and never again."""
        bench = ready()
        for _ in range(3):
            bench.ask(AcquireLeaseRequest())
        bench.session.close(PeerSilent("gone"))
        bench.session.close(PeerDisconnected("gone again"))
        bench.hear(2, AcquireLeaseResponse())
        self.assertEqual([type(outcome) for outcome in bench.outcomes], [PeerDisconnected] * 3)
        self.assertIsInstance(bench.reason(), PeerSilent)
        self.assertEqual([getattr(outcome, "__cause__", None) for outcome in bench.outcomes], [bench.reason()] * 3)


class LimitTests(SynchronousTestCase):
    def test_received(self) -> None:
        """P32, W2: the limit of each state, on each side."""
        before, after = FRAME_BEFORE_HELLO, FRAME_LIMIT
        for dialect, initiator, hello_answer, ready in (
            (CONTROL, True, HELLO_ANSWER_LIMIT, HELLO_ANSWER_LIMIT),
            (CONTROL, False, before, after),
            (RUNTIME, True, before, after),
            (RUNTIME, False, before, after),
        ):
            limits = [before, before, hello_answer, ready, ready]
            for state, limit in zip(list(State)[:-1], limits, strict=True):
                bench = Bench(dialect, initiator).reach(state)
                self.assertEqual(bench.session.frame_limit, limit, f"{state} of {dialect.hello}, {initiator=}")

    def test_sent(self) -> None:
        """W2: what a peer would refuse is not sent; the limit passes, one byte more does not."""
        bench = ready(RUNTIME)
        overhead = len(RUNTIME.encode(0, RunBody(data=b"x" * FRAME_LIMIT))) - FRAME_LIMIT
        bench.session.tell(RunBody(data=b"x" * (FRAME_LIMIT - overhead)))
        with self.assertRaises(FrameTooLarge):
            bench.session.tell(RunBody(data=b"x" * (FRAME_LIMIT - overhead + 1)))
        self.assertEqual(len(bench.sent), 1)

    def test_oversize_hello(self) -> None:
        """W2: before the hello was accepted, less may be said; a request that is too large is not in flight."""
        bench = Bench(CONTROL, initiator=True).reach(State.HELLO_DUE)
        with self.assertRaises(FrameTooLarge):
            bench.ask(EdgeHelloRequest(edge_id="e" * FRAME_BEFORE_HELLO))
        bench.ask(bench.words.hello)
        bench.hear(1, bench.words.accept)
        self.assertIs(bench.session.state, State.READY)

    def test_hello_answer_with_a_projection(self) -> None:
        """W2: the hello's answer may hold a projection of 1 MiB."""
        bench = Bench(CONTROL, initiator=False).reach(State.HELLO_ASKED)
        bench.session.reply(1, EdgeHelloResponse(accepted=True, message="m" * FRAME_LIMIT))
        self.assertEqual(len(bench.sent), 1)
        bench = Bench(CONTROL, initiator=False).reach(State.HELLO_ASKED)
        with self.assertRaises(FrameTooLarge):
            bench.session.reply(1, EdgeHelloResponse(accepted=True, message="m" * HELLO_ANSWER_LIMIT))


class DrainTests(SynchronousTestCase):
    def test_idle(self) -> None:
        """An idle session that drains closes at once, after what it sent."""
        bench = ready()
        bench.session.drain()
        ((reason, flush),) = bench.ended
        self.assertIsInstance(reason, Draining)
        self.assertTrue(flush)

    def test_waits_for_both_directions(self) -> None:
        """What is in flight ends first, in either order."""
        for answered_first in (True, False):
            bench = Bench(CONTROL, initiator=True).reach(State.DRAINING)
            steps = [
                partial(bench.hear, 2, AcquireLeaseResponse()),
                partial(bench.session.reply, 50, PrincipalProjectionApplyResponse()),
            ]
            first, second = steps if answered_first else reversed(steps)
            first()
            self.assertEqual(bench.ended, [])
            second()
            self.assertIsInstance(bench.reason(), Draining)

    def test_does_not_wait_for_tombstones(self) -> None:
        """A request that times out while draining is not waited for any longer."""
        bench = ready()
        bench.ask(AcquireLeaseRequest(), 2.0)
        bench.session.drain()
        bench.now += 2
        bench.session.tick()
        self.assertIsInstance(bench.reason(), Draining)
        self.assertEqual([type(outcome) for outcome in bench.outcomes], [RequestTimedOut])

    def test_takes_nothing_new(self) -> None:
        """A request that comes while draining is not delivered."""
        bench = Bench(CONTROL, initiator=True).reach(State.DRAINING)
        delivered = len(bench.delivered)
        bench.hear(51, PrincipalProjectionApplyRequest())
        self.assertEqual(len(bench.delivered), delivered)
