"""``iop slot``: credential slots, over the credential HTTPS API."""

from __future__ import annotations

import click

from iop.cli.answers import print_mutation, print_table
from iop.cli.api_options import Server, with_server
from iop.cli.secret_input import read_secret

_COLUMNS = ("slot", "name", "profile", "target", "state", "revision", "credential_revision")


@click.group()
def slot() -> None:
    """Store provider secrets in slots, and look at slots. A stored secret never comes back.

    \b
    Examples (with IOP_URL, IOP_CA and IOP_TOKEN_FILE set):
      iop slot create --name work --profile openai --target openai --secret-file key.txt
      iop slot list
    """


@slot.command()
@click.option("--name", required=True, help="Your name for the slot.")
@click.option("--profile", required=True, help="How the secret is used: openai, openai-compatible, none.")
@click.option("--target", required=True, help="The one place it may be sent to, as Nodes name it.")
@click.option("--secret-file", required=True, metavar="FILE|-", help="Private file with the secret, or - for stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_server
def create(server: Server, name: str, profile: str, target: str, secret_file: str, as_json: bool) -> None:
    """Store a secret in a new slot. Answers once every connected Edge knows.

    \b
    Examples:
      iop slot create --name work --profile openai --target openai --secret-file key.txt
      pass show openai | iop slot create --name work --profile openai --target openai --secret-file -
    """
    with read_secret(secret_file) as secret:
        answer = server.call(lambda api: api.create_slot(name, profile, target, secret))
    print_mutation(answer, _COLUMNS, as_json=as_json)


@slot.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_server
def list_slots(server: Server, as_json: bool) -> None:
    """List your slots, without their secrets.

    \b
    Example:
      iop slot list --json
    """
    print_table(server.call(lambda api: api.slots()), "slots", _COLUMNS, as_json=as_json)
