"""What a Node counts, and that nothing which an Edge or an upstream says gets onto the page."""

from __future__ import annotations

from iop.core.runs import FAILURE_CODES
from iop.errors import PeerDisconnected, UpstreamTimedOut
from iop.units import NODE_KEY_LIFE_SECONDS
from iop.wire import runtime_pb2
from tests.metrics import Page, page_of
from tests.node.test_link import LinkCase
from tests.node.test_runs import CANARY, NodeCase


class RunMetricsTests(NodeCase):
    def setUp(self) -> None:
        super().setUp()
        self.before = self.page()

    def page(self) -> Page:
        return page_of(self.registry)

    def changes(self) -> dict[str, float]:
        """By how much each value changed since this was last asked, without the prefix that all have."""
        before, self.before = self.before, self.page()
        return {name.removeprefix("iop_node_"): value for name, value in self.before.since(before).items()}

    def test_run(self) -> None:
        """One run from beginning to end."""
        call = self.begin()
        self.assertEqual(self.changes(), {})
        self.clock.advance(0.3)
        call.receiver.head(200, [])
        self.assertEqual(self.changes(), {"upstream_head_seconds_count": 1})
        self.assertAlmostEqual(self.before.samples["iop_node_upstream_head_seconds_sum"], 0.3)
        call.receiver.data(b"12345")
        self.assertEqual(self.changes(), {"answer_bytes_total": 5})
        call.receiver.finished()
        self.assertEqual(self.changes(), {'runs_total{outcome="whole"}': 1})

    def test_outcomes(self) -> None:
        """R10: a run is counted once, under the code that it ended with; a refused one too."""
        self.begin().receiver.failed(UpstreamTimedOut("late", started=True))
        self.assertEqual(self.changes(), {'runs_total{outcome="upstream_timeout"}': 1})
        self.peer.take()
        self.begin(self.request(2))
        self.runs.received(runtime_pb2.RunCancel(run=2))
        self.assertEqual(self.changes(), {'runs_total{outcome="cancelled"}': 1})
        self.peer.take()
        request = self.request(3)
        request.token_id = "another"
        self.runs.received(request)
        self.assertEqual(self.changes(), {'runs_total{outcome="lease_refused"}': 1})
        self.peer.take()
        self.begin(self.request(4))
        self.runs.lost()
        self.assertEqual(self.changes(), {'runs_total{outcome="edge_lost"}': 1})
        for code in FAILURE_CODES:
            self.assertIn(f'iop_node_runs_total{{outcome="{code}"}}', self.before.samples)

    def test_hostile_values(self) -> None:
        """P25: ids, providers, paths, headers, statuses and bodies of others add no series and stand nowhere."""
        canary = CANARY.decode()
        for number in range(1, 20):
            request = self.request(number)
            request.request_id = f"{canary}-{number}"
            if number % 2:
                request.provider_id = f"{canary}-{number}"
            self.runs.received(request)
        for call in self.upstream.calls:
            call.receiver.head(200, [(canary, canary)])
            call.receiver.data(CANARY)
            call.receiver.finished()
        page = self.page()
        self.assertEqual(page.samples.keys(), self.before.samples.keys())
        self.assertEqual(page.samples['iop_node_runs_total{outcome="no_such_provider"}'], 10)
        self.assertNotIn(canary, page.text)


class LinkMetricsTests(LinkCase):
    def setUp(self) -> None:
        super().setUp()
        self.metrics.watch(self.link)

    def values(self) -> tuple[float, float, float]:
        samples = page_of(self.registry).samples
        names = ("edge_connected", "runs_open", "key_replacements_total")
        connected, runs, keys = (samples[f"iop_node_{name}"] for name in names)
        return connected, runs, keys

    def test_connection(self) -> None:
        """What is now is read when the page is asked for."""
        self.assertEqual(self.values(), (0, 0, 0))
        self.register()
        self.assertEqual(self.values(), (1, 0, 0))
        self.connection.lost(PeerDisconnected("gone"))
        self.assertEqual(self.values(), (0, 0, 0))

    def test_key_replacement(self) -> None:
        """N5: counted when the Edge took the new key; the first one replaces nothing."""
        self.register()
        self.clock.advance(NODE_KEY_LIFE_SECONDS)
        self.assertEqual(self.values(), (1, 0, 0))
        self.accept_key()
        self.assertEqual(self.values(), (1, 0, 1))
