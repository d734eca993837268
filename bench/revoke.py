"""Revocations under load, with two Edges: whether anything starts with a secret after its revocation.

``python -m bench.revoke`` (two minutes) or ``--principals 5 --rounds 5``. A Control Plane, two Edges with a Node each,
and a provider that notes each secret with the kernel's time of the request's first byte, each a process. In each round
16 callers ask for the model of one principal through both Edges, 8 for any principal's, while its slot is revoked and a
new one is made and routed. The next round is the next principal's: each may make only a change a second for long. Then
one more deployment, with leases of 12 s, one of whose Edges is stopped (SIGSTOP) before a revocation and goes on after.

Rows: *started too late*, after the revocation returned at an Edge that acknowledged it, or after ``effective_by`` at
one that was cut off; *others failed*, requests whose slot was there all the time; *failed otherwise*, requests for a
revoked slot with an answer that docs/api.md does not have for it, or none; *wrong*, answered with another principal's
secret.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from tests.integration.revoking import SHORT_TTL_SECONDS, judge, revoke_in_turn, revoke_while_stopped
from tests.integration.two_edges import Change, TwoEdges

from bench.measure import Report
from iop.units import LEASE_TTL_SECONDS

HOT, OTHERS = 16, 8
TURNS, STOPPED = "in turn", "one Edge stopped"


def in_turn(report: Report, folder: Path, principals: int, rounds: int) -> bool:
    """Revoke one slot after the other; whether all was as it must be."""
    deployment = TwoEdges(folder, principals, int(LEASE_TTL_SECONDS))
    try:
        owners = islice(cycle(deployment.owners), rounds)
        revocations, outcomes = revoke_in_turn(deployment, owners, HOT, OTHERS)
        received = deployment.received()
    finally:
        deployment.stop()
    verdict = judge(revocations, outcomes, received)
    rows = {
        "requests": len(outcomes),
        "served": verdict.served,
        "started too late": len(verdict.late),
        "others failed": len(verdict.others_failed),
        "failed otherwise": len(verdict.undocumented),
        "wrong": len(verdict.wrong),
    }
    for label, count in rows.items():
        report.row(label, {TURNS: f"{count:,}"})
    for (status, code), count in verdict.refused.most_common():
        report.row(f"of a revoked slot: {status} {code}", {TURNS: f"{count:,}"})
    for outcome in [*verdict.others_failed, *verdict.undocumented, *verdict.wrong][:12]:
        report.row("  violation", {TURNS: str(outcome)})
    revoked = [each.change for each in revocations]
    _changes(report, "revocations", TURNS, revoked)
    _changes(report, "other changes", TURNS, [change for each in revocations for change in each.remade])
    # how near it was: from the last use of a secret to the answer that it is revoked
    last = {each.secret: each.at for each in received}
    nearest = min(each.change.returned - last[each.secret] for each in revocations)
    report.row("last use before the answer, ms", {TURNS: f"{nearest / 1e6:,.1f}"})
    return verdict.holds


def one_stopped(report: Report, folder: Path) -> bool:
    """Revoke a slot while an Edge stands still; whether all was as it must be."""
    deployment = TwoEdges(folder, 1, SHORT_TTL_SECONDS)
    try:
        found = revoke_while_stopped(deployment, deployment.owners[0], HOT)
    finally:
        deployment.stop()
    edges = found.change.edges
    reported = edges["acknowledged"] >= 1 and edges["cut_off"] == 1
    served = sum(outcome.status == 200 for outcome in found.outcomes)
    after = [each for each in found.received if each.secret == found.secret and each.at > found.change.returned]
    report.row("requests", {STOPPED: f"{len(found.outcomes):,}"})
    report.row("served", {STOPPED: f"{served:,}"})
    report.row("started too late", {STOPPED: str(len(found.late))})
    report.row("started before effective_by", {STOPPED: f"{len(after) - len(found.late):,}"})
    _changes(report, "revocations", STOPPED, [found.change])
    report.row("answered in time", {STOPPED: "yes" if found.in_time else "no"})
    report.row("back by itself", {STOPPED: "yes" if found.is_back else f"no: {found.answers}"})
    return reported and found.in_time and found.is_back and not found.late


def _changes(report: Report, label: str, column: str, changes: Sequence[Change]) -> None:
    """What changes answered, and how long they took."""
    took = [change.milliseconds for change in changes]
    edges = Counter[str]()
    for change in changes:
        edges.update(change.edges)
    report.row(label, {column: str(len(changes))})
    report.row("  ms, median and max", {column: f"{statistics.median(took):,.0f}, {max(took):,.0f}"})
    report.row("  acknowledged, cut off, unconfirmed", {column: ", ".join(map(str, edges.values()))})


def main() -> None:
    """Both loads; exit code 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m bench.revoke", description=__doc__)
    parser.add_argument("--principals", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    report = Report("revoke", f"{options.rounds} slots revoked under load", [TURNS, STOPPED])
    with tempfile.TemporaryDirectory() as made:
        holds = in_turn(report, Path(made) / "turns", options.principals, options.rounds)
        holds &= one_stopped(report, Path(made) / "stopped")
    report.finish()
    if not holds:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
