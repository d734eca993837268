"""Where a Node may call, and how: the targets of its own configuration, and which providers it can serve (N6, P17)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from twisted.internet.interfaces import IReactorTCP

from iop.core.profiles import PROFILES, Profile
from iop.interfaces import IClock
from iop.net.target import parse_target
from iop.net.tls import ClientConnections, ReloadableClient, web_client
from iop.net.upstream import IUpstream, Upstream, UpstreamLimits
from iop.node.config import LimitsTable, TargetTable
from iop.wire import runtime_pb2


@dataclass(frozen=True, slots=True)
class Target:
    """One place this Node may call.

    :ivar profiles: the profiles allowed there, by name, with the target's own header and scheme where it sets them.
    :ivar upstream: calls the target's base URL and nothing else.
    :ivar tls: how ``upstream`` verifies an ``https`` target.
    """

    name: str
    profiles: Mapping[str, Profile]
    upstream: IUpstream
    tls: ReloadableClient | None = None

    def renew(self, tls: ClientConnections) -> None:
        """Verify the target by ``tls`` from now on; calls that run go on."""
        if self.tls is not None:
            self.tls.current = tls
            self.upstream.renew()


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider of the Edge's catalogue that this Node serves: a profile at a target."""

    provider_id: str
    target: Target
    profile: Profile


def read_trust(tables: Mapping[str, TargetTable]) -> dict[str, ClientConnections]:
    """How each configured ``https`` target is verified, by its name.

    :raises FileRefused: if a trust file is not what it should be.
    """
    places = {name: parse_target(table.base_url) for name, table in tables.items()}
    return {
        name: web_client(place.server_name, tables[name].trust)
        for name, place in places.items()
        if place.scheme == "https"
    }


def build_targets(
    tables: Mapping[str, TargetTable],
    verified: Mapping[str, ClientConnections],
    limits: LimitsTable,
    clock: IClock,
    reactor: IReactorTCP,
) -> dict[str, Target]:
    """Every configured target, ready to be called.

    :param verified: what :func:`read_trust` read.
    """
    upstream_limits = UpstreamLimits(
        connect_seconds=limits.connect_seconds,
        first_byte_seconds=limits.first_byte_seconds,
        between_bytes_seconds=limits.idle_seconds,
    )

    def build(name: str, table: TargetTable) -> Target:
        place = parse_target(table.base_url)
        tls = ReloadableClient(verified[name]) if name in verified else None
        return Target(name, table.allowed(), Upstream(reactor, clock, place, tls, upstream_limits), tls)

    return {name: build(name, table) for name, table in tables.items()}


def why_refused(target: str, profile: str, allowed: Mapping[str, Container[str]]) -> str | None:
    """The code of a Node's refusal of a provider, None if it serves it (N6).

    :param allowed: the profiles that the Node allows, by target.
    """
    if target not in allowed:
        return "unknown_target"
    if profile not in PROFILES:
        return "unknown_profile"
    return None if profile in allowed[target] else "profile_mismatch"


def served(
    offered: Iterable[runtime_pb2.NodeProvider], targets: Mapping[str, Target]
) -> tuple[dict[str, Provider], dict[str, str]]:
    """Sort offered providers into those this Node serves and those it refuses, with the code of each refusal (N6)."""
    allowed = {name: target.profiles for name, target in targets.items()}
    providers: dict[str, Provider] = {}
    refused: dict[str, str] = {}
    for offer in offered:
        refusal = why_refused(offer.target, offer.profile, allowed)
        if refusal is not None:
            refused[offer.provider_id] = refusal
        else:
            target = targets[offer.target]
            providers[offer.provider_id] = Provider(offer.provider_id, target, target.profiles[offer.profile])
    return providers, refused
