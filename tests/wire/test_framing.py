"""Frames, however the stream is cut."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import FrameTooLarge, MalformedFrame
from iop.units import FRAME_BEFORE_HELLO, FRAME_LIMIT
from iop.wire.framing import FrameDecoder, encode_frame
from tests.memory import allocated, kept

FRAMES = [b"a", b"bc" * 40, b"\0" * 9, b"\xff" * 300]
STREAM = b"".join(map(encode_frame, FRAMES))


def decode(chunks: Iterable[bytes], limit: int = FRAME_LIMIT) -> list[bytes]:
    """All frames of a stream that arrives in ``chunks``."""
    decoder = FrameDecoder(limit)
    frames = []
    for chunk in chunks:
        decoder.feed(chunk)
        while (frame := decoder.next_frame()) is not None:
            frames.append(frame)
    return frames


def single_bytes(stream: bytes) -> Iterable[bytes]:
    """A stream as it drips."""
    return (stream[place : place + 1] for place in range(len(stream)))


class DecoderTests(SynchronousTestCase):
    def test_every_split_point(self) -> None:
        """P33, W1: one cut, anywhere, changes nothing."""
        for place in range(len(STREAM) + 1):
            self.assertEqual(decode([STREAM[:place], STREAM[place:]]), FRAMES)

    def test_two_split_points(self) -> None:
        """P33: neither do two, which leaves a frame's middle in a chunk of its own."""
        stream = b"".join(map(encode_frame, [b"abc", b"d", b"ef"]))
        for first in range(len(stream) + 1):
            for second in range(first, len(stream) + 1):
                chunks = [stream[:first], stream[first:second], stream[second:]]
                self.assertEqual(decode(chunks), [b"abc", b"d", b"ef"])

    @given(st.lists(st.binary(min_size=1, max_size=200), max_size=20), st.lists(st.integers(0, 4000), max_size=40))
    def test_any_chunking(self, frames: list[bytes], cuts: list[int]) -> None:
        """P33: nor any number of them."""
        stream = b"".join(map(encode_frame, frames))
        places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
        chunks = [stream[start:end] for start, end in pairwise(places)]
        self.assertEqual(decode(chunks), frames)

    def test_truncated_never_dispatches(self) -> None:
        """P33: a frame that lacks its last byte is no frame, however long the wait."""
        frame = encode_frame(b"x" * 100)
        for size in range(len(frame)):
            self.assertEqual(decode([frame[:size], b"", b""]), [])

    def test_byte_by_byte(self) -> None:
        """W1: a frame of 1 MiB in single bytes."""
        payload = bytes(range(256)) * (FRAME_LIMIT // 256)
        self.assertEqual(decode(single_bytes(encode_frame(payload))), [payload])

    def test_linear(self) -> None:
        """W1: a frame that drips in is not copied with every drop, which would be 64 KiB of work for each of 1,024."""
        size, drop = 64 * 1024, 64
        decoder, frames = FrameDecoder(FRAME_LIMIT), []

        def take(chunk: bytes) -> None:
            decoder.feed(chunk)
            frames.append(decoder.next_frame())

        stream = encode_frame(b"x" * size)
        chunks = [stream[place : place + drop] for place in range(0, len(stream), drop)]
        self.assertLess(allocated(partial(take, chunk) for chunk in chunks), 10 * size)
        self.assertEqual(frames[-1], b"x" * size)

    def test_large_chunks(self) -> None:
        """W1: frames of 1 MiB in chunks of 64 KiB, none of which starts where a frame does."""
        payload = bytes(range(256)) * (FRAME_LIMIT // 256)
        stream = encode_frame(payload) * 3
        chunks = [stream[place : place + 65_536] for place in range(0, len(stream), 65_536)]
        self.assertEqual(decode(chunks), [payload] * 3)

    def test_holds_no_consumed_bytes(self) -> None:
        """P32: what was handed out is let go of, also when every chunk ends in the middle of a frame."""
        payload = b"y" * 50_000
        decoder, frame = FrameDecoder(len(payload)), encode_frame(payload)

        def stream() -> None:
            decoder.feed(frame[:30])
            for _ in range(200):
                self.assertIsNone(decoder.next_frame())
                decoder.feed(frame[30:] + frame[:30])
                self.assertEqual(decoder.next_frame(), payload)

        self.assertLess(kept(stream), 3 * len(frame))


class LimitTests(SynchronousTestCase):
    def test_limit_and_one_past(self) -> None:
        """P32, W2: exactly the limit passes, one byte more does not."""
        for limit in (1, FRAME_BEFORE_HELLO, FRAME_LIMIT):
            self.assertEqual(decode([encode_frame(b"z" * limit)], limit), [b"z" * limit])
            with self.assertRaises(FrameTooLarge):
                decode([encode_frame(b"z" * (limit + 1))], limit)

    def test_refused_from_the_length_alone(self) -> None:
        """P32, W2: four bytes are enough, and it stays refused."""
        decoder = FrameDecoder(10)
        decoder.feed((11).to_bytes(4, "big"))
        for _ in range(2):
            with self.assertRaises(FrameTooLarge):
                decoder.next_frame()

    def test_limit_holds_from_the_next_frame_on(self) -> None:
        """W2: a limit set between two frames of one chunk decides about the second."""
        decoder = FrameDecoder(3)
        decoder.feed(encode_frame(b"abc") + encode_frame(b"defg"))
        self.assertEqual(decoder.next_frame(), b"abc")
        decoder.limit = 4
        self.assertEqual(decoder.next_frame(), b"defg")

        decoder.feed(encode_frame(b"hijk") + encode_frame(b"lm"))
        self.assertEqual(decoder.next_frame(), b"hijk")
        decoder.limit = 1
        with self.assertRaises(FrameTooLarge):
            decoder.next_frame()

    def test_empty_frame(self) -> None:
        """W1: a length of 0 is malformed, to send and to receive."""
        with self.assertRaises(MalformedFrame):
            decode([b"\0\0\0\0"])
        with self.assertRaises(MalformedFrame):
            encode_frame(b"")
