"""A lease: a secret that one Node may open, for one binding, for about a minute (L5 to L7, C21, C43).

- core: the bytes of ``LeaseStatement`` as sent;
- box: sealed box, to the recipient key, of SHA-256(core) ‖ u32be length ‖ secret ‖ zeros, secret and zeros together
  being the smallest of five sizes that fits;
- signature: Ed25519 over ``iop/lease/v1\\0`` ‖ u32be length(core) ‖ core ‖ SHA-256(box).

The hash inside the box means that who stole the issuer key alone cannot put a box under another statement.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nacl.bindings import crypto_box_seal, crypto_box_seal_open, crypto_box_SEALBYTES
from nacl.exceptions import CryptoError

from iop.crypto.fields import length_prefixed
from iop.crypto.node_keys import check_recipient_key
from iop.errors import CannotOpen, MalformedFrame, MalformedInput
from iop.secret import Secret
from iop.units import LEASE_TTL_CAP_SECONDS
from iop.wire import runtime_pb2
from iop.wire.convert import binding_from_wire, binding_to_wire
from iop.wire.strict import parse_strict

if TYPE_CHECKING:
    from collections.abc import Callable

    from iop.crypto.issuer import Issuer, PinnedIssuers
    from iop.records import Binding

DOMAIN: Final = b"iop/lease/v1\0"
#: What secret and zeros together may measure, so that a box's length tells little about the secret's.
PADDED_SIZES: Final = (256, 1024, 4 * 1024, 16 * 1024, 64 * 1024)
STATEMENT_LIMIT: Final = 4 * 1024
_HASH_BYTES: Final = 32
_SECRET_START: Final = _HASH_BYTES + 4
_LONGEST_MS: Final = round(LEASE_TTL_CAP_SECONDS * 1000)


@dataclass(frozen=True, slots=True)
class LeaseStatement:
    """What the issuer says about a lease; the issuer's own key id is added when it is sealed."""

    lease_id: str
    deployment_id: str
    trust_domain: str
    edge: str
    binding: Binding
    token_id: str
    #: Unix milliseconds; valid from ``not_before_ms`` until just before ``expires_ms``.
    not_before_ms: int
    expires_ms: int
    recipient_public_key: bytes


@dataclass(frozen=True, slots=True, eq=False)
class OpenedLease:
    """A lease as the Node that it was sealed to has it; ``secret`` is the caller's to dispose of."""

    secret: Secret
    statement: LeaseStatement


def seal_lease(issuer: Issuer, statement: LeaseStatement, secret: Secret) -> runtime_pb2.SealedLease:
    """Seal ``secret`` to the statement's recipient key and sign both. An empty secret is sealed like any other.

    :raises AttestationRefused: if the recipient key is one that nobody may seal to.
    :raises MalformedInput: if the secret is longer than 64 KiB.
    """
    check_recipient_key(statement.recipient_public_key)
    core = runtime_pb2.LeaseStatement(
        lease_id=statement.lease_id,
        issuer_key_id=issuer.key_id,
        deployment_id=statement.deployment_id,
        trust_domain=statement.trust_domain,
        edge=statement.edge,
        binding=binding_to_wire(statement.binding),
        token_id=statement.token_id,
        not_before_ms=statement.not_before_ms,
        expires_ms=statement.expires_ms,
        recipient_public_key=statement.recipient_public_key,
    ).SerializeToString(deterministic=True)
    length = len(secret)
    with Secret(bytearray(_SECRET_START + _padded_size(length))) as content:
        plain = content.reveal()
        plain[:_HASH_BYTES] = hashlib.sha256(core).digest()
        plain[_HASH_BYTES:_SECRET_START] = length.to_bytes(4, "big")
        plain[_SECRET_START : _SECRET_START + length] = secret.reveal()
        box = crypto_box_seal(bytes(plain), statement.recipient_public_key)
    return runtime_pb2.SealedLease(statement=core, box=box, signature=issuer.sign(_signed(core, box)))


def open_lease(
    pinned: PinnedIssuers,
    sealed: runtime_pb2.SealedLease,
    *,
    now_ms: int,
    skew_ms: int,
    find_private_key: Callable[[bytes], Secret | None],
    deployment_id: str,
    trust_domain: str,
    edge: str,
    node: str,
    binding: Binding,
    token_id: str,
) -> OpenedLease:
    """Verify everything about a lease, then open it (R2, P4, P5, P12).

    :param now_ms: this Node's wall time; a lease may begin up to ``skew_ms`` later, and ends exactly when it says.
    :param find_private_key: the private half of a public key that this process holds, or None.
    :param edge: name in the certificate of the Edge that sent the lease.
    :param node: this Node's own name.
    :param binding: what the Edge says that the lease is for, with ``token_id``.
    :raises CannotOpen: for every reason, the same each time.
    """
    core = sealed.statement
    key_id = pinned.signer(_signed(core, sealed.box), sealed.signature) if len(core) <= STATEMENT_LIMIT else None
    if key_id is None:
        raise CannotOpen
    try:
        wire = parse_strict(runtime_pb2.LeaseStatement, core)
        statement = LeaseStatement(
            wire.lease_id,
            wire.deployment_id,
            wire.trust_domain,
            wire.edge,
            binding_from_wire(wire.binding),
            wire.token_id,
            wire.not_before_ms,
            wire.expires_ms,
            wire.recipient_public_key,
        )
    except MalformedFrame:
        raise CannotOpen from None
    private_key = find_private_key(statement.recipient_public_key)
    if (
        private_key is None
        or wire.issuer_key_id != key_id
        or statement.deployment_id != deployment_id
        or statement.trust_domain != trust_domain
        or statement.edge != edge
        or statement.binding != binding
        or statement.binding.node != node
        or statement.token_id != token_id
        or not statement.not_before_ms - skew_ms <= now_ms < statement.expires_ms
        or statement.expires_ms - statement.not_before_ms > _LONGEST_MS
    ):
        raise CannotOpen
    return OpenedLease(_open_box(sealed.box, core, statement.recipient_public_key, private_key), statement)


def _signed(core: bytes, box: bytes) -> bytes:
    return DOMAIN + length_prefixed(core) + hashlib.sha256(box).digest()


def _padded_size(length: int) -> int:
    for size in PADDED_SIZES:
        if length <= size:
            return size
    raise MalformedInput(f"a secret of more than {PADDED_SIZES[-1]} bytes does not fit into a lease")


def _open_box(box: bytes, core: bytes, public_key: bytes, private_key: Secret) -> Secret:
    padded_size = len(box) - crypto_box_SEALBYTES - _SECRET_START
    if padded_size not in PADDED_SIZES:
        raise CannotOpen
    try:
        content = Secret(crypto_box_seal_open(box, public_key, bytes(private_key.reveal())))
    except CryptoError:
        raise CannotOpen from None
    with content:
        plain = content.reveal()
        end = _SECRET_START + int.from_bytes(plain[_HASH_BYTES:_SECRET_START], "big")
        if (
            not hmac.compare_digest(plain[:_HASH_BYTES], hashlib.sha256(core).digest())
            or end > len(plain)
            or _padded_size(end - _SECRET_START) != padded_size
            or any(plain[end:])
        ):
            raise CannotOpen
        return Secret(plain[_SECRET_START:end])
