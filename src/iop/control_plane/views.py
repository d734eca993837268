"""What each Edge may know, as projections that follow the store change by change (E4, E11, E14)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from iop.core.projection import Draft, Projection
from iop.records import ProjectionDelta

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence, Set

    from iop.records import PrincipalView, Reading, RouteEntry, TokenEntry

#: A principal before and after; None if nothing was known of it.
_Change: TypeAlias = "tuple[PrincipalView | None, PrincipalView]"


class Views:
    """The store at one generation, as Edges may know it.

    There is one projection of the principals that are not limited, for all Edges, and one more for each Edge that
    others are limited to. They share what they have in common.
    """

    def __init__(self) -> None:
        self._general = Projection.empty(0)
        self._own: dict[str, Projection] = {}
        self._principals: dict[str, PrincipalView] = {}
        #: By Edge: the principals that are limited to it, among others.
        self._limited: dict[str, set[str]] = {}

    @property
    def generation(self) -> int:
        """Of the reading that was followed last; 0 before the first."""
        return self._general.generation

    def of(self, edge: str) -> Projection:
        """What ``edge`` may know, if it was among those that the last reading was followed for."""
        return self._own.get(edge, self._general)

    def forget(self, edge: str) -> None:
        """Drop what is kept for ``edge`` alone."""
        self._own.pop(edge, None)

    def follow(self, reading: Reading, edges: Set[str]) -> Iterator[None]:
        """Become what ``reading`` says, in small steps; :meth:`of` answers what it did until the last one is done.

        If a step fails, this object must not follow another reading.

        :param reading: what changed since :attr:`generation`.
        :param edges: who will be asked for; it may change meanwhile.
        """
        changes: list[_Change] = []
        for read in reading.principals:
            before = self._principals.get(read.principal)
            after = read if before is None else _sharing(before, read)
            self._remember(before, after)
            changes.append((before, after))
            yield
        general = self._general
        if general.generation != reading.generation:
            general = yield from _changed(general, changes, None, reading.generation)
        own: dict[str, Projection] = {}
        for edge in edges & self._limited.keys():
            known = self._own.get(edge)
            if known is None:
                limited = [(None, self._principals[principal]) for principal in self._limited[edge]]
                own[edge] = yield from _changed(general, limited, edge, reading.generation)
            elif known.generation != reading.generation:
                own[edge] = yield from _changed(known, changes, edge, reading.generation)
            else:
                own[edge] = known
        self._general = general
        self._own = {edge: projection for edge, projection in own.items() if edge in edges}

    def _remember(self, before: PrincipalView | None, after: PrincipalView) -> None:
        if before is not None:
            for edge in before.edges:
                self._limited[edge].discard(before.principal)
                if not self._limited[edge]:
                    del self._limited[edge]
        for edge in after.edges:
            self._limited.setdefault(edge, set()).add(after.principal)
        self._principals[after.principal] = after


def _sharing(before: PrincipalView, read: PrincipalView) -> PrincipalView:
    """``read`` with the entries of ``before`` where they are equal: projections have those, so each is there once."""
    tokens, routes = {each: each for each in before.tokens}, {each: each for each in before.routes}
    return replace(
        read,
        tokens=tuple(tokens.get(each, each) for each in read.tokens),
        routes=tuple(routes.get(each, each) for each in read.routes),
    )


def _changed(
    base: Projection, changes: Iterable[_Change], edge: str | None, generation: int
) -> Generator[None, None, Projection]:
    """``base`` after ``changes``, as far as ``edge`` may know of them; for None, those of principals without limit."""
    draft = Draft(base)
    for before, after in changes:
        draft.apply(_difference(_visible(before, edge), _visible(after, edge)))
        yield
    yield from draft.hashing()
    return draft.finish(generation)


_Entries: TypeAlias = "tuple[Sequence[TokenEntry], Sequence[RouteEntry]]"


def _visible(view: PrincipalView | None, edge: str | None) -> _Entries:
    if view is None or (view.edges and edge not in view.edges):
        return (), ()
    return view.tokens, view.routes


def _difference(before: _Entries, after: _Entries) -> ProjectionDelta:
    """What makes the one of the other."""
    tokens, routes = {each.token_id: each for each in before[0]}, {each.route: each for each in before[1]}
    return ProjectionDelta(
        0,
        0,
        tuple(tokens.keys() - {each.token_id for each in after[0]}),
        tuple(routes.keys() - {each.route for each in after[1]}),
        tuple(each for each in after[0] if tokens.get(each.token_id) != each),
        tuple(each for each in after[1] if routes.get(each.route) != each),
    )
