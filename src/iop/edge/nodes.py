"""Node connections: registration, key possession, readiness (rules N1-N5, P3, P14, P15)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from zope.interface import implementer

from iop.crypto import possession
from iop.crypto.attestation import check_size
from iop.edge.runs import Runs
from iop.errors import (
    AttestationRefused,
    HandshakeTimeout,
    IdentityRefused,
    IopError,
    MalformedFrame,
    NodeDismissed,
    PossessionRefused,
    UnexpectedMessage,
)
from iop.interfaces import IPeerApplication
from iop.units import HANDSHAKE_SECONDS, PROTOCOL_VERSION, RUN_WINDOW
from iop.wire import runtime_pb2
from iop.wire.strict import parse_strict

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from twisted.internet.interfaces import IDelayedCall

    from iop.core.offers import Offer
    from iop.core.pool import Pool
    from iop.edge.config import NodeTable
    from iop.edge.events import Events
    from iop.interfaces import IClock, IPeer
    from iop.secret import Secret

_log = Logger()
#: The catalogue's words for what a provider is.
CATEGORIES: Final = {
    "api": runtime_pb2.PROVIDER_CATEGORY_API,
    "local_inference": runtime_pb2.PROVIDER_CATEGORY_LOCAL_INFERENCE,
}


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A key that a Node proved, and what its certificate signed about it."""

    public_key: bytes
    attestation: runtime_pb2.NodeKeyAttestation = field(repr=False)


class Nodes:
    """The Edge's registry: who may connect, who is connected, who is ready.

    :param configured: Nodes by name.
    :param events: is told of Nodes that became ready, and of those that are so no more.
    :param window: bytes of response body that a run may have on their way.
    :param lost: called with the name of a Node whose connection ended.
    :param proved: called with the name of a Node and the public key that it proved.
    """

    def __init__(
        self,
        edge: str,
        trust_domain: str,
        configured: Mapping[str, NodeTable],
        pool: Pool,
        clock: IClock,
        events: Events,
        window: int = RUN_WINDOW,
        *,
        lost: Callable[[str], object],
        proved: Callable[[str, bytes], object],
    ) -> None:
        self.edge = edge
        self.trust_domain = trust_domain
        self.configured = configured
        self.pool = pool
        self.clock = clock
        self.events = events
        self.window = window
        self.proved = proved
        self._lost = lost
        self._live: dict[str, NodeConnection] = {}

    def application(self) -> NodeConnection:
        """What serves one new connection."""
        return NodeConnection(self)

    def ready(self, name: str) -> NodeConnection | None:
        """The connection of a Node that may be dispatched to."""
        connection = self._live.get(name)
        return connection if connection is not None and connection.is_ready else None

    @property
    def ready_names(self) -> list[str]:
        """The Nodes that may be dispatched to, by name."""
        return sorted(name for name, connection in self._live.items() if connection.is_ready)

    @property
    def open_runs(self) -> int:
        """How many runs are open on all Nodes."""
        return sum(len(connection.runs) for connection in self._live.values())

    def claim(self, name: str, connection: NodeConnection) -> bool:
        """Make ``connection`` the one of ``name``; False if another one is live (P15)."""
        return self._live.setdefault(name, connection) is connection

    def release(self, name: str, connection: NodeConnection) -> bool:
        """Forget ``connection`` if it is the one of ``name``; a stale one's end changes nothing (P15)."""
        if self._live.get(name) is not connection:
            return False
        del self._live[name]
        self.pool.remove(name)
        self._lost(name)
        return True

    def dismiss(self, name: str) -> None:
        """End the connection of a Node, if it has one, whose place is free when this returns; it may come again."""
        connection = self._live.get(name)
        if connection is not None:
            connection.dismiss()

    def drain(self) -> None:
        """Let every connection answer what its Node has asked, and close it; runs that are still open fail."""
        for connection in list(self._live.values()):
            connection.drain()


class _Phase(Enum):
    """How far a Node's registration is."""

    HELLO = auto()
    #: The hello was accepted: it may offer and prove a key.
    KEY = auto()
    #: It proved a key: it may say what it serves.
    PROVED = auto()
    #: It said what it serves, and has no answer yet.
    SAID = auto()
    READY = auto()
    ENDED = auto()


#: When keys may be offered and proved: at registration, and ever after for replacements (N5).
_WITH_KEYS: Final = frozenset({_Phase.KEY, _Phase.PROVED, _Phase.SAID, _Phase.READY})


