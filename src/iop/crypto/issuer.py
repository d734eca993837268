"""The Ed25519 key that signs leases and projection receipts, and the set of public keys that others pin (K15).

A key's id is SHA-256 of its public key. The private half lies in a file of the Control Plane; the public set is a file
mounted at every Node. Each kind of message that is signed starts with a domain string of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from nacl.bindings import (
    crypto_sign,
    crypto_sign_BYTES,
    crypto_sign_open,
    crypto_sign_PUBLICKEYBYTES,
    crypto_sign_seed_keypair,
    crypto_sign_SEEDBYTES,
)
from nacl.exceptions import BadSignatureError

from iop.crypto.key_files import FILE_LIMIT, encode_document, hex_bytes, members, parse_document, sequence
from iop.errors import BadConfig
from iop.files import create_atomic, create_private, read_private, read_public, write_atomic
from iop.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SIGNATURE_BYTES: Final = crypto_sign_BYTES
#: So many keys may be pinned at once; a signature is tried against each.
PINNED_LIMIT: Final = 8
#: Signatures that are known to hold, so that they are not computed again.
VERIFIED_LIMIT: Final = 1024
_KEY_FORM: Final = "iop-issuer-key"
_SET_FORM: Final = "iop-issuers"
_PUBLIC_MODE: Final = 0o644


def key_id_of(public_key: bytes) -> bytes:
    """The id of an issuer key: SHA-256 of its public half."""
    return hashlib.sha256(public_key).digest()


class Issuer:
    """A private issuer key.

    :param seed: 32 bytes, taken over and disposed of.
    """

    def __init__(self, seed: Secret) -> None:
        with seed:
            self.public_key, private_key = crypto_sign_seed_keypair(bytes(seed.reveal()))
        self._private_key = Secret(private_key)
        self.key_id = key_id_of(self.public_key)

    @classmethod
    def create(cls, path: Path) -> Issuer:
        """Make a new key and write it to ``path``.

        :raises AlreadyExists: if something is at ``path``; it is left alone.
        :raises FileRefused: if ``path`` cannot be written.
        """
        seed = Secret(bytearray(os.urandom(crypto_sign_SEEDBYTES)))
        document = encode_document(_KEY_FORM, {"seed": seed.reveal().hex()})
        create_private(path, document, "nothing can be issued in its name without it")
        return cls(seed)

    @classmethod
    def load(cls, path: Path) -> Issuer:
        """Read a private key file.

        :raises FileRefused: if the file is not a private one of ours.
        :raises BadConfig: if its content is not exactly an issuer key.
        """
        with Secret(read_private(path, FILE_LIMIT)) as data:
            document = parse_document(path, data.reveal(), _KEY_FORM, "seed")
        return cls(Secret(hex_bytes(path, "seed", document["seed"], crypto_sign_SEEDBYTES)))

    def sign(self, message: bytes) -> bytes:
        """64 bytes of Ed25519 signature. ``message`` starts with the domain string of its kind."""
        return crypto_sign(message, bytes(self._private_key.reveal()))[:SIGNATURE_BYTES]


class PinnedIssuers:
    """The issuers whose signatures count; nobody else's do (P4).

    :param public_keys: one to eight different Ed25519 public keys.
    """

    def __init__(self, public_keys: Iterable[bytes]) -> None:
        self._public_keys = {key_id_of(key): key for key in public_keys}
        # SHA-256 of signature and message -> whose it is. An Edge uses one lease for many runs, and whether its
        # signature holds depends on nothing but these and the keys, which never change.
        self._verified: OrderedDict[bytes, bytes] = OrderedDict()

    @classmethod
    def load(cls, path: Path) -> PinnedIssuers:
        """Read a public set file.

        :raises FileRefused: if it cannot be read.
        :raises BadConfig: if its content is not exactly a set of one to eight different keys, each under its own id.
        """
        document = parse_document(path, read_public(path, FILE_LIMIT), _SET_FORM, "issuers")
        keys: dict[bytes, None] = {}
        for place, value in enumerate(sequence(path, "issuers", document["issuers"], PINNED_LIMIT)):
            name = f"issuers[{place}]"
            member = members(path, name, value, "key_id", "public_key")
            key = hex_bytes(path, f"{name}.public_key", member["public_key"], crypto_sign_PUBLICKEYBYTES)
            if hex_bytes(path, f"{name}.key_id", member["key_id"], 32) != key_id_of(key) or key in keys:
                raise BadConfig(
                    f"{path}: {name}.key_id is not the SHA-256 of its public key, or stands there twice",
                    hint="copy the file again from where `iop issuer init` wrote it",
                )
            keys[key] = None
        return cls(keys)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """(key id, public key) of each pinned issuer."""
        return iter(self._public_keys.items())

    def signer(self, message: bytes, signature: bytes) -> bytes | None:
        """The id of the pinned issuer that signed ``message``, or None.

        Each pinned key is tried: the id that a message names stands inside it and is not read before a signature holds.
        """
        if len(signature) != SIGNATURE_BYTES:
            return None
        signed = signature + message
        digest = hashlib.sha256(signed).digest()
        known = self._verified.get(digest)
        if known is not None:
            self._verified.move_to_end(digest)
            return known
        for key_id, public_key in self:
            try:
                crypto_sign_open(signed, public_key)
            except BadSignatureError:
                continue
            self._verified[digest] = key_id
            if len(self._verified) > VERIFIED_LIMIT:
                self._verified.popitem(last=False)
            return key_id
        return None


def write_public_set(path: Path, public_keys: Iterable[bytes]) -> None:
    """Write the file that Nodes pin, readable by everybody, in place of what was there.

    :raises FileRefused: if it cannot be written.
    """
    write_atomic(path, _public_set(public_keys), _PUBLIC_MODE)


def create_public_set(path: Path, public_keys: Iterable[bytes]) -> None:
    """Make the file that Nodes pin, readable by everybody, where there is none.

    :raises AlreadyExists: if something is at ``path``; it is left alone.
    :raises FileRefused: if ``path`` cannot be written.
    """
    loss = "Nodes that pin what is in it would refuse every lease without it"
    create_atomic(path, _public_set(public_keys), _PUBLIC_MODE, loss)


def _public_set(public_keys: Iterable[bytes]) -> bytes:
    entries = [{"key_id": key_id_of(key).hex(), "public_key": key.hex()} for key in public_keys]
    return encode_document(_SET_FORM, {"issuers": entries})
