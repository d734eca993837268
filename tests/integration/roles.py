"""The three roles of a quickstart's home as processes of their own, with a provider that answers when it is told to."""

from __future__ import annotations

import http.client
import json
import os
import resource
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from iop.cli.quickstart.home import Home, Member
from iop.units import Role

SECONDS = 60.0
#: A model whose answer is begun at once and ends when the provider is told to.
HELD = "stand-in/slow-stream"
CHAT = "/v1/chat/completions"
ROLES = (Role.CONTROL_PLANE, Role.EDGE, Role.NODE)


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Wait for something that comes in a moment."""
    deadline = monotonic() + SECONDS
    while not holds():
        if monotonic() > deadline:
            raise AssertionError(f"it never came to that: {what}")
        sleep(0.02)


class Provider:
    """Answers every call; one for :data:`HELD` in two pieces, the second once :attr:`go_on` is set."""

    def __init__(self, port: int) -> None:
        self.go_on = go_on = Event()

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                model = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["model"]
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"5\r\nfirst\r\n")
                if model == HELD:
                    go_on.wait(SECONDS)
                self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")

            def log_message(self, format: str, *arguments: object) -> None:
                """Nothing: trial's terminal is not for it."""

            def handle(self) -> None:
                try:
                    super().handle()
                except ConnectionError:
                    # the Node is gone, which is what a test of ends is about
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Answer)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        """Listen no more, and let what is held end."""
        self.go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class RoleChild:
    """The process of one member of a role.

    :param output: a file for its stdout; without one its lines are read into :attr:`lines`.
    """

    def __init__(self, home: Home, member: Member, output: int = PIPE) -> None:
        role, record = member.role, home.record(member)
        record.unlink(missing_ok=True)
        twistd = str(Path(sysconfig.get_path("scripts"), "twistd"))
        self.lines: list[str] = []
        self.process = Popen(  # noqa: S603 - our own interpreter
            [
                sys.executable,
                twistd,
                "-n",
                "--pidfile=",
                f"iop-{role.value}",
                "--config",
                str(home.config(member)),
            ],
            cwd=home.root,
            stdout=output,
            stderr=PIPE,
            text=True,
        )
        self._reader = Thread(target=self._read)
        self._reader.start()
        wait_until(lambda: record.exists() or self.process.poll() is not None, f"{member.name} starts")
        if not record.exists():
            raise AssertionError(f"{member.name} did not start: {self.ended()}")
        self.addresses: dict[str, str] = json.loads(record.read_bytes())["addresses"]

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it logged under this name so far."""
        return [event for event in map(json.loads, list(self.lines)) if event["event"] == name]

    def wait_for(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until it logged so many events of this name."""
        wait_until(lambda: len(self.events(name)) >= count, name)
        return self.events(name)

    def failures(self) -> list[dict[str, Any]]:
        """Everything it logged with a traceback."""
        return [event for event in map(json.loads, list(self.lines)) if "failure" in event]

    def get(self, path: str) -> tuple[int, str]:
        """A page on its status listener."""
        connection = http.client.HTTPConnection(self.addresses["status"], timeout=SECONDS)
        connection.request("GET", path)
        with connection.getresponse() as response:
            answer = response.status, response.read().decode()
        connection.close()
        return answer

    def is_ready(self) -> bool:
        """Whether it says that it can serve."""
        return self.get("/readyz")[0] == 200

    def metric(self, series: str) -> float:
        """The value of one series, as it stands on its page."""
        return next(
            float(line.rpartition(" ")[2])
            for line in self.get("/metrics")[1].splitlines()
            if line.startswith(f"{series} ")
        )

    def ended(self) -> tuple[int, str]:
        """Wait for its end: exit code and what it said on stderr."""
        self.process.wait(SECONDS)
        self._reader.join()
        assert self.process.stderr is not None
        return self.process.returncode, self.process.stderr.read()

    def end(self) -> None:
        """Kill it if it runs, and let go of its pipes."""
        self.process.kill()
        self.ended()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    # -- what the machine allows it -----------------------------------------------------------------------------------

    def limit(self, which: int, soft: int) -> None:
        """Change a soft limit of the running process; a negative one is as high as it may be."""
        _, hard = resource.prlimit(self.pid, which)
        resource.prlimit(self.pid, which, (hard if soft < 0 else soft, hard))

    def leave_descriptors(self, count: int) -> int:
        """Allow it to open so many more descriptors; answers the limit that this takes."""
        used = {int(name) for name in os.listdir(f"/proc/{self.pid}/fd")}
        limit = 0
        while count or limit in used:
            count -= limit not in used
            limit += 1
        self.limit(resource.RLIMIT_NOFILE, limit)
        return limit


