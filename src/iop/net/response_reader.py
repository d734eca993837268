"""Responses of an upstream, read by llhttp with none of its leniencies, within limits, without calling anybody."""

from __future__ import annotations

from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from iop.errors import BadHttp

_FIELD_COUNT: Final = 200
#: Fields that announce content.
_CONTENT: Final = frozenset({"content-length", "transfer-encoding"})


class ResponseReader:
    """Reads one response; interim (1xx) ones before it are skipped, and have no body (RFC 9110, 15.2).

    :param head_limit: bytes of all heads together, and afterwards of whatever comes without a byte of the body.
    """

    def __init__(self, head_limit: int) -> None:
        #: The final status once its head is whole.
        self.status: int | None = None
        #: Its fields, names lower-cased.
        self.headers: list[tuple[str, str]] = []
        #: Whether the response is all here.
        self.whole = False
        self._head_limit = head_limit
        self._barren = 0
        self._trailers = 0
        self._pieces: list[bytes] = []
        self._beyond = False
        self._delimited = False
        self._keep_alive = False
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    @property
    def reusable(self) -> bool:
        """Whether another response may come over the connection: this one is whole and nothing came after it."""
        return self.whole and self._keep_alive and not self._beyond

    def feed(self, data: bytes) -> None:
        """Read on.

        :raises BadHttp: 502 if this is no HTTP/1 response, ambiguous, or too large where it should be small.
        """
        if self._parser is None:
            # llhttp, too, takes line ends between responses for nothing
            self._beyond = self._beyond or bool(data.strip(b"\r\n"))
            return
        room = len(data) if self.status is not None else self._head_limit - self._barren
        self._parse(self._parser, data[:room])
        if self.status is None and len(data) > room:
            raise BadHttp(502, f"the response's head is larger than {self._head_limit} bytes")
        if self.whole:
            self.release()
        if len(data) > room:
            self.feed(data[room:])

    def take_body(self) -> bytes:
        """What came of the body since last time."""
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body

    def ended(self) -> bool:
        """The connection ended in order; answers whether that makes the response whole."""
        self.whole = self.whole or (self.status is not None and not self._delimited)
        return self.whole

    def release(self) -> None:
        """Let go of the parser, which holds on to this object."""
        self._parser = None

    def _parse(self, parser: HttpResponseParser, data: bytes) -> None:
        self._barren += len(data)
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self.whole:
                cause = error.__context__
                raise cause if isinstance(cause, BadHttp) else BadHttp(502, "the response is not HTTP/1.1") from None
            self._beyond = True
        if self._barren > self._head_limit and not self.whole:
            raise BadHttp(502, f"more than {self._head_limit} bytes came without any of the response's body")

    # -- what llhttp says ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._beyond = self.whole
        if not self.whole:
            self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is not None:
            # a trailer: nobody here reads it, but it has to end
            self._trailers += len(name) + len(value)
            if self._trailers > self._head_limit:
                raise BadHttp(502, "the response's trailers are too large")
        else:
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")))
            if len(self.headers) > _FIELD_COUNT:
                raise BadHttp(502, "the response has too many header fields")

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser is None or self.whole:
            return
        status = parser.get_status_code()
        if status == 101 or status < 100:
            raise BadHttp(502, f"the response's status is {status}")
        if parser.get_http_version() not in ("1.1", "1.0"):
            raise BadHttp(502, "the response is not HTTP/1.1")
        if status < 200:
            # llhttp would read content here, and hand it over like that of the response
            if any(name in _CONTENT for name, _ in self.headers):
                raise BadHttp(502, "an interim response announces content")
            return
        encodings = [value for name, value in self.headers if name == "transfer-encoding"]
        if encodings and [value.lower() for value in encodings] != ["chunked"]:
            raise BadHttp(502, "the response's transfer encoding is not chunked")
        self.status = status
        self._barren = 0
        self._delimited = bool(encodings) or any(name == "content-length" for name, _ in self.headers)
        self._keep_alive = parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        if self.status is None:
            raise BadHttp(502, "content came before the response's head")
        if not self.whole:
            self._pieces.append(piece)
            self._barren = 0

    def on_message_complete(self) -> None:
        self.whole = self.status is not None
