"""``node.toml``: what a Node is told. Where providers are called stands here and nowhere else (N2, P17)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from iop.core.profiles import NO_CREDENTIAL, PROFILES, Profile, profile_name
from iop.errors import BadConfig
from iop.net.target import parse_target
from iop.process.config import ClientEndpoint, ConfigPath, Name, RoleConfig, ServerName, Strict, TlsTable
from iop.process.config import load as load_strict
from iop.units import SKEW_CAP_SECONDS, SKEW_SECONDS, Role


def _base_url(text: str) -> str:
    try:
        parse_target(text)
    except BadConfig as error:
        raise ValueError(f"{error.message}: {error.hint}") from error
    return text


class NodeTable(Strict):
    """``[node]``: the name in this process's certificate."""

    name: Name


class EdgeTable(Strict):
    """``[edge]``: where to dial, whose certificate is accepted there, and the server name in it."""

    endpoint: ClientEndpoint
    name: Name
    server_name: ServerName


class IssuersTable(Strict):
    """``[issuers]``: the mounted file with the public lease issuer keys that this Node believes (L7)."""

    pinned: ConfigPath


class CredentialPlaneTable(Strict):
    """``[credential_plane]``: whether every run brings a lease, or in legacy mode none does (E17)."""

    enabled: bool


class TargetTable(Strict):
    """``[targets.NAME]``: one place this Node may call.

    ``header`` and ``scheme`` say where the credential goes, for profile ``openai-compatible`` alone.
    """

    base_url: Annotated[str, AfterValidator(_base_url)]
    profiles: Annotated[tuple[Annotated[str, AfterValidator(profile_name)], ...], Field(min_length=1, max_length=8)]
    #: PEM file with the only authorities trusted for this target; the system's without it.
    trust: ConfigPath | None = None
    header: str | None = None
    scheme: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> TargetTable:
        self.allowed()
        return self

    def allowed(self) -> dict[str, Profile]:
        """The profiles allowed here, by name, with this target's header and scheme."""
        return {name: self._placed(PROFILES[name]) for name in self.profiles}

    def _placed(self, profile: Profile) -> Profile:
        if self.header is None and self.scheme is None:
            return profile
        return profile.placed(
            profile.header if self.header is None else self.header,
            profile.scheme if self.scheme is None else self.scheme,
        )


class LimitsTable(Strict):
    """``[limits]``: defaults and hard caps of ``docs/limits.md``."""

    skew_seconds: Annotated[float, Field(ge=0, le=SKEW_CAP_SECONDS)] = SKEW_SECONDS
    connect_seconds: Annotated[float, Field(ge=0.1, le=60)] = 10.0
    first_byte_seconds: Annotated[float, Field(ge=0.1, le=3600)] = 600.0
    idle_seconds: Annotated[float, Field(ge=0.1, le=3600)] = 120.0


class NodeConfig(RoleConfig):
    """The whole file."""

    node: NodeTable
    tls: TlsTable
    edge: EdgeTable
    #: None in legacy mode, where no lease is believed.
    issuers: IssuersTable | None = None
    credential_plane: CredentialPlaneTable = CredentialPlaneTable(enabled=True)
    targets: Annotated[dict[Name, TargetTable], Field(min_length=1, max_length=64)]
    limits: LimitsTable = LimitsTable()

    @model_validator(mode="after")
    def _one_mode(self) -> NodeConfig:
        if self.credential_plane.enabled and self.issuers is None:
            raise ValueError(
                "[issuers] pinned: is missing; name the file of the issuers whose leases count here, or set"
                " [credential_plane] enabled = false for a Node that takes runs without leases"
            )
        if not self.credential_plane.enabled:
            self._check_legacy()
        return self

    def _check_legacy(self) -> None:
        if self.issuers is not None:
            raise ValueError("[issuers] is for managed mode: remove it, or set [credential_plane] enabled = true")
        for name, target in self.targets.items():
            if target.profiles != (NO_CREDENTIAL,):
                # the Edge would be told that they are served, and every run of theirs be refused (N6)
                raise ValueError(
                    f'[targets.{name}] profiles: without the credential plane it must be ["{NO_CREDENTIAL}"];'
                    " write that, or set [credential_plane] enabled = true"
                )


def load(path: Path) -> NodeConfig:
    """Read ``node.toml``.

    :raises BadConfig: as :func:`iop.process.config.load`.
    """
    return load_strict(path, NodeConfig, Role.NODE)
