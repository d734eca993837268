"""``iop edge command`` and ``iop edge events`` from their side, against a Control Plane that is played."""

from __future__ import annotations

import json
from typing import Any

import click

from iop.cli import operator, watching
from tests.cli.command import CommandCase, Done
from tests.cli.test_operator import GONE, Machine

AT = "2026-01-01T00:00:00.000Z"
DRAIN = ("edge", "command", "edge-1", "node.drain", "node=node-1", "--id", "c-1", "--set", "deadline_seconds=60")


def state(phase: str, done: int = 0, code: str = "", command_id: str = "c-1") -> dict[str, Any]:
    """How the command stands."""
    told = {"command_id": command_id, "operation": "node.drain", "phase": phase, "done": done, "total": 4, "at": AT}
    return told | {"code": code, "message": f"words for {code}" if code else ""}


def answered(phase: str, done: int = 0, code: str = "") -> dict[str, Any]:
    """What the Edge answers to the command."""
    return {"edge": "edge-1", "command": state(phase, done, code)}


def event(number: int, what: str, node: str = "", code: str = "") -> dict[str, Any]:
    """A lifecycle event."""
    told = {"number": number, "edge": "edge-1", "event": what, "at": AT, "sequence": number, "node": node}
    return told | {"code": code, "message": f"words for {code}" if code else "", "command": None}


def progress(number: int, phase: str, done: int = 0, code: str = "", command_id: str = "c-1") -> dict[str, Any]:
    """An event of a command."""
    return event(number, "command") | {"sequence": 0, "command": state(phase, done, code, command_id)}


def heard(newest: int, *events: dict[str, Any], stream: str = "s", lost: bool = False) -> dict[str, Any]:
    """An answer with events."""
    return {"stream": stream, "newest": newest, "lost": lost, "events": list(events)}


class WatchingCase(CommandCase):
    def on(self, *answers: object) -> Machine:
        """A machine on which commands are run from now on."""
        machine = Machine(*answers)
        self.patch(operator, "run_in_reactor", machine.run)
        return machine

    def run_iop(self, *arguments: str) -> Done:
        """Run a command of the operator socket."""
        return self.iop(*arguments, "--socket", "operator.sock")

    def shown(self, done: Done) -> list[str]:
        """The lines, without time and Edge."""
        return [line.removeprefix(f"{AT}  edge-1  ") for line in done.out.splitlines()]


class CommandTests(WatchingCase):
    def test_given_as_typed(self) -> None:
        """S6: operation, selector, metadata and id reach the Control Plane, whose answer is shown."""
        machine = self.on(answered("accepted"))
        done = self.run_iop(*DRAIN)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(self.shown(done), ["node.drain  accepted  0/4  c-1"])
        self.assertEqual(machine.asked, ["/v1/edges/edge-1/commands"])
        values = {"operation": "node.drain", "selector": "node=node-1", "metadata": {"deadline_seconds": "60"}}
        self.assertEqual(machine.sent, [{"command_id": "c-1"} | values])

    def test_an_id_is_minted(self) -> None:
        """S6: here, so that a lost answer can be asked for again."""
        ids = set()
        for _ in range(2):
            machine = self.on(answered("accepted"))
            self.assertEqual(self.run_iop("edge", "command", "edge-1", "edge.drain").code, 0)
            ids.add(machine.sent[0]["command_id"])
        self.assertEqual(len(ids), 2)

    def test_refused(self) -> None:
        """S13: code and words of the Control Plane, exit code 1."""
        problem = {"code": "nothing_selected", "detail": "nothing of this Edge matches\x1b[31m"}
        self.on((409, problem))
        done = self.run_iop(*DRAIN)
        self.assertEqual((done.code, done.err), (1, "Error: nothing of this Edge matches?[31m\n"))
        self.on((409, problem))
        self.assertEqual(json.loads(self.run_iop(*DRAIN, "--json").out)["error"]["code"], "nothing_selected")

    def test_values_that_are_none(self) -> None:
        for value in ("x", "=1", ""):
            self.assertEqual(self.run_iop("edge", "command", "e", "edge.drain", "--set", value).code, 2)

    def test_exit_codes(self) -> None:
        """0 only for what succeeds, or is on its way without --watch."""
        for phase, code in (("running", 0), ("succeeded", 0), ("failed", 3), ("cancelled", 4)):
            self.on(answered(phase, 0, "deadline" if code else ""))
            self.assertEqual(self.run_iop(*DRAIN).code, code)

    def test_interrupted(self) -> None:
        """It goes on, which is said with the id that asks again."""

        def interrupt(*_: object) -> None:
            raise click.Abort

        self.patch(operator, "run_in_reactor", interrupt)
        done = self.run_iop(*DRAIN, "--watch")
        self.assertEqual((done.code, done.out), (130, ""))
        self.assertIn("it goes on", done.err)
        self.assertIn("--id c-1", done.err)


