"""Audited leases per second: a real Control Plane on SQLite, asked over mutual TLS by one Edge.

``python -m bench.lease``. The Control Plane has one core; the other plays an Edge that asks for leases of one binding,
as an Edge without a cache would. Each lease is a durable re-read, an audit row on disk, a secret opened, sealed and
signed.

The second table is of the whole gateway (:mod:`bench.calls`): three roles on one core, 64 callers at a time who need a
lease each, while owners change routes 20 times a second. Every change makes every lease of before stale.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import calls
from bench.measure import ROUNDS, Figures, Report, ask
from bench.roles import Deployment, make_home, port_of, started
from iop.cli.quickstart.home import TRUST_DOMAIN, Home, Member
from iop.interfaces import IClock
from iop.net.tls import TlsFiles
from iop.units import Role

IN_FLIGHT = (1, 64)


def drive(home: Home, port: int, in_flight: int) -> dict[str, float]:
    """Enrol as the home's Edge and ask for a while, ``in_flight`` leases at a time."""
    from bench import peer as asking
    from iop.certificates import read_certificates, read_key
    from iop.core.fences import bind
    from iop.crypto.attestation import attest
    from iop.crypto.node_keys import NodeKeys
    from iop.crypto.tokens import token_digest, token_proof
    from iop.net.tls import mutual_client
    from iop.units import PROTOCOL_VERSION
    from iop.wire import control_pb2
    from iop.wire.convert import binding_to_wire, projection_from_wire
    from iop.wire.dialect import CONTROL

    def applied(projection: Any) -> Any:
        return control_pb2.ProjectionOutcome(
            result=control_pb2.PROJECTION_RESULT_APPLIED, generation=projection.generation, digest=projection.digest
        )

    def follow(pushed: Any) -> Any:
        return control_pb2.PrincipalProjectionApplyResponse(outcome=applied(pushed.projection))

    async def begin(peer: Any, clock: IClock) -> Callable[[], Awaitable[object]]:
        edge, node = Member(Role.EDGE).name, Member(Role.NODE).name
        hello = await peer.request(control_pb2.EdgeHelloRequest(edge_id=edge, protocol_version=PROTOCOL_VERSION), 10)
        await peer.request(control_pb2.EdgeReadyRequest(outcome=applied(hello.projection)), 10)
        snapshot, _ = projection_from_wire(hello.projection)
        text = (home.root / "use.token").read_text().strip()
        (token,) = [each for each in snapshot.tokens if each.digest == token_digest(text)]
        route = next(each for each in snapshot.routes if each.principal == token.principal)
        key, node_files = NodeKeys(clock).current(), files(home, Role.NODE)
        question = control_pb2.AcquireLeaseRequest(
            request_id="bench",
            binding=binding_to_wire(bind(route, node, snapshot.generation)),
            token_id=token.token_id,
            token_proof=token_proof(text),
            recipient_public_key=key.public_key,
            attestation=attest(
                read_key(node_files.key),
                read_certificates(node_files.certificate),
                trust_domain=TRUST_DOMAIN,
                edge=edge,
                node=node,
                public_key=key.public_key,
                expires_ms=key.attested_until_ms,
            ),
        )

        async def ask() -> None:
            answer = await peer.request(question, 30)
            if not answer.HasField("lease"):
                raise AssertionError(answer.refusal.code)

        return ask

    creator = mutual_client(
        files(home, Role.EDGE),
        trust_domain=TRUST_DOMAIN,
        role=Role.CONTROL_PLANE,
        name=Member(Role.CONTROL_PLANE).name,
        server_name="localhost",
    )
    return asking.drive(CONTROL, creator, port, in_flight, begin, follow)


def files(home: Home, role: Role) -> TlsFiles:
    """The home's certificate of a role."""
    paths = home.certificate(Member(role))
    return TlsFiles(paths.certificate, paths.key, home.ca)


def main() -> None:
    """Measure, or be the child that asks."""
    parser = argparse.ArgumentParser(prog="python -m bench.lease", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--in-flight", type=int, default=64, help=argparse.SUPPRESS)
    parser.add_argument("--call", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--changes", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        sys.stdout.write(json.dumps(calls.drive(Home(options.call), options.addresses, options.changes)) + "\n")
    elif options.drive:
        sys.stdout.write(json.dumps(drive(Home(options.drive), options.port, options.in_flight)) + "\n")
    else:
        measure(options.rounds)
        measure_changing(options.rounds)


def measure_changing(rounds: int) -> None:
    """Rounds of calls that need leases, with and without changes."""
    figures: dict[int, dict[str, Figures]] = {}
    with tempfile.TemporaryDirectory() as made:
        deployment = Deployment(Path(made) / "home")
        calls.prepare(deployment.home)
        with deployment:
            addresses = {
                "api": deployment.address("edge", "api"),
                "status": deployment.address("edge", "status"),
                "credential_https": deployment.address("control-plane", "credential_https"),
            }
            root, there = str(deployment.home.root), json.dumps(addresses)
            for _ in range(rounds):
                for changes in (0, calls.CHANGES_PER_SECOND):
                    arguments = ("--call", root, "--addresses", there, "--changes", str(changes))
                    got = ask("-m", "bench.lease", *arguments)
                    kept = figures.setdefault(changes, {column: Figures() for column in got})
                    for column, value in got.items():
                        kept[column].values.append(value)
    columns = list(figures[calls.CHANGES_PER_SECOND])
    title = f"{calls.CALLERS} requests in flight, a lease each; {calls.OWNERS} owners change routes"
    report = Report("lease-changing", title, columns, module="lease")
    for changes, got in figures.items():
        report.row(f"{changes} changes a second", got)
    report.finish(["Twisted", "pyOpenSSL", "PyNaCl", "protobuf"])


def measure(rounds: int) -> None:
    """Rounds of each number of leases in flight, on one database that grows."""
    figures: dict[int, dict[str, Figures]] = {}
    with tempfile.TemporaryDirectory() as made:
        home = make_home(Path(made) / "home")
        with started(home, Role.CONTROL_PLANE) as roles:
            port = port_of(roles[Role.CONTROL_PLANE][1]["edge_wire"])
            for _ in range(rounds):
                for in_flight in IN_FLIGHT:
                    arguments = ("--drive", str(home.root), "--port", str(port), "--in-flight", str(in_flight))
                    got = ask("-m", "bench.lease", *arguments)
                    kept = figures.setdefault(in_flight, {key: Figures() for key in got})
                    for key, value in got.items():
                        kept[key].values.append(value)
    report = Report("lease", "Audited leases, SQLite, one core", ["leases/s", "p50 µs", "p99 µs"])
    for in_flight, got in figures.items():
        report.row(f"{in_flight} in flight", {"leases/s": got["rate"], "p50 µs": got["p50"], "p99 µs": got["p99"]})
    report.finish(["Twisted", "pyOpenSSL", "PyNaCl", "protobuf"])


if __name__ == "__main__":
    main()
