"""How soon a thousand Edges have followed a change of a full projection: 100,000 tokens and as many routes.

``python -m bench.projection``. The Control Plane is one process on one core: the parts of the real one on a SQLite
file, a real listener. The Edges are sessions over mutual TLS from one process on the other core (:mod:`bench.edges`).
A change is timed from before its transaction until the barrier says that every Edge acknowledged it. *untouched* is a
change of a principal that none of them may know of, so that each is sent an empty change; *a question* asks each
connection something small and waits for all answers, without store, projection or barrier: the floor.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.task import deferLater
from twisted.logger import globalLogBeginner
from twisted.protocols.tls import TLSMemoryBIOFactory

from bench import edges as played
from bench.edges import edge_name, tell
from bench.measure import DRIVING, ROUNDS, SERVED, Figures, Report, ask, python, wait_for
from bench.roles import make_home
from bench.turns import Turns
from iop.certificates import read_certificates
from iop.cli.quickstart.home import TRUST_DOMAIN, Home, Member
from iop.control_plane.config import load
from iop.control_plane.metrics import ControlPlaneMetrics
from iop.control_plane.plane import Keys, Plane, build_plane
from iop.control_plane.service import read_pinned
from iop.crypto.attestation import AttestationVerifier
from iop.crypto.issuer import Issuer
from iop.crypto.keyring import Keyring
from iop.crypto.pki import Authority, leaf_paths
from iop.interfaces import IPeer
from iop.net.clock import ReactorClock
from iop.net.peer import PeerFactory, PeerProtocol
from iop.net.tls import TlsFiles, mutual_server, peer_identity
from iop.process.harden import all_descriptors
from iop.process.logs import JsonLog
from iop.process.metrics import new_registry
from iop.store.schema import connect
from iop.store.sqlite import open_sqlite
from iop.units import Role, new_id
from iop.wire import control_pb2
from iop.wire.dialect import CONTROL

PRINCIPALS = 2_000
#: Tokens of each principal, and routes.
EACH = 50
EDGES = 1_000
#: Routes that change together.
CHANGES = (1, 10, 100)
#: Changes of a kind in one round.
TIMES = 5
#: How long everything may take to connect.
CONNECT_SECONDS = 600.0


def fill(path: Path) -> None:
    """Put principals, tokens, slots and routes into a store that nobody has open.

    The last principal is limited to an Edge that is not there. What each takes of a projection is left uncounted, as
    the store counts it when something of that principal changes.
    """
    now = time.time_ns() // 1_000_000
    principals = [(new_id(now), f"p{number}", now) for number in range(PRINCIPALS + 1)]
    ids = [principal for principal, _, _ in principals]
    slots = [(new_id(now), principal) for principal in ids]
    with closing(connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO principals (principal, name, created_ms) VALUES (?, ?, ?)", principals)
        connection.executemany(
            "INSERT INTO tokens (token, principal, kind, digest, proof, expires_ms, created_ms)"
            " VALUES (?, ?, 'use', ?, ?, 0, 1)",
            ((new_id(now), each, os.urandom(32), os.urandom(32)) for each in ids[:-1] for _ in range(EACH)),
        )
        connection.executemany(
            "INSERT INTO slots (slot, principal, name, profile, target, state, revision, credential_revision, key_id,"
            " wrapped_key, box, created_ms, updated_ms)"
            " VALUES (?, ?, 'main', 'openai', 'stand-in', 'active', 1, 1, 'none', x'00', x'00', 1, 1)",
            slots,
        )
        connection.executemany(
            "INSERT INTO routes (route, principal, model, slot, upstream_model, selector, revision, created_ms,"
            " updated_ms) VALUES (?, ?, ?, ?, 'upstream', '', 1, 1, 1)",
            (
                (new_id(now), principal, f"model-{number}", slot)
                for slot, principal in slots
                for number in range(EACH if principal != ids[-1] else 1)
            ),
        )
        connection.execute("INSERT INTO principal_edges (principal, edge) VALUES (?, 'elsewhere')", (ids[-1],))
        connection.execute("COMMIT")


def certify(home: Home) -> None:
    """A certificate for each Edge."""
    authority = Authority.load(home.pki)
    for number in range(EDGES):
        paths = leaf_paths(home.pki, Role.EDGE, edge_name(number))
        leaf = authority.issue(Role.EDGE, edge_name(number), dns=["localhost"], now_ms=time.time_ns() // 1_000_000)
        leaf.write(paths.certificate, paths.key)


# -- the Control Plane ------------------------------------------------------------------------------------------------


class Counted(PeerFactory):
    """Counts the bytes of frames that were sent and received on all of its connections."""

    sent = received = 0

    def buildProtocol(self, addr: object) -> PeerProtocol:
        """A connection that is counted."""
        return _Counted(self)


class _Counted(PeerProtocol):
    def __init__(self, factory: Counted) -> None:
        super().__init__(factory)
        self._counts = factory

    def send(self, payload: bytes) -> None:
        self._counts.sent += len(payload)
        super().send(payload)

    def dataReceived(self, data: bytes) -> None:
        self._counts.received += len(data)
        super().dataReceived(data)


class Routes:
    """The routes of the filled store, which take turns in being changed."""

    def __init__(self, plane: Plane, path: Path) -> None:
        self._plane = plane
        self._revisions: dict[str, int] = {}
        with closing(sqlite3.connect(path)) as connection:
            self._all: list[tuple[str, str]] = connection.execute(
                "SELECT principal, slot FROM slots JOIN principals USING (principal) WHERE principals.name LIKE 'p%'"
                " AND principal NOT IN (SELECT principal FROM principal_edges) AND slots.name = 'main'"
                " AND key_id = 'none'"
            ).fetchall()
            [self._unknown] = connection.execute(
                "SELECT principal, slot FROM slots JOIN principal_edges USING (principal)"
            ).fetchall()
        self._next = 0

    async def change(self, count: int) -> None:
        """Change ``count`` routes, each of another principal, at the same time, and wait for the Edges."""
        wanted = [self._all[(self._next + number) % len(self._all)] for number in range(count)]
        self._next += count
        await self._put(wanted)

    async def change_unknown(self) -> None:
        """Change a route that no Edge here may know of."""
        await self._put([self._unknown])

    async def _put(self, wanted: list[tuple[str, str]]) -> None:
        committed = await gatherResults([self._put_one(principal, slot) for principal, slot in wanted])
        barrier = await self._plane.mutations.complete(committed[-1])
        # the quickstart that made this home had an Edge too, which counts as cut off for a while
        if barrier.acknowledged != EDGES:
            raise AssertionError(f"not every Edge followed: {barrier}")

    def _put_one(self, principal: str, slot: str) -> Deferred[Any]:
        revision = self._revisions.get(principal, 1)
        self._revisions[principal] = revision + 1
        return self._plane.store.routes.put(principal, "model-0", slot, f"upstream-{revision}", "", revision, "bench")


async def question(plane: Plane) -> None:
    """Ask every Edge how it is, and wait for all answers."""

    async def ask_one(peer: IPeer) -> None:
        answer = await peer.request(control_pb2.EdgeStatusRequest(), 30.0)
        if not isinstance(answer, control_pb2.EdgeStatusResponse):
            raise AssertionError("something else was answered")

    asked = [plane.edges.link(name).ask(ask_one) for name in plane.edges.names()]
    await gatherResults([Deferred.fromCoroutine(each) for each in asked])


def peak_megabytes() -> float:
    """The most memory that this process had resident."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6


