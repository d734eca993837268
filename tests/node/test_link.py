"""The Node's registration at its Edge, key replacement, and what may come when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message
from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from iop.certificates import read_certificates
from iop.core.fences import bind
from iop.core.pool import Pool
from iop.core.profiles import PROFILES
from iop.crypto import possession
from iop.crypto.attestation import AttestationVerifier
from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.lease import LeaseStatement, seal_lease
from iop.crypto.node_keys import NodeKeys
from iop.edge.config import NodeTable, ProviderTable
from iop.edge.events import Events, Notes
from iop.edge.leases import LeaseKey
from iop.edge.legacy import NoLeases
from iop.edge.nodes import Nodes
from iop.edge.revocation import Revocation
from iop.edge.runs import IRunReceiver, Run, RunFailure, RunPlan
from iop.errors import (
    CannotOpen,
    HelloRefused,
    IdentityRefused,
    IopError,
    MalformedFrame,
    PeerDisconnected,
    Superseded,
    UnexpectedMessage,
)
from iop.interfaces import IPeerApplication
from iop.net.peer import PeerFactory
from iop.node.attest import Attester
from iop.node.leases import Leases
from iop.node.link import DRAIN_RUNS_SECONDS, PROVIDERS_LIMIT, EdgeConnection, EdgeLink
from iop.node.metrics import NodeMetrics
from iop.node.targets import Target
from iop.process.metrics import new_registry
from iop.records import Binding
from iop.secret import Secret
from iop.testing.clock import FakeClock
from iop.testing.peers import PeerPair, memory_identity
from iop.testing.pki import Pki
from iop.testing.recorded import RecordedPeer
from iop.testing.upstream import FakeUpstream
from iop.units import NODE_KEY_LIFE_SECONDS, NODE_WORD_SECONDS, RUN_WINDOW, Identity, Role
from iop.wire import runtime_pb2
from iop.wire.dialect import RUNTIME
from tests.core.entries import ADA_SMALL, projection
from tests.core.test_fences import pinned

EDGE = Identity("iop.test", Role.EDGE, "edge-1")
NODE = Identity("iop.test", Role.NODE, "node-1")
ISSUER = Issuer(Secret(bytes(32)))
CANARY = b"sk-canary-5c1f0e"
M = TypeVar("M", bound=Message)


def attest(key: object) -> runtime_pb2.NodeKeyAttestation:
    """What stands for a signature where nobody verifies it."""
    return runtime_pb2.NodeKeyAttestation(certificate_chain=[b"leaf"], statement=b"statement", signature=b"signature")


def provider(provider_id: str, target: str = "lab", profile: str = "openai") -> runtime_pb2.NodeProvider:
    return runtime_pb2.NodeProvider(provider_id=provider_id, target=target, profile=profile)


class LinkCase(SynchronousTestCase):
    """A Node's link, and an Edge that is played by hand."""

    def setUp(self) -> None:
        self.clock = FakeClock()
        self.settled = 0
        self.upstream = FakeUpstream()
        self.link = self.make_link()

    def make_link(self) -> EdgeLink:
        self.registry = new_registry()
        self.metrics = NodeMetrics(self.registry)
        self.keys = NodeKeys(self.clock)
        self.addCleanup(self.keys.dispose)
        self.leases = Leases(
            pinned=PinnedIssuers([ISSUER.public_key]),
            keys=self.keys,
            clock=self.clock,
            skew_ms=5000,
            deployment_id="deployment-1",
            trust_domain="iop.test",
            node="node-1",
        )
        return EdgeLink(
            edge=EDGE,
            keys=self.keys,
            attest=attest,
            grants=self.leases,
            targets={"lab": Target("lab", {"openai": PROFILES["openai"]}, self.upstream)},
            clock=self.clock,
            metrics=self.metrics,
            settled=self.count_settled,
        )

    def count_settled(self) -> None:
        self.settled += 1

    def connect(self, identity: Identity = EDGE) -> None:
        self.peer = RecordedPeer(identity)
        self.connection: EdgeConnection = self.link.application()
        self.connection.connected(self.peer)

    def asked(self, kind: type[M]) -> tuple[M, Deferred[Message]]:
        """The one request that waits for an answer."""
        ((message, answer),) = self.peer.asked
        self.peer.asked.clear()
        assert isinstance(message, kind), message
        return message, answer

    def accept_hello(self, *providers: runtime_pb2.NodeProvider) -> None:
        _, answer = self.asked(runtime_pb2.NodeHelloRequest)
        config = runtime_pb2.NodeConfig(providers=providers or [provider("lab-1")])
        answer.callback(runtime_pb2.NodeHelloResponse(accepted=True, edge_id="edge-1", config=config))

    def accept_key(self) -> bytes:
        """Take offer and proof of a key as an Edge does; answers the public key."""
        offer, answer = self.asked(runtime_pb2.NodeKeyOfferRequest)
        sealed, nonce = possession.challenge(offer.public_key)
        answer.callback(runtime_pb2.NodeKeyOfferResponse(accepted=True, sealed_challenge=sealed))
        proof, answer = self.asked(runtime_pb2.NodeKeyProofRequest)
        self.assertEqual(proof.public_key, offer.public_key)
        possession.check(
            nonce,
            proof.answer,
            edge="edge-1",
            node="node-1",
            public_key=offer.public_key,
            exporter=self.peer.exporter(possession.EXPORTER_LABEL, possession.EXPORTER_BYTES),
        )
        answer.callback(runtime_pb2.NodeKeyProofResponse(accepted=True))
        return offer.public_key

    def register(self) -> None:
        self.connect()
        self.accept_hello()
        self.accept_key()
        _, answer = self.asked(runtime_pb2.NodeReadyRequest)
        answer.callback(runtime_pb2.NodeReadyResponse(accepted=True))

    def closed_for(self, kind: type[IopError]) -> None:
        (reason,) = self.peer.closed
        self.assertIsInstance(reason, kind)
        self.assertEqual((self.link.ready, self.settled), (False, 0))


