"""An Edge's status as the Control Plane reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from twisted.internet.defer import Deferred

from iop.control_plane import status
from iop.control_plane.status import EdgeStatus, Statuses
from iop.errors import NotFound, PeerDisconnected, RequestTimedOut
from iop.store.memory import MemoryStore
from iop.wire import control_pb2, runtime_pb2
from tests.control_plane.world import PlayedEdge, WorldCase

PROVIDER = runtime_pb2.ProviderSnapshot(
    provider_id="p",
    category=runtime_pb2.PROVIDER_CATEGORY_API,
    status=runtime_pb2.PROVIDER_STATUS_AVAILABLE,
    health=runtime_pb2.PROVIDER_HEALTH_HEALTHY,
    capacity=4,
    in_flight=2,
    queued=1,
    long_context_capacity=3,
    long_in_flight=1,
    long_queued=1,
)
CONFIG = control_pb2.EdgeProviderConfig(
    provider_id="p",
    category=runtime_pb2.PROVIDER_CATEGORY_API,
    profile="openai",
    target="openai",
    models=3,
    capacity=4,
    long_context_capacity=3,
)


def node(name: str) -> control_pb2.EdgeNodeSnapshot:
    """A Node with one provider."""
    return control_pb2.EdgeNodeSnapshot(
        node_id=name,
        connected=True,
        config=control_pb2.EdgeNodeConfig(providers=[CONFIG]),
        provider_snapshots=[PROVIDER],
    )


class StatusTests(WorldCase):
    def setUp(self) -> None:
        super().setUp()
        self.connection, _ = self.world.enrolled()
        self.statuses = Statuses(self.world.plane.edges, self.world.clock)

    def ask(self) -> Deferred[EdgeStatus]:
        asked = self.statuses.status("edge1")
        self.world.pump()
        return asked

    def answer(self, nodes: Sequence[control_pb2.EdgeNodeSnapshot], *, more: bool = False, edge: str = "edge1") -> None:
        """Let the Edge answer what it was asked last."""
        answer = control_pb2.EdgeStatusResponse(edge_id=edge, generation=7, nodes=nodes, more=more)
        self.connection.edge.held.pop().callback(answer)
        self.world.pump()

    def asked_after(self) -> list[str]:
        """The pages that were asked for."""
        received = self.connection.edge.received
        return [message.after for message in received if isinstance(message, control_pb2.EdgeStatusRequest)]

    def test_as_many_nodes_as_a_catalogue_may_have(self) -> None:
        """S1: a thousand Nodes are read, over however many pages; one more ends the connection."""
        nodes = [control_pb2.EdgeNodeSnapshot(node_id=f"n{number:04}") for number in range(status.NODE_LIMIT + 1)]
        asked = self.ask()
        self.answer(nodes[:600], more=True)
        self.answer(nodes[600:-1])
        self.assertEqual(len(self.successResultOf(asked).nodes), status.NODE_LIMIT)
        asked = self.ask()
        self.answer(nodes[:600], more=True)
        self.answer(nodes[600:])
        self.failureResultOf(asked, PeerDisconnected)

    def test_pages_are_put_together(self) -> None:
        """C4, S1, S3: what the Edge told, in its order, in words."""
        asked = self.ask()
        self.answer([node("a"), node("b")], more=True)
        self.answer([node("c")])
        told = asdict(self.successResultOf(asked))
        self.assertEqual(self.asked_after(), ["", "b"])
        self.assertEqual((told["edge"], told["generation"]), ("edge1", 7))
        self.assertEqual([each["node"] for each in told["nodes"]], ["a", "b", "c"])
        (provider,), (config,) = told["nodes"][0]["providers"], told["nodes"][0]["config"]["providers"]
        numbers = {"capacity": 4, "in_flight": 2, "queued": 1}
        numbers |= {"long_context_capacity": 3, "long_in_flight": 1, "long_queued": 1}
        self.assertEqual(
            provider, {"provider": "p", "category": "api", "status": "available", "health": "healthy"} | numbers
        )
        named = {"provider": "p", "category": "api", "profile": "openai", "target": "openai"}
        self.assertEqual(config, named | {"models": 3, "capacity": 4, "long_context_capacity": 3})

    def test_every_health(self) -> None:
        """S3: each word that an Edge has for a provider's health is told."""
        for health, word in (
            (runtime_pb2.PROVIDER_HEALTH_HEALTHY, "healthy"),
            (runtime_pb2.PROVIDER_HEALTH_OFFLINE, "offline"),
            (runtime_pb2.PROVIDER_HEALTH_UNREACHABLE, "unreachable"),
        ):
            asked, told = self.ask(), node("a")
            told.provider_snapshots[0].health = health
            self.answer([told])
            self.assertEqual(self.successResultOf(asked).nodes[0].providers[0].health, word)

    def test_what_is_no_status_ends_the_connection(self) -> None:
        """S4, C46: no address passes for a name, no unknown value for a known one, and pages end."""
        odd = node("a")
        odd.provider_snapshots[0].provider_id = "https://10.0.0.1:8443/v1?key=x"
        strange, worded, crowded = node("a"), node("a"), node("a")
        strange.provider_snapshots[0].health = 9  # type: ignore[assignment]
        worded.config.providers[0].target = "Bearer x"
        crowded.provider_snapshots.extend([PROVIDER] * 64)
        for nodes, more, edge in (
            ([odd], False, "edge1"),
            ([strange], False, "edge1"),
            ([worded], False, "edge1"),
            ([crowded], False, "edge1"),
            ([node("b"), node("a")], False, "edge1"),
            ([node("a"), node("a")], False, "edge1"),
            ([], True, "edge1"),
            ([node("a")], False, "edge2"),
        ):
            asked = self.ask()
            self.answer(nodes, more=more, edge=edge)
            self.failureResultOf(asked, PeerDisconnected)
            self.assertIsNotNone(self.connection.edge.lost_for)
            self.connection, _ = self.world.enrolled()

    def test_pages_have_an_end(self) -> None:
        """S4: an Edge that always has one more page is not listened to for ever."""
        self.patch(status, "PAGE_LIMIT", 3)
        asked = self.ask()
        for name in ("a", "b", "c"):
            self.assertNoResult(asked)
            self.answer([node(name)], more=True)
        self.failureResultOf(asked, PeerDisconnected)

    def test_no_answer(self) -> None:
        """S1: an Edge that says nothing costs five seconds."""
        asked = self.ask()
        self.world.pass_time(5.2)
        late = self.failureResultOf(asked, RequestTimedOut).value
        self.assertEqual(late.message, "the Edge did not tell its status in time")
        self.assertIn("log", late.hint)

    def test_slow_pages(self) -> None:
        """S1: an Edge that takes its time for each page has ten seconds for all of them."""
        asked = self.ask()
        for name in ("a", "b", "c"):
            self.world.pass_time(3.0)
            self.assertNoResult(asked)
            self.answer([node(name)], more=True)
        self.world.pass_time(1.2)
        self.failureResultOf(asked, RequestTimedOut)
        self.assertIsNone(self.connection.edge.lost_for)

    def test_who_is_not_there(self) -> None:
        """S1: neither an Edge that is not connected, nor one whose word on the projection is still to come."""
        self.failureResultOf(self.statuses.status("nobody"), NotFound)
        self.world.greeted("edge2")
        self.failureResultOf(self.statuses.status("edge2"), NotFound)

    def test_sessions(self) -> None:
        """S5: connected Edges by name, with what they were sent and what they acknowledged."""
        self.world.greeted("edge0", PlayedEdge())
        first, second = self.world.plane.edges.sessions()
        self.assertEqual((first.edge, first.acknowledged, first.ready), ("edge0", 0, False))
        self.assertEqual((second.edge, second.acknowledged, second.ready), ("edge1", second.sent, True))
        self.assertEqual(second.since_ms, self.world.clock.wall_ms())
        self.connection.pair.cut()
        self.assertEqual([session.edge for session in self.world.plane.edges.sessions()], ["edge0"])

    def test_nothing_is_kept(self) -> None:
        """S4, C2, C47: after a status the store holds no Node, provider or target that was told."""
        store = self.world.store
        assert isinstance(store, MemoryStore)
        before = repr(vars(store))
        asked = self.ask()
        self.answer([node("told-node")])
        self.successResultOf(asked)
        self.assertNotIn("told-node", repr(vars(store)))
        self.assertEqual(repr(vars(store)), before)
