"""A throwaway authority in a folder, with certificates as they should be and as they must not be."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from iop.crypto.pki import Authority, Leaf, authority_paths, leaf_paths
from iop.net.tls import TlsFiles
from iop.units import Identity, Role

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TRUST_DOMAIN: Final = "iop.test"

_BOTH_ENDS: Final = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
_LISTENERS: Final = (Role.CONTROL_PLANE, Role.EDGE)


class Pki:
    """An authority made in ``folder``, which hands out certificates as files; its names are those of loopback."""

    def __init__(self, folder: Path, trust_domain: str = TRUST_DOMAIN) -> None:
        self.folder = folder
        self.authority = Authority.create(folder, trust_domain, _now_ms())

    @property
    def trust(self) -> Path:
        """The file to trust this authority by."""
        return authority_paths(self.folder).certificate

    def issue(self, role: Role, name: str) -> TlsFiles:
        """A certificate exactly as ``iop pki issue`` makes it, for ``localhost`` and 127.0.0.1 if the role listens."""
        listens = role in _LISTENERS
        leaf = self.authority.issue(
            role,
            name,
            dns=["localhost"] if listens else [],
            addresses=[ip_address("127.0.0.1")] if listens else [],
            now_ms=_now_ms(),
        )
        return self._written(leaf, role, name)

    def certify(
        self, label: str, names: Sequence[x509.GeneralName], *, valid_days: tuple[float, float] = (-1, 1)
    ) -> TlsFiles:
        """A certificate that says whatever ``names`` say, good for both ends of a connection.

        :param valid_days: from when until when it is valid, in days from now.
        """
        now = datetime.now(UTC)
        start, end = (now + timedelta(days=days) for days in valid_days)
        return self._written(self.authority.certify(label, names, _BOTH_ENDS, start, end), Role.NODE, label)

    def broken(self, identity: Identity, dns: str = "localhost") -> dict[str, TlsFiles]:
        """Certificates signed by this authority that nobody may accept for ``identity`` at ``dns``, by what is wrong.

        The last four are those that Twisted's own client options accept for ``localhost``.
        """
        uri = x509.UniformResourceIdentifier(identity.uri())
        name = x509.DNSName(dns)
        unparsable = x509.UniformResourceIdentifier("spiffe://example:8443/x")
        elsewhere = x509.DNSName("elsewhere.example")
        wildcard_uri = x509.UniformResourceIdentifier("https://*.example/")
        another = x509.UniformResourceIdentifier(Identity(identity.trust_domain, identity.role, "another").uri())
        return {
            "expired": self.certify("expired", [uri, name], valid_days=(-2, -1)),
            "not-yet-valid": self.certify("not-yet-valid", [uri, name], valid_days=(1, 2)),
            "unparsable-uri": self.certify("unparsable-uri", [unparsable, name]),
            "two-uris": self.certify("two-uris", [uri, another, name]),
            "no-san": self.certify("no-san", []),
            "wrong-dns-unparsable-uri": self.certify("wrong-dns-unparsable-uri", [elsewhere, unparsable]),
            "wrong-dns-wildcard-uri": self.certify("wrong-dns-wildcard-uri", [elsewhere, wildcard_uri]),
            "wildcard-dns": self.certify("wildcard-dns", [x509.DNSName("*")]),
        }

    def _written(self, leaf: Leaf, role: Role, name: str) -> TlsFiles:
        paths = leaf_paths(self.folder, role, name)
        leaf.write(paths.certificate, paths.key)
        return TlsFiles(paths.certificate, paths.key, self.trust)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
