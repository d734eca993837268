"""A legacy Edge and a legacy Node over TLS on loopback, with a local upstream and without any Control Plane (E17)."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import cast

from twisted.internet import reactor as running
from twisted.internet.address import IPv4Address
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase
from twisted.web.client import Agent, FileBodyProducer, HTTPConnectionPool, readBody
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from iop.core.headers import CREDENTIALS
from iop.crypto.tokens import mint
from iop.edge.config import load as load_edge
from iop.edge.service import Edge
from iop.net.clock import ReactorClock
from iop.net.tls import TlsFiles
from iop.node.config import load as load_node
from iop.node.service import NodeRole
from iop.process.metrics import new_registry
from iop.process.role import IReactor
from iop.records import TokenKind
from iop.testing.pki import Pki
from iop.units import Role
from tests.configurations import ROLE, node_toml

reactor = cast(IReactor, running)
ANSWER = {"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": "hello"}}]}


def edge_toml(files: TlsFiles, digest: str) -> str:
    """The Edge ``edge-1`` in legacy mode, with one caller and the Node ``node-1``."""
    return f"""{ROLE}
[edge]
name = "edge-1"
[tls]
certificate = "{files.certificate}"
key = "{files.key}"
trust = "{files.trust}"
[api]
listen = "tcp:port=0:interface=127.0.0.1"
[node_wire]
listen = "tcp:port=0:interface=127.0.0.1"
[credential_plane]
enabled = false
[[callers]]
name = "ada"
sha256 = "{digest}"
[[nodes]]
name = "node-1"
[[nodes.providers]]
id = "local"
category = "local_inference"
profile = "none"
target = "lab"
models = ["small"]
capacity = 2
[limits]
reconnect_seconds = 0.0
"""


class Upstream(Resource):
    """A local model that asks nobody for a credential; remembers the names of the headers that came."""

    isLeaf = True

    def __init__(self) -> None:
        Resource.__init__(self)
        self.headers: list[set[str]] = []

    def render_POST(self, request: Request) -> bytes:
        """Answer a chat."""
        self.headers.append({name.decode().lower() for name, _ in request.requestHeaders.getAllRawHeaders()})
        request.setHeader(b"content-type", b"application/json")
        return json.dumps(ANSWER).encode()


class LegacyTests(TestCase):
    timeout = 30

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir(parents=True)

    async def begin(self) -> None:
        """Start the upstream, the Edge and the Node; both are ready."""
        folder = self.folder
        pki, clock = Pki(folder / "pki"), ReactorClock(reactor)
        self.upstream = Upstream()
        port: IListeningPort = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(Site(self.upstream))
        self.addCleanup(port.stopListening)
        host = port.getHost()
        assert isinstance(host, IPv4Address)
        self.token = mint(TokenKind.USE)

        path = folder / "edge.toml"
        path.write_text(edge_toml(pki.issue(Role.EDGE, "edge-1"), self.token.record.digest.hex()))
        self.edge = Edge(load_edge(path), clock, reactor, new_registry())
        self.addCleanup(self.edge.drain)
        await self.edge.prepare()
        addresses = await self.edge.listen()
        self.api = addresses["api"]

        path = folder / "node.toml"
        edge_port = int(addresses["node_wire"].rpartition(":")[2])
        toml = node_toml("node-1", "edge-1", pki.issue(Role.NODE, "node-1"), edge_port, host.port)
        toml = toml.replace('[issuers]\npinned = "issuers.json"', "[credential_plane]\nenabled = false")
        path.write_text(toml.replace('["openai"]', '["none"]'))
        node = NodeRole(load_node(path), clock, reactor, new_registry())
        self.addCleanup(node.drain)
        await node.prepare()
        await node.listen()
        await self.until(lambda: not self.edge.not_ready() and not node.not_ready())

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await deferLater(reactor, 0.01)

    async def chat(self, token: str) -> tuple[int, dict[str, object]]:
        pool = HTTPConnectionPool(reactor, persistent=False)
        self.addCleanup(pool.closeCachedConnections)
        answer = await Agent(reactor, pool=pool).request(
            b"POST",
            f"http://{self.api}/v1/chat/completions".encode(),
            Headers({"authorization": [f"Bearer {token}"], "content-type": ["application/json"]}),
            FileBodyProducer(BytesIO(b'{"model": "small", "messages": []}')),
        )
        return answer.code, json.loads(await readBody(answer))

    async def test_chat(self) -> None:
        """E17, C24, C25: a caller of the configuration has its answer, and no credential header was ever sent."""
        await self.begin()
        self.assertEqual(await self.chat(self.token.text.reveal().decode()), (200, ANSWER))
        (headers,) = self.upstream.headers
        self.assertFalse(headers & CREDENTIALS)

    async def test_strangers(self) -> None:
        """P20: another token, and the digest of the caller's token, are nobody's."""
        await self.begin()
        for token in (mint(TokenKind.USE).text.reveal().decode(), self.token.record.digest.hex()):
            self.assertEqual((await self.chat(token))[0], 401)
        self.assertEqual(self.upstream.headers, [])
