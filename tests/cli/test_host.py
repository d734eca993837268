from __future__ import annotations

import os
import pwd
from collections.abc import Callable

from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase

from iop.cli.host import Reached, actor, confirm
from iop.errors import StoreBusy
from iop.records import Barrier, Committed
from iop.store.memory import MemoryStore
from iop.testing.clock import FakeClock

WINDOW_MS = 65_000


class ConfirmTests(SynchronousTestCase):
    """A host-local mutation waits for the Edges through the session rows alone (K14, E10)."""

    def setUp(self) -> None:
        super().setUp()
        self.clock = FakeClock()
        self.store = MemoryStore("deployment-1", self.clock.wall_ms)
        self.running = True

    def ready_session(self, edge: str = "edge-1") -> str:
        session = self.successResultOf(self.store.edge_sessions.open(edge, self.clock.wall_ms()))
        generation = self.successResultOf(self.store.projections.generation())
        self.successResultOf(self.store.edge_sessions.acknowledge(session, generation, 0))
        return session

    def deny(self) -> Deferred[Barrier | None]:
        """Make a change, and wait for it."""
        self.committed = self.successResultOf(self.store.denials.deny("node", "node-1", "host:tester"))
        waiting = confirm(self.store, self.committed, self.clock, WINDOW_MS, lambda: self.running)
        return Deferred.fromCoroutine(waiting)

    def expected(self, **counts: int) -> Barrier:
        everything = {"acknowledged": 0, "cut_off": 0, "unconfirmed": 0, **counts}
        effective_ms = self.committed.committed_ms + WINDOW_MS
        return Barrier(generation=self.committed.generation, effective_ms=effective_ms, **everything)

    def test_no_session_is_confirmed_at_once(self) -> None:
        assert self.successResultOf(self.deny()) == self.expected()

    def test_nobody_runs_so_nobody_is_awaited(self) -> None:
        self.ready_session()
        self.running = False
        assert self.successResultOf(self.deny()) == self.expected(cut_off=1)

    def test_waits_for_each_acknowledgement(self) -> None:
        first, second = self.ready_session("edge-1"), self.ready_session("edge-2")
        done = self.deny()
        for session, unconfirmed in ((first, 0), (second, 2)):
            self.clock.advance(0.05)
            self.assertNoResult(done)
            acknowledged = self.store.edge_sessions.acknowledge(session, self.committed.generation, unconfirmed)
            self.successResultOf(acknowledged)
        self.clock.advance(0.05)
        assert self.successResultOf(done) == self.expected(acknowledged=1, unconfirmed=1)

    def test_cut_off_ends_the_wait(self) -> None:
        session = self.ready_session()
        done = self.deny()
        self.successResultOf(self.store.edge_sessions.end(session, self.clock.wall_ms()))
        self.clock.advance(0.05)
        assert self.successResultOf(done) == self.expected(cut_off=1)

    def test_control_plane_that_dies_ends_the_wait(self) -> None:
        self.ready_session()
        done = self.deny()
        self.running = False
        self.clock.advance(0.05)
        assert self.successResultOf(done) == self.expected(cut_off=1)

    def test_silence_is_not_confirmed_after_ten_seconds(self) -> None:
        """At the limit and one look before: the wait is bounded, and nothing waits after it."""
        self.ready_session()
        done = self.deny()
        self.clock.reactor.pump([0.05] * 199)
        self.assertNoResult(done)
        self.clock.reactor.pump([0.05] * 2)
        assert self.successResultOf(done) is None
        assert self.clock.reactor.getDelayedCalls() == []

    def test_store_that_is_busy_is_asked_again(self) -> None:
        read = self.store.edge_sessions.since
        self.patch(self.store.edge_sessions, "since", lambda _: fail(StoreBusy("busy")))
        done = self.deny()
        self.clock.advance(0.05)
        self.assertNoResult(done)
        self.patch(self.store.edge_sessions, "since", read)
        self.clock.advance(0.05)
        assert self.successResultOf(done) == self.expected()


class ReachedTests(SynchronousTestCase):
    def finished(self, barrier: Barrier | None) -> Callable[[], None]:
        return lambda: Reached(Committed(None, 7, 1_000), barrier, 66_000).finish(as_json=True)

    def test_unconfirmed_exits_with_3(self) -> None:
        end = self.assertRaises(SystemExit, self.finished(None))
        assert end.code == 3

    def test_confirmed_goes_on(self) -> None:
        self.finished(Barrier(7, 0, 1, 0, 66_000))()

    def test_json(self) -> None:
        committed = Committed(None, 7, 1_000)
        by = "1970-01-01T00:01:06.000Z"
        counts = {"acknowledged": 1, "cut_off": 2, "unconfirmed": 3}
        confirmed = Reached(committed, Barrier(7, 1, 2, 3, 66_000), 66_000)
        assert confirmed.as_json() == {"generation": 7, "edges": counts, "effective_by": by}
        unknown = Reached(committed, None, 66_000)
        assert unknown.as_json() == {"generation": 7, "edges": None, "effective_by": by}


class ActorTests(SynchronousTestCase):
    def test_actor_is_the_user_and_not_what_the_environment_says(self) -> None:
        self.patch(os, "environ", {"LOGNAME": "mallory", "USER": "mallory"})
        assert actor() == f"host:{pwd.getpwuid(os.getuid()).pw_name}"
