"""The Node's half of runs: what it checks, what reaches an upstream, what comes back, and where the secret is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from google.protobuf.message import Message
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from iop.core.headers import CREDENTIALS, HOP_BY_HOP, REQUEST_HEADERS
from iop.core.profiles import PROFILES
from iop.core.runs import FAILURE_CODES, NodeRun
from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.lease import LeaseStatement, seal_lease
from iop.crypto.node_keys import NodeKeys
from iop.errors import (
    FlowViolation,
    MalformedFrame,
    TooManyInFlight,
    UnexpectedMessage,
    UpstreamBroke,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamLate,
    UpstreamTimedOut,
    UpstreamTls,
)
from iop.net.upstream import IUpstream, IUpstreamCall, IUpstreamReceiver
from iop.node import runs as runs_module
from iop.node.leases import Grant, Leases
from iop.node.metrics import NodeMetrics
from iop.node.redact import MARK
from iop.node.runs import FAILURE_MESSAGES, Runs
from iop.node.targets import Provider, Target
from iop.process.metrics import new_registry
from iop.records import BINDING_FIELDS, Binding
from iop.secret import Secret
from iop.testing.clock import FakeClock
from iop.testing.recorded import RecordedPeer
from iop.testing.upstream import FakeCall, FakeUpstream
from iop.units import BODY_PIECE, IN_FLIGHT_LIMIT, RUN_WINDOW, Identity, Role
from iop.wire import runtime_pb2
from iop.wire.convert import binding_to_wire

EDGE = Identity("iop.test", Role.EDGE, "edge-1")
CANARY = b"sk-canary-5c1f0e"
BINDING = Binding("p1", "r1", "s1", "openai", "lab", "node-1", 3, 4, 5)
DEPLOYMENT = "deployment-1"


def changed(name: str, value: object) -> Binding:
    """The binding with one other field."""
    change: dict[str, Any] = {name: value}
    return replace(BINDING, **change)


def as_headers(pairs: Mapping[str, str]) -> list[runtime_pb2.HeaderField]:
    return [runtime_pb2.HeaderField(name=name, value=value) for name, value in pairs.items()]


class NodeCase(SynchronousTestCase):
    """One Node process with one target and one provider of every profile, and one connection to its Edge."""

    def setUp(self) -> None:
        self.clock = FakeClock()
        self.issuer = Issuer(Secret(bytes(range(32))))
        self.upstream = FakeUpstream()
        #: The secrets of the leases that were opened.
        self.secrets: list[Secret] = []
        opened = Leases.open

        def watched(leases: Leases, request: runtime_pb2.RunRequest, provider: Provider, edge: str) -> Grant:
            lease = opened(leases, request, provider, edge)
            self.secrets.append(lease.secret)
            return lease

        self.patch(Leases, "open", watched)
        self.restart()

    def restart(self) -> None:
        """A new process of the same Node: new keys, a new connection."""
        self.registry = new_registry()
        self.keys = NodeKeys(self.clock)
        self.addCleanup(self.keys.dispose)
        leases = Leases(
            pinned=PinnedIssuers([self.issuer.public_key]),
            keys=self.keys,
            clock=self.clock,
            skew_ms=5000,
            deployment_id=DEPLOYMENT,
            trust_domain="iop.test",
            node="node-1",
        )
        placed = PROFILES["openai-compatible"].placed("x-lab-key", "")
        target = Target("lab", {**PROFILES, "openai-compatible": placed}, self.upstream)
        self.providers = {name: Provider(name, target, profile) for name, profile in target.profiles.items()}
        self.peer = RecordedPeer(EDGE)
        self.runs = Runs(self.peer, leases, self.providers, self.clock, NodeMetrics(self.registry))

    def statement(self, binding: Binding = BINDING) -> LeaseStatement:
        """What a good lease says."""
        return LeaseStatement(
            lease_id="lease-1",
            deployment_id=DEPLOYMENT,
            trust_domain="iop.test",
            edge="edge-1",
            binding=binding,
            token_id="t1",
            not_before_ms=self.clock.wall_ms(),
            expires_ms=self.clock.wall_ms() + 60_000,
            recipient_public_key=self.keys.current().public_key,
        )

    def sealed(self, statement: LeaseStatement, secret: bytes = CANARY) -> runtime_pb2.SealedLease:
        return seal_lease(self.issuer, statement, Secret(secret))

    def request(
        self, run: int = 1, *, profile: str = "openai", secret: bytes = CANARY, body_length: int = 0
    ) -> runtime_pb2.RunRequest:
        """A request that is right in everything."""
        binding = replace(BINDING, profile=profile)
        return runtime_pb2.RunRequest(
            run=run,
            request_id="req-1",
            lease=self.sealed(self.statement(binding), secret),
            binding=binding_to_wire(binding),
            token_id="t1",
            provider_id=profile,
            method="POST",
            path="/messages" if profile == "anthropic" else "/chat/completions",
            headers=as_headers({"content-type": "application/json"}),
            body_length=body_length,
            window=RUN_WINDOW,
        )

    def begin(self, request: runtime_pb2.RunRequest | None = None) -> FakeCall:
        """A run that got as far as its upstream call."""
        self.runs.received(self.request() if request is None else request)
        self.assertEqual(self.peer.take(), [])
        return self.upstream.calls[-1]

    def held(self) -> list[bytes]:
        """What is left of the secrets that were opened."""
        return [bytes(secret.reveal()) for secret in self.secrets]

    def sent_bodies(self) -> bytes:
        return b"".join(message.data for message in self.peer.sent if isinstance(message, runtime_pb2.RunBody))

    def assert_refused(self, request: runtime_pb2.RunRequest, code: str) -> None:
        """Nothing was called, and the run ended with ``code``, not started."""
        before = len(self.upstream.calls)
        self.runs.received(request)
        (end,) = self.peer.take()
        assert isinstance(end, runtime_pb2.RunFailed)
        self.assertEqual((end.run, end.code, end.started), (request.run, code, False))
        self.assertEqual((len(self.upstream.calls), len(self.runs)), (before, 0))


class CallTests(NodeCase):
    def test_fakes(self) -> None:
        verifyObject(IUpstream, self.upstream)
        call = self.begin()
        verifyObject(IUpstreamCall, call)
        verifyObject(IUpstreamReceiver, call.receiver)

    def test_credential_of_each_profile(self) -> None:
        """Each profile's credential goes in its own header, or nowhere."""
        for number, (profile, credential) in enumerate(
            {
                "openai": ("authorization", "Bearer " + CANARY.decode()),
                "anthropic": ("x-api-key", CANARY.decode()),
                "openai-compatible": ("x-lab-key", CANARY.decode()),
                "none": None,
            }.items(),
            1,
        ):
            secret = b"" if credential is None else CANARY
            call = self.begin(self.request(number, profile=profile, secret=secret))
            expected = {"content-type": "application/json", "accept-encoding": "identity"}
            if profile == "anthropic":
                expected["anthropic-version"] = "2023-06-01"
            if credential is not None:
                expected[credential[0]] = credential[1]
            self.assertEqual(sorted(call.headers), sorted(expected.items()))

    def test_call(self) -> None:
        call = self.begin(self.request(body_length=12))
        self.assertEqual((call.method, call.path, call.body_length), ("POST", "/chat/completions", 12))

    def test_a_default_header_can_be_given(self) -> None:
        request = self.request(profile="anthropic")
        request.headers.extend(as_headers({"anthropic-version": "2099-01-01"}))
        self.assertIn(("anthropic-version", "2099-01-01"), self.begin(request).headers)
        self.assertEqual([name for name, _ in self.upstream.calls[0].headers].count("anthropic-version"), 1)

    def test_a_lease_serves_again(self) -> None:
        """P5: within its bounds the Edge may use a lease for further runs."""
        request = self.request()
        self.begin(request)
        request.run = 2
        self.begin(request)
        self.assertEqual(len(self.upstream.calls), 2)

    def test_request_body(self) -> None:
        """R1, R4: pieces go upstream in order, and credit comes back for what left."""
        call = self.begin(self.request(body_length=2 * BODY_PIECE))
        call.stalled = True
        self.runs.received(runtime_pb2.RunBody(run=1, data=bytes(BODY_PIECE)))
        self.assertEqual(self.peer.sent, [])
        call.stalled = False
        call.receiver.writable()
        self.assertEqual(self.peer.take(), [runtime_pb2.RunCredit(run=1, bytes=BODY_PIECE)])
        self.runs.received(runtime_pb2.RunBody(run=1, data=b"b" * BODY_PIECE, last=True))
        self.assertEqual(call.written, bytes(BODY_PIECE) + b"b" * BODY_PIECE)


