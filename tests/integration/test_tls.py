"""Real TLS over loopback: whoever is not who they must be exchanges no application byte, in either direction."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest.mock import patch

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from OpenSSL import SSL
from OpenSSL.crypto import X509
from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IProtocolFactory,
    ITransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.trial.unittest import TestCase
from twisted.web.client import Agent, readBody
from twisted.web.resource import Resource
from twisted.web.server import Site
from zope.interface import implementer

from iop.certificates import identity_of
from iop.crypto.pki import Leaf
from iop.errors import BadConfig, FileRefused, IdentityRefused, IopError, TlsFailed
from iop.net.tls import (
    TlsFiles,
    WebClientPolicy,
    mutual_client,
    mutual_server,
    peer_identity,
    web_client,
    web_server,
    why_lost,
)
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.units import Identity, Role

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress, IListeningPort
    from twisted.python.failure import Failure

GREETING = b"application bytes"
EDGE = Identity(TRUST_DOMAIN, Role.EDGE, "edge1")
NODE = Identity(TRUST_DOMAIN, Role.NODE, "node1")


class Recorder(Protocol):
    """Writes at once, keeps what it hears, closes when it has heard the other side's greeting."""

    def __init__(self) -> None:
        self.heard = b""
        self.identity: Identity | None = None
        self.early: Identity | None = None
        self.why: IopError | None = None
        self.over: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self.early = self.known()
        self.wire.write(GREETING)

    def dataReceived(self, data: bytes) -> None:
        self.heard += data
        self.identity = self.known()
        if len(self.heard) == len(GREETING):
            self.wire.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.why = why_lost(self.wire, reason)
        self.over.callback(None)

    @property
    def wire(self) -> ITransport:
        return cast(ITransport, self.transport)

    def known(self) -> Identity | None:
        try:
            return peer_identity(self.wire)
        except IdentityRefused:
            return None


class Single(Factory):
    """Gives its one protocol to its one connection."""

    noisy = False

    def __init__(self, protocol: Protocol) -> None:
        self.only = protocol

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return self.only


@implementer(IOpenSSLClientConnectionCreator, IOpenSSLServerConnectionCreator)
class Careless:
    """An end of TLS that shows any certificate, or none, and takes whatever the other end shows."""

    def __init__(self, files: TlsFiles | None, newest: int = 0, session: SSL.Session | None = None) -> None:
        self.context = SSL.Context(SSL.TLS_METHOD)
        self.context.set_max_proto_version(newest)
        self.session = session
        self.made: list[SSL.Connection] = []
        if files is not None:
            self.context.use_certificate_file(files.certificate)
            self.context.use_privatekey_file(files.key)
        self.context.set_verify(SSL.VERIFY_PEER, lambda *_: True)

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        connection = SSL.Connection(self.context)
        connection.set_tlsext_host_name(b"localhost")
        if self.session is not None:
            connection.set_session(self.session)
        self.made.append(connection)
        return connection

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        return SSL.Connection(self.context)


class Odd(BaseException):
    """What no ``except Exception`` catches."""


class TlsCase(TestCase):
    """An authority, another one of the same names, and a way to let two ends meet."""

    timeout = 20

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.pki = Pki(self.folder / "pki")
        self.other = Pki(self.folder / "other")
        self.edge = self.pki.issue(Role.EDGE, "edge1")
        self.node = self.pki.issue(Role.NODE, "node1")
        self.listener = mutual_server(self.edge, trust_domain=TRUST_DOMAIN, accepts=Role.NODE)
        self.dialler = mutual_client(
            self.node, trust_domain=TRUST_DOMAIN, role=Role.EDGE, name="edge1", server_name="localhost"
        )

    async def listen(self, server: IOpenSSLServerConnectionCreator, factory: IProtocolFactory) -> int:
        endpoint = TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1")
        port: IListeningPort = await endpoint.listen(TLSMemoryBIOFactory(server, False, factory))
        self.addCleanup(port.stopListening)
        return cast(IPv4Address, port.getHost()).port

    async def meet(
        self, server: IOpenSSLServerConnectionCreator, client: IOpenSSLClientConnectionCreator
    ) -> tuple[Recorder, Recorder]:
        """Connect two recorders and wait until both ends are closed."""
        at_server, at_client = Recorder(), Recorder()
        port = await self.listen(server, Single(at_server))
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port)
        await endpoint.connect(TLSMemoryBIOFactory(client, True, Single(at_client)))
        await gatherResults([at_server.over, at_client.over])
        return at_server, at_client

    async def assert_silent(
        self, label: str, server: IOpenSSLServerConnectionCreator, client: IOpenSSLClientConnectionCreator
    ) -> tuple[Recorder, Recorder]:
        at_server, at_client = await self.meet(server, client)
        self.assertEqual((label, at_server.heard, at_client.heard), (label, b"", b""))
        self.assertEqual((label, at_server.identity, at_client.identity), (label, None, None))
        return at_server, at_client

    async def assert_talking(
        self, label: str, server: IOpenSSLServerConnectionCreator, client: IOpenSSLClientConnectionCreator
    ) -> tuple[Recorder, Recorder]:
        at_server, at_client = await self.meet(server, client)
        self.assertEqual((label, at_server.heard, at_client.heard), (label, GREETING, GREETING))
        return at_server, at_client

    def impostors(self, identity: Identity) -> dict[str, TlsFiles]:
        """Certificates nobody may take for ``identity`` at ``localhost``, by what is wrong with them."""

        def names(uri: str, dns: str = "localhost") -> list[x509.GeneralName]:
            return [x509.UniformResourceIdentifier(uri), x509.DNSName(dns)]

        other_role = Identity(TRUST_DOMAIN, Role.WORKER, identity.name)
        other_domain = Identity("elsewhere.example", identity.role, identity.name)
        longer = f"{identity.uri()}/more"
        return {
            **self.pki.broken(identity),
            "other-ca": replace(self.other.certify("other-ca", names(identity.uri())), trust=self.pki.trust),
            "no-uri": self.pki.certify("no-uri", [x509.DNSName("localhost")]),
            "other-role": self.pki.certify("other-role", names(other_role.uri())),
            "other-domain": self.pki.certify("other-domain", names(other_domain.uri())),
            "longer-path": self.pki.certify("longer-path", names(longer)),
            "upper-case": self.pki.certify("upper-case", names(identity.uri().replace("spiffe", "SPIFFE"))),
        }


