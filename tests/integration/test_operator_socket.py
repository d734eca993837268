"""A real Control Plane's operator socket, asked by ``iop edge list``, ``iop edge status`` and ``iop node list``."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from iop.units import Role
from tests.integration.operator_case import OperatorCase, iop, short_folder, told
from tests.integration.quickstart import RunningQuickstart
from tests.integration.roles import wait_until

ZEROS = {
    "capacity": 0,
    "in_flight": 0,
    "queued": 0,
    "long_context_capacity": 0,
    "long_in_flight": 0,
    "long_queued": 0,
}


class QuickstartTests(SynchronousTestCase):
    """Beside a running quickstart, with the path that it prints."""

    def test_what_runs_is_shown(self) -> None:
        """To people and to programs: the Edge, its Node, and a provider that serves."""
        running = RunningQuickstart(short_folder(self) / "home")
        self.addCleanup(running.kill)
        document = running.ready()
        socket = Path(document["operator_socket"])
        self.assertEqual(socket, running.home / "run" / "operator.sock")
        mode = socket.stat().st_mode
        self.assertTrue(stat.S_ISSOCK(mode))
        self.assertEqual(stat.S_IMODE(mode), 0o660)

        [session] = told(socket, "edge", "list")["edges"]
        self.assertEqual((session["edge"], session["ready"]), ("edge-1", True))
        self.assertEqual(session["acknowledged"], session["generation"])

        status = told(socket, "edge", "status", "edge-1")
        self.assertEqual((status["edge"], status["generation"]), ("edge-1", session["generation"]))
        [node] = status["nodes"]
        self.assertEqual((node["node"], node["connected"]), ("node-1", True))
        [configured] = node["config"]["providers"]
        self.assertEqual(
            {key: configured[key] for key in ("provider", "category", "profile", "target")},
            {"provider": "provider-1", "category": "api", "profile": "openai", "target": "stand-in"},
        )
        [provider] = node["providers"]
        serving = ZEROS | {"status": "available", "health": "healthy", "capacity": 16, "long_context_capacity": 16}
        self.assertEqual(provider, {"provider": "provider-1", "category": "api", **serving})
        self.assertEqual(told(socket, "node", "list"), {"edges": [status], "failed": {}})
        self.assertEqual(told(socket, "node", "list", "--edge", "edge-1"), {"edges": [status], "failed": {}})

        for arguments in (("edge", "list"), ("edge", "status", "edge-1"), ("node", "list")):
            code, out, err = iop(socket, *arguments)
            self.assertEqual((code, err), (0, ""), arguments)
            self.assertIn("edge-1", out)

        self.assertEqual(running.stop()[0], 0)
        self.assertEqual(told(socket, "edge", "list")["error"]["code"], "operator_unreachable")

    def test_home_whose_path_is_too_long_for_a_socket(self) -> None:
        """It works as any other, without a socket."""
        running = RunningQuickstart(short_folder(self) / ("home" * 25), "--once")
        self.addCleanup(running.kill)
        self.assertIsNone(running.ready()["operator_socket"])
        self.assertEqual(running.end(), (0, "", ""))
        self.assertNotIn("[operator]", (running.home / "control-plane.toml").read_text())


class KilledTests(OperatorCase):
    """Roles that end beside others that go on, which those of a running quickstart do not."""

    def node(self) -> dict[str, Any]:
        """The only Node, as its Edge tells of it now."""
        [edge] = told(self.socket, "node", "list")["edges"]
        [node] = edge["nodes"]
        assert isinstance(node, dict)
        return node

    def test_node_that_was_killed(self) -> None:
        """C28, C32: it stays listed, as its Edge is configured with it, not connected and with zeros."""
        before = self.node()
        self.assertTrue(before["connected"])
        self.deployment.node.process.kill()
        wait_until(lambda: not self.node()["connected"], "the Edge tells that the Node is gone")
        gone = self.node()
        self.assertEqual(gone["config"], before["config"])
        [provider] = gone["providers"]
        off = {"status": "unavailable", "health": "offline", **ZEROS}
        self.assertEqual(provider, {"provider": "provider-1", "category": "api", **off})
        _, shown, _ = iop(self.socket, "edge", "status", "edge-1")
        self.assertEqual(
            shown.splitlines()[-1].split(),
            ["edge-1", "node-1", "no", "provider-1", "api", "unavailable", "offline", *["0"] * 6],
        )
        self.deployment.node.end()
        self.deployment.start(Role.NODE)
        wait_until(lambda: self.node() == before, "the Node is back")

    def test_edge_that_was_killed(self) -> None:
        """What is not connected is not listed, and asking for it says so; its Nodes are nobody's to tell of."""
        self.deployment.edge.process.kill()
        wait_until(lambda: told(self.socket, "edge", "list") == {"edges": []}, "the Edge is no longer listed")
        self.assertEqual(told(self.socket, "node", "list"), {"edges": [], "failed": {}})
        for arguments in (("edge", "status", "edge-1"), ("node", "list", "--edge", "edge-1")):
            self.assertEqual(told(self.socket, *arguments)["error"]["code"], "not_found")
            code, out, err = iop(self.socket, *arguments)
            self.assertEqual((code, out), (1, ""))
            self.assertIn("not connected", err)

    def test_control_plane_that_was_killed(self) -> None:
        """The socket's file is left, and the next Control Plane listens there all the same."""
        self.deployment.control_plane.process.kill()
        self.deployment.control_plane.ended()
        error = told(self.socket, "edge", "list")["error"]
        self.assertEqual(error["code"], "operator_unreachable")
        self.assertIn("does the Control Plane run", error["hint"])
        self.deployment.control_plane.end()
        self.deployment.start(Role.CONTROL_PLANE)
        wait_until(lambda: len(told(self.socket, "edge", "list")["edges"]) == 1, "the Edge is back")
