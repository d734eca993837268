"""The Edge's half of runs: what it writes, what it hands on, what it refuses from a Node."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from iop.core.runs import FAILURE_CODES
from iop.edge.runs import NODE_LOST, IRunReceiver, Run, RunFailure, RunPlan, Runs
from iop.errors import (
    BadHttp,
    FlowViolation,
    MalformedFrame,
    PeerDisconnected,
    PeerSilent,
    TooManyInFlight,
    UnexpectedMessage,
)
from iop.interfaces import IPeer
from iop.records import Binding
from iop.testing.recorded import RecordedPeer
from iop.units import BODY_PIECE, IN_FLIGHT_LIMIT, RUN_WINDOW, Identity, Role
from iop.wire import runtime_pb2

NODE = Identity("iop.test", Role.NODE, "node-1")
BINDING = Binding("p1", "r1", "s1", "openai", "lab", "node-1", 3, 4, 5)
LEASE = runtime_pb2.SealedLease(statement=b"core", box=b"box", signature=b"signature")


def plan(headers: Sequence[tuple[str, str]] = (("accept", "text/plain"),)) -> RunPlan:
    return RunPlan("req-1", LEASE, BINDING, "t1", "lab-1", "POST", "/chat/completions", headers)


@implementer(IRunReceiver)
class Receiver:
    """Remembers every call; consumes at once if it is given its run."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.raises_on = ""

    def _called(self, name: str, *what: object) -> None:
        self.calls.append((name, *what))
        if name == self.raises_on:
            raise ValueError("a receiver's own fault")

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self._called("head", status, list(headers))

    def data(self, data: bytes) -> None:
        self._called("data", data)

    def finished(self) -> None:
        self._called("finished")

    def failed(self, failure: RunFailure) -> None:
        self._called("failed", failure)


class RunsCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.peer = RecordedPeer(NODE)
        self.runs = Runs(self.peer)
        self.receiver = Receiver()

    def open(self, body: bytes = b"") -> Run:
        run = self.runs.open(plan(), body, self.receiver)
        self.peer.take()
        return run

    def receive(self, *messages: Message) -> None:
        for message in messages:
            self.runs.received(message)

    def opened(self) -> list[int]:
        """Numbers of the runs whose requests were written since last asked."""
        return [message.run for message in self.peer.take() if isinstance(message, runtime_pb2.RunRequest)]

    def head(self, run: int = 1, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> runtime_pb2.RunHead:
        fields = [runtime_pb2.HeaderField(name=name, value=value) for name, value in headers]
        return runtime_pb2.RunHead(run=run, status=status, headers=fields)

    def body(self, data: bytes = b"", last: bool = False, run: int = 1) -> runtime_pb2.RunBody:
        return runtime_pb2.RunBody(run=run, data=data, last=last)

    def failed(self, code: str = "upstream_broke", started: bool = True, run: int = 1) -> runtime_pb2.RunFailed:
        return runtime_pb2.RunFailed(run=run, code=code, message="why", started=started)


class OpenTests(RunsCase):
    def test_fakes(self) -> None:
        verifyObject(IPeer, self.peer)
        verifyObject(IRunReceiver, self.receiver)

    def test_request(self) -> None:
        """R1: the request says everything, the body follows in one last piece."""
        self.runs.open(plan(), b"hello", self.receiver)
        request, piece = self.peer.take()
        self.assertEqual(
            request,
            runtime_pb2.RunRequest(
                run=1,
                request_id="req-1",
                lease=LEASE,
                binding=runtime_pb2.Binding(
                    principal="p1",
                    route="r1",
                    slot="s1",
                    profile="openai",
                    target="lab",
                    node="node-1",
                    credential_revision=3,
                    route_revision=4,
                    generation=5,
                ),
                token_id="t1",
                provider_id="lab-1",
                method="POST",
                path="/chat/completions",
                headers=[runtime_pb2.HeaderField(name="accept", value="text/plain")],
                body_length=5,
                window=RUN_WINDOW,
            ),
        )
        self.assertEqual(piece, runtime_pb2.RunBody(run=1, data=b"hello", last=True))

    def test_no_body_is_one_empty_last_piece(self) -> None:
        """R1"""
        self.runs.open(plan(), b"", self.receiver)
        self.assertEqual(self.peer.take()[1:], [runtime_pb2.RunBody(run=1, last=True)])

    def test_body_waits_for_credit(self) -> None:
        """R4: 256 KiB in pieces of 64 KiB, then nothing until the Node returns credit."""
        body = bytes(RUN_WINDOW) + b"the rest"
        self.runs.open(plan(), body, self.receiver)
        pieces = self.peer.take()[1:]
        self.assertEqual(pieces, [runtime_pb2.RunBody(run=1, data=bytes(BODY_PIECE))] * 4)
        self.receive(runtime_pb2.RunCredit(run=1, bytes=BODY_PIECE))
        self.assertEqual(self.peer.take(), [runtime_pb2.RunBody(run=1, data=b"the rest", last=True)])

    def test_numbers_rise(self) -> None:
        for number in (1, 2, 3):
            self.runs.open(plan(), b"", self.receiver)
            self.assertEqual(self.opened(), [number])

    def test_headers_that_may_not_travel(self) -> None:
        """R8, P18: nothing is written for a header with a line end, or one that holds a credential."""
        for header in [("accept", "a\r\nb"), ("x-a", "\0"), ("authorization", "Bearer x"), ("Accept", "a")]:
            refusal = self.assertRaises(BadHttp, self.runs.open, plan([header]), b"", self.receiver)
            self.assertEqual(refusal.status, 400)
        self.assertEqual((self.peer.sent, len(self.runs)), ([], 0))

    def test_limit(self) -> None:
        """W6: a connection carries 1,024 runs and not one more."""
        for _ in range(IN_FLIGHT_LIMIT):
            self.runs.open(plan(), b"", self.receiver)
        self.peer.take()
        self.assertRaises(TooManyInFlight, self.runs.open, plan(), b"", self.receiver)
        self.assertEqual(self.peer.sent, [])
        self.receive(self.failed())
        self.runs.open(plan(), b"", self.receiver)

    def test_after_the_end_of_the_connection(self) -> None:
        self.runs.lost(PeerSilent("gone"))
        self.assertRaises(PeerDisconnected, self.runs.open, plan(), b"", self.receiver)
        self.assertEqual((self.peer.sent, self.receiver.calls), ([], []))


class ClosingPeer(RecordedPeer):
    """Ends its connection, from within ``notify``, at the given message, which is not sent."""

    def __init__(self, at: type[Message]) -> None:
        super().__init__(NODE)
        self.at = at
        self.runs = Runs(self)

    def notify(self, message: Message) -> None:
        if isinstance(message, self.at):
            self.runs.lost(PeerSilent("gone"))
        else:
            super().notify(message)


class EndWhileOpeningTests(SynchronousTestCase):
    def test_request_not_written(self) -> None:
        """R6: a run whose request was not written never was."""
        runs, receiver = ClosingPeer(runtime_pb2.RunRequest).runs, Receiver()
        self.assertRaises(PeerDisconnected, runs.open, plan(), b"body", receiver)
        self.assertEqual(receiver.calls, [])

    def test_body_not_written(self) -> None:
        """R6: once the request was written the run counts as started, and fails once."""
        peer, receiver = ClosingPeer(runtime_pb2.RunBody), Receiver()
        peer.runs.open(plan(), b"body", receiver)
        self.assertEqual(receiver.calls, [("failed", RunFailure(NODE_LOST, "the connection to the node ended", True))])
        self.assertEqual(len(peer.sent), 1)


class ResponseTests(RunsCase):
    def test_response(self) -> None:
        """R3: head, pieces, last piece."""
        self.open()
        self.receive(self.head(status=429, headers=[("accept", "x")]), self.body(b"one"), self.body(b"two", last=True))
        self.assertEqual(
            self.receiver.calls,
            [("head", 429, [("accept", "x")]), ("data", b"one"), ("data", b"two"), ("finished",)],
        )
        self.assertEqual(len(self.runs), 0)

    def test_empty_last_piece(self) -> None:
        self.open()
        self.receive(self.head(), self.body(b"one"), self.body(last=True))
        self.assertEqual(self.receiver.calls[1:], [("data", b"one"), ("finished",)])

    def test_failure(self) -> None:
        """R3, R6: a failure ends the run, and says whether it had started."""
        for started in (True, False):
            receiver = Receiver()
            self.runs.open(plan(), b"", receiver)
            (number,) = self.opened()
            self.receive(self.failed("draining", started, number))
            self.assertEqual(receiver.calls, [("failed", RunFailure("draining", "why", started))])

    def test_credit(self) -> None:
        """R4: credit is returned for what was handed on, a quarter of the window at a time."""
        run = self.open()
        self.receive(self.head(), *[self.body(bytes(BODY_PIECE))] * 4)
        self.assertEqual(self.peer.sent, [])
        run.consumed(BODY_PIECE - 1)
        self.assertEqual(self.peer.sent, [])
        run.consumed(1)
        run.consumed(2 * BODY_PIECE)
        self.assertEqual(
            self.peer.take(),
            [runtime_pb2.RunCredit(run=1, bytes=BODY_PIECE), runtime_pb2.RunCredit(run=1, bytes=2 * BODY_PIECE)],
        )
        self.assertRaises(ValueError, run.consumed, BODY_PIECE + 1)

    def test_no_credit_after_the_end(self) -> None:
        run = self.open()
        self.receive(self.head(), self.body(bytes(BODY_PIECE), last=True))
        run.consumed(BODY_PIECE)
        self.assertEqual(self.peer.sent, [])

    def test_connection_lost(self) -> None:
        """W11, R6: every open run fails once, as started; those that ended hear nothing."""
        receivers = [Receiver() for _ in range(3)]
        for receiver in receivers:
            self.runs.open(plan(), b"", receiver)
        self.receive(self.head(1), self.body(last=True, run=1), self.head(2))
        self.runs.lost(PeerSilent("gone"))
        self.runs.lost(PeerSilent("gone"))
        lost = ("failed", RunFailure(NODE_LOST, "the connection to the node ended", True))
        self.assertEqual(receivers[0].calls, [("head", 200, []), ("finished",)])
        self.assertEqual(receivers[1].calls, [("head", 200, []), lost])
        self.assertEqual(receivers[2].calls, [lost])

    def test_a_receiver_that_raises(self) -> None:
        """One run's fault is logged and cancels that run; the connection and other runs go on."""
        for name in ("head", "data"):
            faulty, other = Receiver(), Receiver()
            faulty.raises_on = name
            self.runs.open(plan(), b"", faulty)
            self.runs.open(plan(), b"", other)
            first, second = self.opened()
            self.receive(self.head(first), self.body(b"a", run=first), self.head(second))
            self.assertEqual(self.peer.take(), [runtime_pb2.RunCancel(run=first)])
            self.assertEqual(other.calls, [("head", 200, [])])
            self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
            self.receive(self.failed("cancelled", run=first))
            self.assertEqual(faulty.calls[-1], ("failed", RunFailure("cancelled", "why", True)))


class CancelTests(RunsCase):
    def test_drops_until_the_end(self) -> None:
        """R5: after a cancel only the Node's end is passed on."""
        run = self.open()
        run.cancel()
        run.cancel()
        self.assertEqual(self.peer.take(), [runtime_pb2.RunCancel(run=1)])
        self.receive(self.head(), self.body(b"late"))
        self.assertEqual((self.receiver.calls, len(self.runs)), ([], 1))
        self.receive(self.failed("cancelled"))
        self.assertEqual(self.receiver.calls, [("failed", RunFailure("cancelled", "why", True))])
        self.assertEqual(len(self.runs), 0)

    def test_crosses_the_end(self) -> None:
        """R5: a run that was cancelled did not finish for its caller, even if the Node had sent all of it."""
        run = self.open()
        self.receive(self.head())
        run.cancel()
        self.receive(self.body(b"all of it", last=True))
        self.assertEqual(self.receiver.calls[1:], [("failed", RunFailure("cancelled", "the run was cancelled", True))])

    def test_after_the_end(self) -> None:
        run = self.open()
        self.receive(self.head(), self.body(last=True))
        run.cancel()
        self.assertEqual(self.peer.sent, [])

    def test_connection_lost(self) -> None:
        run = self.open()
        run.cancel()
        self.runs.lost(PeerSilent("gone"))
        self.assertEqual(len(self.receiver.calls), 1)

    def test_no_body_after_it(self) -> None:
        run = self.open(bytes(2 * RUN_WINDOW))
        run.cancel()
        self.peer.take()
        self.receive(runtime_pb2.RunCredit(run=1, bytes=RUN_WINDOW))
        self.assertEqual(self.peer.sent, [])


class StopTests(RunsCase):
    """R11: the three words of a Node on a run that is wanted only if it was started."""

    def setUp(self) -> None:
        super().setUp()
        self.words: list[None] = []

    def stop(self) -> Run:
        run = self.open()
        for _ in range(2):
            run.stop_unless_started(lambda: self.words.append(None))
        self.assertEqual(self.peer.take(), [runtime_pb2.RunCancel(run=1, unless_started=True)])
        return run

    def test_started(self) -> None:
        """It goes on."""
        self.stop()
        self.receive(runtime_pb2.RunStarted(run=1))
        self.assertEqual((len(self.words), self.receiver.calls), (1, []))
        self.receive(self.head(), self.body(b"a", last=True))
        self.assertEqual(self.receiver.calls, [("head", 200, []), ("data", b"a"), ("finished",)])

    def test_not_started(self) -> None:
        """R6: it may run elsewhere, or not at all."""
        self.stop()
        self.receive(self.failed("cancelled", started=False))
        self.assertEqual(self.receiver.calls, [("failed", RunFailure("cancelled", "why", False))])
        self.assertEqual((len(self.words), len(self.runs)), (0, 0))

    def test_head_that_crosses(self) -> None:
        """The head was on its way: it is the word, and the one that follows says nothing new."""
        self.stop()
        self.receive(self.head(), runtime_pb2.RunStarted(run=1))
        self.assertEqual((len(self.words), self.receiver.calls), (0, [("head", 200, [])]))

    def test_left_alone(self) -> None:
        """A run with its head, its cancel or its end is not asked about."""
        run = self.open()
        self.receive(self.head())
        run.stop_unless_started(self.fail)
        run.cancel()
        self.peer.take()
        run.stop_unless_started(self.fail)
        self.receive(self.failed())
        run.stop_unless_started(self.fail)
        self.assertEqual(self.peer.sent, [])

    def test_cancelled_meanwhile(self) -> None:
        """A caller that goes away while the word is owed: the word is dropped, the end is the end."""
        run = self.stop()
        run.cancel()
        self.receive(runtime_pb2.RunStarted(run=1), self.failed("cancelled"))
        self.assertEqual((len(self.words), len(self.receiver.calls)), (0, 1))

    def test_unasked(self) -> None:
        """A Node that says so of a run that it was not asked about, or that is not open."""
        self.open()
        for number in (0, 1, 2):
            self.assertRaises(UnexpectedMessage, self.runs.received, runtime_pb2.RunStarted(run=number))


class ViolationTests(RunsCase):
    def refused(self, error: type[Exception], message: Message) -> None:
        self.assertRaises(error, self.runs.received, message)

    def test_runs_that_are_not_open(self) -> None:
        """R7: head, piece and end of a run that ended or never was."""
        self.open()
        self.receive(self.failed())
        for number in (0, 1, 2, 2**64 - 1):
            for message in (self.head(number), self.body(b"a", run=number), self.failed(run=number)):
                self.refused(UnexpectedMessage, message)

    def test_credit_that_crosses_the_end(self) -> None:
        """R7: late credit is no violation; credit for a run that never was is one."""
        self.open(b"body")
        self.receive(self.failed(), runtime_pb2.RunCredit(run=1, bytes=4))
        for number in (0, 2, 2**64 - 1):
            self.refused(UnexpectedMessage, runtime_pb2.RunCredit(run=number, bytes=4))

    def test_credit_never_taken(self) -> None:
        """R4"""
        self.open(b"body")
        self.refused(FlowViolation, runtime_pb2.RunCredit(run=1, bytes=5))
        self.refused(FlowViolation, runtime_pb2.RunCredit(run=1, bytes=0))

    def test_more_than_the_window(self) -> None:
        """R4"""
        self.open()
        self.receive(self.head(), *[self.body(bytes(BODY_PIECE))] * 4)
        self.refused(FlowViolation, self.body(b"a"))

    def test_order(self) -> None:
        """R3: a body without head, two heads."""
        self.open()
        self.refused(UnexpectedMessage, self.body(b"a"))
        self.receive(self.head())
        self.refused(UnexpectedMessage, self.head())

    def test_heads_that_may_not_travel(self) -> None:
        """R8, R9: interim answers, redirects, impossible statuses, headers with line ends or credentials."""
        self.open()
        for status in (0, 100, 199, 300, 307, 399, 600, 2**32 - 1):
            self.refused(MalformedFrame, self.head(status=status))
        for name, value in [("x-a", "a\r\nb"), ("authorization", "a"), ("transfer-encoding", "chunked")]:
            self.refused(MalformedFrame, self.head(headers=[(name, value)]))
        self.assertEqual(self.receiver.calls, [])

    def test_failure_codes(self) -> None:
        """R10: a code that is not in the list does not travel; every code that is in it does."""
        for code in ("", "ok", NODE_LOST):
            self.open()
            self.refused(MalformedFrame, self.failed(code))
        for number, code in enumerate(sorted(FAILURE_CODES), 1):
            self.runs = Runs(self.peer)
            run = self.open()
            if code == "cancelled":
                run.cancel()
            self.receive(self.failed(code))
            self.assertEqual(len(self.receiver.calls), number)

    def test_long_message(self) -> None:
        self.open()
        self.refused(MalformedFrame, runtime_pb2.RunFailed(run=1, code="draining", message="a" * 1025))

    def test_not_started_after_a_head(self) -> None:
        """R6: a Node that answered cannot have the run given to another Node."""
        self.open()
        self.receive(self.head())
        self.refused(UnexpectedMessage, self.failed(started=False))

    def test_foreign_message(self) -> None:
        self.refused(UnexpectedMessage, runtime_pb2.RunCancel(run=1))

    def test_a_violation_still_ends_the_run_once(self) -> None:
        """W11: the run whose message broke the wire ends with its connection."""
        self.open()
        self.receive(self.head(), *[self.body(bytes(BODY_PIECE))] * 4)
        self.refused(FlowViolation, self.body(b"a", last=True))
        self.runs.lost(FlowViolation("closed"))
        self.assertEqual(
            self.receiver.calls[-1], ("failed", RunFailure(NODE_LOST, "the connection to the node ended", True))
        )