class StopTests(NodeCase):
    """R11: a run that the Edge wants only if it was started."""

    def stop(self, run: int = 1) -> None:
        self.runs.received(runtime_pb2.RunCancel(run=run, unless_started=True))

    def test_not_started(self) -> None:
        """R6, P41: while nothing was sent upstream, not even of a body that is there, the run ends and never is."""
        for body in (b"", b"body"):
            self.restart()
            call = self.begin(self.request(body_length=4))
            if body:
                self.runs.received(runtime_pb2.RunBody(run=1, data=body, last=True))
            self.peer.take()
            self.stop()
            (end,) = self.peer.take()
            assert isinstance(end, runtime_pb2.RunFailed)
            self.assertEqual((end.run, end.code, end.started), (1, "cancelled", False))
            self.assertEqual((call.cancelled, len(self.runs), self.held()[-1]), (True, 0, b""))
            self.runs.received(runtime_pb2.RunBody(run=1, data=b"late", last=True))
            self.assertEqual((call.written, self.peer.sent), (body, []))

    def test_started(self) -> None:
        """R6: once something was sent the run goes on to its end, before its head and after."""
        call = self.begin()
        call.started = True
        self.stop()
        self.assertEqual(self.peer.take(), [runtime_pb2.RunStarted(run=1)])
        call.receiver.head(200, [])
        self.peer.take()
        self.stop()
        self.assertEqual(self.peer.take(), [runtime_pb2.RunStarted(run=1)])
        call.receiver.data(b"answer")
        call.receiver.finished()
        self.assertEqual(self.sent_bodies(), b"answer")
        self.assertFalse(call.cancelled)

    def test_answer_that_waits_for_credit(self) -> None:
        """A run whose upstream is done was started."""
        request = self.request()
        request.window = 1
        call = self.begin(request)
        call.started = True
        call.receiver.head(200, [])
        call.receiver.data(b"answer")
        call.receiver.finished()
        self.peer.take()
        self.stop()
        self.assertEqual(self.peer.take(), [runtime_pb2.RunStarted(run=1)])
        self.assertEqual(len(self.runs), 1)

    def test_ended(self) -> None:
        """Of a run that ended meanwhile nothing is said; of one that never was, the connection ends."""
        self.begin().receiver.failed(UpstreamFailed("no", started=False))
        self.peer.take()
        self.stop()
        self.assertEqual(self.peer.sent, [])
        self.assertRaises(UnexpectedMessage, self.stop, 2)

    def test_then_cancelled(self) -> None:
        """A later plain cancel still ends it."""
        call = self.begin()
        call.started = True
        self.stop()
        self.peer.take()
        self.runs.received(runtime_pb2.RunCancel(run=1))
        (end,) = self.peer.take()
        assert isinstance(end, runtime_pb2.RunFailed)
        self.assertEqual((end.code, end.started, call.cancelled), ("cancelled", True, True))


