"""What a Node checks before a run may touch anything, and the opening of its lease (R2, E17, P5, P12)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from zope.interface import Attribute, Interface, implementer

from iop.core.profiles import NO_CREDENTIAL
from iop.crypto.issuer import PinnedIssuers
from iop.crypto.lease import open_lease
from iop.crypto.node_keys import NodeKeys
from iop.errors import CannotOpen, MalformedFrame
from iop.interfaces import IClock
from iop.node.targets import Provider
from iop.records import Binding
from iop.secret import Secret
from iop.wire import runtime_pb2
from iop.wire.convert import binding_from_wire


@dataclass(frozen=True, slots=True)
class Grant:
    """That a run may begin.

    :ivar secret: the provider's credential, empty where none is sent; whoever is given it disposes of it.
    :ivar lease_id: of the lease that it came in; empty without one.
    :ivar start_by: boot time in seconds from which on nothing may be sent upstream for the first time.
    """

    secret: Secret = field(repr=False)
    lease_id: str
    start_by: float


class IGrants(Interface):
    """Says which runs may begin: by their leases, or in legacy mode without."""

    node: str = Attribute("This Node's name.")

    def open(request: runtime_pb2.RunRequest, provider: Provider, edge: str) -> Grant:
        """Check that the request may be sent to ``provider``; :class:`~iop.errors.CannotOpen` for every reason.

        :param edge: name in the certificate of the Edge that asks.
        """


@implementer(IGrants)
@dataclass(slots=True)
class Leases:
    """Opens leases that are for this Node, for the run that brought them.

    :ivar pinned: the issuers whose leases count; may be replaced at any time.
    :ivar keys: the keys of this process.
    :ivar skew_ms: how much later than this Node's clock a lease may begin.
    :ivar node: this Node's name.
    """

    pinned: PinnedIssuers
    keys: NodeKeys = field(repr=False)
    clock: IClock
    skew_ms: int
    deployment_id: str
    trust_domain: str
    node: str

    def open(self, request: runtime_pb2.RunRequest, provider: Provider, edge: str) -> Grant:
        """Check that the request is one its lease may be used for, by this Node and for this provider; then open it.

        :param edge: name in the certificate of the Edge that asks.
        :raises CannotOpen: for every reason, the same each time.
        """
        binding = _checked(request, provider)
        now_ms = self.clock.wall_ms()
        lease = open_lease(
            self.pinned,
            request.lease,
            now_ms=now_ms,
            skew_ms=self.skew_ms,
            find_private_key=self.keys.find,
            deployment_id=self.deployment_id,
            trust_domain=self.trust_domain,
            edge=edge,
            node=self.node,
            binding=binding,
            token_id=request.token_id,
        )
        start_by = self.clock.boot() + (lease.statement.expires_ms - now_ms) / 1000
        return Grant(lease.secret, lease.statement.lease_id, start_by)


@implementer(IGrants)
@dataclass(frozen=True, slots=True)
class Leaseless:
    """Legacy mode: takes runs without lease, for providers that need no credential; opens nothing (E17, C25).

    :ivar node: this Node's name.
    """

    node: str

    def open(self, request: runtime_pb2.RunRequest, provider: Provider, edge: str) -> Grant:
        """Check that the request has no lease and its provider sends no credential.

        :raises CannotOpen: for every reason, the same each time.
        """
        if (
            request.HasField("lease")
            or provider.profile.name != NO_CREDENTIAL
            or _checked(request, provider).node != self.node
        ):
            raise CannotOpen
        return Grant(Secret(b""), "", inf)


def _checked(request: runtime_pb2.RunRequest, provider: Provider) -> Binding:
    """What the request is bound to, if that is this provider and a call that its profile lists (P17)."""
    try:
        binding = binding_from_wire(request.binding)
    except MalformedFrame:
        raise CannotOpen from None
    if (
        binding.profile != provider.profile.name
        or binding.target != provider.target.name
        or not provider.profile.allows(request.method, request.path)
    ):
        raise CannotOpen
    return binding
