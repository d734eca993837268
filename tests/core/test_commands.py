"""Commands to an Edge, without an Edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.commands import (
    ENDS,
    FINAL,
    OPERATIONS,
    REFUSALS,
    REMEMBERED,
    RUNNING_LIMIT,
    STEPS,
    Chooses,
    Command,
    Journal,
    Order,
    Phase,
    State,
    Step,
    read,
)
from iop.core.selectors import TERM_LIMIT, parse
from iop.errors import CommandRefused, UnexpectedStep

DRAIN = Order("c-1", "node.drain", "node=node-1", ())
#: One of each step, as a command takes it.
TAKES: dict[Step, Callable[[Command], None]] = {
    Step.BEGIN: lambda command: command.begin(3),
    Step.ADVANCE: lambda command: command.advance(2),
    Step.SUCCEED: lambda command: command.succeed(),
    Step.FAIL: lambda command: command.fail("deadline"),
    Step.CANCEL: lambda command: command.cancel("stopping"),
}
#: How a command comes to be in a phase.
PATHS: dict[Phase, tuple[Step, ...]] = {
    Phase.ACCEPTED: (),
    Phase.RUNNING: (Step.BEGIN,),
    Phase.SUCCEEDED: (Step.BEGIN, Step.SUCCEED),
    Phase.FAILED: (Step.BEGIN, Step.FAIL),
    Phase.CANCELLED: (Step.CANCEL,),
}


class CommandTests(SynchronousTestCase):
    """S10: how one command goes on."""

    def setUp(self) -> None:
        self.told: list[State] = []
        self.now_ms = 7

    def command(self, *steps: Step) -> Command:
        command = Command(DRAIN, lambda: self.now_ms, lambda command: self.told.append(command.state))
        for step in steps:
            TAKES[step](command)
        return command

    def test_every_phase_takes_or_refuses_every_step(self) -> None:
        """S10: each of them has its place in the table, or is refused and changes and tells nothing."""
        for phase, step in product(Phase, Step):
            command = self.command(*PATHS[phase])
            before = command.state
            self.assertIs(before.phase, phase)
            self.told.clear()
            if (phase, step) in STEPS:
                TAKES[step](command)
                self.assertEqual(self.told, [command.state])
                self.assertIs(command.state.phase, STEPS[phase, step])
            else:
                self.assertRaises(UnexpectedStep, TAKES[step], command)
                self.assertEqual((command.state, self.told), (before, []))
            self.assertEqual(command.is_over, command.state.phase in FINAL)

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.sampled_from(Step), st.integers(0, 9))))
    def test_events_rise(self, steps: list[tuple[Step, int]]) -> None:
        """S10: whatever is tried, phases and numbers only rise, there is one end at most, and nothing after it."""
        self.told.clear()
        command = self.command()
        seen = [command.state]
        for step, number in steps:
            self.now_ms += 1
            try:
                match step:
                    case Step.BEGIN:
                        command.begin(number)
                    case Step.ADVANCE:
                        command.advance(number)
                    case _:
                        TAKES[step](command)
            except UnexpectedStep:
                self.assertIs(seen[-1], command.state)
            seen.append(command.state)
        for before, after in zip([seen[0], *self.told], self.told, strict=False):
            self.assertLessEqual(before.phase.value, after.phase.value)
            self.assertGreater(after.at_ms, before.at_ms)
            if before.phase is not Phase.ACCEPTED:
                self.assertEqual(after.total, before.total)
                self.assertGreaterEqual(after.done, before.done)
        for state in self.told:
            self.assertLessEqual(state.done, state.total)
            self.assertEqual(bool(state.code), state.phase in {Phase.FAILED, Phase.CANCELLED})
        ends = [state for state in self.told if state.phase in FINAL]
        self.assertEqual(ends, self.told[-1:] if command.is_over else [])

    def test_success_is_all_of_it(self) -> None:
        """S10: what succeeded has everything done."""
        self.assertEqual(
            self.command(Step.BEGIN, Step.ADVANCE, Step.SUCCEED).state, State(Phase.SUCCEEDED, 3, 3, "", 7)
        )


class JournalTests(SynchronousTestCase):
    """S6, S10: which commands are known."""

    def setUp(self) -> None:
        self.told: list[tuple[str, Phase]] = []
        self.journal = Journal(
            lambda: 0, lambda command: self.told.append((command.order.command_id, command.state.phase))
        )

    def assertRefuses(self, reason: str, call: Callable[[Order], object], order: Order) -> None:
        refused = self.assertRaises(CommandRefused, call, order)
        self.assertEqual((refused.reason, refused.message), (reason, REFUSALS[reason]))

    def test_repeated(self) -> None:
        """S6: the same order is found as long as it runs and when it is over; another one of its id is a conflict."""
        self.assertIsNone(self.journal.find(DRAIN))
        command = self.journal.accept(DRAIN)
        for step in (Step.BEGIN, Step.SUCCEED):
            self.assertIs(self.journal.find(replace(DRAIN)), command)
            for other in (
                replace(DRAIN, operation="node.resume"),
                replace(DRAIN, selector="node=node-2"),
                replace(DRAIN, metadata=(("deadline_seconds", "5"),)),
            ):
                self.assertRefuses("command_conflict", self.journal.find, other)
            TAKES[step](command)
        self.assertIs(self.journal.find(DRAIN), command)
        self.assertEqual(self.told, [("c-1", Phase.RUNNING), ("c-1", Phase.SUCCEEDED)])

    def test_ids(self) -> None:
        """S6: 1-64 of letters, digits and . _ -"""
        for good in ("a", "A.b_c-9", "x" * 64, "-"):
            self.assertIsNone(self.journal.find(replace(DRAIN, command_id=good)))
        for bad in ("", "x" * 65, "a b", "a\n", "ä", "a/b", "a=b", "\0"):
            self.assertRefuses("bad_command_id", self.journal.find, replace(DRAIN, command_id=bad))

    def test_how_many_run(self) -> None:
        """S10: sixteen at most, those that were only accepted among them; an end makes room."""
        running = [self.journal.accept(replace(DRAIN, command_id=f"c-{number}")) for number in range(RUNNING_LIMIT)]
        running[0].begin(1)
        self.assertEqual(self.journal.running, running)
        self.assertRefuses("too_many_commands", self.journal.accept, replace(DRAIN, command_id="more"))
        self.assertIsNone(self.journal.find(replace(DRAIN, command_id="more")))
        running[0].succeed()
        self.journal.accept(replace(DRAIN, command_id="more"))
        self.assertEqual(len(self.journal.running), RUNNING_LIMIT)

    def test_how_many_are_remembered(self) -> None:
        """S6: the last 256 that are over, and one that runs however many came after it."""
        runs = self.journal.accept(replace(DRAIN, command_id="runs"))
        for number in range(REMEMBERED + 1):
            self.journal.accept(replace(DRAIN, command_id=f"c-{number}")).cancel("stopping")
        self.assertIsNone(self.journal.find(replace(DRAIN, command_id="c-0")))
        for number in range(1, REMEMBERED + 1):
            self.assertIsNotNone(self.journal.find(replace(DRAIN, command_id=f"c-{number}")))
        self.assertIs(self.journal.find(replace(DRAIN, command_id="runs")), runs)


class ReadTests(SynchronousTestCase):
    """S7-S9: what an order may be."""

    def assertRefused(self, reason: str, order: Order, *, managed: bool = True) -> None:
        refused = self.assertRaises(CommandRefused, read, order, managed=managed)
        self.assertEqual((refused.reason, refused.message), (reason, REFUSALS[reason]))

    def order(self, operation: str, *metadata: tuple[str, str]) -> Order:
        """A good one, apart from its metadata."""
        chooses = OPERATIONS[operation].chooses
        return Order("c-1", operation, "" if chooses is Chooses.NOTHING else "node=node-1", metadata)

    def test_operations(self) -> None:
        """S7: those of the list, and no other."""
        self.assertEqual(
            set(OPERATIONS),
            {
                *("edge.drain", "edge.resume", "node.drain", "node.resume", "node.disconnect"),
                *("provider.disable", "provider.enable", "leases.flush", "projection.resync", "config.reload"),
            },
        )
        for operation in OPERATIONS:
            self.assertEqual(read(self.order(operation), managed=True).operation, operation)
        for other in ("", "edge.Drain", "edge", "edge.drain ", "x" * 100_000, "schedule"):
            self.assertRefused("unknown_operation", Order("c-1", other, "", ()))

    def test_legacy_mode(self) -> None:
        """S7, C24: what belongs to the credential plane is not there without it."""
        absent = {"leases.flush", "projection.resync"}
        for operation in OPERATIONS:
            if operation in absent:
                self.assertRefused("unknown_operation", self.order(operation), managed=False)
            else:
                self.assertEqual(read(self.order(operation), managed=False).operation, operation)

    def test_selectors(self) -> None:
        """S8: an operation has a selector that can be read if it takes one, and else none."""
        for operation, takes in OPERATIONS.items():
            good = self.order(operation)
            self.assertEqual(read(good, managed=True).selector, parse(good.selector))
            if takes.chooses is Chooses.NOTHING:
                self.assertRefused("bad_selector", replace(good, selector="node=node-1"))
                continue
            for bad in (
                "",
                "node",
                "node=",
                "node=a node=b",
                "node=a,node=b",
                "=",
                ",",
                "node=\0",
                "k=v," * TERM_LIMIT,
            ):
                self.assertRefused("bad_selector", replace(good, selector=bad))

    def test_metadata(self) -> None:
        """S9, C37: drains take a deadline, others nothing; whatever else is refused."""
        drains = {"edge.drain", "node.drain"}
        for operation in OPERATIONS:
            self.assertRefused("unknown_metadata", self.order(operation, ("token", "x")))
            self.assertRefused("unknown_metadata", self.order(operation, ("deadline_seconds", "5"), ("url", "x")))
            given = self.order(operation, ("deadline_seconds", "5"))
            if operation in drains:
                self.assertEqual(read(given, managed=True).deadline_seconds, 5)
            else:
                self.assertRefused("unknown_metadata", given)

    def test_deadlines(self) -> None:
        """S9: whole seconds from 1 to 3600, 300 if nothing is said."""
        self.assertEqual(read(self.order("edge.drain"), managed=True).deadline_seconds, 300)
        for good in (1, 9, 300, 3600):
            order = self.order("edge.drain", ("deadline_seconds", str(good)))
            self.assertEqual(read(order, managed=True).deadline_seconds, good)
        for bad in ("", "0", "3601", "-1", "+1", "1.0", "01", " 1", "1 ", "1\n", "\u0661", "1e3", "9" * 5000):
            self.assertRefused("bad_metadata", self.order("edge.drain", ("deadline_seconds", bad)))
        self.assertRefused(
            "bad_metadata", self.order("edge.drain", ("deadline_seconds", "1"), ("deadline_seconds", "1"))
        )

    def test_words(self) -> None:
        """C46: every code has one fixed sentence, without a place to put anything in."""
        for code, words in {**REFUSALS, **ENDS}.items():
            self.assertRegex(code, r"\A[a-z_]+\Z")
            self.assertRegex(words, r"\A[A-Za-z0-9 ,;.'_-]{14,120}\Z")
