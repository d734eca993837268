"""The store in memory: the twin that tests of other modules run on, held to the same contract as SQLite."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from twisted.internet.defer import Deferred, execute, fail, succeed
from zope.interface import implementer

from iop.core.durable import DurableRoute, DurableRows, DurableSlot, DurableToken, refusal
from iop.core.slots import STATE_CHANGES, with_secret, with_state
from iop.errors import (
    AlreadyExists,
    FinalState,
    IdentityRefused,
    NotFound,
    RevisionMismatch,
    StoreUnavailable,
)
from iop.interfaces import (
    IAudit,
    IDenials,
    IEdgeSessions,
    ILeaseAuthority,
    IPrincipals,
    IProjections,
    IRoutes,
    ISlots,
    IStore,
    ITokens,
)
from iop.records import (
    AuditRow,
    Committed,
    EdgeSession,
    LeaseGrant,
    NewSlot,
    NewToken,
    PrincipalRecord,
    Reading,
    RouteEntry,
    RouteRecord,
    SealedSecret,
    SlotRecord,
    SlotState,
    TokenEntry,
    TokenKind,
    TokenRecord,
)
from iop.store.events import (
    Event,
    allowed,
    denied,
    lease_decided,
    principal_created,
    principal_limited,
    route_put,
    slot_changed,
    slot_created,
)
from iop.store.readings import forgotten, views
from iop.store.room import check_room, check_slots, route_bytes, token_bytes
from iop.store.sessions import KEPT_MS, acknowledged
from iop.store.shapes import (
    GONE,
    check_denial,
    check_edges,
    check_model,
    check_name,
    check_selector,
    no_such_slot,
    principal_exists,
    slot_exists,
)
from iop.units import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from iop.records import LeaseQuestion, LeaseRefusal, PrincipalView

T = TypeVar("T")


@dataclass(slots=True)
class _Tables:
    """Everything the store knows, by id."""

    deployment: str
    wall_ms: Callable[[], int]
    generation: int = 1
    closed: bool = False
    principals: dict[str, PrincipalRecord] = field(default_factory=dict)
    tokens: dict[str, tuple[str, NewToken, int]] = field(default_factory=dict)
    slots: dict[str, tuple[SlotRecord, SealedSecret]] = field(default_factory=dict)
    routes: dict[str, RouteRecord] = field(default_factory=dict)
    sessions: dict[str, EdgeSession] = field(default_factory=dict)
    denials: set[tuple[str, str]] = field(default_factory=set)
    #: Whom each generation touched, or an empty string.
    changes: dict[int, str] = field(default_factory=dict)
    audit: list[AuditRow] = field(default_factory=list)

    def run(self, job: Callable[[], T]) -> Deferred[T]:
        """Do ``job`` at once; it raises before it alters anything, or not at all."""
        if self.closed:
            return fail(StoreUnavailable("the store is closed; nothing was changed"))
        return execute(job)

    def mutate(self, change: Callable[[int], tuple[T, Event]]) -> Deferred[Committed[T]]:
        """Apply ``change(now_ms)``, raise the generation by one and write the audit row."""

        def job() -> Committed[T]:
            now_ms = self.wall_ms()
            value, event = change(now_ms)
            self.generation += 1
            self.changes[self.generation] = event.touches
            self.changes.pop(forgotten(self.generation), None)
            self.write(now_ms, event)
            return Committed(value, self.generation, now_ms)

        return self.run(job)

    def write(self, at_ms: int, event: Event) -> None:
        """Append the audit row of ``event``."""
        row = AuditRow(
            len(self.audit) + 1, at_ms, event.actor, event.action, event.subject, event.outcome, dict(event.details)
        )
        self.audit.append(row)

    def check_room(
        self, principal: str, tokens: dict[str, tuple[str, NewToken, int]], routes: dict[str, RouteRecord]
    ) -> None:
        """:class:`~iop.errors.QuotaReached` if there is no room for what there would be."""
        everything = sum(
            token_bytes(token.token_id, owner) for owner, token, _ in tokens.values() if token.kind is TokenKind.USE
        )
        own = 0
        for route in routes.values():
            slot, _ = self.slots[route.slot]
            size = route_bytes(
                *(route.route, route.principal, route.slot, slot.profile, slot.target),
                *(route.model, route.upstream_model, route.selector),
            )
            everything += size
            own += size if route.principal == principal else 0
        check_room(everything, own)

    def own_slot(self, principal: str, slot: str) -> SlotRecord:
        """The principal's slot; :class:`~iop.errors.NotFound` if it has none of that id."""
        found = self.slots.get(slot)
        if found is None or found[0].principal != principal:
            raise no_such_slot()
        return found[0]


