"""Where the gateway's time goes: a flame graph of all three roles under load, and the largest costs by name.

``python -m bench.flame``. Needs Debian's ``wrk`` and ``nginx-light``, and ``py-spy``, which must be allowed to trace
other processes. Sixteen connections ask for whole answers with a cached lease, as in :mod:`bench.gateway`. The graph
goes to ``bench/results/flame.svg``. In the table every sample counts once: for the idea that owns the innermost frame
which has an owner.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from bench.gateway import nginx, prepared, write_script, wrk
from bench.measure import DRIVING, RESULTS, Report
from bench.roles import started, until_ready
from iop.units import Role

CONNECTIONS = 16
ROUNDS = 4
SAMPLES_A_SECOND = 500
#: Idea -> parts of file names, the first idea that fits owns a frame.
OWNERS = {
    "TLS": ("OpenSSL/", "twisted/protocols/tls", "_newtls", "policies.py"),
    "log lines": ("iop/process/logs", "twisted/logger/"),
    "event loop and sockets": (
        "epollreactor",
        "posixbase",
        "internet/base.py",
        "internet/tcp",
        "abstract.py",
        "python/util.py",
        "python/context.py",
        "python/log.py",
        "endpoints.py",
    ),
    "Deferreds and coroutines": ("internet/defer.py",),
    "leases opened, tokens hashed": ("iop/crypto/", "nacl/"),
    "HTTP to callers and provider": (
        "iop/net/http",
        "iop/net/request_",
        "iop/net/response_",
        "iop/net/upstream",
        "httptools",
    ),
    "peer wire": ("iop/net/peer", "iop/core/session", "iop/core/correlation", "iop/wire/", "google/protobuf"),
    "admission, fences, runs: Edge": (
        "iop/edge/",
        "iop/core/pool",
        "iop/core/seats",
        "iop/core/fences",
        "iop/core/projection",
    ),
    "runs: Node": ("iop/node/",),
    "metrics": ("prometheus_client", "iop/process/metrics"),
    "the rest of iop": ("iop/",),
}


def record(form: str, output: Path) -> subprocess.Popen[bytes]:
    """Sample this process and its children, the roles among them, while wrk runs ``ROUNDS`` times."""
    spy = shutil.which("py-spy")
    if spy is None:
        raise SystemExit("py-spy is not installed: pip install -e '.[bench]'")
    options = ("--rate", str(SAMPLES_A_SECOND), "--duration", str(4 * ROUNDS), "--format", form, "--subprocesses")
    return subprocess.Popen(  # noqa: S603 - what pip installed
        [spy, "record", *options, "--output", str(output), "--pid", str(os.getpid())],
        preexec_fn=lambda: os.sched_setaffinity(0, {DRIVING}),  # noqa: PLW1509 - no threads here
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def without_paths(graph: Path) -> None:
    """Name processes after their roles, so that the graph tells nothing of this machine."""
    text = graph.read_text()
    text = re.sub(r"process \d+:&quot;[^<]*?(iop-[a-z-]+)[^<(]*(&quot;)?", r"\1 ", text)
    text = re.sub(r"process \d+:&quot;[^<(]*?(bench\.flame)&quot;", r"\1", text)
    # labels that are cut before the role's name
    text = re.sub(r"process \d+:&quot;[^<]*", "a role", text)
    graph.write_text(re.sub(r"[^>]*py-spy record [^<]*", "python -m bench.flame", text))


def owner(stack: list[str]) -> str | None:
    """The idea that owns a sample; None if it is none of a role's."""
    if not any("iop-" in frame for frame in stack):
        return None
    for frame in reversed(stack):
        for idea, parts in OWNERS.items():
            if any(part in frame for part in parts):
                return idea
    return "Python itself"


def role_of(stack: list[str]) -> str:
    """Which role's process a sample is of; empty if of another."""
    return next((role.value for role in Role if any(f"iop-{role.value}" in frame for frame in stack[:3])), "")


def main() -> None:
    """Load, record twice, and count."""
    RESULTS.mkdir(exist_ok=True)
    costs: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        with nginx(folder) as (plain, _):
            home = prepared(folder / "requests", plain)
            script = write_script(folder / "one.lua", (home.root / "use.token").read_text().strip(), ["m1"])
            with started(home, Role.CONTROL_PLANE, Role.EDGE, Role.NODE) as roles:
                url = f"https://{roles[Role.EDGE][1]['api']}/v1/chat/completions"
                for _, addresses in roles.values():
                    until_ready(addresses["status"])
                for form, output in (("flamegraph", RESULTS / "flame.svg"), ("raw", folder / "raw.txt")):
                    recording = record(form, output)
                    for _ in range(ROUNDS):
                        wrk(url, script, CONNECTIONS)
                    _, said = recording.communicate()
                    if recording.returncode:
                        raise SystemExit(f"py-spy failed:\n{said.decode()}")
        without_paths(RESULTS / "flame.svg")
        for line in (folder / "raw.txt").read_text().splitlines():
            text, _, count = line.rpartition(" ")
            stack = text.split(";")
            idea = owner(stack)
            if idea is not None:
                costs[role_of(stack), idea] += int(count)
    total = costs.total()
    report = Report("flame", f"Where the time goes, {CONNECTIONS} connections, cached leases", ["all", "edge", "node"])
    by_idea = Counter[str]()
    for (_, idea), samples in costs.items():
        by_idea[idea] += samples
    for idea, samples in by_idea.most_common():
        shares = {role: f"{costs[role, idea] / total:.0%}" for role in ("edge", "node")}
        report.row(idea, {"all": f"{samples / total:.0%}"} | shares)
    report.finish(["Twisted", "pyOpenSSL", "httptools", "PyNaCl", "protobuf"])


if __name__ == "__main__":
    main()
