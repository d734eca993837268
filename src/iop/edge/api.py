"""The OpenAI-compatible API of the Edge, on the HTTP server of :mod:`iop.net.http1`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from twisted.logger import Logger
from zope.interface import implementer

from iop.core.allowance import Allowance
from iop.core.fences import authenticate
from iop.crypto.tokens import PREFIX, parse_token, token_digest, token_proof
from iop.edge.answer import Answer
from iop.edge.attempts import Call
from iop.edge.openai_errors import METHOD_NOT_ALLOWED, MISSING_MODEL, NO_SUCH_PATH, Refusal, refusal_of
from iop.edge.turns import Turns
from iop.errors import EdgeDraining, IopError, MalformedToken, NoSuchModel, TokenRefused
from iop.net.http1 import Headers, IExchange, IHttpApplication, RequestHead, Wanted
from iop.units import MODEL_LIMIT, is_request_id, new_id
from iop.wire.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iop.edge.attempts import Attempts
    from iop.edge.authority import IAuthority
    from iop.edge.door import Door
    from iop.edge.metrics import EdgeMetrics
    from iop.interfaces import IClock
    from iop.records import RouteEntry

_MODELS: Final = "/v1/models"
_ONE_MODEL: Final = "/v1/models/"
#: What is served by a Node: the path here, and below the target's base URL.
_CALLS: Final = {"/v1/chat/completions": "/chat/completions"}
#: Request headers that travel to the upstream; everything else stays here.
_PASSED_ON: Final = frozenset({b"accept", b"content-type", b"openai-beta"})
#: Bytes of a body that is parsed as it comes.
_AT_ONCE: Final = 64 * 1024
#: Log lines about callers without a token, all of them together.
_STRANGERS_PER_SECOND: Final = 1.0
_STRANGERS_BURST: Final = 10
_JSON: Final = (b"content-type", b"application/json")
_BEARER: Final = b"bearer "

_log = Logger()


@dataclass(frozen=True, slots=True)
class _Caller:
    """A request id and the two hashes of a well-formed token; the token itself is not kept."""

    request_id: str
    digest: bytes = field(repr=False)
    proof: bytes = field(repr=False)


@implementer(IHttpApplication)
class Api:
    """Answers callers.

    :param door: what a request for a model has to come through.
    :param body_bytes: the largest request body that is read.
    """

    def __init__(
        self,
        authority: IAuthority,
        attempts: Attempts,
        door: Door,
        clock: IClock,
        metrics: EdgeMetrics,
        body_bytes: int,
    ) -> None:
        self._authority = authority
        self._attempts = attempts
        self._door = door
        self._clock = clock
        self._metrics = metrics
        self._body_bytes = body_bytes
        self._turns = Turns(clock)
        self._strangers = Allowance(_STRANGERS_PER_SECOND, _STRANGERS_BURST)
        #: Refusals of strangers since the last one that was logged.
        self._unlogged = 0

    # -- IHttpApplication ---------------------------------------------------------------------------------------------

    def headed(self, exchange: IExchange) -> Wanted | None:
        """Token first, then path and method; nobody without a token learns what is here."""
        request_id = _request_id(exchange.head)
        try:
            caller = _caller(exchange.head, request_id)
            token = authenticate(self._authority.projection(), caller.digest, self._clock.wall_ms())
        except IopError as error:
            self._refuse_stranger(exchange, request_id, refusal_of(error))
            return None
        return self._judged(exchange, caller, token.principal)

    def refuse(self, status: int, code: str, message: str) -> tuple[Headers, bytes]:
        """What the HTTP server answers on its own."""
        refusal = Refusal(status, code, message)
        self._metrics.finished(status, code)
        return [_JSON, (b"x-request-id", new_id().encode())], refusal.body()

    # -- endpoints ----------------------------------------------------------------------------------------------------

    def _judged(self, exchange: IExchange, caller: _Caller, principal: str) -> Wanted | None:
        path, method = exchange.head.path, exchange.head.method
        serve: Callable[[IExchange, _Caller, bytearray], None]
        if path in _CALLS:
            if self._door.is_closed:
                # whose body is on its way is let off it
                self._refuse(exchange, caller.request_id, refusal_of(EdgeDraining()))
                return None
            allowed, limit, serve = "POST", self._body_bytes, self._call
        elif path == _MODELS or path.startswith(_ONE_MODEL):
            allowed, limit, serve = "GET", 0, self._list
        else:
            self._refuse(exchange, caller.request_id, NO_SUCH_PATH)
            return None
        if method == allowed:
            take = partial(self._take, exchange, partial(self._serve, serve, exchange, caller))
            return Wanted(limit, take, owner=principal)
        self._refuse(exchange, caller.request_id, METHOD_NOT_ALLOWED, (b"allow", allowed.encode()))
        return None

    def _take(self, exchange: IExchange, serve: Callable[[bytearray], None], body: bytearray) -> None:
        """Serve at once what is small; large bodies that arrive together are parsed one a turn (P19).

        The room of a body is free again as soon as its caller is gone, so then the body must be gone too.
        """
        if len(body) <= _AT_ONCE:
            serve(body)
        else:
            exchange.on_gone(self._turns.add(partial(serve, body)))

    def _serve(
        self,
        serve: Callable[[IExchange, _Caller, bytearray], None],
        exchange: IExchange,
        caller: _Caller,
        body: bytearray,
    ) -> None:
        try:
            serve(exchange, caller, body)
        except IopError as error:
            self._refuse(exchange, caller.request_id, refusal_of(error))

    def _call(self, exchange: IExchange, caller: _Caller, body: bytearray) -> None:
        document, spans = parse_object(body)
        model = document.get("model")
        if not isinstance(model, str) or not 0 < len(model) <= MODEL_LIMIT:
            self._refuse(exchange, caller.request_id, MISSING_MODEL)
            return
        call = Call(
            request_id=caller.request_id,
            digest=caller.digest,
            proof=caller.proof,
            model=model,
            method="POST",
            path=_CALLS[exchange.head.path],
            headers=_passed_on(exchange.head),
            body_bytes=len(body),
            body=partial(_with_model, body, *spans["model"]),
        )
        self._door.enter()
        answer = Answer(exchange, caller.request_id, model, self._clock, self._metrics, self._door.leave)
        answer.take(self._attempts.dispatch(call, answer))

    def _list(self, exchange: IExchange, caller: _Caller, body: bytearray) -> None:
        projection = self._authority.projection()
        token = authenticate(projection, caller.digest, self._clock.wall_ms())
        if exchange.head.path == _MODELS:
            routes = projection.routes_of(token.principal)
            self._answer(exchange, caller, {"object": "list", "data": [_model(route) for route in routes]})
            return
        route = projection.route(token.principal, _decoded(exchange.head.path.removeprefix(_ONE_MODEL)))
        if route is None:
            raise NoSuchModel
        self._answer(exchange, caller, _model(route))

    # -- answers ------------------------------------------------------------------------------------------------------

    def _answer(self, exchange: IExchange, caller: _Caller, document: Mapping[str, object]) -> None:
        self._finished(exchange, caller.request_id, 200)
        headers = [_JSON, (b"x-request-id", caller.request_id.encode())]
        exchange.respond(200, headers, json.dumps(document, ensure_ascii=False).encode())

    def _refuse(self, exchange: IExchange, request_id: str, refusal: Refusal, *more: tuple[bytes, bytes]) -> None:
        self._finished(exchange, request_id, refusal.status, refusal.code)
        exchange.respond(refusal.status, [*refusal.headers(request_id), *more], refusal.body())

    def _refuse_stranger(self, exchange: IExchange, request_id: str, refusal: Refusal) -> None:
        """Refuse whoever has no token: all are counted, few logged, for who costs nothing must not fill a disk."""
        self._metrics.finished(refusal.status, refusal.code)
        if self._strangers.take("", self._clock.boot()):
            self._unlogged += 1
        else:
            _log.info(
                "edge.request.finished",
                request_id=request_id,
                method=exchange.head.method,
                status=refusal.status,
                code=refusal.code,
                unlogged=self._unlogged,
            )
            self._unlogged = 0
        exchange.respond(refusal.status, refusal.headers(request_id), refusal.body())

    def _finished(self, exchange: IExchange, request_id: str, status: int, code: str = "") -> None:
        self._metrics.finished(status, code)
        _log.info(
            "edge.request.finished",
            request_id=request_id,
            method=exchange.head.method,
            status=status,
            code=code,
        )


def _request_id(head: RequestHead) -> str:
    """The caller's own id if it is a sane one, else a new one; it is kept, so one with a token in it is not (P25)."""
    given = (head.header(b"x-request-id") or b"").decode("latin-1")
    return given if is_request_id(given) and PREFIX not in given else new_id()


