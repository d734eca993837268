from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorFromThreads
from twisted.trial.unittest import TestCase

from iop.errors import (
    DeploymentMismatch,
    FileRefused,
    IopError,
    NotFound,
    RevisionMismatch,
    StoreBusy,
    StoreUnavailable,
)
from iop.interfaces import IStore
from iop.records import Binding, Committed, LeaseQuestion, NewSlot, PrincipalRecord, SealedSecret, SlotState, TokenKind
from iop.store import schema
from iop.store.room import route_bytes, token_bytes
from iop.store.sqlite import SqliteStore, open_sqlite
from iop.store.sqlite.thread import SqliteThread
from tests.store import contract
from tests.store.contract import ACTOR, DEPLOYMENT, NOW_MS, new_slot, new_token


def the_reactor() -> IReactorFromThreads:
    """The one trial runs, which threads call back to."""
    return IReactorFromThreads(reactor)


def does(statement: str, *values: object) -> Callable[[sqlite3.Connection], list[tuple[object, ...]]]:
    """A job of one statement, which answers its rows."""
    return lambda connection: connection.execute(statement, values).fetchall()


class NoCommit(sqlite3.Connection):
    """A connection whose disk fails when it counts."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, parameters)


class SqliteTestCase(TestCase):
    """A test with a database, and a second way into it."""

    def setUp(self) -> None:
        super().setUp()
        self.path = Path(self.mktemp()).absolute()
        schema.migrate(self.path, DEPLOYMENT)

    def opened(self, wall_ms: Callable[[], int] = lambda: NOW_MS) -> SqliteStore:
        store = self.successResultOf(open_sqlite(self.path, DEPLOYMENT, the_reactor(), wall_ms))
        self.addCleanup(store.close)
        return store

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with closing(schema.connect(self.path)) as connection:
            return connection.execute(statement, values).fetchall()


class SqliteContractTests(contract.StoreContract, SqliteTestCase):
    def make_store(self) -> IStore:
        return self.opened(lambda: self.now_ms)

    async def force_slot(self, slot: str, state: SlotState, credential_revision: int) -> None:
        self.execute(
            "UPDATE slots SET state = ?, credential_revision = ?, revision = 9 WHERE slot = ?",
            state.value,
            credential_revision,
            slot,
        )


class OpeningTests(SqliteTestCase):
    def refused(self, error: type[IopError], deployment: str = DEPLOYMENT) -> IopError:
        refusal = self.failureResultOf(open_sqlite(self.path, deployment, the_reactor()), error).value
        assert isinstance(refusal, IopError)
        return refusal

    def test_missing_database_says_what_to_run(self) -> None:
        self.path.unlink()
        assert "iop store migrate --config FILE" in self.refused(StoreUnavailable).hint
        assert not self.path.exists()

    def test_schema_that_is_not_current_says_what_to_run(self) -> None:
        for other in ("0000", "9999"):
            self.execute("UPDATE alembic_version SET version_num = ?", other)
            refusal = self.refused(StoreUnavailable)
            assert "iop store migrate --config FILE" in refusal.hint
            assert other in refusal.message
        self.execute("DROP TABLE alembic_version")
        self.refused(StoreUnavailable)

    def test_database_that_others_may_open(self) -> None:
        """It holds ciphertext and verifiers: whoever loosened it is told how to mend that."""
        for mode in (0o644, 0o640, 0o602):
            self.path.chmod(mode)
            assert self.refused(FileRefused).hint == f"chmod 600 {self.path}"

    def test_another_deployment(self) -> None:
        refusal = self.refused(DeploymentMismatch, "deployment-2")
        assert "deployment-2" in refusal.message

    def test_file_that_is_no_database(self) -> None:
        self.path.write_bytes(b"not a database, but long enough to be looked at" * 100)
        self.refused(StoreUnavailable)

    def test_file_that_is_broken_further_in(self) -> None:
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        whole = self.path.read_bytes()
        self.path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
        self.refused(StoreUnavailable)
        with self.assertRaises(StoreUnavailable):
            schema.status(self.path)

    def test_connections_wait_for_the_disk_and_check_references(self) -> None:
        with closing(schema.connect(self.path)) as connection:
            for pragma, value in (
                ("journal_mode", "wal"),
                ("synchronous", 2),
                ("foreign_keys", 1),
                ("busy_timeout", 1000),
            ):
                assert connection.execute(f"PRAGMA {pragma}").fetchall() == [(value,)], pragma

    async def test_files_are_private(self) -> None:
        store = self.opened()
        await store.denials.deny("node", "node-1", ACTOR)
        files = list(self.path.parent.glob(f"{self.path.name}*"))
        assert len(files) == 3
        for file in files:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


class MigrationTests(SqliteTestCase):
    def test_version_here_is_the_newest_revision_there(self) -> None:
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
        assert ScriptDirectory.from_config(config).get_heads() == [schema.CURRENT]

    def test_again_changes_nothing(self) -> None:
        self.execute("UPDATE generation SET value = 7")
        before = self.path.read_bytes()
        schema.migrate(self.path, DEPLOYMENT)
        assert self.path.read_bytes() == before

    def test_another_deployment_is_refused(self) -> None:
        with self.assertRaises(DeploymentMismatch):
            schema.migrate(self.path, "deployment-2")
        assert schema.status(self.path).deployment == DEPLOYMENT

    def test_newer_schema_is_refused(self) -> None:
        self.execute("UPDATE alembic_version SET version_num = '9999'")
        with self.assertRaises(StoreUnavailable):
            schema.migrate(self.path, DEPLOYMENT)
        assert schema.status(self.path).schema == "9999"

    def test_all_or_nothing(self) -> None:
        """A migration that fails half-way leaves no table behind."""
        path = self.path.with_name("half")
        path.touch(0o600)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE routes (in_the_way TEXT)")
        with self.assertRaises(StoreUnavailable):
            schema.migrate(path, DEPLOYMENT)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("routes",)]

    def test_lock_held_by_another_is_busy(self) -> None:
        self.patch(schema, "LOCK_SECONDS", 0.01)
        with closing(schema.connect(self.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            with self.assertRaises(StoreBusy):
                schema.migrate(self.path, DEPLOYMENT)

    def test_link_is_not_followed(self) -> None:
        link = self.path.with_name("link")
        os.symlink(self.path, link)
        with self.assertRaises(IopError):
            schema.migrate(link, DEPLOYMENT)

    def test_path_may_hold_any_character(self) -> None:
        path = self.path.with_name("a b%c?d#ü.db")
        schema.migrate(path, DEPLOYMENT)
        assert path.stat().st_size > 0
        assert schema.status(path) == schema.StoreStatus(schema.CURRENT, DEPLOYMENT, 1)

    def test_status_of_another_schema(self) -> None:
        self.execute("UPDATE alembic_version SET version_num = '0000'")
        assert schema.status(self.path) == schema.StoreStatus("0000", None, None)


class OldDatabaseTests(SqliteTestCase):
    """A database of the first schema, with something in every table."""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.path.with_name("old")
        patched = self.patch(schema, "CURRENT", "0001")
        schema.migrate(self.path, DEPLOYMENT)
        patched.restore()
        for statement in (
            "UPDATE generation SET value = 7",
            "INSERT INTO principals VALUES ('p-1', 'alice', 1), ('p-2', 'bob', 2)",
            "INSERT INTO tokens VALUES ('t-1', 'p-1', 'use', zeroblob(32), zeroblob(32), 0, 1)",
            "INSERT INTO tokens VALUES ('t-2', 'p-1', 'manage', randomblob(32), zeroblob(32), 0, 1)",
            "INSERT INTO slots VALUES ('s-1', 'p-1', 'work', 'openai', 'lab', 'active', 3, 2, 'k', x'01', x'02', 1, 2)",
            "INSERT INTO routes VALUES ('r-1', 'p-1', 'möde', 's-1', 'upstream', 'gpu=a', 4, 1, 2)",
            "INSERT INTO edge_sessions VALUES ('e-1', 'edge-1', 1, 7, 0, 1, 0)",
            "INSERT INTO denials VALUES ('node', 'node-1')",
            "INSERT INTO audit VALUES (1, 1, 'a', 'b', 'c', 'd', '{}')",
        ):
            self.execute(statement)

    def test_nothing_is_lost(self) -> None:
        columns = {
            str(table): ", ".join(str(row[1]) for row in self.execute(f"PRAGMA table_info({table})"))
            for (table,) in self.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if table != "alembic_version"
        }

        def everything() -> dict[str, list[tuple[object, ...]]]:
            return {table: self.execute(f"SELECT {columns[table]} FROM {table}") for table in columns}  # noqa: S608

        before = everything()
        assert all(before.values())
        schema.migrate(self.path, DEPLOYMENT)
        assert everything() == before
        assert schema.status(self.path) == schema.StoreStatus(schema.CURRENT, DEPLOYMENT, 7)

    async def test_room_is_counted_and_what_changed_is_known_from_here_on(self) -> None:
        schema.migrate(self.path, DEPLOYMENT)
        route = route_bytes("r-1", "p-1", "s-1", "openai", "lab", "möde", "upstream", "gpu=a")
        taken = token_bytes("t-1", "p-1") + route
        assert self.execute("SELECT principal, bytes FROM principals") == [("p-1", taken), ("p-2", 0)]
        assert self.execute("SELECT bytes FROM room") == [(taken,)]
        store = self.opened()
        await store.principals.limit("bob", ["edge-1"], ACTOR)
        found = [await store.projections.reading(since) for since in (6, 7, 8)]
        assert [(reading.whole, len(reading.principals)) for reading in found] == [(True, 2), (False, 1), (False, 0)]


class SchemaTests(SqliteTestCase):
    def test_nothing_registers_nodes_providers_or_runs(self) -> None:
        """C47: the Control Plane is no source of an Edge's registry; the schema has these tables and no others."""
        tables = {
            str(name): {str(row[1]) for row in self.execute(f"PRAGMA table_info({name})")}
            for (name,) in self.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        }
        expected = (
            "alembic_version audit changes denials edge_sessions generation meta principal_edges principals room routes"
            " slots sqlite_sequence tokens"
        )
        assert sorted(tables) == expected.split()
        for table, columns in tables.items():
            assert not columns & {"node", "provider", "run", "address", "url", "public_key", "recipient_key"}, table
        assert tables["denials"] == {"kind", "name"}
        assert tables["principal_edges"] == {"principal", "edge"}

    def test_audit_is_append_only(self) -> None:
        """P26: not even a statement of our own can edit a row."""
        self.execute("INSERT INTO audit VALUES (NULL, 1, 'a', 'b', 'c', 'd', '{}')")
        for statement in ("UPDATE audit SET actor = 'z'", "DELETE FROM audit"):
            with self.assertRaises(sqlite3.IntegrityError):
                self.execute(statement)
        assert self.execute("SELECT actor FROM audit") == [("a",)]

    async def test_constraints_hold_behind_the_code(self) -> None:
        store = self.opened()
        alice = (await store.principals.create("alice", [new_token("a")], ACTOR)).value
        bob = (await store.principals.create("bob", [], ACTOR)).value
        await store.slots.create(new_slot(alice.principal), ACTOR)
        slot = f"slot-work-of-{alice.principal}"
        for statement, values in (
            ("UPDATE generation SET value = 0", ()),
            ("INSERT INTO generation VALUES (2, 1)", ()),
            ("UPDATE slots SET state = 'lost'", ()),
            ("UPDATE slots SET credential_revision = revision + 1", ()),
            ("UPDATE slots SET box = x''", ()),
            ("UPDATE slots SET box = 'text'", ()),
            ("UPDATE tokens SET digest = x'00'", ()),
            ("UPDATE tokens SET kind = 'root'", ()),
            ("UPDATE tokens SET principal = 'nobody'", ()),
            ("DELETE FROM principals WHERE principal = ?", (alice.principal,)),
            ("INSERT INTO routes VALUES ('r', ?, 'm', ?, 'm', '', 1, 1, 1)", (bob.principal, slot)),
            ("INSERT INTO denials VALUES ('worker', 'w')", ()),
            ("INSERT INTO principal_edges VALUES ('nobody', 'edge-1')", ()),
            ("INSERT INTO principal_edges VALUES (?, '')", (alice.principal,)),
            ("UPDATE room SET bytes = -1", ()),
            ("INSERT INTO changes VALUES (2, '')", ()),
        ):
            with self.assertRaises(sqlite3.IntegrityError):
                self.execute(statement, *values)


