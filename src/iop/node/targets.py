"""Where a Node may call, and how: the targets of its own configuration, and which providers it can serve (N6, P17)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from iop.core.profiles import PROFILES, Profile
from iop.net.upstream import IUpstream
from iop.wire import runtime_pb2


@dataclass(frozen=True, slots=True)
class Target:
    """One place this Node may call.

    :ivar profiles: the profiles allowed there, by name, with the target's own header and scheme where it sets them.
    :ivar upstream: calls the target's base URL and nothing else.
    """

    name: str
    profiles: Mapping[str, Profile]
    upstream: IUpstream


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider of the Edge's catalogue that this Node serves: a profile at a target."""

    provider_id: str
    target: Target
    profile: Profile


def served(
    offered: Iterable[runtime_pb2.NodeProvider], targets: Mapping[str, Target]
) -> tuple[dict[str, Provider], dict[str, str]]:
    """Sort offered providers into those this Node serves and those it refuses, with the code of each refusal (N6)."""
    providers: dict[str, Provider] = {}
    refused: dict[str, str] = {}
    for offer in offered:
        target = targets.get(offer.target)
        if target is None:
            refused[offer.provider_id] = "unknown_target"
        elif offer.profile not in PROFILES:
            refused[offer.provider_id] = "unknown_profile"
        elif offer.profile not in target.profiles:
            refused[offer.provider_id] = "profile_mismatch"
        else:
            providers[offer.provider_id] = Provider(offer.provider_id, target, target.profiles[offer.profile])
    return providers, refused
