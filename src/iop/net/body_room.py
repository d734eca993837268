"""Room for the bodies of a listener's requests: so much for all together, and to nobody more than is left for others.

Room is taken for what a client announces, a body's Content-Length or a chunk's size, and not as its bytes come. So a
body that was begun always finds room for its rest, and one that does not fit is refused before the client sends it;
counting bytes as they come would take in many bodies at once, and refuse them all half-way. That announcing costs a
client nothing is why each owner has a share: sending the bytes as well would cost little more.
"""

from __future__ import annotations

from iop.errors import BadHttp


class BodyRoom:
    """Who holds how much of one listener's room.

    An owner never takes more than it leaves: together with what it holds already, at most what stays free. One owner
    alone gets half of all, and however many are at their limit, whoever holds nothing may have half of what is free
    (P19). No number of owners has to be known for it.

    :param total: bytes of all bodies together (P32).
    """

    def __init__(self, total: int) -> None:
        self._free = total
        #: Bytes by owner, without those who hold none.
        self._held: dict[str, int] = {}

    def take(self, owner: str | None, count: int) -> None:
        """Take room.

        :param owner: whose share it counts towards; None for a body of nobody known, which only the total bounds.
        :param count: bytes, at least 1.
        :raises BadHttp: 429 if what the owner holds is in the way, 503 if the listener has no more room; nothing was
            taken.
        """
        left = self._free - count
        if owner is None:
            if left < 0:
                raise _full()
        else:
            held = self._held.get(owner, 0)
            if held + count > left:
                raise _share_used() if held else _full()
            self._held[owner] = held + count
        self._free = left

    def give_back(self, owner: str | None, count: int) -> None:
        """``count`` bytes that ``owner`` took are not held any more."""
        self._free += count
        if owner is not None:
            held = self._held.pop(owner) - count
            if held:
                self._held[owner] = held


class Reservation:
    """The room of one request's body, held until the request is answered."""

    __slots__ = ("_count", "_owner", "_room")

    def __init__(self, room: BodyRoom, owner: str | None) -> None:
        self._room = room
        self._owner = owner
        self._count = 0

    def take(self, count: int) -> None:
        """Take room for ``count`` more bytes; raises as :meth:`BodyRoom.take`."""
        self._room.take(self._owner, count)
        self._count += count

    def give_back(self) -> None:
        """Give back all of it."""
        if self._count:
            self._room.give_back(self._owner, self._count)
            self._count = 0


def _full() -> BadHttp:
    return BadHttp(503, "this server holds as many request bodies as it can; try again soon")


def _share_used() -> BadHttp:
    return BadHttp(429, "the bodies of your unanswered requests take all the room you may have; try again soon")
