"""Takes the secret out of what an upstream answers before anybody else sees it (R9).

Response headers are scanned for the exact secret, bodies outside 2xx also for what common JSON encoders make of it; 2xx
bodies are not scanned, which the documentation says. What an upstream encoded, split or changed in another way is
beyond it: that is why an encoded error body is refused instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from iop.secret import Secret

#: Stands where a secret stood: three black squares in UTF-8. Secrets are printable ASCII, so no secret can arise from
#: the mark and its surroundings.
MARK: Final = "███".encode()

_PASSED: Final = frozenset({"cache-control", "content-encoding", "content-type", "retry-after", "x-request-id"})
_PASSED_PREFIXES: Final = ("openai-", "x-ratelimit-")

#: What every JSON encoder writes for printable ASCII that it may not write as it is, and what PHP's and Go's write for
#: some that they might.
_JSON: Final = {ord('"'): b'\\"', ord("\\"): b"\\\\"}
_SPELLINGS: Final = (
    _JSON,
    _JSON | {ord("/"): b"\\/"},
    _JSON | {ord("<"): b"\\u003c", ord(">"): b"\\u003e", ord("&"): b"\\u0026"},
)


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
    """Removes one secret, as it is and as JSON spells it, from a body that comes in chunks, wherever they are cut.

    It keeps back at most one byte less than the longest spelling has: what could be the beginning of one.

    :param secret: the secret; it stays its owner's, who disposes of it after :meth:`finish`. An empty one removes
        nothing.
    """

    __slots__ = ("_held", "_needles", "_spelled")

    def __init__(self, secret: Secret) -> None:
        exact = secret.reveal()
        #: What this object made of the secret, and disposes of.
        self._spelled: list[Secret] = []
        for table in _SPELLINGS:
            spelled = Secret(_spell(exact, table))
            if spelled.reveal() in (exact, *(other.reveal() for other in self._spelled)):
                spelled.dispose()
            else:
                self._spelled.append(spelled)
        #: Longest first, so that of two that begin at one place the longer one is removed.
        self._needles = sorted((*self._spelled, secret), key=len, reverse=True)
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Bytes that may go on now."""
        self._held += data
        return self._clean(max(len(self._needles[0]), 1))

    def finish(self) -> bytes:
        """What was kept back and is not the secret, because the body ended. Disposes of this object."""
        rest = self._clean(1)
        self.dispose()
        return rest

    def dispose(self) -> None:
        """Zero what was made of the secret, and what was kept back. Safe to call twice."""
        for spelled in self._spelled:
            spelled.dispose()
        self._held[:] = bytes(len(self._held))
        self._held.clear()

    def _clean(self, ahead: int) -> bytes:
        """What is held and decided, without the secret.

        :param ahead: bytes that are needed from a place on to decide whether one of the needles begins there.
        """
        held = self._held
        needles = [needle for secret in self._needles if (needle := secret.reveal())]
        places = [held.find(needle) for needle in needles]
        undecided = max(len(held) - ahead + 1, 0)
        clean = bytearray()
        start = 0
        while found := [(at, which) for which, at in enumerate(places) if 0 <= at < undecided]:
            at, which = min(found)
            clean += held[start:at]
            clean += MARK
            start = at + len(needles[which])
            places = [
                held.find(needle, start) if 0 <= at < start else at for needle, at in zip(needles, places, strict=True)
            ]
        end = max(start, undecided)
        clean += held[start:end]
        del held[:end]
        return bytes(clean)


def _spell(text: bytearray, table: Mapping[int, bytes]) -> bytearray:
    spelled = bytearray()
    for octet in text:
        spelled += table.get(octet) or bytes((octet,))
    return spelled
