"""Slots that are revoked and made anew while callers use them, and what may not come of that."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from iop.units import PROJECTION_ACK_SECONDS
from tests.integration.callers import Outcome
from tests.integration.roles import wait_until
from tests.integration.two_edges import EDGES, Change, Owner, Received, TwoEdges

#: What docs/api.md has for a request whose slot is gone: nothing leads to it any more, or nothing may be used.
DOCUMENTED: Final = {(404, "model_not_found"), (503, "credential_unusable")}
#: For a load with an Edge that stands still: long enough for an Edge to keep leases, which it does until 5 s before
#: their end.
SHORT_TTL_SECONDS: Final = 12
#: How long callers ask for what is gone.
_GONE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Revocation:
    """One secret that was revoked, and replaced."""

    owner: int
    secret: str
    change: Change
    #: The slot and the route that were made then.
    remade: Sequence[Change]

    @property
    def over(self) -> int:
        """From when on nobody may use the secret, as the answer said, in nanoseconds of the wall clock."""
        followed = self.change.edges == {"acknowledged": len(EDGES), "cut_off": 0, "unconfirmed": 0}
        return self.change.returned if followed else self.change.effective_by

    def touches(self, outcome: Outcome) -> bool:
        """Whether the request was under way while its slot was being revoked, or was gone."""
        return (
            outcome.number == self.owner
            and outcome.began < self.remade[-1].returned
            and outcome.ended > self.change.sent
        )


@dataclass
class Verdict:
    """What came of a load. Nothing of the first four may be."""

    #: Started with a secret after its revocation was over.
    late: list[Received] = field(default_factory=list)
    #: Failed although its slot was there all the time.
    others_failed: list[Outcome] = field(default_factory=list)
    #: Failed in a way that is not documented.
    undocumented: list[Outcome] = field(default_factory=list)
    #: Answered with somebody else's secret.
    wrong: list[Outcome] = field(default_factory=list)
    #: How the requests of a revoked slot failed.
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)
    served: int = 0
    #: How many had their slot all the time.
    untouched: int = 0

    @property
    def holds(self) -> bool:
        """Whether all is as it must be."""
        return not (self.late or self.others_failed or self.undocumented or self.wrong)

    def __str__(self) -> str:
        found = (self.late, self.others_failed, self.undocumented, self.wrong)
        return "; ".join(f"{len(each)}, the first {each[:3]}" for each in found)


def revoke_in_turn(
    deployment: TwoEdges, owners: Iterable[Owner], hot: int, others: int
) -> tuple[list[Revocation], list[Outcome]]:
    """Revoke one slot after the other, each while ``hot`` callers use it, and make it anew."""
    done: list[Revocation] = []
    with deployment.calling(hot, others) as callers:
        for owner in owners:
            callers.choose(owner)
            deployment.wait_for_use(owner.secret)
            secret, change = owner.secret, owner.revoke()
            time.sleep(_GONE_SECONDS)
            done.append(Revocation(owner.number, secret, change, owner.create()))
            deployment.wait_for_use(owner.secret)
        return done, callers.finish()


def judge(revocations: Sequence[Revocation], outcomes: Iterable[Outcome], received: Iterable[Received]) -> Verdict:
    """Whether each revocation kept its word, and nobody else suffered."""
    over = {each.secret: each.over for each in revocations}
    verdict = Verdict(late=[each for each in received if each.at > over.get(each.secret, each.at)])
    for outcome in outcomes:
        refusal = (outcome.status, outcome.said)
        touched = any(each.touches(outcome) for each in revocations)
        verdict.untouched += not touched
        if outcome.status == 200:
            verdict.served += 1
            if not outcome.said.startswith(f"p{outcome.number}-"):
                verdict.wrong.append(outcome)
        elif not touched:
            verdict.others_failed.append(outcome)
        else:
            verdict.refused[refusal] += 1
            if refusal not in DOCUMENTED:
                verdict.undocumented.append(outcome)
    return verdict


@dataclass(frozen=True, slots=True)
class Stopped:
    """A revocation while one Edge's process stood still."""

    #: The Edge that stood still.
    edge: int
    secret: str
    change: Change
    #: The change after that, when the Edge was back.
    next: Change
    #: What each Edge answered after that.
    answers: list[Outcome]
    #: What came of the callers' requests.
    outcomes: list[Outcome]
    received: list[Received]

    @property
    def late(self) -> list[Received]:
        """What the answer ruled out: the secret after it at the Edge that follows, after ``effective_by`` anywhere."""
        over = dict.fromkeys(EDGES, self.change.returned) | {self.edge: self.change.effective_by}
        return [each for each in self.received if each.secret == self.secret and each.at > over[each.edge]]

    @property
    def in_time(self) -> bool:
        """Whether the answer came when the Edge was cut off, give or take what two busy cores need."""
        return self.change.milliseconds < (PROJECTION_ACK_SECONDS + 2) * 1000

    @property
    def is_back(self) -> bool:
        """Whether the Edge follows and serves again."""
        return self.next.edges["acknowledged"] == len(EDGES) and {each.status for each in self.answers} == {200}


def revoke_while_stopped(deployment: TwoEdges, owner: Owner, hot: int) -> Stopped:
    """Stop an Edge, revoke a slot, let the Edge go on, and wait until nothing may be left and it is back."""
    stopped = EDGES[-1]
    edge = deployment.edges[stopped]
    with deployment.calling(hot, 0) as callers:
        callers.choose(owner)
        secret = owner.secret
        deployment.wait_for_use(secret)
        os.kill(edge.pid, signal.SIGSTOP)
        try:
            change = owner.revoke()
        finally:
            os.kill(edge.pid, signal.SIGCONT)
        # its callers ask on, all of this time and a little longer
        wait_until(lambda: time.time_ns() > change.effective_by, "nothing of it may be left")
        time.sleep(_GONE_SECONDS)
        wait_until(edge.is_ready, "the Edge is back")
        following = owner.create()[-1]
        answers = [deployment.ask(owner, number) for number in EDGES]
        outcomes = callers.finish()
    return Stopped(stopped, secret, change, following, answers, outcomes, deployment.received())
