"""Every file that a role is configured with, as something that it must not be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from twisted.internet import reactor as running
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from iop.cli.quickstart.configs import write_configs
from iop.cli.quickstart.home import Home, Member
from iop.control_plane.tap import KIND as CONTROL_PLANE
from iop.edge.tap import KIND as EDGE
from iop.errors import FileRefused, IopError, StoreUnavailable
from iop.net.clock import ReactorClock
from iop.node.tap import KIND as NODE
from iop.process.config import load
from iop.process.metrics import new_registry
from iop.process.role import IReactor, IRole, RoleKind

reactor = cast(IReactor, running)

#: Where folders stand in configurations.
FOLDERS = ("directory",)
#: Whoever runs the tests, this is another user.
STRANGER = os.geteuid() + 1

Spoil = Callable[[Path], object]


def files_of(table: BaseModel) -> Iterator[Path]:
    """Every file that a configuration names, in whatever table."""
    for name, value in table:
        if isinstance(value, BaseModel):
            yield from files_of(value)
        elif isinstance(value, dict):
            for each in value.values():
                yield from files_of(each)
        elif isinstance(value, Path) and name not in FOLDERS:
            yield value


def replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def replaced_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def replaced_by_link(path: Path) -> None:
    moved = path.rename(path.with_name(f"{path.name}.moved"))
    path.symlink_to(moved)


def replaced_by_other_owner(path: Path) -> None:
    os.chown(path, STRANGER, -1)


def restore(kept: Path, path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    kept.replace(path)


#: What nobody may put in place of any file.
NO_FILE: tuple[Spoil, ...] = (Path.unlink, replaced_by_folder, replaced_by_fifo)
OPEN: tuple[tuple[Spoil, str], ...] = (
    (lambda path: path.chmod(0o644), "chmod 600"),
    (lambda path: path.chmod(0o660), "chmod 600"),
    (replaced_by_other_owner, f"chown {os.geteuid()}"),
)


class FileRefusalTests(TestCase):
    """What a role reads is refused at its start with its name and what to do, if it is not what it should be."""

    timeout = 120

    def setUp(self) -> None:
        self.home = Home(Path(self.mktemp()))
        with self.home.held():
            settings = self.home.settings()
            self.home.keep(settings)
            self.home.make_certificates(1)
            self.home.make_keys()
            self.home.make_store(settings.deployment)
            write_configs(self.home, settings)

    async def prepared(self, kind: RoleKind[Any]) -> None:
        """Have a role read all of its files, and give back what it took."""
        config = load(self.home.config(Member(kind.role)), kind.config, kind.role)
        role: IRole = kind.build(config, ReactorClock(reactor), reactor, new_registry())
        try:
            await role.prepare()
        finally:
            await role.drain()

    async def refusal(self, kind: RoleKind[Any], path: Path, spoil: Spoil) -> IopError:
        """Spoil one file; how the role refuses it. The file is whole again afterwards, and the role takes it."""
        kept = path.with_name(f"{path.name}.kept")
        shutil.copy2(path, kept)
        spoil(path)
        attempt: Deferred[Any] = Deferred.fromCoroutine(self.prepared(kind))
        refused: IopError = await self.assertFailure(attempt, FileRefused, StoreUnavailable)
        self.assertIn(str(path), refused.message)
        self.assertTrue(refused.hint)
        restore(kept, path)
        await self.prepared(kind)
        return refused

    async def check(self, kind: RoleKind[Any], private: set[str], public: set[str]) -> None:
        """Go over all files that the role's configuration names; these are their names."""
        files = set(files_of(load(self.home.config(Member(kind.role)), kind.config, kind.role)))
        closed = {path for path in files if not path.stat().st_mode & 0o077}
        self.assertEqual({path.name for path in closed}, private)
        self.assertEqual({path.name for path in files - closed}, public)
        for path in files:
            for spoil in NO_FILE:
                await self.refusal(kind, path, spoil)
        for path in files - closed:
            refused = await self.refusal(kind, path, lambda path: path.chmod(0o666))
            self.assertEqual(refused.hint, f"chmod o-w {path}")
        for path in closed:
            for spoil, remedy in OPEN:
                self.assertEqual((await self.refusal(kind, path, spoil)).hint, f"{remedy} {path}")
        for path in closed - {self.home.database}:
            # the store alone may lie behind a link: its lock follows it, and it is opened by name
            refused = await self.refusal(kind, path, replaced_by_link)
            self.assertIn("is a symbolic link", refused.message)

    async def test_control_plane(self) -> None:
        """P21, P25: keyring, issuer key, TLS keys and store."""
        private = {"keyring.json", "issuer.json", "control-plane-cp-1.key", "iop.db"}
        await self.check(CONTROL_PLANE, private, {"control-plane-cp-1.pem", "ca.pem", "pinned-issuers.json"})

    async def test_edge(self) -> None:
        """P25"""
        await self.check(EDGE, {"edge-edge-1.key"}, {"edge-edge-1.pem", "ca.pem"})

    async def test_node(self) -> None:
        """P25"""
        await self.check(NODE, {"node-node-1.key"}, {"node-node-1.pem", "ca.pem", "pinned-issuers.json"})