class Deployment:
    """A home, its provider, and its roles.

    :param folder: where the home is made.
    """

    def __init__(self, folder: Path) -> None:
        subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "iop", "quickstart", "--once", "--json", "--home", str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.home = Home(folder)
        self._context = ssl.create_default_context(cafile=str(self.home.ca))
        ports = json.loads((self.home.root / "quickstart.json").read_bytes())["ports"]
        self.provider = Provider(ports["provider"])
        self.roles: dict[Role, RoleChild] = {}

    def start(self, *roles: Role, output: int = PIPE) -> None:
        """Start roles; :meth:`ready` waits for them."""
        for role in roles:
            self.roles[role] = RoleChild(self.home, Member(role), output)

    def ready(self) -> None:
        """Wait until every role serves."""
        for role, child in self.roles.items():
            wait_until(child.is_ready, f"{role.value} is ready")

    def stop(self) -> None:
        """Leave no process."""
        self.provider.close()
        for child in self.roles.values():
            child.end()

    @property
    def control_plane(self) -> RoleChild:
        return self.roles[Role.CONTROL_PLANE]

    @property
    def edge(self) -> RoleChild:
        return self.roles[Role.EDGE]

    @property
    def node(self) -> RoleChild:
        return self.roles[Role.NODE]

    # -- callers ------------------------------------------------------------------------------------------------------

    def connect(self, role: Role = Role.EDGE) -> http.client.HTTPSConnection:
        """A connection that is made with the first call: to the model API, or to the credential API."""
        listener = "credential_https" if role is Role.CONTROL_PLANE else "api"
        return http.client.HTTPSConnection(self.roles[role].addresses[listener], timeout=SECONDS, context=self._context)

    def begin(
        self, connection: http.client.HTTPSConnection, model: str = "stand-in", headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Ask a model; the answer has its head."""
        sent = {**self._headers("use.token"), **(headers or {})}
        connection.request("POST", CHAT, json.dumps({"model": model}), sent)
        return connection.getresponse()

    def ask(self, connection: http.client.HTTPSConnection | None = None) -> tuple[int, str]:
        """Status of one whole request, and the code of its refusal."""
        used = connection or self.connect()
        with self.begin(used) as response:
            body = response.read()
        if connection is None:
            used.close()
        return response.status, "" if response.status == 200 else json.loads(body)["error"]["code"]

    def call(
        self,
        method: str,
        path: str,
        body: dict[str, str] | None = None,
        connection: http.client.HTTPSConnection | None = None,
        expects: tuple[str, str] = ("Accept", "*/*"),
    ) -> tuple[int, dict[str, Any]]:
        """A call of the credential API; ``expects`` is a header field that says what is to be changed."""
        used = connection or self.connect(Role.CONTROL_PLANE)
        headers = self._headers("manage.token") | dict([expects])
        used.request(method, path, None if body is None else json.dumps(body), headers)
        with used.getresponse() as response:
            document = json.loads(response.read())
        if connection is None:
            used.close()
        assert isinstance(document, dict)
        return response.status, document

    def put_route(self, model: str = "stand-in") -> tuple[int, dict[str, Any]]:
        """Make the route of a model, or the same once more: a change that every Edge has to follow."""
        routes = self.call("GET", "/v1/routes")[1]["routes"]
        known = {route["model"]: route for route in routes}
        body = {"slot": routes[0]["slot"], "upstream_model": model, "selector": ""}
        expects = ("If-Match", f'"{known[model]["revision"]}"') if model in known else ("If-None-Match", "*")
        return self.call("PUT", f"/v1/routes/{model.replace('/', '%2F')}", body, expects=expects)

    def _headers(self, token: str) -> dict[str, str]:
        text = (self.home.root / token).read_text().strip()
        return {"Authorization": f"Bearer {text}", "Content-Type": "application/json"}
