"""``iop edge caller``."""

from __future__ import annotations

import json
import tomllib

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from iop.cli.edge import edge
from iop.crypto.tokens import parse_token, token_digest
from iop.edge.config import CallerTable


class CallerTests(SynchronousTestCase):
    def test_lines(self) -> None:
        """E17, P20: a fresh token each time, and what the Edge's configuration has of it: the digest alone."""
        tokens = set()
        for _ in range(2):
            result = CliRunner().invoke(edge, ["caller", "ada"])
            self.assertEqual(result.exit_code, 0)
            shown, _, lines = result.stdout.partition("[[callers]]")
            token = parse_token(shown.splitlines()[0].removeprefix("token: "))
            tokens.add(token)
            (table,) = tomllib.loads(f"[[callers]]{lines}")["callers"]
            caller = CallerTable.model_validate(table)
            self.assertEqual((caller.name, caller.sha256), ("ada", token_digest(token).hex()))
            self.assertNotIn(token, lines)
        self.assertEqual(len(tokens), 2)

    def test_json(self) -> None:
        """The same for scripts."""
        told = json.loads(CliRunner().invoke(edge, ["caller", "ada", "--json"]).stdout)
        self.assertEqual(told["sha256"], token_digest(parse_token(told["token"])).hex())
        self.assertEqual(set(told), {"name", "token", "sha256"})

    def test_bad_name(self) -> None:
        """A name that the Edge would refuse makes no token."""
        result = CliRunner().invoke(edge, ["caller", "Ada Lovelace"])
        self.assertEqual((result.exit_code, "token:" in result.output), (2, False))
