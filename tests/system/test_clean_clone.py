"""What a new user does: a clean clone, a virtual environment, the README's command.

Needs git and a package index; makes two virtual environments and starts real processes on loopback; takes a minute.
What is not committed is not tested.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import run
from time import monotonic

from twisted.trial.unittest import SynchronousTestCase

from iop.testing.provider import GREETING

ROOT = Path(__file__).resolve().parent.parent.parent
ROLES = ("iop-control-plane", "iop-edge", "iop-node")


class CleanCloneTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clone = Path(self.mktemp()).absolute()
        # what surrounds the tests must not reach what they test
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.call("git", "clone", "--quiet", str(ROOT), str(self.clone), folder=ROOT)

    def call(self, *command: str, folder: Path | None = None) -> str:
        """What a command prints; it must succeed."""
        ended = run(  # noqa: S603 - commands are written above and below
            command,
            cwd=folder or self.clone,
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
            timeout=300,
        )
        self.assertEqual(ended.returncode, 0, f"{command}\n{ended.stdout}\n{ended.stderr}")
        return ended.stdout

    def install(self, *what: str) -> Path:
        """Make a virtual environment with the clone installed; answers its folder of commands."""
        self.call(sys.executable, "-m", "venv", ".venv")
        self.call(".venv/bin/pip", "install", "--quiet", *what)
        return self.clone / ".venv" / "bin"

    def test_first_command_of_the_readme(self) -> None:
        """Installed and answered within two minutes, twice in one home; the roles are known to twistd."""
        began = monotonic()
        bin_folder = self.install(".")
        told = self.call(str(bin_folder / "iop"), "quickstart", "--once")
        self.assertLess(monotonic() - began, 120)
        self.assertIn(GREETING, told)

        document = json.loads(self.call(str(bin_folder / "iop"), "quickstart", "--once", "--json"))
        self.assertEqual(document["home"], str(self.clone / "iop-home"))
        self.assertEqual(self.call("git", "status", "--porcelain"), "")

        listed = self.call(str(bin_folder / "twistd"), "--help")
        for role in ROLES:
            self.assertIn(role, listed)

    def test_editable_install(self) -> None:
        """Contributors get the roles and the command too."""
        bin_folder = self.install("-e", ".")
        listed = self.call(str(bin_folder / "twistd"), "--help")
        for role in ROLES:
            self.assertIn(role, listed)
        self.assertIn("quickstart", self.call(str(bin_folder / "iop"), "--help"))
