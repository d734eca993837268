"""A stolen Edge: genuine certificate and keys, everything it ever saw, against a real Control Plane and a real Node.

Both are whole roles on real TLS and a real database. The Edge is played here, so it can say whatever it likes. It gets
no plaintext, no lease but the one it may have, and nobody else suffers.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import Message
from twisted.internet import reactor as running
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint, wrapClientTLS
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import TestCase
from twisted.web.server import Site
from zope.interface import implementer

from iop.certificates import read_certificates, read_key
from iop.control_plane.config import ControlPlaneConfig
from iop.control_plane.config import load as load_control_plane
from iop.control_plane.leases import secret_place
from iop.control_plane.service import ControlPlane
from iop.crypto import possession
from iop.crypto.at_rest import seal_secret
from iop.crypto.attestation import attest
from iop.crypto.issuer import Issuer, write_public_set
from iop.crypto.keyring import Keyring
from iop.crypto.node_keys import NodeKey, NodeKeys
from iop.crypto.pki import leaf_paths
from iop.crypto.receipt import sign_receipt
from iop.crypto.tokens import mint
from iop.errors import HelloRefused, IopError
from iop.interfaces import IPeer, IPeerApplication
from iop.net.clock import ReactorClock
from iop.net.peer import PeerFactory
from iop.net.tls import TlsFiles, mutual_client, mutual_server, peer_identity
from iop.node.config import load as load_node
from iop.node.service import NodeRole
from iop.process.metrics import new_registry
from iop.process.role import IReactor
from iop.records import Binding, NewSlot, TokenKind
from iop.secret import Secret
from iop.store.schema import migrate
from iop.store.sqlite import SqliteStore, open_sqlite
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.testing.provider import Received, StandIn
from iop.units import PROTOCOL_VERSION, RUN_WINDOW, Role, new_id
from iop.wire import control_pb2, runtime_pb2
from iop.wire.convert import binding_to_wire
from iop.wire.dialect import CONTROL, RUNTIME, Dialect
from tests.configurations import DEPLOYMENT, control_plane_toml, node_toml

reactor = cast(IReactor, running)
CANARY = b"sk-canary-9d02c1e7f4"
SECONDS = 20.0


@implementer(IPeerApplication)
class Played:
    """One end that a test plays; it keeps everything that was ever said to it."""

    def __init__(self, answer: Callable[[IPeer, Message], Message]) -> None:
        self._answer = answer
        self.heard: list[Message] = []
        self.up: Deferred[IPeer] = Deferred()
        self.down: Deferred[IopError] = Deferred()

    def connected(self, peer: IPeer) -> None:
        self.peer = peer
        self.up.callback(peer)

    def asked(self, message: Message) -> Deferred[Message]:
        self.heard.append(message)
        return succeed(self._answer(self.peer, message))

    def notified(self, message: Message) -> None:
        self.heard.append(message)

    def lost(self, reason: IopError) -> None:
        self.down.callback(reason)


def applied(projection: control_pb2.PrincipalProjection) -> control_pb2.ProjectionOutcome:
    return control_pb2.ProjectionOutcome(
        result=control_pb2.PROJECTION_RESULT_APPLIED, generation=projection.generation, digest=projection.digest
    )


def acknowledge(peer: IPeer, message: Message) -> Message:
    """An Edge that says it applied whatever it was sent."""
    if not isinstance(message, control_pb2.PrincipalProjectionApplyRequest):
        raise AssertionError(type(message))
    return control_pb2.PrincipalProjectionApplyResponse(outcome=applied(message.projection))


class StolenEdgeTests(TestCase):
    timeout = 60

    def setUp(self) -> None:
        # a Control Plane spares what its process holds, and this process is that of all tests
        self.addCleanup(gc.unfreeze)
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir(parents=True)
        self.clock = ReactorClock(reactor)
        self.pki = Pki(self.folder / "pki")
        self.keyring = Keyring.create(self.folder / "keyring.json")
        self.issuer = Issuer.create(self.folder / "issuer.json")
        write_public_set(self.folder / "issuers.json", [self.issuer.public_key])
        self.edge_files = self.pki.issue(Role.EDGE, "edge1")
        self.received: list[Received] = []
        #: What Nodes said to the played Edge, one entry for each of their connections.
        self.node_side: list[Played] = []
        self.challenge: Callable[[runtime_pb2.NodeKeyOfferRequest], bytes] = self._honest_challenge

    async def _begin(self) -> None:
        """Start Control Plane and Node; the played Edge is enrolled at the one, the other is registered with it."""
        await self._fill_store()
        files = self.pki.issue(Role.CONTROL_PLANE, "cp1")
        (self.folder / "control-plane.toml").write_text(control_plane_toml(files))
        config: ControlPlaneConfig = load_control_plane(self.folder / "control-plane.toml")
        control_plane = ControlPlane(config, self.clock, reactor, new_registry())
        self.addCleanup(control_plane.drain)
        await control_plane.prepare()
        self.control_port = int((await control_plane.listen())["edge_wire"].rpartition(":")[2])
        self.control = await self._dial(self.edge_files)
        hello = await self._enrol(self.control, "edge1")
        self.projection, self.receipt = hello.projection, hello.receipt
        await self._start_node()

    async def _fill_store(self) -> None:
        """Ann has a token, a slot and a route; so has Bob."""
        path = self.folder / "store.sqlite"
        migrate(path, DEPLOYMENT)
        store = await open_sqlite(path, DEPLOYMENT, reactor)
        self.ann, self.ann_token, self.ann_slot, self.ann_route = await self._person(store, "ann", CANARY)
        self.bob, _, self.bob_slot, self.bob_route = await self._person(store, "bob", b"sk-bob-" + CANARY)
        await store.close()

    async def _person(self, store: SqliteStore, name: str, secret: bytes) -> tuple[str, Any, str, str]:
        token = mint(TokenKind.USE).record
        principal = (await store.principals.create(name, [token], "host:test")).value.principal
        slot = new_id()
        place = secret_place(DEPLOYMENT, principal, slot, "openai", "lab", 1)
        sealed = seal_secret(self.keyring, place, Secret(secret))
        await store.slots.create(NewSlot(slot, principal, "main", "openai", "lab", sealed), "host:test")
        route = (await store.routes.put(principal, "m", slot, "stand-in", "", None, "host:test")).value.route
        return principal, token, slot, route

    async def _start_node(self) -> None:
        provider = await self._listen(Site(StandIn(Secret(CANARY), reactor, self.received.append)))
        factory = PeerFactory(
            RUNTIME, initiator=False, application=self._node_application, clock=self.clock, identify=peer_identity
        )
        mutual = mutual_server(self.edge_files, trust_domain=TRUST_DOMAIN, accepts=Role.NODE)
        edge_port = await self._listen(TLSMemoryBIOFactory(mutual, False, factory))
        files = self.pki.issue(Role.NODE, "node1")
        (self.folder / "node.toml").write_text(node_toml("node1", "edge1", files, edge_port, provider))
        node = NodeRole(load_node(self.folder / "node.toml"), self.clock, reactor, new_registry())
        self.addCleanup(node.drain)
        await node.prepare()
        await node.listen()
        await self._until(lambda: self._offers() and not node.not_ready())

    # -- the played Edge ----------------------------------------------------------------------------------------------

    def _node_application(self) -> Played:
        played = Played(self._to_node)
        self.node_side.append(played)
        return played

    def _to_node(self, peer: IPeer, message: Message) -> Message:
        match message:
            case runtime_pb2.NodeHelloRequest():
                provider = runtime_pb2.NodeProvider(
                    provider_id="lab-1",
                    category=runtime_pb2.PROVIDER_CATEGORY_API,
                    profile="openai",
                    target="lab",
                    models=["stand-in"],
                    capacity=4,
                )
                config = runtime_pb2.NodeConfig(providers=[provider])
                return runtime_pb2.NodeHelloResponse(accepted=True, edge_id="edge1", config=config)
            case runtime_pb2.NodeKeyOfferRequest():
                return runtime_pb2.NodeKeyOfferResponse(accepted=True, sealed_challenge=self.challenge(message))
            case runtime_pb2.NodeKeyProofRequest():
                return runtime_pb2.NodeKeyProofResponse(accepted=True)
            case _:
                return runtime_pb2.NodeReadyResponse(accepted=True)

    def _honest_challenge(self, offer: runtime_pb2.NodeKeyOfferRequest) -> bytes:
        return possession.challenge(offer.public_key)[0]

    def _offers(self) -> list[runtime_pb2.NodeKeyOfferRequest]:
        heard = [message for played in self.node_side for message in played.heard]
        return [message for message in heard if isinstance(message, runtime_pb2.NodeKeyOfferRequest)]

    async def _dial(self, files: TlsFiles) -> Played:
        played = Played(acknowledge)
        factory = self._factory(CONTROL, lambda: played)
        creator = mutual_client(
            files, trust_domain=TRUST_DOMAIN, role=Role.CONTROL_PLANE, name="cp1", server_name="localhost"
        )
        await wrapClientTLS(creator, TCP4ClientEndpoint(reactor, "127.0.0.1", self.control_port)).connect(factory)
        await played.up
        self.addCleanup(self._end, played)
        return played

    def _factory(self, dialect: Dialect, application: Callable[[], IPeerApplication]) -> Factory:
        return PeerFactory(dialect, initiator=True, application=application, clock=self.clock, identify=peer_identity)

    async def _end(self, played: Played) -> None:
        if not played.down.called:
            played.peer.drain()
            await played.down

    async def _enrol(self, played: Played, name: str, **held: Any) -> control_pb2.EdgeHelloResponse:
        hello = control_pb2.EdgeHelloRequest(edge_id=name, protocol_version=PROTOCOL_VERSION, **held)
        answer = await played.peer.request(hello, SECONDS)
        if not isinstance(answer, control_pb2.EdgeHelloResponse):
            raise AssertionError(type(answer))
        await played.peer.request(control_pb2.EdgeReadyRequest(outcome=applied(answer.projection)), SECONDS)
        played.heard.append(answer)
        return answer

    # -- asking -------------------------------------------------------------------------------------------------------

    def _binding(self, **changed: Any) -> Binding:
        true = Binding(
            principal=self.ann,
            route=self.ann_route,
            slot=self.ann_slot,
            profile="openai",
            target="lab",
            node="node1",
            credential_revision=1,
            route_revision=1,
            generation=self.projection.generation,
        )
        return replace(true, **changed)

    async def _ask(
        self, played: Played | None = None, binding: Binding | None = None, **changed: Any
    ) -> control_pb2.AcquireLeaseResponse:
        offer = self._offers()[-1]
        fields: dict[str, Any] = {
            "request_id": "req-1",
            "binding": binding_to_wire(binding or self._binding()),
            "token_id": self.ann_token.token_id,
            "token_proof": self.ann_token.proof,
            "recipient_public_key": offer.public_key,
            "attestation": offer.attestation,
        }
        answer = await (played or self.control).peer.request(
            control_pb2.AcquireLeaseRequest(**(fields | changed)), SECONDS
        )
        if not isinstance(answer, control_pb2.AcquireLeaseResponse):
            raise AssertionError(type(answer))
        self.control.heard.append(answer)
        return answer

    async def _refused(self, code: str, **changed: Any) -> None:
        answer = await self._ask(**changed)
        self.assertEqual(answer.refusal.code, code)
        self.assertFalse(answer.HasField("lease"))

    def _everything_heard(self) -> bytes:
        return b"".join(
            message.SerializeToString() for played in (self.control, *self.node_side) for message in played.heard
        )

    async def _until(self, condition: Callable[[], object]) -> None:
        for _ in range(int(SECONDS * 50)):
            if condition():
                return
            await deferLater(reactor, 0.02)
        self.fail("it did not come to that in time")

    async def _listen(self, factory: Any) -> int:
        port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    # -- the attacks --------------------------------------------------------------------------------------------------

    async def test_against_the_control_plane(self) -> None:
        """P11, P12: keys that are not the Node's, tokens it never saw, other people's routes, older generations."""
        await self._begin()
        own, node2_key = self._key(), self._key()
        node2 = self.pki.issue(Role.NODE, "node2")
        genuine = self._offers()[-1]
        now_ms = self.clock.wall_ms()

        def signed(files: TlsFiles, public_key: bytes, **changed: Any) -> runtime_pb2.NodeKeyAttestation:
            says: dict[str, Any] = {"edge": "edge1", "node": "node1", "expires_ms": now_ms + 600_000} | changed
            return attest(
                read_key(files.key),
                read_certificates(files.certificate),
                trust_domain=TRUST_DOMAIN,
                public_key=public_key,
                **says,
            )

        for recipient, attestation in (
            (own.public_key, genuine.attestation),
            (own.public_key, signed(self.edge_files, own.public_key)),
            (own.public_key, signed(self.pki.issue(Role.EDGE, "node1"), own.public_key)),
            (node2_key.public_key, signed(node2, node2_key.public_key)),
            (node2_key.public_key, signed(node2, node2_key.public_key, node="node2")),
            (genuine.public_key, signed(self._node_files(), genuine.public_key, expires_ms=now_ms - 1)),
            (genuine.public_key, signed(self._node_files(), genuine.public_key, edge="edge2")),
            (bytes(32), signed(self._node_files(), bytes(32))),
        ):
            await self._refused("attestation_refused", recipient_public_key=recipient, attestation=attestation)
        for proof in (b"", bytes(32), self.ann_token.digest):
            await self._refused("token_refused", token_proof=proof)
        bobs = self._binding(principal=self.bob, slot=self.bob_slot, route=self.bob_route)
        await self._refused("token_refused", binding=bobs)
        await self._refused("slot_refused", binding=self._binding(slot=self.bob_slot))
        await self._refused("binding_mismatch", binding=self._binding(route=self.bob_route))
        await self._refused("stale_generation", binding=self._binding(generation=self.projection.generation - 1))
        await self._refused("binding_mismatch", binding=self._binding(generation=self.projection.generation + 1))
        # nobody else suffers, and what it may have it still gets
        self.assertTrue((await self._ask()).HasField("lease"))
        self.assertNotIn(CANARY, self._everything_heard())

    async def test_with_an_invented_receipt(self) -> None:
        """A claim that this deployment's issuer never signed refuses the claimant and stops nobody."""
        await self._begin()
        edge2 = await self._dial(self.pki.issue(Role.EDGE, "edge2"))
        invented = sign_receipt(
            Issuer.create(self.folder / "invented.json"), DEPLOYMENT, "edge2", generation=10**6, digest=bytes(32)
        )
        hello = control_pb2.EdgeHelloRequest(
            edge_id="edge2",
            protocol_version=PROTOCOL_VERSION,
            held_generation=10**6,
            held_digest=bytes(32),
            held_receipt=invented,
        )
        with self.assertRaises(HelloRefused) as refused:
            await edge2.peer.request(hello, SECONDS)
        self.assertEqual(refused.exception.reason, "receipt_refused")
        self.assertTrue((await self._ask()).HasField("lease"))
        await self._enrol(await self._dial(self.pki.issue(Role.EDGE, "edge3")), "edge3")

    async def test_against_the_node_with_a_recorded_lease(self) -> None:
        """P14, N3: a Node that is given a recorded lease's box as its possession challenge opens nothing for it."""
        await self._begin()
        lease = (await self._ask()).lease
        self.challenge = lambda offer: lease.box
        before = len(self.node_side)
        self.node_side[-1].peer.close(IopError("the Edge hangs up"))
        await self._until(lambda: len(self.node_side) >= before + 2)
        for played in self.node_side[before:]:
            kinds = {type(message) for message in played.heard}
            self.assertNotIn(runtime_pb2.NodeKeyProofRequest, kinds)
            self.assertNotIn(runtime_pb2.NodeReadyRequest, kinds)
        self.assertNotIn(CANARY, self._everything_heard())
        self.assertEqual(self.received, [])

    async def test_against_the_node_with_a_genuine_lease(self) -> None:
        """P5, P12, P17: the lease runs exactly what it is for; nothing else reaches the provider."""
        await self._begin()
        lease = (await self._ask()).lease
        true = self._binding()
        for place, (binding, path, token_id) in enumerate(
            (
                (replace(true, principal=self.bob), "/chat/completions", self.ann_token.token_id),
                (replace(true, slot=self.bob_slot), "/chat/completions", self.ann_token.token_id),
                (replace(true, target="elsewhere"), "/chat/completions", self.ann_token.token_id),
                (replace(true, generation=true.generation + 1), "/chat/completions", self.ann_token.token_id),
                (true, "/chat/completions", new_id()),
                (true, "/files", self.ann_token.token_id),
                (true, "/../admin", self.ann_token.token_id),
                (true, "//evil.example/v1", self.ann_token.token_id),
            ),
            start=1,
        ):
            failed = await self._open_run(place, lease, binding, path, token_id)
            self.assertIsInstance(failed, runtime_pb2.RunFailed, path)
            self.assertFalse(getattr(failed, "started", True), path)
        self.assertEqual(self.received, [])
        head = await self._open_run(20, lease, true, "/chat/completions", self.ann_token.token_id)
        self.assertEqual(getattr(head, "status", 0), 200)
        self.assertEqual(len(self.received), 1)
        self.assertNotIn(CANARY, self._everything_heard())

    async def _open_run(
        self, number: int, lease: runtime_pb2.SealedLease, binding: Binding, path: str, token_id: str
    ) -> Message:
        """Open a run; answers the first thing that the Node says about it."""
        played = self.node_side[-1]
        body = b'{"model": "stand-in", "messages": [{"role": "user", "content": "hi"}]}'
        played.peer.notify(
            runtime_pb2.RunRequest(
                run=number,
                request_id=f"req-{number}",
                lease=lease,
                binding=binding_to_wire(binding),
                token_id=token_id,
                provider_id="lab-1",
                method="POST",
                path=path,
                headers=[runtime_pb2.HeaderField(name="content-type", value="application/json")],
                body_length=len(body),
                window=RUN_WINDOW,
            )
        )
        played.peer.notify(runtime_pb2.RunBody(run=number, data=body, last=True))

        def about_it() -> list[Message]:
            return [message for message in played.heard if getattr(message, "run", 0) == number]

        await self._until(about_it)
        return about_it()[0]

    def _key(self) -> NodeKey:
        """A key pair that no Node has."""
        keys = NodeKeys(self.clock)
        self.addCleanup(keys.dispose)
        return keys.current()

    def _node_files(self) -> TlsFiles:
        paths = leaf_paths(self.pki.folder, Role.NODE, "node1")
        return TlsFiles(paths.certificate, paths.key, self.pki.trust)
