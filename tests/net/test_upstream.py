"""The Node's HTTP/1.1 client, in memory and on a fake clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IPushProducer
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.errors import BadConfig, BadHttp, UpstreamBroke, UpstreamFailed, UpstreamLate, UpstreamTimedOut
from iop.net.upstream import IUpstreamCall, IUpstreamReceiver, Upstream, UpstreamLimits, parse_target
from iop.testing.clock import FakeClock

from .transports import MemoryTransport

#: Sooner than a connection has to be there.
START_BY = 5.0
LIMITS = UpstreamLimits(connections=2, response_head=1000)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello"
GET_HEAD = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nauthorization: Bearer canary\r\n\r\n"
POST_HEAD = b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:8080\r\ncontent-length: 5\r\n\r\n"


@implementer(IUpstreamReceiver)
class Recorder:
    """Keeps what it is told; ``react`` is called with every word."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.ends: list[UpstreamFailed | None] = []
        self.writables = 0
        self.react: Callable[[str], object] = lambda word: None

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        assert not self.ends
        self.status, self.headers = status, list(headers)
        self.react("head")

    def data(self, data: bytes) -> None:
        assert not self.ends
        assert data
        self.body += data
        self.react("data")

    def finished(self) -> None:
        self.ends.append(None)
        self.react("finished")

    def failed(self, reason: UpstreamFailed) -> None:
        self.ends.append(reason)
        self.react("failed")

    def writable(self) -> None:
        assert not self.ends
        self.writables += 1


class Server:
    """The other end of one connection."""

    def __init__(self, protocol: IProtocol, peer: str = "127.0.0.1") -> None:
        self.protocol = protocol
        self.transport = MemoryTransport()
        self.transport.peerAddr = IPv4Address("TCP", peer, 8080)
        protocol.makeConnection(self.transport)

    def send(self, data: bytes) -> None:
        self.protocol.dataReceived(data)

    def close(self, reason: Exception | None = None) -> None:
        self.protocol.connectionLost(Failure(reason or ConnectionDone()))

    def push_back(self) -> None:
        """The transport is full."""
        IPushProducer(self.transport.producer).pauseProducing()

    def drain(self) -> None:
        """The transport is empty again."""
        IPushProducer(self.transport.producer).resumeProducing()


