"""What a newer projection no longer allows: which runs are asked about, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.crypto.node_keys import NodeKeys
from iop.edge import revocation as revocation_module
from iop.edge.attempts import Call, Dispatched, RunFailed
from iop.edge.leases import LeaseKey, Leases
from iop.edge.metrics import EdgeMetrics
from iop.edge.revocation import Revocation
from iop.edge.runs import NODE_LOST, IRunReceiver, RunFailure, Runs
from iop.errors import NoSuchModel, PeerSilent, TokenRefused
from iop.net import peer as peer_module
from iop.process.metrics import new_registry
from iop.records import ProjectionSnapshot, RouteEntry
from iop.testing.clock import FakeClock
from iop.testing.peers import BUFFER_BYTES
from iop.testing.recorded import RecordedPeer
from iop.units import NODE_WORD_SECONDS, SKEW_CAP_SECONDS
from iop.wire import control_pb2, runtime_pb2
from tests.core.entries import ADA_SMALL, projection
from tests.core.entries import changed as changed_entry
from tests.core.test_fences import pinned
from tests.edge.rig import ADA, ADA_TOKEN, DEPLOYMENT, EDGE, FIRST, LEASE_SECONDS, SMALL, FakeNode, Rig, node_table
from tests.edge.test_attempts import Receiver
from tests.edge.test_runs import BINDING, NODE, plan

#: The route points to the next revision of its secret.
ROTATED = replace(FIRST, generation=6, routes=(replace(SMALL, credential_revision=2),))


class RevocationTests(SynchronousTestCase):
    """E15, R11, P41: one Edge with its Control Plane and a Node that has a run without a head."""

    def setUp(self) -> None:
        self.rig = Rig(Path(self.mktemp()), [node_table("node-1"), node_table("node-2")])
        self.rig.dial()
        self.node = self.rig.node("node-1")
        self.receiver = Receiver()
        self.dispatched = self.dispatch()

    def dispatch(self, body: bytes = b"body") -> Deferred[Dispatched]:
        call = Call(
            request_id="request",
            digest=ADA.digest,
            proof=ADA_TOKEN.record.proof,
            model="small",
            method="POST",
            path="/chat/completions",
            headers=(),
            body_bytes=4,
            body=lambda upstream_model: body,
        )
        dispatched = self.rig.attempts.dispatch(call, self.receiver)
        # a test looks at the outcomes it is about
        self.addCleanup(dispatched.addErrback, lambda failure: None)
        self.rig.pump()
        return dispatched

    def apply(self, snapshot: ProjectionSnapshot) -> Deferred[int]:
        """Have the Edge take a projection; answers what it tells of it."""
        self.rig.control_plane.push(snapshot)
        self.rig.pump()
        return self.rig.told[-1]

    def runs(self, node: FakeNode | None = None) -> list[runtime_pb2.RunRequest]:
        received = (node or self.node).received
        return [message for message in received if isinstance(message, runtime_pb2.RunRequest)]

    def asked(self) -> list[int]:
        """The runs that the Node was asked to end unless they were started."""
        cancels = [message for message in self.node.received if isinstance(message, runtime_pb2.RunCancel)]
        return [cancel.run for cancel in cancels if cancel.unless_started]

    def test_not_started(self) -> None:
        """P41: the run ends, and the request begins anew, at the same Node, with what the newer projection says."""
        told = self.apply(ROTATED)
        self.assertEqual(self.asked(), [1])
        self.assertNoResult(told)
        self.node.fail("cancelled", started=False)
        self.rig.pump()
        self.assertEqual(self.successResultOf(told), 0)
        first, second = self.runs()
        self.assertEqual((first.binding.credential_revision, second.binding.credential_revision), (1, 2))
        self.assertEqual(second.binding.generation, 6)
        self.node.head()
        self.node.body(b"answer", last=True)
        self.rig.pump()
        self.assertEqual(self.successResultOf(self.dispatched).generation, 6)
        self.assertEqual(self.receiver.events, [200, b"answer", "finished"])

    def test_each_field_of_the_route(self) -> None:
        """E15: whatever changed in the route, as at the fences."""
        for name in RouteEntry.__slots__:
            self.setUp()
            self.apply(replace(FIRST, generation=6, routes=(changed_entry(SMALL, name),)))
            self.assertEqual(self.asked(), [1], name)

    def test_gone(self) -> None:
        """P41: a token or route that is gone ends the request, with the refusal that any new one gets."""
        for snapshot, error in ((replace(FIRST, tokens=()), TokenRefused), (replace(FIRST, routes=()), NoSuchModel)):
            self.setUp()
            self.apply(replace(snapshot, generation=6))
            self.node.fail("cancelled", started=False)
            self.rig.pump()
            self.failureResultOf(self.dispatched, error)
            self.assertEqual((len(self.runs()), self.rig.pool.waiting), (1, 0))

    def test_started(self) -> None:
        """R6: a run that was started goes on, once, and is not asked about again."""
        told = self.apply(ROTATED)
        self.node.started()
        self.rig.pump()
        self.assertEqual(self.successResultOf(told), 0)
        again = replace(ROTATED, generation=7, routes=(replace(SMALL, credential_revision=3),))
        self.assertEqual(self.successResultOf(self.apply(again)), 0)
        self.node.head()
        self.node.body(b"answer", last=True)
        self.rig.pump()
        self.assertEqual((len(self.runs()), self.asked()), (1, [1]))
        self.assertEqual(self.receiver.events, [200, b"answer", "finished"])

    def test_head_that_crosses(self) -> None:
        """A head that comes counts as started."""
        told = self.apply(ROTATED)
        self.node.head()
        self.node.started()
        self.rig.pump()
        self.assertEqual(self.successResultOf(told), 0)
        self.assertEqual((self.receiver.events, self.node.lost_for), ([200], None))

    def test_unreachable_meanwhile(self) -> None:
        """R6: a Node that could not start it says so of itself; the request may go to another one."""
        other = self.rig.node("node-2")
        told = self.apply(ROTATED)
        self.node.fail("upstream_unreachable", started=False)
        self.rig.pump()
        self.assertEqual(self.successResultOf(told), 0)
        self.assertEqual(self.runs(other)[0].binding.credential_revision, 2)

    def lose(self) -> None:
        """End the connection of the Node, which may not have noticed."""
        self.node.peer.drain()
        self.rig.pump()

    def come_again(self, keys: NodeKeys) -> None:
        """Have the Node register on another connection: with the same ``keys`` it is the same process."""
        node = FakeNode(self.rig.clock, "node-1")
        node.keys = keys
        self.rig.connect(node)

    def test_connection_lost(self) -> None:
        """E15, R6, P41: nobody knows whether the run was started: its caller hears so at once, and it counts."""
        told = self.apply(ROTATED)
        self.lose()
        failure = self.failureResultOf(self.dispatched, RunFailed).value.failure
        self.assertEqual((failure.code, failure.started, len(self.runs())), (NODE_LOST, True, 1))
        self.assertNoResult(told)
        self.rig.clock.advance(NODE_WORD_SECONDS)
        self.assertEqual(self.successResultOf(told), 1)

    def test_connection_lost_before(self) -> None:
        """E15, P41: so does one whose connection ended before, until no clock within the skew has its lease valid."""
        self.lose()
        told = self.apply(ROTATED)
        self.assertEqual(self.asked(), [])
        self.rig.advance(NODE_WORD_SECONDS)
        self.assertEqual(self.successResultOf(told), 1)
        self.rig.advance(LEASE_SECONDS + SKEW_CAP_SECONDS - NODE_WORD_SECONDS - 0.001)
        self.assertEqual(self.successResultOf(self.apply(replace(ROTATED, generation=7))), 1)
        self.rig.advance(0.001)
        self.assertEqual(self.successResultOf(self.apply(replace(ROTATED, generation=8))), 0)

    def test_connection_lost_elsewhere(self) -> None:
        """A run without connection that is still allowed is not counted, and is so when it is allowed no more."""
        self.lose()
        elsewhere = replace(FIRST.routes[1], credential_revision=9)
        self.assertEqual(self.successResultOf(self.apply(replace(FIRST, generation=6, routes=(SMALL, elsewhere)))), 0)
        told = self.apply(replace(ROTATED, generation=7))
        self.rig.clock.advance(NODE_WORD_SECONDS)
        self.assertEqual(self.successResultOf(told), 1)

    def test_registers_again(self) -> None:
        """E15, N7, P41: the same process that comes again has ended the run, be it lost before or while it is asked."""
        for is_asked_first in (False, True):
            self.setUp()
            if is_asked_first:
                told = self.apply(ROTATED)
                self.lose()
            else:
                self.lose()
                told = self.apply(ROTATED)
            self.assertNoResult(told)
            self.come_again(self.node.keys)
            self.assertEqual(self.successResultOf(told), 0)
            self.assertEqual(self.successResultOf(self.apply(replace(ROTATED, generation=7))), 0)

    def test_registers_before(self) -> None:
        """N7: what ended with the connection is of no concern once its Node came again."""
        self.lose()
        self.come_again(self.node.keys)
        self.assertEqual(self.successResultOf(self.apply(ROTATED)), 0)

    def test_another_process(self) -> None:
        """E15, P41: a Node of that name with another key says nothing of the process that had the run."""
        self.lose()
        told = self.apply(ROTATED)
        self.come_again(NodeKeys(self.rig.clock))
        self.assertNoResult(told)
        self.rig.clock.advance(NODE_WORD_SECONDS)
        self.assertEqual(self.successResultOf(told), 1)

    def test_lost_after_a_word(self) -> None:
        """A run that was started before its connection ended can start no more."""
        told = self.apply(ROTATED)
        self.node.started()
        self.rig.pump()
        self.assertEqual(self.successResultOf(told), 0)
        self.lose()
        self.assertEqual(self.successResultOf(self.apply(replace(ROTATED, generation=7))), 0)
        self.setUp()
        self.node.head()
        self.rig.pump()
        self.lose()
        self.assertEqual(self.successResultOf(self.apply(ROTATED)), 0)

    def test_lost_while_it_is_written(self) -> None:
        """E15: a run whose own body ended the connection is one of them, for as long as any."""
        self.lose()
        pair = self.rig.connect(FakeNode(self.rig.clock, "node-2"))
        pair.acceptor_transport.held = True
        self.dispatch(bytes(2 * BUFFER_BYTES))
        self.patch(peer_module, "UNREAD_LIMIT", 2 * BUFFER_BYTES)
        self.failureResultOf(self.dispatch(bytes(2 * BUFFER_BYTES)), RunFailed)
        told = self.apply(ROTATED)
        self.rig.clock.advance(NODE_WORD_SECONDS)
        self.assertEqual(self.successResultOf(told), 3)
        self.rig.advance(LEASE_SECONDS + SKEW_CAP_SECONDS)
        self.assertEqual(self.successResultOf(self.apply(replace(ROTATED, generation=7))), 0)

    def test_lost_after_its_caller(self) -> None:
        """E15: nor does it matter that its caller wanted it no more, which its Node may not have heard."""
        self.dispatched.cancel()
        self.failureResultOf(self.dispatched, CancelledError)
        self.lose()
        told = self.apply(ROTATED)
        self.rig.clock.advance(NODE_WORD_SECONDS)
        self.assertEqual(self.successResultOf(told), 1)

    def test_silent(self) -> None:
        """E15: a run of which the Node says nothing is counted, then and later, until the Node has answered."""
        told = self.apply(ROTATED)
        self.rig.clock.advance(NODE_WORD_SECONDS - 0.001)
        self.assertNoResult(told)
        self.rig.clock.advance(0.001)
        self.assertEqual(self.successResultOf(told), 1)
        for generation in (7, 8):
            # nothing new to ask: nothing to wait for
            self.assertEqual(self.successResultOf(self.apply(replace(ROTATED, generation=generation))), 1)
        self.node.started()
        self.rig.pump()
        self.assertEqual(self.successResultOf(self.apply(replace(ROTATED, generation=9))), 0)
        self.assertEqual(self.asked(), [1])

    def test_held(self) -> None:
        """E15: what is acknowledged again, as by the next connection, has the number of then, not that of before."""
        self.apply(ROTATED)
        self.rig.clock.advance(NODE_WORD_SECONDS)
        self.apply(ROTATED)
        self.node.started()
        self.rig.pump()
        self.apply(ROTATED)
        told = [(word.result, word.unconfirmed) for word in self.rig.control_plane.words[-3:]]
        held = control_pb2.PROJECTION_RESULT_HELD
        self.assertEqual(told, [(control_pb2.PROJECTION_RESULT_APPLIED, 1), (held, 1), (held, 0)])

    def test_not_affected(self) -> None:
        """What a newer projection leaves as it was goes on, and nothing is waited for."""
        elsewhere = replace(FIRST.routes[1], credential_revision=9)
        told = self.apply(replace(FIRST, generation=6, routes=(SMALL, elsewhere)))
        self.assertEqual((self.successResultOf(told), self.asked()), (0, []))

    def test_with_a_head(self) -> None:
        """A run that has its head, or that is over, is not asked about."""
        self.node.head()
        self.rig.pump()
        self.assertEqual(self.successResultOf(self.apply(ROTATED)), 0)
        self.node.body(b"", last=True)
        self.rig.pump()
        self.assertEqual(self.successResultOf(self.apply(replace(FIRST, generation=7, tokens=()))), 0)
        self.assertEqual(self.asked(), [])

    def test_caller_gone(self) -> None:
        """A run that its caller gave up may start until its Node has confirmed: that is waited for."""
        self.dispatched.cancel()
        self.failureResultOf(self.dispatched, CancelledError)
        told = self.apply(ROTATED)
        self.assertNoResult(told)
        self.assertEqual(self.asked(), [])
        self.node.fail("cancelled", started=True)
        self.rig.pump()
        self.assertEqual(self.successResultOf(told), 0)

    def test_two_projections(self) -> None:
        """A projection that comes while another one waits tells only when both have their words."""
        first = self.apply(ROTATED)
        self.rig.clock.advance(1.0)
        second = self.apply(replace(ROTATED, generation=7))
        self.assertNoResult(second)
        self.node.started()
        self.rig.pump()
        self.assertEqual((self.successResultOf(first), self.successResultOf(second)), (0, 0))

    def test_nobody_asked(self) -> None:
        """R5, R11: a Node that ends or starts runs as if it had been asked loses its connection."""
        self.node.started()
        self.rig.pump()
        self.assertIsNotNone(self.node.lost_for)
        self.setUp()
        self.node.fail("cancelled", started=False)
        self.rig.pump()
        self.assertIsNotNone(self.node.lost_for)
        self.assertEqual(len(self.runs()), 1)

    def test_leases_of_what_was(self) -> None:
        """L10, C22: a newer generation, a newer key of the Node and its loss drop the leases that they make useless."""
        self.assertEqual(len(self.rig.leases), 1)
        self.apply(replace(FIRST, generation=6))
        self.assertEqual(len(self.rig.leases), 0)
        self.dispatch()
        self.assertEqual(len(self.rig.leases), 1)
        self.rig.advance(601.0)
        self.node.ask(self.node.offer())
        self.rig.pump()
        offered = self.node.answers[-1]
        assert isinstance(offered, runtime_pb2.NodeKeyOfferResponse)
        self.node.ask(self.node.proof(offered.sealed_challenge))
        self.rig.pump()
        self.assertEqual(len(self.rig.leases), 0)
        self.node.fail("upstream_broke", started=True)
        self.rig.pump()
        self.dispatch()
        self.assertEqual(len(self.rig.leases), 1)
        self.node.peer.drain()
        self.rig.pump()
        self.assertEqual(len(self.rig.leases), 0)


@implementer(IRunReceiver)
class Settling:
    """Tells at the head and at the end."""

    def __init__(self) -> None:
        self.settled: Callable[[bool], None] = lambda is_lost: None

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.settled(False)

    def data(self, data: bytes) -> None:
        """Nothing to tell."""

    def finished(self) -> None:
        """Nothing to tell after the head."""

    def failed(self, failure: RunFailure) -> None:
        self.settled(failure.code == NODE_LOST)


async def no_lease(request: control_pb2.AcquireLeaseRequest) -> runtime_pb2.SealedLease:
    raise AssertionError(f"nobody asks for a lease here, but {request.request_id} did")


@dataclass(eq=False)
class Adrift:
    """A run of the model whose connection ended before there was a word on it."""

    key: bytes
    over_ms: int


class Watched:
    """A revocation with runs of one Node, and a model of which of them are without a word."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        leases = Leases(no_lease, self.clock, EdgeMetrics(new_registry()), DEPLOYMENT, EDGE, 1)
        self.revocation = Revocation(leases, self.clock, NODE_WORD_SECONDS)
        self.peer = RecordedPeer(NODE)
        self.runs = Runs(self.peer)
        self.opened = 0
        #: Every run of the connection, with the time from which on it cannot start.
        self.over_ms: dict[int, int] = {}
        self.undecided: set[int] = set()
        self.wordless: set[int] = set()
        #: Those without connection, by whether they are allowed no more.
        self.adrift: dict[Adrift, bool] = {}
        self.key = b"k" * 32
        self.generation = 7

    @property
    def unconfirmed(self) -> int:
        return len(self.wordless) + sum(self.adrift.values())

    def open(self, seconds: int = LEASE_SECONDS) -> None:
        """Open a run whose lease lasts so long."""
        receiver = Settling()
        run = self.runs.open(plan(), b"", receiver)
        expires_ms = self.clock.wall_ms() + seconds * 1000
        key = LeaseKey(replace(BINDING, node="node-1"), "t1", self.key)
        receiver.settled = self.revocation.watch(run, pinned(), key, expires_ms)
        self.opened += 1
        self.over_ms[self.opened] = expires_ms + int(SKEW_CAP_SECONDS * 1000)
        self.undecided.add(self.opened)

    def revoke(self) -> Deferred[int]:
        self.generation += 1
        self.wordless |= self.undecided
        self.undecided.clear()
        self.let_go()
        self.adrift = dict.fromkeys(self.adrift, True)
        gone = replace(ADA_SMALL, credential_revision=self.generation)
        return self.revocation.applied(projection(self.generation, routes=(gone,)))

    def let_go(self) -> None:
        """Of what cannot start any more."""
        self.adrift = {run: gone for run, gone in self.adrift.items() if self.clock.wall_ms() < run.over_ms}

    def follow(self) -> Deferred[int]:
        """A projection that leaves every route as it was."""
        self.generation += 1
        return self.revocation.applied(projection(self.generation))

    def word(self, which: int, kind: str) -> None:
        """Give the word on one run of those that have none."""
        if not self.wordless:
            return
        run = sorted(self.wordless)[which % len(self.wordless)]
        self.wordless.discard(run)
        if kind == "head":
            self.runs.received(runtime_pb2.RunHead(run=run, status=200))
        elif kind == "started":
            self.runs.received(runtime_pb2.RunStarted(run=run))
        else:
            self.runs.received(runtime_pb2.RunFailed(run=run, code="cancelled", started=False))

    def lost(self) -> None:
        for run in self.undecided | self.wordless:
            self.adrift[Adrift(self.key, self.over_ms[run])] = run in self.wordless
        self.undecided.clear()
        self.wordless.clear()
        self.runs.lost(PeerSilent("gone"))
        self.runs = Runs(self.peer)
        self.opened = 0

    def register(self, key: bytes) -> None:
        """The Node, or another process of its name, proves a key on another connection."""
        self.lost()
        self.key = key
        self.adrift = {run: revoked for run, revoked in self.adrift.items() if run.key != key}
        self.revocation.proved("node-1", key)


