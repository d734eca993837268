"""``iop doctor``: what is wrong with a set-up, and what to do about it. It changes nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from iop.cli.doctor.checks import Grade, Row, examine, from_error, ok, skipped
from iop.cli.doctor.roles import examined
from iop.cli.reactor import run_in_reactor
from iop.errors import BadConfig, IopError
from iop.net.clock import ReactorClock
from iop.process.harden import no_core_files
from iop.process.role import IReactor
from iop.units import Role

#: Roles in the order in which they are started.
_ROLES: Final = (Role.CONTROL_PLANE, Role.EDGE, Role.NODE)
_STYLES: Final = {Grade.OK: "green", Grade.WARNING: "yellow", Grade.FAULT: "bold red", Grade.SKIPPED: "dim"}
_GRADE_WIDTH: Final = max(len(grade.value) for grade in Grade)
_NAME_WIDTH: Final = len("[edge_wire] certificate and key")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of the role that one configuration is for.

    :ivar role: and ``name``: None if the configuration does not say.
    """

    path: Path
    role: Role | None
    name: str | None
    rows: Sequence[Row]

    def as_json(self) -> dict[str, object]:
        """``config``, ``role``, ``name`` and ``checks``: each with ``check``, ``result``, ``message``, ``hint``."""
        checks = [
            {
                "check": row.name,
                "result": row.finding.grade.value,
                "message": row.finding.message,
                "hint": row.finding.hint,
            }
            for row in self.rows
        ]
        role = self.role.value if self.role else None
        return {"config": str(self.path.absolute()), "role": role, "name": self.name, "checks": checks}


@click.command(short_help="Find what is wrong with a set-up, and what to do.")
@click.option(
    "--config",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Configuration of any role; may be repeated.",
)
@click.option(
    "--home",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with control-plane.toml, edge.toml or node.toml, as quickstart makes it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def doctor(files: Sequence[Path], home: Path | None, as_json: bool) -> None:
    """Find what is wrong with a set-up, and what to do about it, whether its roles run or not.

    Which role a FILE is for stands in it. Its files, keys, certificates, folders, addresses and database are looked at
    as the role does when it starts; then the peer that it dials is met with its certificate, and its targets are
    connected to, without a byte of a request. Nothing is changed. Run it as the role's user, on the role's machine.

    The exit code is 0 if there is no fault, 1 if there is one; warnings are no faults.

    \b
    Examples:
      iop doctor --config control-plane.toml
      iop doctor --config edge.toml --config node.toml
      iop doctor --home iop-home --json
    """
    if not files and home is None:
        raise click.UsageError("name what to look at: --config FILE or --home FOLDER")
    paths = [*files, *(_of_home(home) if home is not None else ())]
    # it reads keyring, issuer and private keys
    no_core_files()
    console = Console(quiet=as_json, highlight=False)

    async def work(reactor: IReactor) -> list[Report]:
        return [await _examined(path, reactor, console) for path in paths]

    reports = run_in_reactor(work)
    counts = Counter(row.finding.grade for report in reports for row in report.rows)
    if as_json:
        totals = {grade.value: counts[grade] for grade in Grade}
        click.echo(json.dumps({"counts": totals, "roles": [report.as_json() for report in reports]}))
    else:
        console.print(_summary(counts))
    if counts[Grade.FAULT]:
        sys.exit(1)


def _of_home(home: Path) -> list[Path]:
    """The configurations in a folder that is laid out as quickstart does it.

    :raises BadConfig: if there is none.
    """
    found = [path for role in _ROLES if (path := home / f"{role.value}.toml").exists()]
    if not found:
        raise BadConfig(
            f"{home} has no control-plane.toml, edge.toml or node.toml", hint="name the file itself: --config FILE"
        )
    return found


async def _examined(path: Path, reactor: IReactor, console: Console) -> Report:
    def told(row: Row) -> None:
        _print(console, row)

    console.print(Text(str(path), style="bold"), soft_wrap=True)
    try:
        found = examined(path, reactor, ReactorClock(reactor))
    except IopError as error:
        rows = [Row("configuration", from_error(error)), Row("everything else", skipped("configuration"))]
        for row in rows:
            told(row)
        return Report(path, None, None, rows)
    good = Row("configuration", ok(f"of {found.role.value} {found.name}"))
    told(good)
    return Report(path, found.role, found.name, [good, *await examine(found.checks, told)])


def _print(console: Console, row: Row) -> None:
    """One line, and below it what to do; nothing is cut, and nothing that a terminal would obey is shown."""
    finding = row.finding
    grade, style = finding.grade.value, _STYLES[finding.grade]
    line = Text.assemble("  ", (f"{grade:<{_GRADE_WIDTH}}", style), "  ", _padded(row.name), "  ")
    console.print(line.append(_plain(finding.message)), soft_wrap=True)
    if finding.hint:
        margin = " " * (_GRADE_WIDTH + _NAME_WIDTH + 6)
        console.print(Text.assemble(margin, ("do: ", "bold"), _plain(finding.hint)), soft_wrap=True)


def _padded(name: str) -> str:
    shown = _plain(name)
    return shown + " " * (_NAME_WIDTH - cell_len(shown))


def _plain(text: str) -> str:
    """Text of others on one line: the lines of a list of mistakes, too."""
    return "".join(character if character.isprintable() else " " for character in text)


def _summary(counts: Counter[Grade]) -> Text:
    faults, warnings, left = counts[Grade.FAULT], counts[Grade.WARNING], counts[Grade.SKIPPED]
    if not faults and not warnings:
        return Text("Nothing is wrong.", style=_STYLES[Grade.OK])
    said = [
        f"{faults} {'fault' if faults == 1 else 'faults'}",
        f"{warnings} {'warning' if warnings == 1 else 'warnings'}",
    ]
    rest = f"; {left} could not be looked at, because of them" if left else ""
    return Text(", ".join(said) + rest + ".", style=_STYLES[Grade.FAULT if faults else Grade.WARNING])
