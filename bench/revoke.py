"""Revocations under load, with two Edges: whether anything starts with a secret after its revocation.

``python -m bench.revoke`` (two minutes) or ``--principals 5 --rounds 5``. A Control Plane, two Edges with a Node each,
and a provider that notes each secret with the kernel's time of the request's first byte, each a process. In each round
16 callers ask for the model of one principal through both Edges, 8 for any principal's, while its slot is revoked and a
new one is made and routed. The next round is the next principal's: each may make only a change a second for long. Then
one more deployment, with leases of 12 s, one of whose Edges is stopped (SIGSTOP) before a revocation and goes on after.

Rows: *started too late*, after the revocation returned at an Edge that acknowledged it, or after ``effective_by`` at
one that was cut off; *others*, requests whose slot was there all the time; *failed otherwise*, requests for a
revoked slot with an answer that docs/api.md does not have for it, or none; *wrong*, answered with another principal's
secret.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from tests.integration.revoking import SHORT_TTL_SECONDS, judge, revoke_in_turn, revoke_while_stopped
from tests.integration.two_edges import Change, TwoEdges

from bench.measure import Report
from iop.units import LEASE_TTL_SECONDS

HOT, OTHERS = 16, 8
STANDINGS = ("acknowledged", "cut_off", "unconfirmed")


@dataclass(frozen=True, slots=True)
class Findings:
    """One load's column: what it showed, and whether that is as it must be."""

    rows: dict[str, str]
    holds: bool


def in_turn(folder: Path, principals: int, rounds: int) -> Findings:
    """Revoke one slot after the other."""
    deployment = TwoEdges(folder, principals, int(LEASE_TTL_SECONDS))
    try:
        owners = islice(cycle(deployment.owners), rounds)
        revocations, outcomes = revoke_in_turn(deployment, owners, HOT, OTHERS)
        received = deployment.received()
    finally:
        deployment.stop()
    verdict = judge(revocations, outcomes, received)
    # how near it was: from the last use of a secret to the answer that it is revoked
    last = {each.secret: each.at for each in received}
    nearest = min(each.change.returned - last[each.secret] for each in revocations)
    counts = {
        "requests": len(outcomes),
        "served": verdict.served,
        "started too late": len(verdict.late),
        "others": verdict.untouched,
        "others failed": len(verdict.others_failed),
        "failed otherwise": len(verdict.undocumented),
        "wrong": len(verdict.wrong),
    }
    rows = (
        {label: f"{count:,}" for label, count in counts.items()}
        | {f"refused: {status} {code}": f"{count:,}" for (status, code), count in verdict.refused.most_common()}
        | _changes("revocations", [each.change for each in revocations])
        | _changes("other changes", [change for each in revocations for change in each.remade])
        | {"last use before the answer, ms": f"{nearest / 1e6:,.1f}"}
    )
    violations = [*verdict.late, *verdict.others_failed, *verdict.undocumented, *verdict.wrong]
    rows |= {f"violation {place}": str(each) for place, each in enumerate(violations[:12], start=1)}
    return Findings(rows, verdict.holds)


def one_stopped(folder: Path) -> Findings:
    """Revoke a slot while an Edge stands still."""
    deployment = TwoEdges(folder, 1, SHORT_TTL_SECONDS)
    try:
        found = revoke_while_stopped(deployment, deployment.owners[0], HOT)
    finally:
        deployment.stop()
    refused = Counter((each.status, each.said) for each in found.outcomes if each.status != 200)
    after = [each for each in found.received if each.secret == found.secret and each.at > found.change.returned]
    rows = (
        {
            "requests": f"{len(found.outcomes):,}",
            "served": f"{len(found.outcomes) - refused.total():,}",
            "started too late": f"{len(found.late):,}",
            "started before effective_by": f"{len(after) - len(found.late):,}",
        }
        | {f"refused: {status} {code}": f"{count:,}" for (status, code), count in refused.most_common()}
        | _changes("revocations", [found.change])
        | {"answered in time": _yes(found.in_time), "the Edge came back": _yes(found.is_back)}
    )
    edges = found.change.edges
    reported = edges["acknowledged"] >= 1 and edges["cut_off"] == 1
    return Findings(rows, reported and found.in_time and found.is_back and not found.late)


def _changes(label: str, changes: Sequence[Change]) -> dict[str, str]:
    """What changes answered, and how long they took."""
    took = [change.milliseconds for change in changes]
    edges = [sum(change.edges[standing] for change in changes) for standing in STANDINGS]
    return {
        label: f"{len(changes):,}",
        f"{label}: ms, median and max": f"{statistics.median(took):,.0f}, {max(took):,.0f}",
        f"{label}: {', '.join(STANDINGS)}": ", ".join(map(str, edges)),
    }


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def main() -> None:
    """Both loads; exit code 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m bench.revoke", description=__doc__)
    parser.add_argument("--principals", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        found = {
            "in turn": in_turn(Path(made) / "turns", options.principals, options.rounds),
            "one Edge stopped": one_stopped(Path(made) / "stopped"),
        }
    report = Report("revoke", f"{options.rounds} slots revoked under load", list(found))
    for label in dict.fromkeys(label for each in found.values() for label in each.rows):
        report.row(label, {column: each.rows[label] for column, each in found.items() if label in each.rows})
    report.finish()
    if not all(each.holds for each in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
