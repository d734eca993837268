"""A secret has one way out."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from traceback import TracebackException
from typing import Any

from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from iop.secret import Secret


@dataclass(frozen=True)
class Holder:
    """An object that carries a secret, as many do."""

    name: str
    secret: Secret


class SecretTests(SynchronousTestCase):
    """P25."""

    def setUp(self) -> None:
        # not a global: a verbose Failure prints those
        self.canary = b"sk-" + os.urandom(8).hex().encode()
        self.secret = Secret(self.canary)

    def test_reveal(self) -> None:
        """The one way out is the buffer itself."""
        self.assertEqual(self.secret.reveal(), self.canary)
        self.assertIs(self.secret.reveal(), self.secret.reveal())
        self.assertEqual(len(self.secret), len(self.canary))

    def test_shows_nothing(self) -> None:
        """repr, str and format say that it is a secret, also inside other objects."""
        holder = Holder("name", self.secret)
        shown = [
            repr(self.secret),
            str(self.secret),
            f"{self.secret}",
            f"{self.secret!r:>40}",
            f"{self.secret:>40}",
            "%s %r" % (self.secret, self.secret),  # noqa: UP031 - every way there is
            repr([self.secret]),
            repr({"secret": self.secret}),
            repr(holder),
            str(holder),
        ]
        for text in shown:
            self.assertIn("<Secret>", text)
            self.assertNotIn(self.canary.decode(), text)
            self.assertNotIn(self.canary.hex(), text)

    def test_refuses(self) -> None:
        """Pickling, copying, JSON, iteration, indexing, conversion, comparison and hashing are refused."""
        secret: Any = self.secret
        holder = Holder("name", secret)
        ways: dict[str, Callable[[], object]] = {
            **{f"pickle {number}": partial(pickle.dumps, secret, number) for number in range(6)},
            "pickle of a holder": lambda: pickle.dumps(holder),
            "copy": lambda: copy.copy(secret),
            "deepcopy": lambda: copy.deepcopy(secret),
            "deepcopy of a holder": lambda: copy.deepcopy(holder),
            "json": lambda: json.dumps(secret),
            "json of a holder": lambda: json.dumps({"secret": secret}),
            "iteration": lambda: list(secret),
            "index": lambda: secret[0],
            "slice": lambda: secret[:],
            "bytes": lambda: bytes(secret),
            "memoryview": lambda: memoryview(secret),
            "concatenation": lambda: b"" + secret,
            "membership": lambda: self.canary in secret,
            "comparison": lambda: secret == self.canary,
            "comparison with itself": lambda: secret == secret,
            "inequality": lambda: secret != self.canary,
            "hash": lambda: hash(secret),
            "as a key": lambda: {secret: 1},
            "vars": lambda: vars(secret),
            "hash of a holder": lambda: hash(holder),
            "comparison of holders": lambda: holder == Holder("name", Secret(self.canary)),
        }
        allowed = []
        for way, go in ways.items():
            try:
                go()
            except TypeError as error:
                self.assertNotIn(self.canary.decode(), str(error), way)
            else:
                allowed.append(way)
        self.assertEqual(allowed, [])

    def test_tracebacks(self) -> None:
        """Neither a traceback with its locals nor a Failure shows it."""
        try:
            self._raise(self.secret)
        except ValueError as error:
            told = "".join(TracebackException.from_exception(error, capture_locals=True).format())
            self.assertIn("<Secret>", told)
            failure = Failure(captureVars=True)
            for text in (told, repr(failure), str(failure), failure.getTraceback(detail="verbose")):
                self.assertNotIn(self.canary.decode(), text)
        else:
            self.fail("nothing was raised")

    def test_dispose(self) -> None:
        """The buffer is zeroed before it is emptied; twice is fine; nothing is left to reveal."""
        buffer = _Watched(self.canary)
        secret = Secret(buffer)
        secret.dispose()
        self.assertEqual(buffer.at_clear, bytes(len(self.canary)))
        secret.dispose()
        self.assertEqual((secret.reveal(), len(secret)), (b"", 0))

    def test_with(self) -> None:
        """A ``with`` block ends it, also when it raises."""
        buffer = bytearray(self.canary)
        with Secret(buffer) as secret:
            self.assertIs(secret.reveal(), buffer)
        self.assertEqual(buffer, b"")
        buffer = bytearray(self.canary)
        with self.assertRaises(ValueError), Secret(buffer) as secret:
            self._raise(secret)
        self.assertEqual(buffer, b"")

    def test_ownership(self) -> None:
        """A bytearray is taken over, so that its owner can forget it; bytes are copied."""
        buffer = bytearray(self.canary)
        self.assertIs(Secret(buffer).reveal(), buffer)
        self.assertIsInstance(Secret(self.canary).reveal(), bytearray)

    def _raise(self, secret: Secret) -> None:
        raise ValueError(f"something about {secret}")


class _Watched(bytearray):
    """A buffer that remembers what it held when it was emptied."""

    at_clear = b""

    def clear(self) -> None:
        self.at_clear = bytes(self)
        super().clear()
