"""A Node's word, signed with its certificate's key, that an X25519 key is its own and made for one Edge (N4, P11).

The signature is over ``iop/node-key/v1\\0`` ‖ the bytes of ``NodeKeyStatement`` as sent. ECDSA-SHA256 with P-256 and
Ed25519 are accepted, as the certificate's key says; there is no algorithm field.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from iop.certificates import required_identity
from iop.crypto.fields import length_prefixed
from iop.crypto.node_keys import ATTESTED_SECONDS, check_recipient_key
from iop.errors import AttestationRefused, IdentityRefused, MalformedFrame
from iop.units import SKEW_SECONDS, Role
from iop.wire import runtime_pb2
from iop.wire.strict import parse_strict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

DOMAIN: Final = b"iop/node-key/v1\0"
#: A leaf and at most one intermediate.
CHAIN_LIMIT: Final = 2
CERTIFICATE_LIMIT: Final = 4 * 1024
STATEMENT_LIMIT: Final = 1024
SIGNATURE_LIMIT: Final = 128
VERDICT_LIMIT: Final = 1024


def attest(
    certificate_key: PrivateKeyTypes,
    chain: Sequence[x509.Certificate],
    *,
    trust_domain: str,
    edge: str,
    node: str,
    public_key: bytes,
    expires_ms: int,
) -> runtime_pb2.NodeKeyAttestation:
    """Sign that ``public_key`` is this Node's, for one Edge.

    :param certificate_key: private key of the first certificate of ``chain``.
    :param chain: leaf first, then what leads to a trust anchor, without it.
    :raises AttestationRefused: if ``certificate_key`` is neither P-256 nor Ed25519.
    """
    statement = runtime_pb2.NodeKeyStatement(
        trust_domain=trust_domain, edge=edge, node=node, public_key=public_key, expires_ms=expires_ms
    ).SerializeToString(deterministic=True)
    message = DOMAIN + statement
    if isinstance(certificate_key, ed25519.Ed25519PrivateKey):
        signature = certificate_key.sign(message)
    elif isinstance(certificate_key, ec.EllipticCurvePrivateKey) and isinstance(certificate_key.curve, ec.SECP256R1):
        signature = certificate_key.sign(message, ec.ECDSA(SHA256()))
    else:
        raise AttestationRefused("a Node's certificate key must be P-256 or Ed25519")
    return runtime_pb2.NodeKeyAttestation(
        certificate_chain=[certificate.public_bytes(Encoding.DER) for certificate in chain],
        statement=statement,
        signature=signature,
    )


class AttestationVerifier:
    """Verifies attestations against fixed trust anchors, and remembers in memory what held (C42: nothing is stored).

    Make a new one when trust changes: with the anchors go the remembered verdicts.

    :param trust_anchors: at least one CA certificate.
    :param skew_seconds: how far a Node's clock may be ahead.
    """

    def __init__(
        self, trust_anchors: Sequence[x509.Certificate], trust_domain: str, skew_seconds: float = SKEW_SECONDS
    ) -> None:
        self._policy = PolicyBuilder().store(Store(list(trust_anchors))).max_chain_depth(CHAIN_LIMIT)
        self._trust_domain = trust_domain
        # How far ahead an attestation may expire: its whole life, seen by a clock that may be behind the Node's.
        self._longest_ms = round((ATTESTED_SECONDS + skew_seconds) * 1000)
        self._verdicts: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def verify(
        self, attestation: runtime_pb2.NodeKeyAttestation, *, edge: str, node: str, public_key: bytes, now_ms: int
    ) -> int:
        """Answer until when, in Unix milliseconds, ``node`` vouches for ``public_key`` towards ``edge``.

        That is the statement's expiry, or the end of the certificates' validity if that is earlier.

        :param edge: the Edge that asks, from its certificate.
        :param node: the Node of the binding.
        :param now_ms: wall time counted by boot time, so never going back.
        :raises AttestationRefused: if anything in it does not hold.
        """
        check_size(attestation)
        presented = _fingerprint(attestation, edge, node, public_key)
        verdict = self._verdicts.get(presented)
        if verdict is None:
            verdict = self._judge(attestation, edge, node, public_key, now_ms)
        statement_expires_ms, valid_until_ms = verdict
        if statement_expires_ms > now_ms + self._longest_ms:
            raise AttestationRefused("the attestation expires later than a Node key lives")
        until_ms = min(statement_expires_ms, valid_until_ms)
        if until_ms <= now_ms:
            self._verdicts.pop(presented, None)
            raise AttestationRefused("the attestation or its certificate has expired")
        self._verdicts[presented] = verdict
        self._verdicts.move_to_end(presented)
        if len(self._verdicts) > VERDICT_LIMIT:
            self._verdicts.popitem(last=False)
        return until_ms

    def _judge(
        self, attestation: runtime_pb2.NodeKeyAttestation, edge: str, node: str, public_key: bytes, now_ms: int
    ) -> tuple[int, int]:
        """The statement's expiry and the end of the chain's validity, if all else holds."""
        leaf, valid_until_ms = self._verified_leaf(attestation.certificate_chain, now_ms)
        try:
            required_identity(leaf, trust_domain=self._trust_domain, role=Role.NODE, name=node)
        except IdentityRefused as error:
            raise AttestationRefused(error.message) from None
        _check_signature(leaf, attestation)
        try:
            statement = parse_strict(runtime_pb2.NodeKeyStatement, attestation.statement)
        except MalformedFrame:
            raise AttestationRefused("the attestation's statement is malformed") from None
        if statement.trust_domain != self._trust_domain:
            raise AttestationRefused("the attestation was made in another trust domain")
        if statement.edge != edge:
            raise AttestationRefused("the attestation was made for another Edge")
        if statement.node != node:
            raise AttestationRefused("the attestation was made by another Node")
        if statement.public_key != public_key:
            raise AttestationRefused("the attestation is about another key")
        check_recipient_key(public_key)
        return statement.expires_ms, valid_until_ms

    def _verified_leaf(self, chain: Sequence[bytes], now_ms: int) -> tuple[x509.Certificate, int]:
        try:
            leaf, *others = (x509.load_der_x509_certificate(each) for each in chain)
            # An Edge can invent chains. Two certificates with keys of a fixed cost leave nothing to search for.
            for certificate in (leaf, *others):
                _attesting_key(certificate)
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            verified = self._policy.time(now).build_client_verifier().verify(leaf, others)
        except (ValueError, x509.InvalidVersion, VerificationError):
            raise AttestationRefused("the attestation's certificate chain does not lead to the trusted CA") from None
        until = min(certificate.not_valid_after_utc for certificate in verified.chain)
        return leaf, int(until.timestamp() * 1000)


def check_size(attestation: runtime_pb2.NodeKeyAttestation) -> None:
    """Refuse what no Node's attestation is, before anything in it is read.

    :raises AttestationRefused: for no certificate, more than a leaf and one intermediate, or a part that is too long.
    """
    chain = attestation.certificate_chain
    if (
        not 1 <= len(chain) <= CHAIN_LIMIT
        or any(len(certificate) > CERTIFICATE_LIMIT for certificate in chain)
        or not 1 <= len(attestation.statement) <= STATEMENT_LIMIT
        or not 1 <= len(attestation.signature) <= SIGNATURE_LIMIT
    ):
        raise AttestationRefused("a part of the attestation is missing or too long")


def _fingerprint(attestation: runtime_pb2.NodeKeyAttestation, edge: str, node: str, public_key: bytes) -> bytes:
    """Everything a verdict rests on, apart from the anchors and the time."""
    chain = length_prefixed(*attestation.certificate_chain)
    everything = (edge.encode(), node.encode(), public_key, chain, attestation.statement, attestation.signature)
    return hashlib.sha256(length_prefixed(*everything)).digest()


def _attesting_key(certificate: x509.Certificate) -> ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey:
    """The certificate's key, if it is of a kind that may attest: one whose signatures cost the same whoever made it."""
    try:
        key = certificate.public_key()
    except (UnsupportedAlgorithm, ValueError):
        key = None
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise AttestationRefused("a certificate of the attestation has a key that is neither P-256 nor Ed25519")


def _check_signature(leaf: x509.Certificate, attestation: runtime_pb2.NodeKeyAttestation) -> None:
    message, key = DOMAIN + attestation.statement, _attesting_key(leaf)
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(attestation.signature, message)
        else:
            key.verify(attestation.signature, message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        raise AttestationRefused("the attestation's signature does not hold") from None
