"""What every store must do, written once and run on each (P12, P16, P26, P40)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from iop.errors import (
    AlreadyExists,
    FinalState,
    IdentityRefused,
    IopError,
    MalformedInput,
    NotFound,
    ProtocolViolation,
    QuotaReached,
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
    Binding,
    Committed,
    EdgeSession,
    LeaseGrant,
    LeaseQuestion,
    LeaseRefusal,
    NewSlot,
    NewToken,
    PrincipalRecord,
    PrincipalView,
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
from iop.store import readings, room
from iop.store.room import route_bytes, token_bytes

T = TypeVar("T")

if TYPE_CHECKING:
    _Base = TestCase
else:
    # so that trial runs the contract on stores only, not on itself
    _Base = object

NOW_MS = 1_700_000_000_000
DEPLOYMENT = "deployment-1"
ACTOR = "host:tester"
SECRET = SealedSecret("key-1", b"wrapped", b"box")


def new_token(name: str, kind: TokenKind = TokenKind.USE, expires_ms: int = 0) -> NewToken:
    """A token whose digest and proof are told from every other's by its name."""
    return NewToken(
        f"token-{name}", kind, f"digest-{name}".encode().ljust(32), f"proof-{name}".encode().ljust(32), expires_ms
    )


def new_slot(principal: str, name: str = "work") -> NewSlot:
    """A slot whose id is told from every other's by owner and name."""
    return NewSlot(f"slot-{name}-of-{principal}", principal, name, "openai", "lab", SECRET)