class OneStatementTests(SqliteTestCase):
    def traced(self) -> tuple[SqliteStore, list[str]]:
        """A store, and what it executes, without its transactions' frames."""
        statements: list[str] = []
        frame = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK", "--")

        def note(statement: str) -> None:
            if not statement.lstrip().startswith(frame):
                statements.append(" ".join(statement.split()))

        writing = schema.connect(self.path)
        writing.set_trace_callback(note)
        reading = schema.connect(self.path)
        reading.set_trace_callback(note)
        store = SqliteStore(
            SqliteThread(writing, "BEGIN IMMEDIATE", the_reactor(), "writer"),
            SqliteThread(reading, "BEGIN", the_reactor(), "reader"),
            lambda: NOW_MS,
            0,
        )
        self.addCleanup(store.close)
        return store, statements

    async def test_lease_reads_in_one_statement(self) -> None:
        """C19: what is compared was true at one moment. P16: foreign, unknown and own cost the same statements."""
        store, statements = self.traced()
        owner = (await store.principals.create("alice", [new_token("a")], ACTOR)).value
        other = (await store.principals.create("bob", [new_token("b")], ACTOR)).value
        slots = [(await store.slots.create(new_slot(each.principal), ACTOR)).value for each in (owner, other)]
        routes = [await store.routes.put(slot.principal, "m", slot.slot, "m", "", None, ACTOR) for slot in slots]
        binding = Binding(
            owner.principal, routes[0].value.route, slots[0].slot, "openai", "lab", "n", 1, 1, routes[1].generation
        )
        question = LeaseQuestion("r", "e", binding, "token-a", new_token("a").proof)
        counts = []
        for claim in (
            binding,
            replace(binding, slot=slots[1].slot),
            replace(binding, slot="unknown"),
            replace(binding, route=routes[1].value.route),
            replace(binding, route="unknown"),
            replace(binding, generation=1),
        ):
            statements.clear()
            await store.leases.authorise(replace(question, binding=claim), NOW_MS)
            counts.append([statement.split()[0] for statement in statements])
        limited = await store.principals.limit("alice", ["another"], ACTOR)
        statements.clear()
        await store.leases.authorise(replace(question, binding=replace(binding, generation=limited.generation)), NOW_MS)
        counts.append([statement.split()[0] for statement in statements])
        assert counts == [["SELECT", "INSERT"]] * 7

    async def test_route_to_a_foreign_slot_costs_what_an_unknown_one_costs(self) -> None:
        """P16."""
        store, statements = self.traced()
        owner = (await store.principals.create("alice", [], ACTOR)).value
        other = (await store.principals.create("bob", [], ACTOR)).value
        slot = (await store.slots.create(new_slot(owner.principal), ACTOR)).value
        counts = []
        for named in (slot.slot, "unknown"):
            statements.clear()
            await self.assertFailure(store.routes.put(other.principal, "m", named, "m", "", None, ACTOR), NotFound)
            counts.append(len(statements))
        assert counts == [1, 1]

    async def test_no_table_is_read_from_end_to_end(self) -> None:
        """E11: a change, and a reading of what changed, cost what the principals in it have, not what there is."""
        store, statements = self.traced()
        owner = (await store.principals.create("alice", [new_token("a")], ACTOR, ["edge-1"])).value
        slot = (await store.slots.create(new_slot(owner.principal), ACTOR)).value
        await store.routes.put(owner.principal, "m", slot.slot, "m", "", None, ACTOR)
        await store.routes.put(owner.principal, "m", slot.slot, "n", "", 1, ACTOR)
        await store.principals.limit("alice", ["edge-2"], ACTOR)
        reading = await store.projections.reading(2)
        assert [len(view.routes) for view in reading.principals] == [1]
        tables = ("audit", "changes", "principal_edges", "principals", "routes", "slots", "tokens")
        assert len(statements) > 20
        for statement in statements:
            for plan in self.execute(f"EXPLAIN QUERY PLAN {statement}"):
                assert not any(f"SCAN {table}" in str(plan[3]) for table in tables), (statement, plan)

    async def test_room_is_what_all_entries_take(self) -> None:
        """P19: what mutations keep count of is the sum of everything; what was refused or replaced is not in it."""
        store = self.opened()
        everything = 0
        for name in ("alice", "bob"):
            tokens = [new_token(name), new_token(f"{name}-manage", TokenKind.MANAGE)]
            owner = (await store.principals.create(name, tokens, ACTOR)).value
            slot = (await store.slots.create(new_slot(owner.principal), ACTOR)).value
            everything += token_bytes(f"token-{name}", owner.principal)
            for model in ("möde", "n"):
                await store.routes.put(owner.principal, model, slot.slot, "at first", "", None, ACTOR)
                again = store.routes.put(owner.principal, model, slot.slot, "again", "", None, ACTOR)
                await self.assertFailure(again, RevisionMismatch)
                made = (await store.routes.put(owner.principal, model, slot.slot, "up", "gpu=ä", 1, ACTOR)).value
                everything += route_bytes(
                    made.route, owner.principal, slot.slot, slot.profile, slot.target, model, "up", "gpu=ä"
                )
        assert self.execute("SELECT bytes FROM room") == [(everything,)]
        assert self.execute("SELECT sum(bytes) FROM principals") == [(everything,)]


