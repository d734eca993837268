"""Admission: which ready provider takes a request, and who waits for one (architecture, step 3).

Every provider has a capacity and a queue. A request that finds no free provider joins, as the last, the queues that are
not full of those that could serve it, and gets the first that becomes free. Queues and the time in them are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall

from iop.core.selectors import Selector
from iop.errors import IopError, NoNode, QueueFull, QueueLate
from iop.interfaces import IClock

#: A provider that lists this as a model serves every model of its target.
ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class Offer:
    """One provider of a ready Node."""

    node: str
    provider_id: str
    profile: str
    target: str
    models: frozenset[str]
    capacity: int
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Want:
    """What a route asks for. ``model`` is the upstream's name of it, ``avoid`` the Nodes that failed already."""

    profile: str
    target: str
    model: str
    selector: Selector
    avoid: frozenset[str] = frozenset()

    def fits(self, offer: Offer) -> bool:
        """Whether ``offer`` can serve it."""
        return (
            offer.profile == self.profile
            and offer.target == self.target
            and offer.node not in self.avoid
            and (self.model in offer.models or ANY_MODEL in offer.models)
            and self.selector.matches(offer.labels)
        )


class Place:
    """One unit of a provider's capacity, held until it is released."""

    __slots__ = ("_pool", "_seat", "offer")

    def __init__(self, pool: Pool, seat: _Seat) -> None:
        self._pool = pool
        self._seat: _Seat | None = seat
        #: The provider that granted it.
        self.offer = seat.offer

    def release(self) -> None:
        """Give it back; who waits longest for it gets it. Safe to call twice, and after the Node is gone."""
        seat, self._seat = self._seat, None
        if seat is not None:
            self._pool._released(seat)


class Pool:
    """Ready providers, and the requests that wait for one of them.

    :param queue_limit: requests that may wait for one provider.
    """

    def __init__(self, clock: IClock, queue_limit: int) -> None:
        self._clock = clock
        self._queue_limit = queue_limit
        self._seats: dict[str, list[_Seat]] = {}
        #: Everybody who waits, longest first.
        self._waiters: dict[_Waiter, None] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiters)

    def taken(self, node: str, provider_id: str) -> int:
        """How many places of a provider are taken; 0 if its Node is not ready."""
        return sum(seat.taken for seat in self._seats.get(node, ()) if seat.offer.provider_id == provider_id)

    def queued(self, node: str, provider_id: str) -> int:
        """How many requests are in a provider's queue; 0 if its Node is not ready."""
        return sum(len(seat.queue) for seat in self._seats.get(node, ()) if seat.offer.provider_id == provider_id)

    def add(self, node: str, offers: Iterable[Offer]) -> None:
        """A Node is ready with these providers; they replace whatever it offered before."""
        self.remove(node)
        seats = self._seats[node] = [_Seat(offer) for offer in offers]
        for seat in seats:
            for waiter in [waiter for waiter in self._waiters if waiter.want.fits(seat.offer)][: self._queue_limit]:
                waiter.join(seat)
        for seat in seats:
            self._grant(seat)

    def remove(self, node: str) -> None:
        """A Node is gone. Who waited for nothing else is refused with :class:`~iop.errors.NoNode`."""
        stranded: list[_Waiter] = []
        for seat in self._seats.pop(node, []):
            for waiter in list(seat.queue):
                waiter.leave(seat)
                if not waiter.seats:
                    stranded.append(waiter)
        for waiter in stranded:
            self._refuse(waiter, NoNode("the Node that could serve this went away", hint="try again"))

    def admit(self, want: Want, wait_seconds: float) -> Deferred[Place]:
        """Get a place at the least loaded provider that fits, now or within ``wait_seconds``.

        Cancelling the Deferred leaves the queues. It fails with :class:`~iop.errors.NoNode` if no ready provider fits,
        :class:`~iop.errors.QueueFull` if the queues of all that fit are full, :class:`~iop.errors.QueueLate` in the
        end.
        """
        seats = [seat for seats in self._seats.values() for seat in seats if want.fits(seat.offer)]
        if free := [seat for seat in seats if seat.is_free]:
            return succeed(self._take(min(free, key=lambda seat: seat.load)))
        if not seats:
            return fail(NoNode("no Node that serves this model is ready", hint="try again"))
        joined = [seat for seat in seats if len(seat.queue) < self._queue_limit]
        if not joined:
            return fail(QueueFull("too many requests are waiting for this model", hint="try again"))
        waiter = _Waiter(want, Deferred(lambda _: self._forget(waiter)))
        late = QueueLate("no Node became free in time", hint="try again")
        waiter.timer = self._clock.call_later(wait_seconds, lambda: self._refuse(waiter, late))
        self._waiters[waiter] = None
        for seat in joined:
            waiter.join(seat)
        return waiter.answer

    def _take(self, seat: _Seat) -> Place:
        seat.taken += 1
        return Place(self, seat)

    def _released(self, seat: _Seat) -> None:
        seat.taken -= 1
        self._grant(seat)

    def _grant(self, seat: _Seat) -> None:
        while seat.queue and seat.is_free:
            waiter = next(iter(seat.queue))
            self._forget(waiter)
            waiter.answer.callback(self._take(seat))

    def _refuse(self, waiter: _Waiter, error: IopError) -> None:
        if waiter in self._waiters:
            self._forget(waiter)
            waiter.answer.errback(error)

    def _forget(self, waiter: _Waiter) -> None:
        del self._waiters[waiter]
        if waiter.timer is not None and waiter.timer.active():
            waiter.timer.cancel()
        for seat in list(waiter.seats):
            waiter.leave(seat)


class _Seat:
    """One provider of a ready Node: what it offers, what is taken of it, who waits for it."""

    __slots__ = ("offer", "queue", "taken")

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.taken = 0
        self.queue: dict[_Waiter, None] = {}

    @property
    def is_free(self) -> bool:
        return self.taken < self.offer.capacity

    @property
    def load(self) -> float:
        return self.taken / self.offer.capacity


class _Waiter:
    """One request in the queues of the providers that could serve it."""

    __slots__ = ("answer", "seats", "timer", "want")

    def __init__(self, want: Want, answer: Deferred[Place]) -> None:
        self.want = want
        self.answer = answer
        self.timer: IDelayedCall | None = None
        self.seats: dict[_Seat, None] = {}

    def join(self, seat: _Seat) -> None:
        self.seats[seat] = None
        seat.queue[self] = None

    def leave(self, seat: _Seat) -> None:
        del self.seats[seat]
        del seat.queue[self]
