"""Canaries in a running deployment whose provider and callers misbehave: they are nowhere but where they belong.

Starts a quickstart, four real processes on loopback, for each test. Reads the Edge's memory: needs root, as CI has it.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from time import sleep
from typing import Final
from urllib.parse import urlencode

from iop.crypto.tokens import mint, token_digest, token_proof
from iop.records import TokenKind
from iop.testing.provider import MODELS
from tests.canaries import Searcher, process_words, with_children
from tests.integration.canary_case import CHAT, STORE, CanaryCase

#: What a caller is answered when the stand-in fails, if not 200.
STATUSES: Final = {
    "stand-in/unauthorized": 401,
    "stand-in/rate-limited": 429,
    "stand-in/error-500": 500,
    "stand-in/echo-key-500": 500,
    "stand-in/redirect": 502,
}


class LeakTests(CanaryCase):
    def failing_provider(self) -> None:
        """Each way in which the stand-in fails, whole and as a stream."""
        for model in MODELS:
            for stream in (False, True):
                if model == "stand-in/slow-stream" and stream:
                    self.opened_stream().close()
                else:
                    status = self.call("edge_url", "POST", CHAT, f"Bearer {self.use}", self.chat(model, stream=stream))
                    self.assertEqual(status, STATUSES.get(model, 200), model)

    def hostile_callers(self) -> None:
        """Tokens where none belong, bodies that are none, clients that leave in the middle."""
        stranger = bytes(mint(TokenKind.USE).text.reveal()).decode()
        digest, proof = token_digest(self.use).hex(), token_proof(self.use).hex()
        basic = b64encode(f"user:{self.use}".encode()).decode()
        good = f"Bearer {self.use}"
        for wrong in (
            *(f"Bearer {each}" for each in (stranger, self.use[:-1], self.use.swapcase(), digest, proof, "x" * 9000)),
            *(f"Basic {basic}", self.use, f"Bearer  {self.use}", f"Bearer {self.use}, Bearer {stranger}", ""),
        ):
            for key, path in (("edge_url", "/v1/models"), ("credential_url", "/v1/slots")):
                self.assertIn(self.call(key, "GET", path, wrong), (400, 401, 431), wrong[:12])
        self.call("edge_url", "GET", "/v1/models", good, b"", ("Authorization", good))
        for path in (f"/v1/models?api_key={self.use}", f"/v1/{self.use}", f"/v1/models/{self.use}", f"//{self.use}@x/"):
            for authorization in (None, good):
                self.call("edge_url", "GET", path, authorization)
                self.call("credential_url", "GET", path, authorization)
        self.call("edge_url", "GET", "/v1/models", good, b"", ("X-Request-Id", self.use))
        self.call("edge_url", "POST", CHAT, good, self.chat("stand-in"), ("X-Request-Id", f"request-{self.use}"))
        # the wrong plane
        self.assertEqual(self.call("credential_url", "GET", "/v1/slots", good), 403)
        bodies = (
            *(b"", b"{", b"[]", b"\xff\xfe", b'{"model": 1}', b'{"model": "stand-in", "model": "stand-in"}'),
            *(b"[" * 5000, b'{"model": NaN}', b'{"model": "\\ud800"}', self.use.encode()),
            json.dumps({"model": "stand-in", "messages": self.use}).encode(),
            self.chat(self.use),
        )
        for body in bodies:
            self.call("edge_url", "POST", CHAT, good, body)
        self.call("edge_url", "POST", CHAT, good, b"x", ("Content-Encoding", "gzip"))
        self.call("edge_url", "POST", CHAT, good, b"x", ("Transfer-Encoding", "chunked"))
        self.call("edge_url", "POST", CHAT, good, b"x", ("X-Bad", f"a\n b {self.use}\0"))
        # gone with half a body sent
        connection = self.connect("edge_url")
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: {good}\r\n".encode())
        connection.sendall(b"Content-Length: 1000\r\n\r\n{")
        connection.close()

    def refused_slots(self) -> None:
        """Secrets that the credential API does not take, and one whose slot exists already."""
        place = {"profile": "openai", "target": "stand-in"}
        rows: dict[str, tuple[dict[str, str], bytes, str]] = {
            # an empty argument is the secret once more
            "as name": ({"name": "", **place}, b"\n", "application/octet-stream"),
            "as profile": ({"name": "a", **place, "profile": ""}, b"", "application/octet-stream"),
            "as target": ({"name": "a", **place, "target": ""}, b"\n", "application/octet-stream"),
            "as argument": ({"name": "a", **place, "secret": ""}, b"", "application/octet-stream"),
            "line feed": ({"name": "a", **place}, b"\nX: y", "application/octet-stream"),
            "NUL": ({"name": "a", **place}, b"\0", "application/octet-stream"),
            "other bytes": ({"name": "a", **place}, b"\xff\xfe", "application/octet-stream"),
            "too long": ({"name": "a", **place}, b"x" * 100_000, "application/octet-stream"),
            "as JSON": ({"name": "a", **place}, b"", "application/json"),
        }
        for name, (query, rest, kind) in rows.items():
            secret = f"Refused-{os.urandom(12).hex()}".encode()
            self.refused[f"refused secret, {name}"] = secret
            path = "/v1/slots?" + urlencode({key: value or secret.decode() for key, value in query.items()})
            field = ("Content-Type", kind)
            status = 429
            while status == 429:
                status = self.call("credential_url", "POST", path, f"Bearer {self.manage}", secret + rest, field)
                sleep(0.5 * (status == 429))
            self.assertIn(status, (400, 413, 415), name)
            # and with a token that may not
            status = self.call("credential_url", "POST", path, f"Bearer {self.use}", secret, field)
            self.assertIn(status, (403, 429), name)

    # -- tests --------------------------------------------------------------------------------------------------------

    def test_no_canary_leaves_its_place(self) -> None:
        """C52, P6, P21, P24, P25: in no file of the home, with SQLite's -wal and the logs, in no answer, no page, no
        argument and environment of any process, not in what it prints, and nothing of others in the Edge's memory.
        """
        self.route_everything()
        self.failing_provider()
        self.hostile_callers()
        self.refused_slots()
        self.pages()

        edge = Searcher(self.foreign_to_the_edge())
        self.assertEqual(edge.in_memory(self.document["pids"]["edge"]), [])
        # that memory is what was searched: it holds the Edge's own
        own = Searcher({"digest": token_digest(self.use)})
        self.assertTrue(own.in_memory(self.document["pids"]["edge"]))

        # only now: whoever sends a token to an Edge lets it see that token
        self.assertEqual(self.call("edge_url", "GET", "/v1/models", f"Bearer {self.manage}"), 401)
        canaries = Searcher(self.canaries())
        processes = list(with_children(self.running.process.pid))
        self.assertEqual(len(processes), 5)
        for pid in processes:
            self.assertEqual(canaries.in_bytes(f"process {pid}", process_words(pid)), [])
        self.assertGreater((self.home / STORE[1]).stat().st_size, 0)
        self.search_home()

        stream = self.opened_stream()
        code, output, errors = self.running.stop()
        self.until_end(stream)
        self.assertEqual(code, 0)
        self.search_home()
        self.assertEqual(canaries.in_bytes("answers", self.received), [])
        told = json.dumps(self.document) + output + errors
        self.assertEqual(canaries.in_bytes("what quickstart printed", told.encode()), [])

    def test_no_canary_after_a_crash(self) -> None:
        """P21, P25: killed with a stream open, it leaves no canary in the home and the -wal that nobody tidied."""
        self.route_everything()
        self.failing_provider()
        self.opened_stream()
        self.running.kill()
        self.assertGreater((self.home / STORE[1]).stat().st_size, 0)
        self.search_home()
