"""One way to put several values into bytes that are hashed, signed or authenticated."""

from __future__ import annotations


def length_prefixed(*fields: bytes) -> bytes:
    """Join ``fields`` so that no two different lists give the same bytes: each has its length before it, u32be."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)