class WatchTests(WatchingCase):
    def watch(self, *answers: object, json_too: bool = False) -> tuple[Machine, Done]:
        """Watch a command with these answers to what is asked."""
        machine = self.on(*answers)
        return machine, self.run_iop(*DRAIN, "--watch", *(["--json"] if json_too else []))

    def test_to_its_end(self) -> None:
        """S10: each step once, in order, with what its Node did; other commands and Nodes are left out."""
        machine, done = self.watch(
            heard(3, event(3, "node.ready", "node-9")),
            answered("running", 1),
            heard(6, progress(4, "accepted"), progress(5, "running", 1), event(6, "node.draining", "node-1")),
            heard(9, progress(7, "running", 3), event(8, "node.ready", "node-2"), progress(9, "failed", 4, "x", "c-2")),
            heard(9),
            heard(10, progress(10, "succeeded", 4)),
        )
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(
            self.shown(done),
            [
                "node.drain  running  1/4  c-1",
                "node.draining  node-1",
                "node.drain  running  3/4  c-1",
                "node.drain  succeeded  4/4  c-1",
            ],
        )
        asked = [path for path in machine.asked if path.startswith("/v1/events")]
        self.assertEqual(asked[0], "/v1/events?after=0&wait=0&edge=edge-1")
        self.assertEqual(asked[1:], [f"/v1/events?after={after}&wait=10&edge=edge-1" for after in (3, 6, 9, 9)])

    def test_ends_that_are_none(self) -> None:
        """Exit code 3 for one that failed, 4 for one that was cancelled, and why."""
        for phase, code in (("failed", 3), ("cancelled", 4)):
            _, done = self.watch(heard(0), answered("accepted"), heard(1, progress(1, phase, 2, "deadline")))
            self.assertEqual(done.code, code)
            self.assertIn("deadline: words for deadline", done.out)

    def test_lost_calls(self) -> None:
        """A Control Plane that is away for a moment costs nothing."""
        late = (503, {"code": "store_busy", "detail": "busy"})
        _, done = self.watch(heard(0), answered("accepted"), None, late, None, heard(1, progress(1, "succeeded", 4)))
        self.assertEqual((done.code, len(done.out.splitlines())), (0, 2))

    def test_a_control_plane_that_restarted(self) -> None:
        """S6: its numbers are others, and it is asked with the same command how it stands."""
        machine, done = self.watch(
            heard(7),
            answered("running", 1),
            heard(8, stream="t"),
            answered("running", 2),
            heard(9, progress(9, "succeeded", 4), stream="t"),
        )
        self.assertEqual((done.code, done.err), (0, "Some events were missed.\n"))
        self.assertEqual(machine.sent[0], machine.sent[1])
        self.assertIn("/v1/events?after=0&wait=10&edge=edge-1", machine.asked)
        self.assertEqual(len(self.shown(done)), 3)

    def test_an_edge_that_reconnects(self) -> None:
        """S6: it is asked until it answers, which it does not while it is away."""
        machine, done = self.watch(
            heard(0),
            answered("running", 1),
            heard(1, event(1, "edge.disconnected")),
            (404, GONE),
            heard(1),
            (404, GONE),
            heard(2, event(2, "edge.connected")),
            answered("succeeded", 4),
        )
        self.assertEqual(done.code, 0)
        self.assertEqual(len(machine.sent), 4)
        self.assertEqual(self.shown(done)[-1], "node.drain  succeeded  4/4  c-1")

    def test_an_edge_that_stays_away(self) -> None:
        """After two minutes it is given up, which says nothing about the command."""
        self.patch(watching, "PATIENCE_SECONDS", 2.0)
        away = [answer for _ in range(4) for answer in ((404, GONE), heard(1))]
        _, done = self.watch(heard(0), answered("running", 1), heard(1, event(1, "edge.disconnected")), *away)
        self.assertEqual(done.code, 1)
        self.assertIn(GONE["detail"], done.err)

    def test_to_programs(self) -> None:
        """One line each: the answer, then events as they are."""
        events = event(1, "node.draining", "node-1"), progress(2, "succeeded", 4)
        _, done = self.watch(heard(0), answered("accepted"), heard(2, *events), json_too=True)
        self.assertEqual([json.loads(line) for line in done.out.splitlines()], [answered("accepted"), *events])

    def test_on_a_terminal(self) -> None:
        """The same lines, and a bar that goes when it is over; no word of an Edge is markup or commands it."""
        bar = watching.Bar()
        self.addCleanup(bar.end)
        with bar._progress.console.capture() as captured:
            told = operator.Commanded.model_validate(answered("running", 1, "[red]\x1b[31m"))
            bar.answered(told)
            bar.happened(operator.Event.model_validate(progress(1, "running", 2)))
            bar.happened(operator.Event.model_validate(event(2, "node.ready", "node-1")))
            bar.end()
        self.assertIn("[red]?[31m: words for [red]?[31m", captured.get())
        self.assertIn("node.ready  node-1", captured.get())
        [task] = bar._progress.tasks
        self.assertEqual((task.completed, task.total), (2, 4))


