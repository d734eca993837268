"""Selectors over provider labels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.selectors import TERM_LIMIT, Selector, parse
from iop.errors import MalformedInput
from iop.units import SELECTOR_LIMIT

parts = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,8}[A-Za-z0-9])?", fullmatch=True)


class SelectorTests(SynchronousTestCase):
    """Parsing and matching."""

    @given(st.dictionaries(parts, parts, max_size=TERM_LIMIT))
    def test_reads_what_is_written(self, terms: dict[str, str]) -> None:
        """Every selector of the form is read as what it says, and matches exactly the labels that hold it."""
        selector = parse(",".join(f"{key}={value}" for key, value in terms.items()))
        self.assertEqual(dict(selector.terms), terms)
        self.assertTrue(selector.matches({**terms, "one": "more"} if "one" not in terms else terms))
        for key in terms:
            self.assertFalse(selector.matches({**terms, key: "~"}))
            self.assertFalse(selector.matches({name: value for name, value in terms.items() if name != key}))

    def test_empty(self) -> None:
        """The empty selector matches everything."""
        self.assertEqual(parse(""), Selector(()))
        self.assertTrue(parse("").matches({}))

    def test_refused(self) -> None:
        """Nothing else is read, and above all nothing is read as the empty selector."""
        for text in (" ", ",", "a", "a=", "=b", "a=b,", "a=b,,c=d", "a = b", "a=b=c", "a=b,a=c", "a=é", "a=b\n"):
            self.assertRaises(MalformedInput, parse, text)

    def test_bounds(self) -> None:
        """As many terms as allowed, and one more; the longest part, and one more."""
        self.assertEqual(len(parse(",".join(f"k{number}=v" for number in range(TERM_LIMIT))).terms), TERM_LIMIT)
        self.assertRaises(MalformedInput, parse, ",".join(f"k{number}=v" for number in range(TERM_LIMIT + 1)))
        eight = ",".join(f"{number:02}{'k' * 59}={'v' * 62}" for number in range(8))
        longest = f"{eight},a={'b' * (SELECTOR_LIMIT - len(eight) - 3)}"
        self.assertEqual((len(longest), len(parse(longest).terms)), (SELECTOR_LIMIT, 9))
        self.assertRaises(MalformedInput, parse, longest + "b")
        self.assertEqual(parse(f"k={'v' * 63}").terms, (("k", "v" * 63),))
        self.assertRaises(MalformedInput, parse, f"k={'v' * 64}")

    @given(st.text(max_size=60))
    def test_never_another_error(self, text: str) -> None:
        """Whatever comes in: a selector with as many terms as the text has, or the one refusal."""
        try:
            selector = parse(text)
        except MalformedInput:
            return
        self.assertEqual(",".join("=".join(term) for term in selector.terms), text)
