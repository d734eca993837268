"""Transports in memory for protocols under test."""

from __future__ import annotations

from twisted.internet.testing import StringTransport


class MemoryTransport(StringTransport):
    """A :class:`StringTransport` with what TCP transports also have. It keeps what it is asked in plain attributes.

    ``disconnecting`` is True after ``loseConnection``, ``disconnected`` after ``abortConnection``.
    """

    no_delay = False

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.no_delay = enabled

    @property
    def reading(self) -> bool:
        """Whether the protocol wants to read."""
        return bool(self.producerState == "producing")

    def take(self) -> bytes:
        """What was written since last time."""
        data = bytes(self.value())
        self.clear()
        return data