@implementer(IPeerApplication)
class NodeConnection:
    """One connection of one Node, from its hello to its end."""

    peer: IPeer
    #: The runs on this connection.
    runs: Runs

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._phase = _Phase.HELLO
        self._deadline: IDelayedCall | None = None
        self._challenged: tuple[NodeKey, Secret] | None = None
        self._key: NodeKey | None = None
        self._name = ""
        #: Whether it was told that the Node is ready.
        self._told = False

    @property
    def is_ready(self) -> bool:
        """Whether runs may be opened."""
        return self._phase is _Phase.READY

    @property
    def key(self) -> NodeKey:
        """The newest key that the Node proved."""
        if self._key is None:
            raise PossessionRefused("the Node has not proved a key yet")
        return self._key

    # -- IPeerApplication ---------------------------------------------------------------------------------------------

    def connected(self, peer: IPeer) -> None:
        """The certificate holds; the hello has to name the same Node."""
        self.peer = peer
        self.runs = Runs(peer, self._nodes.window)
        self._name = peer.identity.name

    def asked(self, message: Message) -> Deferred[Message]:
        """Registration, step by step, and replacement keys."""
        match message:
            case runtime_pb2.NodeHelloRequest() if self._phase is _Phase.HELLO:
                return succeed(self._hello(message))
            case runtime_pb2.NodeKeyOfferRequest() if self._phase in _WITH_KEYS:
                return succeed(self._offer(message))
            case runtime_pb2.NodeKeyProofRequest() if self._phase in _WITH_KEYS:
                return succeed(self._proof(message))
            case runtime_pb2.NodeReadyRequest() if self._phase is _Phase.PROVED:
                return self._become_ready(message)
        raise UnexpectedMessage(f"a Node may not ask this while its registration is at {self._phase.name.lower()}")

    def notified(self, message: Message) -> None:
        """What belongs to runs; there are none before the Node is ready."""
        self.runs.received(message)

    def lost(self, reason: IopError) -> None:
        """Runs fail; the Node is gone from the pool, unless another connection of it is the live one."""
        self._phase = _Phase.ENDED
        self._stop_deadline()
        self._drop_challenge()
        # out of the pool first: a run that fails now must not be given to this connection again
        if self._nodes.release(self._name, self):
            _log.warn("edge.node.disconnected", node=self._name, reason=reason.code, detail=reason.message)
            if self._told:
                self._nodes.events.node_disconnected(self._name, reason)
        self.runs.lost(reason)

    # -- for Nodes ----------------------------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """See :meth:`Nodes.dismiss`."""
        self.peer.close(NodeDismissed("an operator ended the connection"))

    def drain(self) -> None:
        """See :meth:`Nodes.drain`."""
        self.peer.drain()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _hello(self, hello: runtime_pb2.NodeHelloRequest) -> Message:
        table = self._nodes.configured.get(self._name)
        if hello.node_id != self._name:
            return self._refuse_hello(IdentityRefused.code, "the hello names another Node than the certificate")
        if hello.protocol_version != PROTOCOL_VERSION:
            return self._refuse_hello("unsupported_version", f"this Edge speaks version {PROTOCOL_VERSION}")
        if table is None:
            return self._refuse_hello("not_configured", "this Edge has no such Node in its configuration")
        if not self._nodes.claim(self._name, self):
            return self._refuse_hello("already_connected", "this Node is connected already")
        self._phase = _Phase.KEY
        self._deadline = self._nodes.clock.call_later(HANDSHAKE_SECONDS, self._too_late)
        return runtime_pb2.NodeHelloResponse(accepted=True, edge_id=self._nodes.edge, config=_config(table))

    def _offer(self, offer: runtime_pb2.NodeKeyOfferRequest) -> Message:
        self._drop_challenge()
        try:
            self._check_attestation(offer)
            sealed, nonce = possession.challenge(offer.public_key)
        except AttestationRefused as error:
            _log.warn("edge.node.key_refused", node=self._name, reason=error.code)
            return runtime_pb2.NodeKeyOfferResponse(accepted=False, code=error.code, message=error.message)
        self._challenged = NodeKey(offer.public_key, offer.attestation), nonce
        return runtime_pb2.NodeKeyOfferResponse(accepted=True, sealed_challenge=sealed)

    def _proof(self, proof: runtime_pb2.NodeKeyProofRequest) -> Message:
        if self._challenged is None or self._challenged[0].public_key != proof.public_key:
            raise UnexpectedMessage("a Node proves a key that it was not asked about")
        key, nonce = self._challenged
        self._challenged = None
        try:
            possession.check(
                nonce,
                proof.answer,
                edge=self._nodes.edge,
                node=self._name,
                public_key=key.public_key,
                exporter=self.peer.exporter(possession.EXPORTER_LABEL, possession.EXPORTER_BYTES),
            )
        except PossessionRefused as error:
            _log.warn("edge.node.key_refused", node=self._name, reason=error.code)
            return runtime_pb2.NodeKeyProofResponse(accepted=False, code=error.code, message=error.message)
        self._key = key
        self._nodes.proved(self._name, key.public_key)
        if self._phase is _Phase.KEY:
            self._phase = _Phase.PROVED
        return runtime_pb2.NodeKeyProofResponse(accepted=True)

    def _become_ready(self, ready: runtime_pb2.NodeReadyRequest) -> Deferred[Message]:
        offers = self._served(ready)
        self._phase = _Phase.SAID
        self._stop_deadline()
        answer: Deferred[Message] = Deferred()

        def answered() -> None:
            if self._phase is _Phase.SAID:
                self._phase = _Phase.READY
                answer.callback(runtime_pb2.NodeReadyResponse(accepted=True))
                # The Node is told before it gets a run: dispatch-ready from the answer on, and not before. Not at all
                # if the answer was the connection's last word: requests would be given to nobody, again and again.
                if self.is_ready:
                    self._nodes.pool.add(self._name, offers)
                # what waited for it has its runs now, and any of them may have ended the connection
                if self.is_ready:
                    self._told = True
                    self._nodes.events.node_ready(self._name)

        self._nodes.clock.call_later(0, answered)
        refused = [refusal.provider_id for refusal in ready.refused]
        _log.info("edge.node.ready", node=self._name, served=len(offers), refused=len(refused))
        return answer

    # -- small things -------------------------------------------------------------------------------------------------

    def _served(self, ready: runtime_pb2.NodeReadyRequest) -> list[Offer]:
        """The offers of what the Node says it serves, if it spoke about each of its providers once."""
        offers = self._nodes.configured[self._name].offers()
        named = [*ready.served, *(refusal.provider_id for refusal in ready.refused)]
        if sorted(named) != sorted(offers):
            raise MalformedFrame("a Node does not say of each of its providers, once, whether it serves it")
        return [offers[provider] for provider in ready.served]

    def _check_attestation(self, offer: runtime_pb2.NodeKeyOfferRequest) -> None:
        """Only its shape, and that it is about this key: the Control Plane verifies it (C42, L3)."""
        check_size(offer.attestation)
        try:
            statement = parse_strict(runtime_pb2.NodeKeyStatement, offer.attestation.statement)
        except MalformedFrame:
            raise AttestationRefused("the key's attestation is malformed") from None
        named = (statement.trust_domain, statement.edge, statement.node, statement.public_key)
        if named != (self._nodes.trust_domain, self._nodes.edge, self._name, offer.public_key):
            raise AttestationRefused("the key's attestation is about something else")

    def _refuse_hello(self, code: str, message: str) -> runtime_pb2.NodeHelloResponse:
        _log.warn("edge.node.refused", node=self._name, reason=code)
        return runtime_pb2.NodeHelloResponse(accepted=False, code=code, message=message)

    def _too_late(self) -> None:
        self.peer.close(HandshakeTimeout("the Node did not finish its registration in time"))

    def _stop_deadline(self) -> None:
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()

    def _drop_challenge(self) -> None:
        if self._challenged is not None:
            self._challenged[1].dispose()
            self._challenged = None


def _config(table: NodeTable) -> runtime_pb2.NodeConfig:
    """A Node's part of the catalogue: never a URL, a trust anchor or a key pin (N2)."""
    return runtime_pb2.NodeConfig(
        providers=[
            runtime_pb2.NodeProvider(
                provider_id=provider.id,
                category=CATEGORIES[provider.category],
                profile=provider.profile,
                target=provider.target,
                models=provider.models,
                capacity=provider.capacity,
                long_context_capacity=provider.long_context_capacity,
            )
            for provider in table.providers
        ]
    )
