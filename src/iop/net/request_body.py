"""Bodies of requests as they come, in the two ways that HTTP/1.1 delimits them, within a limit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from iop.errors import BadHttp

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_LINE_LIMIT: Final = 10
#: Bytes of chunk framing that may come before their proportion to the body counts.
_FRAMING_ALLOWANCE: Final = 64 * 1024


class SizedBody:
    """A body of a length that was announced.

    :param length: bytes that belong to it, at least 1.
    """

    def __init__(self, length: int) -> None:
        self.content = bytearray()
        self._left = length

    @property
    def whole(self) -> bool:
        """Whether all of it is here."""
        return not self._left

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to the body, and give back what follows it."""
        piece = data[: self._left]
        self.content += piece
        self._left -= len(piece)
        return data[len(piece) :]


class ChunkedBody:
    """A body in chunks (RFC 9112, 7.1), the same at every split of its bytes (P33).

    Chunk extensions and trailers are refused: nobody here reads them, and readers that disagree on where they end
    disagree on where the request ends. So are bodies that are more framing than content.

    :param limit: bytes the body may have; a chunk beyond it is refused from its size alone (P32).
    :param reserve: told the size of each chunk but the last, empty one, before any of it is taken; may raise to refuse
        it.
    """

    def __init__(self, limit: int, reserve: Callable[[int], object]) -> None:
        self.content = bytearray()
        self.whole = False
        self._limit = limit
        self._reserve = reserve
        self._left = 0
        self._line = b""
        self._framing = 0
        self._after_data = False
        self._last = False

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to the body, and give back what follows it once it is whole.

        :raises BadHttp: 400 for anything but plain chunks, 413 for a body beyond the limit; what ``reserve`` raises.
        """
        at = 0
        while at < len(data) and not self.whole:
            if self._left:
                piece = data[at : at + self._left]
                self.content += piece
                self._left -= len(piece)
                at += len(piece)
            else:
                end = data.find(b"\n", at) + 1 or len(data)
                self._line += data[at : min(end, at + _LINE_LIMIT + 1)]
                at = end
                self._framed()
        return data[at:]

    def _framed(self) -> None:
        """Look at what there is of a line between the chunks' contents."""
        line = self._line
        if len(line) > _LINE_LIMIT:
            raise BadHttp(400, "the chunked body has chunk extensions, trailers or a chunk without a valid size")
        if not line.endswith(b"\n"):
            return
        self._line = b""
        self._framing += len(line)
        if self._framing > _FRAMING_ALLOWANCE + len(self.content):
            raise BadHttp(400, "the chunked body has too many small chunks")
        if self._after_data or self._last:
            if line != b"\r\n":
                raise BadHttp(400, "the chunked body has trailers, or a chunk that is longer than it says")
            self.whole = self._last
            self._after_data = False
        else:
            self._sized(line)

    def _sized(self, line: bytes) -> None:
        """Begin the chunk that ``line`` announces."""
        size = _SIZE.fullmatch(line)
        if size is None:
            raise BadHttp(400, "the chunked body has a chunk without a valid size")
        self._left = int(size[1], 16)
        if len(self.content) + self._left > self._limit:
            raise BadHttp(413, f"the body is larger than {self._limit} bytes")
        self._after_data = self._left > 0
        self._last = not self._left
        if self._left:
            self._reserve(self._left)