class MutualTests(TlsCase):
    """Listeners and diallers between roles."""

    async def test_both_ends_know_each_other(self) -> None:
        at_server, at_client = await self.assert_talking("mutual", self.listener, self.dialler)
        self.assertEqual((at_server.identity, at_client.identity), (NODE, EDGE))
        self.assertEqual((at_server.why, at_client.why), (None, None))

    async def test_nobody_is_known_before_the_handshake_is_done(self) -> None:
        at_server, at_client = await self.assert_talking("mutual", self.listener, self.dialler)
        self.assertEqual((at_server.early, at_client.early), (None, None))

    async def test_by_address(self) -> None:
        dialler = mutual_client(
            self.node, trust_domain=TRUST_DOMAIN, role=Role.EDGE, name="edge1", server_name="127.0.0.1"
        )
        await self.assert_talking("address", self.listener, dialler)

    async def test_a_listener_hears_nothing_from_impostors(self) -> None:
        """P1, C7: each row ends the handshake at the listener, which says why; nothing reaches either application."""
        for label, files in self.impostors(NODE).items():
            at_server, _ = await self.assert_silent(label, self.listener, Careless(files))
            self.assertIsInstance(at_server.why, IdentityRefused, label)

    async def test_a_listener_hears_nothing_without_a_certificate(self) -> None:
        """P1."""
        at_server, at_client = await self.assert_silent("none", self.listener, Careless(None))
        self.assertIsInstance(at_server.why, TlsFailed)
        self.assertIsInstance(at_client.why, TlsFailed)

    async def test_a_listener_takes_no_role_but_its_own_diallers(self) -> None:
        """P1, C8: genuine certificates of every other role."""
        for role in set(Role) - {Role.NODE}:
            await self.assert_silent(role.value, self.listener, Careless(self.pki.issue(role, "node1")))

    async def test_a_dialler_tells_impostors_nothing(self) -> None:
        """P1, C7: each row ends the handshake at the dialler."""
        for label, files in self.impostors(EDGE).items():
            _, at_client = await self.assert_silent(label, Careless(files), self.dialler)
            self.assertIsInstance(at_client.why, IdentityRefused, label)

    async def test_a_dialler_tells_a_server_without_certificate_nothing(self) -> None:
        """P1."""
        _, at_client = await self.assert_silent("none", Careless(None), self.dialler)
        self.assertIsInstance(at_client.why, TlsFailed)

    async def test_a_dialler_talks_to_one_name_only(self) -> None:
        """P1, C9: another Edge, with a genuine certificate."""
        _, at_client = await self.assert_silent("name", Careless(self.pki.issue(Role.EDGE, "edge2")), self.dialler)
        self.assertIn("edge2", str(at_client.why))

    async def test_a_dialler_talks_to_one_server_name_only(self) -> None:
        """P1: the right identity, at names and addresses it has no certificate for."""
        edge = Careless(self.edge)
        for server_name in ("edge.example", "127.0.0.2", "::1"):
            dialler = mutual_client(
                self.node, trust_domain=TRUST_DOMAIN, role=Role.EDGE, name="edge1", server_name=server_name
            )
            _, at_client = await self.assert_silent(server_name, edge, dialler)
            self.assertIn("server name", str(at_client.why))

    async def test_a_certificate_for_the_other_end_is_refused(self) -> None:
        """P1: the usages in a certificate count, so a Node's cannot listen."""
        leaf = self.pki.authority.certify(
            "edge as client",
            [x509.UniformResourceIdentifier(EDGE.uri()), x509.DNSName("localhost")],
            [ExtendedKeyUsageOID.CLIENT_AUTH],
            self.pki.authority.certificate.not_valid_before_utc,
            self.pki.authority.certificate.not_valid_after_utc,
        )
        files = TlsFiles(self.folder / "c.pem", self.folder / "c.key", self.pki.trust)
        leaf.write(files.certificate, files.key)
        _, at_client = await self.assert_silent("usage", Careless(files), self.dialler)
        self.assertIn("not for this side", str(at_client.why))

    async def test_any_exception_in_the_check_ends_the_handshake(self) -> None:
        """P2: at a listener, a dialler and a web client."""
        web = web_client("localhost", self.pki.trust)
        for error in (ValueError("x"), RuntimeError("x"), AssertionError("x"), MemoryError(), Odd(), SystemExit(0)):

            def explode(certificate: X509, error: BaseException = error) -> Identity:
                raise error

            label = type(error).__name__
            at_server, _ = await self.assert_silent(label, replace(self.listener, check=explode), Careless(self.node))
            self.assertIs(cast(IopError, at_server.why).__cause__, error)
            for client in (self.dialler, web):
                _, at_client = await self.assert_silent(label, Careless(self.edge), replace(client, check=explode))
                self.assertIs(cast(IopError, at_client.why).__cause__, error)

    async def test_tls_1_2_is_refused(self) -> None:
        await self.assert_silent("listener", self.listener, Careless(self.node, newest=SSL.TLS1_2_VERSION))
        await self.assert_silent("dialler", Careless(self.edge, newest=SSL.TLS1_2_VERSION), self.dialler)

    async def test_a_session_is_never_resumed_unverified(self) -> None:
        """P1: a client that presents the session of its first connection is verified again."""
        verified: list[Identity] = []

        def counted(certificate: X509) -> Identity:
            verified.append(identity_of(certificate.to_cryptography()))
            return verified[-1]

        listener = replace(self.listener, check=counted)
        client = Careless(self.node)
        await self.assert_talking("first", listener, client)
        client.session = client.made[0].get_session()
        self.assertIsNotNone(client.session)
        at_server, _ = await self.assert_talking("second", listener, client)
        self.assertEqual((verified, at_server.identity), ([NODE, NODE], NODE))

    async def test_the_harness_hears_what_is_not_refused(self) -> None:
        """Every impostor does talk where nobody checks, so that silence above means refusal."""
        for label, files in self.impostors(EDGE).items():
            await self.assert_talking(label, Careless(files), Careless(files))

    async def test_a_refused_peer_learns_why(self) -> None:
        """An operator finds the reason in either log."""
        files = self.pki.broken(NODE)["expired"]
        at_server, at_client = await self.assert_silent("expired", self.listener, Careless(files))
        self.assertIn("expired", str(at_server.why))
        self.assertIn("expired", str(at_client.why))


