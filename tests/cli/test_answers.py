"""How answers look on a terminal."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO

from twisted.trial.unittest import SynchronousTestCase

from iop.cli.answers import print_facts, print_list, print_mutation, reached

ID = "01a22e4e-cf0c-753d-bc10-d40fad48d47c"
BY = "2026-01-01T00:00:00.000Z"


class AnswerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.out = StringIO()
        self.enterContext(redirect_stdout(self.out))

    def test_list_is_aligned_and_whole(self) -> None:
        """Ids are there to be copied, wherever a terminal ends; wide characters take the columns they take."""
        slots = {"slots": [{"slot": ID, "name": "日本", "target": "t" * 80}, {"slot": "s", "name": "a", "target": "b"}]}
        print_list(slots, "slots", ("name", "slot", "target"), "none", as_json=False)
        self.assertEqual(
            self.out.getvalue().splitlines(),
            [
                f"NAME  SLOT{' ' * 32}  TARGET",
                f"日本  {ID}  {'t' * 80}",
                f"a     s{' ' * 35}  b",
            ],
        )

    def test_list_of_nothing(self) -> None:
        print_list({"slots": []}, "slots", ("slot",), "You have no slots.", as_json=False)
        self.assertEqual(self.out.getvalue(), "You have no slots.\n")

    def test_what_others_named_commands_no_terminal(self) -> None:
        print_list({"routes": [{"model": "a\x1b[31m"}]}, "routes", ("model",), "none", as_json=False)
        print_facts({"path": "b\x1b[31m"})
        self.assertNotIn("\x1b", self.out.getvalue())

    def test_facts(self) -> None:
        print_facts({"schema": "0001", "control_plane_running": True, "current": False, "deployment": None, "x": ""})
        self.assertEqual(
            self.out.getvalue().splitlines(),
            [
                "schema                 0001",
                "control plane running  yes",
                "current                no",
                "deployment             unknown",
                "x                      -",
            ],
        )

    def test_mutation(self) -> None:
        edges = {"acknowledged": 1, "cut_off": 0, "unconfirmed": 0}
        answer = {"slot": ID, "state": "active", "revision": 1, "generation": 6, "edges": edges, "effective_by": BY}
        print_mutation(answer, ("slot", "state"), as_json=False)
        self.assertEqual(
            self.out.getvalue(), f"slot   {ID}\nstate  active\nGeneration 6, Edge connections: 1 acknowledged it.\n"
        )

    def test_to_programs_all_of_it(self) -> None:
        answer: dict[str, object] = {"slots": [{"slot": ID, "revision": 1}]}
        print_list(answer, "slots", ("slot",), "none", as_json=True)
        print_mutation(answer, ("slot",), as_json=True)
        self.assertEqual([json.loads(line) for line in self.out.getvalue().splitlines()], [answer, answer])


class ReachedTests(SynchronousTestCase):
    def test_sentences(self) -> None:
        """Counts are said when there is something to count, and the moment when somebody may be late (K14)."""
        by = f"; it is in force everywhere by {BY}."
        for counts, said in (
            ((0, 0, 0), "Generation 7: no Edge in managed mode is connected."),
            ((2, 0, 0), "Generation 7, Edge connections: 2 acknowledged it."),
            ((1, 1, 0), "Generation 7, Edge connections: 1 acknowledged it, 1 was cut off" + by),
            ((0, 2, 1), "Generation 7, Edge connections: 2 were cut off, 1 could not confirm" + by),
        ):
            self.assertEqual(reached(7, *counts, by=BY), said)
