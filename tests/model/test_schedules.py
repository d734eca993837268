"""Schedules of everything at once against the real core: mutations, requests, cuts, restarts, stopped processes.

The provider sees each call with its secret; the model knows which secret was taken away when, what the mutation that
did it was answered, and which content every generation had.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from iop.core.barrier import Standing, standing
from iop.core.projection import Projection
from iop.errors import UpstreamFailed
from iop.net.http1 import RequestHead
from iop.records import Barrier, Committed, PrincipalView, ProjectionSnapshot, SlotRecord, SlotState, TokenKind
from iop.testing.upstream import FakeCall
from tests.control_plane.world import result_of
from tests.edge.rig import MemoryExchange
from tests.model.deployment import EDGES, Deployment, Site

T = TypeVar("T")

#: Schedules that the suite runs; `python -m tests.model` runs as many as it is told.
SCHEDULES: Final = 500
STEPS: Final = 40
PEOPLE: Final = ("ann", "bob")
#: How much of a schedule's end it takes until everything has come to rest: longer than every deadline.
REST_SECONDS: Final = 100.0

edges = st.sampled_from(EDGES)
people = st.sampled_from(PEOPLE)
connections = st.sampled_from(("control", "wire"))
pauses = st.sampled_from((0.0, 0.0, 0.1, 2.5, 6.0))
TROUBLES: Final = (
    *(("stop", "control"), ("stop", "wire"), ("cut", "control"), ("cut", "wire")),
    *(("restart", "control plane"), ("restart", "edge"), ("restart", "node")),
)


@dataclass
class Taken:
    """A secret that may not be used any more: what the mutation that took it away was answered, once it was."""

    returned: bool = False
    #: Edges of which the answer says nothing that would let them go on until ``effective_ms``.
    barred: frozenset[str] = frozenset()
    effective_ms: int = 0


@dataclass
class Held:
    """A slot, its present secret, and every secret of it that was taken away."""

    record: SlotRecord
    secret: str
    taken: dict[str, list[Taken]] = field(default_factory=dict)


class Schedule(RuleBasedStateMachine):
    """One schedule. Hypothesis chooses the steps and finds the shortest schedule that breaks something."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.deployment = Deployment(self.folder)
        self.world, self.clock = self.deployment.world, self.deployment.clock
        for site in self.deployment.sites.values():
            site.upstream.watch = partial(self.called, site)
        self.principals = {name: self.world.principal(name) for name in PEOPLE}
        self.count = 0
        self.epoch = 0
        self.slots: dict[str, Held] = {}
        self.secrets: dict[str, list[Taken]] = {}
        self.requests: dict[str, MemoryExchange] = {}
        self.calls: dict[str, int] = {}
        #: Calls that have not reached the provider, and those that it has not answered.
        self.calling: list[tuple[Site, FakeCall]] = []
        self.open: list[FakeCall] = []
        self.slow = False
        self.violations: list[str] = []
        #: Digest of what each Edge may know, by generation.
        self.history: dict[int, dict[str, bytes]] = {}
        self.deployment.plane.watch.start()
        for name in PEOPLE:
            self.create(name)
        self.deployment.heal()

    def teardown(self) -> None:
        """Everything heals: every request has one end, and who may be served is."""
        try:
            self.deployment.heal()
            for _ in range(int(REST_SECONDS / 2)):
                self.finish_all()
                self.deployment.pass_time(2.0)
                self.deployment.heal()
            for name, exchange in self.requests.items():
                assert exchange.whole or exchange.aborted, f"{name} has no end"
            self.serves_everybody()
        finally:
            self.deployment.plane.watch.stop()
            shutil.rmtree(self.folder)

    # -- mutations ----------------------------------------------------------------------------------------------------

    @rule(name=people)
    def create(self, name: str) -> None:
        """A slot with a new secret, and the person's route to it; the slot before it stays."""
        principal = self.principals[name]
        self.count += 1
        secret = f"sk-{name}-{self.count}"
        slot = self.world.slot(principal, name=f"slot-{self.count}", secret=secret.encode())
        self.remember()
        self.secrets[secret] = []
        routes = result_of(self.world.store.routes.all(principal))
        expected = routes[0].revision if routes else None
        put = self.world.store.routes.put(principal, "small", slot.slot, "upstream-small", "", expected, "token:test")
        self.slots[name] = Held(slot, secret)
        self.commit(result_of(put), [])

    @rule(name=people, how=st.sampled_from(("revoke", "rotate", "disable", "enable")), seconds=pauses)
    def take_away(self, name: str, how: str, seconds: float) -> None:
        """The person's slot is revoked for good, gets another secret, or is disabled or enabled, as it is."""
        held = self.slots[name]
        state = held.record.state
        if state is SlotState.REVOKED:
            return
        if how == "rotate":
            self.rotate(name)
        elif how == "enable" and state is SlotState.DISABLED:
            # from now on it may be used again, whatever the answers to what was before say
            self.secrets[held.secret] = []
            self.commit(self.to_state(name, SlotState.ACTIVE), [])
        elif how in ("revoke", "disable"):
            to = SlotState.REVOKED if how == "revoke" else SlotState.DISABLED
            self.commit(self.to_state(name, to), [held.secret])
        self.deployment.pass_time(seconds)

    def to_state(self, name: str, state: SlotState) -> Committed[SlotRecord]:
        """Change the state of the person's slot."""
        held = self.slots[name]
        slot, revision = held.record.slot, held.record.revision
        changed = self.world.store.slots.set_state(self.principals[name], slot, state, revision, "token:test")
        committed = result_of(changed)
        held.record = committed.value
        return committed

    def rotate(self, name: str) -> None:
        """The person's slot gets another secret."""
        held = self.slots[name]
        self.count += 1
        secret = f"sk-{name}-{self.count}"
        committed = self.world.rotate(held.record, secret.encode())
        self.secrets[secret] = []
        before, held.secret, held.record = held.secret, secret, committed.value
        self.commit(committed, [before])

    @rule(name=people, to=st.sets(edges, max_size=1))
    def limit(self, name: str, to: set[str]) -> None:
        """The person is limited to one Edge, or may use every one again."""
        self.commit(result_of(self.world.store.principals.limit(name, tuple(to), "host:test")), [])

    def commit(self, committed: Committed[T], taken: Sequence[str]) -> None:
        """Have a mutation's barrier run, and note what it says about the secrets that it takes away."""
        self.remember()
        epoch = self.epoch
        notes = [Taken() for _ in taken]
        for secret, note in zip(taken, notes, strict=True):
            self.secrets[secret].append(note)

        def returned(barrier: Barrier) -> None:
            if epoch != self.epoch:
                return
            for note in notes:
                note.returned, note.effective_ms = True, barrier.effective_ms
                note.barred = self.barred(barrier.generation)

        done: Deferred[Barrier] = Deferred.fromCoroutine(self.deployment.plane.mutations.complete(committed))
        done.addCallback(returned)
        self.deployment.pump()

    def barred(self, generation: int) -> frozenset[str]:
        """The Edges that a barrier counts neither as cut off nor as unconfirmed."""
        now, window = self.clock.wall_ms(), self.world.config.lease.window_ms
        sessions = result_of(self.world.store.edge_sessions.since(now - window))
        loose = {
            session.edge
            for session in sessions
            if standing(session, generation, now, window, running=True) in (Standing.CUT_OFF, Standing.UNCONFIRMED)
        }
        return frozenset(EDGES) - loose

    def remember(self) -> None:
        """Note what each Edge may know at the store's present generation."""
        reading = result_of(self.world.store.projections.reading(0))
        self.history[reading.generation] = {
            edge: Projection.build(snapshot_for(edge, reading.generation, reading.principals)).digest for edge in EDGES
        }

    # -- requests -----------------------------------------------------------------------------------------------------

    @rule(name=people, edge=edges, seconds=pauses)
    def request(self, name: str, edge: str, seconds: float) -> None:
        """A caller asks an Edge, and some time passes."""
        self.send(name, edge)
        self.deployment.pass_time(seconds)

    @rule(name=people, edge=edges, which=connections)
    def request_that_gets_stuck(self, name: str, edge: str, which: str) -> None:
        """A caller asks an Edge, one of whose connections does not move."""
        self.deployment.sites[edge].stopped.add(which)
        self.send(name, edge)
        self.deployment.pump()

    def send(self, name: str, edge: str) -> MemoryExchange:
        """A request that says which one it is, of somebody who has a slot."""
        if self.slots[name].record.state is SlotState.REVOKED:
            self.create(name)
        request = f"request-{len(self.requests)}"
        token = self.world.token_text(name, TokenKind.USE)
        head = RequestHead("POST", "/v1/chat/completions", "", ((b"authorization", f"Bearer {token}".encode()),))
        exchange = self.requests[request] = MemoryExchange(head)
        wanted = self.deployment.sites[edge].parts.api.headed(exchange)
        if wanted is not None:
            wanted.take(bytearray(json.dumps({"model": "small", "user": request}).encode()))
        return exchange

    def called(self, site: Site, call: FakeCall) -> None:
        """A Node calls the provider, which is reached at once, or with the next :meth:`reach`."""
        self.calling.append((site, call))
        if not self.slow:
            self.reached()

    @rule(slow=st.booleans())
    def reach(self, slow: bool) -> None:
        """The provider is reached by whoever calls it, and from now on at once or not."""
        self.slow = slow
        self.reached()

    def reached(self) -> None:
        """The first bytes of calls reach the provider: with secrets that may still be used."""
        calling, self.calling = self.calling, []
        for site, call in calling:
            if call.cancelled:
                continue
            call.started = True
            self.open.append(call)
            secret = dict(call.headers)["authorization"].removeprefix("Bearer ")
            # kept rather than raised, since a Node takes what a call raises for a fault of that one run
            for note in self.secrets[secret]:
                if note.returned and site.name in note.barred:
                    self.violations.append(f"{secret} was used at {site.name} after its end was answered")
                if note.returned and self.clock.wall_ms() > note.effective_ms:
                    self.violations.append(f"{secret} was used past the end of every lease")

    @rule(whole=st.booleans())
    @precondition(lambda self: bool(self.open))
    def answer(self, whole: bool) -> None:
        """The provider answers the oldest call, or breaks it off after the head."""
        call = self.open.pop(0)
        self.count_call(call)
        if not call.cancelled:
            call.receiver.head(200, [("content-type", "application/json")])
            call.receiver.data(b"{}")
            if whole:
                call.receiver.finished()
            else:
                call.receiver.failed(UpstreamFailed("the provider went away", started=True))
        self.deployment.pump()

    def finish_all(self) -> None:
        """Answer every call."""
        self.reach(slow=False)
        while self.open:
            self.answer(whole=True)

    def count_call(self, call: FakeCall) -> None:
        """No request is given to the provider twice."""
        if call.written:
            request = json.loads(bytes(call.written))["user"]
            self.calls[request] = self.calls.get(request, 0) + 1
            assert self.calls[request] == 1, f"{request} ran twice"

    # -- what befalls them --------------------------------------------------------------------------------------------

    @rule(edge=edges, what=st.sampled_from(TROUBLES))
    def trouble(self, edge: str, what: tuple[str, str]) -> None:
        """Something stops, is cut or starts anew. Whoever waited for an answer of what was before has none."""
        site = self.deployment.sites[edge]
        match what:
            case ("stop", which):
                site.stopped.add(which)
            case ("cut", which):
                self.deployment.cut(site, which)
            case ("restart", "control plane"):
                self.epoch += 1
                self.deployment.restart_control_plane()
            case ("restart", "edge"):
                self.deployment.restart_edge(site)
            case ("restart", "node"):
                self.deployment.restart_node(site)
        self.deployment.pump()

    @rule(edge=edges)
    def heal(self, edge: str) -> None:
        """An Edge has everything that it needs again."""
        site = self.deployment.sites[edge]
        site.stopped.clear()
        self.deployment.connect_control(site)
        self.deployment.connect_node(site)
        self.deployment.pump()

    @rule(seconds=st.sampled_from((0.5, 2.5, 6.0, 20.0, 70.0)))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.deployment.pass_time(seconds)

    # -- what holds at all times --------------------------------------------------------------------------------------

    @invariant()
    def projections_are_whole_and_rise(self) -> None:
        """P7, P8, P40: what is in force is exactly what the store held at that generation, which never falls."""
        assert not self.violations, self.violations
        for site in self.deployment.sites.values():
            current = site.projection
            if current is not None:
                assert current.generation >= site.highest, "a generation fell"
                site.highest = current.generation
                assert current.digest == self.history[current.generation][site.name], "a projection is mixed"

    def serves_everybody(self) -> None:
        """In the end, whoever has an active slot is served with its present secret."""
        for name in PEOPLE:
            result_of(self.world.store.principals.limit(name, (), "host:test"))
            self.remember()
            self.deployment.pass_time(2.0)
            exchange = self.send(name, EDGES[0])
            held = self.slots[name]
            active = held.record.state is SlotState.ACTIVE
            self.deployment.pass_time(1.0)
            used = [dict(call.headers)["authorization"] for call in self.open]
            self.finish_all()
            self.deployment.pass_time(1.0)
            assert exchange.status == (200 if active else 404), (name, exchange.status, exchange.body)
            assert used == ([f"Bearer {held.secret}"] if active else []), used


def snapshot_for(edge: str, generation: int, principals: Sequence[PrincipalView]) -> ProjectionSnapshot:
    """What ``edge`` may know of ``principals``."""
    seen = [view for view in principals if not view.edges or edge in view.edges]
    return ProjectionSnapshot(
        generation,
        tuple(token for view in seen for token in view.tokens),
        tuple(route for view in seen for route in view.routes),
    )


def run_schedules(count: int, machine: type[RuleBasedStateMachine] = Schedule) -> None:
    """Run so many schedules, none of them remembered from another run."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class ScheduleTests(SynchronousTestCase):
    def test_schedules(self) -> None:
        """P7, P8, P40, P41, C18, C38, C50: nothing stale is dispatched, no generation falls, no projection is mixed."""
        run_schedules(SCHEDULES)
