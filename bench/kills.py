"""Random SIGKILLs under load: what callers see, and whether anything acknowledged is lost.

``python -m bench.kills`` (20 minutes, 200 kills) or ``--minutes 1 --kills 10``. Callers send chat completions, plain
and streamed, each with a word of its own that the stand-in provider repeats; owners change routes and store secrets.
Meanwhile a random role is killed and started again, as a supervisor would. Then everything acknowledged is looked for.

Rows: *succeeded*, whole answers with the caller's own word; *failed visibly*, an error status or a broken connection;
*wrong*, an answer that is not the caller's, or a truncated one that looks whole; *lost*, acknowledged and not there.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import ssl
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from bench.measure import Report
from bench.roles import ROLES, Deployment

CALLERS = 6
OWNERS = 2
#: What an honest failure raises in a client.
BROKEN = (OSError, http.client.HTTPException)
#: What reading a document raises that is not what was asked for.
WRONG = (ValueError, LookupError, TypeError)
#: Of so many changes of an owner one is a new slot: fewer in all than a principal may have.
SLOT_EVERY = 6


class Refused(Exception):
    """An answer that says no."""


@dataclass
class Owned:
    """A route as its owner knows it."""

    model: str
    #: 0 if it is not there.
    revision: int = 0
    #: Whether the last change's outcome is known.
    known: bool = True


class Load:
    """Callers and owners, and what they saw."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self._deployment = deployment
        self._context = ssl.create_default_context(cafile=deployment.home.ca)
        self._seed = seed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._slot = self._manage("GET", "/v1/slots")["slots"][0]["slot"]
        self.seen: Counter[str] = Counter()
        #: Acknowledged: name of a slot -> its id; model of a route -> its newest revision and what that says.
        self.stored: dict[str, str] = {}
        self.routed: dict[str, tuple[int, str]] = {}
        self.failures: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._call_on, args=(number,)) for number in range(CALLERS)]
        self._threads += [threading.Thread(target=self._own_on, args=(number,)) for number in range(OWNERS)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the requests that are under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _saw(self, what: str, why: str = "") -> None:
        with self._lock:
            self.seen[what] += 1
            if why:
                self.failures[why] += 1

    def _call_on(self, number: int) -> None:
        chance = random.Random(self._seed + number)  # noqa: S311 - a load, not a secret
        while not self._stop.is_set():
            word, stream = uuid4().hex, chance.random() < 0.3
            self._saw("chat sent")
            try:
                status, text = self.chat(word, stream)
                if status != 200:
                    raise Refused(f"{status} {_code(text)}")
                right = _is_answer(text, word, stream)
            except BROKEN as error:
                self._saw("chat failed visibly", type(error).__name__)
                time.sleep(0.05)
            except Refused as refused:
                self._saw("chat failed visibly", str(refused))
                time.sleep(0.05)
            except WRONG as error:
                self._saw("chat wrong", f"wrong answer: {error!r}")
            else:
                if right:
                    self._saw("chat succeeded")
                else:
                    self._saw("chat wrong", f"wrong answer: {text[:200]!r}")

    def chat(self, word: str, stream: bool) -> tuple[int, str]:
        """Ask for a completion: the status and the whole answer."""
        body = {"model": "stand-in", "stream": stream, "messages": [{"role": "user", "content": word}]}
        token = self._deployment.text("use.token")
        return self._ask(self._deployment.address("edge", "api"), "POST", "/v1/chat/completions", token, body, {})

    def _own_on(self, number: int) -> None:
        """Change one route over and over; every few changes store a secret in a new slot."""
        owned = Owned(f"owned-{number}")
        made = 0
        while not self._stop.is_set():
            # two owners share one principal, who may make a change a second
            time.sleep(2.0)
            made += 1
            self._saw("mutations sent")
            try:
                self._store(f"owner-{number}-{made}") if made % SLOT_EVERY == 0 else self._reroute(owned, f"m-{made}")
            except BROKEN as error:
                self._saw("mutations failed visibly", type(error).__name__)
            except Refused as refused:
                self._saw("mutations failed visibly", str(refused))
            except WRONG as error:
                self._saw("mutations wrong", f"wrong answer: {error!r}")
            else:
                self._saw("mutations succeeded")

    def _store(self, name: str) -> None:
        path = f"/v1/slots?name={quote(name)}&profile=openai&target=stand-in"
        slot = self._manage("POST", path, b"sk-" + name.encode())
        with self._lock:
            self.stored[name] = slot["slot"]

    def _reroute(self, owned: Owned, upstream_model: str) -> None:
        """What failed may be made or not: its outcome is looked up before the next change."""
        if not owned.known:
            there = self._routes().get(owned.model)
            owned.revision, owned.known = (there["revision"] if there else 0), True
        owned.known = False
        wanted = {"slot": self._slot, "upstream_model": upstream_model, "selector": ""}
        expected = {"If-Match": f'"{owned.revision}"'} if owned.revision else {"If-None-Match": "*"}
        route = self._manage("PUT", f"/v1/routes/{owned.model}", wanted, expected)
        owned.revision, owned.known = route["revision"], True
        with self._lock:
            self.routed[owned.model] = (route["revision"], upstream_model)

    def _routes(self) -> dict[str, Any]:
        return {route["model"]: route for route in self._manage("GET", "/v1/routes")["routes"]}

    def _manage(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """One call of the credential API; :class:`Refused` unless it succeeds."""
        token = self._deployment.text("manage.token")
        address = self._deployment.address("control-plane", "credential_https")
        status, text = self._ask(address, method, path, token, body, headers or {})
        if status not in (200, 201):
            raise Refused(f"{status} {_code(text)}")
        return json.loads(text)

    def _ask(
        self, address: str, method: str, path: str, token: str, body: Any, headers: dict[str, str]
    ) -> tuple[int, str]:
        headers = headers | {"Authorization": f"Bearer {token}"}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/octet-stream" if data is body else "application/json"
        connection = http.client.HTTPSConnection(address, timeout=40, context=self._context)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def lost(self) -> list[str]:
        """Acknowledged slots that are not there any more, and routes that are older than what was acknowledged."""
        slots = {slot["name"]: slot["slot"] for slot in self._manage("GET", "/v1/slots")["slots"]}
        gone = [name for name, slot in self.stored.items() if slots.get(name) != slot]
        routes = self._routes()
        for model, (revision, upstream_model) in self.routed.items():
            there = routes.get(model, {"revision": 0})
            same = there["revision"] == revision and there["upstream_model"] == upstream_model
            if not same and there["revision"] <= revision:
                gone.append(model)
        return gone


def _code(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        return "no JSON"
    error = document.get("error", document)
    return str(error.get("code", "")) if isinstance(error, dict) else ""


def _is_answer(text: str, word: str, stream: bool) -> bool:
    if not stream:
        return bool(json.loads(text)["choices"][0]["message"]["content"].endswith(word))
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return False
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    return "".join(pieces).endswith(word)


def main() -> None:
    """Run the load and the kills, then count."""
    parser = argparse.ArgumentParser(prog="python -m bench.kills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - which role dies when
    moments = sorted(chance.uniform(0, options.minutes * 60) for _ in range(options.kills))
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as made, Deployment(Path(made) / "home") as deployment:
        load = Load(deployment, options.seed)
        load.start()
        began = time.monotonic()
        try:
            for moment in moments:
                time.sleep(max(0.0, began + moment - time.monotonic()))
                role = chance.choice(ROLES)
                deployment.kill_and_restart(role)
                killed[role.value] += 1
            time.sleep(max(0.0, began + options.minutes * 60 - time.monotonic()))
        finally:
            load.stop()
        deployment.wait_until_ready()
        after = load.chat("afterwards", stream=False)
        lost = load.lost()
    report = Report("kills", f"{options.kills} SIGKILLs in {options.minutes:g} minutes", ["chat", "mutations"])
    for what in ("sent", "succeeded", "failed visibly", "wrong"):
        report.row(what, {kind: f"{load.seen[f'{kind} {what}']:,}" for kind in ("chat", "mutations")})
    report.row("lost", {"mutations": str(len(lost))})
    report.row("killed", {"chat": ", ".join(f"{role} {count}" for role, count in sorted(killed.items()))})
    report.row("served afterwards", {"chat": "yes" if after[0] == 200 else f"no: {after}"})
    for why, count in load.failures.most_common(12):
        report.row(f"  {why}", {"chat": f"{count:,}"})
    report.finish()
    if lost or load.seen["chat wrong"] or load.seen["mutations wrong"] or after[0] != 200:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
