"""The credential HTTPS API: slots and routes of the principal that a ``manage`` token names (K2, K9-K13)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from io import BytesIO
from math import ceil
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote_to_bytes

from klein import Klein, KleinRenderable
from klein.resource import KleinResource
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.web.server import Request

from iop.control_plane.leases import secret_place
from iop.control_plane.metrics import UNANSWERED, ControlPlaneMetrics
from iop.control_plane.problems import MEDIA_TYPE, problem, problem_of
from iop.core import selectors
from iop.core.allowance import Allowance
from iop.core.profiles import PROFILES, Profile, check_secret
from iop.crypto.at_rest import seal_secret
from iop.crypto.tokens import parse_token, token_digest
from iop.errors import ApiRefused, BadCredential, IopError, MalformedInput, MalformedToken
from iop.records import Committed, NewSlot, RouteRecord, SlotRecord, TokenKind
from iop.secret import Secret
from iop.units import MODEL_LIMIT, SECRET_LIMIT, SELECTOR_LIMIT, is_name, new_id, rfc3339
from iop.wire.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from twisted.python.failure import Failure
    from twisted.web.iweb import IRequest

    from iop.control_plane.mutations import Mutations
    from iop.crypto.keyring import Keyring
    from iop.interfaces import IClock, IStore
    from iop.records import TokenRecord

#: What a call answers, as JSON.
Document = dict[str, object]

SLOT_ID_LIMIT: Final = 128
ROUTE_BODY_LIMIT: Final = 8 * 1024
#: Changes that one principal may make, and calls with the wrong kind of token.
CALLS_PER_SECOND: Final = 1.0
CALLS_BURST: Final = 10
_ROUTES_PATH: Final = b"/v1/routes/"
_REVISION: Final = re.compile(rb'"([1-9][0-9]{0,15})"\Z')


def body_limit(method: bytes, path: bytes) -> int:
    """Bytes a call's body may have, known before any of it is read."""
    if method == b"POST" and path == b"/v1/slots":
        return SECRET_LIMIT
    if method == b"PUT" and path.startswith(_ROUTES_PATH):
        return ROUTE_BODY_LIMIT
    return 0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call: the principal, and the token it came with."""

    principal: str
    token_id: str
    kind: TokenKind


class CredentialApi:
    """The klein application, and what its routes stand on.

    :param mutations: runs the barrier before a mutation is answered (K14).
    """

    def __init__(
        self,
        *,
        store: IStore,
        mutations: Mutations,
        keyring: Keyring,
        clock: IClock,
        metrics: ControlPlaneMetrics,
        deployment_id: str,
    ) -> None:
        self._store = store
        self._mutations = mutations
        self._keyring = keyring
        self._clock = clock
        self._metrics = metrics
        self._deployment_id = deployment_id
        self._changes = Allowance(CALLS_PER_SECOND, CALLS_BURST)
        self._refusals = Allowance(CALLS_PER_SECOND, CALLS_BURST)
        self._log = Logger()

    def resource(self) -> KleinResource:
        """The API as a resource for a site."""
        return _StrictPaths(self._routes(), self._metrics)

    def _routes(self) -> Klein:
        app = Klein()
        # Werkzeug would answer `//` with a redirect; a model's name may hold anything.
        app.url_map.merge_slashes = False
        for rule, method, call in (
            ("/v1/whoami", "GET", self._whoami),
            ("/v1/slots", "GET", self._list_slots),
            ("/v1/slots", "POST", self._create_slot),
            ("/v1/routes", "GET", self._list_routes),
            ("/v1/routes/<path:_>", "PUT", self._put_route),
        ):
            app.route(rule, methods=[method])(self._guarded(call))
        app.handle_errors(Exception)(self._failed)
        return app

    # -- around every call --------------------------------------------------------------------------------------------

    def _guarded(
        self, call: Callable[[Request, Caller], Awaitable[tuple[int, Document]]]
    ) -> Callable[..., Deferred[bytes]]:
        """Authenticate, call, answer. Outlives its connection: what was begun is finished, so nothing is half told."""

        async def run(request: Request) -> bytes:
            caller = await self._authenticate(request)
            if request.method != b"GET":
                self._spend(self._changes, caller.principal)
            status, document = await call(request, caller)
            request.setResponseCode(status)
            request.responseHeaders.setRawHeaders(b"content-type", [b"application/json"])
            request.responseHeaders.setRawHeaders(b"cache-control", [b"no-store"])
            if "revision" in document:
                request.responseHeaders.setRawHeaders(b"etag", [f'"{document["revision"]}"'.encode()])
            return json.dumps(document).encode()

        # klein names an endpoint after its function, and cancels what it was given when a client leaves
        def endpoint(request: Request, **_: str) -> Deferred[bytes]:
            return self._shielded(run(request))

        endpoint.__name__ = call.__name__
        return endpoint

    def _shielded(self, work: Coroutine[Deferred[Any], Any, bytes]) -> Deferred[bytes]:
        """``work``'s result, in a Deferred whose cancellation does not reach ``work``."""
        answer: Deferred[bytes] = Deferred()

        def failed(failure: Failure) -> None:
            if not answer.called:
                answer.errback(failure)
            elif not isinstance(failure.value, IopError):
                # nobody is there to be told, and a defect is one all the same
                self._log.failure("control.api.failed", failure)

        Deferred.fromCoroutine(work).addCallback(
            lambda document: None if answer.called else answer.callback(document)
        ).addErrback(failed)
        return answer

    def _failed(self, request: IRequest, failure: Failure) -> bytes:
        answer, error = cast(Request, request), failure.value
        status, document = problem_of(error)
        if status == 500:
            self._log.failure("control.api.failed", failure)
        answer.setResponseCode(status)
        answer.responseHeaders.setRawHeaders(b"content-type", [MEDIA_TYPE])
        answer.responseHeaders.setRawHeaders(b"cache-control", [b"no-store"])
        if status == 401:
            answer.responseHeaders.setRawHeaders(b"www-authenticate", [b'Bearer realm="iop"'])
        retry_after = error.retry_after if isinstance(error, ApiRefused) else 1 if status == 503 else 0
        if retry_after:
            answer.responseHeaders.setRawHeaders(b"retry-after", [str(retry_after).encode()])
        return document

    async def _authenticate(self, request: Request) -> Caller:
        """The caller behind the one ``Authorization: Bearer`` header (K10, P20)."""
        values = request.requestHeaders.getRawHeaders(b"authorization", [])
        scheme, _, text = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer":
            raise ApiRefused(401, "token_required", "this API needs a manage token", hint="Authorization: Bearer iop_…")
        try:
            digest = token_digest(parse_token(text.decode("ascii")))
        except (UnicodeDecodeError, MalformedToken):
            raise _unknown_token() from None
        token: TokenRecord | None = await self._store.tokens.by_digest(digest)
        if token is None or (token.expires_ms and token.expires_ms <= self._clock.wall_ms()):
            raise _unknown_token()
        if token.kind is not TokenKind.MANAGE:
            # a row for each would let whoever has a token fill the disk
            self._spend(self._refusals, token.principal)
            await self._store.audit.append(
                f"token:{token.token_id}", "api.call", token.principal, "wrong_token_kind", {}
            )
            raise ApiRefused(
                403,
                "wrong_token_kind",
                "this is a use token, for Edges; credentials are managed with the manage token",
                hint="use the other token that `iop principal create` printed",
            )
        return Caller(token.principal, token.token_id, token.kind)

    def _spend(self, allowance: Allowance, principal: str) -> None:
        """Take one of the principal's tokens; nobody can keep every Edge or the disk busy for everyone."""
        seconds = allowance.take(principal, self._clock.boot())
        if seconds:
            raise ApiRefused(
                429,
                "too_many_calls",
                f"a principal may do this {CALLS_BURST} times at once, then {CALLS_PER_SECOND:g} time a second",
                hint="wait for the seconds in Retry-After",
                retry_after=ceil(seconds),
            )

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _whoami(self, request: Request, caller: Caller) -> tuple[int, Document]:
        _arguments(request)
        return 200, {
            "principal": caller.principal,
            "token": {"id": caller.token_id, "kind": caller.kind.value},
            "generation": await self._store.projections.generation(),
        }

    async def _list_slots(self, request: Request, caller: Caller) -> tuple[int, Document]:
        _arguments(request)
        return 200, {"slots": [_slot(slot) for slot in await self._store.slots.all(caller.principal)]}

    async def _create_slot(self, request: Request, caller: Caller) -> tuple[int, Document]:
        name, profile_name, target = _arguments(request, "name", "profile", "target")
        _no_idempotency_key(request)
        profile = PROFILES.get(profile_name)
        if profile is None:
            raise ApiRefused(400, "unknown_profile", f"profile must be one of {', '.join(sorted(PROFILES))}")
        for argument, value in (("name", name), ("target", target)):
            if not is_name(value):
                raise ApiRefused(400, f"bad_{argument}", f"{argument} must be 1-63 of a-z 0-9 . _ -")
        slot = new_id(self._clock.wall_ms())
        with _secret(request, profile) as secret:
            place = secret_place(self._deployment_id, caller.principal, slot, profile.name, target, 1)
            sealed = seal_secret(self._keyring, place, secret)
        committed = await self._store.slots.create(
            NewSlot(slot, caller.principal, name, profile.name, target, sealed), f"token:{caller.token_id}"
        )
        return 201, _slot(committed.value) | await self._settled(committed)

    async def _list_routes(self, request: Request, caller: Caller) -> tuple[int, Document]:
        _arguments(request)
        return 200, {"routes": [_route(route) for route in await self._store.routes.all(caller.principal)]}

    async def _put_route(self, request: Request, caller: Caller) -> tuple[int, Document]:
        _arguments(request)
        _no_idempotency_key(request)
        model = _model(request)
        expected = _expectation(request)
        slot, upstream_model, selector = _route_body(request)
        committed = await self._store.routes.put(
            caller.principal, model, slot, upstream_model, selector, expected, f"token:{caller.token_id}"
        )
        return 200 if expected else 201, _route(committed.value) | await self._settled(committed)

    async def _settled(self, committed: Committed[Any]) -> Document:
        outcome = await self._mutations.complete(committed)
        return {
            "generation": outcome.generation,
            "edges": {
                "acknowledged": outcome.acknowledged,
                "cut_off": outcome.cut_off,
                "unconfirmed": outcome.unconfirmed,
            },
            "effective_by": rfc3339(outcome.effective_ms),
        }


