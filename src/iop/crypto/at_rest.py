"""How a provider secret lies in the store (security.md, At rest).

Each sealed value is ``IOP1`` ‖ algorithm ‖ 24 random bytes of nonce ‖ XChaCha20-Poly1305-IETF. A secret has a data key
of its own; the data key is wrapped under the keyring's primary key. Both are bound to the row they were made for:

- secret: header ‖ length-prefixed(``iop/at-rest/secret/v1``, deployment, table, column, principal, slot, profile,
  target, revision);
- data key: header ‖ length-prefixed(``iop/at-rest/key/v1``, keyring key id, the same eight), so that a new wrap never
  touches the secret's own bytes.

The header is ``IOP1`` ‖ algorithm, texts are UTF-8, the revision is decimal. PyNaCl takes and gives immutable
``bytes``: those short-lived copies cannot be zeroed, the buffers here are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from nacl import bindings as sodium
from nacl.exceptions import CryptoError

from iop.crypto.fields import length_prefixed
from iop.crypto.keyring import KEY_BYTES, Keyring
from iop.errors import CannotOpen, MalformedInput
from iop.records import SealedSecret
from iop.secret import Secret

#: No secret is ever longer, whatever a configuration allows (docs/limits.md).
SECRET_HARD_CAP: Final = 64 * 1024
_XCHACHA20_POLY1305: Final = 1
_NONCE_BYTES: Final = sodium.crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
_TAG_BYTES: Final = sodium.crypto_aead_xchacha20poly1305_ietf_ABYTES
_HEADER: Final = b"IOP1" + bytes([_XCHACHA20_POLY1305])
_OVERHEAD: Final = len(_HEADER) + _NONCE_BYTES + _TAG_BYTES
_SECRET_DOMAIN: Final = b"iop/at-rest/secret/v1"
_KEY_DOMAIN: Final = b"iop/at-rest/key/v1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sealed secret belongs, and what it may be used for. It opens nowhere else (P22)."""

    deployment: str
    table: str
    column: str
    principal: str
    slot: str
    profile: str
    target: str
    #: The credential revision.
    revision: int

    def fields(self) -> tuple[bytes, ...]:
        """The eight values in the order in which they are authenticated."""
        texts = (self.deployment, self.table, self.column, self.principal, self.slot, self.profile, self.target)
        return (*(text.encode() for text in texts), str(self.revision).encode())


def seal_secret(keyring: Keyring, place: Place, secret: Secret) -> SealedSecret:
    """Encrypt ``secret`` under a fresh data key, and that under the keyring's primary key. An empty secret is one too.

    :raises MalformedInput: if the secret is longer than 64 KiB.
    """
    if len(secret) > SECRET_HARD_CAP:
        raise MalformedInput(f"a secret has at most {SECRET_HARD_CAP} bytes", hint="check that it is the right file")
    with Secret(bytearray(os.urandom(KEY_BYTES))) as data_key:
        return SealedSecret(
            keyring.primary,
            _seal(keyring.key(keyring.primary), data_key, _wrap_data(place, keyring.primary)),
            _seal(data_key, secret, _secret_data(place)),
        )


def open_secret(keyring: Keyring, place: Place, sealed: SealedSecret) -> Secret:
    """Decrypt what :func:`seal_secret` made for this place; the caller disposes of it.

    :raises KeyMissing: if the keyring does not hold the key that ``sealed`` names.
    :raises CannotOpen: for every other reason, the same each time.
    """
    wrap_key = keyring.key(sealed.key_id)
    with _open(wrap_key, sealed.wrapped_key, _wrap_data(place, sealed.key_id), range(KEY_BYTES, KEY_BYTES + 1)) as key:
        return _open(key, sealed.box, _secret_data(place), range(SECRET_HARD_CAP + 1))


def _secret_data(place: Place) -> bytes:
    return _HEADER + length_prefixed(_SECRET_DOMAIN, *place.fields())


def _wrap_data(place: Place, key_id: str) -> bytes:
    return _HEADER + length_prefixed(_KEY_DOMAIN, key_id.encode(), *place.fields())


def _seal(key: Secret, plaintext: Secret, associated: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    ciphertext = sodium.crypto_aead_xchacha20poly1305_ietf_encrypt(
        bytes(plaintext.reveal()), associated, nonce, bytes(key.reveal())
    )
    return _HEADER + nonce + ciphertext


def _open(key: Secret, sealed: bytes, associated: bytes, lengths: range) -> Secret:
    """Open one sealed value whose plaintext has one of ``lengths``."""
    nonce_end = len(_HEADER) + _NONCE_BYTES
    if not sealed.startswith(_HEADER) or len(sealed) - _OVERHEAD not in lengths:
        raise CannotOpen
    try:
        return Secret(
            sodium.crypto_aead_xchacha20poly1305_ietf_decrypt(
                sealed[nonce_end:], associated, sealed[len(_HEADER) : nonce_end], bytes(key.reveal())
            )
        )
    except CryptoError:
        raise CannotOpen from None
