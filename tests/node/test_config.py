"""``node.toml``, strict."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.errors import BadConfig
from iop.node.config import NodeConfig, load

GOOD = """
[deployment]
id = "deployment-1"
trust_domain = "iop.test"

[node]
name = "node-1"

[tls]
certificate = "node.pem"
key = "node.key"
trust = "ca.pem"

[edge]
endpoint = "tcp:host=127.0.0.1:port=7443"
name = "edge-1"
server_name = "localhost"

[issuers]
pinned = "issuers.json"

[status]
listen = "tcp:port=0:interface=127.0.0.1"

[run]
directory = "run"

[targets.openai]
base_url = "https://api.openai.example/v1"
profiles = ["openai"]

[targets.lab]
base_url = "http://127.0.0.1:8080/v1"
profiles = ["openai-compatible", "none"]
"""


class ConfigTests(SynchronousTestCase):
    def read(self, text: str) -> NodeConfig:
        path = Path(self.mktemp())
        path.write_text(text)
        return load(path)

    def refused(self, text: str) -> str:
        refusal: BadConfig = self.assertRaises(BadConfig, self.read, text)
        return refusal.message

    def test_good(self) -> None:
        config = self.read(GOOD)
        self.assertEqual(set(config.targets), {"openai", "lab"})
        self.assertEqual(set(config.targets["lab"].allowed()), {"openai-compatible", "none"})
        self.assertEqual(config.limits.connect_seconds, 10.0)

    def test_unknown_keys(self) -> None:
        self.assertIn("[targets.lab] url", self.refused(GOOD + 'url = "x"\n'))
        self.assertIn("[limits] idle", self.refused(GOOD + "[limits]\nidle = 3.0\n"))

    def test_limits(self) -> None:
        """Every limit is taken at its hard cap and refused one past it."""
        for key, cap in (("skew", 30), ("connect", 60), ("first_byte", 3600), ("idle", 3600)):
            self.read(GOOD + f"[limits]\n{key}_seconds = {cap}.0\n")
            self.assertIn(f"[limits] {key}_seconds", self.refused(GOOD + f"[limits]\n{key}_seconds = {cap}.1\n"))

    def test_base_urls(self) -> None:
        """P17: no plain HTTP beyond loopback, no userinfo, query, fragment, dot segment."""
        for url in (
            "http://api.example/v1",
            "https://user@api.example/v1",
            "https://api.example/v1?a=b",
            "https://api.example/v1#a",
            "https://api.example/v1/../v2",
            "ftp://api.example/",
            "http://[::ffff:127.0.0.1]/v1",
            "",
        ):
            self.assertIn("[targets.lab] base_url", self.refused(GOOD.replace("http://127.0.0.1:8080/v1", url)), url)

    def test_profiles(self) -> None:
        self.assertIn("[targets.lab.profiles]", self.refused(GOOD.replace('"none"', '"other"')))
        self.assertIn("[targets.openai] profiles", self.refused(GOOD.replace('["openai"]', "[]")))

    def test_header_and_scheme(self) -> None:
        """Only ``openai-compatible`` can be told where the credential goes, and only by HTTP tokens."""
        lab = GOOD.replace(', "none"', "")
        profile = self.read(lab + 'header = "x-key"\nscheme = ""\n').targets["lab"].allowed()["openai-compatible"]
        self.assertEqual((profile.header, profile.scheme), ("x-key", ""))
        profile = self.read(lab + 'scheme = "Token"\n').targets["lab"].allowed()["openai-compatible"]
        self.assertEqual((profile.header, profile.scheme), ("authorization", "Token"))
        self.assertIn("fixes its header", self.refused(GOOD + 'header = "x-key"\n'))
        for header in ("X-Key", "", "a b", "a\\r\\nb"):
            self.assertIn("[targets] lab: header must", self.refused(lab + f'header = "{header}"\n'))
        self.assertIn("header must not be host", self.refused(lab + 'header = "host"\n'))

    def test_a_target_is_needed(self) -> None:
        self.assertIn("targets", self.refused(GOOD[: GOOD.index("[targets")] + "[targets]\n"))
