"""The JSON form of files that hold keys: exact members, a named format and version, lower-case hex for bytes.

Whatever is not in the one accepted form is a :class:`~iop.errors.BadConfig` that names file and place, never a value.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from iop.errors import BadConfig, MalformedInput
from iop.wire.strict_json import parse_json

if TYPE_CHECKING:
    from pathlib import Path

FILE_LIMIT: Final = 64 * 1024
_VERSION: Final = 1
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})*\Z")


def encode_document(form: str, members: dict[str, object]) -> bytes:
    """The bytes of a key file of this format."""
    return (json.dumps({"format": form, "version": _VERSION, **members}, indent=2) + "\n").encode("ascii")


def parse_document(path: Path, data: bytes | bytearray, form: str, *names: str) -> dict[str, object]:
    """Read a key file of this format that has exactly the members ``names``."""
    try:
        value = parse_json(data)
    except MalformedInput as error:
        raise BadConfig(f"{path} is not a {form} file: {error.message}", hint="name another file") from None
    document = members(path, "the file", value, "format", "version", *names)
    version = document["version"]
    if document["format"] != form or type(version) is not int or version != _VERSION:
        raise BadConfig(f"{path} is not a {form} file of version {_VERSION}", hint="name another file")
    return document


def members(path: Path, place: str, value: object, *names: str) -> dict[str, object]:
    """``value`` as an object that has exactly the members ``names``."""
    if not isinstance(value, dict) or value.keys() != set(names):
        raise BadConfig(f"{path}: {place} must have exactly {', '.join(names)}", hint="restore the file from a copy")
    return value


def sequence(path: Path, place: str, value: object, limit: int) -> list[object]:
    """``value`` as a list of at least one and at most ``limit`` entries."""
    if not isinstance(value, list) or not 1 <= len(value) <= limit:
        raise BadConfig(f"{path}: {place} must be a list of 1 to {limit} entries", hint="restore the file from a copy")
    return value


def hex_bytes(path: Path, place: str, value: object, length: int) -> bytes:
    """``value`` as exactly ``length`` bytes in lower-case hex."""
    if not isinstance(value, str) or len(value) != 2 * length or not _HEX.match(value):
        raise BadConfig(f"{path}: {place} must be {length} bytes in hex", hint="restore the file from a copy")
    return bytes.fromhex(value)
