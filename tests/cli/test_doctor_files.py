"""What ``iop doctor`` says of several files together, and with what runs and is stored."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from iop.cli.doctor.between import between
from iop.cli.doctor.checks import Finding, Grade, examine
from iop.cli.doctor.configured import Configured
from iop.cli.doctor.database import denials, secrets
from iop.cli.doctor.machine import files_in_force
from iop.crypto.keyring import Keyring
from iop.net.tls import TlsFiles
from iop.process.record import RunRecord, mark_files_read, record_path
from iop.store import schema
from iop.units import Role
from tests.configurations import DEPLOYMENT, ROLE, control_plane_toml, node_toml

_FILES = TlsFiles(Path("a.pem"), Path("a.key"), Path("ca.pem"))
_EDGE = f"""{ROLE}
[edge]
name = "edge-1"
[tls]
certificate = "a.pem"
key = "a.key"
trust = "ca.pem"
[control_plane]
endpoint = "tcp:host=127.0.0.1:port=7442"
name = "cp1"
server_name = "localhost"
[api]
listen = "tcp:port=7445:interface=127.0.0.1"
[node_wire]
listen = "tcp:port=7446:interface=127.0.0.1"
[state]
directory = "state"
[credential_plane]
enabled = true
[[nodes]]
name = "node-1"
[[nodes.providers]]
id = "lab-1"
category = "api"
profile = "openai"
target = "lab"
models = ["m"]
capacity = 1
"""


class BetweenTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        edge_wire = '[edge_wire]\nlisten = "tcp:port='
        self.texts = {
            Role.CONTROL_PLANE: control_plane_toml().replace(edge_wire + "0", edge_wire + "7442"),
            Role.EDGE: _EDGE,
            Role.NODE: node_toml("node-1", "edge-1", _FILES, 7446, 1),
        }

    def configured(self, role: Role) -> Configured:
        path = self.folder / f"{role.value}.toml"
        path.write_text(self.texts[role])
        return Configured.read(path)

    def found(self) -> dict[str, Finding]:
        files = [self.configured(role) for role in self.texts]
        rows = self.successResultOf(Deferred.fromCoroutine(examine(between(files))))
        return {row.name: row.finding for row in rows}

    def assert_wrong(self, role: Role, old: str, new: str, check: str, said: str, grade: Grade = Grade.FAULT) -> None:
        """With ``new`` in the place of ``old``, ``check`` alone is not ok, says so, and what to do."""
        good = self.texts[role]
        self.assertIn(old, good)
        self.texts[role] = good.replace(old, new)
        found = self.found()
        self.texts[role] = good
        wrong = {name: finding for name, finding in found.items() if finding.grade is not Grade.OK}
        self.assertEqual(list(wrong), [check])
        self.assertIs(wrong[check].grade, grade)
        self.assertIn(said, wrong[check].message)
        self.assertTrue(wrong[check].hint)

    def test_good(self) -> None:
        found = self.found()
        self.assertEqual({finding.grade for finding in found.values()}, {Grade.OK})
        self.assertIn("edge-1 provider lab-1", found)

    def test_file_alone_has_nothing_to_fit(self) -> None:
        self.texts = {Role.NODE: self.texts[Role.NODE]}
        self.assertEqual(self.found(), {})

    def test_another_deployment(self) -> None:
        """C8: neither id nor trust domain may differ."""
        old = f'id = "{DEPLOYMENT}"'
        self.assert_wrong(Role.NODE, old, 'id = "other"', "[deployment] id", "not of one deployment")
        domain = self.configured(Role.NODE).config.deployment.trust_domain
        self.assert_wrong(Role.EDGE, f'"{domain}"', '"other.example"', "[deployment] trust_domain", "other.example in")

    def test_another_mode(self) -> None:
        """E17: a Node of the other mode takes no run of its Edge's."""
        self.texts[Role.EDGE] = self.texts[Role.EDGE].replace('profile = "openai"', 'profile = "none"')
        self.texts[Role.NODE] = self.texts[Role.NODE].replace('profiles = ["openai"]', 'profiles = ["none"]')
        issuers, legacy = '[issuers]\npinned = "issuers.json"', "[credential_plane]\nenabled = false"
        check = "node-1 [credential_plane] enabled"
        self.assert_wrong(Role.NODE, issuers, legacy, check, "the Node refuses every run")

    def test_peer_of_another_name(self) -> None:
        self.assert_wrong(Role.EDGE, '"cp1"', '"cp2"', "edge-1 [control_plane] name", "names cp2, and here is cp1")

    def test_another_listener_of_the_peer(self) -> None:
        check = "node-1 [edge] endpoint"
        self.assert_wrong(Role.NODE, "port=7446", "port=7445", check, "port 7445 is [api] of")
        self.assert_wrong(Role.NODE, "port=7446", "port=7447", check, "nothing of")

    def test_port_that_something_may_forward(self) -> None:
        there = "host=127.0.0.1:port=7446"
        remote = "host=edge.example.org:port=443"
        self.assert_wrong(Role.NODE, there, remote, "node-1 [edge] endpoint", "port 443 is not", Grade.WARNING)

    def test_port_that_is_known_when_the_peer_runs(self) -> None:
        """Where any free port may be taken."""
        self.texts[Role.EDGE] = _EDGE.replace("port=7446", "port=0")
        self.assertIn("any free port", self.found()["node-1 [edge] endpoint"].message)
        RunRecord("edge-1", os.getpid(), {"node_wire": "127.0.0.1:7499"}).write(self.folder / "run", Role.EDGE)
        self.assertIs(self.found()["node-1 [edge] endpoint"].grade, Grade.FAULT)

    def test_node_that_the_edge_does_not_list(self) -> None:
        """C47: the catalogue stands in the Edge's configuration and nowhere else."""
        old, new = '[[nodes]]\nname = "node-1"', '[[nodes]]\nname = "node-7"'
        self.assert_wrong(Role.EDGE, old, new, "edge-1 [[nodes]] node-1", "it has only node-7")

    def test_provider_that_the_node_does_not_serve(self) -> None:
        """N6: judged as the Node does."""
        check = "edge-1 provider lab-1"
        self.assert_wrong(Role.EDGE, 'target = "lab"', 'target = "lap"', check, "has no target lap, only lab")
        self.assert_wrong(
            Role.EDGE, 'profile = "openai"', 'profile = "anthropic"', check, "does not allow profile anthropic"
        )


class DatabaseTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        self.database, self.keyring = self.folder / "iop.db", self.folder / "keyring.json"
        schema.migrate(self.database, DEPLOYMENT)
        self.primary = Keyring.create(self.keyring).primary

    def execute(self, statement: str, *values: object) -> None:
        connection = schema.connect(self.database)
        self.addCleanup(connection.close)
        connection.execute(statement, values)

    def slot(self, number: int, key_id: str, state: str = "active") -> None:
        """A slot that is sealed under ``key_id``."""
        self.execute(
            "INSERT INTO slots VALUES (?, 'p', ?, 'openai', 'lab', ?, 1, 1, ?, x'01', x'01', 1, 1)",
            *(f"slot-{number}", f"name-{number}", state, key_id),
        )

    def test_secrets_under_a_key_that_is_not_there(self) -> None:
        """K15: how many, and which; those that are revoked are missed by nobody."""
        self.execute("INSERT INTO principals (principal, name, created_ms) VALUES ('p', 'ann', 1)")
        self.assertIs(secrets(self.database, DEPLOYMENT, self.keyring).grade, Grade.OK)
        self.slot(1, self.primary)
        self.slot(2, "gone", "revoked")
        self.assertIs(secrets(self.database, DEPLOYMENT, self.keyring).grade, Grade.OK)
        for number in range(3, 10):
            self.slot(number, "lost")
        found = secrets(self.database, DEPLOYMENT, self.keyring)
        self.assertIs(found.grade, Grade.FAULT)
        self.assertIn("7 of 8 stored secrets", found.message)
        self.assertIn("keys lost; slots slot-3, slot-4, slot-5, slot-6, slot-7 and 2 more", found.message)

    def test_denials(self) -> None:
        """P13: of whose file is at hand a warning, of others no more than a word."""
        path = self.folder / "node.toml"
        path.write_text(node_toml("node-1", "edge-1", _FILES, 1, 1))
        among, config = [Configured.read(path)], self.folder / "cp.toml"
        self.assertEqual(denials(self.database, DEPLOYMENT, among, config).message, "nobody is denied")
        self.execute("INSERT INTO denials VALUES ('edge', 'node-1')")
        self.assertIs(denials(self.database, DEPLOYMENT, among, config).grade, Grade.OK)
        self.execute("INSERT INTO denials VALUES ('node', 'node-1')")
        found = denials(self.database, DEPLOYMENT, among, config)
        self.assertEqual((found.grade, found.message), (Grade.WARNING, "denied: node node-1"))
        self.assertIn(f"iop node allow node-1 --config {config}", found.hint)


class FilesInForceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        self.file = self.folder / "edge.pem"
        self.file.touch()

    def found(self) -> Finding:
        return files_in_force(self.folder, Role.EDGE, [self.file, self.folder / "gone.pem"])

    def test_changed_since_they_were_read(self) -> None:
        """A date that was copied along does not hide it; the next reload ends it."""
        self.assertEqual(self.found().message, "the role does not run")
        record = RunRecord("edge-1", os.getpid(), {}).write(self.folder, Role.EDGE)
        self.assertIs(self.found().grade, Grade.OK)
        os.utime(record, (1, 1))
        os.utime(self.file, (0, 0))
        found = self.found()
        self.assertIs(found.grade, Grade.WARNING)
        self.assertIn(str(self.file), found.message)
        self.assertIn(f"kill -HUP {os.getpid()}", found.hint)
        mark_files_read(record)
        self.assertIs(self.found().grade, Grade.OK)

    def test_record_that_was_taken_away(self) -> None:
        """A role that reads its files again neither needs nor makes it."""
        mark_files_read(record_path(self.folder, Role.EDGE))
        self.assertFalse(record_path(self.folder, Role.EDGE).exists())
