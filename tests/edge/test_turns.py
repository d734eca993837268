"""Long work, one piece a turn (P19)."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.edge.turns import Turns
from iop.interfaces import IClock


@implementer(IClock)
class EventLoop:
    """Does what is due when a turn begins, and nothing that is asked for within it, as a reactor does."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def boot(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0

    def call_later(self, seconds: float, what: Callable[[], object]) -> IDelayedCall:
        self.due.append(what)
        return Clock().callLater(seconds, what)

    def turn(self) -> None:
        due, self.due = self.due, []
        for each in due:
            each()


class TurnTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.loop = EventLoop()
        self.turns = Turns(self.loop)
        self.done: list[int] = []

    def add(self, number: int) -> None:
        self.turns.add(lambda: self.done.append(number))

    def test_one_a_turn_in_order(self) -> None:
        """Nothing at once, then one piece each time the loop comes round, and no turn is asked for without work."""
        for number in range(3):
            self.add(number)
        self.assertEqual(self.done, [])
        seen = []
        for _ in range(3):
            self.loop.turn()
            seen.append(list(self.done))
        self.assertEqual(seen, [[0], [0, 1], [0, 1, 2]])
        self.assertEqual(self.loop.due, [])

    def test_work_that_brings_work(self) -> None:
        """What is added by a piece comes after what waits."""
        self.turns.add(lambda: self.add(1))
        self.add(0)
        for _ in range(3):
            self.loop.turn()
        self.assertEqual(self.done, [0, 1])

    def test_work_that_fails(self) -> None:
        """A piece that fails keeps none of the others waiting."""
        self.turns.add(lambda: 1 // 0)
        self.add(0)
        self.assertRaises(ZeroDivisionError, self.loop.turn)
        self.loop.turn()
        self.assertEqual(self.done, [0])

    def test_work_that_is_forgotten(self) -> None:
        """What is forgotten is not done, is let go of at once, and takes nobody's turn; too late, that does nothing."""
        held = Held()
        gone = ref(held)
        forget = self.turns.add(held.work)
        self.add(0)
        last = self.turns.add(lambda: self.done.append(1))
        del held
        forget()
        self.assertIsNone(gone())
        self.loop.turn()
        self.assertEqual(self.done, [0])
        self.loop.turn()
        last()
        self.assertEqual((self.done, self.loop.due), ([0, 1], []))

    def test_nothing_but_forgotten_work(self) -> None:
        """A turn that finds nothing asks for no other, and work that comes later gets its own."""
        self.turns.add(lambda: self.done.append(0))()
        self.loop.turn()
        self.assertEqual((self.done, self.loop.due), ([], []))
        self.add(1)
        self.loop.turn()
        self.assertEqual(self.done, [1])


class Held:
    """Something that a piece of work holds."""

    def work(self) -> None:
        """The work."""
