"""Frames: a 4-byte big-endian length and that many bytes (W1, W2)."""

from __future__ import annotations

import struct

from iop.errors import FrameTooLarge, MalformedFrame

_LENGTH = struct.Struct(">I")


def encode_frame(payload: bytes) -> bytes:
    """``payload`` with its length in front; an empty one is :class:`~iop.errors.MalformedFrame` (W1)."""
    if not payload:
        raise MalformedFrame("an empty frame cannot be sent")
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder:
    """Cuts a byte stream into frames in linear time, however the stream is chunked.

    ``feed`` only takes bytes in and ``next_frame`` decides, so a new ``limit`` holds from the next frame on, even for
    bytes that were received before it. Who calls ``next_frame`` until it answers None after each ``feed`` never holds
    more than ``limit`` + 4 bytes and one chunk.

    :param limit: the most bytes a frame may have.
    """

    __slots__ = ("_at", "_buffer", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # A chunk as it came in while nothing older is left of it, otherwise an accumulation; cut off up to _at.
        self._buffer: bytes | bytearray = b""
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the stream."""
        if self._at == len(self._buffer):
            self._buffer, self._at = data, 0
            return
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray(memoryview(self._buffer)[self._at :])
        else:
            # A bytearray moves its start instead of its bytes.
            del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next whole frame without its length, or None while it is not complete.

        A length of 0 raises :class:`~iop.errors.MalformedFrame`, one above the limit
        :class:`~iop.errors.FrameTooLarge`, from the length alone (P32); so does every later call.
        """
        start = self._at + _LENGTH.size
        if start > len(self._buffer):
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._at)
        if length == 0:
            raise MalformedFrame("a frame is empty")
        if length > self.limit:
            raise FrameTooLarge(f"a frame of {length} bytes was announced where {self.limit} are allowed")
        end = start + length
        if end > len(self._buffer):
            return None
        self._at = end
        if isinstance(self._buffer, bytes):
            return self._buffer[start:end]
        with memoryview(self._buffer) as view:
            return bytes(view[start:end])
