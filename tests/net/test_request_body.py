"""Bodies come out the same at every split of their bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import BadHttp
from iop.net.request_body import ChunkedBody, SizedBody


def pieces_of(data: bytes, places: list[int]) -> list[bytes]:
    cuts = sorted(place for place in places if place < len(data))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def fill(body: SizedBody | ChunkedBody, pieces: list[bytes]) -> bytes:
    """Feed until the body is whole; what is left over."""
    rest = b""
    for piece in pieces:
        rest += piece if body.whole else body.feed(piece)
    return rest


class BodyTests(SynchronousTestCase):
    @given(st.binary(min_size=1, max_size=50), st.binary(max_size=20), st.lists(st.integers(1, 69), max_size=5))
    def test_sized(self, content: bytes, after: bytes, places: list[int]) -> None:
        """P33: exactly the announced bytes, and nothing of what follows."""
        body = SizedBody(len(content))
        self.assertEqual(fill(body, pieces_of(content + after, places)), after)
        self.assertEqual((bytes(body.content), body.whole), (content, True))

    @given(
        st.lists(st.binary(min_size=1, max_size=20), max_size=6),
        st.sampled_from(["x", "X", "04x"]),
        st.binary(max_size=20),
        st.lists(st.integers(1, 200), max_size=6),
    )
    def test_chunked(self, chunks: list[bytes], style: str, after: bytes, places: list[int]) -> None:
        """P33: the chunks' contents, and nothing of what follows."""
        data = b"".join(b"%b\r\n%b\r\n" % (format(len(chunk), style).encode(), chunk) for chunk in chunks)
        reserved: list[int] = []
        body = ChunkedBody(1000, reserved.append)
        self.assertEqual(fill(body, pieces_of(data + b"0\r\n\r\n" + after, places)), after)
        self.assertEqual((bytes(body.content), body.whole), (b"".join(chunks), True))
        self.assertEqual(reserved, [*map(len, chunks)])

    @given(st.lists(st.sampled_from([b"1", b"a", b"0", b"\r\n", b"\n", b";", b"x" * 40]) | st.binary(max_size=10)))
    def test_total(self, pieces: list[bytes]) -> None:
        """Any bytes are part of a chunked body, or refused; the split does not matter, nor is the limit passed."""
        outcomes: list[tuple[bytes, bytes, int]] = []
        for split in (pieces, [b"".join(pieces)]):
            reserved: list[int] = []
            body = ChunkedBody(30, reserved.append)
            try:
                outcomes.append((fill(body, split), bytes(body.content), body.whole))
            except BadHttp as refusal:
                outcomes.append((b"", b"", refusal.status))
            self.assertLessEqual(len(body.content), sum(reserved))
            self.assertLessEqual(sum(reserved), 30)
        self.assertEqual(outcomes[0], outcomes[1])
