"""The tables that say which test proves which rule are true and whole."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from tests.claims import DOCUMENTS, ROOT, claims, filled


class ClaimTests(SynchronousTestCase):
    def test_the_columns_are_up_to_date(self) -> None:
        """``make docs`` was run after the last change of a docstring."""
        found = claims()
        for name in DOCUMENTS:
            text = (ROOT / name).read_text()
            self.assertEqual(text, filled(text, found), f"{name} is out of date: run `make docs`")

    def test_every_rule_has_a_test(self) -> None:
        """A rule or property without a test says ``planned``, and only properties may."""
        for name in DOCUMENTS:
            for line in (ROOT / name).read_text().splitlines():
                row = re.match(r"\| ([CKQPWELNRS]\d{1,2}) \|.*\| *(.*?) *\|\Z", line)
                if row:
                    self.assertTrue(row[2], f"{name}: nothing proves {row[1]}")
                    self.assertTrue(row[2] != "planned" or row[1].startswith("P"), f"{name}: {row[1]} is only planned")
