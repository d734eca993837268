"""Where fuzzing begins: for each target some inputs that its parser accepts, and some that it nearly does."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from iop.crypto.issuer import Issuer, write_public_set
from iop.crypto.keyring import Keyring
from iop.crypto.receipt import sign_receipt
from iop.crypto.tokens import mint
from iop.records import TokenKind
from iop.wire import control_pb2 as control
from iop.wire import runtime_pb2 as runtime
from iop.wire.dialect import CONTROL, RUNTIME
from iop.wire.framing import encode_frame
from tests.crypto.samples import Recipient, issuer, sealed_lease
from tests.fuzz.targets import trust

_ROOT: Final = Path(__file__).resolve().parents[2]
#: Pieces of 64 bytes, see :func:`tests.fuzz.targets.pieces`.
_PIECES: Final = b"\x40"


def _control() -> list[bytes]:
    messages = (
        control.EdgeHelloRequest(edge_id="edge-1", protocol_version=1),
        control.EdgeHelloResponse(accepted=True),
        control.AcquireLeaseRequest(),
        control.PrincipalProjectionApplyResponse(),
    )
    framed = [encode_frame(CONTROL.encode(number + 1, message)) for number, message in enumerate(messages)]
    return [_PIECES + each for each in (*framed, b"".join(framed))]


def _runtime() -> list[bytes]:
    messages = (
        runtime.NodeHelloRequest(node_id="node-1", protocol_version=1),
        runtime.NodeHelloResponse(accepted=True),
        runtime.RunBody(),
        runtime.RunCancel(),
        runtime.Ping(),
    )
    framed = [encode_frame(RUNTIME.encode(number + 1, message)) for number, message in enumerate(messages)]
    return [_PIECES + each for each in (*framed, b"".join(framed))]


def _configurations() -> list[bytes]:
    """Those of the documentation."""
    text = (_ROOT / "docs" / "configuration.md").read_text()
    return [each.encode() for each in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]


def _files(write: Callable[[Path], object]) -> list[bytes]:
    """The content of one file that the product writes."""
    with tempfile.TemporaryDirectory(prefix="iop-fuzz-") as folder:
        path = Path(folder, "file")
        write(path)
        return [path.read_bytes()]


def seeds() -> dict[str, list[bytes]]:
    """By target."""
    signed = sign_receipt(issuer(), "deployment-1", "edge-1", 300, bytes(range(32)))
    statement = runtime.NodeKeyStatement(trust_domain="iop.test", edge="edge-1", node="node-1", public_key=b"\1" * 32)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0000000A;x=y\r\n0123456789\r\n0\r\nT: x\r\n\r\n"
    return {
        "frames-control": _control(),
        "frames-runtime": _runtime(),
        "strict-json": [
            b'{"model": "m", "messages": [{"role": "user", "content": "\\u00e9 \\ud83d\\ude00 \xc3\xa9"}],"n":1}',
            b' {"a": [1, -2.5e3, true, false, null, {"b": {}}], "\\u0041": ""} ',
            b"[]",
        ],
        "base64url": [b"", b"AA", b"-_-_", b"AAECAwQFBgcICQ"],
        "token": [bytes(mint(TokenKind.USE).text.reveal()), b"iop_" + b"0" * 49],
        "http-server": [
            _PIECES + b"GET /a%20b?c=d HTTP/1.1\r\nHost: edge\r\n\r\n",
            _PIECES
            + b"POST /ab HTTP/1.1\r\nHost: edge\r\nContent-Length: 5\r\n\r\nhelloGET /a HTTP/1.1\r\nHost: x\r\n\r\n",
            _PIECES + b"POST /abc HTTP/1.1\r\nHost: edge\r\nExpect: 100-continue\r\n" + chunked,
            _PIECES + b"HEAD / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Encoding: gzip\r\n\r\n",
        ],
        "response-reader": [
            _PIECES + b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello",
            _PIECES + b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + chunked,
            _PIECES + b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nto the end",
            _PIECES + b"HTTP/1.1 204 No Content\r\n\r\n",
        ],
        "configuration": _configurations(),
        "keyring": _files(Keyring.create),
        "issuer-key": _files(Issuer.create),
        "issuers": _files(lambda path: write_public_set(path, [issuer(1).public_key, issuer(2).public_key])),
        "edge-state": [signed.SerializeToString()],
        "selector": [b"", b"region=eu", b"region=eu,tier=a.b/c"],
        "receipt": [signed.statement],
        "lease": [sealed_lease(Recipient.new()).statement],
        "attestation": [trust()[1], statement.SerializeToString()],
    }
