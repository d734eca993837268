"""TLS that fails closed: who is at the other end is decided inside the handshake, or there is no connection.

Twisted's own client options refuse only what ``service_identity`` calls a mismatch; any other exception lets the
handshake go on. Here every connection carries its own check, and whatever the check raises is a refusal (P1, P2). What
the check found stays on the connection, so an identity exists only where the check ran and passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from OpenSSL import SSL
from OpenSSL.crypto import X509, X509Store, X509StoreContext, X509StoreContextError
from service_identity import CertificateError, VerificationError
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    ISystemHandle,
)
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from iop.certificates import read_certificates, read_key, required_identity
from iop.errors import BadConfig, FileRefused, IdentityRefused, IopError, TlsFailed
from iop.units import Identity, Role

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.interfaces import ITransport
    from twisted.protocols.tls import TLSMemoryBIOProtocol
    from twisted.python.failure import Failure

#: Judges a peer's certificate whose chain holds: its identity, or None where only its server name counts.
Check = Callable[[X509], Identity | None]

_HTTP: Final = b"http/1.1"
#: For TLS 1.2: forward secrecy and authenticated encryption only. TLS 1.3 has nothing else.
_CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20"

#: What is wrong with a certificate, as the end of a sentence that begins with whose it is.
_BROKEN_CHAIN: Final = {
    SSL.X509VerificationCodes.ERR_CERT_NOT_YET_VALID: "is not valid yet",
    SSL.X509VerificationCodes.ERR_CERT_HAS_EXPIRED: "has expired",
    SSL.X509VerificationCodes.ERR_DEPTH_ZERO_SELF_SIGNED_CERT: "is signed by itself",
    SSL.X509VerificationCodes.ERR_SELF_SIGNED_CERT_IN_CHAIN: "is from an untrusted authority",
    SSL.X509VerificationCodes.ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY: "is from an untrusted authority",
    SSL.X509VerificationCodes.ERR_CERT_SIGNATURE_FAILURE: "has a signature that does not hold",
    SSL.X509VerificationCodes.ERR_INVALID_PURPOSE: "is not for this side of a connection",
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one end of mutual TLS: its certificate (its chain after it), that one's key, whom it trusts."""

    certificate: Path
    key: Path
    trust: Path


def mutual_server(files: TlsFiles, *, trust_domain: str, accepts: Role) -> ServerConnections:
    """A listener's end of TLS 1.3 that takes only peers with a certificate of ``accepts`` in ``trust_domain`` (C8).

    :raises FileRefused: if a file is not what it should be; files are read here, once.
    """

    def check(certificate: X509) -> Identity:
        return required_identity(certificate.to_cryptography(), trust_domain=trust_domain, role=accepts)

    trusted = read_certificates(files.trust)
    return ServerConnections(_mutual_context(SSL.TLS_SERVER_METHOD, files, trusted), check, frozenset(trusted))


def mutual_client(files: TlsFiles, *, trust_domain: str, role: Role, name: str, server_name: str) -> ClientConnections:
    """A dialler's end of TLS 1.3 that talks only to ``name`` of ``role`` in ``trust_domain`` at ``server_name`` (C9).

    :param server_name: the DNS name or IP address that the certificate must also be for.
    :raises FileRefused: if a file is not what it should be; files are read here, once.
    :raises BadConfig: if ``server_name`` can be neither.
    """
    service = _service(server_name)

    def check(certificate: X509) -> Identity:
        _require_service(certificate, service)
        return required_identity(certificate.to_cryptography(), trust_domain=trust_domain, role=role, name=name)

    trusted = read_certificates(files.trust)
    context = _mutual_context(SSL.TLS_CLIENT_METHOD, files, trusted)
    return ClientConnections(context, check, frozenset(trusted), _indication(service))


def web_server(certificate: Path, key: Path) -> ServerConnections:
    """An HTTPS listener's end of TLS 1.2 or 1.3; it asks for no client certificate and speaks HTTP/1.1 only.

    :raises FileRefused: if a file is not what it should be; files are read here, once.
    """
    context = _context(SSL.TLS_SERVER_METHOD, SSL.TLS1_2_VERSION)
    _present(context, certificate, key)
    # a client that offers only other protocols gets HTTP/1.1 unannounced
    context.set_alpn_select_callback(
        lambda connection, offered: _HTTP if _HTTP in offered else SSL.NO_OVERLAPPING_PROTOCOLS
    )
    return ServerConnections(context, None, frozenset())


