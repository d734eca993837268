"""The projection in force, its record on disk, and who waits for a newer one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from iop.core.projection import Projection
from iop.edge.projections import Projections
from iop.errors import BadConfig, DeploymentMismatch, FileRefused, MalformedFrame, RequestTimedOut
from iop.records import ProjectionSnapshot
from iop.testing.clock import FakeClock
from iop.wire import control_pb2
from iop.wire.convert import projection_to_wire
from tests.edge.rig import DEPLOYMENT, EDGE, FIRST, SMALL, offered, receipt_of, wire_of

APPLIED = control_pb2.PROJECTION_RESULT_APPLIED
HELD = control_pb2.PROJECTION_RESULT_HELD
REFUSED = control_pb2.PROJECTION_RESULT_REFUSED

NEWER = replace(FIRST, generation=6)
OLDER = replace(FIRST, generation=4)
#: The first generation with other content.
FORGED = replace(FIRST, routes=(SMALL,))


class ProjectionsTests(SynchronousTestCase):
    """What is applied, what is recorded, who waits."""

    def setUp(self) -> None:
        self.directory = Path(self.mktemp())
        self.clock = FakeClock()
        self.applied: list[Projection] = []
        self.projections = self.started()

    def started(self, deployment: str = DEPLOYMENT, edge: str = EDGE) -> Projections:
        """A process that begins on what is on disk."""
        projections = Projections(self.directory, deployment, edge, self.clock, self.came_into_force, lambda: 0)
        projections.load()
        return projections

    def came_into_force(self, projection: Projection) -> Deferred[int]:
        self.applied.append(projection)
        return succeed(0)

    def offered(
        self, wire: control_pb2.PrincipalProjection, receipt: control_pb2.ProjectionReceipt | None = None
    ) -> Deferred[control_pb2.ProjectionOutcome]:
        return offered(self.projections, self.clock, wire, receipt)

    def offer(
        self, snapshot: ProjectionSnapshot = FIRST, to: Projections | None = None
    ) -> control_pb2.ProjectionOutcome:
        return self.successResultOf(offered(to or self.projections, self.clock, wire_of(snapshot)))

    def assertOutcome(self, outcome: control_pb2.ProjectionOutcome, result: int, generation: int, code: str) -> None:
        self.assertEqual((outcome.result, outcome.generation, outcome.code), (result, generation, code))

    def test_first(self) -> None:
        """A new Edge holds nothing, applies the first projection and says what is in force."""
        self.assertEqual(self.projections.hello(1), control_pb2.EdgeHelloRequest(edge_id=EDGE, protocol_version=1))
        outcome = self.offer()
        self.assertOutcome(outcome, APPLIED, 5, "")
        self.assertEqual(outcome.digest, wire_of(FIRST).digest)
        self.assertEqual([projection.generation for projection in self.applied], [5])
        hello = self.projections.hello(1)
        self.assertEqual((hello.held_generation, hello.held_digest), (5, outcome.digest))
        self.assertEqual(hello.held_receipt, receipt_of(wire_of(FIRST)))

    def test_refusals_leave_the_old_one(self) -> None:
        """P8, E5: lower, conflicting and wrongly digested projections are refused, and the old one stays in force."""
        self.offer()
        before = self.projections.current
        self.assertOutcome(self.offer(OLDER), REFUSED, 5, "generation_not_higher")
        self.assertOutcome(self.offer(FORGED), REFUSED, 5, "digest_conflict")
        wire = wire_of(NEWER)
        wire.digest = bytes(32)
        self.assertOutcome(self.successResultOf(self.offered(wire)), REFUSED, 5, "digest_mismatch")
        self.assertIs(self.projections.current, before)
        self.assertEqual(len(self.applied), 1)

    def test_held(self) -> None:
        """P8, E5: exactly what is held is acknowledged as held, and nothing is applied again."""
        self.offer()
        self.assertOutcome(self.offer(), HELD, 5, "")
        self.assertEqual(len(self.applied), 1)

    def test_receipt_must_name_it(self) -> None:
        """E5: a receipt of another projection, Edge or deployment, or none that can be read, does not do."""
        wire = wire_of(FIRST)
        for receipt in (
            receipt_of(wire_of(NEWER)),
            receipt_of(wire_of(FORGED)),
            receipt_of(wire, edge="edge-2"),
            receipt_of(wire, deployment="deployment-2"),
            control_pb2.ProjectionReceipt(statement=b"\xff", signature=b"s"),
            control_pb2.ProjectionReceipt(),
        ):
            self.assertOutcome(self.successResultOf(self.offered(wire, receipt)), REFUSED, 0, "receipt_refused")
        self.assertIsNone(self.projections.current)
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_two_entries_for_one_key(self) -> None:
        """A projection without meaning is refused as a whole."""
        twice = replace(FIRST, routes=(SMALL, replace(SMALL, route="route-9")))
        wire = projection_to_wire(twice, b"d" * 32)
        self.assertOutcome(self.successResultOf(self.offered(wire)), REFUSED, 0, "malformed_projection")

    def test_malformed_entry(self) -> None:
        """An entry that is not even well-formed is the connection's end."""
        wire = wire_of(FIRST)
        wire.tokens[0].digest = b"short"
        self.failureResultOf(self.offered(wire), MalformedFrame)

    def test_restart(self) -> None:
        """P7, E6: what was acknowledged is on disk: a restarted Edge refuses what is older and loads the same again."""
        self.offer()
        again = self.started()
        self.assertIsNone(again.current)
        self.assertEqual(again.hello(1), self.projections.hello(1))
        self.assertOutcome(self.offer(OLDER, again), REFUSED, 5, "generation_not_higher")
        self.assertOutcome(self.offer(FORGED, again), REFUSED, 5, "digest_conflict")
        self.assertIsNone(again.current)
        self.assertOutcome(self.offer(FIRST, again), HELD, 5, "")
        self.assertIsNotNone(again.current)
        self.assertOutcome(self.offer(NEWER, again), APPLIED, 6, "")

    def test_durable_before_it_is_in_force(self) -> None:
        """P7, E6: when the record cannot be written nothing changes and nothing is acknowledged."""
        self.offer()
        os.rename(self.directory, self.directory.with_suffix(".gone"))
        self.failureResultOf(self.offered(wire_of(NEWER)), FileRefused)
        self.assertEqual(self.projections.generation, 5)
        self.assertEqual(self.projections.hello(1).held_generation, 5)
        self.assertEqual([projection.generation for projection in self.applied], [5])

    def test_disk_holds_no_entry(self) -> None:
        """P6: the record names a projection and holds nothing of it."""
        self.offer()
        (record,) = self.directory.iterdir()
        data = record.read_bytes()
        for secret in (FIRST.tokens[0].digest, b"ada", b"slot-1", b"small"):
            self.assertNotIn(secret, data)
        self.assertEqual(record.stat().st_mode & 0o777, 0o600)

    def test_damaged_record(self) -> None:
        """P7, E6: a record that cannot be read stops the start; it is never taken for absent."""
        self.offer()
        (record,) = self.directory.iterdir()
        for data in (b"", b"\xff\xff", control_pb2.ProjectionReceipt(statement=b"\x01").SerializeToString()):
            record.write_bytes(data)
            refused = self.assertRaises(BadConfig, self.started)
            self.assertIn(str(record), refused.message)

    def test_foreign_record(self) -> None:
        """A record of another Edge or deployment stops the start."""
        self.offer()
        self.assertRaises(DeploymentMismatch, self.started, "deployment-2")
        refused = self.assertRaises(DeploymentMismatch, self.started, DEPLOYMENT, "edge-2")
        # to remove it is the last thing to do: P7 hangs on it
        self.assertTrue(refused.hint.startswith("check [deployment] id, [edge] name"), refused.hint)

    def test_reached(self) -> None:
        """Who waits for a generation goes on with that one or any later, at once if it is there."""
        waiting, longer = self.projections.reached(5, 10.0), self.projections.reached(7, 10.0)
        self.assertNoResult(waiting)
        self.offer(NEWER)
        self.successResultOf(waiting)
        self.successResultOf(self.projections.reached(6, 10.0))
        self.assertNoResult(longer)
        self.clock.advance(10.0)
        self.failureResultOf(longer, RequestTimedOut)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])

    def test_reached_cancelled(self) -> None:
        """Who gives up leaves nothing behind."""
        waiting = self.projections.reached(5, 10.0)
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])
        self.offer()
