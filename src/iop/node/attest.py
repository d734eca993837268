"""Signs for this Node's keys with the private key of its certificate (N4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from iop.certificates import read_certificates, read_key
from iop.crypto.attestation import attest
from iop.crypto.node_keys import NodeKey
from iop.net.tls import TlsFiles
from iop.units import Identity
from iop.wire import runtime_pb2


@dataclass(frozen=True, slots=True)
class Attester:
    """Attests keys of one Node for one Edge.

    :ivar certificate_key: private key of the chain's first certificate.
    """

    certificate_key: PrivateKeyTypes = field(repr=False)
    chain: Sequence[x509.Certificate]
    edge: Identity
    node: str

    @classmethod
    def load(cls, files: TlsFiles, edge: Identity, node: str) -> Attester:
        """Read certificate and key.

        :raises FileRefused: if a file is not what it should be.
        """
        return cls(read_key(files.key), read_certificates(files.certificate), edge, node)

    def __call__(self, key: NodeKey) -> runtime_pb2.NodeKeyAttestation:
        """The attestation of ``key``, valid as long as the key may be used.

        :raises AttestationRefused: if the certificate's key is of a kind that cannot attest.
        """
        return attest(
            self.certificate_key,
            self.chain,
            trust_domain=self.edge.trust_domain,
            edge=self.edge.name,
            node=self.node,
            public_key=key.public_key,
            expires_ms=key.attested_until_ms,
        )
