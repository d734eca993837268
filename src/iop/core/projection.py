"""What an Edge may know, as one immutable value, and the digest that names its content (rule E9).

A projection is made by a :class:`Draft`: from nothing, or from an earlier one by what changed. Either way the parts
that a change does not touch are shared, and only the buckets that it touches are hashed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeVar

from iop.core.shards import PARTS, Editing, Shards, part_of
from iop.errors import ProjectionRefused
from iop.records import ProjectionDelta, ProjectionSnapshot, RouteEntry, TokenEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

_DOMAIN: Final = b"iop/projection-digest/v1\0"
_NOTHING: Final = (sha256(b"").digest(),) * PARTS
#: Buckets are numbered through: those of tokens, then those of routes.
BUCKETS: Final = 2 * PARTS

E = TypeVar("E", TokenEntry, RouteEntry)


class Projection:
    """One generation of what an Edge may know. An attempt pins one and resolves everything in it (C18).

    :ivar generation: of the store.
    :ivar digest: the 32 bytes that name the content (E9).
    """

    __slots__ = ("_by_digest", "_by_model", "_hashes", "_routes", "_tokens", "digest", "generation")

    def __init__(
        self,
        generation: int,
        tokens: Shards[str, TokenEntry],
        by_digest: Shards[bytes, TokenEntry],
        routes: Shards[str, RouteEntry],
        by_model: Shards[tuple[str, str], RouteEntry],
        hashes: tuple[bytes, ...],
    ) -> None:
        self.generation = generation
        self.digest = sha256(_DOMAIN + b"".join(hashes)).digest()
        self._tokens = tokens
        self._by_digest = by_digest
        self._routes = routes
        self._by_model = by_model
        self._hashes = hashes

    @classmethod
    def empty(cls, generation: int) -> Projection:
        """A projection of nothing."""
        return cls(
            generation,
            Shards(part_of),
            Shards(lambda digest: int.from_bytes(digest[:1], "big")),
            Shards(part_of),
            Shards(lambda key: part_of(key[0])),
            _NOTHING * 2,
        )

    @classmethod
    def build(cls, snapshot: ProjectionSnapshot) -> Projection:
        """Make one of a snapshot, at once.

        :raises ProjectionRefused: as :meth:`Draft.add`.
        """
        draft = Draft(cls.empty(0))
        draft.add(snapshot.tokens, snapshot.routes)
        return draft.finish(snapshot.generation)

    def __repr__(self) -> str:
        """Without digest and content."""
        return f"<Projection {self.generation}: {len(self._tokens)} tokens, {len(self._routes)} routes>"

    def token(self, digest: bytes) -> TokenEntry | None:
        """The token whose whole digest is ``digest``, 32 bytes."""
        return self._by_digest.get(digest)

    def token_by_id(self, token_id: str) -> TokenEntry | None:
        """The token of that id."""
        return self._tokens.get(token_id)

    def route(self, principal: str, model: str) -> RouteEntry | None:
        """The principal's own route for a model; another's is None like one that does not exist (P16)."""
        return self._by_model.get((principal, model))

    def route_by_id(self, route: str) -> RouteEntry | None:
        """The route of that id."""
        return self._routes.get(route)

    def routes_of(self, principal: str) -> Sequence[RouteEntry]:
        """The principal's routes, by model."""
        part = self._by_model.parts[part_of(principal)]
        return [route for (owner, _), route in sorted(part.items()) if owner == principal]

    def bucket(self, number: int) -> tuple[Iterable[TokenEntry], Iterable[RouteEntry]]:
        """The entries of one of the :data:`BUCKETS`; of a bucket of tokens no routes, and the other way round."""
        if number < PARTS:
            return self._tokens.parts[number].values(), ()
        return (), self._routes.parts[number - PARTS].values()

    def at(self, generation: int) -> Projection:
        """The same content under another generation."""
        return Projection(generation, self._tokens, self._by_digest, self._routes, self._by_model, self._hashes)

    def changed(self, delta: ProjectionDelta) -> Projection:
        """What ``delta`` makes of this one, at once.

        :raises ProjectionRefused: as :meth:`Draft.apply`.
        """
        draft = Draft(self)
        draft.apply(delta)
        return draft.finish(delta.generation)

    def delta_from(self, base: Projection) -> ProjectionDelta:
        """What makes this one of ``base``: exactly the entries that differ. Parts that both share cost nothing."""
        removed_tokens, tokens = _difference(base._tokens, self._tokens)
        removed_routes, routes = _difference(base._routes, self._routes)
        return ProjectionDelta(base.generation, self.generation, removed_tokens, removed_routes, tokens, routes)


