"""``iop edge``: list Edges and look at one, deny and allow them."""

from __future__ import annotations

import json
from pathlib import Path

import click

from iop.cli.answers import print_facts, print_list
from iop.cli.denial import denials_of
from iop.cli.host import json_option
from iop.cli.node import print_nodes
from iop.cli.operator import ask, socket_option

_COLUMNS = ("edge", "generation", "acknowledged", "ready", "connected_since")

edge = denials_of(
    "edge",
    "Edge",
    "From when this returns, no connection of it is accepted, and one that is open is closed; leases it holds expire.",
)


@edge.command("list", short_help="List the connected Edges.")
@socket_option
@json_option
def list_edges(socket: Path, as_json: bool) -> None:
    """List the Edges that are connected to the Control Plane.

    GENERATION is the newest that was sent to an Edge, ACKNOWLEDGED the newest that it confirmed; one that is READY may
    ask for leases.

    \b
    Examples:
      iop edge list --socket run/operator.sock
      IOP_OPERATOR_SOCKET=run/operator.sock iop edge list --json
    """
    told = ask(socket, lambda operator: operator.edges())
    nothing = "No Edge is connected. What keeps one away: iop doctor --config edge.toml, on its machine."
    print_list(told.model_dump(), "edges", _COLUMNS, nothing, as_json=as_json)


@edge.command(short_help="Show what the connected Edge EDGE tells of itself.")
@click.argument("edge")
@socket_option
@json_option
def status(edge: str, socket: Path, as_json: bool) -> None:
    """Show what the connected Edge EDGE tells of itself: its generation, its Nodes, what their providers are doing.

    A Node that is not connected, and a provider that its Node does not serve, have zeros.

    \b
    Examples (with IOP_OPERATOR_SOCKET set):
      iop edge status edge-1
      iop edge status edge-1 --json
    """
    told = ask(socket, lambda operator: operator.edge(edge))
    if as_json:
        click.echo(json.dumps(told.model_dump()))
        return
    print_facts({"edge": told.edge, "generation": told.generation})
    click.echo()
    print_nodes([told])