class UpstreamCase(SynchronousTestCase):
    """An upstream that is dialled in memory."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.clock = FakeClock()
        self.upstream = Upstream(self.reactor, self.clock, parse_target("http://127.0.0.1:8080/v1"), None, LIMITS)
        self.recorder = Recorder()
        self.servers: list[Server] = []

    def accept(self, peer: str = "127.0.0.1") -> Server:
        """Let the last connection that was dialled come about."""
        protocol = self.reactor.tcpClients[-1][2].buildProtocol(IPv4Address("TCP", peer, 8080))
        server = Server(IProtocol(protocol), peer)
        self.servers.append(server)
        return server

    def refuse(self) -> None:
        """Let the last connection that was dialled fail."""
        factory, connector = self.reactor.tcpClients[-1][2], self.reactor.connectors[-1]
        factory.clientConnectionFailed(connector, Failure(ConnectionRefusedError()))

    def failure(self, recorder: Recorder | None = None) -> UpstreamFailed:
        ends = (recorder or self.recorder).ends
        self.assertEqual(len(ends), 1)
        reason = ends[0]
        assert reason is not None
        return reason

    def tearDown(self) -> None:
        for server in self.servers:
            server.close()
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])


class RequestTests(UpstreamCase):
    """What is sent."""

    def test_head(self) -> None:
        """P17: the target's host and port are dialled; Host and path are the target's own."""
        credential = bytearray(b"Bearer canary")
        self.upstream.call("GET", "/models", [("authorization", credential)], 0, self.recorder)
        credential[:] = bytes(len(credential))
        self.assertEqual(self.reactor.tcpClients[0][:2], ("127.0.0.1", 8080))
        server = self.accept()
        self.assertEqual(server.transport.take(), GET_HEAD)
        self.assertTrue(server.transport.no_delay)
        server.send(ANSWER)
        self.assertEqual((self.recorder.status, self.recorder.body, self.recorder.ends), (200, b"hello", [None]))
        self.assertEqual(self.recorder.headers, [("content-type", "a/b"), ("content-length", "5")])

    def test_body(self) -> None:
        """Pieces written before there is a connection are kept, and each word that all is sent comes once."""
        call = self.upstream.call("POST", "/x", [], 5, self.recorder)
        call.write(b"he")
        self.assertEqual(self.recorder.writables, 0)
        server = self.accept()
        self.assertEqual(server.transport.take(), POST_HEAD + b"he")
        self.assertEqual(self.recorder.writables, 1)
        call.write(b"l")
        self.assertEqual(self.recorder.writables, 2)
        server.push_back()
        call.write(b"lo")
        self.assertEqual((self.recorder.writables, server.transport.take()), (2, b"llo"))
        server.drain()
        self.assertEqual(self.recorder.writables, 3)
        server.drain()
        self.assertEqual(self.recorder.writables, 3)

    def test_empty_post(self) -> None:
        """A POST without body says so."""
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        self.assertEqual(self.accept().transport.take(), POST_HEAD.replace(b": 5", b": 0"))

    def test_too_much_body(self) -> None:
        """More bytes than announced never leave."""
        call = self.upstream.call("POST", "/x", [], 5, self.recorder)
        call.write(b"hell")
        self.assertRaises(RuntimeError, call.write, b"ow")
        self.assertEqual(self.accept().transport.take(), POST_HEAD + b"hell")

    def test_injection(self) -> None:
        """P18, P17: what could become another header, request or place is refused before anything is dialled."""
        fields: list[tuple[str, str | bytearray]] = [
            ("a", "b\r\nc: d"),
            ("a", "b\n"),
            ("a", "b\r"),
            ("a", "b\0"),
            ("a", "b\x7f"),
            ("a", "b\x85"),
            ("a", "\u0100"),
            ("a", bytearray(b"x\ny")),
            ("a\r\nb", "c"),
            ("a:", "c"),
            ("a b", "c"),
            ("", "c"),
            ("A", "c"),
            ("\u00e9", "c"),
            ("host", "evil.example"),
            ("content-length", "1"),
            ("transfer-encoding", "chunked"),
            ("connection", "close"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("te", "trailers"),
            ("proxy-connection", "x"),
        ]
        for field in fields:
            self.assertRaises(BadHttp, self.upstream.call, "POST", "/x", [("b", "c"), field], 0, self.recorder)
        for path in (
            "x",
            "",
            "/",
            "//evil.example/",
            "/../admin",
            "/%2e%2e/x",
            "/x?y",
            "/x#y",
            "/x y",
            "/x\r\nHost: z",
        ):
            self.assertRaises(BadHttp, self.upstream.call, "GET", path, [], 0, self.recorder)
        for method in ("get", "HEAD", "CONNECT", "PUT", "GET / HTTP/1.1\r\n", ""):
            self.assertRaises(BadHttp, self.upstream.call, method, "/x", [], 0, self.recorder)
        self.assertEqual((self.reactor.tcpClients, self.recorder.ends), ([], []))

    def test_scheme_and_tls(self) -> None:
        """P17: an https target without TLS, or TLS for an http one, is a mistake in the set-up."""
        self.assertRaises(
            BadConfig, Upstream, self.reactor, self.clock, parse_target("https://127.0.0.1"), None, LIMITS
        )

    def test_loopback_is_checked_again(self) -> None:
        """P17: an unencrypted connection that did not reach this machine sends nothing."""
        self.upstream.call("GET", "/models", [("authorization", "Bearer canary")], 0, self.recorder)
        server = self.accept("192.0.2.1")
        self.assertEqual(server.transport.take(), b"")
        self.assertTrue(server.transport.disconnected)
        self.assertFalse(self.failure().started)


class AnswerTests(UpstreamCase):
    """What comes back."""

    def begin(self, body: int = 0) -> Server:
        self.call = self.upstream.call("POST", "/x", [], body, self.recorder)
        return self.accept()

    def test_every_split(self) -> None:
        """P33: the answer is the same however it arrives, over one kept connection."""
        data = b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER
        server = self.begin()
        server.send(data)
        for place in range(1, len(data)):
            self.recorder = Recorder()
            self.upstream.call("POST", "/x", [], 0, self.recorder)
            server.send(data[:place])
            server.send(data[place:])
            self.assertEqual((self.recorder.status, self.recorder.body, self.recorder.ends), (200, b"hello", [None]))
        self.assertEqual(len(self.reactor.tcpClients), 1)

    def test_streams(self) -> None:
        """Head and body are passed on as they come."""
        server = self.begin()
        server.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.assertEqual(self.recorder.status, 200)
        server.send(b"1\r\na\r\n1\r\nb\r\n")
        self.assertEqual(self.recorder.body, b"ab")
        self.assertEqual(self.recorder.ends, [])
        server.send(b"0\r\n\r\n")
        self.assertEqual(self.recorder.ends, [None])

    def test_redirects_are_not_followed(self) -> None:
        """P17: a redirect is reported, and nothing else is dialled."""
        self.begin().send(b"HTTP/1.1 307 X\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n")
        self.assertEqual((self.recorder.status, self.recorder.ends), (307, [None]))
        self.assertEqual(len(self.reactor.tcpClients), 1)

    def test_pause(self) -> None:
        """A receiver that cannot take more stops the reading, and no deadline runs meanwhile."""
        server = self.begin()
        server.send(ANSWER[:-1])
        self.call.pause()
        self.call.pause()
        self.assertFalse(server.transport.reading)
        self.clock.advance(10_000)
        self.assertEqual(self.recorder.ends, [])
        self.call.resume()
        self.assertTrue(server.transport.reading)
        self.clock.advance(LIMITS.between_bytes_seconds - 1)
        server.send(ANSWER[-1:])
        self.assertEqual(self.recorder.ends, [None])

    def test_pause_from_within(self) -> None:
        """A receiver may pause while it is handed the last bytes; the connection is used again all the same."""
        server = self.begin()
        self.recorder.react = lambda word: self.call.pause() if word == "data" else None
        server.send(ANSWER)
        self.assertEqual(self.recorder.ends, [None])
        self.assertTrue(server.transport.reading)
        self.recorder = Recorder()
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        server.send(ANSWER)
        self.assertEqual(self.recorder.ends, [None])

    def test_cancel(self) -> None:
        """Cancelling closes the connection at once, at every stage, and is the last word."""
        for stage in range(4):
            self.recorder = Recorder()
            call = self.upstream.call("POST", "/x", [], 5, self.recorder)
            server = None
            if stage > 0:
                server = self.accept()
            if stage > 1 and server is not None:
                server.send(ANSWER[: -stage + 1])
            call.cancel()
            call.cancel()
            if server is not None:
                self.assertTrue(server.transport.disconnected)
                server.send(ANSWER)
                server.close()
            call.write(b"hello")
            call.pause()
            call.resume()
            self.assertEqual(self.recorder.ends, [])

    def test_cancel_from_within(self) -> None:
        """A receiver that has heard enough hears no more."""
        for word in ("head", "data"):
            self.recorder = Recorder()
            server = self.begin()

            def stop(said: str, word: str = word) -> None:
                if said == word:
                    self.call.cancel()

            self.recorder.react = stop
            server.send(ANSWER)
            self.assertTrue(server.transport.disconnected)
            self.assertEqual((self.recorder.ends, self.recorder.body), ([], b"" if word == "head" else b"hello"))
            server.close()

    def test_answered_early(self) -> None:
        """An answer before the request was whole is an answer; the connection is not used again."""
        server = self.begin(body=5)
        self.call.write(b"he")
        server.send(ANSWER.replace(b"200 OK", b"413 X"))
        self.assertEqual((self.recorder.status, self.recorder.ends), (413, [None]))
        self.assertTrue(server.transport.disconnecting)
        self.call.write(b"llo")

    def test_to_the_end(self) -> None:
        """A body that the connection's end delimits is whole only after an orderly end."""
        server = self.begin()
        server.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        self.assertEqual((self.recorder.body, self.recorder.ends), (b"hello", []))
        server.close()
        self.assertEqual(self.recorder.ends, [None])
        self.recorder = Recorder()
        server = self.begin()
        server.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        server.close(ConnectionLost())
        self.assertIsInstance(self.failure(), UpstreamBroke)


