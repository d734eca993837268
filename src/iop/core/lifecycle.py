"""Why the connection of a Node ended, as an Edge tells it: a closed list of codes (rules S12, S13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from iop.errors import IopError

#: The code of every end that has none of its own below.
OTHER_END: Final = "internal"
#: What each code says, in fixed words (C46).
NODE_ENDS: Final[Mapping[str, str]] = {
    "peer_disconnected": "the connection ended",
    "peer_silent": "nothing was heard from it",
    "peer_not_reading": "it did not take what it was sent",
    "handshake_timeout": "its handshake took too long",
    "request_timed_out": "it did not answer in time",
    "tls_failed": "TLS failed",
    "identity_refused": "its certificate no longer holds",
    "attestation_refused": "its key is not vouched for",
    "possession_refused": "it did not prove that it holds its key",
    "hello_refused": "its hello was refused",
    "protocol_violation": "it broke the wire",
    "frame_too_large": "it broke the wire",
    "malformed_frame": "it broke the wire",
    "unexpected_message": "it broke the wire",
    "duplicate_correlation": "it broke the wire",
    "stray_answer": "it broke the wire",
    "flow_violation": "it broke the wire",
    "too_many_in_flight": "it asked too much at once",
    "too_many_connections": "there were too many connections",
    "draining": "one of the two was stopping",
    "disconnected": "an operator had it disconnected",
    OTHER_END: "the Edge failed; its log says where",
}


def end_code(reason: IopError) -> str:
    """The code for ``reason``, which is never anything that is not in :data:`NODE_ENDS`."""
    return reason.code if reason.code in NODE_ENDS else OTHER_END
