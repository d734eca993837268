"""``iop route``: which slot serves a model, over the credential HTTPS API."""

from __future__ import annotations

import click

from iop.cli.answers import print_list, print_mutation
from iop.cli.api_options import Server, with_server
from iop.cli.credential_api import CredentialApi, Json

_COLUMNS = ("model", "upstream_model", "slot", "selector")


@click.group()
def route() -> None:
    """Choose the slot that serves a model, and list routes.

    The commands need a Control Plane that runs, and a manage token from `iop principal create`.

    \b
    Examples (with IOP_URL, IOP_CA and IOP_TOKEN_FILE set):
      iop route set gpt-4o --slot 0198…
      iop route list
    """


@route.command("set")
@click.argument("model")
@click.option(
    "--slot",
    "slot_id",
    required=True,
    metavar="ID",
    help="The slot that serves the model: its id, as `iop slot list` shows it.",
)
@click.option("--upstream-model", help="The model's name at the provider.  [default: MODEL]")
@click.option(
    "--selector", default="", metavar="KEY=VALUE,…", help="Labels that a provider must have.  [default: none]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@with_server
def set_route(
    server: Server, model: str, slot_id: str, upstream_model: str | None, selector: str, as_json: bool
) -> None:
    """Route MODEL, the name that requests give, through a slot. A route that MODEL has already is replaced.

    Answers once every connected Edge knows. Exit code 3: made, but not every Edge is known to have it yet.

    \b
    Examples:
      iop route set gpt-4o --slot 0198…
      iop route set house/best --slot 0198… --upstream-model gpt-4o --selector region=eu
    """

    if not model:
        raise click.BadParameter("a model has a name", param_hint="MODEL")

    async def put(api: CredentialApi) -> Json:
        present = await api.route(model)
        revision = None if present is None else int(str(present["revision"]))
        return await api.put_route(model, slot_id, upstream_model or model, selector, revision)

    print_mutation(server.call(put), _COLUMNS, as_json=as_json)


@route.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@with_server
def list_routes(server: Server, as_json: bool) -> None:
    """List your routes.

    \b
    Example:
      iop route list --json
    """
    answer = server.call(lambda api: api.routes())
    print_list(answer, "routes", _COLUMNS, "You have no routes. Make one: iop route set --help", as_json=as_json)
