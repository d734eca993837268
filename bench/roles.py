"""A quickstart's home, and its roles started by hand on a core of their own."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bench.measure import DRIVING, SERVED, python, wait_for
from iop.cli.quickstart.home import Home, Member
from iop.process.record import record_path
from iop.units import Role

#: In the order in which they find each other soonest.
ROLES = (Role.CONTROL_PLANE, Role.EDGE, Role.NODE)


def make_home(folder: Path, *arguments: str) -> Home:
    """Store, keys, certificates, configurations, one principal with a slot and a route."""
    iop("quickstart", "--once", "--json", "--home", str(folder), *arguments)
    return Home(folder)


def iop(*arguments: str) -> Any:
    """An ``iop`` command; what it prints as JSON."""
    ended = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "iop", *arguments], check=True, capture_output=True, text=True
    )
    return json.loads(ended.stdout.splitlines()[0])


def start(home: Home, role: Role, stdout: int | IO[str]) -> subprocess.Popen[str]:
    """A role as a ``twistd -n`` process on the served core."""
    record_path(home.run, role).unlink(missing_ok=True)
    twistd = str(Path(sysconfig.get_path("scripts"), "twistd"))
    command = (twistd, "-n", "--pidfile=", f"iop-{role.value}", "--config", str(home.config(Member(role))))
    return python(*command, core=SERVED, cwd=home.root, stdout=stdout)


def addresses_of(home: Home, role: Role) -> dict[str, str]:
    """Where a role that was started listens, by name, as soon as it does."""
    addresses: dict[str, str] = json.loads(wait_for(record_path(home.run, role)))["addresses"]
    return addresses


@contextmanager
def started(home: Home, *roles: Role) -> Iterator[dict[Role, tuple[subprocess.Popen[str], dict[str, str]]]]:
    """Roles that are started at once: each one's process and addresses."""
    children: dict[Role, subprocess.Popen[str]] = {}
    try:
        for role in roles:
            children[role] = start(home, role, subprocess.DEVNULL)
        yield {role: (child, addresses_of(home, role)) for role, child in children.items()}
    finally:
        for child in reversed(children.values()):
            child.terminate()
            child.wait()


def until_ready(status: str, seconds: float = 60.0) -> None:
    """Wait until the role with this status listener says that it can serve."""
    deadline = time.monotonic() + seconds
    while not _is_ready(status):
        if time.monotonic() > deadline:
            raise SystemExit(f"the role whose status is at {status} was not ready in {seconds:g} s")
        time.sleep(0.1)


def _is_ready(status: str) -> bool:
    connection = http.client.HTTPConnection(status, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def port_of(address: str) -> int:
    """The port in ``host:port``."""
    return int(address.rpartition(":")[2])


class Deployment:
    """A quickstart's home with its three roles and its stand-in provider, each a process that can be killed.

    :param folder: where the home is made.
    """

    def __init__(self, folder: Path) -> None:
        self.home = make_home(folder)
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._addresses: dict[str, dict[str, str]] = {}
        self._texts: dict[str, str] = {}

    def __enter__(self) -> Deployment:
        try:
            self._start_provider()
            for role in ROLES:
                self._start(role)
            self.wait_until_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def _end(self) -> None:
        for child in reversed(self._children.values()):
            child.terminate()
            child.wait()

    def text(self, name: str) -> str:
        """The content of a file of the home, read once."""
        if name not in self._texts:
            self._texts[name] = (self.home.root / name).read_text().strip()
        return self._texts[name]

    def address(self, role: str, listener: str) -> str:
        """Where a role listens. The ports of a home stay the same."""
        return self._addresses[role][listener]

    def kill_and_restart(self, role: Role) -> None:
        """SIGKILL, then a new process at once."""
        child = self._children[role.value]
        child.kill()
        child.wait()
        self._start(role)

    def pid(self, role: Role) -> int:
        """A role's process."""
        return self._children[role.value].pid

    def stop(self, role: Role) -> None:
        """SIGTERM, and no new process."""
        child = self._children.pop(role.value)
        child.terminate()
        child.wait()

    def wait_until_ready(self) -> None:
        """Until every role says that it can serve."""
        for role in ROLES:
            until_ready(self.address(role.value, "status"))

    def _start(self, role: Role) -> None:
        with (self.home.root / f"{role.value}.bench.log").open("a") as log:
            self._children[role.value] = start(self.home, role, log)
        self._addresses[role.value] = addresses_of(self.home, role)

    def _start_provider(self) -> None:
        port = next(
            line.rpartition(":")[2].partition("/")[0]
            for line in self.home.config(Member(Role.NODE)).read_text().splitlines()
            if line.startswith("base_url")
        )
        root = self.home.root
        files = ("--secret-file", str(root / "provider.key"), "--port-file", str(root / "provider.bench.port"))
        arguments = ("--port", port, *files)
        self._children["provider"] = python(
            "-m", "iop.testing.provider", *arguments, core=DRIVING, cwd=self.home.root, stdout=subprocess.DEVNULL
        )
