"""Admission: which ready provider takes a request, and who waits for one (architecture, step 3; rules S14-S19).

Every provider has a capacity and a queue. A request that finds no free provider joins, as the last, the queues of those
that could serve it, and gets the first that becomes free. Queues and the time in them are bounded.

A principal alone may have all of a capacity and all of a queue. Where several want the same, none starves another
(P19): a place that becomes free goes to who holds the fewest there, and of a full queue the last request of who has the
most there makes room for one of who has fewer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall

from iop.core.offers import Offer, Want
from iop.core.seats import Seat, Waiter, party_of
from iop.errors import IopError, NoNode, ProviderUnreachable, QueueFull, QueueLate
from iop.interfaces import IClock


class Place:
    """One unit of a provider's capacity, held until it is released."""

    __slots__ = ("_pool", "_seat", "_want", "offer")

    def __init__(self, pool: Pool, seat: Seat, want: Want) -> None:
        self._pool = pool
        self._seat: Seat | None = seat
        self._want = want
        #: The provider that granted it.
        self.offer = seat.offer

    def reached(self) -> bool:
        """The provider answered; answers whether that is news. Does nothing once the place was released."""
        return self._seat is not None and self._pool.reached(self._seat)

    def unreachable(self) -> bool:
        """The provider could not be connected to; answers as :meth:`reached`."""
        return self._seat is not None and self._pool.failed(self._seat, self)

    def release(self) -> None:
        """Give it back; who waits for it gets it. Safe to call twice, and after the Node is gone."""
        seat, self._seat = self._seat, None
        if seat is not None:
            self._pool.released(seat, self, self._want)