class WebTests(TlsCase):
    """HTTPS listeners and clients."""

    def setUp(self) -> None:
        super().setUp()
        self.server = web_server(self.edge.certificate, self.edge.key)

    async def test_names_and_addresses(self) -> None:
        for server_name in ("localhost", "LOCALHOST", "127.0.0.1"):
            client = web_client(server_name, self.pki.trust)
            at_server, at_client = await self.assert_talking(server_name, self.server, client)
            self.assertEqual((at_server.identity, at_client.identity), (None, None))

    async def test_other_names_are_told_nothing(self) -> None:
        """P1."""
        for server_name in ("elsewhere.example", "a.localhost", "127.0.0.2", "::1"):
            client = web_client(server_name, self.pki.trust)
            _, at_client = await self.assert_silent(server_name, self.server, client)
            self.assertIsInstance(at_client.why, IdentityRefused, server_name)

    async def test_impostors_are_told_nothing(self) -> None:
        """P1: among them the four that Twisted's own options accept for ``localhost``."""
        rows = self.impostors(EDGE)
        # a web client asks for a server name, not for an identity
        for right_name in ("no-uri", "other-role", "other-domain", "two-uris", "longer-path", "upper-case"):
            del rows[right_name]
        client = web_client("localhost", self.pki.trust)
        for label, files in rows.items():
            _, at_client = await self.assert_silent(label, Careless(files), client)
            self.assertIsInstance(at_client.why, IdentityRefused, label)

    async def test_wildcards_stand_for_one_label(self) -> None:
        files = self.pki.certify("wildcard", [x509.DNSName("*.iop.example")])
        await self.assert_talking("one", Careless(files), web_client("a.iop.example", self.pki.trust))
        for server_name in ("a.b.iop.example", "iop.example", "localhost"):
            await self.assert_silent(server_name, Careless(files), web_client(server_name, self.pki.trust))

    async def test_platform_trust(self) -> None:
        """Without a file the platform's authorities count; OpenSSL also looks for them where its variable says."""
        await self.assert_silent("platform", self.server, web_client("localhost", None))
        with patch.dict(os.environ, SSL_CERT_FILE=str(self.pki.trust)):
            client = web_client("localhost", None)
        await self.assert_talking("variable", self.server, client)

    async def test_versions(self) -> None:
        client = web_client("localhost", self.pki.trust)
        await self.assert_talking("1.2", self.server, Careless(None, newest=SSL.TLS1_2_VERSION))
        await self.assert_talking("1.2", Careless(self.edge, newest=SSL.TLS1_2_VERSION), client)
        await self.assert_silent("1.1", self.server, Careless(None, newest=SSL.TLS1_1_VERSION))

    async def test_http_1_1_is_the_only_protocol_chosen(self) -> None:
        for offered, chosen in (([b"h2", b"http/1.1"], b"http/1.1"), ([b"h2"], b"")):
            client = Careless(None)
            client.context.set_alpn_protos(offered)
            await self.assert_talking(repr(offered), self.server, client)
            self.assertEqual(client.made[0].get_alpn_proto_negotiated(), chosen)

    async def test_an_agent_with_our_policy(self) -> None:
        """P1: a request reaches a server only under a certificate that is right."""

        class Root(Resource):
            isLeaf = True
            asked = 0

            def render_GET(self, request: object) -> bytes:
                self.asked += 1
                return b"served"

        agent = Agent(reactor, WebClientPolicy(self.pki.trust))
        rows = {"right": self.edge, **self.pki.broken(EDGE)}
        del rows["two-uris"]
        for label, files in rows.items():
            root = Root()
            port = await self.listen(Careless(files), Site(root))
            url = f"https://localhost:{port}/".encode()
            if label == "right":
                self.assertEqual(await readBody(await agent.request(b"GET", url)), b"served")
            else:
                with self.assertRaises(Exception):  # noqa: B017 - the agent's own, whose kinds are not ours to promise
                    await agent.request(b"GET", url)
            self.assertEqual((label, root.asked), (label, int(label == "right")))


