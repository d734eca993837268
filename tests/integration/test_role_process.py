"""A role under a real ``twistd -n``: what it starts is one Python process per test."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import sysconfig
from pathlib import Path
from subprocess import PIPE, Popen
from time import monotonic, sleep
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.configurations import ROLE

SECONDS = 20.0

#: A twistd application file with a role that does nothing, and says what the kernel knows of its process.
APPLICATION = """
import ctypes, resource
from pathlib import Path
from twisted.application.service import Application
from twisted.internet import reactor
from twisted.internet.defer import succeed
from twisted.logger import Logger
from zope.interface import implementer
from iop.net.clock import ReactorClock
from iop.process.config import RoleConfig
from iop.process.role import IRole, RoleKind, RoleProcess
from iop.units import Role

@implementer(IRole)
class Idle:
    name = "node-1"
    connections = 10
    def __init__(self, config, clock, reactor, registry):
        pass
    def prepare(self):
        Logger().info(
            "test.process.seen",
            dumpable=ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
            core=resource.getrlimit(resource.RLIMIT_CORE)[1],
            descriptors=len(set(resource.getrlimit(resource.RLIMIT_NOFILE))),
        )
        return succeed(None)
    def listen(self):
        return succeed({})
    def reload(self):
        pass
    def not_ready(self):
        return []
    def drain(self):
        return succeed(None)

application = Application("iop-idle")
kind = RoleKind(Role.NODE, RoleConfig, Idle, hides_memory=True)
RoleProcess(kind, Path("node.toml"), ReactorClock(reactor), reactor).setServiceParent(application)
"""


class RoleProcessTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir(parents=True)
        (self.folder / "node.toml").write_text(ROLE)
        (self.folder / "idle.tac").write_text(APPLICATION)
        self.record = self.folder / "run" / "node.json"

    def start(self, **environment: str) -> Popen[str]:
        """Start the process; it is ended with the test."""
        twistd = str(Path(sysconfig.get_path("scripts"), "twistd"))
        process = Popen(  # noqa: S603 - our own interpreter
            [sys.executable, twistd, "-n", "--pidfile=", "-oy", "idle.tac"],
            cwd=self.folder,
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wait_started(self, process: Popen[str]) -> dict[str, Any]:
        """The record of a process that started."""
        deadline = monotonic() + SECONDS
        while monotonic() < deadline and process.poll() is None:
            if self.record.exists():
                record = json.loads(self.record.read_bytes())
                assert isinstance(record, dict)
                return record
            sleep(0.02)
        raise AssertionError(f"did not start: {process.poll()} {process.communicate()}")

    def test_signal_drains_and_exits_0(self) -> None:
        """SIGTERM and SIGINT both end a process in good order, where twistd alone would exit by the signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.start()
            self.assertEqual(self.wait_started(process)["pid"], process.pid)
            process.send_signal(number)
            output, told = process.communicate(timeout=SECONDS)
            events = [json.loads(line)["event"] for line in output.splitlines()]
            self.assertEqual(process.returncode, 0, told)
            self.assertEqual(events, ["test.process.seen", "role.started", "role.draining", "role.stopped"])
            self.assertEqual(told, "")
            self.assertFalse(self.record.exists())

    def test_sighup_does_not_end_it(self) -> None:
        process = self.start()
        self.wait_started(process)
        for number in (signal.SIGHUP, signal.SIGTERM):
            process.send_signal(number)
        output, _ = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0)
        self.assertNotIn("role.reload_refused", output)

    def test_hardened_before_anything_is_prepared(self) -> None:
        """P25: no core file ever, and no other process of the same user looks into the memory."""
        process = self.start()
        self.wait_started(process)
        process.terminate()
        output, _ = process.communicate(timeout=SECONDS)
        seen = json.loads(output.splitlines()[0])
        self.assertEqual((seen["dumpable"], seen["core"]), (0, 0))
        self.assertEqual(seen["descriptors"], 1, "the soft limit of descriptors is the hard one")

    def test_status_pages_answer(self) -> None:
        process = self.start()
        host, port = self.wait_started(process)["addresses"]["status"].split(":")
        for path, word in (("healthz", b'"alive": true'), ("readyz", b'"ready": true')):
            with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
                connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
            self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer)
            self.assertIn(word, answer)

    def test_bad_configuration_exits_1(self) -> None:
        """One event, one sentence for the person with what to do, nothing else."""
        (self.folder / "node.toml").write_text(ROLE + "[extra]\n")
        process = self.start()
        output, told = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 1)
        self.assertEqual(json.loads(output.splitlines()[0])["event"], "role.refused")
        self.assertIn("[extra]: is not a known table", told)
        self.assertIn("Hint: ", told)
        self.assertNotIn("Traceback", told + output)

    def test_address_in_use_exits_1_and_names_the_key(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            (self.folder / "node.toml").write_text(ROLE.replace("port=0", f"port={port}"))
            process = self.start()
            _, told = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 1)
        self.assertIn("[status] listen", told)
        self.assertIn("Address already in use", told)

    def test_tells_the_service_manager(self) -> None:
        """sd_notify(3): ready when it listens, stopping when it drains."""
        path = Path("/tmp", f"iop-notify-{os.getpid()}")  # noqa: S108 - a socket's path must be short
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(path))
            self.addCleanup(path.unlink)
            manager.settimeout(SECONDS)
            process = self.start(NOTIFY_SOCKET=str(path))
            self.assertEqual(manager.recv(100), b"READY=1")
            process.terminate()
            self.assertEqual(manager.recv(100), b"STOPPING=1")
        process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0)
