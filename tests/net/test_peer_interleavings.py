"""Two ends of a peer connection under any interleaving of what both do and what may happen to the connection."""

from __future__ import annotations

from functools import partial
from unittest import mock

from google.protobuf.message import Message
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import ITransport
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.errors import Draining, IdentityRefused, IopError, PeerDisconnected
from iop.interfaces import IPeer, IPeerApplication
from iop.net import peer
from iop.net.peer import TURN_FRAMES, PeerFactory
from iop.testing.clock import FakeClock
from iop.testing.peers import attach, memory_identity
from iop.units import BODY_PIECE, FRAME_LIMIT, Identity, Role
from iop.wire import runtime_pb2
from iop.wire.dialect import RUNTIME
from iop.wire.framing import FrameDecoder

#: More than any machine lets pass.
LONG_SECONDS = 1e6
#: Exchanges after which everything has arrived: more than there can be turns.
ROUNDS = 200
ENDS = st.sampled_from((0, 1))
#: What one end may do to the connection, or what may happen to it.
HOWS = ("drain", "close", "distrust", "lose")
TIMES = st.sampled_from((1, 3, 2 * TURN_FRAMES + 1))
#: (kind, number): the same on both sides.
Word = tuple[str, int]


@implementer(IPeerApplication)
class End:
    """One end: its application, and all that the other one should hear of it."""

    peer: IPeer

    def __init__(self, clock: FakeClock, *, initiator: bool) -> None:
        self.initiator = initiator
        self.said: list[Word] = []
        self.heard: list[Word] = []
        self.reasons: list[IopError] = []
        #: What was heard, or asked to answer, when it was over.
        self.late = 0
        #: Numbers of this end's requests whose outcome is open.
        self.waiting: set[int] = set()
        #: Requests of the other end that this one has not answered.
        self.unanswered: list[tuple[int, Deferred[Message]]] = []
        self.trusting = True
        self.drained = False
        self.gone = False
        #: Whether its transport, or the other's, was lost for no reason of theirs.
        self.cut = False
        self.arrived = FrameDecoder(FRAME_LIMIT)
        self._arrived: list[Word] = []
        self._count = 0
        self.factory = PeerFactory(
            RUNTIME, initiator=initiator, application=lambda: self, clock=clock, identify=self._identify
        )
        other = Role.EDGE if initiator else Role.NODE
        self.protocol, self.transport = attach(self.factory, Identity("test.example", other, "other"), handshake=False)

    @property
    def over(self) -> bool:
        """Whether the application was told of the end."""
        return bool(self.reasons)

    def words_arrived(self) -> list[Word]:
        """What the whole frames say that have arrived."""
        while (frame := self.arrived.next_frame()) is not None:
            match RUNTIME.decode(frame)[2]:
                case runtime_pb2.RunBody() as note:
                    self._arrived.append(("note", note.run))
                case runtime_pb2.NodeKeyProofRequest() as question:
                    self._arrived.append(("request", int(question.public_key)))
                case runtime_pb2.NodeKeyProofResponse() as answer:
                    self._arrived.append(("answer", int(answer.code)))
        return self._arrived

    def _identify(self, transport: ITransport) -> Identity:
        if not self.trusting:
            raise IdentityRefused("not trusted any more")
        return memory_identity(transport)

    # -- what the other end brings about ------------------------------------------------------------------------------

    def connected(self, peer: IPeer) -> None:
        self.peer = peer

    def asked(self, message: Message) -> Deferred[Message]:
        if isinstance(message, runtime_pb2.NodeHelloRequest):
            return succeed(runtime_pb2.NodeHelloResponse(accepted=True))
        if not isinstance(message, runtime_pb2.NodeKeyProofRequest):
            raise AssertionError(message)
        number = int(message.public_key)
        self._hear("request", number)
        answer: Deferred[Message] = Deferred()
        if number % 2:
            self.unanswered.append((number, answer))
        else:
            self.answer(number, answer)
        return answer

    def notified(self, message: Message) -> None:
        if not isinstance(message, runtime_pb2.RunBody):
            raise AssertionError(message)
        self._hear("note", message.run)

    def lost(self, reason: IopError) -> None:
        self.reasons.append(reason)

    def _hear(self, kind: str, number: int) -> None:
        self.late += self.over
        self.heard.append((kind, number))

    # -- what this end does -------------------------------------------------------------------------------------------

    def note(self, size: int) -> None:
        """Say something of ``size`` bytes."""
        self._count += 1
        self._say("note", self._count)
        self.peer.notify(runtime_pb2.RunBody(run=self._count, data=bytes(size)))

    def ask(self) -> None:
        """Ask; whether it is answered at once is in the number."""
        self._count += 1
        number = self._count
        if not self.drained:
            self._say("request", number)
        self.waiting.add(number)
        question = runtime_pb2.NodeKeyProofRequest(public_key=b"%d" % number)
        self.peer.request(question, LONG_SECONDS).addCallbacks(
            partial(self._answered, number), partial(self._unanswered, number)
        )

    def answer(self, number: int, answer: Deferred[Message]) -> None:
        """Answer a request of the other end."""
        self._say("answer", number)
        answer.callback(runtime_pb2.NodeKeyProofResponse(code=str(number)))

    def _say(self, kind: str, number: int) -> None:
        if not self.over:
            self.said.append((kind, number))

    def _answered(self, number: int, answer: Message) -> None:
        self.waiting.remove(number)
        self._hear("answer", number)

    def _unanswered(self, number: int, failure: Failure) -> None:
        self.waiting.remove(number)
        failure.trap(IopError)