class CheckTests(NodeCase):
    """R2: everything is checked before anything is opened or called."""

    def test_bound_fields(self) -> None:
        """P12: one row per bound field; changed in the request it is refused, and so it is changed in both."""
        for number, name in enumerate(BINDING_FIELDS, 1):
            value = getattr(BINDING, name)
            other = changed(name, value + 1 if isinstance(value, int) else f"{value}x")
            request = self.request(number)
            request.binding.CopyFrom(binding_to_wire(other))
            self.assert_refused(request, "lease_refused")
        others = {"profile": "anthropic", "target": "lab2", "node": "node-2"}
        for number, (name, value) in enumerate(others.items(), 100):
            # a lease that the issuer did sign, for another profile, target or Node: not this one's to use
            other = changed(name, value)
            request = self.request(number)
            request.binding.CopyFrom(binding_to_wire(other))
            request.lease.CopyFrom(self.sealed(self.statement(other)))
            self.assert_refused(request, "lease_refused")

    def test_token(self) -> None:
        """P12"""
        request = self.request()
        request.token_id = "t2"
        self.assert_refused(request, "lease_refused")

    def test_malformed_bindings(self) -> None:
        for number, name in enumerate(BINDING_FIELDS, 1):
            request = self.request(number)
            request.binding.ClearField(name)
            self.assert_refused(request, "lease_refused")

    def test_statements_for_others(self) -> None:
        """P5, P11, R2: another Edge, deployment, trust domain, recipient key, or a time that is not now."""
        now = self.clock.wall_ms()
        changes: list[Callable[[LeaseStatement], LeaseStatement]] = [
            lambda s: replace(s, edge="edge-2"),
            lambda s: replace(s, deployment_id="deployment-2"),
            lambda s: replace(s, trust_domain="other.test"),
            lambda s: replace(s, recipient_public_key=NodeKeys(FakeClock()).current().public_key),
            lambda s: replace(s, not_before_ms=now + 5001, expires_ms=now + 60_000),
            lambda s: replace(s, not_before_ms=now - 60_000, expires_ms=now),
        ]
        for number, change in enumerate(changes, 1):
            request = self.request(number)
            request.lease.CopyFrom(self.sealed(change(self.statement())))
            self.assert_refused(request, "lease_refused")

    def test_recorded_by_another_edge(self) -> None:
        """P5: a lease is accepted only from the Edge it names."""
        self.peer.identity = Identity("iop.test", Role.EDGE, "edge-2")
        self.assert_refused(self.request(), "lease_refused")

    def test_issuer_that_is_not_pinned(self) -> None:
        """P4, R2"""
        self.issuer = Issuer(Secret(bytes(32)))
        self.assert_refused(self.request(), "lease_refused")

    def test_expired_meanwhile(self) -> None:
        """P5: a lease ends when it says so, also for an Edge that used it before."""
        request = self.request()
        self.begin(request)
        self.runs.received(runtime_pb2.RunCancel(run=1))
        self.peer.take()
        self.clock.advance(60)
        request.run = 2
        self.assert_refused(request, "lease_refused")

    def test_after_a_restart(self) -> None:
        """P5: a restarted Node accepts none of its predecessor's leases."""
        request = self.request()
        self.restart()
        self.assert_refused(request, "lease_refused")

    def test_method_and_path(self) -> None:
        """P5, P17: exactly the profile's list: no traversal, query, absolute form, authority or encoding trick."""
        for number, (method, path) in enumerate(
            [
                ("DELETE", "/chat/completions"),
                ("GET", "/chat/completions"),
                ("post", "/chat/completions"),
                ("POST", "/models"),
                ("POST", "/messages"),
                ("POST", ""),
                ("POST", "/"),
                ("POST", "chat/completions"),
                ("POST", "/chat/completions/"),
                ("POST", "/chat/completions?a=b"),
                ("POST", "/chat/completions#a"),
                ("POST", "/x/../chat/completions"),
                ("POST", "/chat/%63ompletions"),
                ("POST", "//elsewhere.example/chat/completions"),
                ("POST", "http://elsewhere.example/chat/completions"),
                ("POST", "@elsewhere.example/chat/completions"),
                ("POST", "/chat/completions HTTP/1.1\r\nhost: elsewhere.example"),
                ("POST\r\n", "/chat/completions"),
            ],
            1,
        ):
            request = self.request(number)
            request.method, request.path = method, path
            self.assert_refused(request, "lease_refused")

    def test_unknown_provider(self) -> None:
        request = self.request()
        request.provider_id = "other"
        self.assert_refused(request, "no_such_provider")

    def test_provider_of_another_profile(self) -> None:
        """P17: a slot's secret only goes to its own target with its own profile."""
        request = self.request()
        request.provider_id = "openai-compatible"
        self.assert_refused(request, "lease_refused")

    def test_headers(self) -> None:
        """R8, P17, P18: control bytes, Host, hop-by-hop, credential and override headers reach no upstream."""
        names = {*HOP_BY_HOP, *CREDENTIALS, "x-lab-key", "x-http-method-override", "x-original-url", "forwarded"}
        fields = [(name, "a") for name in sorted(names)]
        fields += [("accept", value) for value in ("a\r\nhost: b", "a\nb", "a\rb", "a\0b", "\x7f", "☃")]
        fields += [("Accept", "a"), ("a b", "a"), ("accept\r\n", "a"), ("", "a"), ("content-type", "again")]
        for number, (name, value) in enumerate(fields, 1):
            request = self.request(number)
            request.headers.add(name=name, value=value)
            self.assert_refused(request, "not_allowed")

    def test_every_listed_header_travels(self) -> None:
        request = self.request()
        del request.headers[:]
        request.headers.extend(as_headers(dict.fromkeys(REQUEST_HEADERS, "a")))
        sent = dict(self.begin(request).headers)
        for name in REQUEST_HEADERS:
            self.assertEqual(sent[name], "a")

    def test_secrets_that_cannot_be_sent(self) -> None:
        """P18: control bytes in a secret are refused before the upstream is called, and so is a missing one."""
        for number, secret in enumerate((b"a\r\nhost: b", b"a\n", b"\0", b"a\x7f", b"\xe9", b""), 1):
            self.assert_refused(self.request(number, secret=secret), "lease_refused")
        self.assert_refused(self.request(99, profile="none", secret=b"a"), "lease_refused")

    def test_what_follows_a_refusal_is_dropped(self) -> None:
        """R7: the Edge may have sent the body and a cancel before it heard."""
        request = self.request(body_length=5)
        request.token_id = "t2"
        self.assert_refused(request, "lease_refused")
        self.runs.received(runtime_pb2.RunBody(run=1, data=b"hello", last=True))
        self.runs.received(runtime_pb2.RunCancel(run=1))
        self.runs.received(runtime_pb2.RunCredit(run=1, bytes=1))
        self.assertEqual(self.peer.sent, [])


