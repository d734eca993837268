"""The parts of one Control Plane, wired on whatever store, keys and clock it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iop.control_plane.commands import CommandDesk
from iop.control_plane.credential_api import CredentialApi
from iop.control_plane.edges import Edges
from iop.control_plane.events import Events
from iop.control_plane.generation import GenerationWatch
from iop.control_plane.leases import LeaseDesk, LeaseScope, Unseal
from iop.control_plane.mutations import Mutations
from iop.control_plane.operator import OperatorApi
from iop.control_plane.pages import Pages
from iop.control_plane.projections import Publisher
from iop.control_plane.status import Statuses
from iop.crypto.at_rest import open_secret
from iop.process.garbage import spare_what_is_there

if TYPE_CHECKING:
    from collections.abc import Callable

    from iop.control_plane.config import ControlPlaneConfig
    from iop.control_plane.metrics import ControlPlaneMetrics
    from iop.crypto.attestation import AttestationVerifier
    from iop.crypto.issuer import Issuer, PinnedIssuers
    from iop.crypto.keyring import Keyring
    from iop.interfaces import IClock, IStore


@dataclass(frozen=True, slots=True)
class Keys:
    """What a Control Plane holds that nobody else does, and whom it trusts."""

    keyring: Keyring
    issuer: Issuer
    pinned: PinnedIssuers
    verifier: AttestationVerifier


@dataclass(frozen=True, slots=True)
class Plane:
    """A running Control Plane without its listeners."""

    store: IStore
    edges: Edges
    watch: GenerationWatch
    mutations: Mutations
    api: CredentialApi
    commands: CommandDesk
    events: Events
    operator: OperatorApi

    def trust(self, pinned: PinnedIssuers, verifier: AttestationVerifier) -> None:
        """Judge receipts and attestations by these from now on; the verdicts that were remembered are gone."""
        self.edges.pinned = pinned
        self.edges.desk.verifier = verifier


def build_plane(
    config: ControlPlaneConfig,
    store: IStore,
    keys: Keys,
    clock: IClock,
    metrics: ControlPlaneMetrics,
    unseal: Unseal = open_secret,
    spare: Callable[[], None] = spare_what_is_there,
) -> Plane:
    """Build and wire; nothing is started.

    :param unseal: opens stored secrets.
    :param spare: keeps the garbage collector of this process from what was read whole.
    """
    deployment, lease = config.deployment, config.lease
    desk = LeaseDesk(
        scope=LeaseScope(deployment.id, deployment.trust_domain, int(lease.ttl_seconds * 1000)),
        authority=store.leases,
        audit=store.audit,
        verifier=keys.verifier,
        keyring=keys.keyring,
        issuer=keys.issuer,
        clock=clock,
        metrics=metrics,
        unseal=unseal,
    )
    events = Events(clock, metrics)
    edges = Edges(
        store=store,
        publisher=Publisher(store.projections, keys.issuer, deployment.id, clock, Pages(), spare),
        desk=desk,
        events=events,
        pinned=keys.pinned,
        clock=clock,
        deployment_id=deployment.id,
        acknowledge_seconds=lease.acknowledge_seconds,
    )
    mutations = Mutations(
        store=store,
        edges=edges,
        clock=clock,
        metrics=metrics,
        window_ms=lease.window_ms,
        acknowledge_seconds=lease.acknowledge_seconds,
    )
    commands = CommandDesk(store.audit, edges, events, metrics)
    watch = GenerationWatch(store, edges, clock)
    metrics.watch(edges, watch, store.audit)
    return Plane(
        store=store,
        edges=edges,
        watch=watch,
        mutations=mutations,
        api=CredentialApi(
            store=store,
            mutations=mutations,
            keyring=keys.keyring,
            clock=clock,
            metrics=metrics,
            deployment_id=deployment.id,
        ),
        commands=commands,
        events=events,
        operator=OperatorApi(edges, Statuses(edges, clock), commands, events),
    )