class PeersMachine(RuleBasedStateMachine):
    """Frames, turns, pauses, drains and ends in any order, against a list of what was said."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = mock.patch.object(peer, "UNREAD_LIMIT", 8 * BODY_PIECE)
        self._limit.start()
        self.clock = FakeClock()
        self.ends = End(self.clock, initiator=True), End(self.clock, initiator=False)
        for end in reversed(self.ends):
            end.protocol.handshakeCompleted()
        self.ends[0].peer.request(runtime_pb2.NodeHelloRequest(node_id="node"), LONG_SECONDS)
        self.settle()

    @rule(which=ENDS, size=st.sampled_from((1, BODY_PIECE)), times=TIMES)
    def note(self, which: int, size: int, times: int) -> None:
        for _ in range(times):
            self.ends[which].note(size)

    @rule(which=ENDS, how=st.sampled_from(("", *HOWS)))
    def burst(self, which: int, how: str) -> None:
        """More than two turns' worth is said and arrives at once; something happens to who has it to judge."""
        self.note(which, 1, 2 * TURN_FRAMES + 1)
        self.arrive(1 - which, None, False)
        if how:
            self.end(1 - which, how)

    @rule(times=TIMES)
    def ask(self, times: int) -> None:
        for _ in range(times):
            self.ends[0].ask()

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        end = self.ends[1]
        if end.unanswered:
            end.answer(*end.unanswered.pop(data.draw(st.integers(0, len(end.unanswered) - 1))))

    @rule(which=ENDS, most=st.sampled_from((1, 5, 100, 3000, None)), regardless=st.booleans())
    def arrive(self, which: int, most: int | None, regardless: bool) -> None:
        """Some bytes arrive; ``regardless`` of a pause, as what TLS had decrypted already does."""
        self._move(self.ends[1 - which], self.ends[which], most, regardless)

    @rule(which=ENDS)
    def hold(self, which: int) -> None:
        """The other end stops reading, or goes on."""
        transport = self.ends[which].transport
        transport.held = not transport.held

    @rule(seconds=st.sampled_from((0.0, 0.0, 0.0, 3.0)))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(which=ENDS, how=st.sampled_from(HOWS))
    def end(self, which: int, how: str) -> None:
        """One end drains or closes, refuses its peer from now on, or loses its transport before the other knows."""
        end = self.ends[which]
        if how == "drain":
            end.drained = True
            end.peer.drain()
        elif how == "close":
            end.peer.close(PeerDisconnected("enough"))
        elif how == "distrust":
            end.trusting = False
            end.factory.reverify()
        else:
            for each in self.ends:
                each.cut = True
            self._lose(end)
        assert end.over or how == "drain"

    @invariant()
    def everything_is_heard_once_and_in_order(self) -> None:
        for end, other in (self.ends, reversed(self.ends)):
            assert len(end.reasons) <= 1
            assert not end.late
            for kinds in ({"note", "answer"}, {"request"}):
                heard = [word for word in end.heard if word[0] in kinds]
                assert heard == [word for word in other.said if word[0] in kinds][: len(heard)]
            said = iter(other.said)
            assert all(word in said for word in end.heard)

    @invariant()
    def who_waits_hears_of_the_end(self) -> None:
        for end in self.ends:
            assert not (end.over and end.waiting)

    def teardown(self) -> None:
        try:
            self.settle()
            self.everything_is_heard_once_and_in_order()
            for end, other in (self.ends, reversed(self.ends)):
                assert end.over == other.over
                assert end.over or not end.drained
                if end.over and isinstance(end.reasons[0], Draining) and not (end.transport.aborted or end.cut):
                    # it closed behind all that it had said, if the other one did not go first
                    heard = [word for word in other.heard if word[0] != "request"]
                    assert other.reasons[0].message != "the connection ended" or heard == [
                        word for word in end.said if word[0] != "request"
                    ]
                if not end.over:
                    assert end.heard == other.said
                    assert end.transport.reading
                    assert not end.waiting
            for end in self.ends:
                self._lose(end)
                assert len(end.reasons) == 1
                assert not end.late
                assert not end.waiting
            assert not self.clock.reactor.getDelayedCalls()
        finally:
            self._limit.stop()

    def settle(self) -> None:
        """Let everything arrive and be answered that can."""
        for end in self.ends:
            end.transport.held = False
        for _ in range(ROUNDS):
            while self.ends[1].unanswered:
                self.ends[1].answer(*self.ends[1].unanswered.pop())
            for end, other in (self.ends, reversed(self.ends)):
                self._move(other, end, None, False)
            self.clock.advance(0)
            for end, other in (self.ends, reversed(self.ends)):
                if end.transport.finished or other.gone:
                    self._lose(end)

    def _move(self, source: End, target: End, most: int | None, regardless: bool) -> None:
        if target.gone or target.transport.aborted or not (target.transport.reading or regardless):
            return
        data = source.transport.take(most)
        if data:
            target.arrived.feed(data)
            target.protocol.dataReceived(data)

    def _lose(self, end: End) -> None:
        if end.gone:
            return
        end.gone = True
        was_over = end.over
        end.protocol.connectionLost(connectionDone)
        if not was_over and end.reasons[0].message == "the connection ended":
            # nothing else ended it, so all that had arrived was heard before
            assert [word for word in end.heard if word[0] != "request"] == [
                word for word in end.words_arrived() if word[0] != "request"
            ]
            assert end.drained or end.heard == end.words_arrived()


class InterleavingTests(SynchronousTestCase):
    def test_any_interleaving(self) -> None:
        """P33, P48, W11: nothing is lost, doubled, reordered or delivered after the end; nobody and nothing is left."""
        bounds = settings(max_examples=250, stateful_step_count=40)
        run_state_machine_as_test(PeersMachine, settings=bounds)
