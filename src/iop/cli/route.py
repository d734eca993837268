"""``iop route``: which slot serves a model, over the credential HTTPS API."""

from __future__ import annotations

import click

from iop.cli.answers import print_mutation, print_table
from iop.cli.api_options import Server, with_server
from iop.cli.credential_api import CredentialApi, Json

_COLUMNS = ("model", "slot", "upstream_model", "selector", "revision")


@click.group()
def route() -> None:
    """Say which slot serves which model, and look at it.

    \b
    Examples (with IOP_URL, IOP_CA and IOP_TOKEN_FILE set):
      iop route set gpt-4o --slot 0198… --upstream-model gpt-4o
      iop route list
    """


@route.command("set")
@click.argument("model")
@click.option("--slot", "slot_id", required=True, metavar="ID", help="The slot whose secret serves the model.")
@click.option("--upstream-model", help="The model's name at the provider; the same name without it.")
@click.option("--selector", default="", metavar="KEY=VALUE,…", help="Labels that a provider must have; any without it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_server
def set_route(
    server: Server, model: str, slot_id: str, upstream_model: str | None, selector: str, as_json: bool
) -> None:
    """Route MODEL through a slot, whether it has a route already or not. Answers once every connected Edge knows.

    \b
    Examples:
      iop route set gpt-4o --slot 0198…
      iop route set house/best --slot 0198… --upstream-model gpt-4o --selector region=eu
    """

    async def put(api: CredentialApi) -> Json:
        present = await api.route(model)
        revision = None if present is None else int(str(present["revision"]))
        return await api.put_route(model, slot_id, upstream_model or model, selector, revision)

    print_mutation(server.call(put), _COLUMNS, as_json=as_json)


@route.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_server
def list_routes(server: Server, as_json: bool) -> None:
    """List your routes.

    \b
    Example:
      iop route list --json
    """
    print_table(server.call(lambda api: api.routes()), "routes", _COLUMNS, as_json=as_json)
