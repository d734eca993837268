"""Selectors: ``key=value[,key=value…]`` over labels; all must match, the empty one matches all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from iop.errors import MalformedInput
from iop.units import SELECTOR_LIMIT

#: What selectors of commands name things by; no label has such a key (S8).
NODE_KEY: Final = "node"
PROVIDER_KEY: Final = "provider"
RESERVED_KEYS: Final = frozenset({NODE_KEY, PROVIDER_KEY})
#: Most terms in a selector.
TERM_LIMIT: Final = 16
_PART: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?\Z")


def is_label_part(text: str) -> bool:
    """Whether ``text`` can be the key or the value of a label (1-63 of letters, digits and ``. _ / -``)."""
    return _PART.match(text) is not None


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selector."""

    terms: tuple[tuple[str, str], ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether every term stands in ``labels``."""
        return all(labels.get(key) == value for key, value in self.terms)


def parse(text: str) -> Selector:
    """Read the one form; no spaces, no repeated key.

    :raises MalformedInput: if it is anything else; an unreadable selector never matches everything.
    """
    if not text:
        return Selector(())
    if len(text) > SELECTOR_LIMIT or text.count(",") >= TERM_LIMIT:
        raise MalformedInput("the selector is too long", hint=f"use at most {TERM_LIMIT} terms")
    terms: dict[str, str] = {}
    for term in text.split(","):
        key, separator, value = term.partition("=")
        if not separator or not is_label_part(key) or not is_label_part(value):
            raise MalformedInput("the selector is malformed", hint="write key=value[,key=value], without spaces")
        if key in terms:
            raise MalformedInput("the selector names a key twice", hint="name each key once")
        terms[key] = value
    return Selector(tuple(terms.items()))
