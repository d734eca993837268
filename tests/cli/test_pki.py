"""``iop pki`` as a person or a script uses it."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

from click.testing import CliRunner, Result
from twisted.trial.unittest import SynchronousTestCase

from iop.certificates import identity_of, read_certificates
from iop.cli.pki import pki
from iop.errors import AlreadyExists, BadConfig, FileRefused, IopError
from iop.testing.pki import Pki
from iop.units import Identity, Role


class PkiCase(SynchronousTestCase):
    """A folder with an authority made by ``init``."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.done("init", "--trust-domain", "iop.test")

    def run_pki(self, command: str, *arguments: str) -> Result:
        directory = [] if command == "inspect" else ["--directory", str(self.folder)]
        return CliRunner().invoke(pki, [command, *directory, *arguments], env={"COLUMNS": "200"})

    def done(self, command: str, *arguments: str) -> str:
        result = self.run_pki(command, *arguments)
        self.assertEqual((result.exit_code, result.exception), (0, None), result.output)
        return result.output

    def complained(self, *arguments: str) -> str:
        """What ``inspect`` prints when it finds something wrong."""
        result = self.run_pki("inspect", *arguments)
        self.assertEqual(result.exit_code, 1, result.output)
        return result.output

    def refused(self, command: str, *arguments: str) -> IopError:
        error = self.run_pki(command, *arguments).exception
        assert isinstance(error, IopError)
        return error

    def inspected(self, *paths: Path, code: int = 0) -> list[dict[str, object]]:
        result = self.run_pki("inspect", "--json", *map(str, paths))
        self.assertEqual(result.exit_code, code, result.output)
        answer = json.loads(result.output)
        found: list[dict[str, object]] = answer["certificates"]
        return found


class InitTests(PkiCase):
    """``iop pki init``."""

    def test_a_second_time_changes_nothing(self) -> None:
        before = (self.folder / "ca.key").read_bytes()
        error = self.refused("init", "--trust-domain", "iop.test")
        self.assertIsInstance(error, AlreadyExists)
        self.assertTrue(error.hint)
        self.assertEqual((self.folder / "ca.key").read_bytes(), before)

    def test_a_trust_domain_that_is_none(self) -> None:
        self.assertIsInstance(self.refused("init", "--trust-domain", "No Domain"), BadConfig)


class IssueTests(PkiCase):
    """``iop pki issue``."""

    def test_an_edge(self) -> None:
        output = self.done("issue", "--role", "edge", "--name", "edge1", "--dns", "localhost", "--ip", "127.0.0.1")
        certificate, key = self.folder / "edge-edge1.pem", self.folder / "edge-edge1.key"
        self.assertIn(str(certificate), output)
        self.assertEqual(identity_of(read_certificates(certificate)[0]), Identity("iop.test", Role.EDGE, "edge1"))
        self.assertEqual(stat.S_IMODE(key.stat().st_mode), 0o600)
        self.assertNotIn("PRIVATE", output)

    def test_json(self) -> None:
        answer = json.loads(self.done("issue", "--role", "node", "--name", "node1", "--json"))
        self.assertEqual(set(answer), {"certificate", "key", "identity", "expires"})
        self.assertEqual(answer["identity"], "spiffe://iop.test/iop/node/node1")
        self.assertTrue(Path(answer["certificate"]).is_absolute())

    def test_never_overwrites(self) -> None:
        self.done("issue", "--role", "node", "--name", "node1")
        before = (self.folder / "node-node1.key").read_bytes()
        error = self.refused("issue", "--role", "node", "--name", "node1")
        self.assertIsInstance(error, AlreadyExists)
        self.assertIn("move it away", error.hint)
        self.assertEqual((self.folder / "node-node1.key").read_bytes(), before)

    def test_without_an_authority(self) -> None:
        (self.folder / "ca.pem").unlink()
        error = self.refused("issue", "--role", "node", "--name", "node1")
        self.assertIsInstance(error, FileRefused)
        self.assertIn("iop pki init", error.hint)

    def test_command_lines_that_do_not_parse(self) -> None:
        for arguments in (
            ["--role", "admin", "--name", "x"],
            ["--role", "edge", "--name", "x", "--ip", "localhost"],
            ["--role", "node", "--name", "x", "--days", "0"],
            ["--role", "node", "--name", "x", "--days", "826"],
            ["--role", "node"],
        ):
            self.assertEqual(self.run_pki("issue", *arguments).exit_code, 2, arguments)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["ca.key", "ca.pem"])

    def test_every_help_has_an_example(self) -> None:
        for command in ("init", "issue", "inspect"):
            self.assertIn(f"iop pki {command}", self.done(command, "--help").partition("Example")[2])


