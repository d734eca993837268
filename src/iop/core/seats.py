"""A provider of a Node as the pool keeps it, and who waits for it.

Requests of the long-context class count in the whole capacity and in one of their own. So that neither class stands in
the other's way, a principal's requests of one class are a party of their own, with a queue of its own: a place goes to
the party that holds fewest, of those whose class has room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from iop.core.health import Health

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IDelayedCall

    from iop.core.offers import Offer, Want
    from iop.core.pool import Place

#: A principal, and whether it is about the long-context class.
Party = tuple[str, bool]


def party_of(want: Want) -> Party:
    """Whose turn a request takes."""
    return want.principal, want.is_long


class Seat:
    """One provider: what it offers, who holds how much of it, who waits for it."""

    __slots__ = ("away", "disabled", "health", "held", "holders", "offer", "queues")

    def __init__(self, offer: Offer, *, held: bool, disabled: bool) -> None:
        self.offer = offer
        #: Whether its Node is given nothing for now; who waits goes on waiting.
        self.held = held
        #: Whether it is given nothing, and nobody waits for it.
        self.disabled = disabled
        #: Whether its Node's connection ended, and may come again; who waits goes on waiting.
        self.away = False
        self.health = Health()
        #: How many places each party holds, without those who hold none.
        self.holders: dict[Party, int] = {}
        #: Who waits, longest first, by party, without those of whom nobody does.
        self.queues: dict[Party, dict[Waiter, None]] = {}

    @property
    def taken(self) -> int:
        """Places that requests hold."""
        return sum(self.holders.values())

    @property
    def long_taken(self) -> int:
        """Places that requests of the long-context class hold."""
        return sum(places for (_, is_long), places in self.holders.items() if is_long)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return sum(map(len, self.queues.values()))

    @property
    def long_queued(self) -> int:
        """Requests of the long-context class that wait."""
        return sum(len(queue) for (_, is_long), queue in self.queues.items() if is_long)

    @property
    def has_queue(self) -> bool:
        """Whether requests may wait for it."""
        return not self.disabled and self.health.is_reachable

    @property
    def is_giving(self) -> bool:
        """Whether requests get its places, if there are any."""
        return self.has_queue and not self.held and not self.away

    def has_room(self, *, is_long: bool) -> bool:
        """Whether a place for a request of the class is left."""
        free = self.taken < self.offer.capacity
        return free and (not is_long or self.long_taken < self.offer.long_capacity)

    def is_free(self, want: Want) -> bool:
        """Whether a request gets a place now."""
        return self.is_giving and self.has_room(is_long=want.is_long)

    def may_probe(self, want: Want, now: float) -> bool:
        """Whether a request should find out if an unreachable provider can be reached again."""
        barred = self.disabled or self.held or self.away
        return not barred and self.health.is_due(now) and self.has_room(is_long=want.is_long)

    @property
    def load(self) -> float:
        """The share of its capacity that is taken."""
        return self.taken / self.offer.capacity

    def waiting(self, principal: str) -> int:
        """How many requests of a principal's are in the queue."""
        return sum(len(self.queues.get((principal, is_long), ())) for is_long in (False, True))

    def waiters(self) -> Iterator[Waiter]:
        """Everybody who waits."""
        for queue in self.queues.values():
            yield from queue

    def next_waiter(self) -> Waiter | None:
        """Who gets a place now: of the parties whose class has room and who hold the fewest, the longest waiting."""
        if not self.is_giving:
            return None
        room = {is_long for is_long in (False, True) if self.has_room(is_long=is_long)}
        first = [next(iter(queue)) for (_, is_long), queue in self.queues.items() if is_long in room]
        return min(first, key=lambda waiter: (self.holders.get(party_of(waiter.want), 0), waiter.ticket), default=None)

    def last_of_most(self) -> Waiter:
        """The last request of the principal that has the most in the queue, which is not empty."""
        most = max((principal for principal, _ in self.queues), key=self.waiting)
        theirs = [next(reversed(queue)) for (principal, _), queue in self.queues.items() if principal == most]
        return max(theirs, key=lambda waiter: waiter.ticket)

    def take(self, party: Party) -> None:
        """A request of the party holds one more place."""
        self.holders[party] = self.holders.get(party, 0) + 1

    def give_back(self, party: Party) -> None:
        """One place of the party's is free again."""
        self.holders[party] -= 1
        if not self.holders[party]:
            del self.holders[party]


class Waiter:
    """One request in the queues of the providers that could serve it."""

    __slots__ = ("answer", "seats", "ticket", "timer", "want")

    def __init__(self, want: Want, ticket: int, answer: Deferred[Place]) -> None:
        self.want = want
        #: Lower than those of all who came later.
        self.ticket = ticket
        self.answer = answer
        self.timer: IDelayedCall | None = None
        self.seats: dict[Seat, None] = {}

    def join(self, seat: Seat) -> None:
        """Wait for ``seat`` too."""
        self.seats[seat] = None
        seat.queues.setdefault(party_of(self.want), {})[self] = None

    def leave(self, seat: Seat) -> None:
        """Wait for ``seat`` no more."""
        del self.seats[seat]
        party = party_of(self.want)
        queue = seat.queues[party]
        del queue[self]
        if not queue:
            del seat.queues[party]