class _StrictPaths(KleinResource):
    """Refuses paths that klein would read as others than were sent, or answer with something else than a problem."""

    def __init__(self, app: Klein, metrics: ControlPlaneMetrics) -> None:
        super().__init__(app)
        self._metrics = metrics

    def render(self, request: IRequest) -> KleinRenderable:
        answer, path = cast(Request, request), request.uri.partition(b"?")[0]
        calls = self._metrics.api_calls
        answer.notifyFinish().addCallbacks(lambda _: calls.count(str(answer.code)), lambda _: calls.count(UNANSWERED))
        try:
            unquote_to_bytes(path).decode()
        except UnicodeDecodeError:
            plain = False
        else:
            plain = path.startswith(b"/v1/") and b"//" not in path
        if plain:
            return super().render(request)
        answer.setResponseCode(404)
        answer.responseHeaders.setRawHeaders(b"content-type", [MEDIA_TYPE])
        return problem(404, "no_such_call", "there is no such call in this API")


def _unknown_token() -> ApiRefused:
    return ApiRefused(401, "token_refused", "this token opens nothing here", hint="check that it was copied whole")


def _arguments(request: Request, *names: str) -> list[str]:
    """The values of exactly these query arguments, each given once, in this order."""
    given: dict[bytes, list[bytes]] = request.args or {}
    # twisted.web takes ";" for "&", which nobody else does
    plain = b";" not in request.uri
    if (
        not plain
        or set(given) != {name.encode() for name in names}
        or any(len(values) != 1 for values in given.values())
    ):
        wanted = f"exactly {', '.join(names)}, each once" if names else "no query arguments"
        raise ApiRefused(400, "bad_arguments", f"this call takes {wanted}")
    try:
        return [given[name.encode()][0].decode() for name in names]
    except UnicodeDecodeError:
        raise ApiRefused(400, "bad_arguments", "query arguments must be UTF-8") from None


