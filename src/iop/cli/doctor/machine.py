"""What a role needs of its machine: folders, addresses, descriptors; and the process that runs, if one does."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import maybeDeferred
from twisted.internet.protocol import Factory, Protocol

from iop.cli.doctor.checks import Finding, fault, ok, warning
from iop.errors import BadConfig
from iop.process.config import listening_address
from iop.process.listen import bound_address, listen
from iop.process.record import RunRecord, record_path
from iop.process.role import descriptors_wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iop.units import Role

#: Free bytes below which a folder is worth a warning.
LOW_SPACE: Final = 256 * 1024 * 1024


def running(folder: Path, role: Role) -> RunRecord | None:
    """The process of ``role`` that runs, as far as its record in ``folder`` says.

    :raises FileRefused: if that cannot be read.
    """
    record = RunRecord.read(folder, role)
    return record if record is not None and _is_own(record.pid) is not None else None


def process(folder: Path, role: Role) -> Finding:
    """Whether the role runs, and as this user: what this user may read says nothing about another."""
    record = RunRecord.read(folder, role)
    own = None if record is None else _is_own(record.pid)
    if record is None or own is None:
        return ok("does not run")
    if not own:
        return fault(
            f"process {record.pid} runs as another user, so what is found here does not hold for it",
            f"run iop doctor as the user of process {record.pid}; if that is no {role.value}, "
            f"remove {record_path(folder, role)}",
        )
    return ok(f"runs as process {record.pid}")


def _is_own(pid: int) -> bool | None:
    """Whether a process is this user's; None if there is no such process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return False
    return True


def folder(path: Path) -> Finding:
    """Whether files can be written in a folder, or the folder be made, and whether there is space left."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"\0")
        free = shutil.disk_usage(there).free
    except OSError as error:
        return fault(
            f"nothing can be written in {there}: {error.strerror}",
            f"make the folder this user's own: check what `ls -ld {there}` and `df {there}` say",
        )
    if free < LOW_SPACE:
        return warning(f"{there} has {free // 2**20} MiB of space left", f"free some space where {there} is")
    said = f"{path} can be written" if there == path else f"{path} is not there yet and can be made"
    return ok(f"{said}, {free // 2**20:,} MiB are free")


def files_in_force(directory: Path, role: Role, files: Sequence[Path]) -> Finding:
    """Whether the role that runs has read its files since they were changed.

    A file's status change counts, which neither a copied date nor a rename hides; a change of permissions is one, too.

    :param files: that the role reads when it starts, and at SIGHUP.
    """
    record, read_ns = running(directory, role), _modified_ns(record_path(directory, role))
    if record is None or read_ns is None:
        return ok("the role does not run")
    changed = [str(path) for path in dict.fromkeys(files) if (_changed_ns(path) or 0) > read_ns]
    if not changed:
        return ok("none was changed since the role read them")
    return warning(
        f"changed since the role read its files, and not in force: {', '.join(changed)}",
        f"have it read them again: kill -HUP {record.pid}",
    )


def _modified_ns(path: Path) -> int | None:
    status = _status(path)
    return status.st_mtime_ns if status else None


def _changed_ns(path: Path) -> int | None:
    status = _status(path)
    return status.st_ctime_ns if status else None


def _status(path: Path) -> os.stat_result | None:
    """None for what is not there; that a file should be is said elsewhere."""
    try:
        return path.stat()
    except OSError:
        return None


async def listener(reactor: object, key: str, endpoint: str, record: RunRecord | None) -> Finding:
    """Whether a role can listen where it is told to, or does so already.

    :param key: the table of ``listen``, and the name of the address in ``record``.
    :param record: of the role's running process.
    :raises BadConfig: if the address cannot be had.
    """
    held = record.addresses.get(key) if record else None
    wanted = listening_address(endpoint)[1]
    if record and held and (wanted == 0 or held.rpartition(":")[2] == str(wanted)):
        return ok(f"{held} is held by this role, process {record.pid}")
    try:
        port = await listen(reactor, endpoint, Factory.forProtocol(Protocol), f"[{key}] listen")
    except BadConfig as error:
        return fault(error.message, f"{error.hint}; see what does: ss -ltnp 'sport = :{wanted}'")
    address = bound_address(port)
    await maybeDeferred(port.stopListening)
    if held:
        return warning(f"the role listens at {held} still, not at {address}", "restart it to have it listen there")
    return ok("any free port" if wanted == 0 else f"{address} is free")


def descriptors(connections: int, record: RunRecord | None) -> Finding:
    """Whether a role may have as many descriptors open as its limits of connections ask for.

    A role takes what the hard limit allows; that of its process counts, and without one that of this process.

    :param connections: as many as may be open at once.
    """
    needed = descriptors_wanted(connections)
    _, hard = resource.prlimit(record.pid if record else 0, resource.RLIMIT_NOFILE)
    if hard >= needed:
        return ok(f"{needed:,} may be needed, and the limit allows them")
    return warning(
        f"the hard limit is {hard:,}, and {needed:,} may be needed when every connection is taken",
        f"raise it where the role is started: LimitNOFILE={needed} in systemd, or ulimit -Hn {needed} before twistd",
    )
