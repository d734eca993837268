"""An immutable map in 256 parts: a changed copy shares every part that it does not touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Final, Generic, TypeVar

#: How many parts there are, as a byte can tell.
PARTS: Final = 256

K = TypeVar("K")
V = TypeVar("V")


def part_of(key: str) -> int:
    """The part that a text belongs to: the first byte of its SHA-256, so that nobody fills one part on purpose (E9)."""
    return sha256(key.encode()).digest()[0]


class Shards(Generic[K, V]):
    """The map.

    :param place: which part a key belongs to, 0-255.
    :ivar parts: its 256 parts, never changed once they are here.
    """

    __slots__ = ("parts", "place")

    def __init__(self, place: Callable[[K], int], parts: tuple[Mapping[K, V], ...] = ({},) * PARTS) -> None:
        self.place = place
        self.parts = parts

    def get(self, key: K) -> V | None:
        """What stands at ``key``, or None."""
        return self.parts[self.place(key)].get(key)

    def __len__(self) -> int:
        """How many keys there are."""
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[V]:
        """Every value, part by part."""
        for part in self.parts:
            yield from part.values()


class Editing(Generic[K, V]):
    """A changed copy of a :class:`Shards` in the making; a part is copied when it is first touched.

    :ivar touched: the parts that differ from the original's.
    """

    __slots__ = ("_original", "touched")

    def __init__(self, original: Shards[K, V]) -> None:
        self._original = original
        self.touched: dict[int, dict[K, V]] = {}

    def take(self, key: K) -> V | None:
        """Remove and answer what stands at ``key``; None if nothing does."""
        place = self._original.place(key)
        if key not in self.part(place):
            return None
        return self._own(place).pop(key)

    def add(self, key: K, value: V) -> bool:
        """Put ``value`` at ``key``; False, and no change, if something stands there."""
        place = self._original.place(key)
        if key in self.part(place):
            return False
        self._own(place)[key] = value
        return True

    def part(self, place: int) -> Mapping[K, V]:
        """A part as it is now."""
        return self.touched.get(place, self._original.parts[place])

    def finish(self) -> Shards[K, V]:
        """The changed map. This object must not be used afterwards."""
        return Shards(self._original.place, tuple(map(self.part, range(PARTS))))

    def _own(self, place: int) -> dict[K, V]:
        part = self.touched.get(place)
        if part is None:
            part = self.touched[place] = dict(self._original.parts[place])
        return part
