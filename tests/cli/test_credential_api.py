"""``iop slot`` and ``iop route`` from their side: what is refused before anything is sent, and what an answer is."""

from __future__ import annotations

import json

from twisted.internet.testing import MemoryReactorClock

from iop.cli.credential_api import CredentialApi, read_answer
from iop.errors import AlreadyExists, ApiRefused, BadConfig
from tests.cli.command import CommandCase


class UrlTests(CommandCase):
    def test_only_an_origin(self) -> None:
        """Whatever is more or less than https://HOST:PORT is told, without a traceback."""
        for url in (
            "http://127.0.0.1:1",
            "127.0.0.1:1",
            "https://",
            "https://127.0.0.1:99999",
            "https://127.0.0.1:0",
            "https://127.0.0.1:x",
            "https://[::1",
            "https://user@127.0.0.1:1",
            "https://127.0.0.1:1/v1",
            "https://127.0.0.1:1?a",
            "https://127.0.0.1:1#a",
        ):
            error = self.assertRaises(BadConfig, CredentialApi, MemoryReactorClock(), url, self.folder, self.folder)
            self.assertIn("https://HOST:PORT", error.message)

    def test_model_without_a_name(self) -> None:
        done = self.iop("route", "set", "", "--slot", "s", "--url", "x", "--ca", "x", "--token-file", "x")
        self.assertEqual((done.code, done.out), (2, ""))
        self.assertIn("MODEL", done.err)


class AnswerTests(CommandCase):
    def test_problem_is_raised_as_what_it_was(self) -> None:
        problem = {"code": "already_exists", "detail": "it is there", "hint": "name another"}
        error = self.assertRaises(AlreadyExists, read_answer, 409, json.dumps(problem).encode())
        self.assertEqual((error.message, error.hint), ("it is there", "name another"))
        refused = self.assertRaises(ApiRefused, read_answer, 400, b'{"code": "bad_target", "detail": "no"}')
        self.assertEqual(refused.reason, "bad_target")

    def test_answer_of_another_server(self) -> None:
        """An Edge's, for one: its errors have no code where ours have it."""
        for content in (b"<html>", b"[]", b'{"error": {"code": "invalid_api_key"}}', b'{"code": 7}', b""):
            refused = self.assertRaises(ApiRefused, read_answer, 401, content)
            self.assertEqual(refused.reason, "bad_answer")
            self.assertIn("--url", refused.hint)