class ThreadTests(SqliteTestCase):
    """Group commit, on one connection and its thread."""

    def thread(self, limit: int = 100, trace: Callable[[str], object] | None = None) -> SqliteThread:
        connection = schema.connect(self.path)
        connection.set_trace_callback(trace)
        made = SqliteThread(connection, "BEGIN IMMEDIATE", the_reactor(), "iop-store-test", limit)
        self.addCleanup(made.close)
        return made

    def held(self, thread: SqliteThread) -> Event:
        """An event that the thread waits for, with everything queued after it in the next batch."""
        began, go_on = Event(), Event()

        def job(_: sqlite3.Connection) -> None:
            began.set()
            assert go_on.wait(10)

        self.occupied = thread.run(job)
        assert began.wait(10)
        return go_on

    async def test_batch_is_one_transaction(self) -> None:
        begun: list[str] = []
        thread = self.thread(trace=lambda each: begun.append(each) if each == "BEGIN IMMEDIATE" else None)
        go_on = self.held(thread)
        calls = [thread.run(does("UPDATE generation SET value = value + 1")) for _ in range(20)]
        go_on.set()
        await gatherResults(calls)
        assert len(begun) == 2
        assert self.execute("SELECT value FROM generation") == [(21,)]

    async def test_failing_job_takes_back_only_itself(self) -> None:
        thread = self.thread()
        go_on = self.held(thread)

        def half(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO denials VALUES ('node', 'half')")
            raise NotFound("changed its mind")

        def broken(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO denials VALUES ('node', 'broken')")
            connection.execute("INSERT INTO nowhere VALUES (1)")

        first, refused = thread.run(does("INSERT INTO denials VALUES ('node', 'first')")), thread.run(half)
        failed, last = thread.run(broken), thread.run(does("INSERT INTO denials VALUES ('node', 'last')"))
        go_on.set()
        await self.assertFailure(refused, NotFound)
        await self.assertFailure(failed, StoreUnavailable)
        await gatherResults([first, last])
        assert self.execute("SELECT name FROM denials") == [("first",), ("last",)]

    async def test_lost_transaction_fails_every_job_in_it(self) -> None:
        """P47: when SQLite itself takes back the transaction, nobody is told that his change holds."""
        thread = self.thread()
        go_on = self.held(thread)

        calls = [
            thread.run(does("UPDATE generation SET value = 5")),
            thread.run(does("INSERT OR ROLLBACK INTO generation VALUES (1, 1)")),
            thread.run(does("UPDATE generation SET value = 6")),
        ]
        go_on.set()
        for call in calls:
            await self.assertFailure(call, StoreUnavailable)
        assert self.execute("SELECT value FROM generation") == [(1,)]
        await thread.run(does("UPDATE generation SET value = 7"))
        assert self.execute("SELECT value FROM generation") == [(7,)]

    async def test_commit_that_fails_leaves_the_outcome_open(self) -> None:
        """P46: nobody is told that his change holds, or that it does not."""
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, factory=NoCommit)
        thread = SqliteThread(connection, "BEGIN IMMEDIATE", the_reactor(), "iop-store-test")
        self.addCleanup(thread.close)
        go_on = self.held(thread)
        calls = [thread.run(does("UPDATE generation SET value = 2")) for _ in range(2)]
        go_on.set()
        await self.assertFailure(self.occupied, StoreUnavailable)
        for call in calls:
            refused = await self.assertFailure(call, StoreUnavailable)
            assert "whether the change holds is unknown" in str(refused)

    async def test_audit_rows_of_others_and_of_no_commit(self) -> None:
        """Rows count that were there before, and that others wrote before the newest here; a lost row does not."""
        before = self.opened()
        for number in range(3):
            await before.audit.append(ACTOR, "action", "subject", str(number), {})
        store, other = self.opened(), self.opened()
        assert store.audit.newest == 3
        await other.audit.append(ACTOR, "action", "subject", "other", {})
        assert store.audit.newest == 3
        await store.audit.append(ACTOR, "action", "subject", "own", {})
        assert store.audit.newest == 5
        writing = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, factory=NoCommit)
        reading = SqliteThread(schema.connect(self.path), "BEGIN", the_reactor(), "iop-store-test")
        failing = SqliteThread(writing, "BEGIN IMMEDIATE", the_reactor(), "iop-store-test")
        unlucky = SqliteStore(failing, reading, lambda: NOW_MS, 5)
        self.addCleanup(unlucky.close)
        await self.assertFailure(unlucky.audit.append(ACTOR, "action", "subject", "lost", {}), StoreUnavailable)
        assert unlucky.audit.newest == 5

    async def test_commit_that_does_not_fit_changes_nothing(self) -> None:
        """P46, P47: wherever in the log the disk ends, nobody is left in doubt; so it is after a crash, too."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
        thread = self.thread()
        await thread.run(does("UPDATE generation SET value = 2"))
        size = os.stat(f"{self.path}-wal").st_size
        filler = "INSERT INTO audit VALUES (NULL, 1, 'a', 'b', 'c', 'd', ?)"
        for room in range(0, 12_000, 1000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
            refused = await self.assertFailure(thread.run(does(filler, "x" * 16_000)), StoreUnavailable)
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert "nothing was changed" in str(refused), str(refused)
            crashed = self.path.with_name(f"crashed-{room}")
            for end in ("", "-wal"):
                shutil.copy(f"{self.path}{end}", f"{crashed}{end}")
            with closing(sqlite3.connect(crashed)) as connection:
                assert connection.execute("SELECT count(*) FROM audit").fetchall() == [(0,)]
            assert self.execute("SELECT count(*) FROM audit") == [(0,)]
        await thread.run(does(filler, "x" * 16_000))
        assert self.execute("SELECT count(*) FROM audit") == [(1,)]

    async def test_time_of_a_mutation_is_taken_when_it_is_made(self) -> None:
        """P41: under the write lock, so every lease of an older generation was read before it."""
        thread = self.thread()
        reader = SqliteThread(schema.connect(self.path), "BEGIN", the_reactor(), "iop-store-test")
        now_ms = NOW_MS
        store = SqliteStore(thread, reader, lambda: now_ms, 0)
        self.addCleanup(store.close)
        go_on = self.held(thread)
        made = store.denials.deny("node", "node-1", ACTOR)
        now_ms += 5
        go_on.set()
        assert (await made).committed_ms == NOW_MS + 5

    async def test_results_come_after_the_commit(self) -> None:
        """P46: whoever was answered finds his change from any other connection."""
        thread = self.thread()
        for value in range(2, 12):
            await thread.run(does("UPDATE generation SET value = ?", value))
            assert self.execute("SELECT value FROM generation") == [(value,)]

    async def test_full_queue_is_busy(self) -> None:
        """The limit waits, one past is refused, and both only while the queue is full."""
        thread = self.thread(limit=3)
        go_on = self.held(thread)
        waiting = [thread.run(does("SELECT 1")) for _ in range(3)]
        refused = thread.run(does("SELECT 1"))
        go_on.set()
        await self.assertFailure(refused, StoreBusy)
        await gatherResults(waiting)
        await thread.run(does("SELECT 1"))

    async def test_lock_held_by_another_is_busy(self) -> None:
        thread = self.thread()
        await thread.run(does("PRAGMA busy_timeout = 10"))
        with closing(schema.connect(self.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = await self.assertFailure(thread.run(does("UPDATE generation SET value = 2")), StoreBusy)
            assert "nothing was changed" in str(refused)
            other.execute("ROLLBACK")
        await thread.run(does("UPDATE generation SET value = 2"))

    async def test_full_disk_refuses_and_reading_goes_on(self) -> None:
        """P47."""
        thread = self.thread()
        [(pages,)] = self.execute("PRAGMA page_count")
        await thread.run(does(f"PRAGMA max_page_count = {pages}"))
        filler = "INSERT INTO audit VALUES (NULL, 1, 'a', 'b', 'c', 'd', ?)"
        refused = await self.assertFailure(thread.run(does(filler, "x" * 100_000)), StoreUnavailable)
        assert "disk is full" in str(refused)
        assert await thread.run(does("SELECT value FROM generation")) == [(1,)]
        await thread.run(does("UPDATE generation SET value = 2"))

    async def test_close_finishes_what_was_accepted(self) -> None:
        thread = self.thread()
        go_on = self.held(thread)
        accepted = thread.run(does("UPDATE generation SET value = 2"))
        closed = thread.close()
        late = thread.run(does("SELECT 1"))
        go_on.set()
        await self.assertFailure(late, StoreUnavailable)
        await accepted
        await gatherResults([closed, thread.close()])
        assert "iop-store-test" not in [each.name for each in enumerate_threads()]
        await thread.close()
        assert self.execute("SELECT value FROM generation") == [(2,)]


class ConcurrencyTests(SqliteTestCase):
    async def test_reading_is_one_generation_under_concurrent_writes(self) -> None:
        """P40: in every reading the newest token is the one its generation was raised for."""
        store = self.opened()

        def create(number: int) -> Deferred[Committed[PrincipalRecord]]:
            return store.principals.create(f"p{number}", [new_token(f"{number:04}")], ACTOR)

        writes = [create(number) for number in range(2, 302)]
        seen = set()
        while not all(write.called for write in writes):
            reading = await store.projections.reading(0)
            names = sorted(entry.token_id for view in reading.principals for entry in view.tokens)
            assert names == [f"token-{number:04}" for number in range(2, reading.generation + 1)]
            seen.add(reading.generation)
        await gatherResults(writes)
        assert (await store.projections.reading(0)).generation == 301
        assert seen

    async def test_own_write_is_read_at_once(self) -> None:
        store = self.opened()
        for number in range(50):
            made = await store.denials.deny("node", f"n{number}", ACTOR)
            assert await store.projections.generation() == made.generation

    async def test_two_stores_on_one_file_issue_no_generation_twice(self) -> None:
        """P42."""
        stores = [self.opened(), self.opened()]
        calls = [stores[number % 2].denials.deny("node", f"n{number}", ACTOR) for number in range(200)]
        made = await gatherResults(calls)
        assert sorted(each.generation for each in made) == list(range(2, 202))


class StolenDatabaseTests(SqliteTestCase):
    async def test_no_token_and_no_secret_is_in_any_file(self) -> None:
        """P21, as far as a store can break it: what it was not given it cannot write, in table, WAL or audit."""
        store = self.opened()
        canary = b"canary-0123456789"
        sealed = SealedSecret("key-1", b"wrapped" * 8, bytes(byte ^ 0x5A for byte in canary))
        tokens = [new_token("u"), new_token("m", TokenKind.MANAGE)]
        owner = (await store.principals.create("alice", tokens, ACTOR)).value
        await store.slots.create(NewSlot("slot-1", owner.principal, "work", "openai", "lab", sealed), ACTOR)
        files = list(self.path.parent.glob(f"{self.path.name}*"))
        everything = b"".join(file.read_bytes() for file in files)
        assert sealed.box in everything
        for never in (canary, canary.hex().encode(), b"iop_"):
            assert never not in everything
