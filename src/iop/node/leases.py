"""What a Node checks before a run may touch anything, and the opening of its lease (R2, P5, P12)."""

from __future__ import annotations

from dataclasses import dataclass, field

from iop.crypto.issuer import PinnedIssuers
from iop.crypto.lease import OpenedLease, open_lease
from iop.crypto.node_keys import NodeKeys
from iop.errors import CannotOpen, MalformedFrame
from iop.interfaces import IClock
from iop.node.targets import Provider
from iop.wire import runtime_pb2
from iop.wire.convert import binding_from_wire


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

    def open(self, request: runtime_pb2.RunRequest, provider: Provider, edge: str) -> OpenedLease:
        """Check that the request is one its lease may be used for, by this Node and for this provider; then open it.

        :param edge: name in the certificate of the Edge that asks.
        :raises CannotOpen: for every reason, the same each time.
        """
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
        return open_lease(
            self.pinned,
            request.lease,
            now_ms=self.clock.wall_ms(),
            skew_ms=self.skew_ms,
            find_private_key=self.keys.find,
            deployment_id=self.deployment_id,
            trust_domain=self.trust_domain,
            edge=edge,
            node=self.node,
            binding=binding,
            token_id=request.token_id,
        )
