"""The dialling end of a peer connection, which asks as fast as it is answered. It runs a reactor: for children only."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message
from twisted.internet.defer import Deferred, execute, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, wrapClientTLS
from twisted.internet.task import react
from zope.interface import implementer

from bench.measure import Tally
from iop.errors import IopError
from iop.interfaces import IClock, IPeer, IPeerApplication
from iop.net.clock import ReactorClock
from iop.net.peer import PeerFactory
from iop.net.tls import ClientConnections, peer_identity
from iop.wire.dialect import Dialect

#: Says hello, and answers what is then asked over and over.
Begin = Callable[[IPeer, IClock], Awaitable[Callable[[], Awaitable[object]]]]


@implementer(IPeerApplication)
class Asking:
    """Hands its peer on.

    :param answer: to what the peer asks.
    """

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        self._answer = answer
        self.up: Deferred[IPeer] = Deferred()

    def connected(self, peer: IPeer) -> None:
        """TLS is up."""
        self.up.callback(peer)

    def asked(self, message: Message) -> Deferred[Message]:
        """Answer at once."""
        return execute(self._answer, message)

    def notified(self, message: Message) -> None:
        """Nothing is said."""

    def lost(self, reason: IopError) -> None:
        """Whoever asks is told."""


def unasked(message: Message) -> Message:
    """For peers that ask nothing."""
    raise AssertionError(f"a {type(message).__name__} was asked")


def drive(
    dialect: Dialect,
    creator: ClientConnections,
    port: int,
    in_flight: int,
    begin: Begin,
    answer: Callable[[Message], Message] = unasked,
) -> dict[str, float]:
    """Connect, and ask for a while, ``in_flight`` requests at a time; what :meth:`Tally.result` answers."""
    result: dict[str, float] = {}

    async def main(running: Any) -> None:
        asking, clock = Asking(answer), ReactorClock(running)
        factory = PeerFactory(dialect, initiator=True, application=lambda: asking, clock=clock, identify=peer_identity)
        await wrapClientTLS(creator, TCP4ClientEndpoint(running, "127.0.0.1", port)).connect(factory)
        ask = await begin(await asking.up, clock)
        tally = Tally()

        async def worker() -> None:
            while tally.going():
                began = time.perf_counter()
                await ask()
                tally.count(began)

        await gatherResults([Deferred.fromCoroutine(worker()) for _ in range(in_flight)])
        result.update(tally.result())

    try:
        react(main)
    except SystemExit as ended:
        if ended.code:
            raise
    return result
