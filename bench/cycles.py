"""What connections that come and go leave behind in a running Control Plane and a running Edge (P48).

``python -m bench.cycles`` (10,000 of each) or ``--cycles 1000``. A played Node connects to the Edge, a played Edge to
the Control Plane, each with a genuine certificate; it says its hello and goes, or goes in the middle of the handshake,
of the hello, or without a goodbye. Shown are memory, descriptors and threads of each role after the first tenth and
after all of them; a leak of one small object a connection would show as megabytes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil
from google.protobuf.message import Message
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.internet.task import deferLater, react
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from bench.measure import Report
from bench.roles import Deployment, port_of
from iop.cli.quickstart.home import TRUST_DOMAIN, Member
from iop.errors import Draining, IopError
from iop.interfaces import IPeer, IPeerApplication
from iop.net.clock import ReactorClock
from iop.net.peer import PeerFactory
from iop.net.tls import TlsFiles, mutual_client, peer_identity
from iop.net.transport import ITlsTransport
from iop.units import PROTOCOL_VERSION, Role
from iop.wire.control_pb2 import EdgeHelloRequest
from iop.wire.dialect import CONTROL, RUNTIME, Dialect
from iop.wire.runtime_pb2 import NodeHelloRequest

ENDS = ("closed", "after hello", "during hello", "during handshake")
#: Seconds after which a visit that does not end is a failure of the bench, such as a refused certificate.
LONGEST_VISIT = 30.0
EDGE_HELLO = EdgeHelloRequest(edge_id=Member(Role.EDGE).name, protocol_version=PROTOCOL_VERSION)
NODE_HELLO = NodeHelloRequest(node_id=Member(Role.NODE).name, protocol_version=PROTOCOL_VERSION)


@implementer(IPeerApplication)
class Visitor:
    """Says its hello and goes as it was told."""

    def __init__(self, hello: Message, end: str) -> None:
        self._hello = hello
        self._end = end
        self.over: Deferred[None] = Deferred()

    def connected(self, peer: IPeer) -> None:
        """TLS is up."""
        answer = peer.request(self._hello, 10.0)
        # one that comes before its predecessor was missed is refused, and gone as well
        answer.addErrback(lambda failure: failure.trap(IopError))
        if self._end == "during hello":
            peer.close(Draining("gone"))
        else:
            answer.addCallback(partial(self._leave, peer))

    def _leave(self, peer: IPeer, _: object) -> None:
        if self._end == "closed":
            peer.drain()
        else:
            peer.close(Draining("gone"))

    def asked(self, message: Message) -> Deferred[Message]:
        """Nothing is answered."""
        return Deferred()

    def notified(self, message: Message) -> None:
        """Nothing is said."""

    def lost(self, reason: IopError) -> None:
        """It is over."""
        self.over.callback(None)


def _same(visitor: Visitor) -> Visitor:
    return visitor


async def visit(running: Any, port: int, dialect: Dialect, creator: Any, hello: Message, cycles: int) -> None:
    """Come and go ``cycles`` times."""
    clock = ReactorClock(running)
    for number in range(cycles):
        end = ENDS[number % len(ENDS)]
        visitor = Visitor(hello, end)
        factory = PeerFactory(
            dialect, initiator=True, application=partial(_same, visitor), clock=clock, identify=peer_identity
        )
        endpoint = TCP4ClientEndpoint(running, "127.0.0.1", port)
        connection = cast(Protocol, await endpoint.connect(TLSMemoryBIOFactory(creator, True, factory)))
        if end == "during handshake":
            cast(ITlsTransport, connection.transport).abortConnection()
        else:
            await visitor.over.addTimeout(LONGEST_VISIT, running)


def left(deployment: Deployment, role: Role) -> dict[str, str]:
    """What a role's process holds."""
    process = psutil.Process(deployment.pid(role))
    return {
        "RSS MB": f"{process.memory_info().rss / 1e6:.1f}",
        "descriptors": str(process.num_fds()),
        "threads": str(process.num_threads()),
    }


async def measure(running: Any, cycles: int) -> None:
    """First the Edge, then the Control Plane; both are looked at while nobody visits them."""
    report = Report("cycles", f"{cycles:,} connections to each", ["RSS MB", "descriptors", "threads", "seconds"])
    with tempfile.TemporaryDirectory() as made, Deployment(Path(made) / "home") as deployment:
        for visited, visiting, listener, dialect, hello in (
            (Role.EDGE, Role.NODE, "node_wire", RUNTIME, NODE_HELLO),
            (
                Role.CONTROL_PLANE,
                Role.EDGE,
                "edge_wire",
                CONTROL,
                EDGE_HELLO,
            ),
        ):
            # with the certificate of the role that is at home, which is away meanwhile
            deployment.stop(visiting)
            leaf = deployment.home.certificate(Member(visiting))
            files = TlsFiles(leaf.certificate, leaf.key, deployment.home.ca)
            creator = mutual_client(
                files, trust_domain=TRUST_DOMAIN, role=visited, name=Member(visited).name, server_name="127.0.0.1"
            )
            port = port_of(deployment.address(visited.value, listener))
            done = 0
            for moment, until in (("before", 0), ("after a tenth", cycles // 10), ("after all", cycles)):
                began = time.monotonic()
                await visit(running, port, dialect, creator, hello, until - done)
                took, done = time.monotonic() - began, until
                # closing takes its time on both sides
                await deferLater(running, 5.0)
                report.row(f"{visited.value}, {moment}", left(deployment, visited) | {"seconds": f"{took:.0f}"})
    report.finish(["Twisted", "pyOpenSSL"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.cycles", description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000)
    wanted = parser.parse_args().cycles
    react(lambda running: Deferred.fromCoroutine(measure(running, wanted)))
