"""From an authenticated request to a run on a Node: attempts, each on one pinned projection (C16, C18, L8, L9).

An attempt admits, binds, fences, gets a lease, fences again and writes the ``RunRequest``. What makes it stale ends it,
and the next one begins from the projection then in force; so it goes on until the request's deadline, and only while no
Node has started the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from iop.core import selectors
from iop.core.fences import Pinned, bind, fence, resolve
from iop.core.offers import Want
from iop.core.pool import Place
from iop.edge.leases import LeaseKey
from iop.edge.runs import NODE_LOST, IRunReceiver, Run, RunFailure, RunPlan
from iop.errors import (
    FenceRefused,
    IopError,
    LeaseRefused,
    MalformedInput,
    NoNode,
    PeerDisconnected,
    ProviderUnreachable,
    QueueLate,
    TooManyInFlight,
)

if TYPE_CHECKING:
    from iop.core.pool import Pool
    from iop.edge.authority import IAuthority, ILeases
    from iop.edge.leases import Lease
    from iop.edge.metrics import EdgeMetrics
    from iop.edge.nodes import NodeConnection, Nodes
    from iop.edge.revocation import Revocation
    from iop.interfaces import IClock
    from iop.records import Binding

#: Pause before the same question is asked again when nothing newer is known that could change its answer.
_ASK_AGAIN_SECONDS: Final = 0.1
#: Refusals that are about the one Node: another may get the request.
_ABOUT_THE_NODE: Final = frozenset({"node_denied", "attestation_refused"})

#: The code of a run that this Edge had ended before it was started, since what it was opened for has changed (R11).
_REVOKED: Final = "cancelled"
#: Ends of a run that are an answer of the provider's, whichever: it can be reached.
_ANSWERED: Final = frozenset({"upstream_redirect", "upstream_encoded_error"})
#: Ends of a run that may be about connecting to the provider; they are if nothing was sent to it.
_CONNECTING: Final = frozenset({"upstream_unreachable", "upstream_tls", "upstream_timeout"})

_log = Logger()


class RunFailed(IopError):
    """A Node ended a run before it had a response head; ``failure`` is its word."""

    code = "run_failed"

    def __init__(self, failure: RunFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Call:
    """What a caller asks for, as far as a Node will see it, and the two hashes of the caller's token.

    :ivar digest: looks the token up.
    :ivar proof: shows the Control Plane that this Edge saw the token.
    :ivar path: below the target's base URL, as the profiles list it.
    :ivar body_bytes: of the request body as the caller sent it.
    :ivar body: the request body with the model replaced by what the upstream calls it.
    """

    request_id: str
    digest: bytes = field(repr=False)
    proof: bytes = field(repr=False)
    model: str
    method: str
    path: str
    headers: Sequence[tuple[str, str]]
    body_bytes: int
    body: Callable[[str], bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A run whose response head is there, and who runs it under which generation."""

    run: Run
    node: str
    generation: int


