"""A whole Node against the real registry of an Edge, over TLS on loopback, with the stand-in provider as upstream."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from twisted.internet import reactor as running
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.internet.task import deferLater
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import TestCase
from twisted.web.server import Site
from zope.interface import implementer

from iop.core.pool import Pool
from iop.crypto.issuer import Issuer, write_public_set
from iop.crypto.lease import LeaseStatement, seal_lease
from iop.edge.config import NodeTable, ProviderTable
from iop.edge.events import Events, Notes
from iop.edge.nodes import Nodes
from iop.edge.runs import IRunReceiver, Run, RunFailure, RunPlan
from iop.net.clock import ReactorClock
from iop.net.peer import PeerFactory
from iop.net.tls import mutual_server, peer_identity
from iop.node.config import load
from iop.node.redact import MARK
from iop.node.service import NodeRole
from iop.process.metrics import new_registry
from iop.process.role import IReactor
from iop.records import Binding
from iop.secret import Secret
from iop.testing.pki import Pki
from iop.testing.provider import Received, StandIn
from iop.units import Role
from iop.wire.dialect import RUNTIME
from tests.configurations import node_toml

CANARY = b"sk-canary-5c1f0e"
reactor = cast(IReactor, running)


@implementer(IRunReceiver)
class Receiver:
    """Consumes a response as it comes; ``over`` fires with the code of its end."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.first: Deferred[None] = Deferred()
        self.over: Deferred[str] = Deferred()

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.status = status
        self.headers = dict(headers)

    def data(self, data: bytes) -> None:
        self.body += data
        if self.run is not None:
            self.run.consumed(len(data))
        if not self.first.called:
            self.first.callback(None)

    def finished(self) -> None:
        self.over.callback("finished")

    def failed(self, failure: RunFailure) -> None:
        self.over.callback(failure.code)


class NodeCase(TestCase):
    """A Node role and the registry of its Edge, and a provider."""

    timeout = 30

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir(parents=True)
        self.clock = ReactorClock(reactor)
        self.pki = Pki(self.folder / "pki")
        self.issuer = Issuer.create(self.folder / "issuer.json")
        write_public_set(self.folder / "issuers.json", [self.issuer.public_key])
        self.received: list[Received] = []
        self.ports: dict[int, IListeningPort] = {}

    async def begin(self) -> None:
        """Start provider, Edge and Node; the Node is ready."""
        await self.begin_with(await self.listen(Site(StandIn(Secret(CANARY), reactor, self.received.append))))

    async def begin_with(self, provider: int, target: str = "") -> None:
        """Start Edge and Node for a provider on a port, by default in plain HTTP; the Node is ready."""
        offer = ProviderTable(
            id="lab-1", category="api", profile="openai", target="lab", models=("m",), capacity=4, labels={}
        )
        table = NodeTable(name="node-1", providers=(offer,))
        self.nodes = Nodes(
            "edge-1",
            "iop.test",
            {"node-1": table},
            Pool(self.clock, 1),
            self.clock,
            Events(Notes(), self.clock),
            lost=lambda node: None,
            proved=lambda node, key: None,
        )
        peers = PeerFactory(
            RUNTIME, initiator=False, application=self.nodes.application, clock=self.clock, identify=peer_identity
        )
        mutual = mutual_server(self.pki.issue(Role.EDGE, "edge-1"), trust_domain="iop.test", accepts=Role.NODE)
        edge = await self.listen(TLSMemoryBIOFactory(mutual, False, peers))
        toml = node_toml("node-1", "edge-1", self.pki.issue(Role.NODE, "node-1"), edge, provider)
        self.node = await self.start(toml.replace(f'"http://127.0.0.1:{provider}/v1"', target) if target else toml)

    async def listen(self, factory: IProtocolFactory) -> int:
        port: IListeningPort = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
        self.addCleanup(port.stopListening)
        host = port.getHost()
        assert isinstance(host, IPv4Address)
        self.ports[host.port] = port
        return host.port

    async def start(self, toml: str) -> NodeRole:
        path = self.folder / "node.toml"
        path.write_text(toml)
        node = NodeRole(load(path), self.clock, reactor, new_registry())
        self.addCleanup(node.drain)
        await node.prepare()
        self.assertEqual(node.not_ready(), ["this Node is not registered at its Edge"])
        self.assertEqual(await node.listen(), {})
        # the Node hears last that it is ready
        await self.until(lambda: self.nodes.ready_names == ["node-1"] and not node.not_ready())
        return node

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await deferLater(reactor, 0.01)

    def chat(self, model: str, secret: bytes = CANARY, *, stream: bool = False) -> Receiver:
        edge = self.nodes.ready("node-1")
        assert edge is not None
        now = self.clock.wall_ms()
        binding = Binding("p1", "r1", "s1", "openai", "lab", "node-1", 1, 1, 1)
        statement = LeaseStatement(
            "lease-1", "deployment-1", "iop.test", "edge-1", binding, "t1", now, now + 60_000, edge.key.public_key
        )
        lease = seal_lease(self.issuer, statement, Secret(secret))
        headers = [("content-type", "application/json")]
        plan = RunPlan("req-1", lease, binding, "t1", "lab-1", "POST", "/chat/completions", headers)
        document = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hello"}]}
        receiver = Receiver()
        receiver.run = edge.runs.open(plan, json.dumps(document).encode(), receiver)
        return receiver


