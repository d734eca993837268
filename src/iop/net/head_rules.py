"""What the head of a request must and must not say, whichever parser read it.

A request that two readers could delimit or attribute differently is refused, not interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from iop.errors import BadHttp

#: Fields that decide something and may therefore stand at most once.
_SINGLE: Final = (
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"expect",
    b"host",
    b"transfer-encoding",
)
_HOST: Final = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]+")
#: More digits than any limit needs, fewer than any integer overflows at.
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Framing:
    """How a request's body is delimited, and what its head asks of the connection."""

    #: Bytes of the body, or None when it comes in chunks.
    length: int | None
    #: The client waits for ``100 Continue`` before it sends the body.
    waits: bool
    #: The client wants the connection closed after the answer.
    closes: bool


def framing_of(fields: Sequence[tuple[bytes, bytes]]) -> Framing:
    """Check the header fields of an HTTP/1.1 request.

    :param fields: all fields in order, names lower-cased, values without surrounding white space.
    :raises BadHttp: 400 for a missing, repeated or contradictory field and for Upgrade, 415 for a body that is encoded
        (P39), 417 for an expectation other than ``100-continue``.
    """
    by_name = dict(fields)
    if len(by_name) != len(fields):
        names = [name for name, _ in fields]
        for name in _SINGLE:
            if names.count(name) > 1:
                raise BadHttp(400, f"the request has more than one {name.decode('ascii')} field")
    host = by_name.get(b"host")
    if host is None or _HOST.fullmatch(host) is None:
        raise BadHttp(400, "the request has no Host field, or one that is not a host")
    if b"upgrade" in by_name:
        raise BadHttp(400, "this server does not switch protocols")
    if by_name.get(b"content-encoding", b"identity").lower() != b"identity":
        raise BadHttp(415, "the body must not be content-encoded")
    expectation = by_name.get(b"expect")
    if expectation is not None and expectation.lower() != b"100-continue":
        raise BadHttp(417, "the only expectation that can be met is 100-continue")
    return Framing(
        _length(by_name.get(b"content-length"), by_name.get(b"transfer-encoding")),
        expectation is not None,
        b"connection" in by_name and _closes(fields),
    )


def _length(length: bytes | None, encoding: bytes | None) -> int | None:
    if encoding is not None:
        if length is not None:
            raise BadHttp(400, "the request has both Content-Length and Transfer-Encoding")
        if encoding.lower() != b"chunked":
            raise BadHttp(400, "the only transfer encoding is chunked")
        return None
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise BadHttp(400, "the Content-Length is not a number of bytes")
    return int(length)


def _closes(fields: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether any Connection field holds the option ``close``."""
    return any(
        option.strip(b" \t") == b"close"
        for name, value in fields
        if name == b"connection"
        for option in value.lower().split(b",")
    )
