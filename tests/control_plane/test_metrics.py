"""What a Control Plane counts, and that nothing which callers or Edges say gets onto the page."""

from __future__ import annotations

from twisted.internet.defer import fail

from iop.crypto.tokens import mint
from iop.errors import StoreUnavailable
from iop.records import TokenKind
from iop.units import new_id
from iop.wire import control_pb2
from tests.control_plane.test_credential_api import URL, ApiCase
from tests.control_plane.world import CANARY, result_of
from tests.metrics import Page, page_of


class MetricsTests(ApiCase):
    """A Control Plane with one Edge."""

    def setUp(self) -> None:
        super().setUp()
        self.connection, _ = self.world.enrolled()
        self.before = self.page()

    def page(self) -> Page:
        return page_of(self.world.registry)

    def changes(self) -> dict[str, float]:
        """By how much each value changed since this was last asked, without the prefix that all have."""
        before, self.before = self.before, self.page()
        return {name.removeprefix("iop_control_plane_"): value for name, value in self.before.since(before).items()}

    def test_leases(self) -> None:
        """Granted, and refused by reason, each with its audit row."""
        result_of(self.connection.ask(self.question()))
        self.assertEqual(self.changes(), {"leases_granted_total": 1, "audit_rows": 1})
        result_of(self.connection.ask(self.question(token_id=new_id())))
        self.assertEqual(self.changes(), {'leases_refused_total{reason="token_refused"}': 1, "audit_rows": 1})
        result_of(self.connection.ask(self.question(recipient_public_key=bytes(32))))
        self.assertEqual(self.changes(), {'leases_refused_total{reason="attestation_refused"}': 1, "audit_rows": 1})

    def test_mutation(self) -> None:
        """K14: a mutation is counted with what its barrier found."""
        answer = self.treq.post(
            f"{URL}/v1/slots?name=second&profile=openai&target=lab",
            headers={"Authorization": f"Bearer {self.manage}", "Content-Type": "application/octet-stream"},
            data=CANARY,
        )
        self.world.pump()
        self.treq.flush()
        self.assertEqual(result_of(answer).code, 201)
        self.assertEqual(
            self.changes(),
            {
                'mutations_total{outcome="complete"}': 1,
                'barrier_edges_total{standing="acknowledged"}': 1,
                'api_calls_total{status="201"}': 1,
                "audit_rows": 1,
            },
        )

    def test_not_confirmed(self) -> None:
        """K14: so is one whose barrier was given up."""
        self.patch(self.world.store.edge_sessions, "since", lambda _: fail(StoreUnavailable("failed")))
        answer = self.treq.post(
            f"{URL}/v1/slots?name=second&profile=openai&target=lab",
            headers={"Authorization": f"Bearer {self.manage}", "Content-Type": "application/octet-stream"},
            data=CANARY,
        )
        self.world.pass_time(10.1)
        self.treq.flush()
        self.assertEqual(result_of(answer).code, 504)
        self.assertEqual(
            self.changes(),
            {'mutations_total{outcome="not_confirmed"}': 1, 'api_calls_total{status="504"}': 1, "audit_rows": 1},
        )

    def test_api_calls(self) -> None:
        """By status, whoever gives it."""
        self.call("GET", "/v1/whoami")
        self.assertEqual(self.changes(), {'api_calls_total{status="200"}': 1})
        self.refused(401, "token_refused", "GET", "/v1/whoami", token=bytes(mint(TokenKind.USE).text.reveal()).decode())
        self.assertEqual(self.changes(), {'api_calls_total{status="401"}': 1})
        for path in ("/v1/nothing", "//v1/slots"):
            self.refused(404, "no_such_call", "GET", path)
            self.assertEqual(self.changes(), {'api_calls_total{status="404"}': 1})

    def test_what_is_now(self) -> None:
        """Edges, audit rows, and the generation as the store was last read."""
        rows = len(result_of(self.world.store.audit.tail(1000)))
        self.assertEqual(self.before.samples["iop_control_plane_audit_rows"], rows)
        self.patch(self.world.store.audit, "tail", lambda count: self.fail("the audit is not read to be counted"))
        self.world.plane.watch.start()
        self.addCleanup(self.world.plane.watch.stop)
        self.assertEqual(self.changes(), {"generation": self.generation()})
        self.assertEqual(self.before.samples["iop_control_plane_edges_connected"], 1)
        self.world.principal("carol")
        self.assertEqual(self.changes(), {"audit_rows": 1})
        self.world.pass_time(1)
        self.assertEqual(self.changes(), {"generation": 1})
        self.connection.pair.cut()
        self.assertEqual(self.changes(), {"edges_connected": -1})

    def test_hostile_values(self) -> None:
        """P25: ids, models, names, paths and secrets of others add no series and stand nowhere."""
        canary = CANARY.decode()
        for number in range(5):
            self.create(f"?name={canary}-{number}&profile={canary}&target={canary}")
            self.call("GET", f"/v1/{canary}-{number}")
            self.call("GET", "/v1/slots", token=f"{canary}-{number}")
            binding = self.binding(slot=f"{canary}-{number}", principal=canary)
            asked = self.connection.ask(self.question(binding=binding, request_id=f"{canary}-{number}"))
            answer = result_of(asked)
            assert isinstance(answer, control_pb2.AcquireLeaseResponse)
            self.assertTrue(answer.HasField("refusal"))
        self.world.enrolled(canary)
        page = self.page()
        self.assertEqual(page.samples.keys(), self.before.samples.keys())
        self.assertEqual(page.samples['iop_control_plane_leases_refused_total{reason="other"}'], 0)
        for word in (canary, self.manage, self.ann, "edge1", "node1"):
            self.assertNotIn(word, page.text)
