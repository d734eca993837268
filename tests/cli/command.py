"""Command lines, run as ``iop`` runs them, in this process."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.cli.main import run


@dataclass(frozen=True)
class Done:
    """What a command line came to."""

    code: int
    out: str
    err: str


class CommandCase(SynchronousTestCase):
    """A folder of its own, and :meth:`iop`."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()

    def iop(self, *arguments: str) -> Done:
        """Run ``iop`` with ``arguments``."""
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run(arguments)
        return Done(code, out.getvalue(), err.getvalue())
