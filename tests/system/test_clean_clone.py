"""What a new user does: a clean clone, a virtual environment, the README's command.

Needs git and a package index; makes two virtual environments and starts real processes on loopback; takes a minute.
What is not committed is not tested.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from subprocess import run
from zipfile import ZipFile

from twisted.trial.unittest import SynchronousTestCase

from iop.testing.provider import GREETING

ROOT = Path(__file__).resolve().parent.parent.parent
ROLES = ("iop-control-plane", "iop-edge", "iop-node")
#: The promise of the README, and what anything else may take.
FIRST_COMMAND_SECONDS = 120
SECONDS = 300


class CleanCloneTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clone = Path(self.mktemp()).absolute()
        # what surrounds the tests must not reach what they test
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.call("git", "clone", "--quiet", str(ROOT), str(self.clone), folder=ROOT)

    def call(self, *command: str, folder: Path | None = None, seconds: float = SECONDS) -> str:
        """What a command prints; it must succeed in time."""
        ended = run(  # noqa: S603 - commands are written above and below
            command,
            cwd=folder or self.clone,
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
            timeout=seconds,
        )
        self.assertEqual(ended.returncode, 0, f"{command}\n{ended.stdout}\n{ended.stderr}")
        return ended.stdout

    def test_first_command_of_the_readme(self) -> None:
        """As it stands there: answered within two minutes, then again in the same home; twistd knows the roles."""
        command = self.readme_commands()[0]
        self.assertIn(GREETING, self.call("sh", "-c", command, seconds=FIRST_COMMAND_SECONDS))

        document = json.loads(self.call(".venv/bin/iop", "quickstart", "--once", "--json"))
        self.assertEqual(document["home"], str(self.clone / "iop-home"))
        self.assertEqual(self.call("git", "status", "--porcelain"), "")
        self.assert_roles_are_known()

    def test_editable_install(self) -> None:
        """Contributors get the roles and the command too."""
        self.call(sys.executable, "-m", "venv", ".venv")
        self.call(".venv/bin/pip", "install", "--quiet", "-e", ".")
        self.assert_roles_are_known()
        self.assertIn("quickstart", self.call(".venv/bin/iop", "--help"))

    def test_source_distribution(self) -> None:
        """What is released builds the same wheel as the clone: migrations, types and the twistd plugin included."""
        self.call(sys.executable, "-m", "venv", ".venv")
        self.call(".venv/bin/pip", "install", "--quiet", "build")
        self.call(".venv/bin/python", "-m", "build", "--outdir", "from-source", ".")
        self.call(".venv/bin/python", "-m", "build", "--wheel", "--outdir", "from-clone", ".")
        (source, clone) = ((self.clone / folder).glob("*.whl") for folder in ("from-source", "from-clone"))
        packed, direct = (set(ZipFile(next(wheel)).namelist()) for wheel in (source, clone))
        self.assertEqual(packed, direct)
        for name in (
            "iop/py.typed",
            "iop/wire/control_pb2.pyi",
            "iop/store/migrations/env.py",
            "iop/store/migrations/versions/v0001_first.py",
            "twisted/plugins/iop_plugins.py",
        ):
            self.assertIn(name, packed)

    def readme_commands(self) -> list[str]:
        """The commands of the README's first block."""
        block = re.search(r"^```\n(.*?)^```$", (self.clone / "README.md").read_text(), re.M | re.S)
        assert block is not None
        return block[1].splitlines()

    def assert_roles_are_known(self) -> None:
        listed = self.call(".venv/bin/twistd", "--help")
        for role in ROLES:
            self.assertIn(role, listed)
