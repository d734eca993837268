"""Resources of twisted.web and klein behind the project's own HTTP server."""

from __future__ import annotations

import json
from collections.abc import Callable
from email.utils import formatdate

from klein import Klein
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from iop.net.guard import GuardLimits, WipedBody, guarded_site
from iop.net.http1 import Headers, HttpServerFactory
from iop.net.http_connection import LINGER_SECONDS
from iop.testing.clock import FakeClock

from .test_http1 import NASTY
from .transports import MemoryTransport

LIMITS = GuardLimits(headers=2048, body=500, body_total=600)
GET = b"GET /page HTTP/1.1\r\nHost: cp\r\n\r\n"
POST = b"POST /page HTTP/1.1\r\nHost: cp\r\nContent-Length: 6\r\n\r\ncanary"


def refuse(status: int, code: str, message: str) -> tuple[Headers, bytes]:
    return [(b"content-type", b"application/problem+json")], json.dumps({"status": status, "code": code}).encode()


def body_limit(method: bytes, path: bytes) -> int:
    return {b"/page": 10, b"/large": 10_000}.get(path, 0) if method == b"POST" else 0


class Page(Resource):
    """Answers with what it got, and keeps its requests."""

    isLeaf = True

    def __init__(self) -> None:
        Resource.__init__(self)
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.answer: Callable[[Request], bytes | int] = lambda request: b"fine"

    def render_GET(self, request: Request) -> bytes | int:
        self.requests.append(request)
        return self.answer(request)

    def render_POST(self, request: Request) -> bytes | int:
        assert request.content is not None
        self.bodies.append(request.content.read())
        return self.render_GET(request)


class GuardCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.page = Page()
        self.serve(guarded_site(self.page, FakeClock(), LIMITS, body_limit, refuse))

    def serve(self, factory: HttpServerFactory) -> None:
        self.connection = factory.buildProtocol(None)
        self.transport = MemoryTransport()
        IProtocol(self.connection).makeConnection(self.transport)

    def send(self, data: bytes) -> bytes:
        self.connection.dataReceived(data)
        date = b"date: " + formatdate(1_800_000_000, usegmt=True).encode() + b"\r\n"
        return self.transport.take().replace(date, b"")

    def disconnect(self) -> None:
        self.connection.connectionLost(Failure(ConnectionDone()))


