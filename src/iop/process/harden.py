"""What a process that may hold secrets asks of the kernel before it reads the first one (P25)."""

from __future__ import annotations

import ctypes
import os
import resource

_PR_SET_DUMPABLE = 4


def no_core_files() -> None:
    """Never leave the process's memory in a core file, whatever the limit was."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def all_descriptors() -> int:
    """Take every file descriptor that the system allows, and answer how many: who runs out of them serves nobody."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def hide_memory() -> None:
    """Close the process's memory to ptrace and ``/proc/PID/mem`` of other processes of the same user.

    For every role but the Edge: it holds nothing worth hiding, and tests search its memory for what must not be there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
