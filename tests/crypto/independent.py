"""Every construction a second time, from hashlib, zlib and libsodium's primitives alone.

Nothing here imports what it checks: the vectors in ``tests/vectors`` are what these functions give, and
``test_vectors`` holds both sides to them. Protobuf is written by hand, field by field.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from pathlib import Path
from typing import TypedDict

from nacl import bindings as sodium

VECTORS = Path(__file__).parent.parent / "vectors"


class Vector(TypedDict):
    """What a construction is given, and what it must give; bytes in hex."""

    given: dict[str, str]
    expected: dict[str, str]


def load(name: str) -> Vector:
    """The stored vector of one construction."""
    vector: Vector = json.loads((VECTORS / f"{name}.json").read_text("ascii"))
    return vector


def u32(number: int) -> bytes:
    """Four bytes, big-endian."""
    return number.to_bytes(4, "big")


def prefixed(*fields: bytes) -> bytes:
    """Each field after its length."""
    return b"".join(u32(len(field)) + field for field in fields)


def varint(number: int) -> bytes:
    """A protobuf varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def number_field(place: int, number: int) -> bytes:
    """A varint field."""
    return varint(place << 3) + varint(number)


def bytes_field(place: int, value: bytes) -> bytes:
    """A length-delimited field."""
    return varint(place << 3 | 2) + varint(len(value)) + value


def sealed_box(message: bytes, recipient: bytes, ephemeral_private: bytes) -> bytes:
    """libsodium's sealed box with a chosen ephemeral key."""
    ephemeral_public = sodium.crypto_scalarmult_base(ephemeral_private)
    nonce = hashlib.blake2b(ephemeral_public + recipient, digest_size=24).digest()
    return ephemeral_public + sodium.crypto_box_easy(message, nonce, recipient, ephemeral_private)


def sign(seed: bytes, message: bytes) -> bytes:
    """Ed25519."""
    _, private = sodium.crypto_sign_seed_keypair(seed)
    return sodium.crypto_sign(message, private)[:64]


def issuer_key_id(seed: bytes) -> bytes:
    """SHA-256 of the public key."""
    return hashlib.sha256(sodium.crypto_sign_seed_keypair(seed)[0]).digest()


def base62(number: int, width: int) -> str:
    """Left-padded, digits before capitals before small letters."""
    alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(alphabet[number // 62**place % 62] for place in range(width - 1, -1, -1))


def token_text(random: bytes) -> str:
    """The token of 32 random bytes."""
    body = "iop_" + base62(int.from_bytes(random, "big"), 43)
    return body + base62(zlib.crc32(body.encode()), 6)


def token(given: dict[str, str]) -> dict[str, str]:
    """A token with its verifier and proof."""
    text = token_text(bytes.fromhex(given["random"]))
    return {
        "text": text,
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "proof": hashlib.sha256(b"iop/token-proof/v1\0" + text.encode()).hexdigest(),
    }


def at_rest(given: dict[str, str]) -> dict[str, str]:
    """A sealed secret and its wrapped data key."""
    place = [
        given[name].encode()
        for name in ("deployment", "table", "column", "principal", "slot", "profile", "target", "revision")
    ]
    header = b"IOP1\x01"
    key, data_key = bytes.fromhex(given["key"]), bytes.fromhex(given["data_key"])
    wrap_nonce, nonce = bytes.fromhex(given["wrap_nonce"]), bytes.fromhex(given["nonce"])
    wrap_data = header + prefixed(b"iop/at-rest/key/v1", given["key_id"].encode(), *place)
    secret_data = header + prefixed(b"iop/at-rest/secret/v1", *place)
    encrypt = sodium.crypto_aead_xchacha20poly1305_ietf_encrypt
    return {
        "wrapped_key": (header + wrap_nonce + encrypt(data_key, wrap_data, wrap_nonce, key)).hex(),
        "box": (header + nonce + encrypt(given["secret"].encode(), secret_data, nonce, data_key)).hex(),
    }


BINDING_TEXTS = ("principal", "route", "slot", "profile", "target", "node")
BINDING_NUMBERS = ("credential_revision", "route_revision", "generation")


def lease(given: dict[str, str]) -> dict[str, str]:
    """A lease: statement, box, signature."""
    seed = bytes.fromhex(given["issuer_seed"])
    recipient = sodium.crypto_scalarmult_base(bytes.fromhex(given["recipient_private_key"]))
    binding = b"".join(bytes_field(n, given[name].encode()) for n, name in enumerate(BINDING_TEXTS, 1))
    binding += b"".join(number_field(n, int(given[name])) for n, name in enumerate(BINDING_NUMBERS, 7))
    core = b"".join(
        [
            bytes_field(1, given["lease_id"].encode()),
            bytes_field(2, issuer_key_id(seed)),
            bytes_field(3, given["deployment_id"].encode()),
            bytes_field(4, given["trust_domain"].encode()),
            bytes_field(5, given["edge"].encode()),
            bytes_field(6, binding),
            bytes_field(7, given["token_id"].encode()),
            number_field(8, int(given["not_before_ms"])),
            number_field(9, int(given["expires_ms"])),
            bytes_field(10, recipient),
        ]
    )
    secret = given["secret"].encode()
    content = hashlib.sha256(core).digest() + u32(len(secret)) + secret.ljust(256, b"\0")
    box = sealed_box(content, recipient, bytes.fromhex(given["ephemeral_private_key"]))
    signed = b"iop/lease/v1\0" + u32(len(core)) + core + hashlib.sha256(box).digest()
    return {"statement": core.hex(), "box": box.hex(), "signature": sign(seed, signed).hex()}


def attestation(given: dict[str, str]) -> dict[str, str]:
    """What an Ed25519 certificate key says about a Node key."""
    statement = b"".join(
        [
            bytes_field(1, given["trust_domain"].encode()),
            bytes_field(2, given["edge"].encode()),
            bytes_field(3, given["node"].encode()),
            bytes_field(4, bytes.fromhex(given["public_key"])),
            number_field(5, int(given["expires_ms"])),
        ]
    )
    signature = sign(bytes.fromhex(given["certificate_seed"]), b"iop/node-key/v1\0" + statement)
    return {"statement": statement.hex(), "signature": signature.hex()}


def possession(given: dict[str, str]) -> dict[str, str]:
    """A challenge and its answer."""
    public_key = sodium.crypto_scalarmult_base(bytes.fromhex(given["private_key"]))
    nonce = bytes.fromhex(given["nonce"])
    names = prefixed(given["edge"].encode(), given["node"].encode(), public_key)
    message = b"iop/pop-answer/v1\0" + names + bytes.fromhex(given["exporter"])
    sealed = sealed_box(b"iop/pop/v1\0" + nonce, public_key, bytes.fromhex(given["ephemeral_private_key"]))
    return {"challenge": sealed.hex(), "answer": hmac.new(nonce, message, "sha256").hexdigest()}


def receipt(given: dict[str, str]) -> dict[str, str]:
    """A projection receipt."""
    seed = bytes.fromhex(given["issuer_seed"])
    statement = b"".join(
        [
            bytes_field(1, issuer_key_id(seed)),
            bytes_field(2, given["deployment_id"].encode()),
            bytes_field(3, given["edge"].encode()),
            number_field(4, int(given["generation"])),
            bytes_field(5, bytes.fromhex(given["digest"])),
        ]
    )
    return {"statement": statement.hex(), "signature": sign(seed, b"iop/projection/v1\0" + statement).hex()}