class InterleavingTests(SynchronousTestCase):
    """E15 in any order of events."""

    @settings(deadline=None)
    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("open"), st.integers(1, LEASE_SECONDS)),
                st.just(("revoke", 0)),
                st.just(("lost", 0)),
                st.tuples(st.just("register"), st.integers(0, 2)),
                st.tuples(st.sampled_from(["head", "started", "failed"]), st.integers(0, 5)),
                st.tuples(st.just("wait"), st.integers(1, 25) | st.integers(1, 1000)),
            ),
            max_size=40,
        )
    )
    def test_any_order(self, steps: list[tuple[str, int]]) -> None:
        """P41: each projection is told of within 2 s, never before every run has its word, with the true number."""
        watched = Watched()
        waiting: list[tuple[Deferred[int], float]] = []
        for kind, number in [*steps, ("wait", 25)]:
            before = watched.unconfirmed
            if kind == "revoke":
                watched.let_go()
            least = watched.unconfirmed
            match kind:
                case "open":
                    watched.open(number)
                case "revoke":
                    waiting.append((watched.revoke(), watched.clock.boot() + NODE_WORD_SECONDS))
                case "lost":
                    watched.lost()
                case "register":
                    watched.register(bytes([number]) * 32)
                case "wait":
                    watched.clock.advance(number / 10)
                case _:
                    watched.word(number, kind)
            for told, until in waiting.copy():
                if watched.clock.boot() >= until or not watched.unconfirmed:
                    self.assertTrue(told.called)
                if told.called:
                    number_told = self.successResultOf(told)
                    if kind in {"register", "revoke"}:
                        # runs that are over at once are so one after the other, and this is told in between, what an
                        # earlier projection waited for before anything is added
                        self.assertGreaterEqual(number_told, min(least, watched.unconfirmed))
                        self.assertLessEqual(number_told, max(before, watched.unconfirmed))
                    else:
                        self.assertEqual(number_told, watched.unconfirmed)
                    waiting.remove((told, until))
        self.assertEqual(waiting, [])


