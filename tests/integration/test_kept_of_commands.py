"""What is left of commands and events between real roles: on the Edge the ids, on the Control Plane the audit."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from tests.integration.operator_case import OperatorCase, iop, told


class KeptTests(OperatorCase):
    """One deployment that serves."""

    def command(self, *arguments: str) -> dict[str, Any]:
        """What is answered to a command that is not watched."""
        return told(self.socket, "edge", "command", "edge-1", *arguments)

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table of the store."""
        with sqlite3.connect(self.deployment.home.database) as database:
            # but for those in which SQLite keeps its own count of rows
            named = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
            tables = [name for (name,) in named]
            rows = {table: database.execute(f"SELECT * FROM {table}").fetchall() for table in tables}  # noqa: S608
        database.close()
        return rows

    def test_only_the_audit(self) -> None:
        """C47, S13: commands, events and statuses leave a row for each command, which says nothing of its values."""
        before = self.rows()
        self.command("node.drain", "node=node-1", "--set", "deadline_seconds=77")
        self.command("node.resume", "node=node-1")
        told(self.socket, "edge", "status", "edge-1")
        code, heard, _ = iop(self.socket, "edge", "events", "--json")
        self.assertEqual(code, 0)
        self.assertIn("node.draining", [json.loads(line)["event"] for line in heard.splitlines()])
        after = self.rows()
        added = after.pop("audit")[len(before.pop("audit")) :]
        self.assertEqual(after, before)
        self.assertEqual(["edge.command" in row for row in added], [True, True])
        self.assertIn("node.drain", repr(added[0]))
        for word in ("node-1", "deadline_seconds", "77"):
            self.assertNotIn(f'"{word}"', repr(added))

    def test_refused(self) -> None:
        """S7-S9, S13: each with its code, and nothing is done."""
        for arguments, code in (
            (("edge.reboot",), "unknown_operation"),
            (("node.drain", "node=node-2"), "nothing_selected"),
            (("node.drain",), "bad_selector"),
            (("edge.drain", "--set", "deadline_seconds=0"), "bad_metadata"),
            (("edge.drain", "--set", "force=1"), "unknown_metadata"),
        ):
            self.assertEqual(self.command(*arguments)["error"]["code"], code)
        self.assertEqual(self.deployment.ask()[0], 200)

    def test_the_same_twice(self) -> None:
        """S6: one id, one command; other words with it are refused."""
        given = ("provider.disable", "node=node-1", "--id", "once")
        self.assertEqual(self.command(*given)["command"]["command_id"], "once")
        self.command("provider.enable", "node=node-1")
        self.assertEqual(self.command(*given)["command"]["phase"], "succeeded")
        [node] = told(self.socket, "edge", "status", "edge-1")["nodes"]
        self.assertEqual(node["providers"][0]["status"], "available")
        other = self.command("provider.disable", "provider=provider-1", "--id", "once")
        self.assertEqual(other["error"]["code"], "command_conflict")
