"""Entries of projections for tests."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, TypeVar

from iop.core.projection import Projection
from iop.records import Binding, ProjectionSnapshot, RouteEntry, TokenEntry

T = TypeVar("T", Binding, TokenEntry, RouteEntry)

ADA: Final = TokenEntry("token-ada", "ada", sha256(b"ada").digest())
BOB: Final = TokenEntry("token-bob", "bob", sha256(b"bob").digest())
ADA_SMALL: Final = RouteEntry("route-1", "ada", "slot-1", "openai", "openai", "small", "gpt-small", "", 1, 1)
BOB_LARGE: Final = RouteEntry("route-2", "bob", "slot-2", "openai", "openai", "large", "gpt-large", "", 3, 5)


def projection(
    generation: int = 7,
    tokens: tuple[TokenEntry, ...] = (ADA, BOB),
    routes: tuple[RouteEntry, ...] = (ADA_SMALL, BOB_LARGE),
) -> Projection:
    """Two principals with a token and a route each."""
    return Projection.build(ProjectionSnapshot(generation, tokens, routes))


def changed(entry: T, name: str) -> T:
    """``entry``, a frozen dataclass, with another value of the same kind in the field ``name``."""
    value: Any = getattr(entry, name)
    match value:
        case int():
            value += 1
        case str():
            value += "x"
        case bytes():
            value = bytes([value[0] ^ 1]) + value[1:]
    return replace(entry, **{name: value})
