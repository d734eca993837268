"""The Unix socket that a role listens at. Real sockets."""

from __future__ import annotations

import socket
import stat
import tempfile
from pathlib import Path
from typing import cast

from twisted.internet import reactor
from twisted.internet.defer import maybeDeferred
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

from iop.control_plane.config import OperatorTable
from iop.errors import BadConfig
from iop.process.listen import listen_unix
from iop.process.role import IReactor
from iop.units import SOCKET_PATH_LIMIT


class ListenUnixTests(TestCase):
    def setUp(self) -> None:
        # such a path is short, which trial's folders are not
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "operator.sock")

    async def test_user_and_group_may_open_it(self) -> None:
        """S5: 0660, and gone when it is closed."""
        port = listen_unix(cast(IReactor, reactor), self.path, Factory.forProtocol(Protocol), "[operator] socket")
        mode = self.path.lstat().st_mode
        self.assertTrue(stat.S_ISSOCK(mode))
        self.assertEqual(stat.S_IMODE(mode), 0o660)
        await maybeDeferred(port.stopListening)
        self.assertFalse(self.path.exists())

    async def test_what_a_killed_process_left_is_taken_away(self) -> None:
        """P46: a socket nobody listens at is no reason not to start."""
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(self.path))
        port = listen_unix(cast(IReactor, reactor), self.path, Factory.forProtocol(Protocol), "[operator] socket")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.path))
        await maybeDeferred(port.stopListening)

    def test_anything_else_stays(self) -> None:
        """S5: a file or link there is somebody's, a folder that is not there is a mistake; both are told."""
        other = self.path.with_name("other")
        self.path.write_text("mine")
        other.symlink_to(self.path)
        for path in (self.path, other, self.path.with_name("nowhere") / "a.sock"):
            error = self.assertRaises(
                BadConfig,
                *(listen_unix, cast(IReactor, reactor), path, Factory.forProtocol(Protocol), "[operator] socket"),
            )
            self.assertIn(f"[operator] socket = {path}", error.message)
        self.assertEqual(self.path.read_text(), "mine")

    def test_length(self) -> None:
        """S5: a path of 107 bytes is the longest that Linux takes; a longer one is told at the start."""
        longest = Path("/" + "x" * (SOCKET_PATH_LIMIT - 1))
        self.assertEqual(OperatorTable(socket=longest).socket, longest)
        self.assertRaises(ValueError, OperatorTable, socket=Path(f"{longest}x"))