@implementer(IPrincipals)
class MemoryPrincipals:
    """See :class:`~iop.interfaces.IPrincipals`."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def create(
        self, name: str, tokens: Sequence[NewToken], actor: str, edges: Collection[str] = ()
    ) -> Deferred[Committed[PrincipalRecord]]:
        def change(now_ms: int) -> tuple[PrincipalRecord, Event]:
            check_name("principal's name", name)
            if any(each.name == name for each in self._tables.principals.values()):
                raise principal_exists(name)
            ids, digests = set(self._tables.tokens), {token.digest for _, token, _ in self._tables.tokens.values()}
            for token in tokens:
                if token.token_id in ids or token.digest in digests:
                    raise AlreadyExists("a token of that id or value exists already")
                ids.add(token.token_id)
                digests.add(token.digest)
            made = PrincipalRecord(new_id(now_ms), name, now_ms, check_edges(edges))
            mine = {token.token_id: (made.principal, token, now_ms) for token in tokens}
            self._tables.check_room(made.principal, self._tables.tokens | mine, self._tables.routes)
            self._tables.principals[made.principal] = made
            self._tables.tokens |= mine
            return made, principal_created(made, tokens, actor)

        return self._tables.mutate(change)

    def limit(self, name: str, edges: Collection[str], actor: str) -> Deferred[Committed[PrincipalRecord]]:
        def change(_: int) -> tuple[PrincipalRecord, Event]:
            limited = check_edges(edges)
            for before in self._tables.principals.values():
                if before.name == name:
                    made = replace(before, edges=limited)
                    self._tables.principals[made.principal] = made
                    return made, principal_limited(made, actor)
            raise NotFound("there is no principal of that name", hint="iop principal list says which there are")

        return self._tables.mutate(change)

    def all(self) -> Deferred[list[PrincipalRecord]]:
        return self._tables.run(lambda: sorted(self._tables.principals.values(), key=lambda each: each.name))


@implementer(ITokens)
class MemoryTokens:
    """See :class:`~iop.interfaces.ITokens`."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def by_digest(self, digest: bytes) -> Deferred[TokenRecord | None]:
        def job() -> TokenRecord | None:
            for principal, token, created_ms in self._tables.tokens.values():
                if token.digest == digest:
                    return TokenRecord(token.token_id, principal, token.kind, token.expires_ms, created_ms)
            return None

        return self._tables.run(job)


