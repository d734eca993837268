"""What a check is: a look at one thing, with a finding of a few grades, and how checks are made one after the other."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from iop.errors import IopError


class Grade(Enum):
    """How bad a finding is. ``SKIPPED``: nobody knows, because something that comes first is at fault."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one look.

    :ivar message: what was found; never a secret.
    :ivar hint: what to do about it; empty where nothing is to be done.
    """

    grade: Grade
    message: str
    hint: str = ""


def ok(message: str) -> Finding:
    """Nothing is to be done."""
    return Finding(Grade.OK, message)


def warning(message: str, hint: str) -> Finding:
    """It works now, and soon or elsewhere it will not."""
    return Finding(Grade.WARNING, message, hint)


def fault(message: str, hint: str) -> Finding:
    """It does not work."""
    return Finding(Grade.FAULT, message, hint)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at.

    :ivar name: what is looked at, as it is named in the configuration: ``[tls] key``.
    :ivar look: finds out; an :class:`~iop.errors.IopError` that it raises or fails with is a fault in its own words.
    :ivar needs: checks without whose success this look would only say the same again, or nothing.
    """

    name: str
    look: Callable[[], Finding | Coroutine[Any, Any, Finding]]
    needs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A check that was made, or could not be."""

    name: str
    finding: Finding


async def examine(checks: Iterable[Check]) -> list[Row]:
    """Make the checks in their order."""
    rows: list[Row] = []
    for check in checks:
        blocked = {row.name for row in rows if row.finding.grade in (Grade.FAULT, Grade.SKIPPED)}
        first = next((need for need in check.needs if need in blocked), None)
        row = Row(check.name, await _made(check) if first is None else skipped(first))
        rows.append(row)
    return rows


def skipped(because: str) -> Finding:
    """Nobody looked, because of the fault at ``because``."""
    return Finding(Grade.SKIPPED, f"not looked at, because of {because}")


def from_error(error: IopError) -> Finding:
    """The fault that a loader found, in its words."""
    return fault(error.message, error.hint)


async def _made(check: Check) -> Finding:
    try:
        found = check.look()
        return found if isinstance(found, Finding) else await found
    except IopError as error:
        return from_error(error)
