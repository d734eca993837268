"""A provider that speaks raw bytes, and repeats the key it was sent wherever HTTP has a place for it.

Starts a quickstart, four real processes on loopback. Reads the Edge's memory: needs root, as CI has it.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Final

from tests.canaries import Searcher, process_words, with_children
from tests.integration.canary_case import CHAT, CanaryCase
from tests.integration.quickstart import SECONDS, RunningQuickstart

_ANSWER: Final = json.dumps({"choices": [{"message": {"role": "assistant", "content": "yes"}}]}).encode()
GOOD: Final = b"\r\n".join(
    [b"HTTP/1.1 200 OK", b"content-type: application/json", b"content-length: %d" % len(_ANSWER), b"", _ANSWER]
)
RESET: Final = b"reset"

#: What is sent, piece by piece, each in a segment of its own; RESET ends the connection at once.
Script = Callable[[bytes], list[bytes]]


def _error(status: str, body: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join([f"HTTP/1.1 {status}".encode(), b"content-length: %d" % len(body), *fields, b"", body])


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


CHUNKED: Final = b"transfer-encoding: chunked\r\n\r\n"
#: Name -> what is sent, and the statuses that the caller may see for it; 0 is an answer that broke off.
SCRIPTS: Final[dict[str, tuple[Script, set[int]]]] = {
    "reason": (lambda key: [b"HTTP/1.1 401 %s\r\ncontent-length: 0\r\n\r\n" % key], {401}),
    "reason-200": (lambda key: [GOOD.replace(b"OK", key)], {200}),
    "interim": (lambda key: [b"HTTP/1.1 103 Early\r\nlink: <%s>\r\n\r\n" % key, GOOD], {200}),
    "trailer": (
        lambda key: [b"HTTP/1.1 401 No\r\n" + CHUNKED + _chunk(b"no") + b"0\r\nx-key: %s\r\n\r\n" % key],
        {401, 502},
    ),
    "chunk-extension": (
        lambda key: [b"HTTP/1.1 401 No\r\n" + CHUNKED + b"2;k=%s\r\nno\r\n0\r\n\r\n" % key],
        {401, 502},
    ),
    "split-in-the-key": (
        lambda key: [
            b"HTTP/1.1 401 No\r\n" + CHUNKED,
            *(_chunk(key[place : place + 5]) for place in range(0, len(key), 5)),
            b"0\r\n\r\n",
        ],
        {401},
    ),
    "byte-by-byte": (lambda key: [bytes([octet]) for octet in _error("500 No", b"<p>%s</p>" % key)], {500}),
    "gzip": (lambda key: [_error("401 No", gzip.compress(key), b"content-encoding: gzip")], {401, 502}),
    "headers": (
        lambda key: [
            _error(
                *("429 No", b"{}", b"x-request-id: %s" % key, b"set-cookie: k=%s" % key, b"retry-after: %s" % key),
                *(b"content-type: text/%s" % key, b"openai-organization: %s" % key, b"x-%s: 1" % key),
            )
        ],
        {429, 502},
    ),
    "redirect": (lambda key: [_error("302 Found", b"", b"location: http://127.0.0.1/?k=%s" % key)], {502}),
    "not-modified": (lambda key: [b"HTTP/1.1 304 %s\r\netag: %s\r\n\r\n" % (key, key)], {304, 502}),
    "status-line": (lambda key: [b"HTTP/9.9 %s\r\n\r\n" % key], {502}),
    "no-http": (lambda key: [key * 10 + b"\r\n\r\n"], {502}),
    "bad-field": (lambda key: [b"HTTP/1.1 200 OK\r\nx\0%s: 1\r\n\r\n" % key], {502}),
    "long-field": (lambda key: [b"HTTP/1.1 200 OK\r\nx: %s\r\n\r\n" % (key * 5000)], {502}),
    "two-lengths": (
        lambda key: [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\nx: %s\r\n\r\n{}" % key],
        {502},
    ),
    "bytes-behind": (lambda key: [GOOD + b"HTTP/1.1 200 OK\r\nx: %s\r\ncontent-length: 0\r\n\r\n" % key], {200}),
    "reset-in-head": (lambda key: [b"HTTP/1.1 500 No\r\nx: %s" % key, RESET], {502}),
    "reset-in-error": (lambda key: [b"HTTP/1.1 500 No\r\ncontent-length: 999\r\n\r\n%s" % key, RESET], {0, 500, 502}),
    "reset-in-chunk": (
        lambda key: [b"HTTP/1.1 403 No\r\n" + CHUNKED + b"%x\r\n%s" % (len(key) + 9, key), RESET],
        {0, 403, 502},
    ),
    "end-in-error": (lambda key: [b"HTTP/1.1 500 No\r\ncontent-length: 999\r\n\r\n%s" % key[:-1]], {0, 500, 502}),
}


class RawProvider:
    """Answers each request by the script that its words name, on a connection that it then closes."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        #: What was asked for.
        self.asked: list[str] = []
        Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more."""
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with closing(connection):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = b""
        while b"\r\n\r\n" not in request or not request.endswith(b"}"):
            data = connection.recv(65536)
            if not data:
                return
            request += data
        head, _, body = request.partition(b"\r\n\r\n")
        key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"authorization:")).split()[-1]
        name = json.loads(body)["messages"][0]["content"]
        self.asked.append(name)
        script = SCRIPTS[name][0] if name in SCRIPTS else lambda _: [GOOD]
        try:
            for piece in script(key):
                if piece is RESET:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    connection.sendall(piece)
        except ConnectionError:
            # the Node had enough of it
            return


class RawProviderTests(CanaryCase):
    def start(self) -> RunningQuickstart:
        self.provider = RawProvider()
        self.addCleanup(self.provider.close)
        self.secret = Path(self.mktemp()).absolute()
        self.secret.touch(0o600)
        self.secret.write_text(f"sk-{os.urandom(20).hex()}")
        upstream = ("--upstream", f"http://127.0.0.1:{self.provider.port}/v1", "--secret-file", str(self.secret))
        return RunningQuickstart(self.home, *upstream, "--model", "good")

    def started(self) -> None:
        # where the search expects it
        self.secret.rename(self.home / "provider.key")

    def ask(self, script: str, *, stream: bool = False) -> int:
        """Status of a chat whose words name a script."""
        message = {"role": "user", "content": script}
        body = json.dumps({"model": "good", "messages": [message], "stream": stream}).encode()
        return self.call("edge_url", "POST", CHAT, f"Bearer {self.use}", body)

    def test_the_key_comes_back_in_no_form_of_http(self) -> None:
        """P6, P24, P25: reason phrases, interim and doubled answers, trailers, chunk extensions, pieces of the key,
        encoded errors, header fields, malformed heads and connections that are reset with the key half sent: it is in
        no answer, page, log, file or argument, and not in the Edge's memory; the next request is served.
        """
        unexpected: list[tuple[str, bool, int]] = []
        for stream in (False, True):
            for name, (_, statuses) in SCRIPTS.items():
                status = self.ask(name, stream=stream)
                if status not in statuses:
                    unexpected.append((name, stream, status))
                self.assertEqual(self.ask("good"), 200, name)
        self.assertEqual(unexpected, [])
        self.assertLessEqual(set(SCRIPTS), set(self.provider.asked))
        self.pages()
        canaries = Searcher(self.canaries())
        self.assertEqual(Searcher(self.foreign_to_the_edge()).in_memory(self.document["pids"]["edge"]), [])
        for pid in with_children(self.running.process.pid):
            self.assertEqual(canaries.in_bytes(f"process {pid}", process_words(pid)), [])
        code, output, errors = self.running.stop()
        self.assertEqual(code, 0)
        self.search_home()
        self.assertEqual(canaries.in_bytes("answers", self.received), [])
        self.assertEqual(canaries.in_bytes("what quickstart printed", (output + errors).encode()), [])
