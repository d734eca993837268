"""Heads of requests, one after another."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from iop.errors import BadHttp
from iop.net.http_application import HttpLimits
from iop.net.request_head import HeadReader

FIRST = b"POST /a%20b?c=d HTTP/1.1\r\nHost: edge\r\nX-Y: \t z \t\r\nContent-Length: 3\r\n\r\n"
SECOND = b"GET / HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n\r\n"


class HeadReaderTests(SynchronousTestCase):
    def test_every_split(self) -> None:
        """P33: the same head, and nothing done with before it is whole, however its bytes come."""
        for split in range(len(FIRST)):
            reader = HeadReader(HttpLimits())
            if split:
                self.assertEqual(reader.read(FIRST[:split]), (0, None))
            size, found = reader.read(FIRST + b"abc" + SECOND)
            assert found is not None
            head, framing = found
            self.assertEqual((size, head.method, head.path, head.query), (len(FIRST), "POST", "/a%20b", "c=d"))
            self.assertEqual(head.headers, ((b"host", b"edge"), (b"x-y", b"z"), (b"content-length", b"3")))
            self.assertEqual((framing.length, framing.closes), (3, False))

    def test_one_after_another(self) -> None:
        """A reader is done with one head before the next, each of which may follow one empty line."""
        reader = HeadReader(HttpLimits())
        for _ in range(2):
            self.assertEqual(reader.read(b"\r"), (0, None))
            self.assertEqual(reader.read(b"\r\n" + SECOND), (2, None))
            size, found = reader.read(SECOND)
            assert found is not None
            self.assertEqual((size, found[0].method, found[1].closes), (len(SECOND), "GET", True))

    def test_second_empty_line(self) -> None:
        """There may be one, and it is CRLF."""
        for line in (b"\n", b"\r\r", b"\r\n"):
            reader = HeadReader(HttpLimits())
            if line == b"\r\n":
                self.assertEqual(reader.read(line), (2, None))
            self.assertEqual(self.assertRaises(BadHttp, reader.read, line).status, 400)
