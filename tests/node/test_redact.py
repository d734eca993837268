"""R9: the exact secret leaves no Node in a header or an error body, however the upstream cuts it."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.node.redact import MARK, Redactor, passed_headers
from iop.secret import Secret

CANARY = b"sk-canary-1234"
#: Few letters, so that secrets overlap themselves and each other's beginnings.
SECRETS = st.text("ab", min_size=1, max_size=6).map(str.encode)
#: Printable ASCII, mostly what encoders escape and what they escape with.
AWKWARD = st.text(st.sampled_from('"\\/<>&u0a'), min_size=1, max_size=5) | st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=5
)
CHUNKS = st.lists(st.text("abc", max_size=8).map(str.encode), max_size=12)


def redacted(secret: bytes, chunks: list[bytes]) -> bytes:
    redactor = Redactor(Secret(secret))
    return b"".join([*map(redactor.feed, chunks), redactor.finish()])


class RedactorTests(SynchronousTestCase):
    def test_every_split_point(self) -> None:
        """R9, P33: one split, anywhere, gives what no split gives."""
        body = b'{"error": "bad key ' + CANARY + b" and " + CANARY + CANARY + b'"}'
        whole = body.replace(CANARY, MARK)
        for cut in range(len(body) + 1):
            self.assertEqual(redacted(CANARY, [body[:cut], body[cut:]]), whole)
        self.assertEqual(redacted(CANARY, [body[place : place + 1] for place in range(len(body))]), whole)

    @given(SECRETS, CHUNKS)
    def test_any_chunks(self, secret: bytes, chunks: list[bytes]) -> None:
        """R9, P33: any chunking gives what replacing in the whole gives, and the secret is not in it."""
        result = redacted(secret, chunks)
        self.assertEqual(result, b"".join(chunks).replace(secret, MARK))
        self.assertNotIn(secret, result)

    @given(SECRETS, CHUNKS)
    def test_keeps_back_less_than_a_secret(self, secret: bytes, chunks: list[bytes]) -> None:
        """Memory is bounded by the secret, and nothing that cannot be its beginning waits for more."""
        redactor = Redactor(Secret(secret))
        for chunk in chunks:
            redactor.feed(chunk)
        self.assertLess(len(redactor.finish()), len(secret))

    def test_json_spellings(self) -> None:
        """R9: an error that quotes the secret in JSON, as encoders of several languages write it, is clean."""
        secret = 'a"b\\c/d<e>&f'
        for quoted in (
            secret,
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
            'a\\"b\\\\c\\/d<e>&f',
            'a\\"b\\\\c/d\\u003ce\\u003e\\u0026f',
        ):
            body = f'{{"error": "bad key {quoted}"}}'.encode()
            for cut in range(len(body) + 1):
                clean = redacted(secret.encode(), [body[:cut], body[cut:]])
                self.assertEqual(clean, b'{"error": "bad key ' + MARK + b'"}', quoted)

    @given(AWKWARD, st.lists(st.integers(0, 5) | st.text('"\\/<>&u03ca', max_size=6), max_size=6), st.data())
    def test_any_spelling_at_every_split(self, secret: str, parts: list[int | str], data: st.DataObject) -> None:
        """R9, P33: at every split what replacing the leftmost, longest spelling in the whole gives; none is left."""
        quoted = json.dumps(secret)[1:-1]
        go = quoted.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        spellings = sorted({secret, quoted, quoted.replace("/", "\\/"), go}, key=len, reverse=True)
        texts = (part if isinstance(part, str) else spellings[part % len(spellings)] for part in parts)
        body = "".join(texts).encode()
        expected = re.sub(b"|".join(re.escape(text.encode()) for text in spellings), MARK, body)
        for cut in range(len(body) + 1):
            self.assertEqual(redacted(secret.encode(), [body[:cut], body[cut:]]), expected)
        self.assertEqual(redacted(secret.encode(), [body[place : place + 1] for place in range(len(body))]), expected)
        places = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=5)))
        pieces = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
        self.assertEqual(redacted(secret.encode(), pieces), expected)
        for text in spellings:
            self.assertNotIn(text.encode(), expected)

    @given(AWKWARD, CHUNKS)
    def test_keeps_back_less_than_the_longest_spelling(self, secret: str, chunks: list[bytes]) -> None:
        """Memory is bounded by the secret also when it has other spellings."""
        redactor = Redactor(Secret(secret.encode()))
        for chunk in chunks:
            redactor.feed(chunk)
        self.assertLess(len(redactor.finish()), 6 * len(secret))

    def test_spellings_are_zeroed(self) -> None:
        """P25: what a redactor made of the secret does not outlive it, finished or not."""
        for finish in (Redactor.finish, Redactor.dispose):
            redactor = Redactor(Secret(b'a"b/c<d'))
            redactor.feed(b'a\\"b')
            made = [secret.reveal() for secret in redactor._spelled]
            self.assertEqual(len(made), 3)
            finish(redactor)
            self.assertEqual((made, bytes(redactor._held)), ([bytearray()] * 3, b""))

    def test_no_secret_removes_nothing(self) -> None:
        self.assertEqual(redacted(b"", [b"abc", b"", b"def"]), b"abcdef")

    def test_secret_left_to_its_owner(self) -> None:
        secret = Secret(CANARY)
        redactor = Redactor(secret)
        redactor.feed(CANARY)
        redactor.finish()
        self.assertEqual(secret.reveal(), CANARY)


class HeaderTests(SynchronousTestCase):
    def test_closed_list(self) -> None:
        passed = [
            ("content-type", "application/json"),
            ("retry-after", "3"),
            ("x-request-id", "abc"),
            ("cache-control", "no-store"),
            ("content-encoding", "gzip"),
            ("openai-processing-ms", "12"),
            ("x-ratelimit-remaining-requests", "9"),
        ]
        kept_back = [
            ("set-cookie", "a=b"),
            ("location", "https://elsewhere.example/"),
            ("www-authenticate", "Bearer"),
            ("content-length", "3"),
            ("server", "nginx"),
            ("x-openai-anything", "1"),
        ]
        self.assertEqual(passed_headers([*passed, *kept_back], Secret(CANARY)), passed)

    def test_secret_in_header(self) -> None:
        """R9: a header that holds the secret, in its value or its name, does not travel."""
        canary = CANARY.decode()
        headers = [
            ("x-request-id", f"for {canary}!"),
            (f"openai-{canary}", "1"),
            ("cache-control", canary),
            ("content-type", "text/plain"),
        ]
        self.assertEqual(passed_headers(headers, Secret(CANARY)), [("content-type", "text/plain")])
        self.assertEqual(passed_headers(headers, Secret(b"")), headers)
