"""Callers of one Edge as a process of their own, so that they do not slow down whoever takes the time.

``python -m tests.integration.callers ADDRESS CA TOKENS HOT OTHERS``. TOKENS is a file with one use token a line. Each
line of stdin is the place of a token in it: from then on the first HOT callers use that one, and the OTHERS any. At the
end of stdin all requests end, and each is one line of stdout: a JSON array in the order of :class:`Outcome`.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

_SECONDS = 30.0
_BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})


class Outcome(NamedTuple):
    """One request."""

    #: Whose it was: the place of its token.
    number: int
    #: Nanoseconds of the wall clock.
    began: int
    ended: int
    #: 0 if there was no answer.
    status: int
    #: What the provider said, the code of the refusal, or what went wrong with the connection.
    said: str


def ask(connection: http.client.HTTPSConnection, number: int, token: str) -> Outcome:
    """One whole request."""
    began = time.time_ns()
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", _BODY, headers)
        with connection.getresponse() as response:
            status, text = response.status, response.read().decode()
        said = text if status == 200 else str(json.loads(text)["error"]["code"])
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        status, said = 0, repr(error)
    return Outcome(number, began, time.time_ns(), status, said)


def main(address: str, ca: str, tokens_file: str, hot: str, others: str) -> None:
    """Ask until stdin ends."""
    context = ssl.create_default_context(cafile=ca)
    tokens = Path(tokens_file).read_text().split()
    outcomes: list[Outcome] = []
    enough = Event()
    chosen = int(sys.stdin.readline())
    chance = random.Random(1)  # noqa: S311 - a load, not a secret

    def call_on(choose: Callable[[], int]) -> None:
        connection = http.client.HTTPSConnection(address, timeout=_SECONDS, context=context)
        while not enough.is_set():
            number = choose()
            outcome = ask(connection, number, tokens[number])
            outcomes.append(outcome)
            if outcome.status != 200:
                # so that refusals, which cost little, do not crowd out the rest
                time.sleep(0.01)
        connection.close()

    threads = [Thread(target=call_on, args=(lambda: chosen,)) for _ in range(int(hot))]
    threads += [Thread(target=call_on, args=(lambda: chance.randrange(len(tokens)),)) for _ in range(int(others))]
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        chosen = int(line)
    enough.set()
    for thread in threads:
        thread.join()
    sys.stdout.writelines(f"{json.dumps(outcome)}\n" for outcome in outcomes)


if __name__ == "__main__":
    main(*sys.argv[1:])
