"""Takes the exact secret out of what an upstream answers before anybody else sees it (R9).

Response headers and bodies outside 2xx are scanned; 2xx bodies are not, which the documentation says. What an upstream
encoded, split or changed is beyond it: that is why an encoded error body is refused instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from iop.secret import Secret

#: Stands where a secret stood: three black squares in UTF-8. Secrets are printable ASCII, so no secret can arise from
#: the mark and its surroundings.
MARK: Final = "███".encode()

_PASSED: Final = frozenset({"cache-control", "content-encoding", "content-type", "retry-after", "x-request-id"})
_PASSED_PREFIXES: Final = ("openai-", "x-ratelimit-")


def passed_headers(headers: Iterable[tuple[str, str]], secret: Secret) -> list[tuple[str, str]]:
    """The response headers that travel back: those of a closed list, none that holds the secret.

    :param headers: lower-case names, values decoded as Latin-1.
    """
    needle = secret.reveal()

    def clean(text: str) -> bool:
        return not needle or needle not in text.encode("latin-1")

    return [
        (name, value)
        for name, value in headers
        if (name in _PASSED or name.startswith(_PASSED_PREFIXES)) and clean(name) and clean(value)
    ]


class Redactor:
    """Removes one secret from a body that comes in chunks, wherever the chunks are cut.

    It keeps back at most one byte less than the secret has: what could be its beginning.

    :param secret: the secret; it stays its owner's, who disposes of it after :meth:`finish`. An empty one removes
        nothing.
    """

    __slots__ = ("_held", "_secret")

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Bytes that may go on now."""
        needle = self._secret.reveal()
        if not needle:
            return data
        held = self._held
        held += data
        clean = bytearray()
        start = 0
        while (found := held.find(needle, start)) >= 0:
            clean += held[start:found]
            clean += MARK
            start = found + len(needle)
        keep_from = max(start, len(held) - len(needle) + 1)
        clean += held[start:keep_from]
        del held[:keep_from]
        return bytes(clean)

    def finish(self) -> bytes:
        """What was kept back; it is not the secret, because the body ended."""
        rest = bytes(self._held)
        self._held.clear()
        return rest
