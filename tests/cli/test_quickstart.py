"""The parts of the quickstart that need no process: decisions, the home, what hops say."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from subprocess import run
from typing import cast

from rich.console import Console
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase, TestCase

from iop.certificates import read_certificates
from iop.cli.quickstart import decide, require_secret, show
from iop.cli.quickstart.configs import write_configs
from iop.cli.quickstart.flow import Quickstart, Running, said, typed
from iop.cli.quickstart.home import LISTENERS, Home, Member, Settings, Upstream
from iop.cli.quickstart.hops import Hop, complete, hops, provider_hop
from iop.cli.quickstart.processes import Child, Children, QuickstartFailed
from iop.crypto.pki import Authority
from iop.edge.config import load as load_edge
from iop.errors import AlreadyRunning, BadConfig, FileRefused
from iop.node.config import load as load_node
from iop.process.role import IReactor
from iop.secret import Secret
from iop.units import Role

KEPT = Settings("d-1", {}, None)
OPENAI = Upstream("https://api.openai.com/v1", "openai", "gpt-4o", "api.openai.com-443")


class DecideTests(SynchronousTestCase):
    def test_nothing_asked_keeps_what_was(self) -> None:
        for kept in (KEPT, Settings("d-1", {}, OPENAI)):
            self.assertEqual(decide(kept, None, None, None, has_secret=False), kept)

    def test_upstream(self) -> None:
        decided = decide(KEPT, "https://API.openai.com/v1/", None, "gpt-4o", has_secret=True)
        self.assertEqual(
            decided.upstream, Upstream("https://API.openai.com/v1", "openai", "gpt-4o", "api.openai.com-443")
        )

    def test_every_place_is_a_target_of_its_own(self) -> None:
        """P17: a secret stored for one host and port is never sent to another because the URL was changed."""
        urls = (
            "https://a.example/v1",
            "https://b.example/v1",
            "https://localhost/v1",
            "http://localhost/v1",
            "https://a.example:8443/v1",
        )
        targets = set()
        for url in urls:
            upstream = decide(KEPT, url, None, None, has_secret=True).upstream
            assert upstream is not None
            targets.add(upstream.target)
        self.assertEqual(len(targets), len(urls))

    def test_model_changes_alone(self) -> None:
        decided = decide(Settings("d-1", {}, OPENAI), None, None, "gpt-5", has_secret=False)
        self.assertEqual(decided.upstream, Upstream(OPENAI.url, "openai", "gpt-5", OPENAI.target))

    def test_refused(self) -> None:
        for url, profile, model in (
            (None, None, "gpt-4o"),
            (None, "openai", None),
            ("ftp://x/v1", None, None),
            ("http://x/v1", None, None),
            ("https://", None, None),
            ("https://user:pw@x/v1", None, None),
            ("https://x/v1?key=1", None, None),
            ("https://x/v1#a", None, None),
            ("https://x:99999/v1", None, None),
            ("https://x_y!/v1", None, None),
            ("https://x/v1", "openai-compatible", None),
        ):
            with self.assertRaises(BadConfig, msg=url):
                decide(KEPT, url, profile, model, has_secret=False)
        with self.assertRaises(BadConfig):
            decide(KEPT, None, None, None, has_secret=True)


class HomeTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.home = Home(Path(self.mktemp()))

    def make(self) -> dict[Path, bytes]:
        """Do every step; answers what the files hold then."""
        self.home.make_certificates(1)
        self.home.make_keys()
        self.home.make_store("d-1")
        return {path: path.read_bytes() for path in self.home.root.rglob("*") if path.is_file()}

    def test_steps_can_be_done_again(self) -> None:
        """P46: each step leaves what is there alone."""
        with self.home.held():
            self.assertEqual(self.make(), self.make())

    def test_folder_of_something_else(self) -> None:
        """A folder with other things in it is refused; one in which a quickstart was cut off at any step is not."""
        root = self.home.root
        root.mkdir()
        (root / "README.md").touch()
        with self.assertRaises(FileRefused), self.home.held():
            pass
        self.assertEqual([path.name for path in root.iterdir()], ["README.md"])
        (root / "README.md").unlink()
        for name in ("keys", "store", "edge-state"):
            (root / name).mkdir()
        with self.home.held():
            self.home.keep(Settings("d-1", {}, None))
            self.make()
        # once it is a quickstart's, people may leave things there
        (root / "mine").touch()
        with self.home.held():
            self.home.check_whole()

    def test_home_that_lost_a_file(self) -> None:
        """What was made once and is gone is told by name, instead of being made anew beside what needs the old."""
        with self.home.held():
            self.home.check_whole()
            self.make()
        for path in (self.home.use_token, self.home.manage_token):
            path.touch(0o600)
        self.home.check_whole()
        authority = self.home.pki / "ca.key"
        for path in (self.home.manage_token, self.home.keyring, self.home.issuer, self.home.database, authority):
            aside = path.rename(path.with_suffix(".aside"))
            error = self.assertRaises(FileRefused, self.home.check_whole)
            self.assertIn(str(path), error.message)
            self.assertIn("--home", error.hint)
            aside.rename(path)

    def test_certificate_that_ends_is_replaced(self) -> None:
        now = datetime.now(UTC)
        with self.home.held():
            self.home.make_certificates(1)
            paths = self.home.certificate(Member(Role.NODE))
            authority = Authority.load(self.home.pki)
            soon = authority.issue(Role.NODE, "node-1", days=1, now_ms=int(now.timestamp() * 1000))
            soon.write(paths.certificate, paths.key)
            self.home.make_certificates(1)
        (renewed,) = read_certificates(paths.certificate)
        self.assertGreater(renewed.not_valid_after_utc, now + timedelta(days=2))

    def test_ports_are_kept_while_they_are_free(self) -> None:
        with self.home.held():
            first = self.home.settings()
            self.home.keep(first)
            self.assertEqual(set(first.ports), set(LISTENERS))
            self.assertEqual(len(set(first.ports.values())), len(LISTENERS))
        with self.home.held():
            self.assertEqual(self.home.settings(), first)
        with socket.create_server(("127.0.0.1", first.ports["api"])), self.home.held():
            moved = self.home.settings()
        self.assertNotEqual(moved.ports["api"], first.ports["api"])
        self.assertEqual({**moved.ports, "api": 0}, {**first.ports, "api": 0})

    def test_nodes_are_kept(self) -> None:
        """As many Nodes as were asked for last, each with a port, a certificate and files of its own."""
        with self.home.held():
            self.home.keep(self.home.settings(nodes=3))
        with self.home.held():
            settings = self.home.settings()
            self.assertEqual(settings.nodes, 3)
            self.assertEqual(settings.ports.keys() - set(LISTENERS), {"node_2_status", "node_3_status"})
            self.assertEqual(self.home.settings(nodes=1).ports.keys(), set(LISTENERS))
            self.home.make_certificates(settings.nodes)
            write_configs(self.home, settings)
        nodes = [Member(Role.NODE, number) for number in (1, 2, 3)]
        loaded = [load_node(self.home.config(node)) for node in nodes]
        self.assertEqual([each.node.name for each in loaded], ["node-1", "node-2", "node-3"])
        self.assertEqual([each.run.directory for each in loaded], [self.home.record(node).parent for node in nodes])
        self.assertEqual(len({each.tls.certificate for each in loaded}), 3)
        edge = load_edge(self.home.config(Member(Role.EDGE)))
        self.assertEqual([table.name for table in edge.nodes], ["node-1", "node-2", "node-3"])
        with self.home.held():
            write_configs(self.home, self.home.settings(nodes=2))
        self.assertEqual([self.home.config(node).exists() for node in nodes], [True, True, False])

    def test_reserved_ports_are_for_the_roles_alone(self) -> None:
        """Two quickstarts that start at once choose different ports, and a role can listen on a reserved one."""
        other = Home(Path(self.mktemp()))
        with self.home.held(), other.held():
            ours, theirs = self.home.settings().ports, other.settings().ports
            self.assertEqual(set(ours.values()) & set(theirs.values()), set())
            for port in ours.values():
                socket.create_server(("127.0.0.1", port)).close()

    def test_real_provider_needs_a_secret(self) -> None:
        """It is asked for before anything starts, and again when place or profile are others."""
        with self.home.held(), Secret(b"sk-1") as secret, Secret(b"") as empty:
            require_secret(self.home, None, None)
            for given in (None, empty):
                error = self.assertRaises(BadConfig, require_secret, self.home, OPENAI, given)
                self.assertIn("--secret-file", error.hint)
            require_secret(self.home, OPENAI, secret)
            self.home.keep_stored("slot-1", OPENAI.target, OPENAI.profile, secret)
            require_secret(self.home, OPENAI, None)
            for other in (replace(OPENAI, target="t"), replace(OPENAI, profile="openai-compatible")):
                self.assertRaises(BadConfig, require_secret, self.home, other, None)

    def test_upstream_is_kept(self) -> None:
        with self.home.held():
            self.home.keep(Settings("d-1", dict.fromkeys(LISTENERS, 0), OPENAI))
            self.assertEqual(self.home.settings().upstream, OPENAI)

    def test_held_by_one(self) -> None:
        with self.home.held(), self.assertRaises(AlreadyRunning), Home(self.home.root).held():
            pass
        with self.home.held():
            pass

    def test_folder_that_cannot_be_made(self) -> None:
        self.home.root.write_text("a file")
        with self.assertRaises(FileRefused), self.home.held():
            pass

    def test_damaged_settings(self) -> None:
        with self.home.held():
            (self.home.root / "quickstart.json").write_text("{")
            self.assertRaises(FileRefused, self.home.settings)

    def test_stored_secret_is_known_again_and_not_readable(self) -> None:
        """P21: what is remembered of a secret is a keyed digest in a private file."""
        with self.home.held():
            self.assertIsNone(self.home.stored())
            self.home.keep_stored("slot-1", "t", "openai", Secret(b"sk-canary"))
            stored = self.home.stored()
        assert stored is not None
        self.assertTrue(stored.is_of(Secret(b"sk-canary")))
        self.assertFalse(stored.is_of(Secret(b"sk-canarz")))
        self.assertNotIn(stored.fingerprint, repr(stored))
        self.assertNotIn("sk-canary", (self.home.root / "stored.json").read_text())
        self.assertEqual((self.home.root / "stored.json").stat().st_mode & 0o077, 0)


class InterruptTests(TestCase):
    timeout = 60

    async def test_step_that_is_deaf_to_its_cancellation(self) -> None:
        """A signal ends a run whatever it waits for, it is never told to be ready, and no process starts later."""
        home = Home(Path(self.mktemp()))
        began: Deferred[Children] = Deferred()

        async def deaf(children: Children, role: Role) -> Child:
            began.callback(children)
            while True:
                with contextlib.suppress(CancelledError):
                    await Deferred[None]()

        self.patch(Children, "start_role", deaf)
        for number in (signal.SIGTERM, signal.SIGINT):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        told: list[Running] = []
        with home.held():
            settings = replace(home.settings(), upstream=OPENAI)
            running = Quickstart(cast(IReactor, reactor), home, settings, None, lambda step: None)
            done = Deferred.fromCoroutine(running.run(told.append, once=False))
            children = await began
            signal.raise_signal(signal.SIGTERM)
            self.assertFalse(await done)
        self.assertEqual(told, [])
        self.assertRaises(QuickstartFailed, children.start, "late", ["true"])


class AnswerTests(SynchronousTestCase):
    def test_what_is_no_chat_completion(self) -> None:
        """A provider that speaks something else is a mistake of the set-up, and told as one."""
        self.assertEqual(said('{"choices": [{"message": {"content": "yes"}}]}'), "yes")
        for text in ("", "{}", "[]", "3", "null", '{"choices": []}', '{"choices": [3]}', '{"choices": {"0": 1}}'):
            error = self.assertRaises(QuickstartFailed, said, text)
            self.assertIn("no chat completion", error.message)


class ShowTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.home = Path(self.mktemp()).absolute() / ("it's a home " + "x" * 60)
        self.home.mkdir(parents=True)
        (self.home / "use.token").write_text("iop_token")

    def shown(self, *, once: bool, socket: str | None = None) -> str:
        """What is shown on a narrow terminal."""
        document: dict[str, object] = {
            "home": str(self.home),
            "model": "m",
            "edge_ca": f"{self.home}/ca.pem",
            "token_file": f"{self.home}/use.token",
            "edge_url": "https://127.0.0.1:1",
            "operator_socket": socket,
        }
        out = StringIO()
        show(Console(file=out, width=60), Running(document, "hello", [Hop("Edge e", "saw it")]), once=once)
        return out.getvalue()

    def arguments(self, program: str, command: str) -> list[str]:
        """What ``program`` is given when a shell carries out ``command``."""
        script = f"{program}() {{ printf '%s\\n' \"$@\"; }}\n{command}"
        return run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603, S607

    def test_commands_can_be_copied(self) -> None:
        """Whatever a home is called, and however narrow the terminal is."""
        kept, again = self.shown(once=True).splitlines()[-2:]
        self.assertIn(f"kept in {self.home}.", kept)
        self.assertEqual(self.arguments("iop", again), ["quickstart", "--home", str(self.home)])
        self.patch(sys, "argv", [".venv/bin/iop", "quickstart"])
        self.assertTrue(self.shown(once=True).splitlines()[-1].startswith("  .venv/bin/iop quickstart --home "))
        self.assertEqual(typed("twistd"), ".venv/bin/twistd")
        given = self.arguments("curl", self.shown(once=False).partition("Ask it something:")[2])
        self.assertEqual(given[:4], ["--cacert", f"{self.home}/ca.pem", "-H", "Authorization: Bearer iop_token"])
        self.assertEqual(json.loads(given[7])["model"], "m")
        self.assertEqual(given[8:], ["https://127.0.0.1:1/v1/chat/completions"])

    def test_how_to_look_at_it(self) -> None:
        """With the socket's path, if there is one."""
        socket = f"{self.home}/run/operator.sock"
        _, heading, rest = self.shown(once=False, socket=socket).partition("See its Edge and its Node")
        self.assertTrue(heading)
        self.assertEqual(self.arguments("iop", rest.splitlines()[1]), ["edge", "status", "edge-1", "--socket", socket])
        self.assertNotIn("--socket", self.shown(once=False))
        self.assertNotIn("--socket", self.shown(once=True, socket=socket))


class HopTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.home = Home(Path(self.mktemp()))
        self.home.logs.mkdir(parents=True)
        self.log(Role.EDGE, "edge-1", "edge.request.routed", node="node-1", model="m")
        self.log(Role.EDGE, "edge-1", "edge.lease.acquired", bytes=781)
        self.log(Role.CONTROL_PLANE, "cp-1", "control.lease.granted", node="node-1", seconds=60)
        self.log(Role.NODE, "node-1", "node.run.started", target="t")

    def log(self, role: Role, name: str, event: str, **fields: object) -> None:
        """Append a line to a role's log, between two that are not of this request."""
        line = json.dumps({"event": event, "name": name, "request_id": "r-1", **fields})
        other = json.dumps({"event": event, "name": name, "request_id": "r-0"})
        with self.home.log(role.value).open("a") as log:
            log.write(f"{other}\n{line}\nError: for people\n")

    def test_in_the_order_of_the_request(self) -> None:
        self.assertEqual(
            [hop.who for hop in hops(self.home, 1, "r-1")],
            ["Edge edge-1", "Control Plane cp-1", "Edge edge-1", "Node node-1"],
        )
        self.assertFalse(complete(hops(self.home, 1, "r-1")))
        self.log(Role.NODE, "node-1", "node.run.finished", status=200, bytes=10)
        found = hops(self.home, 1, "r-1")
        self.assertTrue(complete(found))
        self.assertIn("status 200, 10 bytes", found[-1].saw)

    def test_line_half_written_is_not_read(self) -> None:
        with self.home.log("node").open("a") as log:
            log.write('{"event": "node.run.finished", "request_id": "r-1"')
        self.assertFalse(complete(hops(self.home, 1, "r-1")))

    def test_stand_in(self) -> None:
        self.home.log("provider").write_text("")
        self.assertIsNone(provider_hop(self.home))
        for authorized, words in ((True, "its own credential"), (False, "not its own")):
            line = {"event": "provider.request.received", "name": "stand-in", "authorized": authorized}
            self.home.log("provider").write_text(json.dumps(line) + "\n")
            hop = provider_hop(self.home)
            assert hop is not None
            self.assertIn(words, hop.saw)
