"""Responses are read the same at every split, strictly and within limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import BadHttp
from iop.net.response_reader import ResponseReader

LIMIT = 2000

SIZED = b"HTTP/1.1 200 OK\r\nContent-Type:  a/b \r\nX: \xe9\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nhello"

GOOD: dict[str, tuple[bytes, int, bytes, bool, bool]] = {
    # name: bytes, status, body, whole without a close, reusable
    "sized": (SIZED, 200, b"hello", True, True),
    "chunked": (CHUNKED, 200, b"abcde", True, True),
    "empty": (EMPTY, 204, b"", True, True),
    "after interim ones": (INTERIM + SIZED, 200, b"hello", True, True),
    "closing": (SIZED.replace(b"X:", b"Connection: close\r\nX:"), 200, b"hello", True, False),
    "of HTTP/1.0": (SIZED.replace(b"HTTP/1.1", b"HTTP/1.0"), 200, b"hello", True, False),
    "to the end": (TO_THE_END, 200, b"hello", False, False),
    "redirect": (SIZED.replace(b"200 OK", b"302 Found"), 302, b"hello", True, True),
    "unknown status": (SIZED.replace(b"200 OK", b"599 "), 599, b"hello", True, True),
}

BAD: dict[str, bytes] = {
    "not HTTP": b"SSH-2.0-OpenSSH\r\n",
    "HTTP/2": b"HTTP/2.0 200 OK\r\n\r\n",
    "bare LF": SIZED.replace(b"\r\n", b"\n"),
    "folded": SIZED.replace(b"X:", b"X: a\r\n b"),
    "control byte": SIZED.replace(b"\xe9", b"\x01"),
    "NUL": SIZED.replace(b"\xe9", b"\0"),
    "two lengths": SIZED.replace(b"X:", b"Content-Length: 6\r\nX:"),
    "length list": SIZED.replace(b": 5", b": 5, 5"),
    "length and chunks": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n", 1),
    "other coding": CHUNKED.replace(b": chunked", b": gzip"),
    "two codings": CHUNKED.replace(b": chunked", b": gzip, chunked"),
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "interim response with a length": b"HTTP/1.1 199 X\r\ncontent-length: 9\r\n\r\nINJECTED!" + SIZED,
    "interim response with a length of nothing": b"HTTP/1.1 103 X\r\nContent-Length: 0\r\n\r\n" + SIZED,
    "interim response in chunks": b"HTTP/1.1 104 X\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n" + SIZED,
    "status too small": b"HTTP/1.1 099 X\r\n\r\n",
    "chunk size": CHUNKED.replace(b"3;x=y", b"zz"),
    "chunk too long": CHUNKED.replace(b"abc", b"abcd"),
    "too many fields": b"HTTP/1.1 200 OK\r\n" + b"A:b\r\n" * 201 + b"\r\n",
    "head too large": b"HTTP/1.1 200 OK\r\nA: " + b"x" * LIMIT + b"\r\n\r\n",
    "endless interim responses": INTERIM * 40,
    "endless trailer": CHUNKED.replace(b"Trailer: x", b"Trailer: " + b"x" * (LIMIT + 1)),
}


def feed(data: bytes, places: list[int]) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader(LIMIT)
    body = b""
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        reader.feed(data[start:end])
        body += reader.take_body()
    return reader, body


class ResponseReaderTests(SynchronousTestCase):
    def check(self, name: str, places: list[int]) -> None:
        data, status, body, whole, reusable = GOOD[name]
        reader, got = feed(data, places)
        self.assertEqual((reader.status, got, reader.whole, reader.reusable), (status, body, whole, reusable), name)
        if data.endswith(SIZED):
            self.assertEqual(reader.headers, [("content-type", "a/b"), ("x", "\xe9"), ("content-length", "5")])
        self.assertTrue(reader.ended())
        self.assertFalse(reader.reusable and not reusable)

    def test_every_split(self) -> None:
        """P33: status, fields, body and end are the same at every split."""
        for name, (data, *_) in GOOD.items():
            for place in range(len(data) + 1):
                self.check(name, [place])
            self.check(name, list(range(1, len(data))))

    def test_bad(self) -> None:
        """Anything ambiguous, oversize or foreign is refused, whole and byte by byte."""
        accepted = []
        for name, data in BAD.items():
            for places in ([], list(range(1, len(data)))):
                try:
                    feed(data, places)
                except BadHttp as refusal:
                    self.assertEqual(refusal.status, 502)
                else:
                    accepted.append(name)
        self.assertEqual(accepted, [])

    def test_beyond(self) -> None:
        """P33: what follows a whole response makes the connection useless and the response no worse, at every split;
        line ends are nothing, as between requests.
        """
        for tail, reusable in ((b"\r\n", True), (b"\n\r\n", True), (b"x", False), (b"\r\n" + b"x" * LIMIT * 2, False)):
            for start in (SIZED, CHUNKED, EMPTY):
                data = start + tail
                for place in range(len(start) + 3):
                    reader, _ = feed(data, [place])
                    self.assertEqual((reader.whole, reader.reusable), (True, reusable), (start, tail[:3], place))

    def test_truncated(self) -> None:
        """P33: a response that ends early is not whole, unless its end is the connection's."""
        for data, enough in ((SIZED, len(SIZED)), (CHUNKED, len(CHUNKED)), (TO_THE_END, TO_THE_END.index(b"hello"))):
            for place in range(len(data)):
                reader, _ = feed(data[:place], [])
                self.assertFalse(reader.whole)
                self.assertEqual(reader.ended(), place >= enough, (data, place))

    def test_head_limit(self) -> None:
        """P32: heads up to the limit, counted over interim ones."""
        base = b"HTTP/1.1 200 OK\r\nA: \r\nContent-Length: 0\r\n\r\n"
        exact = base.replace(b"A: ", b"A: " + b"x" * (LIMIT - len(base)))
        self.assertTrue(feed(exact, [])[0].whole)
        self.assertRaises(BadHttp, feed, EMPTY.replace(b"204 No Content", b"100 Continue") + exact, [])

    def test_head_limit_whatever_the_split(self) -> None:
        """P32, P33: a head one byte too large is refused also when its body comes with it, one at the limit never."""
        for coding, body in (
            (b"Content-Length: 5", b"hello"),
            (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
        ):
            base = b"HTTP/1.1 200 OK\r\nA: \r\n" + coding + b"\r\n\r\n"
            exact = base.replace(b"A: ", b"A: " + b"x" * (LIMIT - len(base)))
            for places in ([], [LIMIT], list(range(1, len(exact + body)))):
                self.assertEqual(feed(exact + body, places)[1], b"hello")
            for places in ([], [LIMIT + 1], list(range(1, len(exact + body) + 1))):
                self.assertRaises(BadHttp, feed, exact.replace(b"A: ", b"A: x") + body, places)

    def test_interim_statuses(self) -> None:
        """P32, P33: no 1xx has content: one that announces some is refused, any other skipped, 101 always refused."""
        announcing = (b"", b"content-length: 9\r\n", b"content-length: 0\r\n", b"transfer-encoding: chunked\r\n")
        for status in range(100, 200):
            for field in announcing:
                head = b"HTTP/1.1 %d X\r\n%b\r\n" % (status, field)
                for places in ([], [len(head)], list(range(1, len(head + SIZED)))):
                    if field or status == 101:
                        refusal = self.assertRaises(BadHttp, feed, head + SIZED, places)
                        self.assertEqual(refusal.status, 502)
                    else:
                        reader, body = feed(head + SIZED, places)
                        self.assertEqual((reader.status, body, reader.whole), (200, b"hello", True), status)

    def test_endless_interim_content(self) -> None:
        """P32: what follows an interim head is bounded like heads, and none of it is kept for the final answer."""
        for field in (b"", b"content-length: 1000000\r\n", b"transfer-encoding: chunked\r\n"):
            reader = ResponseReader(LIMIT)
            refused = 0
            try:
                reader.feed(b"HTTP/1.1 199 X\r\n" + field + b"\r\n")
                for _ in range(LIMIT):
                    reader.feed(b"1\r\nx\r\n")
            except BadHttp:
                refused += 1
            self.assertEqual((refused, reader.take_body()), (1, b""))

    def test_more_than_a_response(self) -> None:
        """Bytes after the end belong to nobody: the response stands, the connection is not used again."""
        for extra in (SIZED, b"x", b"\r\nx", b"HTTP/1.1 500 "):
            for places in ([], [len(SIZED)]):
                reader, body = feed(SIZED + extra, places)
                self.assertEqual((reader.status, body, reader.whole), (200, b"hello", True))
                self.assertFalse(reader.reusable, extra)

    @given(
        st.lists(
            st.sampled_from([SIZED, CHUNKED, INTERIM, b"\r\n", b"0", b"HTTP/1.1 ", b"\0"]) | st.binary(max_size=50)
        )
    )
    def test_total(self, pieces: list[bytes]) -> None:
        """Any bytes are a response, a part of one, or refused."""
        reader = ResponseReader(LIMIT)
        try:
            for piece in pieces:
                reader.feed(piece)
                reader.take_body()
        except BadHttp:
            reader.release()
        reader.ended()