class AnswerTests(NodeCase):
    def test_every_code_has_its_message(self) -> None:
        """R10"""
        self.assertEqual(set(FAILURE_MESSAGES), FAILURE_CODES)

    def test_answer(self) -> None:
        """R3: head, pieces, last piece; the upstream's connection is not closed."""
        call = self.begin()
        call.receiver.head(200, [("content-type", "text/event-stream"), ("server", "x")])
        call.receiver.data(b"one")
        call.receiver.data(b"two")
        call.receiver.finished()
        self.assertEqual(
            self.peer.take(),
            [
                runtime_pb2.RunHead(run=1, status=200, headers=as_headers({"content-type": "text/event-stream"})),
                runtime_pb2.RunBody(run=1, data=b"one"),
                runtime_pb2.RunBody(run=1, data=b"two"),
                runtime_pb2.RunBody(run=1, last=True),
            ],
        )
        self.assertEqual((len(self.runs), call.cancelled), (0, False))

    def test_slow_edge_pauses_the_upstream(self) -> None:
        """R4: at most the window travels; the upstream waits until what it sent has travelled."""
        request = self.request()
        request.window = 10
        call = self.begin(request)
        call.receiver.head(200, [])
        call.receiver.data(b"0123456789")
        self.assertFalse(call.paused)
        call.receiver.data(b"abc")
        self.assertTrue(call.paused)
        self.assertEqual(self.sent_bodies(), b"0123456789")
        self.runs.received(runtime_pb2.RunCredit(run=1, bytes=2))
        self.assertTrue(call.paused)
        self.runs.received(runtime_pb2.RunCredit(run=1, bytes=8))
        self.assertFalse(call.paused)
        self.assertEqual(self.sent_bodies(), b"0123456789abc")

    def test_end_waits_for_credit(self) -> None:
        """R3: the run is over when its last piece was sent, not when the upstream is done."""
        request = self.request()
        request.window = 1
        call = self.begin(request)
        call.receiver.head(200, [])
        call.receiver.data(b"ab")
        call.receiver.finished()
        self.assertEqual(len(self.runs), 1)
        self.peer.take()
        self.runs.received(runtime_pb2.RunCredit(run=1, bytes=1))
        self.assertEqual(self.peer.take(), [runtime_pb2.RunBody(run=1, data=b"b", last=True)])
        self.assertEqual(len(self.runs), 0)

    def test_early_answer(self) -> None:
        """R7: an answer before the whole request ends the run; the rest of the request is dropped."""
        call = self.begin(self.request(body_length=100))
        self.runs.received(runtime_pb2.RunBody(run=1, data=bytes(50)))
        call.receiver.head(413, [])
        call.receiver.finished()
        self.runs.received(runtime_pb2.RunBody(run=1, data=bytes(50), last=True))
        self.assertEqual(len(call.written), 50)

    def test_upstream_failures(self) -> None:
        """R6, R10: every way an upstream fails has its code, and says whether it had started."""
        failures: Sequence[tuple[type[UpstreamFailed], str]] = [
            (UpstreamFailed, "upstream_unreachable"),
            (UpstreamBusy, "upstream_busy"),
            (UpstreamTls, "upstream_tls"),
            (UpstreamTimedOut, "upstream_timeout"),
            (UpstreamBroke, "upstream_broke"),
        ]
        number = 0
        for kind, code in failures:
            for started in (False, True):
                for at_once in (False, True):
                    number += 1
                    failure = kind("connection to 192.0.2.1 refused", started=started)
                    self.upstream.failure = failure if at_once else None
                    self.runs.received(self.request(number))
                    if not at_once:
                        self.upstream.calls[-1].receiver.failed(failure)
                    (end,) = self.peer.take()
                    assert isinstance(end, runtime_pb2.RunFailed)
                    self.assertEqual((end.run, end.code, end.started), (number, code, started))
                    self.assertNotIn("192.0.2.1", end.message)
        self.assertEqual(len(self.runs), 0)

    def test_lease_that_ends(self) -> None:
        """R2, P41: what was not sent upstream when its lease ends never is, and its Edge hears that at once."""
        request = self.request()
        self.clock.advance(20)
        call = self.begin(request)
        self.assertEqual(call.start_by, 60)
        call.receiver.failed(UpstreamLate("too late", started=False))
        (end,) = self.peer.take()
        assert isinstance(end, runtime_pb2.RunFailed)
        self.assertEqual((end.code, end.started, len(self.runs), self.held()), ("lease_refused", False, 0, [b""]))

    def test_broken_off(self) -> None:
        """R3: a failure instead of the rest of a body; what waited for credit is dropped."""
        request = self.request()
        request.window = 1
        call = self.begin(request)
        call.receiver.head(200, [])
        call.receiver.data(b"abc")
        self.peer.take()
        call.receiver.failed(UpstreamBroke("ended", started=True))
        (end,) = self.peer.take()
        assert isinstance(end, runtime_pb2.RunFailed)
        self.assertEqual((end.code, end.started), ("upstream_broke", True))

    def test_redirect(self) -> None:
        """R9, P17: no redirect is followed or passed on."""
        for number, status in enumerate((300, 301, 302, 303, 304, 307, 308, 399), 1):
            call = self.begin(self.request(number))
            call.receiver.head(status, [("location", "https://elsewhere.example/")])
            (end,) = self.peer.take()
            assert isinstance(end, runtime_pb2.RunFailed)
            self.assertEqual((end.code, end.started), ("upstream_redirect", True))
            self.assertNotIn("elsewhere", end.message)
            self.assertTrue(call.cancelled)
        self.assertEqual(len(self.upstream.calls), 8)

    def test_statuses_that_are_none(self) -> None:
        for number, status in enumerate((0, 101, 600, 999), 1):
            call = self.begin(self.request(number))
            call.receiver.head(status, [])
            (end,) = self.peer.take()
            assert isinstance(end, runtime_pb2.RunFailed)
            self.assertEqual(end.code, "upstream_broke")

    def test_headers_that_may_not_travel(self) -> None:
        """R8: a field of the closed list whose value holds control bytes stays here."""
        call = self.begin()
        call.receiver.head(200, [("x-request-id", "a\tb"), ("content-type", "text/plain")])
        (head,) = self.peer.take()
        self.assertEqual(
            head, runtime_pb2.RunHead(run=1, status=200, headers=as_headers({"content-type": "text/plain"}))
        )


