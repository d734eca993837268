"""Runs of a real Node whose route changes: one that still connects to its provider, and one that the provider has."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet import reactor
from twisted.internet.interfaces import IReactorFDSet
from twisted.internet.tcp import Client, Port
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from iop.core.fences import bind
from iop.edge.leases import LeaseKey, Leases
from iop.edge.metrics import EdgeMetrics
from iop.edge.revocation import Revocation
from iop.edge.runs import NODE_LOST
from iop.net.tls import web_server
from iop.process.metrics import new_registry
from iop.units import NODE_WORD_SECONDS, Role
from iop.wire import control_pb2, runtime_pb2
from tests.core.entries import ADA_SMALL, projection
from tests.core.test_fences import pinned
from tests.integration.test_node import NodeCase, Receiver

#: The pinned route points to another revision of its secret.
ROTATED = projection(8, routes=(replace(ADA_SMALL, credential_revision=2),))


class Held(Resource):
    """A provider that answers when it is told to."""

    isLeaf = True

    def __init__(self) -> None:
        Resource.__init__(self)
        self.requests: list[Request] = []

    def render(self, request: Request) -> int:
        self.requests.append(request)
        return NOT_DONE_YET

    def answer(self) -> None:
        """Answer the oldest request."""
        request = self.requests.pop(0)
        request.write(b"answer")
        request.finish()


async def no_lease(request: control_pb2.AcquireLeaseRequest) -> runtime_pb2.SealedLease:
    raise AssertionError(f"the leases of this test are sealed by hand, but {request.request_id} asked for one")


class RevocationTests(NodeCase):
    """E15, R11, P41: the provider is behind TLS."""

    async def began(self) -> None:
        """Everything is ready."""
        self.held = Held()
        files = self.pki.issue(Role.EDGE, "provider")
        tls = web_server(files.certificate, files.key)
        self.port = await self.listen(TLSMemoryBIOFactory(tls, False, Site(self.held)))
        # the Node's kept connections end a moment after the Node
        self.addCleanup(self.until, lambda: not self.connections())
        await self.begin_with(self.port, f'"https://localhost:{self.port}/v1"\ntrust = "{self.pki.trust}"')
        leases = Leases(no_lease, self.clock, EdgeMetrics(new_registry()), "deployment-1", "edge-1", 1)
        self.revocation = Revocation(leases, self.clock, NODE_WORD_SECONDS)

    def connections(self) -> int:
        """How many the Node has to its provider."""
        readers = IReactorFDSet(reactor).getReaders()
        return sum(isinstance(reader, Client) and reader.getPeer().port == self.port for reader in readers)

    def watched(self) -> Receiver:
        """A run that the revocation knows of."""
        receiver = self.chat("any")
        assert receiver.run is not None
        key = LeaseKey(bind(ADA_SMALL, "node-1", 1), "t1", b"k" * 32)
        settled = self.revocation.watch(receiver.run, pinned(), key, self.clock.wall_ms() + 60_000)

        def over(code: str) -> str:
            settled(code == NODE_LOST)
            return code

        receiver.over.addCallback(over)
        return receiver

    async def test_not_started(self) -> None:
        """P41: the Node is still in its handshake: the run ends, and the provider never gets a request."""
        await self.began()
        # the kernel makes connections without asking the provider, which takes none of them for now
        port = self.ports[self.port]
        assert isinstance(port, Port)
        port.stopReading()
        receiver = self.watched()
        await self.until(lambda: self.connections() == 1)
        told = self.revocation.applied(ROTATED)
        self.assertEqual(await receiver.over, "cancelled")
        self.assertEqual((await told, self.connections()), (0, 0))
        port.startReading()
        # a run that is allowed comes after whatever could still have come of the other one
        allowed = self.watched()
        await self.until(lambda: bool(self.held.requests))
        self.held.answer()
        self.assertEqual(await allowed.over, "finished")
        self.assertEqual(self.held.requests, [])

    async def test_started(self) -> None:
        """R6, P41: the provider has the request: the run goes on to its end, and is sent once."""
        await self.began()
        receiver = self.watched()
        await self.until(lambda: bool(self.held.requests))
        self.assertEqual(await self.revocation.applied(ROTATED), 0)
        self.held.answer()
        self.assertEqual(await receiver.over, "finished")
        self.assertEqual((receiver.status, receiver.body, self.held.requests), (200, b"answer", []))
