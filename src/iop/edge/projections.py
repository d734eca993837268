"""The projection in force on this Edge, and the receipt of it on disk (rules E5, E6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from iop.core.held import Mark, Verdict, judge
from iop.core.projection import Projection
from iop.crypto.receipt import read_receipt
from iop.errors import (
    BadConfig,
    DeploymentMismatch,
    MalformedFrame,
    ProjectionRefused,
    ReceiptRefused,
    RequestTimedOut,
)
from iop.files import read_public, write_atomic
from iop.interfaces import IClock
from iop.wire import control_pb2
from iop.wire.convert import projection_from_wire
from iop.wire.strict import parse_strict

_RECORD: Final = "projection.receipt"
_RECORD_LIMIT: Final = 4096

_log = Logger()


class Projections:
    """What this Edge knows of principals, and since when it may not know anything older.

    The record on disk is the receipt of the projection in force: it names generation and digest, and the next hello
    presents it. It holds no entry of the projection, so a restarted Edge knows nothing until it is told again.

    :param directory: the Edge's state folder.
    :param applied: called with each projection that comes into force, before it is acknowledged.
    """

    def __init__(
        self, directory: Path, deployment: str, edge: str, clock: IClock, applied: Callable[[Projection], object]
    ) -> None:
        self._path = directory / _RECORD
        self._deployment = deployment
        self._edge = edge
        self._clock = clock
        self._applied = applied
        self._receipt: control_pb2.ProjectionReceipt | None = None
        self._recorded: Mark | None = None
        self._awaited: dict[Deferred[None], int] = {}
        #: The projection in force; None until the Control Plane sent one to this process.
        self.current: Projection | None = None

    def load(self) -> None:
        """Read the record that an earlier process left; without one, make sure that there is a folder for it.

        :raises BadConfig: if it cannot be read. It is never overwritten or taken for absent: that would let an older
            projection in (P7).
        :raises DeploymentMismatch: if it is another deployment's or another Edge's.
        """
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._path.exists():
                return
        except OSError as error:
            hint = f"check what `ls -ld {folder}` says"
            raise BadConfig(f"[state] directory = {folder}: {error.strerror}", hint=hint) from error
        removal = (
            f"remove {self._path}; without it an older projection is taken, in which revoked access may still hold"
        )
        try:
            receipt = parse_strict(control_pb2.ProjectionReceipt, read_public(self._path, _RECORD_LIMIT))
            statement = read_receipt(receipt)
        except (MalformedFrame, ReceiptRefused) as error:
            raise BadConfig(
                f"{self._path} does not hold a projection receipt", hint=f"if it is damaged, {removal}"
            ) from error
        if (statement.deployment_id, statement.edge) != (self._deployment, self._edge):
            raise DeploymentMismatch(
                f"{self._path} belongs to another deployment or Edge",
                hint=f"check [deployment] id, [edge] name and [state] directory; only if they are right, {removal}",
            )
        self._receipt = receipt
        self._recorded = Mark(statement.generation, statement.digest)

    def hello(self, protocol_version: int) -> control_pb2.EdgeHelloRequest:
        """The hello of this Edge, with what it holds."""
        recorded = self._recorded or Mark(0, b"")
        return control_pb2.EdgeHelloRequest(
            edge_id=self._edge,
            protocol_version=protocol_version,
            held_generation=recorded.generation,
            held_digest=recorded.digest,
            held_receipt=self._receipt,
        )

    def offer(
        self, wire: control_pb2.PrincipalProjection, receipt: control_pb2.ProjectionReceipt
    ) -> control_pb2.ProjectionOutcome:
        """Decide on a projection, and have it in force and on disk when this returns, or leave everything as it was.

        The write is synchronous on purpose: nothing may be decided on the old projection once the new one was judged.

        :raises MalformedFrame: if an entry is not even well-formed.
        :raises FileRefused: if the record cannot be written; the old projection stays in force and nothing may be
            acknowledged.
        """
        try:
            projection, verdict = self._judge(wire, receipt)
        except (ProjectionRefused, ReceiptRefused) as refused:
            reason = refused.reason if isinstance(refused, ProjectionRefused) else refused.code
            _log.error("edge.projection.refused", reason=reason, generation=wire.generation)
            return self._outcome(control_pb2.PROJECTION_RESULT_REFUSED, reason)
        if verdict is Verdict.APPLY:
            write_atomic(self._path, receipt.SerializeToString(deterministic=True), 0o600)
            self._receipt = receipt
            self._recorded = Mark(projection.generation, projection.digest)
        if verdict is not Verdict.HELD:
            self._swap(projection)
        applied = verdict is Verdict.APPLY
        return self._outcome(control_pb2.PROJECTION_RESULT_APPLIED if applied else control_pb2.PROJECTION_RESULT_HELD)

    def reached(self, generation: int, within_seconds: float) -> Deferred[None]:
        """Fires once ``generation`` or a later one is in force.

        Fails with :class:`~iop.errors.RequestTimedOut` after ``within_seconds``.
        """
        if self.current is not None and self.current.generation >= generation:
            return succeed(None)
        awaited: Deferred[None] = Deferred(self._awaited.__delitem__)
        self._awaited[awaited] = generation
        timer = self._clock.call_later(within_seconds, lambda: self._late(awaited))

        def settled(result: object) -> object:
            if timer.active():
                timer.cancel()
            return result

        return awaited.addBoth(settled)

    def _judge(
        self, wire: control_pb2.PrincipalProjection, receipt: control_pb2.ProjectionReceipt
    ) -> tuple[Projection, Verdict]:
        snapshot, claimed_digest = projection_from_wire(wire)
        projection = Projection.build(snapshot)
        mark = Mark(projection.generation, projection.digest)
        verdict = judge(mark, claimed_digest, self._recorded, loaded=self.current is not None)
        statement = read_receipt(receipt)
        named = (statement.deployment_id, statement.edge, statement.generation, statement.digest)
        if named != (self._deployment, self._edge, mark.generation, mark.digest):
            raise ReceiptRefused("the receipt is not this projection's")
        return projection, verdict

    def _swap(self, projection: Projection) -> None:
        self.current = projection
        self._applied(projection)
        _log.info("edge.projection.applied", generation=projection.generation)
        for awaited in [awaited for awaited, wanted in self._awaited.items() if wanted <= projection.generation]:
            del self._awaited[awaited]
            awaited.callback(None)

    def _late(self, awaited: Deferred[None]) -> None:
        del self._awaited[awaited]
        awaited.errback(RequestTimedOut("the projection that this request needs did not come in time"))

    def _outcome(self, result: control_pb2.ProjectionResult, code: str = "") -> control_pb2.ProjectionOutcome:
        in_force = self._recorded or Mark(0, b"")
        return control_pb2.ProjectionOutcome(
            result=result, generation=in_force.generation, digest=in_force.digest, code=code
        )