class FailureTests(UpstreamCase):
    """How calls fail, and whether anything was sent."""

    def test_unreachable(self) -> None:
        """R6: nothing was written."""
        call = self.upstream.call("POST", "/x", [], 5, self.recorder)
        call.write(b"hello")
        self.refuse()
        self.assertEqual((self.failure().code, self.failure().started), ("upstream_unreachable", False))

    def test_started(self) -> None:
        """R6, R11: a call is started from its first byte on, however much of its body waits for a connection."""
        call = self.upstream.call("POST", "/x", [], 5, self.recorder)
        call.write(b"hello")
        self.assertFalse(call.started)
        server = self.accept()
        self.assertTrue(call.started)
        server.send(ANSWER)
        self.assertTrue(self.upstream.call("POST", "/x", [], 5, self.recorder).started)

    def test_cancelled_before_it_started(self) -> None:
        """R11, P41: nobody goes on connecting for it."""
        call = self.upstream.call("POST", "/x", [], 5, self.recorder)
        call.write(b"hello")
        call.cancel()
        self.assertTrue(self.reactor.connectors[-1].stoppedConnecting)
        self.assertEqual((call.started, self.recorder.ends), (False, []))

    def test_connect_deadline(self) -> None:
        """R6: a connection that does not come about in time; nothing was written."""
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        self.clock.advance(LIMITS.connect_seconds - 1)
        self.assertEqual(self.recorder.ends, [])
        self.clock.advance(1)
        self.assertEqual((self.failure().code, self.failure().started), ("upstream_timeout", False))

    def test_too_late(self) -> None:
        """R2, P41: from the time by which it had to start nobody goes on connecting for a call."""
        self.upstream.call("POST", "/x", [], 0, self.recorder, START_BY)
        self.clock.advance(START_BY - 0.01)
        self.assertEqual(self.recorder.ends, [])
        self.clock.advance(0.01)
        self.assertIsInstance(self.failure(), UpstreamLate)
        self.assertFalse(self.failure().started)
        self.assertTrue(self.reactor.connectors[-1].stoppedConnecting)

    def test_too_late_before_its_timer(self) -> None:
        """R2, P41: a connection that is ready only then gets nothing, whether a timer has said so or not."""
        for is_kept in (False, True):
            self.setUp()
            if is_kept:
                self.upstream.call("POST", "/x", [], 0, self.recorder)
                self.accept().send(ANSWER)
                self.recorder = Recorder()
                self.servers[-1].transport.take()
            self.clock.reactor.rightNow += START_BY
            self.upstream.call("POST", "/x", [], 0, self.recorder, START_BY)
            if not is_kept:
                self.accept()
            self.assertIsInstance(self.failure(), UpstreamLate)
            self.assertFalse(self.failure().started)
            server = self.servers[-1]
            self.assertEqual((server.transport.take(), server.transport.disconnected), (b"", True))
            self.tearDown()
            self.servers.clear()

    def test_in_time(self) -> None:
        """R11: a call that started goes on when that time comes."""
        self.upstream.call("POST", "/x", [], 0, self.recorder, START_BY)
        self.clock.advance(START_BY - 0.01)
        server = self.accept()
        self.clock.advance(1)
        server.send(ANSWER)
        self.assertEqual(self.recorder.ends, [None])

    @settings(deadline=None)
    @given(
        st.lists(
            st.sampled_from(["call", "accept", "answer", "cancel"])
            | st.floats(0, START_BY)
            | st.tuples(st.floats(0, START_BY)),
            max_size=12,
        )
    )
    def test_any_order(self, steps: list[str | float | tuple[float]]) -> None:
        """P41: whatever comes when, timers late or not, a call sends its first byte in time or none at all."""
        self.setUp()
        begun: list[tuple[IUpstreamCall, float]] = []
        #: Connections up to here were accepted, or never will be.
        accepted = 0
        for step in steps:
            unstarted = [(call, by) for call, by in begun if not call.started]
            dialled = self.reactor.connectors[accepted:]
            match step:
                case "call":
                    by = self.clock.boot() + START_BY
                    begun.append((self.upstream.call("POST", "/x", [], 0, Recorder(), by), by))
                    unstarted.append(begun[-1])
                case "accept" if dialled and not dialled[-1].stoppedConnecting:
                    accepted = len(self.reactor.connectors)
                    self.accept()
                case "answer" if self.servers and not self.servers[-1].transport.disconnected:
                    self.servers[-1].send(ANSWER)
                case "cancel" if begun:
                    begun[-1][0].cancel()
                case float():
                    self.clock.advance(step)
                case (late,):
                    # time passes, and no timer says so
                    self.clock.reactor.rightNow += late
                case _:
                    pass
            for call, by in unstarted:
                self.assertFalse(call.started and self.clock.boot() >= by)
        for call, _ in begun:
            call.cancel()
        self.upstream.close()
        self.tearDown()
        self.servers.clear()

    def test_first_byte_deadline(self) -> None:
        """R6: silence after the request was sent."""
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        server = self.accept()
        self.clock.advance(LIMITS.first_byte_seconds - 1)
        self.assertEqual(self.recorder.ends, [])
        self.clock.advance(1)
        self.assertIsInstance(self.failure(), UpstreamTimedOut)
        self.assertTrue(self.failure().started)
        self.assertTrue(server.transport.disconnected)

    def test_head_drip(self) -> None:
        """P34, R6: neither bytes of a head nor interim answers move the time by which the head has to be whole."""
        seconds = int(LIMITS.first_byte_seconds) - 1
        for drip in (b"HTTP/1.1 200 OK\r\nA: " + b"x" * seconds, b"HTTP/1.1 103 X\r\n\r\n" * seconds):
            for pauses in (False, True):
                self.recorder = Recorder()
                call = self.upstream.call("POST", "/x", [], 0, self.recorder)
                server = self.accept()
                for place in range(seconds):
                    server.send(drip[place : place + 1])
                    if pauses:
                        call.pause()
                        call.resume()
                    self.clock.advance(1)
                self.assertEqual(self.recorder.ends, [])
                self.clock.advance(1)
                self.assertIsInstance(self.failure(), UpstreamTimedOut)
                self.assertTrue(self.failure().started)
                self.assertTrue(server.transport.disconnected)
                server.close()

    def test_head_at_the_last_moment(self) -> None:
        """P34: silence may last longer within a head than within a body, until the head is whole."""
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        server = self.accept()
        server.send(ANSWER[:1])
        self.clock.advance(LIMITS.first_byte_seconds - 1)
        server.send(ANSWER[1:-1])
        self.assertEqual((self.recorder.status, self.recorder.ends), (200, []))
        self.clock.advance(LIMITS.between_bytes_seconds - 1)
        self.assertEqual(self.recorder.ends, [])
        self.clock.advance(1)
        self.assertIsInstance(self.failure(), UpstreamTimedOut)

    def test_between_bytes_deadline(self) -> None:
        """The body of an answer may take long, but not pause for long."""
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        server = self.accept()
        body = ANSWER.index(b"hello")
        server.send(ANSWER[:body])
        for place in range(body, len(ANSWER) - 1):
            self.clock.advance(LIMITS.between_bytes_seconds - 1)
            server.send(ANSWER[place : place + 1])
        self.clock.advance(LIMITS.between_bytes_seconds - 1)
        self.assertEqual(self.recorder.ends, [])
        self.clock.advance(1)
        self.assertIsInstance(self.failure(), UpstreamTimedOut)

    def test_broken_off(self) -> None:
        """R6: an end before the answer is whole, wherever it comes."""
        for place in range(len(ANSWER)):
            self.recorder = Recorder()
            self.upstream.call("POST", "/x", [], 0, self.recorder)
            server = self.accept()
            server.send(ANSWER[:place])
            server.close()
            self.assertEqual((self.failure().code, self.failure().started), ("upstream_broke", True))

    def test_not_http(self) -> None:
        """An answer that is not HTTP/1.1 within the limits, before and inside its body; nothing of it is passed on."""
        for data in (
            b"garbage\r\n",
            b"HTTP/1.1 200 OK\r\nA: " + b"x" * 1000,
            b"HTTP/1.1 199 X\r\ncontent-length: 9\r\n\r\nINJECTED!" + ANSWER,
        ):
            self.recorder = Recorder()
            self.upstream.call("POST", "/x", [], 0, self.recorder)
            server = self.accept()
            server.send(data)
            self.assertEqual((self.failure().code, self.failure().started), ("upstream_broke", True))
            self.assertEqual((self.recorder.status, self.recorder.body), (0, b""))
            self.assertTrue(server.transport.disconnected)
            server.close()

    def test_no_answer_names_the_upstream(self) -> None:
        """R10: no message holds an address or what the upstream sent."""
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        self.accept().send(b"canary\r\n")
        self.assertNotIn("canary", self.failure().message)
        self.assertNotIn("127.0.0.1", self.failure().message)

    def test_too_many(self) -> None:
        """More connections than the limit are not opened; one that ends makes room."""
        calls = [self.upstream.call("POST", "/x", [], 0, Recorder()) for _ in range(LIMITS.connections)]
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        self.assertEqual((self.failure().code, self.failure().started), ("upstream_busy", False))
        self.assertEqual(len(self.reactor.tcpClients), LIMITS.connections)
        calls[0].cancel()
        self.recorder = Recorder()
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        self.assertEqual(self.recorder.ends, [])
        server = self.accept()
        calls[1].cancel()
        server.close()
        for _ in range(LIMITS.connections):
            self.upstream.call("POST", "/x", [], 0, self.recorder).cancel()
        self.assertEqual(len(self.recorder.ends), 1)


