"""What an Edge tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from google.protobuf.message import Message
from twisted.trial.unittest import SynchronousTestCase

from iop.edge import status
from iop.units import PROTOCOL_VERSION
from iop.wire import control_pb2, runtime_pb2
from tests.edge.rig import ADA, ADA_TOKEN, EDGE, LONG_BYTES, FakeNode, Rig, node_table, provider, text_of

AVAILABLE = (runtime_pb2.PROVIDER_STATUS_AVAILABLE, runtime_pb2.PROVIDER_HEALTH_HEALTHY)
UNREACHABLE = (runtime_pb2.PROVIDER_STATUS_UNAVAILABLE, runtime_pb2.PROVIDER_HEALTH_UNREACHABLE)
OFFLINE = (runtime_pb2.PROVIDER_STATUS_UNAVAILABLE, runtime_pb2.PROVIDER_HEALTH_OFFLINE)


class StatusTests(SynchronousTestCase):
    def setUp(self) -> None:
        local = {"category": "local_inference", "models": ("llama",), "capacity": 3, "long_context_capacity": 0}
        lab = provider("lab", target="lab", **local)
        self.rig = Rig(Path(self.mktemp()), [node_table("node-2"), node_table("node-1", provider(capacity=1), lab)])
        self.rig.dial()

    def page(self, after: str = "") -> control_pb2.EdgeStatusResponse:
        """Ask as the Control Plane does."""
        answers: list[Message] = []
        self.rig.control_plane.peer.request(control_pb2.EdgeStatusRequest(after=after), 5.0).addCallback(answers.append)
        self.rig.pump()
        (answer,) = answers
        assert isinstance(answer, control_pb2.EdgeStatusResponse)
        return answer

    def node(self, name: str = "node-1") -> control_pb2.EdgeNodeSnapshot:
        (found,) = (node for node in self.page().nodes if node.node_id == name)
        return found

    def assert_offline(self, node: control_pb2.EdgeNodeSnapshot) -> None:
        """It is listed with all it has, and with zeros."""
        self.assertFalse(node.connected)
        for told, configured in zip(node.provider_snapshots, node.config.providers, strict=True):
            self.assertEqual((told.provider_id, told.category), (configured.provider_id, configured.category))
            self.assertEqual((told.status, told.health), OFFLINE)
            self.assertEqual((told.capacity, told.in_flight, told.queued), (0, 0, 0))
            self.assertEqual((told.long_context_capacity, told.long_in_flight, told.long_queued), (0, 0, 0))

    def test_configured_nodes_are_all_there(self) -> None:
        """S2, C2, C27, C28, C32: by name, also those that never connected; its own id and generation."""
        page = self.page()
        self.assertEqual((page.edge_id, page.generation, page.more), (EDGE, 5, False))
        self.assertEqual([node.node_id for node in page.nodes], ["node-1", "node-2"])
        for node in page.nodes:
            self.assert_offline(node)

    def test_config_is_what_is_sent_down(self) -> None:
        """S2, C29: the summary says what the Node is told."""
        node = FakeNode(self.rig.clock, "node-1")
        node.registers = False
        self.rig.connect(node)
        node.ask(runtime_pb2.NodeHelloRequest(node_id="node-1", protocol_version=PROTOCOL_VERSION))
        self.rig.pump()
        (hello,) = node.answers
        assert isinstance(hello, runtime_pb2.NodeHelloResponse)
        sent = hello.config.providers
        told = self.node().config.providers
        for field in ("provider_id", "category", "profile", "target", "capacity", "long_context_capacity"):
            self.assertEqual([getattr(each, field) for each in told], [getattr(each, field) for each in sent], field)
        self.assertEqual([each.models for each in told], [len(each.models) for each in sent])

    def test_life_of_a_node(self) -> None:
        """S2, S3, C28, C33: registering is not connected; ready, it has all its capacity; gone, zeros; back, all."""
        registering = FakeNode(self.rig.clock, "node-1")
        registering.registers = False
        pair = self.rig.connect(registering)
        self.assert_offline(self.node())
        pair.cut()
        for _ in range(2):
            ready = FakeNode(self.rig.clock, "node-1")
            pair = self.rig.connect(ready)
            node = self.node()
            self.assertTrue(node.connected)
            self.assertEqual([(each.status, each.health) for each in node.provider_snapshots], [AVAILABLE, AVAILABLE])
            self.assertEqual([each.capacity for each in node.provider_snapshots], [1, 3])
            self.assertEqual([each.long_context_capacity for each in node.provider_snapshots], [1, 0])
            pair.cut()
            self.rig.pump()
            self.assert_offline(self.node())
        self.assert_offline(self.node("node-2"))

    def test_pressure(self) -> None:
        """S3, C31: in flight is what holds a place, queued what waits for one that it could serve."""
        node = self.rig.node("node-1")
        for _ in range(3):
            self.rig.request()
        self.rig.pump()
        first, lab = self.node().provider_snapshots
        self.assertEqual((first.in_flight, first.queued), (1, 2))
        self.assertEqual((lab.in_flight, lab.queued), (0, 0))
        node.head(200)
        node.body(b"", last=True)
        self.rig.pump()
        first, _ = self.node().provider_snapshots
        self.assertEqual((first.in_flight, first.queued), (1, 1))

    def test_pressure_of_long_requests(self) -> None:
        """S3, S16: requests of the long-context class count in all numbers."""
        self.rig.node("node-1")
        long = b'{"model": "small", "pad": "' + b"x" * LONG_BYTES + b'"}'
        for body in (long, long, b'{"model": "small"}'):
            self.rig.request(body)
        first, _ = self.node().provider_snapshots
        self.assertEqual((first.in_flight, first.queued), (1, 2))
        self.assertEqual((first.long_in_flight, first.long_queued), (1, 1))

    def test_given_nothing(self) -> None:
        """S3, S11, C28: a provider that is disabled, or whose Node is held, has no capacity; what it has is counted."""
        self.rig.node("node-1")
        self.rig.request()
        pool = self.rig.pool
        main = ("node-1", "openai-main")
        bars: list[tuple[Callable[[], None], Callable[[], None], bool]] = [
            (partial(pool.disable, *main), partial(pool.enable, *main), True),
            (partial(pool.hold, "node-1"), partial(pool.resume, "node-1"), False),
        ]
        for bar, unbar, connected in bars:
            bar()
            told = self.node()
            first = told.provider_snapshots[0]
            self.assertEqual(told.connected, connected)
            self.assertEqual((first.status, first.health), (runtime_pb2.PROVIDER_STATUS_UNAVAILABLE, AVAILABLE[1]))
            self.assertEqual((first.capacity, first.long_context_capacity, first.in_flight), (0, 0, 1))
            unbar()
            first = self.node().provider_snapshots[0]
            self.assertEqual((self.node().connected, first.status, first.capacity), (True, AVAILABLE[0], 1))

    def test_unreachable(self) -> None:
        """S3, S17: a provider that cannot be reached says so, and has no capacity until it answers."""
        node = self.rig.node("node-1")
        for _ in range(3):
            self.rig.request()
            node.fail("upstream_unreachable", started=False)
            self.rig.pump()
        first, lab = self.node().provider_snapshots
        self.assertEqual((first.status, first.health), UNREACHABLE)
        self.assertEqual((first.capacity, first.long_context_capacity, first.in_flight), (0, 0, 0))
        self.assertEqual((lab.status, lab.health), AVAILABLE)
        self.rig.advance(10.0)
        self.rig.request()
        self.assertEqual(self.node().provider_snapshots[0].in_flight, 1)
        node.head(500)
        self.rig.pump()
        first = self.node().provider_snapshots[0]
        self.assertEqual((first.status, first.health, first.capacity), (*AVAILABLE, 1))

    def test_no_address_or_key_in_it(self) -> None:
        """C30, C46, P25: of a connection nothing is told: no address, certificate, key or proof, and no token."""
        node = self.rig.node("node-1")
        self.rig.request()
        self.rig.pump()
        told = self.page().SerializeToString()
        offer = node.offer()
        run = node.last_run()
        for secret in (
            *(b"192.0.2.", offer.public_key, offer.attestation.statement, offer.attestation.signature),
            *offer.attestation.certificate_chain,
            *(run.lease.box, run.lease.statement, run.token_id.encode(), run.binding.principal.encode()),
            *(text_of(ADA_TOKEN).encode(), ADA.digest),
        ):
            self.assertTrue(secret)
            self.assertNotIn(secret, told)

    def test_pages(self) -> None:
        """C4, S1: pages follow each other without a gap or a repetition, wherever they are cut."""
        names = [f"node-{number:03}" for number in range(40)]
        self.rig = Rig(Path(self.mktemp()), [node_table(name) for name in reversed(names)])
        self.rig.dial()
        whole = self.page().nodes[0].ByteSize()
        for size in (1, whole, 3 * whole + 1):
            self.patch(status, "PAGE_BYTES", size)
            told: list[str] = []
            more, pages = True, 0
            while more:
                page = self.page(told[-1] if told else "")
                self.assertTrue(page.nodes)
                told += [node.node_id for node in page.nodes]
                more, pages = page.more, pages + 1
            self.assertEqual(told, names)
            self.assertGreater(pages, 9)
        self.assertEqual(list(self.page("node-039").nodes), [])

    def test_not_before_the_hello(self) -> None:
        """S1: nothing is told to one that has not accepted this Edge."""
        self.rig = Rig(Path(self.mktemp()), [node_table("node-1")])
        self.rig.control_plane.hello_answer.accepted = False
        self.rig.dial()
        self.assertIsNotNone(self.rig.control_plane.lost_for)
