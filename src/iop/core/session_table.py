"""What may happen on a peer connection in which state: the whole table (W7, W9)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class State(Enum):
    """Life of a connection, in this order."""

    #: TCP is up, TLS is not.
    CONNECTING = "connecting"
    #: TLS is up, the initiator has not asked its hello.
    HELLO_DUE = "hello due"
    #: The hello is asked, the acceptor has not answered it.
    HELLO_ASKED = "hello asked"
    READY = "ready"
    DRAINING = "draining"
    CLOSED = "closed"

    # the table is read for every message, and a member is its own only equal
    __hash__ = object.__hash__


#: The states after an accepted hello.
ACCEPTED: Final = frozenset({State.READY, State.DRAINING})


class Input(Enum):
    """Everything that can happen to a connection."""

    # from the transport
    TLS_UP = "TLS is up"
    # from the peer
    HELLO_REQUEST = "a hello"
    HELLO_ANSWER = "a hello's answer"
    REQUEST = "a request"
    ANSWER = "an answer"
    NOTE = "a notification"
    PINGED = "a ping"
    PONGED = "a pong"
    FOREIGN = "a message that does not travel in this direction"
    # from the application
    ASK_HELLO = "asking the hello"
    ASK = "asking"
    REPLY = "answering"
    TELL = "notifying"
    DRAIN = "draining"
    # from either
    CLOSE = "closing"
    # from the clock
    TICK = "time"

    __hash__ = object.__hash__


class Verdict(Enum):
    """What a state makes of an input."""

    #: It is taken; the session does what follows.
    TAKE = "take"
    #: It means nothing any more; nothing happens.
    SKIP = "skip"
    #: The peer broke the wire: the connection closes with UnexpectedMessage.
    BREACH = "breach"
    #: The application may not do this here: UnexpectedMessage is raised to it.
    WRONG = "wrong"
    #: The application comes too late: Draining is raised to it.
    LATE = "late"
    #: The application comes too late: PeerDisconnected is raised to it.
    GONE = "gone"


TAKE, SKIP, BREACH, WRONG, LATE, GONE = Verdict

# fmt: off
_ROWS: Final[Mapping[Input, tuple[Verdict, ...]]] = {
    #                     CONNECTING  HELLO_DUE  HELLO_ASKED  READY   DRAINING  CLOSED
    Input.TLS_UP:        (TAKE,       BREACH,    BREACH,      BREACH, BREACH,   SKIP),
    Input.HELLO_REQUEST: (BREACH,     TAKE,      BREACH,      BREACH, BREACH,   SKIP),
    Input.HELLO_ANSWER:  (BREACH,     BREACH,    TAKE,        BREACH, BREACH,   SKIP),
    Input.REQUEST:       (BREACH,     BREACH,    BREACH,      TAKE,   SKIP,     SKIP),
    Input.ANSWER:        (BREACH,     BREACH,    BREACH,      TAKE,   TAKE,     SKIP),
    Input.NOTE:          (BREACH,     BREACH,    BREACH,      TAKE,   TAKE,     SKIP),
    Input.PINGED:        (BREACH,     BREACH,    BREACH,      TAKE,   TAKE,     SKIP),
    Input.PONGED:        (BREACH,     BREACH,    BREACH,      TAKE,   TAKE,     SKIP),
    Input.FOREIGN:       (BREACH,     BREACH,    BREACH,      BREACH, BREACH,   SKIP),
    Input.ASK_HELLO:     (WRONG,      TAKE,      WRONG,       WRONG,  LATE,     GONE),
    Input.ASK:           (WRONG,      WRONG,     WRONG,       TAKE,   LATE,     GONE),
    Input.REPLY:         (WRONG,      WRONG,     TAKE,        TAKE,   TAKE,     SKIP),
    Input.TELL:          (WRONG,      WRONG,     WRONG,       TAKE,   TAKE,     SKIP),
    Input.DRAIN:         (TAKE,       TAKE,      TAKE,        TAKE,   SKIP,     SKIP),
    Input.CLOSE:         (TAKE,       TAKE,      TAKE,        TAKE,   TAKE,     SKIP),
    Input.TICK:          (TAKE,       TAKE,      TAKE,        TAKE,   TAKE,     SKIP),
}
# fmt: on

TABLE: Final[Mapping[tuple[State, Input], Verdict]] = {
    (state, happening): verdict for happening, row in _ROWS.items() for state, verdict in zip(State, row, strict=True)
}
