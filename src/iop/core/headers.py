"""Which header fields may travel between Edge and Node (R8, P18)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HEADER_FIELDS_LIMIT: Final = 64
HEADER_BYTES_LIMIT: Final = 32 * 1024

_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+\Z")
#: Printable ASCII and RFC 9110's obs-text, read as Latin-1. No CR, LF, NUL or other control character.
_VALUE: Final = re.compile(r"[\x20-\x7e\xa0-\xff]*\Z")

#: Fields that belong to one connection or one message's framing (RFC 9110 7.6.1), and are written by who sends it.
HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
#: Fields that may hold somebody's credential.
CREDENTIALS: Final = frozenset(
    {
        "api-key",
        "authorization",
        "cookie",
        "cookie2",
        "proxy-authenticate",
        "proxy-authorization",
        "set-cookie",
        "set-cookie2",
        "x-api-key",
    }
)

#: The only request headers a Node sends upstream. Anything else could change what a method and path mean to a provider
#: (``x-http-method-override``, ``x-original-url``), which a lease's closed list of calls is there to rule out (P17).
REQUEST_HEADERS: Final = frozenset(
    {
        "accept",
        "anthropic-beta",
        "anthropic-version",
        "content-type",
        "idempotency-key",
        "openai-beta",
        "openai-organization",
        "openai-project",
        "user-agent",
    }
)
#: What a Node says itself in every request: an encoded error body could not be searched for the secret (R9).
NODES_OWN: Final = ("accept-encoding", "identity")


def is_header_name(name: str) -> bool:
    """Whether ``name`` is a lower-case HTTP token."""
    return _NAME.match(name) is not None


def header_fault(fields: Iterable[tuple[str, str]]) -> str | None:
    """What keeps these fields from travelling, or None; the answer never quotes a value."""
    size = 0
    for count, (name, value) in enumerate(fields, 1):
        size += len(name) + len(value)
        if count > HEADER_FIELDS_LIMIT or size > HEADER_BYTES_LIMIT:
            return "there are too many header fields, or they are too large"
        if not is_header_name(name):
            return "a header name is not a lower-case token"
        if not _VALUE.match(value):
            return f"the value of header {name[:64]} holds control or non-Latin-1 characters"
        if name in HOP_BY_HOP or name in CREDENTIALS:
            return f"header {name} does not travel between Edge and Node"
    return None
