"""Leases from the Control Plane: what an Edge may claim, what it gets, and when anything is decrypted at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from google.protobuf.message import Message
from twisted.internet.defer import Deferred, fail
from zope.interface import implementer

from iop.control_plane.edge_link import LEASE_REQUEST_LIMIT
from iop.crypto.at_rest import Place, open_secret
from iop.crypto.attestation import AttestationVerifier
from iop.crypto.keyring import Keyring
from iop.crypto.lease import open_lease
from iop.crypto.node_keys import NodeKeys
from iop.crypto.tokens import mint
from iop.errors import CannotOpen, PeerDisconnected, StoreBusy, StoreUnavailable
from iop.interfaces import ILeaseAuthority
from iop.records import LEASE_REFUSALS, LeaseGrant, LeaseQuestion, LeaseRefusal, SealedSecret, TokenKind
from iop.secret import Secret
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.units import Role, new_id
from iop.wire import control_pb2, runtime_pb2
from tests.configurations import DEPLOYMENT
from tests.control_plane.world import CANARY, PlayedEdge, PlayedNode, WorldCase, applied, hello, result_of


class LeaseCase(WorldCase):
    def setUp(self) -> None:
        super().setUp()
        self.connection, _ = self.world.enrolled()

    def acquire(self, message: Message) -> control_pb2.AcquireLeaseResponse:
        answer = result_of(self.connection.ask(message))
        if not isinstance(answer, control_pb2.AcquireLeaseResponse):
            raise AssertionError(answer)
        return answer

    def refused(self, message: Message) -> control_pb2.LeaseRefusal:
        """The refusal; nothing was decrypted for it, and it carries nothing sealed (C23)."""
        before = self.world.unsealed
        answer = self.acquire(message)
        self.assertEqual(answer.WhichOneof("result"), "refusal")
        self.assertIn(answer.refusal.code, LEASE_REFUSALS)
        self.assertEqual(self.world.unsealed, before)
        self.assertNotIn(CANARY, answer.SerializeToString())
        return answer.refusal

    def opened(self, lease: runtime_pb2.SealedLease, node: PlayedNode | None = None, **changed: Any) -> bytes:
        """What the Node reads in a lease."""
        fields: dict[str, Any] = {
            "now_ms": self.world.clock.wall_ms(),
            "skew_ms": 5000,
            "find_private_key": (node or self.node).keys.find,
            "deployment_id": DEPLOYMENT,
            "trust_domain": TRUST_DOMAIN,
            "edge": "edge1",
            "node": "node1",
            "binding": self.binding(),
            "token_id": self.world.tokens["ann", TokenKind.USE].record.token_id,
        }
        with open_lease(self.world.pinned, lease, **(fields | changed)).secret as secret:
            return bytes(secret.reveal())


class GrantTests(LeaseCase):
    def test_the_node_reads_the_secret(self) -> None:
        """C21, C43: the lease opens for the Node it names, with the stored secret in it; one thing was decrypted."""
        lease = self.acquire(self.question()).lease
        self.assertEqual(self.opened(lease), CANARY)
        self.assertEqual(self.world.unsealed, 1)
        self.assertNotIn(CANARY, lease.SerializeToString())

    def test_another_node_does_not(self) -> None:
        """P11: another Node's keys open nothing."""
        lease = self.acquire(self.question()).lease
        with self.assertRaises(CannotOpen):
            self.opened(lease, self.world.node("node2"))

    def test_it_ends(self) -> None:
        """L6, C22: 60 seconds after the authorising read it opens no more."""
        lease = self.acquire(self.question()).lease
        self.world.clock.advance(59.9)
        self.assertEqual(self.opened(lease), CANARY)
        self.world.clock.advance(0.1)
        with self.assertRaises(CannotOpen):
            self.opened(lease)

    def test_it_does_not_outlive_the_attestation(self) -> None:
        """L6: an attestation that ends in five seconds ends the lease with it."""
        soon = self.world.clock.wall_ms() + 5000
        lease = self.acquire(self.question(attestation=self.node.attestation("edge1", expires_ms=soon))).lease
        self.world.clock.advance(5)
        with self.assertRaises(CannotOpen):
            self.opened(lease)

    def test_an_audit_row_stands_before_the_lease(self) -> None:
        """P26: a grant and each refusal have one row, of one form, which holds ids and outcomes only."""
        before = len(result_of(self.world.store.audit.tail(1000)))
        self.acquire(self.question())
        self.acquire(self.question(token_id=new_id()))
        self.acquire(self.question(recipient_public_key=bytes(32)))
        rows = result_of(self.world.store.audit.tail(1000))[before:]
        self.assertEqual([row.outcome for row in rows], ["granted", "token_refused", "attestation_refused"])
        self.assertEqual(
            {(row.actor, row.action, *row.details) for row in rows}, {(rows[0].actor, rows[0].action, *rows[0].details)}
        )
        proof = self.world.tokens["ann", TokenKind.USE].record.proof
        for row in rows:
            self.assertNotIn(proof.hex(), repr(row))
            self.assertNotIn(CANARY.decode(), repr(row))

    def test_nothing_is_decrypted_before_its_audit_row(self) -> None:
        """L3, C19: when the stored secret is opened, the row that grants it is committed."""
        outcomes: list[str] = []

        def unseal(keyring: Keyring, place: Place, sealed: SealedSecret) -> Secret:
            outcomes.append(result_of(self.world.store.audit.tail(1))[0].outcome)
            return open_secret(keyring, place, sealed)

        self.world.plane = self.world.build(unseal)
        self.connection, _ = self.world.enrolled("edge2")
        self.acquire(self.question("edge2"))
        self.assertEqual(outcomes, ["granted"])

    def test_a_store_that_is_busy_is_a_refusal(self) -> None:
        """L4: ``store_busy`` may be tried again at once, and the connection stays."""
        self.patch(self.world.store.leases, "authorise", lambda *_: fail(StoreBusy("busy")))
        refusal = self.refused(self.question())
        self.assertEqual((refusal.code, refusal.retryable, refusal.generation), ("store_busy", True, 0))
        self.assertIsNone(self.connection.edge.lost_for)

    def test_a_store_that_cannot_be_written_is_a_refusal(self) -> None:
        """L4, P26, P47: without its audit row there is no lease, and the connection stays; reading goes on."""
        full = StoreUnavailable("the database's disk is full; nothing was changed")
        own = NodeKeys(self.world.clock).current().public_key
        for place, method, question in (
            (self.world.store.leases, "authorise", self.question()),
            (self.world.store.audit, "append", self.question(recipient_public_key=own)),
        ):
            patcher = self.patch(place, method, lambda *_: fail(full))
            refusal = self.refused(question)
            self.assertEqual((refusal.code, refusal.retryable, refusal.generation), ("store_unavailable", False, 0))
            patcher.restore()
        self.assertIsNone(self.connection.edge.lost_for)
        self.assertEqual(self.opened(self.acquire(self.question()).lease), CANARY)

    def test_validity(self) -> None:
        """L6: from the authorising read on, for 60 seconds."""
        now_ms = self.world.clock.wall_ms()
        statement = runtime_pb2.LeaseStatement.FromString(self.acquire(self.question()).lease.statement)
        self.assertEqual((statement.not_before_ms, statement.expires_ms), (now_ms, now_ms + 60_000))

    def test_a_secret_under_a_lost_key_is_a_typed_refusal(self) -> None:
        """L4: what this keyring cannot open answers ``secret_unreadable`` and is audited."""
        self.world.keyring = Keyring.create(self.world.folder / "other-keyring.json")
        self.world.plane = self.world.build()
        self.connection, _ = self.world.enrolled("edge2")
        answer = self.acquire(self.question("edge2"))
        self.assertEqual(answer.refusal.code, "secret_unreadable")
        self.assertFalse(answer.refusal.retryable)
        self.assertEqual(result_of(self.world.store.audit.tail(1))[0].outcome, "secret_unreadable")


