"""``edge.toml``."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.edge.config import EdgeConfig, load
from iop.errors import BadConfig

GOOD = """
[deployment]
id = "deployment-1"
trust_domain = "example.org"
[edge]
name = "edge-1"
[tls]
certificate = "edge.crt"
key = "edge.key"
trust = "ca.crt"
[control_plane]
endpoint = "tcp:host=127.0.0.1:port=7400"
name = "control-plane-1"
server_name = "localhost"
[api]
listen = "tcp:port=0:interface=127.0.0.1"
[node_wire]
listen = "tcp:port=0:interface=127.0.0.1"
[status]
listen = "tcp:port=0:interface=127.0.0.1"
[state]
directory = "state"
[run]
directory = "run"
[credential_plane]
enabled = true
[[nodes]]
name = "node-1"
[[nodes.providers]]
id = "main"
category = "api"
profile = "openai"
target = "openai"
models = ["*"]
capacity = 4
labels = { zone = "a" }
"""

#: Key, default and hard cap of every limit, as ``docs/limits.md`` has them.
LIMITS = (
    ("request_seconds", 30, 300),
    ("lease_call_seconds", 5, 30),
    ("lease_cache_entries", 1000, 10_000),
    ("node_word_seconds", 2, 4),
    ("staleness_seconds", 300, 3600),
    ("queue_length", 256, 4096),
    ("queue_seconds", 30, 300),
    ("long_context_bytes", 128 * 1024, 64 * 1024 * 1024),
    ("run_window_bytes", 256 * 1024, 4 * 1024 * 1024),
    ("body_bytes", 16 * 1024 * 1024, 64 * 1024 * 1024),
    ("body_total_bytes", 256 * 1024 * 1024, 4 * 1024 * 1024 * 1024),
    ("header_bytes", 32 * 1024, 64 * 1024),
    ("receive_seconds", 30, 120),
)


#: The same Edge in legacy mode.
LEGACY = (
    GOOD.replace("enabled = true", "enabled = false")
    .replace('profile = "openai"', 'profile = "none"')
    .replace("*", "m")
    + f"""
