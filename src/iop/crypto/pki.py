"""A certificate authority in a folder, and the certificates it issues to the roles.

Keys are EC P-256. Certificates carry what both TLS and ``cryptography.x509.verification`` insist on: one identity, the
usages of the role, and for roles that listen the names they are dialled by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from iop.certificates import read_certificates, read_key, uri_of
from iop.errors import AlreadyExists, BadConfig, FileRefused, IdentityRefused
from iop.files import make_folder, write_atomic, write_private
from iop.units import Identity, Role, is_name, is_trust_domain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address, IPv6Address
    from pathlib import Path

AUTHORITY_DAYS: Final = 3650
DEFAULT_DAYS: Final = 90
LONGEST_DAYS: Final = 825

#: How far back a new certificate is dated, for machines whose clock is behind.
_BACKDATED: Final = timedelta(minutes=5)

#: The DNS name of one host; with underscores, because names in container networks have them.
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\Z")

_CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH
_SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
_USAGES: Final[dict[Role, tuple[x509.ObjectIdentifier, ...]]] = {
    Role.CONTROL_PLANE: (_SERVER,),
    Role.EDGE: (_CLIENT, _SERVER),
    Role.NODE: (_CLIENT,),
    Role.WORKER: (_CLIENT,),
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """An issued certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    def write(self, certificate: Path, key: Path) -> None:
        """Write both as PEM, the key with mode 0600 and first.

        A certificate is written last, so that one that is there has its key beside it, even after a crash (P46).

        :raises FileRefused: if one cannot be written.
        """
        write_private(key, _key_pem(self.key))
        write_atomic(certificate, self.certificate.public_bytes(serialization.Encoding.PEM), 0o644)


class Authority:
    """A certificate authority: ``ca.pem`` and ``ca.key`` in a folder of their own."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self.trust_domain = _trust_domain(certificate)
        self._key = key

    @classmethod
    def create(cls, folder: Path, trust_domain: str, now_ms: int) -> Authority:
        """Make a new authority in ``folder``, which is made if need be.

        :param now_ms: Unix milliseconds from which it is valid, for :data:`AUTHORITY_DAYS` days.
        :raises BadConfig: if ``trust_domain`` cannot be one.
        :raises AlreadyExists: if the folder has an authority.
        :raises FileRefused: if it cannot be written.
        """
        if not is_trust_domain(trust_domain):
            raise BadConfig(
                f"{trust_domain!r} cannot be a trust domain", hint="use lower-case letters, digits, '.' and '-'"
            )
        paths = authority_paths(folder)
        if paths.certificate.exists():
            raise AlreadyExists(
                f"{folder} has a certificate authority already",
                hint="issue from it, or name another folder; everything it issued would stop being trusted",
            )
        make_folder(folder)
        authority = new_authority(trust_domain, now_ms)
        Leaf(authority.certificate, authority._key).write(paths.certificate, paths.key)
        return authority

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Read the authority in ``folder``.

        :raises FileRefused: if there is none, its key is open to others, or its files are not what they should be.
        """
        paths = authority_paths(folder)
        if not paths.certificate.exists():
            raise FileRefused(
                f"{folder} has no certificate authority",
                hint=f"make one: iop pki init --directory {folder} --trust-domain DOMAIN",
            )
        certificate = read_certificates(paths.certificate)[0]
        key = read_key(paths.key)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise FileRefused(f"{paths.key} is not the key of {paths.certificate}", hint="restore both from one backup")
        try:
            return cls(certificate, key)
        except IdentityRefused as error:
            raise FileRefused(
                f"{paths.certificate} names no trust domain", hint="use an authority that `iop pki init` made"
            ) from error

    def issue(
        self,
        role: Role,
        name: str,
        *,
        dns: Sequence[str] = (),
        addresses: Sequence[IPv4Address | IPv6Address] = (),
        days: int = DEFAULT_DAYS,
        now_ms: int,
    ) -> Leaf:
        """Issue the certificate of one role's instance, with a new key.

        :param dns: names it is dialled by; Control Planes and Edges need one of ``dns`` or ``addresses``, others none.
        :param days: how long it is valid from ``now_ms`` (Unix milliseconds) on, 1 to :data:`LONGEST_DAYS`.
        :raises BadConfig: if one of these cannot stand in a certificate, or it would outlive the authority.
        """
        if not is_name(name):
            raise BadConfig(
                f"{name!r} cannot be an instance's name",
                hint="use 1 to 63 of a-z 0-9 . _ -, beginning and ending with a letter or digit",
            )
        _refuse_unfit_names(role, dns, addresses)
        names = [
            x509.UniformResourceIdentifier(Identity(self.trust_domain, role, name).uri()),
            *map(x509.DNSName, dns),
            *map(x509.IPAddress, addresses),
        ]
        start = _moment(now_ms)
        end = start + timedelta(days=days)
        if not 1 <= days <= LONGEST_DAYS:
            raise BadConfig(f"a certificate cannot be valid for {days} days", hint=f"choose 1 to {LONGEST_DAYS}")
        if end > self.certificate.not_valid_after_utc:
            raise BadConfig(
                f"the authority ends on {self.certificate.not_valid_after_utc:%Y-%m-%d}, before the certificate would",
                hint="choose fewer days, or make a new authority with `iop pki init`",
            )
        return self.certify(f"{role.value} {name}", names, _USAGES[role], start - _BACKDATED, end)

    def certify(
        self,
        subject: str,
        names: Sequence[x509.GeneralName],
        usages: Sequence[x509.ObjectIdentifier],
        not_before: datetime,
        not_after: datetime,
    ) -> Leaf:
        """Sign a certificate for a new key, whatever it says; :meth:`issue` decides what may be said."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, key.public_key(), not_before, not_after)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                    self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
                ),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Leaf(builder.sign(self._key, hashes.SHA256()), key)


@dataclass(frozen=True, slots=True)
class PemPaths:
    """Where a certificate and its key are."""

    certificate: Path
    key: Path


def authority_paths(folder: Path) -> PemPaths:
    """The files of the authority in ``folder``."""
    return PemPaths(folder / "ca.pem", folder / "ca.key")


def leaf_paths(folder: Path, role: Role, name: str) -> PemPaths:
    """The files of a role's instance in ``folder``."""
    return PemPaths(folder / f"{role.value}-{name}.pem", folder / f"{role.value}-{name}.key")


