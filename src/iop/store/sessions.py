"""What an acknowledgement does to a session, and how long a session that ended is remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from iop.errors import ProtocolViolation

if TYPE_CHECKING:
    from iop.records import EdgeSession

#: Twice the hard caps of lease TTL (300 s) and skew (30 s): nobody's window is longer.
KEPT_MS: Final = 660_000


def acknowledged(session: EdgeSession, generation: int, unconfirmed: int, current: int) -> EdgeSession:
    """``session`` after its Edge acknowledged ``generation``, and with it all before; a late one changes nothing.

    :param unconfirmed: runs whose Node gave no word.
    :param current: the store's generation; a session is ready from when it acknowledged that.
    :raises ProtocolViolation: if there never was such a generation, which would answer mutations to come.
    """
    if generation > current:
        raise ProtocolViolation("an Edge acknowledged a generation that does not exist")
    if generation < session.acknowledged:
        return session
    ready = session.ready or generation == current
    return replace(session, acknowledged=generation, unconfirmed=unconfirmed, ready=ready)
