from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.barrier import Standing, Waiting, barrier, standing
from iop.records import Barrier, EdgeSession

WINDOW_MS = 65_000
NOW_MS = 1_000_000
COMMITTED_MS = 990_000
GENERATION = 7

LIVE = EdgeSession("live", "edge-1", True, GENERATION - 1, 0, 1, 0)
ENDED = replace(LIVE, session="ended", ended_ms=NOW_MS - 1)


def found(session: EdgeSession, *, running: bool = True) -> Standing:
    return standing(session, GENERATION, NOW_MS, WINDOW_MS, running=running)


class StandingTests(SynchronousTestCase):
    """What one session is to a mutation (E10)."""

    def test_live_and_silent_is_awaited(self) -> None:
        assert found(LIVE) is Standing.AWAITED

    def test_acknowledged_at_exactly_the_generation(self) -> None:
        assert found(replace(LIVE, acknowledged=GENERATION)) is Standing.ACKNOWLEDGED

    def test_acknowledged_later_generation(self) -> None:
        assert found(replace(LIVE, acknowledged=GENERATION + 5)) is Standing.ACKNOWLEDGED

    def test_unconfirmed_runs_are_not_acknowledged(self) -> None:
        assert found(replace(LIVE, acknowledged=GENERATION, unconfirmed=2)) is Standing.UNCONFIRMED

    def test_unconfirmed_runs_of_an_older_acknowledgement_do_not_count(self) -> None:
        assert found(replace(LIVE, unconfirmed=2)) is Standing.AWAITED

    def test_not_ready_cannot_lease_so_nobody_waits(self) -> None:
        """Nor is it cut off when it ends: it holds nothing from before."""
        for session in (LIVE, ENDED):
            for running in (True, False):
                assert found(replace(session, ready=False), running=running) is Standing.HARMLESS

    def test_ended_within_the_window_is_cut_off_and_one_past_is_harmless(self) -> None:
        """At the limit and one past: a lease of a session ends with the window, not after it."""
        inside = replace(ENDED, ended_ms=NOW_MS - WINDOW_MS + 1)
        assert found(inside) is Standing.CUT_OFF
        assert found(replace(inside, ended_ms=NOW_MS - WINDOW_MS)) is Standing.HARMLESS

    def test_ended_after_acknowledging_is_acknowledged(self) -> None:
        assert found(replace(ENDED, acknowledged=GENERATION)) is Standing.ACKNOWLEDGED

    def test_nobody_runs_so_nobody_is_awaited(self) -> None:
        assert found(LIVE, running=False) is Standing.CUT_OFF


class BarrierTests(SynchronousTestCase):
    def test_no_session_is_reached_at_once(self) -> None:
        for running in (True, False):
            assert barrier([], GENERATION, COMMITTED_MS, NOW_MS, WINDOW_MS, running=running) == Barrier(
                GENERATION, 0, 0, 0, COMMITTED_MS + WINDOW_MS
            )

    def test_waits_for_exactly_the_awaited(self) -> None:
        sessions = [LIVE, replace(LIVE, session="done", acknowledged=GENERATION), ENDED]
        assert barrier(sessions, GENERATION, COMMITTED_MS, NOW_MS, WINDOW_MS, running=True) == Waiting(
            frozenset({"live"})
        )

    def test_counts(self) -> None:
        sessions = [
            replace(LIVE, session="a", acknowledged=GENERATION),
            replace(LIVE, session="b", acknowledged=GENERATION),
            replace(LIVE, session="c", acknowledged=GENERATION, unconfirmed=1),
            ENDED,
        ]
        assert barrier(sessions, GENERATION, COMMITTED_MS, NOW_MS, WINDOW_MS, running=True) == Barrier(
            GENERATION, acknowledged=2, cut_off=1, unconfirmed=1, effective_ms=COMMITTED_MS + WINDOW_MS
        )


rows = st.lists(
    st.builds(
        EdgeSession,
        session=st.uuids().map(str),
        edge=st.sampled_from(["edge-1", "edge-2"]),
        ready=st.booleans(),
        acknowledged=st.integers(0, 12),
        unconfirmed=st.integers(0, 2),
        opened_ms=st.just(1),
        ended_ms=st.one_of(st.just(0), st.integers(NOW_MS - 2 * WINDOW_MS, NOW_MS + 1000)),
    ),
    max_size=12,
    unique_by=lambda each: each.session,
)


class EveryReadingTests(SynchronousTestCase):
    """Totality: every set of rows gives either a wait or three disjoint counts."""

    @settings(deadline=None)
    @given(rows, st.integers(1, 12), st.booleans())
    def test_disjoint_and_total(self, sessions: list[EdgeSession], generation: int, running: bool) -> None:
        """P41: whoever may still act on what was before is awaited or counted, and nobody twice."""
        decided = barrier(sessions, generation, COMMITTED_MS, NOW_MS, WINDOW_MS, running=running)
        relevant = [each for each in sessions if not each.ended_ms or each.ended_ms > NOW_MS - WINDOW_MS]
        behind = [each for each in relevant if each.acknowledged < generation]
        if isinstance(decided, Waiting):
            assert running
            live = {each.session for each in behind if not each.ended_ms and each.ready}
            assert decided.sessions == live
            return
        said = [each for each in relevant if each.acknowledged >= generation]
        assert decided.acknowledged + decided.unconfirmed == len(said)
        assert decided.unconfirmed == len([each for each in said if each.unconfirmed])
        gone = [each for each in behind if each.ready and (each.ended_ms or not running)]
        assert decided.cut_off == len(gone)

    @settings(deadline=None)
    @given(rows, st.integers(1, 12))
    def test_ending_everything_awaited_ends_the_wait(self, sessions: list[EdgeSession], generation: int) -> None:
        """A barrier always ends: whoever cuts off what is awaited gets the counts, with those as cut off."""
        before = barrier(sessions, generation, COMMITTED_MS, NOW_MS, WINDOW_MS, running=True)
        awaited = before.sessions if isinstance(before, Waiting) else frozenset()
        after = barrier(
            [replace(each, ended_ms=NOW_MS) if each.session in awaited else each for each in sessions],
            generation,
            COMMITTED_MS,
            NOW_MS,
            WINDOW_MS,
            running=True,
        )
        assert isinstance(after, Barrier)
        assert after.cut_off >= len(awaited)
