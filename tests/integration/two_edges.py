"""A Control Plane, two Edges with a Node each, a provider that writes down secrets, and principals with a slot each."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

from iop.cli.quickstart.configs import STAND_IN_TARGET, write_configs
from iop.cli.quickstart.home import Home, Member
from iop.crypto.pki import Authority
from iop.files import write_atomic, write_private
from iop.units import Role
from tests.integration.callers import Outcome, ask
from tests.integration.roles import ROLES, SECONDS, RoleChild, wait_until

ROOT = Path(__file__).resolve().parents[2]
PLANE = Member(Role.CONTROL_PLANE)
EDGES = (1, 2)


class Received(NamedTuple):
    """A request as the provider got it."""

    #: Nanoseconds of the wall clock.
    at: int
    #: The number of the Edge whose Node sent it.
    edge: int
    secret: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a mutation answered, and when: nanoseconds of the wall clock."""

    sent: int
    returned: int
    document: dict[str, Any]

    @property
    def milliseconds(self) -> float:
        return (self.returned - self.sent) / 1e6

    @property
    def edges(self) -> dict[str, int]:
        """How many followed it, were cut off, are not known."""
        edges: dict[str, int] = self.document["edges"]
        return edges

    @property
    def effective_by(self) -> int:
        """Nanoseconds of the wall clock."""
        return int(datetime.fromisoformat(self.document["effective_by"]).timestamp() * 1e9)


