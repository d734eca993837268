"""Looking for what must not be there: a marker in every spelling that a careless copy might have, in bytes and memory.

The marker itself is searched for raw, in hex, in base64 at each of its three alignments, and percent-encoded.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote_from_bytes

#: Shorter ones would be found by chance.
SHORTEST: Final = 12
#: Memory is read in pieces of this size, each searched together with the end of the one before.
_PIECE: Final = 4 * 1024 * 1024
#: Mappings of the kernel's own.
_KERNELS: Final = ("[vvar]", "[vvar_vclock]", "[vsyscall]", "[vdso]")
_NEEDS: Final = "run this test as root, with CAP_SYS_PTRACE, as CI does"


def spellings(marker: bytes) -> dict[str, bytes]:
    """Every form of ``marker`` that is searched for, by its name; at least :data:`SHORTEST` bytes."""
    if len(marker) < SHORTEST:
        raise ValueError(f"a marker of {len(marker)} bytes would be found by chance")
    escaped = b"".join(b"%%%02x" % byte for byte in marker)
    forms = {
        "raw": marker,
        "hex": marker.hex().encode(),
        "HEX": marker.hex().upper().encode(),
        "url": quote_from_bytes(marker, safe="").encode(),
        "url path": quote_from_bytes(marker).encode(),
        "url, every byte": escaped,
        "url, every byte, upper case": escaped.upper(),
    }
    for offset in range(3):
        # the first characters hold bits of what comes before, the last of what comes after
        first, end = (0, 2, 3)[offset], (offset + len(marker)) * 8 // 6
        for name, encode in (("base64", base64.b64encode), ("base64url", base64.urlsafe_b64encode)):
            forms[f"{name} at {offset}"] = encode(bytes(offset) + marker)[first:end]
    return forms


@dataclass(frozen=True, slots=True)
class Find:
    """Where a marker was found. Says which and in what form, never the marker."""

    place: str
    marker: str
    form: str


class Searcher:
    """Looks for markers.

    :param markers: name -> what must not be found.
    """

    def __init__(self, markers: Mapping[str, bytes]) -> None:
        self._needles = [
            (name, form, needle) for name, marker in markers.items() for form, needle in spellings(marker).items()
        ]
        self._overlap = max(len(needle) for _, _, needle in self._needles) - 1

    def in_bytes(self, place: str, data: bytes) -> list[Find]:
        """What ``data`` holds."""
        return [Find(place, name, form) for name, form, needle in self._needles if needle in data]

    def in_files(self, folder: Path) -> list[Find]:
        """What the files in and below ``folder`` hold; also a file's name counts."""
        finds: list[Find] = []
        for path in sorted(folder.rglob("*")):
            place = path.relative_to(folder).as_posix()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            finds += self.in_bytes(place, place.encode() + b"\0" + content)
        return finds

    def in_memory(self, pid: int) -> list[Find]:
        """What the memory of a process holds, whatever is mapped and can be read.

        :raises AssertionError: if it cannot be read: that a search found nothing must mean that it searched.
        """
        finds: dict[Find, None] = {}
        end = b""
        for piece in _memory(pid):
            finds.update(dict.fromkeys(self.in_bytes(f"memory of {pid}", end + piece)))
            end = piece[-self._overlap :]
        return list(finds)


def process_words(pid: int) -> bytes:
    """Command line and environment of a process.

    :raises AssertionError: if they cannot be read.
    """
    try:
        return b"\0".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    except OSError as error:
        raise AssertionError(f"/proc/{pid} cannot be read ({error.strerror}): {_NEEDS}") from error


def with_children(pid: int) -> Iterator[int]:
    """A process, and all that descend from it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from with_children(int(child))


def _memory(pid: int) -> Iterator[bytes]:
    """The memory of a process, in pieces."""
    read = 0
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for start, end in _regions(Path(f"/proc/{pid}/maps").read_text().splitlines()):
                for at in range(start, end, _PIECE):
                    try:
                        piece = os.pread(descriptor, min(_PIECE, end - at), at)
                    except OSError:
                        # unmapped since, or a mapping beyond the end of its file: nothing is there
                        continue
                    read += len(piece)
                    yield piece
        finally:
            os.close(descriptor)
    except OSError as error:
        raise AssertionError(f"the memory of {pid} cannot be read ({error.strerror}): {_NEEDS}") from error
    if not read:
        raise AssertionError(f"nothing of the memory of {pid} could be read: {_NEEDS}")


def _regions(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Start and end of each region of ``/proc/PID/maps`` that can be read and is the process's."""
    for line in lines:
        addresses, rights, *_ = line.split()
        if rights.startswith("r") and not line.endswith(_KERNELS):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)
