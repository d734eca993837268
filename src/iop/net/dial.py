"""Keeping one connection up (W12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.application.internet import ClientService
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from iop.errors import Draining
from iop.interfaces import IPeer
from iop.net.peer import PeerFactory

FIRST_DELAY_SECONDS: Final = 0.2
LONGEST_DELAY_SECONDS: Final = 30.0
#: Doublings after which the delay is certainly the longest; counting on would only make a huge number.
_DOUBLINGS: Final = 8

log = Logger()


class Dialler(ClientService):
    """Dials, and dials again with full jitter whenever there is no connection.

    A connection that came up proves little: it may be refused in the hello, every time. So the delays start over only
    when the application calls :meth:`settled`.

    :param reactor: where delays wait.
    :param random: a number from 0 to 1, at random.
    """

    def __init__(
        self,
        endpoint: IStreamClientEndpoint,
        factory: PeerFactory,
        *,
        reactor: IReactorTime,
        random: Callable[[], float],
    ) -> None:
        super().__init__(
            _Told(endpoint), factory, retryPolicy=self._delay, clock=reactor, prepareConnection=self._remember
        )
        self._random = random
        self._failures = 0
        self._peer: IPeer | None = None

    def settled(self) -> None:
        """The session became ready in the eyes of its role: the next delay is the first one again."""
        self._failures = 0

    def stopService(self) -> Deferred[None]:
        """Stop dialling and close the connection; fires when it is closed."""
        if self._peer is not None:
            self._peer.close(Draining("this side is going away"))
        return super().stopService()

    def _remember(self, protocol: IProtocol) -> None:
        self._peer = IPeer(protocol)

    def _delay(self, _attempts: int) -> float:
        longest = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * (1 << self._failures))
        self._failures = min(self._failures + 1, _DOUBLINGS)
        return longest * self._random()


@implementer(IStreamClientEndpoint)
class _Told:
    """An endpoint whose failures are logged; the service around it only counts them."""

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """See :class:`twisted.internet.interfaces.IStreamClientEndpoint`."""
        return self._endpoint.connect(protocolFactory).addErrback(self._failed)

    def _failed(self, failure: Failure) -> Failure:
        if not failure.check(CancelledError):
            log.warn("net.dial.failed", error=type(failure.value).__name__)
        return failure
