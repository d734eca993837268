"""A TCP listener that stops accepting before the process is out of file descriptors.

Twisted's own accepts until the system refuses, and then has nothing left to open a file or call a provider with. This
one leaves some descriptors free: what is not accepted waits in the kernel's queue, connections that are open go on, and
the listener looks again four times a second whether it may go on.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.tcp import Port
from twisted.logger import Logger

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

#: File descriptors that listeners leave to everything else: files, the store, connections that this process makes.
SPARE_DESCRIPTORS: Final = 64
#: Connections accepted in one turn of the reactor; so many of the spare ones one turn takes at most.
ACCEPTED_AT_ONCE: Final = 16
#: Seconds until a listener that stopped accepting looks again.
LOOK_AGAIN_SECONDS: Final = 0.25
#: Seconds in which a listener says at most once that it stopped accepting.
TELL_AGAIN_SECONDS: Final = 60.0

_log = Logger()


def descriptors_left(descriptor: int, spare: int) -> bool:
    """Whether more than ``spare`` descriptors may still be opened.

    The kernel always gives the lowest number that is free, so all below the one that it gives now are in use.

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

    :ivar spare: how many descriptors it leaves.
    """

    spare = SPARE_DESCRIPTORS
    _look: IDelayedCall | None = None
    _quiet: IDelayedCall | None = None

    def doRead(self) -> None:
        """Accept what waits, unless descriptors are short."""
        if descriptors_left(self.fileno(), self.spare):
            self.numberAccepts = min(self.numberAccepts, ACCEPTED_AT_ONCE)
            Port.doRead(self)
            return
        self.pauseProducing()
        reactor = IReactorTime(self.reactor)
        self._look = reactor.callLater(LOOK_AGAIN_SECONDS, self.resumeProducing)
        if self._quiet is None:
            self._quiet = reactor.callLater(TELL_AGAIN_SECONDS, self._may_tell)
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            _log.warn(
                "net.listen.paused",
                port=self.getHost().port,
                descriptors=limit,
                hint="end some connections, or raise the limit of open files that this process is started with",
            )

    def connectionLost(self, reason: Failure) -> None:
        """The listener was closed."""
        for timer in (self._look, self._quiet):
            if timer is not None and timer.active():
                timer.cancel()
        Port.connectionLost(self, reason)

    def _may_tell(self) -> None:
        self._quiet = None
