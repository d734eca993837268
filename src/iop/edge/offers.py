"""What one connection offers: projections, whole or as deltas, taken one after the other (rules E11-E13)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.task import Cooperator, SchedulerStopped

from iop.core.held import Mark, Verdict
from iop.core.projection import BUCKETS, Draft, Projection
from iop.core.shards import PARTS, part_of
from iop.errors import (
    MalformedFrame,
    PeerDisconnected,
    ProjectionRefused,
    ProjectionSuperseded,
    ReceiptRefused,
    TooManyInFlight,
    UnexpectedMessage,
)
from iop.units import PROJECTION_BYTES
from iop.wire import control_pb2
from iop.wire.convert import claim_from_wire, delta_from_wire, route_from_wire, token_from_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iop.edge.projections import Projections
    from iop.interfaces import IClock, IPeer
    from iop.records import ProjectionDelta

#: Offers of one connection that wait for the one before them.
WAITING_LIMIT: Final = 8
#: How long the pages of one projection may take, and how long the newer one that replaces it.
TAKE_SECONDS: Final = 60.0
#: How long anybody else waits while a projection is taken apart, and entries that are looked at between two looks at
#: the clock.
SLICE_SECONDS: Final = 0.004
STEP_ENTRIES: Final = 64

Change: TypeAlias = control_pb2.PrincipalProjection | control_pb2.ProjectionDelta
_Page: TypeAlias = control_pb2.PrincipalProjection | control_pb2.ProjectionPageResponse


class Offers:
    """The projections that come over one connection, strictly in the order in which they came.

    An offer that breaks the wire, or breaks off, is the end of them all.

    :param peer: where the pages of a whole projection are asked for.
    """

    def __init__(self, projections: Projections, peer: IPeer, clock: IClock) -> None:
        self._projections = projections
        self._peer = peer
        self._clock = clock
        self._turns = DeferredLock()
        self._waiting = 0
        self._slices = Cooperator(self._slice, partial(clock.call_later, 0))

    def take(self, change: Change, receipt: control_pb2.ProjectionReceipt) -> Deferred[control_pb2.ProjectionOutcome]:
        """Take a projection, or refuse it; answers the word on it, as soon as that may be given.

        Later offers do not wait for that. One whose pages are not kept any more is answered with the word on the newer
        one that followed it (E12).

        Fails with :class:`~iop.errors.ProtocolViolation` if the offer or a page of it breaks the wire, with
        :class:`~iop.errors.FileRefused` if the record cannot be written, with :class:`~iop.errors.RequestTimedOut` or
        :class:`~iop.errors.PeerDisconnected` if the rest does not come. Nothing has changed then.

        :raises TooManyInFlight: if as many as allowed wait already (E13).
        """
        if self._waiting >= WAITING_LIMIT:
            raise TooManyInFlight(f"more than {WAITING_LIMIT} projections wait for the one before them")
        word: Deferred[control_pb2.ProjectionOutcome] = Deferred()
        Deferred.fromCoroutine(self._take(change, receipt, word)).addErrback(word.errback)
        return word

    async def resync(self) -> None:
        """Have the projection in force come again, whole, and put it in the place of the one in memory.

        :raises ProjectionRefused: if it is not the one that was acknowledged.
        :raises ProjectionSuperseded: if newer ones came faster than the pages of one, twice.
        """
        try:
            await self._again()
        except ProjectionSuperseded as superseded:
            await self._projections.reached(superseded.generation + 1, TAKE_SECONDS)
            await self._again()

    def end(self) -> None:
        """The connection is gone, and so is everything that is not in force yet."""
        self._slices.stop()

    # -- one offer ----------------------------------------------------------------------------------------------------

    async def _take(
        self,
        change: Change,
        receipt: control_pb2.ProjectionReceipt,
        word: Deferred[control_pb2.ProjectionOutcome],
    ) -> None:
        self._waiting += 1
        async with self._turns:
            self._waiting -= 1
            try:
                acknowledged = await self._decide(change, receipt)
            except Exception:
                self.end()
                raise
            # before the next turn begins, so that words leave in the order of the offers
            acknowledged.chainDeferred(word)

    async def _decide(
        self, change: Change, receipt: control_pb2.ProjectionReceipt
    ) -> Deferred[control_pb2.ProjectionOutcome]:
        self._check_there()
        projections = self._projections
        claim = Mark(*claim_from_wire(change))
        try:
            # what its name alone decides costs no page
            if projections.judge(claim, claim.digest, receipt) is Verdict.HELD:
                return projections.acknowledgement(control_pb2.PROJECTION_RESULT_HELD)
            if isinstance(change, control_pb2.ProjectionDelta):
                made = await self._changed(change)
            else:
                made = await self._whole(change, claim.generation, self._clock.boot() + TAKE_SECONDS)
            return projections.put(made, claim.digest, receipt)
        except (ProjectionRefused, ReceiptRefused) as refused:
            return succeed(projections.refusal(refused, claim.generation))
        except ProjectionSuperseded:
            return Deferred.fromCoroutine(self._superseded(claim.generation))

    async def _superseded(self, generation: int) -> control_pb2.ProjectionOutcome:
        await self._projections.reached(generation + 1, TAKE_SECONDS)
        return await self._projections.acknowledgement(control_pb2.PROJECTION_RESULT_APPLIED)

    async def _again(self) -> None:
        async with self._turns:
            self._check_there()
            generation, deadline = self._projections.generation, self._clock.boot() + TAKE_SECONDS
            first = await self._page(generation, 0, deadline)
            acknowledged = self._projections.restore(await self._whole(first, generation, deadline))
        await acknowledged

    # -- what it is made of -------------------------------------------------------------------------------------------

    async def _changed(self, delta: control_pb2.ProjectionDelta) -> Projection:
        base = self._projections.current
        if base is None or base.generation != delta.base_generation:
            raise ProjectionRefused("base_mismatch", "the change is one of a projection that is not in force")
        draft = Draft(base)
        await self._in_slices(_changing(draft, delta))
        return draft.finish(delta.generation)

    async def _whole(self, page: _Page, generation: int, deadline: float) -> Projection:
        """A projection from its first page on; the others are asked for until ``deadline``, in boot time."""
        draft, bucket, size = Draft(Projection.empty(0)), 0, 0
        while True:
            size += page.ByteSize()
            if size > PROJECTION_BYTES:
                raise MalformedFrame("the pages of a projection have more bytes than there may be of it")
            end = _end(page, bucket)
            await self._in_slices(_adding(draft, page, range(bucket, end)))
            if end == BUCKETS:
                break
            bucket = end
            page = await self._page(generation, bucket, deadline)
        await self._in_slices(draft.hashing())
        return draft.finish(generation)

    async def _page(self, generation: int, bucket: int, deadline: float) -> control_pb2.ProjectionPageResponse:
        request = control_pb2.ProjectionPageRequest(generation=generation, bucket=bucket)
        page = await self._peer.request(request, max(0.0, deadline - self._clock.boot()))
        if not isinstance(page, control_pb2.ProjectionPageResponse):
            raise UnexpectedMessage("the request for a page was answered by something else")
        if not page.kept:
            raise ProjectionSuperseded(generation)
        return page

    async def _in_slices(self, steps: Iterator[None]) -> None:
        try:
            await self._slices.cooperate(steps).whenDone()
        except SchedulerStopped:
            self._check_there()

    def _slice(self) -> Callable[[], bool]:
        end = self._clock.boot() + SLICE_SECONDS
        return lambda: self._clock.boot() >= end

    def _check_there(self) -> None:
        if not self._slices.running:
            raise PeerDisconnected("the connection ended before the projection was there")


def _end(page: _Page, bucket: int) -> int:
    """The bucket after the last one of a page that begins at ``bucket``."""
    end = page.next_bucket or BUCKETS
    if not bucket < end <= BUCKETS:
        raise MalformedFrame("the pages of a projection do not go on where the one before ended")
    return end


def _adding(draft: Draft, page: _Page, buckets: range) -> Iterator[None]:
    """Put the entries of a page into ``draft``, some a step."""
    for start in range(0, len(page.tokens), STEP_ENTRIES):
        tokens = [token_from_wire(token) for token in page.tokens[start : start + STEP_ENTRIES]]
        _check_places(buckets, (part_of(token.token_id) for token in tokens))
        draft.add(tokens, ())
        yield
    for start in range(0, len(page.routes), STEP_ENTRIES):
        routes = [route_from_wire(route) for route in page.routes[start : start + STEP_ENTRIES]]
        _check_places(buckets, (PARTS + part_of(route.route) for route in routes))
        draft.add((), routes)
        yield


def _changing(draft: Draft, delta: control_pb2.ProjectionDelta) -> Iterator[None]:
    """Make of ``draft`` what a delta says, some entries a step, and hash it; all goes before anything comes."""
    parts: list[ProjectionDelta] = []
    for part in _parts(delta):
        parts.append(part)
        draft.take(part)
        yield
    for part in parts:
        draft.add(part.tokens, part.routes)
        yield
    yield from draft.hashing()


def _parts(delta: control_pb2.ProjectionDelta) -> Iterator[ProjectionDelta]:
    """What a delta says, some entries at a time, what is gone first."""
    for field in ("removed_tokens", "removed_routes", "tokens", "routes"):
        entries = getattr(delta, field)
        for start in range(0, len(entries), STEP_ENTRIES):
            part = control_pb2.ProjectionDelta(base_generation=delta.base_generation, generation=delta.generation)
            getattr(part, field).extend(entries[start : start + STEP_ENTRIES])
            yield delta_from_wire(part)


def _check_places(buckets: range, places: Iterator[int]) -> None:
    if not all(place in buckets for place in places):
        raise MalformedFrame("a page holds entries of other buckets than its own")
