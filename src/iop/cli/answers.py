"""How answers of the credential HTTPS API look on a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from iop.cli.credential_api import Json


def print_table(answer: Json, key: str, columns: Sequence[str], *, as_json: bool) -> None:
    """Print the list under ``key`` as a table, or the whole answer as one JSON line."""
    if as_json:
        click.echo(json.dumps(answer))
        return
    rows = answer.get(key)
    table = Table(*columns)
    for row in rows if isinstance(rows, list) else []:
        # Text, because what others named must not be read as markup
        table.add_row(*(Text(str(row.get(column, ""))) for column in columns))
    Console().print(table)


def print_mutation(answer: Json, columns: Sequence[str], *, as_json: bool) -> None:
    """Print what was made, and how far it got, or the whole answer as one JSON line."""
    if as_json:
        click.echo(json.dumps(answer))
        return
    for column in columns:
        click.echo(f"{column}: {answer.get(column, '')}")
    edges = answer.get("edges")
    counts = edges if isinstance(edges, dict) else {}
    click.echo(f"generation {answer.get('generation')}: {counts.get('acknowledged', 0)} Edges follow it", nl=False)
    late = int(counts.get("cut_off", 0)) + int(counts.get("unconfirmed", 0))
    click.echo(f", {late} do not yet; it holds everywhere by {answer.get('effective_by')}" if late else "")
