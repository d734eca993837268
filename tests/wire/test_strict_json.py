"""Strict JSON: everything that two readers could understand differently is refused (P37)."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import MalformedInput
from iop.wire.strict_json import (
    DEPTH_LIMIT,
    DIGITS_LIMIT,
    KEYS_LIMIT,
    STRUCTURE_LIMIT,
    parse_json,
    parse_object,
)

_SOUND_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _SOUND_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(_SOUND_TEXT, inner),
    max_leaves=40,
)

REFUSED: dict[str, bytes] = {
    "empty": b"",
    "only white space": b" \t\r\n",
    "byte order mark": b'\xef\xbb\xbf{"a":1}',
    "truncated UTF-8": b'{"a":"\xc3"}',
    "overlong UTF-8": b'{"a":"\xc0\x80"}',
    "surrogate as UTF-8": b'{"a":"\xed\xa0\x80"}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "lone high surrogate": rb'{"a":"\ud83d"}',
    "lone high surrogate before an escape": rb'{"a":"\ud83d\n"}',
    "lone low surrogate": rb'{"a":"\uDE00"}',
    "surrogates the wrong way round": rb'{"a":"\ude00\ud83d"}',
    "two high surrogates": rb'{"a":"\ud83d\ud83d\ude00"}',
    "a half pair after an escaped backslash that looks like one": rb'{"a":"\\ud83d\ude00"}',
    "lone surrogate in a key": rb'{"\ud83d":1}',
    "lone surrogate deep in a key": rb'{"a":[{"\udfff":1}]}',
    "raw NUL": b'{"a":"\0"}',
    "NUL between tokens": b'{"a":\x001}',
    "escaped NUL": rb'{"a":"\u0000"}',
    "escaped NUL in a key": rb'{"\u0000":1}',
    "escaped NUL after an escaped backslash": rb'{"a":"\\\u0000"}',
    "control character in a string": b'{"a":"\n"}',
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":[Infinity]}',
    "minus Infinity": b'{"a":-Infinity}',
    "a number that overflows to infinity": b'{"a":1e999}',
    "5,000 digits": b'{"a":' + b"1" * 5000 + b"}",
    "5,000 digits after the point": b'{"a":0.' + b"1" * 5000 + b"}",
    "duplicate key": b'{"a":1,"a":1}',
    "duplicate key, once escaped": rb'{"a":1,"\u0061":1}',
    "duplicate key deep inside": b'{"a":[{"b":{"c":1,"c":2}}]}',
    "trailing comma": b'{"a":1,}',
    "trailing data": b'{"a":1}x',
    "two values": b'{"a":1}{"a":1}',
    "trailing NUL": b'{"a":1}\0',
    "leading zero": b'{"a":01}',
    "single quotes": b"{'a':1}",
    "bare key": b"{a:1}",
    "comment": b'{"a":1/**/}',
    "no colon": b'{"a" 1}',
    "no value": b'{"a":}',
    "no comma": b'{"a":1 "b":2}',
    "not closed": b'{"a":1',
    "string not closed": b'{"a":"1}',
    "escape not closed": b'{"a":"\\',
    "white space of other alphabets": '{\u00a0"a":1}'.encode(),
}


def _nested(depth: int) -> bytes:
    """An object whose one value is arrays, ``depth`` levels in all."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


