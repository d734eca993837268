"""``iop doctor`` beside a running quickstart: whole, and broken in the ways in which a first set-up is."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import run
from typing import Any, cast

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from twisted.internet import reactor as running
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.interfaces import ITransport
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase, TestCase

from iop.cli.doctor import network
from iop.cli.doctor.checks import Finding, Grade
from iop.cli.doctor.machine import listener
from iop.cli.doctor.network import readiness
from iop.cli.quickstart.home import TRUST_DOMAIN, Home, Member
from iop.crypto.pki import Authority
from iop.edge.control_link import NO_PROJECTION
from iop.node.service import NOT_REGISTERED
from iop.process.listen import bound_address
from iop.process.record import RunRecord
from iop.process.role import RELOAD_REFUSED, IReactor
from iop.testing.pki import Pki
from iop.units import Identity, Role
from tests.integration.quickstart import RunningQuickstart

reactor = cast(IReactor, running)
_SECONDS = 60


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of ``iop doctor ARGUMENTS --json``."""
    command = [sys.executable, "-m", "iop", "doctor", "--json", *arguments]
    done = run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)  # noqa: S603 - ourselves
    assert done.stderr == "", done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return done.returncode, document


class ListenerTests(TestCase):
    def setUp(self) -> None:
        # bound with SO_REUSEADDR and not listening: nobody else is given the port, and a listener may have it
        self.reserved = socket.socket()
        self.addCleanup(self.reserved.close)
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port = self.reserved.getsockname()[1]
        self.endpoint = f"tcp:port={self.port}:interface=127.0.0.1"

    async def test_free(self) -> None:
        """And free again after the look."""
        for _ in range(2):
            found = await listener(reactor, "api", self.endpoint, None)
            self.assertEqual((found.grade, found.message), (Grade.OK, f"127.0.0.1:{self.port} is free"))

    async def test_taken_by_another(self) -> None:
        self.reserved.listen()
        found = await listener(reactor, "api", self.endpoint, None)
        self.assertIs(found.grade, Grade.FAULT)
        self.assertIn(f"ss -ltnp 'sport = :{self.port}'", found.hint)

    async def test_the_role_listens_elsewhere(self) -> None:
        """The configuration was changed since it was started."""
        found = await listener(reactor, "api", self.endpoint, RunRecord("edge-1", 1, {"api": "127.0.0.1:1"}))
        self.assertIs(found.grade, Grade.WARNING)


