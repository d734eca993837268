"""Many Edges in one process, which have one projection together. A child of :mod:`bench.projection`.

The first Edge is the real one as far as projections go: it asks for every page, keeps its receipt on disk, puts the
projection in force. What it holds then stands for all of them, since each would hold the same. Of a change every Edge
reads its own frame; the first to get it applies it and checks the digest, and the others compare. So the time that one
core spends on a thousand Edges is close to what a thousand machines would spend at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults, succeed
from twisted.internet.endpoints import TCP4ClientEndpoint, wrapClientTLS
from twisted.internet.task import react
from twisted.python.failure import Failure
from zope.interface import implementer

from bench.turns import Turns
from iop.cli.quickstart.home import TRUST_DOMAIN, Home, Member
from iop.core.projection import Projection
from iop.crypto.pki import leaf_paths
from iop.edge.offers import Offers
from iop.edge.projections import Projections
from iop.errors import IopError
from iop.interfaces import IClock, IPeer, IPeerApplication
from iop.net.clock import ReactorClock
from iop.net.peer import PeerFactory
from iop.net.tls import TlsFiles, mutual_client, peer_identity
from iop.process.harden import all_descriptors
from iop.units import PROTOCOL_VERSION, Role
from iop.wire import control_pb2
from iop.wire.convert import delta_from_wire
from iop.wire.dialect import CONTROL

#: How many say their hello at a time, and how long it may take them.
HELLOS = 16
HELLO_SECONDS = 60.0
#: Projections that a change may still be one of.
KEPT = 256


def edge_name(number: int) -> str:
    """What one of the Edges is called."""
    return f"edge-{number}"


class Held:
    """The projections that all Edges hold, by generation."""

    def __init__(self) -> None:
        self._kept: dict[int, Projection] = {}
        self._order: deque[int] = deque()

    def keep(self, projection: Projection) -> None:
        """Have this one in force."""
        self._kept[projection.generation] = projection
        self._order.append(projection.generation)
        if len(self._order) > KEPT:
            del self._kept[self._order.popleft()]

    def follow(self, delta: control_pb2.ProjectionDelta) -> control_pb2.ProjectionOutcome:
        """Apply ``delta`` unless another Edge did, and give the word on it."""
        if delta.generation not in self._kept:
            self.keep(self._kept[delta.base_generation].changed(delta_from_wire(delta)))
        return self.word(delta.generation, delta.digest)

    def word(self, generation: int, digest: bytes) -> control_pb2.ProjectionOutcome:
        """That it is in force: the digest is the one that was computed here."""
        held = self._kept[generation]
        if held.digest != digest:
            raise AssertionError("the Edges hold something else than the Control Plane says")
        return control_pb2.ProjectionOutcome(
            result=control_pb2.PROJECTION_RESULT_APPLIED, generation=generation, digest=held.digest
        )


@implementer(IPeerApplication)
class PlayedEdge:
    """One of the Edges, once it is connected."""

    def __init__(self, name: str, held: Held) -> None:
        self._name = name
        self._held = held
        self.up: Deferred[IPeer] = Deferred()

    def connected(self, peer: IPeer) -> None:
        """TLS is up."""
        self.up.callback(peer)

    def asked(self, message: Message) -> Deferred[Message]:
        """Follow a change, or say that there is nothing to tell."""
        match message:
            case control_pb2.PrincipalProjectionApplyRequest():
                return succeed(control_pb2.PrincipalProjectionApplyResponse(outcome=self._held.follow(message.delta)))
            case control_pb2.EdgeStatusRequest():
                return succeed(control_pb2.EdgeStatusResponse(edge_id=self._name))
        raise AssertionError(f"a {type(message).__name__} was asked")

    def notified(self, message: Message) -> None:
        """Nothing is said."""

    def lost(self, reason: IopError) -> None:
        """No Edge may be lost."""
        raise SystemExit(f"{self._name} lost its connection: {reason.message}")


class Driver:
    """Connects the Edges of one home, one kind after the other."""

    def __init__(self, running: Any, home: Home, port: int) -> None:
        self._home = home
        self._clock: IClock = ReactorClock(running)
        self._endpoint = TCP4ClientEndpoint(running, "127.0.0.1", port)
        self._held = Held()

    async def first(self, state: Path) -> dict[str, float]:
        """Enrol as a real Edge does; how long that took and the longest turn here."""
        turns = Turns(self._clock)
        began = self._clock.boot()
        peer, hello = await self._hello(edge_name(0))
        projections = Projections(
            state, hello.deployment_id, edge_name(0), self._clock, lambda _: succeed(0), lambda: 0
        )
        projections.load()
        outcome = await Offers(projections, peer, self._clock).take(hello.projection, hello.receipt)
        await self._give_word(peer, outcome)
        took = self._clock.boot() - began
        if projections.current is None:
            raise AssertionError("nothing is in force")
        self._held.keep(projections.current)
        return {"ms": took * 1000, "turn": turns.longest_ms()}

    async def other(self, number: int) -> None:
        """Enrol with what the first one holds."""
        peer, hello = await self._hello(edge_name(number))
        await self._give_word(peer, self._held.word(hello.projection.generation, hello.projection.digest))

    async def _hello(self, name: str) -> tuple[IPeer, control_pb2.EdgeHelloResponse]:
        played = PlayedEdge(name, self._held)
        leaf = leaf_paths(self._home.pki, Role.EDGE, name)
        creator = mutual_client(
            TlsFiles(leaf.certificate, leaf.key, self._home.ca),
            trust_domain=TRUST_DOMAIN,
            role=Role.CONTROL_PLANE,
            name=Member(Role.CONTROL_PLANE).name,
            server_name="localhost",
        )
        factory = PeerFactory(
            CONTROL, initiator=True, application=lambda: played, clock=self._clock, identify=peer_identity
        )
        await wrapClientTLS(creator, self._endpoint).connect(factory)
        peer = await played.up
        hello = await peer.request(
            control_pb2.EdgeHelloRequest(edge_id=name, protocol_version=PROTOCOL_VERSION), HELLO_SECONDS
        )
        if not isinstance(hello, control_pb2.EdgeHelloResponse) or not hello.accepted:
            raise AssertionError(f"{name} was refused")
        return peer, hello

    async def _give_word(self, peer: IPeer, outcome: control_pb2.ProjectionOutcome) -> None:
        await peer.request(control_pb2.EdgeReadyRequest(outcome=outcome), HELLO_SECONDS)


def run(home: Home, folder: Path, port: int, edges: int) -> None:
    """Be the first Edge, then all of them until killed; the Control Plane is told by files in ``folder``."""
    all_descriptors()

    async def main(running: Any) -> None:
        driver = Driver(running, home, port)
        enrolled = await driver.first(folder / "edge-state")
        tell(folder / "first.json", enrolled)
        turn = DeferredSemaphore(HELLOS)
        await gatherResults(
            [turn.run(lambda each: Deferred.fromCoroutine(driver.other(each)), number) for number in range(1, edges)],
            consumeErrors=True,
        )
        tell(folder / "all.json", {"pid": os.getpid()})
        await Deferred()

    started(main)


def started(main: Callable[[Any], Coroutine[Deferred[Any], Any, None]]) -> None:
    """Run ``main`` with a reactor to its end. Logs go nowhere here, so what breaks it is printed."""

    def begin(running: Any) -> Deferred[None]:
        return Deferred.fromCoroutine(main(running)).addErrback(printed)

    def printed(failure: Failure) -> Failure:
        failure.printTraceback(sys.stderr)
        return failure

    react(begin)


def tell(path: Path, what: object) -> None:
    """Write a file that is there only once it is whole."""
    path.with_suffix(".part").write_text(json.dumps(what))
    path.with_suffix(".part").rename(path)
