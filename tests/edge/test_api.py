"""What callers see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from sys import getrefcount
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from iop.crypto.tokens import mint
from iop.edge.answer import Answer
from iop.edge.runs import IRunReceiver
from iop.net.http1 import IExchange, IHttpApplication
from iop.records import TokenKind
from iop.units import RUN_WINDOW
from iop.wire import runtime_pb2
from tests.edge.rig import (
    ADA,
    ADA_TOKEN,
    FIRST,
    SMALL,
    MemoryExchange,
    Rig,
    node_table,
    refusal,
    text_of,
)
from tests.metrics import page_of

NEWER = replace(FIRST, generation=6)
#: What no answer may contain: names of this side, references, verifiers.
INTERNAL = (
    "edge-1",
    "node-1",
    "control-plane",
    "slot-1",
    "route-1",
    ADA.token_id,
    ADA.digest.hex(),
    text_of(ADA_TOKEN),
    "deployment",
    "Traceback",
)


class ApiTestCase(SynchronousTestCase):
    """An Edge with one ready Node."""

    def setUp(self) -> None:
        self.events = self.enterContext(capturedLogs())
        self.rig = Rig(Path(self.mktemp()), [node_table("node-1")])
        self.rig.dial()
        self.control_plane = self.rig.control_plane
        self.node = self.rig.node("node-1")

    def assertRefused(self, exchange: MemoryExchange, status: int, code: str) -> dict[str, Any]:
        """OpenAI's error shape, an id, JSON, and nothing of this side."""
        self.assertEqual(exchange.status, status, exchange.body)
        self.assertTrue(exchange.whole)
        document = json.loads(exchange.body)
        self.assertEqual(set(document), {"error"})
        error: dict[str, Any] = document["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["code"], code)
        self.assertTrue(error["message"])
        self.assertEqual(exchange.headers["content-type"], "application/json")
        self.assertTrue(exchange.headers["x-request-id"])
        text = exchange.body.decode() + repr(exchange.headers)
        for word in INTERNAL:
            self.assertNotIn(word, text)
        return error


class TokenTests(ApiTestCase):
    """Who is let in."""

    def test_interfaces(self) -> None:
        """The fakes are what the product expects."""
        verifyObject(IHttpApplication, self.rig.api)
        exchange = self.rig.request(path="/v1/models", method="GET")
        verifyObject(IExchange, exchange)
        verifyObject(IRunReceiver, Answer(exchange, "id", "small", self.rig.clock, self.rig.metrics, lambda: None))

    def test_refused_tokens(self) -> None:
        """P20: every other thing in Authorization is one and the same 401."""
        token = text_of(ADA_TOKEN)
        manage = text_of(mint(TokenKind.MANAGE))
        values = [
            [],
            [b""],
            [b"Bearer"],
            [b"Bearer "],
            [b"Bearer  " + token.encode()],
            [b"Bearer " + token.encode() + b" "],
            [b"Bearer " + manage.encode()],
            [b"Bearer " + ADA.digest.hex().encode()],
            [b"Bearer " + ADA.digest],
            [b"Bearer " + token.encode() + b"x" * 10_000],
            [b"Bearer " + token.encode(), b"Bearer " + token.encode()],
            [b"Bearer " + token.encode() + b", Bearer " + token.encode()],
            [b"Basic " + token.encode()],
            [token.encode()],
            [b"Bearer " + token[:-1].encode() + (b"0" if token[-1] != "0" else b"1")],
            [b"Bearer \xff\xfe"],
        ]
        bodies = set()
        for given in values:
            exchange = self.rig.request(token="", headers=[(b"authorization", value) for value in given])
            self.assertRefused(exchange, 401, "invalid_api_key")
            self.assertEqual(exchange.headers["www-authenticate"], "Bearer")
            bodies.add(exchange.body)
        self.assertEqual(len(bodies), 1)
        self.assertEqual(self.node.received, [])

    def test_scheme_is_case_insensitive(self) -> None:
        """RFC 9110: the scheme's case does not matter."""
        header = (b"authorization", b"bearer " + text_of(ADA_TOKEN).encode())
        self.assertEqual(self.rig.request(method="GET", path="/v1/models", token="", headers=[header]).status, 200)

    def test_token_comes_first(self) -> None:
        """P1: without a token nobody learns which paths exist, and no body is read."""
        for path in ("/v1/chat/completions", "/v1/nothing", "/", "/healthz"):
            self.assertRefused(self.rig.request(path=path, token=text_of(mint(TokenKind.USE))), 401, "invalid_api_key")

    def test_revoked_between_head_and_body(self) -> None:
        """A token that is revoked while the body comes opens nothing."""
        head = self.rig.request(method="GET", path="/v1/models").head
        exchange = MemoryExchange(replace(head, method="POST", path="/v1/chat/completions"))
        wanted = self.rig.api.headed(exchange)
        assert wanted is not None
        self.control_plane.push(replace(NEWER, tokens=()))
        self.rig.pump()
        wanted.take(bytearray(b'{"model": "small"}'))
        self.assertRefused(exchange, 401, "invalid_api_key")


class PathTests(ApiTestCase):
    """Paths, methods and models."""

    def get(self, path: str) -> MemoryExchange:
        return self.rig.request(method="GET", path=path)

    def test_models(self) -> None:
        """The principal's own models, by name."""
        other = replace(SMALL, route="route-3", model="a/b c")
        self.control_plane.push(replace(NEWER, routes=(*FIRST.routes, other)))
        self.rig.pump()
        exchange = self.get("/v1/models")
        self.assertEqual((exchange.status, exchange.headers["content-type"]), (200, "application/json"))
        document = json.loads(exchange.body)
        self.assertEqual(document["object"], "list")
        self.assertEqual([model["id"] for model in document["data"]], ["a/b c", "small"])
        self.assertEqual(set(document["data"][0]), {"id", "object", "created", "owned_by"})
        for path in ("/v1/models/a%2Fb%20c", "/v1/models/a/b%20c"):
            self.assertEqual(json.loads(self.get(path).body)["id"], "a/b c")

    def test_unknown_models(self) -> None:
        """P16: a foreign model, an unknown one and no model at all are answered alike."""
        bodies = set()
        for path in ("/v1/models/large", "/v1/models/nothing", "/v1/models/", "/v1/models/%ff"):
            exchange = self.get(path)
            self.assertRefused(exchange, 404, "model_not_found")
            bodies.add(exchange.body)
        for model in ("large", "nothing"):
            exchange = self.rig.request(json.dumps({"model": model}).encode())
            self.assertRefused(exchange, 404, "model_not_found")
            bodies.add(exchange.body)
        self.assertEqual(len(bodies), 1)

    def test_other_paths(self) -> None:
        """Whatever else is asked for is not there."""
        for path in ("/", "/v1", "/v1/chat", "/v1/chat/completions/", "/v1/embeddings", "/v1/../v1/models"):
            self.assertRefused(self.get(path), 404, "unknown_url")

    def test_other_methods(self) -> None:
        """A path that exists says which method it takes."""
        for method, path, allowed in (
            ("GET", "/v1/chat/completions", "POST"),
            ("DELETE", "/v1/models/small", "GET"),
            ("POST", "/v1/models", "GET"),
            ("HEAD", "/v1/models", "GET"),
        ):
            exchange = self.rig.request(method=method, path=path)
            self.assertRefused(exchange, 405, "method_not_allowed")
            self.assertEqual(exchange.headers["allow"], allowed)

    def test_body_limits(self) -> None:
        """Bodies belong to calls: a look-up has none. P19: they take the share of the token's principal."""
        for method, path, limit in (("POST", "/v1/chat/completions", 1024 * 1024), ("GET", "/v1/models", 0)):
            head = self.get("/v1/models").head
            exchange = MemoryExchange(replace(head, method=method, path=path))
            wanted = self.rig.api.headed(exchange)
            self.assertEqual(wanted and (wanted.limit, wanted.owner), (limit, ADA.principal))

    def test_request_id(self) -> None:
        """A sane id of the caller's is kept, any other replaced; so is one that holds a token (P25)."""
        token = text_of(mint(TokenKind.USE)).encode()
        kept = self.rig.request(method="GET", path="/v1/models", headers=[(b"x-request-id", b"abc-1.2_3")])
        self.assertEqual(kept.headers["x-request-id"], "abc-1.2_3")
        for given in (b"", b"a b", b"\xff", b"x" * 129, b"a\tb", b"-a", token, b"a-" + token):
            replaced = self.rig.request(method="GET", path="/v1/models", headers=[(b"x-request-id", given)])
            self.assertNotEqual(replaced.headers["x-request-id"], given.decode("latin-1"))
            self.assertEqual(len(replaced.headers["x-request-id"]), 36)

    def test_server_refusals(self) -> None:
        """What the HTTP server refuses on its own has the same shape."""
        headers, body = self.rig.api.refuse(413, "request_too_large", "the body is larger than 5 bytes")
        exchange = MemoryExchange(self.get("/v1/models").head)
        exchange.respond(413, headers, body)
        self.assertRefused(exchange, 413, "request_too_large")


class BodyTests(ApiTestCase):
    """What is taken as a request, and what of it travels."""

    def test_bad_bodies(self) -> None:
        """P37: what is not strict JSON is 400, and no Node hears of it."""
        for body in (b"", b"{", b"[]", b'"small"', b'{"model": "small", "model": "small"}', b'{"model": NaN}', b"\xff"):
            self.assertRefused(self.rig.request(body), 400, "invalid_json")
        for body in (b"{}", b'{"model": null}', b'{"model": 5}', b'{"model": ""}', b'{"model": ["small"]}'):
            error = self.assertRefused(self.rig.request(body), 400, "missing_model")
            self.assertEqual(error["param"], "model")
        self.assertRefused(self.rig.request(json.dumps({"model": "m" * 257}).encode()), 400, "missing_model")
        self.assertEqual(self.node.received, [])

    def test_large_body_has_its_own_turn(self) -> None:
        """P19: a large body is parsed in a turn of its own; one whose caller is gone by then is let go of unparsed."""
        large = json.dumps({"model": "small", "messages": "x" * 70_000}).encode()
        head = self.rig.request().head
        stays, leaves = MemoryExchange(head), MemoryExchange(head)
        left = bytearray(large)
        for exchange, body in ((stays, bytearray(large)), (leaves, left)):
            wanted = self.rig.api.headed(exchange)
            assert wanted is not None
            wanted.take(body)
        del body, wanted
        opened = len(self.runs())
        leaves.go()
        # held by this frame and by the call alone
        self.assertEqual(getrefcount(left), 2)
        self.rig.pump()
        self.assertEqual(len(self.runs()) - opened, 1)
        self.assertEqual(self.node.bodies(self.node.last_run().run), large.replace(b'"small"', b'"gpt-small"'))

    def runs(self) -> list[runtime_pb2.RunRequest]:
        """What the Node was asked to run."""
        return [message for message in self.node.received if isinstance(message, runtime_pb2.RunRequest)]

    def test_only_the_model_is_rewritten(self) -> None:
        """Every other byte of the body stays as it was sent."""
        body = '{ "a":1.10,\t"model" : "sm\\u0061ll" ,"b":{"model":"small"}, "é":[1e5, "\\/"]}\n'.encode()
        self.rig.request(body)
        sent = self.node.bodies(self.node.last_run().run)
        self.assertEqual(sent, body.replace(b'"sm\\u0061ll"', b'"gpt-small"'))

    def test_headers(self) -> None:
        """P18, R8: a closed list of headers travels; the token and everything else stays here."""
        self.rig.request(
            headers=[
                (b"content-type", b"application/json"),
                (b"accept", b"text/event-stream"),
                (b"openai-beta", b"x"),
                (b"cookie", b"c"),
                (b"x-api-key", b"k"),
                (b"user-agent", b"u"),
                (b"x-forwarded-for", b"f"),
                (b"host", b"h"),
            ]
        )
        names = [field.name for field in self.node.last_run().headers]
        self.assertEqual(names, ["content-type", "accept", "openai-beta"])

    def test_headers_in_several_lines(self) -> None:
        """RFC 9110, 5.3: a list in several lines is the list in one; a Node takes each name once."""
        self.rig.request(headers=[(b"accept", b"a/b"), (b"openai-beta", b"x"), (b"accept", b"c/d;q=0.5")])
        fields = [(field.name, field.value) for field in self.node.last_run().headers]
        self.assertEqual(fields, [("accept", "a/b, c/d;q=0.5"), ("openai-beta", "x")])

    def test_token_goes_nowhere(self) -> None:
        """P6: neither the token nor its digest leaves the Edge; only its proof goes to the Control Plane."""
        self.rig.request()
        run, (question,) = self.node.last_run(), self.control_plane.asked_for
        for data in (run.SerializeToString(), question.SerializeToString()):
            self.assertNotIn(text_of(ADA_TOKEN).encode(), data)
            self.assertNotIn(ADA.digest, data)
        self.assertNotIn(ADA_TOKEN.record.proof, run.SerializeToString())


class AnswerTests(ApiTestCase):
    """What comes back."""

    def test_plain(self) -> None:
        """Status, body and allowed headers as the provider sent them."""
        exchange = self.rig.request(headers=[(b"x-request-id", b"mine")])
        self.node.head(200, content_type="application/json", x_ratelimit_remaining_requests="7", server="secret-host")
        self.node.body(b'{"ok":')
        self.node.body(b"1}", last=True)
        self.rig.pump()
        self.assertEqual((exchange.status, exchange.body, exchange.whole), (200, b'{"ok":1}', True))
        self.assertEqual(
            exchange.headers,
            {"content-type": "application/json", "x-ratelimit-remaining-requests": "7", "x-request-id": "mine"},
        )

    def test_stream(self) -> None:
        """Pieces are passed on as they come."""
        exchange = self.rig.request(b'{"model": "small", "stream": true}')
        self.node.head(200, content_type="text/event-stream")
        self.rig.pump()
        self.assertEqual((exchange.status, exchange.body), (200, b""))
        for number in range(3):
            self.node.body(b"data: %d\n\n" % number)
            self.rig.pump()
            self.assertTrue(exchange.body.endswith(b"data: %d\n\n" % number))
        self.assertFalse(exchange.whole)
        self.node.body(b"", last=True)
        self.rig.pump()
        self.assertTrue(exchange.whole)

    def credits(self) -> int:
        return sum(message.bytes for message in self.node.received if isinstance(message, runtime_pb2.RunCredit))

    def test_slow_caller(self) -> None:
        """R4: a caller that does not read gives no credit, so at most one window is under way; then it goes on."""
        exchange = self.rig.request()
        self.node.head(200)
        self.rig.pump()
        exchange.pause()
        for _ in range(RUN_WINDOW // 65536):
            self.node.body(bytes(65536))
        self.rig.pump()
        self.assertEqual(self.credits(), 0)
        exchange.resume()
        self.rig.pump()
        self.assertEqual(self.credits(), RUN_WINDOW)
        self.node.body(b"more", last=True)
        self.rig.pump()
        self.assertEqual((len(exchange.body), exchange.whole), (RUN_WINDOW + 4, True))

    def test_provider_errors(self) -> None:
        """A provider's own errors keep status, body and Retry-After."""
        for status in (400, 404, 422, 429, 500, 503):
            exchange = self.rig.request()
            self.node.head(status, content_type="application/json", retry_after="17")
            self.node.body(b'{"error": "theirs"}', last=True)
            self.rig.pump()
            self.assertEqual((exchange.status, exchange.body), (status, b'{"error": "theirs"}'))
            self.assertEqual(exchange.headers["retry-after"], "17")

    def test_provider_refuses_the_credential(self) -> None:
        """An upstream 401 or 403 keeps its status, says whose credential it is about, and shows nothing of its body."""
        for status in (401, 403):
            exchange = self.rig.request()
            self.node.head(status, content_type="text/plain", www_authenticate="Bearer realm=theirs")
            self.rig.pump()
            self.assertIsInstance(self.node.received[-1], runtime_pb2.RunCancel)
            self.node.body(b"key sk-secret is wrong", last=True)
            self.rig.pump()
            error = self.assertRefused(exchange, status, "provider_credential_refused")
            self.assertIn("stored", error["message"])
            self.assertNotIn("www-authenticate", exchange.headers)
        self.assertEqual(self.rig.pool.waiting, 0)

    def test_run_failures(self) -> None:
        """What a Node says went wrong, as a caller sees it."""
        for code, started, status, seen in (
            ("upstream_unreachable", False, 502, "upstream_unreachable"),
            ("upstream_busy", False, 503, "upstream_busy"),
            ("upstream_tls", False, 502, "upstream_tls"),
            ("upstream_timeout", True, 504, "upstream_timeout"),
            ("upstream_broke", True, 502, "upstream_broke"),
            ("upstream_redirect", True, 502, "upstream_redirect"),
            ("upstream_encoded_error", True, 502, "upstream_encoded_error"),
            ("lease_refused", False, 503, "no_node"),
            ("no_such_provider", False, 503, "no_node"),
            ("not_allowed", False, 400, "unsupported_call"),
            ("draining", False, 503, "no_node"),
        ):
            exchange = self.rig.request()
            self.node.fail(code, started=started)
            self.rig.pump()
            self.assertRefused(exchange, status, seen)
            self.assertEqual("retry-after" in exchange.headers, status == 503, code)

    def test_breaks_off(self) -> None:
        """An answer that breaks off after its head is not ended in order: the caller sees that it is not whole."""
        exchange = self.rig.request()
        self.node.head(200)
        self.node.body(b"half")
        self.node.fail("upstream_broke", started=True)
        self.rig.pump()
        self.assertEqual((exchange.body, exchange.aborted, exchange.whole), (b"half", True, False))

    def test_node_lost(self) -> None:
        """A Node that goes away under a run: 502 before the head, cut off after it."""
        before, after = self.rig.request(), self.rig.request()
        self.node.head(200)
        self.rig.pump()
        self.node.peer.drain()
        self.rig.pump()
        self.assertRefused(before, 502, "node_lost")
        self.assertTrue(after.aborted)

    def test_caller_gone(self) -> None:
        """R5: a caller that goes away cancels its run, before the head and after it; the place is free again."""
        for headed in (False, True):
            exchange = self.rig.request()
            if headed:
                self.node.head(200)
                self.rig.pump()
            exchange.go()
            self.rig.pump()
            self.assertIsInstance(self.node.received[-1], runtime_pb2.RunCancel)
            self.node.fail("cancelled", started=True)
            self.rig.pump()
        first, second = self.rig.request(), self.rig.request()
        self.assertEqual((first.status, second.status), (0, 0))
        self.assertEqual(self.rig.pool.waiting, 0)

    def test_caller_gone_while_the_lease_comes(self) -> None:
        """A caller that goes away before the run was opened opens none."""
        self.control_plane.lease = lambda _: Deferred()
        exchange = self.rig.request()
        exchange.go()
        self.rig.pump()
        self.assertEqual((exchange.status, self.node.received), (0, []))


class UnavailableTests(ApiTestCase):
    """503 and 429: nobody's fault, and when to come back."""

    def assertComeBack(self, exchange: MemoryExchange, status: int, code: str) -> None:
        self.assertRefused(exchange, status, code)
        self.assertGreater(int(exchange.headers["retry-after"]), 0)

    def test_no_node(self) -> None:
        """No ready Node."""
        self.node.peer.drain()
        self.rig.pump()
        self.assertComeBack(self.rig.request(), 503, "no_node")

    def test_provider_unreachable(self) -> None:
        """S17: after three failures to connect, requests are refused at once, until one may try again."""
        for _ in range(3):
            exchange = self.rig.request()
            self.node.fail("upstream_unreachable", started=False)
            self.rig.pump()
            self.assertRefused(exchange, 502, "upstream_unreachable")
        runs = len(self.node.received)
        self.rig.advance(3.5)
        refused = self.rig.request()
        self.assertRefused(refused, 503, "provider_unreachable")
        self.assertEqual((refused.headers["retry-after"], len(self.node.received)), ("7", runs))
        self.rig.advance(6.5)
        probe, beside = self.rig.request(), self.rig.request()
        self.assertComeBack(beside, 503, "provider_unreachable")
        self.node.head(503)
        self.node.body(b"", last=True)
        self.rig.pump()
        self.assertEqual(probe.status, 503)
        served = self.rig.request()
        self.node.head(200)
        self.rig.pump()
        self.assertEqual(served.status, 200)

    def test_no_control_plane(self) -> None:
        """P9: never connected, or not for too long."""
        rig = Rig(Path(self.mktemp()), [node_table("node-1")])
        self.assertComeBack(rig.request(), 503, "control_plane_unavailable")
        self.assertComeBack(rig.request(method="GET", path="/v1/models"), 503, "control_plane_unavailable")
        assert self.rig.control_pair is not None
        self.rig.control_pair.cut()
        self.assertEqual(self.rig.request(method="GET", path="/v1/models").status, 200)
        self.assertComeBack(self.rig.request(), 503, "control_plane_unavailable")
        self.rig.clock.advance(301.0)
        self.assertComeBack(self.rig.request(method="GET", path="/v1/models"), 503, "control_plane_unavailable")

    def test_refused_leases(self) -> None:
        """A refusal says as little to the caller as the state of token and route would."""
        for code, status, seen in (
            ("token_refused", 401, "invalid_api_key"),
            ("slot_refused", 404, "model_not_found"),
            ("binding_mismatch", 503, "credential_unusable"),
            ("edge_denied", 503, "credential_unusable"),
            ("node_denied", 503, "credential_unusable"),
            ("secret_unreadable", 503, "credential_unusable"),
        ):
            answer = refusal(code)
            self.control_plane.lease = lambda _: answer  # noqa: B023 - asked within this turn of the loop
            exchange = self.rig.request()
            self.assertRefused(exchange, status, seen)
            self.assertNotIn("retry-after", exchange.headers)

    def test_a_store_that_cannot_be_written(self) -> None:
        """L4, P47: the request ends at once, and its caller may come back: that passes once there is room again."""
        self.control_plane.lease = lambda _: refusal("store_unavailable")
        self.assertComeBack(self.rig.request(), 503, "control_plane_unavailable")
        self.assertEqual(len(self.control_plane.asked_for), 1)

    def test_queue(self) -> None:
        """A full queue is 429; who waited too long gets 503."""
        serving = [self.rig.request() for _ in range(2)]
        waiting = [self.rig.request() for _ in range(256)]
        self.assertComeBack(self.rig.request(), 429, "queue_full")
        self.rig.advance(31.0)
        self.assertComeBack(waiting[0], 503, "queue_timeout")
        self.assertComeBack(waiting[-1], 503, "queue_timeout")
        self.assertEqual([exchange.status for exchange in serving], [0, 0])


class LogTests(ApiTestCase):
    """What the Edge's log says of a request."""

    def test_one_request(self) -> None:
        """Where it was routed, that a lease came, how it ended: one id, names and counts, nothing secret (P25)."""
        self.rig.request(headers=[(b"x-request-id", b"mine")])
        self.node.head(200)
        self.node.body(b"12345", last=True)
        self.rig.pump()
        mine = {event["log_format"]: event for event in self.events if event.get("request_id") == "mine"}
        self.assertEqual(set(mine), {"edge.request.routed", "edge.lease.acquired", "edge.request.finished"})
        routed, lease, finished = (mine[name] for name in sorted(mine, key=list(mine).index))
        self.assertEqual(
            [routed[name] for name in ("principal", "route", "slot", "node", "generation")],
            ["ada", "route-1", "slot-1", "node-1", 5],
        )
        self.assertEqual(lease["bytes"], self.node.last_run().lease.ByteSize())
        self.assertEqual(
            [finished[name] for name in ("model", "node", "status", "generation", "bytes", "code")],
            ["small", "node-1", 200, 5, 5, ""],
        )
        for event in self.events:
            for secret in (text_of(ADA_TOKEN), ADA.digest.hex(), repr(ADA.digest), repr(ADA_TOKEN.record.proof)):
                self.assertNotIn(secret, repr(event))

    def test_next_request(self) -> None:
        """One that uses a lease which the Edge has already tells of none."""
        self.rig.request()
        self.rig.request(headers=[(b"x-request-id", b"mine")])
        self.node.head(200)
        self.node.body(b"12345", last=True)
        self.rig.pump()
        mine = [event["log_format"] for event in self.events if event.get("request_id") == "mine"]
        self.assertEqual(mine, ["edge.request.routed", "edge.request.finished"])

    def test_refused_request(self) -> None:
        """A refusal is one line with its code."""
        self.rig.request(token=text_of(mint(TokenKind.USE)), headers=[(b"x-request-id", b"mine")])
        (finished,) = (event for event in self.events if event.get("request_id") == "mine")
        self.assertEqual(finished["log_format"], "edge.request.finished")
        self.assertEqual((finished["status"], finished["code"]), (401, "invalid_api_key"))

    def test_strangers(self) -> None:
        """P26: refusals of callers without a token are all counted, and ten at once, then one a second, logged."""
        for _ in range(15):
            self.rig.request(token="")
        self.rig.clock.advance(1.0)
        self.rig.request(token=text_of(mint(TokenKind.USE)))
        told = [event["unlogged"] for event in self.events if event["log_format"] == "edge.request.finished"]
        self.assertEqual(told, [0] * 10 + [5])
        counted = page_of(self.rig.registry).samples
        self.assertEqual(counted['iop_edge_requests_failed_total{code="invalid_api_key"}'], 16)
