"""What a call of the credential HTTPS API says, read strictly: anything that is not exactly that is refused (K11)."""

from __future__ import annotations

import re
from io import BytesIO
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote_to_bytes

from iop.core import selectors
from iop.core.profiles import Profile, check_secret
from iop.errors import ApiRefused, BadCredential, MalformedInput, NotFound
from iop.secret import Secret
from iop.units import MODEL_LIMIT, SECRET_LIMIT, SELECTOR_LIMIT, is_request_id
from iop.wire.strict_json import parse_object

if TYPE_CHECKING:
    from twisted.web.server import Request

SLOT_ID_LIMIT: Final = 128
ROUTE_BODY_LIMIT: Final = 8 * 1024
SLOTS_PATH: Final = b"/v1/slots/"
ROUTES_PATH: Final = b"/v1/routes/"
_REVISION: Final = re.compile(rb'"([1-9][0-9]{0,15})"\Z')


def body_limit(method: bytes, path: bytes) -> int:
    """Bytes a call's body may have, known before any of it is read."""
    stored = path.startswith(SLOTS_PATH) and path.endswith(b"/secret")
    if (method == b"POST" and path == b"/v1/slots") or (method == b"PUT" and stored):
        return SECRET_LIMIT
    if method == b"PUT" and path.startswith(ROUTES_PATH):
        return ROUTE_BODY_LIMIT
    return 0


def arguments(request: Request, *names: str) -> list[str]:
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


def no_idempotency_key(request: Request) -> None:
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


def secret(request: Request, profile: Profile) -> Secret:
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


def model(request: Request) -> str:
    """The model from the path as it was sent: one segment, percent-encoded once."""
    raw = request.uri.partition(b"?")[0].removeprefix(ROUTES_PATH)
    try:
        model = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        model = ""
    if b"/" in raw or not _is_text(model, MODEL_LIMIT):
        raise ApiRefused(
            400, "bad_model", f"a model is 1-{MODEL_LIMIT} printable characters, percent-encoded as one path segment"
        )
    return model


def revision(request: Request) -> int:
    """The revision that the caller expects to change, from ``If-Match`` (K13)."""
    expected = expectation(request)
    if expected is None:
        raise ApiRefused(400, "bad_precondition", 'say which revision you change: If-Match: "revision"')
    return expected


def slot_id(request: Request) -> str:
    """The slot from the path, whatever follows it there; what is no id of a slot is one that is not there (P16)."""
    identifier = request.uri.partition(b"?")[0].removeprefix(SLOTS_PATH).partition(b"/")[0].decode("ascii", "replace")
    if not is_request_id(identifier):
        raise NotFound("there is no such slot", hint="a slot is named by its id: iop slot list")
    return identifier


def expectation(request: Request) -> int | None:
    """What the caller expects to change: a revision, or None for ``If-None-Match: *`` (K13)."""
    match = request.requestHeaders.getRawHeaders(b"if-match", [])
    none_match = request.requestHeaders.getRawHeaders(b"if-none-match", [])
    if not match and not none_match:
        raise ApiRefused(
            428,
            "precondition_required",
            "say what you expect to change",
            hint='If-Match: "revision" for what exists, If-None-Match: * for a new route',
        )
    if none_match == [b"*"] and not match:
        return None
    revision = _REVISION.match(match[0]) if len(match) == 1 and not none_match else None
    if revision is None:
        raise ApiRefused(400, "bad_precondition", 'send either If-None-Match: * or If-Match: "revision", once')
    return int(revision[1])


def route_body(request: Request) -> tuple[str, str, str]:
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
        parsed = selectors.parse(selector)
    except MalformedInput as error:
        raise ApiRefused(400, "bad_selector", error.message, hint=error.hint) from None
    if any(key in selectors.RESERVED_KEYS for key, _ in parsed.terms):
        # no label may have them, so such a route would find no provider, and say so to its callers only
        raise ApiRefused(400, "bad_selector", "a route chooses by labels, and no label is called node or provider")
    return slot, upstream_model, selector
