"""What the HTTP server answers on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iop.net.response_head import response_head

if TYPE_CHECKING:
    from iop.errors import BadHttp
    from iop.net.http_application import IHttpApplication

#: When a client may try again whose body found no room.
RETRY_SECONDS: Final = 5

_CODES: Final = {
    408: "request_timeout",
    413: "request_too_large",
    415: "content_encoding_refused",
    417: "expectation_failed",
    429: "too_many_bodies",
    431: "headers_too_large",
    500: "internal",
    503: "overloaded",
    504: "call_timeout",
    505: "http_version_unsupported",
}
_OTHERWISE: Final = "bad_request"
#: Every code that a refusal has.
REFUSAL_CODES: Final = frozenset({*_CODES.values(), _OTHERWISE})


def refusal_answer(application: IHttpApplication, refusal: BadHttp) -> tuple[bytes, bytes]:
    """The head, without its empty line, and the body that say ``refusal`` in the words of ``application``."""
    code = _CODES.get(refusal.status, _OTHERWISE)
    headers, body = application.refuse(refusal.status, code, refusal.message)
    if refusal.status in (429, 503):
        headers = [*headers, (b"retry-after", b"%d" % RETRY_SECONDS)]
    return response_head(refusal.status, headers) + b"content-length: %d\r\n" % len(body), body
