"""Commands as they come over the Control Plane wire, and what is told of them (rules S6-S10)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from iop.core.commands import ENDS, Command, Journal, Order, Phase, read
from iop.errors import CommandRefused, ControlPlaneUnavailable, Draining, IopError, ProtocolViolation
from iop.wire import control_pb2

if TYPE_CHECKING:
    from iop.edge.events import Notes
    from iop.edge.operations import Operations, Work
    from iop.interfaces import IClock

_PHASES: Final = {
    Phase.ACCEPTED: control_pb2.COMMAND_PHASE_ACCEPTED,
    Phase.RUNNING: control_pb2.COMMAND_PHASE_RUNNING,
    Phase.SUCCEEDED: control_pb2.COMMAND_PHASE_SUCCEEDED,
    Phase.FAILED: control_pb2.COMMAND_PHASE_FAILED,
    Phase.CANCELLED: control_pb2.COMMAND_PHASE_CANCELLED,
}

_log = Logger()


class Commands:
    """Takes commands, has them done in the order in which they came, tells how they go.

    :param managed: whether this Edge has the credential plane (C24).
    """

    def __init__(self, operations: Operations, notes: Notes, clock: IClock, *, managed: bool) -> None:
        self._operations = operations
        self._notes = notes
        self._clock = clock
        self._managed = managed
        self._journal = Journal(clock.wall_ms, self._stepped)
        #: Accepted ones that have not begun.
        self._due: deque[tuple[Command, Work]] = deque()

    def take(self, request: control_pb2.EdgeCommandRequest) -> control_pb2.EdgeCommandResponse:
        """Accept a command or refuse it, or say how one stands that came before (S6, S10).

        What it does begins in a later turn of the event loop, when the answer is on its way.
        """
        order = Order(
            request.command_id,
            request.operation,
            request.target_selector,
            tuple(sorted((entry.key, entry.value) for entry in request.metadata)),
        )
        try:
            command = self._journal.find(order) or self._accept(order)
        except CommandRefused as refused:
            _log.warn("edge.command.refused", reason=refused.reason)
            return control_pb2.EdgeCommandResponse(accepted=False, code=refused.reason, message=refused.message)
        return control_pb2.EdgeCommandResponse(accepted=True, state=_told(command))

    def stop(self) -> None:
        """The process goes away: cancel what is not over."""
        for command in self._journal.running:
            command.cancel("stopping")

    def _accept(self, order: Order) -> Command:
        work = self._operations.work(read(order, managed=self._managed))
        command = self._journal.accept(order)
        self._due.append((command, work))
        self._clock.call_later(0, self._begin_next)
        _log.info("edge.command.accepted", command=order.command_id, operation=order.operation)
        return command

    def _begin_next(self) -> None:
        command, work = self._due.popleft()
        if not command.is_over:
            self._notes.tell(_told(command))
            Deferred.fromCoroutine(work(command)).addCallbacks(
                lambda _: _succeed(command), lambda failure: _fail(command, failure)
            )

    def _stepped(self, command: Command) -> None:
        self._notes.tell(_told(command))
        if command.is_over:
            _log.info(
                "edge.command.ended",
                command=command.order.command_id,
                operation=command.order.operation,
                phase=command.state.phase.name.lower(),
                code=command.state.code,
            )


def _succeed(command: Command) -> None:
    if not command.is_over:
        command.succeed()


def _fail(command: Command, failure: Failure) -> None:
    code = _end_code(failure.value)
    if code == "internal":
        _log.failure("edge.command.failed", failure, command=command.order.command_id)
    if not command.is_over:
        command.fail(code)


def _end_code(error: BaseException | None) -> str:
    """Why a command failed: a code of :data:`~iop.core.commands.ENDS`, whatever the error says."""
    match error:
        case Draining():
            return "stopping"
        case ControlPlaneUnavailable() | ProtocolViolation():
            return "not_connected"
        case IopError() if error.code in ENDS:
            return error.code
    return "internal"


def _told(command: Command) -> control_pb2.EdgeCommandEvent:
    state = command.state
    return control_pb2.EdgeCommandEvent(
        command_id=command.order.command_id,
        operation=command.order.operation,
        phase=_PHASES[state.phase],
        done=state.done,
        total=state.total,
        code=state.code,
        message=ENDS.get(state.code, ""),
        at_ms=state.at_ms,
    )
