"""Requests in flight."""

from __future__ import annotations

import weakref

from google.protobuf.message import Message
from twisted.trial.unittest import SynchronousTestCase

from iop.core.correlation import Inbound, Outbound
from iop.errors import DuplicateCorrelation, IopError, StrayAnswer, TooManyInFlight, UnexpectedMessage
from iop.units import IN_FLIGHT_LIMIT


def nobody(outcome: Message | IopError) -> None:
    """Waits for an answer and does not care."""


class OutboundTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.book = Outbound()

    def test_ids_rise_from_one(self) -> None:
        """W4: above 0, and none is used twice."""
        self.assertEqual([self.book.ask("k", 1, nobody) for _ in range(3)], [1, 2, 3])
        self.book.answered(2, "k")
        self.assertEqual(self.book.ask("k", 1, nobody), 4)

    def test_answer_finds_who_asked(self) -> None:
        """W4: whatever order the answers come in."""

        def first(outcome: Message | IopError) -> None: ...

        def second(outcome: Message | IopError) -> None: ...

        one, two = self.book.ask("a", 5, first), self.book.ask("b", 5, second)
        self.assertEqual(self.book.waiting, 2)
        self.assertIs(self.book.answered(two, "b"), second)
        self.assertIs(self.book.answered(one, "a"), first)
        self.assertEqual(self.book.waiting, 0)

    def test_strays(self) -> None:
        """P36, W4: an id never asked, an id answered already, another kind."""
        request = self.book.ask("a", 5, nobody)
        for wrong, kind in ((0, "a"), (2, "a"), (2, ""), (request, "b"), (request, "")):
            with self.assertRaises(StrayAnswer):
                self.book.answered(wrong, kind)
        self.book.answered(request, "a")
        with self.assertRaises(StrayAnswer):
            self.book.answered(request, "a")

    def test_late_answer_is_not_a_stray(self) -> None:
        """P36, W5: once, and only as the kind that was asked for."""
        request = self.book.ask("a", 5, nobody)
        self.assertEqual(self.book.expired(4.9), [])
        self.assertEqual(self.book.expired(5), [nobody])
        self.assertEqual(self.book.expired(6), [])
        self.assertEqual(self.book.waiting, 0)
        with self.assertRaises(StrayAnswer):
            self.book.answered(request, "b")
        self.assertIsNone(self.book.answered(request, "a"))
        with self.assertRaises(StrayAnswer):
            self.book.answered(request, "a")

    def test_tombstones_keep_their_place(self) -> None:
        """W5, W6: requests and tombstones are 1,024 together; a late answer makes room."""
        requests = [self.book.ask("a", 5, nobody) for _ in range(IN_FLIGHT_LIMIT)]
        with self.assertRaises(TooManyInFlight):
            self.book.ask("a", 5, nobody)
        self.assertEqual(len(self.book.expired(5)), IN_FLIGHT_LIMIT)
        with self.assertRaises(TooManyInFlight):
            self.book.ask("a", 9, nobody)
        self.assertIsNone(self.book.answered(requests[7], "a"))
        self.book.ask("a", 9, nobody)
        with self.assertRaises(TooManyInFlight):
            self.book.ask("a", 9, nobody)

    def test_deadlines_in_any_order(self) -> None:
        """The earliest deadline somebody waits for comes first, whatever order they were set in."""
        requests = {deadline: self.book.ask("a", deadline, nobody) for deadline in (7.0, 3.0, 5.0)}
        self.assertEqual(self.book.next_deadline(), 3.0)
        self.book.answered(requests[3.0], "a")
        self.assertEqual(self.book.next_deadline(), 5.0)
        self.book.expired(5.0)
        self.assertEqual(self.book.next_deadline(), 7.0)
        self.book.answered(requests[7.0], "a")
        self.assertIsNone(self.book.next_deadline())

    def test_deadlines_of_answered_requests_do_not_pile_up(self) -> None:
        """P48: a first request with an early deadline does not keep the deadlines of all later ones."""
        self.book.ask("a", 0.5, nobody)

        class Counted(float):
            """A number that can be seen to be let go of."""

        later: list[weakref.ref[Counted]] = []
        for _ in range(10 * IN_FLIGHT_LIMIT):
            deadline = Counted(5)
            later.append(weakref.ref(deadline))
            self.book.answered(self.book.ask("a", deadline, nobody), "a")
        self.assertLessEqual(len([one for one in later if one() is not None]), 2 * IN_FLIGHT_LIMIT)
        self.assertEqual(self.book.next_deadline(), 0.5)

    def test_clear(self) -> None:
        """W11: those who still wait, once, in order; not the timed-out ones again."""
        told: list[list[Message | IopError]] = [[], [], []]
        for outcomes, deadline in zip(told, (9, 5, 9), strict=True):
            self.book.ask("a", deadline, outcomes.append)
        self.book.expired(5)
        for done in self.book.clear():
            done(IopError("ended"))
        self.assertEqual([len(outcomes) for outcomes in told], [1, 0, 1])
        self.assertEqual(self.book.clear(), [])
        self.assertEqual(self.book.waiting, 0)
        self.assertIsNone(self.book.next_deadline())


class InboundTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.book = Inbound()

    def test_zero(self) -> None:
        """W4: a request has an id."""
        with self.assertRaises(UnexpectedMessage):
            self.book.asked(0, "a")

    def test_duplicate(self) -> None:
        """P36, W4: an id in flight; once answered it is free again."""
        self.book.asked(5, "a")
        with self.assertRaises(DuplicateCorrelation):
            self.book.asked(5, "b")
        self.book.answer(5, "a")
        self.book.asked(5, "a")

    def test_limit_and_one_past(self) -> None:
        """W6."""
        for number in range(1, IN_FLIGHT_LIMIT + 1):
            self.book.asked(number, "a")
        with self.assertRaises(TooManyInFlight):
            self.book.asked(IN_FLIGHT_LIMIT + 1, "a")
        self.book.answer(1, "a")
        self.book.asked(IN_FLIGHT_LIMIT + 1, "a")

    def test_answers_only_what_was_asked(self) -> None:
        """W4: once, and with the kind that belongs to it."""
        self.book.asked(5, "a")
        for request, kind in ((4, "a"), (5, "b")):
            with self.assertRaises(UnexpectedMessage):
                self.book.answer(request, kind)
        self.book.answer(5, "a")
        with self.assertRaises(UnexpectedMessage):
            self.book.answer(5, "a")
        self.assertEqual(len(self.book), 0)