[[callers]]
name = "ada"
sha256 = "{"a" * 64}"
"""
)


def _caller(name: str, digest: str) -> str:
    """One more caller of the file."""
    return f'[[callers]]\nname = "{name}"\nsha256 = "{digest}"\n'


def _without(table: str, text: str) -> str:
    """The file without a table."""
    start = text.index(f"[{table}]")
    return text[:start] + text[text.index("\n[", start) + 1 :]


class LegacyTests(SynchronousTestCase):
    """E17, C25: what legacy mode needs, and what it refuses, with what to do."""

    def read(self, text: str) -> EdgeConfig:
        path = Path(self.mktemp())
        path.write_text(text)
        return load(path)

    def refused(self, text: str) -> str:
        refusal: BadConfig = self.assertRaises(BadConfig, self.read, text)
        return refusal.message

    def test_good(self) -> None:
        """It needs neither Control Plane nor state folder; a digest is in no repr."""
        self.assertEqual(self.read(LEGACY).callers[0].name, "ada")
        bare = self.read(_without("state", _without("control_plane", LEGACY)))
        self.assertEqual((bare.control_plane, bare.state), (None, None))
        self.assertNotIn("a" * 64, repr(bare))

    def test_callers_in_managed_mode(self) -> None:
        """C25: a caller of the file opens nothing beside the projection."""
        self.assertIn("[[callers]]", self.refused(LEGACY.replace("enabled = false", "enabled = true")))

    def test_callers(self) -> None:
        """P20: a name and the digest of a whole token, each once."""
        for other in ("A" * 64, "a" * 63, "a" * 65, "iop_" + "a" * 60, "a" * 64 + "\\n"):
            message = self.refused(LEGACY.replace("a" * 64, other))
            self.assertIn("sha256", message)
            self.assertNotIn(other, message)
        self.assertIn("[[callers]] name: two", self.refused(LEGACY + _caller("ada", "b" * 64)))
        self.assertIn("[[callers]] sha256: two", self.refused(LEGACY + _caller("bob", "a" * 64)))
        self.assertEqual(len(self.read(LEGACY + _caller("bob", "b" * 64)).callers), 2)

    def test_number_of_callers(self) -> None:
        """Beyond a thousand callers the file is refused."""
        some = [_caller(f"c{number}", f"{number:064x}") for number in range(1000)]
        self.assertEqual(len(self.read(LEGACY[: LEGACY.index("[[callers]]")] + "".join(some)).callers), 1000)
        self.assertIn("callers", self.refused(LEGACY + "".join(some)))

    def test_number_of_routes(self) -> None:
        """Callers times models are at most what a Control Plane has room for."""
        some = [_caller(f"c{number}", f"{number:064x}") for number in range(999)]
        models = ", ".join(f'"m{number}"' for number in range(101))
        self.assertIn("100000 routes", self.refused(LEGACY.replace('"m"', models) + "".join(some)))

    def test_providers(self) -> None:
        """Every provider needs no credential, and names its models; a model has one target."""
        message = self.refused(LEGACY.replace('profile = "none"', 'profile = "openai"'))
        self.assertIn("[[nodes.providers]] main of node-1, profile: ", message)
        self.assertIn("[[nodes.providers]] main of node-1, models: ", self.refused(LEGACY.replace('"m"', '"*"')))
        provider = LEGACY[LEGACY.index("[[nodes.providers]]") : LEGACY.index("[[callers]]")]
        second = provider.replace('"main"', '"second"')
        self.assertEqual(len(self.read(LEGACY.replace(provider, provider + second)).nodes[0].providers), 2)
        second = second.replace('target = "openai"', 'target = "lab"')
        message = self.refused(LEGACY.replace(provider, provider + second))
        self.assertIn("[[nodes.providers]] second of node-1, target: ", message)


class ConfigTests(SynchronousTestCase):
    """What is read, and what is refused with file, table and key."""

    def setUp(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir()
        self.path = folder / "edge.toml"

    def read(self, text: str) -> EdgeConfig:
        self.path.write_text(text)
        return load(self.path)

    def assertRefused(self, text: str, *words: str) -> None:
        refused = self.assertRaises(BadConfig, self.read, text)
        for word in (str(self.path), *words):
            self.assertIn(word, refused.message)

    def test_good(self) -> None:
        """The whole file, with paths beside it."""
        config = self.read(GOOD)
        self.assertEqual(config.tls.key, self.path.parent.absolute() / "edge.key")
        self.assertEqual(config.state_directory, self.path.parent.absolute() / "state")
        (node,) = config.nodes
        (offer,) = node.offers().values()
        self.assertEqual((offer.node, offer.provider_id, offer.capacity), ("node-1", "main", 4))
        self.assertEqual((offer.models, offer.labels), (frozenset({"*"}), {"zone": "a"}))

    def test_managed_needs_mutual_tls(self) -> None:
        """C10: managed mode without the mTLS boundary does not start and says what is missing."""
        self.assertRefused(GOOD.replace("[tls]", "[other]"), "[tls]", "is missing")
        self.assertRefused(GOOD.replace('server_name = "localhost"\n', ""), "[control_plane] server_name", "is missing")
        for table in ("control_plane", "state"):
            self.assertRefused(_without(table, GOOD), f"[{table}]", "is missing", "[credential_plane] enabled = false")

    def test_plain_http_is_for_loopback(self) -> None:
        """The API beyond loopback needs a certificate and its key."""
        wide = GOOD.replace('[api]\nlisten = "tcp:port=0:interface=127.0.0.1"', '[api]\nlisten = "tcp:port=443"')
        self.assertRefused(wide, "[api]", "certificate and key")
        certificate, key = '\ncertificate = "api.crt"', '\nkey = "api.key"'
        served = wide.replace('"tcp:port=443"', f'"tcp:port=443"{certificate}{key}')
        self.assertEqual(self.read(served).api.certificate, self.path.parent.absolute() / "api.crt")
        self.assertRefused(served.replace(key, ""), "[api]", "belong together")
        self.assertRefused(served.replace(certificate, ""), "[api]", "belong together")

    def test_limits(self) -> None:
        """Every limit has its default, is taken at its hard cap, and refused one past it and at nothing."""
        for name, default, cap in LIMITS:
            self.assertEqual(getattr(self.read(GOOD).limits, name), default, name)
            self.assertEqual(getattr(self.read(f"{GOOD}[limits]\n{name} = {cap}").limits, name), cap, name)
            self.assertRefused(f"{GOOD}[limits]\n{name} = {cap + 1}", f"[limits] {name}")
            self.assertRefused(f"{GOOD}[limits]\n{name} = 0", f"[limits] {name}")

    def test_reconnect_seconds(self) -> None:
        """S18: a Node that went away is waited for 3 s, for up to 30 s, or not at all."""
        self.assertEqual(self.read(GOOD).limits.reconnect_seconds, 3)
        for seconds in (0, 30):
            told = self.read(f"{GOOD}[limits]\nreconnect_seconds = {seconds}").limits.reconnect_seconds
            self.assertEqual(told, seconds)
        self.assertRefused(f"{GOOD}[limits]\nreconnect_seconds = 30.1", "[limits] reconnect_seconds")

    def test_long_context_capacity(self) -> None:
        """S16: all of a provider's capacity, or the part of it that is given, or none."""
        for given, capacity in (("", 4), ("0", 0), ("4", 4)):
            line = f"long_context_capacity = {given}\n" if given else ""
            told = self.read(GOOD.replace("capacity = 4", f"{line}capacity = 4")).nodes[0]
            self.assertEqual(told.offers()["main"].long_capacity, capacity)
        for bad in ("-1", "5"):
            wrong = GOOD.replace("capacity = 4", f"capacity = 4\nlong_context_capacity = {bad}")
            self.assertRefused(wrong, "nodes", "long_context_capacity")

    def test_one_body_fits(self) -> None:
        """Room for all bodies together of which a single permitted one could not have its half is refused."""
        for total, one in ((2 << 20, 1 << 20), (32 << 20, 16 << 20)):
            limits = f"{GOOD}[limits]\nbody_bytes = {one}\nbody_total_bytes = "
            self.assertEqual(self.read(f"{limits}{total}").limits.body_total_bytes, total)
            self.assertRefused(f"{limits}{total - 1}", "[limits]", "body_total_bytes must be at least twice body_bytes")

    def test_catalogue(self) -> None:
        """What does not describe a provider that can be served is refused where it stands."""
        for good, bad, word in (
            ('category = "api"', 'category = "cli"', "category"),
            ('profile = "openai"', 'profile = "other"', "profile"),
            ('target = "openai"', 'target = "Open AI"', "target"),
            ('models = ["*"]', "models = []", "models"),
            ("capacity = 4", "capacity = 0", "capacity"),
            ("capacity = 4", "capacity = 4097", "capacity"),
            ("capacity = 4", "", "capacity"),
            ('zone = "a"', 'zone = "a b"', "labels"),
            ('name = "node-1"', 'name = "node-1"\nlabels = { zone = "a b" }', "labels"),
            ('id = "main"', 'id = "main"\nurl = "https://example.org"', "url"),
        ):
            self.assertRefused(GOOD.replace(good, bad), "nodes", word)

    def test_labels(self) -> None:
        """S8: Nodes and providers have labels, whose keys are none of those that name a Node or a provider."""
        self.assertEqual(self.read(GOOD).nodes[0].labels, {})
        labelled = GOOD.replace('name = "node-1"', 'name = "node-1"\nlabels = { rack = "7" }')
        self.assertEqual(self.read(labelled).nodes[0].labels, {"rack": "7"})
        for key in ("node", "provider"):
            for good in ("rack =", "zone ="):
                self.assertRefused(labelled.replace(good, f"{key} ="), "labels", f"{key} cannot be a label")

    def test_names_are_distinct(self) -> None:
        """Two Nodes of one name, or two providers of one id on a Node, cannot be told apart."""
        node = GOOD[GOOD.index("[[nodes]]") :]
        provider = GOOD[GOOD.index("[[nodes.providers]]") :]
        self.assertRefused(GOOD + node, "two of the nodes")
        self.assertRefused(GOOD + provider, "two of its providers")

    def test_no_node(self) -> None:
        """An Edge may be started before it has Nodes."""
        self.assertEqual(self.read(GOOD[: GOOD.index("[[nodes]]")]).nodes, ())
