"""Allowances: a burst, then a rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.allowance import Allowance


class AllowanceTests(SynchronousTestCase):
    def test_burst_then_rate(self) -> None:
        """Ten at once, the eleventh a second later, and everything again after ten quiet seconds."""
        allowance = Allowance(1.0, 10)
        self.assertEqual([allowance.take("ann", 5.0) for _ in range(11)], [0.0] * 10 + [1.0])
        self.assertEqual(allowance.take("ann", 5.75), 0.25)
        self.assertEqual([allowance.take("ann", 6.0) for _ in range(2)], [0.0, 1.0])
        self.assertEqual([allowance.take("ann", 99.0) for _ in range(11)], [0.0] * 10 + [1.0])

    def test_names_do_not_share(self) -> None:
        """P19: who has used up their own keeps nobody else waiting."""
        allowance = Allowance(1.0, 1)
        self.assertEqual([allowance.take(name, 0.0) for name in ("ann", "ann", "bob")], [0.0, 1.0, 0.0])

    @given(st.lists(st.floats(0, 3), max_size=60))
    def test_never_more_than_the_rate(self, pauses: list[float]) -> None:
        """Whatever the pauses, between any two moments no more is given than the burst and what was regained."""
        allowance, now, given_at = Allowance(2.0, 3), 0.0, list[float]()
        for pause in pauses:
            now += pause
            if not allowance.take("ann", now):
                given_at.append(now)
        for first, begin in enumerate(given_at):
            for last in range(first, len(given_at)):
                self.assertLessEqual(last - first + 1, 3 + 2.0 * (given_at[last] - begin) + 1e-6)