class StoreContract(_Base):
    """A concrete test case makes the store and can do to a slot what no interface offers yet."""

    now_ms: int
    store: IStore

    def make_store(self) -> IStore:
        """A new, empty store of :data:`DEPLOYMENT` whose time is ``self.now_ms``."""
        raise NotImplementedError

    async def force_slot(self, slot: str, state: SlotState, credential_revision: int) -> None:
        """Put a slot into a state, behind the store's back."""
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        self.now_ms = NOW_MS
        self.store = self.make_store()

    @contextmanager
    def limited(self, name: str, value: int, where: ModuleType = room) -> Iterator[None]:
        """A limit of the module ``where`` is ``value`` for a while."""
        patched = self.patch(where, name, value)
        try:
            yield
        finally:
            patched.restore()

    # -- what the tests are told in ------------------------------------------------------------------------------------

    async def refused(self, error: type[IopError], call: Awaitable[T]) -> str:
        """The message of the error that ``call`` must fail with."""
        try:
            await call
        except error as refusal:
            return refusal.message
        raise AssertionError(f"not refused with {error.__name__}")

    async def principal(self, name: str = "alice") -> PrincipalRecord:
        made = await self.store.principals.create(name, [new_token(name)], ACTOR)
        return made.value

    async def slot(self, principal: str, name: str = "work") -> SlotRecord:
        made = await self.store.slots.create(new_slot(principal, name), ACTOR)
        return made.value

    def put(
        self, principal: str, slot: str, model: str = "gpt", expected: int | None = None
    ) -> Awaitable[Committed[RouteRecord]]:
        return self.store.routes.put(principal, model, slot, "gpt-upstream", "gpu=a100", expected, ACTOR)

    async def question(self) -> LeaseQuestion:
        """A question that is granted: principal, slot and route are made for it."""
        owner = await self.principal()
        slot = await self.slot(owner.principal)
        route = (await self.put(owner.principal, slot.slot)).value
        binding = Binding(
            principal=owner.principal,
            route=route.route,
            slot=slot.slot,
            profile=slot.profile,
            target=slot.target,
            node="node-1",
            credential_revision=1,
            route_revision=1,
            generation=await self.store.projections.generation(),
        )
        return LeaseQuestion("request-1", "edge-1", binding, "token-alice", new_token("alice").proof)

    async def reason(self, question: LeaseQuestion) -> str:
        answer = await self.store.leases.authorise(question, NOW_MS)
        return answer.reason if isinstance(answer, LeaseRefusal) else "granted"

    # -- seams --------------------------------------------------------------------------------------------------------

    def test_interfaces(self) -> None:
        for interface, provided in (
            (IStore, self.store),
            (IPrincipals, self.store.principals),
            (ITokens, self.store.tokens),
            (ISlots, self.store.slots),
            (IRoutes, self.store.routes),
            (IProjections, self.store.projections),
            (ILeaseAuthority, self.store.leases),
            (IEdgeSessions, self.store.edge_sessions),
            (IDenials, self.store.denials),
            (IAudit, self.store.audit),
        ):
            assert verifyObject(interface, provided)

    async def test_new_store(self) -> None:
        assert await self.store.deployment_id() == DEPLOYMENT
        assert await self.store.projections.generation() == 1
        assert await self.store.projections.reading(0) == Reading(1, True, ())
        assert await self.store.audit.tail(10) == []

    async def test_closed_store_refuses(self) -> None:
        await self.store.close()
        await self.store.close()
        for call in (
            self.store.principals.all(),
            self.store.denials.deny("node", "node-1", ACTOR),
            self.store.audit.append(ACTOR, "action", "subject", "done", {}),
        ):
            await self.refused(StoreUnavailable, call)

    # -- every mutation -----------------------------------------------------------------------------------------------

    async def test_each_mutation_raises_the_generation_by_one_and_is_audited(self) -> None:
        """P26: one row per mutation, written with it, by whom and about what, in ids."""
        committed: list[Committed[object]] = []

        async def did(mutation: Callable[[], Awaitable[Committed[T]]]) -> T:
            self.now_ms += 1
            made = await mutation()
            committed.append(Committed(made.value, made.generation, made.committed_ms))
            assert await self.store.projections.generation() == made.generation
            return made.value

        tokens = [new_token("u"), new_token("m", TokenKind.MANAGE)]
        owner = await did(lambda: self.store.principals.create("alice", tokens, ACTOR))
        slot = await did(lambda: self.store.slots.create(new_slot(owner.principal), "token-m"))
        route = await did(lambda: self.put(owner.principal, slot.slot))
        await did(lambda: self.put(owner.principal, slot.slot, expected=1))
        await did(lambda: self.store.denials.deny("node", "node-1", ACTOR))
        await did(lambda: self.store.denials.deny("node", "node-1", ACTOR))
        await did(lambda: self.store.denials.allow("node", "node-1", ACTOR))
        await did(lambda: self.store.principals.limit("alice", ["edge-b", "edge-a"], ACTOR))
        await did(lambda: self.store.principals.limit("alice", [], ACTOR))

        assert [each.generation for each in committed] == list(range(2, 11))
        assert [each.committed_ms for each in committed] == [NOW_MS + number for number in range(1, 10)]
        where: dict[str, str | int] = {"principal": owner.principal, "profile": "openai", "target": "lab"}
        routed: dict[str, str | int] = {"principal": owner.principal, "slot": slot.slot}
        assert await self.store.audit.tail(100) == [
            AuditRow(
                1,
                NOW_MS + 1,
                ACTOR,
                "principal.create",
                owner.principal,
                "done",
                {"use_token_1": "token-u", "manage_token_2": "token-m"},
            ),
            AuditRow(2, NOW_MS + 2, "token-m", "slot.create", slot.slot, "done", where),
            AuditRow(3, NOW_MS + 3, ACTOR, "route.put", route.route, "done", {**routed, "revision": 1}),
            AuditRow(4, NOW_MS + 4, ACTOR, "route.put", route.route, "done", {**routed, "revision": 2}),
            AuditRow(5, NOW_MS + 5, ACTOR, "node.deny", "node-1", "done", {}),
            AuditRow(6, NOW_MS + 6, ACTOR, "node.deny", "node-1", "done", {}),
            AuditRow(7, NOW_MS + 7, ACTOR, "node.allow", "node-1", "done", {}),
            AuditRow(
                8,
                NOW_MS + 8,
                ACTOR,
                "principal.limit",
                owner.principal,
                "done",
                {"edge_1": "edge-a", "edge_2": "edge-b"},
            ),
            AuditRow(9, NOW_MS + 9, ACTOR, "principal.limit", owner.principal, "done", {}),
        ]

    async def test_refused_mutation_changes_nothing(self) -> None:
        owner = await self.principal()
        slot = await self.slot(owner.principal)
        before = (await self.store.projections.reading(0), await self.store.audit.tail(100))
        await self.refused(AlreadyExists, self.store.principals.create("alice", [new_token("second")], ACTOR))
        await self.refused(AlreadyExists, self.store.principals.create("bob", [new_token("alice")], ACTOR))
        await self.refused(AlreadyExists, self.store.slots.create(new_slot(owner.principal), ACTOR))
        await self.refused(NotFound, self.store.slots.create(new_slot("nobody"), ACTOR))
        await self.refused(RevisionMismatch, self.put(owner.principal, slot.slot, expected=1))
        await self.refused(NotFound, self.store.denials.allow("node", "node-1", ACTOR))
        await self.refused(NotFound, self.store.principals.limit("bob", ["edge-1"], ACTOR))
        assert before == (await self.store.projections.reading(0), await self.store.audit.tail(100))
        assert await self.store.principals.all() == [owner]

    async def test_many_at_once_each_get_their_own_generation(self) -> None:
        """P42: no generation is issued twice."""
        calls = [self.store.denials.deny("node", f"node-{number}", ACTOR) for number in range(50)]
        assert [(await call).generation for call in calls] == list(range(2, 52))

    async def test_names_and_texts_are_checked(self) -> None:
        owner = await self.principal()
        slot = await self.slot(owner.principal)
        names = ("", "Alice", "a b", "a" * 64, "é", "-a", "a\n", "\ud800")
        for name in names:
            await self.refused(MalformedInput, self.store.principals.create(name, [], ACTOR))
            await self.refused(MalformedInput, self.store.denials.deny("node", name, ACTOR))
            await self.refused(MalformedInput, self.store.principals.create("bob", [], ACTOR, ["edge-1", name]))
            await self.refused(MalformedInput, self.store.principals.limit("alice", ["edge-1", name], ACTOR))
            for field in ("name", "profile", "target"):
                misnamed: dict[str, Any] = {field: name}
                slotted = replace(new_slot(owner.principal, "second"), **misnamed)
                await self.refused(MalformedInput, self.store.slots.create(slotted, ACTOR))
        for kind in ("", "worker", "Node", "control-plane"):
            await self.refused(MalformedInput, self.store.denials.deny(kind, "name", ACTOR))
            await self.refused(MalformedInput, self.store.denials.allow(kind, "name", ACTOR))

        def routed(model: str = "m", upstream: str = "m", selector: str = "") -> Awaitable[Committed[RouteRecord]]:
            return self.store.routes.put(owner.principal, model, slot.slot, upstream, selector, None, ACTOR)

        for text in ("", "m" * 257, "a\nb", "a\0", "\ud800"):
            await self.refused(MalformedInput, routed(model=text))
            await self.refused(MalformedInput, routed(upstream=text))
        for text in ("s" * 1025, "a\r\nb"):
            await self.refused(MalformedInput, routed(selector=text))
        made = (await routed("m" * 256, "ö" * 256, "s" * 1024)).value
        assert (made.model, made.upstream_model, made.selector) == ("m" * 256, "ö" * 256, "s" * 1024)

    # -- principals and tokens ----------------------------------------------------------------------------------------

    async def test_principals_by_name(self) -> None:
        for name in ("carol", "alice", "bob"):
            await self.principal(name)
        found = await self.store.principals.all()
        assert [each.name for each in found] == ["alice", "bob", "carol"]
        assert {each.created_ms for each in found} == {NOW_MS}
        assert len({each.principal for each in found}) == 3

    async def test_principal_is_limited_to_edges(self) -> None:
        """E14: to those it was made with, then to those it was limited to last, each once, and then to none."""
        made = await self.store.principals.create("alice", [], ACTOR, ["edge-2", "edge-1", "edge-2"])
        other = await self.principal("bob")
        assert made.value.edges == {"edge-1", "edge-2"}
        assert await self.store.principals.all() == [made.value, other]
        for edges in (["edge-3", "edge-1"], []):
            changed = await self.store.principals.limit("alice", edges, ACTOR)
            assert changed.value == replace(made.value, edges=frozenset(edges))
            assert await self.store.principals.all() == [changed.value, other]

    async def test_edges_of_one_principal(self) -> None:
        """At most 64, of which each counts once."""
        edges = [f"edge-{number}" for number in range(64)]
        await self.store.principals.create("alice", [], ACTOR, [*edges, "edge-0"])
        made = await self.store.principals.limit("alice", [*edges, "edge-0"], ACTOR)
        assert len(made.value.edges) == 64
        await self.refused(QuotaReached, self.store.principals.limit("alice", [*edges, "one-more"], ACTOR))
        await self.refused(QuotaReached, self.store.principals.create("bob", [], ACTOR, [*edges, "one-more"]))
        assert await self.store.principals.all() == [made.value]

    async def test_token_by_its_whole_digest(self) -> None:
        """P20: a token is found by all of its digest and by nothing else; its kind comes with it."""
        tokens = [new_token("u", TokenKind.USE, NOW_MS + 5), new_token("m", TokenKind.MANAGE)]
        owner = (await self.store.principals.create("alice", tokens, ACTOR)).value
        use, manage = [await self.store.tokens.by_digest(each.digest) for each in tokens]
        assert use == TokenRecord("token-u", owner.principal, TokenKind.USE, NOW_MS + 5, NOW_MS)
        assert manage == TokenRecord("token-m", owner.principal, TokenKind.MANAGE, 0, NOW_MS)
        for digest in (b"", tokens[0].digest[:-1], tokens[0].digest + b"\0", tokens[0].proof, b"token-u"):
            assert await self.store.tokens.by_digest(digest) is None

    async def test_two_tokens_of_one_value_are_refused(self) -> None:
        twice = [new_token("t"), replace(new_token("t"), token_id="another")]
        await self.refused(AlreadyExists, self.store.principals.create("alice", twice, ACTOR))
        assert await self.store.principals.all() == []

    # -- slots --------------------------------------------------------------------------------------------------------

    async def test_slots_of_the_principal_by_name(self) -> None:
        alice, bob = await self.principal("alice"), await self.principal("bob")
        for owner in (alice, bob):
            for name in ("work", "home"):
                await self.slot(owner.principal, name)
        found = await self.store.slots.all(alice.principal)
        assert found == [
            SlotRecord(
                f"slot-{name}-of-{alice.principal}",
                alice.principal,
                name,
                "openai",
                "lab",
                SlotState.ACTIVE,
                revision=1,
                credential_revision=1,
                created_ms=NOW_MS,
                updated_ms=NOW_MS,
            )
            for name in ("home", "work")
        ]
        assert await self.store.slots.all("nobody") == []

    async def test_life_of_a_slot(self) -> None:
        """K13: each change names the revision it knows, moves it by one, and revoked is final."""
        owner = (await self.principal()).principal
        made = await self.slot(owner)
        states = (SlotState.DISABLED, SlotState.ACTIVE, SlotState.REVOKED)
        for number, state in enumerate(states, 1):
            self.now_ms += 10
            for wrong in (0, number - 1, number + 1):
                await self.refused(RevisionMismatch, self.store.slots.set_state(owner, made.slot, state, wrong, ACTOR))
            changed = await self.store.slots.set_state(owner, made.slot, state, number, ACTOR)
            expected = replace(made, state=state, revision=number + 1, updated_ms=NOW_MS + number * 10)
            assert changed.value == expected == await self.store.slots.get(owner, made.slot)
        for state in SlotState:
            await self.refused(FinalState, self.store.slots.set_state(owner, made.slot, state, 4, ACTOR))
        await self.refused(FinalState, self.store.slots.rotate(owner, made.slot, SECRET, 4, ACTOR))

    async def test_rotation(self) -> None:
        """P40: a lease has the old secret with the old revision or the new one with the new, whatever the state."""
        question = await self.question()
        owner, slot = question.binding.principal, question.binding.slot
        secret = SealedSecret("key-2", b"wrapped-2", b"box-2")
        await self.refused(RevisionMismatch, self.store.slots.rotate(owner, slot, secret, 2, ACTOR))
        rotated = (await self.store.slots.rotate(owner, slot, secret, 1, ACTOR)).value
        assert (rotated.revision, rotated.credential_revision) == (2, 2)
        generation = await self.store.projections.generation()
        old = replace(question, binding=replace(question.binding, generation=generation))
        assert await self.reason(old) == "binding_mismatch"
        new = replace(old, binding=replace(old.binding, credential_revision=2))
        granted = await self.store.leases.authorise(new, NOW_MS)
        assert isinstance(granted, LeaseGrant) and granted.secret == secret

    async def test_revoked_slot_has_no_secret_and_no_route_that_edges_know(self) -> None:
        """C20, P41: once it is committed no lease is given, and no projection names it."""
        question = await self.question()
        owner, slot = question.binding.principal, question.binding.slot
        committed = await self.store.slots.set_state(owner, slot, SlotState.REVOKED, 1, ACTOR)
        now = replace(question, binding=replace(question.binding, generation=committed.generation))
        assert await self.reason(now) == "slot_refused"
        reading = await self.store.projections.reading(0)
        assert [view.routes for view in reading.principals] == [()]

    async def test_another_principals_slot_cannot_be_changed(self) -> None:
        """P16: it is as unknown as any."""
        alice, bob = await self.principal("alice"), await self.principal("bob")
        slot = await self.slot(alice.principal)
        slots = self.store.slots
        for identifier in (slot.slot, "slot-nowhere"):
            for call in (
                slots.get(bob.principal, identifier),
                slots.set_state(bob.principal, identifier, SlotState.REVOKED, 1, ACTOR),
                slots.rotate(bob.principal, identifier, SECRET, 1, ACTOR),
            ):
                assert await self.refused(NotFound, call) == "there is no such slot"
        assert await slots.get(alice.principal, slot.slot) == slot

    # -- routes -------------------------------------------------------------------------------------------------------

    async def test_route_is_made_and_changed_at_its_revision(self) -> None:
        """K13: a change names the revision it knows."""
        owner = await self.principal()
        slot, other = await self.slot(owner.principal), await self.slot(owner.principal, "home")
        made = (await self.put(owner.principal, slot.slot)).value
        assert made == RouteRecord(
            made.route, owner.principal, "gpt", slot.slot, "gpt-upstream", "gpu=a100", 1, NOW_MS, NOW_MS
        )
        self.now_ms += 10
        changed = await self.store.routes.put(owner.principal, "gpt", other.slot, "new", "", 1, ACTOR)
        assert changed.value == replace(
            made, slot=other.slot, upstream_model="new", selector="", revision=2, updated_ms=NOW_MS + 10
        )
        for expected in (None, 0, 1, 3):
            await self.refused(RevisionMismatch, self.put(owner.principal, slot.slot, expected=expected))
        assert await self.store.routes.all(owner.principal) == [changed.value]

    async def test_routes_of_the_principal_by_model(self) -> None:
        alice, bob = await self.principal("alice"), await self.principal("bob")
        for owner in (alice, bob):
            slot = await self.slot(owner.principal)
            for model in ("b", "a"):
                await self.put(owner.principal, slot.slot, model)
        found = await self.store.routes.all(alice.principal)
        assert [(each.principal, each.model) for each in found] == [(alice.principal, "a"), (alice.principal, "b")]

    async def test_room_for_one_principal_and_for_all(self) -> None:
        """P19: what would not fit a projection, or takes more than one principal's share of it, changes nothing."""
        owner = await self.principal()
        slot = await self.slot(owner.principal)
        made = (await self.put(owner.principal, slot.slot)).value
        mine = route_bytes(
            *(made.route, made.principal, made.slot, slot.profile, slot.target),
            *(made.model, made.upstream_model, made.selector),
        )
        everything = 2 * mine + token_bytes("token-alice", owner.principal)
        for name, limit in (("PRINCIPAL_BYTES", 2 * mine), ("PROJECTION_BYTES", everything)):
            generation = await self.store.projections.generation()
            with self.limited(name, limit - 1):
                await self.refused(QuotaReached, self.put(owner.principal, slot.slot, "gp2"))
            self.assertEqual(await self.store.projections.generation(), generation)
            self.assertEqual(len(await self.store.routes.all(owner.principal)), 1)
            with self.limited(name, limit):
                await self.refused(QuotaReached, self.put(owner.principal, slot.slot, "longer"))
        with self.limited("PRINCIPAL_BYTES", 2 * mine), self.limited("PROJECTION_BYTES", everything):
            await self.put(owner.principal, slot.slot, "gp2")
            await self.refused(QuotaReached, self.principal("bob"))

    async def test_slots_of_one_principal(self) -> None:
        """A principal has so many slots and not one more; another's do not count."""
        owner, other = await self.principal(), await self.principal("bob")
        await self.slot(other.principal)
        with self.limited("PRINCIPAL_SLOTS", 2):
            await self.slot(owner.principal, "a")
            await self.slot(owner.principal, "b")
            await self.refused(QuotaReached, self.slot(owner.principal, "c"))

    async def test_foreign_slot_is_as_unknown_as_any(self) -> None:
        """P16."""
        alice, bob = await self.principal("alice"), await self.principal("bob")
        slot = await self.slot(alice.principal)
        for expected in (None, 1):
            foreign = await self.refused(NotFound, self.put(bob.principal, slot.slot, expected=expected))
            unknown = await self.refused(NotFound, self.put(bob.principal, "slot-nowhere", expected=expected))
            assert foreign == unknown

    async def test_revoked_slot_takes_no_route_and_a_disabled_one_does(self) -> None:
        owner = await self.principal()
        slot = await self.slot(owner.principal)
        await self.force_slot(slot.slot, SlotState.DISABLED, 1)
        await self.put(owner.principal, slot.slot)
        await self.force_slot(slot.slot, SlotState.REVOKED, 1)
        await self.refused(FinalState, self.put(owner.principal, slot.slot, expected=1))

    # -- projections --------------------------------------------------------------------------------------------------

    async def test_whole_reading_has_every_principal(self) -> None:
        """C39, C40, E4: no manage token, no route of a slot that is not active; who has nothing is there."""
        tokens = [new_token("z"), new_token("e", expires_ms=1), new_token("m", TokenKind.MANAGE)]
        alice = (await self.store.principals.create("alice", tokens, ACTOR)).value.principal
        bob = (await self.store.principals.create("bob", [], ACTOR)).value.principal
        slot, other = await self.slot(alice), await self.slot(alice, "home")
        route = (await self.put(alice, slot.slot)).value
        await self.put(alice, other.slot, "other")
        await self.force_slot(slot.slot, SlotState.ACTIVE, 1)
        await self.force_slot(other.slot, SlotState.DISABLED, 1)

        reading = await self.store.projections.reading(0)
        assert (reading.generation, reading.whole) == (7, True)
        views = {view.principal: view for view in reading.principals}
        assert views[bob] == PrincipalView(bob, frozenset(), (), ())
        assert views[alice].tokens == (
            TokenEntry("token-e", alice, tokens[1].digest, 1),
            TokenEntry("token-z", alice, tokens[0].digest, 0),
        )
        entry = RouteEntry(route.route, alice, slot.slot, "openai", "lab", "gpt", "gpt-upstream", "gpu=a100", 1, 1)
        assert (views[alice].routes, len(views)) == ((entry,), 2)

    async def test_reading_has_whom_the_generations_since_touched(self) -> None:
        """E11: each complete and once, however often it was touched; a denial touches nobody."""
        names = [(await self.principal(name)).principal for name in ("alice", "bob", "carol")]
        slot = await self.slot(names[0])
        await self.put(names[0], slot.slot)
        await self.put(names[0], slot.slot, "other")
        await self.store.denials.deny("node", "node-1", ACTOR)
        await self.store.principals.limit("carol", ["edge-1"], ACTOR)
        whole = await self.store.projections.reading(0)
        views = {view.principal: view for view in whole.principals}
        assert [len(views[name].routes) for name in names] == [2, 0, 0]
        assert [len(views[name].edges) for name in names] == [0, 0, 1]
        touched = {
            1: names,
            2: names[1:] + names[:1],
            3: [names[0], names[2]],
            4: [names[0], names[2]],
            6: [names[0], names[2]],
            7: [names[2]],
            8: [names[2]],
            9: [],
        }
        for since, principals in touched.items():
            reading = await self.store.projections.reading(since)
            expected = Reading(9, False, tuple(views[each] for each in sorted(principals)))
            assert (since, reading) == (since, expected)

    async def test_reading_has_what_a_slot_has_become(self) -> None:
        """E4, E11: its routes go with it and come back, and a new secret gives them its revision."""
        owner = (await self.principal()).principal
        slot = (await self.slot(owner)).slot
        generation = (await self.put(owner, slot)).generation

        async def revisions() -> list[int]:
            nonlocal generation
            reading = await self.store.projections.reading(generation)
            generation = reading.generation
            [view] = reading.principals
            return [route.credential_revision for route in view.routes]

        await self.store.slots.set_state(owner, slot, SlotState.DISABLED, 1, ACTOR)
        assert await revisions() == []
        await self.store.slots.rotate(owner, slot, SECRET, 2, ACTOR)
        assert await revisions() == []
        await self.store.slots.set_state(owner, slot, SlotState.ACTIVE, 3, ACTOR)
        assert await revisions() == [2]
        await self.store.slots.set_state(owner, slot, SlotState.REVOKED, 4, ACTOR)
        assert await revisions() == []

    async def test_who_follows_the_readings_knows_everything(self) -> None:
        """E11: after each kind of mutation, what changed makes of the views before those of a whole reading."""
        owner, other = (await self.principal()).principal, (await self.principal("bob")).principal
        slot, second = (await self.slot(owner)).slot, (await self.slot(other)).slot
        known = await self.store.projections.reading(0)
        views = {view.principal: view for view in known.principals}
        generation = known.generation
        mutations: list[Callable[[], Awaitable[object]]] = [
            lambda: self.put(owner, slot),
            lambda: self.put(other, second),
            lambda: self.put(owner, slot, expected=1),
            lambda: self.store.slots.create(new_slot(owner, "home"), ACTOR),
            lambda: self.store.slots.rotate(owner, slot, SECRET, 1, ACTOR),
            lambda: self.store.slots.set_state(owner, slot, SlotState.DISABLED, 2, ACTOR),
            lambda: self.store.slots.set_state(owner, slot, SlotState.ACTIVE, 3, ACTOR),
            lambda: self.store.slots.set_state(other, second, SlotState.REVOKED, 1, ACTOR),
            lambda: self.store.principals.create("carol", [new_token("carol")], ACTOR, ["edge-1"]),
            lambda: self.store.principals.limit("alice", ["edge-2"], ACTOR),
            lambda: self.store.principals.limit("carol", [], ACTOR),
            lambda: self.store.denials.deny("edge", "edge-1", ACTOR),
            lambda: self.store.denials.allow("edge", "edge-1", ACTOR),
        ]
        for number, mutation in enumerate(mutations):
            await mutation()
            changed = await self.store.projections.reading(generation)
            assert (changed.generation, changed.whole) == (generation + 1, False)
            assert len(changed.principals) <= 1
            views |= {view.principal: view for view in changed.principals}
            whole = await self.store.projections.reading(0)
            assert (number, views) == (number, {view.principal: view for view in whole.principals})
            generation = changed.generation

    async def test_reading_of_what_is_not_known_is_whole(self) -> None:
        """E11: asked for a generation to come, or an older one than the log has, everything is told."""
        for name in ("alice", "bob"):
            await self.principal(name)
        whole = await self.store.projections.reading(0)
        for since in (-1, 4, 2**63 - 1, 2**64):
            assert await self.store.projections.reading(since) == whole
        with self.limited("CHANGES_KEPT", 3, readings):
            await self.principal("carol")
            await self.principal("dave")
            found = [await self.store.projections.reading(since) for since in range(6)]
            assert [reading.whole for reading in found] == [True, True, False, False, False, False]
            assert [len(reading.principals) for reading in found] == [4, 4, 3, 2, 1, 0]

    # -- leases -------------------------------------------------------------------------------------------------------

    async def test_lease_is_granted_and_audited(self) -> None:
        """C19, P26."""
        question = await self.question()
        self.now_ms += 7
        assert await self.store.leases.authorise(question, NOW_MS) == LeaseGrant(SECRET, NOW_MS)
        [row] = await self.store.audit.tail(1)
        binding = question.binding
        assert (row.actor, row.action, row.subject) == ("edge:edge-1", "lease.issue", binding.slot)
        assert (row.outcome, row.at_ms) == ("granted", NOW_MS + 7)
        assert row.details == {
            "request": "request-1",
            "token": "token-alice",
            "principal": binding.principal,
            "route": binding.route,
            "slot": binding.slot,
            "profile": "openai",
            "target": "lab",
            "node": "node-1",
            "credential_revision": 1,
            "route_revision": 1,
            "generation": 4,
        }

    async def test_each_claim_that_differs_is_refused_and_audited(self) -> None:
        """P12 on the whole path; P26: a refusal has its row too, and carries no ciphertext."""
        question = await self.question()
        stranger = await self.principal("mallory")
        binding = replace(question.binding, generation=await self.store.projections.generation())
        question = replace(question, binding=binding)
        assert await self.reason(question) == "granted"
        claims: list[tuple[LeaseQuestion, str]] = [
            (replace(question, binding=replace(binding, generation=binding.generation - 1)), "stale_generation"),
            (replace(question, binding=replace(binding, generation=binding.generation + 1)), "binding_mismatch"),
            (replace(question, binding=replace(binding, principal="nobody")), "binding_mismatch"),
            (replace(question, binding=replace(binding, principal=stranger.principal)), "token_refused"),
            (replace(question, binding=replace(binding, route="unknown")), "binding_mismatch"),
            (replace(question, binding=replace(binding, slot="unknown")), "slot_refused"),
            (replace(question, binding=replace(binding, profile="none")), "binding_mismatch"),
            (replace(question, binding=replace(binding, target="other")), "binding_mismatch"),
            (replace(question, binding=replace(binding, credential_revision=2)), "binding_mismatch"),
            (replace(question, binding=replace(binding, route_revision=2)), "binding_mismatch"),
            (replace(question, token_id="unknown"), "token_refused"),
            (replace(question, token_id="token-mallory"), "token_refused"),
            (replace(question, token_proof=new_token("alice").digest), "token_refused"),
        ]
        for claim, reason in claims:
            answer = await self.store.leases.authorise(claim, NOW_MS)
            assert isinstance(answer, LeaseRefusal)
            assert (claim, answer.reason) == (claim, reason)
            assert (answer.again, answer.generation) == (reason == "stale_generation", binding.generation)
            [row] = await self.store.audit.tail(1)
            assert (row.outcome, row.details["token"]) == (reason, claim.token_id)

    async def test_lease_of_denied_node_and_edge(self) -> None:
        """P13: from when the denial returned, and again granted once it was lifted."""
        question = await self.question()

        async def now() -> str:
            generation = await self.store.projections.generation()
            return await self.reason(replace(question, binding=replace(question.binding, generation=generation)))

        for kind, name in (("node", "node-1"), ("edge", "edge-1")):
            await self.store.denials.deny(kind, name, ACTOR)
            assert await now() == f"{kind}_denied"
            await self.store.denials.allow(kind, name, ACTOR)
            assert await now() == "granted"
        await self.store.denials.deny("edge", "node-1", ACTOR)
        await self.store.denials.deny("node", "edge-1", ACTOR)
        assert await now() == "granted"

    async def test_lease_at_an_edge_that_the_principal_is_not_limited_to(self) -> None:
        """P12, E14: refused for good from when the limit returned, and never told to who has no token of it (P16)."""
        question = await self.question()

        async def limited(*edges: str) -> LeaseQuestion:
            made = await self.store.principals.limit("alice", edges, ACTOR)
            return replace(question, binding=replace(question.binding, generation=made.generation))

        assert await self.reason(await limited("edge-1", "edge-2")) == "granted"
        elsewhere = await limited("edge-2", "edge-11")
        answer = await self.store.leases.authorise(elsewhere, NOW_MS)
        assert isinstance(answer, LeaseRefusal)
        assert (answer.reason, answer.again) == ("edge_not_allowed", False)
        [row] = await self.store.audit.tail(1)
        assert (row.outcome, row.actor) == ("edge_not_allowed", "edge:edge-1")
        assert await self.reason(replace(elsewhere, edge="edge-2")) == "granted"
        assert await self.reason(replace(elsewhere, token_proof=b"x" * 32)) == "token_refused"
        assert await self.reason(await limited()) == "granted"

    async def test_lease_of_a_slot_that_is_not_as_it_was(self) -> None:
        question = await self.question()
        for state in (SlotState.DISABLED, SlotState.REVOKED):
            await self.force_slot(question.binding.slot, state, 1)
            assert await self.reason(question) == "slot_refused"
        await self.force_slot(question.binding.slot, SlotState.ACTIVE, 2)
        assert await self.reason(question) == "binding_mismatch"
        rotated = replace(question, binding=replace(question.binding, credential_revision=2))
        assert await self.reason(rotated) == "granted"

    async def test_lease_for_a_token_of_the_wrong_kind_or_expired(self) -> None:
        question = await self.question()
        tokens = [new_token("m", TokenKind.MANAGE), new_token("e", expires_ms=NOW_MS)]
        other = (await self.store.principals.create("bob", tokens, ACTOR)).value
        slot = await self.slot(other.principal)
        made = await self.put(other.principal, slot.slot)
        binding = replace(
            question.binding,
            principal=other.principal,
            slot=slot.slot,
            route=made.value.route,
            generation=made.generation,
        )
        for token in tokens:
            asked = LeaseQuestion("request", "edge-1", binding, token.token_id, token.proof)
            assert await self.reason(asked) == "token_refused"
        expiring = LeaseQuestion("request", "edge-1", binding, "token-e", tokens[1].proof)
        assert isinstance(await self.store.leases.authorise(expiring, NOW_MS - 1), LeaseGrant)

    async def test_foreign_rows_are_refused_as_unknown_ones(self) -> None:
        """P16, C20: cross-principal slot and route answer exactly as ids nobody has."""
        question = await self.question()
        other = await self.principal("mallory")
        slot = await self.slot(other.principal)
        made = await self.put(other.principal, slot.slot)
        binding = replace(question.binding, generation=made.generation)
        for foreign, unknown in (
            (replace(binding, slot=slot.slot), replace(binding, slot="nowhere")),
            (replace(binding, route=made.value.route), replace(binding, route="nowhere")),
        ):
            answers = [
                await self.store.leases.authorise(replace(question, binding=claim), NOW_MS)
                for claim in (foreign, unknown)
            ]
            assert isinstance(answers[0], LeaseRefusal)
            assert answers[0] == answers[1]

    # -- Edge sessions ------------------------------------------------------------------------------------------------

    async def test_session_becomes_ready_with_the_newest_generation(self) -> None:
        session = await self.store.edge_sessions.open("edge-1", NOW_MS)
        row = EdgeSession(session, "edge-1", False, 0, 0, NOW_MS, 0)
        assert await self.store.edge_sessions.since(NOW_MS) == [row]
        await self.principal()
        assert not await self.store.edge_sessions.acknowledge(session, 1, 0)
        assert await self.store.edge_sessions.acknowledge(session, 2, 3)
        ready = replace(row, ready=True, acknowledged=2, unconfirmed=3)
        assert await self.store.edge_sessions.since(NOW_MS) == [ready]

    async def test_ready_session_stays_ready_when_the_generation_moves_on(self) -> None:
        session = await self.store.edge_sessions.open("edge-1", NOW_MS)
        await self.store.edge_sessions.acknowledge(session, 1, 0)
        await self.principal("alice")
        await self.principal("bob")
        assert await self.store.edge_sessions.acknowledge(session, 2, 0)

    async def test_late_acknowledgement_takes_nothing_back(self) -> None:
        session = await self.store.edge_sessions.open("edge-1", NOW_MS)
        await self.principal()
        await self.store.edge_sessions.acknowledge(session, 2, 1)
        assert await self.store.edge_sessions.acknowledge(session, 1, 0)
        [row] = await self.store.edge_sessions.since(NOW_MS)
        assert (row.acknowledged, row.unconfirmed) == (2, 1)

    async def test_acknowledgement_of_a_generation_to_come_is_refused(self) -> None:
        """C50: nobody answers a mutation before it was made; the largest number a wire can carry included."""
        session = await self.store.edge_sessions.open("edge-1", NOW_MS)
        for generation in (2, 2**64 - 1):
            await self.refused(ProtocolViolation, self.store.edge_sessions.acknowledge(session, generation, 0))
        [row] = await self.store.edge_sessions.since(NOW_MS)
        assert (row.ready, row.acknowledged) == (False, 0)

    async def test_session_ends_once(self) -> None:
        session = await self.store.edge_sessions.open("edge-1", NOW_MS)
        await self.store.edge_sessions.end(session, NOW_MS + 5)
        await self.store.edge_sessions.end(session, NOW_MS + 9)
        await self.store.edge_sessions.end("unknown", NOW_MS)
        [row] = await self.store.edge_sessions.since(NOW_MS + 5)
        assert row.ended_ms == NOW_MS + 5
        assert await self.store.edge_sessions.since(NOW_MS + 6) == []
        for gone in (session, "unknown"):
            await self.refused(NotFound, self.store.edge_sessions.acknowledge(gone, 1, 0))

    async def test_all_sessions_end(self) -> None:
        first = await self.store.edge_sessions.open("edge-1", NOW_MS)
        await self.store.edge_sessions.end(first, NOW_MS + 1)
        await self.store.edge_sessions.open("edge-2", NOW_MS + 2)
        await self.store.edge_sessions.end_all(NOW_MS + 3)
        found = await self.store.edge_sessions.since(NOW_MS)
        assert [each.ended_ms for each in found] == [NOW_MS + 1, NOW_MS + 3]

    async def test_sessions_that_ended_long_ago_are_forgotten(self) -> None:
        """The table is bounded by how fast Edges can connect, not by how often they did (P48)."""
        for number in range(3):
            session = await self.store.edge_sessions.open("edge-1", NOW_MS + number)
            await self.store.edge_sessions.end(session, NOW_MS + number)
        lasting = await self.store.edge_sessions.open("edge-2", NOW_MS)
        await self.store.edge_sessions.open("edge-3", NOW_MS + 1 + 660_000)
        found = await self.store.edge_sessions.since(0)
        assert next((each.edge, each.ended_ms) for each in found if each.session != lasting) == ("edge-1", NOW_MS + 2)
        assert sorted(each.edge for each in found) == ["edge-1", "edge-2", "edge-3"]

    async def test_denied_edge_gets_no_session(self) -> None:
        await self.store.denials.deny("edge", "edge-1", ACTOR)
        await self.refused(IdentityRefused, self.store.edge_sessions.open("edge-1", NOW_MS))
        assert await self.store.edge_sessions.since(0) == []
        await self.store.edge_sessions.open("edge-2", NOW_MS)

    # -- denials and audit --------------------------------------------------------------------------------------------

    async def test_denials(self) -> None:
        for kind, name in (("node", "b"), ("edge", "b"), ("node", "a"), ("node", "a")):
            await self.store.denials.deny(kind, name, ACTOR)
        assert await self.store.denials.all() == [("edge", "b"), ("node", "a"), ("node", "b")]
        await self.store.denials.allow("node", "b", ACTOR)
        assert await self.store.denials.all() == [("edge", "b"), ("node", "a")]

    async def test_audit_tail_is_the_newest_oldest_first(self) -> None:
        for number in range(5):
            details: dict[str, str | int] = {"number": number, "text": "ü"}
            await self.store.audit.append("edge:edge-1", "hello", f"s{number}", "refused", details)
        found = await self.store.audit.tail(2)
        assert found == [
            AuditRow(
                number + 1, NOW_MS, "edge:edge-1", "hello", f"s{number}", "refused", {"number": number, "text": "ü"}
            )
            for number in (3, 4)
        ]
        assert await self.store.audit.tail(0) == []
        assert len(await self.store.audit.tail(100)) == 5

    async def test_newest_audit_row_follows_what_is_committed(self) -> None:
        """Each mutation, lease and row of its own, and nothing that was refused or is not audited."""
        assert self.store.audit.newest == 0
        question = await self.question()
        for number in range(4):
            await self.store.audit.append(ACTOR, "action", "subject", str(number), {})
            await self.reason(question)
            await self.reason(replace(question, token_proof=b"x" * 32))
            await self.store.denials.deny("node", f"node-{number}", ACTOR)
            await self.refused(NotFound, self.put(question.binding.principal, "no-slot"))
            await self.store.edge_sessions.end_all(NOW_MS)
            [row] = await self.store.audit.tail(1)
            assert self.store.audit.newest == row.sequence == len(await self.store.audit.tail(100))

    async def test_audit_holds_no_verifier(self) -> None:
        """P26: no secret, token, digest or proof in any row."""
        question = await self.question()
        await self.reason(question)
        await self.reason(replace(question, token_proof=b"x" * 32))
        text = json.dumps([repr(row) for row in await self.store.audit.tail(100)])
        for never in ("digest-", "proof-", "wrapped", "box", "key-1", "xxxx"):
            assert never not in text