class Owner:
    """A principal with one slot and one route, ``m``, to it."""

    def __init__(self, number: int, deployment: TwoEdges, tokens: dict[str, Any]) -> None:
        self.number = number
        self.name = f"p{number}"
        self.use_token: str = tokens["use_token"]
        self._manage_token: str = tokens["manage_token"]
        self._deployment = deployment
        self._made = 0
        self._route_revision = 0

    @property
    def secret(self) -> str:
        """What is in the slot now."""
        return f"sk-{self.said}"

    @property
    def said(self) -> str:
        """What the provider answers to it."""
        return f"{self.name}-{self._made}"

    def create(self) -> list[Change]:
        """A new slot with a new secret, and the route to it."""
        self._made += 1
        path = f"/v1/slots?name=slot-{self._made}&profile=openai&target={STAND_IN_TARGET}"
        slot = self._call("POST", path, self.secret.encode(), {"Content-Type": "application/octet-stream"})
        self._slot, self._slot_revision = slot.document["slot"], slot.document["revision"]
        wanted = json.dumps({"slot": self._slot, "upstream_model": "stand-in", "selector": ""}).encode()
        known = self._route_revision
        expected = {"If-Match": f'"{known}"'} if known else {"If-None-Match": "*"}
        route = self._call("PUT", "/v1/routes/m", wanted, {"Content-Type": "application/json"} | expected)
        self._route_revision = route.document["revision"]
        return [slot, route]

    def revoke(self) -> Change:
        """End what is in the slot."""
        return self._call("POST", f"/v1/slots/{self._slot}/revoke", None, {"If-Match": f'"{self._slot_revision}"'})

    def _call(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Change:
        connection = self._deployment.connect(self._deployment.plane.addresses["credential_https"])
        connection.connect()
        sent = time.time_ns()
        connection.request(method, path, body, {"Authorization": f"Bearer {self._manage_token}"} | headers)
        with connection.getresponse() as response:
            text = response.read()
            returned = time.time_ns()
        connection.close()
        assert response.status in (200, 201), f"{method} {path}: {response.status} {text.decode()}"
        return Change(sent, returned, json.loads(text))


class Callers:
    """Processes of callers, one for each Edge."""

    def __init__(self, deployment: TwoEdges, hot: int, others: int) -> None:
        counts = (str(hot // len(EDGES)), str(others // len(EDGES)))
        tokens = deployment.home.root / "use.tokens"
        write_private(tokens, "\n".join(owner.use_token for owner in deployment.owners).encode())
        self._outcomes: list[Outcome] | None = None
        self._children = [
            _child("callers", edge.addresses["api"], str(deployment.home.ca), str(tokens), *counts)
            for edge in deployment.edges.values()
        ]

    def choose(self, owner: Owner) -> None:
        """Let the hot callers use the token of ``owner`` from now on; the first choice lets everybody begin."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(f"{owner.number}\n")
            child.stdin.flush()

    def finish(self) -> list[Outcome]:
        """Let everybody end; what came of each request."""
        with ThreadPoolExecutor() as threads:
            texts = list(threads.map(lambda child: child.communicate(timeout=SECONDS)[0], self._children))
        return [Outcome(*json.loads(line)) for text in texts for line in text.splitlines()]

    def kill(self) -> None:
        """Leave no process."""
        for child in self._children:
            _kill(child)


class TwoEdges:
    """All of it, running.

    :param folder: where its home is made.
    :param principals: how many; principal N is ``pN``.
    :param ttl_seconds: how long leases live.
    """

    def __init__(self, folder: Path, principals: int, ttl_seconds: int) -> None:
        self.home = Home(folder)
        self.edges: dict[int, RoleChild] = {}
        self._others: list[RoleChild] = []
        self._record = self.home.root / "received"
        self._received: list[Received] = []
        #: How much of the record that is.
        self._read = 0
        self._make(ttl_seconds)
        port_file = self.home.root / "recorder.port"
        self._provider = _child("recorder", str(port_file), str(self._record))
        try:
            wait_until(port_file.exists, "the provider listens")
            self._start(principals, port_file.read_text())
        except BaseException:
            self.stop()
            raise

    def _make(self, ttl_seconds: int) -> None:
        """The home of a quickstart, and certificates of a second Edge and its Node."""
        with self.home.held():
            settings = self.home.settings()
            self.home.keep(settings)
            self.home.make_certificates(2)
            self.home.make_keys()
            self.home.make_store(settings.deployment)
            write_configs(self.home, settings)
        second = Member(Role.EDGE, 2)
        leaf = Authority.load(self.home.pki).issue(
            Role.EDGE,
            second.name,
            dns=["localhost"],
            addresses=[ip_address("127.0.0.1")],
            now_ms=time.time_ns() // 1_000_000,
        )
        paths = self.home.certificate(second)
        leaf.write(paths.certificate, paths.key)
        with self.home.config(PLANE).open("a") as config:
            config.write(f"\n[lease]\nttl_seconds = {ttl_seconds}\nskew_seconds = 1\n")

    def _start(self, principals: int, provider_port: str) -> None:
        with ThreadPoolExecutor(2) as threads:
            # before anything runs that they would have to reach
            made = list(threads.map(lambda number: self.iop("principal", "create", f"p{number}"), range(principals)))
        texts = {role: self.home.config(Member(role)).read_text() for role in ROLES}
        self.plane = self._begin(PLANE, texts[Role.CONTROL_PLANE])
        self._others.append(self.plane)
        for number in EDGES:
            edge = self._begin(Member(Role.EDGE, number), texts[Role.EDGE], self.plane.addresses["edge_wire"])
            self.edges[number] = edge
            base_url = f'base_url = "http://127.0.0.1:{provider_port}/edge-{number}/v1"'
            text = re.sub(r"base_url = .*", base_url, texts[Role.NODE])
            self._others.append(self._begin(Member(Role.NODE, number), text, edge.addresses["node_wire"]))
        for child in (*self.edges.values(), *self._others):
            wait_until(child.is_ready, "every role is ready")
        self.owners = [Owner(number, self, tokens) for number, tokens in enumerate(made)]
        for owner in self.owners:
            owner.create()

    def _begin(self, member: Member, text: str, dialled: str = "") -> RoleChild:
        """Start a member with the configuration of the first one of its role, but with names and ports of its own."""
        for role in (Role.EDGE, Role.NODE):
            text = text.replace(Member(role).name, Member(role, member.number).name)
        text = re.sub(r"tcp:host=127.0.0.1:port=\d+", f"tcp:host=127.0.0.1:port={dialled.rpartition(':')[2]}", text)
        text = re.sub(r"tcp:port=\d+", "tcp:port=0", text)
        run, state = self.home.record(member).parent, self.home.root / f"edge-state-{member.number}"
        for name, folder in (("run", run), ("edge-state", state)):
            folder.mkdir(mode=0o700, exist_ok=True)
            text = text.replace(f'directory = "{name}"', f'directory = "{folder}"')
        write_atomic(self.home.config(member), text.encode(), 0o644)
        return RoleChild(self.home, member)

    def stop(self) -> None:
        """Leave no process."""
        for child in (*self.edges.values(), *self._others):
            child.end()
        _kill(self._provider)

    @contextmanager
    def calling(self, hot: int, others: int) -> Iterator[Callers]:
        """Callers through both Edges: ``hot`` that use one principal's token, ``others`` that use any."""
        callers = Callers(self, hot, others)
        try:
            yield callers
        finally:
            callers.kill()

    def connect(self, address: str) -> http.client.HTTPSConnection:
        """A connection that is made with the first call."""
        context = ssl.create_default_context(cafile=str(self.home.ca))
        return http.client.HTTPSConnection(address, timeout=SECONDS, context=context)

    def ask(self, owner: Owner, edge: int) -> Outcome:
        """One request through one Edge."""
        connection = self.connect(self.edges[edge].addresses["api"])
        outcome = ask(connection, owner.number, owner.use_token)
        connection.close()
        return outcome

    def received(self) -> list[Received]:
        """What the provider got so far."""
        with self._record.open("rb") as record:
            record.seek(self._read)
            whole, newline, _ = record.read().rpartition(b"\n")
        self._read += len(whole + newline)
        for line in whole.decode().splitlines():
            at, path, secret = line.split()
            self._received.append(Received(int(at), int(path.removeprefix("/edge-").partition("/")[0]), secret))
        return self._received

    def wait_for_use(self, secret: str) -> None:
        """Wait until the provider got a secret through both Edges, from now on."""
        before = len(self.received())
        wait_until(
            lambda: {each.edge for each in self.received()[before:] if each.secret == secret} == set(EDGES),
            f"{secret} is used through both Edges",
        )

    def iop(self, *arguments: str) -> dict[str, Any]:
        """An ``iop`` command on the Control Plane's machine; what it says in JSON."""
        ended = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "iop", *arguments, "--config", str(self.home.config(PLANE)), "--json"],
            check=True,
            stdout=PIPE,
            text=True,
        )
        document: dict[str, Any] = json.loads(ended.stdout)
        return document


def _child(module: str, *arguments: str) -> Popen[str]:
    return Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", f"tests.integration.{module}", *arguments], cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True
    )


def _kill(child: Popen[str]) -> None:
    child.kill()
    child.communicate()
