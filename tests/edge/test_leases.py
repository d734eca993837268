"""The cache of sealed leases."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from iop.edge.leases import Lease, LeaseKey, Leases
from iop.edge.metrics import EdgeMetrics
from iop.errors import ControlPlaneUnavailable, LeaseRefused
from iop.process.metrics import new_registry
from iop.records import BINDING_FIELDS, Binding
from iop.testing.clock import FakeClock
from iop.wire import control_pb2, runtime_pb2
from tests.core.entries import changed
from tests.edge.rig import DEPLOYMENT, EDGE, LEASE_SECONDS, lease_for

KEY = LeaseKey(Binding("ada", "route-1", "slot-1", "openai", "openai", "node-1", 1, 1, 5), "token-1", b"k" * 32)
PROOF = b"p" * 32
ATTESTATION = runtime_pb2.NodeKeyAttestation(signature=b"signature")
LIMIT = 3


class LeasesTests(SynchronousTestCase):
    """Rule L10."""

    def setUp(self) -> None:
        self.clock = FakeClock()
        self.asked: list[tuple[control_pb2.AcquireLeaseRequest, Deferred[runtime_pb2.SealedLease]]] = []
        self.leases = Leases(self.acquire, self.clock, EdgeMetrics(new_registry()), DEPLOYMENT, EDGE, LIMIT)

    async def acquire(self, request: control_pb2.AcquireLeaseRequest) -> runtime_pb2.SealedLease:
        answer: Deferred[runtime_pb2.SealedLease] = Deferred()
        self.asked.append((request, answer))
        return await answer

    def is_cached(self, asked: Deferred[Lease | None]) -> bool:
        lease = self.successResultOf(asked)
        assert lease is not None
        return lease.cached

    def get(self, key: LeaseKey = KEY) -> Deferred[Lease | None]:
        return self.leases.get("request", key, PROOF, ATTESTATION)

    def answer(self, place: int = -1, lease: runtime_pb2.SealedLease | None = None) -> None:
        request, answer = self.asked[place]
        answer.callback(lease or lease_for(request, self.clock.wall_ms()).lease)

    def fill(self, key: LeaseKey = KEY) -> None:
        """Have a lease for ``key`` in the cache."""
        self.get(key)
        self.answer()

    def test_question(self) -> None:
        """C16: the question carries binding, token id, proof and the Node's attested key."""
        self.get()
        (request, _), *_ = self.asked
        self.assertEqual(request.request_id, "request")
        self.assertEqual([getattr(request.binding, name) for name in BINDING_FIELDS], list(_values(KEY.binding)))
        self.assertEqual((request.token_id, request.token_proof), ("token-1", PROOF))
        self.assertEqual((request.recipient_public_key, request.attestation), (KEY.public_key, ATTESTATION))

    def test_cached(self) -> None:
        """A lease is asked for once and used until shortly before it ends."""
        first = self.get()
        self.answer()
        self.assertFalse(self.is_cached(first))
        self.clock.advance(LEASE_SECONDS - 5.001)
        self.assertTrue(self.is_cached(self.get()))
        self.clock.advance(0.001)
        self.assertNoResult(self.get())
        self.assertEqual(len(self.asked), 2)

    def test_key_is_exact(self) -> None:
        """C43: another binding in any field, another token or another recipient key is another lease."""
        self.fill()
        for name in BINDING_FIELDS:
            self.assertNoResult(self.get(replace(KEY, binding=changed(KEY.binding, name))))
        self.assertNoResult(self.get(replace(KEY, token_id="token-2")))
        self.assertNoResult(self.get(replace(KEY, public_key=b"l" * 32)))
        self.assertEqual(len(self.asked), 1 + len(BINDING_FIELDS) + 2)

    def test_misses_share_one_question(self) -> None:
        """Requests that miss the same lease at the same time ask once and all get the answer."""
        waiting = [self.get() for _ in range(3)]
        other = self.get(replace(KEY, token_id="token-2"))
        self.assertEqual(len(self.asked), 2)
        waiting[1].cancel()
        self.failureResultOf(waiting[1], CancelledError)
        self.answer(0)
        self.assertEqual(self.successResultOf(waiting[0]), self.successResultOf(waiting[2]))
        self.assertNoResult(other)

    def test_all_give_up(self) -> None:
        """When everybody who asked gave up, the answer serves the next one."""
        only = self.get()
        only.cancel()
        self.failureResultOf(only, CancelledError)
        late = self.get()
        self.assertEqual(len(self.asked), 1)
        self.answer()
        self.successResultOf(late)

    def test_refusal_is_shared_and_not_kept(self) -> None:
        """A refusal reaches everybody who waits, and the next request asks again."""
        waiting = [self.get(), self.get()]
        self.asked[0][1].errback(LeaseRefused("token_refused", "no", again=False, generation=0))
        for one in waiting:
            self.failureResultOf(one, LeaseRefused)
        self.assertNoResult(self.get())
        self.assertEqual(len(self.asked), 2)

    def test_bounded(self) -> None:
        """As many leases as allowed, and one more: the one that was not used for longest goes."""
        keys = [replace(KEY, token_id=f"token-{number}") for number in range(LIMIT + 1)]
        for key in keys[:LIMIT]:
            self.fill(key)
        self.successResultOf(self.get(keys[0]))
        self.fill(keys[LIMIT])
        self.assertEqual(len(self.leases), LIMIT)
        for key in (keys[0], keys[2], keys[3]):
            self.successResultOf(self.get(key))
        self.assertNoResult(self.get(keys[1]))

    def test_lease_that_was_not_asked_for(self) -> None:
        """A lease whose statement says anything else than the question is not used."""
        request = control_pb2.AcquireLeaseRequest()
        for fault in ("binding", "token_id", "recipient_public_key", "deployment_id", "edge", "malformed"):
            waiting = self.get()
            request = self.asked[-1][0]
            sealed = lease_for(request, self.clock.wall_ms()).lease
            statement = runtime_pb2.LeaseStatement.FromString(sealed.statement)
            if fault == "binding":
                statement.binding.slot = "slot-2"
            elif fault == "recipient_public_key":
                statement.recipient_public_key = b"l" * 32
            elif fault != "malformed":
                setattr(statement, fault, "other")
            sealed.statement = b"\xff" if fault == "malformed" else statement.SerializeToString()
            self.answer(lease=sealed)
            self.failureResultOf(waiting, ControlPlaneUnavailable)
        self.assertEqual(len(self.leases), 0)

    def test_endless_lease(self) -> None:
        """C22: whatever a lease says, it is not kept beyond the cap of every lease."""
        waiting = self.get()
        request = self.asked[-1][0]
        sealed = lease_for(request, self.clock.wall_ms() + 10**9).lease
        self.answer(lease=sealed)
        self.successResultOf(waiting)
        self.clock.advance(294.9)
        self.successResultOf(self.get())
        self.clock.advance(0.1)
        self.assertNoResult(self.get())

    def test_forgets_what_a_projection_replaced(self) -> None:
        """P41: leases of older generations are dropped, and one that arrives late is not kept either."""
        self.fill()
        late = replace(KEY, token_id="token-2")
        self.get(late)
        self.fill(replace(KEY, binding=replace(KEY.binding, generation=6)))
        self.leases.forget_before(6)
        self.answer(1)
        self.assertEqual(len(self.leases), 1)
        self.assertNoResult(self.get())

    def test_forgets_a_node(self) -> None:
        """C22: leases of a Node that is gone are dropped, another Node's stay, and a late one is not kept."""
        elsewhere = replace(KEY, binding=replace(KEY.binding, node="node-2"))
        self.fill()
        self.fill(elsewhere)
        late = self.get(replace(KEY, token_id="token-2"))
        self.leases.forget_node("node-1")
        self.answer()
        self.successResultOf(late)
        self.successResultOf(self.get(elsewhere))
        self.assertEqual(len(self.leases), 1)

    def test_forgets_older_keys(self) -> None:
        """C22: leases to older keys of a Node are dropped, those to the newest stay, and so do other Nodes'."""
        newest = replace(KEY, public_key=b"n" * 32)
        elsewhere = replace(KEY, binding=replace(KEY.binding, node="node-2"))
        for key in (KEY, newest, elsewhere):
            self.fill(key)
        self.leases.forget_key("node-1", keep=newest.public_key)
        self.successResultOf(self.get(newest))
        self.successResultOf(self.get(elsewhere))
        self.assertNoResult(self.get())

    def test_flush(self) -> None:
        """L10: everything goes, also what is on its way, whose requests are served all the same."""
        self.fill()
        self.fill(replace(KEY, token_id="token-2"))
        late = self.get(replace(KEY, token_id="token-3"))
        self.assertEqual(self.leases.flush(), 2)
        self.answer()
        self.successResultOf(late)
        self.assertEqual((len(self.leases), self.leases.flush()), (0, 0))

    def test_discard(self) -> None:
        """A lease that its Node would not take is not used again."""
        self.fill()
        self.leases.discard(KEY)
        self.leases.discard(KEY)
        self.assertNoResult(self.get())


def _values(binding: Binding) -> list[str | int]:
    return [getattr(binding, name) for name in BINDING_FIELDS]
