"""How answers look on a terminal: rows, facts, and how far a change got. Nothing is cut, whatever its width."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import click
from rich.cells import cell_len

Answer = Mapping[str, object]


def print_list(answer: Answer, key: str, columns: Sequence[str], nothing: str, *, as_json: bool) -> None:
    """Print the list under ``key`` in columns, or the whole answer as one JSON line.

    :param columns: which members of an entry, in this order.
    :param nothing: what to say if the list is empty.
    """
    if as_json:
        click.echo(json.dumps(answer))
        return
    found = answer.get(key)
    entries = found if isinstance(found, list) else []
    if not entries:
        click.echo(nothing)
        return
    lines = [[column.replace("_", " ").upper() for column in columns]]
    lines += [[plain(entry.get(column, "")) for column in columns] for entry in entries]
    _print_aligned(lines)


def print_facts(facts: Answer) -> None:
    """Print one line for each fact."""
    _print_aligned([[name.replace("_", " "), plain(value) or "-"] for name, value in facts.items()])


def print_mutation(answer: Answer, columns: Sequence[str], *, as_json: bool) -> None:
    """Print what was made, and how far it got, or the whole answer as one JSON line."""
    if as_json:
        click.echo(json.dumps(answer))
        return
    print_facts({column: answer.get(column, "") for column in columns})
    edges = answer.get("edges")
    counts = edges if isinstance(edges, dict) else {}
    click.echo(
        reached(
            int(str(answer.get("generation", 0))),
            *(int(counts.get(name, 0)) for name in ("acknowledged", "cut_off", "unconfirmed")),
            by=str(answer.get("effective_by", "")),
        )
    )


def reached(generation: int, acknowledged: int, cut_off: int, unconfirmed: int, *, by: str) -> str:
    """How far a change got, as a sentence. An Edge that connected anew stands there once for each connection.

    :param by: when it is in force everywhere, RFC 3339.
    """
    if not acknowledged and not cut_off and not unconfirmed:
        return f"Generation {generation}: no Edge in managed mode is connected."
    counted = (
        (acknowledged, "acknowledged it", "acknowledged it"),
        (cut_off, "was cut off", "were cut off"),
        (unconfirmed, "could not confirm", "could not confirm"),
    )
    said = [f"{count} {one if count == 1 else more}" for count, one, more in counted if count]
    late = f"; it is in force everywhere by {by}" if cut_off or unconfirmed else ""
    return f"Generation {generation}, Edge connections: {', '.join(said)}{late}."


def plain(value: object) -> str:
    """A value for people, without what a terminal would obey."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "unknown" if value is None else str(value)
    return "".join(character if character.isprintable() else "?" for character in text)


def _print_aligned(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())