def _no_idempotency_key(request: Request) -> None:
    # Taking no notice of it would do twice what a caller believes is done once.
    if request.requestHeaders.hasHeader(b"idempotency-key"):
        raise ApiRefused(400, "no_idempotency_key", "Idempotency-Key is not understood here; send the call without it")


def _is_text(value: str, limit: int) -> bool:
    return 0 < len(value) <= limit and value.isprintable()


def _media_type(request: Request) -> bytes:
    values = request.requestHeaders.getRawHeaders(b"content-type", [])
    return values[0].strip().lower() if len(values) == 1 else b""


def _content(request: Request) -> BytesIO:
    """The body. It is in memory, since its limit is below what twisted.web would keep in a file."""
    return cast(BytesIO, request.content)


def _secret(request: Request, profile: Profile) -> Secret:
    """The body as a secret that this profile can send; what the server buffered of it is zeroed (K11, K24)."""
    if _media_type(request) != b"application/octet-stream":
        raise ApiRefused(415, "octet_stream_only", "a secret is sent as application/octet-stream and nothing else")
    with _content(request).getbuffer() as buffer:
        secret = Secret(bytearray(buffer))
        buffer[:] = bytes(len(buffer))
    try:
        check_secret(profile, secret)
    except BadCredential as error:
        secret.dispose()
        raise ApiRefused(400, "bad_secret", error.message, hint=error.hint) from None
    return secret