class EventsTests(WatchingCase):
    def test_nothing_is_kept(self) -> None:
        """People are told so, beside the output; programs get no line."""
        for form in ((), ("--json",)):
            self.on(heard(0))
            done = self.run_iop("edge", "events", "edge-1", *form)
            self.assertEqual((done.code, done.out), (0, ""))
            self.assertIn("Nothing was told", done.err)

    def test_what_is_kept(self) -> None:
        """Of all Edges or one, and no more is asked."""
        gone = event(2, "node.disconnected", "node-1", "peer_silent")
        machine = self.on(heard(2, event(1, "edge.connected"), gone))
        done = self.run_iop("edge", "events")
        self.assertEqual((done.code, machine.asked), (0, ["/v1/events?after=0&wait=0"]))
        words = "node.disconnected  node-1  peer_silent: words for peer_silent"
        self.assertEqual(self.shown(done), ["edge.connected", words])
        machine = self.on(heard(1, gone))
        self.assertEqual(json.loads(self.run_iop("edge", "events", "edge-1", "--json").out), gone)
        self.assertEqual(machine.asked, ["/v1/events?after=0&wait=0&edge=edge-1"])

    def test_followed(self) -> None:
        """Until nobody answers any more, or it is interrupted."""
        self.patch(watching, "PATIENCE_SECONDS", 1.0)
        self.on(heard(1, event(1, "edge.connected")), heard(2, event(2, "edge.ready"), lost=True), *[None] * 4)
        done = self.run_iop("edge", "events", "--follow")
        self.assertEqual(self.shown(done), ["edge.connected", "edge.ready"])
        self.assertEqual(done.code, 1)
        self.assertIn("Some events were missed.", done.err)
