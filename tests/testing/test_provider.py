"""The stand-in provider, in memory."""

from __future__ import annotations

import json
from typing import Any

from treq.testing import StubTreq
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from iop.secret import Secret
from iop.testing.provider import GREETING, MODELS, Received, StandIn

KEY = "sk-canary-77aa"


class StandInTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.received: list[Received] = []
        self.clock = Clock()
        # treq leaves the class untyped
        stub: Any = StubTreq
        self.client = stub(StandIn(Secret(KEY.encode()), self.clock, self.received.append))

    def call(self, method: str, path: str, body: object = None, key: str = KEY) -> tuple[int, bytes, Any]:
        """Status, body and headers of an answer."""
        response = self.successResultOf(
            self.client.request(
                method,
                f"http://127.0.0.1/v1{path}",
                headers={"authorization": f"Bearer {key}"},
                data=None if body is None else json.dumps(body).encode(),
                allow_redirects=False,
            )
        )
        content = response.content()
        while self.clock.getDelayedCalls():
            self.clock.advance(0)
        self.client.flush()
        return response.code, self.successResultOf(content), response.headers

    def chat(self, model: str, *, key: str = KEY, **more: object) -> tuple[int, bytes, Any]:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}
        return self.call("POST", "/chat/completions", body, key)

    def test_says_what_it_is(self) -> None:
        code, body, _ = self.chat("stand-in")
        self.assertEqual(code, 200)
        self.assertEqual(json.loads(body)["choices"][0]["message"]["content"], GREETING + "hello")

    def test_streams_the_same_words(self) -> None:
        code, body, headers = self.chat("stand-in", stream=True)
        self.assertEqual((code, headers.getRawHeaders("content-type")), (200, ["text/event-stream"]))
        events = body.decode().split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        self.assertEqual(text, GREETING + "hello")
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "stop")

    def test_takes_only_its_credential(self) -> None:
        for wrong in ("", KEY[:-1], KEY + "x", "sk-other"):
            self.assertEqual(self.chat("stand-in", key=wrong)[0], 401, wrong)
            self.assertEqual(self.call("GET", "/models", key=wrong)[0], 401, wrong)
        self.assertFalse(any(each.authorized for each in self.received))

    def test_lists_its_models(self) -> None:
        code, body, _ = self.call("GET", "/models")
        self.assertEqual((code, [each["id"] for each in json.loads(body)["data"]]), (200, list(MODELS)))

    def test_remembers_digests_alone(self) -> None:
        self.chat("stand-in")
        (received,) = self.received
        self.assertEqual((received.method, received.path), ("POST", "/v1/chat/completions"))
        self.assertTrue(received.authorized)
        self.assertNotIn(KEY, repr(received))

    def test_failures_by_model(self) -> None:
        for model, status in (
            ("stand-in/unauthorized", 401),
            ("stand-in/rate-limited", 429),
            ("stand-in/error-500", 500),
            ("stand-in/echo-key-500", 500),
            ("stand-in/redirect", 307),
            ("gpt-4o", 404),
        ):
            self.assertEqual(self.chat(model)[0], status, model)
        _, body, headers = self.chat("stand-in/echo-key-500")
        self.assertIn(KEY.encode(), body)
        self.assertEqual(headers.getRawHeaders("x-echo"), [f"Bearer {KEY}"])
        self.assertEqual(self.chat("stand-in/rate-limited")[2].getRawHeaders("retry-after"), ["7"])

    def test_slow_stream_takes_a_minute(self) -> None:
        body = {"model": "stand-in/slow-stream", "messages": [], "stream": True}
        answer = self.client.post(
            "http://127.0.0.1/v1/chat/completions",
            headers={"authorization": f"Bearer {KEY}"},
            data=json.dumps(body).encode(),
        )
        response = self.successResultOf(answer)
        content = response.content()
        for _ in range(59):
            self.clock.advance(1)
            self.client.flush()
            self.assertNoResult(content)
        self.clock.advance(1)
        self.client.flush()
        self.assertIn(b"[DONE]", self.successResultOf(content))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nonsense(self) -> None:
        for data in (b"", b"[]", b"{", b"\xff", b"[" * 100_000):
            response = self.successResultOf(
                self.client.post(
                    "http://127.0.0.1/v1/chat/completions", headers={"authorization": f"Bearer {KEY}"}, data=data
                )
            )
            self.assertEqual(response.code, 404)
        self.assertEqual(self.call("DELETE", "/models")[0], 404)
