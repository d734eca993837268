"""A peer connection on a transport."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from google.protobuf.message import Message
from OpenSSL.SSL import Error as TlsError
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IHandshakeListener, IPushProducer, ITransport
from twisted.internet.protocol import connectionDone
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from iop.errors import (
    Draining,
    DuplicateCorrelation,
    FrameTooLarge,
    HandshakeTimeout,
    HelloRefused,
    IdentityRefused,
    IopError,
    MalformedFrame,
    PeerDisconnected,
    PeerNotReading,
    PeerSilent,
    RequestTimedOut,
    StrayAnswer,
    TlsFailed,
    UnexpectedMessage,
)
from iop.interfaces import IPeer, IPeerApplication
from iop.net import peer
from iop.net.peer import FLUSH_SECONDS, FRAME_COST, UNREAD_LIMIT, PeerFactory, PeerProtocol
from iop.testing.clock import FakeClock
from iop.testing.peers import MemoryTransport, PeerPair, attach, in_pieces, memory_identity, whole
from iop.units import (
    BODY_PIECE,
    FRAME_BEFORE_HELLO,
    FRAME_LIMIT,
    HANDSHAKE_SECONDS,
    HELLO_ANSWER_LIMIT,
    KEEPALIVE_SECONDS,
    SILENCE_SECONDS,
    Identity,
    Role,
)
from iop.wire.control_pb2 import (
    AcquireLeaseRequest,
    AcquireLeaseResponse,
    EdgeHelloRequest,
    EdgeHelloResponse,
    PrincipalProjectionApplyRequest,
    PrincipalProjectionApplyResponse,
)
from iop.wire.dialect import CONTROL, RUNTIME, Dialect
from iop.wire.framing import encode_frame
from iop.wire.runtime_pb2 import NodeHelloRequest, NodeHelloResponse, Ping, RunBody, RunCancel, RunRequest
from tests.memory import kept

EDGE = Identity("test.example", Role.EDGE, "edge")
CONTROL_PLANE = Identity("test.example", Role.CONTROL_PLANE, "cp")
NODE = Identity("test.example", Role.NODE, "node")
HELLO = EdgeHelloRequest(edge_id="edge", protocol_version=1)


@implementer(IPeerApplication)
class Recorder:
    """An application that remembers, and answers as it is told."""

    def __init__(self, answers: Callable[[Message], Deferred[Message]] | None = None) -> None:
        self.peers: list[IPeer] = []
        self.questions: list[Message] = []
        self.notes: list[Message] = []
        self.reasons: list[IopError] = []
        self._answers = answers or self.agree

    def agree(self, message: Message) -> Deferred[Message]:
        """Accept every hello, answer every other question with nothing in it."""
        answers: dict[type[Message], Message] = {
            EdgeHelloRequest: EdgeHelloResponse(accepted=True),
            NodeHelloRequest: NodeHelloResponse(accepted=True),
            AcquireLeaseRequest: AcquireLeaseResponse(),
            PrincipalProjectionApplyRequest: PrincipalProjectionApplyResponse(),
        }
        return succeed(answers[type(message)])

    @property
    def peer(self) -> IPeer:
        """The one connection."""
        (peer,) = self.peers
        return peer

    @property
    def reason(self) -> IopError:
        """Why it ended, once."""
        (reason,) = self.reasons
        return reason

    def connected(self, peer: IPeer) -> None:
        self.peers.append(peer)

    def asked(self, message: Message) -> Deferred[Message]:
        self.questions.append(message)
        return self._answers(message)

    def notified(self, message: Message) -> None:
        self.notes.append(message)

    def lost(self, reason: IopError) -> None:
        self.reasons.append(reason)


class PeerTestCase(SynchronousTestCase):
    """Two applications and what connects them."""

    def setUp(self) -> None:
        self.clock = FakeClock()
        self.dialling = Recorder()
        self.accepting = Recorder()

    def factory(self, application: IPeerApplication, *, initiator: bool, dialect: Dialect = CONTROL) -> PeerFactory:
        """A factory whose connections all belong to ``application``."""
        return PeerFactory(
            dialect,
            initiator=initiator,
            application=lambda: application,
            clock=self.clock,
            identify=memory_identity,
        )

    def pair(
        self, dialect: Dialect = CONTROL, split: Callable[[bytes], Iterable[bytes]] = whole, *, hello: bool = True
    ) -> PeerPair:
        """A connected pair, its hello accepted unless ``hello`` is false."""
        dialler, listener = (EDGE, CONTROL_PLANE) if dialect is CONTROL else (NODE, EDGE)
        pair = PeerPair(
            self.factory(self.dialling, initiator=True, dialect=dialect),
            self.factory(self.accepting, initiator=False, dialect=dialect),
            dialler=dialler,
            listener=listener,
            split=split,
        )
        if hello:
            greeting = HELLO if dialect is CONTROL else NodeHelloRequest(node_id="node")
            answer = self.dialling.peer.request(greeting, 5.0)
            pair.pump()
            self.successResultOf(answer)
        return pair

    def alone(self, *, initiator: bool = False, handshake: bool = True) -> tuple[PeerProtocol, MemoryTransport]:
        """The accepting (or dialling) end of the control wire, whose peer the test plays."""
        application = self.dialling if initiator else self.accepting
        peer = CONTROL_PLANE if initiator else EDGE
        return attach(self.factory(application, initiator=initiator), peer, handshake=handshake)


def frame(correlation_id: int, message: Message, dialect: Dialect = CONTROL) -> bytes:
    """What a peer writes."""
    return encode_frame(dialect.encode(correlation_id, message))


class ConversationTests(PeerTestCase):
    def test_interfaces(self) -> None:
        protocol, _ = self.alone()
        for interface in (IPeer, IHandshakeListener, IPushProducer):
            verifyObject(interface, protocol)
        verifyObject(IPeerApplication, self.accepting)

    def test_identity_and_exporter(self) -> None:
        """W10: each side knows the other's certificate, and both export the same keying material."""
        self.pair()
        self.assertEqual(self.dialling.peer.identity, CONTROL_PLANE)
        self.assertEqual(self.accepting.peer.identity, EDGE)
        label = b"EXPORTER-iop-pop-v1"
        self.assertEqual(self.dialling.peer.exporter(label, 32), self.accepting.peer.exporter(label, 32))

    def test_every_split_point(self) -> None:
        """P33, W1: hello, requests and answers both ways, however the bytes are cut."""
        for size in range(1, 40):
            self.setUp()
            pair = self.pair(split=in_pieces(size))
            lease = self.dialling.peer.request(AcquireLeaseRequest(request_id="r"), 5.0)
            applied = self.accepting.peer.request(PrincipalProjectionApplyRequest(), 5.0)
            pair.pump()
            self.assertEqual(self.successResultOf(lease), AcquireLeaseResponse())
            self.assertEqual(self.successResultOf(applied), PrincipalProjectionApplyResponse())
            self.assertEqual(self.accepting.questions, [HELLO, AcquireLeaseRequest(request_id="r")])

    def test_notifications(self) -> None:
        """W4: they arrive in order and are not answered."""
        pair = self.pair(RUNTIME)
        self.accepting.peer.notify(RunRequest(run=1))
        self.accepting.peer.notify(RunBody(run=1, data=b"x" * BODY_PIECE))
        pair.pump()
        self.assertEqual(self.dialling.notes, [RunRequest(run=1), RunBody(run=1, data=b"x" * BODY_PIECE)])

    def test_slow_answer(self) -> None:
        """W4: answers come in whatever order the application makes them."""
        waiting: list[Deferred[Message]] = []

        def later(message: Message) -> Deferred[Message]:
            if isinstance(message, EdgeHelloRequest):
                return succeed(EdgeHelloResponse(accepted=True))
            waiting.append(Deferred())
            return waiting[-1]

        self.accepting = Recorder(later)
        pair = self.pair()
        first, second = (self.dialling.peer.request(AcquireLeaseRequest(), 5.0) for _ in range(2))
        pair.pump()
        waiting[1].callback(AcquireLeaseResponse())
        pair.pump()
        self.assertNoResult(first)
        self.assertEqual(self.successResultOf(second), AcquireLeaseResponse())
        waiting[0].callback(AcquireLeaseResponse())
        pair.pump()
        self.successResultOf(first)

    def test_keepalive(self) -> None:
        """W8: two idle sides keep each other alive for as long as bytes travel, and not longer."""
        pair = self.pair()
        for _ in range(100):
            self.clock.advance(1)
            pair.pump()
        self.assertEqual(self.dialling.reasons + self.accepting.reasons, [])
        pair.acceptor_transport.held = True
        for _ in range(int(SILENCE_SECONDS)):
            self.clock.advance(1)
            pair.pump()
        self.assertIsInstance(self.dialling.reason, PeerSilent)

    def test_request_times_out(self) -> None:
        """P36, W5: at its deadline, with one timer for everything; the late answer harms nobody."""
        pair = self.pair()
        pair.acceptor_transport.held = True
        answer = self.dialling.peer.request(AcquireLeaseRequest(), 2.0)
        pair.pump()
        self.clock.advance(2)
        self.failureResultOf(answer, RequestTimedOut)
        pair.acceptor_transport.held = False
        pair.pump()
        self.assertEqual(self.dialling.reasons, [])
        self.assertEqual(len(self.clock.reactor.getDelayedCalls()), 2, "one timer a side")

    def test_cancelled_request(self) -> None:
        """Who stops waiting does not disturb the connection."""
        pair = self.pair()
        answer = self.dialling.peer.request(AcquireLeaseRequest(), 2.0)
        answer.addErrback(lambda failure: None)
        answer.cancel()
        pair.pump()
        self.assertEqual(self.dialling.reasons, [])


