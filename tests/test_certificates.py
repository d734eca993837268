"""Who a certificate speaks for, and what files of certificates and keys are refused."""

from __future__ import annotations

import ssl
import traceback
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.certificates import check_own, identity_of, read_certificates, read_key, required_identity
from iop.crypto.pki import new_authority
from iop.errors import FileRefused, IdentityRefused
from iop.units import Identity, Role

EDGE = Identity("iop.test", Role.EDGE, "edge1")
AUTHORITY = new_authority("iop.test", 1_800_000_000_000)


def saying(*names: x509.GeneralName) -> x509.Certificate:
    """A certificate with these names and no others."""
    ca = AUTHORITY.certificate
    usages = [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    return AUTHORITY.certify("x", names, usages, ca.not_valid_before_utc, ca.not_valid_after_utc).certificate


def uri(value: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(value)


class IdentityTests(SynchronousTestCase):
    """One reading of a certificate's name, with nothing accepted by accident (P1)."""

    def test_beside_server_names(self) -> None:
        certificate = saying(x509.DNSName("localhost"), uri(EDGE.uri()), x509.RFC822Name("a@b.example"))
        self.assertEqual(identity_of(certificate), EDGE)

    def test_not_exactly_one_uri(self) -> None:
        for names in ([], [x509.DNSName("edge1")], [uri(EDGE.uri()), uri(EDGE.uri())], [uri(EDGE.uri()), uri("a:b")]):
            self.assertRaises(IdentityRefused, identity_of, saying(*names))

    def test_anything_but_the_one_form(self) -> None:
        for value in (
            "",
            "spiffe://iop.test",
            "spiffe://iop.test/iop/edge",
            "spiffe://iop.test/iop/edge/",
            "spiffe://iop.test/iop/edge/edge1/",
            "spiffe://iop.test/iop/edge/edge1?x",
            "spiffe://iop.test/iop/edge/edge1#x",
            "spiffe://iop.test//iop/edge/edge1",
            "spiffe://iop.test/iop/EDGE/edge1",
            "spiffe://iop.test/iop/edge/Edge1",
            "spiffe://iop.test/iop/edge/edge%31",
            "spiffe://iop.test/iop/edge/..",
            "spiffe://iop.test:8443/iop/edge/edge1",
            "spiffe://user@iop.test/iop/edge/edge1",
            "SPIFFE://iop.test/iop/edge/edge1",
            "https://iop.test/iop/edge/edge1",
            " spiffe://iop.test/iop/edge/edge1",
            "spiffe://iop.test/iop/edge/edge1\n",
            "spiffe://iop.test/iop/edge/edge1\0",
        ):
            error = self.assertRaises(IdentityRefused, identity_of, saying(uri(value)))
            self.assertEqual(error.code, "identity_refused")

    @given(st.text(st.characters(max_codepoint=127), max_size=80))
    def test_any_text_is_an_identity_in_its_own_form_or_refused(self, value: str) -> None:
        try:
            identity = identity_of(saying(uri(value)))
        except IdentityRefused:
            return
        self.assertEqual(identity.uri(), value)

    def test_required(self) -> None:
        certificate = saying(uri(EDGE.uri()))
        domain, role = EDGE.trust_domain, EDGE.role
        self.assertEqual(required_identity(certificate, trust_domain=domain, role=role), EDGE)
        self.assertEqual(required_identity(certificate, trust_domain=domain, role=role, name="edge1"), EDGE)
        for other_domain, other_role, other_name in (
            ("iop.tes", role, "edge1"),
            (domain, Role.NODE, "edge1"),
            (domain, role, "edge"),
            (domain, role, ""),
        ):
            with self.assertRaises(IdentityRefused):
                required_identity(certificate, trust_domain=other_domain, role=other_role, name=other_name)


class FileTests(SynchronousTestCase):
    """Certificates and keys as files."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp()).absolute()

    def put(self, data: bytes) -> Path:
        self.path.write_bytes(data)
        self.path.chmod(0o600)
        return self.path

    def test_a_chain_in_its_order(self) -> None:
        certificates = [saying(), AUTHORITY.certificate]
        self.put(b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates))
        self.assertEqual(read_certificates(self.path), certificates)

    def test_files_without_a_certificate(self) -> None:
        for data in (b"", b"canary", b"-----BEGIN CERTIFICATE-----\ncanary\n-----END CERTIFICATE-----\n"):
            self.assertRaises(FileRefused, read_certificates, self.put(data))

    def test_a_public_bundle_warns_nobody(self) -> None:
        """An old authority in it may have a serial number that is not positive."""
        certificate = saying()
        number = certificate.serial_number
        serial = number.to_bytes(number.bit_length() // 8 + 1, "big")
        der = certificate.public_bytes(serialization.Encoding.DER).replace(serial, b"\x80" + serial[1:], 1)
        self.put(ssl.DER_cert_to_PEM_cert(der).encode())
        self.assertEqual(len(read_certificates(self.path)), 1)
        self.assertEqual(self.flushWarnings(), [])

    def test_own_certificate(self) -> None:
        """A process does not start under a name that its certificate does not give it."""
        certificate = new_authority("iop.test", 0).issue(Role.EDGE, "edge-1", dns=["localhost"], now_ms=0).certificate
        path = self.put(certificate.public_bytes(serialization.Encoding.PEM))
        check_own(path, trust_domain="iop.test", role=Role.EDGE, name="edge-1")
        for domain, role, name in (
            ("other.test", Role.EDGE, "edge-1"),
            ("iop.test", Role.CONTROL_PLANE, "edge-1"),
            ("iop.test", Role.EDGE, "edge-2"),
        ):
            with self.assertRaises(FileRefused) as refused:
                check_own(path, trust_domain=domain, role=role, name=name)
            self.assertIn("not this process's certificate", refused.exception.message)

    def test_a_key(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.assertEqual(read_key(self.put(pem)).public_key(), key.public_key())
        self.path.chmod(0o604)
        self.assertRaises(FileRefused, read_key, self.path)

    def test_an_encrypted_key_is_refused(self) -> None:
        pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
        self.assertIn("unencrypted", self.assertRaises(FileRefused, read_key, self.put(pem)).message)

    def test_a_key_of_a_kind_that_nobody_knows_is_refused(self) -> None:
        """Read well, and of no use: a curve that the library has no code for."""
        body = "MC4CAQAwBQYDK2VzBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
        self.put(f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n".encode())
        self.assertRaises(FileRefused, read_key, self.path)

    def test_a_refusal_shows_nothing_of_the_file(self) -> None:
        """P25: not in the message, nor in the traceback and its causes."""
        for data in (b"canary", b"-----BEGIN PRIVATE KEY-----\nY2FuYXJ5\n-----END PRIVATE KEY-----\n"):
            error = self.assertRaises(FileRefused, read_key, self.put(data))
            shown = "".join(traceback.format_exception(error)) + error.hint
            self.assertNotIn("canary", shown)
            self.assertNotIn("Y2FuYXJ5", shown)