@implementer(ISlots)
class MemorySlots:
    """See :class:`~iop.interfaces.ISlots`."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def create(self, slot: NewSlot, actor: str) -> Deferred[Committed[SlotRecord]]:
        def change(now_ms: int) -> tuple[SlotRecord, Event]:
            check_name("slot's name", slot.name)
            check_name("profile", slot.profile)
            check_name("target", slot.target)
            if slot.principal not in self._tables.principals:
                raise NotFound("there is no such principal")
            taken = {(each.principal, each.name) for each, _ in self._tables.slots.values()}
            if (slot.principal, slot.name) in taken or slot.slot in self._tables.slots:
                raise slot_exists(slot.name)
            check_slots(1 + sum(each.principal == slot.principal for each, _ in self._tables.slots.values()))
            made = SlotRecord(
                slot.slot, slot.principal, slot.name, slot.profile, slot.target, SlotState.ACTIVE, 1, 1, now_ms, now_ms
            )
            self._tables.slots[slot.slot] = (made, slot.secret)
            return made, slot_created(made, actor)

        return self._tables.mutate(change)

    def all(self, principal: str) -> Deferred[list[SlotRecord]]:
        def job() -> list[SlotRecord]:
            own = [each for each, _ in self._tables.slots.values() if each.principal == principal]
            return sorted(own, key=lambda each: each.name)

        return self._tables.run(job)

    def get(self, principal: str, slot: str) -> Deferred[SlotRecord]:
        return self._tables.run(lambda: self._tables.own_slot(principal, slot))

    def set_state(
        self, principal: str, slot: str, state: SlotState, expected: int, actor: str
    ) -> Deferred[Committed[SlotRecord]]:
        def change(now_ms: int) -> tuple[SlotRecord, Event]:
            made = with_state(self._tables.own_slot(principal, slot), state, expected, now_ms)
            self._tables.slots[slot] = (made, GONE if state is SlotState.REVOKED else self._tables.slots[slot][1])
            return made, slot_changed(made, STATE_CHANGES[state], actor)

        return self._tables.mutate(change)

    def rotate(
        self, principal: str, slot: str, secret: SealedSecret, expected: int, actor: str
    ) -> Deferred[Committed[SlotRecord]]:
        def change(now_ms: int) -> tuple[SlotRecord, Event]:
            made = with_secret(self._tables.own_slot(principal, slot), expected, now_ms)
            self._tables.slots[slot] = (made, secret)
            return made, slot_changed(made, "rotate", actor)

        return self._tables.mutate(change)


@implementer(IRoutes)
class MemoryRoutes:
    """See :class:`~iop.interfaces.IRoutes`."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def put(
        self,
        principal: str,
        model: str,
        slot: str,
        upstream_model: str,
        selector: str,
        expected: int | None,
        actor: str,
    ) -> Deferred[Committed[RouteRecord]]:
        def change(now_ms: int) -> tuple[RouteRecord, Event]:
            check_model(model)
            check_model(upstream_model)
            check_selector(selector)
            if self._tables.own_slot(principal, slot).state is SlotState.REVOKED:
                raise FinalState("the slot is revoked", hint="create another slot")
            found = [each for each in self._own(principal) if each.model == model]
            if [each.revision for each in found] != ([] if expected is None else [expected]):
                raise RevisionMismatch(
                    "the route is not at the expected revision", hint="list the routes and try again from what is there"
                )
            made = (
                replace(
                    found[0],
                    slot=slot,
                    upstream_model=upstream_model,
                    selector=selector,
                    revision=found[0].revision + 1,
                    updated_ms=now_ms,
                )
                if found
                else RouteRecord(new_id(now_ms), principal, model, slot, upstream_model, selector, 1, now_ms, now_ms)
            )
            self._tables.check_room(principal, self._tables.tokens, self._tables.routes | {made.route: made})
            self._tables.routes[made.route] = made
            return made, route_put(made, actor)

        return self._tables.mutate(change)

    def all(self, principal: str) -> Deferred[list[RouteRecord]]:
        return self._tables.run(lambda: sorted(self._own(principal), key=lambda each: each.model))

    def _own(self, principal: str) -> list[RouteRecord]:
        return [each for each in self._tables.routes.values() if each.principal == principal]


