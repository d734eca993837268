"""Protobuf's variable-length numbers."""

from __future__ import annotations

from typing import Final


def _encode(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


#: Those of one and two bytes, which are nearly all there are.
_SHORT: Final = tuple(_encode(number) for number in range(1 << 14))


def varint(number: int) -> bytes:
    """The one shortest encoding of ``number``, which is not negative."""
    return _SHORT[number] if number < len(_SHORT) else _encode(number)
