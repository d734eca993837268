"""R8, P18: what may travel as a header between Edge and Node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.headers import (
    CREDENTIALS,
    HEADER_BYTES_LIMIT,
    HEADER_FIELDS_LIMIT,
    HOP_BY_HOP,
    REQUEST_HEADERS,
    header_fault,
)


class HeaderTests(SynchronousTestCase):
    def test_ordinary_fields(self) -> None:
        self.assertIsNone(header_fault([]))
        self.assertIsNone(
            header_fault([("content-type", "text/plain; charset=utf-8"), ("x-a", ""), ("x-a", "caf\xe9")])
        )

    def test_control_characters(self) -> None:
        """P18: CR, LF, NUL and every other control character is refused, in names and in values."""
        for code in (*range(0x20), *range(0x7F, 0xA0)):
            for text in (chr(code), f"a{chr(code)}", f"{chr(code)}a", f"a{chr(code)}b"):
                self.assertIsNotNone(header_fault([("x-a", text)]), code)
                self.assertIsNotNone(header_fault([(text, "a")]), code)

    def test_names_are_lower_case_tokens(self) -> None:
        for name in ("", "X-A", "x a", "x:a", "x(a", "é", ":path"):
            self.assertIsNotNone(header_fault([(name, "a")]), name)

    def test_hop_by_hop_and_credentials(self) -> None:
        """R8"""
        for name in HOP_BY_HOP | CREDENTIALS:
            self.assertIsNotNone(header_fault([("accept", "a"), (name, "a")]), name)
        self.assertFalse(REQUEST_HEADERS & (HOP_BY_HOP | CREDENTIALS))

    def test_limits(self) -> None:
        """R8: at the limit, and one past."""
        self.assertIsNone(header_fault([("a", "")] * HEADER_FIELDS_LIMIT))
        self.assertIsNotNone(header_fault([("a", "")] * (HEADER_FIELDS_LIMIT + 1)))
        self.assertIsNone(header_fault([("a", "b" * (HEADER_BYTES_LIMIT - 1))]))
        self.assertIsNotNone(header_fault([("a", "b" * HEADER_BYTES_LIMIT)]))

    @given(st.text(min_size=1))
    def test_a_value_that_passes_is_one_header_line(self, value: str) -> None:
        """P18: whatever passes can be written as Latin-1 on a single line; the refusal quotes nothing."""
        fault = header_fault([("x-a", value)])
        if fault is None:
            self.assertEqual(len(value.encode("latin-1").splitlines()), 1)
        else:
            self.assertEqual(fault, "the value of header x-a holds control or non-Latin-1 characters")
