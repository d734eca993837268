"""Callers of an Edge who need a lease each, and owners who change routes meanwhile. A child of :mod:`bench.lease`.

The roles are the real ones, so the attempts are the Edge's own: a lease that a change made stale is asked for again
until the request's deadline. Every caller has a model of its own, and the Edge keeps one lease, so that none finds one.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import ssl
import statistics
import time
from contextlib import closing
from dataclasses import astuple, dataclass, field
from itertools import cycle
from typing import Any

from bench.measure import WARM_SECONDS
from iop.cli.quickstart.home import Home, Member
from iop.control_plane.config import load
from iop.crypto.tokens import mint
from iop.records import TokenKind
from iop.store.schema import connect
from iop.units import REQUEST_DEADLINE_SECONDS, Role, new_id

CALLERS = 64
#: Changes a second, and who makes them in turn: each of them less than the one a second that a principal may.
CHANGES_PER_SECOND = 20
OWNERS = 25
SECONDS = 5.0
OWNED = "owned"


def model_of(caller: int) -> str:
    """What a caller asks for, and nobody else does."""
    return f"model-{caller}"


def prepare(home: Home) -> None:
    """Give the home's principal a route for each caller, make the owners, have the Edge keep one lease and run all.

    Written into the store while nobody has it open. The owners' tokens go to ``owners.json``.
    """
    config = home.config(Member(Role.EDGE))
    text, found = re.subn(r"(?m)^capacity = \d+$", f"capacity = {CALLERS}", config.read_text())
    if found != 1:
        raise AssertionError("the home's Edge has one provider")
    config.write_text(text + "\n[limits]\nlease_cache_entries = 1\n")
    owners = [(new_id(), new_id(), mint(TokenKind.MANAGE)) for _ in range(OWNERS)]
    with closing(connect(load(home.config(Member(Role.CONTROL_PLANE))).store.path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO routes SELECT ?, principal, ?, slot, upstream_model, selector, 1, created_ms, updated_ms"
            " FROM routes WHERE model NOT LIKE 'model-%'",
            [(new_id(), model_of(caller)) for caller in range(CALLERS)],
        )
        for number, (principal, slot, token) in enumerate(owners):
            record = token.record
            connection.execute("INSERT INTO principals VALUES (?, ?, 1, 0)", (principal, f"owner-{number}"))
            connection.execute(
                "INSERT INTO tokens VALUES (?, ?, 'manage', ?, ?, 0, 1)",
                (record.token_id, principal, record.digest, record.proof),
            )
            connection.execute(
                "INSERT INTO slots"
                " VALUES (?, ?, 'main', 'openai', 'stand-in', 'active', 1, 1, 'none', x'00', x'00', 1, 1)",
                (slot, principal),
            )
            connection.execute(
                "INSERT INTO routes VALUES (?, ?, ?, ?, 'upstream', '', 1, 1, 1)", (new_id(), principal, OWNED, slot)
            )
        # the Edge has a receipt of the generation that was
        connection.execute("UPDATE generation SET value = value + 1")
        connection.execute("INSERT INTO changes (generation, principal) SELECT value, '' FROM generation")
        connection.execute("COMMIT")
    (home.root / "owners.json").touch(0o600)
    tell_owners(home, [Owner(token.text.reveal().decode(), slot) for _, slot, token in owners])


@dataclass
class Owner:
    """Who changes one route, and its revision."""

    token: str
    slot: str
    revision: int = 1


def tell_owners(home: Home, owners: list[Owner]) -> None:
    """Leave the owners for the next child."""
    (home.root / "owners.json").write_text(json.dumps([astuple(owner) for owner in owners]))


def told_owners(home: Home) -> list[Owner]:
    """The owners as they were left."""
    return [Owner(*each) for each in json.loads((home.root / "owners.json").read_text())]


# -- the child --------------------------------------------------------------------------------------------------------


class Connection:
    """One that is kept, for one request at a time."""

    def __init__(self, address: str, context: ssl.SSLContext, token: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self._context = context
        self._token = token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: object, *headers: str) -> int:
        """The status of the answer, which is read to its end."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._context, server_hostname="localhost"
            )
        reader, writer = self._streams
        data = json.dumps(body).encode()
        lines = (
            f"{method} {path} HTTP/1.1",
            "host: localhost",
            f"authorization: Bearer {self._token}",
            "content-type: application/json",
            f"content-length: {len(data)}",
            *headers,
        )
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if length := re.search(rb"\r\ncontent-length: (\d+)", head):
            await reader.readexactly(int(length[1]))
        else:
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        return int(head.split()[1])

    def close(self) -> None:
        """Let go of it."""
        if self._streams is not None:
            self._streams[1].transport.abort()


