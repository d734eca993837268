"""The upstream client and the HTTP server against each other over real sockets, with and without TLS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from cryptography import x509
from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint, connectProtocol
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from iop.errors import UpstreamFailed
from iop.net.clock import ReactorClock
from iop.net.http1 import Headers, HttpLimits, HttpServerFactory, IExchange, IHttpApplication, Wanted
from iop.net.tls import TlsFiles, web_client, web_server
from iop.net.upstream import IUpstreamReceiver, Upstream, UpstreamLimits, parse_target
from iop.testing.pki import Pki
from iop.units import Role

MIB = 1024 * 1024


@implementer(IHttpApplication)
class Application:
    """Answers with ``answer``; by default with the body it got."""

    def __init__(self) -> None:
        self.answer: Callable[[IExchange, bytes], object] = lambda exchange, body: exchange.respond(200, [], body)
        self.bodies: list[bytes] = []
        self.gone: Deferred[None] = Deferred()

    def headed(self, exchange: IExchange) -> Wanted:
        exchange.on_gone(lambda: self.gone.callback(None))
        return Wanted(16 * MIB, partial(self.take, exchange), owner=None)

    def take(self, exchange: IExchange, body: bytearray) -> None:
        self.bodies.append(bytes(body))
        self.answer(exchange, bytes(body))

    def refuse(self, status: int, code: str, message: str) -> tuple[Headers, bytes]:
        return [], code.encode()


@implementer(IUpstreamReceiver)
class Receiver:
    """Keeps the answer; ``over`` fires with it, or fails."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self.over: Deferred[bytes] = Deferred()
        self.begun: Deferred[None] = Deferred()
        self.writables = 0

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.status = status

    def data(self, data: bytes) -> None:
        if not self.body:
            self.begun.callback(None)
        self.body += data

    def finished(self) -> None:
        self.over.callback(bytes(self.body))

    def failed(self, reason: UpstreamFailed) -> None:
        self.over.errback(reason)

    def writable(self) -> None:
        self.writables += 1


class Pump:
    """An answer of ``SIZE`` bytes, written as fast as the client takes it."""

    SIZE = 32 * MIB

    def __init__(self) -> None:
        self.sent = 0
        self._stopped = False

    def begin(self, exchange: IExchange, body: bytes) -> None:
        self._exchange = exchange
        exchange.on_writable(self.pause, self.resume)
        exchange.start(200, [])
        self.resume()

    def pause(self) -> None:
        self._stopped = True

    def resume(self) -> None:
        self._stopped = False
        while self.sent < self.SIZE and not self._is_stopped():
            self.sent += 65536
            self._exchange.write(bytes(65536))
            if self.sent == self.SIZE:
                self._exchange.finish()

    def _is_stopped(self) -> bool:
        return self._stopped


class Speaker(Protocol):
    """A server over TLS that says ``WORDS`` to a request and ends the connection, in order or without TLS's alert."""

    WORDS = b""
    IN_ORDER = True

    def __init__(self) -> None:
        self.heard = b""

    def dataReceived(self, data: bytes) -> None:
        self.heard += data
        transport = cast(TLSMemoryBIOProtocol, self.transport)
        if self.heard.endswith(b"\r\n\r\n"):
            transport.write(self.WORDS)
            connection = transport if self.IN_ORDER else transport.transport
            assert connection is not None
            reactor.callLater(0.05, connection.loseConnection)


def tls(factory: IProtocolFactory, files: TlsFiles) -> IProtocolFactory:
    return TLSMemoryBIOFactory(web_server(files.certificate, files.key), False, factory)


def number(port: IListeningPort) -> int:
    """Which port of this machine it is."""
    address = port.getHost()
    assert isinstance(address, IPv4Address)
    return address.port


class LoopbackCase(TestCase):
    """A server on a port of this machine and an upstream that calls it."""

    timeout = 20

    def setUp(self) -> None:
        self.clock = ReactorClock(reactor)
        self.application = Application()
        self.factory = HttpServerFactory(self.application, self.clock, HttpLimits())
        self.pki = Pki(self.folder())

    async def listen(self, factory: IProtocolFactory, *, encrypted: bool) -> int:
        if encrypted:
            factory = tls(factory, self.pki.issue(Role.EDGE, "edge1"))
        port: IListeningPort = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
        self.addCleanup(port.stopListening)
        return number(port)

    async def upstream(self, *, encrypted: bool, host: str = "localhost") -> Upstream:
        port = await self.listen(self.factory, encrypted=encrypted)
        return self.client(port, encrypted=encrypted, host=host)

    def client(self, port: int, *, encrypted: bool, host: str = "localhost", trust: Path | None = None) -> Upstream:
        target = parse_target(f"{'https' if encrypted else 'http'}://{host}:{port}/v1")
        tls = web_client(target.server_name, trust or self.pki.trust) if encrypted else None
        upstream = Upstream(reactor, self.clock, target, tls, UpstreamLimits(connect_seconds=5))
        self.addCleanup(self.stop, upstream)
        return upstream

    async def stop(self, upstream: Upstream) -> None:
        upstream.close()
        await self.factory.drain()

    async def failure(self, upstream: Upstream, body: bytes = b"") -> tuple[str, bool]:
        """Code and ``started`` of a call that must fail."""
        try:
            await self.call(upstream, body)
        except UpstreamFailed as failure:
            return failure.code, failure.started
        raise AssertionError("the call did not fail")

    def folder(self) -> Path:
        folder = Path(self.mktemp())
        folder.mkdir(mode=0o700)
        return folder

    async def call(self, upstream: Upstream, body: bytes = b"") -> bytes:
        receiver = Receiver()
        call = upstream.call("POST", "/x", [("content-type", "a/b")], len(body), receiver)
        if body:
            call.write(body)
        return await receiver.over