class KeptConnectionTests(UpstreamCase):
    """Connections that carry one call after the other."""

    def exchange(self) -> Server:
        self.upstream.call("GET", "/models", [("authorization", "Bearer canary")], 0, Recorder())
        server = self.accept()
        server.send(ANSWER)
        server.transport.clear()
        return server

    def test_reused(self) -> None:
        """The next call goes over the kept connection, at once."""
        server = self.exchange()
        call = self.upstream.call("POST", "/x", [], 5, self.recorder)
        call.write(b"hello")
        self.assertEqual(server.transport.take(), POST_HEAD + b"hello")
        self.assertEqual(self.recorder.writables, 1)
        server.send(ANSWER)
        self.assertEqual(self.recorder.ends, [None])

    def test_reused_from_within(self) -> None:
        """A call begun when another one finishes finds its connection free."""
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        second = Recorder()
        self.recorder.react = lambda word: word == "finished" and self.upstream.call("POST", "/x", [], 0, second)
        server = self.accept()
        server.send(ANSWER)
        server.send(ANSWER)
        self.assertEqual((self.recorder.ends, second.ends), ([None], [None]))
        self.assertEqual(len(self.reactor.tcpClients), 1)

    def test_dies_under_a_call(self) -> None:
        """R6: bytes were written, so the call began, and nothing is retried behind anybody's back."""
        server = self.exchange()
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        server.close()
        self.assertEqual((self.failure().code, self.failure().started), ("upstream_broke", True))
        self.assertEqual(len(self.reactor.tcpClients), 1)

    def test_not_after(self) -> None:
        """Connections whose state is in doubt are not kept: the upstream's wish, more bytes than the answer."""
        for data in (ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), ANSWER + b"HTTP/1.1 200 OK\r\n"):
            self.recorder = Recorder()
            self.upstream.call("POST", "/x", [], 0, self.recorder)
            server = self.accept()
            server.send(data)
            self.assertEqual(self.recorder.ends, [None])
            self.assertTrue(server.transport.disconnecting)
            server.close()

    def test_not_while_the_request_is_unsent(self) -> None:
        """A connection that still holds bytes of a request is not kept."""
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        server = self.accept()
        server.push_back()
        server.send(ANSWER)
        self.assertEqual(self.recorder.ends, [None])
        self.assertTrue(server.transport.disconnecting)

    def test_unasked_bytes(self) -> None:
        """P33: what an upstream sends on an idle connection is no answer to the next call."""
        server = self.exchange()
        server.send(ANSWER)
        self.assertTrue(server.transport.disconnecting)
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        server.send(ANSWER)
        self.assertEqual((self.recorder.ends, len(self.reactor.tcpClients)), ([], 2))
        self.accept().send(ANSWER)
        self.assertEqual(self.recorder.ends, [None])

    def test_not_after_a_renewal(self) -> None:
        """P17: what was dialled before takes no further call; a call that runs goes on to its end."""
        idle = self.exchange()
        running = Recorder()
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        self.upstream.call("POST", "/x", [], 0, running)
        busy = self.accept()
        idle.send(ANSWER)
        self.upstream.renew()
        self.assertEqual((idle.transport.disconnecting, busy.transport.disconnecting), (True, False))
        idle.close()
        busy.send(ANSWER)
        self.assertEqual((running.ends, busy.transport.disconnecting), ([None], True))
        busy.close()
        self.recorder = Recorder()
        kept = self.exchange()
        self.assertFalse(kept.transport.disconnecting)

    def test_idle_deadline(self) -> None:
        """Kept connections are closed after a while, and dropped if that does not work."""
        server = self.exchange()
        self.clock.advance(LIMITS.idle_connection_seconds - 1)
        self.assertFalse(server.transport.disconnecting)
        self.clock.advance(1)
        self.assertTrue(server.transport.disconnecting)
        self.assertFalse(server.transport.disconnected)
        self.clock.advance(LIMITS.connect_seconds)
        self.assertTrue(server.transport.disconnected)

    def test_closed_while_idle(self) -> None:
        """A kept connection that the upstream closes is forgotten."""
        self.exchange().close()
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        self.assertEqual(len(self.reactor.tcpClients), 2)
        self.accept().send(ANSWER)
        self.assertEqual(self.recorder.ends, [None])

    def test_close(self) -> None:
        """Closing ends kept connections at once and those in use after their calls."""
        idle = self.exchange()
        self.upstream.call("POST", "/x", [], 0, Recorder())
        self.assertEqual(len(self.reactor.tcpClients), 1)
        self.upstream.call("POST", "/x", [], 0, self.recorder)
        busy = self.accept()
        idle.send(ANSWER)
        self.upstream.close()
        self.assertTrue(idle.transport.disconnecting)
        self.assertFalse(busy.transport.disconnecting)
        busy.send(ANSWER)
        self.assertEqual(self.recorder.ends, [None])
        self.assertTrue(busy.transport.disconnecting)
        late = Recorder()
        self.upstream.call("POST", "/x", [], 0, late)
        self.assertFalse(self.failure(late).started)
