"""/healthz and /readyz."""

from __future__ import annotations

import json
from typing import Any

from treq.testing import StubTreq
from twisted.trial.unittest import SynchronousTestCase

from iop.process.metrics import new_registry
from iop.process.status import status_pages


class StatusTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reasons: list[str] = []
        # treq leaves the class untyped
        stub: Any = StubTreq
        self.client = stub(status_pages(lambda: self.reasons, new_registry()))

    def get(self, path: str) -> tuple[int, Any]:
        response = self.successResultOf(self.client.get(f"http://127.0.0.1{path}"))
        content = self.successResultOf(response.content())
        return response.code, json.loads(content) if response.code != 404 else content

    def test_alive(self) -> None:
        self.reasons = ["no Node"]
        self.assertEqual(self.get("/healthz"), (200, {"alive": True}))

    def test_ready(self) -> None:
        self.assertEqual(self.get("/readyz"), (200, {"ready": True, "reasons": []}))

    def test_not_ready_says_why(self) -> None:
        self.reasons = ["the Control Plane is not connected"]
        self.assertEqual(
            self.get("/readyz"), (503, {"ready": False, "reasons": ["the Control Plane is not connected"]})
        )

    def test_nothing_else(self) -> None:
        for path in ("/", "/healthz/x", "/metrics/x", "/v1/slots"):
            self.assertEqual(self.get(path)[0], 404, path)

    def test_only_get(self) -> None:
        response = self.successResultOf(self.client.post("http://127.0.0.1/readyz", data=b"x"))
        self.assertEqual(response.code, 405)
