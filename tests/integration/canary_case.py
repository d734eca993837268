"""A running deployment with canaries in it: who may have which, where they are looked for, and calls to make of it.

Reads the Edge's memory: needs root, as CI has it.
"""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import ssl
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.tokens import token_digest, token_proof
from iop.testing.provider import MODELS
from tests.canaries import Searcher
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
CHAT: Final = "/v1/chat/completions"


def is_whole(answer: bytes) -> bool:
    """Whether all of an answer is there."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        return body.endswith(b"0\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return bool(end) and length is not None and len(body) >= int(length[1])


class CanaryCase(SynchronousTestCase):
    """A quickstart, four real processes on loopback, and everything that anybody of it answered."""

    def setUp(self) -> None:
        self.home = Path(self.mktemp()).absolute()
        self.running = self.start()
        self.addCleanup(self.running.kill)
        self.document = self.running.ready()
        self.started()
        self.context = ssl.create_default_context(cafile=self.document["edge_ca"])
        self.use, self.manage = (self.read(name).decode() for name in ("use.token", "manage.token"))
        self.provider_key = self.read("provider.key")
        #: Everything that any listener sent to anybody.
        self.received = b""
        #: The last of it.
        self.last = b""
        #: Secrets that were refused.
        self.refused: dict[str, bytes] = {}

    def start(self) -> RunningQuickstart:
        """Start the deployment in :attr:`home`."""
        return RunningQuickstart(self.home)

    def started(self) -> None:
        """It serves, and nothing was read from its home yet."""

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
        self.last = answer
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
