"""Attestations: what an Edge can bring, and that only a Node's own word about its own key counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from nacl.bindings import crypto_box_keypair
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto import attestation
from iop.crypto.attestation import CHAIN_LIMIT, DOMAIN, AttestationVerifier, attest
from iop.crypto.node_keys import NodeKeys
from iop.crypto.pki import Authority, Leaf, new_authority
from iop.errors import AttestationRefused
from iop.testing.clock import FakeClock
from iop.units import Role
from iop.wire import runtime_pb2
from tests.crypto.independent import bytes_field, number_field
from tests.crypto.samples import NOW_MS, TRUST_DOMAIN, bit_flips

AUTHORITY = new_authority(TRUST_DOMAIN, NOW_MS)
FOREIGN_AUTHORITY = new_authority(TRUST_DOMAIN, NOW_MS)
NODE = AUTHORITY.issue(Role.NODE, "node-1", now_ms=NOW_MS)
OTHER_NODE = AUTHORITY.issue(Role.NODE, "node-2", now_ms=NOW_MS)
EDGE = AUTHORITY.issue(Role.EDGE, "edge-1", dns=["localhost"], now_ms=NOW_MS)
FOREIGN_NODE = FOREIGN_AUTHORITY.issue(Role.NODE, "node-1", now_ms=NOW_MS)
PUBLIC_KEY, _ = crypto_box_keypair()
OTHER_KEY, _ = crypto_box_keypair()
EXPIRES_MS = NOW_MS + 905_000
MOMENT = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@dataclass(frozen=True)
class Word:
    """What a Node would sign."""

    leaf: Leaf = NODE
    trust_domain: str = TRUST_DOMAIN
    edge: str = "edge-1"
    node: str = "node-1"
    public_key: bytes = PUBLIC_KEY
    expires_ms: int = EXPIRES_MS

    def signed(self) -> runtime_pb2.NodeKeyAttestation:
        """As it signs it."""
        return attest(
            self.leaf.key,
            [self.leaf.certificate],
            trust_domain=self.trust_domain,
            edge=self.edge,
            node=self.node,
            public_key=self.public_key,
            expires_ms=self.expires_ms,
        )


def certified(
    names: list[x509.GeneralName],
    authority: Authority = AUTHORITY,
    days: tuple[int, int] = (-1, 1),
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
) -> Leaf:
    """A certificate that says whatever it is told to."""
    start, end = (MOMENT + timedelta(days=count) for count in days)
    return authority.certify("node", names, [usage], start, end)


def uri(value: str) -> x509.UniformResourceIdentifier:
    """A URI name."""
    return x509.UniformResourceIdentifier(value)


OWN_URI = f"spiffe://{TRUST_DOMAIN}/iop/node/node-1"


class VerifierCase(SynchronousTestCase):
    """A Control Plane that trusts one authority."""

    def setUp(self) -> None:
        self.verifier = AttestationVerifier([AUTHORITY.certificate], TRUST_DOMAIN)

    def verify(
        self,
        attestation: runtime_pb2.NodeKeyAttestation,
        *,
        edge: str = "edge-1",
        node: str = "node-1",
        public_key: bytes = PUBLIC_KEY,
        now_ms: int = NOW_MS,
    ) -> int:
        return self.verifier.verify(attestation, edge=edge, node=node, public_key=public_key, now_ms=now_ms)

    def holds(self, attestation: runtime_pb2.NodeKeyAttestation, now_ms: int = NOW_MS) -> bool:
        """Whether it is accepted for the usual Edge, Node and key."""
        try:
            self.verify(attestation, now_ms=now_ms)
        except AttestationRefused:
            return False
        return True


class VerifyTests(VerifierCase):
    """L3, N4."""

    def test_holds(self) -> None:
        """A Node's own word is accepted, until it expires."""
        self.assertEqual(self.verify(Word().signed()), EXPIRES_MS)

    def test_node_keys(self) -> None:
        """N4: what a Node signs at a key's birth is accepted at once, also by a clock that is behind by the skew."""
        key = NodeKeys(FakeClock(NOW_MS)).current()
        word = Word(public_key=key.public_key, expires_ms=key.attested_until_ms).signed()
        for behind_ms in (0, 5_000):
            until_ms = self.verify(word, public_key=key.public_key, now_ms=NOW_MS - behind_ms)
            self.assertEqual(until_ms, key.attested_until_ms)

    def test_statement(self) -> None:
        """P11: one row per field; a genuine Node's word about anything else than what is asked is refused."""
        rows = {
            "another Edge": Word(edge="edge-2"),
            "another Node": Word(node="node-2"),
            "another Node's certificate": Word(leaf=OTHER_NODE),
            "another Node's word": Word(leaf=OTHER_NODE, node="node-2"),
            "another key": Word(public_key=OTHER_KEY),
            "another trust domain": Word(trust_domain="iop.other"),
            "the Edge's own certificate": Word(leaf=EDGE),
            "the Edge as a Node": Word(leaf=EDGE, node="edge-1"),
            "a foreign authority": Word(leaf=FOREIGN_NODE),
            "expired": Word(expires_ms=NOW_MS),
            "never expiring": Word(expires_ms=2**62),
            "no expiry": Word(expires_ms=0),
            "negative expiry": Word(expires_ms=-1),
        }
        self.assertEqual([row for row, word in rows.items() if self.holds(word.signed())], [])

    def test_asked_differently(self) -> None:
        """P11: nor does a good word count when anybody else asks, or for anything else."""
        good = Word().signed()
        self.verify(good)
        self.assertRaises(AttestationRefused, self.verify, good, edge="edge-2")
        self.assertRaises(AttestationRefused, self.verify, good, node="node-2")
        self.assertRaises(AttestationRefused, self.verify, good, public_key=OTHER_KEY)
        self.assertRaises(AttestationRefused, self.verify, good, public_key=b"")
        self.verifier = AttestationVerifier([AUTHORITY.certificate], "iop.other")
        self.assertFalse(self.holds(good))
        self.verifier = AttestationVerifier([FOREIGN_AUTHORITY.certificate], TRUST_DOMAIN)
        self.assertFalse(self.holds(good))

    def test_low_order(self) -> None:
        """P14: a genuine Node's word about a key that everybody can open for is refused."""
        for public_key in (bytes(32), (1).to_bytes(32, "little")):
            word = Word(public_key=public_key).signed()
            self.assertRaises(AttestationRefused, self.verify, word, public_key=public_key)

    def test_certificates(self) -> None:
        """P1: a certificate that is not exactly one Node's, valid now, and good for a client, signs nothing."""
        rows: dict[str, Callable[[], Leaf]] = {
            "no name": lambda: certified([]),
            "only a DNS name": lambda: certified([x509.DNSName("node-1")]),
            "two URIs": lambda: certified([uri(OWN_URI), uri(f"spiffe://{TRUST_DOMAIN}/iop/node/node-2")]),
            "twice the same URI": lambda: certified([uri(OWN_URI), uri(OWN_URI)]),
            "another role": lambda: certified([uri(f"spiffe://{TRUST_DOMAIN}/iop/edge/node-1")]),
            "another trust domain": lambda: certified([uri("spiffe://iop.other/iop/node/node-1")]),
            "another path": lambda: certified([uri(OWN_URI + "/more")]),
            "expired": lambda: certified([uri(OWN_URI)], days=(-2, -1)),
            "not yet valid": lambda: certified([uri(OWN_URI)], days=(1, 2)),
            "only for servers": lambda: certified([uri(OWN_URI)], usage=ExtendedKeyUsageOID.SERVER_AUTH),
            "a foreign authority": lambda: certified([uri(OWN_URI)], FOREIGN_AUTHORITY),
        }
        self.assertTrue(self.holds(Word(leaf=certified([uri(OWN_URI)])).signed()))
        self.assertEqual([row for row, leaf in rows.items() if self.holds(Word(leaf=leaf()).signed())], [])

    def test_key_of_the_certificate(self) -> None:
        """The signature is by the certificate's key, not by just any key."""
        self.assertFalse(self.holds(Word(leaf=replace(NODE, key=OTHER_NODE.key)).signed()))

    def test_other_curves(self) -> None:
        """Certificate keys other than P-256 and Ed25519 sign nothing, on either side."""
        others: list[PrivateKeyTypes] = [
            ec.generate_private_key(ec.SECP384R1()),
            rsa.generate_private_key(65537, 2048),
        ]
        for key in others:
            with self.assertRaises(AttestationRefused):
                attest(
                    key,
                    [NODE.certificate],
                    trust_domain=TRUST_DOMAIN,
                    edge="edge-1",
                    node="node-1",
                    public_key=PUBLIC_KEY,
                    expires_ms=EXPIRES_MS,
                )
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = self_signed(authority_key)
        key = ec.generate_private_key(ec.SECP384R1())
        word = Word().signed()
        word.certificate_chain[0] = issued(authority, authority_key, key).public_bytes(Encoding.DER)
        word.signature = key.sign(DOMAIN + word.statement, ec.ECDSA(SHA256()))
        self.verifier = AttestationVerifier([authority], TRUST_DOMAIN)
        error = self.assertRaises(AttestationRefused, self.verify, word)
        self.assertIn("neither P-256 nor Ed25519", error.message)

    def test_chain(self) -> None:
        """The chain is not empty, bounded in count and size, and made of certificates."""
        good = Word().signed()
        der = good.certificate_chain[0]
        root = AUTHORITY.certificate.public_bytes(Encoding.DER)
        rows = {
            "empty": [],
            "the root alone": [root],
            "the root first": [root, der],
            "one too many": [der, *[root] * CHAIN_LIMIT],
            "trailing byte": [der + b"\0"],
            "cut": [der[:-1]],
            "nothing in it": [b""],
            "no certificate": [b"\x30\x00"],
            "too long": [der, bytes(16 * 1024 + 1)],
        }
        accepted = []
        for row, chain in rows.items():
            word = runtime_pb2.NodeKeyAttestation(
                certificate_chain=chain, statement=good.statement, signature=good.signature
            )
            if self.holds(word):
                accepted.append(row)
        self.assertEqual(accepted, [])
        good.certificate_chain.extend([root] * (CHAIN_LIMIT - 1))
        self.assertTrue(self.holds(good))

    def test_chain_that_an_edge_invents(self) -> None:
        """L3: a certificate whose signatures may cost anything is refused before any path is looked for."""
        for key in (ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP521R1())):
            word = Word().signed()
            word.certificate_chain.append(self_signed(key).public_bytes(Encoding.DER))
            error = self.assertRaises(AttestationRefused, self.verify, word)
            self.assertIn("neither P-256 nor Ed25519", error.message)

    def test_every_bit(self) -> None:
        """Any one bit flipped in statement or signature is refused."""
        good = Word().signed()
        for name in ("statement", "signature"):
            for flipped in bit_flips(getattr(good, name)):
                word = Word().signed()
                word.CopyFrom(good)
                setattr(word, name, flipped)
                self.assertFalse(self.holds(word))

    def test_every_bit_of_the_certificate(self) -> None:
        """Any one bit flipped in what the authority signed is a typed refusal, whatever the parser makes of it.

        The authority's signature is outside of that: X.509 lets it say how many of its last bits do not count, and with
        the right ones zero some of those counts verify. It is the same certificate then.
        """
        good = Word().signed()
        der = good.certificate_chain[0]
        signed = NODE.certificate.tbs_certificate_bytes
        refused = 0
        for flipped in bit_flips(der):
            word = runtime_pb2.NodeKeyAttestation(
                certificate_chain=[flipped], statement=good.statement, signature=good.signature
            )
            if self.holds(word):
                self.assertEqual(x509.load_der_x509_certificate(flipped).tbs_certificate_bytes, signed)
            else:
                refused += 1
        self.assertGreaterEqual(refused, 8 * len(der) - 7)

    def test_unknown_fields(self) -> None:
        """P35: a signed statement with more in it than is known is refused."""
        good = Word().signed()
        for more in (number_field(9, 1), number_field(5, EXPIRES_MS), bytes_field(2, b"edge-1")):
            statement = good.statement + more
            word = runtime_pb2.NodeKeyAttestation(
                certificate_chain=good.certificate_chain,
                statement=statement,
                signature=NODE.key.sign(DOMAIN + statement, ec.ECDSA(SHA256())),
            )
            self.assertFalse(self.holds(word))

    def test_domain(self) -> None:
        """One domain string per kind: a signature by the same key over anything else is none."""
        good = Word().signed()
        for message in (good.statement, b"iop/node-key/v2\0" + good.statement, b"iop/lease/v1\0" + good.statement):
            good.signature = NODE.key.sign(message, ec.ECDSA(SHA256()))
            self.assertFalse(self.holds(good))

    def test_too_long(self) -> None:
        """What is longer than any attestation is not even hashed."""
        for name, length in (("statement", 1025), ("signature", 129)):
            word = Word().signed()
            setattr(word, name, bytes(length))
            self.assertIn("too long", self.assertRaises(AttestationRefused, self.verify, word).message)