def web_client(server_name: str, trust: Path | None) -> ClientConnections:
    """An HTTPS client's end of TLS 1.2 or 1.3, for one server.

    :param server_name: the DNS name or IP address that the server's certificate must be for.
    :param trust: PEM file of the authorities to trust, or None for those the platform trusts.
    :raises FileRefused: if ``trust`` is not what it should be; it is read here, once.
    :raises BadConfig: if ``server_name`` can be neither.
    """
    return WebClientPolicy(trust).client_for(server_name)


@implementer(IPolicyForHTTPS)
class WebClientPolicy:
    """:func:`web_client` for every server that an ``Agent`` or treq is asked to talk to.

    :param trust: PEM file of the authorities to trust, or None for those the platform trusts.
    :raises FileRefused: if ``trust`` is not what it should be; it is read here, once.
    """

    def __init__(self, trust: Path | None) -> None:
        self._context = _context(SSL.TLS_CLIENT_METHOD, SSL.TLS1_2_VERSION)
        self._context.set_alpn_protos([_HTTP])
        self._trusted = [] if trust is None else read_certificates(trust)
        if trust is None:
            self._context.set_default_verify_paths()
        _trust(self._context, self._trusted)

    def client_for(self, server_name: str) -> ClientConnections:
        """The client for one server; :class:`~iop.errors.BadConfig` if it has no name that a certificate can be for."""
        service = _service(server_name)

        def check(certificate: X509) -> None:
            _require_service(certificate, service)

        return ClientConnections(self._context, check, frozenset(self._trusted), _indication(service))

    def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
        """See :class:`twisted.web.iweb.IPolicyForHTTPS`."""
        return self.client_for(hostname.decode("latin-1"))


def check_own_chain(files: TlsFiles) -> None:
    """Refuse a certificate whose chain does not hold for peers who trust what this side trusts.

    A role can do without: its peers judge the chain, by what *they* trust. Who looks for mistakes knows it beforehand.

    :raises FileRefused: if the chain does not lead to ``files.trust`` now, or a file is not what it should be.
    """
    leaf, *chain = (X509.from_cryptography(each) for each in read_certificates(files.certificate))
    store = X509Store()
    for authority in read_certificates(files.trust):
        store.add_cert(X509.from_cryptography(authority))
    try:
        X509StoreContext(store, leaf, chain).verify_certificate()
    except X509StoreContextError as error:
        raise FileRefused(
            f"{files.certificate} {_why_broken(error.errors[0])}, going by {files.trust}",
            hint="issue it from the authority that every role trusts, or name the file with that authority in trust",
        ) from None


def peer_identity(transport: ITransport) -> Identity:
    """The identity at the other end of an established mutual TLS connection.

    :raises IdentityRefused: if the handshake is not done, or this transport never verified one.
    """
    connection = _checked(transport)
    # the chain is judged before the peer has proved that it holds the key; its Finished message comes after that
    if connection is None or connection.refusal or not connection.identity or not connection.get_peer_finished():
        raise IdentityRefused("the connection has no verified peer")
    return connection.identity


def why_lost(transport: ITransport, reason: Failure) -> IopError | None:
    """What TLS had to do with the end of a connection, to be asked in ``connectionLost``.

    :returns: :class:`~iop.errors.IdentityRefused` if this side refused the peer's certificate,
        :class:`~iop.errors.TlsFailed` if TLS failed otherwise or the peer ended it with an alert, None if neither.
    """
    connection = _checked(transport)
    if connection is not None and connection.refusal is not None:
        return connection.refusal
    if isinstance(reason.value, SSL.Error):
        return TlsFailed(f"TLS ended the connection: {_words(reason.value)}", hint="the peer's log may say why")
    return None


