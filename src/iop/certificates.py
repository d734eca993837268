"""Certificates and their keys as files, and which identity a certificate speaks for.

This is the one reading of both, for TLS, for attestations and for the authority. It says nothing about who signed a
certificate: that is verified before anything in it counts.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.utils import CryptographyDeprecationWarning

from iop.errors import FileRefused, IdentityRefused
from iop.files import read_private, read_public
from iop.units import Identity

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from iop.units import Role

#: Bytes of a PEM file; the usual bundle of public authorities has 220 KiB.
_CERTIFICATES_LIMIT: Final = 1024 * 1024
_KEY_LIMIT: Final = 64 * 1024


def read_certificates(path: Path) -> list[x509.Certificate]:
    """The certificates of a PEM file, at least one.

    :raises FileRefused: if it cannot be read or holds none.
    """
    pem = read_public(path, _CERTIFICATES_LIMIT)
    try:
        # public bundles hold old authorities that are not as the RFC wants them; nobody here can mend those
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise FileRefused(f"{path} holds no PEM certificate", hint="check that this is the file you meant") from error


def read_key(path: Path) -> PrivateKeyTypes:
    """The private key of a PEM file that nobody else can read.

    :raises FileRefused: if it cannot be read, is open to others, or holds no unencrypted key.
    """
    pem = read_private(path, _KEY_LIMIT)
    try:
        return serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # without its cause: the parser's own words may quote the file
        raise FileRefused(
            f"{path} holds no unencrypted PEM private key", hint="check that this is the file you meant"
        ) from None
    finally:
        pem[:] = bytes(len(pem))


def names_of(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    """The certificate's subject alternative names.

    :raises IdentityRefused: if there are none, or they cannot be read.
    """
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise IdentityRefused("the certificate has no readable subject alternative names") from error


def uri_of(certificate: x509.Certificate) -> str:
    """The certificate's single URI name.

    :raises IdentityRefused: if it has none or more than one, or :func:`names_of` refuses.
    """
    uris = names_of(certificate).get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise IdentityRefused(f"the certificate has {len(uris)} URI names instead of one")
    return uris[0]


def identity_of(certificate: x509.Certificate) -> Identity:
    """The workload identity in the certificate's single URI name.

    :raises IdentityRefused: if that is not an iop identity, or :func:`uri_of` refuses.
    """
    try:
        return Identity.parse(uri_of(certificate))
    except ValueError as error:
        raise IdentityRefused("the certificate's URI name is not an iop workload identity") from error


def required_identity(
    certificate: x509.Certificate, *, trust_domain: str, role: Role, name: str | None = None
) -> Identity:
    """The certificate's identity, if it is of this trust domain and role, and of this name where one is given.

    :raises IdentityRefused: if it is another one, or :func:`identity_of` refuses.
    """
    identity = identity_of(certificate)
    if identity.trust_domain != trust_domain:
        raise IdentityRefused(f"the certificate of {identity.uri()} is not of trust domain {trust_domain}")
    if identity.role is not role:
        raise IdentityRefused(f"the certificate of {identity.uri()} is not one of role {role.value}")
    if name is not None and identity.name != name:
        raise IdentityRefused(f"the certificate of {identity.uri()} is not the one of {name}")
    return identity


def check_own(path: Path, *, trust_domain: str, role: Role, name: str) -> None:
    """Refuse to start under another name than the certificate gives: no peer would talk to such a process.

    :param path: the PEM file of a process's own certificate.
    :raises FileRefused: if it cannot be read, or is that of somebody else.
    """
    try:
        required_identity(read_certificates(path)[0], trust_domain=trust_domain, role=role, name=name)
    except IdentityRefused as error:
        raise FileRefused(
            f"{path} is not this process's certificate: {error.message}",
            hint="correct the name or the path in the configuration, or issue a certificate with iop pki issue",
        ) from None
