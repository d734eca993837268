"""RFC 9457 problem documents of the credential HTTPS API: one table from errors to statuses."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from werkzeug.exceptions import HTTPException

from iop.errors import (
    AlreadyExists,
    ApiRefused,
    Draining,
    FinalState,
    IopError,
    MalformedInput,
    NotConfirmed,
    NotFound,
    PeerDisconnected,
    QuotaReached,
    RequestTimedOut,
    RevisionMismatch,
    StoreBusy,
    StoreUnavailable,
    TooManyInFlight,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MEDIA_TYPE = b"application/problem+json"
#: What klein raises for a path or method that no route has.
_NO_CALL: Mapping[int, str] = {404: "no_such_call", 405: "method_not_allowed"}

#: What each error of the store means to a caller; anything else is 500 and says nothing.
_STATUS: Mapping[type[IopError], int] = {
    MalformedInput: 400,
    NotFound: 404,
    AlreadyExists: 409,
    FinalState: 409,
    QuotaReached: 409,
    RevisionMismatch: 412,
    StoreBusy: 503,
    StoreUnavailable: 503,
    NotConfirmed: 504,
    RequestTimedOut: 504,
    PeerDisconnected: 502,
    Draining: 502,
    TooManyInFlight: 503,
}


def problem(status: int, code: str, detail: str, hint: str = "") -> bytes:
    """One problem document; ``detail`` says what happened, and ``hint`` what to do."""
    document: dict[str, str | int] = {
        "type": f"urn:iop:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
    }
    if hint:
        document["hint"] = hint
    return json.dumps(document).encode()


def problem_of(error: BaseException | None) -> tuple[int, bytes]:
    """Status and document for whatever a call ended with."""
    if isinstance(error, HTTPException) and error.code is not None and error.code in _NO_CALL:
        return error.code, problem(error.code, _NO_CALL[error.code], "there is no such call here")
    if isinstance(error, ApiRefused):
        return error.status, problem(error.status, error.reason, error.message, error.hint)
    if isinstance(error, IopError) and type(error) in _STATUS:
        status = _STATUS[type(error)]
        return status, problem(status, error.code, error.message, error.hint)
    return 500, problem(500, "internal", "the Control Plane failed; its log says where")


def refuse_http(status: int, code: str, message: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """What the HTTP guard answers to a call that never reaches the API: headers and body."""
    return [(b"content-type", MEDIA_TYPE)], problem(status, code, message)