class HostileEdgeTests(LeaseCase):
    """An Edge with its own keys and everything it ever saw, against attestation and durable re-read."""

    def test_its_own_key(self) -> None:
        """P11: a key that the Edge made, with the Node's attestation of another."""
        own = NodeKeys(self.world.clock).current().public_key
        self.assertEqual(self.refused(self.question(recipient_public_key=own)).code, "attestation_refused")

    def test_its_own_key_attested_by_itself(self) -> None:
        """P11: an Edge's certificate signs for no Node."""
        edge = PlayedNode("node1", self.world.pki.issue(Role.EDGE, "edge1"), NodeKeys(self.world.clock))
        message = self.question(
            recipient_public_key=edge.keys.current().public_key, attestation=edge.attestation("edge1")
        )
        self.assertEqual(self.refused(message).code, "attestation_refused")

    def test_another_nodes_key(self) -> None:
        """P11: a genuine key of another Node, for a binding that names this one."""
        other = self.world.node("node2")
        message = self.question(
            recipient_public_key=other.keys.current().public_key, attestation=other.attestation("edge1")
        )
        self.assertEqual(self.refused(message).code, "attestation_refused")

    def test_another_nodes_key_under_this_ones_name(self) -> None:
        """P11: Node 2 signs a statement that says node1; its certificate does not."""
        other = self.world.node("node2")
        message = self.question(
            recipient_public_key=other.keys.current().public_key, attestation=other.attestation("edge1", node="node1")
        )
        self.assertEqual(self.refused(message).code, "attestation_refused")

    def test_an_expired_attestation(self) -> None:
        """P11: recorded, and past its time."""
        attestation = self.node.attestation("edge1")
        key = self.node.keys.current().public_key
        self.world.clock.wall_at_boot_ms += 906_000
        self.assertEqual(
            self.refused(self.question(attestation=attestation, recipient_public_key=key)).code, "attestation_refused"
        )

    def test_an_attestation_that_never_ends(self) -> None:
        """A Node cannot attest a key for longer than a key lives."""
        far = self.world.clock.wall_ms() + 3_600_000
        message = self.question(attestation=self.node.attestation("edge1", expires_ms=far))
        self.assertEqual(self.refused(message).code, "attestation_refused")

    def test_an_attestation_of_an_authority_that_is_trusted_no_more(self) -> None:
        """P11: that it was found good before, under the trust of then, counts for nothing."""
        question = self.question()
        self.assertTrue(self.acquire(question).HasField("lease"))
        other = Pki(self.world.folder / "other").authority.certificate
        self.world.plane.trust(self.world.pinned, AttestationVerifier([other], TRUST_DOMAIN))
        self.assertEqual(self.refused(question).code, "attestation_refused")

    def test_an_attestation_for_another_edge(self) -> None:
        """P11: what Edge 2 recorded is worth nothing on Edge 1."""
        self.assertEqual(
            self.refused(self.question(attestation=self.node.attestation("edge2"))).code, "attestation_refused"
        )

    def test_a_token_id_without_its_proof(self) -> None:
        """A projection names every token, but only who saw one has its proof."""
        for proof in (b"", bytes(32), self.world.tokens["ann", TokenKind.USE].record.digest):
            self.assertEqual(self.refused(self.question(token_proof=proof)).code, "token_refused")

    def test_a_token_nobody_has(self) -> None:
        made_up = mint(TokenKind.USE).record
        self.assertEqual(
            self.refused(self.question(token_id=made_up.token_id, token_proof=made_up.proof)).code, "token_refused"
        )

    def test_a_manage_token(self) -> None:
        """A ``manage`` token opens no lease, whoever got hold of it."""
        manage = self.world.tokens["ann", TokenKind.MANAGE].record
        self.assertEqual(
            self.refused(self.question(token_id=manage.token_id, token_proof=manage.proof)).code, "token_refused"
        )

    def test_an_older_generation(self) -> None:
        """P12: refused, and told that a newer projection may help."""
        refusal = self.refused(self.question(binding=self.binding(generation=self.generation() - 1)))
        self.assertEqual((refusal.code, refusal.retryable), ("stale_generation", True))
        self.assertEqual(refusal.generation, self.generation())

    def test_a_generation_that_is_not_yet(self) -> None:
        """P12: nothing that waiting would heal."""
        refusal = self.refused(self.question(binding=self.binding(generation=self.generation() + 1)))
        self.assertEqual((refusal.code, refusal.retryable), ("binding_mismatch", False))

    def test_every_bound_field(self) -> None:
        """P12, C23 at the Control Plane: one row per field, each changed alone, each refused without decrypting."""
        bob = self.world.principal("bob")
        bobs = self.world.slot(bob)
        bobs_route = self.world.route(bob, bobs.slot)
        changed: dict[str, Any] = {
            "principal": bob,
            "route": bobs_route.route,
            "slot": bobs.slot,
            "profile": "openai-compatible",
            "target": "elsewhere",
            "credential_revision": 2,
            "route_revision": 2,
        }
        for field, value in changed.items():
            refusal = self.refused(self.question(binding=self.binding(**{field: value})))
            self.assertIn(refusal.code, ("binding_mismatch", "slot_refused", "token_refused"), field)
            self.assertFalse(refusal.retryable, field)
        self.assertEqual(
            self.refused(self.question(binding=self.binding(node="node2"))).code, "attestation_refused", "node"
        )

    def test_another_principals_route_whole(self) -> None:
        """P12: everything of Bob's, with Ann's token."""
        bob = self.world.principal("bob")
        slot = self.world.slot(bob)
        route = self.world.route(bob, slot.slot)
        binding = self.binding(principal=bob, slot=slot.slot, route=route.route)
        self.assertEqual(self.refused(self.question(binding=binding)).code, "token_refused")

    def test_a_binding_with_holes_ends_the_connection(self) -> None:
        """L2: what is not even a binding is a broken wire."""
        message = self.question()
        message.ClearField("binding")
        self.failureResultOf(self.connection.ask(message))
        self.assertIsNotNone(self.connection.edge.lost_for)

    def test_limit_and_one_past(self) -> None:
        """P32, L2: what waiting lease requests of one Edge hold is bounded; a larger one ends its connection.

        The one at the limit waits, because a newer projection is on its way that its Edge does not acknowledge.
        """
        connection, answer = self.world.greeted("edge2", PlayedEdge(acknowledges=False))
        self.world.slot(self.ann, name="other")
        result_of(connection.ask(control_pb2.EdgeReadyRequest(outcome=applied(answer.projection))))
        waiting = connection.ask(self.sized("edge2", LEASE_REQUEST_LIMIT))
        self.assertNoResult(waiting)
        self.failureResultOf(connection.ask(self.sized("edge2", LEASE_REQUEST_LIMIT + 1)), PeerDisconnected)
        self.failureResultOf(waiting, PeerDisconnected)
        # and where nothing has to wait, the limit is taken
        self.assertEqual(self.refused(self.sized("edge1", LEASE_REQUEST_LIMIT)).code, "token_refused")

    def sized(self, edge: str, size: int) -> control_pb2.AcquireLeaseRequest:
        """A question of so many bytes. One of another moment is shorter or longer: its signature is."""
        message = self.question(edge)
        message.token_proof = bytes(10_000)
        message.token_proof = bytes(10_000 + size - message.ByteSize())
        return message

    def test_ids_that_are_none_end_the_connection(self) -> None:
        """L2: what an Edge says its ids are is bounded before it is written anywhere; at the limit it is."""
        self.assertEqual(self.acquire(self.question(request_id="r" * 128)).WhichOneof("result"), "lease")
        before = result_of(self.world.store.audit.tail(1000))
        for place, field in enumerate(("request_id", "token_id")):
            for number, value in enumerate(("", "x" * 129, "a b", "\u0661")):
                name = f"edge{10 + 10 * place + number}"
                changed: dict[str, Any] = {field: value}
                connection, _ = self.world.enrolled(name)
                self.failureResultOf(connection.ask(self.question(name, **changed)))
                self.assertIsNotNone(connection.edge.lost_for, (field, value))
        self.assertEqual(result_of(self.world.store.audit.tail(1000)), before)

    def test_nobody_else_suffers(self) -> None:
        """After all of that, another Edge gets its lease and the hostile one's honest request succeeds too."""
        self.test_its_own_key()
        self.test_a_token_id_without_its_proof()
        other, _ = self.world.enrolled("edge2")
        answer = result_of(other.ask(self.question("edge2")))
        self.assertEqual(answer.WhichOneof("result"), "lease")
        self.assertEqual(self.acquire(self.question()).WhichOneof("result"), "lease")


