"""Who saw what of one request, from what the roles logged of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from iop.cli.quickstart.home import TITLES, members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from iop.cli.quickstart.home import Home

Line = dict[str, Any]
#: Bytes of a log that are read from its end; the request was the last thing that happened.
_TAIL_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Hop:
    """One line for people: who, and what was seen there."""

    who: str
    saw: str


#: Sentences by event, in the order in which a request meets them.
_SENTENCES: Final[dict[str, Callable[[Line], str]]] = {
    "edge.request.routed": lambda line: (
        f"saw your words; found you by the SHA-256 of your token, chose {line['node']} for {line['model']}"
    ),
    "control.lease.granted": lambda line: (
        f"opened the stored secret and sealed it to {line['node']} alone, for {line['seconds']} s and this route; "
        "saw none of your words"
    ),
    "edge.lease.acquired": lambda line: f"carried that lease, {line['bytes']} bytes that it cannot open",
    "node.run.started": lambda line: f"opened the lease and called {line['target']} with the secret, in this one call",
    "node.run.finished": lambda line: f"passed the answer on: status {line['status']}, {line['bytes']} bytes",
}


def hops(home: Home, nodes: int, request_id: str) -> list[Hop]:
    """The hops of a request that the logs know so far."""
    by_event = {
        line["event"]: (TITLES[member.role], line)
        for member in members(nodes)
        for line in _lines(home.log(member.key))
        if line.get("request_id") == request_id
    }
    found = ((sentence, by_event[event]) for event, sentence in _SENTENCES.items() if event in by_event)
    return [Hop(f"{title} {line['name']}", sentence(line)) for sentence, (title, line) in found]


def provider_hop(home: Home) -> Hop | None:
    """What the stand-in saw of the last request that came to it; it is not told request ids."""
    lines = [line for line in _lines(home.log("provider")) if line["event"] == "provider.request.received"]
    if not lines:
        return None
    own = "its own credential" if lines[-1]["authorized"] else "a credential that is not its own"
    return Hop(f"provider {lines[-1]['name']}", f"saw your words and {own}; nothing of you or your token")


def complete(found: list[Hop]) -> bool:
    """Whether every hop was logged."""
    return len(found) == len(_SENTENCES)


def _lines(path: Path) -> Iterator[Line]:
    with path.open("rb") as log:
        if log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES)):
            # what is left of a line that was cut
            log.readline()
        for text in log:
            # a line may be for people, and the last one not whole yet
            if text.startswith(b"{") and text.endswith(b"}\n"):
                yield json.loads(text)
