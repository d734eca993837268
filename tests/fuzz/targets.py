"""What is fuzzed: each target reads any bytes, lets pass only the documented errors, and checks the result.

Anything else that comes out of a target is a defect.
"""

from __future__ import annotations

import json
import string
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding
from twisted.internet.defer import succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
from twisted.logger import ILogObserver, LogEvent, LogLevel, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from iop.certificates import read_certificates
from iop.control_plane.config import ControlPlaneConfig
from iop.core.selectors import parse as parse_selector
from iop.crypto.attestation import AttestationVerifier
from iop.crypto.fields import length_prefixed
from iop.crypto.issuer import SIGNATURE_BYTES, Issuer, PinnedIssuers
from iop.crypto.keyring import Keyring
from iop.crypto.lease import DOMAIN as LEASE_DOMAIN
from iop.crypto.receipt import read_receipt, verify_receipt
from iop.crypto.tokens import parse_token
from iop.edge.config import EdgeConfig
from iop.edge.projections import Projections
from iop.errors import (
    AttestationRefused,
    BadConfig,
    BadHttp,
    CannotOpen,
    DeploymentMismatch,
    FileRefused,
    FrameTooLarge,
    MalformedFrame,
    MalformedInput,
    MalformedToken,
    ReceiptRefused,
    UnexpectedMessage,
)
from iop.net.http1 import Headers, HttpLimits, HttpServerFactory, IExchange, IHttpApplication, Wanted
from iop.net.response_reader import ResponseReader
from iop.node.config import NodeConfig
from iop.process.config import load
from iop.testing.clock import FakeClock
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.units import Role
from iop.wire import base64url, control_pb2, runtime_pb2
from iop.wire.dialect import CONTROL, RUNTIME, Dialect
from iop.wire.framing import FrameDecoder
from iop.wire.strict_json import DEPTH_LIMIT, parse_json, parse_object
from tests.crypto.samples import Expectation, issuer
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


def in_file(read: Callable[[Path], object], data: bytes) -> None:
    """A file that a role reads at its start: taken, or refused as a configuration error."""
    with tempfile.TemporaryDirectory(prefix="iop-fuzz-", dir="/dev/shm") as folder:
        path = Path(folder, "file")
        path.touch(0o600)
        path.write_bytes(data)
        with suppress(BadConfig, FileRefused):
            read(path)


def configuration(path: Path) -> None:
    """A configuration file, read as that of each role."""
    for model in (ControlPlaneConfig, EdgeConfig, NodeConfig):
        with suppress(BadConfig):
            load(path, model)


def issuer_key(path: Path) -> None:
    """A private issuer key: what was taken signs."""
    assert len(Issuer.load(path).sign(b"message")) == SIGNATURE_BYTES


def edge_state(path: Path) -> None:
    """The projection that an earlier Edge process recorded."""
    record = path.rename(path.with_name("projection.receipt"))
    projections = Projections(record.parent, "deployment-1", "edge-1", FakeClock(), lambda _: succeed(0), lambda: 0)
    with suppress(DeploymentMismatch):
        projections.load()
        assert projections.current is None


def selector(data: bytes) -> None:
    """A selector: what was taken is its only spelling, and matches labels that are its terms alone."""
    for text in texts(data, f"{_WORD}=,._/- "):
        with suppress(MalformedInput):
            terms = parse_selector(text).terms
            assert ",".join(f"{key}={value}" for key, value in terms) == text
            assert parse_selector(text).matches(dict(terms))


def receipt(data: bytes) -> None:
    """A projection receipt, as somebody may send or have stored it: nobody of ours signed any of these."""
    statement = control_pb2.ProjectionReceipt(statement=data, signature=data[:64])
    with suppress(ReceiptRefused):
        assert len(read_receipt(statement).digest) == 32
    with suppress(ReceiptRefused):
        raise AssertionError(verify_receipt(Expectation().pinned, statement, deployment_id="d", edge="edge-1"))


def lease(data: bytes) -> None:
    """A sealed lease whose statement somebody wrote who has the issuer key: one error, and nothing opened."""
    signed = LEASE_DOMAIN + length_prefixed(data) + sha256(data).digest()
    sealed = runtime_pb2.SealedLease(statement=data, box=data, signature=issuer().sign(signed))
    with suppress(CannotOpen):
        raise AssertionError(Expectation().open(sealed, lambda public_key: None))


@cache
def trust() -> tuple[AttestationVerifier, bytes]:
    """What verifies attestations, and a certificate that it trusts."""
    with tempfile.TemporaryDirectory(prefix="iop-fuzz-") as folder:
        files = Pki(Path(folder, "pki")).issue(Role.NODE, "node-1")
        verifier = AttestationVerifier(read_certificates(files.trust), TRUST_DOMAIN)
        (leaf,) = read_certificates(files.certificate)
    return verifier, leaf.public_bytes(Encoding.DER)


def attestation(data: bytes) -> None:
    """A Node's attestation: its certificates are anything, or its statement is, under one that is trusted."""
    verifier, leaf = trust()
    for chain in ([data], [leaf, data], [leaf]):
        message = runtime_pb2.NodeKeyAttestation(certificate_chain=chain, statement=data, signature=data[:64])
        with suppress(AttestationRefused):
            now_ms = int(time.time() * 1000)
            raise AssertionError(
                verifier.verify(message, edge="edge-1", node="node-1", public_key=b"\x01" * 32, now_ms=now_ms)
            )


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "frames-control": partial(frames, CONTROL),
    "frames-runtime": partial(frames, RUNTIME),
    "strict-json": strict_json,
    "base64url": base64url_text,
    "token": token,
    "http-server": http_server,
    "response-reader": response_reader,
    "configuration": partial(in_file, configuration),
    "keyring": partial(in_file, Keyring.load),
    "issuer-key": partial(in_file, issuer_key),
    "issuers": partial(in_file, PinnedIssuers.load),
    "edge-state": partial(in_file, edge_state),
    "selector": selector,
    "receipt": receipt,
    "lease": lease,
    "attestation": attestation,
}
