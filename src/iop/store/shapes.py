"""What a store takes as a name or a text, whoever asks; a caller's own checks come before and say more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iop.errors import AlreadyExists, MalformedInput, NotFound
from iop.records import SealedSecret
from iop.store import room
from iop.units import MODEL_LIMIT, SELECTOR_LIMIT, is_name

if TYPE_CHECKING:
    from collections.abc import Collection

#: Kinds of names that can be denied (P13).
DENIED_KINDS: Final = ("node", "edge")
#: What stands in a revoked slot where its sealed secret was: under no key there is.
GONE: Final = SealedSecret("-", b"\0", b"\0")


def no_such_slot() -> NotFound:
    """A slot that is not there, or not this principal's: nobody can tell which (P16)."""
    return NotFound("there is no such slot", hint="a slot is named by its id: iop slot list")


def principal_exists(name: str) -> AlreadyExists:
    """A principal's name that another one has."""
    return AlreadyExists(f"a principal named {name} exists already", hint="name it otherwise: iop principal list")


def slot_exists(name: str) -> AlreadyExists:
    """A slot's name that another one of this principal has, be it revoked."""
    return AlreadyExists(
        f"a slot named {name} exists already",
        hint="name it otherwise, also if that one is revoked, or put the secret in that one: iop slot rotate",
    )


def check_name(what: str, value: str) -> None:
    """:raises MalformedInput: if ``value`` is not a name as in :func:`iop.units.is_name`."""
    if not is_name(value):
        raise MalformedInput(
            f"the {what} is not a name",
            hint="use 1 to 63 of a-z 0-9 . _ -, beginning and ending with a letter or digit",
        )


def check_model(value: str) -> None:
    """:raises MalformedInput: unless ``value`` is 1 to 256 printable characters."""
    if not value or len(value) > MODEL_LIMIT or not value.isprintable():
        raise MalformedInput("the model name is not 1 to 256 printable characters")


def check_selector(value: str) -> None:
    """:raises MalformedInput: unless ``value`` is at most 1,024 printable characters."""
    if len(value) > SELECTOR_LIMIT or not value.isprintable():
        raise MalformedInput("the selector is not at most 1,024 printable characters")


def check_edges(names: Collection[str]) -> frozenset[str]:
    """The Edges that a principal is limited to, each once.

    :raises MalformedInput: if one of ``names`` is not a name.
    :raises QuotaReached: if they are too many.
    """
    for name in names:
        check_name("Edge's name", name)
    edges = frozenset(names)
    room.check_edges(len(edges))
    return edges


def check_denial(kind: str, name: str) -> None:
    """:raises MalformedInput: unless ``kind`` can be denied and ``name`` is a name."""
    if kind not in DENIED_KINDS:
        raise MalformedInput("only a node or an edge can be denied")
    check_name(f"{kind.title()}'s name", name)
