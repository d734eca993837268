"""Admission against a model of it: anything in any order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from iop.core.offers import Want
from iop.core.pool import Place, Pool
from iop.errors import NoNode, ProviderUnreachable, QueueFull, QueueLate
from iop.testing.clock import FakeClock
from tests.core.test_offers import WANT, offer

NODES = "abc"
RECONNECT_SECONDS = 3.0
#: Binary fractions, so that sums of them are exact.
STEP = 0.25
STEPS = st.integers(0, 60)
SECONDS = STEPS.map(lambda steps: steps * STEP)
NODE = st.sampled_from(NODES)


@dataclass(eq=False)
class Life:
    """A provider between two registrations of its Node."""

    node: str
    capacity: int
    long_capacity: int
    away_until: float | None = None
    failures: int = 0
    pause: float = 0.0
    due: float = 0.0
    probe: Place | None = None
    places: dict[Place, Want] = field(default_factory=dict)

    @property
    def is_reachable(self) -> bool:
        return self.failures < 3

    def held_by(self, want: Want) -> int:
        """Places of the principal's requests of that class."""
        return sum((one.principal, one.is_long) == (want.principal, want.is_long) for one in self.places.values())

    def long_places(self) -> int:
        return sum(want.is_long for want in self.places.values())

    def has_room(self, want: Want) -> bool:
        free = len(self.places) < self.capacity
        return free and (not want.is_long or self.long_places() < self.long_capacity)

    def fits(self, want: Want) -> bool:
        return self.node not in want.avoid and (not want.is_long or self.long_capacity > 0)


@dataclass(eq=False)
class Asked:
    """A request that has no answer yet."""

    want: Want
    number: int
    deadline: float
    answer: Deferred[Place]
    #: Of the life it was granted by, once it was.
    place: Place | None = None


