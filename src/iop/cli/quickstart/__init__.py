"""``iop quickstart``: a whole deployment on this machine, and one request through it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from shlex import quote

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from iop.cli.quickstart.flow import Quickstart, Running, typed
from iop.cli.quickstart.home import NODES_LIMIT, Home, Member, Settings, Upstream
from iop.cli.reactor import run_in_reactor
from iop.cli.secret_input import read_secret
from iop.errors import BadConfig
from iop.net.target import parse_target
from iop.process.harden import no_core_files
from iop.secret import Secret
from iop.units import Role, is_name

_DEFAULT_MODEL = "gpt-4o-mini"


@click.command()
@click.option(
    "--home",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("iop-home"),
    show_default=True,
    help="Folder for keys, tokens, store, configuration and logs.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_LIMIT),
    help="How many Nodes there are. [default: as many as before, at first 1]",
)
@click.option("--once", is_flag=True, help="Exit after the answer instead of running until SIGINT or SIGTERM.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line when ready, and nothing else.")
@click.option(
    "--upstream", metavar="URL", help="A real provider's base URL, /v1 included, instead of a local stand-in."
)
@click.option("--secret-file", metavar="FILE|-", help="Private file with the provider's secret, or - for stdin.")
@click.option(
    "--profile", type=click.Choice(["openai", "openai-compatible"]), help="How the secret is sent. [default: openai]"
)
@click.option("--model", help=f"The provider's model to ask. [default for openai: {_DEFAULT_MODEL}]")
def quickstart(
    folder: Path,
    nodes: int | None,
    once: bool,
    as_json: bool,
    upstream: str | None,
    secret_file: str | None,
    profile: str | None,
    model: str | None,
) -> None:
    """Run a Control Plane, an Edge and one or more Nodes on this machine and send one chat completion through them.

    The home folder keeps everything; another run starts again from what is there, with the same provider unless another
    one is named. Everything listens on loopback only.

    \b
    Examples:
      iop quickstart --once
      iop quickstart --upstream https://api.openai.com/v1 --secret-file openai.key
      iop quickstart --nodes 2
      iop quickstart --json > ready.json
    """
    # it has the provider's secret in hand, and tokens
    no_core_files()
    home = Home(folder)
    with home.held(), ExitStack() as stack:
        settings = decide(home.settings(nodes), upstream, profile, model, has_secret=secret_file is not None)
        secret = None if secret_file is None else stack.enter_context(read_secret(secret_file))
        require_secret(home, settings.upstream, secret)
        console = Console(quiet=as_json, highlight=False)
        if settings.upstream is None:
            console.print("No --upstream was given, so a small local stand-in provider answers. It is not a model.")
        with console.status("Starting") as status:

            def say(step: str) -> None:
                console.print(Text(f"  {step}"), soft_wrap=True)
                status.update(Text(step))

            def ready(running: Running) -> None:
                status.stop()
                if as_json:
                    click.echo(json.dumps(running.document))
                else:
                    show(console, running, once=once)

            finished = run_in_reactor(
                lambda reactor: Quickstart(reactor, home, settings, secret, say).run(ready, once=once)
            )
    if not finished:
        raise click.Abort


def require_secret(home: Home, upstream: Upstream | None, secret: Secret | None) -> None:
    """Refuse a real provider without a secret for it, before anything starts."""
    if upstream is None or secret:
        return
    stored = home.stored()
    if secret is not None or stored is None or not stored.is_for(upstream.target, upstream.profile):
        raise BadConfig(
            f"no secret is stored for {upstream.url} yet",
            hint="give the provider's secret in a file that only you can read: --secret-file FILE",
        )


def decide(kept: Settings, url: str | None, profile: str | None, model: str | None, *, has_secret: bool) -> Settings:
    """What was kept, changed by what was asked for now.

    :raises BadConfig: if that does not fit together.
    """
    if url is None:
        if kept.upstream is None:
            if has_secret or profile or model:
                raise BadConfig(
                    "--secret-file, --profile and --model belong to a real provider", hint="name it: --upstream URL"
                )
            return kept
        upstream = replace(kept.upstream, profile=profile or kept.upstream.profile, model=model or kept.upstream.model)
        return replace(kept, upstream=upstream)
    profile = profile or "openai"
    if model is None and profile != "openai":
        raise BadConfig(f"profile {profile} has no usual model", hint="name one that the provider has: --model NAME")
    return replace(kept, upstream=Upstream(url.rstrip("/"), profile, model or _DEFAULT_MODEL, _target(url)))


def _target(url: str) -> str:
    """A name for the place a URL is at: its host and port. The Node will read the URL as strictly (P17)."""
    target = parse_target(url)
    name = f"{target.host}-{target.port}".replace(":", "-").strip("-")
    if not is_name(name):
        raise BadConfig("the host of --upstream is too long", hint="name one of at most 57 characters")
    return name


def show(console: Console, running: Running, *, once: bool) -> None:
    """The answer, who saw what, and how to go on."""
    document = running.document
    console.print()
    console.print(Text.assemble(("Answer  ", "bold green"), running.answer))
    console.print()
    table = Table("who", "saw", title="Who saw what", title_justify="left", show_edge=False)
    for hop in running.seen:
        table.add_row(Text(hop.who), Text(hop.saw))
    console.print(table)
    console.print()
    if once:
        kept = f"Everything is kept in {document['home']}. To start it again and keep it running:"
        console.print(Text(kept), soft_wrap=True)
        console.print(Text(f"  {typed('iop')} quickstart --home {quote(str(document['home']))}"), soft_wrap=True)
        return
    example = json.dumps({"model": document["model"], "messages": [{"role": "user", "content": "hello"}]})
    ca, token = (quote(str(document[name])) for name in ("edge_ca", "token_file"))
    if document["operator_socket"] is not None:
        console.print("See its Edge and its Nodes, and what they are doing:", style="bold")
        socket = quote(str(document["operator_socket"]))
        command = f"  {typed('iop')} edge status {Member(Role.EDGE).name} --socket {socket}"
        console.print(Text(command), soft_wrap=True)
        console.print()
    console.print("Running until Ctrl-C. Ask it something:", style="bold")
    console.print(
        Text(
            f'  curl --cacert {ca} -H "Authorization: Bearer $(cat {token})" \\\n'
            f"    -H 'Content-Type: application/json' -d {quote(example)} \\\n"
            f"    {document['edge_url']}/v1/chat/completions"
        ),
        soft_wrap=True,
    )
