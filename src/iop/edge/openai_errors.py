"""What a caller is told when a request is not served: OpenAI's error shape, stable codes, nothing internal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil
from typing import Final

from iop.edge.attempts import RunFailed
from iop.edge.runs import RunFailure
from iop.errors import (
    BadHttp,
    ControlPlaneUnavailable,
    EdgeDraining,
    IopError,
    LeaseRefused,
    MalformedInput,
    NoNode,
    NoSuchModel,
    PeerDisconnected,
    ProviderUnreachable,
    QueueFull,
    QueueLate,
    RequestTimedOut,
    TokenRefused,
    TooManyInFlight,
)

#: Seconds after which a caller may try again, where trying again is of use.
_SOON: Final = 1
_LATER: Final = 5


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error.

    :ivar param: the field of the request that is wrong, if it is one.
    :ivar retry_after: seconds for ``Retry-After``, or None.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None

    def headers(self, request_id: str) -> list[tuple[bytes, bytes]]:
        """The header fields."""
        fields = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
        if self.retry_after is not None:
            fields.append((b"retry-after", str(self.retry_after).encode()))
        if self.status == 401 and self.code == TokenRefused.code:
            fields.append((b"www-authenticate", b"Bearer"))
        return fields

    def body(self) -> bytes:
        """The JSON body."""
        error = {"message": self.message, "type": _kind(self.status), "param": self.param, "code": self.code}
        return json.dumps({"error": error}, ensure_ascii=False).encode()


MISSING_MODEL: Final = Refusal(400, "missing_model", "the body names no model", param="model")
NO_SUCH_PATH: Final = Refusal(404, "unknown_url", "there is nothing at this path")
METHOD_NOT_ALLOWED: Final = Refusal(405, "method_not_allowed", "this path does not take that method")
INTERNAL: Final = Refusal(500, "internal", "the request failed for a reason that was logged here")
_UNAUTHORISED: Final = "the service cannot authorise this request at the moment"
_NOT_SERVED: Final = Refusal(503, "no_node", "no Node could serve this request", retry_after=_LATER)
#: A refusal that asking again does not change (L4): an operator has to do something.
_CREDENTIAL_UNUSABLE: Final = Refusal(
    503, "credential_unusable", "the service may not use the credential that is stored for this model"
)

#: Refusals of a lease that say what has become of token or slot since the projection was made.
_LEASE_REFUSED: Final = {
    "token_refused": TokenRefused,
    "slot_refused": NoSuchModel,
}
#: One that passes once the Control Plane's store can be written again; the caller may come back, this request ends.
_STORE_UNAVAILABLE: Final = "store_unavailable"

_RUNS: Final = {
    "upstream_unreachable": Refusal(502, "upstream_unreachable", "the provider could not be reached"),
    "upstream_busy": Refusal(
        503, "upstream_busy", "the Nodes have as many connections to the provider as they may", retry_after=_SOON
    ),
    "upstream_tls": Refusal(502, "upstream_tls", "no trusted connection to the provider could be made"),
    "upstream_timeout": Refusal(504, "upstream_timeout", "the provider did not answer in time"),
    "upstream_broke": Refusal(502, "upstream_broke", "the provider broke off its answer"),
    "upstream_redirect": Refusal(502, "upstream_redirect", "the provider answered with a redirect; none is followed"),
    "upstream_encoded_error": Refusal(
        502, "upstream_encoded_error", "the provider answered with an error in an encoding that cannot be shown"
    ),
    "internal": Refusal(502, "node_failed", "the Node that ran this request failed for a reason that it logged"),
    "node_lost": Refusal(502, "node_lost", "the connection to the Node that ran this request ended"),
    "not_allowed": Refusal(400, "unsupported_call", "this model cannot be called in this way", param="model"),
    "no_such_provider": _NOT_SERVED,
    "lease_refused": _NOT_SERVED,
    "draining": _NOT_SERVED,
    "cancelled": _NOT_SERVED,
}


_INVALID_JSON: Final = "invalid_json"
_PROVIDER_CREDENTIAL_REFUSED: Final = "provider_credential_refused"
_FIXED: Final = (MISSING_MODEL, NO_SUCH_PATH, METHOD_NOT_ALLOWED, INTERNAL, _CREDENTIAL_UNUSABLE, *_RUNS.values())
_ERRORS: Final = (
    TokenRefused,
    NoSuchModel,
    BadHttp,
    QueueFull,
    NoNode,
    QueueLate,
    ProviderUnreachable,
    ControlPlaneUnavailable,
    EdgeDraining,
)
#: Every code that a refusal has.
CODES: Final = frozenset(
    {
        _INVALID_JSON,
        _PROVIDER_CREDENTIAL_REFUSED,
        *(refusal.code for refusal in _FIXED),
        *(error.code for error in _ERRORS),
    }
)


def provider_refused_credential(status: int) -> Refusal:
    """The upstream's own 401 or 403: the caller's token is fine, the stored credential is not, or there is none."""
    return Refusal(
        status,
        _PROVIDER_CREDENTIAL_REFUSED,
        "the provider refused the credential for this model, or wants one where none is stored",
    )


def refusal_of(error: IopError) -> Refusal:
    """What to answer when ``error`` ended a request."""
    match error:
        case TokenRefused():
            return Refusal(401, error.code, "the API key is missing or is not one that opens this service")
        case NoSuchModel():
            return Refusal(404, error.code, error.message, param="model")
        case MalformedInput():
            return Refusal(400, _INVALID_JSON, error.message)
        case BadHttp():
            return Refusal(error.status, error.code, error.message)
        case QueueFull():
            return Refusal(429, error.code, error.message, retry_after=_SOON)
        case NoNode() | QueueLate() | EdgeDraining():
            return Refusal(503, error.code, error.message, retry_after=_LATER)
        case ProviderUnreachable():
            return Refusal(503, error.code, error.message, retry_after=max(_SOON, ceil(error.retry_seconds)))
        case LeaseRefused() if error.reason in _LEASE_REFUSED:
            return refusal_of(_LEASE_REFUSED[error.reason]())
        case LeaseRefused() if not error.again and error.reason != _STORE_UNAVAILABLE:
            return _CREDENTIAL_UNUSABLE
        case ControlPlaneUnavailable() | LeaseRefused() | RequestTimedOut():
            return Refusal(503, ControlPlaneUnavailable.code, _UNAUTHORISED, retry_after=_LATER)
        case PeerDisconnected() | TooManyInFlight():
            return _NOT_SERVED
        case RunFailed():
            return refusal_of_run(error.failure)
    return INTERNAL


def refusal_of_run(failure: RunFailure) -> Refusal:
    """What to answer when a Node ended a run before it had a response head."""
    return _RUNS.get(failure.code, INTERNAL)


def _kind(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
