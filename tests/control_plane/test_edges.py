"""Enrolment and projection refresh as the Control Plane does them, and the barrier over the sessions."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from twisted.internet.defer import Deferred, fail
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from zope.interface import implementer

from iop.control_plane.edge_link import UNACKNOWLEDGED_LIMIT
from iop.control_plane.edges import END_AGAIN_SECONDS
from iop.control_plane.metrics import ControlPlaneMetrics
from iop.control_plane.mutations import Mutations
from iop.control_plane.pages import Pages
from iop.core.projection import BUCKETS, projection_digest
from iop.crypto.issuer import Issuer
from iop.crypto.receipt import sign_receipt
from iop.errors import HelloRefused, NotConfirmed, StoreBusy, StoreUnavailable
from iop.process.metrics import new_registry
from iop.records import Barrier, Committed, Reading, TokenKind
from iop.wire import control_pb2
from iop.wire.convert import projection_from_wire
from tests.configurations import DEPLOYMENT
from tests.control_plane.world import CANARY, Connection, PlayedEdge, WorldCase, applied, hello, refused, result_of


class EnrolmentTests(WorldCase):
    def refused(self, message: Message, name: str = "edge1") -> str:
        """The reason a hello is refused for; the connection is closed with it."""
        connection = self.world.connect(name)
        refusal = self.failureResultOf(connection.ask(message), HelloRefused).value
        self.assertIsInstance(connection.edge.lost_for, HelloRefused)
        reason: str = refusal.reason
        return reason

    def test_the_hello_brings_projection_and_receipt(self) -> None:
        """C11, C14, E2, E4: what an accepted Edge learns is Ann's ``use`` token and route, signed for this Edge."""
        _, answer = self.world.enrolled()
        snapshot, digest = projection_from_wire(answer.projection)
        self.assertEqual(digest, projection_digest(snapshot.tokens, snapshot.routes))
        use = self.world.tokens["ann", TokenKind.USE].record
        self.assertEqual([(token.token_id, token.digest) for token in snapshot.tokens], [(use.token_id, use.digest)])
        self.assertEqual([route.slot for route in snapshot.routes], [self.slot.slot])
        self.assertEqual(answer.deployment_id, DEPLOYMENT)

    def test_no_secret_thing_is_in_it(self) -> None:
        """C15: no raw token, proof, ``manage`` digest, plaintext or ciphertext is in the bytes an Edge is sent."""
        _, answer = self.world.enrolled()
        data = answer.SerializeToString()
        manage, use = (self.world.tokens["ann", kind] for kind in (TokenKind.MANAGE, TokenKind.USE))
        forbidden = [CANARY, bytes(use.text.reveal()), bytes(manage.text.reveal()), use.record.proof]
        forbidden += [manage.record.proof, manage.record.digest, manage.record.token_id.encode(), b"IOP1"]
        for bad in forbidden:
            self.assertNotIn(bad, data)

    def test_an_empty_identity(self) -> None:
        """C3, C26: an Edge that does not say who it is."""
        self.assertEqual(self.refused(hello("")), "identity_refused")

    def test_another_edges_identity(self) -> None:
        """P3, C49: a hello that disagrees with the certificate."""
        self.assertEqual(self.refused(hello("edge2")), "identity_refused")

    def test_another_version(self) -> None:
        """E1."""
        self.assertEqual(
            self.refused(control_pb2.EdgeHelloRequest(edge_id="edge1", protocol_version=2)), "unsupported_version"
        )

    def test_a_denied_edge(self) -> None:
        """P13: a denied name is not accepted."""
        result_of(self.world.store.denials.deny("edge", "edge1", "host:test"))
        self.assertEqual(self.refused(hello("edge1")), "edge_denied")

    def test_a_second_connection(self) -> None:
        """E3: the live one stays as it was, and can still lease."""
        first, _ = self.world.enrolled()
        self.assertEqual(self.refused(hello("edge1")), "already_connected")
        self.assertIsNone(first.edge.lost_for)
        self.assertEqual(result_of(first.ask(self.question())).WhichOneof("result"), "lease")

    def test_only_a_session_that_was_is_logged_as_gone(self) -> None:
        """C34: a connection that says no hello, or a refused second one, takes no Edge away."""
        events: list[str | None] = []

        @implementer(ILogObserver)
        def observe(event: LogEvent) -> None:
            if str(event.get("log_format")).startswith("control.edge."):
                events.append(event["log_format"])

        globalLogPublisher.addObserver(observe)
        self.addCleanup(globalLogPublisher.removeObserver, observe)
        first, _ = self.world.enrolled()
        silent = self.world.connect()
        silent.pair.cut()
        self.assertEqual(self.refused(hello("edge1")), "already_connected")
        self.assertEqual(events, ["control.edge.connected", "control.edge.ready", "control.edge.refused"])
        first.pair.cut()
        self.assertEqual(events[3:], ["control.edge.disconnected"])

    def test_its_row_stands_before_its_projection_is_read(self) -> None:
        """E10: a barrier that runs between the two knows of this session."""
        reading, rows = self.world.store.projections.reading, []

        def read(since: int) -> Deferred[Reading]:
            rows.append(result_of(self.world.store.edge_sessions.since(0)))
            return reading(since)

        self.patch(self.world.store.projections, "reading", read)
        self.world.enrolled()
        self.assertEqual([[row.edge for row in found] for found in rows], [["edge1"]])

    def test_a_connection_that_ends_while_its_row_is_written(self) -> None:
        """E10: the row that nobody else knows of is ended with it."""
        opened, turn = self.world.store.edge_sessions.open, Deferred[None]()
        self.patch(
            self.world.store.edge_sessions,
            "open",
            lambda edge, now_ms: turn.addCallback(lambda _: opened(edge, now_ms)),
        )
        connection = self.world.connect()
        connection.ask(hello("edge1")).addErrback(lambda _: None)
        connection.pair.cut()
        turn.callback(None)
        (row,) = result_of(self.world.store.edge_sessions.since(0))
        self.assertNotEqual(row.ended_ms, 0)
        self.world.enrolled()

    def test_a_connection_that_ends_while_its_projection_is_read(self) -> None:
        """C6, E10: nobody hears that it is there, and its row is ended."""
        reading, turn = self.world.store.projections.reading, Deferred[None]()
        self.patch(self.world.store.projections, "reading", lambda since: turn.addCallback(lambda _: reading(since)))
        connection = self.world.connect()
        connection.ask(hello("edge1")).addErrback(lambda _: None)
        connection.pair.cut()
        turn.callback(None)
        self.world.pass_time(0.1)
        (row,) = result_of(self.world.store.edge_sessions.since(0))
        self.assertNotEqual(row.ended_ms, 0)
        heard = result_of(Deferred.fromCoroutine(self.world.plane.events.after(0, None, 0)))
        self.assertEqual((heard.events, self.world.plane.edges.sessions()), ((), []))

    def test_it_may_come_back(self) -> None:
        """E3: once the first connection is gone, the name is free."""
        first, _ = self.world.enrolled()
        first.pair.cut()
        self.world.enrolled()