class HandshakeTests(PeerTestCase):
    def test_nothing_before_tls(self) -> None:
        """P1: before the handshake there is no application, and bytes close the connection."""
        protocol, transport = self.alone(handshake=False)
        protocol.dataReceived(frame(1, HELLO))
        self.assertEqual(self.accepting.peers, [])
        self.assertTrue(transport.aborted)
        protocol.handshakeCompleted()
        self.assertEqual(self.accepting.peers, [])
        self.assertEqual(self.accepting.questions, [])

    def test_refused_identity(self) -> None:
        """P1, P2: whatever identifying raises, nobody is let in."""
        for wrong in (IdentityRefused("not yours"), ValueError("unforeseen")):

            def identify(transport: ITransport, wrong: Exception = wrong) -> Identity:
                raise wrong

            factory = PeerFactory(
                CONTROL,
                initiator=False,
                application=lambda: self.accepting,
                clock=self.clock,
                identify=identify,
            )
            protocol, transport = attach(factory, EDGE)
            self.assertTrue(transport.aborted)
            protocol.dataReceived(frame(1, HELLO))
            self.assertEqual(self.accepting.peers, [])
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_handshake_drip(self) -> None:
        """P34, W7: a TLS handshake that never completes ends after 10 s."""
        _, transport = self.alone(handshake=False)
        self.clock.advance(HANDSHAKE_SECONDS - 0.01)
        self.assertFalse(transport.aborted)
        self.clock.advance(0.02)
        self.assertTrue(transport.aborted)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_hello_drip(self) -> None:
        """P34, W7: a hello that comes a byte a second ends 10 s after the connection began, not after the last byte."""
        protocol, transport = self.alone()
        for byte in frame(1, HELLO)[:9]:
            self.clock.advance(1)
            protocol.dataReceived(bytes([byte]))
            self.assertFalse(transport.aborted)
        self.clock.advance(1)
        self.assertIsInstance(self.accepting.reason, HandshakeTimeout)
        self.assertTrue(transport.aborted)

    def test_frame_drip(self) -> None:
        """P34, W8: a frame that drips in after the hello is silence."""
        protocol, _ = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        for byte in frame(2, AcquireLeaseRequest(request_id="drip by drip"))[: int(SILENCE_SECONDS) - 1]:
            self.clock.advance(1)
            protocol.dataReceived(bytes([byte]))
        self.assertEqual(self.accepting.reasons, [])
        self.clock.advance(1)
        self.assertIsInstance(self.accepting.reason, PeerSilent)

    def test_tls_failure(self) -> None:
        """P1: a connection that TLS ended says so."""
        protocol, _ = self.alone(handshake=False)
        with capturedLogs() as events:
            protocol.connectionLost(Failure(TlsError([("SSL routines", "", "tlsv1 alert unknown ca")])))
        self.assertEqual([event["code"] for event in events], [TlsFailed.code])
        self.assertEqual(self.accepting.peers, [])

    def test_keepalive_begins_with_the_answer(self) -> None:
        """W8, W9: an answer that took its time is followed by a ping after 5 s, not at the end of the hello's time."""
        hello: Deferred[Message] = Deferred()
        self.accepting = Recorder(lambda message: hello)
        protocol, transport = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        self.clock.advance(1)
        hello.callback(EdgeHelloResponse(accepted=True))
        transport.take()
        self.clock.advance(KEEPALIVE_SECONDS)
        self.assertEqual(transport.take(), frame(0, Ping(nonce=1)))

    def test_slow_hello_answer(self) -> None:
        """W7: an application that does not answer the hello in time loses the connection too."""
        self.accepting = Recorder(lambda message: Deferred())
        protocol, _ = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        self.clock.advance(HANDSHAKE_SECONDS)
        self.assertIsInstance(self.accepting.reason, HandshakeTimeout)

    def test_second_handshake(self) -> None:
        """A renegotiated identity is never taken over."""
        protocol, transport = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        transport.peer = NODE
        protocol.handshakeCompleted()
        self.assertIsInstance(self.accepting.reason, UnexpectedMessage)
        self.assertEqual(self.accepting.peer.identity, EDGE)

    def test_refused_hello(self) -> None:
        """P3, W9, W10: the application refuses a name that is not the certificate's; the answer, then the end."""
        refusal = EdgeHelloResponse(code="identity_refused", message="another name")
        self.accepting = Recorder(lambda message: succeed(refusal))
        pair = self.pair(hello=False)
        answer = self.dialling.peer.request(HELLO, 5.0)
        pair.pump()
        refused = self.failureResultOf(answer, HelloRefused).value
        self.assertEqual(refused.reason, "identity_refused")
        self.assertIs(self.dialling.reason, refused)
        self.assertIsInstance(self.accepting.reason, HelloRefused)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_only_the_hello_before_it_was_accepted(self) -> None:
        """W9: asking and telling anything else is refused here, and the connection goes on."""
        self.pair(hello=False)
        self.failureResultOf(self.dialling.peer.request(AcquireLeaseRequest(), 5.0), UnexpectedMessage)
        self.failureResultOf(self.accepting.peer.request(PrincipalProjectionApplyRequest(), 5.0), UnexpectedMessage)
        self.assertEqual(self.dialling.reasons + self.accepting.reasons, [])


