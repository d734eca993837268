"""The projection in force on this Edge, the receipt of it on disk, and the Edge's word on it (rules E5, E6, E15)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from twisted.internet.defer import Deferred, DeferredLock, succeed
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
from iop.wire.strict import parse_strict

_RECORD: Final = "projection.receipt"
_RECORD_LIMIT: Final = 4096

_log = Logger()


class Projections:
    """What this Edge knows of principals, and since when it may not know anything older.

    The record on disk is the receipt of the projection in force: it names generation and digest, and the next hello
    presents it. It holds no entry of the projection, so a restarted Edge knows nothing until it is told again.

    :param directory: the Edge's state folder.
    :param applied: called with each projection that comes into force. What it answers fires with the number of runs of
        which their Nodes have not said whether they started, and the acknowledgement waits for it (E15).
    :param unanswered: that number, for what is acknowledged without anything coming into force.
    """

    def __init__(
        self,
        directory: Path,
        deployment: str,
        edge: str,
        clock: IClock,
        applied: Callable[[Projection], Deferred[int]],
        unanswered: Callable[[], int],
    ) -> None:
        self._path = directory / _RECORD
        self._deployment = deployment
        self._edge = edge
        self._clock = clock
        self._applied = applied
        self._unanswered = unanswered
        self._receipt: control_pb2.ProjectionReceipt | None = None
        self._recorded: Mark | None = None
        self._awaited: dict[Deferred[None], int] = {}
        self._acknowledging = DeferredLock()
        #: The projection in force; None until the Control Plane sent one to this process.
        self.current: Projection | None = None

    @property
    def generation(self) -> int:
        """That of the projection in force; 0 if there is none."""
        return 0 if self.current is None else self.current.generation

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

    def judge(self, offered: Mark, claimed_digest: bytes, receipt: control_pb2.ProjectionReceipt) -> Verdict:
        """Decide on a projection of that name, or of the name that it claims as long as it is not all there.

        :raises ProjectionRefused: as :func:`iop.core.held.judge`.
        :raises ReceiptRefused: if the receipt does not name it.
        """
        verdict = judge(offered, claimed_digest, self._recorded, loaded=self.current is not None)
        statement = read_receipt(receipt)
        named = (statement.deployment_id, statement.edge, statement.generation, statement.digest)
        if named != (self._deployment, self._edge, offered.generation, offered.digest):
            raise ReceiptRefused("the receipt is not this projection's")
        return verdict

    def put(
        self, projection: Projection, claimed_digest: bytes, receipt: control_pb2.ProjectionReceipt
    ) -> Deferred[control_pb2.ProjectionOutcome]:
        """Have a projection in force and on disk when this returns, or leave everything as it was.

        The write is synchronous on purpose: nothing may be decided on the old projection once the new one was judged.

        :returns: the acknowledgement, see :meth:`acknowledgement`.
        :raises ProjectionRefused: or ``ReceiptRefused``, as :meth:`judge`.
        :raises FileRefused: if the record cannot be written; the old projection stays in force and nothing may be
            acknowledged.
        """
        mark = Mark(projection.generation, projection.digest)
        verdict = self.judge(mark, claimed_digest, receipt)
        if verdict is Verdict.APPLY:
            write_atomic(self._path, receipt.SerializeToString(deterministic=True), 0o600)
            self._receipt = receipt
            self._recorded = mark
        applied = verdict is Verdict.APPLY
        return self._swap(
            projection, control_pb2.PROJECTION_RESULT_APPLIED if applied else control_pb2.PROJECTION_RESULT_HELD
        )

    def acknowledgement(self, result: control_pb2.ProjectionResult) -> Deferred[control_pb2.ProjectionOutcome]:
        """That what is in force now is in force, as soon as that may be said (E15).

        Acknowledgements fire in the order in which they were asked for, so that none stands for an earlier projection
        whose words are still awaited (P41).
        """
        return self._acknowledgement(result, None)

    def refusal(self, refused: ProjectionRefused | ReceiptRefused, generation: int) -> control_pb2.ProjectionOutcome:
        """The word on a projection that is refused, which is logged here, once (E7)."""
        reason = refused.reason if isinstance(refused, ProjectionRefused) else refused.code
        _log.error("edge.projection.refused", reason=reason, generation=generation)
        return self._outcome(control_pb2.PROJECTION_RESULT_REFUSED, reason)

    def restore(self, projection: Projection) -> Deferred[control_pb2.ProjectionOutcome]:
        """Put what the Control Plane holds of the generation in force in the place of what is in memory.

        :returns: as :meth:`acknowledgement`.
        :raises ProjectionRefused: ``digest_conflict`` if it is not the one that was acknowledged.
        """
        if self._recorded != Mark(projection.generation, projection.digest):
            refused = ProjectionRefused("digest_conflict", "the Control Plane holds another one of this generation")
            self.refusal(refused, projection.generation)
            raise refused
        return self._swap(projection, control_pb2.PROJECTION_RESULT_HELD)

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

    def _swap(
        self, projection: Projection, result: control_pb2.ProjectionResult
    ) -> Deferred[control_pb2.ProjectionOutcome]:
        self.current = projection
        acknowledged = self._acknowledgement(result, self._applied(projection))
        _log.info("edge.projection.applied", generation=projection.generation)
        for awaited in [awaited for awaited, wanted in self._awaited.items() if wanted <= projection.generation]:
            del self._awaited[awaited]
            awaited.callback(None)
        return acknowledged

    def _acknowledgement(
        self, result: control_pb2.ProjectionResult, words: Deferred[int] | None
    ) -> Deferred[control_pb2.ProjectionOutcome]:
        acknowledged: Deferred[control_pb2.ProjectionOutcome] = Deferred()
        # has its place in the queue when this returns
        telling = Deferred.fromCoroutine(self._tell(acknowledged, self._outcome(result), words))
        telling.addErrback(acknowledged.errback)
        return acknowledged

    async def _tell(
        self,
        acknowledged: Deferred[control_pb2.ProjectionOutcome],
        outcome: control_pb2.ProjectionOutcome,
        words: Deferred[int] | None,
    ) -> None:
        async with self._acknowledging:
            outcome.unconfirmed = self._unanswered() if words is None else await words
            # before the next one has its turn
            acknowledged.callback(outcome)

    def _late(self, awaited: Deferred[None]) -> None:
        del self._awaited[awaited]
        awaited.errback(RequestTimedOut("the projection that this request needs did not come in time"))

    def _outcome(self, result: control_pb2.ProjectionResult, code: str = "") -> control_pb2.ProjectionOutcome:
        in_force = self._recorded or Mark(0, b"")
        return control_pb2.ProjectionOutcome(
            result=result, generation=in_force.generation, digest=in_force.digest, code=code
        )