class HeldTests(EnrolmentTests):
    """What an Edge claims to hold (E8)."""

    def held(self, generation: int, digest: bytes, receipt: Any) -> Message:
        return hello("edge1", held_generation=generation, held_digest=digest, held_receipt=receipt)

    def sign(self, generation: int, digest: bytes, *, edge: str = "edge1", issuer: Issuer | None = None) -> Any:
        return sign_receipt(issuer or self.world.issuer, DEPLOYMENT, edge, generation, digest)

    def test_what_it_was_given(self) -> None:
        """An Edge that comes back with exactly what it was sent is welcome."""
        first, answer = self.world.enrolled()
        first.pair.cut()
        generation, digest = answer.projection.generation, answer.projection.digest
        second = self.world.connect()
        again = result_of(second.ask(self.held(generation, digest, answer.receipt)))
        self.assertTrue(getattr(again, "accepted", False))

    def test_an_invented_receipt(self) -> None:
        """A claim that no issuer signed refuses this Edge and stops nobody else."""
        other, _ = self.world.enrolled("edge2")
        invented = self.sign(1000, bytes(32), issuer=Issuer.create(self.world.folder / "invented.json"))
        self.assertEqual(self.refused(self.held(1000, bytes(32), invented)), "receipt_refused")
        self.assertEqual(self.refused(self.held(1000, bytes(32), None)), "receipt_refused")
        self.assertEqual(result_of(other.ask(self.question("edge2"))).WhichOneof("result"), "lease")

    def test_another_edges_receipt(self) -> None:
        """A genuine receipt of another Edge proves nothing here."""
        receipt = self.sign(1000, bytes(32), edge="edge2")
        self.assertEqual(self.refused(self.held(1000, bytes(32), receipt)), "receipt_refused")

    def test_a_receipt_of_something_else(self) -> None:
        """A genuine receipt that is not of what the hello says is held."""
        _, answer = self.world.enrolled("edge1")
        self.world.pairs[0].cut()
        self.assertEqual(self.refused(self.held(1000, bytes(32), answer.receipt)), "receipt_refused")

    def test_a_proof_that_the_store_is_behind(self) -> None:
        """A genuine receipt ahead of the store, or of another content of the same generation, refuses this Edge."""
        for generation in (1000, self.generation()):
            receipt = self.sign(generation, bytes(32))
            self.assertEqual(self.refused(self.held(generation, bytes(32), receipt)), "store_behind")


