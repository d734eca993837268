"""Reconnecting."""

from __future__ import annotations

from google.protobuf.message import Message
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.interfaces import IHandshakeListener, IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.errors import Draining, IopError
from iop.interfaces import IPeer, IPeerApplication
from iop.net.dial import FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS, Dialler
from iop.net.peer import PeerFactory
from iop.testing.clock import FakeClock
from iop.testing.peers import MemoryTransport, memory_identity
from iop.units import Identity, Role
from iop.wire.dialect import RUNTIME
from iop.wire.runtime_pb2 import NodeHelloResponse

EDGE = Identity("test.example", Role.EDGE, "edge")


@implementer(IStreamClientEndpoint)
class HandEndpoint:
    """Connects when the test says so."""

    def __init__(self) -> None:
        self.attempts: list[tuple[IProtocolFactory, Deferred[IProtocol]]] = []

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        attempt: Deferred[IProtocol] = Deferred()
        self.attempts.append((protocolFactory, attempt))
        return attempt

    def refuse(self) -> None:
        """Fail the last attempt."""
        self.attempts[-1][1].errback(Refused())

    def accept(self) -> tuple[IProtocol, MemoryTransport]:
        """Let the last attempt succeed, TLS and all."""
        factory, attempt = self.attempts[-1]
        protocol = factory.buildProtocol(IPv4Address("TCP", "192.0.2.1", 1))
        assert protocol is not None
        transport = MemoryTransport(EDGE)
        protocol.makeConnection(transport)
        attempt.callback(protocol)
        IHandshakeListener(protocol).handshakeCompleted()
        return protocol, transport


@implementer(IPeerApplication)
class Quiet:
    """An application that says nothing and remembers why it ended."""

    def __init__(self) -> None:
        self.reasons: list[IopError] = []

    def connected(self, peer: IPeer) -> None: ...

    def asked(self, message: Message) -> Deferred[Message]:
        return succeed(NodeHelloResponse())

    def notified(self, message: Message) -> None: ...

    def lost(self, reason: IopError) -> None:
        self.reasons.append(reason)


class DiallerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = FakeClock()
        self.endpoint = HandEndpoint()
        self.application = Quiet()
        self.random = 1.0
        factory = PeerFactory(
            RUNTIME,
            initiator=True,
            application=lambda: self.application,
            clock=self.clock,
            identify=memory_identity,
        )
        self.dialler = Dialler(self.endpoint, factory, reactor=self.clock.reactor, random=lambda: self.random)

    def dials_after(self, seconds: float) -> None:
        """The next attempt comes after exactly ``seconds``."""
        before = len(self.endpoint.attempts)
        self.clock.advance(seconds * 0.999)
        self.assertEqual(len(self.endpoint.attempts), before, "too early")
        self.clock.advance(seconds * 0.001 + 1e-9)
        self.assertEqual(len(self.endpoint.attempts), before + 1, "too late")

    def test_dials_at_once(self) -> None:
        self.assertEqual(self.endpoint.attempts, [])
        self.dialler.startService()
        self.assertEqual(len(self.endpoint.attempts), 1)

    def test_delays_double_to_the_longest(self) -> None:
        """W12: 0.2 s doubling to 30 s, and 30 s for however long it fails."""
        self.dialler.startService()
        delay = FIRST_DELAY_SECONDS
        for _ in range(1100):
            self.endpoint.refuse()
            self.dials_after(delay)
            delay = min(2 * delay, LONGEST_DELAY_SECONDS)
        self.assertEqual(delay, LONGEST_DELAY_SECONDS)

    def test_full_jitter(self) -> None:
        """W12: anything between nothing and the whole delay."""
        self.dialler.startService()
        for self.random, seconds in ((0.5, FIRST_DELAY_SECONDS / 2), (0.25, FIRST_DELAY_SECONDS / 2)):
            self.endpoint.refuse()
            self.dials_after(seconds)
        self.random = 0.0
        self.endpoint.refuse()
        self.clock.advance(0)
        self.assertEqual(len(self.endpoint.attempts), 4)

    def test_connecting_alone_starts_nothing_over(self) -> None:
        """W12: a peer that accepts connections and refuses every hello is dialled ever more rarely."""
        self.dialler.startService()
        for times in range(5):
            protocol, _ = self.endpoint.accept()
            protocol.connectionLost(connectionDone)
            self.dials_after(FIRST_DELAY_SECONDS * 2**times)

    def test_settled_starts_over(self) -> None:
        """W12: after a session that became ready the first delay is 0.2 s again."""
        self.dialler.startService()
        for times in range(4):
            self.endpoint.refuse()
            self.dials_after(FIRST_DELAY_SECONDS * 2**times)
        protocol, _ = self.endpoint.accept()
        self.dialler.settled()
        protocol.connectionLost(connectionDone)
        self.dials_after(FIRST_DELAY_SECONDS)

    def test_failures_are_logged(self) -> None:
        """What went wrong, each time; giving up on purpose is not a failure."""
        with capturedLogs() as events:
            self.dialler.startService()
            self.endpoint.refuse()
            self.dials_after(FIRST_DELAY_SECONDS)
            self.dialler.stopService()
        told = [event["error"] for event in events if event["log_format"] == "net.dial.failed"]
        self.assertEqual(told, ["ConnectionRefusedError"])

    def test_stop_while_connected(self) -> None:
        """The session ends as drained, the transport closes, and nothing is dialled again."""
        self.dialler.startService()
        protocol, transport = self.endpoint.accept()
        stopped = self.dialler.stopService()
        self.assertEqual([type(reason) for reason in self.application.reasons], [Draining])
        self.assertTrue(transport.aborted)
        self.assertNoResult(stopped)
        protocol.connectionLost(connectionDone)
        self.successResultOf(stopped)
        self.clock.advance(10 * LONGEST_DELAY_SECONDS)
        self.assertEqual(len(self.endpoint.attempts), 1)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_stop_while_waiting(self) -> None:
        """P48: no timer is left."""
        self.dialler.startService()
        self.endpoint.refuse()
        self.successResultOf(self.dialler.stopService())
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_stop_while_dialling(self) -> None:
        """The attempt is cancelled."""
        self.dialler.startService()
        self.successResultOf(self.dialler.stopService())
        self.clock.advance(10 * LONGEST_DELAY_SECONDS)
        self.assertEqual(len(self.endpoint.attempts), 1)
