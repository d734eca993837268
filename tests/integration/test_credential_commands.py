"""``iop slot`` and ``iop route`` against a running Control Plane, over TLS. Starts a quickstart: real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.quickstart import SECONDS, RunningQuickstart

CANARY = "sk-canary-51c2"


class CredentialCommandTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        running = RunningQuickstart(self.folder / "home")
        self.addCleanup(running.kill)
        document = running.ready()
        self.use_token = document["token_file"]
        self.environment = {
            "IOP_URL": document["credential_url"],
            "IOP_CA": document["credential_ca"],
            "IOP_TOKEN_FILE": document["manage_token_file"],
        }

    def iop(self, *arguments: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``iop`` as this quickstart's principal."""
        return subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "iop", *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env=os.environ | self.environment | environment | {"COLUMNS": "300"},
        )

    def answer(self, *arguments: str, given: str = "", **environment: str) -> Any:
        """What ``iop --json`` answers; it must succeed."""
        done = self.iop(*arguments, "--json", given=given, **environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def refusal(self, *arguments: str, given: str = "", **environment: str) -> Any:
        """The error of ``iop --json``; it must fail."""
        done = self.iop(*arguments, "--json", given=given, **environment)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        return json.loads(done.stdout)["error"]

    def test_slots_and_routes(self) -> None:
        """Store from stdin, list, route, route again; the secret comes back nowhere (K12, P24)."""
        create = (
            "slot",
            "create",
            "--name",
            "work",
            "--profile",
            "openai",
            "--target",
            "stand-in",
            "--secret-file",
            "-",
        )
        made = self.iop(*create, "--json", given=CANARY + "\n")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("one newline", made.stderr)
        slot = json.loads(made.stdout)
        self.assertEqual((slot["name"], slot["state"], slot["revision"]), ("work", "active", 1))
        self.assertEqual(slot["edges"], {"acknowledged": 1, "cut_off": 0, "unconfirmed": 0})

        listed = self.iop("slot", "list")
        self.assertIn("work", listed.stdout)
        self.assertNotIn(CANARY, made.stdout + made.stderr + listed.stdout)

        model = "house/bést model?"
        first = self.answer("route", "set", model, "--slot", slot["slot"], "--upstream-model", "stand-in")
        self.assertEqual((first["model"], first["revision"]), (model, 1))
        second = self.answer("route", "set", model, "--slot", slot["slot"], "--selector", "region=eu")
        self.assertEqual((second["revision"], second["upstream_model"], second["selector"]), (2, model, "region=eu"))
        self.assertGreater(second["generation"], first["generation"])
        self.assertIn(model, self.iop("route", "list").stdout)
        self.assertEqual(len(self.answer("route", "list")["routes"]), 2)

        self.assertEqual(self.refusal(*create, given=CANARY)["code"], "already_exists")
        self.assertEqual(self.refusal("route", "set", "x", "--slot", "no-such-slot")["code"], "not_found")

    def test_life_of_a_slot(self) -> None:
        """Rotate, disable, enable, and revoke only who says so; the new secret comes back nowhere either."""
        create = ("slot", "create", "--name", "work", "--profile", "openai", "--target", "stand-in")
        slot = self.answer(*create, "--secret-file", "-", given=CANARY)["slot"]
        done = self.iop("slot", "rotate", slot, "--secret-file", "-", given=CANARY)
        self.assertIn("acknowledged it", done.stdout)
        self.assertNotIn(CANARY, done.stdout + done.stderr)
        for change, state in (("disable", "disabled"), ("enable", "active")):
            self.assertEqual(self.answer("slot", change, slot)["state"], state)
        unsaid = self.iop("slot", "revoke", slot, given="n\n")
        self.assertNotEqual(unsaid.returncode, 0)
        self.assertIn("cannot be undone", unsaid.stderr)
        self.assertEqual(self.answer("slot", "revoke", slot, "--yes")["state"], "revoked")
        self.assertEqual(self.refusal("slot", "enable", slot)["code"], "final_state")

    def test_who_may_call(self) -> None:
        """A wrong token, one of the wrong kind, a mistyped one, an unknown server: each is told for what it is."""
        self.assertEqual(self.refusal("slot", "list", IOP_TOKEN_FILE=self.use_token)["code"], "wrong_token_kind")

        token = self.folder / "token"
        token.touch(0o600)
        text = Path(self.environment["IOP_TOKEN_FILE"]).read_text()
        token.write_text(text[:-1] + ("a" if text[-1] != "a" else "b"))
        mistyped = self.refusal("slot", "list", IOP_TOKEN_FILE=str(token), IOP_URL="https://127.0.0.1:1")
        self.assertEqual(mistyped["code"], "malformed_token")
        self.assertIn("mistyped", mistyped["message"])

        token.write_text(text)
        token.chmod(0o644)
        self.assertEqual(self.refusal("slot", "list", IOP_TOKEN_FILE=str(token))["code"], "file_refused")

        self.assertEqual(self.refusal("slot", "list", IOP_URL="https://127.0.0.1:1")["code"], "api_unreachable")
        self.assertEqual(self.refusal("slot", "list", IOP_URL="http://127.0.0.1:1")["code"], "bad_config")

    def test_server_of_another_authority_gets_nothing(self) -> None:
        """K9: a caller checks the server's certificate before it sends its token."""
        other = self.folder / "other"
        done = self.iop("pki", "init", "--directory", str(other), "--trust-domain", "iop.test")
        self.assertEqual(done.returncode, 0, done.stderr)
        (ca,) = other.glob("ca.pem")
        error = self.refusal("slot", "list", IOP_CA=str(ca))
        self.assertEqual(error["code"], "api_unreachable")
        self.assertIn("--ca", error["hint"])

    def test_secret_too_long(self) -> None:
        """One byte past the limit is refused here; the message does not show it."""
        create = (
            "slot",
            "create",
            "--name",
            "long",
            "--profile",
            "openai",
            "--target",
            "stand-in",
            "--secret-file",
            "-",
        )
        self.assertEqual(self.answer(*create, given="x" * 16384)["name"], "long")
        error = self.refusal(*create, given="x" * 16385)
        self.assertEqual(error["code"], "file_refused")
        self.assertNotIn("xxx", json.dumps(error))