@implementer(IOpenSSLServerConnectionCreator)
@dataclass(frozen=True)
class ServerConnections:
    """Makes the TLS end of each accepted connection; without a ``check`` no client certificate is asked for.

    :ivar trusted: the authorities that ``context`` trusts, as far as they come from a file of ours.
    """

    context: SSL.Context
    check: Check | None
    trusted: frozenset[x509.Certificate]

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """See :class:`twisted.internet.interfaces.IOpenSSLServerConnectionCreator`."""
        if self.check is None:
            return SSL.Connection(self.context)
        return _CheckedConnection(self.context, self.check, self.trusted)


@implementer(IOpenSSLClientConnectionCreator)
@dataclass(frozen=True)
class ClientConnections:
    """Makes the TLS end of each dialled connection; ``indication`` is the DNS name to ask the server for, if any.

    :ivar trusted: the authorities that ``context`` trusts, as far as they come from a file of ours.
    """

    context: SSL.Context
    check: Check
    trusted: frozenset[x509.Certificate]
    indication: bytes | None

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """See :class:`twisted.internet.interfaces.IOpenSSLClientConnectionCreator`."""
        connection = _CheckedConnection(self.context, self.check, self.trusted)
        if self.indication is not None:
            connection.set_tlsext_host_name(self.indication)
        return connection


_Creator = TypeVar("_Creator", ServerConnections, ClientConnections)


class _Reloadable(Generic[_Creator]):
    """Makes every connection as ``current`` says, which may be replaced at any time; live connections go on."""

    def __init__(self, current: _Creator) -> None:
        self.current: _Creator = current

    def identify(self, transport: ITransport) -> Identity:
        """:func:`peer_identity`, and if other authorities were trusted when it was verified, by those of now.

        :raises IdentityRefused: also if the peer's chain does not lead to what is trusted now.
        """
        identity = peer_identity(transport)
        connection = _checked(transport)
        if connection is not None and connection.trusted != self.current.trusted:
            connection.judge_again(self.current.context, self.current.trusted)
        return identity


@implementer(IOpenSSLServerConnectionCreator)
class ReloadableServer(_Reloadable[ServerConnections]):
    """A listener's :class:`ServerConnections`, replaceable while it listens."""

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """See :class:`twisted.internet.interfaces.IOpenSSLServerConnectionCreator`."""
        return self.current.serverConnectionForTLS(tlsProtocol)


@implementer(IOpenSSLClientConnectionCreator)
class ReloadableClient(_Reloadable[ClientConnections]):
    """A dialler's :class:`ClientConnections`, replaceable while it dials."""

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """See :class:`twisted.internet.interfaces.IOpenSSLClientConnectionCreator`."""
        return self.current.clientConnectionForTLS(tlsProtocol)


class _CheckedConnection(SSL.Connection):
    """A connection that demands a certificate and keeps what its check made of it.

    :ivar trusted: the authorities by which its peer's chain was judged last.
    """

    def __init__(self, context: SSL.Context, check: Check, trusted: frozenset[x509.Certificate]) -> None:
        super().__init__(context)
        self.identity: Identity | None = None
        self.refusal: IdentityRefused | None = None
        self.trusted = trusted
        self._check = check
        self.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _verify)

    def judge(self, certificate: X509, error: int, depth: int, holds: bool) -> bool:
        """Whether the handshake may go on, asked for each certificate of the chain; the peer's own has depth 0."""
        try:
            if not holds:
                raise _broken(error)
            if depth == 0:
                self.identity = self._check(certificate)
        except IdentityRefused as refusal:
            self.refusal = refusal
        except BaseException as cause:  # noqa: BLE001 - P2: whatever it is, it must not let the handshake go on
            self.refusal = IdentityRefused("the peer's certificate cannot be checked")
            self.refusal.__cause__ = cause
        return self.refusal is None

    def judge_again(self, context: SSL.Context, trusted: frozenset[x509.Certificate]) -> None:
        """Have the chain that the peer presented in its handshake hold under what ``context`` trusts.

        :raises IdentityRefused: if it does not; the connection then has no verified peer any more.
        """
        store, certificate = context.get_cert_store(), self.get_peer_certificate()
        try:
            if store is None or certificate is None:
                raise IdentityRefused("the peer's certificate cannot be checked again")
            X509StoreContext(store, certificate, self.get_peer_cert_chain()).verify_certificate()
            self.identity = self._check(certificate)
        except X509StoreContextError as error:
            self.refusal = _broken(error.errors[0])
            raise self.refusal from None
        except IdentityRefused as refusal:
            self.refusal = refusal
            raise
        self.trusted = trusted


