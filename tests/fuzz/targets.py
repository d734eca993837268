"""What is fuzzed: each target reads any bytes, lets pass only the documented errors, and checks the result.

Anything else that comes out of a target is a defect.
"""

from __future__ import annotations

import json
import string
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
from twisted.logger import ILogObserver, LogEvent, LogLevel, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from iop.control_plane.config import ControlPlaneConfig
from iop.crypto.tokens import parse_token
from iop.edge.config import EdgeConfig
from iop.errors import (
    BadConfig,
    BadHttp,
    FrameTooLarge,
    MalformedFrame,
    MalformedInput,
    MalformedToken,
    UnexpectedMessage,
)
from iop.net.http1 import Headers, HttpLimits, HttpServerFactory, IExchange, IHttpApplication, Wanted
from iop.net.response_reader import ResponseReader
from iop.node.config import NodeConfig
from iop.process.config import load
from iop.testing.clock import FakeClock
from iop.wire import base64url
from iop.wire.dialect import CONTROL, RUNTIME, Dialect
from iop.wire.framing import FrameDecoder
from iop.wire.strict_json import DEPTH_LIMIT, parse_json, parse_object
from tests.net.transports import MemoryTransport

_WORD: Final = string.ascii_letters + string.digits
_FRAME_LIMIT: Final = 512
_HTTP: Final = HttpLimits(headers=1024, header_count=20, body=600, body_total=2000)
_HEAD_LIMIT: Final = 1024
#: What one answer of the server here takes at most.
_ANSWER_BYTES: Final = 400
#: The shortest request: ``GET / HTTP/1.1``, a Host field and two line ends.
_REQUEST_BYTES: Final = 20


def pieces(data: bytes) -> Iterator[bytes]:
    """The rest of ``data``, cut into pieces whose size the first byte says."""
    size = max(data[0], 1) if data else 1
    return (data[at : at + size] for at in range(1, len(data), size))


def frames(dialect: Dialect, data: bytes) -> None:
    """Frames of one wire, in pieces."""
    decoder = FrameDecoder(_FRAME_LIMIT)
    for piece in pieces(data):
        decoder.feed(piece)
        try:
            while (frame := decoder.next_frame()) is not None:
                assert 0 < len(frame) <= _FRAME_LIMIT
                with suppress(MalformedFrame, UnexpectedMessage):
                    envelope(dialect, frame)
        except (MalformedFrame, FrameTooLarge):
            return


def envelope(dialect: Dialect, frame: bytes) -> None:
    """One envelope: what was understood is all that was there."""
    correlation_id, kind, message = dialect.decode(frame)
    again = dialect.encode(correlation_id, message)
    assert len(again) == len(frame)
    assert dialect.decode(again) == (correlation_id, kind, message)


def strict_json(data: bytes) -> None:
    """A JSON object: the standard library agrees, and each value is where its span says."""
    try:
        document, spans = parse_object(data)
    except MalformedInput:
        return
    assert document == json.loads(data)
    assert document.keys() == spans.keys()
    assert depth(document) <= DEPTH_LIMIT
    for key, (start, end) in spans.items():
        assert parse_json(data[start:end]) == document[key]


