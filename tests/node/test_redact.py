"""R9: the exact secret leaves no Node in a header or an error body, however the upstream cuts it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.node.redact import MARK, Redactor, passed_headers
from iop.secret import Secret

CANARY = b"sk-canary-1234"
#: Few letters, so that secrets overlap themselves and each other's beginnings.
SECRETS = st.text("ab", min_size=1, max_size=6).map(str.encode)
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