class RedactionTests(NodeCase):
    """R9, P25: the exact secret leaves in no header and in no body outside 2xx."""

    def answered(self, status: int, chunks: list[bytes], headers: Sequence[tuple[str, str]] = ()) -> list[Message]:
        number = len(self.upstream.calls) + 1
        call = self.begin(self.request(number))
        call.receiver.head(status, list(headers))
        for chunk in chunks:
            call.receiver.data(chunk)
        call.receiver.finished()
        return self.peer.take()

    def body_of(self, messages: list[Message]) -> bytes:
        return b"".join(message.data for message in messages if isinstance(message, runtime_pb2.RunBody))

    def test_unauthorized(self) -> None:
        body = b'{"error": {"message": "Incorrect API key provided: ' + CANARY + b'"}}'
        self.assertEqual(self.body_of(self.answered(401, [body])), body.replace(CANARY, MARK))

    def test_error_page_at_every_split(self) -> None:
        """P33: wherever the page is cut, nothing of the secret but its redaction leaves."""
        page = b"<html>" + CANARY + b" and again " + CANARY + b"</html>"
        for cut in range(1, len(page)):
            messages = self.answered(500, [page[:cut], page[cut:]])
            self.assertEqual(self.body_of(messages), page.replace(CANARY, MARK))
            self.assertNotIn(CANARY, b"".join(message.SerializeToString() for message in messages))

    def test_error_byte_by_byte(self) -> None:
        page = b"a" + CANARY + b"b"
        self.assertEqual(
            self.body_of(self.answered(500, [page[i : i + 1] for i in range(len(page))])), b"a" + MARK + b"b"
        )

    def test_beginning_of_the_secret_at_the_end(self) -> None:
        """What might have been its beginning is not lost."""
        self.assertEqual(self.body_of(self.answered(404, [b"see " + CANARY[:-1]])), b"see " + CANARY[:-1])

    def test_header(self) -> None:
        for status in (200, 401):
            messages = self.answered(status, [], [("x-request-id", "for " + CANARY.decode()), ("retry-after", "3")])
            head = messages[0]
            assert isinstance(head, runtime_pb2.RunHead)
            self.assertEqual(list(head.headers), as_headers({"retry-after": "3"}))

    def test_successful_bodies_pass(self) -> None:
        """2xx bodies are not scanned; the documentation says so."""
        self.assertEqual(self.body_of(self.answered(200, [CANARY])), CANARY)

    def test_encoded_error(self) -> None:
        for number, encoding in enumerate(("gzip", "br, identity", "GZIP"), 1):
            call = self.begin(self.request(number))
            call.receiver.head(500, [("content-encoding", encoding)])
            (end,) = self.peer.take()
            assert isinstance(end, runtime_pb2.RunFailed)
            self.assertEqual((end.code, end.started), ("upstream_encoded_error", True))
            self.assertTrue(call.cancelled)
        self.assertEqual(self.body_of(self.answered(500, [b"a"], [("content-encoding", " Identity ")])), b"a")

    def test_many_headers(self) -> None:
        """R8: more than may travel is no answer of ours."""
        call = self.begin()
        call.receiver.head(200, [(f"openai-{number}", "") for number in range(65)])
        (end,) = self.peer.take()
        assert isinstance(end, runtime_pb2.RunFailed)
        self.assertEqual(end.code, "upstream_broke")


