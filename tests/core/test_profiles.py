"""The closed table of profiles."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from iop.core.headers import HOP_BY_HOP, REQUEST_HEADERS
from iop.core.profiles import PROFILES, check_secret, credential_header
from iop.errors import BadCredential
from iop.secret import Secret


class TableTests(SynchronousTestCase):
    def test_closed_table(self) -> None:
        """P5, P17: names, headers and calls are exactly these."""
        openai = {
            ("GET", "/models"),
            ("POST", "/chat/completions"),
            ("POST", "/completions"),
            ("POST", "/embeddings"),
            ("POST", "/responses"),
        }
        anthropic = {("GET", "/models"), ("POST", "/messages"), ("POST", "/messages/count_tokens")}
        self.assertEqual(
            {name: (p.header, p.scheme, set(p.calls), dict(p.default_headers)) for name, p in PROFILES.items()},
            {
                "openai": ("authorization", "Bearer", openai, {}),
                "anthropic": ("x-api-key", "", anthropic, {"anthropic-version": "2023-06-01"}),
                "openai-compatible": ("authorization", "Bearer", openai, {}),
                "none": ("", "", openai, {}),
            },
        )

    def test_paths_are_not_normalised(self) -> None:
        """P17: traversal, doubled slashes, queries, absolute form and case variants of an allowed path are refused."""
        profile = PROFILES["openai"]
        self.assertTrue(profile.allows("POST", "/chat/completions"))
        for method, path in [
            ("post", "/chat/completions"),
            ("GET", "/chat/completions"),
            ("POST", "/chat/completions/"),
            ("POST", "//chat/completions"),
            ("POST", "/chat/../chat/completions"),
            ("POST", "/chat/completions?x=1"),
            ("POST", "/chat/completions#x"),
            ("POST", "/Chat/completions"),
            ("POST", "/chat%2fcompletions"),
            ("POST", "http://elsewhere.example/chat/completions"),
            ("POST", "@elsewhere.example/chat/completions"),
            ("POST", ""),
        ]:
            self.assertFalse(profile.allows(method, path), (method, path))

    def test_only_openai_compatible_can_be_placed(self) -> None:
        placed = PROFILES["openai-compatible"].placed("api-key", "")
        self.assertEqual((placed.header, placed.scheme), ("api-key", ""))
        for name in ("openai", "anthropic", "none"):
            self.assertRaises(ValueError, PROFILES[name].placed, "api-key", "")

    def test_placement_must_be_tokens(self) -> None:
        """P18: neither header nor scheme can smuggle a line end."""
        for header, scheme in [("", ""), ("Api-Key", ""), ("a\r\nb", ""), ("a b", ""), ("x", "Bearer\n"), ("x", "A B")]:
            self.assertRaises(ValueError, PROFILES["openai-compatible"].placed, header, scheme)

    def test_placement_takes_no_header_from_the_request(self) -> None:
        """P17, P18: a credential cannot stand in a header that delimits, addresses or describes the request."""
        for header in (*HOP_BY_HOP, *REQUEST_HEADERS, "accept-encoding"):
            self.assertRaises(ValueError, PROFILES["openai-compatible"].placed, header, "")

    def test_placement_is_bounded(self) -> None:
        """64 characters of each pass, 65 do not."""
        profile = PROFILES["openai-compatible"]
        self.assertEqual(len(profile.placed("x" * 64, "S" * 64).header), 64)
        self.assertRaises(ValueError, profile.placed, "x" * 65, "")
        self.assertRaises(ValueError, profile.placed, "x", "S" * 65)


class CredentialTests(SynchronousTestCase):
    def test_headers(self) -> None:
        secret = Secret(b"sk-123")
        self.assertEqual(credential_header(PROFILES["openai"], secret), ("authorization", bytearray(b"Bearer sk-123")))
        self.assertEqual(credential_header(PROFILES["anthropic"], secret), ("x-api-key", bytearray(b"sk-123")))
        self.assertIsNone(credential_header(PROFILES["none"], Secret(b"")))

    def test_presence(self) -> None:
        """A profile that sends a credential needs one, and one that sends none must not get one."""
        self.assertRaises(BadCredential, check_secret, PROFILES["openai"], Secret(b""))
        self.assertRaises(BadCredential, check_secret, PROFILES["none"], Secret(b"sk"))

    def test_control_bytes_are_refused(self) -> None:
        """P18: every byte outside printable ASCII is refused wherever it stands, and the error does not quote."""
        for byte in (*range(0x20), *range(0x7F, 0x100)):
            for value in (b"canary" + bytes([byte]), bytes([byte]) + b"canary", b"can" + bytes([byte]) + b"ary"):
                refusal = self.assertRaises(BadCredential, credential_header, PROFILES["openai"], Secret(value))
                self.assertNotIn("canary", str(refusal) + refusal.hint)
