"""The Edge's half of runs on one Node connection: writes requests, hands responses on, returns credit (R1-R7, R11).

Decisions are :class:`iop.core.runs.EdgeRun`'s; this module turns them into messages and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import Message
from twisted.logger import Logger
from zope.interface import Interface

from iop.core.headers import header_fault
from iop.core.runs import FAILURE_CODES, EdgePhase, EdgeRun, Verdict
from iop.errors import BadHttp, IopError, MalformedFrame, PeerDisconnected, TooManyInFlight, UnexpectedMessage
from iop.interfaces import IPeer
from iop.records import Binding
from iop.units import IN_FLIGHT_LIMIT, RUN_WINDOW
from iop.wire import runtime_pb2
from iop.wire.convert import binding_to_wire

log = Logger()

#: The code of a run whose connection ended under it. It never travels.
NODE_LOST: Final = "node_lost"
_MESSAGE_LIMIT: Final = 1024


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything about a run but its body.

    :ivar lease: None in legacy mode alone (E17).
    :ivar path: below the target's base URL, exactly as the profile lists it.
    :ivar headers: lower-case names; neither hop-by-hop nor credential headers (R8).
    """

    request_id: str
    lease: runtime_pb2.SealedLease | None = field(repr=False)
    binding: Binding
    token_id: str
    provider_id: str
    method: str
    path: str
    headers: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a run has no whole response.

    :ivar code: one of :data:`iop.core.runs.FAILURE_CODES`, or :data:`NODE_LOST`.
    :ivar started: False only if nothing was sent upstream, so that another Node may get the run (R6).
    """

    code: str
    message: str
    started: bool


class IRunReceiver(Interface):
    """Who takes a run's response. Exactly one of ``finished`` and ``failed`` is called, once, and nothing after it."""

    def head(status: int, headers: Sequence[tuple[str, str]]) -> None:
        """The response head; at most once, before any data."""

    def data(data: bytes) -> None:
        """Body bytes, 1 to 64 KiB of them. Call :meth:`Run.consumed` as they are handed on."""

    def finished() -> None:
        """The response is whole."""

    def failed(failure: RunFailure) -> None:
        """The run ended otherwise. After :meth:`Run.cancel` this is the only call that still comes: the Node's word."""


class Run:
    """One open run; made by :meth:`Runs.open`."""

    __slots__ = ("_machine", "_number", "_peer", "_receiver", "_started")

    def __init__(self, peer: IPeer, number: int, machine: EdgeRun, receiver: IRunReceiver) -> None:
        self._peer = peer
        self._number = number
        self._machine = machine
        self._receiver = receiver
        self._started: Callable[[], object] = lambda: None

    def consumed(self, count: int) -> None:
        """``count`` bytes of data were handed on; returns credit to the Node, in lumps. Late calls do nothing.

        :raises ValueError: if fewer bytes were received and not yet consumed.
        """
        credit = self._machine.handed_on(count)
        if credit:
            self._peer.notify(runtime_pb2.RunCredit(run=self._number, bytes=credit))

    def cancel(self) -> None:
        """Want no more of this run (R5); the receiver's ``failed`` tells when the Node confirmed. Late calls: no-op."""
        if self._machine.cancel() is Verdict.PASS:
            self._peer.notify(runtime_pb2.RunCancel(run=self._number))

    def stop_unless_started(self, started: Callable[[], object]) -> None:
        """Have the Node end this run unless something was sent upstream (R11).

        Its word is one of three: ``started`` is called, the receiver's ``head``, or its ``failed``. Of a run that was
        cancelled only ``failed`` tells. One that has its head or its end, or was asked about before, is left alone.
        """
        if self._machine.stop_unless_started() is Verdict.PASS:
            self._started = started
            self._peer.notify(runtime_pb2.RunCancel(run=self._number, unless_started=True))

    # what Runs calls; each message was checked and is for this run

    def send_body(self) -> None:
        """Write what the window allows of the request body."""
        for data, last in self._machine.pieces():
            self._peer.notify(runtime_pb2.RunBody(run=self._number, data=data, last=last))

    def head(self, message: runtime_pb2.RunHead) -> None:
        """The response head came."""
        if self._machine.head() is Verdict.PASS:
            self._tell(self._receiver.head, message.status, [(field.name, field.value) for field in message.headers])

    def body(self, data: bytes, last: bool) -> None:
        """A piece of the response body came."""
        verdict = self._machine.piece(len(data), last)
        if verdict is Verdict.CANCELLED:
            self._tell(self._receiver.failed, RunFailure("cancelled", "the run was cancelled", started=True))
        elif verdict is Verdict.PASS:
            if data:
                self._tell(self._receiver.data, data)
            if last:
                self._tell(self._receiver.finished)

    def failed(self, message: runtime_pb2.RunFailed) -> None:
        """The Node ended the run."""
        self._machine.failed(message.code, message.started)
        self._tell(self._receiver.failed, RunFailure(message.code, message.message, message.started))

    def started(self) -> None:
        """The Node sent something upstream before it was asked to end the run."""
        if self._machine.started() is Verdict.PASS:
            self._started()

    def credited(self, count: int) -> None:
        """The Node handed on request bytes."""
        if self._machine.credited(count) is Verdict.PASS:
            self.send_body()

    def lost(self) -> None:
        """The connection ended."""
        if self._machine.lost() is Verdict.PASS:
            failure = RunFailure(NODE_LOST, "the connection to the node ended", started=True)
            self._tell(self._receiver.failed, failure)

    @property
    def ended(self) -> bool:
        """Whether the end came."""
        return self._machine.phase is EdgePhase.ENDED

    def _tell(self, call: Callable[..., None], *what: object) -> None:
        """One receiver that raises must not end the connection under everybody else's runs; its own run ends."""
        with log.failuresHandled("edge.run.receiver_failed") as outcome:
            call(*what)
        if outcome.failed:
            self.cancel()


