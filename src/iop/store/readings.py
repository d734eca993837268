"""What both stores tell of the principals whom a reading is about, and for how long they know what changed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from iop.records import PrincipalView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iop.records import RouteEntry, TokenEntry

#: Generations whose change is known; who asks for what came after an older one is told everything.
CHANGES_KEPT: Final = 10_000


def forgotten(generation: int) -> int:
    """The newest generation whose change is no longer kept once ``generation`` is there."""
    return generation - CHANGES_KEPT


def views(
    principals: Iterable[str],
    edges: Iterable[tuple[str, str]],
    tokens: Iterable[TokenEntry],
    routes: Iterable[RouteEntry],
) -> tuple[PrincipalView, ...]:
    """One complete view for each of ``principals``, in their order, whose entries keep theirs.

    :param edges: principal and name of each Edge that one is limited to.
    """
    limits: dict[str, set[str]] = defaultdict(set)
    for principal, edge in edges:
        limits[principal].add(edge)
    tokens_of: dict[str, list[TokenEntry]] = defaultdict(list)
    for token in tokens:
        tokens_of[token.principal].append(token)
    routes_of: dict[str, list[RouteEntry]] = defaultdict(list)
    for route in routes:
        routes_of[route.principal].append(route)
    return tuple(
        PrincipalView(
            principal,
            frozenset(limits.get(principal, ())),
            tuple(tokens_of.get(principal, ())),
            tuple(routes_of.get(principal, ())),
        )
        for principal in principals
    )
