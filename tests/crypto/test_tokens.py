"""Tokens: one form, and what is refused."""

from __future__ import annotations

import re
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.tokens import mint, parse_token, token_digest, token_proof
from iop.errors import MalformedToken
from iop.records import TokenKind
from tests.crypto.independent import base62, token_text

GOOD = token_text(bytes(range(32)))
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class TokenTests(SynchronousTestCase):
    """security.md, Tokens."""

    def refusal(self, text: str) -> str:
        """The message with which ``text`` is refused."""
        with self.assertRaises(MalformedToken) as caught:
            parse_token(text)
        message: str = caught.exception.message
        return message

    def test_mint(self) -> None:
        """A minted token parses; its record holds verifier and proof, and never the token (K7)."""
        for kind in TokenKind:
            token = mint(kind, expires_ms=5)
            text = token.text.reveal().decode("ascii")
            self.assertTrue(re.fullmatch(r"iop_[0-9A-Za-z]{49}", text))
            self.assertEqual(parse_token(text), text)
            record = token.record
            self.assertEqual((record.kind, record.expires_ms), (kind, 5))
            self.assertEqual((record.digest, record.proof), (token_digest(text), token_proof(text)))
            for shown in (repr(token), str(token), repr(record)):
                self.assertNotIn(text, shown)
                self.assertNotIn(record.digest.hex(), shown)

    def test_mint_differs(self) -> None:
        """Each token has its own randomness and id."""
        tokens = [mint(TokenKind.USE) for _ in range(50)]
        self.assertEqual(len({bytes(token.text.reveal()) for token in tokens}), 50)
        self.assertEqual(len({token.record.token_id for token in tokens}), 50)

    @settings(deadline=None)
    @given(st.binary(min_size=32, max_size=32))
    def test_every_number(self, random: bytes) -> None:
        """Each of the 2^256 numbers has a token that parses."""
        text = token_text(random)
        self.assertEqual(parse_token(text), text)

    def test_limits(self) -> None:
        """The largest number parses, one more is no token although its check characters are right."""
        self.assertEqual(parse_token(token_text(b"\xff" * 32)), token_text(b"\xff" * 32))
        self.assertEqual(parse_token(token_text(bytes(32))), token_text(bytes(32)))
        for number in (2**256, 62**43 - 1):
            self.assertEqual(self.refusal(_token_of(number)), "this is not an iop token: no 256 bits give it")

    def test_mistyped(self) -> None:
        """Each single character typed wrong is found, and said to be mistyped."""
        for place in range(4, len(GOOD)):
            for character in CHARACTERS:
                if character != GOOD[place]:
                    text = GOOD[:place] + character + GOOD[place + 1 :]
                    self.assertIn("mistyped", self.refusal(text))

    def test_swapped(self) -> None:
        """Two neighbours swapped are found."""
        for place in range(4, len(GOOD) - 1):
            text = GOOD[:place] + GOOD[place + 1] + GOOD[place] + GOOD[place + 2 :]
            if text != GOOD:
                self.assertIn("mistyped", self.refusal(text))

    def test_no_token(self) -> None:
        """P20: a digest, another scheme, empty, doubled, over-long and look-alike characters are no tokens."""
        for text in (
            "",
            "iop_",
            token_digest(GOOD).hex(),
            "sk-" + GOOD,
            "IOP_" + GOOD[4:],
            "iop-" + GOOD[4:],
            GOOD + GOOD,
            GOOD + "\n",
            " " + GOOD,
            GOOD[:-1],
            GOOD[:-1] + " ",
            GOOD[:-1] + "-",
            GOOD[:-1] + "\0",
            GOOD[:-1] + "\u0661",
            GOOD[:-1] + "\uff11",
            GOOD[:-1] + "\ud800",
            "Bearer " + GOOD,
            GOOD * 1000,
        ):
            self.assertEqual(self.refusal(text), "this is not an iop token")

    @settings(deadline=None)
    @given(st.text())
    def test_any_text(self, text: str) -> None:
        """Whatever is not a token is refused with its own error; nothing else happens."""
        self.assertRaises(MalformedToken, parse_token, text)

    @settings(deadline=None)
    @given(st.text(CHARACTERS, min_size=49, max_size=49))
    def test_right_shape(self, rest: str) -> None:
        """Nor does the right shape alone make a token."""
        self.assertRaises(MalformedToken, parse_token, "iop_" + rest)


def _token_of(number: int) -> str:
    """A token body of any number, with the right check characters."""
    body = "iop_" + base62(number, 43)
    return body + base62(zlib.crc32(body.encode()), 6)
