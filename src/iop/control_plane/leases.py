"""Leases: attested, authorised by a durable re-read, audited, and only then opened and sealed (rules L2-L6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from iop.crypto.at_rest import Place
from iop.crypto.lease import LeaseStatement, seal_lease
from iop.errors import AttestationRefused, CannotOpen, KeyMissing, MalformedFrame, StoreBusy, StoreUnavailable
from iop.records import LeaseGrant, LeaseQuestion, LeaseRefusal, SealedSecret
from iop.secret import Secret
from iop.store.events import lease_decided
from iop.units import is_request_id, new_id
from iop.wire import control_pb2
from iop.wire.convert import binding_from_wire

if TYPE_CHECKING:
    from iop.control_plane.metrics import ControlPlaneMetrics
    from iop.crypto.attestation import AttestationVerifier
    from iop.crypto.issuer import Issuer
    from iop.crypto.keyring import Keyring
    from iop.interfaces import IAudit, IClock, ILeaseAuthority

#: Opens a stored secret; a seam so that a test can count how often anything is decrypted.
Unseal: TypeAlias = "Callable[[Keyring, Place, SealedSecret], Secret]"


@dataclass(frozen=True, slots=True)
class LeaseScope:
    """What stands in every lease of one Control Plane."""

    deployment_id: str
    trust_domain: str
    ttl_ms: int


def secret_place(deployment_id: str, principal: str, slot: str, profile: str, target: str, revision: int) -> Place:
    """Where a slot's secret is at home: everything it is bound to at rest (security.md, At rest; P22)."""
    return Place(
        deployment=deployment_id,
        table="slots",
        column="secret",
        principal=principal,
        slot=slot,
        profile=profile,
        target=target,
        revision=revision,
    )


class LeaseDesk:
    """Answers lease requests of authenticated, ready Edge sessions."""

    def __init__(
        self,
        *,
        scope: LeaseScope,
        authority: ILeaseAuthority,
        audit: IAudit,
        verifier: AttestationVerifier,
        keyring: Keyring,
        issuer: Issuer,
        clock: IClock,
        metrics: ControlPlaneMetrics,
        unseal: Unseal,
    ) -> None:
        self._scope = scope
        self._authority = authority
        self._audit = audit
        #: May be replaced at any time.
        self.verifier = verifier
        self._keyring = keyring
        self._issuer = issuer
        self._clock = clock
        self._metrics = metrics
        self._unseal = unseal
        self._under_way: set[Deferred[None]] = set()
        self._log = Logger()

    async def settled(self) -> None:
        """Return when every lease that is under way now has its answer.

        A projection that takes something away is sent only then, so whoever has acknowledged it has seen every lease
        that was authorised before (P13).
        """
        for answered in tuple(self._under_way):
            await answered

    async def acquire(self, edge: str, message: control_pb2.AcquireLeaseRequest) -> control_pb2.AcquireLeaseResponse:
        """Answer one request of the Edge that the connection's certificate names.

        :raises MalformedFrame: if the request is not even one; its connection is to be closed.
        """
        answered: Deferred[None] = Deferred()
        self._under_way.add(answered)
        try:
            return await self._answer(edge, message)
        finally:
            self._under_way.remove(answered)
            answered.callback(None)

    async def _answer(self, edge: str, message: control_pb2.AcquireLeaseRequest) -> control_pb2.AcquireLeaseResponse:
        question = _question(edge, message)
        try:
            return await self._decide(question, message)
        except (StoreBusy, StoreUnavailable) as error:
            # no audit row, no lease (P26); only a store that is merely busy is worth asking again at once
            again = isinstance(error, StoreBusy)
            return self._refuse(question, LeaseRefusal(error.code, error.message, again=again, generation=0))

    async def _decide(
        self, question: LeaseQuestion, message: control_pb2.AcquireLeaseRequest
    ) -> control_pb2.AcquireLeaseResponse:
        binding = question.binding
        try:
            attested_until_ms = self.verifier.verify(
                message.attestation,
                edge=question.edge,
                node=binding.node,
                public_key=message.recipient_public_key,
                now_ms=self._clock.wall_ms(),
            )
        except AttestationRefused as error:
            await self._record(question, error.code)
            return self._refuse(question, LeaseRefusal(error.code, error.message, again=False, generation=0))
        verdict = await self._authority.authorise(question, self._clock.wall_ms())
        if isinstance(verdict, LeaseRefusal):
            return self._refuse(question, verdict)
        try:
            return self._grant(question, verdict, message.recipient_public_key, attested_until_ms)
        except (KeyMissing, CannotOpen):
            await self._record(question, "secret_unreadable")
            reason = "the slot's stored secret cannot be opened with this Control Plane's keyring"
            return self._refuse(question, LeaseRefusal("secret_unreadable", reason, again=False, generation=0))

    def _grant(
        self, question: LeaseQuestion, grant: LeaseGrant, recipient: bytes, attested_until_ms: int
    ) -> control_pb2.AcquireLeaseResponse:
        binding = question.binding
        statement = LeaseStatement(
            lease_id=new_id(grant.read_ms),
            deployment_id=self._scope.deployment_id,
            trust_domain=self._scope.trust_domain,
            edge=question.edge,
            binding=binding,
            token_id=question.token_id,
            not_before_ms=grant.read_ms,
            expires_ms=min(grant.read_ms + self._scope.ttl_ms, attested_until_ms),
            recipient_public_key=recipient,
        )
        place = secret_place(
            self._scope.deployment_id,
            binding.principal,
            binding.slot,
            binding.profile,
            binding.target,
            binding.credential_revision,
        )
        with self._unseal(self._keyring, place, grant.secret) as secret:
            lease = seal_lease(self._issuer, statement, secret)
        self._metrics.leases_granted.inc()
        self._log.info(
            "control.lease.granted",
            request_id=question.request_id,
            lease_id=statement.lease_id,
            edge=question.edge,
            node=binding.node,
            principal=binding.principal,
            slot=binding.slot,
            profile=binding.profile,
            generation=binding.generation,
            seconds=(statement.expires_ms - statement.not_before_ms) // 1000,
        )
        return control_pb2.AcquireLeaseResponse(lease=lease)

    def _refuse(self, question: LeaseQuestion, refusal: LeaseRefusal) -> control_pb2.AcquireLeaseResponse:
        self._metrics.lease_refusals.count(refusal.reason)
        self._log.info(
            "control.lease.refused",
            request_id=question.request_id,
            edge=question.edge,
            node=question.binding.node,
            reason=refusal.reason,
            again=refusal.again,
        )
        return control_pb2.AcquireLeaseResponse(
            refusal=control_pb2.LeaseRefusal(
                code=refusal.reason,
                message=refusal.message,
                retryable=refusal.again,
                generation=refusal.generation,
            )
        )

    async def _record(self, question: LeaseQuestion, outcome: str) -> None:
        event = lease_decided(question, outcome)
        await self._audit.append(event.actor, event.action, event.subject, event.outcome, dict(event.details))


def _question(edge: str, message: control_pb2.AcquireLeaseRequest) -> LeaseQuestion:
    """What is asked, its ids short enough to stand in the audit whatever the Edge is (L2)."""
    if not is_request_id(message.request_id) or not is_request_id(message.token_id):
        raise MalformedFrame("a lease request has ids that are none")
    return LeaseQuestion(
        message.request_id, edge, binding_from_wire(message.binding), message.token_id, message.token_proof
    )
