"""R4: no side has more bytes on their way than it was granted, and credit is only returned for what was handed on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.flow import IncomingBody, OutgoingBody, ReceiveWindow, SendWindow
from iop.errors import FlowViolation
from iop.units import BODY_PIECE, RUN_WINDOW


class SendWindowTests(SynchronousTestCase):
    def test_grants_up_to_the_window(self) -> None:
        window = SendWindow(100)
        self.assertEqual([window.take(60), window.take(60), window.take(60)], [60, 40, 0])
        window.returned(30)
        self.assertEqual(window.take(60), 30)

    def test_grants_at_most_a_piece(self) -> None:
        """Bodies travel in pieces of at most 64 KiB."""
        self.assertEqual(SendWindow(RUN_WINDOW).take(RUN_WINDOW), BODY_PIECE)

    def test_credit_nobody_took(self) -> None:
        """R4: returning nothing, or more than was sent, is a violation."""
        window = SendWindow(100)
        window.take(10)
        self.assertRaises(FlowViolation, window.returned, 11)
        self.assertRaises(FlowViolation, window.returned, 0)
        window.returned(10)
        self.assertRaises(FlowViolation, window.returned, 1)


class ReceiveWindowTests(SynchronousTestCase):
    def test_at_the_limit_and_one_past(self) -> None:
        window = ReceiveWindow(100)
        window.received(100)
        self.assertRaises(FlowViolation, window.received, 1)

    def test_credit_comes_in_lumps(self) -> None:
        window = ReceiveWindow(100)
        window.received(100)
        self.assertEqual([window.handed_on(24), window.handed_on(1), window.handed_on(75)], [0, 25, 75])
        self.assertRaises(ValueError, window.handed_on, 1)

    def test_credit_not_returned_is_not_granted(self) -> None:
        """What was handed on but not yet returned still counts: the sender cannot know of it."""
        window = ReceiveWindow(100)
        window.received(100)
        self.assertEqual(window.handed_on(24), 0)
        self.assertRaises(FlowViolation, window.received, 1)

    @given(st.integers(1, 500), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300))))
    def test_both_windows_agree(self, size: int, steps: list[tuple[int, int]]) -> None:
        """A sender that keeps to its window never breaks the receiver's, and never starves once all is handed on."""
        send, receive = SendWindow(size), ReceiveWindow(size)
        held = 0

        def hand_on(count: int) -> None:
            credit = receive.handed_on(count)
            if credit:
                send.returned(credit)

        for wanted, handed_on in steps:
            granted = send.take(wanted)
            receive.received(granted)
            held += granted
            hand_on(min(held, handed_on))
            held -= min(held, handed_on)
        hand_on(held)
        self.assertGreater(send.take(size), size // 2 if size > 1 else 0)


class OutgoingBodyTests(SynchronousTestCase):
    def test_empty_body_is_one_empty_last_piece(self) -> None:
        """R1"""
        body = OutgoingBody(100)
        body.complete()
        self.assertEqual(list(body.pieces()), [(b"", True)])
        self.assertEqual(list(body.pieces()), [])

    def test_waits_for_credit(self) -> None:
        body = OutgoingBody(4)
        body.put(b"abcdef")
        body.put(bytearray(b"gh"))
        body.complete()
        self.assertEqual(list(body.pieces()), [(b"abcd", False)])
        self.assertTrue(body.waiting)
        body.credited(3)
        self.assertEqual(list(body.pieces()), [(b"ef", False), (b"g", False)])
        body.credited(1)
        self.assertEqual(list(body.pieces()), [(b"h", True)])
        self.assertFalse(body.waiting)

    def test_end_after_everything_was_sent(self) -> None:
        body = OutgoingBody(4)
        body.put(b"abcd")
        self.assertEqual(list(body.pieces()), [(b"abcd", False)])
        body.complete()
        self.assertEqual(list(body.pieces()), [(b"", True)])

    def test_slices_lazily(self) -> None:
        """A body larger than the window is not cut up before credit comes."""
        body = OutgoingBody(RUN_WINDOW)
        body.put(bytes(RUN_WINDOW + 1))
        body.complete()
        self.assertEqual([len(data) for data, _ in body.pieces()], [BODY_PIECE] * 4)

    def test_forgets(self) -> None:
        """Whoever ends a run while a piece of it is being sent gets no further piece."""
        body = OutgoingBody(8)
        body.put(b"abcd")
        body.put(b"efgh")
        body.complete()
        pieces = body.pieces()
        self.assertEqual(next(pieces), (b"abcd", False))
        body.forget()
        self.assertEqual(list(pieces), [])
        self.assertFalse(body.waiting)


class IncomingBodyTests(SynchronousTestCase):
    def test_exact_length(self) -> None:
        """R1: a body that is shorter or longer than announced is a violation, and so is one that goes on."""
        body = IncomingBody(RUN_WINDOW, 3)
        body.received(3, True)
        self.assertRaises(FlowViolation, body.received, 0, True)
        self.assertRaises(FlowViolation, IncomingBody(RUN_WINDOW, 3).received, 2, True)
        self.assertRaises(FlowViolation, IncomingBody(RUN_WINDOW, 3).received, 4, False)
        self.assertRaises(FlowViolation, IncomingBody(RUN_WINDOW, 0).received, 1, True)

    def test_piece_sizes(self) -> None:
        """R1, R4: 64 KiB are a piece, one byte more is not; an empty piece must be the last one."""
        IncomingBody(RUN_WINDOW, None).received(BODY_PIECE, False)
        self.assertRaises(FlowViolation, IncomingBody(RUN_WINDOW, None).received, BODY_PIECE + 1, False)
        self.assertRaises(FlowViolation, IncomingBody(RUN_WINDOW, None).received, 0, False)
        IncomingBody(RUN_WINDOW, None).received(0, True)

    def test_window(self) -> None:
        """R4: the window holds for the body as a whole."""
        body = IncomingBody(100, None)
        body.received(100, False)
        self.assertRaises(FlowViolation, body.received, 1, False)
        self.assertEqual(body.handed_on(100), 100)
        body.received(100, True)