class Refusals(SynchronousTestCase):
    """P37."""

    def test_every_ambiguous_form(self) -> None:
        """P37: each form is refused with a typed error, by both functions, from both kinds of buffer."""
        accepted = []
        for name, data in REFUSED.items():
            for parse in (parse_json, parse_object):
                for buffer in (data, bytearray(data)):
                    try:
                        parse(buffer)
                    except MalformedInput:
                        continue
                    accepted.append(name)
        self.assertEqual(accepted, [])

    def test_depth(self) -> None:
        """P37: exactly the limit passes, one more does not, whatever the brackets and the strings between them."""
        parse_json(_nested(DEPTH_LIMIT))
        parse_object(_nested(DEPTH_LIMIT))
        for parse in (parse_json, parse_object):
            for depth in (DEPTH_LIMIT + 1, 100_000):
                with self.assertRaises(MalformedInput):
                    parse(_nested(depth))
        with self.assertRaises(MalformedInput):
            parse_json(b'[{"a":' * 33 + b"1" + b"}]" * 33)
        with self.assertRaises(MalformedInput):
            parse_json(b"[" * 100_000)

    def test_many_brackets_are_not_deep(self) -> None:
        """P37: siblings and brackets in strings do not count as depth."""
        self.assertEqual(len(parse_json(b"[" + b",".join([b"[{}]"] * 1000) + b"]")), 1000)
        text = '[{"' * 100
        self.assertEqual(parse_json(json.dumps([text, '\\"[' * 100]).encode()), [text, '\\"[' * 100])

    def test_digits(self) -> None:
        """P37: numbers up to the limit are exact."""
        digits = b"9" * DIGITS_LIMIT
        self.assertEqual(parse_json(digits), int(digits))
        with self.assertRaises(MalformedInput):
            parse_json(digits + b"9")
        self.assertTrue(math.isclose(parse_json(b"0." + b"3" * (DIGITS_LIMIT - 2)), 1 / 3))
        with self.assertRaises(MalformedInput):
            parse_json(b"0." + b"3" * (DIGITS_LIMIT - 1))

    def test_hostile_strings_stay_linear(self) -> None:
        """P37: text made to send a regular expression back and forth is refused in one pass."""
        brackets = b"[" * (DEPTH_LIMIT + 1)
        for tail in (b'"' + b'\\"' * 500_000, b'"\\\\' * 300_000, b'"' * 500_001, b'"\\ud83d' * 200_000):
            with self.assertRaises(MalformedInput):
                parse_json(brackets + tail)

    def test_messages_hold_no_content(self) -> None:
        """A refusal says what and where, and repeats nothing of what was sent."""
        with self.assertRaises(MalformedInput) as caught:
            parse_object('{"ключ": 1, "secret": canary}'.encode())
        self.assertEqual(caught.exception.message, "not JSON: Expecting value, at byte 26")

    @given(st.binary(max_size=200))
    def test_total(self, data: bytes) -> None:
        """P37: any bytes give a value or the one typed error."""
        for parse in (parse_json, parse_object):
            try:
                parse(data)
            except MalformedInput:
                continue

    @given(st.text(alphabet='{}[]",:\\u0d8c1eE+-. \n\U0001f600', max_size=60))
    def test_total_near_json(self, text: str) -> None:
        """P37: what is accepted, the standard parser accepts and reads the same."""
        try:
            value = parse_json(text.encode())
        except MalformedInput:
            return
        self.assertEqual(value, json.loads(text))


