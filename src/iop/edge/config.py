"""``edge.toml``: what an Edge is told. Its catalogue of Nodes and providers stands here and nowhere else (C2, C47)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from iop.core.flow import WINDOW_CAP
from iop.core.offers import ANY_MODEL, Offer
from iop.core.profiles import NO_CREDENTIAL, profile_name
from iop.core.selectors import RESERVED_KEYS, is_label_part
from iop.process.config import (
    ClientEndpoint,
    ConfigPath,
    LoopbackEndpoint,
    Name,
    RoleConfig,
    ServerEndpoint,
    ServerName,
    Strict,
    TlsTable,
)
from iop.process.config import load as load_strict
from iop.units import (
    BODY_PIECE,
    LEASE_CALL_SECONDS,
    MODEL_LIMIT,
    NODE_WORD_SECONDS,
    REQUEST_DEADLINE_SECONDS,
    RUN_WINDOW,
    Role,
)

_MEBI = 1024 * 1024
_KIBI = 1024
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
#: Routes of an Edge in legacy mode at most: as many as a Control Plane has room for.
LEGACY_ROUTES_LIMIT = 100_000


def _label(text: str) -> str:
    if not is_label_part(text):
        raise ValueError("must be 1-63 of A-Z a-z 0-9 . _ / -")
    return text


def _digest(text: str) -> str:
    if not _DIGEST.match(text):
        raise ValueError("must be 64 of 0-9 a-f, as `iop edge caller` prints them with the token")
    return text


def _label_key(text: str) -> str:
    if text in RESERVED_KEYS:
        raise ValueError(f"{text} cannot be a label: selectors of commands name a Node or a provider with it")
    return text


Label = Annotated[str, AfterValidator(_label)]
Labels = Annotated[dict[Annotated[Label, AfterValidator(_label_key)], Label], Field(max_length=32)]
Model = Annotated[str, StringConstraints(min_length=1, max_length=MODEL_LIMIT)]


class EdgeTable(Strict):
    """``[edge]``: the name in this process's certificate."""

    name: Name


class ControlPlaneTable(Strict):
    """``[control_plane]``: where to dial, whose certificate is accepted there, and the server name in it (C9)."""

    endpoint: ClientEndpoint
    name: Name
    server_name: ServerName


class ApiTable(Strict):
    """``[api]``: the OpenAI-compatible listener; without certificate and key it is plain HTTP, on loopback only."""

    listen: ServerEndpoint
    certificate: ConfigPath | None = None
    key: ConfigPath | None = None

    @model_validator(mode="after")
    def _served_over_tls(self) -> ApiTable:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together: give both, or neither")
        if self.certificate is None:
            try:
                TypeAdapter(LoopbackEndpoint).validate_python(self.listen)
            except ValidationError:
                raise ValueError("plain HTTP is for loopback only: give certificate and key") from None
        return self


class NodeWireTable(Strict):
    """``[node_wire]``: where Nodes connect, over TLS 1.3 mTLS with the files of ``[tls]``."""

    listen: ServerEndpoint


class CallerTable(Strict):
    """``[[callers]]``: who is served in legacy mode (E17): a name, and SHA-256 of the caller's whole token in hex."""

    name: Name
    sha256: Annotated[str, AfterValidator(_digest), Field(repr=False)]


class StateTable(Strict):
    """``[state]``: the folder that keeps the receipt of the projection in force (P7)."""

    directory: ConfigPath


class CredentialPlaneTable(Strict):
    """``[credential_plane]``: managed mode, which needs the mTLS of ``[tls]`` and ``[control_plane]`` (C10).

    Without it the Edge is in legacy mode and serves ``[[callers]]`` (E16, E17).
    """

    enabled: bool


def _whole_capacity(fields: dict[str, int]) -> int:
    return fields["capacity"]


class ProviderTable(Strict):
    """``[[nodes.providers]]``: one provider of a Node. Where it is called stands in the Node's configuration alone."""

    id: Name
    category: Literal["api", "local_inference"]
    profile: Annotated[str, AfterValidator(profile_name)]
    target: Name
    models: Annotated[tuple[Model, ...], Field(min_length=1, max_length=1000)]
    capacity: Annotated[int, Field(ge=1, le=4096)]
    long_context_capacity: Annotated[int, Field(ge=0, le=4096)] = Field(default_factory=_whole_capacity)
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="after")
    def _within_capacity(self) -> ProviderTable:
        if self.long_context_capacity > self.capacity:
            raise ValueError("long_context_capacity is a part of capacity: it cannot be more")
        return self