class ReverifyTests(PeerTestCase):
    """P1: whom this side trusts changed while connections are up."""

    def setUp(self) -> None:
        super().setUp()
        self.trusted = {"old", "new"}
        self.applications: dict[str, Recorder] = {}
        self.listener = PeerFactory(
            CONTROL, initiator=False, application=self.application, clock=self.clock, identify=self.identify
        )

    def application(self) -> Recorder:
        self.applications[f"edge{len(self.applications)}"] = application = Recorder()
        return application

    def identify(self, transport: ITransport) -> Identity:
        identity = memory_identity(transport)
        if identity.name not in self.trusted:
            raise IdentityRefused(f"{identity.name} is not trusted")
        return identity

    def attach(self, name: str, *, handshake: bool = True) -> tuple[PeerProtocol, MemoryTransport]:
        return attach(self.listener, Identity("test.example", Role.EDGE, name), handshake=handshake)

    def test_who_is_refused_now_goes(self) -> None:
        """The connection is cut with that reason, the others stay."""
        _, going = self.attach("old")
        _, staying = self.attach("new")
        self.trusted = {"new"}
        self.listener.reverify()
        gone, stayed = self.applications.values()
        self.assertIsInstance(gone.reason, IdentityRefused)
        self.assertEqual((going.aborted, staying.aborted, stayed.reasons), (True, False, []))

    def test_handshake_under_way(self) -> None:
        """Its peer is judged when it is done, by what is trusted then."""
        protocol, transport = self.attach("old", handshake=False)
        self.trusted = {"new"}
        self.listener.reverify()
        self.assertFalse(transport.aborted)
        protocol.handshakeCompleted()
        self.assertEqual((transport.aborted, self.applications), (True, {}))


