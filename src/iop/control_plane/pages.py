"""Projections and their changes as they travel: in buckets, page by page, each page made once for all (E11, E12)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from iop.core.projection import BUCKETS
from iop.wire import control_pb2
from iop.wire.convert import delta_to_wire, route_to_wire, token_to_wire

if TYPE_CHECKING:
    from iop.core.projection import Projection

#: Bytes of entries that end a page, and of a change that still travels as one.
PAGE_BYTES: Final = 512 * 1024
#: How many are kept that were asked for last. Sessions that begin together ask for pages at about the same pace.
FIRST_PAGES: Final = 4
PAGES: Final = 32
CHANGES: Final = 32
#: Tag and length of an entry.
_ENTRY_OVERHEAD: Final = 4


class Pages:
    """The messages that many sessions are sent. They are shared: nobody may change them.

    :param page_bytes: bytes of entries that end a page, and of a change that still travels as one.
    """

    def __init__(self, page_bytes: int = PAGE_BYTES) -> None:
        self._page_bytes = page_bytes
        self.first = lru_cache(FIRST_PAGES)(self._first)
        self.page = lru_cache(PAGES)(self._page)
        self.change = lru_cache(CHANGES)(self._change)

    def clear(self) -> None:
        """Keep nothing that was made."""
        for kept in (self.first, self.page, self.change):
            kept.cache_clear()

    def _first(self, projection: Projection) -> control_pb2.PrincipalProjection:
        """The message that a whole projection begins with."""
        page = self.page(projection, 0)
        return control_pb2.PrincipalProjection(
            generation=projection.generation,
            digest=projection.digest,
            tokens=page.tokens,
            routes=page.routes,
            next_bucket=page.next_bucket,
        )

    def _page(self, projection: Projection, bucket: int) -> control_pb2.ProjectionPageResponse:
        """Whole buckets from ``bucket`` on."""
        page = control_pb2.ProjectionPageResponse(kept=True)
        size = 0
        while bucket < BUCKETS and size < self._page_bytes:
            tokens, routes = projection.bucket(bucket)
            for token in map(token_to_wire, tokens):
                size += token.ByteSize() + _ENTRY_OVERHEAD
                page.tokens.append(token)
            for route in map(route_to_wire, routes):
                size += route.ByteSize() + _ENTRY_OVERHEAD
                page.routes.append(route)
            bucket += 1
        page.next_bucket = bucket % BUCKETS
        return page

    def _change(self, base: Projection, projection: Projection) -> control_pb2.ProjectionDelta | None:
        """What makes ``projection`` of ``base``; None if it is too large to travel as one message."""
        change = delta_to_wire(projection.delta_from(base), projection.digest)
        return change if change.ByteSize() <= self._page_bytes else None