def _caller(head: RequestHead, request_id: str) -> _Caller:
    """Read the one form of authorization: a single ``Bearer`` and a well-formed token (P20)."""
    values = [value for name, value in head.headers if name == b"authorization"]
    if len(values) != 1 or values[0][: len(_BEARER)].lower() != _BEARER:
        raise TokenRefused
    try:
        token = parse_token(values[0][len(_BEARER) :].decode("ascii"))
    except (UnicodeDecodeError, MalformedToken):
        raise TokenRefused from None
    return _Caller(request_id, token_digest(token), token_proof(token))


def _passed_on(head: RequestHead) -> list[tuple[str, str]]:
    """The fields that travel; one that was sent in several lines travels in one (RFC 9110, 5.3)."""
    fields: dict[str, str] = {}
    for name, value in head.headers:
        if name in _PASSED_ON:
            key, text = name.decode("ascii"), value.decode("latin-1")
            fields[key] = f"{fields[key]}, {text}" if key in fields else text
    return list(fields.items())


def _with_model(body: bytearray, start: int, end: int, upstream_model: str) -> bytes:
    """``body`` with its model replaced, and every other byte as it was sent; large, so copied once."""
    with memoryview(body) as sent:
        return b"".join((sent[:start], json.dumps(upstream_model).encode(), sent[end:]))


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise NoSuchModel from None


def _model(route: RouteEntry) -> dict[str, str | int]:
    return {"id": route.model, "object": "model", "created": 0, "owned_by": "iop"}