def new_authority(trust_domain: str, now_ms: int) -> Authority:
    """A new authority that is nowhere yet. Its trust domain stands in its own URI SAN, as SPIFFE has it."""
    key = ec.generate_private_key(ec.SECP256R1())
    start = _moment(now_ms)
    builder = _builder(
        f"{trust_domain} iop authority", key.public_key(), start - _BACKDATED, start + timedelta(days=AUTHORITY_DAYS)
    )
    certificate = (
        builder.issuer_name(_subject(f"{trust_domain} iop authority"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def _refuse_unfit_names(role: Role, dns: Sequence[str], addresses: Sequence[IPv4Address | IPv6Address]) -> None:
    listens = _SERVER in _USAGES[role]
    if listens and not dns and not addresses:
        raise BadConfig(
            f"a certificate of role {role.value} needs the names it is dialled by",
            hint="add --dns NAME or --ip ADDRESS, as it stands in the addresses that others dial",
        )
    if not listens and (dns or addresses):
        raise BadConfig(
            f"nothing connects to a {role.value}, so its certificate has no DNS name or address",
            hint="leave out --dns and --ip",
        )
    for host in dns:
        if not _HOST.match(host):
            raise BadConfig(
                f"{host!r} is not the DNS name of one host",
                hint="give every host a name of its own, without wildcards, in ASCII (xn--…)",
            )


def _trust_domain(certificate: x509.Certificate) -> str:
    """What an authority is an authority for; :class:`~iop.errors.IdentityRefused` if it does not say."""
    scheme, separator, domain = uri_of(certificate).partition("://")
    if scheme != "spiffe" or not separator or not is_trust_domain(domain):
        raise IdentityRefused("the certificate's URI name is not a trust domain")
    return domain


def _builder(
    subject: str, key: ec.EllipticCurvePublicKey, not_before: datetime, not_after: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(subject))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(common_name: str) -> x509.Name:
    """For people to read, cut to what X.520 allows; nothing is decided by it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC)