class RefreshTests(WorldCase):
    def mutations(self) -> Mutations:
        return Mutations(
            store=self.world.store,
            edges=self.world.plane.edges,
            clock=self.world.clock,
            metrics=ControlPlaneMetrics(new_registry()),
            window_ms=65_000,
            acknowledge_seconds=5,
        )

    def mutate(self, name: str = "carol") -> Deferred[Barrier]:
        """A committed mutation, its barrier begun and everything moved."""
        self.world.principal(name)
        committed = Committed(None, self.generation(), self.world.clock.wall_ms())
        done = Deferred.fromCoroutine(self.mutations().complete(committed))
        self.world.pump()
        return done

    def answer(self, connection: Connection, outcome: control_pb2.ProjectionOutcome) -> None:
        """Answer what was pushed first."""
        connection.edge.held.pop(0).callback(control_pb2.PrincipalProjectionApplyResponse(outcome=outcome))
        self.world.pass_time(0.1)

    def page(self, connection: Connection, generation: int, bucket: int) -> control_pb2.ProjectionPageResponse:
        """A page that the Edge asks for."""
        request = control_pb2.ProjectionPageRequest(generation=generation, bucket=bucket)
        asked = connection.ask(request)
        self.world.pass_time(0.1)
        page = result_of(asked)
        assert isinstance(page, control_pb2.ProjectionPageResponse)
        return page

    def logged(self, event_name: str) -> list[LogEvent]:
        """The events of one kind from now on."""
        events: list[LogEvent] = []

        @implementer(ILogObserver)
        def observe(event: LogEvent) -> None:
            if event.get("log_format") == event_name:
                events.append(event)

        globalLogPublisher.addObserver(observe)
        self.addCleanup(globalLogPublisher.removeObserver, observe)
        return events

    def test_every_edge_gets_every_generation(self) -> None:
        """C13: after a mutation each connected Edge is sent the new projection, and the barrier counts their words."""
        edges = [self.world.enrolled(name)[0].edge for name in ("edge1", "edge2")]
        outcome = result_of(self.mutate())
        for edge in edges:
            self.assertEqual([each.generation for each in edge.projections], [outcome.generation])
        self.assertEqual((outcome.acknowledged, outcome.cut_off, outcome.unconfirmed), (2, 0, 0))

    def test_the_barrier_waits(self) -> None:
        """K14, E10: a mutation is not complete while a ready Edge has not said so."""
        connection, _ = self.world.enrolled(edge=PlayedEdge(acknowledges=False))
        done = self.mutate()
        self.world.pass_time(1)
        self.assertNoResult(done)
        sent = connection.edge.projections[-1]
        answer = control_pb2.PrincipalProjectionApplyResponse(outcome=applied(sent))
        connection.edge.held.pop().callback(answer)
        self.world.pass_time(0.1)
        self.assertEqual(result_of(done).acknowledged, 1)

    def test_a_silent_edge_is_cut_off(self) -> None:
        """E10: after five seconds it is closed, counted as cut off, and the mutation returns."""
        connection, _ = self.world.enrolled(edge=PlayedEdge(acknowledges=False))
        began = self.world.clock.wall_ms()
        done = self.mutate()
        self.world.pass_time(5.2)
        outcome = result_of(done)
        self.assertEqual((outcome.acknowledged, outcome.cut_off), (0, 1))
        self.assertEqual(outcome.effective_ms, began + 65_000)
        self.assertIsNotNone(connection.edge.lost_for)
        self.assertEqual(self.world.plane.edges.names(), [])

    def test_unacknowledged_projections_are_bounded(self) -> None:
        """An Edge that is slow is sent so many at most; the newest comes when it has taken one."""
        connection, _ = self.world.enrolled(edge=PlayedEdge(acknowledges=False))
        for number in range(UNACKNOWLEDGED_LIMIT + 5):
            self.mutate(f"p{number}").addErrback(lambda _: None)
        received = connection.edge.received
        self.assertEqual(len(received), UNACKNOWLEDGED_LIMIT)
        word = applied(connection.edge.projections[0])
        connection.edge.held[0].callback(control_pb2.PrincipalProjectionApplyResponse(outcome=word))
        self.world.pass_time(0.1)
        self.assertEqual(len(received), UNACKNOWLEDGED_LIMIT + 1)
        self.assertEqual(connection.edge.projections[-1].generation, self.generation())
        # whoever waits for the Edge is told, instead of being taken apart by the garbage collector
        connection.pair.cut()

    def test_a_refused_change_is_followed_by_one_whole_projection(self) -> None:
        """E7: logged once, and the barrier waits for the Edge's word on the whole one."""
        log = self.logged("control.edge.change_refused")
        connection, _ = self.world.enrolled(edge=PlayedEdge(acknowledges=False))
        done = self.mutate()
        self.answer(connection, refused(1, "base_mismatch"))
        change, whole = connection.edge.projections
        self.assertIsInstance(change, control_pb2.ProjectionDelta)
        self.assertIsInstance(whole, control_pb2.PrincipalProjection)
        self.assertEqual([event["code"] for event in log], ["base_mismatch"])
        self.assertNoResult(done)
        self.answer(connection, applied(whole))
        self.assertEqual(result_of(done).acknowledged, 1)

    def test_what_an_edge_calls_its_refusal_is_not_logged(self) -> None:
        """P25: a code that is none stays out of the log."""
        log = self.logged("control.edge.change_refused")
        connection, _ = self.world.enrolled(edge=PlayedEdge(acknowledges=False))
        self.mutate()
        self.answer(connection, refused(1, "iop_use_ABC\n"))
        self.assertEqual([event["code"] for event in log], ["unknown"])

    def test_a_refused_whole_projection_ends_the_session(self) -> None:
        """E7: nothing that was refused is sent again; there is nothing else to send."""
        connection, _ = self.world.enrolled(edge=PlayedEdge(acknowledges=False))
        done = self.mutate()
        for code in ("digest_mismatch", "malformed_projection"):
            self.assertIsNone(connection.edge.lost_for)
            self.answer(connection, refused(1, code))
        self.world.pass_time(0.2)
        self.assertIsNotNone(connection.edge.lost_for)
        self.assertEqual(len(connection.edge.received), 2)
        self.assertEqual(result_of(done).cut_off, 1)

    def test_a_refused_hello_ends_the_session(self) -> None:
        """E7: the hello's projection is a whole one."""
        connection, _ = self.world.greeted("edge1")
        connection.ask(control_pb2.EdgeReadyRequest(outcome=refused(0, "digest_mismatch"))).addErrback(lambda _: None)
        self.assertIsNotNone(connection.edge.lost_for)

    def test_an_edge_that_is_not_ready_is_sent_nothing_newer(self) -> None:
        """E11: what happens while it takes the hello's projection apart is one change after its word on that."""
        connection, answer = self.world.greeted("edge1")
        for name in ("bob", "carol", "dave"):
            result_of(self.mutate(name))
        self.assertEqual(connection.edge.received, [])
        result_of(connection.ask(control_pb2.EdgeReadyRequest(outcome=applied(answer.projection))))
        self.world.pump()
        self.assertEqual([change.generation for change in connection.edge.projections], [self.generation()])

    def test_pages(self) -> None:
        """C11, E12: what is not in the hello is asked for, of what is kept, and nothing of anything else."""
        self.world.plane.edges.publisher.pages = Pages(100)
        connection, answer = self.world.greeted("edge1")
        generation, tokens, routes = answer.projection.generation, len(answer.projection.tokens), 0
        bucket = answer.projection.next_bucket
        while bucket:
            page = self.page(connection, generation, bucket)
            tokens, routes, bucket = tokens + len(page.tokens), routes + len(page.routes), page.next_bucket
        self.assertEqual((tokens, routes), (1, 1))
        self.assertFalse(self.page(connection, generation + 1, 1).kept)
        self.assertFalse(self.page(connection, 0, 1).kept)

    def test_a_bucket_that_is_none(self) -> None:
        """E12: asking for it breaks the wire."""
        connection, answer = self.world.greeted("edge1")
        request = control_pb2.ProjectionPageRequest(generation=answer.projection.generation, bucket=BUCKETS)
        asked = connection.ask(request)
        self.world.pass_time(0.1)
        self.failureResultOf(asked)
        self.assertIsNotNone(connection.edge.lost_for)

    def test_pages_at_once(self) -> None:
        """E12: a page is made in a turn of its own, and one that is asked for before ends the connection."""
        connection, answer = self.world.greeted("edge1")
        request = control_pb2.ProjectionPageRequest(generation=answer.projection.generation, bucket=1)
        asked = [connection.ask(request)]
        self.assertNoResult(asked[0])
        asked.append(connection.ask(request))
        self.world.pass_time(0.1)
        for each in asked:
            self.failureResultOf(each)
        self.assertIsNotNone(connection.edge.lost_for)

    def test_edges_that_a_principal_is_limited_to(self) -> None:
        """E14: once it is, another Edge is told that its entries are gone, and keeps nothing of them."""
        mine, other = (self.world.enrolled(name)[0].edge for name in ("edge1", "edge2"))
        limited = result_of(self.world.store.principals.limit("ann", ["edge1"], "host:test"))
        done = Deferred.fromCoroutine(self.mutations().complete(limited))
        self.world.pump()
        self.assertEqual(result_of(done).acknowledged, 2)
        token = self.world.tokens["ann", TokenKind.USE].record.token_id
        for edge, gone in ((mine, []), (other, [token])):
            (change,) = edge.projections
            self.assertIsInstance(change, control_pb2.ProjectionDelta)
            self.assertEqual(list(getattr(change, "removed_tokens", [])), gone)
        self.assertNotIn(token.encode(), self.world.enrolled("edge3")[1].SerializeToString())

    def test_an_older_word_is_no_word(self) -> None:
        """E10: an Edge that answers each projection with one it had before is cut off and holds up no mutation."""
        connection, answer = self.world.enrolled(edge=PlayedEdge(acknowledges=False))
        done = self.mutate()
        older = control_pb2.PrincipalProjectionApplyResponse(outcome=applied(answer.projection))
        connection.edge.held.pop().callback(older)
        self.world.pass_time(0.2)
        self.assertEqual(result_of(done).cut_off, 1)
        self.assertIsNotNone(connection.edge.lost_for)

    def test_a_lie_about_the_digest_ends_the_session(self) -> None:
        """E5: an acknowledgement of something that was never sent is no acknowledgement."""
        connection, _ = self.world.enrolled(edge=PlayedEdge(acknowledges=False))
        self.mutate()
        lie = control_pb2.ProjectionOutcome(
            result=control_pb2.PROJECTION_RESULT_APPLIED, generation=self.generation(), digest=bytes(32)
        )
        connection.edge.held.pop().callback(control_pb2.PrincipalProjectionApplyResponse(outcome=lie))
        self.world.pump()
        self.assertIsNotNone(connection.edge.lost_for)

    def test_a_store_in_trouble_does_not_undo_what_it_committed(self) -> None:
        """K14: a change that is made is never told as one that is not; the barrier goes on once the store answers."""
        self.world.enrolled()
        sessions, denials = self.world.store.edge_sessions, self.world.store.denials
        patches = [
            self.patch(denials, "all", lambda: fail(StoreBusy("nothing was changed"))),
            self.patch(sessions, "since", lambda _: fail(StoreUnavailable("nothing was changed"))),
        ]
        done = self.mutate()
        self.world.pass_time(1)
        for patch in patches:
            self.assertNoResult(done)
            patch.restore()
            self.world.pass_time(0.2)
        self.assertEqual(result_of(done).acknowledged, 1)

    def test_a_store_in_trouble_for_long_is_not_confirmed(self) -> None:
        """K14: the wait is bounded, and the answer says what holds and until when it may not."""
        self.patch(self.world.store.edge_sessions, "since", lambda _: fail(StoreUnavailable("nothing was changed")))
        done = self.mutate()
        self.world.pass_time(9.9)
        self.assertNoResult(done)
        self.world.pass_time(0.2)
        error = self.failureResultOf(done, NotConfirmed).value
        self.assertIn("committed", error.message)
        self.assertNotIn("nothing was changed", error.message + error.hint)

    def test_a_host_local_change_is_noticed(self) -> None:
        """P44: a mutation that another process committed reaches the Edges by polling, within a second."""
        connection, _ = self.world.enrolled()
        self.world.plane.watch.start()
        self.addCleanup(self.world.plane.watch.stop)
        self.world.principal("dave")
        self.world.pass_time(1)
        self.assertEqual(connection.edge.projections[-1].generation, self.generation())

    def test_a_mutation_between_the_reading_and_the_hellos_answer(self) -> None:
        """An Edge whose hello was read just before a mutation is brought up to date by its own acknowledgement."""
        connection, answer = self.world.greeted("edge1")
        self.world.principal("erin")
        word = applied(answer.projection)
        result_of(connection.ask(control_pb2.EdgeReadyRequest(outcome=word)))
        self.world.pump()
        self.assertEqual(connection.edge.projections[-1].generation, self.generation())

    def test_denying_a_connected_edge_drops_it(self) -> None:
        """P13: a denial ends the connection that is there."""
        connection, _ = self.world.enrolled()
        denied = result_of(self.world.store.denials.deny("edge", "edge1", "host:test"))
        result_of(Deferred.fromCoroutine(self.world.plane.edges.publish(denied.generation)))
        self.world.pump()
        self.assertIsNotNone(connection.edge.lost_for)

    def test_an_end_that_the_store_does_not_take(self) -> None:
        """K14, P47: an Edge that is gone while the store is in trouble holds up no barrier once that is over."""
        connection, _ = self.world.enrolled()
        sessions = self.world.store.edge_sessions
        logged = self.logged("control.edge.session_row_left_open")
        trouble = self.patch(sessions, "end", lambda *_: fail(StoreUnavailable("nothing was changed")))
        left_ms = self.world.clock.wall_ms()
        connection.pair.cut()
        self.world.pass_time(3)
        trouble.restore()
        done = self.mutate()
        self.assertNoResult(done)
        self.world.pass_time(END_AGAIN_SECONDS + 0.1)
        self.assertEqual(result_of(done).cut_off, 1)
        (row,) = result_of(sessions.since(0))
        self.assertEqual((row.ended_ms, len(logged)), (left_ms, 1))

    def test_an_edge_gone_is_an_ended_row(self) -> None:
        """The barrier of another process sees that a connection ended."""
        connection, _ = self.world.enrolled()
        connection.pair.cut()
        (row,) = result_of(self.world.store.edge_sessions.since(0))
        self.assertEqual(row.ended_ms, self.world.clock.wall_ms())