class BoundTests(SynchronousTestCase):
    """E15: how many runs without connection are known one by one."""

    def adrift(self, count: int) -> Watched:
        """So many runs that ended with their connection."""
        watched = Watched()
        for _ in range(count):
            watched.open()
        watched.lost()
        return watched

    def told(self, watched: Watched, told: Deferred[int]) -> int:
        watched.clock.advance(NODE_WORD_SECONDS)
        return self.successResultOf(told)

    def setUp(self) -> None:
        self.patch(revocation_module, "ADRIFT_LIMIT", 2)

    def test_at_the_limit(self) -> None:
        """Up to the limit only those count that a projection is about, and the Node's return settles them."""
        watched = self.adrift(2)
        self.assertEqual(self.successResultOf(watched.follow()), 0)
        self.assertEqual(self.told(watched, watched.revoke()), 2)
        watched.register(watched.key)
        self.assertEqual(self.successResultOf(watched.follow()), 0)

    def test_past_the_limit(self) -> None:
        """P41: one more counts for every projection until its lease is over, whoever comes back: it fails closed."""
        watched = self.adrift(3)
        self.assertEqual(self.successResultOf(watched.follow()), 1)
        self.assertEqual(self.told(watched, watched.revoke()), 3)
        watched.register(watched.key)
        self.assertEqual(self.successResultOf(watched.follow()), 1)
        watched.clock.advance(LEASE_SECONDS + SKEW_CAP_SECONDS - NODE_WORD_SECONDS - 0.001)
        self.assertEqual(self.successResultOf(watched.follow()), 1)
        watched.clock.advance(0.001)
        self.assertEqual(self.successResultOf(watched.follow()), 0)

    def test_room_again(self) -> None:
        """Runs whose leases are over take no room."""
        watched = self.adrift(2)
        watched.clock.advance(LEASE_SECONDS + SKEW_CAP_SECONDS)
        watched.open()
        watched.lost()
        self.assertEqual(self.successResultOf(watched.follow()), 0)
        self.assertEqual(self.told(watched, watched.revoke()), 1)

    def test_order(self) -> None:
        """Leases are over in the order of their ends, whatever was settled in between."""
        self.patch(revocation_module, "ADRIFT_LIMIT", 7)
        watched = Watched()
        for key, seconds in ((b"b", 1), (b"a", 40), (b"b", 2), (b"a", 50), (b"a", 45), (b"b", 3), (b"a", 10)):
            watched.key = key * 32
            watched.open(seconds)
            watched.lost()
        watched.register(b"b" * 32)
        self.assertEqual(self.told(watched, watched.revoke()), 4)
        watched.clock.advance(10 + SKEW_CAP_SECONDS - NODE_WORD_SECONDS)
        self.assertEqual(self.successResultOf(watched.follow()), 3)