class DenialTests(LeaseCase):
    def test_a_denied_node_gets_nothing(self) -> None:
        """P13: once the denial is committed no lease is sealed to that name, whatever generation the Edge knows."""
        denied = result_of(self.world.store.denials.deny("node", "node1", "host:test"))
        refusal = self.refused(self.question(binding=self.binding(generation=denied.generation)))
        self.assertEqual((refusal.code, refusal.retryable), ("node_denied", False))

    def test_a_denied_edge_gets_nothing(self) -> None:
        """P13: nor does an Edge, on the connection it already has."""
        denied = result_of(self.world.store.denials.deny("edge", "edge1", "host:test"))
        refusal = self.refused(self.question(binding=self.binding(generation=denied.generation)))
        self.assertEqual(refusal.code, "edge_denied")

    def test_an_edge_that_the_principal_is_not_limited_to_gets_nothing(self) -> None:
        """E14, P12: nor does an Edge that the token was once told to, and nothing is decrypted."""
        limited = result_of(self.world.store.principals.limit("ann", ["edge2"], "host:test"))
        refusal = self.refused(self.question(binding=self.binding(generation=limited.generation)))
        self.assertEqual((refusal.code, refusal.retryable), ("edge_not_allowed", False))


@implementer(ILeaseAuthority)
class SlowAuthority:
    """A durable re-read whose answer comes when a test says so."""

    def __init__(self, real: ILeaseAuthority) -> None:
        self._real = real
        self.waiting: list[Deferred[None]] = []

    def authorise(self, question: LeaseQuestion, now_ms: int) -> Deferred[LeaseGrant | LeaseRefusal]:
        verdict = result_of(self._real.authorise(question, now_ms))
        turn: Deferred[None] = Deferred()
        self.waiting.append(turn)
        return turn.addCallback(lambda _: verdict)


