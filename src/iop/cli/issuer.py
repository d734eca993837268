"""`iop issuer`: the key that signs leases, and the public set that Nodes pin."""

from __future__ import annotations

import json
from pathlib import Path

import click

from iop.crypto.issuer import Issuer, PinnedIssuers, create_public_set
from iop.errors import IopError

_PUBLIC = click.option(
    "--public", required=True, type=click.Path(path_type=Path), help="File with the public set that Nodes pin."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")


@click.group()
def issuer() -> None:
    """Keys that sign leases, and the public set that Nodes pin."""


@issuer.command()
@click.option(
    "--key", required=True, type=click.Path(path_type=Path), help="Private key file to write; it must not exist yet."
)
@_PUBLIC
@_JSON
def init(key: Path, public: Path, as_json: bool) -> None:
    """Make an issuer key, and the set of just its public half.

    Mount the private key at the Control Planes and the public set at every Node.

    \b
    Example:
      iop issuer init --key issuer.key --public issuers.json
    """
    made = Issuer.create(key)
    try:
        create_public_set(public, [made.public_key])
    except IopError:
        # it has signed nothing yet, and would be in the way of the next try
        key.unlink()
        raise
    if as_json:
        paths = {"key": str(key.absolute()), "public": str(public.absolute())}
        click.echo(json.dumps({**paths, "key_id": made.key_id.hex()}))
        return
    click.echo(f"Issuer key {made.key_id.hex()} made.")
    click.echo(f"Mount {key} at the Control Planes, and {public} at every Node.")


@issuer.command("list")
@_PUBLIC
@_JSON
def list_issuers(public: Path, as_json: bool) -> None:
    """Show the key id of each issuer in a public set.

    \b
    Example:
      iop issuer list --public issuers.json
    """
    entries = [{"key_id": key_id.hex(), "public_key": key.hex()} for key_id, key in PinnedIssuers.load(public)]
    if as_json:
        click.echo(json.dumps({"issuers": entries}))
        return
    for entry in entries:
        click.echo(entry["key_id"])
