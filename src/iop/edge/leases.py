"""Sealed leases: asked for once, used until they end (rule L10). The Edge cannot open one (P6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure
from zope.interface import implementer

from iop.edge.authority import ILeases
from iop.errors import ControlPlaneUnavailable, IopError, LeaseRefused, MalformedFrame
from iop.interfaces import IClock
from iop.process.metrics import OTHER
from iop.records import Binding
from iop.units import LEASE_TTL_CAP_SECONDS, SKEW_SECONDS
from iop.wire import control_pb2, runtime_pb2
from iop.wire.convert import binding_from_wire, binding_to_wire
from iop.wire.strict import parse_strict

if TYPE_CHECKING:
    from iop.edge.metrics import EdgeMetrics

#: A cached lease is not used in its last seconds: the Node must still find it valid when it arrives.
_MARGIN_MS: Final = int(SKEW_SECONDS * 1000)
_TTL_CAP_MS: Final = int(LEASE_TTL_CAP_SECONDS * 1000)

Acquire = Callable[[control_pb2.AcquireLeaseRequest], Coroutine[Deferred[Any], Any, runtime_pb2.SealedLease]]


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """What a lease is good for: exactly this binding, this token, this recipient key."""

    binding: Binding
    token_id: str
    public_key: bytes


@dataclass(slots=True)
class _Question:
    """A lease that was asked for.

    :ivar shares: the requests that wait for it.
    :ivar keep: whether later ones may use it.
    """

    shares: list[Deferred[Lease | None]]
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Lease:
    """A sealed lease; ``cached`` says that it served an earlier request already, ``expires_ms`` when it ends."""

    sealed: runtime_pb2.SealedLease = field(repr=False)
    expires_ms: int
    cached: bool

    def lasts(self, now_ms: int) -> bool:
        """Whether a Node, its clock being within the skew, still takes it at ``now_ms``."""
        return now_ms < self.expires_ms - _MARGIN_MS


@implementer(ILeases)
class Leases:
    """The cache, and the one place that asks for leases.

    :param acquire: asks the Control Plane.
    :param deployment: what a lease must name, with ``edge``.
    :param limit: leases kept at most; the least recently used go first.
    """

    def __init__(
        self, acquire: Acquire, clock: IClock, metrics: EdgeMetrics, deployment: str, edge: str, limit: int
    ) -> None:
        self._acquire = acquire
        self._clock = clock
        self._metrics = metrics
        self._deployment = deployment
        self._edge = edge
        self._limit = limit
        #: With the time in Unix milliseconds until which each is kept.
        self._kept: OrderedDict[LeaseKey, tuple[Lease, int]] = OrderedDict()
        self._asked: dict[LeaseKey, _Question] = {}

    def __len__(self) -> int:
        """How many leases are kept."""
        return len(self._kept)

    def get(
        self, request_id: str, key: LeaseKey, token_proof: bytes, attestation: runtime_pb2.NodeKeyAttestation
    ) -> Deferred[Lease | None]:
        """A lease for ``key``; requests that miss it at the same time share one question.

        :param attestation: what the Node's certificate signed about the recipient key.

        Cancelling the Deferred gives up this request's share only. Fails as :meth:`ControlLink.acquire`.
        """
        kept = self._kept.get(key)
        if kept is not None:
            lease, usable_until_ms = kept
            if self._clock.wall_ms() < usable_until_ms:
                self._kept.move_to_end(key)
                self._metrics.leases_cached.inc()
                return succeed(replace(lease, cached=True))
            del self._kept[key]
        # without a canceller of its own: one that was cancelled swallows the answer that comes later
        share: Deferred[Lease | None] = Deferred()
        if key in self._asked:
            self._asked[key].shares.append(share)
            return share
        self._asked[key] = _Question([share])
        asking = Deferred.fromCoroutine(
            self._ask(
                key,
                control_pb2.AcquireLeaseRequest(
                    request_id=request_id,
                    binding=binding_to_wire(key.binding),
                    token_id=key.token_id,
                    token_proof=token_proof,
                    recipient_public_key=key.public_key,
                    attestation=attestation,
                ),
            )
        )
        asking.addBoth(self._settle, key)
        return share

    def discard(self, key: LeaseKey) -> None:
        """Forget a lease that its Node would not take."""
        self._kept.pop(key, None)

    def forget_before(self, generation: int) -> None:
        """A projection of ``generation`` is in force: no request can be bound to an older one any more."""
        self._forget(lambda key: key.binding.generation < generation)

    def forget_node(self, node: str) -> None:
        """``node`` is gone, perhaps with the process that holds the recipient key."""
        self._forget(lambda key: key.binding.node == node)

    def forget_key(self, node: str, keep: bytes) -> None:
        """``node`` proved the key ``keep``: no request is sealed to another one of its keys any more."""
        self._forget(lambda key: key.binding.node == node and key.public_key != keep)

    def flush(self) -> int:
        """Forget every lease; answers how many were kept."""
        return self._forget(lambda _: True)

    def _forget(self, useless: Callable[[LeaseKey], bool]) -> int:
        """Drop what is kept and ``useless``, and do not keep what was asked for and is; answers how many dropped."""
        for key, question in self._asked.items():
            if useless(key):
                question.keep = False
        dropped = [key for key in self._kept if useless(key)]
        for key in dropped:
            del self._kept[key]
        return len(dropped)

    async def _ask(self, key: LeaseKey, request: control_pb2.AcquireLeaseRequest) -> Lease:
        sealed = await self._acquire(request)
        expires_ms = self._checked_expiry(key, sealed)
        lease = Lease(sealed, expires_ms, cached=False)
        usable_until_ms = min(expires_ms, self._clock.wall_ms() + _TTL_CAP_MS) - _MARGIN_MS
        if self._asked[key].keep and usable_until_ms > self._clock.wall_ms():
            self._kept[key] = (lease, usable_until_ms)
            if len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        return lease

    def _checked_expiry(self, key: LeaseKey, sealed: runtime_pb2.SealedLease) -> int:
        """When the lease ends, if it says what was asked for. Its signature is the Node's to check (L7)."""
        try:
            statement = parse_strict(runtime_pb2.LeaseStatement, sealed.statement)
            named = LeaseKey(binding_from_wire(statement.binding), statement.token_id, statement.recipient_public_key)
        except MalformedFrame as error:
            raise ControlPlaneUnavailable("the lease is malformed") from error
        if (named, statement.deployment_id, statement.edge) != (key, self._deployment, self._edge):
            raise ControlPlaneUnavailable("the lease is not the one that was asked for")
        return statement.expires_ms

    def _settle(self, outcome: Lease | Failure, key: LeaseKey) -> None:
        shares = self._asked.pop(key).shares
        if isinstance(outcome, Lease):
            self._metrics.leases_acquired.inc(len(shares))
        else:
            self._metrics.lease_refusals.count(_reason(outcome.value))
        for share in shares:
            if isinstance(outcome, Failure):
                share.errback(outcome)
            else:
                share.callback(outcome)


def _reason(error: BaseException | None) -> str:
    """Why there is no lease: the Control Plane's reason, or a code of this Edge's own."""
    if isinstance(error, LeaseRefused):
        return error.reason
    return error.code if isinstance(error, IopError) else OTHER
