"""What an Edge answers to an offered projection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.core.held import Mark, Verdict, judge
from iop.errors import ProjectionRefused

digests = st.sampled_from([b"a" * 32, b"b" * 32, b"c" * 32])
marks = st.builds(Mark, st.integers(0, 4), digests)


def decide(offered: Mark, claimed: bytes, recorded: Mark | None, loaded: bool) -> Verdict | str:
    """The verdict, or the code of the refusal."""
    try:
        return judge(offered, claimed, recorded, loaded)
    except ProjectionRefused as refused:
        return refused.reason


class JudgeTests(SynchronousTestCase):
    """Rules E5 and E6."""

    @given(marks, digests, st.none() | marks, st.booleans())
    def test_total(self, offered: Mark, claimed: bytes, recorded: Mark | None, loaded: bool) -> None:
        """P8: every combination has exactly the answer that the rule gives it."""
        answer = decide(offered, claimed, recorded, loaded)
        if offered.digest != claimed:
            self.assertEqual(answer, "digest_mismatch")
        elif offered.generation == 0 or (recorded is not None and offered.generation < recorded.generation):
            self.assertEqual(answer, "generation_not_higher")
        elif recorded is None or offered.generation > recorded.generation:
            self.assertIs(answer, Verdict.APPLY)
        elif offered.digest != recorded.digest:
            self.assertEqual(answer, "digest_conflict")
        else:
            self.assertIs(answer, Verdict.HELD if loaded else Verdict.LOAD)

    def test_after_a_restart(self) -> None:
        """P7: a restarted Edge, which has nothing in memory, loads what it recorded and refuses anything older."""
        recorded = Mark(5, b"a" * 32)
        self.assertIs(judge(Mark(5, b"a" * 32), b"a" * 32, recorded, loaded=False), Verdict.LOAD)
        self.assertIs(judge(Mark(6, b"b" * 32), b"b" * 32, recorded, loaded=False), Verdict.APPLY)
        self.assertEqual(decide(Mark(4, b"b" * 32), b"b" * 32, recorded, False), "generation_not_higher")
        self.assertEqual(decide(Mark(5, b"b" * 32), b"b" * 32, recorded, False), "digest_conflict")
