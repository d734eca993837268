"""``iop principal``: principals and the tokens born with them, on the Control Plane's own machine (K3, K7)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iop.cli.answers import print_list
from iop.cli.host import actor, config_option, json_option, mutate, with_store
from iop.control_plane.config import load
from iop.crypto.tokens import mint
from iop.records import Committed, PrincipalRecord, TokenKind
from iop.units import rfc3339

if TYPE_CHECKING:
    from iop.interfaces import IClock, IStore


@click.group()
def principal() -> None:
    """Make and list principals, on the Control Plane's own machine, whether it runs or not."""


@principal.command()
@click.argument("name")
@config_option
@json_option
def create(name: str, config_path: Path, as_json: bool) -> None:
    """Make the principal NAME with two tokens, which are shown this once.

    The use token is for requests to Edges; the manage token is for `iop slot` and `iop route`. Exit code 3: made, but
    not every Edge is known to have it yet.

    \b
    Example:
      iop principal create alice --config control-plane.toml
    """
    config = load(config_path)
    use, manage = mint(TokenKind.USE), mint(TokenKind.MANAGE)

    def told(made: Committed[PrincipalRecord]) -> None:
        # before the wait, so that nothing that happens in it can lose the only copy
        if as_json:
            begun = {
                "principal": made.value.principal,
                "name": made.value.name,
                "use_token": use.text.reveal().decode(),
                "manage_token": manage.text.reveal().decode(),
            }
            # the rest of this one line comes after the wait
            click.echo(json.dumps(begun).removesuffix("}"), nl=False)
            sys.stdout.flush()
        else:
            click.echo(f"Principal {made.value.name} ({made.value.principal}) made.")
            click.echo(f"use token:    {use.text.reveal().decode()}")
            click.echo(f"manage token: {manage.text.reveal().decode()}")
            click.echo("Keep both in files of mode 0600 now: they are not shown again.")

    with use.text, manage.text:
        reached = mutate(
            config, lambda store: store.principals.create(name, [use.record, manage.record], actor()), told
        )
    if as_json:
        click.echo(", " + json.dumps(reached.as_json()).removeprefix("{"))
    reached.finish(as_json=as_json)


@principal.command("list")
@config_option
@json_option
def list_principals(config_path: Path, as_json: bool) -> None:
    """List principals by name.

    \b
    Example:
      iop principal list --config control-plane.toml
    """

    async def work(store: IStore, _: IClock) -> list[PrincipalRecord]:
        return await store.principals.all()

    found = with_store(load(config_path), work)
    entries = [{"principal": each.principal, "name": each.name, "created": rfc3339(each.created_ms)} for each in found]
    print_list(
        {"principals": entries},
        "principals",
        ("name", "principal", "created"),
        f"There are no principals. Make one: iop principal create NAME --config {config_path}",
        as_json=as_json,
    )
