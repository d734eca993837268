"""``iop store``: the database file, made, brought up to date and looked at."""

from __future__ import annotations

import json
from pathlib import Path

import click

from iop.cli.answers import print_facts
from iop.cli.host import config_option, json_option
from iop.control_plane.config import load
from iop.files import make_folder
from iop.store import schema
from iop.store.lock import ControlPlaneLock, is_held


@click.group()
def store() -> None:
    """Make the Control Plane's database, bring it up to date, look at it."""


@store.command(short_help="Make the database, or bring it up to date.")
@config_option
@json_option
def migrate(config_path: Path, as_json: bool) -> None:
    """Make the database and the folder it is in, or bring it to this version's schema. The Control Plane must not run.

    \b
    Example:
      iop store migrate --config control-plane.toml
    """
    config = load(config_path)
    path = config.store.path
    make_folder(path.parent)
    lock = ControlPlaneLock.acquire(path)
    try:
        schema.migrate(path, config.deployment.id)
    finally:
        lock.release()
    if as_json:
        click.echo(json.dumps({"path": str(path), "schema": schema.CURRENT}))
    else:
        click.echo(f"{path} has schema {schema.CURRENT}, the current one.")


@store.command(short_help="Show what the database is, and whether it is in use.")
@config_option
@json_option
def status(config_path: Path, as_json: bool) -> None:
    """Show what the database is, and whether a Control Plane runs on it.

    \b
    Example:
      iop store status --config control-plane.toml
    """
    path = load(config_path).store.path
    found = schema.status(path)
    facts = {
        "path": str(path),
        "schema": found.schema,
        "current": found.current,
        "deployment": found.deployment,
        "generation": found.generation,
        "control_plane_running": is_held(path),
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    print_facts(facts)
    if not found.current:
        click.echo(f"Bring it up to date: iop store migrate --config {config_path}")