class Draft:
    """A projection in the making.

    A large one is made in slices: :meth:`take` and :meth:`add` some entries at a time, then :meth:`hashing` step by
    step.

    :param base: what it is made from.
    """

    def __init__(self, base: Projection) -> None:
        self._tokens = Editing(base._tokens)
        self._by_digest = Editing(base._by_digest)
        self._routes = Editing(base._routes)
        self._by_model = Editing(base._by_model)
        self._hashes = list(base._hashes)
        #: Whether :meth:`hashing` was gone through since the last change.
        self._hashed = True

    def add(self, tokens: Iterable[TokenEntry], routes: Iterable[RouteEntry]) -> None:
        """Put entries where none are.

        :raises ProjectionRefused: ``malformed_projection`` if two entries claim one token id, one token digest, one
            route id, or one model of one principal.
        """
        self._hashed = False
        for token in tokens:
            _claimed(self._tokens.add(token.token_id, token))
            _claimed(self._by_digest.add(token.digest, token))
        for route in routes:
            _claimed(self._routes.add(route.route, route))
            _claimed(self._by_model.add((route.principal, route.model), route))

    def apply(self, delta: ProjectionDelta) -> None:
        """:meth:`take`, then :meth:`add`: so entries may change places.

        :raises ProjectionRefused: as they do.
        """
        self.take(delta)
        self.add(delta.tokens, delta.routes)

    def take(self, delta: ProjectionDelta) -> None:
        """Remove what is gone or changed.

        :raises ProjectionRefused: ``malformed_projection`` if what is gone was not there.
        """
        self._hashed = False
        for token_id in delta.removed_tokens:
            _claimed(self._take_token(token_id))
        for route in delta.removed_routes:
            _claimed(self._take_route(route))
        for token in delta.tokens:
            self._take_token(token.token_id)
        for entry in delta.routes:
            self._take_route(entry.route)

    def hashing(self) -> Iterator[None]:
        """Hash the buckets that were touched, one a step."""
        for number, token_part in self._tokens.touched.items():
            self._hashes[number] = _bucket_digest(token_part, _encode_token)
            yield
        for number, route_part in self._routes.touched.items():
            self._hashes[PARTS + number] = _bucket_digest(route_part, _encode_route)
            yield
        self._hashed = True

    def finish(self, generation: int) -> Projection:
        """The projection; what is not hashed yet is hashed now. This object must not be used afterwards."""
        if not self._hashed:
            for _ in self.hashing():
                pass
        return Projection(
            generation,
            self._tokens.finish(),
            self._by_digest.finish(),
            self._routes.finish(),
            self._by_model.finish(),
            tuple(self._hashes),
        )

    def _take_token(self, token_id: str) -> bool:
        token = self._tokens.take(token_id)
        if token is not None:
            self._by_digest.take(token.digest)
        return token is not None

    def _take_route(self, route: str) -> bool:
        entry = self._routes.take(route)
        if entry is not None:
            self._by_model.take((entry.principal, entry.model))
        return entry is not None


def projection_digest(tokens: Iterable[TokenEntry], routes: Iterable[RouteEntry]) -> bytes:
    """The 32-byte digest of a projection's content, whatever order its entries come in (E9).

    Every field of an entry counts: strings as UTF-8, integers as eight bytes big-endian, each behind its own length.
    """
    return Projection.build(ProjectionSnapshot(0, tuple(tokens), tuple(routes))).digest


def _claimed(done: bool) -> None:
    if not done:
        raise ProjectionRefused(
            "malformed_projection", "the projection names one thing twice, or one that is not there"
        )


def _difference(base: Shards[str, E], new: Shards[str, E]) -> tuple[tuple[str, ...], tuple[E, ...]]:
    """Ids that are gone, and entries that are new or changed."""
    removed: list[str] = []
    put: list[E] = []
    for before, after in zip(base.parts, new.parts, strict=True):
        if before is not after:
            removed += before.keys() - after.keys()
            put += (entry for key, entry in after.items() if before.get(key) != entry)
    return tuple(sorted(removed)), tuple(put)


def _bucket_digest(part: Mapping[str, E], encode: Callable[[E], bytes]) -> bytes:
    return sha256(b"".join(sorted(map(encode, part.values())))).digest()


def _encode_token(entry: TokenEntry) -> bytes:
    return _encode(entry.token_id.encode(), entry.principal.encode(), entry.digest, _number(entry.expires_ms))


def _encode_route(entry: RouteEntry) -> bytes:
    return _encode(
        entry.route.encode(),
        entry.principal.encode(),
        entry.slot.encode(),
        entry.profile.encode(),
        entry.target.encode(),
        entry.model.encode(),
        entry.upstream_model.encode(),
        entry.selector.encode(),
        _number(entry.credential_revision),
        _number(entry.route_revision),
    )


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _encode(*fields: bytes) -> bytes:
    return b"".join([len(data).to_bytes(4, "big") + data for data in fields])
