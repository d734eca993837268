"""The Edge's side of the Control Plane wire."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from iop.edge.control_link import ControlConnection
from iop.errors import (
    ControlPlaneUnavailable,
    LeaseRefused,
    MalformedFrame,
    UnexpectedMessage,
)
from iop.interfaces import IPeerApplication
from iop.wire import control_pb2, runtime_pb2
from tests.edge.rig import DEPLOYMENT, EDGE, FIRST, Rig, receipt_of, refusal, wire_of

APPLIED = control_pb2.PROJECTION_RESULT_APPLIED
REFUSED = control_pb2.PROJECTION_RESULT_REFUSED
NEWER = replace(FIRST, generation=6)


class EnrolmentTests(SynchronousTestCase):
    """Hello, projection, readiness."""

    def setUp(self) -> None:
        self.rig = Rig(Path(self.mktemp()))
        self.control_plane = self.rig.control_plane

    def test_enrols(self) -> None:
        """C3, E2, E6: the hello names this Edge, the projection is applied, the word on it makes the session ready."""
        verifyObject(IPeerApplication, self.rig.link.application())
        self.rig.dial()
        hello = self.control_plane.hello
        assert hello is not None
        self.assertEqual((hello.edge_id, hello.held_generation), (EDGE, 0))
        self.assertEqual([(word.result, word.generation) for word in self.control_plane.words], [(APPLIED, 5)])
        self.assertTrue(self.rig.link.ready)
        self.assertEqual(self.rig.link.projection().generation, 5)
        self.assertEqual(self.rig.settled, 1)

    def assertNotEnrolled(self, *, words: int = 0) -> None:
        self.rig.dial()
        self.assertIsNotNone(self.control_plane.lost_for)
        self.assertFalse(self.rig.link.ready)
        self.assertEqual(len(self.control_plane.words), words)
        self.assertEqual(self.rig.settled, 0)

    def test_no_projection(self) -> None:
        """P10, C12, E2: an accepted hello without a projection, or without its receipt, is refused."""
        for missing in ("projection", "receipt"):
            self.setUp()
            self.control_plane.hello_answer.ClearField(missing)
            self.assertNotEnrolled()
            self.assertRaises(ControlPlaneUnavailable, self.rig.link.projection)

    def test_other_deployment(self) -> None:
        """A Control Plane of another deployment is not this Edge's."""
        self.control_plane.hello_answer.deployment_id = "deployment-2"
        self.assertNotEnrolled()
        self.assertIsNone(self.rig.projections.current)

    def test_refused_hello(self) -> None:
        """C3, E1: a refused Edge has no session."""
        self.control_plane.hello_answer = control_pb2.EdgeHelloResponse(accepted=False, code="edge_denied")
        self.assertNotEnrolled()

    def test_refused_projection(self) -> None:
        """P8: the refusal of the hello's projection is said, once, and that session ends."""
        self.rig.dial().cut()
        older = wire_of(replace(FIRST, generation=4))
        self.control_plane.hello_answer = control_pb2.EdgeHelloResponse(
            accepted=True, deployment_id=DEPLOYMENT, projection=older, receipt=receipt_of(older)
        )
        self.control_plane.words.clear()
        self.rig.dial()
        (word,) = self.control_plane.words
        self.assertEqual((word.result, word.code, word.generation), (REFUSED, "generation_not_higher", 5))
        self.assertFalse(self.rig.link.ready)
        self.assertEqual(self.rig.link.projection().generation, 5)

    def in_pages(self) -> control_pb2.ProjectionPageResponse:
        """Have the hello carry only the tokens of its projection; the page with the rest."""
        projection = self.control_plane.hello_answer.projection
        rest = control_pb2.ProjectionPageResponse(kept=True, routes=projection.routes)
        projection.ClearField("routes")
        projection.next_bucket = 256
        return rest

    def test_pages(self) -> None:
        """E2, E12: an Edge is ready once the rest of the hello's projection is there; what comes meanwhile waits."""
        rest = self.in_pages()
        self.rig.dial()
        self.assertEqual([(page.generation, page.bucket) for page in self.control_plane.pages], [(5, 256)])
        self.control_plane.push(NEWER)
        self.rig.pump()
        self.assertEqual((self.control_plane.words, self.rig.link.ready), ([], False))
        self.assertRaises(ControlPlaneUnavailable, self.rig.link.projection)
        self.control_plane.page.callback(rest)
        self.rig.pump()
        self.assertEqual(
            [(word.result, word.generation) for word in self.control_plane.words], [(APPLIED, 5), (APPLIED, 6)]
        )
        self.assertTrue(self.rig.link.ready)

    def test_cut_between_pages(self) -> None:
        """E12: a connection that ends between pages leaves nothing, and the next one begins anew."""
        rest = self.in_pages()
        self.rig.dial().cut()
        self.assertIsNone(self.rig.projections.current)
        self.control_plane.page = Deferred()
        self.rig.dial()
        self.control_plane.page.callback(rest)
        self.rig.pump()
        self.assertEqual(len(self.control_plane.pages), 2)
        self.assertEqual(self.rig.link.projection().generation, 5)

    def test_a_fault_of_our_own(self) -> None:
        """A connection on which enrolment broke off is closed, whatever it was, so that the next one may do better."""
        self.patch(self.rig.projections, "judge", lambda *_: 1 / 0)
        self.assertNotEnrolled()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_projection_before_the_hello(self) -> None:
        """Nothing may be asked of an Edge that was not accepted."""
        connection = ControlConnection(self.rig.link)
        self.assertRaises(UnexpectedMessage, connection.asked, control_pb2.PrincipalProjectionApplyRequest())
        self.assertRaises(UnexpectedMessage, connection.notified, runtime_pb2.RunCancel())


