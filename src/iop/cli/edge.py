"""``iop edge``: list Edges and look at one, give commands, hear events, deny and allow them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click

from iop.cli.answers import print_facts, print_list
from iop.cli.denial import denials_of
from iop.cli.host import json_option
from iop.cli.node import print_nodes
from iop.cli.operator import Command, ask, socket_option
from iop.cli.watching import Bar, Shown, follow, watch
from iop.crypto.tokens import mint
from iop.records import TokenKind
from iop.units import is_name, new_id

#: Exit codes of a command by the phase in which it ended.
_EXITS: Final = {"failed": 3, "cancelled": 4}
_INTERRUPTED: Final = 130
_COLUMNS = ("edge", "mode", "generation", "acknowledged", "ready", "connected_since")

_json_lines_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON line for each answer and event."
)

edge = denials_of(
    "edge",
    "Edge",
    "List Edges, look at them, command them, hear what they tell, and deny and allow them by name",
    "From when this returns, no connection of it is accepted, and one that is open is closed; leases it holds expire.",
)


@edge.command(short_help="Make a token for a caller of an Edge in legacy mode.")
@click.argument("name")
@json_option
def caller(name: str, as_json: bool) -> None:
    """Make a token for NAME, a caller of an Edge in legacy mode. It is shown this once, and stored nowhere.

    The Edge knows it by the lines that are shown with it, once they are in its configuration and it was started again.

    \b
    Examples:
      iop edge caller alice
      iop edge caller alice --json
    """
    if not is_name(name):
        raise click.UsageError("NAME must be 1-63 of a-z 0-9 . _ -")
    made = mint(TokenKind.USE)
    with made.text:
        token, digest = made.text.reveal().decode(), made.record.digest.hex()
        if as_json:
            click.echo(json.dumps({"name": name, "token": token, "sha256": digest}))
            return
        click.echo(f"token: {token}")
        click.echo("Keep it in a file of mode 0600 now: it is not shown again. For the Edge's configuration:")
        click.echo(f'\n[[callers]]\nname = "{name}"\nsha256 = "{digest}"')


@edge.command("list", short_help="List the connected Edges.")
@socket_option
@json_option
def list_edges(socket: Path, as_json: bool) -> None:
    """List the Edges that are connected to the Control Plane.

    GENERATION is the newest that was sent to an Edge, ACKNOWLEDGED the newest that it confirmed; one that is READY may
    ask for leases. One of MODE legacy has no credential plane: it is sent nothing and never READY.

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

    An Edge that is DRAINING refuses new requests. A Node that is drained or gone is not CONNECTED: it gets no new ones.
    A provider that is disabled, or that its Node does not serve, is unavailable and has no capacity; one that is
    unreachable did not answer its Node. LONG columns are of requests of the long-context class.

    \b
    Examples (with IOP_OPERATOR_SOCKET set):
      iop edge status edge-1
      iop edge status edge-1 --json
    """
    told = ask(socket, lambda operator: operator.edge(edge))
    if as_json:
        click.echo(json.dumps(told.model_dump()))
        return
    facts = {"edge": told.edge, "generation": told.generation}
    print_facts(facts | {"draining": told.draining, "newest_event": told.event_sequence})
    click.echo()
    print_nodes([told])


@edge.command("command", short_help="Have the connected Edge EDGE do OPERATION.")
@click.argument("edge")
@click.argument("operation")
@click.argument("selector", default="")
@click.option(
    "--set", "metadata", multiple=True, metavar="KEY=VALUE", help="A value of the operation's own; may be repeated."
)
@click.option("--watch", "watching", is_flag=True, help="Show what happens until it has ended.")
@click.option(
    "--id", "command_id", metavar="ID", help="The id of a command that was given before, to ask how it stands."
)
@socket_option
@_json_lines_option
def command(
    edge: str,
    operation: str,
    selector: str,
    metadata: tuple[str, ...],
    watching: bool,
    command_id: str | None,
    socket: Path,
    as_json: bool,
) -> None:
    """Have the connected Edge EDGE do OPERATION with what SELECTOR chooses.

    \b
    Operations:
      edge.drain, edge.resume        take no new requests, or take them again
      node.drain, node.resume        give the chosen Nodes no new requests, or give them again
      node.disconnect                end the connections of the chosen Nodes
      provider.disable, .enable      give the chosen providers no new requests, or give them again
      leases.flush                   forget all cached leases
      projection.resync              be sent the projection in force again, whole
      config.reload                  read certificates, keys and trust again

    SELECTOR is key=value[,key=value...]; node and provider name one, other keys are labels. Draining takes
    --set deadline_seconds=1..3600. What an Edge was told outlasts its connections and ends with its process.

    With the same --id and the same words, an Edge does nothing twice and says how it stands; one that was started since
    has forgotten it, and begins. --watch does that by itself when an Edge was away.

    \b
    Exit codes:
      0    it succeeded; without --watch, it was accepted
      1    it was refused, or nothing is known of it
      3    it failed
      4    it was cancelled
      130  interrupted: it goes on

    \b
    Examples (with IOP_OPERATOR_SOCKET set):
      iop edge command edge-1 edge.drain --set deadline_seconds=60 --watch
      iop edge command edge-1 node.drain node=node-1 --watch
      iop edge command edge-1 provider.disable node=node-1,provider=provider-1
      iop edge command edge-1 leases.flush --json
    """
    given = Command(command_id or new_id(), operation, selector, dict(map(_pair, metadata)))
    shown = Bar() if watching and not as_json and sys.stdout.isatty() else Shown(as_json=as_json)
    try:
        if watching:
            state = ask(socket, lambda operator: watch(operator, edge, given, shown))
        else:
            answer = ask(socket, lambda operator: operator.command(edge, given))
            shown.answered(answer)
            state = answer.command
    except click.Abort:
        click.echo(f"Interrupted. If {edge} has the command, it goes on; to ask: --id {given.command_id}", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None
    finally:
        shown.end()
    raise click.exceptions.Exit(_EXITS.get(state.phase, 0))


@edge.command(short_help="Show what Edges told lately.")
@click.argument("edge", required=False)
@click.option("--follow", "following", is_flag=True, help="Go on with what they tell from now on.")
@socket_option
@_json_lines_option
def events(edge: str | None, following: bool, socket: Path, as_json: bool) -> None:
    """Show what the Edges, or only EDGE, told lately: Nodes that came and went, drains, how commands stand.

    The Control Plane keeps the last 1,024 events of all Edges, as long as it runs.

    \b
    Examples (with IOP_OPERATOR_SOCKET set):
      iop edge events
      iop edge events edge-1 --follow
      iop edge events --follow --json
    """
    shown = Shown(as_json=as_json)
    try:
        ask(socket, lambda operator: follow(operator, edge, shown, on=following))
    except click.Abort:
        # that is how following ends
        if not following:
            raise


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.UsageError(f"--set takes KEY=VALUE, not {text!r}")
    return key, value