class TimeTests(VerifierCase):
    """Until when a word counts."""

    def test_expiry(self) -> None:
        """It counts until just before it expires, asked for the first time or again."""
        for word in (Word().signed(), Word().signed()):
            for now_ms in (EXPIRES_MS - 1, EXPIRES_MS):
                self.assertEqual(self.holds(word, now_ms), now_ms < EXPIRES_MS)
            self.assertFalse(self.holds(word, EXPIRES_MS + 60_000))

    def test_longest(self) -> None:
        """Longer than key life, lease cap and skew, seen by a clock within the configured skew, is refused."""
        for skew_ms, verifier in (
            (5_000, self.verifier),
            (30_000, AttestationVerifier([AUTHORITY.certificate], TRUST_DOMAIN, 30.0)),
        ):
            self.verifier = verifier
            self.assertTrue(self.holds(Word(expires_ms=NOW_MS + 905_000 + skew_ms).signed()))
            self.assertFalse(self.holds(Word(expires_ms=NOW_MS + 905_001 + skew_ms).signed()))

    def test_certificate_ends_first(self) -> None:
        """Nothing counts past the end of the certificate that signed it, remembered or not."""
        start, end = MOMENT - timedelta(days=1), MOMENT + timedelta(seconds=60)
        leaf = AUTHORITY.certify("node", [uri(OWN_URI)], [ExtendedKeyUsageOID.CLIENT_AUTH], start, end)
        word = Word(leaf=leaf).signed()
        self.assertEqual(self.verify(word), NOW_MS + 60_000)
        self.assertTrue(self.holds(word, NOW_MS + 59_999))
        self.assertFalse(self.holds(word, NOW_MS + 60_000))