class SecretLifeTests(NodeCase):
    """The secret is there only while it may be needed, and its buffers are zeroed."""

    def test_logs(self) -> None:
        """P25: what is logged about a run, begun, refused or failed, holds ids and outcomes, never the secret."""
        with capturedLogs() as events:
            call = self.begin(self.request(1))
            call.receiver.head(401, [])
            call.receiver.data(b"not " + CANARY)
            call.receiver.finished()
            self.runs.received(self.request(2, secret=CANARY + b"\n"))
            self.peer.take()
            self.begin(self.request(3))
            self.upstream.calls[-1].receiver.failed(UpstreamBroke("it said " + CANARY.decode(), started=True))
        named = [event["log_format"] for event in events if event["log_namespace"] == "iop.node.runs"]
        self.assertEqual(
            named,
            [
                "node.run.started",
                "node.run.finished",
                "node.run.refused",
                "node.run.started",
                "node.run.finished",
            ],
        )
        self.assertNotIn(CANARY.decode(), repr(events))

    def test_header_buffer_is_zeroed(self) -> None:
        call = self.begin()
        (value,) = (value for value in call.given if isinstance(value, bytearray))
        self.assertEqual(bytes(value), b"")

    def test_until_a_2xx_head(self) -> None:
        """R9: an answer that is not searched needs no secret."""
        call = self.begin()
        self.assertEqual(self.held(), [CANARY])
        call.receiver.head(200, [])
        self.assertEqual(self.held(), [b""])

    def test_until_the_end_of_an_error(self) -> None:
        """R9: an answer that is searched needs it to its end."""
        call = self.begin()
        call.receiver.head(500, [])
        self.assertEqual(self.held(), [CANARY])
        call.receiver.finished()
        self.assertEqual((self.held(), len(self.runs)), ([b""], 0))

    def test_whatever_ends_the_run(self) -> None:
        """P25: no end of a run leaves its secret behind."""
        ends: list[Callable[[FakeCall, int], object]] = [
            lambda call, run: call.receiver.failed(UpstreamBroke("ended", started=True)),
            lambda call, run: call.receiver.head(302, []),
            lambda call, run: self.runs.received(runtime_pb2.RunCancel(run=run)),
            lambda call, run: self.runs.give_up(),
            lambda call, run: self.runs.lost(),
        ]
        for number, end in enumerate(ends, 1):
            call = self.begin(self.request(number))
            self.assertEqual(self.held()[-1], CANARY)
            end(call, number)
            self.assertEqual((self.held(), len(self.runs)), ([b""] * number, 0))
            self.peer.take()

    def test_secrets_that_cannot_be_sent(self) -> None:
        """P25: nor does a run that is refused after its lease was opened."""
        self.assert_refused(self.request(secret=CANARY + b"\n"), "lease_refused")
        self.assertEqual(self.held(), [b""])