def _model(request: Request) -> str:
    """The model from the path as it was sent: one segment, percent-encoded once."""
    raw = request.uri.partition(b"?")[0].removeprefix(_ROUTES_PATH)
    try:
        model = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        model = ""
    if b"/" in raw or not _is_text(model, MODEL_LIMIT):
        raise ApiRefused(
            400, "bad_model", f"a model is 1-{MODEL_LIMIT} printable characters, percent-encoded as one path segment"
        )
    return model


def _expectation(request: Request) -> int | None:
    """What the caller expects to change: a revision, or None for ``If-None-Match: *`` (K13)."""
    match = request.requestHeaders.getRawHeaders(b"if-match", [])
    none_match = request.requestHeaders.getRawHeaders(b"if-none-match", [])
    if not match and not none_match:
        raise ApiRefused(
            428,
            "precondition_required",
            "say what you expect to change",
            hint='If-None-Match: * for a new route, If-Match: "revision" for an existing one',
        )
    if none_match == [b"*"] and not match:
        return None
    revision = _REVISION.match(match[0]) if len(match) == 1 and not none_match else None
    if revision is None:
        raise ApiRefused(400, "bad_precondition", 'send either If-None-Match: * or If-Match: "revision", once')
    return int(revision[1])


def _route_body(request: Request) -> tuple[str, str, str]:
    """Slot, upstream model and selector from a JSON object of exactly these three."""
    if _media_type(request).partition(b";")[0].strip() != b"application/json":
        raise ApiRefused(415, "json_only", "a route is sent as application/json")
    try:
        body, _ = parse_object(_content(request).read())
    except MalformedInput as error:
        raise ApiRefused(400, "bad_json", error.message) from None
    if set(body) != {"slot", "upstream_model", "selector"}:
        raise ApiRefused(400, "bad_route", "a route has exactly slot, upstream_model and selector")
    slot, upstream_model, selector = body["slot"], body["upstream_model"], body["selector"]
    if not isinstance(slot, str) or not isinstance(upstream_model, str) or not isinstance(selector, str):
        raise ApiRefused(400, "bad_route", "slot, upstream_model and selector are strings")
    if not _is_text(slot, SLOT_ID_LIMIT) or not _is_text(upstream_model, MODEL_LIMIT) or len(selector) > SELECTOR_LIMIT:
        raise ApiRefused(400, "bad_route", "slot, upstream_model or selector is empty, too long or not printable")
    try:
        selectors.parse(selector)
    except MalformedInput as error:
        raise ApiRefused(400, "bad_selector", error.message, hint=error.hint) from None
    return slot, upstream_model, selector


def _slot(slot: SlotRecord) -> Document:
    return {
        "slot": slot.slot,
        "name": slot.name,
        "profile": slot.profile,
        "target": slot.target,
        "state": slot.state.value,
        "revision": slot.revision,
        "credential_revision": slot.credential_revision,
        "created": rfc3339(slot.created_ms),
        "updated": rfc3339(slot.updated_ms),
    }


def _route(route: RouteRecord) -> Document:
    return {
        "route": route.route,
        "model": route.model,
        "slot": route.slot,
        "upstream_model": route.upstream_model,
        "selector": route.selector,
        "revision": route.revision,
        "created": rfc3339(route.created_ms),
        "updated": rfc3339(route.updated_ms),
    }