class NodeTests(NodeCase):
    """What goes through a Node in a life of it."""

    async def test_answers(self) -> None:
        """The provider gets the credential of the lease, the Edge its answer."""
        await self.begin()
        self.assertEqual(self.node.not_ready(), [])
        for _ in range(2):
            receiver = self.chat("stand-in")
            self.assertEqual((await receiver.over, receiver.status), ("finished", 200))
            self.assertIn(b"stand-in", receiver.body)
        self.assertEqual([each.authorized for each in self.received], [True, True])

    async def test_refused_credential(self) -> None:
        """R9: the provider's 401 arrives without the credential it was sent."""
        await self.begin()
        receiver = self.chat("stand-in", b"sk-another-canary")
        self.assertEqual((await receiver.over, receiver.status), ("finished", 401))
        self.assertNotIn(b"sk-another-canary", receiver.body)

    async def test_echoed_credential(self) -> None:
        """R9, P25: a 500 page and a header that repeat the credential arrive without it."""
        await self.begin()
        receiver = self.chat("stand-in/echo-key-500")
        self.assertEqual((await receiver.over, receiver.status), ("finished", 500))
        self.assertIn(MARK, receiver.body)
        self.assertNotIn(CANARY, receiver.body + repr(receiver.headers).encode())

    async def test_redirect(self) -> None:
        """R9, P17"""
        await self.begin()
        self.assertEqual(await self.chat("stand-in/redirect").over, "upstream_redirect")
        self.assertEqual(len(self.received), 1)

    async def test_broken_stream(self) -> None:
        """R3"""
        await self.begin()
        receiver = self.chat("stand-in/broken-stream", stream=True)
        self.assertEqual((await receiver.over, receiver.status), ("upstream_broke", 200))

    async def test_cancel(self) -> None:
        """R5: the Edge has the word long before the upstream would have ended by itself, which is after a minute."""
        await self.begin()
        receiver = self.chat("stand-in/slow-stream", stream=True)
        await receiver.first
        assert receiver.run is not None
        receiver.run.cancel()
        self.assertEqual(await receiver.over, "cancelled")

    async def test_drain_refuses(self) -> None:
        """A Node that goes away refuses what is new, finishes what it began, and is gone."""
        await self.begin()
        streaming = self.chat("stand-in/slow-stream", stream=True)
        await streaming.first
        drained = self.node.drain()
        self.assertEqual(await self.chat("stand-in").over, "draining")
        assert streaming.run is not None
        streaming.run.cancel()
        self.assertEqual(await streaming.over, "cancelled")
        await drained
        await self.until(lambda: self.nodes.ready_names == [])
