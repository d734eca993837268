"""Callers of an Edge's API over TCP, one of whom announces bodies and does not send them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from twisted.internet import reactor as running
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint, connectProtocol
from twisted.internet.interfaces import ITransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from iop.crypto.tokens import Token, mint
from iop.net.clock import ReactorClock
from iop.net.http1 import HttpLimits, HttpServerFactory
from iop.process.role import IReactor
from iop.records import TokenEntry, TokenKind
from tests.edge.rig import ADA_TOKEN, FIRST, Rig, text_of

reactor = cast(IReactor, running)
BOB_TOKEN = mint(TokenKind.USE)
BOB = TokenEntry(BOB_TOKEN.record.token_id, "bob", BOB_TOKEN.record.digest)
BODY = 64 * 1024
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


class Caller(Protocol):
    """A caller's connection; what is asked of it is one answer at a time."""

    transport: ITransport

    def __init__(self) -> None:
        self._got = b""
        self._wanted = b""
        self._answer: Deferred[bytes] = Deferred()
        self.gone: Deferred[None] = Deferred()

    def send(self, data: bytes, until: bytes) -> Deferred[bytes]:
        """Send, and what comes until ``until`` is there."""
        self._got, self._wanted, self._answer = b"", until, Deferred()
        self.transport.write(data)
        return self._answer

    def dataReceived(self, data: bytes) -> None:
        self._got += data
        if not self._answer.called and self._wanted in self._got:
            self._answer.callback(self._got)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.gone.callback(None)


def announce(token: Token) -> bytes:
    """The head of a request with a body of the largest permitted size."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: edge\r\nExpect: 100-continue\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n" % (text_of(token).encode(), BODY)
    )


class BodyShareTests(TestCase):
    timeout = 30

    async def begin(self) -> None:
        rig = Rig(Path(self.mktemp()))
        rig.dial()
        rig.control_plane.push(replace(FIRST, generation=FIRST.generation + 1, tokens=(*FIRST.tokens, BOB)))
        rig.pump()
        limits = HttpLimits(body=BODY, body_total=8 * BODY)
        factory = HttpServerFactory(rig.api, ReactorClock(reactor), limits)
        port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
        self.addCleanup(factory.drain)
        self.addCleanup(port.stopListening)
        host = port.getHost()
        assert isinstance(host, IPv4Address)
        self.endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", host.port)

    async def caller(self) -> Caller:
        caller = Caller()
        await connectProtocol(self.endpoint, caller)
        self.addCleanup(lambda: caller.gone)
        self.addCleanup(caller.transport.loseConnection)
        return caller

    async def test_announced_and_not_sent(self) -> None:
        """P19: one principal's announced bodies end at its share, and another's request is read and answered."""
        await self.begin()
        holding = [await self.caller() for _ in range(4)]
        for caller in holding:
            self.assertEqual(await caller.send(announce(ADA_TOKEN), GO_ON), GO_ON)
        for _ in range(2):
            refused = await (await self.caller()).send(announce(ADA_TOKEN), b'"too_many_bodies"}}')
            self.assertEqual(refused[:13], b"HTTP/1.1 429 ")
            self.assertIn(b"\r\nretry-after: 5\r\n", refused)

        other = await self.caller()
        self.assertEqual(await other.send(announce(BOB_TOKEN), GO_ON), GO_ON)
        for caller in (other, holding[0]):
            answer = await caller.send(b'{"model": "none"'.ljust(BODY - 1) + b"}", b'"model_not_found"}}')
            self.assertEqual(answer[:13], b"HTTP/1.1 404 ")
        # what is answered made room again
        self.assertEqual(await holding[0].send(announce(ADA_TOKEN), GO_ON), GO_ON)
