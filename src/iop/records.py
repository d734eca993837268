"""The values that cross module seams: what the store keeps, what a projection holds, what a lease binds.

All are frozen. None holds plaintext; a field that could identify a token or open a door is kept out of ``repr``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class TokenKind(Enum):
    """What a token may be used for. A ``use`` token opens Edges, a ``manage`` token the credential HTTPS API."""

    USE = "use"
    MANAGE = "manage"


class SlotState(Enum):
    """Life of a slot; ``revoked`` is final."""

    ACTIVE = "active"
    DISABLED = "disabled"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Binding:
    """The nine exact fields a lease is bound to (C17)."""

    principal: str
    route: str
    slot: str
    profile: str
    target: str
    node: str
    credential_revision: int
    route_revision: int
    generation: int


BINDING_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Binding))


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """An active ``use`` token as an Edge knows it: the verifier digest and safe references (C39)."""

    token_id: str
    principal: str
    digest: bytes = field(repr=False)
    #: Unix milliseconds, or 0 when it does not expire.
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """An active route as an Edge knows it: the closed list of safe fields (C40)."""

    route: str
    principal: str
    slot: str
    profile: str
    target: str
    model: str
    upstream_model: str
    selector: str
    credential_revision: int
    route_revision: int


@dataclass(frozen=True, slots=True)
class ProjectionSnapshot:
    """One consistent reading of the store for one Edge (security.md: one snapshot, never mixed)."""

    generation: int
    tokens: tuple[TokenEntry, ...]
    routes: tuple[RouteEntry, ...]


@dataclass(frozen=True, slots=True)
class ProjectionDelta:
    """What makes the projection of ``generation`` of that of ``base_generation``; a changed entry is in it whole."""

    base_generation: int
    generation: int
    removed_tokens: tuple[str, ...]
    removed_routes: tuple[str, ...]
    tokens: tuple[TokenEntry, ...]
    routes: tuple[RouteEntry, ...]


@dataclass(frozen=True, slots=True)
class PrincipalView:
    """What Edges may know of one principal: nothing, if it is gone.

    :ivar edges: the Edges it is limited to; none means that every Edge may know of it (E14).
    """

    principal: str
    edges: frozenset[str]
    tokens: tuple[TokenEntry, ...]
    routes: tuple[RouteEntry, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One consistent reading of what Edges may know (security.md: one snapshot, never mixed).

    :ivar whole: whether it has every principal; otherwise those that changed since the generation that was asked for.
    """

    generation: int
    whole: bool
    principals: tuple[PrincipalView, ...]


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """An at-rest envelope: the secret under its own data key, and that data key under a keyring key."""

    key_id: str
    wrapped_key: bytes = field(repr=False)
    box: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PrincipalRecord:
    """Somebody who owns tokens, slots and routes.

    :ivar edges: the Edges it is limited to; none means that every Edge may know of it (E14).
    """

    principal: str
    name: str
    created_ms: int
    edges: frozenset[str]


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token about to be stored: its verifier and its proof, never the token (security.md, Tokens)."""

    token_id: str
    kind: TokenKind
    digest: bytes = field(repr=False)
    proof: bytes = field(repr=False)
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A stored token as its owner may see it."""

    token_id: str
    principal: str
    kind: TokenKind
    expires_ms: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """A slot without its secret. ``revision`` moves with every change, ``credential_revision`` with a new secret."""

    slot: str
    principal: str
    name: str
    profile: str
    target: str
    state: SlotState
    revision: int
    credential_revision: int
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class NewSlot:
    """A slot about to be stored, with its sealed secret of credential revision 1."""

    slot: str
    principal: str
    name: str
    profile: str
    target: str
    secret: SealedSecret


@dataclass(frozen=True, slots=True)
class RouteRecord:
    """A route: which of the principal's slots serves a model name, and how the upstream calls the model."""

    route: str
    principal: str
    model: str
    slot: str
    upstream_model: str
    selector: str
    revision: int
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class Committed(Generic[T]):
    """A durable mutation: what it made, the generation it raised to, and when it committed (the barrier's input)."""

    value: T
    generation: int
    committed_ms: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """How a mutation reached the Edges: three disjoint counts, and when even a cut-off Edge can act no more."""

    generation: int
    acknowledged: int
    cut_off: int
    unconfirmed: int
    effective_ms: int


@dataclass(frozen=True, slots=True)
class EdgeSession:
    """One connection of one Edge, as a row: what the barrier and a host-local command can see of it."""

    session: str
    edge: str
    ready: bool
    acknowledged: int
    unconfirmed: int
    opened_ms: int
    #: Unix milliseconds, or 0 while it lasts.
    ended_ms: int


@dataclass(frozen=True, slots=True)
class LeaseQuestion:
    """What an Edge asks a lease for; everything in it is compared with durable rows (C19, C41)."""

    request_id: str
    edge: str
    binding: Binding
    token_id: str
    token_proof: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """The durable re-read agreed and its audit row is committed; only now may the secret be opened."""

    secret: SealedSecret
    #: Wall time of the authorising read; validity counts from it (P42).
    read_ms: int


#: Why a Control Plane gives no lease: every reason that it says (L3, L4).
LEASE_REFUSALS: Final = frozenset(
    {
        "stale_generation",
        "binding_mismatch",
        "token_refused",
        "slot_refused",
        "node_denied",
        "edge_denied",
        "edge_not_allowed",
        "attestation_refused",
        "secret_unreadable",
        "store_busy",
        "store_unavailable",
    }
)


@dataclass(frozen=True, slots=True)
class LeaseRefusal:
    """The durable re-read did not agree. ``again``: a projection of ``generation`` may change that."""

    reason: str
    message: str
    again: bool
    generation: int


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One audited event; ``details`` holds ids and outcomes only (P26)."""

    sequence: int
    at_ms: int
    actor: str
    action: str
    subject: str
    outcome: str
    details: dict[str, str | int]