class BreachTests(PeerTestCase):
    def test_oversize_before_hello(self) -> None:
        """P32, W2: the four bytes of a length above 64 KiB are the last ones read."""
        protocol, transport = self.alone()
        protocol.dataReceived((FRAME_BEFORE_HELLO + 1).to_bytes(4, "big"))
        self.assertIsInstance(self.accepting.reason, FrameTooLarge)
        self.assertTrue(transport.aborted)

    def test_nothing_is_kept_after_the_end(self) -> None:
        """P32: what a closed connection still receives is dropped."""
        protocol, _ = self.alone()
        protocol.dataReceived((FRAME_BEFORE_HELLO + 1).to_bytes(4, "big"))

        def go_on() -> None:
            for _ in range(100):
                protocol.dataReceived(bytes(65_536))

        self.assertLess(kept(go_on), 65_536)

    def test_limit_rises_within_a_chunk(self) -> None:
        """P32, W2: the frame behind the hello in one chunk is judged by what the hello led to."""
        protocol, _ = self.alone()
        large = frame(2, AcquireLeaseRequest(request_id="r" * FRAME_BEFORE_HELLO))
        protocol.dataReceived(frame(1, HELLO) + large)
        self.assertEqual(len(self.accepting.questions), 2)

        self.accepting = Recorder(lambda message: Deferred())
        protocol, _ = self.alone()
        protocol.dataReceived(frame(1, HELLO) + large)
        self.assertIsInstance(self.accepting.reason, FrameTooLarge)

    def test_oversize_after_hello(self) -> None:
        """P32, W2."""
        protocol, _ = self.alone()
        protocol.dataReceived(frame(1, HELLO) + FRAME_LIMIT.to_bytes(4, "big"))
        self.assertEqual(self.accepting.reasons, [])
        protocol, _ = self.alone()
        protocol.dataReceived(frame(1, HELLO) + (FRAME_LIMIT + 1).to_bytes(4, "big"))
        self.assertIsInstance(self.accepting.reason, FrameTooLarge)

    def test_truncated_frame_is_not_delivered(self) -> None:
        """P33: a connection that ends within a frame delivers nothing of it."""
        protocol, _ = self.alone()
        protocol.dataReceived(frame(1, HELLO)[:-1])
        protocol.connectionLost(connectionDone)
        self.assertEqual(self.accepting.questions, [])
        self.assertIsInstance(self.accepting.reason, PeerDisconnected)

    def test_breaches(self) -> None:
        """P35, P36, W1, W3, W4: each closes at once, and what follows in the chunk is not looked at."""
        lease, more = frame(2, AcquireLeaseRequest()), frame(3, AcquireLeaseRequest())
        for breach, expected in (
            (b"\0\0\0\0", MalformedFrame),
            (encode_frame(b"\xff"), MalformedFrame),
            (lease, DuplicateCorrelation),
            (frame(9, PrincipalProjectionApplyResponse()), StrayAnswer),
            (frame(9, AcquireLeaseResponse()), UnexpectedMessage),
        ):
            self.accepting = Recorder(
                lambda message: succeed(EdgeHelloResponse(accepted=True)) if message == HELLO else Deferred()
            )
            protocol, transport = self.alone()
            protocol.dataReceived(frame(1, HELLO) + lease + breach + more)
            self.assertIsInstance(self.accepting.reason, expected)
            self.assertEqual(self.accepting.questions, [HELLO, AcquireLeaseRequest()])
            self.assertTrue(transport.aborted)
            protocol.dataReceived(more)
            self.assertEqual(len(self.accepting.questions), 2)


