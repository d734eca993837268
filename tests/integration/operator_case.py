"""What operators type at a real Control Plane's socket."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from subprocess import run
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.roles import ROLES, SECONDS, Deployment


def short_folder(test: SynchronousTestCase) -> Path:
    """A folder that goes with its test. Those of trial are deeper than the path of a socket may be long."""
    folder = Path(tempfile.mkdtemp(prefix="iop-"))
    test.addCleanup(shutil.rmtree, folder)
    return folder


def iop(socket: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``iop ARGUMENTS``."""
    command = [sys.executable, "-m", "iop", *arguments, "--socket", str(socket)]
    done = run(command, capture_output=True, text=True, check=False, timeout=SECONDS)  # noqa: S603 - ourselves
    return done.returncode, done.stdout, done.stderr


def told(socket: Path, *arguments: str) -> dict[str, Any]:
    """The one line that a command prints with ``--json``, be it an answer or an error."""
    _, out, err = iop(socket, *arguments, "--json")
    assert err == "", err
    [line] = out.splitlines()
    document = json.loads(line)
    assert isinstance(document, dict)
    return document


class OperatorCase(SynchronousTestCase):
    """One deployment that serves, and the path of its operator socket."""

    def setUp(self) -> None:
        self.deployment = Deployment(short_folder(self) / "home")
        self.addCleanup(self.deployment.stop)
        self.deployment.start(*ROLES)
        self.deployment.ready()
        socket = self.deployment.home.operator_socket
        assert socket is not None
        self.socket = socket
