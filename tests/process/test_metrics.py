"""The registry of a process, and counters whose label values are known beforehand."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY, Counter
from treq.testing import StubTreq
from twisted.trial.unittest import SynchronousTestCase

from iop.process.metrics import Tally, new_registry
from iop.process.status import status_pages
from tests.metrics import Page, page_of


class TallyTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.registry = new_registry()
        self.tally = Tally(self.registry, "iop_test", "Things that were counted", "kind", ("a", "b"))

    def test_every_series_is_there_from_the_start(self) -> None:
        self.assertEqual(
            page_of(self.registry).samples,
            {'iop_test_total{kind="a"}': 0, 'iop_test_total{kind="b"}': 0, 'iop_test_total{kind="other"}': 0},
        )

    def test_unknown_values_are_one(self) -> None:
        """P25: whatever is counted, no value becomes a label that was none before."""
        before = page_of(self.registry)
        for value in ("a", "", "sk-canary-1", 'b"} 1\nforged', *map(str, range(1000))):
            self.tally.count(value)
        after = page_of(self.registry)
        self.assertEqual(after.since(before), {'iop_test_total{kind="a"}': 1, 'iop_test_total{kind="other"}': 1003})
        self.assertEqual(after.samples.keys(), before.samples.keys())


class RegistryTests(SynchronousTestCase):
    def test_each_is_its_own(self) -> None:
        """Two roles in one process, as in tests, count apart; the library's global registry has nothing of either."""
        first, second = new_registry(), new_registry()
        Counter("iop_test", "Things", registry=first).inc()
        Counter("iop_test", "Things", registry=second)
        self.assertEqual(page_of(first).samples, {"iop_test_total": 1})
        self.assertEqual(page_of(second).samples, {"iop_test_total": 0})
        self.assertNotIn("iop_", page_of(REGISTRY).text)

    def test_page(self) -> None:
        """The text format, with what the kernel says of the process; only GET."""
        registry = new_registry()
        Counter("iop_test", "Things", registry=registry).inc()
        # treq leaves the class untyped
        stub: Any = StubTreq
        client = stub(status_pages(list, registry))
        response = self.successResultOf(client.get("http://127.0.0.1/metrics"))
        text = self.successResultOf(response.text())
        self.assertEqual(response.code, 200)
        self.assertEqual(response.headers.getRawHeaders("content-type"), ["text/plain; version=0.0.4; charset=utf-8"])
        self.assertEqual(Page(text).samples, {"iop_test_total": 1})
        self.assertIn("process_resident_memory_bytes", text)
        self.assertEqual(self.successResultOf(client.post("http://127.0.0.1/metrics", data=b"x")).code, 405)
