"""The log's events as docs/operations.md tells them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parent.parent
LEVELS = {"debug": "debug", "info": "info", "warn": "warn", "error": "error", "failure": "critical"}
ROW = re.compile(r"^\| `([a-z_.]+)` \| (\w+) \| ((?:`\w+`(?:, )?)*) \| ([^|]+) \|$")


def written() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Event, level and fields of every log call in the sources."""
    for path in (ROOT / "src" / "iop").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            logger = call.func.value
            named = (
                logger.id if isinstance(logger, ast.Name) else logger.attr if isinstance(logger, ast.Attribute) else ""
            )
            if named not in {"log", "_log"} or call.func.attr not in LEVELS:
                continue
            name = call.args[0]
            if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                raise AssertionError(f"{path}:{call.lineno}: an event whose name is no constant")
            fields = frozenset(keyword.arg or "LISTENER_address" for keyword in call.keywords) - {"failure"}
            yield name.value, LEVELS[call.func.attr], fields


def documented() -> Iterator[tuple[str, str, frozenset[str], str]]:
    """Event, level, fields and meaning of every row."""
    for line in (ROOT / "docs" / "operations.md").read_text().splitlines():
        row = ROW.match(line)
        if row is not None:
            yield row[1], row[2], frozenset(re.findall(r"\w+", row[3])), row[4]


class LogEventTests(SynchronousTestCase):
    def test_every_event_is_documented(self) -> None:
        """Every event that is logged has a row with its level and all its fields, and every row an event."""
        told = {(event, level): fields for event, level, fields, _ in documented()}
        found: dict[tuple[str, str], frozenset[str]] = {}
        for event, level, fields in written():
            found[event, level] = found.get((event, level), frozenset()) | fields
        self.assertEqual(told, found)
        self.assertGreater(len(found), 40)

    def test_rows_are_sorted_and_say_something(self) -> None:
        """A reader finds an event by its name."""
        rows = [event for event, *_ in documented()]
        self.assertEqual(rows, sorted(rows))
        for event, _, _, says in documented():
            self.assertGreater(len(says), 15, event)
