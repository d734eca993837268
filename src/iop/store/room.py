"""How much of a projection there is for everybody, and how much of it for one principal (docs/limits.md).

Every Edge keeps a projection in memory, so what no longer fits would keep every Edge from enrolling. The store refuses
it when it is asked to keep it, and before that it refuses one principal what would leave too little for the others.
"""

from __future__ import annotations

from typing import Final

from iop.errors import QuotaReached
from iop.units import PROJECTION_BYTES

#: Bytes of the routes of one principal.
PRINCIPAL_BYTES: Final = 128 * 1024
#: Edges that one principal is limited to.
PRINCIPAL_EDGES: Final = 64
#: Slots of one principal, in whatever state.
PRINCIPAL_SLOTS: Final = 256
#: More than tags, lengths and numbers of an entry take on the wire, a token's digest included.
ROUTE_OVERHEAD: Final = 64
TOKEN_OVERHEAD: Final = 64


def route_bytes(*texts: str) -> int:
    """What a route takes at most; ``texts`` are all its text fields."""
    return ROUTE_OVERHEAD + sum(len(text.encode()) for text in texts)


def token_bytes(token_id: str, principal: str) -> int:
    """What a token takes at most."""
    return TOKEN_OVERHEAD + len(token_id) + len(principal)


def check_room(everything: int, own: int) -> None:
    """:raises QuotaReached: if the entries of all, or the routes of one principal, take more bytes than they may."""
    if own > PRINCIPAL_BYTES:
        raise QuotaReached(
            f"the routes of one principal take at most {PRINCIPAL_BYTES // 1024} KiB",
            hint="shorten model names and selectors, or use fewer routes",
        )
    if everything > PROJECTION_BYTES:
        raise QuotaReached(
            "what Edges have to know of all principals together is full",
            hint="an operator can remove principals that are not used, or set up another deployment",
        )


def check_edges(count: int) -> None:
    """:raises QuotaReached: if ``count`` Edges are more than one principal may be limited to."""
    if count > PRINCIPAL_EDGES:
        raise QuotaReached(
            f"a principal is limited to at most {PRINCIPAL_EDGES} Edges",
            hint="name fewer, or let every Edge know of it: iop principal limit NAME --everywhere",
        )


def check_slots(count: int) -> None:
    """:raises QuotaReached: if ``count`` slots are more than one principal may have."""
    if count > PRINCIPAL_SLOTS:
        raise QuotaReached(f"a principal has at most {PRINCIPAL_SLOTS} slots", hint="use one of those that are there")
