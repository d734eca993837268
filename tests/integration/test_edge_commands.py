"""Commands of operators from the command line to real roles, and what their Edge tells meanwhile."""

from __future__ import annotations

import json
import sys
from subprocess import PIPE, Popen, run
from typing import Any

from iop.edge.parts import DRAINED
from iop.process.role import RELOAD_REFUSED
from tests.integration.operator_case import OperatorCase, iop, told
from tests.integration.roles import HELD, SECONDS, wait_until


class CommandTests(OperatorCase):
    """``iop edge command`` to an Edge that is a process, with its Node and its Control Plane."""

    def command(self, *arguments: str) -> list[str]:
        """The command line that gives a command and watches it to its end."""
        options = ["--watch", "--json", "--socket", str(self.socket)]
        return [sys.executable, "-m", "iop", "edge", "command", "edge-1", *arguments, *options]

    def do(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Exit code of a command, and how it stood in the end."""
        command = self.command(*arguments)
        done = run(command, capture_output=True, text=True, check=False, timeout=SECONDS)  # noqa: S603 - ourselves
        self.assertEqual(done.stderr, "")
        return done.returncode, json.loads(done.stdout.splitlines()[-1])["command"]

    def succeed(self, *arguments: str) -> dict[str, Any]:
        """The end of a command that succeeds."""
        code, state = self.do(*arguments)
        self.assertEqual((code, state["phase"], state["code"]), (0, "succeeded", ""))
        return state

    def lifecycle(self) -> list[str]:
        """What the Edge told of itself and its Node so far, oldest first; its numbers rise by one."""
        code, out, err = iop(self.socket, "edge", "events", "edge-1", "--json")
        self.assertEqual((code, err), (0, ""))
        events = [event for event in map(json.loads, out.splitlines()) if event["sequence"]]
        numbers = [event["sequence"] for event in events]
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
        return [event["event"] for event in events]

    def test_an_edge_is_drained(self) -> None:
        """S10-S12, C5, C6: what runs ends as it would, what comes is refused, and everybody who looks sees why."""
        self.deployment.put_route(HELD)
        held = self.deployment.begin(self.deployment.connect(), HELD)
        self.assertEqual(held.read(5), b"first")
        with Popen(self.command("edge.drain"), stdout=PIPE, text=True) as drain:  # noqa: S603 - ourselves
            wait_until(lambda: told(self.socket, "edge", "status", "edge-1")["draining"], "the Edge is drained")
            self.assertEqual(self.deployment.ask(), (503, "edge_draining"))
            status, reasons = self.deployment.edge.get("/readyz")
            self.assertEqual((status, json.loads(reasons)["reasons"]), (503, [DRAINED]))
            self.assertIsNone(drain.poll())
            self.deployment.provider.go_on.set()
            self.assertEqual(held.read(), b"last")
            out, _ = drain.communicate(timeout=SECONDS)
        states = [json.loads(line)["command"] for line in out.splitlines() if json.loads(line).get("command")]
        self.assertEqual(drain.returncode, 0)
        self.assertEqual([states[-1][key] for key in ("phase", "done", "total")], ["succeeded", 1, 1])
        self.succeed("edge.resume")
        self.assertEqual(self.deployment.ask(), (200, ""))
        self.assertTrue(self.deployment.edge.is_ready())

    def test_nodes_and_providers(self) -> None:
        """S7, S8, S11: drained, disabled, disconnected, and each of it taken back."""
        self.succeed("node.drain", "node=node-1")
        [node] = told(self.socket, "edge", "status", "edge-1")["nodes"]
        self.assertEqual((node["connected"], node["providers"][0]["capacity"]), (False, 0))
        self.succeed("node.resume", "node=node-1")
        self.succeed("provider.disable", "provider=provider-1")
        self.assertEqual(self.deployment.ask(), (503, "no_node"))
        self.succeed("provider.enable", "node=node-1,provider=provider-1")
        self.assertEqual(self.deployment.ask(), (200, ""))
        self.succeed("node.disconnect", "node=node-1")
        wait_until(self.deployment.edge.is_ready, "the Node is back")
        told_of = self.lifecycle()
        changes = ["node.draining", "node.resumed", "node.disconnected", "node.ready"]
        self.assertEqual([event for event in told_of if event in changes][-4:], changes)
        self.assertEqual(self.deployment.ask(), (200, ""))
        self.assertEqual(self.succeed("leases.flush")["total"], 1)
        self.succeed("projection.resync")
        self.assertEqual(self.deployment.ask(), (200, ""))

    def test_reload(self) -> None:
        """S7: as SIGHUP does it, with its outcome; a bad file is not put in force, and /readyz says so."""
        self.succeed("config.reload")
        self.assertEqual(len(self.deployment.edge.events("role.reloaded")), 1)
        certificate = self.deployment.home.root / "pki" / "edge-edge-1.pem"
        whole = certificate.read_bytes()
        certificate.write_bytes(b"")
        code, state = self.do("config.reload")
        self.assertEqual((code, state["phase"], state["code"]), (3, "failed", "file_refused"))
        self.assertIn(RELOAD_REFUSED, self.deployment.edge.get("/readyz")[1])
        self.assertEqual(self.deployment.ask(), (200, ""))
        certificate.write_bytes(whole)
        self.succeed("config.reload")
        self.assertTrue(self.deployment.edge.is_ready())

    def test_an_edge_that_stops(self) -> None:
        """S12: that it stops is heard before its connection ends, after what it is told of its Nodes before."""
        self.deployment.edge.process.terminate()
        self.deployment.edge.ended()
        self.assertEqual(self.deployment.edge.failures(), [])
        wait_until(lambda: "edge.stopping" in self.lifecycle(), "the Control Plane has heard it")