class SetUpTests(TlsCase):
    """What cannot work is refused when it is made, and says what to do."""

    def refused(self, files: TlsFiles) -> str:
        with self.assertRaises(FileRefused) as caught:
            mutual_server(files, trust_domain=TRUST_DOMAIN, accepts=Role.NODE)
        error: FileRefused = caught.exception
        self.assertTrue(error.hint)
        return error.message

    def test_another_ones_key(self) -> None:
        self.assertIn("is not the key of", self.refused(replace(self.edge, key=self.node.key)))

    def test_a_key_open_to_others(self) -> None:
        self.edge.key.chmod(0o640)
        self.assertIn("open to group or others", self.refused(self.edge))

    def test_files_that_hold_something_else(self) -> None:
        self.assertIn("no PEM certificate", self.refused(replace(self.edge, certificate=self.edge.key)))
        self.assertIn("no PEM certificate", self.refused(replace(self.edge, trust=self.edge.key)))
        self.edge.key.write_bytes(b"canary")
        self.assertIn("no unencrypted PEM private key", self.refused(self.edge))

    def test_a_key_that_openssl_finds_too_weak(self) -> None:
        key = ec.generate_private_key(ec.SECP192R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edge1")])
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        weak = Leaf(builder.sign(key, SHA256()), key)
        weak.write(self.edge.certificate, self.edge.key)
        self.assertIn("ee key too small", self.refused(self.edge))

    def test_a_server_name_that_is_none(self) -> None:
        for server_name in ("", "bücher.example", "a b", "*.example", "a\0b"):
            error = self.assertRaises(BadConfig, web_client, server_name, self.pki.trust)
            self.assertTrue(error.hint)
        policy = WebClientPolicy(self.pki.trust)
        self.assertRaises(BadConfig, policy.creatorForNetloc, b"\xff", 443)

    def test_a_plain_transport_has_no_identity(self) -> None:
        self.assertRaises(IdentityRefused, peer_identity, StringTransport())


class SourceTests(TestCase):
    """Rules about the source itself."""

    def test_twisteds_own_client_options_are_never_used(self) -> None:
        source = Path(__file__).parents[2] / "src" / "iop"
        modules = list(source.rglob("*.py"))
        self.assertIn(source / "net" / "tls.py", modules)
        for module in modules:
            self.assertNotIn("optionsForClientTLS", module.read_text(), str(module))
