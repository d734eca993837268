"""Both run machines: total, and together they deliver every byte in order, within the window, with one end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.flow import WINDOW_CAP
from iop.core.runs import (
    EDGE_TABLE,
    NODE_TABLE,
    EdgeInput,
    EdgePhase,
    EdgeRun,
    NodeInput,
    NodePhase,
    NodeRun,
    Verdict,
)
from iop.errors import FlowViolation, ProtocolViolation, UnexpectedMessage
from iop.units import RUN_WINDOW


def edge_run(phase: EdgePhase, *, asked: bool = False) -> EdgeRun:
    """A run that got to ``phase`` by inputs alone; ``asked``: its Node owes the word on whether it was started."""
    run = EdgeRun(b"body", 100)
    list(run.pieces())
    if asked:
        run.stop_unless_started()
    if phase is EdgePhase.STREAMING:
        run.head()
    elif phase is EdgePhase.CANCELLED:
        run.cancel()
    elif phase is EdgePhase.ENDED:
        run.failed("draining", started=False)
    return run


def edge_input(run: EdgeRun, what: EdgeInput) -> Verdict:
    match what:
        case EdgeInput.HEAD:
            return run.head()
        case EdgeInput.PIECE:
            return run.piece(1, last=False)
        case EdgeInput.LAST:
            return run.piece(1, last=True)
        case EdgeInput.FAILED:
            return run.failed("upstream_broke", started=True)
        case EdgeInput.STARTED:
            return run.started()
        case EdgeInput.STOP:
            return run.stop_unless_started()
        case EdgeInput.CREDIT:
            return run.credited(1)
        case EdgeInput.CANCEL:
            return run.cancel()
        case EdgeInput.LOST:
            return run.lost()


def node_run(phase: NodePhase) -> NodeRun:
    """A run that got to ``phase`` by inputs alone; from STREAMING on it has one byte on its way."""
    run = NodeRun(10, 1)
    if phase in (NodePhase.STREAMING, NodePhase.FLUSHING):
        run.head()
        run.data(b"ab")
        list(run.pieces())
    if phase is NodePhase.FLUSHING:
        run.finished()
    elif phase is NodePhase.ENDED:
        run.cancel()
    return run


def node_input(run: NodeRun, what: NodeInput) -> Verdict:
    match what:
        case NodeInput.PIECE:
            return run.piece(1, last=False)
        case NodeInput.CREDIT:
            return run.credited(1)
        case NodeInput.CANCEL:
            return run.cancel()
        case NodeInput.STOP:
            return run.stop(started=False)
        case NodeInput.STOP_LATE:
            return run.stop(started=True)
        case NodeInput.LOST:
            return run.lost()
        case NodeInput.HEAD:
            return run.head()
        case NodeInput.DATA:
            return run.data(b"c")
        case NodeInput.FINISHED:
            return run.finished()
        case NodeInput.FAILED:
            return run.failed()
        case NodeInput.FLUSHED:
            raise AssertionError("only pieces() makes this input")


class EdgeTotalityTests(SynchronousTestCase):
    def test_every_phase_and_input(self) -> None:
        """R3, R7: the table has a move for every phase and input, and the machine makes exactly that move."""
        self.assertEqual(set(EDGE_TABLE), {(phase, what) for phase in EdgePhase for what in EdgeInput})
        for (phase, what), (after, verdict) in EDGE_TABLE.items():
            run = edge_run(phase, asked=what is EdgeInput.STARTED)
            if verdict is Verdict.VIOLATION:
                self.assertRaises(UnexpectedMessage, edge_input, run, what)
                self.assertIs(run.phase, phase)
            else:
                self.assertIs(edge_input(run, what), verdict, (phase, what))
                self.assertIs(run.phase, after, (phase, what))

    def test_an_end_is_final(self) -> None:
        """R3: nothing leads out of ENDED, and only the Node's end or the connection's leads into it."""
        for (phase, what), (after, _) in EDGE_TABLE.items():
            if phase is EdgePhase.ENDED:
                self.assertIs(after, EdgePhase.ENDED)
            elif after is EdgePhase.ENDED:
                self.assertIn(what, {EdgeInput.LAST, EdgeInput.FAILED, EdgeInput.LOST})


class EdgeRunTests(SynchronousTestCase):
    def test_not_started_after_a_head(self) -> None:
        """R6: who sent a response head cannot say that it had not started."""
        run = edge_run(EdgePhase.STREAMING)
        self.assertRaises(UnexpectedMessage, run.failed, "draining", False)
        self.assertIs(edge_run(EdgePhase.ASKED).failed("draining", False), Verdict.PASS)

    def test_asked_once(self) -> None:
        """R11: a Node is asked once, and only about a run whose head did not come."""
        run = edge_run(EdgePhase.ASKED)
        self.assertIs(run.stop_unless_started(), Verdict.PASS)
        self.assertIs(run.stop_unless_started(), Verdict.DROP)
        run.started()
        self.assertIs(run.stop_unless_started(), Verdict.DROP)

    def test_started_that_nobody_asked_for(self) -> None:
        """R11: in every phase, and also a second one."""
        for phase in EdgePhase:
            self.assertRaises(UnexpectedMessage, edge_run(phase).started)
            run = edge_run(phase, asked=True)
            if phase is not EdgePhase.ENDED:
                run.started()
            self.assertRaises(UnexpectedMessage, run.started)
            self.assertIs(run.phase, phase)

    def test_not_started_after_its_word(self) -> None:
        """R6, R11: who said that a run was started cannot have it given to another Node."""
        run = edge_run(EdgePhase.ASKED, asked=True)
        run.started()
        self.assertRaises(UnexpectedMessage, run.failed, "upstream_broke", False)
        self.assertRaises(UnexpectedMessage, run.failed, "cancelled", True)
        self.assertIs(run.failed("upstream_broke", True), Verdict.PASS)

    def test_cancelled_that_nobody_asked_for(self) -> None:
        """R5: else a Node could have a request begin anew without end."""
        for phase in (EdgePhase.ASKED, EdgePhase.STREAMING):
            self.assertRaises(UnexpectedMessage, edge_run(phase).failed, "cancelled", True)
        self.assertIs(edge_run(EdgePhase.CANCELLED).failed("cancelled", True), Verdict.PASS)
        self.assertIs(edge_run(EdgePhase.ASKED, asked=True).failed("cancelled", False), Verdict.PASS)

    def test_window_holds_for_a_cancelled_run(self) -> None:
        """R4, R5: what is dropped after a cancel still has to fit the window."""
        run = edge_run(EdgePhase.STREAMING)
        run.piece(60, False)
        run.cancel()
        self.assertIs(run.piece(40, False), Verdict.DROP)
        self.assertRaises(FlowViolation, run.piece, 1, False)

    def test_no_body_after_cancel(self) -> None:
        run = EdgeRun(bytes(RUN_WINDOW + 1), 100)
        list(run.pieces())
        run.cancel()
        run.credited(RUN_WINDOW)
        self.assertEqual(list(run.pieces()), [])

    def test_no_credit_once_it_does_not_matter(self) -> None:
        run = edge_run(EdgePhase.STREAMING)
        run.piece(100, True)
        self.assertEqual(run.handed_on(100), 0)


class NodeTotalityTests(SynchronousTestCase):
    def test_every_phase_and_input(self) -> None:
        """R3, R5, R7: the table has a move for every phase and input, and the machine makes exactly that move."""
        self.assertEqual(set(NODE_TABLE), {(phase, what) for phase in NodePhase for what in NodeInput})
        for (phase, what), (after, verdict) in NODE_TABLE.items():
            if what is NodeInput.FLUSHED:
                continue
            run = node_run(phase)
            if verdict is Verdict.MISUSE:
                self.assertRaises(RuntimeError, node_input, run, what)
                self.assertIs(run.phase, phase)
            elif (phase, what) == (NodePhase.CALLING, NodeInput.CREDIT):
                # passed on to the window, which had nothing on its way
                self.assertRaises(FlowViolation, node_input, run, what)
            else:
                self.assertIs(node_input(run, what), verdict, (phase, what))
                self.assertIs(run.phase, after, (phase, what))

    def test_the_last_piece_ends_the_run(self) -> None:
        """R3"""
        run = node_run(NodePhase.FLUSHING)
        run.credited(1)
        self.assertEqual(list(run.pieces()), [(b"b", True)])
        self.assertIs(run.phase, NodePhase.ENDED)

    def test_an_end_is_final(self) -> None:
        """R3: nothing leads out of ENDED."""
        for (phase, _), (after, _) in NODE_TABLE.items():
            if phase is NodePhase.ENDED:
                self.assertIs(after, NodePhase.ENDED)

    def test_an_edge_cannot_misuse(self) -> None:
        """Whatever the Edge sends is answered with a verdict or a violation, never with a fault of ours."""
        for phase in NodePhase:
            for what in (NodeInput.PIECE, NodeInput.CREDIT, NodeInput.CANCEL, NodeInput.STOP_LATE, NodeInput.LOST):
                self.assertIn(NODE_TABLE[phase, what][1], {Verdict.PASS, Verdict.DROP})


class NodeRunTests(SynchronousTestCase):
    def test_windows(self) -> None:
        """R1: a window of no bytes or of more than the cap is a violation."""
        for window in (0, WINDOW_CAP + 1, 2**32 - 1):
            self.assertRaises(FlowViolation, NodeRun, 0, window)
        NodeRun(0, 1)
        NodeRun(0, WINDOW_CAP)

    def test_request_body(self) -> None:
        """R1, R4: the announced length and the fixed window hold."""
        run = NodeRun(5, 100)
        run.piece(3, False)
        self.assertRaises(FlowViolation, run.piece, 1, True)
        run = NodeRun(2 * RUN_WINDOW, 100)
        for _ in range(4):
            run.piece(RUN_WINDOW // 4, False)
        self.assertRaises(FlowViolation, run.piece, 1, False)
        self.assertEqual(run.handed_on(RUN_WINDOW), RUN_WINDOW)

    def test_pieces_that_cross_the_end(self) -> None:
        """R7: an Edge that has not seen the end yet may have sent more; it is dropped."""
        run = NodeRun(5, 100)
        run.failed()
        self.assertIs(run.piece(3, False), Verdict.DROP)
        self.assertEqual(run.handed_on(3), 0)

    def test_forgets_at_the_end(self) -> None:
        run = node_run(NodePhase.STREAMING)
        self.assertTrue(run.congested)
        run.cancel()
        self.assertFalse(run.congested)
        self.assertEqual(list(run.pieces()), [])


# -- both together ----------------------------------------------------------------------------------------------------

Message = tuple[str, bytes, bool, int]


@dataclass
class Wired:
    """Both machines of one run, a wire in each direction, an upstream and a caller.

    Every method is one step that a scheduler may take at any time; it does nothing when there is nothing to do.
    """

    body: bytes
    answer: list[bytes]
    window: int
    to_node: deque[Message] = field(default_factory=deque)
    to_edge: deque[Message] = field(default_factory=deque)
    request: bytes = b""
    response: bytes = b""
    upstream_has: int = 0
    caller_has: int = 0
    ends: list[str] = field(default_factory=list)
    cancelled: bool = False
    sent_upstream: bool = False
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.edge = EdgeRun(self.body, self.window)
        self.node = NodeRun(len(self.body), self.window)
        self.script: deque[tuple[str, bytes]] = deque(
            [("head", b""), *(("data", d) for d in self.answer), ("end", b"")]
        )
        self.edge_sends()

    def edge_sends(self) -> None:
        self.to_node.extend(("body", data, last, 0) for data, last in self.edge.pieces())

    def node_sends(self) -> None:
        self.to_edge.extend(("body", data, last, 0) for data, last in self.node.pieces())

    def node_reads(self) -> None:
        if not self.to_node:
            return
        kind, data, last, count = self.to_node.popleft()
        if kind == "body" and self.node.piece(len(data), last) is Verdict.PASS:
            self.request += data
            self.upstream_has += len(data)
        elif kind == "credit" and self.node.credited(count) is Verdict.PASS:
            self.node_sends()
        elif kind == "cancel" and self.node.cancel() is Verdict.PASS:
            self.to_edge.append(("cancelled", b"", True, 0))
        elif kind == "stop" and self.node.stop(self.sent_upstream) is Verdict.PASS:
            self.to_edge.append(("started" if self.sent_upstream else "cancelled", b"", self.sent_upstream, 0))

    def edge_reads(self) -> None:
        if not self.to_edge:
            return
        kind, data, last, count = self.to_edge.popleft()
        if kind == "head":
            self.edge.head()
        elif kind == "credit":
            self.edge.credited(count)
            self.edge_sends()
        elif kind == "started":
            if self.edge.started() is Verdict.PASS:
                self.words.append("started")
        elif kind == "cancelled":
            self.edge.failed(kind, started=last)
            self.ends.append(kind if last else "not started")
        else:
            verdict = self.edge.piece(len(data), last)
            if verdict is Verdict.PASS:
                self.response += data
                self.caller_has += len(data)
            if last:
                self.ends.append("cancelled" if verdict is Verdict.CANCELLED else "finished")

    def upstream_connects(self) -> None:
        """From here on the provider has something; a run that was ended before never gets here."""
        if self.node.phase is not NodePhase.ENDED:
            self.sent_upstream = True

    def upstream_answers(self) -> None:
        if not self.script or self.node.congested:
            return
        kind, data = self.script.popleft()
        self.upstream_connects()
        if kind == "head":
            if self.node.head() is Verdict.PASS:
                self.to_edge.append(("head", b"", False, 0))
        elif kind == "data":
            self.node.data(data)
        else:
            self.node.finished()
        self.node_sends()

    def upstream_takes(self) -> None:
        credit = self.node.handed_on(self.upstream_has)
        self.upstream_has = 0
        if credit:
            self.to_edge.append(("credit", b"", False, credit))

    def caller_takes(self) -> None:
        credit = self.edge.handed_on(self.caller_has)
        self.caller_has = 0
        if credit:
            self.to_node.append(("credit", b"", False, credit))

    def caller_cancels(self) -> None:
        self.cancelled = True
        if self.edge.cancel() is Verdict.PASS:
            self.to_node.append(("cancel", b"", False, 0))

    def edge_stops(self) -> None:
        if self.edge.stop_unless_started() is Verdict.PASS:
            self.to_node.append(("stop", b"", False, 0))

    def on_the_way(self) -> int:
        """Response bytes sent and not handed on."""
        return sum(len(data) for kind, data, _, _ in self.to_edge if kind == "body") + self.caller_has

    def settle(self) -> None:
        """Go on until nothing moves."""
        for _ in range(10_000):
            before = (len(self.to_node), len(self.to_edge), len(self.script), self.upstream_has, self.caller_has)
            for step in STEPS:
                getattr(self, step)()
            after = (len(self.to_node), len(self.to_edge), len(self.script), self.upstream_has, self.caller_has)
            if before == after == (0, 0, after[2], 0, 0):
                return
        raise AssertionError("it never settles")


STEPS = ("node_reads", "edge_reads", "upstream_connects", "upstream_answers", "upstream_takes", "caller_takes")


class TogetherTests(SynchronousTestCase):
    @settings(deadline=None)
    @given(
        st.binary(max_size=300),
        st.lists(st.binary(min_size=1, max_size=200), max_size=6),
        st.integers(1, 150),
        st.lists(st.sampled_from(STEPS), max_size=80),
    )
    def test_all_bytes_arrive(self, body: bytes, answer: list[bytes], window: int, steps: list[str]) -> None:
        """R1, R3, R4: in any interleaving all bytes arrive in order, never more than the window on its way, one end."""
        wired = Wired(body, answer, window)
        for step in steps:
            getattr(wired, step)()
            self.assertLessEqual(wired.on_the_way(), window)
        wired.settle()
        self.assertEqual(wired.ends, ["finished"])
        self.assertEqual(wired.response, b"".join(answer))
        self.assertTrue(body.startswith(wired.request))

    def test_a_large_request_body_arrives(self) -> None:
        """R4: a body of many windows gets through on returned credit alone."""
        body = bytes(range(256)) * (RUN_WINDOW // 64)
        wired = Wired(body, [b"ok"], 100)
        while len(wired.request) < len(body):
            self.assertTrue(wired.to_node)
            self.assertLessEqual(sum(len(data) for _, data, _, _ in wired.to_node), RUN_WINDOW)
            wired.node_reads()
            wired.upstream_takes()
            wired.edge_reads()
        wired.settle()
        self.assertEqual((wired.request == body, wired.response, wired.ends), (True, b"ok", ["finished"]))

    @settings(deadline=None)
    @given(
        st.binary(max_size=300),
        st.lists(st.binary(min_size=1, max_size=200), max_size=6),
        st.integers(1, 150),
        st.lists(st.sampled_from(STEPS), max_size=40),
        st.lists(st.sampled_from([*STEPS, "caller_cancels"]), max_size=40),
    )
    def test_cancel_at_any_time(
        self, body: bytes, answer: list[bytes], window: int, before: list[str], after: list[str]
    ) -> None:
        """R5, R7: whenever a run is cancelled, no side sees a violation and there is exactly one end."""
        wired = Wired(body, answer, window)
        for step in [*before, "caller_cancels", *after]:
            getattr(wired, step)()
        wired.settle()
        self.assertEqual(len(wired.ends), 1)
        self.assertTrue(b"".join(answer).startswith(wired.response))

    @settings(deadline=None)
    @given(
        st.lists(st.sampled_from(["node_reads", "edge_reads", "caller_takes", "upstream_connects"]), max_size=6),
        st.lists(st.sampled_from([*STEPS, "edge_stops", "caller_cancels"]), max_size=40),
    )
    def test_stop_at_any_time(self, before: list[str], after: list[str]) -> None:
        """R6, R11, P41: whatever crosses what, a run that its Node did not start was never sent, all else goes on."""
        wired = Wired(b"body", [b"answer"], 10)
        for step in [*before, "edge_stops", *after]:
            getattr(wired, step)()
        wired.settle()
        self.assertEqual(len(wired.ends), 1)
        if wired.ends == ["not started"]:
            self.assertEqual((wired.sent_upstream, wired.words, wired.response), (False, [], b""))
        elif not wired.cancelled:
            self.assertEqual((wired.sent_upstream, wired.response), (True, b"answer"))

    @given(
        st.sampled_from(list(EdgePhase)),
        st.lists(st.tuples(st.sampled_from(list(EdgeInput)), st.integers(0, 300), st.booleans()), max_size=30),
    )
    def test_a_hostile_node(self, phase: EdgePhase, inputs: list[tuple[EdgeInput, int, bool]]) -> None:
        """R4, R7: whatever a Node sends is a verdict or a violation, and at most one end is passed on."""
        run = edge_run(phase)
        ends = 0
        for what, size, flag in inputs:
            try:
                match what:
                    case EdgeInput.PIECE | EdgeInput.LAST:
                        verdict = run.piece(size, what is EdgeInput.LAST)
                    case EdgeInput.FAILED:
                        verdict = run.failed("upstream_broke", flag)
                    case EdgeInput.CREDIT:
                        verdict = run.credited(size)
                    case _:
                        verdict = edge_input(run, what)
            except ProtocolViolation:
                break
            if what in {EdgeInput.LAST, EdgeInput.FAILED, EdgeInput.LOST} and verdict is not Verdict.DROP:
                ends += 1
        self.assertLessEqual(ends, 0 if phase is EdgePhase.ENDED else 1)
