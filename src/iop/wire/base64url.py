"""base64url without padding (RFC 4648, section 5), in its one canonical form (P38)."""

from __future__ import annotations

import base64
import re
from typing import Final

from iop.errors import MalformedInput

_ALPHABET: Final = re.compile(r"[A-Za-z0-9_-]*\Z")


def encode(data: bytes) -> str:
    """``data`` as unpadded base64url."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """The bytes that ``text`` stands for.

    :raises MalformedInput: if ``text`` is not exactly what :func:`encode` gives for some bytes: padding, white space,
        another alphabet, an impossible length, or unused bits that are not zero.
    """
    if _ALPHABET.match(text) is None or len(text) % 4 == 1:
        raise MalformedInput("the text is not unpadded base64url")
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode(data) != text:
        raise MalformedInput("the text is not canonical base64url")
    return data