class InspectTests(PkiCase):
    """``iop pki inspect``."""

    def test_a_folder(self) -> None:
        self.done("issue", "--role", "edge", "--name", "edge1", "--dns", "localhost", "--ip", "::1", "--days", "30")
        authority, edge = self.inspected(self.folder)
        self.assertEqual(authority["identity"], None)
        self.assertEqual(
            {name: edge[name] for name in ("identity", "role", "name", "names", "days", "issuer", "key", "problem")},
            {
                "identity": "spiffe://iop.test/iop/edge/edge1",
                "role": "edge",
                "name": "edge1",
                "names": ["localhost", "::1"],
                "days": 29,
                "issuer": "CN=iop.test iop authority",
                "key": "private",
                "problem": "",
            },
        )
        self.assertTrue(str(edge["expires"]).startswith(time.strftime("%Y", time.gmtime(time.time() + 30 * 86400))))

    def test_table(self) -> None:
        self.done("issue", "--role", "node", "--name", "node1", "--days", "2")
        output = self.done("inspect", str(self.folder))
        for part in ("node-node1.pem", "spiffe://iop.test/iop/node/node1", "in 1 day", "private"):
            self.assertIn(part, output)

    def test_nothing_is_cut_on_a_narrow_screen(self) -> None:
        """Paths and identities are there to be copied."""
        self.done("issue", "--role", "control-plane", "--name", "a-long-name-of-a-control-plane", "--dns", "localhost")
        output = CliRunner().invoke(pki, ["inspect", str(self.folder)], env={"COLUMNS": "40"}).output
        self.assertIn(str(self.folder / "control-plane-a-long-name-of-a-control-plane.pem"), output)
        self.assertIn("spiffe://iop.test/iop/control-plane/a-long-name-of-a-control-plane", output)

    def test_expired(self) -> None:
        other = Pki(self.folder / "other")
        files = other.certify("old", [], valid_days=(-5, -2))
        (found,) = self.inspected(files.certificate)
        self.assertEqual(found["days"], -3)
        self.assertIn("expired 3 days ago", self.done("inspect", str(files.certificate)))

    def test_keys_that_are_missing_open_or_another_ones(self) -> None:
        certificate, key = self.folder / "ca.pem", self.folder / "ca.key"
        key.chmod(0o640)
        (found,) = self.inspected(certificate, code=1)
        self.assertEqual(found["key"], "refused")
        self.assertIn(f"chmod 600 {key}", str(found["problem"]))
        self.assertIn(f"chmod 600 {key}", self.complained(str(certificate)))
        self.done_with_another_key(key)
        (found,) = self.inspected(certificate, code=1)
        self.assertEqual(found["problem"], f"{key} is the key of another certificate")
        key.unlink()
        (found,) = self.inspected(certificate)
        self.assertEqual((found["key"], found["problem"]), ("none", ""))

    def done_with_another_key(self, key: Path) -> None:
        key.write_bytes((Pki(self.folder / "other").folder / "ca.key").read_bytes())
        key.chmod(0o600)

    def test_a_file_that_is_no_certificate_hides_no_other(self) -> None:
        (self.folder / "a.pem").write_text("canary")
        broken, authority = self.inspected(self.folder, code=1)
        self.assertIn("no PEM certificate", str(broken["problem"]))
        self.assertTrue(authority["expires"])
        self.assertIn("no PEM certificate", self.complained(str(self.folder)))

    def test_a_folder_without_certificates(self) -> None:
        """That is said, instead of nothing."""
        empty = self.folder / "empty"
        empty.mkdir()
        self.assertIn(str(empty), self.refused("inspect", str(empty)).message)

    def test_what_a_certificate_says_commands_no_terminal(self) -> None:
        self.done("issue", "--role", "node", "--name", "node1")
        hostile = self.folder / "x\x1b[31m.pem"
        for content in ((self.folder / "node-node1.pem").read_bytes(), b"none"):
            hostile.write_bytes(content)
            self.assertNotIn("\x1b", self.run_pki("inspect", str(hostile)).output)
