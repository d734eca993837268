"""The credential HTTPS API: slots and routes of the principal that a ``manage`` token names (K2, K9-K13)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote_to_bytes

from klein import Klein, KleinRenderable
from klein.resource import KleinResource
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.web.server import Request

from iop.control_plane import api_request
from iop.control_plane.leases import secret_place
from iop.control_plane.metrics import UNANSWERED, ControlPlaneMetrics
from iop.control_plane.problems import MEDIA_TYPE, problem, problem_of
from iop.control_plane.shielded import shielded
from iop.core.allowance import Allowance
from iop.core.profiles import PROFILES
from iop.core.slots import with_secret
from iop.crypto.at_rest import seal_secret
from iop.crypto.tokens import parse_token, token_digest
from iop.errors import ApiRefused, MalformedToken
from iop.records import Committed, NewSlot, RouteRecord, SlotRecord, SlotState, TokenKind
from iop.units import is_name, new_id, rfc3339

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.python.failure import Failure
    from twisted.web.iweb import IRequest

    from iop.control_plane.mutations import Mutations
    from iop.crypto.keyring import Keyring
    from iop.interfaces import IClock, IStore
    from iop.records import TokenRecord

#: What a call answers, as JSON.
Document = dict[str, object]

#: Changes that one principal may make, and calls with the wrong kind of token.
CALLS_PER_SECOND: Final = 1.0
CALLS_BURST: Final = 10


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
            ("/v1/slots/<_>", "GET", self._show_slot),
            ("/v1/slots/<_>/secret", "PUT", self._rotate_slot),
            ("/v1/slots/<_>/disable", "POST", self._disable_slot),
            ("/v1/slots/<_>/enable", "POST", self._enable_slot),
            ("/v1/slots/<_>/revoke", "POST", self._revoke_slot),
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
            # nobody is there to be told, and a defect is one all the same
            return shielded(run(request), lambda failure: self._log.failure("control.api.failed", failure))

        endpoint.__name__ = call.__name__
        return endpoint

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
        api_request.arguments(request)
        return 200, {
            "principal": caller.principal,
            "token": {"id": caller.token_id, "kind": caller.kind.value},
            "generation": await self._store.projections.generation(),
        }

    async def _list_slots(self, request: Request, caller: Caller) -> tuple[int, Document]:
        api_request.arguments(request)
        return 200, {"slots": [_slot(slot) for slot in await self._store.slots.all(caller.principal)]}

    async def _create_slot(self, request: Request, caller: Caller) -> tuple[int, Document]:
        name, profile_name, target = api_request.arguments(request, "name", "profile", "target")
        api_request.no_idempotency_key(request)
        profile = PROFILES.get(profile_name)
        if profile is None:
            raise ApiRefused(400, "unknown_profile", f"profile must be one of {', '.join(sorted(PROFILES))}")
        for argument, value in (("name", name), ("target", target)):
            if not is_name(value):
                raise ApiRefused(400, f"bad_{argument}", f"{argument} must be 1-63 of a-z 0-9 . _ -")
        slot = new_id(self._clock.wall_ms())
        with api_request.secret(request, profile) as secret:
            place = secret_place(self._deployment_id, caller.principal, slot, profile.name, target, 1)
            sealed = seal_secret(self._keyring, place, secret)
        committed = await self._store.slots.create(
            NewSlot(slot, caller.principal, name, profile.name, target, sealed), f"token:{caller.token_id}"
        )
        return 201, _slot(committed.value) | await self._settled(committed)

    async def _show_slot(self, request: Request, caller: Caller) -> tuple[int, Document]:
        api_request.arguments(request)
        return 200, _slot(await self._store.slots.get(caller.principal, api_request.slot_id(request)))

    async def _rotate_slot(self, request: Request, caller: Caller) -> tuple[int, Document]:
        api_request.arguments(request)
        api_request.no_idempotency_key(request)
        expected = api_request.revision(request)
        present = await self._store.slots.get(caller.principal, api_request.slot_id(request))
        # the store compares the revision too: sealed for another than the next, the secret could never be opened
        revision = with_secret(present, expected, self._clock.wall_ms()).credential_revision
        with api_request.secret(request, PROFILES[present.profile]) as secret:
            place = secret_place(
                self._deployment_id, caller.principal, present.slot, present.profile, present.target, revision
            )
            sealed = seal_secret(self._keyring, place, secret)
        committed = await self._store.slots.rotate(
            caller.principal, present.slot, sealed, expected, f"token:{caller.token_id}"
        )
        return 200, _slot(committed.value) | await self._settled(committed)

    async def _disable_slot(self, request: Request, caller: Caller) -> tuple[int, Document]:
        return await self._set_state(request, caller, SlotState.DISABLED)

    async def _enable_slot(self, request: Request, caller: Caller) -> tuple[int, Document]:
        return await self._set_state(request, caller, SlotState.ACTIVE)

    async def _revoke_slot(self, request: Request, caller: Caller) -> tuple[int, Document]:
        return await self._set_state(request, caller, SlotState.REVOKED)

    async def _set_state(self, request: Request, caller: Caller, state: SlotState) -> tuple[int, Document]:
        api_request.arguments(request)
        api_request.no_idempotency_key(request)
        slot, expected = api_request.slot_id(request), api_request.revision(request)
        committed = await self._store.slots.set_state(
            caller.principal, slot, state, expected, f"token:{caller.token_id}"
        )
        return 200, _slot(committed.value) | await self._settled(committed)

    async def _list_routes(self, request: Request, caller: Caller) -> tuple[int, Document]:
        api_request.arguments(request)
        return 200, {"routes": [_route(route) for route in await self._store.routes.all(caller.principal)]}

    async def _put_route(self, request: Request, caller: Caller) -> tuple[int, Document]:
        api_request.arguments(request)
        api_request.no_idempotency_key(request)
        model = api_request.model(request)
        expected = api_request.expectation(request)
        slot, upstream_model, selector = api_request.route_body(request)
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
