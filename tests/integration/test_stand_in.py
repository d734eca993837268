"""``python -m iop.testing.provider`` as a process, as the manual set-up starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from time import monotonic, sleep
from urllib.request import Request, urlopen

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.quickstart import SECONDS


class StandInProcessTests(SynchronousTestCase):
    def setUp(self) -> None:
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        self.secret = folder / "provider.key"
        self.secret.touch(0o600)
        self.secret.write_text("sk-1\n")
        self.port_file = folder / "port"

    def start(self, *arguments: str) -> Popen[str]:
        files = ("--secret-file", str(self.secret), "--port-file", str(self.port_file))
        command = [sys.executable, "-m", "iop.testing.provider", *files, *arguments]
        started = Popen(command, stdout=PIPE, stderr=PIPE, text=True)  # noqa: S603 - our own interpreter
        self.addCleanup(started.communicate)
        self.addCleanup(started.kill)
        return started

    def refused(self, *arguments: str) -> tuple[int, str]:
        """Exit code and the last word of one that does not start."""
        process = self.start(*arguments)
        _, told = process.communicate(timeout=SECONDS)
        self.assertNotIn("Traceback", told)
        return process.returncode, told

    def port(self, process: Popen[str]) -> int:
        deadline = monotonic() + SECONDS
        while not self.port_file.exists():
            self.assertIsNone(process.poll())
            self.assertLess(monotonic(), deadline)
            sleep(0.02)
        return int(self.port_file.read_text())

    def test_newline_at_the_end_of_its_secret_is_no_part_of_it(self) -> None:
        """One file serves it and `iop slot create`, which drops the newline."""
        port = self.port(self.start())
        asked = Request(f"http://127.0.0.1:{port}/v1/models", headers={"authorization": "Bearer sk-1"})
        with urlopen(asked, timeout=SECONDS) as answer:  # noqa: S310 - http to loopback
            self.assertEqual(json.load(answer)["data"][0]["id"], "stand-in")

    def test_what_it_cannot_use_is_told(self) -> None:
        port = self.port(self.start())
        code, told = self.refused("--port", str(port))
        self.assertEqual(code, 1)
        self.assertIn("Address already in use", told)
        self.assertEqual(self.refused("--port", "65536")[0], 2)
        self.secret.chmod(0o644)
        self.assertEqual(
            self.refused(),
            (1, f"Error: {self.secret} holds secrets and is open to group or others\nHint: chmod 600 {self.secret}\n"),
        )
