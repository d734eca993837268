"""``iop config check``: whether a role would start with a configuration, without starting it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from iop.control_plane.config import ControlPlaneConfig
from iop.edge.config import EdgeConfig
from iop.errors import BadConfig
from iop.node.config import NodeConfig
from iop.process.config import RoleConfig, load, read_document, role_of
from iop.units import Role

MODELS: dict[Role, type[RoleConfig]] = {
    Role.NODE: NodeConfig,
    Role.EDGE: EdgeConfig,
    Role.CONTROL_PLANE: ControlPlaneConfig,
}


@click.group()
def config() -> None:
    """Look at role configurations.

    \b
    Example:
      iop config check /etc/iop/edge.toml
    """


@config.command(short_help="Check a configuration file; every mistake is listed.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def check(file: Path, as_json: bool) -> None:
    """Check the configuration FILE of any role: every mistake is listed, nothing is started.

    The files and addresses that FILE names are not opened; the role does that when it starts.

    \b
    Examples:
      iop config check control-plane.toml
      iop config check --json node.toml
    """
    role = check_file(file)
    if as_json:
        click.echo(json.dumps({"file": str(file.absolute()), "role": role.value}))
    else:
        click.echo(f"{file} is a good {role.value} configuration")


def check_file(path: Path) -> Role:
    """The role whose configuration ``path`` is.

    :raises BadConfig: if it is none, or has mistakes.
    """
    role = role_of(read_document(path))
    if role is None:
        raise BadConfig(
            f"{path}: has none of the tables [control_plane], [edge] and [node], so it configures no role",
            hint='begin with the table that names the role, for example [edge] with name = "edge-1"',
        )
    load(path, MODELS[role])
    return role
