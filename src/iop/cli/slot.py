"""``iop slot``: credential slots, over the credential HTTPS API."""

from __future__ import annotations

import click

from iop.cli.answers import print_list, print_mutation
from iop.cli.api_options import Server, with_server
from iop.cli.secret_input import read_secret

_COLUMNS = ("slot", "name", "profile", "target", "state")


@click.group()
def slot() -> None:
    """Store provider secrets in slots, change and list slots. A stored secret never comes back.

    The commands need a Control Plane that runs, and a manage token from `iop principal create`.

    \b
    Examples (with IOP_URL, IOP_CA and IOP_TOKEN_FILE set):
      iop slot create --name work --profile openai --target openai --secret-file key.txt
      iop slot list
    """


@slot.command()
@click.option("--name", required=True, help="Your name for the slot: 1 to 63 of a-z 0-9 . _ -")
@click.option("--profile", required=True, help="How the secret is used: openai, openai-compatible, anthropic, none.")
@click.option("--target", required=True, help="The only place it may be sent to: NAME of a Node's [targets.NAME].")
@click.option("--secret-file", required=True, metavar="FILE|-", help="Private file with the secret, or - for stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@with_server
def create(server: Server, name: str, profile: str, target: str, secret_file: str, as_json: bool) -> None:
    """Store a secret in a new slot. Answers once every connected Edge knows.

    Exit code 3: stored, but not every Edge is known to have it yet.

    \b
    Examples:
      iop slot create --name work --profile openai --target openai --secret-file key.txt
      pass show openai | iop slot create --name work --profile openai --target openai --secret-file -
    """
    with read_secret(secret_file) as secret:
        answer = server.call(lambda api: api.create_slot(name, profile, target, secret))
    print_mutation(answer, _COLUMNS, as_json=as_json)


@slot.command()
@click.argument("slot_id", metavar="SLOT")
@click.option("--secret-file", required=True, metavar="FILE|-", help="Private file with the secret, or - for stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@with_server
def rotate(server: Server, slot_id: str, secret_file: str, as_json: bool) -> None:
    """Put another secret in SLOT. Routes stay as they are, and use it from now on.

    Answers once no connected Edge uses the one before. Exit code 3: stored, but not every Edge is known to follow yet.

    \b
    Example:
      iop slot rotate 0198… --secret-file new-key.txt
    """
    with read_secret(secret_file) as secret:
        answer = server.call(lambda api: api.rotate_slot(slot_id, secret))
    print_mutation(answer, _COLUMNS, as_json=as_json)


@slot.command()
@click.argument("slot_id", metavar="SLOT")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@with_server
def disable(server: Server, slot_id: str, as_json: bool) -> None:
    """Let nobody use SLOT until it is enabled again.

    Answers once no connected Edge uses it. Exit code 3: disabled, but not every Edge is known to follow yet.

    \b
    Example:
      iop slot disable 0198…
    """
    print_mutation(server.call(lambda api: api.change_slot(slot_id, "disable")), _COLUMNS, as_json=as_json)


@slot.command()
@click.argument("slot_id", metavar="SLOT")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@with_server
def enable(server: Server, slot_id: str, as_json: bool) -> None:
    """Let SLOT be used again.

    Exit code 3: enabled, but not every Edge is known to have it yet.

    \b
    Example:
      iop slot enable 0198…
    """
    print_mutation(server.call(lambda api: api.change_slot(slot_id, "enable")), _COLUMNS, as_json=as_json)


@slot.command()
@click.argument("slot_id", metavar="SLOT")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@with_server
def revoke(server: Server, slot_id: str, yes: bool, as_json: bool) -> None:
    """Revoke SLOT for good, and erase its secret. Routes to it stop working.

    Answers once no connected Edge uses it. Exit code 3: revoked, but not every Edge is known to follow yet.

    \b
    Examples:
      iop slot revoke 0198…
      iop slot revoke 0198… --yes --json
    """
    if not yes:
        click.confirm("This cannot be undone. Revoke the slot?", abort=True, err=True)
    print_mutation(server.call(lambda api: api.change_slot(slot_id, "revoke")), _COLUMNS, as_json=as_json)


@slot.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@with_server
def list_slots(server: Server, as_json: bool) -> None:
    """List your slots, without their secrets.

    \b
    Example:
      iop slot list --json
    """
    answer = server.call(lambda api: api.slots())
    print_list(answer, "slots", _COLUMNS, "You have no slots. Make one: iop slot create --help", as_json=as_json)
