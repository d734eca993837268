"""``iop quickstart --upstream``: a provider that is not the quickstart's own. Starts real processes on loopback."""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from subprocess import Popen
from time import monotonic, sleep

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.quickstart import SECONDS, RunningQuickstart


class UpstreamTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        self.record = self.folder / "record"
        self.secret = self.folder / "secret"
        self.port = 0

    def provider(self, secret: str) -> Popen[bytes]:
        """Start a provider that takes ``secret``, on the port of the one before."""
        (self.folder / "expected").touch(0o600)
        (self.folder / "expected").write_text(secret)
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        output = (self.folder / "provider.log").open("ab")
        self.addCleanup(output.close)
        started = Popen(  # noqa: S603 - our own interpreter
            [
                *(sys.executable, "-m", "iop.testing.provider", "--secret-file", str(self.folder / "expected")),
                *("--port-file", str(port_file), "--port", str(self.port), "--record", str(self.record)),
            ],
            stdout=output,
        )
        self.addCleanup(started.wait)
        self.addCleanup(started.kill)
        deadline = monotonic() + SECONDS
        while not port_file.exists():
            self.assertIsNone(started.poll())
            self.assertLess(monotonic(), deadline)
            sleep(0.02)
        self.port = int(port_file.read_text())
        return started

    def once(self, *arguments: str) -> tuple[int, dict[str, object]]:
        """Run a quickstart to its end: exit code and its line."""
        running = RunningQuickstart(self.folder / "home", "--once", *arguments)
        self.addCleanup(running.kill)
        code, output, _ = running.end()
        return code, json.loads(output)

    def named(self) -> list[str]:
        """The options that name this provider."""
        return ["--upstream", f"http://127.0.0.1:{self.port}/v1", "--secret-file", str(self.secret)]

    def write_secret(self, secret: str) -> None:
        self.secret.touch(0o600)
        self.secret.write_text(secret)

    def received(self) -> list[str]:
        """Digests of the credentials that reached the provider."""
        return [json.loads(line)["authorization_sha256"] for line in self.record.read_text().splitlines()]

    def test_secret_is_stored_once_and_replaced_by_a_newer_one(self) -> None:
        """The stored secret serves a second run without options; a newer one serves from its run on."""
        old, new = "sk-old-6b1f", "sk-new-93aa"
        first = self.provider(old)
        self.write_secret(old + "\n")
        code, document = self.once(*self.named(), "--model", "stand-in")
        self.assertEqual((code, document["model"]), (0, "stand-in"))

        self.assertEqual(self.once()[0], 0)
        self.assertEqual(set(self.received()), {sha256(f"Bearer {old}".encode()).hexdigest()})

        first.kill()
        first.wait()
        self.record.unlink()
        self.provider(new)
        code, document = self.once()
        self.assertEqual(code, 1)
        self.assertIn("401", str(document))

        self.write_secret(new)
        self.assertEqual(self.once("--secret-file", str(self.secret))[0], 0)
        self.assertEqual(self.received()[-1], sha256(f"Bearer {new}".encode()).hexdigest())
        for file in (self.folder / "home").rglob("*"):
            if file.is_file():
                self.assertNotIn(b"sk-new-93aa", file.read_bytes(), file)
                self.assertNotIn(b"sk-old-6b1f", file.read_bytes(), file)

    def test_upstream_without_a_secret_is_refused(self) -> None:
        self.provider("sk-x")
        code, document = self.once("--upstream", f"http://127.0.0.1:{self.port}/v1", "--model", "stand-in")
        self.assertEqual(code, 1)
        self.assertIn("--secret-file", str(document))

    def test_upstream_error_is_told(self) -> None:
        self.provider("sk-x")
        self.write_secret("sk-x")
        code, document = self.once(*self.named(), "--model", "stand-in/error-500")
        self.assertEqual(code, 1)
        self.assertIn("answered 500", str(document))
