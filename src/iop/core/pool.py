"""Admission: which ready provider takes a request, and who waits for one (architecture, step 3).

Every provider has a capacity and a queue. A request that finds no free provider joins, as the last, the queues of those
that could serve it, and gets the first that becomes free. Queues and the time in them are bounded.

A principal alone may have all of a capacity and all of a queue. Where several want the same, none starves another
(P19): a place that becomes free goes to who holds the fewest there, and of a full queue the last request of who has the
most there makes room for one of who has fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

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
    """What a route asks for, and for whom.

    ``model`` is the upstream's name of it, ``avoid`` the Nodes that failed already.
    """

    principal: str
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

    def unmet(self, offers: Iterable[Offer]) -> str:
        """What none of ``offers``, none of which fits, has beside what was looked at before it, for a person."""
        left = list(offers)
        for lacks, has in (
            ("", lambda offer: offer.node not in self.avoid),
            (f" has the target {self.target}", lambda offer: offer.target == self.target),
            (f" has that target for the profile {self.profile}", lambda offer: offer.profile == self.profile),
            (f" serves {self.model}", lambda offer: self.model in offer.models or ANY_MODEL in offer.models),
        ):
            left = [offer for offer in left if has(offer)]
            if not left:
                return lacks
        return " has the labels that the route's selector asks for"


class Place:
    """One unit of a provider's capacity, held until it is released."""

    __slots__ = ("_pool", "_principal", "_seat", "offer")

    def __init__(self, pool: Pool, seat: _Seat, principal: str) -> None:
        self._pool = pool
        self._seat: _Seat | None = seat
        self._principal = principal
        #: The provider that granted it.
        self.offer = seat.offer

    def release(self) -> None:
        """Give it back; who waits for it gets it. Safe to call twice, and after the Node is gone."""
        seat, self._seat = self._seat, None
        if seat is not None:
            self._pool._released(seat, self._principal)


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
        self._tickets = count()
        self._held: set[str] = set()
        self._disabled: set[tuple[str, str]] = set()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiters)

    def offers(self, node: str, provider_id: str) -> bool:
        """Whether a provider may be given requests: its Node is ready and serves it."""
        return any(seat.offer.provider_id == provider_id for seat in self._seats.get(node, ()))

    def taken(self, node: str, provider_id: str) -> int:
        """How many places of a provider are taken; 0 if its Node is not ready."""
        return sum(seat.taken for seat in self._seats.get(node, ()) if seat.offer.provider_id == provider_id)

    def queued(self, node: str, provider_id: str) -> int:
        """How many requests are in a provider's queue; 0 if its Node is not ready."""
        return sum(seat.queued for seat in self._seats.get(node, ()) if seat.offer.provider_id == provider_id)

    def add(self, node: str, offers: Iterable[Offer]) -> None:
        """A Node is ready with these providers; they replace whatever it offered before."""
        self.remove(node)
        seats = self._seats[node] = [_Seat(offer) for offer in offers]
        for seat in seats:
            seat.held = self.is_held(node)
            seat.disabled = self.is_disabled(node, seat.offer.provider_id)
        for seat in seats:
            self._open(seat)
        for seat in seats:
            self._grant(seat)

    def remove(self, node: str) -> None:
        """A Node is gone. Who waited for nothing else is refused with :class:`~iop.errors.NoNode`."""
        self._close(self._seats.pop(node, []), "the Node that could serve this went away")

    def hold(self, node: str) -> None:
        """Give a Node nothing more until :meth:`resume`, whether it is there or not; what it has goes on.

        Who waits for it goes on waiting, for others or for its return, until its deadline.
        """
        self._held.add(node)
        for seat in self._seats.get(node, ()):
            seat.held = True

    def resume(self, node: str) -> None:
        """Take back :meth:`hold`."""
        self._held.discard(node)
        for seat in self._seats.get(node, ()):
            seat.held = False
            self._grant(seat)

    def is_held(self, node: str) -> bool:
        """Whether a Node is given nothing."""
        return node in self._held

    def disable(self, node: str, provider_id: str) -> None:
        """Give a provider nothing more until :meth:`enable`, whether its Node is there or not; what it has goes on.

        Who waited for nothing else is refused with :class:`~iop.errors.NoNode`.
        """
        self._disabled.add((node, provider_id))
        for seat in self._seats_of(node, provider_id):
            seat.disabled = True
            self._close([seat], "the provider that could serve this was disabled")

    def enable(self, node: str, provider_id: str) -> None:
        """Take back :meth:`disable`."""
        self._disabled.discard((node, provider_id))
        for seat in self._seats_of(node, provider_id):
            seat.disabled = False
            self._open(seat)
            self._grant(seat)

    def is_disabled(self, node: str, provider_id: str) -> bool:
        """Whether a provider is given nothing."""
        return (node, provider_id) in self._disabled

    def admit(self, want: Want, wait_seconds: float) -> Deferred[Place]:
        """Get a place at the least loaded provider that fits, now or within ``wait_seconds``.

        Cancelling the Deferred leaves the queues. It fails with :class:`~iop.errors.NoNode` if no ready provider fits,
        :class:`~iop.errors.QueueFull` if the queues of all that fit are full and none has more requests of another's
        than of this principal's, or once another's took its place in the last of them, and
        :class:`~iop.errors.QueueLate` in the end.
        """
        seats = [seat for seat in self._enabled() if want.fits(seat.offer)]
        if free := [seat for seat in seats if seat.is_free]:
            return succeed(self._take(min(free, key=lambda seat: seat.load), want.principal))
        if not seats:
            unmet = want.unmet(seat.offer for seat in self._enabled())
            return fail(NoNode(f"no Node that is ready{unmet}", hint="try again"))
        waiter = _Waiter(want, next(self._tickets), Deferred(lambda _: self._forget(waiter)))
        ousted = [self._join(seat, waiter) for seat in seats]
        if not waiter.seats:
            return fail(_full())
        late = QueueLate("no Node became free in time", hint="try again")
        waiter.timer = self._clock.call_later(wait_seconds, lambda: self._refuse(waiter, late))
        self._waiters[waiter] = None
        for other in ousted:
            if other is not None and not other.seats:
                self._refuse(other, _full())
        return waiter.answer

    def _seats_of(self, node: str, provider_id: str) -> list[_Seat]:
        return [seat for seat in self._seats.get(node, ()) if seat.offer.provider_id == provider_id]

    def _enabled(self) -> list[_Seat]:
        return [seat for seats in self._seats.values() for seat in seats if not seat.disabled]

    def _open(self, seat: _Seat) -> None:
        """Let everybody whom it fits wait for a provider too, unless it is disabled."""
        if seat.disabled:
            return
        for waiter in [waiter for waiter in self._waiters if waiter.want.fits(seat.offer)]:
            if seat not in waiter.seats:
                # who makes room here goes on waiting elsewhere
                self._join(seat, waiter)

    def _close(self, seats: Iterable[_Seat], why: str) -> None:
        """Let nobody wait for these any more."""
        stranded: list[_Waiter] = []
        for seat in seats:
            for waiter in [waiter for queue in seat.queues.values() for waiter in queue]:
                waiter.leave(seat)
                if not waiter.seats:
                    stranded.append(waiter)
        for waiter in stranded:
            self._refuse(waiter, NoNode(why, hint="try again"))

    def _join(self, seat: _Seat, waiter: _Waiter) -> _Waiter | None:
        """Put a request in a queue that has room for it; answers the one that had to make room, if one had to."""
        other = None
        if seat.queued >= self._queue_limit:
            other = seat.last_of_most()
            if seat.waiting(other.want.principal) <= seat.waiting(waiter.want.principal) + 1:
                return None
            other.leave(seat)
        waiter.join(seat)
        return other

    def _take(self, seat: _Seat, principal: str) -> Place:
        seat.holders[principal] = seat.holders.get(principal, 0) + 1
        return Place(self, seat, principal)

    def _released(self, seat: _Seat, principal: str) -> None:
        seat.holders[principal] -= 1
        if not seat.holders[principal]:
            del seat.holders[principal]
        self._grant(seat)

    def _grant(self, seat: _Seat) -> None:
        while seat.queues and seat.is_free:
            waiter = seat.next_waiter()
            self._forget(waiter)
            waiter.answer.callback(self._take(seat, waiter.want.principal))

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
    """One provider of a ready Node: what it offers, who holds how much of it, who waits for it."""

    __slots__ = ("disabled", "held", "holders", "offer", "queues")

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        #: Whether its Node is given nothing for now; who waits goes on waiting.
        self.held = False
        #: Whether it is given nothing, and nobody waits for it.
        self.disabled = False
        #: How many places each principal holds, without those who hold none.
        self.holders: dict[str, int] = {}
        #: Who waits, longest first, by principal, without those of whom nobody does.
        self.queues: dict[str, dict[_Waiter, None]] = {}

    @property
    def taken(self) -> int:
        return sum(self.holders.values())

    @property
    def queued(self) -> int:
        return sum(map(len, self.queues.values()))

    @property
    def is_free(self) -> bool:
        return not self.held and not self.disabled and self.taken < self.offer.capacity

    @property
    def load(self) -> float:
        return self.taken / self.offer.capacity

    def waiting(self, principal: str) -> int:
        """How many requests of a principal's are in the queue."""
        return len(self.queues.get(principal, ()))

    def next_waiter(self) -> _Waiter:
        """Who gets the next place: of those whose principals hold the fewest, the one that waits longest."""
        first = [next(iter(queue)) for queue in self.queues.values()]
        return min(first, key=lambda waiter: (self.holders.get(waiter.want.principal, 0), waiter.ticket))

    def last_of_most(self) -> _Waiter:
        """The last request of the principal that has the most in the queue, which is not empty."""
        most = max(self.queues, key=self.waiting)
        return next(reversed(self.queues[most]))


class _Waiter:
    """One request in the queues of the providers that could serve it."""

    __slots__ = ("answer", "seats", "ticket", "timer", "want")

    def __init__(self, want: Want, ticket: int, answer: Deferred[Place]) -> None:
        self.want = want
        #: Lower than those of all who came later.
        self.ticket = ticket
        self.answer = answer
        self.timer: IDelayedCall | None = None
        self.seats: dict[_Seat, None] = {}

    def join(self, seat: _Seat) -> None:
        self.seats[seat] = None
        seat.queues.setdefault(self.want.principal, {})[self] = None

    def leave(self, seat: _Seat) -> None:
        del self.seats[seat]
        queue = seat.queues[self.want.principal]
        del queue[self]
        if not queue:
            del seat.queues[self.want.principal]


def _full() -> QueueFull:
    return QueueFull("too many requests are waiting for this model", hint="try again")
