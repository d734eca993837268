"""Resolving a request in one pinned projection, and the comparison that both Edge fences make (C18, L8, P12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from iop.core.projection import Projection
from iop.errors import FenceRefused, NoSuchModel, TokenRefused
from iop.records import BINDING_FIELDS, Binding, RouteEntry, TokenEntry

R = TypeVar("R", Binding, RouteEntry)


@dataclass(frozen=True, slots=True)
class Pinned:
    """What one attempt resolved, once and for its whole life."""

    projection: Projection
    token: TokenEntry
    route: RouteEntry


def authenticate(projection: Projection, digest: bytes, now_ms: int) -> TokenEntry:
    """The active token with that digest.

    :param digest: SHA-256 of the whole token, never something a caller sent as a digest (P20).
    :raises TokenRefused: if there is none or it has expired.
    """
    token = projection.token(digest)
    if token is None or _expired(token, now_ms):
        raise TokenRefused
    return token


def resolve(projection: Projection, digest: bytes, model: str, now_ms: int) -> Pinned:
    """Resolve token and model to a route, all in one projection.

    :raises TokenRefused: as :func:`authenticate`.
    :raises NoSuchModel: if the token's principal has no route of that model; another's is the same (P16).
    """
    token = authenticate(projection, digest, now_ms)
    route = projection.route(token.principal, model)
    if route is None:
        raise NoSuchModel
    return Pinned(projection, token, route)


def bind(route: RouteEntry, node: str, generation: int) -> Binding:
    """The nine fields of a lease for ``route`` on ``node`` (C17)."""
    return Binding(
        principal=route.principal,
        route=route.route,
        slot=route.slot,
        profile=route.profile,
        target=route.target,
        node=node,
        credential_revision=route.credential_revision,
        route_revision=route.route_revision,
        generation=generation,
    )


def fence(binding: Binding, token_id: str, node: str, pinned: Pinned, current: Projection, now_ms: int) -> None:
    """Hold a request back unless it is still what was authorised.

    The binding must equal the pinned projection and the admitted Node in every field, and the entries it came from must
    be unchanged in the current projection. An unrelated newer generation passes.

    :param binding: what the lease is, or will be, bound to.
    :param node: the Node that the pool granted.
    :param current: what the Edge holds at this moment.
    :raises FenceRefused: naming the fields that differ.
    """
    expected = bind(pinned.route, node, pinned.projection.generation)
    differing = _differing(BINDING_FIELDS, expected, binding)
    if (
        token_id != pinned.token.token_id
        or pinned.token.principal != pinned.route.principal
        or _expired(pinned.token, now_ms)
    ):
        differing.append("token")
    if current.generation < pinned.projection.generation:
        differing.append("generation")
    differing += changed(pinned, current)
    if differing:
        raise FenceRefused(tuple(dict.fromkeys(differing)))


def changed(pinned: Pinned, current: Projection) -> list[str]:
    """What of the entries of ``pinned`` is not the same in ``current``: ``token``, fields of the route or ``route``."""
    differing = [] if current.token_by_id(pinned.token.token_id) == pinned.token else ["token"]
    route = current.route_by_id(pinned.route.route)
    return differing + (["route"] if route is None else _differing(RouteEntry.__slots__, pinned.route, route))


def _differing(names: Iterable[str], one: R, other: R) -> list[str]:
    """Which fields differ; the whole is compared first, since both are nearly always the same."""
    return [] if one == other else [name for name in names if getattr(one, name) != getattr(other, name)]


def _expired(token: TokenEntry, now_ms: int) -> bool:
    return token.expires_ms != 0 and now_ms >= token.expires_ms
