"""Room for request bodies, shared among those who send them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import BadHttp
from iop.net.body_room import BodyRoom, Reservation

TOTAL = 64


class BodyRoomTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.room = BodyRoom(TOTAL)

    def refused(self, status: int, owner: str | None, count: int) -> None:
        refusal: BadHttp = self.assertRaises(BadHttp, self.room.take, owner, count)
        self.assertEqual(refusal.status, status)

    def test_half_for_one(self) -> None:
        """P19: one owner alone gets half, and what it is refused is its own doing (429)."""
        self.refused(503, "ann", TOTAL // 2 + 1)
        self.room.take("ann", TOTAL // 2)
        self.refused(429, "ann", 1)
        self.room.take("bob", TOTAL // 4)
        self.room.give_back("ann", 1)
        self.refused(429, "ann", 1)

    def test_half_of_the_rest_for_the_next(self) -> None:
        """P19: however many are at their limit, whoever holds nothing gets half of what they left."""
        left = TOTAL
        for number in range(6):
            self.refused(503, f"owner-{number}", left // 2 + 1)
            self.room.take(f"owner-{number}", left // 2)
            left -= left // 2
        self.refused(503, "late", 1)
        self.room.give_back("owner-5", 1)
        self.room.take("late", 1)

    def test_nobody_known(self) -> None:
        """P32: what belongs to nobody known is bounded by the total alone, as all is."""
        self.room.take("ann", 10)
        self.refused(503, None, TOTAL - 9)
        self.room.take(None, TOTAL - 10)
        self.refused(503, "bob", 1)
        self.refused(429, "ann", 1)
        self.room.give_back(None, TOTAL - 10)
        self.room.take("bob", 20)

    def test_reservation(self) -> None:
        """A body's room is given back whole and once, whatever was refused meanwhile."""
        reservation = Reservation(self.room, "ann")
        reservation.give_back()
        reservation.take(10)
        reservation.take(22)
        self.assertRaises(BadHttp, reservation.take, 1)
        reservation.give_back()
        reservation.give_back()
        self.room.take("ann", TOTAL // 2)
        self.refused(429, "ann", 1)

    @given(st.lists(st.tuples(st.sampled_from(["ann", "bob", "carol"]), st.integers(1, TOTAL), st.booleans())))
    def test_any_order(self, steps: list[tuple[str, int, bool]]) -> None:
        """P19, P32: whatever is taken and given back, nobody has taken more than was left, and nothing is lost."""
        room = BodyRoom(TOTAL)
        taken: list[tuple[str, int]] = []
        for owner, count, gives in steps:
            if gives and taken:
                room.give_back(*taken.pop(count % len(taken)))
                continue
            held = sum(size for name, size in taken if name == owner)
            left = TOTAL - sum(size for _, size in taken) - count
            try:
                room.take(owner, count)
            except BadHttp as refusal:
                self.assertGreater(held + count, left)
                self.assertEqual(refusal.status, 429 if held else 503)
            else:
                self.assertLessEqual(held + count, left)
                taken.append((owner, count))
        for owner, count in taken:
            room.give_back(owner, count)
        room.take(None, TOTAL)