class _Status(Protocol):
    """Answers a request with what it is told to, and does not end."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def dataReceived(self, data: bytes) -> None:
        cast(ITransport, self.transport).write(self._answer)


class ReadinessTests(TestCase):
    timeout = 30

    async def look(self, answer: bytes) -> Finding:
        """What is found at a status listener that answers so."""
        factory = Factory.forProtocol(lambda: _Status(answer))
        port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
        self.addCleanup(port.stopListening)
        return await readiness(reactor, bound_address(port))

    async def test_who_is_no_role(self) -> None:
        """Silence, a page that never ends, one that is too long, and others that are none: a fault, and no more."""
        self.patch(network, "LOOK_SECONDS", 0.2)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
        for answer in (
            b"",
            b"ready\r\n\r\n",
            head % 100 + b"{",
            head % 10**9 + b" " * 70_000,
            head % 60_000 + b"[" * 60_000,
            head % 2 + b"no",
        ):
            found = await self.look(answer)
            self.assertIs(found.grade, Grade.FAULT)
            self.assertIn("does not answer as a role does", found.message)

    async def test_what_a_role_says(self) -> None:
        """What to do fits the reason that is given, each of them if there are more."""
        refused, unknown = f"{RELOAD_REFUSED}: x.pem is gone", "something else"
        for reasons, hints in (
            ([], ["its log"]),
            ([refused], ["send the role SIGHUP again"]),
            ([unknown, refused], ["see what else", "send the role SIGHUP again"]),
            ([NO_PROJECTION], ["iop edge allow"]),
            ([NOT_REGISTERED], ["node.edge.disconnected"]),
        ):
            page = json.dumps({"ready": False, "reasons": reasons}).encode()
            found = await self.look(b"HTTP/1.1 503 No\r\nContent-Length: %d\r\n\r\n" % len(page) + page)
            self.assertIs(found.grade, Grade.FAULT)
            for said, where in [
                *((reason, found.message) for reason in reasons),
                *((hint, found.hint) for hint in hints),
            ]:
                self.assertIn(said, where)
        page = b'{"ready": true, "reasons": []}'
        found = await self.look(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page)
        self.assertEqual((found.grade, found.message), (Grade.OK, "ready"))


class DoctorTests(SynchronousTestCase):
    def setUp(self) -> None:
        folder = Path(self.mktemp()).absolute()
        self.running = RunningQuickstart(folder)
        self.addCleanup(self.running.kill)
        self.running.ready()
        self.home = Home(folder)
        self.other = Pki(folder / "other-pki", TRUST_DOMAIN)

    def broken(self, role: Role, *replacements: tuple[str, str]) -> dict[str, dict[str, str]]:
        """What is found, by check, of a configuration with other values; there must be a fault."""
        text = self.home.config(Member(role)).read_text()
        for old, new in replacements:
            self.assertIn(old, text)
            text = text.replace(old, new)
        path = self.home.root / "broken.toml"
        path.write_text(text)
        code, document = doctor("--config", str(path))
        self.assertEqual(code, 1)
        self.assertGreater(document["counts"]["fault"], 0)
        return {check["check"]: check for check in document["roles"][0]["checks"]}

    def assert_fault(self, found: dict[str, dict[str, str]], check: str, message: str) -> None:
        """``check`` alone is at fault, says so, and what to do."""
        faults = [name for name, each in found.items() if each["result"] == "fault"]
        self.assertEqual(faults, [check], found)
        self.assertIn(message, found[check]["message"])
        self.assertTrue(found[check]["hint"])

    def certify(self, not_before: float, not_after: float) -> list[tuple[str, str]]:
        """Replacements by a Node's certificate of the deployment's own authority; days from now."""
        now = datetime.now(UTC)
        uri = Identity(TRUST_DOMAIN, Role.NODE, "node-1").uri()
        names, usages = [x509.UniformResourceIdentifier(uri)], [ExtendedKeyUsageOID.CLIENT_AUTH]
        start, end = now + timedelta(days=not_before), now + timedelta(days=not_after)
        leaf = Authority.load(self.home.pki).certify("node-1", names, usages, start, end)
        leaf.write(self.home.root / "dated.pem", self.home.root / "dated.key")
        return [("pki/node-node-1.pem", "dated.pem"), ("pki/node-node-1.key", "dated.key")]

    def test_nothing_is_wrong(self) -> None:
        """Neither while it runs nor after it stopped in good order, peers apart; and nothing is left behind."""
        before = sorted(self.home.root.rglob("*"))
        code, document = doctor("--home", str(self.home.root))
        self.assertEqual((code, document["counts"]["fault"], document["counts"]["skipped"]), (0, 0, 0), document)
        self.assertEqual([role["role"] for role in document["roles"]], ["control-plane", "edge", "node"])
        results = {check["check"]: check for role in document["roles"] for check in role["checks"]}
        self.assertEqual(results["/readyz"]["message"], "ready")
        self.assertEqual({check["result"] for check in document["between"]}, {"ok"})
        self.assertIn("held by this role", results["[node_wire] listen"]["message"])
        self.assertEqual(sorted(self.home.root.rglob("*")), before)
        self.running.stop()
        code, document = doctor("--home", str(self.home.root))
        faults = [
            check["check"] for role in document["roles"] for check in role["checks"] if check["result"] == "fault"
        ]
        self.assertEqual(faults, ["[control_plane] endpoint", "[edge] endpoint", "[targets.stand-in] base_url"])
        self.assertIn("nothing listens", json.dumps(document))
        self.assertIn(f"start it: iop quickstart --home {self.home.root}", json.dumps(document))

    def test_what_is_wrong(self) -> None:
        """Each mistake is one fault, at its place; what cannot be known because of it says so. No secret is shown."""
        root = self.home.root

        with self.subTest("expired certificate"):
            found = self.broken(Role.NODE, *self.certify(-2, -1))
            self.assert_fault(found, "[tls] validity", "ended on")
            self.assertEqual(found["[edge] name"]["message"], "not looked at, because of [tls] chain")
        with self.subTest("certificate of another name"):
            found = self.broken(Role.NODE, ('name = "node-1"', 'name = "node-2"'))
            self.assert_fault(found, "[tls] identity", "is not the one of node-2")
        with self.subTest("key that others can read"):
            shutil.copy(root / "pki" / "node-node-1.key", root / "open.key")
            (root / "open.key").chmod(0o644)
            found = self.broken(Role.NODE, ("pki/node-node-1.key", "open.key"))
            self.assert_fault(found, "[tls] key", "open to group or others")
            self.assertEqual(found["[tls] key"]["hint"], f"chmod 600 {root / 'open.key'}")
        with self.subTest("another authority in trust"):
            found = self.broken(Role.EDGE, ("pki/ca.pem", "other-pki/ca.pem"))
            self.assert_fault(found, "[tls] chain", "untrusted authority")
        with self.subTest("certificate that only the peer does not trust"):
            files = self.other.issue(Role.NODE, "node-1")
            (root / "both.pem").write_bytes(self.home.ca.read_bytes() + self.other.trust.read_bytes())
            found = self.broken(
                Role.NODE,
                ("pki/node-node-1.pem", str(files.certificate)),
                ("pki/node-node-1.key", str(files.key)),
                ("pki/ca.pem", "both.pem"),
            )
            self.assert_fault(found, "[edge] name", "TLS ended the connection")
        with self.subTest("another peer than the one configured"):
            found = self.broken(Role.NODE, ('name = "edge-1"', 'name = "edge-2"'))
            self.assert_fault(found, "[edge] name", "is not the one of edge-2")
        with self.subTest("peer is down"), closing(socket.socket()) as silent:
            # bound and not listening: refuses, and nobody else gets it
            silent.bind(("127.0.0.1", 0))
            wire = json.loads((root / "run" / "edge.json").read_text())["addresses"]["node_wire"].rpartition(":")[2]
            found = self.broken(Role.NODE, (f"port={wire}", f"port={silent.getsockname()[1]}"))
            self.assert_fault(found, "[edge] endpoint", "nothing listens at")
        with self.subTest("schema of another version"):
            with closing(sqlite3.connect(self.home.database)) as of, closing(sqlite3.connect(root / "new.db")) as to:
                of.backup(to)
                to.execute("UPDATE alembic_version SET version_num = '9999'")
                to.commit()
            (root / "new.db").chmod(0o600)
            found = self.broken(Role.CONTROL_PLANE, ("store/iop.db", "new.db"))
            self.assert_fault(found, "[store] path", "has schema 9999")
        with self.subTest("another issuer's public set"):
            command = [sys.executable, "-m", "iop", "issuer", "init", "--key", str(root / "another.json")]
            run([*command, "--public", str(root / "set.json")], check=True, capture_output=True)  # noqa: S603 - ourselves
            found = self.broken(Role.CONTROL_PLANE, ("keys/pinned-issuers.json", "set.json"))
            self.assert_fault(found, "[keys] pinned_issuers", "the issuer key is not in it")
        with self.subTest("configuration that does not parse"):
            found = self.broken(Role.EDGE, ("[node_wire]", "[node_wires]"))
            self.assert_fault(found, "configuration", "[node_wire]")
            printed = [sys.executable, "-m", "iop", "doctor", "--config", str(root / "broken.toml")]
            done = run(printed, capture_output=True, text=True, check=False, timeout=_SECONDS)  # noqa: S603 - ourselves
            # every mistake has a line of its own
            self.assertIn("[node_wires]: is not a known table", map(str.strip, done.stdout.splitlines()))
            self.assertEqual(found["everything else"]["result"], "skipped")
        with self.subTest("certificate that ends soon"):
            path = root / "soon.toml"
            text = self.home.config(Member(Role.NODE)).read_text()
            for old, new in self.certify(-1, 5):
                text = text.replace(old, new)
            path.write_text(text)
            code, document = doctor("--config", str(path))
            warned = [each["check"] for each in document["roles"][0]["checks"] if each["result"] == "warning"]
            # the file is new, and the running Node was not told to read it
            self.assertEqual((code, warned), (0, ["[tls] validity", "files in force"]), document)
