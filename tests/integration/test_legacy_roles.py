"""Legacy mode in the real processes of all roles, with what operators type (C24, C25, E16, E17)."""

from __future__ import annotations

import json
import re
import sys
from subprocess import run

from twisted.trial.unittest import SynchronousTestCase

from iop.cli.quickstart.home import Member
from iop.units import Role
from tests.integration.operator_case import iop, short_folder, told
from tests.integration.roles import ROLES, SECONDS, Deployment, wait_until


class LegacyRolesTests(SynchronousTestCase):
    """A quickstart's home whose Edge and Node were changed to legacy mode."""

    def setUp(self) -> None:
        self.deployment = Deployment(short_folder(self) / "home")
        self.addCleanup(self.deployment.stop)
        home = self.deployment.home
        assert home.operator_socket is not None
        self.socket = home.operator_socket
        self.managed_token = (home.root / "use.token").read_text()
        command = [sys.executable, "-m", "iop", "edge", "caller", "ada"]
        shown = run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout  # noqa: S603 - ourselves
        token = re.search(r"\biop_\w+", shown)
        assert token is not None
        (home.root / "use.token").write_text(token[0])
        edge, node = home.config(Member(Role.EDGE)), home.config(Member(Role.NODE))
        text = edge.read_text().replace("enabled = true", "enabled = false").replace('"openai"', '"none"')
        edge.write_text(text + shown[shown.index("[[callers]]") :])
        text = re.sub(r"\[issuers\]\npinned = .*", "[credential_plane]\nenabled = false", node.read_text())
        node.write_text(text.replace('"openai"', '"none"'))

    def command(self, *arguments: str) -> tuple[int, str]:
        """Exit code of a command to the Edge, and what was printed last."""
        code, out, _ = iop(self.socket, "edge", "command", "edge-1", *arguments, "--json")
        return code, out.splitlines()[-1]

    def test_with_and_without_a_control_plane(self) -> None:
        """C5, C24, S7: callers are served, an operator sees and commands; the end of the Control Plane changes neither
        who is served nor who is not (C25, P20)."""
        deployment = self.deployment
        deployment.start(*ROLES)
        deployment.ready()
        self.assertEqual(deployment.ask(), (200, ""))

        wait_until(lambda: told(self.socket, "edge", "list")["edges"], "the Edge is connected")
        [session] = told(self.socket, "edge", "list")["edges"]
        self.assertEqual(
            {key: session[key] for key in ("edge", "mode", "generation", "acknowledged", "ready")},
            {"edge": "edge-1", "mode": "legacy", "generation": 0, "acknowledged": 0, "ready": False},
        )
        status = told(self.socket, "edge", "status", "edge-1")
        [node] = status["nodes"]
        self.assertEqual((status["generation"], node["node"], node["connected"]), (0, "node-1", True))

        for operation in ("leases.flush", "projection.resync"):
            code, shown = self.command(operation)
            self.assertEqual((code, json.loads(shown)["error"]["code"]), (1, "unknown_operation"))
        self.assertEqual(self.command("edge.drain", "--watch")[0], 0)
        self.assertEqual(deployment.ask(), (503, "edge_draining"))
        self.assertEqual(self.command("edge.resume", "--watch")[0], 0)

        deployment.control_plane.process.kill()
        deployment.edge.wait_for("edge.control.disconnected")
        self.assertTrue(deployment.edge.is_ready())
        self.assertEqual(deployment.ask(), (200, ""))
        (deployment.home.root / "use.token").write_text(self.managed_token)
        self.assertEqual(deployment.ask()[0], 401)
        for role in (deployment.edge, deployment.node):
            self.assertEqual(role.failures(), [])
