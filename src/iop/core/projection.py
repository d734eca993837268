"""What an Edge may know, as one immutable value, and the digest that names its content (rule E9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Final, TypeVar

from iop.errors import ProjectionRefused
from iop.records import ProjectionSnapshot, RouteEntry, TokenEntry

_DOMAIN: Final = b"iop/projection-digest/v1\0"
_BUCKETS: Final = 256

K = TypeVar("K")
V = TypeVar("V")


def projection_digest(tokens: Iterable[TokenEntry], routes: Iterable[RouteEntry]) -> bytes:
    """The 32-byte digest of a projection's content, whatever order its entries come in (E9).

    Every field of an entry counts: strings as UTF-8, integers as eight bytes big-endian, each behind its own length.
    """
    outer = sha256(_DOMAIN)
    for entries in (
        ((entry.token_id, _encode_token(entry)) for entry in tokens),
        ((entry.route, _encode_route(entry)) for entry in routes),
    ):
        for bucket in _bucket_digests(entries):
            outer.update(bucket)
    return outer.digest()


@dataclass(frozen=True, slots=True)
class Projection:
    """One generation of what an Edge may know. An attempt pins one and resolves everything in it (C18)."""

    generation: int
    digest: bytes = field(repr=False)
    _tokens: Mapping[bytes, TokenEntry] = field(repr=False)
    _tokens_by_id: Mapping[str, TokenEntry] = field(repr=False)
    _routes_by_id: Mapping[str, RouteEntry] = field(repr=False)
    _routes: Mapping[str, Mapping[str, RouteEntry]] = field(repr=False)

    @classmethod
    def build(cls, snapshot: ProjectionSnapshot) -> Projection:
        """Index a snapshot and compute its digest.

        :raises ProjectionRefused: ``malformed_projection`` if two entries claim one token id, one token digest, one
            route id, or one model of one principal.
        """
        routes: dict[str, dict[str, RouteEntry]] = {}
        for route in snapshot.routes:
            _claim(routes.setdefault(route.principal, {}), route.model, route)
        return cls(
            snapshot.generation,
            projection_digest(snapshot.tokens, snapshot.routes),
            _unique((token.digest, token) for token in snapshot.tokens),
            _unique((token.token_id, token) for token in snapshot.tokens),
            _unique((route.route, route) for route in snapshot.routes),
            MappingProxyType({principal: MappingProxyType(models) for principal, models in routes.items()}),
        )

    def token(self, digest: bytes) -> TokenEntry | None:
        """The token whose whole digest is ``digest``."""
        return self._tokens.get(digest)

    def token_by_id(self, token_id: str) -> TokenEntry | None:
        """The token of that id."""
        return self._tokens_by_id.get(token_id)

    def route(self, principal: str, model: str) -> RouteEntry | None:
        """The principal's own route for a model; another's is None like one that does not exist (P16)."""
        return self._routes.get(principal, {}).get(model)

    def route_by_id(self, route: str) -> RouteEntry | None:
        """The route of that id."""
        return self._routes_by_id.get(route)

    def routes_of(self, principal: str) -> Sequence[RouteEntry]:
        """The principal's routes, by model."""
        return [route for _, route in sorted(self._routes.get(principal, {}).items())]


def _unique(pairs: Iterable[tuple[K, V]]) -> Mapping[K, V]:
    index: dict[K, V] = {}
    for key, value in pairs:
        _claim(index, key, value)
    return MappingProxyType(index)


def _claim(index: dict[K, V], key: K, value: V) -> None:
    if key in index:
        raise ProjectionRefused("malformed_projection", "the projection holds two entries for one key")
    index[key] = value


def _bucket_digests(entries: Iterable[tuple[str, bytes]]) -> Iterable[bytes]:
    buckets: list[list[bytes]] = [[] for _ in range(_BUCKETS)]
    for key, encoded in entries:
        buckets[sha256(key.encode()).digest()[0]].append(encoded)
    return (sha256(b"".join(sorted(bucket))).digest() for bucket in buckets)


def _encode_token(entry: TokenEntry) -> bytes:
    return _encode(entry.token_id, entry.principal, entry.digest, entry.expires_ms)


def _encode_route(entry: RouteEntry) -> bytes:
    return _encode(
        entry.route,
        entry.principal,
        entry.slot,
        entry.profile,
        entry.target,
        entry.model,
        entry.upstream_model,
        entry.selector,
        entry.credential_revision,
        entry.route_revision,
    )


def _encode(*values: str | bytes | int) -> bytes:
    encoded = bytearray()
    for value in values:
        match value:
            case str():
                data = value.encode()
            case int():
                data = value.to_bytes(8, "big")
            case bytes():
                data = value
        encoded += len(data).to_bytes(4, "big") + data
    return bytes(encoded)
