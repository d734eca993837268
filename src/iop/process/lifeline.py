"""Runs a program that must not outlive the process that started it, however that one ends::

    python -m iop.process.lifeline PARENT_PID PROGRAM [ARGUMENT...]

The kernel kills the program when its parent is gone, even by SIGKILL (prctl(2), PR_SET_PDEATHSIG); the request stays in
force across the exec. Linux only, as is the rest of the product.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, then become the program."""
    parent, program, *_ = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if os.getppid() != int(parent):
        # the parent ended before the kernel was asked
        sys.exit(1)
    os.execv(program, arguments[1:])  # noqa: S606 - the caller's own program


if __name__ == "__main__":
    main(sys.argv[1:])
