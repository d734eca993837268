"""Wire messages <-> the values of :mod:`iop.records`.

Whatever comes from a wire is checked for shape here, once: ids and names are there and bounded, digests have their
length, counters count. What it means is for others to judge. Anything else is :class:`~iop.errors.MalformedFrame`.
"""

from __future__ import annotations

from typing import Final

from iop.errors import MalformedFrame
from iop.records import Binding, ProjectionDelta, ProjectionSnapshot, RouteEntry, TokenEntry
from iop.units import MODEL_LIMIT, SELECTOR_LIMIT, is_name
from iop.wire import control_pb2, runtime_pb2

DIGEST_BYTES: Final = 32
ID_LIMIT: Final = 128
#: What the durable stores can count to.
COUNT_LIMIT: Final = 2**63 - 1


def binding_to_wire(binding: Binding) -> runtime_pb2.Binding:
    """The nine fields as they travel (C17)."""
    return runtime_pb2.Binding(
        principal=binding.principal,
        route=binding.route,
        slot=binding.slot,
        profile=binding.profile,
        target=binding.target,
        node=binding.node,
        credential_revision=binding.credential_revision,
        route_revision=binding.route_revision,
        generation=binding.generation,
    )


def binding_from_wire(message: runtime_pb2.Binding) -> Binding:
    """The nine fields, every one present (C17)."""
    return Binding(
        principal=_text("principal", message.principal, ID_LIMIT),
        route=_text("route", message.route, ID_LIMIT),
        slot=_text("slot", message.slot, ID_LIMIT),
        profile=_name("profile", message.profile),
        target=_name("target", message.target),
        node=_name("node", message.node),
        credential_revision=_count("credential_revision", message.credential_revision),
        route_revision=_count("route_revision", message.route_revision),
        generation=_count("generation", message.generation),
    )


def token_to_wire(token: TokenEntry) -> control_pb2.ProjectedToken:
    """A token's verifier and safe references (C39)."""
    return control_pb2.ProjectedToken(
        token_id=token.token_id, principal=token.principal, digest=token.digest, expires_ms=token.expires_ms
    )


def token_from_wire(message: control_pb2.ProjectedToken) -> TokenEntry:
    """A token's verifier and safe references (C39)."""
    if message.expires_ms < 0:
        raise MalformedFrame("expires_ms lies before every clock")
    return TokenEntry(
        token_id=_text("token_id", message.token_id, ID_LIMIT),
        principal=_text("principal", message.principal, ID_LIMIT),
        digest=_digest(message.digest),
        expires_ms=message.expires_ms,
    )


def route_to_wire(route: RouteEntry) -> control_pb2.ProjectedRoute:
    """The closed list of a route's safe fields (C40)."""
    return control_pb2.ProjectedRoute(
        route=route.route,
        principal=route.principal,
        slot=route.slot,
        profile=route.profile,
        target=route.target,
        model=route.model,
        upstream_model=route.upstream_model,
        selector=route.selector,
        credential_revision=route.credential_revision,
        route_revision=route.route_revision,
    )


def route_from_wire(message: control_pb2.ProjectedRoute) -> RouteEntry:
    """The closed list of a route's safe fields (C40); only the selector may be empty."""
    return RouteEntry(
        route=_text("route", message.route, ID_LIMIT),
        principal=_text("principal", message.principal, ID_LIMIT),
        slot=_text("slot", message.slot, ID_LIMIT),
        profile=_name("profile", message.profile),
        target=_name("target", message.target),
        model=_text("model", message.model, MODEL_LIMIT),
        upstream_model=_text("upstream_model", message.upstream_model, MODEL_LIMIT),
        selector=_text("selector", message.selector, SELECTOR_LIMIT) if message.selector else "",
        credential_revision=_count("credential_revision", message.credential_revision),
        route_revision=_count("route_revision", message.route_revision),
    )


def projection_to_wire(snapshot: ProjectionSnapshot, digest: bytes) -> control_pb2.PrincipalProjection:
    """A projection with the digest of rule E9."""
    return control_pb2.PrincipalProjection(
        generation=snapshot.generation,
        digest=digest,
        tokens=map(token_to_wire, snapshot.tokens),
        routes=map(route_to_wire, snapshot.routes),
    )


def projection_from_wire(message: control_pb2.PrincipalProjection) -> tuple[ProjectionSnapshot, bytes]:
    """A projection and the digest it claims; recomputing it is the receiver's part (E5)."""
    snapshot = ProjectionSnapshot(
        generation=_count("generation", message.generation),
        tokens=tuple(map(token_from_wire, message.tokens)),
        routes=tuple(map(route_from_wire, message.routes)),
    )
    return snapshot, _digest(message.digest)


def claim_from_wire(message: control_pb2.PrincipalProjection | control_pb2.ProjectionDelta) -> tuple[int, bytes]:
    """The generation and the digest that a projection, or the one that a delta leads to, claims to have."""
    return _count("generation", message.generation), _digest(message.digest)


def delta_to_wire(delta: ProjectionDelta, digest: bytes) -> control_pb2.ProjectionDelta:
    """A delta with the digest of the projection that it leads to (E11)."""
    return control_pb2.ProjectionDelta(
        base_generation=delta.base_generation,
        generation=delta.generation,
        digest=digest,
        removed_tokens=delta.removed_tokens,
        removed_routes=delta.removed_routes,
        tokens=map(token_to_wire, delta.tokens),
        routes=map(route_to_wire, delta.routes),
    )


def delta_from_wire(message: control_pb2.ProjectionDelta) -> ProjectionDelta:
    """A delta; whether it fits is for its receiver to see (E11)."""
    return ProjectionDelta(
        base_generation=_count("base_generation", message.base_generation),
        generation=_count("generation", message.generation),
        removed_tokens=tuple(_text("token_id", token_id, ID_LIMIT) for token_id in message.removed_tokens),
        removed_routes=tuple(_text("route", route, ID_LIMIT) for route in message.removed_routes),
        tokens=tuple(map(token_from_wire, message.tokens)),
        routes=tuple(map(route_from_wire, message.routes)),
    )


def _text(field: str, value: str, limit: int) -> str:
    if not 0 < len(value) <= limit or not value.isprintable():
        raise MalformedFrame(f"{field} is empty, longer than {limit} characters, or not printable")
    return value


def _name(field: str, value: str) -> str:
    if not is_name(value):
        raise MalformedFrame(f"{field} is not a name")
    return value


def _digest(value: bytes) -> bytes:
    if len(value) != DIGEST_BYTES:
        raise MalformedFrame(f"a digest has {DIGEST_BYTES} bytes")
    return value


def _count(field: str, value: int) -> int:
    if not 0 < value <= COUNT_LIMIT:
        raise MalformedFrame(f"{field} does not count from 1")
    return value
