"""A TCP listener that stops accepting before the process is out of file descriptors.

Twisted's own accepts until the system refuses, and then has nothing left to open a file or call a provider with. This
one never takes one of the last numbers that the process may have: what is not accepted waits in the kernel's queue,
connections that are open go on, and the listener looks again four times a second whether it may go on.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Final

from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.internet.tcp import Port
from twisted.logger import Logger

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IProtocolFactory
    from twisted.python.failure import Failure

#: File descriptors that listeners leave to everything else: files, the store, connections that this process makes.
SPARE_DESCRIPTORS: Final = 64
#: Connections accepted in one turn of the reactor, before those that are open have theirs.
ACCEPTED_AT_ONCE: Final = 16
#: Seconds until a listener that stopped accepting looks again.
LOOK_AGAIN_SECONDS: Final = 0.25
#: Seconds in which a listener says at most once that it stopped accepting.
TELL_AGAIN_SECONDS: Final = 60.0

_log = Logger()


def descriptors_left(descriptor: int, spare: int) -> bool:
    """Whether the next descriptor is none of the ``spare`` highest numbers that this process may have.

    The kernel always gives the lowest number that is free. The next may be a low one, of a connection that just ended,
    with all of those behind it in use: so the answer holds for one descriptor, and not for the one after it.

    :param descriptor: any that is open.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.dup(descriptor)
    except OSError:
        return False
    os.close(lowest)
    return lowest + spare < limit


class Listener(Port):
    """See the module. Made like its base.

    :param spare: how many descriptors it leaves to everything else.
    """

    def __init__(
        self,
        port: int,
        factory: IProtocolFactory,
        backlog: int,
        interface: str,
        reactor: object,
        spare: int = SPARE_DESCRIPTORS,
    ) -> None:
        Port.__init__(self, port, factory, backlog, interface, reactor)
        self._spare = spare
        self._look: IDelayedCall | None = None
        self._quiet: IDelayedCall | None = None

    def doRead(self) -> None:
        """Accept what waits, as long as there are descriptors for it."""
        for _ in range(ACCEPTED_AT_ONCE):
            if not descriptors_left(self.socket.fileno(), self._spare):
                self._pause()
                return
            self.numberAccepts = 1
            Port.doRead(self)
            if self.numberAccepts == 1:
                # it would ask for more the next time if it had got the one
                return

    def connectionLost(self, reason: Failure) -> None:
        """The listener was closed."""
        for timer in (self._look, self._quiet):
            if timer is not None and timer.active():
                timer.cancel()
        Port.connectionLost(self, reason)

    def _pause(self) -> None:
        accepting, reactor = IPushProducer(self), IReactorTime(self.reactor)
        accepting.pauseProducing()
        self._look = reactor.callLater(LOOK_AGAIN_SECONDS, accepting.resumeProducing)
        if self._quiet is None:
            self._quiet = reactor.callLater(TELL_AGAIN_SECONDS, self._may_tell)
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            _log.warn(
                "net.listen.paused",
                port=Port.getHost(self).port,
                descriptors=limit,
                hint="end some connections, or raise the limit of open files that this process is started with",
            )

    def _may_tell(self) -> None:
        self._quiet = None
