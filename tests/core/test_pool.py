"""Admission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from iop.core.offers import Want
from iop.core.pool import Place, Pool
from iop.core.selectors import parse
from iop.errors import IopError, NoNode, ProviderUnreachable, QueueFull, QueueLate
from iop.testing.clock import FakeClock
from tests.core.test_offers import WANT, offer

LIMIT = 3
LONG = replace(WANT, is_long=True)


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
        """S14: as many places as the capacity says, and not one more until one is released."""
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
        """S14: the provider with the largest free share gets the request."""
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
        """P19, S15: a queue that one principal filled has room for others, until none has fewer requests in it."""
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
        """S15: the queue takes its limit and refuses one more."""
        self.pool.add("n", [offer("n")])
        self.successResultOf(self.admit())
        waiting = [self.admit() for _ in range(LIMIT)]
        self.failureResultOf(self.admit(), QueueFull)
        self.assertEqual(self.pool.waiting, LIMIT)
        for one in waiting:
            self.assertNoResult(one)

    def test_wait_is_bounded(self) -> None:
        """S15: who waits is refused at the deadline and not before; the place then goes to the next."""
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
        """S15: who gives up leaves the queue, and nothing of it stays behind."""
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
        """C33, S14: who waits gets the Node that becomes ready, up to its capacity."""
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
        """S11, S19: a Node that is held gets nothing new and keeps what it has; who waits gets it when it resumes."""
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
        """S11, S19: a disabled provider gets nothing new; who waits for nothing else is refused, others wait on."""
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

    def test_long_requests(self) -> None:
        """S16: long requests take their part of the capacity and no more; short ones go past those that wait."""
        self.pool.add("n", [offer("n", capacity=3, long_capacity=1)])
        first = self.successResultOf(self.admit(want=LONG))
        second = self.admit(want=LONG)
        self.assertNoResult(second)
        self.assertEqual((self.pool.long_taken("n", "p"), self.pool.long_queued("n", "p")), (1, 1))
        short = [self.successResultOf(self.admit()) for _ in range(2)]
        third = self.admit()
        self.assertNoResult(third)
        self.assertEqual((self.pool.taken("n", "p"), self.pool.queued("n", "p")), (3, 2))
        short[0].release()
        self.successResultOf(third)
        self.assertNoResult(second)
        first.release()
        self.successResultOf(second)

    def test_no_long_requests(self) -> None:
        """S16: a provider with nothing for long requests never gets one, and who asks is told why."""
        self.pool.add("n", [offer("n", long_capacity=0)])
        error = self.failureResultOf(self.admit(want=LONG), NoNode).value
        self.assertEqual(error.message, "no Node that is ready takes requests of this size")
        self.successResultOf(self.admit())

    def test_long_requests_are_not_starved(self) -> None:
        """P19, S16: another's short requests delay a long one by no more turns than came before it."""
        self.pool.add("n", [offer("n", capacity=1)])
        held = self.successResultOf(self.admit())
        before = [self.admit(), self.admit(want=replace(WANT, principal="bob"))]
        long = self.admit(want=LONG)
        turns = 0
        for _ in range(10):
            self.admit(want=replace(WANT, principal="bob")).addErrback(lambda _: None)
            held.release()
            granted = [asked for asked in [*before, long] if asked.called]
            if long.called:
                break
            turns += 1
            (asked,) = granted
            before.remove(asked)
            held = self.successResultOf(asked)
        self.assertEqual(turns, 2)

    def test_own_short_requests_do_not_starve_long_ones(self) -> None:
        """P19, S16: who holds many short places still gets its turn at the long ones, and not before its time."""
        self.pool.add("n", [offer("n", capacity=4, long_capacity=1)])
        his = replace(LONG, principal="bob")
        for _ in range(3):
            self.successResultOf(self.admit())
        held = self.successResultOf(self.admit(want=his))
        hers = self.admit(want=LONG)
        again = self.admit(want=his)
        held.release()
        self.successResultOf(hers)
        self.assertNoResult(again)

    def test_unreachable_provider(self) -> None:
        """S17: who waits for it alone is refused at once, others wait on; once it answers, all may have it again."""
        self.pool.add("a", [offer("a", capacity=2, labels={"zone": "a"})])
        self.pool.add("b", [offer("b")])
        only_a = replace(WANT, selector=parse("zone=a"))
        places = {place.offer.node: place for place in [self.successResultOf(self.admit()) for _ in range(3)]}
        picky, either = self.admit(want=only_a), self.admit()
        self.assertEqual([places["a"].unreachable() for _ in range(3)], [False, False, True])
        self.assertGreater(self.failureResultOf(picky, ProviderUnreachable).value.retry_seconds, 0)
        self.failureResultOf(self.admit(want=only_a), ProviderUnreachable)
        places["a"].release()
        self.assertNoResult(either)
        self.clock.advance(10.0)
        probe = self.successResultOf(self.admit(want=only_a))
        self.failureResultOf(self.admit(want=only_a), ProviderUnreachable)
        other_of_a = self.pool.taken("a", "p")
        probe.release()
        self.assertEqual(self.pool.taken("a", "p"), other_of_a - 1)
        probe = self.successResultOf(self.admit(want=only_a))
        self.assertTrue(probe.reached())
        probe.release()
        self.assertEqual(self.successResultOf(either).offer.node, "a")

    def test_a_slow_probe_keeps_nobody_out_for_long(self) -> None:
        """S17, P19: who tries a provider with a request that takes very long delays others by one pause."""
        self.pool.add("a", [offer("a", capacity=9)])
        place = self.successResultOf(self.admit())
        for _ in range(3):
            place.unreachable()
        self.clock.advance(10.0)
        self.successResultOf(self.admit(want=replace(WANT, principal="mallory")))
        self.failureResultOf(self.admit(), ProviderUnreachable)
        self.clock.advance(20.0)
        self.assertTrue(self.successResultOf(self.admit()).reached())
        self.assertTrue(self.pool.gives("a", "p"))

    def test_probe_goes_first(self) -> None:
        """S17: a provider that is due is tried by the next request, also where another is free."""
        self.pool.add("a", [offer("a")])
        place = self.successResultOf(self.admit())
        for _ in range(3):
            place.unreachable()
        place.release()
        self.pool.add("b", [offer("b", capacity=9)])
        self.assertEqual(self.successResultOf(self.admit()).offer.node, "b")
        self.clock.advance(10.0)
        self.assertEqual([self.successResultOf(self.admit()).offer.node for _ in "xy"], ["a", "b"])

    def test_barred_providers_are_not_tried(self) -> None:
        """S17: nobody tries a provider that is due if it is disabled, or its Node held or away."""
        bars: list[tuple[Callable[[Pool], None], type[IopError]]] = [
            (lambda pool: pool.hold("n"), ProviderUnreachable),
            (lambda pool: pool.remove("n"), ProviderUnreachable),
            (lambda pool: pool.disable("n", "p"), NoNode),
        ]
        for bar, error in bars:
            self.pool = Pool(self.clock, LIMIT, 3.0)
            self.pool.add("n", [offer("n")])
            place = self.successResultOf(self.admit())
            for _ in range(3):
                place.unreachable()
            place.release()
            self.clock.advance(10.0)
            bar(self.pool)
            self.failureResultOf(self.admit(), error)

    def test_waits_for_a_node_that_comes_again(self) -> None:
        """S18: who waited when the Node went, and who came later, wait for it for a while; nothing is left then."""
        self.pool = Pool(self.clock, LIMIT, 3.0)
        self.pool.add("n", [offer("n")])
        place = self.successResultOf(self.admit())
        before = self.admit()
        self.pool.remove("n")
        place.release()
        later = self.admit()
        self.clock.advance(2.0)
        # a connection that ends before it is ready is not waited for anew
        self.pool.remove("n")
        self.assertFalse(self.pool.offers("n", "p"))
        self.assertNoResult(before)
        self.pool.add("n", [offer("n")])
        self.successResultOf(before).release()
        self.successResultOf(later)
        self.pool.remove("n")
        waiting = self.admit()
        self.clock.advance(2.9)
        self.assertNoResult(waiting)
        self.clock.advance(0.1)
        self.failureResultOf(waiting, NoNode)
        self.failureResultOf(self.admit(), NoNode)
        self.assertEqual((self.pool.waiting, self.clock.reactor.getDelayedCalls()), (0, []))

    def test_node_that_comes_again_with_less(self) -> None:
        """S18: who waited for what the Node serves no more is refused when it is back."""
        self.pool = Pool(self.clock, LIMIT, 3.0)
        self.pool.add("n", [offer("n")])
        self.pool.remove("n")
        waiting = self.admit()
        self.pool.add("n", [offer("n", target="lab")])
        self.failureResultOf(waiting, NoNode)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

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