@implementer(IProjections)
class MemoryProjections:
    """See :class:`~iop.interfaces.IProjections`."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def generation(self) -> Deferred[int]:
        return self._tables.run(lambda: self._tables.generation)

    def reading(self, since: int) -> Deferred[Reading]:
        def job() -> Reading:
            generation, changes = self._tables.generation, self._tables.changes
            if since == generation or (since > 0 and since + 1 in changes):
                touched = {changes[each] for each in range(since + 1, generation + 1)}
                return Reading(generation, False, self._views(touched - {""}))
            return Reading(generation, True, self._views(self._tables.principals))

        return self._tables.run(job)

    def _views(self, wanted: Collection[str]) -> tuple[PrincipalView, ...]:
        tokens = [
            TokenEntry(token.token_id, principal, token.digest, token.expires_ms)
            for principal, token, _ in self._tables.tokens.values()
            if principal in wanted and token.kind is TokenKind.USE
        ]
        routes = [
            _route_entry(route, slot)
            for route in self._tables.routes.values()
            if route.principal in wanted
            for slot in [self._tables.own_slot(route.principal, route.slot)]
            if slot.state is SlotState.ACTIVE
        ]
        return views(
            sorted(wanted),
            [
                (each.principal, edge)
                for each in self._tables.principals.values()
                if each.principal in wanted
                for edge in each.edges
            ],
            sorted(tokens, key=lambda each: each.token_id),
            sorted(routes, key=lambda each: each.route),
        )


def _route_entry(route: RouteRecord, slot: SlotRecord) -> RouteEntry:
    return RouteEntry(
        route=route.route,
        principal=route.principal,
        slot=route.slot,
        profile=slot.profile,
        target=slot.target,
        model=route.model,
        upstream_model=route.upstream_model,
        selector=route.selector,
        credential_revision=slot.credential_revision,
        route_revision=route.revision,
    )


@implementer(ILeaseAuthority)
class MemoryLeaseAuthority:
    """See :class:`~iop.interfaces.ILeaseAuthority`."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def authorise(self, question: LeaseQuestion, now_ms: int) -> Deferred[LeaseGrant | LeaseRefusal]:
        def job() -> LeaseGrant | LeaseRefusal:
            refused = refusal(question, self._read(question), now_ms)
            self._tables.write(
                self._tables.wall_ms(), lease_decided(question, refused.reason if refused else "granted")
            )
            return refused or LeaseGrant(self._tables.slots[question.binding.slot][1], now_ms)

        return self._tables.run(job)

    def _read(self, question: LeaseQuestion) -> DurableRows:
        binding = question.binding
        principal = self._tables.principals.get(binding.principal)
        token = self._tables.tokens.get(question.token_id)
        slot = self._tables.slots.get(binding.slot)
        route = self._tables.routes.get(binding.route)
        return DurableRows(
            generation=self._tables.generation,
            principal_exists=principal is not None,
            token=_durable_token(*token) if token else None,
            slot=_durable_slot(slot[0]) if slot else None,
            route=DurableRoute(route.principal, route.slot, route.revision) if route else None,
            node_denied=("node", binding.node) in self._tables.denials,
            edge_denied=("edge", question.edge) in self._tables.denials,
            edge_allowed=principal is None or not principal.edges or question.edge in principal.edges,
        )


def _durable_token(principal: str, token: NewToken, _created_ms: int) -> DurableToken:
    return DurableToken(principal, token.kind, token.expires_ms, token.proof)


def _durable_slot(slot: SlotRecord) -> DurableSlot:
    return DurableSlot(slot.principal, slot.profile, slot.target, slot.state, slot.credential_revision)


