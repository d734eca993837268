"""Run schedules by hand: ``python -m tests.model --schedules 10000 --seed 1``."""

from __future__ import annotations

import click
from hypothesis import seed

from tests.model.test_schedules import Schedule, run_schedules


@click.command()
@click.option("--schedules", type=click.IntRange(1), default=10_000, show_default=True, help="How many.")
@click.option("--seed", "number", type=int, default=1, show_default=True, help="Where the choices begin.")
def main(schedules: int, number: int) -> None:
    """Run schedules of everything at once; one that breaks something is made short and printed."""
    run_schedules(schedules, seed(number)(Schedule))
    click.echo(f"{schedules:,} schedules from seed {number}: nothing broke")


if __name__ == "__main__":
    main()
