"""What a Control Plane's database holds that another file has to fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iop.cli.doctor.checks import Finding, fault, ok, warning
from iop.crypto.keyring import Keyring
from iop.errors import KeyMissing
from iop.store.survey import survey

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from iop.cli.doctor.configured import Configured

#: Names listed in one sentence at most.
_LISTED: Final = 5


def secrets(database: Path, deployment: str, path: Path) -> Finding:
    """Whether the keyring ``path`` has every key that stored secrets are under; none of them is opened.

    :raises IopError: if either cannot be read.
    """
    keyring, sealed = Keyring.load(path), survey(database, deployment).sealed
    missing = [key_id for key_id in sealed if not _has(keyring, key_id)]
    count = sum(map(len, sealed.values()))
    if not missing:
        return ok(f"{path} has the keys of all {count} stored secrets")
    slots = sorted(slot for key_id in missing for slot in sealed[key_id])
    return fault(
        f"{path} has not the keys that {len(slots)} of {count} stored secrets are under, so they cannot be leased: "
        f"keys {_some(missing)}; slots {_some(slots)}",
        "name the keyring that has these keys in [keys] keyring, from a copy if need be, and start again; if there is "
        "none, the secrets are lost, and have to be submitted again",
    )


def denials(database: Path, deployment: str, among: Sequence[Configured], config: Path) -> Finding:
    """Whether a role whose configuration is at hand is denied.

    :param config: of the Control Plane.
    :raises IopError: if the database cannot be read.
    """
    denied = survey(database, deployment).denied
    here = sorted(denied & {(each.role.value, each.name) for each in among if each.config.deployment.id == deployment})
    if here:
        return warning(
            f"denied: {_some([f'{kind} {name}' for kind, name in here])}",
            f"if that is over: {'; '.join(f'iop {kind} allow {name} --config {config}' for kind, name in here)}",
        )
    if denied:
        return ok(f"denied, and not looked at here: {_some([f'{kind} {name}' for kind, name in sorted(denied)])}")
    return ok("nobody is denied")


def _has(keyring: Keyring, key_id: str) -> bool:
    try:
        keyring.key(key_id)
    except KeyMissing:
        return False
    return True


def _some(names: Collection[str]) -> str:
    """A list for people, with an end."""
    shown = ", ".join([*names][:_LISTED])
    return f"{shown} and {len(names) - _LISTED} more" if len(names) > _LISTED else shown
