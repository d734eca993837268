"""What the garbage collector of a process need not look at again and again."""

from __future__ import annotations

import gc


def spare_what_is_there() -> None:
    """Have the collector pass over every object that exists now, for as long as it lives.

    For a process that has just made hundreds of thousands of objects which stay: a full collection looks at each of
    them, which stops everything for some tenths of a second, and frees none. They still go when nothing refers to them
    any more; only a cycle among them would stay, so recent garbage is collected first.
    """
    gc.collect(1)
    gc.freeze()
