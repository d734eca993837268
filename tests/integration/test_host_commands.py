"""Host-local commands as processes of their own, beside a Control Plane or alone (K3, K7, K14)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.tokens import parse_token, token_digest, token_proof
from iop.store import schema
from iop.store.lock import ControlPlaneLock
from tests.configurations import control_plane_toml


class HostCommandTests(SynchronousTestCase):
    def setUp(self) -> None:
        super().setUp()
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        self.config = folder / "control-plane.toml"
        self.config.write_text(control_plane_toml())
        self.database = folder / "store.sqlite"

    def process(self, *arguments: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-c", "from iop.cli.main import main; main()", *arguments, "--config", str(self.config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

        def end() -> None:
            started.kill()
            started.communicate()

        self.addCleanup(end)
        return started

    def iop(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of ``iop ARGUMENTS --config FILE``."""
        process = self.process(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def json(self, *arguments: str) -> dict[str, object]:
        """The one line that a command that succeeds prints."""
        code, out, err = self.iop(*arguments, "--json")
        assert (code, err) == (0, ""), (code, out, err)
        [line] = out.splitlines()
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with closing(schema.connect(self.database)) as connection:
            return connection.execute(statement, values).fetchall()

    def run_control_plane(self) -> None:
        """As far as a command can see: the lock is held."""
        lock = ControlPlaneLock.acquire(self.database)
        self.addCleanup(lock.release)

    def test_store_is_made_and_looked_at(self) -> None:
        code, out, err = self.iop("store", "status")
        assert (code, out) == (1, "")
        assert "iop store migrate --config FILE" in err
        assert self.json("store", "migrate") == {"path": str(self.database), "schema": schema.CURRENT}
        assert self.json("store", "status") == {
            "path": str(self.database),
            "schema": schema.CURRENT,
            "current": True,
            "deployment": "deployment-1",
            "generation": 1,
            "control_plane_running": False,
        }

    def test_running_control_plane_is_not_migrated_under(self) -> None:
        self.run_control_plane()
        code, out, _ = self.iop("store", "migrate", "--json")
        assert code == 1
        assert json.loads(out)["error"]["code"] == "already_running"
        assert not self.database.exists()

    def test_principal_alone(self) -> None:
        """K7: made offline; what is stored is what its tokens, seen once, verify against."""
        schema.migrate(self.database, "deployment-1")
        made = self.json("principal", "create", "alice")
        assert list(made) == [
            "principal",
            "name",
            "use_token",
            "manage_token",
            "generation",
            "edges",
            "effective_by",
        ]
        assert (made["name"], made["generation"]) == ("alice", 2)
        assert made["edges"] == {"acknowledged": 0, "cut_off": 0, "unconfirmed": 0}
        stored = {
            kind: (digest, proof) for kind, digest, proof in self.execute("SELECT kind, digest, proof FROM tokens")
        }
        for kind in ("use", "manage"):
            token = parse_token(str(made[f"{kind}_token"]))
            assert stored[kind] == (token_digest(token), token_proof(token))
            # P21: nothing but its verifiers is on the disk
            for file in self.database.parent.iterdir():
                assert token.encode() not in file.read_bytes(), file
        listed = self.json("principal", "list")["principals"]
        assert isinstance(listed, list)
        assert [(each["principal"], each["name"]) for each in listed] == [(made["principal"], "alice")]
        code, out, _ = self.iop("principal", "create", "alice", "--json")
        assert (code, json.loads(out)["error"]["code"]) == (1, "already_exists")

    def test_principal_is_limited_to_edges(self) -> None:
        """E14."""
        schema.migrate(self.database, "deployment-1")

        def limited_to() -> object:
            listed = self.json("principal", "list")["principals"]
            assert isinstance(listed, list)
            return listed[0]["limited_to"]

        self.json("principal", "create", "alice", "--edge", "edge-2", "--edge", "edge-1")
        assert limited_to() == ["edge-1", "edge-2"]
        _, out, _ = self.iop("principal", "list")
        assert "edge-1, edge-2" in out
        changed = self.json("principal", "limit", "alice", "--edge", "edge-3")
        assert (changed["limited_to"], changed["generation"]) == (["edge-3"], 3)
        assert changed["edges"] == {"acknowledged": 0, "cut_off": 0, "unconfirmed": 0}
        assert limited_to() == ["edge-3"]
        code, out, _ = self.iop("principal", "limit", "alice", "--everywhere")
        assert (code, "is for every Edge" in out) == (0, True)
        assert limited_to() == []
        code, out, _ = self.iop("principal", "limit", "nobody", "--everywhere", "--json")
        assert (code, json.loads(out)["error"]["code"]) == (1, "not_found")
        for wrong in ((), ("--everywhere", "--edge", "edge-1")):
            code, _, err = self.iop("principal", "limit", "alice", *wrong)
            assert code != 0
            assert "--everywhere" in err
        assert self.execute("SELECT value FROM generation") == [(4,)]

    def test_silent_edge_is_not_confirmed(self) -> None:
        """K14: tokens come before the wait, each once; what cannot be confirmed exits with 3 and says so."""
        schema.migrate(self.database, "deployment-1")
        self.run_control_plane()
        self.execute("INSERT INTO edge_sessions VALUES ('s', 'edge-1', 1, 1, 0, 1, 0)")
        process = self.process("principal", "create", "alice")
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(4)]
        # in the middle of the wait: everything that may never be shown again is out
        assert process.poll() is None
        tokens = [line.split()[-1] for line in shown[1:3]]
        for token in tokens:
            parse_token(token)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 3
        assert "Committed, not confirmed" in err
        assert not any(token in out + err for token in tokens)
        assert self.execute("SELECT name FROM principals") == [("alice",)]

    def test_json_tokens_come_before_the_wait_too(self) -> None:
        """K14: the one line begins before the wait, so whoever is killed in it has lost no token."""
        schema.migrate(self.database, "deployment-1")
        self.run_control_plane()
        self.execute("INSERT INTO edge_sessions VALUES ('s', 'edge-1', 1, 1, 0, 1, 0)")
        process = self.process("principal", "create", "alice", "--json")
        assert process.stdout is not None
        begun = ""
        # four members, with two strings each
        while begun.count('"') < 16:
            begun += process.stdout.read(1)
        assert process.poll() is None
        process.kill()
        process.communicate(timeout=60)
        made = json.loads(begun + "}")
        for kind in ("use", "manage"):
            parse_token(made[f"{kind}_token"])

    def test_interrupted_json_keeps_its_one_line(self) -> None:
        schema.migrate(self.database, "deployment-1")
        self.run_control_plane()
        self.execute("INSERT INTO edge_sessions VALUES ('s', 'edge-1', 1, 1, 0, 1, 0)")
        process = self.process("node", "deny", "node-1", "--json")
        while not self.execute("SELECT 1 FROM denials"):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 3
        answer = json.loads(out)
        assert (answer["node"], answer["generation"], answer["edges"]) == ("node-1", 2, None)
        assert "Committed, not confirmed" in err

    def test_acknowledging_edge_is_confirmed(self) -> None:
        schema.migrate(self.database, "deployment-1")
        self.run_control_plane()
        self.execute("INSERT INTO edge_sessions VALUES ('s', 'edge-1', 1, 1, 0, 1, 0)")
        process = self.process("node", "deny", "node-1", "--json")
        while not self.execute("SELECT 1 FROM denials"):
            assert process.poll() is None
        self.execute("UPDATE edge_sessions SET acknowledged = 2")
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert json.loads(out)["edges"] == {"acknowledged": 1, "cut_off": 0, "unconfirmed": 0}

    def test_denials(self) -> None:
        """P13: names are denied and allowed, host-locally, audited as the user who did it."""
        schema.migrate(self.database, "deployment-1")
        for kind in ("node", "edge"):
            denied = self.json(kind, "deny", "name-1")
            assert (denied[kind], denied["denied"]) == ("name-1", True)
            assert self.execute("SELECT kind, name FROM denials") == [(kind, "name-1")]
            code, out, err = self.iop(kind, "allow", "name-1")
            assert (code, err) == (0, "")
            assert f"{kind.title()} name-1 is allowed." in out
        assert self.execute("SELECT DISTINCT substr(actor, 1, 5) FROM audit") == [("host:",)]
        code, out, err = self.iop("node", "deny", "Not A Name")
        assert (code, out) == (1, "")
        assert "is not a name" in err