class PoolMachine(RuleBasedStateMachine):
    """The pool beside a model that is told everything first.

    ``limit`` is the length of its queues.
    """

    limit = 3

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.pool = Pool(self.clock, self.limit, RECONNECT_SECONDS)
        self.lives: list[Life] = []
        self.now_of: dict[str, Life] = {}
        self.held: set[str] = set()
        self.disabled: set[str] = set()
        self.waiting: dict[Asked, None] = {}
        self.places: list[tuple[Place, Life]] = []
        self.asked = 0
        #: What was found wrong when an answer came.
        self.broken: list[Failure] = []

    # -- what is so -----------------------------------------------------------------------------------------------

    def life(self, node: str) -> Life | None:
        """Of a Node that is ready, or away for a moment."""
        life = self.now_of.get(node)
        if life is None or (life.away_until is not None and self.clock.boot() >= life.away_until):
            return None
        return life

    def current(self) -> list[Life]:
        return [life for life in map(self.life, NODES) if life is not None]

    def is_barred(self, life: Life) -> bool:
        return life.away_until is not None or life.node in self.held or life.node in self.disabled

    def is_due(self, life: Life) -> bool:
        return not life.is_reachable and self.clock.boot() >= life.due

    # -- Nodes ----------------------------------------------------------------------------------------------------

    @rule(node=NODE, capacity=st.integers(1, 3), long_capacity=st.integers(0, 3))
    def add(self, node: str, capacity: int, long_capacity: int) -> None:
        life = self.now_of[node] = Life(node, capacity, min(capacity, long_capacity))
        self.lives.append(life)
        labels = {"life": str(len(self.lives) - 1)}
        self.pool.add(node, [offer(node, capacity, long_capacity=life.long_capacity, labels=labels)])

    @rule(node=NODE)
    def remove(self, node: str) -> None:
        life = self.life(node)
        if life is not None and life.away_until is None:
            life.away_until = self.clock.boot() + RECONNECT_SECONDS
        self.pool.remove(node)

    @rule(node=NODE)
    def hold(self, node: str) -> None:
        self.held.add(node)
        self.pool.hold(node)

    @rule(node=NODE)
    def resume(self, node: str) -> None:
        self.held.discard(node)
        self.pool.resume(node)

    @rule(node=NODE)
    def disable(self, node: str) -> None:
        self.disabled.add(node)
        self.pool.disable(node, "p")

    @rule(node=NODE)
    def enable(self, node: str) -> None:
        self.disabled.discard(node)
        self.pool.enable(node, "p")

    # -- requests -------------------------------------------------------------------------------------------------

    @rule(
        principal=st.sampled_from(["ada", "bob", "cyd"]),
        avoid=st.frozensets(NODE, max_size=2),
        is_long=st.booleans(),
        wait=SECONDS,
    )
    def admit(self, principal: str, avoid: frozenset[str], is_long: bool, wait: float) -> None:
        want = replace(WANT, principal=principal, avoid=avoid, is_long=is_long)
        self.asked += 1
        asked = Asked(want, self.asked, self.clock.boot() + wait, self.pool.admit(want, wait))
        self.waiting[asked] = None
        asked.answer.addBoth(self.answered, asked).addErrback(self.broken.append)

    def answered(self, outcome: Place | Failure, asked: Asked) -> None:
        """Every answer has its reason at the moment it comes."""
        del self.waiting[asked]
        if isinstance(outcome, Place):
            self.granted(outcome, asked)
            return
        fitting = [life for life in self.current() if life.node not in self.disabled and life.fits(asked.want)]
        match outcome.value:
            case NoNode():
                assert not fitting
            case ProviderUnreachable():
                # two Nodes may be given up in one moment, one after the other
                leaving = [life for life in self.now_of.values() if life.away_until == self.clock.boot()]
                assert fitting or any(life.fits(asked.want) for life in leaving)
                assert not any(life.is_reachable for life in fitting)
                assert 0 <= outcome.value.retry_seconds <= 60
            case QueueLate():
                assert self.clock.boot() >= asked.deadline
            case QueueFull():
                assert self.asked > self.limit
            case other:
                assert isinstance(other, CancelledError)

    def granted(self, place: Place, asked: Asked) -> None:
        life = self.lives[int(place.offer.labels["life"])]
        assert life is self.life(life.node)
        assert life.fits(asked.want)
        assert not self.is_barred(life)
        assert life.has_room(asked.want)
        if life.is_reachable:
            self.is_fair(life, asked)
        else:
            assert self.is_due(life)
            life.probe, life.pause = place, min(60.0, 2 * life.pause)
            life.due = self.clock.boot() + life.pause
        life.places[place] = asked.want
        self.places.append((place, life))

    def is_fair(self, life: Life, asked: Asked) -> None:
        """S16, P19: of those whose class has room, it was who holds fewest there and, of these, waits longest."""
        if self.limit > 3:
            others = [other for other in self.waiting if life.fits(other.want) and life.has_room(other.want)]
            for other in others:
                assert (life.held_by(asked.want), asked.number) < (life.held_by(other.want), other.number)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(list(self.waiting))).answer.cancel()

    @rule(steps=STEPS)
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.advance(STEP)

    # -- places ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        place, life = self.places.pop(data.draw(st.integers(0, len(self.places) - 1)))
        del life.places[place]
        if life.probe is place:
            life.probe, life.due = None, 0.0
        place.release()

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def reached(self, data: st.DataObject) -> None:
        place, life = data.draw(st.sampled_from(self.places))
        news = not life.is_reachable
        life.failures, life.probe = 0, None
        assert place.reached() is news

    @precondition(lambda self: self.places)
    @rule(data=st.data(), times=st.integers(1, 3))
    def unreachable(self, data: st.DataObject, times: int) -> None:
        place, life = data.draw(st.sampled_from(self.places))
        for _ in range(times):
            now, was_reachable = self.clock.boot(), life.is_reachable
            if was_reachable:
                life.failures += 1
                life.pause, life.due = 10.0, now + 10.0
            elif life.probe is place:
                life.probe, life.due = None, now + life.pause
            assert place.unreachable() is (was_reachable and not life.is_reachable)

    # -- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def every_answer_was_right(self) -> None:
        for failure in self.broken:
            failure.raiseException()

    @invariant()
    def within_capacity(self) -> None:
        """S14, S16: nowhere more places than the capacity, nor of the long class than its part."""
        for life in self.lives:
            assert len(life.places) <= life.capacity
            assert life.long_places() <= life.long_capacity

    @invariant()
    def numbers_are_so(self) -> None:
        """S3, C31: what is told is what is held, and nothing of who is not there."""
        for node in NODES:
            life = self.life(node)
            here = life is not None and life.away_until is None
            counts = (len(life.places), life.long_places()) if life is not None and here else (0, 0)
            assert (self.pool.taken(node, "p"), self.pool.long_taken(node, "p")) == counts
            assert self.pool.offers(node, "p") is here
            assert self.pool.long_queued(node, "p") <= self.pool.queued(node, "p") <= self.limit

    @invariant()
    def nothing_is_left_over(self) -> None:
        """S15: one timer for each who waits and each Node that is away."""
        away = sum(life.away_until is not None for life in self.current())
        assert self.pool.waiting == len(self.waiting)
        assert len(self.clock.reactor.getDelayedCalls()) == len(self.waiting) + away

    @invariant()
    def waits_for_something(self) -> None:
        """S14, S18: nobody waits beside a free provider, or for nothing."""
        for asked in self.waiting:
            fitting = [
                life
                for life in self.current()
                if life.fits(asked.want) and life.node not in self.disabled and life.is_reachable
            ]
            assert fitting
            assert not any(life.has_room(asked.want) and not self.is_barred(life) for life in fitting)


class RoomyPoolMachine(PoolMachine):
    """The same with queues that are never full."""

    limit = 1000


class PoolTotalityTests(SynchronousTestCase):
    """The machines above."""

    def test_any_order(self) -> None:
        """P19, S14, S15, S16, S17, S18, S19: every input in every state, with full queues."""
        bounds = settings(max_examples=80, stateful_step_count=50, deadline=None)
        run_state_machine_as_test(PoolMachine, settings=bounds)

    def test_any_order_with_room(self) -> None:
        """P19, S16: whoever gets a place, nobody whose turn was earlier could have had it."""
        bounds = settings(max_examples=80, stateful_step_count=50, deadline=None)
        run_state_machine_as_test(RoomyPoolMachine, settings=bounds)
