"""SIGTERM to real roles with an answer under way."""

from __future__ import annotations

import http.client
import resource
import signal
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.units import Role
from tests.integration.roles import HELD, ROLES, Deployment


class DrainTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.deployment = Deployment(Path(self.mktemp()).absolute())
        self.addCleanup(self.deployment.stop)
        self.deployment.start(*ROLES)
        self.deployment.ready()
        self.deployment.put_route(HELD)
        self.connection = self.deployment.connect()
        self.addCleanup(self.connection.close)
        self.stream = self.deployment.begin(self.connection, HELD)
        self.addCleanup(self.stream.close)
        self.assertEqual(self.stream.read(5), b"first")

    def terminate(self, role: Role) -> None:
        """SIGTERM; the role goes away, and has not ended."""
        child = self.deployment.roles[role]
        child.process.send_signal(signal.SIGTERM)
        child.wait_for("role.draining")
        self.assertIsNone(child.process.poll())

    def assert_ended_well(self, role: Role) -> None:
        child = self.deployment.roles[role]
        self.assertEqual(child.ended(), (0, ""))
        self.assertEqual(len(child.events("role.stopped")), 1)
        self.assertEqual(child.failures(), [])

    def test_edge(self) -> None:
        """What is under way is finished; who comes now finds nobody."""
        self.terminate(Role.EDGE)
        # refused, or hung up on if the listener was about to close
        self.assertRaises(OSError, self.deployment.ask)
        self.deployment.provider.go_on.set()
        self.assertEqual(self.stream.read(), b"last")
        self.assert_ended_well(Role.EDGE)

    def test_node(self) -> None:
        """What is under way is finished; who comes now is told to come back."""
        self.terminate(Role.NODE)
        other = self.deployment.connect()
        self.addCleanup(other.close)
        with self.deployment.begin(other) as refused:
            self.assertEqual(refused.status, 503)
            self.assertGreater(int(refused.headers["Retry-After"]), 0)
            self.assertIn(b'"no_node"', refused.read())
        self.deployment.provider.go_on.set()
        self.assertEqual(self.stream.read(), b"last")
        self.assert_ended_well(Role.NODE)

    def test_control_plane(self) -> None:
        """It holds up no answer, and none holds it up; leases that an Edge has still serve."""
        self.deployment.control_plane.process.terminate()
        self.assert_ended_well(Role.CONTROL_PLANE)
        self.assertRaises(ConnectionRefusedError, self.deployment.call, "GET", "/v1/slots")
        self.deployment.provider.go_on.set()
        self.assertEqual(self.stream.read(), b"last")
        self.assertEqual(self.stream.status, 200)

    def test_edge_that_has_waited_long_enough(self) -> None:
        """An answer that takes longer than a drain may is cut, and its caller can tell."""
        self.terminate(Role.EDGE)
        self.assertRaises(http.client.IncompleteRead, self.stream.read)
        self.assert_ended_well(Role.EDGE)
        self.assertEqual(len(self.deployment.edge.events("role.drain_overdue")), 1)

    def test_node_that_has_waited_long_enough(self) -> None:
        """The same, one hop on: the Node gives its runs up before it is overdue itself, and the Edge lives."""
        self.terminate(Role.NODE)
        self.assertRaises(http.client.IncompleteRead, self.stream.read)
        self.assert_ended_well(Role.NODE)
        (finished,) = self.deployment.node.events("node.run.finished")
        self.assertEqual(finished["code"], "draining")
        self.assertIsNone(self.deployment.edge.process.poll())

    def test_no_role_leaves_a_core_file(self) -> None:
        """P25: as the kernel says of each process, and not to be raised again."""
        for child in self.deployment.roles.values():
            self.assertEqual(resource.prlimit(child.pid, resource.RLIMIT_CORE), (0, 0))
