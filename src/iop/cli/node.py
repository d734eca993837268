"""``iop node``: list Nodes, deny and allow them (P13)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from iop.cli.answers import print_list
from iop.cli.denial import denials_of
from iop.cli.host import json_option
from iop.cli.operator import EdgeStatus, Operator, ask, socket_option
from iop.errors import ApiRefused

_COLUMNS = (
    *("edge", "node", "connected"),
    *("provider", "category", "status", "health", "capacity", "in_flight", "queued"),
    *("long_capacity", "long_in_flight", "long_queued"),
)

node = denials_of(
    "node",
    "Node",
    "List Nodes, and deny and allow them by name",
    "From when this returns, no lease is sealed to it.",
)


@node.command("list", short_help="List the Nodes of the connected Edges.")
@click.option("--edge", metavar="NAME", help="Only the Nodes of this Edge.")
@socket_option
@json_option
def list_nodes(socket: Path, edge: str | None, as_json: bool) -> None:
    """List the Nodes of every connected Edge, or of one, with what their providers are doing.

    A Node is in its Edge's configuration; one that is drained or gone is not CONNECTED. LONG columns are of requests of
    the long-context class, which are in the columns before them too.

    An Edge that does not answer is named on stderr, and in JSON under "failed"; the exit code is then 1.

    \b
    Examples (with IOP_OPERATOR_SOCKET set):
      iop node list
      iop node list --edge edge-1 --json
    """

    async def look(operator: Operator) -> tuple[list[EdgeStatus], dict[str, ApiRefused]]:
        return await operator.every_edge() if edge is None else ([await operator.edge(edge)], {})

    told, failed = ask(socket, look)
    if as_json:
        why = {name: {"code": refused.reason, "message": refused.message} for name, refused in failed.items()}
        click.echo(json.dumps({"edges": [status.model_dump() for status in told], "failed": why}))
    else:
        print_nodes(told)
    for refused in failed.values():
        click.echo(f"Error: {refused.message}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def print_nodes(told: Sequence[EdgeStatus]) -> None:
    """One line for each provider of each Node."""
    rows = [row for status in told for row in _rows(status)]
    print_list({"nodes": rows}, "nodes", _COLUMNS, "No connected Edge has a Node in its configuration.", as_json=False)


def _rows(status: EdgeStatus) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for node in status.nodes:
        whose = {"edge": status.edge, "node": node.node, "connected": node.connected}
        rows += [
            {**provider.model_dump(), "long_capacity": provider.long_context_capacity, **whose}
            for provider in node.providers
        ] or [whose]
    return rows