class RegistrationTests(LinkCase):
    def test_steps(self) -> None:
        """N3, N4, N6, W9: hello, key offer, proof, readiness; ready from the Edge's answer on, and not before."""
        self.connect()
        verifyObject(IPeerApplication, self.connection)
        hello, answer = self.asked(runtime_pb2.NodeHelloRequest)
        self.assertEqual(hello, runtime_pb2.NodeHelloRequest(node_id="node-1", protocol_version=1))
        config = runtime_pb2.NodeConfig(providers=[provider("lab-1"), provider("far", "elsewhere")])
        answer.callback(runtime_pb2.NodeHelloResponse(accepted=True, edge_id="edge-1", config=config))
        self.assertEqual(self.accept_key(), self.keys.current().public_key)
        ready, answer = self.asked(runtime_pb2.NodeReadyRequest)
        self.assertEqual(list(ready.served), ["lab-1"])
        self.assertEqual(
            list(ready.refused), [runtime_pb2.NodeProviderRefusal(provider_id="far", code="unknown_target")]
        )
        self.assertEqual((self.link.ready, self.settled), (False, 0))
        answer.callback(runtime_pb2.NodeReadyResponse(accepted=True))
        self.assertEqual((self.link.ready, self.settled), (True, 1))
        self.assertEqual(self.peer.closed, [])

    def test_another_identity(self) -> None:
        """P3: nothing is said to whoever is not the configured Edge."""
        for identity in (Identity("iop.test", Role.EDGE, "edge-2"), Identity("iop.test", Role.NODE, "edge-1")):
            self.assertRaises(IdentityRefused, self.connect, identity)
            self.assertEqual(self.peer.asked, [])

    def test_hello_of_another_edge(self) -> None:
        """W10, P3"""
        self.connect()
        _, answer = self.asked(runtime_pb2.NodeHelloRequest)
        answer.callback(runtime_pb2.NodeHelloResponse(accepted=True, edge_id="edge-2"))
        self.closed_for(IdentityRefused)

    def test_refusals(self) -> None:
        """Whatever the Edge refuses ends the connection with the Edge's code."""
        self.connect()
        _, answer = self.asked(runtime_pb2.NodeHelloRequest)
        answer.callback(runtime_pb2.NodeHelloResponse(code="already_connected"))
        self.closed_for(HelloRefused)

        self.connect()
        self.accept_hello()
        _, answer = self.asked(runtime_pb2.NodeKeyOfferRequest)
        answer.callback(runtime_pb2.NodeKeyOfferResponse(code="attestation_refused"))
        self.closed_for(HelloRefused)

        self.connect()
        self.accept_hello()
        offer, answer = self.asked(runtime_pb2.NodeKeyOfferRequest)
        sealed, _ = possession.challenge(offer.public_key)
        answer.callback(runtime_pb2.NodeKeyOfferResponse(accepted=True, sealed_challenge=sealed))
        _, answer = self.asked(runtime_pb2.NodeKeyProofRequest)
        answer.callback(runtime_pb2.NodeKeyProofResponse(code="possession_refused"))
        self.closed_for(HelloRefused)

        self.connect()
        self.accept_hello()
        self.accept_key()
        _, answer = self.asked(runtime_pb2.NodeReadyRequest)
        answer.callback(runtime_pb2.NodeReadyResponse(code="no"))
        self.closed_for(HelloRefused)

    def test_not_a_challenge(self) -> None:
        """P14: what is no challenge to this key gets no answer, whatever is in it."""
        self.connect()
        self.accept_hello()
        _, answer = self.asked(runtime_pb2.NodeKeyOfferRequest)
        answer.callback(runtime_pb2.NodeKeyOfferResponse(accepted=True, sealed_challenge=bytes(91)))
        self.closed_for(CannotOpen)
        self.assertEqual(self.peer.asked, [])

    def test_answers_of_another_kind(self) -> None:
        self.connect()
        _, answer = self.asked(runtime_pb2.NodeHelloRequest)
        answer.callback(runtime_pb2.NodeReadyResponse(accepted=True))
        self.closed_for(UnexpectedMessage)

    def test_no_answer(self) -> None:
        self.connect()
        _, answer = self.asked(runtime_pb2.NodeHelloRequest)
        answer.errback(PeerDisconnected("gone"))
        self.closed_for(PeerDisconnected)

    def test_catalogues_that_are_none(self) -> None:
        """Too many providers, or one id twice."""
        for providers in ([provider(str(n)) for n in range(PROVIDERS_LIMIT + 1)], [provider("a"), provider("a")]):
            self.connect()
            self.accept_hello(*providers)
            self.closed_for(MalformedFrame)
        self.connect()
        self.accept_hello(*(provider(str(n)) for n in range(PROVIDERS_LIMIT)))
        self.assertEqual(self.peer.closed, [])

    def test_no_run_before_ready(self) -> None:
        """N6: a run that comes before the Edge's answer breaks the wire."""
        self.connect()
        self.accept_hello()
        self.accept_key()
        self.assertRaises(UnexpectedMessage, self.connection.notified, runtime_pb2.RunRequest(run=1, request_id="a"))

    def test_an_edge_asks_nothing(self) -> None:
        self.register()
        self.failureResultOf(self.connection.asked(runtime_pb2.NodeHelloRequest()), UnexpectedMessage)

    def test_end(self) -> None:
        self.register()
        self.connection.lost(PeerDisconnected("gone"))
        self.assertFalse(self.link.ready)

    def test_another_connection(self) -> None:
        """N7, P41: before a Node says hello on a connection it has ended the one before, whatever that knows."""
        self.register()
        before = self.peer
        self.connect()
        (reason,) = before.closed
        self.assertIsInstance(reason, Superseded)
        self.asked(runtime_pb2.NodeHelloRequest)

    def test_end_of_a_stale_connection(self) -> None:
        """P15: the end of a connection that was never ready changes nothing for the one that is."""
        self.connect()
        stale = self.connection
        self.register()
        stale.lost(PeerDisconnected("gone"))
        self.assertTrue(self.link.ready)


