"""Every seam of the product; what crosses them are values of :mod:`iop.records` and errors of :mod:`iop.errors`.

Interfaces that return a Deferred may fail it with the errors their docstring names and with
:class:`~iop.errors.StoreBusy` or :class:`~iop.errors.StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IDelayedCall

    from iop.errors import IopError
    from iop.records import (
        AuditRow,
        Committed,
        EdgeSession,
        LeaseGrant,
        LeaseQuestion,
        LeaseRefusal,
        NewSlot,
        NewToken,
        PrincipalRecord,
        Reading,
        RouteRecord,
        SealedSecret,
        SlotRecord,
        SlotState,
        TokenRecord,
    )
    from iop.units import Identity


class IClock(Interface):
    """Time for decisions: boot time that never jumps, and a wall time counted from it (P45)."""

    def boot() -> float:
        """Seconds of boot time; goes on during suspend, never steps."""

    def wall_ms() -> int:
        """Unix milliseconds: the wall clock sampled once at start, counted by boot time since."""

    def call_later(seconds: float, what: Callable[[], object]) -> IDelayedCall:
        """Call ``what`` once, ``seconds`` from now."""


# -- peers ------------------------------------------------------------------------------------------------------------


class IPeer(Interface):
    """One authenticated connection to another role, as the role that uses it sees it."""

    identity: Identity = Attribute("The identity in the peer's certificate, verified before any byte was exchanged.")

    def request(message: Message, timeout_seconds: float) -> Deferred[Message]:
        """Ask, and get the answer that belongs to it.

        Fails once with :class:`~iop.errors.RequestTimedOut`, :class:`~iop.errors.PeerDisconnected`,
        :class:`~iop.errors.TooManyInFlight`, :class:`~iop.errors.FrameTooLarge` or :class:`~iop.errors.Draining`.
        Before the hello was accepted only the hello may be asked, anything else is
        :class:`~iop.errors.UnexpectedMessage`; a refused hello is :class:`~iop.errors.HelloRefused`.
        """

    def notify(message: Message) -> None:
        """Send a message that has no answer. Silently dropped once the connection is closed.

        :class:`~iop.errors.UnexpectedMessage` is raised before the hello was accepted.
        """

    def exporter(label: bytes, length: int) -> bytes:
        """TLS keying material of this connection (RFC 5705, RFC 8446 7.5)."""

    def close(reason: IopError) -> None:
        """End the connection at once; ``application.lost`` gets ``reason``."""

    def drain() -> None:
        """Take no new requests, let those in flight end, then close."""


class IPeerApplication(Interface):
    """What a role does with one connection. One object per connection, made by the role when TLS is up."""

    def connected(peer: IPeer) -> None:
        """TLS is up and the identity holds. A dialling side sends its hello from here."""

    def asked(message: Message) -> Deferred[Message]:
        """Answer a request. The hello is answered here too; its answer's ``accepted`` field decides what follows.

        An :class:`~iop.errors.IopError` that comes back as a failure closes the connection.
        """

    def notified(message: Message) -> None:
        """Take a message that wants no answer. Raising a ``ProtocolViolation`` closes the connection."""

    def lost(reason: IopError) -> None:
        """The connection ended; called exactly once after ``connected``."""


# -- store: small interfaces, one per aggregate; each method is one transaction ---------------------------------------


class IPrincipals(Interface):
    """Principals, and the tokens that are born with them. Host-local callers only (K3)."""

    def create(
        name: str, tokens: Sequence[NewToken], actor: str, edges: Collection[str] = ()
    ) -> Deferred[Committed[PrincipalRecord]]:
        """Make a principal with its tokens. :class:`~iop.errors.AlreadyExists` if the name is taken.

        :param edges: names of the Edges it is limited to; none means every Edge (E14).
        """

    def limit(name: str, edges: Collection[str], actor: str) -> Deferred[Committed[PrincipalRecord]]:
        """Limit the principal of that name to ``edges`` instead of those before; to none of them means every Edge.

        :class:`~iop.errors.NotFound` if there is no such principal, :class:`~iop.errors.QuotaReached` if they are too
        many.
        """

    def all() -> Deferred[list[PrincipalRecord]]:
        """All principals by name."""


class ITokens(Interface):
    """Token verification for the credential HTTPS API."""

    def by_digest(digest: bytes) -> Deferred[TokenRecord | None]:
        """The token whose SHA-256 is ``digest`` (exact match on the whole digest), or None."""


class ISlots(Interface):
    """Credential slots. Every call names the principal; another's slot is :class:`~iop.errors.NotFound`."""

    def create(slot: NewSlot, actor: str) -> Deferred[Committed[SlotRecord]]:
        """Store a slot. :class:`~iop.errors.AlreadyExists` if this principal has that name already."""

    def all(principal: str) -> Deferred[list[SlotRecord]]:
        """The principal's slots by name."""

    def get(principal: str, slot: str) -> Deferred[SlotRecord]:
        """One of the principal's slots. :class:`~iop.errors.NotFound` if it has none of that id."""

    def set_state(
        principal: str, slot: str, state: SlotState, expected: int, actor: str
    ) -> Deferred[Committed[SlotRecord]]:
        """Enable, disable or revoke a slot; of a revoked one the sealed secret is gone.

        :class:`~iop.errors.NotFound`, :class:`~iop.errors.FinalState` if it is revoked,
        :class:`~iop.errors.RevisionMismatch` if ``expected`` is not its revision.
        """

    def rotate(
        principal: str, slot: str, secret: SealedSecret, expected: int, actor: str
    ) -> Deferred[Committed[SlotRecord]]:
        """Give a slot another secret, sealed for the credential revision after its present one; fails as above."""


