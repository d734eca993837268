"""Admission."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from iop.core.pool import ANY_MODEL, Offer, Place, Pool, Want
from iop.core.selectors import parse
from iop.errors import NoNode, QueueFull, QueueLate
from iop.testing.clock import FakeClock

WANT = Want("ada", "openai", "openai", "gpt", parse(""))
LIMIT = 3


def offer(node: str, capacity: int = 1, **changes: Any) -> Offer:
    """An offer that :data:`WANT` fits, but for the changes."""
    return replace(Offer(node, "p", "openai", "openai", frozenset({"gpt"}), capacity), **changes)


class FitTests(SynchronousTestCase):
    """Which offer can serve which want."""

    def test_every_condition(self) -> None:
        """Profile, target, model, labels and the avoided Nodes all count."""
        self.assertTrue(WANT.fits(offer("n")))
        for other in (offer("n", profile="none"), offer("n", target="lab"), offer("n", models=frozenset({"other"}))):
            self.assertFalse(WANT.fits(other))
        self.assertTrue(WANT.fits(offer("n", models=frozenset({ANY_MODEL}))))
        self.assertFalse(replace(WANT, avoid=frozenset({"n"})).fits(offer("n")))
        picky = replace(WANT, selector=parse("zone=a"))
        self.assertFalse(picky.fits(offer("n")))
        self.assertTrue(picky.fits(offer("n", labels={"zone": "a", "rack": "7"})))


class PoolTests(SynchronousTestCase):
    """Places, queues and their bounds."""

    def setUp(self) -> None:
        self.clock = FakeClock()
        self.pool = Pool(self.clock, LIMIT)

    def admit(self, wait: float = 30.0, want: Want = WANT) -> Deferred[Place]:
        return self.pool.admit(want, wait)

    def test_no_node(self) -> None:
        """Nobody waits for a provider that is not there."""
        self.failureResultOf(self.admit(), NoNode)
        self.pool.add("n", [offer("n", target="lab")])
        self.failureResultOf(self.admit(), NoNode)

    def test_why_no_node(self) -> None:
        """Whoever is refused is told the first thing that no ready provider has."""
        wanted = Want("ann", "openai", "lab", "gpt", parse("zone=a"), frozenset({"gone"}))
        rows = (
            (offer("gone", target="lab"), "no Node that is ready"),
            (offer("n", target="other"), "no Node that is ready has the target lab"),
            (offer("n", target="lab", profile="none"), "no Node that is ready has that target for the profile openai"),
            (offer("n", target="lab", models=frozenset({"big"})), "no Node that is ready serves gpt"),
            (offer("n", target="lab"), "no Node that is ready has the labels that the route's selector asks for"),
        )
        for offered, message in rows:
            self.pool.add("n", [offered])
            self.assertEqual(self.failureResultOf(self.admit(want=wanted), NoNode).value.message, message)
        self.pool.add("n", [offer("n", target="lab", labels={"zone": "a"})])
        self.successResultOf(self.admit(want=wanted))

    def test_capacity(self) -> None:
        """As many places as the capacity says, and not one more until one is released."""
        self.pool.add("n", [offer("n", capacity=2)])
        first = self.successResultOf(self.admit())
        self.successResultOf(self.admit())
        third = self.admit()
        self.assertNoResult(third)
        first.release()
        first.release()
        self.assertEqual(self.successResultOf(third).offer.node, "n")
        self.assertNoResult(self.admit())

    def test_least_loaded(self) -> None:
        """The provider with the largest free share gets the request."""
        self.pool.add("small", [offer("small", capacity=1)])
        self.pool.add("big", [offer("big", capacity=4)])
        nodes = [self.successResultOf(self.admit()).offer.node for _ in range(5)]
        self.assertEqual(nodes, ["small", "big", "big", "big", "big"])

    def test_first_in_first_out(self) -> None:
        """Who waits longest is served first, on whichever provider becomes free."""
        self.pool.add("a", [offer("a")])
        self.pool.add("b", [offer("b")])
        held = [self.successResultOf(self.admit()), self.successResultOf(self.admit())]
        waiting = [self.admit(), self.admit()]
        held[1].release()
        self.assertEqual(self.successResultOf(waiting[0]).offer.node, "b")
        held[0].release()
        self.assertEqual(self.successResultOf(waiting[1]).offer.node, "a")

    def test_full_queue_is_shared(self) -> None:
        """P19: a queue that one principal filled has room for others, until none has fewer requests in it."""
        self.pool.add("n", [offer("n")])
        self.successResultOf(self.admit())
        hers = [self.admit() for _ in range(LIMIT)]
        his = self.admit(want=replace(WANT, principal="bob"))
        self.failureResultOf(hers.pop(), QueueFull)
        self.failureResultOf(self.admit(), QueueFull)
        self.failureResultOf(self.admit(want=replace(WANT, principal="bob")), QueueFull)
        third = self.admit(want=replace(WANT, principal="cyd"))
        self.failureResultOf(hers.pop(), QueueFull)
        for one in (*hers, his, third):
            self.assertNoResult(one)
        self.assertEqual((self.pool.waiting, len(self.clock.reactor.getDelayedCalls())), (LIMIT, LIMIT))

    def test_who_makes_room_waits_elsewhere(self) -> None:
        """P19: whoever loses its place in one of several queues keeps those in the others."""
        self.pool.add("a", [offer("a", labels={"zone": "a"})])
        self.pool.add("b", [offer("b")])
        held = [self.successResultOf(self.admit()) for _ in "ab"]
        hers = [self.admit() for _ in range(LIMIT)]
        his = self.admit(want=replace(WANT, principal="bob", selector=parse("zone=a")))
        for one in (*hers, his):
            self.assertNoResult(one)
        self.assertEqual((self.pool.queued("a", "p"), self.pool.queued("b", "p")), (LIMIT, LIMIT))
        by_node = {place.offer.node: place for place in held}
        by_node["a"].release()
        for one in (*hers[:2], his):
            place = self.successResultOf(one)
            self.assertEqual(place.offer.node, "a")
            place.release()
        self.assertNoResult(hers[2])
        by_node["b"].release()
        self.assertEqual(self.successResultOf(hers[2]).offer.node, "b")

    def test_fewest_places_first(self) -> None:
        """P19: a place goes to whose principal holds fewest there, however many of another's came first."""
        self.pool.add("n", [offer("n", capacity=2)])
        held = [self.successResultOf(self.admit()) for _ in range(2)]
        hers = [self.admit(), self.admit()]
        his = self.admit(want=replace(WANT, principal="bob"))
        held[0].release()
        place = self.successResultOf(his)
        place.release()
        self.successResultOf(hers[0])
        self.assertNoResult(hers[1])

    def test_queue_is_bounded(self) -> None:
        """The queue takes its limit and refuses one more."""
        self.pool.add("n", [offer("n")])
        self.successResultOf(self.admit())
        waiting = [self.admit() for _ in range(LIMIT)]
        self.failureResultOf(self.admit(), QueueFull)
        self.assertEqual(self.pool.waiting, LIMIT)
        for one in waiting:
            self.assertNoResult(one)

    def test_wait_is_bounded(self) -> None:
        """Who waits is refused at the deadline and not before; the place then goes to the next."""
        self.pool.add("n", [offer("n")])
        place = self.successResultOf(self.admit())
        early, late = self.admit(1.0), self.admit(2.0)
        self.clock.advance(0.999)
        self.assertNoResult(early)
        self.clock.advance(0.001)
        self.failureResultOf(early, QueueLate)
        place.release()
        self.successResultOf(late)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_cancel(self) -> None:
        """Who gives up leaves the queue, and nothing of it stays behind."""
        self.pool.add("n", [offer("n")])
        place = self.successResultOf(self.admit())
        gone, next_one = self.admit(), self.admit()
        gone.cancel()
        self.failureResultOf(gone, CancelledError)
        place.release()
        self.successResultOf(next_one)
        self.assertEqual((self.pool.waiting, self.clock.reactor.getDelayedCalls()), (0, []))

    def test_node_goes(self) -> None:
        """Who waited for that Node alone is refused; who has another to wait for goes on waiting."""
        self.pool.add("a", [offer("a", labels={"zone": "a"})])
        self.pool.add("b", [offer("b")])
        held = [self.successResultOf(self.admit()), self.successResultOf(self.admit())]
        only_a, either = self.admit(want=replace(WANT, selector=parse("zone=a"))), self.admit()
        self.pool.remove("a")
        self.failureResultOf(only_a, NoNode)
        self.assertNoResult(either)
        # a place of a Node that is gone may still be given back, to no effect
        next(place for place in held if place.offer.node == "a").release()
        self.assertNoResult(either)
        next(place for place in held if place.offer.node == "b").release()
        self.assertEqual(self.successResultOf(either).offer.node, "b")

    def test_node_comes(self) -> None:
        """Who waits gets the Node that becomes ready, up to its capacity."""
        self.pool.add("a", [offer("a")])
        self.successResultOf(self.admit())
        waiting = [self.admit(), self.admit()]
        self.pool.add("b", [offer("b")])
        self.assertEqual(self.successResultOf(waiting[0]).offer.node, "b")
        self.assertNoResult(waiting[1])

    def test_node_comes_again(self) -> None:
        """A Node that is ready again has all of its capacity; places of its earlier life do not count."""
        self.pool.add("n", [offer("n")])
        old = self.successResultOf(self.admit())
        self.pool.remove("n")
        self.pool.add("n", [offer("n")])
        self.successResultOf(self.admit())
        waiting = self.admit()
        old.release()
        self.assertNoResult(waiting)

    def test_held_node(self) -> None:
        """S11: a Node that is held gets nothing new and keeps what it has; who waits gets it when it is resumed."""
        self.pool.add("n", [offer("n", capacity=2)])
        place = self.successResultOf(self.admit())
        self.pool.hold("n")
        self.assertTrue(self.pool.is_held("n"))
        waiting, late = self.admit(), self.admit(1.0)
        self.assertNoResult(waiting)
        self.assertEqual((self.pool.taken("n", "p"), self.pool.queued("n", "p")), (1, 2))
        place.release()
        self.assertNoResult(waiting)
        self.clock.advance(1.0)
        self.failureResultOf(late, QueueLate)
        self.pool.resume("n")
        self.successResultOf(waiting)

    def test_held_node_beside_another(self) -> None:
        """S11: what a held Node would be given goes to others."""
        self.pool.add("a", [offer("a", capacity=2)])
        self.pool.add("b", [offer("b", capacity=2)])
        self.pool.hold("a")
        self.assertEqual([self.successResultOf(self.admit()).offer.node for _ in range(2)], ["b", "b"])

    def test_disabled_provider(self) -> None:
        """S11: a disabled provider gets nothing new; who waits for nothing else is refused, others wait on."""
        self.pool.add("a", [offer("a", labels={"zone": "a"})])
        self.pool.add("b", [offer("b")])
        places = {place.offer.node: place for place in [self.successResultOf(self.admit()) for _ in "ab"]}
        only_a, either = self.admit(want=replace(WANT, selector=parse("zone=a"))), self.admit()
        self.pool.disable("a", "p")
        self.assertEqual((self.pool.is_disabled("a", "p"), self.pool.is_disabled("b", "p")), (True, False))
        self.failureResultOf(only_a, NoNode)
        self.failureResultOf(self.admit(want=replace(WANT, selector=parse("zone=a"))), NoNode)
        places["a"].release()
        self.assertNoResult(either)
        self.pool.enable("a", "p")
        self.assertEqual(self.successResultOf(either).offer.node, "a")

    def test_remembered_while_away(self) -> None:
        """S11: what an operator said of a Node or a provider holds for its next connection too."""
        self.pool.hold("a")
        self.pool.disable("b", "p")
        self.pool.add("a", [offer("a")])
        self.pool.add("b", [offer("b")])
        waiting = self.admit()
        self.assertNoResult(waiting)
        self.pool.enable("b", "p")
        self.assertEqual(self.successResultOf(waiting).offer.node, "b")


