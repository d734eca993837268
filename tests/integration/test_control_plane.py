"""The Control Plane as a role, on real files, TLS and SQLite: what a failed start lets go of, and how it drains."""

from __future__ import annotations

import gc
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

from twisted.internet import reactor as running
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from iop.cli.credential_api import CredentialApi
from iop.control_plane.config import load
from iop.control_plane.service import ControlPlane
from iop.crypto.issuer import Issuer, write_public_set
from iop.crypto.keyring import Keyring
from iop.crypto.tokens import mint
from iop.errors import BadConfig, DeploymentMismatch, FileRefused, IopError, StoreUnavailable
from iop.files import write_private
from iop.net.clock import ReactorClock
from iop.process.metrics import new_registry
from iop.process.role import IReactor
from iop.records import TokenKind
from iop.secret import Secret
from iop.store import schema
from iop.store.lock import is_held
from iop.store.sqlite import open_sqlite
from iop.testing.pki import Pki
from iop.units import Role
from tests.configurations import DEPLOYMENT
from tests.control_plane.world import CONFIG

reactor = cast(IReactor, running)


class ControlPlaneCase(TestCase):
    timeout = 60

    def setUp(self) -> None:
        # a Control Plane spares what its process holds, and this process is that of all tests
        self.addCleanup(gc.unfreeze)
        self.threads = set(threading.enumerate())
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        self.database = self.folder / "store.sqlite"
        self.write_config()
        Keyring.create(self.folder / "keyring.json")
        issuer = Issuer.create(self.folder / "issuer.json")
        write_public_set(self.folder / "issuers.json", [issuer.public_key])
        files = Pki(self.folder / "pki").issue(Role.CONTROL_PLANE, "cp1")
        for source, name in ((files.certificate, "cp.pem"), (files.key, "cp.key"), (files.trust, "ca.pem")):
            shutil.copy(source, self.folder / name)
        schema.migrate(self.database, DEPLOYMENT)

    def write_config(self, old: str = "", new: str = "") -> None:
        """Write the configuration, with ``new`` for ``old``."""
        (self.folder / "control-plane.toml").write_text(CONFIG.replace(old, new, 1) if old else CONFIG)

    def build(self) -> ControlPlane:
        return ControlPlane(load(self.folder / "control-plane.toml"), ReactorClock(reactor), reactor, new_registry())

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        with closing(schema.connect(self.database)) as connection:
            return connection.execute(statement).fetchall()

    def assert_let_go(self) -> None:
        """Nobody holds the lock, and no thread of a store is left."""
        self.assertFalse(is_held(self.database))
        begun = set(threading.enumerate()) - self.threads
        self.assertEqual([each for each in begun if each.name.startswith("iop-store")], [])


class FailedStartTests(ControlPlaneCase):
    """What a start had taken when it failed is given back by the drain that follows, so the next start works."""

    async def test_preparation(self) -> None:
        other = Issuer.create(self.folder / "other.json")

        def replaced(name: str, data: bytes) -> Callable[[], None]:
            return lambda: write_private(self.folder / name, data)

        broken: list[tuple[type[IopError], Callable[[], object]]] = [
            (BadConfig, replaced("keyring.json", b"{}")),
            (BadConfig, replaced("issuer.json", b"{}")),
            (BadConfig, lambda: write_public_set(self.folder / "issuers.json", [other.public_key])),
            (FileRefused, replaced("ca.pem", b"")),
            (StoreUnavailable, self.database.unlink),
        ]
        for error, breaks in broken:
            kept = {path: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
            breaks()
            role = self.build()
            await self.assertFailure(role.prepare(), error)
            await role.drain()
            self.assert_let_go()
            for path, data in kept.items():
                write_private(path, data)
        role = self.build()
        await role.prepare()
        self.assertTrue(is_held(self.database))
        await role.drain()
        self.assert_let_go()

    async def test_another_deployments_store(self) -> None:
        self.write_config(DEPLOYMENT, "deployment-2")
        role = self.build()
        await self.assertFailure(role.prepare(), DeploymentMismatch)
        await role.drain()
        self.assert_let_go()

    async def test_second_listener(self) -> None:
        """The first listener is closed again, and the store with it."""
        with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
            free_port = free.getsockname()[1]
            free.close()
            text = CONFIG
            for table, port in (("edge_wire", free_port), ("credential_https", taken.getsockname()[1])):
                listen = f'[{table}]\nlisten = "tcp:port='
                text = text.replace(f"{listen}0:", f"{listen}{port}:")
            self.write_config(CONFIG, text)
            role = self.build()
            await role.prepare()
            error = await self.assertFailure(role.listen(), BadConfig)
            self.assertIn("[credential_https] listen", str(error))
            await role.drain()
            self.assert_let_go()
            socket.create_server(("127.0.0.1", free_port)).close()


class StartTests(ControlPlaneCase):
    async def test_connections_of_a_process_that_was_killed_have_ended(self) -> None:
        """E10: rows that nobody ended hold up no barrier of the next process."""
        self.execute("INSERT INTO edge_sessions VALUES ('s', 'edge-1', 1, 1, 0, 1, 0)")
        role = self.build()
        self.addCleanup(role.drain)
        await role.prepare()
        [(ended_ms,)] = self.execute("SELECT ended_ms FROM edge_sessions")
        self.assertNotEqual(ended_ms, 0)


class DrainTests(ControlPlaneCase):
    async def test_what_was_begun_is_answered(self) -> None:
        """A mutation whose barrier waits when the drain begins is answered, and only then the store closes."""
        token = mint(TokenKind.MANAGE)
        store = await open_sqlite(self.database, DEPLOYMENT, reactor)
        await store.principals.create("ann", [token.record], "host:test")
        await store.close()
        write_private(self.folder / "token", token.text.reveal())
        role = self.build()
        await role.prepare()
        url = "https://" + (await role.listen())["credential_https"]
        # an Edge that this Control Plane waits for
        self.execute("INSERT INTO edge_sessions VALUES ('s', 'edge-1', 1, 1, 0, 1, 0)")
        api = CredentialApi(reactor, url, self.folder / "ca.pem", self.folder / "token")
        answered = Deferred.fromCoroutine(api.create_slot("work", "openai", "lab", Secret(b"sk-x")))
        while not self.execute("SELECT 1 FROM slots"):
            await deferLater(reactor, 0.01)
        drained = role.drain()
        await deferLater(reactor, 0.1)
        self.assertNoResult(answered)
        self.assertNoResult(drained)
        self.execute("UPDATE edge_sessions SET acknowledged = 99")
        made = await answered
        self.assertEqual((made["name"], made["edges"]), ("work", {"acknowledged": 1, "cut_off": 0, "unconfirmed": 0}))
        await drained
        self.assert_let_go()
