"""``iop``: the one command people type. Its sub-commands are loaded when they are used.

Each lives in ``iop/cli/NAME.py`` as a click command or group called ``NAME``. Whatever goes wrong is an
:class:`~iop.errors.IopError`, told here and nowhere else: as ``Error:`` and ``Hint:`` on stderr, or, with ``--json``,
as ``{"error": {"code", "message", "hint"}}`` on stdout. The exit code is then 1; 2 for a command line that does not
parse, and for one that ends before its sub-command, which is answered with help; 3 for a change that is made but not
known to have reached every Edge.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from typing import Final, cast

import click

from iop.errors import ApiRefused, IopError, NotConfirmed

#: Exit code of a command whose change is durable but has not reached every Edge.
NOT_CONFIRMED: Final = 3

#: What click 8.2 and newer raise for a group without a sub-command; the message is the group's help.
_NO_SUB_COMMAND = getattr(click.exceptions, "NoArgsIsHelpError", ())

#: Sub-commands in the order of a first day; the sentence is here so that help has nothing to import.
COMMANDS = {
    "quickstart": "Run a deployment on this machine, send one request.",
    "pki": "Make a certificate authority, issue and inspect certificates.",
    "keyring": "Make the keyring that stored secrets are encrypted under.",
    "issuer": "Make the key that signs leases, and its public set for Nodes.",
    "store": "Make the database, bring it up to date, look at it.",
    "principal": "Make and list principals, on the Control Plane's own machine.",
    "slot": "Store provider secrets, over the credential HTTPS API.",
    "route": "Choose slots for models, over the credential HTTPS API.",
    "node": "List, deny and allow Nodes, on the Control Plane's own machine.",
    "edge": "List, command, deny, allow Edges, on the Control Plane's machine.",
    "config": "Check a role's configuration without starting it.",
    "doctor": "Find what is wrong with a set-up, and what to do about it.",
    "version": "Print versions.",
}


class _Commands(click.Group):
    """A group that imports ``iop.cli.NAME`` when the sub-command is asked for, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return cast(click.Command, getattr(importlib.import_module(f"iop.cli.{cmd_name}"), cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Roles run under twistd:
  twistd -n iop-control-plane --config control-plane.toml
  twistd -n iop-edge --config edge.toml
  twistd -n iop-node --config node.toml""",
)
@click.version_option(package_name="iop", message="%(prog)s %(version)s")
def iop() -> None:
    """A model gateway that never holds the key.

    \b
    Begin with a whole deployment on this machine:
      iop quickstart --once
    """


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line and answer the exit code; everything that goes wrong is told."""
    as_json = "--json" in arguments
    try:
        # click answers the code of an Exit, and else what the command returned, which is nothing
        code = iop.main(list(arguments), prog_name="iop", standalone_mode=False)
    except IopError as error:
        reason = error.reason if isinstance(error, ApiRefused) else error.code
        exit_code = NOT_CONFIRMED if isinstance(error, NotConfirmed) else 1
        return _tell(as_json, reason, error.message, error.hint, exit_code=exit_code)
    except click.Abort:
        return _tell(as_json, "interrupted", "interrupted before it was done", "", exit_code=130)
    except click.UsageError as error:
        if isinstance(error, _NO_SUB_COMMAND):
            click.echo(error.format_message(), err=True)
            return 2
        path = error.ctx.command_path if error.ctx else "iop"
        return _tell(as_json, "usage", error.format_message(), f"see: {path} --help", exit_code=2)
    except click.ClickException as error:
        return _tell(as_json, "usage", error.format_message(), "", exit_code=error.exit_code)
    return code or 0


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def _tell(as_json: bool, code: str, message: str, hint: str, *, exit_code: int) -> int:
    if as_json:
        click.echo(json.dumps({"error": {"code": code, "message": message, "hint": hint}}))
    else:
        click.echo(f"Error: {message}", err=True)
        if hint:
            click.echo(f"Hint: {hint}", err=True)
    return exit_code
