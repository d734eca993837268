"""An authority issues certificates that verify, and refuses those that should not be."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from twisted.trial.unittest import SynchronousTestCase

from iop.certificates import identity_of, names_of, read_certificates, read_key
from iop.crypto.pki import LONGEST_DAYS, Authority, Leaf, authority_paths, leaf_paths, new_authority
from iop.errors import AlreadyExists, BadConfig, FileRefused
from iop.units import Identity, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW_MS = 1_800_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)
DAY_MS = 24 * 60 * 60 * 1000
NODE = Identity("iop.test", Role.NODE, "node1")


class IssueTests(SynchronousTestCase):
    """What :meth:`Authority.issue` signs."""

    def setUp(self) -> None:
        self.authority = new_authority("iop.test", NOW_MS)
        self.policy = PolicyBuilder().store(Store([self.authority.certificate]))

    def node(self, days: int = 90, now_ms: int = NOW_MS) -> Leaf:
        return self.authority.issue(Role.NODE, "node1", days=days, now_ms=now_ms)

    def edge(self, dns: Sequence[str] = ("edge.iop.test",)) -> Leaf:
        return self.authority.issue(Role.EDGE, "edge1", dns=dns, addresses=[ip_address("::1")], now_ms=NOW_MS)

    def as_client(self, leaf: Leaf, at: datetime = NOW) -> None:
        self.policy.time(at).build_client_verifier().verify(leaf.certificate, [])

    def as_server(self, leaf: Leaf, name: x509.GeneralName) -> None:
        assert isinstance(name, x509.DNSName | x509.IPAddress)
        self.policy.time(NOW).build_server_verifier(name).verify(leaf.certificate, [])

    def test_identity(self) -> None:
        self.assertEqual(identity_of(self.node().certificate), NODE)

    def test_every_role_is_good_for_the_ends_it_has_and_for_no_other(self) -> None:
        name = x509.DNSName("x.iop.test")
        for role in Role:
            listens = role in (Role.CONTROL_PLANE, Role.EDGE)
            leaf = self.authority.issue(role, "x", dns=["x.iop.test"] if listens else [], now_ms=NOW_MS)
            if role is Role.CONTROL_PLANE:
                self.assertRaises(VerificationError, self.as_client, leaf)
            else:
                self.as_client(leaf)
            if listens:
                self.as_server(leaf, name)
            else:
                self.assertRaises(VerificationError, self.as_server, leaf, name)

    def test_server_names(self) -> None:
        leaf = self.edge()
        self.as_server(leaf, x509.DNSName("edge.iop.test"))
        self.as_server(leaf, x509.IPAddress(ip_address("::1")))
        self.assertRaises(VerificationError, self.as_server, leaf, x509.DNSName("other.iop.test"))

    def test_validity(self) -> None:
        leaf = self.node(days=1)
        self.as_client(leaf, NOW - timedelta(minutes=4))
        self.as_client(leaf, NOW + timedelta(hours=23))
        self.assertRaises(VerificationError, self.as_client, leaf, NOW + timedelta(hours=25))

    def test_days_at_the_limits_and_one_past(self) -> None:
        self.node(days=1)
        self.node(days=LONGEST_DAYS)
        for days in (0, -1, LONGEST_DAYS + 1):
            self.assertRaises(BadConfig, self.node, days=days)

    def test_none_outlives_its_authority(self) -> None:
        end_ms = int(self.authority.certificate.not_valid_after_utc.timestamp() * 1000)
        self.node(days=1, now_ms=end_ms - DAY_MS)
        self.assertRaises(BadConfig, self.node, days=1, now_ms=end_ms - DAY_MS + 1000)

    def test_every_certificate_has_its_own_key_and_number(self) -> None:
        first, second = self.node(), self.node()
        self.assertNotEqual(first.certificate.serial_number, second.certificate.serial_number)
        self.assertNotEqual(first.certificate.public_key(), second.certificate.public_key())

    def test_names_that_cannot_stand_in_a_certificate(self) -> None:
        for name in ("", "Node", "a/b", "..", "a" * 64, "é"):
            with self.assertRaises(BadConfig):
                self.authority.issue(Role.NODE, name, now_ms=NOW_MS)
        for dns in (
            "bücher.example",
            "",
            "*",
            "*.iop.test",
            "not a name",
            "https://iop.test",
            "a..b",
            "-a",
            "a.",
            "a" * 64,
        ):
            error = self.assertRaises(BadConfig, self.edge, dns=[dns])
            self.assertIn(repr(dns), error.message)

    def test_names_of_hosts(self) -> None:
        for dns in ("localhost", "Edge-1.iop.test", "edge_1", "xn--bcher-kva.example", "a" * 63):
            self.assertIn(dns, names_of(self.edge(dns=[dns]).certificate).get_values_for_type(x509.DNSName))

    def test_longest_name(self) -> None:
        name = "a" * 63
        leaf = self.authority.issue(Role.NODE, name, now_ms=NOW_MS)
        self.as_client(leaf)
        self.assertEqual(identity_of(leaf.certificate).name, name)

    def test_roles_that_listen_need_names_and_others_have_none(self) -> None:
        for role in Role:
            names = [] if role in (Role.CONTROL_PLANE, Role.EDGE) else ["x.iop.test"]
            error = self.assertRaises(BadConfig, self.authority.issue, role, "x", dns=names, now_ms=NOW_MS)
            self.assertIn("--dns", error.hint)

    def test_a_leaf_signs_nothing(self) -> None:
        """An Edge's key makes no certificate for another name."""
        edge = self.edge()
        forged = Authority.__new__(Authority)
        forged.certificate, forged._key = edge.certificate, edge.key
        leaf = forged.certify(
            "forged",
            [x509.UniformResourceIdentifier(NODE.uri())],
            [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH],
            NOW - timedelta(1),
            NOW + timedelta(1),
        )
        with self.assertRaises(VerificationError):
            self.policy.time(NOW).build_client_verifier().verify(leaf.certificate, [edge.certificate])

    def test_repr_shows_no_key(self) -> None:
        self.assertNotIn("PrivateKey", repr(self.node()))


