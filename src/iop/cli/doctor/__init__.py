"""``iop doctor``: what is wrong with a set-up, and what to do about it. It changes nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from iop.cli.doctor.between import between
from iop.cli.doctor.checks import Grade, Row, examine, from_error, ok, skipped
from iop.cli.doctor.configured import Configured
from iop.cli.doctor.roles import checks_of
from iop.cli.reactor import run_in_reactor
from iop.errors import BadConfig, IopError
from iop.files import straightened
from iop.net.clock import ReactorClock
from iop.process.harden import no_core_files
from iop.process.role import IReactor
from iop.units import Role

if TYPE_CHECKING:
    from iop.interfaces import IClock

#: Roles in the order in which they are started.
_ROLES: Final = (Role.CONTROL_PLANE, Role.EDGE, Role.NODE)
_STYLES: Final = {Grade.OK: "green", Grade.WARNING: "yellow", Grade.FAULT: "bold red", Grade.SKIPPED: "dim"}
_GRADE_WIDTH: Final = max(len(grade.value) for grade in Grade)


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
        role = self.role.value if self.role else None
        checks = _as_json(self.rows)
        return {"config": str(straightened(self.path)), "role": role, "name": self.name, "checks": checks}


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
    help="Folder with control-plane.toml, edge.toml, node.toml or node-….toml, as quickstart makes it.",
)
@click.option("--verbose", is_flag=True, help="Print what is right, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line, with every check.")
def doctor(files: Sequence[Path], home: Path | None, verbose: bool, as_json: bool) -> None:
    """Find what is wrong with a set-up, and what to do about it, whether its roles run or not.

    Which role a FILE is for stands in it. Its files, keys, certificates, folders, addresses and database are looked at
    as the role does when it starts; then the peer that it dials is met with its certificate, and its targets are
    connected to, without a byte of a request. What several FILEs say of each other is compared. Nothing is changed. Run
    it as the role's user, on the role's machine.

    The exit code is 0 if there is no fault, 1 if there is one; warnings are no faults.

    \b
    Examples:
      iop doctor --config control-plane.toml
      iop doctor --config edge.toml --config node.toml
      iop doctor --home iop-home --json
    """
    if not files and home is None:
        raise click.UsageError("name what to look at: --config FILE or --home FOLDER")
    paths = [*files, *(configurations_of(home) if home is not None else ())]
    # it reads keyring, issuer and private keys
    no_core_files()
    reports, pairs = run_in_reactor(lambda reactor: _examined(paths, reactor))
    counts = Counter(row.finding.grade for rows in (*(report.rows for report in reports), pairs) for row in rows)
    if as_json:
        totals = {grade.value: counts[grade] for grade in Grade}
        roles = [report.as_json() for report in reports]
        click.echo(json.dumps({"counts": totals, "roles": roles, "between": _as_json(pairs)}))
    else:
        console = Console(highlight=False)
        for report in reports:
            of = f" ({report.role.value} {report.name})" if report.role else ""
            _print(console, f"{report.path}{of}", report.rows, verbose)
        if pairs:
            _print(console, "between the files", pairs, verbose)
        console.print(_summary(counts))
    if counts[Grade.FAULT]:
        sys.exit(1)


def configurations_of(home: Path) -> list[Path]:
    """The configurations in a folder that is laid out as quickstart does it.

    :raises BadConfig: if there is none.
    """
    found = [path for role in _ROLES if (path := home / f"{role.value}.toml").exists()]
    found += sorted(home.glob("node-*.toml"))
    if not found:
        raise BadConfig(
            f"{home} has no control-plane.toml, edge.toml or node.toml", hint="name the file itself: --config FILE"
        )
    return found


async def _examined(paths: Sequence[Path], reactor: IReactor) -> tuple[list[Report], list[Row]]:
    """What is found of each file, and between those that are good."""
    clock = ReactorClock(reactor)
    refused: dict[Path, Report] = {}
    files: dict[Path, Configured] = {}
    for path in paths:
        try:
            files[path] = Configured.read(path)
        except IopError as error:
            rows = [Row("configuration", from_error(error)), Row("everything else", skipped("configuration"))]
            refused[path] = Report(path, None, None, rows)
    among = [*files.values()]
    reports = [await _report(files[path], among, reactor, clock) if path in files else refused[path] for path in paths]
    return reports, await examine(between(among))


async def _report(one: Configured, among: Sequence[Configured], reactor: IReactor, clock: IClock) -> Report:
    good = Row("configuration", ok(f"of {one.role.value} {one.name}"))
    rows = [good, *await examine(checks_of(one, among, reactor, clock))]
    return Report(one.path, one.role, one.name, rows)


def _as_json(rows: Sequence[Row]) -> list[dict[str, str]]:
    return [
        {
            "check": row.name,
            "result": row.finding.grade.value,
            "message": row.finding.message,
            "hint": row.finding.hint,
        }
        for row in rows
    ]


def _print(console: Console, title: str, rows: Sequence[Row], verbose: bool) -> None:
    """One line, and below it each row that is not ok, or all of them."""
    good = sum(row.finding.grade is Grade.OK for row in rows)
    told = f"all {good} checks ok" if good == len(rows) else f"{good} of {len(rows)} checks ok"
    style = _STYLES[Grade.OK if good == len(rows) else Grade.WARNING]
    console.print(Text.assemble((_plain(title), "bold"), ": ", (told, style)), soft_wrap=True)
    shown = [row for row in rows if verbose or row.finding.grade is not Grade.OK]
    width = max((cell_len(_plain(row.name)) for row in shown), default=0)
    for row in shown:
        _print_row(console, row, width)


def _print_row(console: Console, row: Row, width: int) -> None:
    """What was found, and below it what to do; nothing is cut, and nothing that a terminal would obey is shown."""
    finding = row.finding
    grade, style = finding.grade.value, _STYLES[finding.grade]
    name = _plain(row.name)
    # every mistake of a configuration has a line of its own
    first, *others = finding.message.splitlines() or [""]
    margin = " " * (_GRADE_WIDTH + width + 6)
    line = Text.assemble("  ", (f"{grade:<{_GRADE_WIDTH}}", style), "  ", name, " " * (width - cell_len(name) + 2))
    console.print(line.append(_plain(first)), soft_wrap=True)
    for each in others:
        console.print(Text(margin + _plain(each)), soft_wrap=True)
    if finding.hint:
        console.print(Text.assemble(margin, ("do: ", "bold"), _plain(finding.hint)), soft_wrap=True)


def _plain(text: str) -> str:
    """Text of others, on one line."""
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
