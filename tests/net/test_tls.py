"""What a connection knows of its peer at each byte of the handshake; on real sockets: tests/integration/test_tls.py."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHandshakeListener, ITransport
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.certificates import names_of, read_certificates
from iop.errors import IdentityRefused
from iop.net.tls import ReloadableClient, ReloadableServer, TlsFiles, mutual_client, mutual_server, peer_identity
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.units import Identity, Role

if TYPE_CHECKING:
    from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IOpenSSLServerConnectionCreator

    from iop.net.tls import ClientConnections, ServerConnections


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


def listener(files: TlsFiles) -> ServerConnections:
    return mutual_server(files, trust_domain=TRUST_DOMAIN, accepts=Role.NODE)


def dialler(files: TlsFiles) -> ClientConnections:
    return mutual_client(files, trust_domain=TRUST_DOMAIN, role=Role.EDGE, name="edge1", server_name="localhost")


def through_intermediate(files: TlsFiles, root: Path) -> TlsFiles:
    """The same names and key, certified by an authority below another one, whose certificate becomes ``root``."""
    leaf = read_certificates(files.certificate)[0]
    start, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("root", "intermediate")]
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in names]
    authorities = [
        x509.CertificateBuilder(names[0], name, key.public_key(), number, start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(keys[0], SHA256())
        for number, (name, key) in enumerate(zip(names, keys, strict=True), 1)
    ]
    builder = x509.CertificateBuilder(names[1], leaf.subject, leaf.public_key(), 3, start, end)
    chain = (builder.add_extension(names_of(leaf), critical=True).sign(keys[1], SHA256()), authorities[1])
    path = root.with_name("chain.pem")
    path.write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in chain))
    root.write_bytes(authorities[0].public_bytes(Encoding.PEM))
    return replace(files, certificate=path)


def shake(server: Side, client: Side) -> None:
    """Complete the handshake."""
    while not (server.end.done and client.end.done):
        server.tls.dataReceived(client.sent())
        client.tls.dataReceived(server.sent())


class TlsCase(SynchronousTestCase):
    """An authority, and two ends of its making."""

    def setUp(self) -> None:
        self.pki = Pki(Path(self.mktemp()).absolute())
        self.edge, self.node = self.pki.issue(Role.EDGE, "edge1"), self.pki.issue(Role.NODE, "node1")
        self.listener, self.dialler = listener(self.edge), dialler(self.node)


class HandshakeTests(TlsCase):
    """When an identity counts."""

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
        shake(server, client)
        left = [weakref.ref(side.tls.getHandle()) for side in (server, client)]
        server.tls.loseConnection()
        client.tls.dataReceived(server.sent())
        server.tls.dataReceived(client.sent())
        for side in (server, client):
            side.tls.connectionLost(Failure(ConnectionDone()))
        self.assertEqual([one() for one in left], [None, None])


class ReloadTests(TlsCase):
    """What a replaced certificate or trust means for connections that are up."""

    def setUp(self) -> None:
        super().setUp()
        self.other = Pki(Path(self.mktemp()).absolute())
        self.server_tls, self.client_tls = ReloadableServer(self.listener), ReloadableClient(self.dialler)

    def connected(self) -> tuple[Side, Side]:
        server, client = Side(self.server_tls, is_client=False), Side(self.client_tls, is_client=True)
        shake(server, client)
        return server, client

    def trusting(self, files: TlsFiles, *authorities: Pki) -> TlsFiles:
        """The same certificate, with these authorities to trust."""
        path = self.pki.folder / "trust.pem"
        path.write_bytes(b"".join(authority.trust.read_bytes() for authority in authorities))
        return replace(files, trust=path)

    def identified(self, tls: ReloadableServer | ReloadableClient, side: Side) -> Identity:
        return tls.identify(cast(ITransport, side.end.transport))

    def test_new_connections_have_the_new_certificate(self) -> None:
        """P1: the old connection goes on beside them, whoever issued both certificates."""
        before, _ = self.connected()
        self.client_tls.current = dialler(self.pki.issue(Role.NODE, "node2"))
        after, _ = self.connected()
        names = [self.identified(self.server_tls, side).name for side in (before, after)]
        self.assertEqual(names, ["node1", "node2"])

    def test_trust_that_is_left_holds(self) -> None:
        """P1: an authority beside the peer's came or went."""
        server, client = self.connected()
        for authorities in ((self.pki, self.other), (self.pki,)):
            self.server_tls.current = listener(self.trusting(self.edge, *authorities))
            self.client_tls.current = dialler(self.trusting(self.node, *authorities))
            self.assertEqual(self.identified(self.server_tls, server).name, "node1")
            self.assertEqual(self.identified(self.client_tls, client).name, "edge1")

    def test_trust_that_is_gone_refuses(self) -> None:
        """P1: from either side, and the connection has no verified peer any more."""
        server, client = self.connected()
        self.server_tls.current = listener(self.trusting(self.edge, self.other))
        self.client_tls.current = dialler(self.trusting(self.node, self.other))
        for tls, side in ((self.server_tls, server), (self.client_tls, client)):
            error = self.assertRaises(IdentityRefused, self.identified, tls, side)
            self.assertIn("untrusted authority", error.message)
            self.assertIs(side.end.known(), None)

    def test_through_an_intermediate(self) -> None:
        """P1: what the peer sent beside its certificate leads to the authority again."""
        root = self.pki.folder / "root.pem"
        self.client_tls.current = dialler(through_intermediate(self.node, root))
        self.server_tls.current = listener(replace(self.edge, trust=root))
        server, _ = self.connected()
        both = self.pki.folder / "both.pem"
        both.write_bytes(root.read_bytes() + self.pki.trust.read_bytes())
        self.server_tls.current = listener(replace(self.edge, trust=both))
        self.assertEqual(self.identified(self.server_tls, server).name, "node1")
        self.server_tls.current = listener(self.edge)
        self.assertRaises(IdentityRefused, self.identified, self.server_tls, server)

    def test_a_handshake_that_began_before(self) -> None:
        """P1: it ends under the trust it began with, and its peer is judged by the trust of now."""
        server, client = Side(self.server_tls, is_client=False), Side(self.client_tls, is_client=True)
        server.tls.dataReceived(client.sent())
        self.server_tls.current = listener(self.trusting(self.edge, self.other))
        client.tls.dataReceived(server.sent())
        server.tls.dataReceived(client.sent())
        self.assertTrue(server.end.done)
        self.assertRaises(IdentityRefused, self.identified, self.server_tls, server)
