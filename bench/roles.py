"""A quickstart's home, and its roles started by hand on a core of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import SERVED, python, wait_for
from iop.cli.quickstart.home import Home
from iop.units import Role


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


@contextmanager
def started(home: Home, *roles: Role) -> Iterator[dict[Role, tuple[subprocess.Popen[str], dict[str, str]]]]:
    """Roles as ``twistd -n`` processes on the served core: each one's process and addresses."""
    twistd = str(Path(sysconfig.get_path("scripts"), "twistd"))
    running: dict[Role, tuple[subprocess.Popen[str], dict[str, str]]] = {}
    try:
        for role in roles:
            record = home.run / f"{role.value}.json"
            record.unlink(missing_ok=True)
            child = python(
                *(twistd, "-n", "--pidfile=", f"iop-{role.value}", "--config", str(home.config(role))),
                core=SERVED,
                cwd=home.root,
                stdout=subprocess.DEVNULL,
            )
            running[role] = child, json.loads(wait_for(record))["addresses"]
        yield running
    finally:
        for child, _ in reversed(running.values()):
            child.terminate()
            child.wait()


def port_of(address: str) -> int:
    """The port in ``host:port``."""
    return int(address.rpartition(":")[2])
