"""Registration of Nodes."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import Message
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from iop.core.offers import Want
from iop.core.pool import Place
from iop.core.selectors import parse
from iop.crypto.attestation import CERTIFICATE_LIMIT
from iop.edge.nodes import NodeConnection
from iop.errors import NoNode, UnexpectedMessage
from iop.interfaces import IPeerApplication
from iop.net import peer
from iop.testing.peers import PeerPair
from iop.units import BODY_PIECE
from iop.wire import runtime_pb2
from tests.edge.rig import EDGE, FakeNode, Rig, node_table, provider

#: Points of low order on Curve25519, little-endian: zero, one, and the order-8 ones.
LOW_ORDER = (
    bytes(32),
    bytes([1]) + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
)
WANT = Want("ada", "openai", "openai", "gpt-small", parse(""))


class RegistrationTests(SynchronousTestCase):
    """From the hello to dispatch-ready."""

    def setUp(self) -> None:
        spare = provider("spare", target="lab", category="local_inference", models=("llama",), capacity=3)
        self.rig = Rig(Path(self.mktemp()), [node_table("node-1", provider(), spare), node_table("node-2")])

        self.connections: list[NodeConnection] = []
        make = self.rig.nodes.application

        def application() -> NodeConnection:
            self.connections.append(make())
            return self.connections[-1]

        self.patch(self.rig.nodes, "application", application)

    def by_hand(self, name: str = "node-1", certificate: str | None = None) -> tuple[FakeNode, PeerPair]:
        """A connected Node that says nothing on its own."""
        node = FakeNode(self.rig.clock, name)
        node.registers = False
        return node, self.rig.connect(node, certificate)

    def ask(self, node: FakeNode, message: object) -> object:
        """Ask the Edge, and the answer if there is one."""
        node.answers.clear()
        assert isinstance(
            message,
            runtime_pb2.NodeHelloRequest
            | runtime_pb2.NodeKeyOfferRequest
            | runtime_pb2.NodeKeyProofRequest
            | runtime_pb2.NodeReadyRequest,
        )
        node.ask(message)
        self.rig.pump()
        return node.answers[0] if node.answers else None

    def challenge(self, node: FakeNode) -> bytes:
        """Offer the Node's key."""
        offered = self.ask(node, node.offer())
        assert isinstance(offered, runtime_pb2.NodeKeyOfferResponse)
        self.assertTrue(offered.accepted)
        return offered.sealed_challenge

    def prove(self, node: FakeNode) -> None:
        """Offer and prove the Node's key."""
        self.assertEqual(
            self.ask(node, node.proof(self.challenge(node))), runtime_pb2.NodeKeyProofResponse(accepted=True)
        )

    def messages(self, node: FakeNode, sealed: bytes) -> dict[str, Message]:
        """One of each kind; the proof is the right one if there is a challenge."""
        return {
            "hello": node.hello(),
            "offer": node.offer(),
            "proof": node.proof(sealed) if sealed else runtime_pb2.NodeKeyProofRequest(),
            "ready": runtime_pb2.NodeReadyRequest(served=["openai-main", "spare"]),
            "other": runtime_pb2.Ping(),
        }

    def assertClosed(self, node: FakeNode) -> None:
        self.assertIsNotNone(node.lost_for)

    def test_registers(self) -> None:
        """N2: the Node gets its part of the catalogue, proves its key, and is ready."""
        verifyObject(IPeerApplication, self.rig.nodes.application())
        node = self.rig.node("node-1")
        hello, proved, ready = node.answers
        self.assertEqual(
            hello,
            runtime_pb2.NodeHelloResponse(
                accepted=True,
                edge_id=EDGE,
                config=runtime_pb2.NodeConfig(
                    providers=[
                        runtime_pb2.NodeProvider(
                            provider_id="openai-main",
                            category=runtime_pb2.PROVIDER_CATEGORY_API,
                            profile="openai",
                            target="openai",
                            models=["*"],
                            capacity=2,
                            long_context_capacity=2,
                        ),
                        runtime_pb2.NodeProvider(
                            provider_id="spare",
                            category=runtime_pb2.PROVIDER_CATEGORY_LOCAL_INFERENCE,
                            profile="openai",
                            target="lab",
                            models=["llama"],
                            capacity=3,
                            long_context_capacity=3,
                        ),
                    ]
                ),
            ),
        )
        self.assertEqual(proved, runtime_pb2.NodeKeyProofResponse(accepted=True))
        self.assertEqual(ready, runtime_pb2.NodeReadyResponse(accepted=True))
        connection = self.rig.nodes.ready("node-1")
        assert connection is not None
        self.assertEqual(connection.key.public_key, node.keys.current().public_key)
        self.assertEqual(self.rig.nodes.ready_names, ["node-1"])

    def test_told_before_it_gets_a_run(self) -> None:
        """C28: dispatch-ready from the answer on; a request that waits is placed after the answer was written."""
        first, second = self.rig.node("node-2"), FakeNode(self.rig.clock, "node-1")
        for _ in range(2):
            self.successResultOf(self.rig.pool.admit(WANT, 30.0))
        seen: list[int] = []
        waiting: Deferred[Place] = self.rig.pool.admit(WANT, 30.0)
        pair: list[PeerPair] = []

        def granted(place: Place) -> None:
            seen.append(len(pair[0].acceptor_transport.outgoing))

        waiting.addCallback(granted)
        second.registers = False
        pair.append(self.rig.connect(second))
        self.ask(second, second.hello())
        self.prove(second)
        pair[0].acceptor_transport.held = True
        second.ask(runtime_pb2.NodeReadyRequest(served=["openai-main", "spare"]))
        self.rig.pump()
        self.assertEqual(len(seen), 1)
        self.assertGreater(seen[0], 0)
        self.assertIsNone(first.lost_for)

    def test_its_answer_is_the_last_word(self) -> None:
        """P15: a connection that ends with the answer to readiness leaves no offers that would lead nowhere."""
        for end in ("drained", "not reading"):
            node, pair = self.by_hand()
            self.ask(node, node.hello())
            self.prove(node)
            node.ask(runtime_pb2.NodeReadyRequest(served=["openai-main", "spare"]))
            pair.pump()
            if end == "drained":
                self.rig.nodes.drain()
            else:
                # one piece fills the transport, and the answer is one message too many
                pair.acceptor_transport.held = True
                self.connections[-1].peer.notify(runtime_pb2.RunBody(data=bytes(2 * BODY_PIECE)))
                self.patch(peer, "UNREAD_LIMIT", 0)
            self.rig.pump()
            self.assertIsNone(self.rig.nodes.ready("node-1"))
            self.failureResultOf(self.rig.pool.admit(WANT, 1.0), NoNode)

    def test_serves_only_what_it_says(self) -> None:
        """N6: a provider that the Node refuses gets no request."""
        node, _ = self.by_hand()
        self.ask(node, node.hello())
        self.prove(node)
        refused = [runtime_pb2.NodeProviderRefusal(provider_id="openai-main", code="unknown_target")]
        self.ask(node, runtime_pb2.NodeReadyRequest(served=["spare"], refused=refused))
        self.failureResultOf(self.rig.pool.admit(WANT, 30.0), NoNode)
        lab = Want("ada", "openai", "lab", "llama", parse(""))
        self.assertEqual(self.successResultOf(self.rig.pool.admit(lab, 30.0)).offer.provider_id, "spare")

    def test_must_speak_about_each_provider_once(self) -> None:
        """A ready that leaves out, repeats or invents a provider closes the connection."""
        for served in ([], ["spare"], ["openai-main", "spare", "spare"], ["openai-main", "spare", "other"]):
            node, _ = self.by_hand()
            self.ask(node, node.hello())
            self.prove(node)
            self.assertIsNone(self.ask(node, runtime_pb2.NodeReadyRequest(served=served)))
            self.assertClosed(node)
            self.assertEqual(self.rig.nodes.ready_names, [])

    def test_other_name(self) -> None:
        """P3: a hello that names another Node than the certificate is refused and disconnected."""
        node, _ = self.by_hand("node-1", certificate="node-2")
        self.assertIsNone(self.ask(node, node.hello()))
        self.assertEqual(node.refusal, "identity_refused")
        self.assertClosed(node)

    def test_refused_hellos(self) -> None:
        """A Node that is not in the catalogue, and one that speaks another version."""
        for name, version, code in (("node-9", 1, "not_configured"), ("node-1", 2, "unsupported_version")):
            node, _ = self.by_hand(name)
            hello = runtime_pb2.NodeHelloRequest(node_id=name, protocol_version=version)
            self.assertIsNone(self.ask(node, hello))
            self.assertEqual(node.refusal, code)
            self.assertClosed(node)

    def test_second_connection(self) -> None:
        """P15, N1: a second connection of a live Node is refused; the live one is untouched, also by its end."""
        live = self.rig.node("node-1")
        second, _ = self.by_hand("node-1")
        self.assertIsNone(self.ask(second, second.hello()))
        self.assertEqual(second.refusal, "already_connected")
        self.assertClosed(second)
        self.assertIsNone(live.lost_for)
        self.assertEqual(self.rig.nodes.ready_names, ["node-1"])
        self.successResultOf(self.rig.pool.admit(WANT, 30.0))

    def test_second_connection_while_the_first_registers(self) -> None:
        """P15, N1: the name belongs to the first accepted hello, before any key was proved."""
        first, _ = self.by_hand()
        self.ask(first, first.hello())
        second, _ = self.by_hand()
        self.ask(second, second.hello())
        self.assertEqual(second.refusal, "already_connected")
        self.prove(first)

    def test_leaves_and_returns(self) -> None:
        """C33: a Node that disconnects is out of the pool at once, and may return."""
        node, pair = self.by_hand()
        self.ask(node, node.hello())
        self.prove(node)
        self.ask(node, runtime_pb2.NodeReadyRequest(served=["openai-main", "spare"]))
        pair.cut()
        self.failureResultOf(self.rig.pool.admit(WANT, 30.0), NoNode)
        self.assertEqual(self.rig.nodes.ready_names, [])
        self.rig.node("node-1")
        self.assertEqual(self.rig.nodes.ready_names, ["node-1"])

    def test_every_message_in_every_phase(self) -> None:
        """P14: nothing is ready without hello and proof, in this order; anything out of order ends the connection."""
        served = ["openai-main", "spare"]
        allowed = {
            "hello": {"hello"},
            "key": {"offer", "proof"},
            "proved": {"offer", "proof", "ready"},
            "ready": {"offer", "proof"},
        }
        for phase, taken in allowed.items():
            for kind in ("hello", "offer", "proof", "ready", "other"):
                self.setUp()
                node, _ = self.by_hand()
                connection = self.connections[-1]
                sealed = b""
                if phase != "hello":
                    self.ask(node, node.hello())
                if phase in ("proved", "ready"):
                    self.prove(node)
                if phase == "ready":
                    self.ask(node, runtime_pb2.NodeReadyRequest(served=served))
                if phase != "hello" and kind == "proof":
                    sealed = self.challenge(node)
                message = self.messages(node, sealed)[kind]
                if kind in taken:
                    connection.asked(message)
                else:
                    self.assertRaises(UnexpectedMessage, connection.asked, message)
                self.assertEqual(connection.is_ready, phase == "ready", (phase, kind))

    def test_proof_without_challenge(self) -> None:
        """P14: there is nothing to prove before a key was offered, nor about another key than the offered one."""
        for offered in (False, True):
            node, _ = self.by_hand()
            self.ask(node, node.hello())
            if offered:
                self.challenge(node)
            self.assertIsNone(self.ask(node, runtime_pb2.NodeKeyProofRequest(public_key=b"k" * 32, answer=bytes(32))))
            self.assertClosed(node)

    def test_wrong_answer(self) -> None:
        """P14: a wrong answer to the challenge proves nothing, and the challenge is spent."""
        node, _ = self.by_hand()
        self.ask(node, node.hello())
        right = node.proof(self.challenge(node))
        wrong = runtime_pb2.NodeKeyProofRequest(public_key=right.public_key, answer=bytes(32))
        answer = self.ask(node, wrong)
        assert isinstance(answer, runtime_pb2.NodeKeyProofResponse)
        self.assertEqual((answer.accepted, answer.code), (False, "possession_refused"))
        self.assertIsNone(self.ask(node, right))
        self.assertClosed(node)

    def test_answer_of_another_connection(self) -> None:
        """P14: every challenge is fresh: an earlier answer does not fit the next one."""
        node, _ = self.by_hand()
        self.ask(node, node.hello())
        earlier = node.proof(self.challenge(node))
        self.challenge(node)
        answer = self.ask(node, earlier)
        assert isinstance(answer, runtime_pb2.NodeKeyProofResponse)
        self.assertFalse(answer.accepted)

    def test_keys_nobody_may_seal_to(self) -> None:
        """P14: all-zero and low-order keys, and keys of another length, are refused without a challenge."""
        node, _ = self.by_hand()
        self.ask(node, node.hello())
        for key in (*LOW_ORDER, b"", bytes(31), bytes(33)):
            answer = self.ask(node, node.offer(key))
            assert isinstance(answer, runtime_pb2.NodeKeyOfferResponse)
            self.assertEqual((answer.accepted, answer.code), (False, "attestation_refused"), key.hex())
            self.assertEqual(answer.sealed_challenge, b"")
        self.prove(node)

    def test_attestation_shape(self) -> None:
        """The attestation must be there and speak of this key, Node and Edge; the rest is the Control Plane's."""
        node, _ = self.by_hand()
        self.ask(node, node.hello())
        statement = runtime_pb2.NodeKeyStatement.FromString(node.offer().attestation.statement)
        for name, value in (("edge", "edge-2"), ("node", "node-2"), ("trust_domain", "x"), ("public_key", bytes(32))):
            other = runtime_pb2.NodeKeyStatement.FromString(statement.SerializeToString())
            setattr(other, name, value)
            offer = node.offer()
            offer.attestation.statement = other.SerializeToString()
            self.assertRefused(node, offer)
        for missing in ("certificate_chain", "statement", "signature"):
            offer = node.offer()
            offer.attestation.ClearField(missing)
            self.assertRefused(node, offer)
        offer = node.offer()
        offer.attestation.certificate_chain.extend([b"issuer"] * 8)
        self.assertRefused(node, offer)
        # what the Control Plane would refuse by its length must not make a lease request too large to be sent
        offer = node.offer()
        offer.attestation.certificate_chain[:] = [bytes(CERTIFICATE_LIMIT + 1)]
        self.assertRefused(node, offer)
        offer = node.offer()
        offer.attestation.statement += b"\x78\x01"
        self.assertRefused(node, offer)

    def assertRefused(self, node: FakeNode, offer: runtime_pb2.NodeKeyOfferRequest) -> None:
        answer = self.ask(node, offer)
        assert isinstance(answer, runtime_pb2.NodeKeyOfferResponse)
        self.assertEqual((answer.accepted, answer.code), (False, "attestation_refused"))

    def test_registration_deadline(self) -> None:
        """A Node that does not finish its registration does not hold its name for ever."""
        node, _ = self.by_hand()
        self.ask(node, node.hello())
        self.rig.advance(9.9)
        self.assertIsNone(node.lost_for)
        self.rig.advance(0.2)
        self.assertClosed(node)
        self.rig.node("node-1")
        self.assertEqual(self.rig.nodes.ready_names, ["node-1"])

    def test_replacement_key(self) -> None:
        """N5: a replacement is offered and proved on the live connection; until then the old key is in force."""
        node = self.rig.node("node-1")
        old = node.keys.current().public_key
        self.rig.advance(600.0)
        connection = self.rig.nodes.ready("node-1")
        assert connection is not None
        new = node.keys.current().public_key
        self.assertNotEqual(old, new)
        sealed = self.challenge(node)
        self.assertEqual(connection.key.public_key, old)
        self.ask(node, node.proof(sealed))
        self.assertEqual(connection.key.public_key, new)
        self.assertEqual(self.rig.nodes.ready_names, ["node-1"])

    def test_runs_before_ready(self) -> None:
        """R7: a message about a run that was never opened closes the connection."""
        node = self.rig.node("node-1")
        node.peer.notify(runtime_pb2.RunHead(run=1, status=200))
        self.rig.pump()
        self.assertClosed(node)
        self.assertEqual(self.rig.nodes.ready_names, [])