class FolderTests(SynchronousTestCase):
    """An authority in its folder."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute() / "pki"
        self.paths = authority_paths(self.folder)

    def create(self) -> Authority:
        return Authority.create(self.folder, "iop.test", NOW_MS)

    def test_what_is_created_loads(self) -> None:
        created, loaded = self.create(), Authority.load(self.folder)
        self.assertEqual((loaded.certificate, loaded.trust_domain), (created.certificate, "iop.test"))
        self.assertEqual(stat.S_IMODE(self.folder.stat().st_mode), 0o700)
        self.assertEqual(stat.S_IMODE(self.paths.key.stat().st_mode), 0o600)

    def test_never_overwritten(self) -> None:
        self.create()
        before = self.paths.key.read_bytes()
        self.assertRaises(AlreadyExists, self.create)
        self.assertEqual(self.paths.key.read_bytes(), before)

    def test_a_creation_that_was_killed_can_be_repeated(self) -> None:
        """P46: the certificate comes last, so a key alone was never used."""
        self.create()
        self.paths.certificate.unlink()
        self.create()
        Authority.load(self.folder)

    def test_no_authority(self) -> None:
        self.assertIn("iop pki init", self.assertRaises(FileRefused, Authority.load, self.folder).hint)

    def test_a_key_that_is_not_the_authoritys(self) -> None:
        leaf = self.create().issue(Role.NODE, "node1", now_ms=NOW_MS)
        leaf.write(self.folder / "x.pem", self.paths.key)
        self.assertIn("is not the key of", self.assertRaises(FileRefused, Authority.load, self.folder).message)

    def test_a_key_open_to_others(self) -> None:
        self.create()
        self.paths.key.chmod(0o644)
        self.assertRaises(FileRefused, Authority.load, self.folder)

    def test_a_certificate_that_is_no_authoritys(self) -> None:
        leaf = self.create().issue(Role.NODE, "node1", now_ms=NOW_MS)
        leaf.write(self.paths.certificate, self.paths.key)
        self.assertIn("names no trust domain", self.assertRaises(FileRefused, Authority.load, self.folder).message)

    def test_trust_domains_that_are_none(self) -> None:
        for domain in ("", "Iop.Test", "iop/test", "iop:8443", "a@b", "-iop"):
            self.assertRaises(BadConfig, Authority.create, self.folder, domain, NOW_MS)
        self.assertFalse(self.folder.exists())

    def test_a_leaf_written_and_read(self) -> None:
        leaf = self.create().issue(Role.NODE, "node1", now_ms=NOW_MS)
        paths = leaf_paths(self.folder, Role.NODE, "node1")
        leaf.write(paths.certificate, paths.key)
        self.assertEqual((paths.certificate.name, paths.key.name), ("node-node1.pem", "node-node1.key"))
        self.assertEqual(read_certificates(paths.certificate), [leaf.certificate])
        self.assertEqual(read_key(paths.key).public_key(), leaf.certificate.public_key())
