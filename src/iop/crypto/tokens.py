"""Bearer tokens: how they look, how they are made, and what is kept of them (security.md, Tokens).

A token is ``iop_``, 43 characters for 256 random bits, and 6 characters of CRC-32 over the 47 before them. The check
characters catch typing errors and authenticate nothing. Its kind is not in it: the store knows that.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from dataclasses import dataclass
from typing import Final

from iop.errors import MalformedToken
from iop.records import NewToken, TokenKind
from iop.secret import Secret
from iop.units import new_id

PREFIX: Final = "iop_"
PROOF_DOMAIN: Final = b"iop/token-proof/v1\0"
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_CHARACTERS: Final = 43
_CHECK_CHARACTERS: Final = 6
_BODY_END: Final = len(PREFIX) + _RANDOM_CHARACTERS
_SHAPE: Final = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{_RANDOM_CHARACTERS + _CHECK_CHARACTERS}}}\Z")


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A token just made: ``text`` is shown once and disposed of, ``record`` is what the store keeps."""

    text: Secret
    record: NewToken


def mint(kind: TokenKind, expires_ms: int = 0) -> Token:
    """Make a token of 256 random bits.

    :param expires_ms: Unix milliseconds, or 0 when it does not expire.
    """
    body = PREFIX + _base62(int.from_bytes(os.urandom(32), "big"), _RANDOM_CHARACTERS)
    text = body + _check(body)
    record = NewToken(new_id(), kind, token_digest(text), token_proof(text), expires_ms)
    return Token(Secret(text.encode("ascii")), record)


def parse_token(text: str) -> str:
    """Answer ``text`` if it is a token in its one form.

    :raises MalformedToken: if it is not; the message tells a mistyped token from a string that never was one.
    """
    if _SHAPE.match(text) is None:
        raise MalformedToken("this is not an iop token", hint=f"a token is {PREFIX} and 49 letters and digits")
    body, check = text[:_BODY_END], text[_BODY_END:]
    if check != _check(body):
        raise MalformedToken("this token was mistyped: its last six characters do not match", hint="copy it again")
    if body > _LAST_BODY:
        raise MalformedToken("this is not an iop token: no 256 bits give it", hint="use one that iop printed")
    return text


def token_digest(text: str) -> bytes:
    """The verifier that Edges know: SHA-256 of the whole token, as :func:`parse_token` answered it (C39)."""
    return hashlib.sha256(text.encode("ascii")).digest()


def token_proof(text: str) -> bytes:
    """What shows the Control Plane that an Edge saw the token; never projected."""
    return hashlib.sha256(PROOF_DOMAIN + text.encode("ascii")).digest()


def _check(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), _CHECK_CHARACTERS)


def _base62(number: int, width: int) -> str:
    characters = []
    for _ in range(width):
        number, value = divmod(number, 62)
        characters.append(_ALPHABET[value])
    return "".join(reversed(characters))


#: The alphabet is in ASCII's order, so texts of one length compare as their numbers do.
_LAST_BODY: Final = PREFIX + _base62((1 << 256) - 1, _RANDOM_CHARACTERS)
