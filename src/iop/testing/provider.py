"""A model provider without a model: what ``iop quickstart`` and tests call instead of a paid one.

It speaks as much of the OpenAI protocol as a chat needs, answers only to the one credential it was started with, and
says in every answer that it is a stand-in. It listens on loopback only::

    python -m iop.testing.provider --secret-file FILE --port-file FILE [--port N] [--record FILE]

The model's name chooses what goes wrong, for tests of what stands in front of it:

================================  ====================================================================================
``stand-in``                      nothing: a chat completion, whole or streamed
``stand-in/unauthorized``         401, as if the credential had been revoked
``stand-in/rate-limited``         429 with ``Retry-After: 7``
``stand-in/error-500``            500 with an error document
``stand-in/echo-key-500``         500 whose body and one header repeat the credential it was sent
``stand-in/redirect``             307 to another path of itself
``stand-in/slow-stream``          a piece every second, sixty times
``stand-in/broken-stream``        the connection ends after the first piece
================================  ====================================================================================
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from twisted.internet import task
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from iop.errors import IopError
from iop.files import read_private, write_atomic
from iop.secret import Secret
from iop.units import SECRET_LIMIT

GREETING = "This is iop's local stand-in provider, not a model. You said: "
MODEL = "stand-in"
MODELS = (
    MODEL,
    "stand-in/unauthorized",
    "stand-in/rate-limited",
    "stand-in/error-500",
    "stand-in/echo-key-500",
    "stand-in/redirect",
    "stand-in/slow-stream",
    "stand-in/broken-stream",
)
_BODY_LIMIT = 16 * 1024 * 1024
_QUOTED = 500
_CREATED = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived, in digests: enough to tell whether it was the right one, not enough to repeat it."""

    method: str
    path: str
    model: str
    #: Whether it came with the credential.
    authorized: bool
    authorization_sha256: str
    body_sha256: str


class StandIn(Resource):
    """The provider as a web resource.

    :param credential: the only one that is answered; used here and not kept.
    :param clock: what slow streams wait on.
    :param record: called with every request.
    """

    isLeaf = True

    def __init__(self, credential: Secret, clock: IReactorTime, record: Callable[[Received], object]) -> None:
        Resource.__init__(self)
        self._expected = sha256(b"Bearer " + credential.reveal()).digest()
        self._clock = clock
        self._record = record

    def render(self, request: Request) -> bytes | int:
        """Check the credential first, then do what path and model ask for."""
        body = request.content.read(_BODY_LIMIT + 1) if request.content else b""
        authorization = b"".join(request.requestHeaders.getRawHeaders(b"authorization", []))
        document = _object(body)
        model = str(document.get("model", ""))
        authorized = hmac.compare_digest(sha256(authorization).digest(), self._expected)
        self._record(
            Received(
                request.method.decode("ascii", "replace"),
                request.path.decode("ascii", "replace"),
                model,
                authorized,
                sha256(authorization).hexdigest(),
                sha256(body).hexdigest(),
            )
        )
        if not authorized:
            return _error(request, 401, "invalid_api_key", "Incorrect API key provided.")
        if len(body) > _BODY_LIMIT:
            return _error(request, 413, "too_large", "The body is too large.")
        if (request.method, request.path) == (b"GET", b"/v1/models"):
            listed = [{"id": name, "object": "model", "created": _CREATED, "owned_by": "iop"} for name in MODELS]
            return _json(request, 200, {"object": "list", "data": listed})
        if (request.method, request.path) == (b"POST", b"/v1/chat/completions"):
            return self._chat(request, model, document, authorization)
        return _error(request, 404, "not_found", "There is no such call.")

    def _chat(self, request: Request, model: str, document: Mapping[str, object], authorization: bytes) -> bytes | int:
        match model:
            case "stand-in/unauthorized":
                return _error(request, 401, "invalid_api_key", "Incorrect API key provided.")
            case "stand-in/rate-limited":
                request.setHeader(b"retry-after", b"7")
                return _error(request, 429, "rate_limit_exceeded", "Rate limit reached.")
            case "stand-in/error-500":
                return _error(request, 500, "server_error", "The server had an error.")
            case "stand-in/echo-key-500":
                request.setHeader(b"x-echo", authorization)
                return _error(request, 500, "server_error", f"You sent {authorization.decode('latin-1')}.")
            case "stand-in/redirect":
                request.setHeader(b"location", b"/v1/models")
                return _json(request, 307, {})
        if model not in MODELS:
            return _error(request, 404, "model_not_found", "The model does not exist.")
        text = GREETING + _last_words(document)
        if document.get("stream") is True:
            seconds = 1.0 if model == "stand-in/slow-stream" else 0.0
            pieces = iter(["…"] * 60) if seconds else iter(text.replace(" ", " \n").split("\n"))
            self._stream(request, model, pieces, seconds, breaks=model == "stand-in/broken-stream")
            return NOT_DONE_YET
        message = {"role": "assistant", "content": text}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return _json(request, 200, _completion("chat.completion", model) | {"choices": choices, "usage": usage})

    def _stream(self, request: Request, model: str, pieces: Iterator[str], seconds: float, *, breaks: bool) -> None:
        request.setHeader(b"content-type", b"text/event-stream")

        def event(delta: dict[str, str], finish: str | None) -> bytes:
            choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
            chunk = _completion("chat.completion.chunk", model) | {"choices": choices}
            return b"data: " + json.dumps(chunk).encode() + b"\n\n"

        def step() -> None:
            piece = next(pieces, None)
            if piece is not None:
                request.write(event({"content": piece}, None))
            if breaks:
                request.loseConnection()
                walk.stop()
            elif piece is None:
                request.write(event({}, "stop") + b"data: [DONE]\n\n")
                request.finish()
                walk.stop()

        def gone(_: Failure) -> None:
            if walk.running:
                walk.stop()

        request.write(event({"role": "assistant"}, None))
        walk = task.LoopingCall(step)
        walk.clock = self._clock
        request.notifyFinish().addErrback(gone)
        walk.start(seconds)


