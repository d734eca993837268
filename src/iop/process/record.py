"""``run/<role>.json``: what a started role says of itself to whoever shares its machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iop.errors import FileRefused, MalformedInput
from iop.files import make_folder, read_public, write_atomic
from iop.wire.strict_json import parse_json

if TYPE_CHECKING:
    from pathlib import Path

    from iop.units import Role

_LIMIT: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One process.

    :ivar name: the name in the role's identity.
    :ivar addresses: the bound addresses by name, ``{"api": "127.0.0.1:40123"}``.
    """

    name: str
    pid: int
    addresses: Mapping[str, str]

    def write(self, folder: Path, role: Role) -> Path:
        """Write it, and answer where; the folder is made if need be.

        :raises FileRefused: if it cannot be written.
        """
        path = record_path(folder, role)
        make_folder(folder, 0o755)
        document = {"role": role.value, "name": self.name, "pid": self.pid, "addresses": dict(self.addresses)}
        write_atomic(path, json.dumps(document, indent=2).encode() + b"\n", 0o644)
        return path

    @classmethod
    def read(cls, folder: Path, role: Role) -> RunRecord | None:
        """What the last process of ``role`` wrote; None if it took that away when it ended, or never started.

        :raises FileRefused: if it cannot be read, or no role wrote it.
        """
        path = record_path(folder, role)
        if not path.exists():
            return None
        try:
            document = parse_json(read_public(path, _LIMIT))
        except MalformedInput:
            document = None
        match document:
            case {"name": str(name), "pid": int(pid), "addresses": dict(addresses)} if pid > 0:
                return cls(name, pid, {str(key): str(value) for key, value in addresses.items()})
        raise FileRefused(f"{path} was not written by a role", hint="remove it; a role that starts writes it anew")


def mark_files_read(path: Path) -> None:
    """Note in the record at ``path`` that its role has read its files again: it is as old as that reading."""
    # who took the record away asks nothing of it
    with suppress(FileNotFoundError):
        os.utime(path)


def record_path(folder: Path, role: Role) -> Path:
    """Where a role writes its record in the folder of ``[run] directory``."""
    return folder / f"{role.value}.json"
