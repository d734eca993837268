"""How a command that has to wait runs the reactor: once, for one coroutine, whose result it returns."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import click
from twisted.internet.task import react

from iop.process.role import IReactor

T = TypeVar("T")


def run_in_reactor(work: Callable[[IReactor], Coroutine[Any, Any, T]]) -> T:
    """Run ``work(reactor)`` to its end and return its result, or raise what it raised. Once per process.

    :raises click.Abort: if a signal stopped the reactor before that.
    """
    results: list[T] = []
    errors: list[Exception] = []

    async def main(reactor: object) -> None:
        try:
            results.append(await work(cast(IReactor, reactor)))
        except Exception as error:  # noqa: BLE001 - raised again below; react() would log it and exit
            errors.append(error)

    try:
        react(main)
    except SystemExit:
        if errors:
            raise errors[0] from None
        if not results:
            raise click.Abort from None
    return results[0]
