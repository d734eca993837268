"""The official ``openai`` SDK, unmodified, as a client of a running quickstart.

Starts a quickstart for each test, and the SDK in processes of its own: it blocks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import run
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from iop.testing.provider import GREETING
from tests.integration.quickstart import SECONDS, RunningQuickstart

#: What every script begins with; its arguments are base URL, authority, token.
CLIENT = """
import json, ssl, sys
import openai
url, ca, token = sys.argv[1:]
client = openai.OpenAI(
    base_url=url + "/v1",
    api_key=token,
    max_retries=0,
    http_client=openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=ca)),
)
hello = [{"role": "user", "content": "hello"}]

def refusal(call):
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.body]
"""


class OpenAiSdkTests(SynchronousTestCase):
    def setUp(self) -> None:
        running = RunningQuickstart(Path(self.mktemp()))
        self.addCleanup(running.kill)
        self.document = running.ready()

    def sdk(self, script: str, token: str | None = None) -> Any:
        """What a script of the SDK prints as JSON, with the use token unless another one is given."""
        given = token or Path(self.document["token_file"]).read_text()
        ended = run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", CLIENT + script, self.document["edge_url"], self.document["edge_ca"], given],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return json.loads(ended.stdout)

    def test_answers(self) -> None:
        """A chat, the same as a stream, and exactly the principal's own models."""
        answer = self.sdk(
            "a = client.chat.completions.create(model='stand-in', messages=hello)\n"
            "print(json.dumps([a.choices[0].message.content, a.choices[0].finish_reason]))"
        )
        self.assertEqual(answer, [GREETING + "hello", "stop"])

        pieces = self.sdk(
            "s = client.chat.completions.create(model='stand-in', messages=hello, stream=True)\n"
            "print(json.dumps([c.choices[0].delta.content for c in s]))"
        )
        text = [piece for piece in pieces if piece]
        self.assertGreater(len(text), 5)
        self.assertEqual("".join(text), GREETING + "hello")

        models = self.sdk(
            "print(json.dumps([[m.id for m in client.models.list()], client.models.retrieve('stand-in').id]))"
        )
        self.assertEqual(models, [["stand-in"], "stand-in"])

    def test_refusals(self) -> None:
        """Wrong tokens, a ``manage`` token (P20) and unknown models, as the SDK's own exceptions."""
        right = Path(self.document["token_file"]).read_text()
        manage = Path(self.document["manage_token_file"]).read_text()
        for wrong in ("sk-nothing", right[:-1], right.swapcase(), manage):
            name, status, _ = self.sdk("print(json.dumps(refusal(client.models.list)))", wrong)
            self.assertEqual((name, status), ("AuthenticationError", 401), wrong)

        for call in (
            "client.chat.completions.create(model='gpt-4o', messages=hello)",
            "client.models.retrieve('gpt-4o')",
        ):
            name, status, body = self.sdk(f"print(json.dumps(refusal(lambda: {call})))")
            self.assertEqual((name, status, body["code"]), ("NotFoundError", 404, "model_not_found"), call)