class Attempts:
    """Gives requests to Nodes.

    :param request_seconds: how long a request may take until a Node has its run.
    :param queue_seconds: how much of that it may wait for a free Node at a time.
    :param long_context_bytes: a request with a larger body is of the long-context class.
    """

    def __init__(
        self,
        authority: IAuthority,
        pool: Pool,
        nodes: Nodes,
        leases: ILeases,
        revocation: Revocation,
        clock: IClock,
        metrics: EdgeMetrics,
        request_seconds: float,
        queue_seconds: float,
        long_context_bytes: int,
    ) -> None:
        self._authority = authority
        self._pool = pool
        self._nodes = nodes
        self._leases = leases
        self._revocation = revocation
        self._clock = clock
        self._metrics = metrics
        self._request_seconds = request_seconds
        self._queue_seconds = queue_seconds
        self._long_context_bytes = long_context_bytes

    def dispatch(self, call: Call, receiver: IRunReceiver) -> Deferred[Dispatched]:
        """Have a Node run ``call``.

        Fires with the run when its response head is there, just before ``receiver`` is given that head; cancelling the
        Deferred before then cancels whatever was begun. Fails with what keeps the request from being served; the
        receiver is not called then.
        """
        return Deferred.fromCoroutine(self._dispatch(call, receiver))

    async def _dispatch(self, call: Call, receiver: IRunReceiver) -> Dispatched:
        deadline = self._clock.boot() + self._request_seconds
        #: Why Nodes could not serve this, by name, latest last.
        failed: dict[str, IopError] = {}
        newest_refusal = 0
        while True:
            try:
                place = await self._admit(call, frozenset(failed), deadline)
            except (NoNode, ProviderUnreachable) as error:
                raise next(reversed(failed.values()), error) from None
            try:
                return await self._attempt(call, place, receiver, deadline)
            except FenceRefused as error:
                _log.debug("edge.attempt.stale", request_id=call.request_id, fields=",".join(error.fields))
            except LeaseRefused as error:
                if error.reason in _ABOUT_THE_NODE:
                    failed[place.offer.node] = error
                elif not error.again:
                    raise
                elif error.generation > newest_refusal:
                    newest_refusal = error.generation
                    await self._authority.reached(error.generation, self._left(deadline))
                else:
                    await self._pause(_ASK_AGAIN_SECONDS)
            except (PeerDisconnected, TooManyInFlight) as error:
                failed[place.offer.node] = error
            except RunFailed as error:
                if error.failure.started:
                    raise
                if error.failure.code != _REVOKED:
                    failed[place.offer.node] = error

    async def _admit(self, call: Call, avoid: frozenset[str], deadline: float) -> Place:
        """A place at a Node that serves what the request resolves to now."""
        pinned = self._pin(call)
        return await self._pool.admit(self._want(call, pinned, avoid), min(self._queue_seconds, self._left(deadline)))

    async def _attempt(self, call: Call, place: Place, receiver: IRunReceiver, deadline: float) -> Dispatched:
        """One attempt, from a place to a response head. The place is released whatever happens."""
        self._metrics.attempts.inc()
        with ExitStack() as held:
            held.callback(place.release)
            with self._metrics.fence_1.count_exceptions(FenceRefused):
                # who waited resolves again: what was asked for may have moved to another provider, or be gone
                pinned = self._pin(call)
                if not self._want(call, pinned, frozenset()).fits(place.offer):
                    raise FenceRefused(("target",))
                connection = self._connection(place.offer.node)
                key = connection.key
                binding = bind(pinned.route, place.offer.node, pinned.projection.generation)
                self._fence(binding, pinned, place)
            _log_routed(call, binding)
            lease_key = LeaseKey(binding, pinned.token.token_id, key.public_key)
            lease = await self._leases.get(call.request_id, lease_key, call.proof, key.attestation)
            if lease is not None and not lease.cached:
                _log_acquired(call, binding, lease)
            plan = _plan(call, place, lease_key, lease)
            body = call.body(pinned.route.upstream_model)
            relay = _Relay(receiver, place)
            self._left(deadline)
            # the second fence and the frame are one step: nothing can come between them
            with self._metrics.fence_2.count_exceptions(FenceRefused):
                self._fence(binding, pinned, place)
                if self._connection(place.offer.node) is not connection:
                    raise FenceRefused(("node",))
            relay.run = run = connection.runs.open(plan, body, relay)
            held.pop_all()
            if lease is not None:
                relay.settled = self._revocation.watch(run, pinned, lease_key, lease.expires_ms)
            if run.ended:
                # writing the body ended the connection
                relay.settled(True)
        lasted = self._lasts(lease)
        try:
            await relay.begun
        except RunFailed as error:
            if error.failure.code == "lease_refused":
                self._leases.discard(lease_key)
                if lasted and not self._lasts(lease):
                    # it ended before the Node could start: nothing against the Node, which gets the next one (R2)
                    raise FenceRefused(("lease",)) from error
            raise
        return Dispatched(run, binding.node, binding.generation)

    def _pin(self, call: Call) -> Pinned:
        return resolve(self._authority.projection(), call.digest, call.model, self._clock.wall_ms())

    def _want(self, call: Call, pinned: Pinned, avoid: frozenset[str]) -> Want:
        route = pinned.route
        try:
            selector = selectors.parse(route.selector)
        except MalformedInput as error:
            raise NoNode("the route's selector cannot be read, so no Node matches it") from error
        return Want(
            pinned.token.principal,
            route.profile,
            route.target,
            route.upstream_model,
            selector,
            avoid,
            is_long=call.body_bytes > self._long_context_bytes,
        )

    def _fence(self, binding: Binding, pinned: Pinned, place: Place) -> None:
        current = self._authority.projection()
        fence(binding, pinned.token.token_id, place.offer.node, pinned, current, self._clock.wall_ms())

    def _connection(self, node: str) -> NodeConnection:
        connection = self._nodes.ready(node)
        if connection is None:
            raise FenceRefused(("node",))
        return connection

    def _lasts(self, lease: Lease | None) -> bool:
        """Whether the run's lease, if it has one, is one that its Node takes now."""
        return lease is None or lease.lasts(self._clock.wall_ms())

    def _left(self, deadline: float) -> float:
        """Seconds of the request's deadline that are left, more than 0."""
        left = deadline - self._clock.boot()
        if left <= 0:
            raise QueueLate("no Node had the request in time", hint="try again")
        return left

    def _pause(self, seconds: float) -> Deferred[None]:
        pause: Deferred[None] = Deferred(lambda _: timer.cancel())
        timer = self._clock.call_later(seconds, lambda: pause.callback(None))
        return pause