def _completion(kind: str, model: str) -> dict[str, object]:
    return {"id": "chatcmpl-stand-in", "object": kind, "created": _CREATED, "model": model}


def _last_words(document: Mapping[str, object]) -> str:
    messages = document.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    content = last.get("content") if isinstance(last, dict) else None
    return content[:_QUOTED] if isinstance(content, str) else "something that is not plain text"


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _json(request: Request, status: int, document: Mapping[str, object]) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    return json.dumps(document).encode()


def _error(request: Request, status: int, code: str, message: str) -> bytes:
    return _json(request, status, {"error": {"message": message, "type": code, "param": None, "code": code}})


async def _serve(reactor: Any, arguments: argparse.Namespace) -> None:
    """Listen until the process ends."""
    try:
        with _credential(arguments.secret_file) as credential:
            provider = StandIn(credential, reactor, _recorder(arguments.record))
        port = await TCP4ServerEndpoint(reactor, arguments.port, interface="127.0.0.1").listen(Site(provider))
        write_atomic(arguments.port_file, str(port.getHost().port).encode(), 0o644)
    except IopError as error:
        raise SystemExit(f"Error: {error.message}\nHint: {error.hint}") from None
    except (CannotListenError, OSError) as error:
        raise SystemExit(f"Error: {error}") from None
    await Deferred()


def _credential(path: Path) -> Secret:
    """What the file holds, but for one newline at its end, which `iop slot create` drops too."""
    text = read_private(path, SECRET_LIMIT)
    if text.endswith(b"\n"):
        del text[-1:]
    return Secret(text)


def _recorder(path: Path | None) -> Callable[[Received], object]:
    """Says on stdout, as a role would, that a request came; appends its digests to ``path`` if there is one."""
    descriptor = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def record(received: Received) -> None:
        known = {"method": received.method, "path": received.path, "authorized": received.authorized}
        line = {"event": "provider.request.received", "role": "provider", "name": "stand-in", **known}
        os.write(1, json.dumps(line).encode() + b"\n")
        if descriptor is not None:
            os.write(descriptor, json.dumps(asdict(received)).encode() + b"\n")

    return record


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("a port is 0 to 65535")
    return port


def main(arguments: list[str]) -> None:
    """Run the provider in this process."""
    parser = argparse.ArgumentParser(
        "python -m iop.testing.provider",
        description="A local stand-in for a model provider, at http://127.0.0.1:PORT/v1.",
        epilog=f"Models: {', '.join(MODELS)}. The first just answers; the others do what their names say.",
    )
    parser.add_argument("--secret-file", type=Path, required=True, help="private file with the one credential it takes")
    parser.add_argument("--port-file", type=Path, required=True, help="file to write the port to, once it listens")
    parser.add_argument("--port", type=_port, default=0, help="port on 127.0.0.1; a free one without it")
    parser.add_argument("--record", type=Path, help="file to append digests of every request to, as JSON lines")
    task.react(_serve, [parser.parse_args(arguments)])


if __name__ == "__main__":
    main(sys.argv[1:])
