"""The whole gateway: HTTPS in, HTTP out, all roles on one core; wrk and nginx on the other.

``python -m bench.gateway``. Needs Debian's ``wrk`` and ``nginx-light``. Direct is wrk to nginx over the same TLS and
the same path, so what is measured is what three roles add. With cached leases every request uses the same sealed lease.
Uncached, two models take turns in a cache of one entry, so that every request gets a lease of its own. Streams come
from :mod:`bench.streams`: how many events a second pass when there are more than enough, and how long the first event
of a single quiet one takes. A cold start is all three roles' processes started at once until the first answer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.measure import DRIVING, ROUNDS, Figures, Report, ask, python, wait_for
from bench.roles import iop, make_home, port_of, started, until_ready
from iop.cli.quickstart.home import Home, Member
from iop.testing.pki import Pki
from iop.units import Role

CONNECTIONS = (1, 16, 64)
WRK_SECONDS = 4
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 200}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
)
NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{plain};
        listen 127.0.0.1:{tls} ssl;
        ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key; ssl_protocols TLSv1.3;
        location = /v1/chat/completions {{ default_type application/json; return 200 '{answer}'; }}
    }}
}}
"""
LUA = """
local models = {{ {models} }}
local turn = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {token}"
request = function()
  turn = turn % #models + 1
  local body = '{{"model": "' .. models[turn] .. '", "messages": [{{"role": "user", "content": "hello"}}]}}'
  return wrk.format(nil, nil, nil, body)
end
done = function(summary, latency)
  local errors = summary.errors.status + summary.errors.read + summary.errors.timeout
  io.write(string.format("RESULT %f %f %f %d\\n", summary.requests / summary.duration * 1e6,
    latency:percentile(50), latency:percentile(99), errors))
end
"""


def free_port() -> int:
    """A port nobody listens on at this moment; nginx cannot be told to choose one."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


@contextmanager
def nginx(folder: Path) -> Iterator[tuple[int, int]]:
    """The upstream: the same answer at once, on a plain and a TLS port."""
    plain, tls = free_port(), free_port()
    issued = Pki(folder / "nginx-pki").issue(Role.EDGE, "nginx")
    shutil.copy(issued.certificate, folder / "server.pem")
    shutil.copy(issued.key, folder / "server.key")
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, plain=plain, tls=tls, answer=ANSWER))
    child = subprocess.Popen(  # noqa: S603 - what Debian installed
        [shutil.which("nginx") or "/usr/sbin/nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")],
        preexec_fn=lambda: os.sched_setaffinity(0, {DRIVING}),  # noqa: PLW1509 - no threads here
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(0.5)
        yield plain, tls
    finally:
        child.terminate()
        child.wait()


def wrk(url: str, script: Path, connections: int) -> dict[str, float]:
    """Requests per second, median and 99th percentile in microseconds. Any error ends the bench."""
    ended = subprocess.run(  # noqa: S603 - what Debian installed
        [shutil.which("wrk") or "wrk", "-t1", f"-c{connections}", f"-d{WRK_SECONDS}s", "-s", str(script), url],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {DRIVING}),
    )
    found = re.search(r"RESULT (\S+) (\S+) (\S+) (\d+)", ended.stdout)
    if found is None or int(found[4]):
        raise SystemExit(f"wrk saw errors:\n{ended.stdout}")
    return {"requests/s": float(found[1]), "p50 µs": float(found[2]), "p99 µs": float(found[3])}


def rss_megabytes(roles: dict[Role, tuple[Any, Any]]) -> dict[str, float]:
    """Resident memory of each role."""
    return {role.value: psutil.Process(child.pid).memory_info().rss / 1e6 for role, (child, _) in roles.items()}


def write_script(path: Path, token: str, models: list[str]) -> Path:
    """What wrk asks for."""
    path.write_text(LUA.format(token=token, models=", ".join(f'"{model}"' for model in models)))
    return path


def prepared(folder: Path, port: int) -> Home:
    """A home whose only upstream is on ``port``, with two models of one slot."""
    folder.mkdir()
    key = folder / "provider.key"
    key.touch(0o600)
    key.write_text("sk-bench")
    upstream = ("--upstream", f"http://127.0.0.1:{port}/v1", "--secret-file", str(key), "--model", "m1")
    home = make_home(folder / "home", *upstream)
    with started(home, Role.CONTROL_PLANE) as roles:
        address = roles[Role.CONTROL_PLANE][1]["credential_https"].replace("127.0.0.1", "localhost")
        there = ("--url", f"https://{address}", "--ca", str(home.ca), "--token-file", str(home.root / "manage.token"))
        (slot,) = iop("slot", "list", "--json", *there)["slots"]
        iop("route", "set", "m2", "--slot", slot["slot"], "--upstream-model", "m1", "--json", *there)
    return home


class Gathered:
    """What the rounds showed."""

    def __init__(self) -> None:
        self._figures: dict[str, dict[str, Figures]] = {}
        self.memory: dict[str, dict[str, float]] = {}

    def keep(self, label: str, got: Mapping[str, float]) -> None:
        """One round's figures of one row."""
        kept = self._figures.setdefault(label, {column: Figures() for column in got})
        for column, value in got.items():
            kept[column].values.append(value)

    def report(self) -> None:
        """Print and write."""
        columns = ["requests/s", "chunks/s", "p50 µs", "p99 µs"]
        report = Report("gateway", "Chat completions, all roles on one core", columns)
        for label, got in self._figures.items():
            report.row(label, dict(got))
        for moment, sizes in self.memory.items():
            text = ", ".join(f"{role} {size:.0f}" for role, size in sizes.items())
            report.row(f"RSS MB, {moment}", {"requests/s": text})
        report.finish(["Twisted", "pyOpenSSL", "httptools", "PyNaCl", "protobuf"])


