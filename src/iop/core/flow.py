"""Credit-based flow control of one body (R1, R4), for the side that sends it and the side that receives it.

Bytes that wait for credit are held by the side that has them, and sliced only when they may travel, so neither side's
memory grows with what the other one does not take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from iop.errors import FlowViolation
from iop.units import BODY_PIECE

#: The largest window a peer may ask for, in bytes.
WINDOW_CAP: Final = 4 * 1024 * 1024


class SendWindow:
    """What one side may still send: the window less what was not returned yet.

    :param size: bytes that may be on their way at once.
    """

    __slots__ = ("_size", "_unreturned")

    def __init__(self, size: int) -> None:
        self._size = size
        self._unreturned = 0

    def take(self, wanted: int) -> int:
        """Use up to ``wanted`` bytes of the window for one piece; answers how many, possibly 0."""
        granted = min(wanted, self._size - self._unreturned, BODY_PIECE)
        self._unreturned += granted
        return granted

    def returned(self, count: int) -> None:
        """The other side handed on ``count`` bytes.

        :raises FlowViolation: if that is nothing, or more than it was sent.
        """
        if not 0 < count <= self._unreturned:
            raise FlowViolation("credit was returned that had not been taken")
        self._unreturned -= count


class ReceiveWindow:
    """What one side granted: bytes that came in, bytes that were handed on, and credit saved up in between.

    Credit is returned in lumps of at least a quarter of the window, so that it does not double the number of messages.
    The sender never starves: with everything handed on it has at least three quarters of its window.

    :param size: bytes the other side may have on their way at once.
    """

    __slots__ = ("_held", "_owed", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._owed = 0

    def received(self, count: int) -> None:
        """``count`` bytes came in.

        :raises FlowViolation: if the window does not have room for them.
        """
        if self._held + self._owed + count > self._size:
            raise FlowViolation("more body bytes came in than the window allows")
        self._held += count

    def handed_on(self, count: int) -> int:
        """``count`` of the held bytes were passed on; answers how much credit to return now, possibly 0.

        :raises ValueError: if fewer than ``count`` bytes are held.
        """
        if not 0 <= count <= self._held:
            raise ValueError("more bytes were handed on than came in")
        self._held -= count
        self._owed += count
        if self._owed * 4 < self._size:
            return 0
        credit, self._owed = self._owed, 0
        return credit


class OutgoingBody:
    """A body on its way out: buffers as they were put, cut into pieces as far as the window allows.

    :param window: bytes that may be on their way at once.
    """

    __slots__ = ("_buffers", "_complete", "_last_sent", "_offset", "_window")

    def __init__(self, window: int) -> None:
        self._window = SendWindow(window)
        self._buffers: deque[bytes | bytearray] = deque()
        self._offset = 0
        self._complete = False
        self._last_sent = False

    def put(self, data: bytes | bytearray) -> None:
        """Add bytes; the buffer is kept, not copied, until it was sent."""
        if data:
            self._buffers.append(data)

    def complete(self) -> None:
        """Nothing more will be put: the piece that empties the body is the last one."""
        self._complete = True

    @property
    def waiting(self) -> bool:
        """Whether bytes wait for credit."""
        return bool(self._buffers)

    def credited(self, count: int) -> None:
        """Credit came back; see :meth:`SendWindow.returned`."""
        self._window.returned(count)

    def pieces(self) -> Iterator[tuple[bytes, bool]]:
        """Every piece that may travel now, with whether it is the last one."""
        while self._buffers:
            buffer = self._buffers[0]
            size = self._window.take(len(buffer) - self._offset)
            if not size:
                return
            piece = (
                bytes(buffer) if size == len(buffer) else bytes(memoryview(buffer)[self._offset : self._offset + size])
            )
            self._offset += size
            if self._offset == len(buffer):
                self._buffers.popleft()
                self._offset = 0
            self._last_sent = self._complete and not self._buffers
            yield piece, self._last_sent
        if self._complete and not self._last_sent:
            self._last_sent = True
            yield b"", True

    def forget(self) -> None:
        """Let go of everything that was not sent; there are no more pieces, not even if one is just being sent."""
        self._buffers.clear()
        self._offset = 0
        self._last_sent = True


class IncomingBody:
    """A body on its way in: checks what arrives and counts the credit for it.

    :param window: bytes that were granted.
    :param length: the exact length that was announced, or None when nobody knows it.
    """

    __slots__ = ("_complete", "_missing", "_window")

    def __init__(self, window: int, length: int | None) -> None:
        self._window = ReceiveWindow(window)
        self._missing = length
        self._complete = False

    def received(self, size: int, last: bool) -> None:
        """A piece of ``size`` bytes arrived.

        :raises FlowViolation: if it comes after the last one, is empty without being the last one, is larger than a
            piece may be or than the window allows, or does not fit the announced length.
        """
        if self._complete:
            raise FlowViolation("a body went on after its last piece")
        if size > BODY_PIECE or (not size and not last):
            raise FlowViolation("a body piece is empty or too large")
        self._window.received(size)
        if self._missing is not None:
            self._missing -= size
            if self._missing < 0 or (last and self._missing):
                raise FlowViolation("a body does not have the length that was announced")
        self._complete = last

    def handed_on(self, size: int) -> int:
        """Bytes were passed on; answers the credit to return now. See :meth:`ReceiveWindow.handed_on`."""
        return self._window.handed_on(size)
