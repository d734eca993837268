"""``/metrics`` of the three roles, as real processes: one request leaves its trace on each."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.quickstart import RunningQuickstart
from tests.metrics import Page

SECONDS = 20.0


class MetricsTests(SynchronousTestCase):
    def test_pages(self) -> None:
        """P6, P25: each page is in the format, shows the quickstart's request, and holds nothing that is secret."""
        home = Path(self.mktemp()).absolute()
        running = RunningQuickstart(home)
        self.addCleanup(running.kill)
        running.ready()
        expected = {
            "control-plane": {
                "iop_control_plane_leases_granted_total": 1,
                'iop_control_plane_mutations_total{outcome="complete"}': 2,
                "iop_control_plane_edges_connected": 1,
            },
            "edge": {
                'iop_edge_leases_total{from="control_plane"}': 1,
                "iop_edge_first_byte_seconds_count": 1,
                "iop_edge_nodes_ready": 1,
                "iop_edge_control_plane_connected": 1,
            },
            "node": {
                'iop_node_runs_total{outcome="whole"}': 1,
                "iop_node_upstream_head_seconds_count": 1,
                "iop_node_edge_connected": 1,
            },
        }
        secrets = [(home / name).read_text().strip() for name in ("use.token", "manage.token", "provider.key")]
        for role, values in expected.items():
            page = Page(self.metrics(home, role))
            self.assertEqual({name: page.samples[name] for name in values}, values)
            self.assertIn("process_cpu_seconds_total", page.text)
            for secret in secrets:
                self.assertNotIn(secret, page.text)

    def metrics(self, home: Path, role: str) -> str:
        (record,) = home.rglob(f"{role}.json")
        host, port = json.loads(record.read_bytes())["addresses"]["status"].split(":")
        connection = HTTPConnection(host, int(port), timeout=SECONDS)
        self.addCleanup(connection.close)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        return response.read().decode()
