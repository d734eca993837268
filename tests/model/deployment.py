"""A whole deployment in memory: the real Control Plane, Edges and Nodes on one clock, wired by hand.

Nothing moves unless a test moves it: each connection is delivered, held or cut by its name, as a network, a stopped
process or a crash would. The provider records every call with the secret that it came with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import succeed

from iop.certificates import read_certificates, read_key
from iop.core.profiles import PROFILES
from iop.crypto.attestation import attest
from iop.crypto.node_keys import NodeKey, NodeKeys
from iop.edge.config import EdgeConfig
from iop.edge.control_link import ControlLink
from iop.edge.parts import Parts
from iop.net.peer import PeerFactory
from iop.node.leases import Leases
from iop.node.link import EdgeLink
from iop.node.metrics import NodeMetrics
from iop.node.targets import Target
from iop.process.metrics import new_registry
from iop.testing.peers import PeerPair, memory_identity
from iop.testing.pki import TRUST_DOMAIN
from iop.testing.upstream import FakeUpstream
from iop.units import Identity, Role
from iop.wire import runtime_pb2
from iop.wire.dialect import CONTROL, RUNTIME
from tests.configurations import DEPLOYMENT
from tests.control_plane.world import CONTROL_PLANE, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from iop.core.projection import Projection
    from iop.interfaces import IPeerApplication
    from iop.net.tls import TlsFiles
    from iop.wire.dialect import Dialect

EDGES: Final = ("edge1", "edge2")
NODE: Final = "node1"
TARGET: Final = "lab"
PROVIDER: Final = {
    "id": "provider-1",
    "category": "api",
    "profile": "openai",
    "target": TARGET,
    "models": ("*",),
    "capacity": 4,
}
NODE_TABLE: Final = {"providers": (PROVIDER,)}


@dataclass
class Site:
    """One Edge with the one Node that is connected to it.

    ``stopped`` are those of its connections that nothing passes, ``control`` and ``wire`` what they are, None while
    they are down.
    """

    name: str
    folder: Path
    parts: Parts
    upstream: FakeUpstream
    node: EdgeLink
    control: PeerPair | None = None
    wire: PeerPair | None = None
    stopped: set[str] = field(default_factory=set)
    #: The highest generation that was ever in force here.
    highest: int = 0

    @property
    def projection(self) -> Projection | None:
        """What is in force."""
        assert isinstance(self.parts.link, ControlLink)
        return self.parts.link.projections.current


class Deployment:
    """A Control Plane on the memory store, and two sites.

    :param folder: for keys, certificates and the Edges' state.
    """

    def __init__(self, folder: Path) -> None:
        self.world = World(folder / "world")
        self.clock = self.world.clock
        self._node_files = {name: self.world.pki.issue(Role.NODE, f"{NODE}-{name}") for name in EDGES}
        self.plane = self.world.plane
        self.sites = {name: self._site(name) for name in EDGES}

    # -- making and unmaking ------------------------------------------------------------------------------------------

    def _site(self, name: str) -> Site:
        folder = self.world.folder / name
        upstream = FakeUpstream()
        return Site(
            name, folder, self._edge(name, folder), upstream, self._node(name, self._node_files[name], upstream)
        )

    def _edge(self, name: str, folder: Path) -> Parts:
        config = EdgeConfig.model_validate(
            {
                "deployment": {"id": DEPLOYMENT, "trust_domain": TRUST_DOMAIN},
                "status": {"listen": "tcp:port=0:interface=127.0.0.1"},
                "run": {"directory": folder / "run"},
                "edge": {"name": name},
                "tls": {"certificate": folder / "c", "key": folder / "k", "trust": folder / "t"},
                "control_plane": {"endpoint": "tcp:host=127.0.0.1:port=1", "name": "cp1", "server_name": "localhost"},
                "api": {"listen": "tcp:port=0:interface=127.0.0.1"},
                "node_wire": {"listen": "tcp:port=0:interface=127.0.0.1"},
                "state": {"directory": folder / "state"},
                "credential_plane": {"enabled": True},
                "nodes": (NODE_TABLE | {"name": f"{NODE}-{name}"},),
            }
        )
        parts = Parts(config, self.clock, new_registry(), settled=lambda: None, reload=lambda: succeed(None))
        parts.link.load()
        return parts

    def _node(self, edge: str, files: TlsFiles, upstream: FakeUpstream) -> EdgeLink:
        keys = NodeKeys(self.clock)
        node = f"{NODE}-{edge}"

        def attested(key: NodeKey) -> runtime_pb2.NodeKeyAttestation:
            return attest(
                read_key(files.key),
                read_certificates(files.certificate),
                trust_domain=TRUST_DOMAIN,
                edge=edge,
                node=node,
                public_key=key.public_key,
                expires_ms=key.attested_until_ms,
            )

        return EdgeLink(
            edge=Identity(TRUST_DOMAIN, Role.EDGE, edge),
            keys=keys,
            attest=attested,
            grants=Leases(self.world.pinned, keys, self.clock, 5000, DEPLOYMENT, TRUST_DOMAIN, node),
            targets={TARGET: Target(TARGET, {"openai": PROFILES["openai"]}, upstream)},
            clock=self.clock,
            metrics=NodeMetrics(new_registry()),
            settled=lambda: None,
        )

    def restart_control_plane(self) -> None:
        """The process is gone and another one runs on the same store: no connection lasts, no session either."""
        for site in self.sites.values():
            self.cut(site, "control")
        self.plane.watch.stop()
        self.world.store.edge_sessions.end_all(self.clock.wall_ms())
        self.plane = self.world.plane = self.world.build()
        self.plane.watch.start()

    def restart_edge(self, site: Site) -> None:
        """The process is gone, and another one begins with what it left on disk."""
        for which in ("control", "wire"):
            self.cut(site, which)
        site.stopped.clear()
        site.parts = self._edge(site.name, site.folder)

    def restart_node(self, site: Site) -> None:
        """The process is gone, and another one has keys of its own. What it called goes on at the provider."""
        self.cut(site, "wire")
        site.node = self._node(site.name, self._node_files[site.name], site.upstream)

    # -- what passes between them -------------------------------------------------------------------------------------

    def connect_control(self, site: Site) -> None:
        """Dial the Control Plane anew, unless that connection is up."""
        if site.control is None:
            site.control = PeerPair(
                self._factory(CONTROL, True, site.parts.link.application),
                self._factory(CONTROL, False, self.plane.edges.application),
                dialler=Identity(TRUST_DOMAIN, Role.EDGE, site.name),
                listener=CONTROL_PLANE,
            )

    def connect_node(self, site: Site) -> None:
        """Have the Node dial its Edge anew, unless that connection is up."""
        if site.wire is None:
            site.wire = PeerPair(
                self._factory(RUNTIME, True, site.node.application),
                self._factory(RUNTIME, False, site.parts.nodes.application),
                dialler=Identity(TRUST_DOMAIN, Role.NODE, f"{NODE}-{site.name}"),
                listener=Identity(TRUST_DOMAIN, Role.EDGE, site.name),
            )

    def _factory(self, dialect: Dialect, initiator: bool, application: Callable[[], IPeerApplication]) -> PeerFactory:
        return PeerFactory(
            dialect, initiator=initiator, application=application, clock=self.clock, identify=memory_identity
        )

    def pump(self) -> None:
        """Deliver whatever is not stopped, until nothing moves."""
        for _ in range(8):
            for site in self.sites.values():
                for which in ("control", "wire"):
                    pair: PeerPair | None = getattr(site, which)
                    if pair is not None and which not in site.stopped:
                        pair.pump()
                        if pair.ended:
                            setattr(site, which, None)
            self.clock.advance(0)

    def cut(self, site: Site, which: str) -> None:
        """End a connection under both of its ends."""
        pair: PeerPair | None = getattr(site, which)
        if pair is not None:
            pair.cut()
            setattr(site, which, None)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, in steps that keep connections alive, and deliver what may be."""
        while seconds > 0:
            step = min(seconds, 1.0)
            self.clock.advance(step)
            self.pump()
            seconds -= step

    def heal(self) -> None:
        """Everything is connected and nothing is stopped."""
        for site in self.sites.values():
            site.stopped.clear()
            self.connect_control(site)
            self.pump()
            self.connect_node(site)
        self.pump()