def _broken(error: int) -> IdentityRefused:
    return IdentityRefused(f"the peer's certificate {_why_broken(error)}")


def _why_broken(error: int) -> str:
    return _BROKEN_CHAIN.get(error, f"has a chain that does not hold (OpenSSL {error})")


def _verify(connection: SSL.Connection, certificate: X509, error: int, depth: int, holds: int) -> bool:
    """OpenSSL's callback; a bound method instead would tie every closed connection into a cycle (P48)."""
    return isinstance(connection, _CheckedConnection) and connection.judge(certificate, error, depth, bool(holds))


def _context(method: int, oldest_version: int) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(oldest_version)
    context.set_cipher_list(_CIPHERS)
    # an idle connection keeps no buffers: 34 KiB each otherwise
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    return context


def _mutual_context(method: int, files: TlsFiles, trusted: Sequence[x509.Certificate]) -> SSL.Context:
    context = _context(method, SSL.TLS1_3_VERSION)
    # a resumed session would skip the verification
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET)
    _present(context, files.certificate, files.key)
    _trust(context, trusted)
    return context


def _present(context: SSL.Context, certificate: Path, key: Path) -> None:
    """Use this certificate, whose chain stands after it in its file."""
    leaf, *chain = read_certificates(certificate)
    private = read_key(key)
    if not isinstance(private, ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey):
        raise FileRefused(f"{key} holds no key that TLS can sign with", hint="use an EC, Ed25519 or RSA key")
    if private.public_key() != leaf.public_key():
        raise FileRefused(f"{key} is not the key of {certificate}", hint="issue both again, or restore both")
    try:
        context.use_certificate(leaf)
        for link in chain:
            context.add_extra_chain_cert(link)
        context.use_privatekey(private)
    except SSL.Error as error:
        raise FileRefused(
            f"OpenSSL does not take {certificate} and its key: {_words(error)}",
            hint="issue a new certificate with a new key",
        ) from None


def _trust(context: SSL.Context, trusted: Sequence[x509.Certificate]) -> None:
    store = context.get_cert_store()
    if store is None:
        raise TlsFailed("OpenSSL has no certificate store", hint="check the installed pyOpenSSL and cryptography")
    for certificate in trusted:
        store.add_cert(X509.from_cryptography(certificate))


def _service(server_name: str) -> DNS_ID | IPAddress_ID:
    """What a certificate must be for."""
    try:
        ip_address(server_name)
    except ValueError:
        return _dns(server_name)
    return IPAddress_ID(server_name)


def _dns(server_name: str) -> DNS_ID:
    try:
        # DNS_ID would encode other characters; what is configured is to be what stands in the certificate
        server_name.encode("ascii")
        return DNS_ID(server_name)
    except ValueError as error:
        raise BadConfig(
            f"{server_name!r} is neither a DNS name nor an IP address",
            hint="write the name as it stands in the server's certificate, in ASCII (xn--…)",
        ) from error


def _indication(service: DNS_ID | IPAddress_ID) -> bytes | None:
    """The server name indication: RFC 6066 has it for DNS names only."""
    return service.hostname if isinstance(service, DNS_ID) else None


def _require_service(certificate: X509, service: DNS_ID | IPAddress_ID) -> None:
    try:
        verify_service_identity(extract_patterns(certificate), [service], [])
    except (VerificationError, CertificateError) as error:
        raise IdentityRefused("the peer's certificate is not for the server name that was dialled") from error


def _checked(transport: ITransport) -> _CheckedConnection | None:
    handle = transport.getHandle() if ISystemHandle.providedBy(transport) else None
    return handle if isinstance(handle, _CheckedConnection) else None


def _words(error: SSL.Error) -> str:
    """The last reason in an OpenSSL error: words from OpenSSL's own list, never from the peer."""
    queue = error.args[0] if error.args else None
    return str(queue[-1][-1]) if isinstance(queue, list) and queue else "unexpected end"
