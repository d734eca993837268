"""Revocations while two Edges' callers use what is revoked: real processes, and a provider that notes every secret.

``python -m bench.revoke`` is the same for longer.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.units import LEASE_TTL_SECONDS
from tests.integration.revoking import SHORT_TTL_SECONDS, judge, revoke_in_turn, revoke_while_stopped
from tests.integration.two_edges import EDGES, TwoEdges

HOT, OTHERS = 16, 8


class RevokeUnderLoadTests(SynchronousTestCase):
    timeout = 120

    def begin(self, principals: int, ttl_seconds: int) -> TwoEdges:
        """Everything runs."""
        deployment = TwoEdges(Path(self.mktemp()).absolute(), principals, ttl_seconds)
        self.addCleanup(deployment.stop)
        return deployment

    def test_in_turn(self) -> None:
        """P41, C20, E10, C50: nothing starts with what was revoked; its requests fail as documented, others succeed."""
        deployment = self.begin(4, int(LEASE_TTL_SECONDS))
        revocations, outcomes = revoke_in_turn(deployment, deployment.owners, HOT, OTHERS)
        for each in (change for revocation in revocations for change in (revocation.change, *revocation.remade)):
            self.assertEqual(each.edges, {"acknowledged": len(EDGES), "cut_off": 0, "unconfirmed": 0})
        verdict = judge(revocations, outcomes, deployment.received())
        self.assertTrue(verdict.holds, verdict)
        self.assertTrue(verdict.refused)

    def test_stopped(self) -> None:
        """P41, E10: an Edge that stands still is cut off and said to be, and uses nothing after `effective_by`."""
        deployment = self.begin(1, SHORT_TTL_SECONDS)
        found = revoke_while_stopped(deployment, deployment.owners[0], HOT)
        self.assertTrue(found.in_time, found.change)
        self.assertEqual(found.change.edges, {"acknowledged": len(EDGES) - 1, "cut_off": 1, "unconfirmed": 0})
        self.assertEqual(found.late, [])
        self.assertTrue(found.is_back, found.answers)

    def test_limited(self) -> None:
        """E14, C20: an Edge that a principal is not for does not know its token, and asks for no lease."""
        deployment = self.begin(1, int(LEASE_TTL_SECONDS))
        (owner,) = deployment.owners

        def limit(*arguments: str) -> None:
            answer = deployment.iop("principal", "limit", owner.name, *arguments)
            self.assertEqual(answer["edges"], {"acknowledged": len(EDGES), "cut_off": 0, "unconfirmed": 0})

        def asked() -> list[tuple[int, str]]:
            return [deployment.ask(owner, number)[3:] for number in EDGES]

        served = (200, owner.said)
        limit("--edge", "edge-1")
        self.assertEqual(asked(), [served, (401, "invalid_api_key")])
        self.assertEqual([each.edge for each in deployment.received()], [1])
        self.assertEqual(deployment.plane.metric("iop_control_plane_leases_granted_total"), 1)
        limit("--everywhere")
        self.assertEqual(asked(), [served, served])
        # and one that held a lease for it
        limit("--edge", "edge-1")
        self.assertEqual(asked(), [served, (401, "invalid_api_key")])
        self.assertEqual([each.edge for each in deployment.received()], [1, 1, 2, 1])