class IRoutes(Interface):
    """Routes. Every call names the principal."""

    def put(
        principal: str,
        model: str,
        slot: str,
        upstream_model: str,
        selector: str,
        expected: int | None,
        actor: str,
    ) -> Deferred[Committed[RouteRecord]]:
        """Make a route (``expected`` None: there must be none yet) or change one (``expected``: its current revision).

        :class:`~iop.errors.NotFound` if the slot is not this principal's, :class:`~iop.errors.FinalState` if it is
        revoked, :class:`~iop.errors.RevisionMismatch` if the expectation does not hold.
        """

    def all(principal: str) -> Deferred[list[RouteRecord]]:
        """The principal's routes by model."""


class IProjections(Interface):
    """The generation, and consistent readings of what Edges may know."""

    def generation() -> Deferred[int]:
        """The current generation: 1 for a new store, raised by every mutation in its own transaction."""

    def reading(since: int) -> Deferred[Reading]:
        """What changed after generation ``since``, and the generation that it is of now, in one snapshot.

        It is whole with ``since`` 0, and where the store does not know what changed since then: after 10,000
        generations, and when it has not reached ``since``. Otherwise it costs what the principals in it have.
        """


class ILeaseAuthority(Interface):
    """The durable half of a lease (C19): one statement reads, one comparison decides, one audit row is committed."""

    def authorise(question: LeaseQuestion, now_ms: int) -> Deferred[LeaseGrant | LeaseRefusal]:
        """Compare every field with durable rows and commit the audit row of the outcome.

        Codes of a refusal: ``stale_generation`` (again), and never again ``binding_mismatch``, ``token_refused``,
        ``slot_refused``, ``node_denied``, ``edge_denied``, ``edge_not_allowed``.
        """


class IEdgeSessions(Interface):
    """Rows of live Edge connections: what makes the barrier work across processes."""

    def open(edge: str, now_ms: int) -> Deferred[str]:
        """Record a connection before its projection is read; answers the session id.

        :class:`~iop.errors.IdentityRefused` if the Edge is denied.
        """

    def acknowledge(session: str, generation: int, unconfirmed: int) -> Deferred[bool]:
        """Record what the Edge acknowledged; ready, and True, once that is the store's current generation."""

    def end(session: str, now_ms: int) -> Deferred[None]:
        """Record that the connection ended."""

    def end_all(now_ms: int) -> Deferred[None]:
        """Record that no connection lasts: a Control Plane that just took the lock has none."""

    def since(moment_ms: int) -> Deferred[list[EdgeSession]]:
        """Sessions that last, and those that ended at ``moment_ms`` or later."""


class IDenials(Interface):
    """Names of Nodes and Edges that no Control Plane seals to or accepts (P13). A denial is not a registry."""

    def deny(kind: str, name: str, actor: str) -> Deferred[Committed[None]]:
        """Deny ``kind`` (``node`` or ``edge``) ``name``; denying again is fine."""

    def allow(kind: str, name: str, actor: str) -> Deferred[Committed[None]]:
        """Lift a denial. :class:`~iop.errors.NotFound` if there is none."""

    def all() -> Deferred[list[tuple[str, str]]]:
        """Every (kind, name) denied."""


class IAudit(Interface):
    """Append-only record of what was done (P26)."""

    newest: int = Attribute(
        "Number of the newest row, 0 without any: the last of when the store was opened, or the last committed through "
        "it since. Rows are numbered from 1 without gaps, whoever writes them, so it says how many there are."
    )

    def append(actor: str, action: str, subject: str, outcome: str, details: dict[str, str | int]) -> Deferred[None]:
        """Commit one row before the answer it belongs to leaves."""

    def tail(count: int) -> Deferred[list[AuditRow]]:
        """The last ``count`` rows, oldest first."""


class IStore(Interface):
    """One deployment's durable state, as one object per aggregate."""

    principals: IPrincipals = Attribute("Principals.")
    tokens: ITokens = Attribute("Tokens.")
    slots: ISlots = Attribute("Credential slots.")
    routes: IRoutes = Attribute("Routes.")
    projections: IProjections = Attribute("The generation, and what Edges may know.")
    leases: ILeaseAuthority = Attribute("The durable half of a lease.")
    edge_sessions: IEdgeSessions = Attribute("Edge connections.")
    denials: IDenials = Attribute("Denied names.")
    audit: IAudit = Attribute("Audit rows.")

    def deployment_id() -> Deferred[str]:
        """The id this store was made for."""

    def close() -> Deferred[None]:
        """Finish what was accepted, refuse what comes after, let go of files and threads."""