async def serve(running: Any, home: Home, folder: Path, rounds: int) -> None:
    """Be the Control Plane; what was measured is the last line that is printed."""
    clock = ReactorClock(running)
    config = load(home.config(Member(Role.CONTROL_PLANE)))
    wire, issuer = config.edge_wire, Issuer.load(config.keys.issuer)
    pinned = read_pinned(config.keys.pinned_issuers, issuer)
    verifier = AttestationVerifier(read_certificates(wire.trust), TRUST_DOMAIN, config.lease.skew_seconds)
    keys = Keys(Keyring.load(config.keys.keyring), issuer, pinned, verifier)
    store = await open_sqlite(config.store.path, config.deployment.id, running, clock.wall_ms)
    plane = build_plane(config, store, keys, clock, ControlPlaneMetrics(new_registry()))
    await store.edge_sessions.end_all(clock.wall_ms())
    turns, result = Turns(clock), dict[str, Any]()
    before, began = peak_megabytes(), clock.boot()
    await plane.edges.publisher.advance(1)
    result["first reading"] = {"ms": (clock.boot() - began) * 1000, "CP turn ms": turns.longest_ms()}
    factory = Counted(
        CONTROL, initiator=False, application=plane.edges.application, clock=clock, identify=peer_identity
    )
    creator = mutual_server(
        TlsFiles(wire.certificate, wire.key, wire.trust), trust_domain=TRUST_DOMAIN, accepts=Role.EDGE
    )
    port = await TCP4ServerEndpoint(running, 0, interface="127.0.0.1").listen(
        TLSMemoryBIOFactory(creator, False, factory)
    )
    plane.watch.start()
    turns.longest_ms()
    tell(folder / "port.json", port.getHost().port)
    first = await told(running, folder / "first.json")
    result["enrolment"] = {"ms": first["ms"], "CP turn ms": turns.longest_ms(), "Edge turn ms": first["turn"]}
    result["enrolment"]["bytes"] = factory.sent
    began = clock.boot()
    driver = psutil.Process((await told(running, folder / "all.json"))["pid"])
    result["the other enrolments"] = {"ms": (clock.boot() - began) * 1000, "CP turn ms": turns.longest_ms()}
    routes = Routes(plane, config.store.path)
    kinds: dict[str, Callable[[], Awaitable[None]]] = {
        f"{count} changed": partial(routes.change, count) for count in CHANGES
    }
    kinds["untouched"] = routes.change_unknown
    kinds["a question"] = partial(question, plane)
    result["kinds"] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, change in kinds.items():
            result["kinds"][kind].append(await measured(change, factory, driver, turns))
    result["memory"] = {"before": before, "peak": peak_megabytes(), "Edges": driver.memory_info().rss / 1e6}
    sys.stdout.write(json.dumps(result) + "\n")


