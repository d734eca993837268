"""What every bench shares: processes on chosen cores, rounds, medians, a table for people and JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

#: The core of what is measured, and the core of who measures. On a machine with one core both are that one.
CORES = sorted(os.sched_getaffinity(0))
SERVED, DRIVING = CORES[0], CORES[-1]
ROUNDS = 5
#: How long one round counts, after how long a warm-up.
SECONDS = 2.0
WARM_SECONDS = 0.5
RESULTS = Path(__file__).parent / "results"


def python(*arguments: str, core: int, **options: Any) -> subprocess.Popen[str]:
    """A Python child on one core."""
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, *arguments],
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509 - no threads here
        **options,
    )


def ask(*arguments: str, core: int = DRIVING) -> Any:
    """Run a Python child to its end; what it printed last, as JSON."""
    child = python(*arguments, core=core, stdout=subprocess.PIPE)
    output, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed with exit code {child.returncode}")
    return json.loads(output.splitlines()[-1])


def wait_for(path: Path, seconds: float = 30.0) -> str:
    """The content of a file that a child will write."""
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} was not written in {seconds:g} s")
        time.sleep(0.02)
    return path.read_text()


@dataclass
class Figures:
    """The figures of one measured thing, one per round."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Distance between best and worst round, as a fraction of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0

    def __str__(self) -> str:
        return f"{_plain(self.median)} ±{self.spread / 2:.0%}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


class Tally:
    """Counts what ends between the warm-up and the end."""

    def __init__(self) -> None:
        self._from = time.perf_counter() + WARM_SECONDS
        self._until = self._from + SECONDS
        self._took: list[float] = []

    def going(self) -> bool:
        """Whether to begin another."""
        return time.perf_counter() < self._until

    def count(self, began: float) -> None:
        """One ended."""
        ended = time.perf_counter()
        if self._from <= began and ended <= self._until:
            self._took.append(ended - began)

    def result(self) -> dict[str, float]:
        """Rate per second and latencies in microseconds."""
        cuts = statistics.quantiles(self._took, n=100)
        return {"rate": len(self._took) / SECONDS, "p50": cuts[49] * 1e6, "p99": cuts[98] * 1e6}


class Report:
    """A table that is printed and written as JSON.

    :param name: of the bench; the JSON goes to ``bench/results/NAME.json``.
    :param columns: headings after the first.
    :param module: that makes it, if it is not called so too.
    """

    def __init__(self, name: str, title: str, columns: Sequence[str], module: str = "") -> None:
        self.name = name
        self._module = module or name
        self._table = Table("", *columns, title=title)
        self._rows: dict[str, dict[str, Any]] = {}
        self._columns = columns

    def row(self, label: str, figures: Mapping[str, Figures | str]) -> None:
        """Add a row; columns that are missing stay empty."""
        self._table.add_row(label, *(str(figures.get(column, "")) for column in self._columns))
        self._rows[label] = {
            column: value if isinstance(value, str) else {"median": value.median, "rounds": value.values}
            for column, value in figures.items()
        }

    def finish(self, packages: Iterable[str] = ()) -> None:
        """Print the table, write the JSON."""
        Console().print(self._table)
        RESULTS.mkdir(exist_ok=True)
        document = {
            "bench": self.name,
            "command": " ".join(["python", "-m", f"bench.{self._module}", *sys.argv[1:]]),
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {
                "cores": len(CORES),
                "python": platform.python_version(),
                "kernel": platform.release(),
                "packages": {name: version(name) for name in packages},
            },
            "rows": self._rows,
        }
        (RESULTS / f"{self.name}.json").write_text(json.dumps(document, indent=1) + "\n")