def depth(value: object) -> int:
    """Arrays and objects within each other."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def texts(data: bytes, alphabet: str) -> Iterator[str]:
    """``data`` as text, and as text of this alphabet, which bytes seldom happen to be."""
    yield data.decode("utf-8", "surrogateescape")
    yield "".join(alphabet[byte % len(alphabet)] for byte in data)


def base64url_text(data: bytes) -> None:
    """base64url: one text for each bytes."""
    for text in texts(data, f"{_WORD}-_=+/ \n"):
        with suppress(MalformedInput):
            assert base64url.encode(base64url.decode(text)) == text


def token(data: bytes) -> None:
    """A token: accepted as it is or not at all."""
    for text in texts(data, _WORD):
        for whole in (text, f"iop_{text[:49]}"):
            with suppress(MalformedToken):
                assert parse_token(whole) == whole
                assert len(whole) == 53


@implementer(IHttpApplication)
class _Application:
    """Answers at once: by the head alone, whole, or in pieces, as the path's length says."""

    def headed(self, exchange: IExchange) -> Wanted | None:
        if len(exchange.head.path) % 3 == 0:
            exchange.respond(404, [], b"no")
            return None
        return Wanted(500, partial(self._take, exchange), owner=None)

    def _take(self, exchange: IExchange, body: bytearray) -> None:
        assert len(body) <= 500
        if len(exchange.head.path) % 3 == 1:
            exchange.respond(200, [(b"x-a", b"b")], b"yes")
        else:
            exchange.start(200, [])
            exchange.write(b"ye")
            exchange.write(b"s")
            exchange.finish()

    def refuse(self, status: int, code: str, message: str) -> tuple[Headers, bytes]:
        return [], f"{code}: {message}".encode()


@implementer(ILogObserver)
class _Faults:
    """Failures that were logged instead of raised."""

    def __init__(self) -> None:
        self.seen: list[LogEvent] = []

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_level", LogLevel.info) >= LogLevel.error:
            self.seen.append(event)


def http_server(data: bytes) -> None:
    """A client's connection: whatever is sent ends it, with an answer that is not larger than what was asked for."""
    clock, transport, faults = FakeClock(), MemoryTransport(), _Faults()
    connection = HttpServerFactory(_Application(), clock, _HTTP).buildProtocol(None)
    globalLogPublisher.addObserver(faults)
    try:
        IProtocol(connection).makeConnection(transport)
        for piece in pieces(data):
            if not transport.disconnecting and not transport.disconnected:
                connection.dataReceived(piece)
        answers = transport.take()
        assert not answers or answers.startswith(b"HTTP/1.1 ")
        assert len(answers) <= _ANSWER_BYTES * (1 + len(data) // _REQUEST_BYTES)
        for _ in range(10):
            clock.advance(100)
        assert transport.disconnected or transport.disconnecting, "it outlives its deadlines"
        connection.connectionLost(Failure(ConnectionDone()))
        assert not clock.reactor.getDelayedCalls()
    finally:
        globalLogPublisher.removeObserver(faults)
    assert not faults.seen, faults.seen


def response_reader(data: bytes) -> None:
    """An upstream's response: read in pieces or at once, it is the same.

    But for what comes without a byte of the body: that is counted by the piece, and only one reading may refuse it.
    """
    in_pieces, at_once = read_response(list(pieces(data))), read_response([data[1:]])
    assert in_pieces == at_once or in_pieces is None or at_once is None


def read_response(parts: list[bytes]) -> object:
    """What is read of a response, or that it is refused."""
    reader, body = ResponseReader(_HEAD_LIMIT), b""
    try:
        for part in parts:
            reader.feed(part)
            body += reader.take_body()
    except BadHttp as refusal:
        assert refusal.status == 502
        return None
    assert len(body) <= sum(map(len, parts))
    assert sum(len(name) + len(value) for name, value in reader.headers) <= _HEAD_LIMIT
    return reader.status, reader.headers, body, reader.whole, reader.reusable, reader.ended()


def configuration(data: bytes) -> None:
    """A configuration file, read as that of each role."""
    with tempfile.TemporaryDirectory(prefix="iop-fuzz-", dir="/dev/shm") as folder:
        path = Path(folder, "role.toml")
        path.write_bytes(data)
        for model in (ControlPlaneConfig, EdgeConfig, NodeConfig):
            with suppress(BadConfig):
                load(path, model)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "frames-control": partial(frames, CONTROL),
    "frames-runtime": partial(frames, RUNTIME),
    "strict-json": strict_json,
    "base64url": base64url_text,
    "token": token,
    "http-server": http_server,
    "response-reader": response_reader,
    "configuration": configuration,
}
