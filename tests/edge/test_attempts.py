"""From a request to a run: fences, stale refusals, other Nodes, deadlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from google.protobuf.message import Message
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from iop.edge.attempts import Call, Dispatched, RunFailed
from iop.edge.runs import IRunReceiver, RunFailure
from iop.errors import (
    BadHttp,
    ControlPlaneUnavailable,
    LeaseRefused,
    NoNode,
    NoSuchModel,
    QueueLate,
    RequestTimedOut,
    TokenRefused,
)
from iop.records import RouteEntry, TokenEntry
from iop.wire import control_pb2, runtime_pb2
from tests.core.entries import changed
from tests.edge.rig import (
    ADA,
    ADA_TOKEN,
    FIRST,
    LEASE_SECONDS,
    LONG_BYTES,
    SMALL,
    FakeNode,
    Rig,
    lease_for,
    node_table,
    provider,
    refusal,
)

NEWER = replace(FIRST, generation=6)


@implementer(IRunReceiver)
class Receiver:
    """Takes a response and writes down what came."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.events.append(status)

    def data(self, data: bytes) -> None:
        self.events.append(data)

    def finished(self) -> None:
        self.events.append("finished")

    def failed(self, failure: RunFailure) -> None:
        self.events.append(failure.code)


class AttemptsTests(SynchronousTestCase):
    """Steps 2 to 7 of one request."""

    def setUp(self) -> None:
        self.begin(Rig(Path(self.mktemp()), [node_table("node-1"), node_table("node-2")]))

    def begin(self, rig: Rig) -> None:
        """Connect ``rig`` to its Control Plane and its first Node."""
        self.rig = rig
        self.rig.dial()
        self.control_plane = self.rig.control_plane
        self.node = self.rig.node("node-1")
        self.receiver = Receiver()
        verifyObject(IRunReceiver, self.receiver)

    def dispatch(
        self, model: str = "small", headers: Sequence[tuple[str, str]] = (), body_bytes: int = 100
    ) -> Deferred[Dispatched]:
        call = Call(
            request_id="request",
            digest=ADA.digest,
            proof=ADA_TOKEN.record.proof,
            model=model,
            method="POST",
            path="/chat/completions",
            headers=headers,
            body_bytes=body_bytes,
            body=lambda upstream_model: b"body for " + upstream_model.encode(),
        )
        dispatched = self.rig.attempts.dispatch(call, self.receiver)
        # a test looks at the outcomes it is about
        self.addCleanup(dispatched.addErrback, lambda failure: None)
        self.rig.pump()
        return dispatched

    def refuse(self, code: str, node: str = "") -> None:
        """Have leases refused, for one Node or for all."""
        self.control_plane.lease = lambda request: (
            refusal(code) if node in ("", request.binding.node) else lease_for(request, self.rig.clock.wall_ms())
        )

    def runs_of(self, node: FakeNode) -> list[runtime_pb2.RunRequest]:
        return [message for message in node.received if isinstance(message, runtime_pb2.RunRequest)]

    # -- the straight way ---------------------------------------------------------------------------------------------

    def test_straight(self) -> None:
        """Question, lease, run and answer: everything is about the same binding."""
        dispatched = self.dispatch(headers=[("accept", "text/event-stream")])
        run = self.node.last_run()
        (question,) = self.control_plane.asked_for
        self.assertEqual(question.binding, run.binding)
        self.assertEqual((run.binding.generation, run.binding.node, run.binding.slot), (5, "node-1", "slot-1"))
        self.assertEqual(question.recipient_public_key, self.node.keys.current().public_key)
        self.assertEqual(question.token_proof, ADA_TOKEN.record.proof)
        self.assertEqual(run.lease, lease_for(question, self.rig.clock.wall_ms()).lease)
        self.assertEqual((run.token_id, run.provider_id), (ADA.token_id, "openai-main"))
        self.assertEqual((run.method, run.path, run.request_id), ("POST", "/chat/completions", "request"))
        self.assertEqual([(field.name, field.value) for field in run.headers], [("accept", "text/event-stream")])
        self.assertEqual(self.node.bodies(run.run), b"body for gpt-small")
        self.assertNoResult(dispatched)
        self.node.head()
        self.node.body(b"answer", last=True)
        self.rig.pump()
        result = self.successResultOf(dispatched)
        self.assertEqual((result.node, result.generation), ("node-1", 5))
        self.assertEqual(self.receiver.events, [200, b"answer", "finished"])

    def test_second_request_uses_the_lease(self) -> None:
        """L10: the next request of the same binding asks for no lease."""
        self.dispatch()
        self.dispatch()
        self.assertEqual((len(self.control_plane.asked_for), len(self.runs_of(self.node))), (1, 2))

    def test_capacity_is_held_until_the_end(self) -> None:
        """A run holds its place until its last byte, a cancelled one until the Node's word."""
        first, second, third = self.dispatch(), self.dispatch(), self.dispatch()
        self.assertEqual(len(self.runs_of(self.node)), 2)
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.rig.pump()
        self.assertIsInstance(self.node.received[-1], runtime_pb2.RunCancel)
        self.assertEqual(len(self.runs_of(self.node)), 2)
        self.node.fail("cancelled", started=True)
        self.rig.pump()
        self.assertEqual(len(self.runs_of(self.node)), 3)
        self.assertNoResult(first)
        self.assertNoResult(third)

    def test_unknown(self) -> None:
        """P16: a foreign model and an unknown one; neither costs a place or a question."""
        for model in ("large", "nothing"):
            self.failureResultOf(self.dispatch(model), NoSuchModel)
        self.assertEqual(self.control_plane.asked_for, [])

    def test_no_node(self) -> None:
        """No ready Node: refused at once."""
        self.node.peer.drain()
        self.rig.pump()
        self.failureResultOf(self.dispatch(), NoNode)

    def test_unreadable_selector(self) -> None:
        """A selector that cannot be read matches nothing."""
        self.control_plane.push(replace(NEWER, routes=(replace(SMALL, selector="zone"),)))
        self.rig.pump()
        self.failureResultOf(self.dispatch(), NoNode)

    def test_headers_that_may_not_travel(self) -> None:
        """P18: refused before anything is written to a Node, and the place is free again."""
        for _ in range(3):
            self.failureResultOf(self.dispatch(headers=[("accept", "a\r\nx: y")]), BadHttp)
        self.assertEqual(self.node.received, [])

    # -- fences -------------------------------------------------------------------------------------------------------

    def pending_lease(self) -> tuple[Deferred[Message], Deferred[Dispatched]]:
        """A request whose lease is on its way: between the two fences."""
        answer: Deferred[Message] = Deferred()
        self.control_plane.lease = lambda _: answer
        dispatched = self.dispatch()
        self.control_plane.lease = lambda request: lease_for(request, self.rig.clock.wall_ms())
        return answer, dispatched

    def arrive(self, answer: Deferred[Message]) -> None:
        answer.callback(lease_for(self.control_plane.asked_for[0], self.rig.clock.wall_ms()))
        self.rig.pump()

    def test_fence_2_route(self) -> None:
        """P12, L8: a route that changed in any field while the lease was on its way: the old lease is not used."""
        for name in RouteEntry.__slots__:
            if name in ("route", "principal", "model", "profile", "target", "selector"):
                continue
            self.setUp()
            answer, _ = self.pending_lease()
            route = changed(SMALL, name)
            self.control_plane.push(replace(NEWER, routes=(route,)))
            self.rig.pump()
            self.arrive(answer)
            (run,) = self.runs_of(self.node)
            self.assertEqual((run.binding.generation, len(self.control_plane.asked_for)), (6, 2), name)

    def test_fence_2_gone(self) -> None:
        """P41: a token or route that went away while the lease was on its way ends the request without a run."""
        for snapshot, error in (
            (replace(NEWER, tokens=()), TokenRefused),
            (replace(NEWER, routes=()), NoSuchModel),
            (replace(NEWER, routes=(replace(SMALL, profile="none"),)), NoNode),
            (replace(NEWER, routes=(replace(SMALL, target="lab"),)), NoNode),
        ):
            self.setUp()
            answer, dispatched = self.pending_lease()
            self.control_plane.push(snapshot)
            self.rig.pump()
            self.arrive(answer)
            self.failureResultOf(dispatched, error)
            self.assertEqual(self.node.received, [])
            self.assertEqual(self.rig.pool.waiting, 0)

    def test_fence_2_unrelated(self) -> None:
        """An unrelated newer generation does not stop a request that has its lease."""
        answer, _ = self.pending_lease()
        self.control_plane.push(replace(NEWER, routes=(SMALL,)))
        self.rig.pump()
        self.arrive(answer)
        self.assertEqual(self.node.last_run().binding.generation, 5)

    def test_fence_2_expired_token(self) -> None:
        """A token that expires while the lease is on its way starts nothing."""
        token = TokenEntry(ADA.token_id, "ada", ADA.digest, self.rig.clock.wall_ms() + 1000)
        self.control_plane.push(replace(NEWER, tokens=(token,)))
        self.rig.pump()
        answer, dispatched = self.pending_lease()
        self.rig.advance(1.0)
        self.arrive(answer)
        self.failureResultOf(dispatched, TokenRefused)
        self.assertEqual(self.node.received, [])

    def test_fence_2_stale_edge(self) -> None:
        """P9: an Edge that became stale while the lease was on its way starts nothing."""
        answer, dispatched = self.pending_lease()
        assert self.rig.control_pair is not None
        self.rig.control_pair.cut()
        self.failureResultOf(dispatched, ControlPlaneUnavailable)
        self.assertFalse(answer.called)
        self.assertEqual(self.node.received, [])

    def test_node_left_meanwhile(self) -> None:
        """A lease for a Node that went away while it was on its way is not used; another Node gets the request."""
        other = self.rig.node("node-2")
        answer, dispatched = self.pending_lease()
        admitted, spare = (
            (self.node, other) if self.control_plane.asked_for[0].binding.node == "node-1" else (other, self.node)
        )
        admitted.peer.drain()
        self.rig.pump()
        self.arrive(answer)
        self.assertEqual(self.runs_of(admitted), [])
        self.assertEqual(self.runs_of(spare)[0].binding.node, spare.name)
        self.assertNoResult(dispatched)

    def test_resolves_again_after_waiting(self) -> None:
        """Step 3: who waited for a place resolves again, and gets what the route is by then."""
        self.dispatch()
        self.dispatch()
        waiting = self.dispatch()
        self.control_plane.push(replace(NEWER, routes=(replace(SMALL, upstream_model="gpt-new", route_revision=2),)))
        self.rig.pump()
        self.node.fail("upstream_broke", started=True)
        self.rig.pump()
        run = self.node.last_run()
        self.assertEqual((run.binding.generation, run.binding.route_revision), (6, 2))
        self.assertEqual(self.node.bodies(run.run), b"body for gpt-new")
        self.assertNoResult(waiting)

    # -- refused leases -----------------------------------------------------------------------------------------------

    def test_stale_generation(self) -> None:
        """L4, L9: the newer projection, sent ahead of the refusal, is what the next attempt is made from."""

        def stale(request: control_pb2.AcquireLeaseRequest) -> Message:
            if request.binding.generation == 5:
                self.control_plane.push(NEWER)
                return refusal("stale_generation", again=True, generation=6)
            return lease_for(request, self.rig.clock.wall_ms())

        self.control_plane.lease = stale
        self.dispatch()
        self.assertEqual([asked.binding.generation for asked in self.control_plane.asked_for], [5, 6])
        self.assertEqual(self.node.last_run().binding.generation, 6)

    def test_stale_generation_waits(self) -> None:
        """L9: an attempt does not begin before the Edge has the generation that the refusal names."""
        self.control_plane.lease = lambda _: refusal("stale_generation", again=True, generation=7)
        dispatched = self.dispatch()
        self.control_plane.push(NEWER)
        self.rig.advance(10.0)
        self.assertEqual(len(self.control_plane.asked_for), 1)
        self.control_plane.lease = lambda request: lease_for(request, self.rig.clock.wall_ms())
        self.control_plane.push(replace(FIRST, generation=8))
        self.rig.pump()
        self.assertEqual(self.node.last_run().binding.generation, 8)
        self.assertNoResult(dispatched)

    def test_stale_until_the_deadline(self) -> None:
        """L9: it goes on until the request's deadline, and then ends without a run."""
        self.control_plane.lease = lambda _: refusal("stale_generation", again=True, generation=7)
        dispatched = self.dispatch()
        self.rig.advance(29.9)
        self.assertNoResult(dispatched)
        self.rig.advance(0.2)
        self.failureResultOf(dispatched, RequestTimedOut)
        self.assertEqual(self.node.received, [])

    def test_always_stale(self) -> None:
        """A refusal that names nothing newer is not asked again in a busy loop, and ends with the deadline."""
        self.control_plane.lease = lambda _: refusal("store_busy", again=True)
        dispatched = self.dispatch()
        self.rig.clock.advance(0.05)
        self.rig.pump()
        self.assertEqual(len(self.control_plane.asked_for), 1)
        for _ in range(400):
            self.rig.clock.advance(0.1)
            self.rig.pump()
        self.failureResultOf(dispatched, QueueLate)
        self.assertLess(len(self.control_plane.asked_for), 301)

    def test_busy_then_fine(self) -> None:
        """L4: a busy store is asked again."""
        self.control_plane.lease = lambda _: refusal("store_busy", again=True)
        self.dispatch()
        self.control_plane.lease = lambda request: lease_for(request, self.rig.clock.wall_ms())
        self.rig.advance(0.1)
        self.assertEqual(len(self.runs_of(self.node)), 1)

    def test_cancelled_while_pausing(self) -> None:
        """A caller that goes away between two attempts leaves no timer behind."""
        self.control_plane.lease = lambda _: refusal("store_busy", again=True)
        dispatched = self.dispatch()
        dispatched.cancel()
        self.failureResultOf(dispatched, CancelledError)
        self.rig.advance(1.0)
        self.assertEqual(len(self.control_plane.asked_for), 1)

    def test_never_retried(self) -> None:
        """C20: a refusal that no newer projection may change ends the request."""
        for code in ("binding_mismatch", "token_refused", "slot_refused", "edge_denied", "secret_unreadable"):
            self.control_plane.asked_for.clear()
            self.refuse(code)
            failure = self.failureResultOf(self.dispatch(), LeaseRefused).value
            self.assertEqual((failure.reason, len(self.control_plane.asked_for)), (code, 1))
        self.assertEqual(self.node.received, [])

    def test_node_refused(self) -> None:
        """P13: a denied Node, or one whose key is not attested, is not asked for again; another one may serve."""
        other = self.rig.node("node-2")
        for code in ("node_denied", "attestation_refused"):
            self.refuse(code, "node-1")
            self.dispatch()
        self.assertEqual((len(self.runs_of(self.node)), len(self.runs_of(other))), (0, 2))
        other.peer.drain()
        self.rig.pump()
        self.assertEqual(self.failureResultOf(self.dispatch(), LeaseRefused).value.reason, "attestation_refused")

    # -- runs that fail -----------------------------------------------------------------------------------------------

    def test_not_started_goes_to_another_node(self) -> None:
        """R6: a run that its Node did not start may go to another one, with a lease of its own."""
        other = self.rig.node("node-2")
        dispatched = self.dispatch()
        first, second = (self.node, other) if self.runs_of(self.node) else (other, self.node)
        first.fail("upstream_unreachable", started=False)
        self.rig.pump()
        self.assertEqual(self.runs_of(second)[0].binding.node, second.name)
        second.fail("upstream_tls", started=False)
        self.rig.pump()
        failure = self.failureResultOf(dispatched, RunFailed).value
        self.assertEqual(failure.failure.code, "upstream_tls")
        self.assertEqual((len(self.runs_of(first)), len(self.runs_of(second))), (1, 1))
        self.assertEqual(self.receiver.events, [])

    def test_started_goes_nowhere_else(self) -> None:
        """R6: once something was sent upstream, or nobody knows, no other Node gets the request."""
        other = self.rig.node("node-2")
        dispatched = self.dispatch()
        first, second = (self.node, other) if self.runs_of(self.node) else (other, self.node)
        first.fail("upstream_broke", started=True)
        self.rig.pump()
        self.failureResultOf(dispatched, RunFailed)
        self.assertEqual(self.runs_of(second), [])
        lost = self.dispatch()
        busy = self.node if len(self.runs_of(self.node)) > len(self.runs_of(other)) else other
        busy.peer.drain()
        self.rig.pump()
        self.assertEqual(self.failureResultOf(lost, RunFailed).value.failure.code, "node_lost")

    def test_unreachable_provider(self) -> None:
        """S17: what could not connect counts, whatever the failure; the next requests go to another Node at once."""
        other = self.rig.node("node-2")
        for code in ("upstream_unreachable", "upstream_tls", "upstream_timeout"):
            served = self.dispatch_until(self.node, code, started=False)
            other.head()
            other.body(b"", last=True)
            self.rig.pump()
            self.successResultOf(served)
        self.assertFalse(self.rig.pool.is_reachable("node-1", "openai-main"))
        before = len(self.runs_of(self.node))
        for _ in range(4):
            self.dispatch()
        self.assertEqual(len(self.runs_of(self.node)), before)

    def test_answers_are_no_failure(self) -> None:
        """S17: an upstream's answer of whatever kind, and what happens once it is connected, is no failure of it."""
        for code, started in (
            ("upstream_timeout", True),
            ("upstream_broke", True),
            ("upstream_redirect", True),
            ("upstream_encoded_error", True),
            ("upstream_busy", False),
            ("draining", False),
            ("not_allowed", False),
            ("lease_refused", False),
        ):
            for _ in range(3):
                self.dispatch()
                self.node.fail(code, started=started)
                self.rig.pump()
        for status in (500, 503, 429):
            for _ in range(3):
                self.dispatch()
                self.node.head(status)
                self.node.body(b"", last=True)
                self.rig.pump()
        self.assertTrue(self.rig.pool.is_reachable("node-1", "openai-main"))

    def test_an_answer_ends_a_row(self) -> None:
        """S17: a redirect or an error is an answer: failures before and after it are not in a row."""
        for code, started in (
            ("upstream_unreachable", False),
            ("upstream_unreachable", False),
            ("upstream_redirect", True),
            ("upstream_tls", False),
            ("upstream_tls", False),
            ("upstream_encoded_error", True),
            ("upstream_timeout", False),
            ("upstream_timeout", False),
        ):
            self.dispatch()
            self.node.fail(code, started=started)
            self.rig.pump()
            self.assertTrue(self.rig.pool.is_reachable("node-1", "openai-main"))
        self.dispatch()
        self.node.fail("upstream_timeout", started=False)
        self.rig.pump()
        self.assertFalse(self.rig.pool.is_reachable("node-1", "openai-main"))

    def dispatch_until(self, node: FakeNode, code: str, *, started: bool) -> Deferred[Dispatched]:
        """Dispatch until ``node`` gets a run, and fail that; what the other Node gets is cancelled."""
        for _ in range(4):
            before = len(self.runs_of(node))
            dispatched = self.dispatch()
            if len(self.runs_of(node)) > before:
                node.fail(code, started=started)
                self.rig.pump()
                return dispatched
            dispatched.cancel()
            self.rig.pump()
        raise AssertionError("the Node gets no run")

    # -- a Node that comes again ---------------------------------------------------------------------------------------

    def test_waits_for_a_node_that_comes_again(self) -> None:
        """S18: a request that comes while its only Node reconnects is served by its next connection, once."""
        self.begin(Rig(Path(self.mktemp()), [node_table("node-1")], reconnect_seconds=3.0))
        lost = self.dispatch()
        self.node.peer.drain()
        self.rig.pump()
        self.assertEqual(self.failureResultOf(lost, RunFailed).value.failure.code, "node_lost")
        waiting = self.dispatch()
        self.rig.advance(2.0)
        self.assertNoResult(waiting)
        again = self.rig.node("node-1")
        self.assertEqual(len(self.runs_of(again)), 1)
        again.head()
        self.rig.pump()
        self.successResultOf(waiting)

    def test_node_that_does_not_come_again(self) -> None:
        """S18: who waits for it is refused when its time is over, and who comes later at once."""
        self.begin(Rig(Path(self.mktemp()), [node_table("node-1")], reconnect_seconds=3.0))
        self.node.peer.drain()
        self.rig.pump()
        self.rig.advance(1.0)
        waiting = self.dispatch()
        self.rig.advance(1.9)
        self.assertNoResult(waiting)
        self.rig.advance(0.2)
        self.failureResultOf(waiting, NoNode)
        self.failureResultOf(self.dispatch(), NoNode)

    def test_refused_lease_is_forgotten(self) -> None:
        """A lease that its Node would not take is not tried a second time."""
        self.dispatch()
        self.node.fail("lease_refused", started=False)
        self.rig.pump()
        self.dispatch()
        self.assertEqual(len(self.control_plane.asked_for), 2)

    def test_lease_that_ends(self) -> None:
        """R2, P41: what a Node could not start before its lease ended gets another lease, and that Node again."""
        self.begin(Rig(Path(self.mktemp()), [node_table("node-1")], request_seconds=90.0))
        dispatched = self.dispatch()
        self.rig.advance(LEASE_SECONDS)
        self.node.fail("lease_refused", started=False)
        self.rig.pump()
        self.assertEqual((len(self.runs_of(self.node)), len(self.control_plane.asked_for)), (2, 2))
        # that one is good, so something else is amiss
        self.node.fail("lease_refused", started=False)
        self.rig.pump()
        self.assertEqual(self.failureResultOf(dispatched, RunFailed).value.failure.code, "lease_refused")
        self.assertEqual(len(self.runs_of(self.node)), 2)

    def test_fails_after_its_head(self) -> None:
        """What happens after the head is the receiver's."""
        dispatched = self.dispatch()
        self.node.head()
        self.node.body(b"half")
        self.node.fail("upstream_broke", started=True)
        self.rig.pump()
        self.successResultOf(dispatched)
        self.assertEqual(self.receiver.events, [200, b"half", "upstream_broke"])

    def test_long_context(self) -> None:
        """S16: a request is long from one byte past the limit on, and takes a place of both kinds."""
        table = node_table("node-1", provider(capacity=3, long_context_capacity=1))
        self.begin(Rig(Path(self.mktemp()), [table]))
        self.dispatch(body_bytes=LONG_BYTES)
        self.assertEqual(self.rig.pool.long_taken("node-1", "openai-main"), 0)
        self.dispatch(body_bytes=LONG_BYTES + 1)
        self.assertEqual(self.rig.pool.long_taken("node-1", "openai-main"), 1)
        self.assertNoResult(self.dispatch(body_bytes=LONG_BYTES + 1))
        self.assertEqual((len(self.runs_of(self.node)), self.rig.pool.long_queued("node-1", "openai-main")), (2, 1))
        self.dispatch()
        self.assertEqual(len(self.runs_of(self.node)), 3)

    # -- time ---------------------------------------------------------------------------------------------------------

    def test_queue_deadline(self) -> None:
        """A request that finds no place in time is refused and leaves the queue."""
        self.dispatch()
        self.dispatch()
        waiting = self.dispatch()
        self.assertNoResult(waiting)
        self.rig.advance(29.9)
        self.assertNoResult(waiting)
        self.rig.advance(0.2)
        self.failureResultOf(waiting, QueueLate)
        self.assertEqual(self.rig.pool.waiting, 0)

    def test_cancelled_in_the_queue(self) -> None:
        """A caller that goes away leaves the queue."""
        self.dispatch()
        self.dispatch()
        waiting = self.dispatch()
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual(self.rig.pool.waiting, 0)

    def test_late_lease_starts_nothing(self) -> None:
        """The deadline also holds for a lease that comes after it."""
        self.begin(Rig(Path(self.mktemp()), [node_table("node-1")], request_seconds=2.0))
        answer, dispatched = self.pending_lease()
        self.rig.advance(3.0)
        self.arrive(answer)
        self.failureResultOf(dispatched, QueueLate)
        self.assertEqual(self.node.received, [])

    def test_any_model_of_the_provider(self) -> None:
        """A provider with a closed list of models serves only these."""
        for model, runs in (("gpt-small", 1), ("gpt-other", 0)):
            self.begin(Rig(Path(self.mktemp()), [node_table("node-1", provider(models=(model,)))]))
            dispatched = self.dispatch()
            self.assertEqual(len(self.runs_of(self.node)), runs)
        self.failureResultOf(dispatched, NoNode)