class ReplacementTests(LinkCase):
    def test_every_600_seconds(self) -> None:
        """N5: a new key is made, offered and proved on the live connection; the old one is still found."""
        self.register()
        first = self.keys.current().public_key
        self.clock.advance(NODE_KEY_LIFE_SECONDS - 1)
        self.assertEqual(self.peer.asked, [])
        self.clock.advance(1)
        second = self.accept_key()
        self.assertNotEqual(first, second)
        self.assertIsNotNone(self.keys.find(first))
        self.assertTrue(self.link.ready)
        self.clock.advance(NODE_KEY_LIFE_SECONDS)
        self.assertNotIn(self.accept_key(), (first, second))
        self.assertEqual(self.peer.closed, [])

    def test_refused(self) -> None:
        """A key that the Edge does not take ends the connection: a new one starts over."""
        self.register()
        self.clock.advance(NODE_KEY_LIFE_SECONDS)
        _, answer = self.asked(runtime_pb2.NodeKeyOfferRequest)
        answer.callback(runtime_pb2.NodeKeyOfferResponse(code="attestation_refused"))
        (reason,) = self.peer.closed
        self.assertIsInstance(reason, HelloRefused)

    def test_another_certificate(self) -> None:
        """N5: the Edge gets the current key attested anew at once, and the next one when its time has come."""
        self.link.renew(attest)
        self.register()
        first = self.keys.current().public_key
        self.link.renew(lambda key: runtime_pb2.NodeKeyAttestation(statement=b"another"))
        self.clock.advance(0)
        self.assertEqual(self.peer.asked[0][0], self.offer(first, b"another"))
        # a proof that is under way is left alone
        self.link.renew(attest)
        self.clock.advance(0)
        self.assertEqual(self.accept_key(), first)
        self.clock.advance(NODE_KEY_LIFE_SECONDS)
        self.assertNotEqual(self.accept_key(), first)
        self.assertEqual(self.peer.closed, [])

    def offer(self, public_key: bytes, statement: bytes) -> runtime_pb2.NodeKeyOfferRequest:
        attestation = runtime_pb2.NodeKeyAttestation(statement=statement)
        return runtime_pb2.NodeKeyOfferRequest(public_key=public_key, attestation=attestation)

    def test_a_fault_of_our_own(self) -> None:
        """N5: a key that could not be replaced ends the connection, whatever it was: it could never be used again."""
        self.register()
        self.link.attest = lambda key: attest(1 / 0)
        self.clock.advance(NODE_KEY_LIFE_SECONDS)
        (reason,) = self.peer.closed
        self.assertEqual(reason.code, "internal")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_not_after_the_end(self) -> None:
        """P48: a connection that ended leaves no timer."""
        self.register()
        self.connection.lost(PeerDisconnected("gone"))
        self.keys.dispose()
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_a_reconnect_offers_the_key_of_its_time(self) -> None:
        self.register()
        first = self.keys.current().public_key
        self.connection.lost(PeerDisconnected("gone"))
        self.clock.advance(NODE_KEY_LIFE_SECONDS)
        self.connect()
        self.accept_hello()
        self.assertNotEqual(self.accept_key(), first)


