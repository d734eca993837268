"""A value that refuses every way out but one."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Secret:
    """A secret in a buffer of its own, readable only through :meth:`reveal`.

    ``repr``, ``str``, ``format``, pickling, copying, JSON, iteration and hashing refuse or say nothing (P25). The
    buffer is zeroed by :meth:`dispose` and when a ``with`` block ends; what Python copied elsewhere before cannot be
    reached.

    :param value: the bytes to hold; a ``bytearray`` is taken over, not copied, so that its owner can forget it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes | bytearray) -> None:
        self._value = value if isinstance(value, bytearray) else bytearray(value)

    def reveal(self) -> bytearray:
        """The buffer itself: use it and let go of it; do not keep a copy."""
        return self._value

    def dispose(self) -> None:
        """Zero and empty the buffer. Safe to call twice."""
        self._value[:] = bytes(len(self._value))
        self._value.clear()

    def __len__(self) -> int:
        return len(self._value)

    def __enter__(self) -> Secret:
        return self

    def __exit__(self, *exc: object) -> None:
        self.dispose()

    def __repr__(self) -> str:
        return "<Secret>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "<Secret>"

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("secrets are compared with hmac.compare_digest on what reveal() gives")

    def __hash__(self) -> NoReturn:
        raise TypeError("a Secret cannot be hashed")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a Secret cannot be pickled or copied")

    def __copy__(self) -> NoReturn:
        raise TypeError("a Secret cannot be copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError("a Secret cannot be copied")