@implementer(IRunReceiver)
class _Relay:
    """Stands between a run and its caller until the response head: before that the run may go to another Node."""

    run: Run

    def __init__(self, receiver: IRunReceiver, place: Place) -> None:
        self._receiver = receiver
        self._place = place
        #: Fires at the head; fails with :class:`RunFailed`. Cancelling it cancels the run.
        self.begun: Deferred[None] = Deferred(lambda _: self.run.cancel())
        #: Called at the run's head or end, with whether that was the end of its connection.
        self.settled: Callable[[bool], None] = lambda is_lost: None
        self._has_head = False

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self._has_head = True
        self.settled(False)
        self._reached()
        self.begun.callback(None)
        self._receiver.head(status, headers)

    def data(self, data: bytes) -> None:
        self._receiver.data(data)

    def finished(self) -> None:
        self._place.release()
        self._receiver.finished()

    def failed(self, failure: RunFailure) -> None:
        if failure.code in _ANSWERED:
            self._reached()
        elif failure.code in _CONNECTING and not failure.started and self._place.unreachable():
            _log.warn("edge.provider.unreachable", node=self._place.offer.node, provider=self._place.offer.provider_id)
        # also after a cancel: only now is the Node's capacity really free
        self._place.release()
        self.settled(failure.code == NODE_LOST)
        if self._has_head:
            self._receiver.failed(failure)
        elif not self.begun.called:
            self.begun.errback(RunFailed(failure))

    def _reached(self) -> None:
        if self._place.reached():
            _log.info("edge.provider.reached", node=self._place.offer.node, provider=self._place.offer.provider_id)


def _plan(call: Call, place: Place, key: LeaseKey, lease: Lease | None) -> RunPlan:
    return RunPlan(
        request_id=call.request_id,
        lease=None if lease is None else lease.sealed,
        binding=key.binding,
        token_id=key.token_id,
        provider_id=place.offer.provider_id,
        method=call.method,
        path=call.path,
        headers=call.headers,
    )


def _log_routed(call: Call, binding: Binding) -> None:
    _log.info(
        "edge.request.routed",
        request_id=call.request_id,
        principal=binding.principal,
        model=call.model,
        route=binding.route,
        slot=binding.slot,
        node=binding.node,
        generation=binding.generation,
    )


def _log_acquired(call: Call, binding: Binding, lease: Lease) -> None:
    _log.info(
        "edge.lease.acquired",
        request_id=call.request_id,
        node=binding.node,
        bytes=lease.sealed.ByteSize(),
    )