class RaceTests(LeaseCase):
    def test_a_denial_is_told_only_after_the_leases_before_it(self) -> None:
        """P13: no Edge is sent, so none can acknowledge, a denial while a lease authorised before it is unanswered."""
        authority = SlowAuthority(self.world.store.leases)
        self.world.store.leases = authority  # type: ignore[assignment]
        self.world.plane = self.world.build()
        self.connection, _ = self.world.enrolled("edge2")
        lease = self.connection.ask(self.question("edge2"))
        denied = result_of(self.world.store.denials.deny("node", "node1", "host:test"))
        published = Deferred.fromCoroutine(self.world.plane.edges.publish(denied.generation))
        self.world.pump()
        self.assertNoResult(published)
        self.assertEqual(self.connection.edge.received, [])
        authority.waiting.pop().callback(None)
        self.world.pump()
        self.assertEqual(result_of(lease).WhichOneof("result"), "lease")
        self.assertEqual(len(self.connection.edge.received), 1)


class OrderTests(LeaseCase):
    def test_the_newer_projection_goes_ahead_of_the_refusal(self) -> None:
        """L4: the projection that heals a stale request is written to the connection before its refusal."""
        before = self.binding()
        self.world.principal("carol")
        received = self.connection.edge.received
        answer = self.connection.ask(self.question(binding=before))
        answer.addCallback(received.append)
        self.assertEqual(
            [type(message).__name__ for message in received],
            ["PrincipalProjectionApplyRequest", "AcquireLeaseResponse"],
        )

    def test_no_lease_before_the_word_on_the_projection(self) -> None:
        """L1: an Edge that was accepted but has said nothing about its projection is closed when it asks."""
        connection = self.world.connect("edge2")
        result_of(connection.ask(hello("edge2")))
        self.failureResultOf(connection.ask(self.question("edge2")))
        self.assertIsNotNone(connection.edge.lost_for)

    def test_no_lease_before_a_barrier_waits_for_the_session(self) -> None:
        """L1, E10: an Edge whose word is on an older projection gets its lease once its word on the newest is in."""
        edge = PlayedEdge(acknowledges=False)
        connection, answer = self.world.greeted("edge2", edge)
        self.world.principal("carol")
        word = applied(answer.projection)
        result_of(connection.ask(control_pb2.EdgeReadyRequest(outcome=word)))
        lease = connection.ask(self.question("edge2"))
        self.world.pass_time(1)
        self.assertNoResult(lease)
        self.assertEqual(self.world.unsealed, 0)
        (sent,) = edge.projections
        word = applied(sent)
        edge.held.pop().callback(control_pb2.PrincipalProjectionApplyResponse(outcome=word))
        self.world.pump()
        self.assertEqual(result_of(lease).WhichOneof("result"), "lease")

    def test_an_acknowledgement_stands_for_nothing(self) -> None:
        """C50: an Edge that acknowledges what it never applied still gets no lease for what it believed."""
        believed = self.binding()
        self.world.route(self.ann, self.slot.slot, expected=self.route.revision)
        published = Deferred.fromCoroutine(self.world.plane.edges.publish(self.generation()))
        self.world.pump()
        result_of(published)
        refusal = self.refused(self.question(binding=believed))
        self.assertEqual(refusal.code, "stale_generation")
        lied = replace(believed, generation=self.generation())
        self.assertEqual(self.refused(self.question(binding=lied)).code, "binding_mismatch")