async def measured(
    change: Callable[[], Awaitable[None]], factory: Counted, driver: psutil.Process, turns: Turns
) -> dict[str, float]:
    """One round of one kind: the median time of a change, and what all of them cost on average, per Edge."""
    took = []
    sent, received, cpu, edges_cpu = factory.sent, factory.received, time.process_time(), sum(driver.cpu_times()[:2])
    turns.longest_ms()
    for _ in range(TIMES):
        began = time.perf_counter()
        await change()
        took.append((time.perf_counter() - began) * 1000)
    each = EDGES * TIMES
    return {
        "ms": statistics.median(took),
        "bytes": (factory.sent - sent + factory.received - received) / each,
        "CP CPU µs": (time.process_time() - cpu) * 1e6 / each,
        "Edge CPU µs": (sum(driver.cpu_times()[:2]) - edges_cpu) * 1e6 / each,
        "CP turn ms": turns.longest_ms(),
    }


async def told(running: Any, path: Path) -> Any:
    """What a file says that the other process writes."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while (text := read_if_there(path)) is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"{path.name} was not written in {CONNECT_SECONDS:g} s")
        await deferLater(running, 0.05)
    return json.loads(text)


def read_if_there(path: Path) -> str | None:
    """The content of a file, or None as long as there is none."""
    return path.read_text() if path.exists() else None


# -- around it --------------------------------------------------------------------------------------------------------


def measure(rounds: int) -> None:
    """Fill a store, start both processes, report."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        home = make_home(folder / "home")
        fill(load(home.config(Member(Role.CONTROL_PLANE))).store.path)
        certify(home)
        driver = python("-m", "bench.projection", "--drive", made, core=DRIVING)
        try:
            result = ask("-m", "bench.projection", "--serve", made, "--rounds", str(rounds), core=SERVED)
        finally:
            driver.kill()
            driver.wait()
    title = f"{EDGES:,} Edges, {PRINCIPALS * EACH:,} tokens and routes"
    columns = ["ms", "bytes", "CP CPU µs", "Edge CPU µs", "CP turn ms", "Edge turn ms"]
    report = Report("projection", title, columns)
    for label, got in result["kinds"].items():
        report.row(label, {column: Figures([each[column] for each in got]) for column in got[0]})
    for label in ("first reading", "enrolment", "the other enrolments"):
        report.row(label, {column: Figures([value]) for column, value in result[label].items()})
    report.row("memory MB", {"ms": ", ".join(f"{what} {size:.0f}" for what, size in result["memory"].items())})
    report.finish(["Twisted", "pyOpenSSL", "protobuf", "PyNaCl"])


def main() -> None:
    """Measure, or be one of the two children."""
    parser = argparse.ArgumentParser(prog="python -m bench.projection", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder: Path | None = options.serve or options.drive
    if folder is None:
        measure(options.rounds)
        return
    role = Role.CONTROL_PLANE if options.serve else Role.EDGE
    # what a role writes is written, to nobody
    with Path(os.devnull).open("w") as nowhere:
        globalLogBeginner.beginLoggingTo([JsonLog(nowhere, role.value)], redirectStandardIO=False)
        home = Home(folder / "home")
        if options.serve:
            all_descriptors()
            played.started(lambda running: serve(running, home, folder, options.rounds))
        else:
            port = json.loads(wait_for(folder / "port.json", CONNECT_SECONDS))
            played.run(home, folder, port, EDGES)


if __name__ == "__main__":
    main()
