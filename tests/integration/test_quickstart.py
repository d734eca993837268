"""``iop quickstart`` as people run it. Starts real processes on loopback, four per run."""

from __future__ import annotations

import json
import os
import stat
import sys
from http.client import HTTPSConnection
from pathlib import Path
from random import Random
from ssl import create_default_context
from subprocess import run
from time import sleep
from typing import Any
from urllib.parse import urlsplit

from twisted.trial.unittest import SynchronousTestCase

from iop.testing.provider import GREETING
from iop.units import fits_socket
from tests.integration.quickstart import RunningQuickstart, processes_of

KEYS = [
    *("home", "edge_url", "edge_ca", "token_file", "manage_token_file", "credential_url", "credential_ca"),
    *("client_url", "client_ca", "operator_socket", "model", "pids"),
]


def chat(document: dict[str, Any]) -> int:
    """The status of one chat completion at a running quickstart."""
    edge = urlsplit(document["edge_url"])
    trust = create_default_context(cafile=document["edge_ca"])
    connection = HTTPSConnection(str(edge.hostname), edge.port or 0, context=trust, timeout=30)
    token = Path(document["token_file"]).read_text()
    body = json.dumps({"model": document["model"], "messages": [{"role": "user", "content": "hello"}]})
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    with connection.getresponse() as response:
        response.read()
    connection.close()
    return response.status


class QuickstartTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.home = Path(self.mktemp()).absolute()

    def start(self, *arguments: str) -> RunningQuickstart:
        """Start a quickstart in this test's home; nothing of it outlives the test."""
        running = RunningQuickstart(self.home, *arguments)
        self.addCleanup(running.kill)
        return running

    def test_json_says_what_it_is_reached_by(self) -> None:
        """One line on stdout and nothing else; URLs without a path, absolute files, null for what is not built."""
        running = self.start("--once")
        document = running.ready()
        self.assertEqual(list(document), KEYS)
        for key in ("edge_url", "credential_url"):
            parts = urlsplit(document[key])
            self.assertEqual((parts.scheme, parts.hostname, parts.path), ("https", "127.0.0.1", ""))
        for key in ("home", "edge_ca", "token_file", "manage_token_file", "credential_ca"):
            self.assertTrue(os.path.isabs(document[key]) and os.path.exists(document[key]), key)
        for key in ("client_url", "client_ca"):
            self.assertIsNone(document[key])
        # no longer than the path of a socket may be, or there is none
        socket = self.home / "run" / "operator.sock"
        self.assertEqual(document["operator_socket"], str(socket) if fits_socket(socket) else None)
        self.assertEqual(document["model"], "stand-in")
        self.assertEqual(list(document["pids"]), ["control-plane", "edge", "node", "worker"])
        self.assertIsNone(document["pids"]["worker"])
        self.assertEqual(running.end(), (0, "", ""))
        self.assertEqual(processes_of(self.home), {})

    def test_people_are_told_the_answer_and_who_saw_what(self) -> None:
        """The hops come from the logs; neither tokens nor the provider's key are shown (P24, P25)."""
        running = self.start("--once")
        running.ready()
        running.end()
        command = [sys.executable, "-m", "iop", "quickstart", "--once", "--home", str(self.home)]
        wide = os.environ | {"COLUMNS": "200"}
        shown = run(command, capture_output=True, text=True, check=True, env=wide)  # noqa: S603 - our own interpreter
        self.assertIn(GREETING, shown.stdout)
        for who in ("edge-1", "cp-1", "node-1", "stand-in"):
            self.assertIn(who, shown.stdout)
        for file in ("use.token", "manage.token", "provider.key"):
            self.assertNotIn((self.home / file).read_text(), shown.stdout + shown.stderr)

    def test_private_files_are_private(self) -> None:
        running = self.start("--once")
        running.ready()
        running.end()
        for file in self.home.rglob("*"):
            mounted = file.parent.name in ("keys", "store") and "pinned" not in file.name
            if file.suffix in (".key", ".token") or mounted:
                self.assertEqual(stat.S_IMODE(file.stat().st_mode) & 0o077, 0, file)

    def test_second_run_starts_from_what_is_there(self) -> None:
        first = self.start("--once")
        before = first.ready()
        first.end()
        kept = {
            name: (self.home / name).read_bytes() for name in ("use.token", "provider.key", "stored.json", "pki/ca.pem")
        }
        second = self.start("--once")
        after = second.ready()
        self.assertEqual(second.end()[0], 0)
        del before["pids"], after["pids"]
        self.assertEqual(before, after)
        for name, content in kept.items():
            self.assertEqual((self.home / name).read_bytes(), content, name)

    def test_sigterm_leaves_no_child(self) -> None:
        """It ends with exit code 0, and every role drained."""
        running = self.start()
        pids = running.ready()["pids"]
        self.assertEqual(running.stop(), (0, "", ""))
        self.assertEqual(processes_of(self.home), {})
        for role in ("control-plane", "edge", "node"):
            with self.assertRaises(ProcessLookupError):
                os.kill(pids[role], 0)
            last = json.loads((self.home / "logs" / f"{role}.log").read_text().splitlines()[-1])
            self.assertEqual(last["event"], "role.stopped")

    def test_sigkill_leaves_no_child_and_a_home_that_works(self) -> None:
        """P46: killed while it serves, its children go with it, and the next run works."""
        running = self.start()
        running.ready()
        running.kill()
        again = self.start("--once")
        again.ready()
        self.assertEqual(again.end()[0], 0)

    def test_sigkill_at_any_point_of_the_set_up(self) -> None:
        """P46: wherever a run is cut off, the next one goes on from there."""
        random = Random(7)  # noqa: S311 - any moments will do, the same each time
        for _ in range(6):
            running = self.start()
            sleep(random.uniform(0.2, 2.5))
            running.kill()
        last = self.start("--once")
        last.ready()
        self.assertEqual(last.end()[0], 0)

    def test_sigterm_during_the_set_up_leaves_no_child(self) -> None:
        """Nothing was ready, and the exit code says so; the next run goes on from there."""
        running = self.start()
        while not (self.home / "run" / "control-plane.json").exists():
            self.assertIsNone(running.process.poll())
            sleep(0.01)
        code, output, _ = running.stop()
        self.assertEqual((code, json.loads(output)["error"]["code"]), (130, "interrupted"))
        self.assertEqual(processes_of(self.home), {})
        again = self.start("--once")
        again.ready()
        self.assertEqual(again.end()[0], 0)

    def test_one_at_a_time_in_a_home(self) -> None:
        first = self.start()
        first.ready()
        code, output, _ = self.start("--once").end()
        self.assertEqual(code, 1)
        self.assertEqual(json.loads(output)["error"]["code"], "already_running")
        self.assertEqual(first.stop()[0], 0)

    def test_child_that_ends_ends_it_all(self) -> None:
        """Half a deployment is not left running, and the person sees what happened."""
        running = self.start()
        os.kill(running.ready()["pids"]["node"], 9)
        code, output, _ = running.end()
        self.assertEqual(code, 1)
        self.assertIn("node ended by itself (signal 9)", json.loads(output)["error"]["message"])
        self.assertEqual(processes_of(self.home), {})

    def test_one_node_of_two_may_end(self) -> None:
        """The others go on, and the second one is asked from then on; the last of them ends it all."""
        running = self.start("--nodes", "2")
        document = running.ready()
        os.kill(document["pids"]["node"], 9)
        # one that was given to it just then has an end that can be seen
        answers = {chat(document) for _ in range(8)}
        self.assertIn(200, answers)
        self.assertLessEqual(answers, {200, 502})
        os.kill(document["pids"]["node-2"], 9)
        code, output, _ = running.end()
        self.assertEqual(code, 1)
        self.assertIn("node-2 ended by itself (signal 9)", json.loads(output)["error"]["message"])
        self.assertEqual(processes_of(self.home), {})

    def test_role_that_refuses_is_named_with_its_reason(self) -> None:
        first = self.start("--once")
        first.ready()
        first.end()
        (self.home / "keys" / "keyring.json").chmod(0o644)
        code, output, _ = self.start("--once").end()
        error = json.loads(output)["error"]
        self.assertEqual((code, error["code"]), (1, "quickstart_failed"))
        self.assertIn("control-plane did not start", error["message"])
        self.assertIn("keyring.json", error["message"])
        self.assertEqual(processes_of(self.home), {})

    def test_unfit_options_are_refused_before_anything_starts(self) -> None:
        key = Path(self.mktemp())
        key.touch(0o600)
        key.write_text("sk-x")
        for arguments in (
            ("--model", "gpt-4o"),
            ("--secret-file", str(key)),
            ("--upstream", "ftp://x", "--secret-file", str(key)),
            ("--upstream", "https://user@x/v1", "--secret-file", str(key)),
            ("--upstream", "http://x.example/v1", "--secret-file", str(key)),
            ("--upstream", "https://x.example/v1"),
            ("--upstream", "https://x.example/v1", "--secret-file", str(key), "--profile", "openai-compatible"),
        ):
            code, output, _ = self.start("--once", *arguments).end()
            self.assertEqual((code, json.loads(output)["error"]["code"]), (1, "bad_config"), arguments)
            self.assertFalse((self.home / "run" / "control-plane.json").exists())
