"""Base URLs of targets mean one place only (P17)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import BadConfig
from iop.net.target import Target, is_loopback, is_path, parse_target

ACCEPTED = {
    "https://api.example.com": (Target("https", "api.example.com", 443, ""), "api.example.com"),
    "https://api.example.com/": (Target("https", "api.example.com", 443, ""), "api.example.com"),
    "https://API.Example.com:8443/v1": (Target("https", "api.example.com", 8443, "/v1"), "api.example.com:8443"),
    "https://api.example.com:443/a/b.c/": (Target("https", "api.example.com", 443, "/a/b.c"), "api.example.com"),
    "https://xn--bcher-kva.example/v1": (Target("https", "xn--bcher-kva.example", 443, "/v1"), "xn--bcher-kva.example"),
    "https://10.0.0.1/v1": (Target("https", "10.0.0.1", 443, "/v1"), "10.0.0.1"),
    "https://[2001:DB8:0::1]/v1": (Target("https", "2001:db8::1", 443, "/v1"), "[2001:db8::1]"),
    "http://127.0.0.1:8080/v1": (Target("http", "127.0.0.1", 8080, "/v1"), "127.0.0.1:8080"),
    "http://127.8.9.1": (Target("http", "127.8.9.1", 80, ""), "127.8.9.1"),
    "http://localhost:11434/v1": (Target("http", "localhost", 11434, "/v1"), "localhost:11434"),
    "http://[::1]:80/v1": (Target("http", "::1", 80, "/v1"), "[::1]"),
    "https://h.example/...": (Target("https", "h.example", 443, "/..."), "h.example"),
}

REFUSED = (
    "",
    "api.example.com",
    "//api.example.com",
    "ftp://api.example.com",
    "HTTPS://api.example.com",
    "https:api.example.com",
    "https:///v1",
    "https://:443/v1",
    # not encrypted, not this machine
    "http://api.example.com",
    "http://10.0.0.1",
    "http://0.0.0.0",
    "http://[::]",
    "http://localhost.example.com",
    "http://127.0.0.1.example.com",
    "http://[2001:db8::1]",
    # userinfo, query, fragment
    "https://user@api.example.com",
    "https://user:password@api.example.com",
    "https://@api.example.com",
    "http://localhost@evil.example",
    "https://api.example.com?x=y",
    "https://api.example.com/v1?",
    "https://api.example.com/v1#",
    "https://evil.example#@api.example.com",
    # paths that are not plain
    "https://api.example.com/v1//x",
    "https://api.example.com//",
    "https://api.example.com/..",
    "https://api.example.com/../",
    "https://api.example.com/a/./b",
    "https://api.example.com/a/../b",
    "https://api.example.com/%2e%2e/b",
    "https://api.example.com/a%2fb",
    "https://api.example.com/a\\b",
    "https://api.example.com\\@evil.example",
    # characters that readers drop or normalise
    " https://api.example.com",
    "https://api.example.com ",
    "https://api.example.com/v1\n",
    "https://api.exa\tmple.com",
    "https://api.example.com/v1\r\nx: y",
    "https://api.example.com/v\0",
    "https://bücher.example",
    "https://api。example。com",
    "https://\u2110.example",
    # hosts that resolvers take for addresses, or that are none
    "https://2130706433",
    "https://0x7f000001",
    "https://127.1",
    "https://0177.0.0.1",
    "https://1.2.3.4.5",
    "https://256.0.0.1",
    "https://a.0x7f",
    "https://api.example.com.",
    "https://.example.com",
    "https://a..example.com",
    "https://-a.example.com",
    "https://a-.example.com",
    "https://a_b.example.com",
    "https://" + "a" * 64 + ".example.com",
    "https://" + "a." * 127 + "example",
    "https://[::ffff:127.0.0.1]",
    "http://[::ffff:127.0.0.1]",
    "http://[::ffff:7f00:1]",
    "https://[::1%25eth0]",
    "https://[127.0.0.1]",
    "https://[::1",
    "https://::1",
    "https://[]",
    # ports
    "https://api.example.com:",
    "https://api.example.com:0",
    "https://api.example.com:65536",
    "https://api.example.com:99999",
    "https://api.example.com:+443",
    "https://api.example.com:\uff14\uff14\uff13",
    "https://api.example.com:443:443",
)


class TargetTests(SynchronousTestCase):
    """P17."""

    def test_accepted(self) -> None:
        """P17: plain URLs, in one canonical form."""
        for url, (target, authority) in ACCEPTED.items():
            self.assertEqual(parse_target(url), target, url)
            self.assertEqual(parse_target(url).authority, authority)
            self.assertEqual(parse_target(url).server_name, target.host)

    def test_refused(self) -> None:
        """P17: whatever two readers could take for two places, with a hint and without repeating it."""
        accepted = []
        for url in REFUSED:
            try:
                parse_target(url)
            except BadConfig as refusal:
                self.assertTrue(refusal.hint)
                self.assertNotIn("password", refusal.message)
            else:
                accepted.append(url)
        self.assertEqual(accepted, [])

    @given(st.text(alphabet="htps:/[].@?#%\\ a0-", max_size=24).map(lambda rest: "https://" + rest))
    def test_total(self, url: str) -> None:
        """P17: any text is a target with a sound path, or refused."""
        try:
            target = parse_target(url)
        except BadConfig:
            return
        self.assertTrue(target.base_path == "" or is_path(target.base_path))

    def test_paths(self) -> None:
        """P17: what is appended to a base URL cannot leave it."""
        for path in ("/models", "/chat/completions", "/a.b/...c", "/a/b:c@d"):
            self.assertTrue(is_path(path), path)
        for path in (
            "",
            "models",
            "/",
            "//",
            "/a/",
            "/a//b",
            "/.",
            "/a/..",
            "/../a",
            "/a?b",
            "/a#b",
            "/%2e%2e",
            "/a b",
            "/a\n",
            "/\u00e9",
            "http://x/",
            "/a\\b",
            "/a/./b",
        ):
            self.assertFalse(is_path(path), path)

    def test_loopback(self) -> None:
        """P17: an address of this machine, as an address."""
        for host in ("127.0.0.1", "127.255.0.1", "::1"):
            self.assertTrue(is_loopback(host), host)
        for host in ("localhost", "10.0.0.1", "::", "::ffff:127.0.0.1", "", "127.1", "/run/socket"):
            self.assertFalse(is_loopback(host), host)
