"""The keys that stored secrets are wrapped with, in one mounted file (security.md, At rest; K15)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from iop.crypto.key_files import FILE_LIMIT, encode_document, hex_bytes, members, parse_document, sequence
from iop.errors import BadConfig, KeyMissing
from iop.files import create_private, read_private
from iop.secret import Secret
from iop.units import new_id

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KEY_BYTES: Final = 32
KEY_COUNT_LIMIT: Final = 64
_FORM: Final = "iop-keyring"


class KeyState(Enum):
    """Life of a keyring key, in this order. Only a primary wraps; all but a destroyed one unwrap."""

    ADDED = "added"
    PRIMARY = "primary"
    DECRYPT_ONLY = "decrypt-only"
    DESTROYED = "destroyed"


@dataclass(frozen=True, slots=True, eq=False)
class KeyringKey:
    """One key; a destroyed one keeps its id and has no bytes."""

    key_id: str
    state: KeyState
    key: Secret | None


class Keyring:
    """The keys of one keyring file, chosen by id and never by trying.

    :param keys: with different ids, exactly one of them primary.
    """

    def __init__(self, keys: Iterable[KeyringKey]) -> None:
        self._keys = {entry.key_id: entry for entry in keys}
        #: Id of the key that new secrets are wrapped with.
        (self.primary,) = (entry.key_id for entry in self._keys.values() if entry.state is KeyState.PRIMARY)

    @classmethod
    def create(cls, path: Path) -> Keyring:
        """Make a keyring of one new primary key and write it to ``path``.

        :raises AlreadyExists: if something is at ``path``; it is left alone.
        :raises FileRefused: if ``path`` cannot be written.
        """
        key = Secret(bytearray(os.urandom(KEY_BYTES)))
        entry = KeyringKey(new_id(), KeyState.PRIMARY, key)
        member = {"id": entry.key_id, "state": entry.state.value, "key": key.reveal().hex()}
        document = encode_document(_FORM, {"keys": [member]})
        create_private(path, document, "every secret stored under its keys would be lost with it")
        return cls([entry])

    @classmethod
    def load(cls, path: Path) -> Keyring:
        """Read a keyring file.

        :raises FileRefused: if the file is not a private one of ours.
        :raises BadConfig: if its content is not exactly a keyring.
        """
        with Secret(read_private(path, FILE_LIMIT)) as data:
            document = parse_document(path, data.reveal(), _FORM, "keys")
        entries = [
            _entry(path, f"keys[{place}]", value)
            for place, value in enumerate(sequence(path, "keys", document["keys"], KEY_COUNT_LIMIT))
        ]
        if len({entry.key_id for entry in entries}) != len(entries):
            raise BadConfig(f"{path}: two keys have the same id", hint="restore the file from a copy")
        if sum(entry.state is KeyState.PRIMARY for entry in entries) != 1:
            raise BadConfig(f"{path}: exactly one key must be primary", hint="restore the file from a copy")
        return cls(entries)

    def key(self, key_id: str) -> Secret:
        """The bytes of one key.

        :raises KeyMissing: if the keyring never had it, or it was destroyed.
        """
        entry = self._keys.get(key_id)
        if entry is None or entry.key is None:
            raise KeyMissing(
                f"the keyring holds no key {key_id[:64]!r}",
                hint="mount the keyring that this secret was stored under, or submit the secret again",
            )
        return entry.key


def _entry(path: Path, place: str, value: object) -> KeyringKey:
    member = members(path, place, value, "id", "state", "key")
    key_id, state, key = member["id"], member["state"], member["key"]
    if not isinstance(key_id, str) or not _is_id(key_id):
        raise BadConfig(f"{path}: {place}.id must be a UUID", hint="restore the file from a copy")
    try:
        known = KeyState(state)
    except ValueError:
        states = ", ".join(each.value for each in KeyState)
        raise BadConfig(f"{path}: {place}.state must be one of {states}", hint="restore the file from a copy") from None
    if known is not KeyState.DESTROYED:
        return KeyringKey(key_id, known, Secret(hex_bytes(path, f"{place}.key", key, KEY_BYTES)))
    if key is not None:
        raise BadConfig(f"{path}: {place} is destroyed and must have null as key", hint="restore the file from a copy")
    return KeyringKey(key_id, known, None)


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
