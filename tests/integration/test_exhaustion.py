"""Real roles on a machine that runs out: of descriptors, of disk, of room for their own log (P47)."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.net.listener import SPARE_DESCRIPTORS
from iop.units import Role
from tests.integration.roles import HELD, ROLES, Deployment, RoleChild


class ExhaustionCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.deployment = Deployment(Path(self.mktemp()).absolute())
        self.addCleanup(self.deployment.stop)
        self.deployment.start(*ROLES)
        self.deployment.ready()
        self.pids = [child.pid for child in self.deployment.roles.values()]

    def assert_as_before(self) -> None:
        """Everything works, and it is the same processes."""
        self.deployment.ready()
        self.assertEqual(self.deployment.put_route()[0], 200)
        self.assertEqual(self.deployment.ask(), (200, ""))
        self.assertEqual([child.process.poll() for child in self.deployment.roles.values()], [None] * 3)


class DescriptorTests(ExhaustionCase):
    """Sockets that callers open never take what a role needs for its own work."""

    def crowd(self, child: RoleChild, listener: str) -> list[socket.socket]:
        """Connect until the listener accepts no more; the limit is as the event says."""
        limit = child.leave_descriptors(SPARE_DESCRIPTORS + 8)
        host, _, port = child.addresses[listener].rpartition(":")
        crowd = [socket.create_connection((host, int(port))) for _ in range(40)]
        for each in crowd:
            self.addCleanup(each.close)
        (paused,) = child.wait_for("net.listen.paused")
        self.assertEqual((paused["port"], paused["descriptors"]), (int(port), limit))
        self.assertIn("raise the limit", paused["hint"])
        return crowd

    def test_edge(self) -> None:
        """Open connections go on, with what they need for it; the others are served once there is room."""
        deployment = self.deployment
        kept = deployment.connect()
        self.assertEqual(deployment.ask(kept), (200, ""))
        crowd = self.crowd(deployment.edge, "api")
        self.assertEqual(deployment.put_route()[1]["edges"]["acknowledged"], 1)
        self.assertEqual(deployment.ask(kept), (200, ""))
        self.assertEqual(deployment.edge.get("/readyz")[0], 200)
        for each in crowd:
            each.close()
        self.assertEqual(deployment.ask(), (200, ""))
        kept.close()
        self.assertEqual(len(deployment.edge.events("net.listen.paused")), 1)
        self.assertEqual(deployment.edge.failures(), [])
        self.assert_as_before()

    def test_control_plane(self) -> None:
        """Leases and mutations go on; a caller who waited is served once there is room."""
        deployment = self.deployment
        kept = deployment.connect(Role.CONTROL_PLANE)
        self.assertEqual(deployment.call("GET", "/v1/slots", connection=kept)[0], 200)
        crowd = self.crowd(deployment.control_plane, "credential_https")
        self.assertEqual(deployment.call("GET", "/v1/slots", connection=kept)[0], 200)
        self.assertEqual(deployment.ask(), (200, ""))
        self.assertEqual(deployment.control_plane.get("/readyz")[0], 200)
        for each in crowd:
            each.close()
        self.assertEqual(deployment.call("GET", "/v1/slots")[0], 200)
        kept.close()
        self.assertEqual(len(deployment.control_plane.events("net.listen.paused")), 1)
        self.assertEqual(deployment.control_plane.failures(), [])
        self.assert_as_before()

    def test_node(self) -> None:
        """A provider that no socket is left for is an answer with a code, and called again once there is one."""
        deployment = self.deployment
        deployment.put_route(HELD)
        held = deployment.connect()
        with deployment.begin(held, HELD) as stream:
            # the one connection to the provider is busy
            deployment.node.leave_descriptors(0)
            self.assertEqual(deployment.ask(), (502, "upstream_unreachable"))
            deployment.node.limit(resource.RLIMIT_NOFILE, -1)
            self.assertEqual(deployment.ask(), (200, ""))
            deployment.provider.go_on.set()
            self.assertEqual(stream.read(), b"firstlast")
        held.close()
        self.assertEqual(deployment.node.failures(), [])
        self.assert_as_before()

    def test_edge_that_can_open_no_file(self) -> None:
        """P7: a projection that is not on disk is not acknowledged; the connection ends with the reason instead."""
        deployment = self.deployment
        kept = deployment.connect()
        self.assertEqual(deployment.ask(kept), (200, ""))
        deployment.edge.leave_descriptors(0)
        status, answer = deployment.put_route()
        self.assertEqual((status, answer["edges"]["acknowledged"]), (200, 0))
        (gone, *_) = deployment.edge.wait_for("edge.control.disconnected")
        self.assertEqual(gone["reason"], "file_refused")
        self.assertIn("Too many open files", gone["detail"])
        # the projection that is in force and the lease that is held go on until they are too old
        self.assertEqual(deployment.ask(kept), (200, ""))
        kept.close()
        deployment.edge.limit(resource.RLIMIT_NOFILE, -1)
        self.assert_as_before()


class DiskTests(ExhaustionCase):
    """P47: what has to be written is refused with a code, what only has to be read goes on."""

    def test_control_plane(self) -> None:
        """P26: nor is a lease given that could not be audited; it is counted as refused."""
        deployment, control_plane = self.deployment, self.deployment.control_plane
        control_plane.limit(resource.RLIMIT_FSIZE, 0)
        before = deployment.call("GET", "/v1/routes")
        status, refused = deployment.put_route("stand-in/error-500")
        self.assertEqual((status, refused["code"]), (503, "store_unavailable"))
        self.assertIn("nothing was changed", refused["detail"])
        self.assertIn("disk", refused["hint"])
        self.assertEqual(deployment.call("GET", "/v1/routes"), before)
        self.assertEqual(deployment.ask(), (503, "control_plane_unavailable"))
        series = 'iop_control_plane_leases_refused_total{reason="store_unavailable"}'
        self.assertEqual(control_plane.metric(series), 1)
        self.assertEqual(control_plane.events("control.edge.disconnected"), [])
        control_plane.limit(resource.RLIMIT_FSIZE, -1)
        self.assertEqual(deployment.ask(), (200, ""))
        self.assertEqual(deployment.put_route("stand-in/error-500")[0], 201)
        self.assert_as_before()

    def test_edge(self) -> None:
        """P7: what is not on disk is not acknowledged, now nor when the Edge comes back, until it can be written."""
        deployment = self.deployment
        receipt = deployment.home.edge_state / "projection.receipt"
        before = receipt.read_bytes()
        deployment.edge.limit(resource.RLIMIT_FSIZE, 0)
        status, answer = deployment.put_route()
        self.assertEqual((status, answer["edges"]["acknowledged"]), (200, 0))
        for gone in deployment.edge.wait_for("edge.control.disconnected", 2)[:2]:
            self.assertEqual(gone["reason"], "file_refused")
            self.assertIn("projection.receipt cannot be written", gone["detail"])
        self.assertEqual(receipt.read_bytes(), before)
        self.assertEqual(os.listdir(receipt.parent), [receipt.name])
        deployment.edge.limit(resource.RLIMIT_FSIZE, -1)
        deployment.ready()
        self.assertNotEqual(receipt.read_bytes(), before)
        self.assert_as_before()

    def test_node(self) -> None:
        """It writes nothing to serve."""
        self.deployment.node.limit(resource.RLIMIT_FSIZE, 0)
        self.assertEqual(self.deployment.ask(), (200, ""))
        self.deployment.node.limit(resource.RLIMIT_FSIZE, -1)
        self.assert_as_before()


class LogTests(SynchronousTestCase):
    """A log that takes nothing keeps no role from its work, nor from ending in good order."""

    def test_stdout_is_full(self) -> None:
        deployment = Deployment(Path(self.mktemp()).absolute())
        self.addCleanup(deployment.stop)
        with open("/dev/full", "w") as full:
            deployment.start(*ROLES, output=full.fileno())
        deployment.ready()
        for _ in range(100):
            self.assertEqual(deployment.ask(), (200, ""))
        self.assertEqual(deployment.put_route()[0], 200)
        for child in deployment.roles.values():
            child.process.terminate()
            self.assertEqual(child.ended(), (0, ""))
