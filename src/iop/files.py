"""Files that hold secrets, and files that must never be half written.

A private file is opened without following a link and judged by its descriptor, so nothing can be swapped between the
look and the read. Every refusal is a :class:`~iop.errors.FileRefused` that names the path and says what to do.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from iop.errors import AlreadyExists, FileRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Mode of every file with secrets.
PRIVATE_MODE = 0o600
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_DESCRIPTOR_HINT = "raise the limit of open files that this process is started with"


def read_private(path: Path, limit: int) -> bytearray:
    """Read a file with secrets: a regular file, ours, closed to group and others, not reached through a link.

    :param limit: bytes it may have at most.
    :returns: a buffer that is the caller's to zero.
    :raises FileRefused: if it is any other kind of file, or cannot be read.
    """
    with _opened(path, os.O_NOFOLLOW) as descriptor:
        _require_private(path, os.fstat(descriptor))
        return _contents(path, descriptor, limit)


def check_private(path: Path) -> None:
    """Refuse a file as :func:`read_private` does, but for one that something else will read, perhaps behind a link.

    :raises FileRefused: if it is such a file, or is not there.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise FileRefused(f"{path} cannot be read: {_reason(error)}", hint=_read_hint(path, error)) from error
    _require_regular(path, status)
    _require_private(path, status)


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise FileRefused(f"{path} is not a regular file", hint="name a file that holds the data itself")


def _require_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise FileRefused(
            f"{path} belongs to user {status.st_uid}, not to user {os.geteuid()} who reads it",
            hint=f"chown {os.geteuid()} {path}",
        )
    if stat.S_IMODE(status.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise FileRefused(f"{path} holds secrets and is open to group or others", hint=f"chmod 600 {path}")


def read_public(path: Path, limit: int) -> bytes:
    """Read a file without secrets: a regular file, perhaps behind a link, that not everybody may write.

    What is read decides whom a role trusts, so whoever may write it is trusted.

    :param limit: bytes it may have at most.
    :raises FileRefused: if it is any other kind of file, or cannot be read.
    """
    with _opened(path, 0) as descriptor:
        if os.fstat(descriptor).st_mode & stat.S_IWOTH:
            raise FileRefused(f"{path} can be written by every user of this machine", hint=f"chmod o-w {path}")
        return bytes(_contents(path, descriptor, limit))


def write_private(path: Path, data: bytes | bytearray) -> None:
    """Write a file with secrets, mode 0600, replacing what was there as a whole; see :func:`write_atomic`."""
    write_atomic(path, data, PRIVATE_MODE)


def write_atomic(path: Path, data: bytes | bytearray, mode: int) -> None:
    """Replace ``path`` so that whoever reads it, even after a crash, finds all of the old or all of the new (P46).

    The data is on disk under another name before it gets this one, and the new name is on disk before this returns.

    :param mode: permission bits of the file, whatever the umask.
    :raises FileRefused: if it cannot be written; what was there is then unchanged.
    """
    try:
        _place(path, data, mode, os.rename)
    except OSError as error:
        raise FileRefused(f"{path} cannot be written: {_reason(error)}", hint=_write_hint(path, error)) from error


def create_private(path: Path, data: bytes | bytearray, loss: str) -> None:
    """Make a file with secrets, mode 0600, where there is none; see :func:`create_atomic`."""
    create_atomic(path, data, PRIVATE_MODE, loss)


def create_atomic(path: Path, data: bytes | bytearray, mode: int, loss: str) -> None:
    """:func:`write_atomic`, but for a name that nothing has; of two that create one file at once, one is refused.

    :param mode: permission bits of the file, whatever the umask.
    :param loss: what would be lost with what is there, as the end of a sentence.
    :raises AlreadyExists: if there is anything at ``path``; it is left alone.
    :raises FileRefused: if it cannot be written.
    """
    try:
        _place(path, data, mode, _link)
    except FileExistsError:
        raise AlreadyExists(
            f"{path} exists already, and {loss}", hint="name another file, or move that one away first"
        ) from None
    except OSError as error:
        raise FileRefused(f"{path} cannot be written: {_reason(error)}", hint=_write_hint(path, error)) from error


def _link(temporary: str, path: Path) -> None:
    """Give a file its name only if nothing has it: rename(2) would take it from another."""
    os.link(temporary, path)
    os.unlink(temporary)


def _place(path: Path, data: bytes | bytearray, mode: int, name: Callable[[str, Path], None]) -> None:
    """Write ``data`` under another name beside ``path``, have ``name`` give it this one, and all of it on disk."""
    # mkstemp creates with 0600, so the data is never open to others, not even for a moment
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            with memoryview(data) as rest:
                written = 0
                while written < len(rest):
                    written += file.write(rest[written:])
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        name(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def make_folder(path: Path, mode: int = 0o700) -> None:
    """Make a folder, and those above it; nothing happens if it is there.

    :param mode: permission bits of a folder that is made, less the umask.
    :raises FileRefused: if it cannot be made.
    """
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise FileRefused(
            f"{path} cannot be made: {_reason(error)}", hint=f"check what `ls -ld {path.parent}` says"
        ) from error


def straightened(path: Path) -> Path:
    """The absolute path without ``..``, as people read it; left as it is where a link makes ``..`` lead elsewhere.

    Links stay links: one that is turned to another place later is followed there.
    """
    absolute = path.absolute()
    plain = Path(os.path.normpath(absolute))
    return plain if os.path.realpath(plain) == os.path.realpath(absolute) else absolute


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of a regular file. ``O_NONBLOCK``, because opening a FIFO would wait for its writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileRefused(f"{path} is a symbolic link", hint="name the file itself, not a link to it") from error
        raise FileRefused(f"{path} cannot be read: {_reason(error)}", hint=_read_hint(path, error)) from error
    try:
        _require_regular(path, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def _contents(path: Path, descriptor: int, limit: int) -> bytearray:
    """All of a file in one buffer that is never copied, growing files included."""
    buffer = bytearray(min(os.fstat(descriptor).st_size, limit) + 1)
    filled = 0
    try:
        with memoryview(buffer) as view:
            while filled < len(buffer) and (count := os.readv(descriptor, [view[filled:]])):
                filled += count
        if filled == len(buffer):
            raise FileRefused(
                f"{path} is longer than {limit} bytes, or was written while it was read",
                hint="check that this is the file you meant",
            )
    except BaseException as error:
        buffer[:] = bytes(len(buffer))
        if isinstance(error, OSError):
            raise FileRefused(f"{path} cannot be read: {_reason(error)}", hint=_read_hint(path, error)) from error
        raise
    del buffer[filled:]
    return buffer


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else "unknown error"


def _read_hint(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"check the name, or create {path}"
    if error.errno in _NO_DESCRIPTOR:
        return _DESCRIPTOR_HINT
    return f"check what `ls -ld {path}` says"


def _write_hint(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"create the folder first: mkdir -p {path.parent}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"free some space where {path.parent} is"
    if error.errno == errno.EFBIG:
        return "raise the limit of file sizes that this process is started with"
    if error.errno in _NO_DESCRIPTOR:
        return _DESCRIPTOR_HINT
    return f"check what `ls -ld {path.parent} {path}` says"
