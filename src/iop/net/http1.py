"""The HTTP/1.1 server of every HTTP listener: the Edge's API directly, the others through :mod:`iop.net.guard`.

What answers requests is in :mod:`iop.net.http_application`, what a connection does in :mod:`iop.net.http_connection`.
"""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import ServerFactory

from iop.net.body_room import BodyRoom
from iop.net.http_application import Headers, HttpLimits, IExchange, IHttpApplication, RequestHead, Wanted
from iop.net.http_connection import HttpConnection

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from iop.interfaces import IClock

__all__ = ["Headers", "HttpLimits", "HttpServerFactory", "IExchange", "IHttpApplication", "RequestHead", "Wanted"]


class HttpServerFactory(ServerFactory):
    """Makes the connections of one listener.

    :param application: what answers.
    :param clock: time for deadlines and the Date field.
    """

    noisy = False

    def __init__(self, application: IHttpApplication, clock: IClock, limits: HttpLimits | None = None) -> None:
        self.draining = False
        self._application = application
        self._clock = clock
        self._limits = limits or HttpLimits()
        self.body_room = BodyRoom(self._limits.body_total)
        self._connections: set[HttpConnection] = set()
        #: Those that are busy with nothing yet or any more, longest first.
        self._idle: dict[HttpConnection, None] = {}
        self._drained: list[Deferred[None]] = []
        self._date = b""
        self._date_second = -1

    def buildProtocol(self, addr: IAddress | None) -> HttpConnection:
        """A protocol for one connection; whether that may stay, :meth:`opened` says.

        Never None: what wraps a connection in TLS could not close it then, nor bound it.
        """
        return HttpConnection(self, self._application, self._clock, self._limits)

    def drain(self) -> Deferred[None]:
        """Take nothing new: close idle connections now, the others after their answer. Fires when all are gone."""
        self.draining = True
        for connection in list(self._connections):
            connection.drain()
        if not self._connections:
            return succeed(None)
        drained: Deferred[None] = Deferred()
        self._drained.append(drained)
        return drained

    def opened(self, connection: HttpConnection) -> bool:
        """``connection`` is up; answers whether it may stay: not while draining, nor when there are too many.

        Of too many, the one that has been idle for longest makes room, so that whoever only connects keeps nobody out.
        """
        if self.draining:
            return False
        if len(self._connections) >= self._limits.connections:
            if not self._idle:
                return False
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.abort()
        self._connections.add(connection)
        self._idle[connection] = None
        return True

    def busy(self, connection: HttpConnection) -> None:
        """``connection`` carries a request that is whole, or one of somebody who is known."""
        self._idle.pop(connection, None)

    def idle(self, connection: HttpConnection) -> None:
        """``connection`` has its answer: it waits for another request, or for its end."""
        self._idle.pop(connection, None)
        if connection in self._connections:
            self._idle[connection] = None

    def closed(self, connection: HttpConnection) -> None:
        """``connection`` is gone."""
        self._connections.discard(connection)
        self._idle.pop(connection, None)
        if not self._connections:
            waiting, self._drained = self._drained, []
            for drained in waiting:
                drained.callback(None)

    def date(self) -> bytes:
        """The value of the Date field, made once a second."""
        second = self._clock.wall_ms() // 1000
        if second != self._date_second:
            self._date_second = second
            self._date = formatdate(second, usegmt=True).encode("ascii")
        return self._date
