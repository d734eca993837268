"""One lease, one attestation and the keys around them, as the tests of this folder begin from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nacl.bindings import crypto_box_keypair, crypto_sign_seed_keypair

from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.lease import LeaseStatement, OpenedLease, open_lease, seal_lease
from iop.records import Binding
from iop.secret import Secret
from iop.wire import runtime_pb2

NOW_MS = 1_800_000_000_000
TRUST_DOMAIN = "iop.test"
DEPLOYMENT = "0190a0b1-0000-7000-8000-000000000006"
CANARY = b"sk-canary-5c1f0e"

BINDING = Binding(
    principal="0190a0b1-0000-7000-8000-000000000001",
    route="0190a0b1-0000-7000-8000-000000000002",
    slot="0190a0b1-0000-7000-8000-000000000003",
    profile="openai",
    target="openai",
    node="node-1",
    credential_revision=7,
    route_revision=3,
    generation=300,
)


def issuer(number: int = 1) -> Issuer:
    """The same issuer for the same number."""
    return Issuer(Secret(bytes([number]) * 32))


def issuer_private_key(number: int = 1) -> bytes:
    """What a thief of that issuer's key has."""
    return crypto_sign_seed_keypair(bytes([number]) * 32)[1]


def bit_flips(data: bytes) -> Iterable[bytes]:
    """``data`` with each single bit changed."""
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)


@dataclass(frozen=True)
class Recipient:
    """A Node's key pair."""

    public_key: bytes
    private_key: Secret

    @classmethod
    def new(cls) -> Recipient:
        public_key, private_key = crypto_box_keypair()
        return cls(public_key, Secret(private_key))

    def find(self, public_key: bytes) -> Secret | None:
        """What a Node that holds just this key finds."""
        return self.private_key if public_key == self.public_key else None


@dataclass(frozen=True)
class Expectation:
    """What the Node knows from its configuration, its connection and the run's request."""

    deployment_id: str = DEPLOYMENT
    trust_domain: str = TRUST_DOMAIN
    edge: str = "edge-1"
    node: str = "node-1"
    binding: Binding = BINDING
    token_id: str = "0190a0b1-0000-7000-8000-000000000004"
    now_ms: int = NOW_MS
    skew_ms: int = 5_000
    pinned: PinnedIssuers = field(default_factory=lambda: PinnedIssuers([issuer().public_key]))

    def open(self, sealed: runtime_pb2.SealedLease, find: Callable[[bytes], Secret | None]) -> OpenedLease:
        """Open a lease as this Node would."""
        return open_lease(
            self.pinned,
            sealed,
            now_ms=self.now_ms,
            skew_ms=self.skew_ms,
            find_private_key=find,
            deployment_id=self.deployment_id,
            trust_domain=self.trust_domain,
            edge=self.edge,
            node=self.node,
            binding=self.binding,
            token_id=self.token_id,
        )


def lease_statement(recipient: Recipient) -> LeaseStatement:
    """The statement that :class:`Expectation` expects."""
    return LeaseStatement(
        lease_id="0190a0b1-0000-7000-8000-000000000005",
        deployment_id=DEPLOYMENT,
        trust_domain=TRUST_DOMAIN,
        edge="edge-1",
        binding=BINDING,
        token_id="0190a0b1-0000-7000-8000-000000000004",
        not_before_ms=NOW_MS,
        expires_ms=NOW_MS + 60_000,
        recipient_public_key=recipient.public_key,
    )


def sealed_lease(recipient: Recipient, secret: bytes = CANARY) -> runtime_pb2.SealedLease:
    """A lease by the first issuer that such a Node opens."""
    return seal_lease(issuer(), lease_statement(recipient), Secret(secret))
