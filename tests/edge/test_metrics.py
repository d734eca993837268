"""What an Edge counts, and that nothing which callers or peers say gets onto the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from google.protobuf.message import Message
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from iop.core.runs import FAILURE_CODES
from iop.edge.openai_errors import (
    CODES,
    INTERNAL,
    METHOD_NOT_ALLOWED,
    MISSING_MODEL,
    NO_SUCH_PATH,
    provider_refused_credential,
    refusal_of,
    refusal_of_run,
)
from iop.edge.runs import NODE_LOST, RunFailure
from iop.errors import (
    BadHttp,
    ControlPlaneUnavailable,
    IopError,
    LeaseRefused,
    MalformedInput,
    NoNode,
    NoSuchModel,
    PeerDisconnected,
    QueueFull,
    QueueLate,
    RequestTimedOut,
    TokenRefused,
    TooManyInFlight,
)
from iop.records import LEASE_REFUSALS
from tests.edge.rig import (
    ADA,
    ADA_TOKEN,
    FIRST,
    SMALL,
    FakeNode,
    MemoryExchange,
    Rig,
    lease_for,
    node_table,
    refusal,
    text_of,
)
from tests.metrics import Page, page_of

CANARY = "canary-5c1f0e"


class MetricsTests(SynchronousTestCase):
    """An Edge with one ready Node of two configured ones."""

    def setUp(self) -> None:
        self.rig = Rig(Path(self.mktemp()), [node_table("node-1"), node_table("node-2")])
        self.rig.dial()
        self.control_plane = self.rig.control_plane
        self.node = self.rig.node("node-1")
        self.before = self.page()

    def page(self) -> Page:
        return page_of(self.rig.registry)

    def changes(self) -> dict[str, float]:
        """By how much each value changed since this was last asked, without the prefix that all have."""
        before, self.before = self.before, self.page()
        return {name.removeprefix("iop_edge_"): value for name, value in self.before.since(before).items()}

    def running(self) -> MemoryExchange:
        """A request that a Node has."""
        exchange = self.rig.request()
        self.changes()
        return exchange

    def test_start(self) -> None:
        """What is now is read when the page is asked for."""
        present = {name: value for name, value in self.before.samples.items() if value}
        self.assertEqual(
            present,
            {
                "iop_edge_control_plane_connected": 1,
                "iop_edge_control_plane_sessions_total": 1,
                "iop_edge_projection_generation": 5,
                "iop_edge_nodes_ready": 1,
            },
        )

    def test_request(self) -> None:
        """One request from beginning to end."""
        place = '{node="node-1",provider="openai-main"}'
        self.rig.request()
        self.assertEqual(
            self.changes(),
            {
                "attempts_total": 1,
                'leases_total{from="control_plane"}': 1,
                "runs_open": 1,
                f"requests_running{place}": 1,
            },
        )
        self.rig.advance(1.5)
        self.node.head()
        self.rig.pump()
        self.assertEqual(self.changes(), {"first_byte_seconds_count": 1})
        self.assertEqual(self.before.samples["iop_edge_first_byte_seconds_sum"], 1.5)
        self.assertEqual(self.before.samples['iop_edge_first_byte_seconds_bucket{le="1.0"}'], 0)
        self.assertEqual(self.before.samples['iop_edge_first_byte_seconds_bucket{le="2.5"}'], 1)
        self.node.body(b"12345")
        self.rig.pump()
        self.assertEqual(self.changes(), {"answer_bytes_total": 5})
        self.rig.advance(1.0)
        self.node.body(b"678", last=True)
        self.rig.pump()
        self.assertEqual(
            self.changes(),
            {
                "answer_bytes_total": 3,
                'requests_total{status="2xx"}': 1,
                "call_seconds_count": 1,
                "runs_open": -1,
                f"requests_running{place}": -1,
            },
        )
        self.assertEqual(self.before.samples["iop_edge_call_seconds_sum"], 2.5)

    def test_cached_lease(self) -> None:
        self.running()
        self.rig.request()
        self.assertEqual(self.changes()['leases_total{from="cache"}'], 1)

    def test_queue(self) -> None:
        """A provider takes two at once; the others wait for it."""
        for _ in range(5):
            self.rig.request()
        changes = self.changes()
        place = '{node="node-1",provider="openai-main"}'
        self.assertEqual((changes[f"requests_running{place}"], changes[f"requests_waiting{place}"]), (2, 3))

    def test_unreachable_provider(self) -> None:
        """S17: a provider that cannot be reached is one, from the third failure to the next answer."""
        place = '{node="node-1",provider="openai-main"}'
        for failures in (1, 2, 3):
            self.rig.request()
            self.node.fail("upstream_tls", started=False)
            self.rig.pump()
            self.assertEqual(self.changes().get(f"provider_unreachable{place}", 0), failures // 3)
        self.rig.advance(10.0)
        self.running()
        self.node.head()
        self.rig.pump()
        self.assertEqual(self.changes()[f"provider_unreachable{place}"], -1)

    def test_refused(self) -> None:
        """A refusal is counted by status and code, whoever gives it."""
        self.rig.request(token="")
        self.assertEqual(
            self.changes(), {'requests_total{status="4xx"}': 1, 'requests_failed_total{code="invalid_api_key"}': 1}
        )
        self.rig.api.refuse(431, "headers_too_large", "too large")
        self.assertEqual(
            self.changes(), {'requests_total{status="4xx"}': 1, 'requests_failed_total{code="headers_too_large"}': 1}
        )
        self.rig.request(b"{}")
        self.assertEqual(self.changes()['requests_failed_total{code="missing_model"}'], 1)
        self.rig.request(method="GET", path="/v1/models")
        self.assertEqual(self.changes(), {'requests_total{status="2xx"}': 1})

    def test_broken_off(self) -> None:
        """An answer that is not whole has the status that was sent, and the code of what ended it."""
        self.running()
        self.node.head()
        self.node.fail("upstream_broke", started=True)
        self.rig.pump()
        changes = self.changes()
        self.assertEqual(changes['requests_total{status="2xx"}'], 1)
        self.assertEqual(changes['requests_failed_total{code="upstream_broke"}'], 1)

    def test_caller_gone(self) -> None:
        """A caller who leaves before the answer has no status."""
        self.running().go()
        changes = self.changes()
        self.assertEqual(changes['requests_total{status="none"}'], 1)
        self.assertEqual(changes['requests_failed_total{code="caller_gone"}'], 1)

    def test_refused_leases(self) -> None:
        """Every reason of a Control Plane's has its series."""
        for reason in sorted(LEASE_REFUSALS):
            self.control_plane.lease = lambda _, reason=reason: refusal(reason)  # type: ignore[misc]
            self.rig.request()
            self.assertEqual(self.changes()[f'leases_refused_total{{reason="{reason}"}}'], 1)

    def test_no_control_plane(self) -> None:
        assert self.rig.control_pair is not None
        self.rig.control_pair.cut()
        self.rig.request()
        changes = self.changes()
        self.assertEqual(changes['leases_refused_total{reason="control_plane_unavailable"}'], 1)
        self.assertEqual(changes["control_plane_connected"], -1)
        self.rig.dial()
        self.assertEqual(self.changes(), {"control_plane_connected": 1, "control_plane_sessions_total": 1})

    def test_fences(self) -> None:
        """C18: what changed while a request waited is fence 1's; while its lease was on its way, fence 2's."""
        held: Deferred[Message] = Deferred()
        self.control_plane.lease = lambda _: held
        self.rig.request()
        self.control_plane.lease = lambda request: lease_for(request, self.rig.clock.wall_ms())
        self.control_plane.push(replace(FIRST, generation=6, routes=(replace(SMALL, credential_revision=2),)))
        self.rig.pump()
        self.changes()
        held.callback(lease_for(self.control_plane.asked_for[0], self.rig.clock.wall_ms()))
        self.rig.pump()
        changes = self.changes()
        self.assertEqual((changes['fences_refused_total{fence="2"}'], changes["attempts_total"]), (1, 1))

        for _ in range(2):
            self.rig.request()
        self.control_plane.push(replace(FIRST, generation=7, routes=(replace(SMALL, target="lab"),)))
        self.rig.pump()
        self.changes()
        self.node.fail("cancelled", started=True)
        self.rig.pump()
        self.assertEqual(self.changes()['fences_refused_total{fence="1"}'], 1)

    def test_hostile_values(self) -> None:
        """P25, P6: models, tokens, ids, paths, headers and reasons of others add no series and stand nowhere."""
        route = replace(SMALL, route=f"route-{CANARY}", slot=f"slot-{CANARY}", model=f"model-{CANARY}")
        self.control_plane.push(replace(FIRST, generation=6, routes=(SMALL, route)))
        self.rig.pump()
        canary = CANARY.encode()
        for number in range(20):
            self.rig.request(json.dumps({"model": f"{CANARY}-{number}"}).encode())
            self.rig.request(path=f"/{CANARY}-{number}", method=f"{CANARY}-{number}")
            self.rig.request(token=f"{CANARY}-{number}")
            self.rig.request(canary, headers=[(b"x-request-id", canary + b"-%d" % number), (canary, canary)])
            self.control_plane.lease = lambda _, number=number: refusal(f"{CANARY}-{number}")  # type: ignore[misc]
            self.rig.request(json.dumps({"model": route.model}).encode())
            self.rig.api.refuse(400 + number, f"{CANARY}-{number}", CANARY)
        self.rig.connect(FakeNode(self.rig.clock, CANARY))
        page = self.page()
        self.assertEqual(page.samples.keys(), self.before.samples.keys())
        self.assertEqual(page.samples['iop_edge_leases_refused_total{reason="other"}'], 20)
        self.assertEqual(page.samples['iop_edge_requests_failed_total{code="other"}'], 20)
        private = (text_of(ADA_TOKEN), ADA.token_id, ADA.digest.hex(), '"ada"', '"small"', "slot-1", "route-1")
        for word in (CANARY, *private):
            self.assertNotIn(word, page.text)


class CodesTests(SynchronousTestCase):
    def test_every_refusal_has_its_series(self) -> None:
        """Whatever ends a request is counted under a code of its own, never as ``other``."""
        kinds = (
            MalformedInput,
            QueueFull,
            QueueLate,
            NoNode,
            ControlPlaneUnavailable,
            RequestTimedOut,
            PeerDisconnected,
        )
        errors = [refusal_of(kind("")) for kind in (*kinds, TooManyInFlight, IopError)]
        errors += [refusal_of(error) for error in (BadHttp(400, ""), TokenRefused(), NoSuchModel())]
        errors += [refusal_of(LeaseRefused(reason, "", again=False, generation=0)) for reason in LEASE_REFUSALS]
        errors += [provider_refused_credential(401), NO_SUCH_PATH, METHOD_NOT_ALLOWED, MISSING_MODEL]
        runs = [refusal_of_run(RunFailure(code, "", started=True)) for code in {*FAILURE_CODES, NODE_LOST}]
        self.assertNotIn(INTERNAL, runs)
        self.assertEqual({refusal.code for refusal in (*errors, *runs)} - CODES, set())
