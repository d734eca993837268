"""What providers offer and what requests want."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from iop.core.offers import ANY_MODEL, Offer, Want
from iop.core.selectors import parse

WANT = Want("ada", "openai", "openai", "gpt", parse(""))


def offer(node: str, capacity: int = 1, **changes: Any) -> Offer:
    """An offer that :data:`WANT` fits, but for the changes."""
    return replace(
        Offer(node, "p", "openai", "openai", frozenset({"gpt"}), capacity, long_capacity=capacity), **changes
    )


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
        none_long = offer("n", long_capacity=0)
        self.assertTrue(WANT.fits(none_long))
        self.assertFalse(replace(WANT, is_long=True).fits(none_long))