class ApplicationFaultTests(PeerTestCase):
    def test_typed_failure_closes_with_its_reason(self) -> None:
        """An IopError instead of an answer is the reason of the end."""
        self.accepting = Recorder(lambda message: fail(Draining("not now")))
        protocol, transport = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        self.assertIsInstance(self.accepting.reason, Draining)
        self.assertTrue(transport.aborted)

    def test_any_other_failure_is_internal(self) -> None:
        """An unforeseen exception ends this connection alone, is logged, and tells the peer nothing."""

        def raising(message: Message) -> Deferred[Message]:
            raise KeyError("unforeseen")

        for answers in (raising, lambda message: fail(KeyError("unforeseen"))):
            self.accepting = Recorder(answers)
            protocol, transport = self.alone()
            protocol.dataReceived(frame(1, HELLO))
            self.assertEqual(self.accepting.reason.code, "internal")
            self.assertEqual(bytes(transport.outgoing), b"")
            self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)

    def test_answer_of_another_kind(self) -> None:
        """W4: an application cannot answer with what is not the answer."""
        self.accepting = Recorder(lambda message: succeed(AcquireLeaseResponse()))
        protocol, _ = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        self.assertIsInstance(self.accepting.reason, UnexpectedMessage)

    def test_fault_in_notified(self) -> None:
        """A violation closes with itself, anything else as internal."""
        for wrong, code in ((UnexpectedMessage("no such run"), "unexpected_message"), (KeyError("x"), "internal")):
            self.setUp()

            def notified(message: Message, wrong: Exception = wrong) -> None:
                raise wrong

            self.patch(self.dialling, "notified", notified)
            pair = self.pair(RUNTIME)
            self.accepting.peer.notify(RunRequest(run=1))
            pair.pump()
            self.assertEqual(self.dialling.reason.code, code)
        self.flushLoggedErrors(KeyError)

    def test_fault_in_connected_and_lost(self) -> None:
        """Neither keeps the transport open."""

        def wrong(argument: object) -> None:
            raise KeyError("unforeseen")

        for method in ("connected", "lost"):
            self.setUp()
            self.patch(self.accepting, method, wrong)
            protocol, transport = self.alone()
            protocol.close(IopError("closed by the test"))
            self.assertTrue(transport.aborted)
            self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)

    def test_answer_after_the_end(self) -> None:
        """What an application answers when nobody is there any more is dropped."""
        late: Deferred[Message] = Deferred()
        self.accepting = Recorder(lambda message: late)
        protocol, transport = self.alone()
        protocol.dataReceived(frame(1, HELLO))
        protocol.connectionLost(connectionDone)
        late.callback(EdgeHelloResponse(accepted=True))
        self.assertEqual(bytes(transport.outgoing), b"")
        self.assertEqual(len(self.accepting.reasons), 1)


