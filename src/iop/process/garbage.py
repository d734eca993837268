"""What the garbage collector of a process need not look at again and again."""

from __future__ import annotations

import gc


def spare_what_is_there() -> None:
    """Have the collector pass over every object that exists now, for as long as it lives.

    For a process that has just made hundreds of thousands of objects which stay: a full collection looks at each of
    them, which stops everything for some tenths of a second, and frees none. They still go when nothing refers to them
    any more. What is there now and ends as a cycle, such as a connection, stays until this is called again: that takes
    back what was spared before, and collects it.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
