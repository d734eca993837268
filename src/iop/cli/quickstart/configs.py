"""The configurations of a quickstart, as a person would write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from iop.cli.quickstart.home import NODES_LIMIT, TRUST_DOMAIN, Member, members
from iop.files import write_atomic
from iop.testing.provider import MODELS as STAND_IN_MODELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iop.cli.quickstart.home import Home, Settings

Value = str | int | bool | list[str]
Tables = dict[str, dict[str, Value]]
STAND_IN_TARGET: Final = "stand-in"
_CAPACITY = 16


def write_configs(home: Home, settings: Settings) -> None:
    """Write one file per process, and remove those of Nodes that there were before; paths are relative to the home."""
    for gone in members(NODES_LIMIT)[len(members(settings.nodes)) :]:
        home.config(gone).unlink(missing_ok=True)
    ports = settings.ports
    common: Tables = {
        "deployment": {"id": settings.deployment, "trust_domain": TRUST_DOMAIN},
    }
    managed: Tables = {"credential_plane": {"enabled": True}}
    upstream = settings.upstream
    target = upstream.target if upstream else STAND_IN_TARGET
    profile = upstream.profile if upstream else "openai"
    models = [upstream.model] if upstream else list(STAND_IN_MODELS)
    base_url = upstream.url if upstream else f"http://127.0.0.1:{ports['provider']}/v1"

    plane, edge, *nodes = members(settings.nodes)

    def files(member: Member) -> dict[str, Value]:
        paths = home.certificate(member)
        return {
            "certificate": str(paths.certificate.relative_to(home.root)),
            "key": str(paths.key.relative_to(home.root)),
        }

    def mutual(member: Member) -> dict[str, Value]:
        return files(member) | {"trust": str(home.ca.relative_to(home.root))}

    def listen(name: str) -> dict[str, Value]:
        return {"listen": f"tcp:port={ports[name]}:interface=127.0.0.1"}

    def run(member: Member) -> Tables:
        return {"run": {"directory": str(home.record(member).parent.relative_to(home.root))}}

    def dial(name: str, member: Member) -> dict[str, Value]:
        endpoint = f"tcp:host=127.0.0.1:port={ports[name]}"
        return {"endpoint": endpoint, "name": member.name, "server_name": "localhost"}

    listed: list[tuple[str, dict[str, Value]]] = []
    for node in nodes:
        provider: dict[str, Value] = {
            "id": f"provider-{node.number}",
            "category": "api",
            "profile": profile,
            "target": target,
            "models": models,
            "capacity": _CAPACITY,
        }
        listed += [("[nodes]", {"name": node.name}), ("[nodes.providers]", provider)]
    operator = home.operator_socket
    _write(
        home,
        plane,
        common
        | managed
        | run(plane)
        | {
            "control_plane": {"name": plane.name},
            "store": {"path": str(home.database.relative_to(home.root))},
            "keys": {
                "keyring": str(home.keyring.relative_to(home.root)),
                "issuer": str(home.issuer.relative_to(home.root)),
                "pinned_issuers": str(home.pinned_issuers.relative_to(home.root)),
            },
            "edge_wire": listen("edge_wire") | mutual(plane),
            "credential_https": listen("credential_https") | files(plane),
            "status": listen("control_plane_status"),
        }
        | ({} if operator is None else {"operator": {"socket": str(operator.relative_to(home.root))}}),
    )
    _write(
        home,
        edge,
        common
        | managed
        | run(edge)
        | {
            "edge": {"name": edge.name},
            "tls": mutual(edge),
            "control_plane": dial("edge_wire", plane),
            "api": listen("api") | files(edge),
            "node_wire": listen("node_wire"),
            "status": listen("edge_status"),
            "state": {"directory": str(home.edge_state.relative_to(home.root))},
        },
        listed,
    )
    for node in nodes:
        _write(
            home,
            node,
            common
            | run(node)
            | {
                "node": {"name": node.name},
                "tls": mutual(node),
                "edge": dial("node_wire", edge),
                "issuers": {"pinned": str(home.pinned_issuers.relative_to(home.root))},
                f"targets.{json.dumps(target)}": {"base_url": base_url, "profiles": [profile]},
                "status": listen(node.status_listener),
            },
        )


def _write(
    home: Home,
    member: Member,
    tables: Tables,
    listed: Sequence[tuple[str, dict[str, Value]]] = (),
) -> None:
    """Write a configuration; ``listed`` are tables whose names stand in it several times."""
    lines = ["# Written by iop quickstart: on loopback only.", "quickstart = true"]
    for name, pairs in (*tables.items(), *listed):
        # what JSON writes for these types is TOML too
        lines += [
            "",
            f"[{name}]",
            *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in pairs.items()),
        ]
    write_atomic(home.config(member), "\n".join(lines).encode() + b"\n", 0o644)
