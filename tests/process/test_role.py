"""The life of a role's process, on a reactor in memory. Real processes: tests/integration/test_role_process.py."""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry
from twisted.application.service import Application
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone, ReactorNotRunning
from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import ILogObserver, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from iop.errors import Draining, FileRefused, StoreUnavailable
from iop.interfaces import IClock
from iop.net.listener import SPARE_DESCRIPTORS
from iop.process.config import RoleConfig
from iop.process.logs import JsonLog
from iop.process.role import DRAIN_SECONDS, IReactor, IReloading, IRole, RoleKind, RoleProcess
from iop.process.status import STATUS_CONNECTIONS
from iop.testing.clock import FakeClock
from iop.units import Role
from tests.configurations import ROLE
from tests.net.transports import MemoryTransport


@implementer(IRole, IReloading)
class FakeRole:
    """A role whose every step waits for the test."""

    name = "edge-1"
    connections = 10

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.prepared: Deferred[None] = Deferred()
        self.drained: Deferred[None] = Deferred()
        self.refusal: Exception | None = None

    def prepare(self) -> Deferred[None]:
        self.steps.append("prepare")
        return self.prepared

    def listen(self) -> Deferred[dict[str, str]]:
        self.steps.append("listen")
        return succeed({"api": "127.0.0.1:8443"})

    def reload(self) -> None:
        self.steps.append("reload")
        if self.refusal is not None:
            raise self.refusal

    def reload_with(self, reload: Callable[[], Deferred[None]]) -> None:
        self.reload_as_told = reload

    def not_ready(self) -> list[str]:
        return ["no Node"]

    def drain(self) -> Deferred[None]:
        self.steps.append("drain")
        return self.drained


class Memory(MemoryReactorClock):
    """With the one call that signals need; it runs until it is stopped, which can be done once, as with a real one."""

    def __init__(self) -> None:
        MemoryReactorClock.__init__(self)
        self.listeners: list[MemoryListener] = []

    def callFromThread(self, what: Callable[[], object]) -> None:
        what()

    def run(self) -> None:
        self.running = True
        for what, arguments, keywords in self.whenRunningHooks:
            what(*arguments, **keywords)

    def stop(self) -> None:
        if not self.running:
            raise ReactorNotRunning
        self.running = False


class MemoryListener:
    """A listener without a socket."""

    def __init__(
        self, port: int, factory: IProtocolFactory, backlog: int, interface: str, reactor: Memory, spare: int
    ) -> None:
        self.factory: Any = factory
        self.spare = spare
        self._interface = interface
        reactor.listeners.append(self)

    def startListening(self) -> None:
        pass

    def stopListening(self) -> None:
        pass

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", self._interface, 1)


class RoleProcessTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.patch(sys.modules["iop.process.listen"], "Listener", MemoryListener)
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        self.path = self.folder / "edge.toml"
        self.path.write_text(ROLE)
        self.record = self.folder / "run" / "edge.json"
        self.role = FakeRole()
        #: What the role had done whenever the collector was spared what is there.
        self.spared: list[list[str]] = []
        self.patch(sys.modules["iop.process.role"], "spare_what_is_there", self.spare)
        self.clock = FakeClock()
        self.memory: Any = Memory()
        self.built: list[RoleConfig] = []
        kind = RoleKind(Role.EDGE, RoleConfig, self.build, hides_memory=False)
        self.process = RoleProcess(kind, self.path, self.clock, cast(IReactor, self.memory))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.terminal = StringIO()
        self.patch(sys, "__stderr__", self.terminal)
        self.at_exit: list[object] = []
        self.patch(sys.modules["atexit"], "register", self.at_exit.append)
        self.log = StringIO()
        observer = JsonLog(self.log, "edge")
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def spare(self) -> None:
        self.spared.append(self.role.steps.copy())

    def build(self, config: RoleConfig, clock: IClock, reactor: IReactor, registry: CollectorRegistry) -> IRole:
        self.built.append(config)
        return self.role

    def allow_just_enough(self) -> int:
        """Give the role as many connections as the system allows; answers how many descriptors that takes."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.role.connections = hard - STATUS_CONNECTIONS - SPARE_DESCRIPTORS
        return hard

    def start(self) -> None:
        """Start the service and run the reactor's startup hooks."""
        self.process.startService()
        self.memory.run()

    def reasons(self) -> list[str]:
        """What /readyz says."""
        factory = self.memory.listeners[-1].factory
        protocol, transport = factory.buildProtocol(None), MemoryTransport()
        protocol.makeConnection(transport)
        protocol.dataReceived(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        reasons = json.loads(transport.value().partition(b"\r\n\r\n")[2])["reasons"]
        protocol.connectionLost(Failure(ConnectionDone()))
        assert isinstance(reasons, list)
        return reasons

    def events(self) -> list[str]:
        """The names of what was logged."""
        return [json.loads(line)["event"] for line in self.log.getvalue().splitlines()]

    def test_fake_is_a_role(self) -> None:
        verifyObject(IRole, self.role)

    def test_starts_in_order_and_says_where(self) -> None:
        self.start()
        self.assertEqual(self.role.steps, ["prepare"])
        self.assertFalse(self.record.exists())
        self.role.prepared.callback(None)
        self.assertEqual(self.role.steps, ["prepare", "listen"])
        record = json.loads(self.record.read_bytes())
        self.assertEqual((record["role"], record["name"]), ("edge", "edge-1"))
        self.assertEqual(record["addresses"]["api"], "127.0.0.1:8443")
        self.assertIn("status", record["addresses"])
        self.assertEqual(self.events(), ["role.started"])

    def test_what_stays_is_no_work_for_the_collector(self) -> None:
        """Once, with everything read and nothing connected."""
        self.start()
        self.role.prepared.callback(None)
        self.assertEqual(self.spared, [["prepare"]])

    def test_says_if_the_system_allows_too_few_descriptors(self) -> None:
        """The numbers, and what to do."""
        hard = self.allow_just_enough()
        self.role.connections += 1
        self.start()
        told = json.loads(self.log.getvalue())
        self.assertEqual((told["event"], told["level"]), ("role.descriptors_few", "warn"))
        self.assertEqual((told["descriptors"], told["wanted"]), (hard, hard + 1))
        self.assertIn("LimitNOFILE", told["hint"])

    def test_says_nothing_if_the_system_allows_enough_descriptors(self) -> None:
        self.allow_just_enough()
        self.start()
        self.assertEqual(self.events(), [])

    def test_status_pages_may_take_what_other_listeners_leave(self) -> None:
        self.start()
        self.role.prepared.callback(None)
        self.assertEqual(self.memory.listeners[-1].spare, SPARE_DESCRIPTORS // 2)

    def test_logs_as_json_under_twistd(self) -> None:
        application: Any = Application("iop")
        self.process.setServiceParent(application)
        self.assertIsInstance(application.getComponent(ILogObserver), JsonLog)

    def test_drains_on_a_signal(self) -> None:
        """A signal stops the reactor, whose shutdown waits for the drain; the record of addresses goes with it."""
        self.start()
        self.role.prepared.callback(None)
        self.assertTrue(self.memory.running)
        signal.raise_signal(signal.SIGTERM)
        self.assertFalse(self.memory.running)
        stopped = self.process.stopService()
        self.assertNoResult(stopped)
        self.role.drained.callback(None)
        self.successResultOf(stopped)
        self.assertFalse(self.record.exists())
        self.assertEqual(self.events(), ["role.started", "role.draining", "role.stopped"])
        self.assertEqual(self.clock.reactor.getDelayedCalls(), [])
        self.assertEqual(self.at_exit, [])

    def test_drain_has_a_deadline(self) -> None:
        self.start()
        self.role.prepared.callback(None)
        stopped = self.process.stopService()
        self.clock.advance(DRAIN_SECONDS - 0.1)
        self.assertNoResult(stopped)
        self.clock.advance(0.1)
        self.successResultOf(stopped)
        self.assertIn("role.drain_overdue", self.events())
        self.role.drained.callback(None)

    def test_second_signal_does_not_wait(self) -> None:
        self.start()
        self.role.prepared.callback(None)
        signal.raise_signal(signal.SIGINT)
        stopped = self.process.stopService()
        self.assertNoResult(stopped)
        signal.raise_signal(signal.SIGINT)
        self.successResultOf(stopped)

    def test_two_signals_before_the_drain(self) -> None:
        """The second of two that come at once is the first's, and the drain is waited for."""
        self.start()
        self.role.prepared.callback(None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        stopped = self.process.stopService()
        self.assertNoResult(stopped)
        self.role.drained.callback(None)
        self.successResultOf(stopped)

    def test_folder_of_addresses_that_cannot_be_made_refuses(self) -> None:
        self.record.parent.write_text("a file")
        self.start()
        self.role.prepared.callback(None)
        self.assertIn(f"Error: {self.record.parent.absolute()} cannot be made", self.terminal.getvalue())
        self.assertFalse(self.memory.running)
        self.flushLoggedErrors(FileRefused)

    def test_failed_drain_is_logged_and_ends(self) -> None:
        self.start()
        self.role.prepared.callback(None)
        stopped = self.process.stopService()
        self.role.drained.errback(ValueError("x"))
        self.successResultOf(stopped)
        self.assertIn("role.drain_failed", self.events())
        self.flushLoggedErrors(ValueError)

    def test_bad_configuration_refuses(self) -> None:
        """The person is told, the log has it, and the exit code will be 1."""
        self.path.write_text(ROLE + "[extra]")
        self.start()
        self.assertIn("Error: ", self.terminal.getvalue())
        self.assertIn("[extra]: is not a known table", self.terminal.getvalue())
        self.assertIn("Hint: ", self.terminal.getvalue())
        self.assertEqual(self.events(), ["role.refused"])
        self.assertFalse(self.memory.running)
        self.assertEqual(len(self.at_exit), 1)
        self.assertEqual(self.built, [])
        self.successResultOf(self.process.stopService())
        # it drained nothing, and nobody sent SIGTERM
        self.assertEqual(self.events(), ["role.refused", "role.stopped"])
        self.flushLoggedErrors()

    def test_failed_preparation_refuses_and_drains_what_was_opened(self) -> None:
        self.start()
        self.role.prepared.errback(StoreUnavailable("no database", hint="iop store migrate"))
        self.assertEqual(self.terminal.getvalue(), "Error: no database\nHint: iop store migrate\n")
        stopped = self.process.stopService()
        self.assertEqual(self.role.steps, ["prepare", "drain"])
        self.role.drained.callback(None)
        self.successResultOf(stopped)
        self.flushLoggedErrors(StoreUnavailable)

    def test_unforeseen_failure_refuses_without_its_message(self) -> None:
        """P25: what is not our own error may say anything."""
        self.start()
        self.role.prepared.errback(ValueError("sk-canary"))
        self.assertIn("Error: edge cannot start (ValueError)", self.terminal.getvalue())
        self.assertNotIn("sk-canary", self.terminal.getvalue() + self.log.getvalue())
        self.assertEqual(len(self.at_exit), 1)
        self.flushLoggedErrors(ValueError)

    def test_signal_while_preparing(self) -> None:
        """What was begun ends without a word of readiness, and the process exits as drained."""
        self.start()
        signal.raise_signal(signal.SIGTERM)
        stopped = self.process.stopService()
        self.role.drained.callback(None)
        self.successResultOf(stopped)
        self.role.prepared.callback(None)
        self.assertEqual(self.role.steps, ["prepare", "drain"])
        self.assertFalse(self.record.exists())
        self.assertNotIn("role.started", self.events())
        self.assertEqual(self.at_exit, [])

    def test_sighup_reloads(self) -> None:
        self.start()
        self.role.prepared.callback(None)
        signal.raise_signal(signal.SIGHUP)
        self.assertEqual(self.role.steps, ["prepare", "listen", "reload"])
        self.assertEqual(self.events(), ["role.started", "role.reloaded"])
        self.assertEqual(self.reasons(), ["no Node"])

    def test_refused_reload_is_told_until_one_succeeds(self) -> None:
        """The process goes on; log and /readyz say why it is not as its files are."""
        self.start()
        self.role.prepared.callback(None)
        self.role.refusal = FileRefused("edge.pem holds no PEM certificate", hint="look")
        signal.raise_signal(signal.SIGHUP)
        line = json.loads(self.log.getvalue().splitlines()[-1])
        self.assertEqual(line["event"], "role.reload_refused")
        self.assertEqual(line["failure"]["code"], "file_refused")
        self.assertEqual(line["failure"]["message"], "edge.pem holds no PEM certificate")
        refused = "the last reload was refused: edge.pem holds no PEM certificate"
        self.assertEqual(self.reasons(), ["no Node", refused])
        self.assertTrue(self.memory.running)
        self.role.refusal = None
        signal.raise_signal(signal.SIGHUP)
        self.assertEqual(self.reasons(), ["no Node"])
        self.assertEqual(len(self.flushLoggedErrors(FileRefused)), 1)

    def test_unforeseen_failure_of_a_reload_is_told_without_its_message(self) -> None:
        """P25: what is not our own error may say anything."""
        self.start()
        self.role.prepared.callback(None)
        self.role.refusal = ValueError("sk-canary")
        signal.raise_signal(signal.SIGHUP)
        self.assertEqual(self.reasons(), ["no Node", "the last reload was refused: ValueError"])
        self.assertNotIn("sk-canary", self.log.getvalue())
        self.flushLoggedErrors(ValueError)

    def test_a_role_reloads_on_its_own(self) -> None:
        """S7: as by SIGHUP, and it is told how that went: in time, refused, or too late."""
        verifyObject(IReloading, self.role)
        self.start()
        early = self.role.reload_as_told()
        self.assertNoResult(early)
        self.role.prepared.callback(None)
        self.assertEqual(self.role.steps, ["prepare", "listen", "reload"])
        self.successResultOf(early)
        self.role.refusal = FileRefused("edge.pem holds no PEM certificate")
        self.failureResultOf(self.role.reload_as_told(), FileRefused)
        self.assertEqual(len(self.reasons()), 2)
        self.role.refusal = None
        self.successResultOf(self.role.reload_as_told())
        self.assertEqual(self.reasons(), ["no Node"])
        self.assertEqual(self.events()[1:], ["role.reloaded", "role.reload_refused", "role.reloaded"])
        self.process.stopService()
        self.failureResultOf(self.role.reload_as_told(), Draining)
        self.flushLoggedErrors(FileRefused)

    def test_sighup_while_preparing(self) -> None:
        """The files may have been read before they were replaced, so they are read again once all is up."""
        self.start()
        signal.raise_signal(signal.SIGHUP)
        self.assertEqual(self.role.steps, ["prepare"])
        self.role.prepared.callback(None)
        self.assertEqual(self.role.steps, ["prepare", "listen", "reload"])

    def test_sighup_when_nothing_was_started_or_all_ends(self) -> None:
        self.start()
        signal.raise_signal(signal.SIGHUP)
        self.role.prepared.errback(StoreUnavailable("no database"))
        self.process.stopService()
        signal.raise_signal(signal.SIGHUP)
        self.assertEqual(self.role.steps, ["prepare", "drain"])
        self.assertTrue(self.flushLoggedErrors(StoreUnavailable))
