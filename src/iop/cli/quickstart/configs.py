"""The three configurations of a quickstart, as a person would write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from iop.cli.quickstart.home import NAMES, TRUST_DOMAIN
from iop.files import write_atomic
from iop.testing.provider import MODELS as STAND_IN_MODELS
from iop.units import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iop.cli.quickstart.home import Home, Settings

Value = str | int | bool | list[str]
STAND_IN_TARGET: Final = "stand-in"
_CAPACITY = 16


def write_configs(home: Home, settings: Settings) -> None:
    """Write ``control-plane.toml``, ``edge.toml`` and ``node.toml``; paths in them are relative to the home."""
    ports = settings.ports
    common: dict[str, Mapping[str, Value]] = {
        "deployment": {"id": settings.deployment, "trust_domain": TRUST_DOMAIN},
        "credential_plane": {"enabled": True},
        "run": {"directory": "run"},
    }
    upstream = settings.upstream
    target = upstream.target if upstream else STAND_IN_TARGET
    profile = upstream.profile if upstream else "openai"
    models = [upstream.model] if upstream else list(STAND_IN_MODELS)
    base_url = upstream.url if upstream else f"http://127.0.0.1:{ports['provider']}/v1"

    def files(role: Role) -> dict[str, Value]:
        paths = home.certificate(role)
        return {
            "certificate": str(paths.certificate.relative_to(home.root)),
            "key": str(paths.key.relative_to(home.root)),
        }

    def mutual(role: Role) -> dict[str, Value]:
        return files(role) | {"trust": str(home.ca.relative_to(home.root))}

    def listen(name: str) -> dict[str, Value]:
        return {"listen": f"tcp:port={ports[name]}:interface=127.0.0.1"}

    def dial(name: str, role: Role) -> dict[str, Value]:
        endpoint = f"tcp:host=127.0.0.1:port={ports[name]}"
        return {"endpoint": endpoint, "name": NAMES[role], "server_name": "localhost"}

    operator = home.operator_socket
    _write(
        home,
        Role.CONTROL_PLANE,
        common
        | {
            "control_plane": {"name": NAMES[Role.CONTROL_PLANE]},
            "store": {"path": str(home.database.relative_to(home.root))},
            "keys": {
                "keyring": str(home.keyring.relative_to(home.root)),
                "issuer": str(home.issuer.relative_to(home.root)),
                "pinned_issuers": str(home.pinned_issuers.relative_to(home.root)),
            },
            "edge_wire": listen("edge_wire") | mutual(Role.CONTROL_PLANE),
            "credential_https": listen("credential_https") | files(Role.CONTROL_PLANE),
            "status": listen("control_plane_status"),
        }
        | ({} if operator is None else {"operator": {"socket": str(operator.relative_to(home.root))}}),
    )
    _write(
        home,
        Role.EDGE,
        common
        | {
            "edge": {"name": NAMES[Role.EDGE]},
            "tls": mutual(Role.EDGE),
            "control_plane": dial("edge_wire", Role.CONTROL_PLANE),
            "api": listen("api") | files(Role.EDGE),
            "node_wire": listen("node_wire"),
            "status": listen("edge_status"),
            "state": {"directory": str(home.edge_state.relative_to(home.root))},
            "[nodes]": {"name": NAMES[Role.NODE]},
            "[nodes.providers]": {
                "id": "provider-1",
                "category": "api",
                "profile": profile,
                "target": target,
                "models": models,
                "capacity": _CAPACITY,
            },
        },
    )
    del common["credential_plane"]
    _write(
        home,
        Role.NODE,
        common
        | {
            "node": {"name": NAMES[Role.NODE]},
            "tls": mutual(Role.NODE),
            "edge": dial("node_wire", Role.EDGE),
            "issuers": {"pinned": str(home.pinned_issuers.relative_to(home.root))},
            f"targets.{json.dumps(target)}": {"base_url": base_url, "profiles": [profile]},
            "status": listen("node_status"),
        },
    )


def _write(home: Home, role: Role, tables: Mapping[str, Mapping[str, Value]]) -> None:
    lines = ["# Written by iop quickstart: on loopback only.", "quickstart = true"]
    for name, pairs in tables.items():
        # what JSON writes for these types is TOML too
        lines += [
            "",
            f"[{name}]",
            *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in pairs.items()),
        ]
    write_atomic(home.config(role), "\n".join(lines).encode() + b"\n", 0o644)
