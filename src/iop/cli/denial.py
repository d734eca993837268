"""What ``iop node`` and ``iop edge`` share: denying a name, and lifting that (P13)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iop.cli.host import actor, config_option, json_option, mutate
from iop.control_plane.config import load

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from iop.interfaces import IStore
    from iop.records import Committed


def denials_of(kind: str, title: str, does: str, effect: str) -> click.Group:
    """The commands ``deny`` and ``allow`` for names of one kind.

    :param kind: ``node`` or ``edge``.
    :param title: the same as a word of prose.
    :param does: what the whole group does, in one half of a sentence.
    :param effect: a sentence that says what a denial ends, and when.
    """

    @click.group(
        kind,
        help=f"""{does}, on the Control Plane's own machine.

        A Control Plane that runs is asked, at its operator socket; denying and allowing need none that runs.
        """,
    )
    def group() -> None:
        pass

    @group.command(
        short_help=f"Deny the {title} NAME.",
        help=f"""Deny the {title} NAME, whether it was ever seen or not. {effect}

        Exit code 3: denied, but not every Edge is known to have it yet.

        \b
        Example:
          iop {kind} deny {kind}-1 --config control-plane.toml
        """,
    )
    @click.argument("name")
    @config_option
    @json_option
    def deny(name: str, config_path: Path, as_json: bool) -> None:
        _change(config_path, kind, name, lambda store: store.denials.deny(kind, name, actor()), as_json, denied=True)

    @group.command(
        short_help=f"Lift the denial of the {title} NAME.",
        help=f"""Lift the denial of the {title} NAME.

        \b
        Example:
          iop {kind} allow {kind}-1 --config control-plane.toml
        """,
    )
    @click.argument("name")
    @config_option
    @json_option
    def allow(name: str, config_path: Path, as_json: bool) -> None:
        _change(config_path, kind, name, lambda store: store.denials.allow(kind, name, actor()), as_json, denied=False)

    return group


def _change(
    config_path: Path,
    kind: str,
    name: str,
    change: Callable[[IStore], Deferred[Committed[None]]],
    as_json: bool,
    *,
    denied: bool,
) -> None:
    reached = mutate(load(config_path), change)
    if as_json:
        click.echo(json.dumps({kind: name, "denied": denied, **reached.as_json()}))
    else:
        click.echo(f"{kind.title()} {name} is {'denied' if denied else 'allowed'}.")
    reached.finish(as_json=as_json)
