"""The parts of ``iop doctor``; the whole of it, with processes: tests/integration/test_doctor.py."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

from cryptography import x509
from twisted.internet.defer import Deferred, fail
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import ConnectBindError, ConnectionRefusedError, DNSLookupError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from iop.cli.doctor import configurations_of
from iop.cli.doctor.certificates import Mutual, Presented
from iop.cli.doctor.checks import Check, Finding, Grade, Row, examine, fault, ok, warning
from iop.cli.doctor.machine import descriptors, folder, listener, process
from iop.cli.doctor.network import LOOK_SECONDS, reach
from iop.errors import BadConfig, FileRefused
from iop.net.tls import TlsFiles, mutual_server
from iop.process.record import RunRecord
from iop.process.role import descriptors_wanted
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.units import Identity, Role
from tests.cli.command import CommandCase

_DAY_MS = 24 * 60 * 60 * 1000


class ExamineTests(SynchronousTestCase):
    def rows(self, *checks: Check) -> list[Row]:
        return self.successResultOf(Deferred.fromCoroutine(examine(checks)))

    def test_error_of_a_loader_is_a_fault_in_its_words(self) -> None:
        def look() -> Finding:
            raise BadConfig("it is wrong", hint="correct it")

        self.assertEqual(self.rows(Check("a", look)), [Row("a", Finding(Grade.FAULT, "it is wrong", "correct it"))])

    def test_error_that_comes_later_is_one_too(self) -> None:
        async def look() -> Finding:
            await fail(FileRefused("it is gone"))
            return ok("never")

        self.assertEqual(self.rows(Check("a", look)), [Row("a", Finding(Grade.FAULT, "it is gone"))])

    def test_what_depends_on_a_fault_is_not_looked_at(self) -> None:
        """Nor what depends on that; a warning is in nobody's way."""
        rows = self.rows(
            Check("bad", lambda: fault("no", "do")),
            Check("worrying", lambda: warning("soon", "do")),
            Check("after", lambda: ok("never"), ["worrying", "bad"]),
            Check("later", lambda: ok("never"), ["after"]),
            Check("apart", lambda: ok("yes"), ["worrying"]),
        )
        self.assertEqual(
            [row.finding.grade for row in rows],
            [Grade.FAULT, Grade.WARNING, Grade.SKIPPED, Grade.SKIPPED, Grade.OK],
        )
        self.assertEqual(rows[3].finding.message, "not looked at, because of after")

    def test_defect_is_not_hidden(self) -> None:
        failed = Deferred.fromCoroutine(examine([Check("a", lambda: ok(str(1 // 0)))]))
        self.failureResultOf(failed, ZeroDivisionError)


class CertificateTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.pki = Pki(Path(self.mktemp()))
        self.files = self.pki.issue(Role.EDGE, "edge-1")
        self.name = "edge-1"
        self.listen = "tcp:port=1:interface=127.0.0.1"
        self.now_ms = int(self.pki.authority.certificate.not_valid_before_utc.timestamp() * 1000) + _DAY_MS // 2

    def found(self) -> dict[str, Finding]:
        files = self.files

        def load() -> None:
            mutual_server(files, trust_domain=TRUST_DOMAIN, accepts=Role.NODE)

        presented = Presented("[tls]", files.certificate, files.key, load, [self.listen])
        mutual = Mutual(presented, files.trust, Identity(TRUST_DOMAIN, Role.EDGE, self.name))
        rows = self.successResultOf(Deferred.fromCoroutine(examine([*mutual.checks(lambda: self.now_ms)])))
        return {row.name: row.finding for row in rows}

    def grades(self, grade: Grade) -> list[str]:
        return [name for name, finding in self.found().items() if finding.grade is grade]

    def test_good(self) -> None:
        self.assertEqual({finding.grade for finding in self.found().values()}, {Grade.OK})

    def test_warns_fourteen_days_before_the_end(self) -> None:
        """At the limit and one second before."""
        [leaf] = x509.load_pem_x509_certificates(self.files.certificate.read_bytes())
        end_ms = int(leaf.not_valid_after_utc.timestamp() * 1000)
        self.now_ms = end_ms - 14 * _DAY_MS
        self.assertEqual(self.grades(Grade.WARNING), [])
        self.now_ms += 1000
        self.assertEqual(self.grades(Grade.WARNING), ["[tls] validity"])
        self.assertIn("in 13 days", self.found()["[tls] validity"].message)

    def test_clock_outside_of_the_validity(self) -> None:
        """Before and after; the chain is then not judged by a clock that is wrong."""
        right = self.now_ms
        for days, said in ((-3, "is valid from"), (3 * 365, "ended on")):
            self.now_ms = right + days * _DAY_MS
            found = self.found()["[tls] validity"]
            self.assertIs(found.grade, Grade.FAULT)
            self.assertIn(said, found.message)
            self.assertIn("this machine's clock says", found.message)
            self.assertIn("[tls] chain", self.grades(Grade.SKIPPED))

    def test_key_of_another_certificate(self) -> None:
        self.files = TlsFiles(self.files.certificate, self.pki.issue(Role.EDGE, "edge-2").key, self.files.trust)
        self.assertEqual(self.grades(Grade.FAULT), ["[tls] certificate and key"])

    def test_link_to_a_key(self) -> None:
        link = self.pki.folder / "link.key"
        link.symlink_to(self.files.key.absolute())
        self.files = TlsFiles(self.files.certificate, link, self.files.trust)
        self.assertIn("is a symbolic link", self.found()["[tls] key"].message)
        self.assertEqual(self.grades(Grade.SKIPPED), ["[tls] certificate and key"])

    def test_another_name(self) -> None:
        self.name = "edge-9"
        self.assertEqual(self.grades(Grade.FAULT), ["[tls] identity"])

    def test_another_authority(self) -> None:
        other = Pki(Path(self.mktemp()))
        self.files = TlsFiles(self.files.certificate, self.files.key, other.trust)
        self.assertEqual(self.grades(Grade.FAULT), ["[tls] chain"])

    def test_names_for_loopback_alone_where_others_dial(self) -> None:
        self.listen = "tcp:port=1"
        self.assertEqual(self.grades(Grade.WARNING), ["[tls] names"])

    def test_no_name_where_others_dial(self) -> None:
        uri = x509.UniformResourceIdentifier(Identity(TRUST_DOMAIN, Role.EDGE, "edge-1").uri())
        self.files = self.pki.certify("nameless", [uri])
        self.assertEqual(self.grades(Grade.FAULT), ["[tls] names"])


class MachineTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()

    def ran(self, pid: int, **addresses: str) -> RunRecord:
        record = RunRecord("edge-1", pid, addresses)
        record.write(self.folder, Role.EDGE)
        return record

    def test_process(self) -> None:
        """One that runs, and one that was killed and left its record: no process has the highest id."""
        self.assertEqual(process(self.folder, Role.EDGE), ok("does not run"))
        self.ran(os.getpid())
        self.assertEqual(process(self.folder, Role.EDGE), ok(f"runs as process {os.getpid()}"))
        self.ran(2**31 - 1)
        self.assertEqual(process(self.folder, Role.EDGE), ok("does not run"))

    def test_process_of_another_user(self) -> None:
        def kill(pid: int, number: int) -> None:
            raise PermissionError

        self.patch(os, "kill", kill)
        self.ran(4)
        self.assertIs(process(self.folder, Role.EDGE).grade, Grade.FAULT)

    def test_folder(self) -> None:
        """One that is there, one that can be made, and one beneath a file; nothing is left in any."""
        self.assertIs(folder(self.folder).grade, Grade.OK)
        self.assertIn("can be made", folder(self.folder / "a" / "b").message)
        self.assertEqual(list(self.folder.iterdir()), [])
        (self.folder / "file").touch()
        self.assertIs(folder(self.folder / "file").grade, Grade.FAULT)

    def test_descriptors(self) -> None:
        """At the limit and one past it."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = hard - descriptors_wanted(0)
        self.assertIs(descriptors(most, None).grade, Grade.OK)
        self.assertIs(descriptors(most + 1, None).grade, Grade.WARNING)

    def test_listener_that_the_role_holds(self) -> None:
        record = self.ran(os.getpid(), api="127.0.0.1:7445")
        looking = listener(MemoryReactorClock(), "api", "tcp:port=7445:interface=127.0.0.1", record)
        held = self.successResultOf(Deferred.fromCoroutine(looking))
        self.assertEqual(held, ok(f"127.0.0.1:7445 is held by this role, process {os.getpid()}"))


@implementer(IStreamClientEndpoint)
class _Fails:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return fail(self._error)


class ReachTests(SynchronousTestCase):
    def test_says_why_there_is_no_connection(self) -> None:
        for error, said in (
            (DNSLookupError(), "has no address"),
            (ConnectionRefusedError(), "nothing listens at h:1"),
            (ConnectBindError(), "cannot be reached"),
        ):
            found = self.successResultOf(Deferred.fromCoroutine(reach(Clock(), _Fails(error), "h:1", "start the Edge")))
            self.assertIs(found.grade, Grade.FAULT)
            self.assertIn(said, found.message)
            self.assertTrue(found.hint)

    def test_silence_has_an_end(self) -> None:
        reactor = MemoryReactorClock()
        looking = Deferred.fromCoroutine(reach(reactor, TCP4ClientEndpoint(reactor, "192.0.2.1", 1), "h:1", "start it"))
        reactor.advance(LOOK_SECONDS - 0.01)
        self.assertNoResult(looking)
        reactor.advance(0.01)
        self.assertIn("does not answer within", self.successResultOf(looking).message)


class CommandTests(CommandCase):
    def test_nothing_to_look_at(self) -> None:
        self.assertEqual(self.iop("doctor").code, 2)

    def test_every_node_of_a_home(self) -> None:
        """A quickstart has as many configurations of Nodes as Nodes."""
        names = ["node.toml", "node-2.toml", "node-3.toml"]
        for name in names:
            (self.folder / name).touch()
        self.assertEqual([path.name for path in configurations_of(self.folder)], names)

    def test_home_without_a_configuration(self) -> None:
        done = self.iop("doctor", "--home", str(self.folder), "--json")
        self.assertEqual(done.code, 1)
        self.assertEqual(json.loads(done.out)["error"]["code"], "bad_config")