class NodeTable(Strict):
    """``[[nodes]]``: a Node that may connect, by the name in its certificate."""

    name: Name
    labels: Labels = Field(default_factory=dict)
    providers: Annotated[tuple[ProviderTable, ...], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _distinct(self) -> NodeTable:
        if len({provider.id for provider in self.providers}) < len(self.providers):
            raise ValueError("two of its providers have one id")
        return self

    def offers(self) -> dict[str, Offer]:
        """What the pool gets to know of each provider, by its id."""
        return {
            provider.id: Offer(
                node=self.name,
                provider_id=provider.id,
                profile=provider.profile,
                target=provider.target,
                models=frozenset(provider.models),
                capacity=provider.capacity,
                long_capacity=provider.long_context_capacity,
                labels=provider.labels,
            )
            for provider in self.providers
        }


class LimitsTable(Strict):
    """``[limits]``: defaults and hard caps of ``docs/limits.md``."""

    request_seconds: Annotated[float, Field(ge=1, le=300)] = REQUEST_DEADLINE_SECONDS
    lease_call_seconds: Annotated[float, Field(ge=0.1, le=30)] = LEASE_CALL_SECONDS
    lease_cache_entries: Annotated[int, Field(ge=1, le=10_000)] = 1000
    node_word_seconds: Annotated[float, Field(ge=0.1, le=4)] = NODE_WORD_SECONDS
    staleness_seconds: Annotated[float, Field(ge=1, le=3600)] = 300.0
    queue_length: Annotated[int, Field(ge=1, le=4096)] = 256
    queue_seconds: Annotated[float, Field(ge=0.1, le=300)] = 30.0
    reconnect_seconds: Annotated[float, Field(ge=0, le=30)] = 3.0
    long_context_bytes: Annotated[int, Field(ge=_KIBI, le=64 * _MEBI)] = 128 * _KIBI
    run_window_bytes: Annotated[int, Field(ge=BODY_PIECE, le=WINDOW_CAP)] = RUN_WINDOW
    body_bytes: Annotated[int, Field(ge=_KIBI, le=64 * _MEBI)] = 16 * _MEBI
    body_total_bytes: Annotated[int, Field(ge=_KIBI, le=4096 * _MEBI)] = 256 * _MEBI
    header_bytes: Annotated[int, Field(ge=_KIBI, le=64 * _KIBI)] = 32 * _KIBI
    receive_seconds: Annotated[float, Field(ge=1, le=120)] = 30.0

    @model_validator(mode="after")
    def _one_body_fits(self) -> LimitsTable:
        # a principal takes no more than it leaves to others
        if self.body_total_bytes < 2 * self.body_bytes:
            raise ValueError("body_total_bytes must be at least twice body_bytes")
        return self


class EdgeConfig(RoleConfig):
    """The whole file."""

    edge: EdgeTable
    tls: TlsTable
    control_plane: ControlPlaneTable | None = None
    api: ApiTable
    node_wire: NodeWireTable
    state: StateTable | None = None
    credential_plane: CredentialPlaneTable
    callers: Annotated[tuple[CallerTable, ...], Field(max_length=1000)] = ()
    nodes: Annotated[tuple[NodeTable, ...], Field(max_length=1000)] = ()
    limits: LimitsTable = LimitsTable()

    @model_validator(mode="after")
    def _consistent(self) -> EdgeConfig:
        if self.credential_plane.enabled:
            self._check_managed()
        else:
            self._check_legacy()
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise ValueError("two of the nodes have one name")
        return self

    @property
    def state_directory(self) -> Path:
        """The folder of ``[state]``, which managed mode always has."""
        if self.state is None:
            raise RuntimeError("only managed mode is sure to have a state folder")
        return self.state.directory

    def _check_managed(self) -> None:
        legacy = "or set [credential_plane] enabled = false for an Edge without it"
        if self.control_plane is None:
            raise ValueError(f"[control_plane] is missing: say which Control Plane this Edge has, {legacy}")
        if self.state is None:
            raise ValueError(f"[state] directory: is missing: name a folder for the projection's receipt, {legacy}")
        if self.callers:
            raise ValueError(
                "[[callers]] are for legacy mode: remove them, since `iop principal create` makes the callers of"
                " managed mode, or set [credential_plane] enabled = false"
            )

    def _check_legacy(self) -> None:
        for key in ("name", "sha256"):
            if len({getattr(caller, key) for caller in self.callers}) < len(self.callers):
                raise ValueError(f"[[callers]] {key}: two of the callers have the same; give each its own")
        targets: dict[str, str] = {}
        for node in self.nodes:
            for provider in node.providers:
                place = f"[[nodes.providers]] {provider.id} of {node.name}"
                if provider.profile != NO_CREDENTIAL:
                    raise ValueError(
                        f'{place}, profile: without the credential plane it must be "{NO_CREDENTIAL}"; write that, or'
                        " set [credential_plane] enabled = true"
                    )
                if ANY_MODEL in provider.models:
                    raise ValueError(
                        f'{place}, models: without the credential plane "{ANY_MODEL}" names nothing; list its models'
                    )
                if any(targets.setdefault(model, provider.target) != provider.target for model in provider.models):
                    raise ValueError(
                        f"{place}, target: another provider has one of its models at another target; without the"
                        " credential plane a model has one target, so give both the same or change the models"
                    )
        if len(self.callers) * len(targets) > LEGACY_ROUTES_LIMIT:
            raise ValueError(
                f"[[callers]] have more than {LEGACY_ROUTES_LIMIT} routes, one for each caller and model: list fewer"
            )


def load(path: Path) -> EdgeConfig:
    """Read ``edge.toml``.

    :raises BadConfig: as :func:`iop.process.config.load`.
    """
    return load_strict(path, EdgeConfig, Role.EDGE)