class CacheTests(VerifierCase):
    """C42: verdicts are remembered in memory, bounded, and only as long as they hold."""

    def setUp(self) -> None:
        super().setUp()
        #: How often a certificate was read, once for each word that is judged.
        self.judged = 0
        read = x509.load_der_x509_certificate

        def counted(data: bytes) -> x509.Certificate:
            self.judged += 1
            return read(data)

        self.patch(x509, "load_der_x509_certificate", counted)

    def test_remembered(self) -> None:
        """The same word is verified once."""
        word = Word().signed()
        for now_ms in (NOW_MS, NOW_MS + 1, NOW_MS + 600_000):
            self.assertEqual(self.verify(word, now_ms=now_ms), EXPIRES_MS)
        self.assertEqual(self.judged, 1)

    def test_everything_counts(self) -> None:
        """A remembered verdict is only about exactly what was verified."""
        good = Word().signed()
        self.verify(good)
        changed = runtime_pb2.NodeKeyAttestation()
        changed.CopyFrom(good)
        changed.certificate_chain[0] = OTHER_NODE.certificate.public_bytes(Encoding.DER)
        self.assertFalse(self.holds(changed))
        shifted = runtime_pb2.NodeKeyAttestation(
            certificate_chain=good.certificate_chain,
            statement=good.statement + good.signature[:1],
            signature=good.signature[1:],
        )
        self.assertFalse(self.holds(shifted))
        self.assertRaises(AttestationRefused, self.verify, good, edge="edge-1n", node="ode-1")
        self.assertEqual(self.judged, 4)

    def test_refusals_are_not_remembered(self) -> None:
        """Somebody who sends nonsense fills nothing: what was remembered still is, the nonsense is judged again."""
        self.patch(attestation, "VERDICT_LIMIT", 1)
        good, wrong = Word().signed(), Word(edge="edge-2").signed()
        self.verify(good)
        for _ in range(2):
            self.assertFalse(self.holds(wrong))
        self.verify(good)
        self.assertEqual(self.judged, 3)

    def test_expired_is_forgotten(self) -> None:
        """What has expired is dropped when it is met."""
        word = Word().signed()
        self.verify(word)
        self.assertFalse(self.holds(word, EXPIRES_MS))
        self.verify(word)
        self.assertEqual(self.judged, 2)

    def test_bounded(self) -> None:
        """At the limit all are remembered; one past it, the one not used for longest goes first."""
        self.assertEqual(attestation.VERDICT_LIMIT, 1024)
        self.patch(attestation, "VERDICT_LIMIT", 3)
        words = [Word(expires_ms=EXPIRES_MS - number).signed() for number in range(4)]
        for word in (*words[:3], *words[:3]):
            self.verify(word)
        self.assertEqual(self.judged, 3)
        self.verify(words[0])
        self.verify(words[3])
        self.assertEqual(self.judged, 4)
        self.verify(words[0])
        self.assertEqual(self.judged, 4)
        self.verify(words[1])
        self.assertEqual(self.judged, 5)


def self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """An authority that is willing to certify any key."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "willing authority")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(MOMENT - timedelta(days=1))
        .not_valid_after(MOMENT + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )


def issued(
    authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """A Node's certificate for ``key``."""
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(2)
        .not_valid_before(MOMENT - timedelta(days=1))
        .not_valid_after(MOMENT + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([uri(OWN_URI)]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(authority_key, SHA256())
    )
