"""What a connection knows of its peer at each byte of the handshake; on real sockets: tests/integration/test_tls.py."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, cast

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHandshakeListener, ITransport
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.errors import IdentityRefused
from iop.net.tls import mutual_client, mutual_server, peer_identity
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.units import Identity, Role

if TYPE_CHECKING:
    from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IOpenSSLServerConnectionCreator


@implementer(IHandshakeListener)
class End(Protocol):
    """Knows when its handshake was done."""

    done = False

    def handshakeCompleted(self) -> None:
        self.done = True

    def known(self) -> Identity | None:
        try:
            return peer_identity(cast(ITransport, self.transport))
        except IdentityRefused:
            return None


class Side:
    """One end of TLS in memory."""

    def __init__(
        self, creator: IOpenSSLServerConnectionCreator | IOpenSSLClientConnectionCreator, is_client: bool
    ) -> None:
        factory = TLSMemoryBIOFactory(creator, is_client, Factory(), Clock())
        self.end = End()
        self.tls = TLSMemoryBIOProtocol(factory, self.end)
        self.transport = StringTransport()
        self.tls.makeConnection(self.transport)

    def sent(self) -> bytes:
        data: bytes = self.transport.value()
        self.transport.clear()
        return data


class HandshakeTests(SynchronousTestCase):
    """When an identity counts."""

    def setUp(self) -> None:
        pki = Pki(Path(self.mktemp()).absolute())
        edge, node = pki.issue(Role.EDGE, "edge1"), pki.issue(Role.NODE, "node1")
        self.listener = mutual_server(edge, trust_domain=TRUST_DOMAIN, accepts=Role.NODE)
        self.dialler = mutual_client(
            node, trust_domain=TRUST_DOMAIN, role=Role.EDGE, name="edge1", server_name="localhost"
        )

    def test_a_peer_is_known_from_the_handshakes_last_byte_on(self) -> None:
        """P1: its certificate alone is not enough; that it holds the key is proved later in the same flight."""
        server, client = Side(self.listener, is_client=False), Side(self.dialler, is_client=True)
        while not (server.end.done and client.end.done):
            for source, target in ((client, server), (server, client)):
                for byte in source.sent():
                    target.tls.dataReceived(bytes([byte]))
                    self.assertEqual(target.end.known() is not None, target.end.done)
        self.assertEqual(server.end.known(), Identity(TRUST_DOMAIN, Role.NODE, "node1"))
        self.assertEqual(client.end.known(), Identity(TRUST_DOMAIN, Role.EDGE, "edge1"))

    def test_a_closed_connection_leaves_nothing_for_the_collector(self) -> None:
        """P48: many short connections that end as they should do not pile up OpenSSL's memory until a collection."""
        gc.disable()
        self.addCleanup(gc.enable)
        server, client = Side(self.listener, is_client=False), Side(self.dialler, is_client=True)
        while not (server.end.done and client.end.done):
            server.tls.dataReceived(client.sent())
            client.tls.dataReceived(server.sent())
        left = [weakref.ref(side.tls.getHandle()) for side in (server, client)]
        server.tls.loseConnection()
        client.tls.dataReceived(server.sent())
        server.tls.dataReceived(client.sent())
        for side in (server, client):
            side.tls.connectionLost(Failure(ConnectionDone()))
        self.assertEqual([one() for one in left], [None, None])
