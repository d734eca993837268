"""Which requests are in flight on a connection, per direction (W4, W5, W6)."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from google.protobuf.message import Message

from iop.errors import DuplicateCorrelation, IopError, StrayAnswer, TooManyInFlight, UnexpectedMessage
from iop.units import IN_FLIGHT_LIMIT

#: Takes a request's outcome, once.
Done: TypeAlias = Callable[[Message | IopError], object]


class Outbound:
    """Requests this side asked.

    A request that timed out stays as a tombstone: it keeps its place among those in flight, because the peer still
    works on it, and its late answer is not a stray (W5). Both together are at most ``IN_FLIGHT_LIMIT``.
    """

    def __init__(self) -> None:
        #: The id that the next request gets.
        self.next_id = 1
        # id -> the kind that answers it, and who waits for it; a tombstone has nobody.
        self._asked: dict[int, tuple[str, Done | None]] = {}
        # (deadline, id), of answered requests too until they come up or are too many.
        self._deadlines: list[tuple[float, int]] = []
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many requests somebody still waits for."""
        return self._waiting

    def ask(self, answer_kind: str, deadline: float, done: Done) -> int:
        """Record a request and answer its id; :class:`~iop.errors.TooManyInFlight` if there is no place (W6).

        :param deadline: boot time in seconds at which ``done`` stops waiting.
        """
        if len(self._asked) >= IN_FLIGHT_LIMIT:
            raise TooManyInFlight(f"{IN_FLIGHT_LIMIT} requests on this connection are unanswered")
        if len(self._deadlines) >= 2 * IN_FLIGHT_LIMIT:
            self._deadlines = [entry for entry in self._deadlines if self._waits(entry[1])]
            heapify(self._deadlines)
        request = self.next_id
        self.next_id += 1
        self._asked[request] = (answer_kind, done)
        self._waiting += 1
        heappush(self._deadlines, (deadline, request))
        return request

    def answered(self, request: int, kind: str) -> Done | None:
        """Who waits for this answer; None if it came too late.

        :raises StrayAnswer: nothing in flight has this id, or it is answered by another kind (W4, P36).
        """
        asked = self._asked.get(request)
        if asked is None or asked[0] != kind:
            raise StrayAnswer("an answer that belongs to no request in flight")
        done = self._asked.pop(request)[1]
        if done is not None:
            self._waiting -= 1
        return done

    def expired(self, now: float) -> list[Done]:
        """Whose deadline has passed, each once; their requests become tombstones."""
        late: list[Done] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, request = heappop(self._deadlines)
            kind, done = self._asked[request]
            if done is not None:
                self._asked[request] = (kind, None)
                late.append(done)
        self._waiting -= len(late)
        return late

    def next_deadline(self) -> float | None:
        """The earliest deadline that somebody waits for."""
        while self._deadlines and not self._waits(self._deadlines[0][1]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def clear(self) -> list[Done]:
        """Forget everything; answers who still waited, in the order they asked."""
        left = [done for _, done in self._asked.values() if done is not None]
        self._asked.clear()
        self._deadlines.clear()
        self._waiting = 0
        return left

    def _waits(self, request: int) -> bool:
        asked = self._asked.get(request)
        return asked is not None and asked[1] is not None


class Inbound:
    """Requests the peer asked and this side has not answered yet."""

    def __init__(self) -> None:
        self._asked: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def asked(self, request: int, answer_kind: str) -> None:
        """Record a request of the peer.

        :raises UnexpectedMessage: it has no id.
        :raises DuplicateCorrelation: its id is in flight (W4, P36).
        :raises TooManyInFlight: it is one too many (W6).
        """
        if request == 0:
            raise UnexpectedMessage("a request without a correlation id")
        if request in self._asked:
            raise DuplicateCorrelation("a request repeats a correlation id that is in flight")
        if len(self._asked) >= IN_FLIGHT_LIMIT:
            raise TooManyInFlight(f"the peer has more than {IN_FLIGHT_LIMIT} requests in flight")
        self._asked[request] = answer_kind

    def answer(self, request: int, kind: str) -> None:
        """Record this side's answer; :class:`~iop.errors.UnexpectedMessage` if ``kind`` does not answer ``request``."""
        if self._asked.get(request) != kind:
            raise UnexpectedMessage(f"a {kind} that answers nothing")
        del self._asked[request]

    def clear(self) -> None:
        """Forget everything."""
        self._asked.clear()
