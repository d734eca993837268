"""`iop keyring`: the keys that stored secrets are wrapped with."""

from __future__ import annotations

import json
from pathlib import Path

import click

from iop.crypto.keyring import Keyring


@click.group()
def keyring() -> None:
    """Keys that stored secrets are encrypted with."""


@keyring.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="File to write; it must not exist yet. Mode 0600."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def init(out: Path, as_json: bool) -> None:
    """Make a keyring with one new primary key.

    Mount the file at every Control Plane of the deployment and keep a copy apart from the database: whoever has both
    reads every secret, and without it no stored secret can ever be read again.

    \b
    Example:
      iop keyring init --out keyring.json
    """
    made = Keyring.create(out)
    if as_json:
        click.echo(json.dumps({"keyring": str(out.absolute()), "primary": made.primary}))
        return
    click.echo(f"Keyring {out} made; its primary key is {made.primary}.")
    click.echo("Keep a copy apart from the database: without it no stored secret can be read.")