class EndTests(PeerTestCase):
    def test_every_request_fails_once(self) -> None:
        """W11: both sides' requests, when the connection is cut; and lost is called once on each."""
        pair = self.pair()
        pair.initiator_transport.held = pair.acceptor_transport.held = True
        answers = [self.dialling.peer.request(AcquireLeaseRequest(), 5.0) for _ in range(3)]
        answers.append(self.accepting.peer.request(PrincipalProjectionApplyRequest(), 5.0))
        pair.cut()
        for answer in answers:
            self.failureResultOf(answer, PeerDisconnected)
        self.assertIsInstance(self.dialling.reason, PeerDisconnected)
        self.assertIsInstance(self.accepting.reason, PeerDisconnected)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [], "P48: no timer is left")
        self.failureResultOf(self.dialling.peer.request(AcquireLeaseRequest(), 5.0), PeerDisconnected)

    def test_close_tells_the_reason_here_only(self) -> None:
        """W13: this side knows why, the peer sees the end and nothing else."""
        pair = self.pair()
        self.accepting.peer.close(IdentityRefused("denied"))
        self.assertIsInstance(self.accepting.reason, IdentityRefused)
        self.assertEqual(bytes(pair.acceptor_transport.outgoing), b"")
        pair.pump()
        self.assertIsInstance(self.dialling.reason, PeerDisconnected)
        self.accepting.peer.close(IopError("again"))
        self.assertEqual(len(self.accepting.reasons), 1)

    def test_reason_is_logged_on_both_sides(self) -> None:
        """W13: who it was and why it ended, once for each side."""
        pair = self.pair()
        with capturedLogs() as events:
            self.accepting.peer.close(IdentityRefused("denied"))
            pair.pump()
        told = [(e["peer"], e["code"]) for e in events if e["log_format"] == "net.peer.ended"]
        self.assertEqual(told, [(EDGE.uri(), "identity_refused"), (CONTROL_PLANE.uri(), "peer_disconnected")])

    def test_after_the_end(self) -> None:
        """Notifications are dropped, keying material is refused."""
        pair = self.pair(RUNTIME)
        pair.cut()
        self.accepting.peer.notify(RunRequest(run=1))
        with self.assertRaises(PeerDisconnected):
            self.accepting.peer.exporter(b"label", 32)

    def test_drain(self) -> None:
        """What is in flight is answered, then the connection closes."""
        late: Deferred[Message] = Deferred()
        self.accepting = Recorder(lambda message: self.accepting.agree(message) if message == HELLO else late)
        pair = self.pair()
        answer = self.dialling.peer.request(AcquireLeaseRequest(), 5.0)
        pair.pump()
        self.accepting.peer.drain()
        pair.pump()
        self.assertNoResult(answer)
        self.failureResultOf(self.accepting.peer.request(PrincipalProjectionApplyRequest(), 5.0), Draining)
        late.callback(AcquireLeaseResponse())
        pair.pump()
        self.successResultOf(answer)
        self.assertIsInstance(self.accepting.reason, Draining)
        self.assertIsInstance(self.dialling.reason, PeerDisconnected)

    def test_last_words_are_bounded(self) -> None:
        """A peer that does not read its refusal cannot keep the connection open."""
        self.accepting = Recorder(lambda message: succeed(EdgeHelloResponse(code="edge_denied")))
        protocol, transport = self.alone()
        transport.held = True
        protocol.dataReceived(frame(1, HELLO))
        self.assertTrue(transport.disconnecting)
        self.assertFalse(transport.aborted)
        self.clock.advance(FLUSH_SECONDS)
        self.assertTrue(transport.aborted)


