"""``iop version``."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version as installed_version

import click

from iop.units import PROTOCOL_VERSION


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def version(as_json: bool) -> None:
    """Print the versions of iop, its wires, Python and Twisted.

    \b
    Example:
      iop version --json
    """
    versions = {
        "iop": installed_version("iop"),
        "protocol": str(PROTOCOL_VERSION),
        "python": platform.python_version(),
        "twisted": installed_version("Twisted"),
    }
    if as_json:
        click.echo(json.dumps(versions))
    else:
        for name, number in versions.items():
            click.echo(f"{name} {number}")
