"""Which test proves what: every rule, clause and property id that a test's docstring names.

``python -m tests.claims`` (or ``make docs``) fills the ``tests`` column of the tables in ``docs/``; ``test_claims``
fails while a column is out of date, or while a rule has no test and does not say ``planned``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("docs/protocol/edge-node.md", "docs/protocol/control-plane-edge.md", "docs/security.md")
_ID = re.compile(r"\b[CKQPWELNRS]\d{1,2}\b")
_ROW = re.compile(r"\| ([CKQPWELNRS]\d{1,2}) \|.*\|\Z")


def claims() -> dict[str, Counter[str]]:
    """For each id, how many tests of each file (relative to ``tests``) name it in a docstring of their own or above."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for docstrings in _tests(tree, (ast.get_docstring(tree) or "",)):
            for identifier in set(_ID.findall(" ".join(docstrings))):
                found[identifier][path.relative_to(ROOT / "tests").as_posix()] += 1
    return found


def _tests(node: ast.AST, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The docstrings that speak for each test below ``node``: its own, its class's, its module's."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _tests(child, (*above, ast.get_docstring(child) or ""))
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name.startswith("test"):
            yield (*above, ast.get_docstring(child) or "")


def filled(document: str, found: dict[str, Counter[str]]) -> str:
    """``document`` with its ``tests`` columns up to date; a row that says ``planned`` and has no test keeps that."""
    return "".join(f"{_filled_line(line, found)}\n" for line in document.splitlines())


def _filled_line(line: str, found: dict[str, Counter[str]]) -> str:
    row = _ROW.match(line)
    if row is None:
        return line
    before, _, last = line.removesuffix("|").rpartition("|")
    files = found.get(row[1], Counter())
    cell = ", ".join(f"`{path}` ({count})" for path, count in sorted(files.items()))
    return f"{before}| {cell or ('planned' if last.strip() == 'planned' else '')} |"


if __name__ == "__main__":
    known = claims()
    for name in DOCUMENTS:
        (ROOT / name).write_text(filled((ROOT / name).read_text(), known))