class ResourceTests(GuardCase):
    """What resources get and give."""

    def test_answer(self) -> None:
        """Body, query and fields arrive; the answer says nothing about the software behind it."""
        request = POST.replace(b"/page ", b"/page?a=b&c= ").replace(b"Host", b"X-Y: z\r\nHost")
        self.assertEqual(self.send(request), b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine")
        seen = self.page.requests[0]
        self.assertEqual((seen.method, seen.uri, seen.path), (b"POST", b"/page?a=b&c=", b"/page"))
        self.assertEqual(seen.args, {b"a": [b"b"], b"c": [b""]})
        self.assertEqual(seen.requestHeaders.getRawHeaders("x-y"), ["z"])
        self.assertEqual(self.page.bodies, [b"canary"])

    def test_status_and_fields(self) -> None:
        """Status and fields are the resource's; how the answer is delimited is not."""

        def answer(request: Request) -> bytes:
            request.setResponseCode(201)
            request.setHeader(b"X-A", b"b\r\nc: d")
            request.setHeader(b"Connection", b"upgrade")
            return b"made"

        self.page.answer = answer
        self.assertEqual(self.send(GET), b"HTTP/1.1 201 Created\r\nx-a: b c: d\r\ncontent-length: 4\r\n\r\nmade")

    def test_later(self) -> None:
        """An answer may take time, and come in pieces; requests sent ahead wait."""
        self.page.answer = lambda request: NOT_DONE_YET
        self.assertEqual(self.send(GET + GET), b"")
        first = self.page.requests[0]
        first.write(b"a")
        first.write(b"b")
        self.assertEqual(len(self.page.requests), 1)
        first.finish()
        self.assertEqual(self.send(b""), b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab")
        self.assertEqual(len(self.page.requests), 2)

    def test_head(self) -> None:
        """HEAD has no body."""
        answer = self.send(GET.replace(b"GET", b"HEAD"))
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 OK\r\n"))
        self.assertTrue(answer.endswith(b"\r\n\r\n"))
        self.assertEqual(self.send(GET), b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine")

    def test_bodies_are_zeroed(self) -> None:
        """P25: a body's buffer is closed, and with that zeroed, once its request is over, answered or not."""
        body = WipedBody(b"canary")
        body.wipe()
        self.assertEqual(body.getvalue(), bytes(6))
        self.page.answer = lambda request: NOT_DONE_YET
        self.send(POST)
        answered = self.page.requests[-1]
        content = answered.content
        self.assertIsInstance(content, WipedBody)
        answered.finish()
        self.assertTrue(content is not None and content.closed)
        self.send(POST)
        content = self.page.requests[-1].content
        self.disconnect()
        self.assertTrue(content is not None and content.closed)

    def test_failing_resource(self) -> None:
        """P25: an exception is logged and answered without a word about it, or about what was to be answered."""

        def at_once(request: Request) -> bytes:
            raise ZeroDivisionError("canary")

        def half_way(request: Request) -> bytes:
            request.setHeader(b"x-a", b"canary")
            request.write(b"canary")
            raise ZeroDivisionError("canary")

        for answer in (at_once, half_way):
            self.page.answer = answer
            self.assertEqual(
                self.send(GET),
                b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/problem+json\r\n"
                b'content-length: 35\r\n\r\n{"status": 500, "code": "internal"}',
            )
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


class RefusalTests(GuardCase):
    """What never reaches a resource."""

    def refused(self, status: int, code: str, data: bytes) -> None:
        answer = self.send(data)
        self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % status), answer)
        head, _, body = answer.partition(b"\r\n\r\n")
        self.assertIn(b"content-type: application/problem+json\r\n", head)
        self.assertEqual(json.loads(body), {"status": status, "code": code})
        self.assertEqual(self.page.requests, [])

    def test_nasty(self) -> None:
        """P39 and smuggling: every request that two readers could take differently."""
        for name, (_, data) in NASTY.items():
            self.setUp()
            answer = self.send(data + GET)
            self.assertEqual((answer.count(b"HTTP/1.1 "), self.page.requests), (1, []), name)
            self.assertIn(answer[9:12], (b"400", b"413", b"415", b"505"), name)

    def test_body_by_route(self) -> None:
        """P32: a body beyond what its route takes is refused from the head alone, at once."""
        self.send(POST.replace(b": 6", b": 10").replace(b"canary", b"0123456789"))
        self.assertEqual(self.page.bodies, [b"0123456789"])
        self.page.requests.clear()
        self.refused(413, "request_too_large", POST.replace(b": 6", b": 11")[:-6])
        self.setUp()
        self.refused(413, "request_too_large", POST.replace(b"/page", b"/other")[:-6])
        self.setUp()
        self.refused(413, "request_too_large", POST.replace(b"/page", b"/large").replace(b": 6", b": 501")[:-6])
        self.setUp()
        self.refused(413, "request_too_large", POST.replace(b": 6", b": 9999999999999")[:-6])
        self.setUp()
        chunked = POST.replace(b"Content-Length: 6", b"Transfer-Encoding: chunked")
        self.refused(413, "request_too_large", chunked.replace(b"canary", b"6\r\ncanary\r\n5\r\n"))

    def test_bodies_together(self) -> None:
        """P32: bodies of calls that are not answered yet have a limit together, and an answer makes room."""
        self.page.answer = lambda request: NOT_DONE_YET
        factory = guarded_site(self.page, FakeClock(), LIMITS, body_limit, refuse)
        large = POST.replace(b"/page", b"/large")
        self.serve(factory)
        self.send(large.replace(b": 6", b": 500").replace(b"canary", b"x" * 500))
        first, (held,) = self.connection, self.page.requests
        self.serve(factory)
        self.send(large.replace(b": 6", b": 100").replace(b"canary", b"x" * 100))
        self.disconnect()
        self.page.requests.clear()
        self.serve(factory)
        self.refused(503, "overloaded", large.replace(b": 6", b": 101")[:-6])
        held.finish()
        self.serve(factory)
        self.send(POST)
        self.assertEqual(self.page.bodies[-1], b"canary")
        first.connectionLost(Failure(ConnectionDone()))
        self.disconnect()

    def test_head(self) -> None:
        """P32: a head beyond its limit."""
        self.refused(431, "headers_too_large", GET[:-2] + b"A: " + b"x" * LIMITS.headers)


class DeadlineTests(GuardCase):
    """P34: one absolute time for the whole call."""

    def setUp(self) -> None:
        super().setUp()
        self.clock = FakeClock()
        self.page.answer = lambda request: NOT_DONE_YET
        self.serve(guarded_site(self.page, self.clock, LIMITS, body_limit, refuse))

    def drip(self, data: bytes, seconds: int) -> None:
        for place in range(seconds):
            self.connection.dataReceived(data[place : place + 1])
            self.clock.advance(1)

    def test_head_drip(self) -> None:
        """P34: a head that trickles."""
        self.drip(GET, int(LIMITS.call_seconds) - 1)
        self.assertEqual(self.transport.take(), b"")
        self.clock.advance(1)
        self.assertIn(b"HTTP/1.1 408 ", self.transport.take())
        self.clock.advance(LINGER_SECONDS)
        self.assertTrue(self.transport.disconnecting)

    def test_body_drip(self) -> None:
        """P34: a body that trickles shares the head's time."""
        self.connection.dataReceived(POST[:20])
        self.clock.advance(8)
        self.connection.dataReceived(POST[20:-6])
        self.drip(b"cana", int(LIMITS.call_seconds) - 9)
        self.assertEqual(self.transport.take(), b"")
        self.clock.advance(1)
        self.assertIn(b"HTTP/1.1 408 ", self.transport.take())
        self.assertEqual(self.page.requests, [])

    def test_whole_call(self) -> None:
        """P34: an answer that does not come in time is replaced, and its resource is told to stop."""
        self.connection.dataReceived(POST[:20])
        self.clock.advance(10)
        self.connection.dataReceived(POST[20:])
        gone: list[Failure] = []
        self.page.requests[0].notifyFinish().addErrback(gone.append)
        self.clock.advance(LIMITS.call_seconds - 11)
        self.assertEqual((self.transport.take(), gone), (b"", []))
        self.clock.advance(1)
        answer = self.transport.take()
        self.assertIn(b"HTTP/1.1 504 ", answer)
        self.assertIn(b'"code": "call_timeout"', answer)
        self.assertEqual([type(failure.value) for failure in gone], [ConnectionLost])
        self.clock.advance(LINGER_SECONDS)
        self.assertTrue(self.transport.disconnecting)

    def test_client_goes(self) -> None:
        """A client that leaves ends its request."""
        self.send(GET)
        gone: list[Failure] = []
        self.page.requests[0].notifyFinish().addErrback(gone.append)
        self.disconnect()
        self.assertEqual(len(gone), 1)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])


class KleinTests(GuardCase):
    """The framework of the credential API."""

    def test_klein(self) -> None:
        """Routes, bodies, later answers, a client that goes."""
        app = Klein()
        waiting: list[Deferred[bytes]] = []
        ended: list[str] = []

        @app.route("/page", methods=["POST"])
        async def post(request: IRequest) -> bytes:
            waiting.append(Deferred())
            content = request.content.read()
            try:
                return bytes(content) + await waiting[-1]
            except CancelledError:
                ended.append("cancelled")
                raise

        self.serve(guarded_site(app.resource(), FakeClock(), LIMITS, body_limit, refuse))
        self.assertEqual(self.send(POST), b"")
        waiting[0].callback(b"!")
        self.assertEqual(self.send(b""), b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\ncanary!")
        self.assertIn(b"HTTP/1.1 405 ", self.send(GET))
        self.assertIn(b"HTTP/1.1 404 ", self.send(GET.replace(b"/page", b"/other")))
        self.send(POST)
        self.disconnect()
        self.assertEqual(ended, ["cancelled"])