class Work(SynchronousTestCase):
    """What a text costs to parse is bounded by its structure, at the limit and one past (P37)."""

    def test_structure(self) -> None:
        at_limit = b'{"a":[' + b"0," * (STRUCTURE_LIMIT - 1) + b"0]}"
        self.assertEqual(len(parse_json(at_limit)["a"]), STRUCTURE_LIMIT)
        past = b'{"a":[' + b"0," * STRUCTURE_LIMIT + b"0]}"
        self.assertRaises(MalformedInput, parse_json, past)

    def test_arrays_and_objects(self) -> None:
        """P37: arrays in each other need no commas, and are counted all the same; brackets in strings are text."""
        deep = b"[" * 50 + b"]" * 50
        # with the array around them, and so the limit is met exactly
        at_limit = b"[" + b",".join([deep] * (STRUCTURE_LIMIT // 50 - 1)) + b"," + deep[1:-1] + b"]"
        self.assertEqual(len(parse_json(at_limit)), STRUCTURE_LIMIT // 50)
        past = b"[" + b",".join([deep] * (STRUCTURE_LIMIT // 50)) + b"]"
        self.assertRaises(MalformedInput, parse_json, past)
        text = b'{"a": "' + b"[{" * STRUCTURE_LIMIT + b'"}'
        self.assertEqual(len(parse_json(text)["a"]), 2 * STRUCTURE_LIMIT)

    def test_keys(self) -> None:
        def keys(count: int) -> bytes:
            return b"{" + b",".join(b'"%d":0' % number for number in range(count)) + b"}"

        self.assertEqual(len(parse_object(keys(KEYS_LIMIT))[0]), KEYS_LIMIT)
        self.assertRaises(MalformedInput, parse_object, keys(KEYS_LIMIT + 1))


class Agreement(SynchronousTestCase):
    """What is sound is read as the standard library reads it."""

    @given(_VALUES, st.booleans(), st.sampled_from([None, 0, 3]))
    def test_values(self, value: Any, ascii_only: bool, indent: int | None) -> None:
        """Any value, escaped or not, comes back."""
        data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
        self.assertEqual(parse_json(data), json.loads(data))

    def test_pairs_of_surrogates(self) -> None:
        """An escaped pair is one character, also where an escaped backslash stands before it."""
        self.assertEqual(
            parse_json(rb'"\ud83d\ude00\\\uD83D\uDE00\\ud83d\\u0000"'), "\U0001f600\\\U0001f600\\ud83d\\u0000"
        )

    def test_not_an_object(self) -> None:
        """Only an object has spans."""
        for data in (b"[1]", b"1", b'"a"', b"null"):
            parse_json(data)
            with self.assertRaises(MalformedInput):
                parse_object(data)


class Spans(SynchronousTestCase):
    """Where the values of an object stand."""

    @given(
        st.dictionaries(_SOUND_TEXT, _VALUES, max_size=6),
        st.booleans(),
        st.sampled_from([None, 0, 3]),
        st.sampled_from(["", " ", "\r\n\t"]),
    )
    def test_each_span_is_its_value(
        self, value: dict[str, Any], ascii_only: bool, indent: int | None, pad: str
    ) -> None:
        """The bytes of a span are the value, in bytes even where characters take several."""
        data = (pad + json.dumps(value, ensure_ascii=ascii_only, indent=indent) + pad).encode()
        parsed, spans = parse_object(data)
        self.assertEqual(parsed, json.loads(data))
        self.assertEqual(list(spans), list(parsed))
        for key, (start, end) in spans.items():
            self.assertEqual(json.loads(data[start:end]), parsed[key])
            self.assertEqual(data[start:end].strip(), data[start:end])

    @given(
        st.dictionaries(_SOUND_TEXT.filter(lambda key: key != "model"), _VALUES, max_size=4),
        _SOUND_TEXT,
        _SOUND_TEXT,
        st.booleans(),
    )
    def test_splice(self, others: dict[str, Any], old: str, new: str, ascii_only: bool) -> None:
        """Replacing one value by its span changes that value and not one other byte."""
        before = json.dumps({**others, "model": old, "after é": [1.50, "\u2028"]}, ensure_ascii=ascii_only).encode()
        _, spans = parse_object(before)
        start, end = spans["model"]
        after = before[:start] + json.dumps(new).encode() + before[end:]
        self.assertEqual(parse_object(after)[0], {**json.loads(before), "model": new})
        self.assertEqual(before[start:end], json.dumps(old, ensure_ascii=ascii_only).encode())

    def test_a_key_inside_a_value_is_not_a_key_of_the_object(self) -> None:
        """Only the object's own keys have spans."""
        data = b'{"messages":[{"model":"inner"}],"model":"outer"}'
        _, spans = parse_object(data)
        start, end = spans["model"]
        self.assertEqual(data[start:end], b'"outer"')
