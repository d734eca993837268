"""Canaries in a running deployment whose provider and callers misbehave: they are nowhere but where they belong.

Starts a quickstart, four real processes on loopback, for each test. Reads the Edge's memory: needs root, as CI has it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import ssl
from base64 import b64encode
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from time import sleep
from typing import Final
from urllib.parse import urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.tokens import mint, token_digest, token_proof
from iop.records import TokenKind
from iop.testing.provider import MODELS
from tests.canaries import Searcher, process_words, with_children
from tests.integration.quickstart import SECONDS, RunningQuickstart

#: Files of a home that are meant to hold a canary, and which. The store's digests are checked with its other content.
BELONGS: Final = {
    "provider.key": {"provider key"},
    "use.token": {"use token"},
    "manage.token": {"manage token"},
    "keys/keyring.json": {"keyring key"},
    "keys/issuer.json": {"issuer seed"},
}
STORE: Final = ("store/iop.db", "store/iop.db-wal")
#: What the store keeps of tokens.
VERIFIERS: Final = {f"{kind} token {what}" for kind in ("use", "manage") for what in ("digest", "proof")}
#: What a caller is answered when the stand-in fails, if not 200.
STATUSES: Final = {
    "stand-in/unauthorized": 401,
    "stand-in/rate-limited": 429,
    "stand-in/error-500": 500,
    "stand-in/echo-key-500": 500,
    "stand-in/redirect": 502,
}
CHAT: Final = "/v1/chat/completions"


def is_whole(answer: bytes) -> bool:
    """Whether all of an answer is there that says its length."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return bool(end) and length is not None and len(body) >= int(length[1])


class LeakTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.home = Path(self.mktemp()).absolute()
        self.running = RunningQuickstart(self.home)
        self.addCleanup(self.running.kill)
        self.document = self.running.ready()
        self.context = ssl.create_default_context(cafile=self.document["edge_ca"])
        self.use, self.manage = (self.read(name).decode() for name in ("use.token", "manage.token"))
        self.provider_key = self.read("provider.key")
        #: Everything that any listener sent to anybody.
        self.received = b""
        #: Secrets that were refused.
        self.refused: dict[str, bytes] = {}

    def read(self, name: str) -> bytes:
        return (self.home / name).read_bytes()

    # -- canaries -----------------------------------------------------------------------------------------------------

    def canaries(self) -> dict[str, bytes]:
        """Secrets that were given to the deployment, and what follows from them."""
        (key,) = json.loads(self.read("keys/keyring.json"))["keys"]
        found = {
            "provider key": self.provider_key,
            "provider key digest": sha256(self.provider_key).digest(),
            "keyring key": bytes.fromhex(key["key"]),
            "issuer seed": bytes.fromhex(json.loads(self.read("keys/issuer.json"))["seed"]),
        }
        for kind, text in (("use", self.use), ("manage", self.manage)):
            found[f"{kind} token"] = text.encode()
            found[f"{kind} token digest"] = token_digest(text)
            found[f"{kind} token proof"] = token_proof(text)
        return found | self.refused

    def foreign_to_the_edge(self) -> dict[str, bytes]:
        """What an Edge must never have had: others' secrets and keys, and the stored ciphertexts."""
        canaries = self.canaries()
        found = {
            name: canaries[name]
            for name in ("provider key", "keyring key", "issuer seed", "manage token", "manage token proof")
        }
        found |= self.refused
        for role in ("node-node-1", "control-plane-cp-1", "ca"):
            key = load_pem_private_key(self.read(f"pki/{role}.key"), None)
            assert isinstance(key, EllipticCurvePrivateKey)
            size = (key.key_size + 7) // 8
            found[f"{role} key"] = key.private_numbers().private_value.to_bytes(size, "big")
            # as a big number lies in memory
            found[f"{role} key, reversed"] = found[f"{role} key"][::-1]
        with closing(sqlite3.connect(f"file:{self.home / STORE[0]}?mode=ro", uri=True)) as database:
            for number, (wrapped, box) in enumerate(database.execute("SELECT wrapped_key, box FROM slots")):
                # the header is the same for all, the nonce is this one's
                found[f"wrapped key {number}"], found[f"box {number}"] = wrapped[5:29], box[5:29]
        return found

    def search_home(self) -> None:
        """Every file: it has the canaries that :data:`BELONGS` says; the store has token verifiers, as bytes."""
        finds = Searcher(self.canaries()).in_files(self.home)
        verifiers = [find for find in finds if find.place in STORE and find.marker in VERIFIERS and find.form == "raw"]
        placed = [find for find in finds if find.marker in BELONGS.get(find.place, ())]
        self.assertEqual([find for find in finds if find not in verifiers and find not in placed], [])
        # what has a place was seen there, so the search does find
        for name, markers in BELONGS.items():
            self.assertEqual({find.marker for find in placed if find.place == name}, markers)
        self.assertEqual({find.marker for find in verifiers}, VERIFIERS)

    # -- calls --------------------------------------------------------------------------------------------------------

    def connect(self, key: str) -> socket.socket:
        """A connection to ``edge_url`` or ``credential_url``."""
        parts = urlsplit(self.document[key])
        plain = socket.create_connection((parts.hostname, parts.port), timeout=SECONDS)
        connection = self.context.wrap_socket(plain, server_hostname=parts.hostname)
        self.addCleanup(connection.close)
        return connection

    def until_end(self, connection: socket.socket) -> bytes:
        """Keep and answer what still comes, until the answer says that it is whole or the connection ends."""
        answer = b""
        try:
            while not is_whole(answer) and (data := connection.recv(65536)):
                answer += data
        except (ssl.SSLError, ConnectionError):
            # dropped, which is an answer too
            pass
        self.received += answer
        return answer

    def call(
        self,
        key: str,
        method: str,
        path: str,
        authorization: str | None,
        body: bytes = b"",
        *headers: tuple[str, str],
    ) -> int:
        """One call on a connection of its own: its status, or 0 if there was no answer."""
        fields = [("Host", "localhost"), ("Connection", "close"), ("Content-Length", str(len(body))), *headers]
        if authorization is not None:
            fields.append(("Authorization", authorization))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n"
        connection = self.connect(key)
        connection.sendall(head.encode("latin-1") + body)
        answer = self.until_end(connection)
        return int(answer[9:12]) if answer else 0

    def chat(self, model: str, *, stream: bool = False) -> bytes:
        """The body of a chat request."""
        message = {"role": "user", "content": "hello"}
        return json.dumps({"model": model, "messages": [message], "stream": stream}).encode()

    def route_everything(self) -> None:
        """Let the use token reach each of the provider's models."""
        slot = json.loads(self.read("stored.json"))["slot"]
        for model in MODELS[1:]:
            body = json.dumps({"slot": slot, "upstream_model": model, "selector": ""}).encode()
            path = f"/v1/routes/{model.replace('/', '%2F')}"
            fields = (("If-None-Match", "*"), ("Content-Type", "application/json"))
            status = self.call("credential_url", "PUT", path, f"Bearer {self.manage}", body, *fields)
            self.assertEqual(status, 201, model)

    def opened_stream(self) -> socket.socket:
        """A stream of which the first piece has come."""
        connection = self.connect("edge_url")
        body = self.chat("stand-in/slow-stream", stream=True)
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.use}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        answer = b""
        while b"data: " not in answer:
            data = connection.recv(65536)
            self.assertNotEqual(data, b"", answer)
            answer += data
        self.received += answer
        return connection

    def failing_provider(self) -> None:
        """Each way in which the stand-in fails, whole and as a stream."""
        for model in MODELS:
            for stream in (False, True):
                if model == "stand-in/slow-stream" and stream:
                    self.opened_stream().close()
                else:
                    status = self.call("edge_url", "POST", CHAT, f"Bearer {self.use}", self.chat(model, stream=stream))
                    self.assertEqual(status, STATUSES.get(model, 200))

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

    def pages(self) -> None:
        """What each role tells about itself."""
        for record in (self.home / "run").glob("*.json"):
            host, _, port = json.loads(record.read_text())["addresses"]["status"].rpartition(":")
            for path in ("/healthz", "/readyz", f"/{self.use}", "/metrics"):
                connection = socket.create_connection((host, int(port)), timeout=SECONDS)
                connection.sendall(
                    f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Token: {self.use}\r\n\r\n".encode()
                )
                self.assertTrue(self.until_end(connection))
                connection.close()

    # -- tests --------------------------------------------------------------------------------------------------------

    def test_no_canary_leaves_its_place(self) -> None:
        """P6, P21, P24, P25: in no file of the home, SQLite's -wal and the logs included, in no answer, no page, no
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
