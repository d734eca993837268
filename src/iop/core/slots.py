"""The life of a slot, decided once for every store (K13): what a change makes of it, or why there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from iop.errors import FinalState, RevisionMismatch
from iop.records import SlotRecord, SlotState

#: What a change of state is called, by where it leads.
STATE_CHANGES: Final = {SlotState.ACTIVE: "enable", SlotState.DISABLED: "disable", SlotState.REVOKED: "revoke"}


def with_state(slot: SlotRecord, state: SlotState, expected: int, now_ms: int) -> SlotRecord:
    """``slot`` in ``state``; only its revision tells of a change to the state that it is in.

    :param expected: the revision that the caller knows.
    :param now_ms: the present, Unix milliseconds.
    :raises FinalState: if it is revoked.
    :raises RevisionMismatch: if it is at another revision.
    """
    _check(slot, expected)
    return replace(slot, state=state, revision=slot.revision + 1, updated_ms=now_ms)


def with_secret(slot: SlotRecord, expected: int, now_ms: int) -> SlotRecord:
    """``slot`` with another secret, whatever state it is in short of revoked; the parameters are those above.

    :raises FinalState: if it is revoked.
    :raises RevisionMismatch: if it is at another revision.
    """
    _check(slot, expected)
    return replace(
        slot, revision=slot.revision + 1, credential_revision=slot.credential_revision + 1, updated_ms=now_ms
    )


def _check(slot: SlotRecord, expected: int) -> None:
    # first: no revision would be the right one
    if slot.state is SlotState.REVOKED:
        raise FinalState("the slot is revoked, and that is final", hint="create another slot")
    if slot.revision != expected:
        raise RevisionMismatch(
            "the slot is not at the expected revision", hint="look at the slot and try again from what is there"
        )
