"""The body of an HTTP answer that is taken whole, and only up to a length."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss

from iop.errors import MalformedInput

if TYPE_CHECKING:
    from twisted.internet.interfaces import ITransport
    from twisted.python.failure import Failure


class Body(Protocol):
    """Takes a body; whoever sends more, or for longer than somebody waits, is hung up on.

    :param limit: bytes at most.
    :ivar whole: fires with it, or fails with :class:`~iop.errors.MalformedInput` if it is longer, or with why the
        connection ended before it did; cancelling hangs up.
    """

    def __init__(self, limit: int) -> None:
        self.whole: Deferred[bytes] = Deferred(lambda _: self._hang_up())
        self._limit = limit
        self._content = bytearray()

    def dataReceived(self, data: bytes) -> None:
        if self.whole.called:
            return
        self._content += data
        if len(self._content) > self._limit:
            self._hang_up()
            self.whole.errback(MalformedInput(f"the answer is longer than {self._limit} bytes"))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.whole.called:
            return
        if reason.check(ResponseDone, PotentialDataLoss):
            self.whole.callback(bytes(self._content))
        else:
            self.whole.errback(reason)

    def _hang_up(self) -> None:
        cast("ITransport", self.transport).loseConnection()
