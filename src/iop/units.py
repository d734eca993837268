"""Identities, ids, times and the limits that several layers share.

Durations are ``float`` seconds and named ``*_seconds``; points in time are ``int`` Unix milliseconds, named ``*_ms``.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Final

#: Version of both peer wires that this code speaks; a hello with another one is refused.
PROTOCOL_VERSION: Final = 1

# -- limits (docs/limits.md); every one is tested at the limit and one past -------------------------------------------
#: Bytes of a Unix socket's path at most.
SOCKET_PATH_LIMIT: Final = 107
FRAME_BEFORE_HELLO: Final = 64 * 1024
FRAME_LIMIT: Final = 1024 * 1024
#: A page of a projection ends with the bucket that fills it, so there is room for that and for the envelope (E12).
HELLO_ANSWER_LIMIT: Final = 1024 * 1024 + 64 * 1024
BODY_PIECE: Final = 64 * 1024
IN_FLIGHT_LIMIT: Final = 1024
HANDSHAKE_SECONDS: Final = 10.0
KEEPALIVE_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 15.0
LEASE_TTL_SECONDS: Final = 60.0
LEASE_TTL_CAP_SECONDS: Final = 300.0
SKEW_SECONDS: Final = 5.0
SKEW_CAP_SECONDS: Final = 30.0
NODE_KEY_LIFE_SECONDS: Final = 600.0
REQUEST_DEADLINE_SECONDS: Final = 30.0
LEASE_CALL_SECONDS: Final = 5.0
NODE_WORD_SECONDS: Final = 2.0
PROJECTION_ACK_SECONDS: Final = 5.0
RUN_WINDOW: Final = 256 * 1024
SECRET_LIMIT: Final = 16 * 1024
#: Bytes of all entries of a projection: 100,000 tokens and as many routes. Even if all are routes, a bucket of them has
#: 256 KiB on average, so that a page of 512 KiB and the bucket that ends it stay in one frame (E12).
PROJECTION_BYTES: Final = 64 * 1024 * 1024
#: Characters of a model name, here and upstream, and of a selector.
MODEL_LIMIT: Final = 256
SELECTOR_LIMIT: Final = 1024

#: Names of Edges, Nodes, targets, providers: what may stand in a SPIFFE path segment.
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?\Z")
_DOMAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


def is_name(value: str) -> bool:
    """Whether ``value`` can name an Edge, Node, Control Plane, target or provider (1-63 of ``a-z 0-9 . _ -``)."""
    return _NAME.match(value) is not None


def fits_socket(path: Path) -> bool:
    """Whether a Unix socket can be at ``path``, which Linux gives 108 bytes with their zero."""
    return len(os.fsencode(path)) <= SOCKET_PATH_LIMIT


def is_trust_domain(value: str) -> bool:
    """Whether ``value`` can be the trust domain of a SPIFFE id."""
    return _DOMAIN.match(value) is not None


def is_request_id(value: str) -> bool:
    """Whether a caller's request id is sane enough to be kept."""
    return _REQUEST_ID.match(value) is not None


class Role(Enum):
    """Who a certificate speaks for; the value is the path segment of its SPIFFE id."""

    CONTROL_PLANE = "control-plane"
    EDGE = "edge"
    NODE = "node"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Identity:
    """The workload identity in a certificate's single URI SAN: ``spiffe://<trust domain>/iop/<role>/<name>``."""

    trust_domain: str
    role: Role
    name: str

    def uri(self) -> str:
        """The SPIFFE id as it stands in the certificate."""
        return f"spiffe://{self.trust_domain}/iop/{self.role.value}/{self.name}"

    @classmethod
    def parse(cls, uri: str) -> Identity:
        """Read exactly the one form; anything else raises :class:`ValueError`."""
        scheme, separator, rest = uri.partition("://")
        parts = rest.split("/")
        if scheme != "spiffe" or not separator or len(parts) != 4 or parts[1] != "iop":
            raise ValueError("not an iop workload identity")
        domain, _, role, name = parts
        if not is_trust_domain(domain) or not is_name(name):
            raise ValueError("not an iop workload identity")
        return cls(domain, Role(role), name)


def new_id(now_ms: int | None = None) -> str:
    """A new UUIDv7 (RFC 9562, 5.7): 48 bits of Unix milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    value = bytearray((milliseconds & ((1 << 48) - 1)).to_bytes(6, "big") + os.urandom(10))
    value[6] = 0x70 | (value[6] & 0x0F)
    value[8] = 0x80 | (value[8] & 0x3F)
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def rfc3339(moment_ms: int) -> str:
    """A point in time as RFC 3339 UTC with milliseconds."""
    seconds, milliseconds = divmod(moment_ms, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=1)
def _second(moment: int) -> str:
    # a busy process asks for the same one over and over
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
