"""Whether a provider can be reached."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.health import FAILURES, FIRST_PROBE_SECONDS, LAST_PROBE_SECONDS, Health

CALLS = st.lists(
    st.tuples(st.sampled_from(["reached", "failed", "done", "try_with"]), st.sampled_from("xyz"), st.integers(0, 70)),
    max_size=40,
)


class HealthTests(SynchronousTestCase):
    """Failures in a row, probes, pauses."""

    def setUp(self) -> None:
        self.health = Health()

    def fail_all(self) -> None:
        for _ in range(FAILURES):
            self.health.failed("somebody", 0.0)

    def test_failures_in_a_row(self) -> None:
        """S17: it is unreachable after three in a row, and an answer in between counts them anew."""
        for _ in range(FAILURES - 1):
            self.health.failed("somebody", 0.0)
        self.health.reached()
        for _ in range(FAILURES - 1):
            self.health.failed("somebody", 0.0)
            self.assertTrue(self.health.is_reachable)
        self.health.failed("somebody", 0.0)
        self.assertFalse(self.health.is_reachable)

    def test_pauses_double(self) -> None:
        """S17: it is tried after 10 s, then after twice as long each time, up to 60 s."""
        self.fail_all()
        now, pauses = 0.0, []
        for _ in range(5):
            pauses.append(self.health.seconds_until_due(now))
            self.assertFalse(self.health.is_due(now + pauses[-1] - 0.001))
            now += pauses[-1]
            self.assertTrue(self.health.is_due(now))
            self.health.try_with("probe", now)
            self.health.failed("probe", now)
        self.assertEqual(pauses, [10.0, 20.0, 40.0, 60.0, 60.0])

    def test_one_probe(self) -> None:
        """S17: while one request tries it, no other does; if that finds nothing out, the next may at once."""
        self.fail_all()
        self.health.try_with("probe", 10.0)
        self.assertFalse(self.health.is_due(29.0))
        self.health.done("somebody")
        self.assertFalse(self.health.is_due(29.0))
        self.health.done("probe")
        self.assertTrue(self.health.is_due(29.0))

    def test_a_probe_without_a_word(self) -> None:
        """S17: one that says nothing keeps others out for no longer than the next pause, and its failure is late."""
        self.fail_all()
        now = 10.0
        for number, pause in enumerate((20.0, 40.0, 60.0, 60.0)):
            self.health.try_with(number, now)
            self.assertEqual(self.health.seconds_until_due(now), pause)
            self.assertFalse(self.health.is_due(now + pause - 0.001))
            now += pause
            self.assertTrue(self.health.is_due(now))
        self.health.try_with("probe", now)
        self.health.failed(0, now)
        self.health.done(1)
        self.assertFalse(self.health.is_due(now + LAST_PROBE_SECONDS - 0.001))
        self.health.reached()
        self.assertTrue(self.health.is_reachable)

    def test_earlier_requests(self) -> None:
        """S17: what was given to it before neither prolongs the pause nor ends a probe, but shows that it answers."""
        self.fail_all()
        self.health.failed("somebody", 9.0)
        self.assertEqual(self.health.seconds_until_due(0.0), FIRST_PROBE_SECONDS)
        self.health.try_with("probe", 10.0)
        self.health.failed("somebody", 29.0)
        self.assertFalse(self.health.is_due(29.0))
        self.assertTrue(self.health.is_due(30.0))
        self.health.reached()
        self.assertTrue(self.health.is_reachable)
        # the old probe is none any more
        self.fail_all()
        self.health.try_with("another", 40.0)
        self.health.failed("probe", 50.0)
        self.health.done("probe")
        self.assertFalse(self.health.is_due(59.0))

    @settings(max_examples=200, deadline=None)
    @given(CALLS)
    def test_any_order(self, calls: list[tuple[str, str, int]]) -> None:
        """S17: total; unreachable exactly after three failures since the last answer; tried within a minute."""
        health, now, failures = Health(), 0.0, 0
        for call, who, seconds in calls:
            now += seconds
            match call:
                case "reached":
                    health.reached()
                    failures = 0
                case "failed":
                    health.failed(who, now)
                    failures += 1
                case "done":
                    health.done(who)
                case _ if health.is_due(now):
                    health.try_with(who, now)
            self.assertEqual(health.is_reachable, failures < FAILURES)
            self.assertLessEqual(health.seconds_until_due(now), LAST_PROBE_SECONDS)
            if health.is_reachable:
                self.assertFalse(health.is_due(now))
