"""The Node's side of its Edge: registration, key possession, key replacement, and runs once it is ready (N1-N6, W9)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final, Protocol

from google.protobuf.message import Message
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from zope.interface import implementer

from iop.crypto import possession
from iop.crypto.node_keys import NodeKey, NodeKeys
from iop.errors import HelloRefused, IdentityRefused, IopError, MalformedFrame, Superseded, UnexpectedMessage
from iop.interfaces import IClock, IPeer, IPeerApplication
from iop.net.peer import close_for
from iop.node.leases import IGrants
from iop.node.metrics import NodeMetrics
from iop.node.runs import Runs
from iop.node.targets import Target, served
from iop.units import HANDSHAKE_SECONDS, PROTOCOL_VERSION, Identity
from iop.wire import runtime_pb2

log = Logger()

#: Providers that a Node is told of, at most.
PROVIDERS_LIMIT: Final = 64
#: How long open runs may go on after this process was told to go away.
DRAIN_RUNS_SECONDS: Final = 8.0


class _Answer(Protocol):
    """What every answer of registration has."""

    accepted: bool
    code: str


class EdgeLink:
    """The one Edge of this Node, whichever connection leads to it.

    :param edge: the identity that the Edge's certificate must have.
    :param attest: signs for a key of this Node's with its certificate's key (N4).
    :param settled: called whenever a connection became ready.
    """

    def __init__(
        self,
        *,
        edge: Identity,
        keys: NodeKeys,
        attest: Callable[[NodeKey], runtime_pb2.NodeKeyAttestation],
        grants: IGrants,
        targets: Mapping[str, Target],
        clock: IClock,
        metrics: NodeMetrics,
        settled: Callable[[], None],
    ) -> None:
        self.edge = edge
        self.keys = keys
        self.attest = attest
        self.grants = grants
        self.targets = targets
        self.clock = clock
        self.metrics = metrics
        self.settled = settled
        self._ready: EdgeConnection | None = None

    def application(self) -> EdgeConnection:
        """What serves one new connection."""
        return EdgeConnection(self)

    @property
    def ready(self) -> bool:
        """Whether the Edge may dispatch to this Node."""
        return self._ready is not None

    @property
    def open_runs(self) -> int:
        """How many runs are open."""
        return 0 if self._ready is None else self._ready.open_runs

    def begun(self) -> None:
        """A connection is about to register: of an older one nothing goes on, which the Edge relies on (N7)."""
        if self._ready is not None:
            self._ready.supersede()

    def opened(self, connection: EdgeConnection) -> None:
        """A connection became ready."""
        self._ready = connection
        self.settled()

    def ended(self, connection: EdgeConnection) -> None:
        """A connection ended, ready or not."""
        if self._ready is connection:
            self._ready = None

    def renew(self, attest: Callable[[NodeKey], runtime_pb2.NodeKeyAttestation]) -> None:
        """Attest with another certificate from now on, the key that the Edge has as well (N5)."""
        self.attest = attest
        if self._ready is not None:
            self._ready.prove_again()

    def drain(self) -> Deferred[None]:
        """Take no new run; fires when the open ones have ended, which they must within 8 s (``draining``)."""
        return succeed(None) if self._ready is None else self._ready.drain()


@implementer(IPeerApplication)
class EdgeConnection:
    """One connection to the Edge, from its hello to its end."""

    _peer: IPeer

    def __init__(self, link: EdgeLink) -> None:
        self._link = link
        #: Made when the Node says that it is ready; before that nothing may be dispatched.
        self._runs: Runs | None = None
        self._replacement: IDelayedCall | None = None
        self._ended = False

    def connected(self, peer: IPeer) -> None:
        """The certificate holds: register."""
        self._peer = peer
        if peer.identity != self._link.edge:
            raise IdentityRefused("the certificate is not that of the configured Edge")
        self._link.begun()
        self._run(self._register())

    def asked(self, message: Message) -> Deferred[Message]:
        """An Edge asks nothing."""
        return fail(UnexpectedMessage("an Edge may not ask a Node anything"))

    def notified(self, message: Message) -> None:
        """Something about a run."""
        if self._runs is None:
            raise UnexpectedMessage("an Edge may not open runs before the Node is ready")
        self._runs.received(message)

    def lost(self, reason: IopError) -> None:
        """Every upstream call is closed; no key is offered here any more."""
        self._ended = True
        if self._replacement is not None and self._replacement.active():
            self._replacement.cancel()
        if self._runs is not None:
            self._runs.lost()
        self._link.ended(self)
        log.warn("node.edge.disconnected", code=reason.code, reason=reason.message)

    def supersede(self) -> None:
        """End every run, then the connection, since another one takes its place."""
        if self._runs is not None:
            self._runs.lost()
        self._peer.close(Superseded("this Node registers on another connection"))

    def prove_again(self) -> None:
        """Offer and prove the current key once more, unless that is under way."""
        if self._replacement is not None and self._replacement.active():
            self._replacement.reset(0)

    def drain(self) -> Deferred[None]:
        """See :meth:`EdgeLink.drain`; the connection is closed when its last message has left."""
        runs = self._runs
        if runs is None:
            return succeed(None)
        overdue = self._link.clock.call_later(DRAIN_RUNS_SECONDS, runs.give_up)

        def drained(_: None) -> None:
            if overdue.active():
                overdue.cancel()
            self._peer.drain()

        return runs.drain().addCallback(drained)

    @property
    def open_runs(self) -> int:
        """How many runs are open on this connection."""
        return 0 if self._runs is None else len(self._runs)

    # -- registration -------------------------------------------------------------------------------------------------

    def _run(self, steps: Coroutine[Deferred[Message], Message, None]) -> None:
        """Take steps; whatever goes wrong in them ends this connection."""
        Deferred.fromCoroutine(steps).addErrback(partial(close_for, self._peer))

    async def _register(self) -> None:
        peer, link = self._peer, self._link
        node = link.grants.node
        hello = await peer.request(
            runtime_pb2.NodeHelloRequest(node_id=node, protocol_version=PROTOCOL_VERSION), HANDSHAKE_SECONDS
        )
        if not isinstance(hello, runtime_pb2.NodeHelloResponse):
            raise UnexpectedMessage("the hello was answered by something else")
        _require(hello, "this Node")
        if hello.edge_id != link.edge.name:
            raise IdentityRefused("the Edge's hello names another Edge than its certificate")
        offered = hello.config.providers
        if len(offered) > PROVIDERS_LIMIT or len({each.provider_id for each in offered}) < len(offered):
            raise MalformedFrame("the Edge's hello names too many providers, or one twice")
        providers, refused = served(offered, link.targets)
        await self._prove()
        ready = await peer.request(
            runtime_pb2.NodeReadyRequest(
                served=providers,
                refused=[runtime_pb2.NodeProviderRefusal(provider_id=each, code=refused[each]) for each in refused],
            ),
            HANDSHAKE_SECONDS,
        )
        if not isinstance(ready, runtime_pb2.NodeReadyResponse):
            raise UnexpectedMessage("the word on readiness was answered by something else")
        _require(ready, "what this Node serves")
        self._runs = Runs(peer, link.grants, providers, link.clock, link.metrics)
        log.info("node.edge.ready", edge=link.edge.name, served=len(providers), refused=len(refused))
        for provider_id, code in refused.items():
            log.warn("node.provider.refused", provider=provider_id, code=code)
        link.opened(self)

    async def _prove(self) -> None:
        """Offer the current key and prove that this process holds its private half (N3, N4)."""
        peer, link = self._peer, self._link
        key = link.keys.current()
        offer = await peer.request(
            runtime_pb2.NodeKeyOfferRequest(public_key=key.public_key, attestation=link.attest(key)), HANDSHAKE_SECONDS
        )
        if not isinstance(offer, runtime_pb2.NodeKeyOfferResponse):
            raise UnexpectedMessage("the key offer was answered by something else")
        _require(offer, "this Node's key")
        answered = possession.answer(
            key.private_key,
            offer.sealed_challenge,
            edge=link.edge.name,
            node=link.grants.node,
            public_key=key.public_key,
            exporter=peer.exporter(possession.EXPORTER_LABEL, possession.EXPORTER_BYTES),
        )
        proof = await peer.request(
            runtime_pb2.NodeKeyProofRequest(public_key=key.public_key, answer=answered), HANDSHAKE_SECONDS
        )
        if not isinstance(proof, runtime_pb2.NodeKeyProofResponse):
            raise UnexpectedMessage("the proof was answered by something else")
        _require(proof, "this Node's proof")
        self._replace_at(key.replaced_at)

    def _replace_at(self, boot_seconds: float) -> None:
        """Offer and prove the next key when this one's time is over (N5)."""
        if not self._ended:
            wait = max(0.0, boot_seconds - self._link.clock.boot())
            self._replacement = self._link.clock.call_later(wait, lambda: self._run(self._replace()))

    async def _replace(self) -> None:
        await self._prove()
        self._link.metrics.key_replacements.inc()


def _require(answer: _Answer, what: str) -> None:
    if not answer.accepted:
        raise HelloRefused(answer.code, f"the Edge refused {what} ({answer.code})")
