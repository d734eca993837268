"""What an Edge answers to a projection that it is offered: a pure decision over two facts (rules E5, E6).

The facts are the pair (generation, digest) that is recorded on disk and whether that projection is also in memory. The
record is written before anything is swapped or acknowledged, so memory never holds something else than the record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from iop.errors import ProjectionRefused


@dataclass(frozen=True, slots=True)
class Mark:
    """A projection's name: its generation and the digest of its content."""

    generation: int
    digest: bytes = field(repr=False)


class Verdict(Enum):
    """What to do with an offered projection that is not refused."""

    #: Strictly newer: write the record, then swap, then answer APPLIED.
    APPLY = "apply"
    #: Exactly what is recorded, but this process has not loaded it yet: swap, then answer HELD.
    LOAD = "load"
    #: Exactly what is in memory: change nothing, answer HELD.
    HELD = "held"


def judge(offered: Mark, claimed_digest: bytes, recorded: Mark | None, loaded: bool) -> Verdict:
    """Decide on an offered projection (P7, P8).

    :param offered: its generation and the digest that was recomputed over its entries.
    :param claimed_digest: the digest it came with.
    :param recorded: the pair on disk, or None on an Edge that never applied any.
    :param loaded: whether the recorded projection is in memory.
    :raises ProjectionRefused: ``digest_mismatch``, ``generation_not_higher`` or ``digest_conflict``; whatever was in
        force stays so.
    """
    if offered.digest != claimed_digest:
        raise ProjectionRefused("digest_mismatch", "the projection's digest is not that of its entries")
    if offered.generation < 1:
        raise ProjectionRefused("generation_not_higher", "generations count from 1")
    if recorded is None or offered.generation > recorded.generation:
        return Verdict.APPLY
    if offered.generation < recorded.generation:
        raise ProjectionRefused("generation_not_higher", "the projection is older than the one in force")
    if offered.digest != recorded.digest:
        raise ProjectionRefused("digest_conflict", "the projection differs from the one of the same generation")
    return Verdict.HELD if loaded else Verdict.LOAD
