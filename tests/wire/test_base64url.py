"""base64url: one text for every byte string (P38)."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import MalformedInput
from iop.wire.base64url import decode, encode


class Base64Url(SynchronousTestCase):
    """P38."""

    @given(st.binary(max_size=100))
    def test_round_trip(self, data: bytes) -> None:
        """P38: what is encoded decodes to itself, and is what the standard library makes without padding."""
        self.assertEqual(encode(data), base64.urlsafe_b64encode(data).decode().rstrip("="))
        self.assertEqual(decode(encode(data)), data)

    @given(st.text(alphabet="AQgw_-+/= \n\u00e9", max_size=9))
    def test_canonical(self, text: str) -> None:
        """P38: whatever is accepted is the one text of its bytes."""
        try:
            data = decode(text)
        except MalformedInput:
            return
        self.assertEqual(encode(data), text)

    def test_refused(self) -> None:
        """P38: padding, another alphabet, white space, impossible lengths, unused bits that are set."""
        accepted = []
        for text in (
            "AA==",
            "AAA=",
            "A",
            "AAAAA",
            "A+AA",
            "A/AA",
            "AA\n",
            " AA",
            "AB",
            "AAB",
            "A A",
            "AA\u00e9",
            "=",
        ):
            try:
                decode(text)
            except MalformedInput:
                continue
            accepted.append(text)
        self.assertEqual(accepted, [])