class FrameLimitTests(PeerTestCase):
    """W2, P32: which limit a frame is judged by, also when what this side did itself has moved it."""

    def test_hello_answer_at_its_limit(self) -> None:
        """A projection travels whole in the answer to the very first frame."""
        around = len(CONTROL.encode(1, EdgeHelloResponse(accepted=True, message="x" * FRAME_LIMIT))) - FRAME_LIMIT
        answer = EdgeHelloResponse(accepted=True, message="x" * (HELLO_ANSWER_LIMIT - around))
        for split in (whole, in_pieces(65_521)):
            self.dialling, self.accepting = Recorder(), Recorder(lambda message: succeed(answer))
            pair = self.pair(split=split, hello=False)
            asked = self.dialling.peer.request(HELLO, 5.0)
            pair.pump()
            self.assertEqual(self.successResultOf(asked), answer)

    def test_first_frame_after_a_late_hello_answer(self) -> None:
        """The acceptor answers the hello when it has read its store; what comes next is judged by the new limit."""
        late: Deferred[Message] = Deferred()
        self.accepting = Recorder(lambda message: late if message == HELLO else self.accepting.agree(message))
        pair = self.pair(hello=False)
        self.dialling.peer.request(HELLO, 5.0)
        pair.pump()
        late.callback(EdgeHelloResponse(accepted=True))
        pair.pump()
        large = self.dialling.peer.request(AcquireLeaseRequest(request_id="x" * FRAME_BEFORE_HELLO), 5.0)
        pair.pump()
        self.successResultOf(large)


class ManyConnectionsTests(PeerTestCase):
    def test_strangers_make_room(self) -> None:
        """P34: whoever only connects is dropped for the next one, oldest first; who is enrolled stays."""
        self.patch(peer, "STRANGERS_LIMIT", 2)
        factory = self.factory(self.accepting, initiator=False)
        enrolled, transport = attach(factory, EDGE)
        enrolled.dataReceived(frame(1, HELLO))
        strangers = [attach(factory, EDGE, handshake=False)[1] for _ in range(3)]
        self.assertEqual([each.aborted for each in strangers], [True, False, False])
        self.assertFalse(transport.aborted)

    def test_a_burst_of_strangers(self) -> None:
        """P34: each of many that come in one turn of the event loop makes one go, also one on its way out."""
        self.patch(peer, "STRANGERS_LIMIT", 2)
        self.patch(peer, "CONNECTIONS_LIMIT", 4)
        refusing = Recorder(lambda message: succeed(EdgeHelloResponse(code="edge_denied")))
        factory = self.factory(refusing, initiator=False)
        refused, transport = attach(factory, EDGE)
        refused.dataReceived(frame(1, HELLO))
        self.assertFalse(transport.aborted)
        ends = [transport, *(attach(factory, EDGE, handshake=False)[1] for _ in range(9))]
        self.assertEqual([each.aborted for each in ends], [True] * 8 + [False] * 2)

    def test_limit_and_one_past(self) -> None:
        """P32: a listener carries so many connections, wherever they are, and drops one more before its handshake."""
        self.patch(peer, "CONNECTIONS_LIMIT", 2)
        factory = self.factory(self.accepting, initiator=False)
        ends = [attach(factory, EDGE, handshake=False) for _ in range(3)]
        self.assertEqual([transport.aborted for _, transport in ends], [False, False, True])
        ends[2][0].handshakeCompleted()
        self.assertEqual(self.accepting.peers, [])
        ends[2][0].connectionLost(connectionDone)
        self.assertTrue(attach(factory, EDGE)[1].aborted)
        ends[0][0].connectionLost(connectionDone)
        self.assertFalse(attach(factory, EDGE)[1].aborted)