class UpstreamTests(LoopbackCase):
    async def test_one_connection_for_many_calls(self) -> None:
        """Over TCP and TLS, by name and by address: bodies arrive whole and the connection is kept."""
        for encrypted in (False, True):
            for host in ("localhost", "127.0.0.1"):
                self.factory = HttpServerFactory(self.application, self.clock, HttpLimits(connections=1))
                upstream = await self.upstream(encrypted=encrypted, host=host)
                for size in (0, 1, 3 * MIB):
                    self.assertEqual(await self.call(upstream, b"x" * size), b"x" * size)

    async def test_wrong_server(self) -> None:
        """P1, P17: a server that is not the target, or not trusted, gets no byte of a request."""
        right = await self.listen(self.factory, encrypted=True)
        elsewhere = self.pki.certify("elsewhere", [x509.DNSName("elsewhere.example")])
        wrong = await self.listen(tls(self.factory, elsewhere), encrypted=False)
        for upstream in (
            self.client(right, encrypted=True, trust=Pki(self.folder()).trust),
            self.client(wrong, encrypted=True),
        ):
            self.assertEqual(await self.failure(upstream, b"canary"), ("upstream_tls", False))
        self.assertEqual(self.application.bodies, [])

    async def test_not_tls(self) -> None:
        """A server that does not speak TLS."""
        port = await self.listen(self.factory, encrypted=False)
        upstream = self.client(port, encrypted=True)
        self.assertEqual(await self.failure(upstream), ("upstream_tls", False))

    async def test_nobody_there(self) -> None:
        """A port that nobody listens at."""
        port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(self.factory)
        upstream = self.client(number(port), encrypted=False)
        await port.stopListening()
        self.assertEqual(await self.failure(upstream), ("upstream_unreachable", False))

    async def test_cancel_reaches_the_server(self) -> None:
        """A server that would never end its answer learns of the cancel."""

        def begin(exchange: IExchange, body: bytes) -> None:
            exchange.start(200, [])
            exchange.write(b"x")

        for encrypted in (False, True):
            self.application.gone = Deferred()
            self.application.answer = begin
            upstream = await self.upstream(encrypted=encrypted)
            receiver = Receiver()
            call = upstream.call("GET", "/x", [], 0, receiver)
            await receiver.begun
            call.cancel()
            await self.application.gone
            self.assertNoResult(receiver.over)

    async def test_slow_receiver(self) -> None:
        """A receiver that pauses stops the server's writing; what lies between them is bounded and not lost."""
        for encrypted in (False, True):
            pump = Pump()
            self.application.answer = pump.begin
            upstream = await self.upstream(encrypted=encrypted)
            receiver = Receiver()
            call = upstream.call("GET", "/x", [], 0, receiver)
            await receiver.begun
            call.pause()
            held = -1
            while held != pump.sent:
                held = pump.sent
                await deferLater(reactor, 0.1)
            self.assertLess(held, Pump.SIZE)
            self.assertLess(len(receiver.body), 4 * MIB)
            call.resume()
            self.assertEqual(len(await receiver.over), Pump.SIZE)

    async def test_cut_off(self) -> None:
        """P33: TLS that ends without its closing alert ends no body; TLS that ends with it ends one without length."""
        rest_is_body, too_short = b"HTTP/1.1 200 OK\r\n\r\nhalf", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhalf"

        class Talk(Speaker):
            WORDS = rest_is_body

        port = await self.listen(Factory.forProtocol(Talk), encrypted=True)
        upstream = self.client(port, encrypted=True)
        self.assertEqual(await self.call(upstream), b"half")
        Talk.IN_ORDER = False
        self.assertEqual(await self.failure(upstream), ("upstream_broke", True))
        Talk.IN_ORDER, Talk.WORDS = True, too_short
        self.assertEqual(await self.failure(upstream), ("upstream_broke", True))


class Raw(Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard = b""
        self.over: Deferred[bytes] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self.heard += data

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.over.callback(self.heard)


class ServerTests(LoopbackCase):
    async def test_refusal_reaches_a_client_that_still_sends(self) -> None:
        """P32: a client in the middle of a large upload gets to read why it is refused."""
        port = await self.listen(self.factory, encrypted=False)
        client = await connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", port), Raw())
        assert client.transport is not None
        client.transport.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (8 * MIB))
        heard = await client.over
        self.assertTrue(heard.startswith(b"HTTP/1.1 413 "), heard)
        self.assertTrue(heard.endswith(b"request_too_large"))

    async def test_drain(self) -> None:
        """A drain that begins while a client is idle closes its connection."""
        port = await self.listen(self.factory, encrypted=True)
        upstream = self.client(port, encrypted=True)
        await self.call(upstream, b"x")
        await self.factory.drain()

    async def test_too_many(self) -> None:
        """P32: of connections beyond the limit the one that was idle for longest is dropped at once, over TLS too: who
        asks something is answered however many only connect.
        """
        for encrypted in (False, True):
            self.factory = HttpServerFactory(self.application, self.clock, HttpLimits(connections=1))
            port = await self.listen(self.factory, encrypted=encrypted)
            upstream = self.client(port, encrypted=encrypted)
            self.assertEqual(await self.call(upstream, b"x"), b"x")
            endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port)
            silent = await connectProtocol(endpoint, Raw())
            for _ in range(3):
                beyond = await connectProtocol(endpoint, Raw())
                self.assertEqual(await silent.over, b"")
                silent = beyond
            self.assertEqual(await self.call(upstream, b"y"), b"y")
            self.assertEqual(await silent.over, b"")