class EndTests(NodeCase):
    def test_cancel(self) -> None:
        """R5: the upstream is closed at once, and the Edge gets the word; once."""
        call = self.begin()
        call.receiver.head(200, [])
        self.peer.take()
        self.runs.received(runtime_pb2.RunCancel(run=1))
        self.runs.received(runtime_pb2.RunCancel(run=1))
        self.assertTrue(call.cancelled)
        (end,) = self.peer.take()
        assert isinstance(end, runtime_pb2.RunFailed)
        self.assertEqual((end.run, end.code, end.started), (1, "cancelled", True))

    def test_cancel_closes_before_it_says_so(self) -> None:
        """R5: when the Edge hears, nothing goes on upstream any more."""
        call = self.begin()
        closed_when_told: list[bool] = []
        self.patch(self.peer, "notify", lambda message: closed_when_told.append(call.cancelled))
        self.runs.received(runtime_pb2.RunCancel(run=1))
        self.assertEqual(closed_when_told, [True])

    def test_what_the_upstream_says_after_the_end(self) -> None:
        call = self.begin()
        self.runs.received(runtime_pb2.RunCancel(run=1))
        self.peer.take()
        call.receiver.writable()
        call.receiver.head(200, [])
        call.receiver.data(b"late")
        call.receiver.finished()
        call.receiver.failed(UpstreamBroke("ended", started=True))
        self.assertEqual(self.peer.sent, [])

    def test_connection_lost(self) -> None:
        """W11: every upstream call is closed; nobody is told."""
        calls = [self.begin(self.request(number)) for number in (1, 2)]
        self.runs.lost()
        self.assertEqual([call.cancelled for call in calls], [True, True])
        self.assertEqual((self.peer.sent, len(self.runs)), ([], 0))

    def test_drain(self) -> None:
        """Open runs end by themselves, new ones are refused as not started."""
        call = self.begin()
        idle = self.runs.drain()
        self.assertNoResult(idle)
        self.runs.received(self.request(2))
        (end,) = self.peer.take()
        assert isinstance(end, runtime_pb2.RunFailed)
        self.assertEqual((end.run, end.code, end.started), (2, "draining", False))
        call.receiver.head(200, [])
        call.receiver.finished()
        self.successResultOf(idle)

    def test_drain_without_runs(self) -> None:
        self.successResultOf(self.runs.drain())

    def test_give_up(self) -> None:
        """What does not end in time is ended, in whatever phase."""
        self.begin(self.request(1))
        self.begin(self.request(2)).receiver.head(200, [])
        request = self.request(3)
        request.window = 1
        self.peer.take()
        waiting = self.begin(request)
        waiting.receiver.head(200, [])
        waiting.receiver.data(b"ab")
        waiting.receiver.finished()
        self.peer.take()
        idle = self.runs.drain()
        self.runs.give_up()
        self.successResultOf(idle)
        ends = [message for message in self.peer.take() if isinstance(message, runtime_pb2.RunFailed)]
        self.assertEqual([(end.run, end.code, end.started) for end in ends], [(n, "draining", True) for n in (1, 2, 3)])


