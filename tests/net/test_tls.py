"""What a connection knows of its peer at each byte of the handshake; on real sockets: tests/integration/test_tls.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from twisted.internet.interfaces import IHandshakeListener, ITransport
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
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

    def test_a_peer_is_known_from_the_handshakes_last_byte_on(self) -> None:
        """P1: its certificate alone is not enough; that it holds the key is proved later in the same flight."""
        pki = Pki(Path(self.mktemp()).absolute())
        server = Side(
            mutual_server(pki.issue(Role.EDGE, "edge1"), trust_domain=TRUST_DOMAIN, accepts=Role.NODE), is_client=False
        )
        client = Side(
            mutual_client(
                pki.issue(Role.NODE, "node1"),
                trust_domain=TRUST_DOMAIN,
                role=Role.EDGE,
                name="edge1",
                server_name="localhost",
            ),
            is_client=True,
        )
        sides = ((client, server), (server, client))
        while not (server.end.done and client.end.done):
            for source, target in sides:
                for byte in source.sent():
                    target.tls.dataReceived(bytes([byte]))
                    self.assertEqual(target.end.known() is not None, target.end.done)
        self.assertEqual(server.end.known(), Identity(TRUST_DOMAIN, Role.NODE, "node1"))
        self.assertEqual(client.end.known(), Identity(TRUST_DOMAIN, Role.EDGE, "edge1"))
