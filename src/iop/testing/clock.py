"""A clock that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from zope.interface import implementer

from iop.interfaces import IClock


@implementer(IClock)
class FakeClock:
    """Boot time and wall time under a test's control.

    ``reactor`` is the :class:`~twisted.internet.task.Clock` beneath, for code that needs an ``IReactorTime``.

    :param wall_ms: Unix milliseconds when boot time is 0; set it later to move this machine's wall clock.
    """

    def __init__(self, wall_ms: int = 1_800_000_000_000) -> None:
        self.reactor = Clock()
        self.wall_at_boot_ms = wall_ms

    def boot(self) -> float:
        """Seconds the test advanced."""
        return self.reactor.seconds()

    def wall_ms(self) -> int:
        """Unix milliseconds."""
        return self.wall_at_boot_ms + round(self.reactor.seconds() * 1000)

    def call_later(self, seconds: float, what: Callable[[], object]) -> IDelayedCall:
        """Call ``what`` when the test has advanced ``seconds``."""
        return self.reactor.callLater(seconds, what)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass, and everything that is due happen."""
        self.reactor.advance(seconds)