class PoolMachine(RuleBasedStateMachine):
    """Anything in any order: no place beyond a capacity, no free place beside a waiter, every request one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.pool = Pool(self.clock, LIMIT)
        self.lives: dict[str, int] = {}
        self.held: list[tuple[Place, int]] = []
        self.waiting: list[Deferred[Place]] = []

    @rule(node=st.sampled_from("abc"), capacity=st.integers(1, 2))
    def add(self, node: str, capacity: int) -> None:
        self.lives[node] = self.lives.get(node, 0) + 1
        self.pool.add(node, [offer(node, labels={"life": str(self.lives[node])}, capacity=capacity)])

    @rule(node=st.sampled_from("abc"))
    def remove(self, node: str) -> None:
        self.pool.remove(node)

    @rule(
        principal=st.sampled_from(["ada", "bob", "cyd"]),
        avoid=st.frozensets(st.sampled_from("abc"), max_size=2),
        wait=st.floats(0.1, 9.0),
    )
    def admit(self, principal: str, avoid: frozenset[str], wait: float) -> None:
        asked = self.pool.admit(replace(WANT, principal=principal, avoid=avoid), wait)
        self.waiting.append(asked)

        def settled(outcome: object) -> None:
            self.waiting.remove(asked)
            if isinstance(outcome, Place):
                assert outcome.offer.node not in avoid
                self.held.append((outcome, self.lives[outcome.offer.node]))

        asked.addBoth(settled)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            place, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            place.release()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.waiting:
            self.waiting[data.draw(st.integers(0, len(self.waiting) - 1))].cancel()

    @rule(seconds=st.floats(0.0, 10.0))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def within_capacity(self) -> None:
        for node, life in self.lives.items():
            mine = [place for place, at in self.held if place.offer.node == node and at == life]
            assert len(mine) <= (mine[0].offer.capacity if mine else 0)

    @invariant()
    def one_timer_a_waiter(self) -> None:
        assert self.pool.waiting == len(self.waiting) == len(self.clock.reactor.getDelayedCalls())
        assert len(self.waiting) <= LIMIT * 3
        assert all(self.pool.queued(node, "p") <= LIMIT for node in "abc")


class PoolTotalityTests(SynchronousTestCase):
    """The machine above."""

    def test_any_order(self) -> None:
        """Every input in every state."""
        bounds = settings(max_examples=60, stateful_step_count=40, deadline=None)
        run_state_machine_as_test(PoolMachine, settings=bounds)