class Runs:
    """Every run on one Node connection.

    :param peer: the connection; its application hands ``RunHead``, ``RunBody``, ``RunFailed``, ``RunStarted`` and
        ``RunCredit`` to :meth:`received`, and its end to :meth:`lost`.
    :param window: bytes of response body that a run may have on their way.
    """

    def __init__(self, peer: IPeer, window: int = RUN_WINDOW) -> None:
        self._peer = peer
        self._window = window
        self._open: dict[int, Run] = {}
        self._highest = 0
        self._lost = False

    def __len__(self) -> int:
        """How many runs are open, those whose cancel the Node has not confirmed included."""
        return len(self._open)

    def open(self, plan: RunPlan, body: bytes | bytearray, receiver: IRunReceiver) -> Run:
        """Write a ``RunRequest`` and as much of the body as the window allows.

        Whatever is raised, nothing was written and the receiver hears nothing. Otherwise it hears of the run's end, in
        the one case that writing the body ended the connection even before this returns.

        :param body: the whole request body; it is kept, not copied, until it was sent, and must not change.
        :raises BadHttp: if the headers may not travel (R8, P18).
        :raises PeerDisconnected: if the connection ended.
        :raises TooManyInFlight: if the connection carries as many runs as it may.
        """
        self._refuse_lost()
        if len(self._open) >= IN_FLIGHT_LIMIT:
            raise TooManyInFlight("the connection to the node carries as many runs as it may")
        fault = header_fault(plan.headers)
        if fault is not None:
            raise BadHttp(400, fault)
        self._highest += 1
        number = self._highest
        request = runtime_pb2.RunRequest(
            run=number,
            request_id=plan.request_id,
            lease=plan.lease,
            binding=binding_to_wire(plan.binding),
            token_id=plan.token_id,
            provider_id=plan.provider_id,
            method=plan.method,
            path=plan.path,
            headers=[runtime_pb2.HeaderField(name=name, value=value) for name, value in plan.headers],
            body_length=len(body),
            window=self._window,
        )
        run = Run(self._peer, number, EdgeRun(body, self._window), receiver)
        self._peer.notify(request)
        self._refuse_lost()
        self._open[number] = run
        run.send_body()
        return run

    def received(self, message: Message) -> None:
        """Take a message of the Node's that belongs to a run.

        :raises ProtocolViolation: for one that may not come now (R4, R7) or is malformed (R8, R10).
        """
        match message:
            case runtime_pb2.RunBody():
                run = self._of(message.run)
                run.body(message.data, message.last)
                self._forget_ended(message.run, run)
            case runtime_pb2.RunHead():
                _check_head(message)
                self._of(message.run).head(message)
            case runtime_pb2.RunCredit():
                # it may cross the end of its run on the wire (R7)
                if not 0 < message.run <= self._highest or message.run in self._open:
                    self._of(message.run).credited(message.bytes)
            case runtime_pb2.RunStarted():
                self._of(message.run).started()
            case runtime_pb2.RunFailed():
                _check_failed(message)
                run = self._of(message.run)
                run.failed(message)
                self._forget_ended(message.run, run)
            case _:
                raise UnexpectedMessage("a Node sent a message that belongs to no run")

    def lost(self, reason: IopError) -> None:
        """The connection ended, for ``reason``: every open run fails once, as started (R6); nothing can be opened."""
        self._lost = True
        open_runs, self._open = self._open, {}
        if open_runs:
            log.info("edge.runs.lost", count=len(open_runs), code=reason.code)
        for run in open_runs.values():
            run.lost()

    def _refuse_lost(self) -> None:
        if self._lost:
            raise PeerDisconnected("the connection to the node ended")

    def _of(self, number: int) -> Run:
        try:
            return self._open[number]
        except KeyError:
            raise UnexpectedMessage("a Node sent a message for a run that is not open") from None

    def _forget_ended(self, number: int, run: Run) -> None:
        if run.ended:
            self._open.pop(number, None)


def _check_head(message: runtime_pb2.RunHead) -> None:
    # redirects and interim answers end at the Node (R9)
    if not (200 <= message.status <= 299 or 400 <= message.status <= 599):
        raise MalformedFrame("a Node sent a response head with a status that does not travel")
    fault = header_fault((field.name, field.value) for field in message.headers)
    if fault is not None:
        raise MalformedFrame(f"a Node sent a response head that may not travel: {fault}")


def _check_failed(message: runtime_pb2.RunFailed) -> None:
    if message.code not in FAILURE_CODES or len(message.message) > _MESSAGE_LIMIT:
        raise MalformedFrame("a Node ended a run with an unknown code or too long a message")
