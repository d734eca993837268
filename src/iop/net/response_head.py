"""The head of an HTTP/1.1 response as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from iop.errors import BadHttp

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in HTTPStatus
    if status >= 200
}
#: Fields that say how a message is delimited or what becomes of the connection; they are the connection's to set.
_FRAMING_FIELDS: Final = frozenset(
    {b"connection", b"content-length", b"date", b"keep-alive", b"trailer", b"transfer-encoding", b"upgrade"}
)


def response_head(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Status line and fields, without the fields that delimit the message and without the empty line.

    :param status: any final status.
    :param headers: names in lower case.
    :raises BadHttp: if a field would break out of its line, or is one that the connection sets itself (P18).
    """
    lines = [_STATUS_LINES.get(status) or _status_line(status)]
    for field in headers:
        if field[0] in _FRAMING_FIELDS:
            raise BadHttp(502, "an answer must not say itself how it is delimited")
        lines.append(b"%b: %b\r\n" % field)
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        raise BadHttp(502, "an answer's header field holds a line break or NUL")
    return head


def _status_line(status: int) -> bytes:
    if not 200 <= status <= 599:
        raise BadHttp(502, f"{status} is not the status of an answer")
    return b"HTTP/1.1 %d \r\n" % status
