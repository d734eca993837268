"""``iop principal``: principals and the tokens born with them, on the Control Plane's own machine (K3, K7)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
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
    """Make, list and limit principals, on the Control Plane's own machine, whether it runs or not."""


@principal.command(short_help="Make the principal NAME with two tokens.")
@click.argument("name")
@click.option("--edge", "edges", metavar="EDGE", multiple=True, help="Limit it to this Edge; may be repeated.")
@config_option
@json_option
def create(name: str, edges: Sequence[str], config_path: Path, as_json: bool) -> None:
    """Make the principal NAME with two tokens, which are shown this once.

    The use token is for requests to Edges; the manage token is for `iop slot` and `iop route`. Without --edge every
    Edge serves it. Exit code 3: made, but not every Edge is known to have it yet.

    \b
    Examples:
      iop principal create alice --config control-plane.toml
      iop principal create bob --edge edge-1 --edge edge-2 --config control-plane.toml
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
            click.echo(f"Principal {made.value.name} ({made.value.principal}) made, for {_whose(made.value)}.")
            click.echo(f"use token:    {use.text.reveal().decode()}")
            click.echo(f"manage token: {manage.text.reveal().decode()}")
            click.echo("Keep both in files of mode 0600 now: they are not shown again.")

    with use.text, manage.text:
        reached = mutate(
            config, lambda store: store.principals.create(name, [use.record, manage.record], actor(), edges), told
        )
    if as_json:
        click.echo(", " + json.dumps(reached.as_json()).removeprefix("{"))
    reached.finish(as_json=as_json)


@principal.command(short_help="Say which Edges serve the principal NAME.")
@click.argument("name")
@click.option("--edge", "edges", metavar="EDGE", multiple=True, help="An Edge that serves it; may be repeated.")
@click.option("--everywhere", is_flag=True, help="Every Edge serves it.")
@config_option
@json_option
def limit(name: str, edges: Sequence[str], everywhere: bool, config_path: Path, as_json: bool) -> None:
    """Limit the principal NAME to the Edges that are named here, instead of those it was limited to.

    No other Edge is told of its tokens and routes, and none gets a lease for it. Exit code 3: done, but other Edges may
    act on what was before until the moment that is shown.

    \b
    Examples:
      iop principal limit alice --edge edge-1 --config control-plane.toml
      iop principal limit alice --everywhere --config control-plane.toml
    """
    if everywhere == bool(edges):
        raise click.UsageError("Name one Edge or more with --edge, or say --everywhere.")
    reached = mutate(load(config_path), lambda store: store.principals.limit(name, edges, actor()))
    made = reached.committed.value
    if as_json:
        click.echo(json.dumps(_entry(made) | reached.as_json()))
    else:
        click.echo(f"Principal {made.name} ({made.principal}) is for {_whose(made)}.")
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
    if as_json:
        click.echo(json.dumps({"principals": [_entry(each) for each in found]}))
        return
    print_list(
        {"principals": [_entry(each) | {"for": _whose(each)} for each in found]},
        "principals",
        ("name", "principal", "created", "for"),
        f"There are no principals. Make one: iop principal create NAME --config {config_path}",
        as_json=False,
    )


def _entry(made: PrincipalRecord) -> dict[str, object]:
    """``limited_to`` is empty if every Edge serves it."""
    return {
        "principal": made.principal,
        "name": made.name,
        "created": rfc3339(made.created_ms),
        "limited_to": sorted(made.edges),
    }


def _whose(made: PrincipalRecord) -> str:
    return ", ".join(sorted(made.edges)) or "every Edge"
