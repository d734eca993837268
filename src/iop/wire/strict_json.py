"""JSON in the one form that every reader understands alike (P37).

Python's own parser takes the last of two equal keys, ``NaN``, numbers of any length, lone surrogates and nesting until
the stack ends. Here all of that is :class:`~iop.errors.MalformedInput`, and the work still happens in the standard
library's C scanner: a few linear regular expressions before it, and hooks for what only it can see.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from typing import Any, Final, NoReturn

from iop.errors import MalformedInput

#: Arrays and objects within each other, the outermost included.
DEPTH_LIMIT: Final = 64
#: Characters of a number; whole numbers up to here fit a double, and converting longer ones takes quadratic time.
DIGITS_LIMIT: Final = 308
#: Commas and colons, wherever they stand, and arrays and objects: what a text costs to parse is bounded by the two
#: together, not by its length. Arrays in each other need no commas, so neither bounds the other.
STRUCTURE_LIMIT: Final = 500_000
#: Keys of an object whose spans are wanted.
KEYS_LIMIT: Final = 1024

_NOT_WHITESPACE: Final = re.compile(r"[^ \t\n\r]")
#: A string, or a quote that is never closed: taking the rest keeps the search linear.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKETS: Final = bytes.maketrans(b"[]{}", b"()()")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

_DOUBTFUL_ESCAPE: Final = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
#: Text in which no escape is NUL or half of a surrogate pair.
_SOUND_ESCAPES: Final = re.compile(
    rb"(?:[^\\]++|\\(?:[^u]|u(?!0000|[dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F]))*+", re.DOTALL
)


def parse_json(data: bytes | bytearray) -> Any:
    """Parse one JSON text.

    :param data: UTF-8 without a byte order mark, and nothing after the value.
    :raises MalformedInput: for everything that is not strict JSON within the limits (P37).
    """
    text = _text(data)
    value, end = _value(text, _skip(text, 0))
    _expect_end(text, end)
    return value


def parse_object(data: bytes | bytearray) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Parse one JSON object and say where in ``data`` the value of each of its keys stands.

    With the spans one value can be replaced while every other byte stays as it was sent.

    :param data: as for :func:`parse_json`.
    :returns: the object, and for each of its own keys the byte offsets ``(start, end)`` of the value.
    :raises MalformedInput: as :func:`parse_json`, and when the text is not an object.
    """
    text = _text(data)
    values: dict[str, Any] = {}
    spans: dict[str, tuple[int, int]] = {}
    at = _skip(text, 0)
    if not text.startswith("{", at):
        raise _malformed("the JSON text is not an object", text, at)
    at = _skip(text, at + 1)
    more = not text.startswith("}", at)
    while more:
        if not text.startswith('"', at):
            raise _malformed("expected a key in double quotes", text, at)
        place = at
        key, at = _value(text, at)
        if len(values) == KEYS_LIMIT:
            raise _malformed(f"the object has more than {KEYS_LIMIT} keys", text, place)
        if key in values:
            raise _malformed("an object has the same key twice", text, place)
        at = _skip(text, at)
        if not text.startswith(":", at):
            raise _malformed("expected ':' after a key", text, at)
        start = _skip(text, at + 1)
        values[key], end = _value(text, start)
        spans[key] = (start, end)
        at = _skip(text, end)
        more = text.startswith(",", at)
        if more:
            at = _skip(text, at + 1)
    if not text.startswith("}", at):
        raise _malformed("expected ',' or '}' after a value", text, at)
    _expect_end(text, at + 1)
    if len(text) != len(data):
        spans = _byte_spans(text, spans)
    return values, spans


def _text(data: bytes | bytearray) -> str:
    """Decode, and refuse what the scanner would let through or be hurt by."""
    if data.startswith(codecs.BOM_UTF8):
        raise MalformedInput("the JSON text begins with a byte order mark")
    if data.count(b",") + data.count(b":") > STRUCTURE_LIMIT:
        raise MalformedInput(f"the JSON text has more than {STRUCTURE_LIMIT} commas and colons")
    if _DOUBTFUL_ESCAPE.search(data) is not None and _SOUND_ESCAPES.fullmatch(data) is None:
        raise MalformedInput("a string holds NUL or half of a surrogate pair")
    if data.count(b"[") + data.count(b"{") > DEPTH_LIMIT:
        _check_brackets(data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedInput(f"the JSON text is not UTF-8, at byte {error.start}") from None


def _check_brackets(data: bytes | bytearray) -> None:
    """Count the brackets outside strings, then take the innermost pairs away, one level at a time."""
    brackets = bytes(_STRING.sub(b"", data).translate(_BRACKETS, _NOT_BRACKETS))
    if len(brackets) > 2 * STRUCTURE_LIMIT:
        raise MalformedInput(f"the JSON text has more than {STRUCTURE_LIMIT} arrays and objects")
    for _ in range(DEPTH_LIMIT):
        remaining = brackets.replace(b"()", b"")
        if len(remaining) == len(brackets):
            break
        brackets = remaining
    if brackets:
        # Too deep, or not balanced and so no JSON either; the scanner must not recurse to find out which.
        raise MalformedInput(f"the JSON text is nested deeper than {DEPTH_LIMIT} levels, or its brackets do not match")


def _skip(text: str, at: int) -> int:
    """The first place from ``at`` on that is not white space."""
    found = _NOT_WHITESPACE.search(text, at)
    return len(text) if found is None else found.start()


def _value(text: str, at: int) -> tuple[Any, int]:
    """One value at exactly ``at``, and where it ends."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise _malformed(f"not JSON: {error.msg}", text, error.pos) from None


def _expect_end(text: str, at: int) -> None:
    at = _skip(text, at)
    if at != len(text):
        raise _malformed("something follows the JSON value", text, at)


def _malformed(message: str, text: str, at: int) -> MalformedInput:
    return MalformedInput(f"{message}, at byte {len(text[:at].encode())}")


def _byte_spans(text: str, spans: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Turn offsets of characters, which rise from key to key, into offsets of bytes, encoding each stretch once."""
    answer: dict[str, tuple[int, int]] = {}
    characters = octets = 0
    for key, (start, end) in spans.items():
        first = octets + len(text[characters:start].encode())
        octets = first + len(text[start:end].encode())
        characters = end
        answer[key] = (first, octets)
    return answer


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise MalformedInput("an object has the same key twice")
    return value


def _integer(digits: str) -> int:
    if len(digits) > DIGITS_LIMIT:
        raise MalformedInput(f"a number has more than {DIGITS_LIMIT} digits")
    return int(digits)


def _fraction(digits: str) -> float:
    value = float(digits) if len(digits) <= DIGITS_LIMIT else math.inf
    if not math.isfinite(value):
        raise MalformedInput(f"a number has more than {DIGITS_LIMIT} digits or is beyond what a double holds")
    return value


def _constant(name: str) -> NoReturn:
    raise MalformedInput(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_constant
)