class Pool:
    """Ready providers, and the requests that wait for one of them.

    :param queue_limit: requests that may wait for one provider.
    :param reconnect_seconds: how long a Node whose connection ended is waited for.
    """

    def __init__(self, clock: IClock, queue_limit: int, reconnect_seconds: float = 0.0) -> None:
        self._clock = clock
        self._queue_limit = queue_limit
        self._reconnect_seconds = reconnect_seconds
        #: The providers of Nodes that are ready, or away for a moment.
        self._seats: dict[str, list[Seat]] = {}
        #: When Nodes that are away are not waited for any longer.
        self._away: dict[str, IDelayedCall] = {}
        #: Everybody who waits, longest first.
        self._waiters: dict[Waiter, None] = {}
        self._tickets = count()
        self._held: set[str] = set()
        self._disabled: set[tuple[str, str]] = set()

    # -- what is now ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiters)

    def offers(self, node: str, provider_id: str) -> bool:
        """Whether a provider's Node is ready and serves it."""
        return any(True for _ in self._ready(node, provider_id))

    def gives(self, node: str, provider_id: str) -> bool:
        """Whether a provider is given requests: it is there, not held back, not disabled, and can be reached."""
        return any(seat.is_giving for seat in self._ready(node, provider_id))

    def is_reachable(self, node: str, provider_id: str) -> bool:
        """Whether a provider is not known to be unreachable; True if its Node is not ready."""
        return all(seat.health.is_reachable for seat in self._ready(node, provider_id))

    def taken(self, node: str, provider_id: str) -> int:
        """How many places of a provider are taken; 0 if its Node is not ready."""
        return sum(seat.taken for seat in self._ready(node, provider_id))

    def long_taken(self, node: str, provider_id: str) -> int:
        """How many of them requests of the long-context class have."""
        return sum(seat.long_taken for seat in self._ready(node, provider_id))

    def queued(self, node: str, provider_id: str) -> int:
        """How many requests are in a provider's queue; 0 if its Node is not ready."""
        return sum(seat.queued for seat in self._ready(node, provider_id))

    def long_queued(self, node: str, provider_id: str) -> int:
        """How many of them are of the long-context class."""
        return sum(seat.long_queued for seat in self._ready(node, provider_id))

    def is_held(self, node: str) -> bool:
        """Whether a Node is held."""
        return node in self._held

    def is_disabled(self, node: str, provider_id: str) -> bool:
        """Whether a provider is disabled."""
        return (node, provider_id) in self._disabled

    # -- Nodes come and go ----------------------------------------------------------------------------------------

    def add(self, node: str, offers: Iterable[Offer]) -> None:
        """A Node is ready with these providers; they replace whatever it offered before."""
        before = self._forget_node(node)
        held = self.is_held(node)
        seats = self._seats[node] = [
            Seat(offer, held=held, disabled=self.is_disabled(node, offer.provider_id)) for offer in offers
        ]
        for seat in seats:
            self._open(seat)
        self._close(before)
        for seat in seats:
            self._grant(seat)

    def remove(self, node: str) -> None:
        """A Node is gone. Who waits for nothing else waits for it to come again for ``reconnect_seconds``.

        It is then refused with :class:`~iop.errors.NoNode`.
        """
        if node in self._away or node not in self._seats:
            return
        if not self._reconnect_seconds:
            self._give_up(node)
            return
        for seat in self._seats.get(node, ()):
            seat.away = True
        self._away[node] = self._clock.call_later(self._reconnect_seconds, lambda: self._give_up(node))

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

    def disable(self, node: str, provider_id: str) -> None:
        """Give a provider nothing more until :meth:`enable`, whether its Node is there or not; what it has goes on.

        Who waited for nothing else is refused with :class:`~iop.errors.NoNode`.
        """
        self._disabled.add((node, provider_id))
        for seat in self._seats_of(node, provider_id):
            seat.disabled = True
            self._close([seat])

    def enable(self, node: str, provider_id: str) -> None:
        """Take back :meth:`disable`."""
        if not self.is_disabled(node, provider_id):
            return
        self._disabled.remove((node, provider_id))
        for seat in self._seats_of(node, provider_id):
            seat.disabled = False
            self._open(seat)
            self._grant(seat)

    # -- requests -------------------------------------------------------------------------------------------------

    def admit(self, want: Want, wait_seconds: float) -> Deferred[Place]:
        """Get a place at the least loaded provider that fits, now or within ``wait_seconds``.

        Cancelling the Deferred leaves the queues. It fails with :class:`~iop.errors.NoNode` if no provider fits that is
        ready or was a moment ago, :class:`~iop.errors.ProviderUnreachable` if all that fit are unreachable,
        :class:`~iop.errors.QueueFull` if the queues of all that fit are full and none has more requests of another's
        than of this principal's, or once another's took its place in the last of them, and
        :class:`~iop.errors.QueueLate` in the end.
        """
        seats = [seat for seat in self._enabled() if want.fits(seat.offer)]
        now = self._clock.boot()
        for seat in seats:
            if seat.may_probe(want, now):
                place = self._take(seat, want)
                seat.health.try_with(place, now)
                return succeed(place)
        if free := [seat for seat in seats if seat.is_free(want)]:
            return succeed(self._take(min(free, key=lambda seat: seat.load), want))
        return self._wait(want, [seat for seat in seats if seat.has_queue], wait_seconds)

    # -- what places say ------------------------------------------------------------------------------------------

    def reached(self, seat: Seat) -> bool:
        """A provider answered somebody; answers whether it was unreachable before."""
        was_unreachable = not seat.health.is_reachable
        seat.health.reached()
        if was_unreachable and self._is_current(seat):
            self._open(seat)
            self._grant(seat)
        return was_unreachable

    def failed(self, seat: Seat, place: Place) -> bool:
        """A provider could not be connected to; answers whether it has become unreachable by that."""
        was_reachable = seat.health.is_reachable
        seat.health.failed(place, self._clock.boot())
        if seat.health.is_reachable or not was_reachable:
            return False
        self._close([seat])
        return True

    def released(self, seat: Seat, place: Place, want: Want) -> None:
        """A place is free again."""
        seat.health.done(place)
        seat.give_back(party_of(want))
        self._grant(seat)

    # -- the rest -------------------------------------------------------------------------------------------------

    def _seats_of(self, node: str, provider_id: str) -> list[Seat]:
        return [seat for seat in self._seats.get(node, ()) if seat.offer.provider_id == provider_id]

    def _enabled(self) -> list[Seat]:
        return [seat for seats in self._seats.values() for seat in seats if not seat.disabled]

    def _ready(self, node: str, provider_id: str) -> list[Seat]:
        return [seat for seat in self._seats_of(node, provider_id) if not seat.away]

    def _is_current(self, seat: Seat) -> bool:
        return seat in self._seats.get(seat.offer.node, ())

    def _forget_node(self, node: str) -> list[Seat]:
        timer = self._away.pop(node, None)
        if timer is not None and timer.active():
            timer.cancel()
        return self._seats.pop(node, [])

    def _give_up(self, node: str) -> None:
        self._close(self._forget_node(node))

    def _open(self, seat: Seat) -> None:
        """Let everybody whom it fits wait for a provider too, if it has a queue."""
        if not seat.has_queue:
            return
        for waiter in [waiter for waiter in self._waiters if waiter.want.fits(seat.offer)]:
            # who makes room here goes on waiting elsewhere
            self._join(seat, waiter)

    def _close(self, seats: Iterable[Seat]) -> None:
        """Let nobody wait for these any more."""
        stranded: list[Waiter] = []
        for seat in seats:
            for waiter in list(seat.waiters()):
                waiter.leave(seat)
                if not waiter.seats:
                    stranded.append(waiter)
        for waiter in stranded:
            self._refuse(waiter, self._no_queue(waiter.want))

    def _wait(self, want: Want, seats: Iterable[Seat], wait_seconds: float) -> Deferred[Place]:
        waiter = Waiter(want, next(self._tickets), Deferred(lambda _: self._forget(waiter)))
        ousted = [self._join(seat, waiter) for seat in seats]
        if not waiter.seats:
            return fail(self._no_queue(want))
        late = QueueLate("no Node became free in time", hint="try again")
        waiter.timer = self._clock.call_later(wait_seconds, lambda: self._refuse(waiter, late))
        self._waiters[waiter] = None
        for other in ousted:
            if other is not None and not other.seats:
                self._refuse(other, self._no_queue(other.want))
        return waiter.answer

    def _no_queue(self, want: Want) -> IopError:
        """Why a request is in no queue."""
        enabled = self._enabled()
        fitting = [seat for seat in enabled if want.fits(seat.offer)]
        if not fitting:
            unmet = want.unmet(seat.offer for seat in enabled)
            return NoNode(f"no Node that is ready{unmet}", hint="try again")
        if any(seat.has_queue for seat in fitting):
            return QueueFull("too many requests are waiting for this model", hint="try again")
        now = self._clock.boot()
        return ProviderUnreachable(
            "the provider cannot be reached at the moment",
            retry_seconds=min(seat.health.seconds_until_due(now) for seat in fitting),
        )

    def _join(self, seat: Seat, waiter: Waiter) -> Waiter | None:
        """Put a request in a queue that has room for it; answers the one that had to make room, if one had to."""
        other = None
        if seat.queued >= self._queue_limit:
            other = seat.last_of_most()
            if seat.waiting(other.want.principal) <= seat.waiting(waiter.want.principal) + 1:
                return None
            other.leave(seat)
        waiter.join(seat)
        return other

    def _take(self, seat: Seat, want: Want) -> Place:
        seat.take(party_of(want))
        return Place(self, seat, want)

    def _grant(self, seat: Seat) -> None:
        while (waiter := seat.next_waiter()) is not None:
            self._forget(waiter)
            waiter.answer.callback(self._take(seat, waiter.want))

    def _refuse(self, waiter: Waiter, error: IopError) -> None:
        if waiter in self._waiters:
            self._forget(waiter)
            waiter.answer.errback(error)

    def _forget(self, waiter: Waiter) -> None:
        del self._waiters[waiter]
        if waiter.timer is not None and waiter.timer.active():
            waiter.timer.cancel()
        for seat in list(waiter.seats):
            waiter.leave(seat)
