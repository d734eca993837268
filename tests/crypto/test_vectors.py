"""Known answers: the stored vectors, the independent computation and the product agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.bindings import crypto_scalarmult_base
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.at_rest import Place, open_secret
from iop.crypto.attestation import AttestationVerifier, attest
from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.keyring import Keyring, KeyringKey, KeyState
from iop.crypto.lease import LeaseStatement, open_lease, seal_lease
from iop.crypto.possession import answer, check
from iop.crypto.receipt import sign_receipt, verify_receipt
from iop.crypto.tokens import parse_token, token_digest, token_proof
from iop.records import Binding, SealedSecret
from iop.secret import Secret
from iop.wire import control_pb2, runtime_pb2
from tests.crypto import independent

NAMES: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "token": independent.token,
    "at_rest": independent.at_rest,
    "lease": independent.lease,
    "attestation": independent.attestation,
    "possession": independent.possession,
    "receipt": independent.receipt,
}


class VectorTests(SynchronousTestCase):
    """Each construction against its vector."""

    def test_independent(self) -> None:
        """Every stored vector is what the independent computation gives."""
        self.assertEqual({path.stem for path in independent.VECTORS.glob("*.json")}, set(NAMES))
        for name, compute in NAMES.items():
            vector = independent.load(name)
            self.assertEqual(compute(vector["given"]), vector["expected"], name)

    def test_token(self) -> None:
        """security.md, Tokens."""
        expected = independent.load("token")["expected"]
        text = parse_token(expected["text"])
        self.assertEqual(token_digest(text).hex(), expected["digest"])
        self.assertEqual(token_proof(text).hex(), expected["proof"])

    def test_at_rest(self) -> None:
        """security.md, At rest."""
        vector = independent.load("at_rest")
        given = vector["given"]
        key = Secret(bytes.fromhex(given["key"]))
        place = Place(
            given["deployment"],
            given["table"],
            given["column"],
            given["principal"],
            given["slot"],
            given["profile"],
            given["target"],
            int(given["revision"]),
        )
        sealed = SealedSecret(given["key_id"], *(bytes.fromhex(vector["expected"][n]) for n in ("wrapped_key", "box")))
        opened = open_secret(Keyring([KeyringKey(given["key_id"], KeyState.PRIMARY, key)]), place, sealed)
        self.assertEqual(opened.reveal(), given["secret"].encode())

    def test_lease(self) -> None:
        """L5."""
        vector = independent.load("lease")
        given = vector["given"]
        private_key = bytes.fromhex(given["recipient_private_key"])
        public_key = crypto_scalarmult_base(private_key)
        issuer = Issuer(Secret(bytes.fromhex(given["issuer_seed"])))
        fields: dict[str, Any] = {name: given[name] for name in independent.BINDING_TEXTS}
        fields.update({name: int(given[name]) for name in independent.BINDING_NUMBERS})
        binding = Binding(**fields)
        statement = LeaseStatement(
            given["lease_id"],
            given["deployment_id"],
            given["trust_domain"],
            given["edge"],
            binding,
            given["token_id"],
            int(given["not_before_ms"]),
            int(given["expires_ms"]),
            public_key,
        )
        sealed = runtime_pb2.SealedLease(**{name: bytes.fromhex(value) for name, value in vector["expected"].items()})
        opened = open_lease(
            PinnedIssuers([issuer.public_key]),
            sealed,
            now_ms=statement.not_before_ms,
            skew_ms=0,
            find_private_key={public_key: Secret(private_key)}.get,
            deployment_id=statement.deployment_id,
            trust_domain=statement.trust_domain,
            edge=statement.edge,
            node="node-1",
            binding=binding,
            token_id=statement.token_id,
        )
        self.assertEqual(opened.statement, statement)
        self.assertEqual(opened.secret.reveal(), given["secret"].encode())
        made = seal_lease(issuer, statement, Secret(given["secret"].encode()))
        self.assertEqual((made.statement, len(made.box)), (sealed.statement, len(sealed.box)))

    def test_attestation(self) -> None:
        """N4, with an Ed25519 certificate key."""
        vector = independent.load("attestation")
        given = vector["given"]
        authority, leaf = (
            x509.load_der_x509_certificate(bytes.fromhex(given[name])) for name in ("authority", "certificate")
        )
        made = attest(
            Ed25519PrivateKey.from_private_bytes(bytes.fromhex(given["certificate_seed"])),
            [leaf],
            trust_domain=given["trust_domain"],
            edge=given["edge"],
            node=given["node"],
            public_key=bytes.fromhex(given["public_key"]),
            expires_ms=int(given["expires_ms"]),
        )
        self.assertEqual(made.statement.hex(), vector["expected"]["statement"])
        self.assertEqual(made.signature.hex(), vector["expected"]["signature"])
        until_ms = AttestationVerifier([authority], given["trust_domain"]).verify(
            made,
            edge=given["edge"],
            node=given["node"],
            public_key=bytes.fromhex(given["public_key"]),
            now_ms=1_800_000_000_000,
        )
        self.assertEqual(until_ms, int(given["expires_ms"]))

    def test_possession(self) -> None:
        """N3."""
        vector = independent.load("possession")
        given = vector["given"]
        private_key = bytes.fromhex(given["private_key"])
        public_key = crypto_scalarmult_base(private_key)
        exporter = bytes.fromhex(given["exporter"])
        answered = answer(
            Secret(private_key),
            bytes.fromhex(vector["expected"]["challenge"]),
            edge=given["edge"],
            node=given["node"],
            public_key=public_key,
            exporter=exporter,
        )
        self.assertEqual(answered.hex(), vector["expected"]["answer"])
        check(
            Secret(bytes.fromhex(given["nonce"])),
            answered,
            edge=given["edge"],
            node=given["node"],
            public_key=public_key,
            exporter=exporter,
        )

    def test_receipt(self) -> None:
        """E8."""
        vector = independent.load("receipt")
        given = vector["given"]
        issuer = Issuer(Secret(bytes.fromhex(given["issuer_seed"])))
        digest = bytes.fromhex(given["digest"])
        made = sign_receipt(issuer, given["deployment_id"], given["edge"], int(given["generation"]), digest)
        stored = control_pb2.ProjectionReceipt(
            **{name: bytes.fromhex(value) for name, value in vector["expected"].items()}
        )
        self.assertEqual(made, stored)
        statement = verify_receipt(
            PinnedIssuers([issuer.public_key]), stored, deployment_id=given["deployment_id"], edge=given["edge"]
        )
        self.assertEqual((statement.generation, statement.digest), (int(given["generation"]), digest))