class ReadyTests(SynchronousTestCase):
    """What a ready session carries."""

    def setUp(self) -> None:
        self.rig = Rig(Path(self.mktemp()))
        self.control_plane = self.rig.control_plane
        self.pair = self.rig.dial()
        self.control_plane.words.clear()

    def test_refresh(self) -> None:
        """C13: a newer projection is applied and acknowledged; one that is refused is answered so."""
        self.control_plane.push(NEWER)
        self.control_plane.push(FIRST)
        self.rig.pump()
        words = [(word.result, word.generation, word.code) for word in self.control_plane.words]
        self.assertEqual(words, [(APPLIED, 6, ""), (REFUSED, 6, "generation_not_higher")])
        self.assertEqual(self.rig.link.projection().generation, 6)

    def test_nothing_pushed(self) -> None:
        """E11: a push of neither a projection nor a delta ends the connection."""
        self.control_plane.send(control_pb2.PrincipalProjectionApplyRequest(receipt=receipt_of(wire_of(NEWER))))
        self.rig.pump()
        self.assertIsNotNone(self.control_plane.lost_for)

    def test_too_many_pushed(self) -> None:
        """E13: an Edge does not keep more than eight projections that wait for the pages of one before them."""
        large = wire_of(NEWER)
        large.next_bucket = 511
        self.control_plane.send(
            control_pb2.PrincipalProjectionApplyRequest(projection=large, receipt=receipt_of(large))
        )
        for generation in range(7, 15):
            self.control_plane.push(replace(FIRST, generation=generation))
        self.rig.pump()
        self.assertIsNone(self.control_plane.lost_for)
        self.control_plane.push(replace(FIRST, generation=15))
        self.rig.pump()
        self.assertIsNotNone(self.control_plane.lost_for)
        self.assertEqual(self.rig.projections.generation, 5)

    def resync(self) -> Deferred[None]:
        asked = Deferred.fromCoroutine(self.rig.link.resync())
        self.rig.pump()
        return asked

    def test_resync(self) -> None:
        """E12: the projection in force is asked for again from its first bucket on."""
        asked = self.resync()
        self.assertEqual([(page.generation, page.bucket) for page in self.control_plane.pages], [(5, 0)])
        projection = wire_of(FIRST)
        page = control_pb2.ProjectionPageResponse(kept=True, tokens=projection.tokens, routes=projection.routes)
        self.control_plane.page.callback(page)
        self.rig.pump()
        self.successResultOf(asked)
        self.assertTrue(self.rig.link.ready)

    def test_resync_that_breaks_the_wire(self) -> None:
        """E12: pages that are none end the connection here too."""
        asked = self.resync()
        self.control_plane.page.callback(control_pb2.ProjectionPageResponse(kept=True, next_bucket=600))
        self.rig.pump()
        self.failureResultOf(asked, MalformedFrame)
        self.assertIsNotNone(self.control_plane.lost_for)

    def test_resync_without_a_connection(self) -> None:
        """Without a connection, or when it ends, there is nobody to ask."""
        asked = self.resync()
        self.pair.cut()
        self.failureResultOf(asked, ControlPlaneUnavailable)
        self.failureResultOf(self.resync(), ControlPlaneUnavailable)
        self.assertEqual(self.rig.link.projection().generation, 5)

    def acquire(self) -> Deferred[runtime_pb2.SealedLease]:
        asked = Deferred.fromCoroutine(self.rig.link.acquire(control_pb2.AcquireLeaseRequest(request_id="r")))
        self.rig.pump()
        return asked

    def test_lease(self) -> None:
        """C16: a lease is asked for and answered on this connection."""
        lease = runtime_pb2.SealedLease(statement=b"statement", box=b"box", signature=b"signature")
        self.control_plane.lease = lambda _: control_pb2.AcquireLeaseResponse(lease=lease)
        self.assertEqual(self.successResultOf(self.acquire()), lease)

    def test_refused_lease(self) -> None:
        """L4: code, retryable and generation come through; the Control Plane's words do not."""
        self.control_plane.lease = lambda _: refusal("stale_generation", again=True, generation=9)
        failure = self.failureResultOf(self.acquire(), LeaseRefused).value
        self.assertEqual((failure.reason, failure.again, failure.generation), ("stale_generation", True, 9))
        self.assertNotEqual(failure.message, "no")

    def test_empty_answer(self) -> None:
        """An answer that is neither closes the connection."""
        self.control_plane.lease = lambda _: control_pb2.AcquireLeaseResponse()
        self.failureResultOf(self.acquire(), ControlPlaneUnavailable)
        self.rig.pump()
        self.assertIsNotNone(self.control_plane.lost_for)

    def test_no_answer(self) -> None:
        """A lease call has its own deadline."""
        self.control_plane.lease = lambda _: Deferred()
        asked = self.acquire()
        self.rig.advance(4.9)
        self.assertNoResult(asked)
        self.rig.advance(0.2)
        self.failureResultOf(asked, ControlPlaneUnavailable)

    def test_no_connection(self) -> None:
        """Without a ready connection there is nobody to ask, and who asked already is told."""
        self.control_plane.lease = lambda _: Deferred()
        asked = self.acquire()
        self.pair.cut()
        self.failureResultOf(asked, ControlPlaneUnavailable)
        self.failureResultOf(self.acquire(), ControlPlaneUnavailable)

    def test_staleness(self) -> None:
        """P9: cut off for longer than the limit, the projection may not be used; a new session lifts that."""
        self.rig.advance(1000.0)
        self.assertEqual(self.rig.link.projection().generation, 5)
        self.pair.cut()
        self.rig.clock.advance(300.0)
        self.assertEqual(self.rig.link.projection().generation, 5)
        self.rig.clock.advance(0.001)
        self.assertRaises(ControlPlaneUnavailable, self.rig.link.projection)
        self.rig.dial()
        self.assertEqual(self.rig.link.projection().generation, 5)