@dataclass
class Seen:
    """What the callers and the owners saw, those that began in the warm-up not counted."""

    begin: float
    took: list[float] = field(default_factory=list)
    failed: int = 0
    changed: list[float] = field(default_factory=list)


async def call(connection: Connection, model: str, seen: Seen, until: float) -> None:
    """One caller: one request after the other."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    while (began := time.perf_counter()) < until:
        status = await connection.ask("POST", "/v1/chat/completions", body)
        took = time.perf_counter() - began
        if began < seen.begin:
            continue
        if status == 200 and took <= REQUEST_DEADLINE_SECONDS:
            seen.took.append(took)
        else:
            seen.failed += 1
    connection.close()


async def own(owners: list[tuple[Owner, Connection]], per_second: int, seen: Seen, until: float) -> None:
    """The owners in turn: so many changes a second, each begun when it is due."""
    due, begun = time.perf_counter(), set[asyncio.Task[None]]()

    async def change(owner: Owner, connection: Connection) -> None:
        began = time.perf_counter()
        wanted = {"slot": owner.slot, "upstream_model": f"upstream-{owner.revision}", "selector": ""}
        status = await connection.ask("PUT", f"/v1/routes/{OWNED}", wanted, f'if-match: "{owner.revision}"')
        if status != 200:
            raise AssertionError(f"a change was answered with {status}")
        owner.revision += 1
        if began >= seen.begin:
            seen.changed.append(time.perf_counter() - began)

    for owner, connection in cycle(owners if per_second else ()):
        await asyncio.sleep(due - time.perf_counter())
        if due >= until:
            break
        begun.add(asyncio.create_task(change(owner, connection)))
        due += 1 / per_second
    await asyncio.gather(*begun)
    for _, connection in owners:
        connection.close()


def metrics(address: str) -> dict[str, float]:
    """What a role counts."""
    connection = http.client.HTTPConnection(address, timeout=10)
    with closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
    }


def drive(home: Home, addresses: dict[str, str], changes: int) -> dict[str, Any]:
    """Call for a while, with ``changes`` changes a second; ``addresses`` are the listeners by name."""
    context = ssl.create_default_context(cafile=home.ca)
    token = (home.root / "use.token").read_text().strip()
    owners = told_owners(home)
    owning = [(owner, Connection(addresses["credential_https"], context, owner.token)) for owner in owners]
    before = metrics(addresses["status"])
    begin = time.perf_counter() + WARM_SECONDS
    seen, until = Seen(begin), begin + SECONDS

    async def all_of_them() -> None:
        callers = (
            call(Connection(addresses["api"], context, token), model_of(number), seen, until)
            for number in range(CALLERS)
        )
        await asyncio.gather(own(owning, changes, seen, until), *callers)

    asyncio.run(all_of_them())
    tell_owners(home, owners)
    after = metrics(addresses["status"])
    counted = {name: after[name] - before.get(name, 0.0) for name in after}
    cuts = statistics.quantiles(seen.took, n=100)
    requests = counted["iop_edge_call_seconds_count"]
    return {
        "requests/s": len(seen.took) / SECONDS,
        "% in time": 100 * len(seen.took) / (len(seen.took) + seen.failed),
        "p50 µs": cuts[49] * 1e6,
        "p99 µs": cuts[98] * 1e6,
        "leases per request": counted['iop_edge_leases_total{from="control_plane"}'] / requests,
        "attempts per request": counted["iop_edge_attempts_total"] / requests,
        "changes/s": len(seen.changed) / SECONDS,
        **({"change p50 µs": statistics.median(seen.changed) * 1e6} if changes else {}),
    }
