"""``control-plane.toml``: what a Control Plane is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, field_validator, model_validator

from iop.process.config import ConfigPath, Name, RoleConfig, ServerEndpoint, Strict
from iop.process.config import load as load_strict
from iop.units import (
    LEASE_TTL_CAP_SECONDS,
    LEASE_TTL_SECONDS,
    PROJECTION_ACK_SECONDS,
    SKEW_CAP_SECONDS,
    SKEW_SECONDS,
    SOCKET_PATH_LIMIT,
    Role,
    fits_socket,
)


class ControlPlaneTable(Strict):
    """``[control_plane]``: the name in this process's certificate."""

    name: Name


class StoreTable(Strict):
    """``[store]``: the SQLite database."""

    path: ConfigPath


class KeysTable(Strict):
    """``[keys]``: mounted files (K15): at-rest keyring, lease issuer's private key, and the public set Nodes pin."""

    keyring: ConfigPath
    issuer: ConfigPath
    pinned_issuers: ConfigPath


class CredentialPlaneTable(Strict):
    """``[credential_plane]``: managed mode, which needs the mTLS boundary of ``[edge_wire]`` (C7, C10)."""

    enabled: bool


class EdgeWireTable(Strict):
    """``[edge_wire]``: where Edges connect, over TLS 1.3 mTLS."""

    listen: ServerEndpoint
    certificate: ConfigPath
    key: ConfigPath
    trust: ConfigPath


class CredentialHttpsTable(Strict):
    """``[credential_https]``: the dedicated HTTPS listener for slots and routes (K9)."""

    listen: ServerEndpoint
    certificate: ConfigPath
    key: ConfigPath


class OperatorTable(Strict):
    """``[operator]``: the Unix socket for people of this machine; without it there is none."""

    socket: ConfigPath

    @field_validator("socket")
    @classmethod
    def _short(cls, path: Path) -> Path:
        if not fits_socket(path):
            raise ValueError(f"must be at most {SOCKET_PATH_LIMIT} bytes long, folders included")
        return path


class LeaseTable(Strict):
    """``[lease]``: how long a lease lives, how far clocks may differ, how long an Edge may take to acknowledge."""

    ttl_seconds: Annotated[float, Field(ge=5, le=LEASE_TTL_CAP_SECONDS)] = LEASE_TTL_SECONDS
    skew_seconds: Annotated[float, Field(ge=0, le=SKEW_CAP_SECONDS)] = SKEW_SECONDS
    acknowledge_seconds: Annotated[float, Field(ge=0.1, le=8)] = PROJECTION_ACK_SECONDS

    @property
    def window_ms(self) -> int:
        """How long after a commit an Edge that was cut off could still use what it held: TTL + skew."""
        return int((self.ttl_seconds + self.skew_seconds) * 1000)


class ControlPlaneConfig(RoleConfig):
    """The whole file."""

    environment: ClassVar[Mapping[str, tuple[str, str]]] = {"IOP_EDGE_WIRE_LISTEN": ("edge_wire", "listen")}

    control_plane: ControlPlaneTable
    store: StoreTable
    keys: KeysTable
    credential_plane: CredentialPlaneTable
    edge_wire: EdgeWireTable
    credential_https: CredentialHttpsTable
    operator: OperatorTable | None = None
    lease: LeaseTable = LeaseTable()

    @model_validator(mode="after")
    def _managed(self) -> ControlPlaneConfig:
        if not self.credential_plane.enabled:
            raise ValueError("[credential_plane] enabled must be true; a Control Plane without it does nothing yet")
        return self


def load(path: Path) -> ControlPlaneConfig:
    """Read ``control-plane.toml``.

    :raises BadConfig: as :func:`iop.process.config.load`.
    """
    return load_strict(path, ControlPlaneConfig, Role.CONTROL_PLANE)