class BackpressureTests(PeerTestCase):
    def piece(self) -> RunBody:
        return RunBody(run=1, data=b"x" * BODY_PIECE)

    def test_peer_that_does_not_read(self) -> None:
        """A peer that reads nothing gets its connection closed, at a bound."""
        pair = self.pair(RUNTIME)
        pair.acceptor_transport.held = True
        written = 0
        while not self.accepting.reasons:
            self.accepting.peer.notify(self.piece())
            written += 1
            self.assertLess(written, UNREAD_LIMIT // BODY_PIECE + 3)
        self.assertIsInstance(self.accepting.reason, PeerNotReading)
        self.assertGreater(written, UNREAD_LIMIT // BODY_PIECE - 3)

    def test_small_frames_count_for_what_they_cost(self) -> None:
        """A kept frame of a few bytes is an object of its own, so that counts too."""
        self.pair(RUNTIME).acceptor_transport.held = True
        self.accepting.peer.notify(self.piece())
        self.accepting.peer.notify(self.piece())
        written = 0
        while not self.accepting.reasons:
            self.accepting.peer.notify(RunCancel(run=1))
            written += 1
        self.assertLess(written, UNREAD_LIMIT // FRAME_COST)

    def test_peer_that_reads(self) -> None:
        """Any amount goes to a peer that takes it."""
        pair = self.pair(RUNTIME)
        for _ in range(UNREAD_LIMIT // BODY_PIECE // 2):
            for _ in range(4):
                self.accepting.peer.notify(self.piece())
            pair.pump()
        self.assertEqual(self.accepting.reasons, [])

    def test_peer_that_is_always_behind(self) -> None:
        """What a peer has read counts no more, also when there never is a moment at which it read all."""
        transport = self.pair(RUNTIME).acceptor_transport
        for _ in range(4):
            self.accepting.peer.notify(self.piece())
        for _ in range(2 * UNREAD_LIMIT // BODY_PIECE):
            self.accepting.peer.notify(self.piece())
            unread = BODY_PIECE
            while unread:
                self.assertTrue(transport.outgoing)
                unread -= len(transport.take(unread))
        self.assertEqual(self.accepting.reasons, [])

    def test_what_belongs_together_leaves_together(self) -> None:
        """The answers to what came in one chunk are one write; a message on its own is one too."""
        pair, written = self.pair(), list[bytes]()
        write = pair.acceptor_transport.write

        def counted(data: bytes) -> None:
            written.append(data)
            write(data)

        self.patch(pair.acceptor_transport, "write", counted)
        answers = [self.dialling.peer.request(AcquireLeaseRequest(), 5.0) for _ in range(12)]
        pair.pump()
        for each in answers:
            self.successResultOf(each)
        self.assertEqual(len(written), 1)
        self.accepting.peer.request(PrincipalProjectionApplyRequest(), 5.0)
        self.assertEqual(len(written), 2)

    def test_no_frame_waits_for_an_acknowledgement(self) -> None:
        """A small frame behind another leaves at once: with Nagle's rule a stream's pieces wait for the peer's ACKs."""
        pair = self.pair()
        self.assertTrue(pair.acceptor_transport.no_delay)
        self.assertTrue(pair.initiator_transport.no_delay)

    def test_order(self) -> None:
        """What had to wait comes after what was sent before it, and before what is sent after it."""
        pair = self.pair(RUNTIME)
        for run in range(1, 41):
            self.accepting.peer.notify(RunBody(run=run, data=bytes(BODY_PIECE)))
            if run % 10 == 0:
                pair.pump()
        self.assertEqual([note.run for note in self.dialling.notes if isinstance(note, RunBody)], list(range(1, 41)))

    def test_last_words_come_after_what_waits(self) -> None:
        """A drained connection closes behind everything that was sent on it."""
        pair = self.pair(RUNTIME)
        for _ in range(5):
            self.accepting.peer.notify(self.piece())
        self.accepting.peer.drain()
        pair.pump()
        self.assertEqual(len(self.dialling.notes), 5)
        self.assertIsInstance(self.dialling.reason, PeerDisconnected)
