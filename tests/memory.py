"""How much memory work takes: a measure of copying that is the same on every machine, however busy it is."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable


def kept(work: Callable[[], object]) -> int:
    """Bytes that were not held before ``work`` and are afterwards."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def allocated(steps: Iterable[Callable[[], object]]) -> int:
    """For each step the most bytes that it held at any moment beyond those before it, all together."""
    total = 0
    tracemalloc.start()
    try:
        for step in steps:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            step()
            total += tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return total