class DrainTests(LinkCase):
    def test_not_ready(self) -> None:
        self.successResultOf(self.link.drain())

    def test_without_runs(self) -> None:
        self.register()
        self.successResultOf(self.link.drain())
        self.assertTrue(self.peer.drained)

    def test_new_runs_are_refused(self) -> None:
        self.register()
        self.link.drain()
        self.connection.notified(runtime_pb2.RunRequest(run=1, request_id="req-1", window=1))
        (end,) = self.peer.take()
        assert isinstance(end, runtime_pb2.RunFailed)
        self.assertEqual((end.code, end.started), ("draining", False))


class WithAnEdgeTests(LinkCase):
    """The same link against the real registry of an Edge, with a certificate, over a connection in memory."""

    def setUp(self) -> None:
        super().setUp()
        self.pki = Pki(Path(self.mktemp()))
        self.link.attest = Attester.load(self.pki.issue(Role.NODE, "node-1"), EDGE, "node-1")
        offers = ProviderTable(
            id="lab-1", category="api", profile="openai", target="lab", models=("m",), capacity=1, labels={}
        )
        table = NodeTable(name="node-1", providers=(offers,))
        self.revocation = Revocation(NoLeases(), self.clock, NODE_WORD_SECONDS)
        self.nodes = Nodes(
            "edge-1",
            "iop.test",
            {"node-1": table},
            Pool(self.clock, 1),
            self.clock,
            Events(Notes(), self.clock),
            lost=lambda node: None,
            proved=self.revocation.proved,
        )
        self.dial()
        self.pump()

    def dial(self) -> None:
        """Connect the Node to its Edge."""
        self.pair = PeerPair(
            self.factory(initiator=True, application=self.link.application),
            self.factory(initiator=False, application=self.nodes.application),
            dialler=NODE,
            listener=EDGE,
        )

    def factory(self, *, initiator: bool, application: Callable[[], IPeerApplication]) -> PeerFactory:
        return PeerFactory(
            RUNTIME, initiator=initiator, application=application, clock=self.clock, identify=memory_identity
        )

    def pump(self) -> None:
        self.pair.pump()
        self.clock.advance(0)
        self.pair.pump()

    def plan(self) -> RunPlan:
        """A run with a lease as the Control Plane makes it, for the key that the Edge knows."""
        edge = self.nodes.ready("node-1")
        assert edge is not None
        now = self.clock.wall_ms()
        binding = Binding("p1", "r1", "s1", "openai", "lab", "node-1", 1, 1, 1)
        until = AttestationVerifier(read_certificates(self.pki.trust), "iop.test").verify(
            edge.key.attestation, edge="edge-1", node="node-1", public_key=edge.key.public_key, now_ms=now
        )
        statement = LeaseStatement(
            "lease-1", "deployment-1", "iop.test", "edge-1", binding, "t1", now, now + 60_000, edge.key.public_key
        )
        self.assertGreater(until, statement.expires_ms)
        lease = seal_lease(ISSUER, statement, Secret(CANARY))
        return RunPlan("req-1", lease, binding, "t1", "lab-1", "POST", "/chat/completions")

    def open(self, body: bytes) -> Receiver:
        edge = self.nodes.ready("node-1")
        assert edge is not None
        receiver = Receiver()
        receiver.run = edge.runs.open(self.plan(), body, receiver)
        self.pump()
        return receiver

    def test_becomes_ready(self) -> None:
        """N3, N4, N6: the real registry takes the Node, its key and its providers."""
        self.assertEqual((self.nodes.ready_names, self.link.ready, self.settled), (["node-1"], True, 1))

    def test_exchange(self) -> None:
        """R1-R4: bodies much larger than a window go both ways, credit included, and the credential goes upstream."""
        body = bytes(range(256)) * (3 * RUN_WINDOW // 256)
        receiver = self.open(body)
        (call,) = self.upstream.calls
        self.assertIn(("authorization", "Bearer " + CANARY.decode()), call.headers)
        self.assertEqual(call.written, body)
        call.receiver.head(200, [("content-type", "text/plain")])
        for start in range(0, len(body), 10_000):
            self.assertFalse(call.paused)
            call.receiver.data(body[start : start + 10_000])
            self.pump()
        call.receiver.finished()
        self.pump()
        self.assertEqual((receiver.body == body, receiver.ends), (True, ["finished"]))

    def test_slow_caller(self) -> None:
        """R4: who does not consume stops the upstream after one window."""
        receiver = self.open(b"")
        receiver.consumes = False
        (call,) = self.upstream.calls
        call.receiver.head(200, [])
        sent = 0
        while not call.paused:
            call.receiver.data(bytes(10_000))
            self.pump()
            sent += 10_000
        self.assertLess(sent, RUN_WINDOW + 10_000)
        self.assertEqual(len(receiver.body), RUN_WINDOW)
        assert receiver.run is not None
        receiver.run.consumed(RUN_WINDOW)
        self.pump()
        self.assertFalse(call.paused)

    def test_cancel(self) -> None:
        """R5"""
        receiver = self.open(b"")
        assert receiver.run is not None
        receiver.run.cancel()
        self.pump()
        self.assertTrue(self.upstream.calls[0].cancelled)
        self.assertEqual(receiver.ends, ["cancelled"])

    def test_replaced_key(self) -> None:
        """N5: after the replacement leases are for the new key; one for the old key still opens."""
        old = self.plan()
        for _ in range(int(NODE_KEY_LIFE_SECONDS)):
            self.clock.advance(1)
            self.pair.pump()
        edge = self.nodes.ready("node-1")
        assert edge is not None
        self.assertEqual(edge.key.public_key, self.keys.current().public_key)
        self.open(b"")
        self.assertEqual(len(self.upstream.calls), 1)
        self.assertIsNotNone(self.keys.find(_recipient(old)))

    def test_replaced_pins(self) -> None:
        """P4: an issuer that is pinned no more signs nothing for a connection that was up before."""
        self.leases.pinned = PinnedIssuers([Issuer(Secret(bytes([1]) * 32)).public_key])
        receiver = self.open(b"")
        self.assertEqual((receiver.ends, self.upstream.calls), (["lease_refused"], []))

    def test_connection_lost(self) -> None:
        """W11: the upstream is closed, the caller hears of the end."""
        receiver = self.open(b"")
        self.pair.cut()
        self.assertTrue(self.upstream.calls[0].cancelled)
        self.assertEqual((receiver.ends, self.link.ready, self.nodes.ready_names), (["node_lost"], False, []))

    def test_partition(self) -> None:
        """E15, N7, P41: a run that its Node could start, not knowing that its Edge lost it, counts until it cannot."""
        edge = self.nodes.ready("node-1")
        assert edge is not None
        key = LeaseKey(bind(ADA_SMALL, "node-1", 7), "t1", edge.key.public_key)
        receiver = self.open(b"")
        assert receiver.run is not None
        over = self.revocation.watch(receiver.run, pinned(), key, self.clock.wall_ms() + 60_000)
        self.pair.acceptor.connectionLost(connectionDone)
        over(True)
        self.assertEqual(receiver.ends, ["node_lost"])
        (call,) = self.upstream.calls
        told = self.revocation.applied(projection(8, routes=(replace(ADA_SMALL, credential_revision=2),)))
        self.clock.advance(NODE_WORD_SECONDS)
        self.assertEqual((self.successResultOf(told), call.cancelled), (1, False))
        told = self.revocation.applied(projection(9, routes=()))
        self.assertEqual(self.successResultOf(told), 1)
        self.dial()
        # nothing has reached the Edge yet
        self.assertTrue(call.cancelled)
        self.pump()
        self.assertEqual(self.successResultOf(self.revocation.applied(projection(10, routes=()))), 0)

    def test_drain(self) -> None:
        """What runs may go on for 8 s; then the Edge gets the word, and the connection ends."""
        receiver = self.open(b"")
        drained = self.link.drain()
        self.clock.advance(DRAIN_RUNS_SECONDS - 0.1)
        self.assertNoResult(drained)
        self.clock.advance(0.1)
        self.successResultOf(drained)
        self.pump()
        self.assertEqual((receiver.ends, self.nodes.ready_names), (["draining"], []))


@implementer(IRunReceiver)
class Receiver:
    """Takes a response, and consumes it as it comes while it ``consumes``."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.consumes = True
        self.body = b""
        self.ends: list[str] = []

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Taken."""

    def data(self, data: bytes) -> None:
        self.body += data
        if self.consumes and self.run is not None:
            self.run.consumed(len(data))

    def finished(self) -> None:
        self.ends.append("finished")

    def failed(self, failure: RunFailure) -> None:
        self.ends.append(failure.code)


def _recipient(plan: RunPlan) -> bytes:
    assert plan.lease is not None
    return runtime_pb2.LeaseStatement.FromString(plan.lease.statement).recipient_public_key
