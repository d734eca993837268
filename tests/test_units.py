"""Ids and times as text."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.units import new_id, rfc3339

#: Up to the year 9999.
MOMENTS = st.integers(min_value=0, max_value=253_402_300_799_999)


class IdTests(SynchronousTestCase):
    @given(MOMENTS)
    def test_uuid7(self, now_ms: int) -> None:
        """RFC 9562, 5.7: version, variant, and the moment in front, so that ids sort by time."""
        text = new_id(now_ms)
        parsed = UUID(text)
        self.assertEqual((str(parsed), parsed.version, parsed.variant), (text, 7, "specified in RFC 4122"))
        self.assertEqual(parsed.int >> 80, now_ms)

    def test_different(self) -> None:
        """Two ids of one moment differ."""
        self.assertEqual(len({new_id(1) for _ in range(1000)}), 1000)


class TimeTests(SynchronousTestCase):
    @given(MOMENTS)
    def test_rfc3339(self, moment_ms: int) -> None:
        """What another implementation reads from it is the same moment, whatever was asked before."""
        text = rfc3339(moment_ms)
        self.assertRegex(text, r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")
        read = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
        self.assertEqual((read.days * 86_400 + read.seconds) * 1000 + read.microseconds // 1000, moment_ms)