def measure_requests(home: Home, folder: Path, direct: int, rounds: int, gathered: Gathered) -> None:
    """Whole answers: direct, cached and uncached, in turn."""
    token = (home.root / "use.token").read_text().strip()
    one = write_script(folder / "one.lua", token, ["m1"])
    two = write_script(folder / "two.lua", token, ["m1", "m2"])
    plain_config = home.config(Member(Role.EDGE)).read_text()
    for _ in range(rounds):
        for connections in CONNECTIONS:
            url = f"https://127.0.0.1:{direct}/v1/chat/completions"
            gathered.keep(f"direct, {connections} connections", wrk(url, one, connections))
        for label, script, entries in (("cached", one, 1000), ("uncached", two, 1)):
            limits = f"\n[limits]\nlease_cache_entries = {entries}\n"
            home.config(Member(Role.EDGE)).write_text(plain_config + limits)
            with started(home, Role.CONTROL_PLANE, Role.EDGE, Role.NODE) as roles:
                url = f"https://{roles[Role.EDGE][1]['api']}/v1/chat/completions"
                for _, addresses in roles.values():
                    until_ready(addresses["status"])
                gathered.memory["idle"] = rss_megabytes(roles)
                for connections in CONNECTIONS:
                    gathered.keep(f"{label}, {connections} connections", wrk(url, script, connections))
                gathered.memory[f"after {label}"] = rss_megabytes(roles)


def measure_streams(home: Home, direct: int, rounds: int, gathered: Gathered) -> None:
    """Streamed answers: direct and through, in turn."""
    for _ in range(rounds):
        with started(home, Role.CONTROL_PLANE, Role.EDGE, Role.NODE) as roles:
            through = port_of(roles[Role.EDGE][1]["api"])
            for _, addresses in roles.values():
                until_ready(addresses["status"])
            for label, port in (("direct", direct), ("through", through)):
                arguments = ("-m", "bench.streams", "--drive", str(port), "--token-file", str(home.root / "use.token"))
                first = ask(*arguments, "--paced")
                gathered.keep(f"{label}, first chunk", {"p50 µs": first["p50"], "p99 µs": first["p99"]})
                for streams in (1, 16):
                    seen = ask(*arguments, "--streams", str(streams))
                    gathered.keep(f"{label}, {streams} streams", {"chunks/s": seen["chunks"]})


def measure_cold_start(home: Home, rounds: int, gathered: Gathered) -> None:
    """From three processes that are started at once to the first answer."""
    token = (home.root / "use.token").read_text().strip()
    context = ssl.create_default_context(cafile=home.ca)
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "hello"}]})
    for _ in range(rounds):
        began = time.monotonic()
        with started(home, Role.CONTROL_PLANE, Role.EDGE, Role.NODE) as roles:
            address, status = roles[Role.EDGE][1]["api"], 0
            while status != 200:
                if time.monotonic() - began > 60:
                    raise SystemExit(f"no answer a minute after the start: {status}")
                connection = http.client.HTTPSConnection(address, timeout=10, context=context)
                connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {token}"})
                status = connection.getresponse().status
                connection.close()
            gathered.keep("cold start to the first answer", {"p50 µs": (time.monotonic() - began) * 1e6})


def measure(rounds: int) -> None:
    """Everything, then the report."""
    gathered = Gathered()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        with nginx(folder) as (plain, tls):
            home = prepared(folder / "requests", plain)
            measure_requests(home, folder, tls, rounds, gathered)
            measure_cold_start(home, rounds, gathered)
        upstream = python("-m", "bench.streams", "--serve", str(folder), core=DRIVING)
        try:
            plain, tls = json.loads(wait_for(folder / "streams.port"))
            measure_streams(prepared(folder / "streams", plain), tls, rounds, gathered)
        finally:
            upstream.terminate()
            upstream.wait()
    gathered.report()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    measure(parser.parse_args().rounds)