@implementer(IEdgeSessions)
class MemoryEdgeSessions:
    """See :class:`~iop.interfaces.IEdgeSessions`."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def open(self, edge: str, now_ms: int) -> Deferred[str]:
        def job() -> str:
            if ("edge", edge) in self._tables.denials:
                raise IdentityRefused(f"the Edge {edge} is denied")
            for each in list(self._tables.sessions.values()):
                if 0 < each.ended_ms <= now_ms - KEPT_MS:
                    del self._tables.sessions[each.session]
            session = new_id(now_ms)
            self._tables.sessions[session] = EdgeSession(session, edge, False, 0, 0, now_ms, 0)
            return session

        return self._tables.run(job)

    def acknowledge(self, session: str, generation: int, unconfirmed: int) -> Deferred[bool]:
        def job() -> bool:
            before = self._tables.sessions.get(session)
            if before is None or before.ended_ms:
                raise NotFound("there is no such session, or it ended")
            after = acknowledged(before, generation, unconfirmed, self._tables.generation)
            self._tables.sessions[session] = after
            return after.ready

        return self._tables.run(job)

    def end(self, session: str, now_ms: int) -> Deferred[None]:
        return self._tables.run(lambda: self._end({session}, now_ms))

    def end_all(self, now_ms: int) -> Deferred[None]:
        return self._tables.run(lambda: self._end(set(self._tables.sessions), now_ms))

    def _end(self, sessions: set[str], now_ms: int) -> None:
        for each in list(self._tables.sessions.values()):
            if each.session in sessions and not each.ended_ms:
                self._tables.sessions[each.session] = replace(each, ended_ms=now_ms)

    def since(self, moment_ms: int) -> Deferred[list[EdgeSession]]:
        def job() -> list[EdgeSession]:
            found = [each for each in self._tables.sessions.values() if not each.ended_ms or each.ended_ms >= moment_ms]
            return sorted(found, key=lambda each: (each.opened_ms, each.session))

        return self._tables.run(job)


@implementer(IDenials)
class MemoryDenials:
    """See :class:`~iop.interfaces.IDenials`."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def deny(self, kind: str, name: str, actor: str) -> Deferred[Committed[None]]:
        def change(_: int) -> tuple[None, Event]:
            check_denial(kind, name)
            self._tables.denials.add((kind, name))
            return None, denied(kind, name, actor)

        return self._tables.mutate(change)

    def allow(self, kind: str, name: str, actor: str) -> Deferred[Committed[None]]:
        def change(_: int) -> tuple[None, Event]:
            check_denial(kind, name)
            if (kind, name) not in self._tables.denials:
                raise NotFound(f"the {kind} {name} is not denied")
            self._tables.denials.remove((kind, name))
            return None, allowed(kind, name, actor)

        return self._tables.mutate(change)

    def all(self) -> Deferred[list[tuple[str, str]]]:
        return self._tables.run(lambda: sorted(self._tables.denials))


@implementer(IAudit)
class MemoryAudit:
    """See :class:`~iop.interfaces.IAudit`."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    @property
    def newest(self) -> int:
        return len(self._tables.audit)

    def append(
        self, actor: str, action: str, subject: str, outcome: str, details: dict[str, str | int]
    ) -> Deferred[None]:
        event = Event(actor, action, subject, outcome, dict(details), "")
        return self._tables.run(lambda: self._tables.write(self._tables.wall_ms(), event))

    def tail(self, count: int) -> Deferred[list[AuditRow]]:
        return self._tables.run(lambda: self._tables.audit[-count:] if count > 0 else [])


@implementer(IStore)
class MemoryStore:
    """See :class:`~iop.interfaces.IStore`.

    :param deployment_id: whose it is.
    :param wall_ms: the present in Unix milliseconds.
    """

    def __init__(self, deployment_id: str, wall_ms: Callable[[], int]) -> None:
        self._tables = _Tables(deployment_id, wall_ms)
        self.principals = MemoryPrincipals(self._tables)
        self.tokens = MemoryTokens(self._tables)
        self.slots = MemorySlots(self._tables)
        self.routes = MemoryRoutes(self._tables)
        self.projections = MemoryProjections(self._tables)
        self.leases = MemoryLeaseAuthority(self._tables)
        self.edge_sessions = MemoryEdgeSessions(self._tables)
        self.denials = MemoryDenials(self._tables)
        self.audit = MemoryAudit(self._tables)

    def deployment_id(self) -> Deferred[str]:
        return self._tables.run(lambda: self._tables.deployment)

    def close(self) -> Deferred[None]:
        self._tables.closed = True
        return succeed(None)
