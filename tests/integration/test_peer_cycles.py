"""Connections that come and go leave nothing behind. Real TLS over loopback."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Final

from google.protobuf.message import Message
from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.task import deferLater
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from iop.errors import Draining, IopError, PeerDisconnected
from iop.interfaces import IPeer, IPeerApplication
from iop.net.clock import ReactorClock
from iop.net.peer import PeerFactory, PeerProtocol
from iop.net.tls import mutual_client, mutual_server, peer_identity
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.units import Role
from iop.wire.control_pb2 import EdgeHelloRequest, EdgeHelloResponse
from iop.wire.dialect import CONTROL

CYCLES: Final = 300
#: How often it is looked whether all is gone.
TRIES: Final = 100
#: How a cycle ends: closed by either side, or cut while the hello is being answered.
ENDS: Final = ("dialler", "listener", "cut")


@implementer(IPeerApplication)
class Application:
    """Accepts every hello."""

    def __init__(self) -> None:
        self.met: Deferred[IPeer] = Deferred()
        self.over: Deferred[IopError] = Deferred()

    def connected(self, peer: IPeer) -> None:
        self.met.callback(peer)

    def asked(self, message: Message) -> Deferred[Message]:
        return succeed(EdgeHelloResponse(accepted=True))

    def notified(self, message: Message) -> None:
        """Nothing is said."""

    def lost(self, reason: IopError) -> None:
        self.over.callback(reason)


class CycleTests(TestCase):
    def setUp(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir(parents=True)
        self.pki = Pki(folder)

    async def test_nothing_is_left(self) -> None:
        """P48: after hundreds of connections with a hello there are as many timers and descriptors as before, and no
        connection or application is kept, whoever ends them and when.
        """
        pki, clock = self.pki, ReactorClock(reactor)
        accepted: list[Application] = []

        def accept() -> Application:
            accepted.append(Application())
            return accepted[-1]

        listening = PeerFactory(CONTROL, initiator=False, application=accept, clock=clock, identify=peer_identity)
        server = mutual_server(pki.issue(Role.CONTROL_PLANE, "cp1"), trust_domain=TRUST_DOMAIN, accepts=Role.EDGE)
        port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(
            TLSMemoryBIOFactory(server, False, listening)
        )
        self.addCleanup(port.stopListening)
        address = port.getHost()
        assert isinstance(address, IPv4Address)
        client = mutual_client(
            pki.issue(Role.EDGE, "edge1"),
            trust_domain=TRUST_DOMAIN,
            role=Role.CONTROL_PLANE,
            name="cp1",
            server_name="localhost",
        )

        async def cycle(end: str) -> None:
            application = Application()
            dialling = PeerFactory(
                CONTROL, initiator=True, application=lambda: application, clock=clock, identify=peer_identity
            )
            endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", address.port)
            await endpoint.connect(TLSMemoryBIOFactory(client, True, dialling))
            peer = await application.met
            hello = peer.request(EdgeHelloRequest(edge_id="edge1", protocol_version=1), 5.0)
            if end == "cut":
                # the listener need not have met anybody by then
                hello.addErrback(lambda failure: failure.trap(PeerDisconnected, Draining))
                peer.close(Draining("cut"))
                await application.over
                return
            await hello
            other = accepted[-1]
            (peer if end == "dialler" else await other.met).close(Draining("closed"))
            await gatherResults([application.over, other.over])

        # what is made once is made by the first ones
        for end in ENDS:
            await cycle(end)
        accepted.clear()
        before = await left()
        for number in range(CYCLES):
            await cycle(ENDS[number % len(ENDS)])
        self.assertGreaterEqual(len(accepted), CYCLES * 2 // 3)
        accepted.clear()
        self.assertEqual(await left(), before)
        self.assertEqual(alive(), [])


def alive() -> list[str]:
    """Every connection and application there is."""
    gc.collect()
    return [type(each).__name__ for each in gc.get_objects() if isinstance(each, PeerProtocol | Application)]


async def left() -> tuple[int, int]:
    """Descriptors and timers, once the last connections' other ends had their time to close."""
    for _ in range(TRIES):
        await deferLater(reactor, 0.05)
        if not alive():
            break
    return len(os.listdir("/proc/self/fd")), len(reactor.getDelayedCalls())
