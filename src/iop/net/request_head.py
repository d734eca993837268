"""Heads of requests, read as their bytes come: llhttp with none of its leniencies, and what it does not look at.

llhttp never gets a byte beyond the head it reads, so what a client sends ahead stays bytes until its turn comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from iop.errors import BadHttp
from iop.net.head_rules import Framing, framing_of
from iop.net.http_application import RequestHead

if TYPE_CHECKING:
    from iop.net.http_application import HttpLimits


class _Found:
    """What llhttp finds in one head."""

    __slots__ = ("fields", "target")

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []

    def on_url(self, piece: bytes) -> None:
        self.target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.rstrip(b" \t")))


class HeadReader:
    """Reads the heads of a connection, one after another, from bytes that the connection keeps."""

    __slots__ = ("_blank", "_found", "_limits", "_parsed", "_parser")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._parser: HttpRequestParser | None = None
        self._found = _Found()
        self._parsed = 0
        #: Whether an empty line before the head was ignored.
        self._blank = False

    def read(self, data: bytes) -> tuple[int, tuple[RequestHead, Framing] | None]:
        """Read on in a head, or begin the next.

        :param data: all that came and is not done with, so with what an earlier call got of this head.
        :returns: how many bytes are done with, 0 if more are needed; and the head if they are one, None if they are an
            empty line that belongs to no request.
        :raises BadHttp: 431 beyond the limits, 505 for another version, 400, 415 and 417 for what is refused.
        """
        if self._parser is None:
            if data[:1] in (b"\r", b"\n"):
                return self._empty_line(data), None
            self._found = _Found()
            self._parser = HttpRequestParser(self._found)
        end = data.find(b"\r\n\r\n", max(self._parsed - 3, 0))
        stop = len(data) if end < 0 else end + 4
        if stop > self._limits.headers:
            raise BadHttp(431, f"the request's head is larger than {self._limits.headers} bytes")
        try:
            self._parser.feed_data(data[self._parsed : stop])
        except HttpParserUpgrade:
            raise BadHttp(400, "this server does not switch protocols") from None
        except HttpParserError:
            raise BadHttp(400, "the request's head is not HTTP/1.1") from None
        self._parsed = stop
        return (0, None) if end < 0 else (stop, self._whole(data[:stop], self._parser, self._found))

    def _empty_line(self, data: bytes) -> int:
        """The size of one empty line before a head (RFC 9112, 2.2), or 0 while it is not whole."""
        if self._blank or not b"\r\n".startswith(data[:2]):
            raise BadHttp(400, "the request begins with an empty line")
        self._blank = len(data) > 1
        return 2 if self._blank else 0

    def _whole(self, raw: bytes, parser: HttpRequestParser, found: _Found) -> tuple[RequestHead, Framing]:
        """Check a whole head, and get ready for the next."""
        if len(found.fields) > self._limits.header_count:
            raise BadHttp(431, f"the request has more than {self._limits.header_count} header fields")
        method = parser.get_method()
        if not raw.startswith(b"%b %b HTTP/1.1\r\n" % (method, found.target)):
            if parser.get_http_version() != "1.1":
                raise BadHttp(505, "this server speaks HTTP/1.1 only")
            raise BadHttp(400, "the request line is not a method, a target and HTTP/1.1")
        if not found.target.startswith(b"/") or b"#" in found.target:
            raise BadHttp(400, "the request's target is not a path")
        framing = framing_of(found.fields)
        path, _, query = found.target.decode("ascii").partition("?")
        self._parser = None
        self._parsed = 0
        self._blank = False
        return RequestHead(method.decode("ascii"), path, query, tuple(found.fields)), framing
