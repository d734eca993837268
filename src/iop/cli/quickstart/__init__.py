"""``iop quickstart``: a whole deployment on this machine, and one request through it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from iop.cli.quickstart.flow import Quickstart, Running
from iop.cli.quickstart.home import Home, Settings, Upstream
from iop.cli.reactor import run_in_reactor
from iop.cli.secret_input import read_secret
from iop.errors import BadConfig
from iop.secret import Secret
from iop.units import is_name

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
@click.option("--once", is_flag=True, help="Exit after the answer instead of running until SIGINT or SIGTERM.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line when ready, and nothing else.")
@click.option(
    "--upstream", metavar="URL", help="A real provider's base URL, /v1 included, instead of a local stand-in."
)
@click.option("--secret-file", metavar="FILE|-", help="Private file with the provider's secret, or - for stdin.")
@click.option(
    "--profile", type=click.Choice(["openai", "openai-compatible"]), help="How the secret is used. [default: openai]"
)
@click.option("--model", help=f"Model to ask for. [default: {_DEFAULT_MODEL}]")
def quickstart(
    folder: Path,
    once: bool,
    as_json: bool,
    upstream: str | None,
    secret_file: str | None,
    profile: str | None,
    model: str | None,
) -> None:
    """Run a Control Plane, an Edge and a Node on this machine and send one chat completion through them.

    The home folder keeps everything; another run starts again from what is there, with the same provider unless another
    one is named. Everything listens on loopback only.

    \b
    Examples:
      iop quickstart --once
      iop quickstart --upstream https://api.openai.com/v1 --secret-file openai.key --model gpt-4o-mini
      iop quickstart --json > ready.json
    """
    home = Home(folder)
    with home.held(), _secret(secret_file) as secret:
        settings = decide(home.settings(), upstream, profile, model, has_secret=secret_file is not None)
        console = Console(quiet=as_json, highlight=False)
        if settings.upstream is None:
            console.print("No --upstream was given, so a small local stand-in provider answers. It is no model.")
        with console.status("Starting") as status:

            def say(step: str) -> None:
                console.print(f"  {step}")
                status.update(step)

            def ready(running: Running) -> None:
                status.stop()
                if as_json:
                    click.echo(json.dumps(running.document))
                else:
                    _show(console, running, once=once)

            finished = run_in_reactor(
                lambda reactor: Quickstart(reactor, home, settings, secret if secret_file else None, say).run(
                    ready, once=once
                )
            )
    if not finished:
        raise click.Abort


def _secret(source: str | None) -> Secret:
    return Secret(b"") if source is None else read_secret(source)


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
    """A name for the place a URL is at: its host and port."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}[parts.scheme]
    except (ValueError, KeyError):
        raise _bad_url() from None
    name = f"{parts.hostname}-{port}".replace(":", "-").strip("-")
    if not parts.hostname or parts.username or parts.query or parts.fragment or not is_name(name):
        raise _bad_url()
    return name


def _bad_url() -> BadConfig:
    return BadConfig(
        "--upstream must be a plain http:// or https:// URL", hint="for example --upstream https://api.openai.com/v1"
    )


def _show(console: Console, running: Running, *, once: bool) -> None:
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
        console.print(
            f"Everything is in {document['home']}; run it again, without --once, to keep it running.", soft_wrap=True
        )
        return
    example = json.dumps({"model": document["model"], "messages": [{"role": "user", "content": "hello"}]})
    console.print("Running until Ctrl-C. Ask it something:", style="bold")
    console.print(
        Text(
            f'  curl --cacert {document["edge_ca"]} -H "Authorization: Bearer $(cat {document["token_file"]})" \\\n'
            f"    -H 'Content-Type: application/json' -d '{example}' \\\n"
            f"    {document['edge_url']}/v1/chat/completions"
        ),
        soft_wrap=True,
    )