class BugTests(NodeCase):
    """A bug that one run meets ends that run, and no other."""

    def fail(self, *_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError(CANARY.decode())

    def assert_broke(self, run: int, *, started: bool) -> None:
        """It ended as ``internal``, its secret is gone, and the other run goes on."""
        end = self.peer.take()[-1]
        assert isinstance(end, runtime_pb2.RunFailed)
        self.assertEqual((end.run, end.code, end.started), (run, "internal", started))
        self.assertNotIn(CANARY.decode(), end.message)
        self.assertEqual(self.held()[-1].strip(b"\0"), b"")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(len(self.runs), 1)
        self.runs.received(runtime_pb2.RunCancel(run=1))
        self.assertEqual(len(self.runs), 0)

    def test_before_the_upstream_is_called(self) -> None:
        """P25, R6: not started, whatever it was."""
        self.begin()
        self.patch(runs_module, "credential_header", self.fail)
        self.runs.received(self.request(2))
        self.assert_broke(2, started=False)

    def test_while_the_upstream_is_called(self) -> None:
        """R6: something may have been sent, so it counts as started."""
        self.begin()
        self.patch(self.upstream, "call", self.fail)
        self.runs.received(self.request(2))
        self.assert_broke(2, started=True)

    def test_with_a_message_of_the_edge(self) -> None:
        """R10: for each kind of message."""
        for message in (
            runtime_pb2.RunBody(run=2, data=b"x"),
            runtime_pb2.RunCredit(run=2, bytes=1),
            runtime_pb2.RunCancel(run=2),
        ):
            self.restart()
            self.begin()
            call = self.begin(self.request(2, body_length=1))
            call.receiver.head(200, [])
            call.receiver.data(b"x")
            self.peer.take()
            broken = [self.patch(NodeRun, name, self.fail) for name in ("piece", "credited", "cancel")]
            self.runs.received(message)
            for patch in broken:
                patch.restore()
            self.assert_broke(2, started=True)


class ViolationTests(NodeCase):
    def test_runs_never_opened(self) -> None:
        """R7"""
        self.begin()
        for number in (0, 2):
            for message in (
                runtime_pb2.RunBody(run=number, last=True),
                runtime_pb2.RunCredit(run=number, bytes=1),
                runtime_pb2.RunCancel(run=number),
            ):
                self.assertRaises(UnexpectedMessage, self.runs.received, message)

    def test_numbers_that_do_not_rise(self) -> None:
        """R7"""
        self.begin(self.request(5))
        for number in (0, 4, 5):
            self.assertRaises(UnexpectedMessage, self.runs.received, self.request(number))
        self.assertEqual(len(self.upstream.calls), 1)

    def test_request_body(self) -> None:
        """R1, R4: longer or shorter than announced, beyond the window, or after its last piece."""
        for pieces in (
            [runtime_pb2.RunBody(run=1, data=bytes(6))],
            [runtime_pb2.RunBody(run=1, data=bytes(4), last=True)],
            [runtime_pb2.RunBody(run=1, data=bytes(5), last=True), runtime_pb2.RunBody(run=1, last=True)],
            [runtime_pb2.RunBody(run=1)],
        ):
            self.restart()
            self.begin(self.request(body_length=5))
            *good, bad = pieces
            for piece in good:
                self.runs.received(piece)
            self.assertRaises(FlowViolation, self.runs.received, bad)

    def test_request_window(self) -> None:
        """R4: an upstream that takes nothing lets 256 KiB come in, and not one byte more."""
        call = self.begin(self.request(body_length=2 * RUN_WINDOW))
        call.stalled = True
        for _ in range(4):
            self.runs.received(runtime_pb2.RunBody(run=1, data=bytes(BODY_PIECE)))
        self.assertRaises(FlowViolation, self.runs.received, runtime_pb2.RunBody(run=1, data=b"a"))

    def test_window_of_the_response(self) -> None:
        """R1"""
        request = self.request()
        request.window = 0
        self.assertRaises(FlowViolation, self.runs.received, request)
        self.assertEqual(self.upstream.calls, [])

    def test_credit_never_taken(self) -> None:
        """R4"""
        self.begin()
        self.assertRaises(FlowViolation, self.runs.received, runtime_pb2.RunCredit(run=1, bytes=1))

    def test_request_id(self) -> None:
        """A request id that cannot stand in a log closes the connection."""
        for request_id in ("", "a b", "a\nb", "a" * 129):
            request = self.request()
            request.request_id = request_id
            self.assertRaises(MalformedFrame, self.runs.received, request)

    def test_limit(self) -> None:
        """At most 1,024 runs are open."""
        request = self.request()
        for number in range(1, IN_FLIGHT_LIMIT + 1):
            request.run = number
            self.runs.received(request)
        request.run = IN_FLIGHT_LIMIT + 1
        self.assertRaises(TooManyInFlight, self.runs.received, request)

    def test_foreign_message(self) -> None:
        self.assertRaises(UnexpectedMessage, self.runs.received, runtime_pb2.RunHead(run=1))
