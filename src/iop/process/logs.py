"""Logs for programs: one JSON object a line on stdout.

Everywhere in the project a log call is a plain :class:`twisted.logger.Logger` call whose format is the *name* of an
event, dotted, lower case, without braces, and whose keywords are the event's fields::

    log = Logger()
    log.info("edge.request.finished", request_id=request_id, status=200, seconds=0.12)
    log.failure("edge.request.broke", failure, request_id=request_id)

A line has ``time``, ``level``, ``event``, ``role``, ``name``, then the fields as they were given. A field that is not
text, a number, a truth value or None appears as the name of its type, so that no ``repr`` of anything reaches a log
(P25). Text is often a caller's own, such as a model's name, and people put tokens where none belong: of what looks like
one only the prefix is written. A failure appears as its type and its frames; its message only if it is an
:class:`~iop.errors.IopError`, whose messages are written to be seen. Events of other libraries have no name of this
form: those below ``warn`` are dropped, the others appear as ``library`` with their unformatted format.
"""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Mapping
from pathlib import PurePath
from typing import TextIO

from twisted.logger import ILogObserver, LogEvent, LogLevel
from twisted.python.failure import Failure
from zope.interface import implementer

from iop.crypto.tokens import PREFIX
from iop.errors import IopError
from iop.units import rfc3339

_EVENT_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+\Z")
#: A token, or most of one; names that merely begin like one are shorter.
_TOKEN = re.compile(rf"{PREFIX}[0-9A-Za-z]{{16,}}")
#: Characters of one text field, fields of one line, and frames of one failure at most.
TEXT_LIMIT = 1024
FIELD_LIMIT = 32
FRAME_LIMIT = 24
_OURS = frozenset({"time", "level", "event", "role", "name", "failure"})
#: What twisted.logger and its bridge from the old log system add to an event on their own.
_ADDED = frozenset({"message", "system", "format", "isError", "failure", "why", "time", "logLevel"})


@implementer(ILogObserver)
class JsonLog:
    """Writes events to ``out`` as JSON lines.

    :param out: where lines go; the real stdout, which twistd otherwise turns into a log of its own.
    :param role: the role of this process.
    :param lowest: events below this level are dropped.

    ``name`` is the name of the role's identity once it is known.
    """

    def __init__(self, out: TextIO, role: str, lowest: object = LogLevel.info) -> None:
        self._out = out
        self._role = role
        self._lowest = lowest
        self.name = ""

    def __call__(self, event: LogEvent) -> None:
        level = event.get("log_level", LogLevel.info)
        if level < self._lowest:
            return
        form = event.get("log_format")
        line: dict[str, object] = {
            "time": rfc3339(int(event.get("log_time", 0.0) * 1000)),
            "level": level.name,
            "event": form,
            "role": self._role,
            "name": self.name,
        }
        if isinstance(form, str) and _EVENT_NAME.match(form):
            line |= _fields(event)
        elif level < LogLevel.warn:
            return
        else:
            line |= {"event": "library", "format": _plain(form), "from": _plain(event.get("log_namespace"))}
        # what Twisted's own code logs for an exception in a protocol comes in the old log system's form
        failure = event.get("log_failure", event.get("failure"))
        if isinstance(failure, Failure):
            line["failure"] = describe_failure(failure)
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def describe_failure(failure: Failure) -> dict[str, object]:
    """Type, frames (innermost last) and, for our own errors alone, code and message. Never locals."""
    frames = traceback.extract_tb(failure.getTracebackObject())[-FRAME_LIMIT:]
    described: dict[str, object] = {
        "type": f"{type(failure.value).__module__}.{type(failure.value).__qualname__}",
        "frames": [f"{'/'.join(PurePath(frame.filename).parts[-3:])}:{frame.lineno} {frame.name}" for frame in frames],
    }
    if isinstance(failure.value, IopError):
        error = failure.value
        described |= {"code": error.code, "message": _plain(error.message), "hint": _plain(error.hint)}
    return described


def _fields(event: Mapping[str, object]) -> dict[str, object]:
    """The caller's own fields; one that would hide a field of ours is kept under a longer name."""
    fields: dict[str, object] = {}
    for key, value in event.items():
        if key in _ADDED or key.startswith("log_"):
            continue
        fields[f"{key}_" if key in _OURS else key] = _plain(value)
        if len(fields) == FIELD_LIMIT:
            break
    return fields


def _plain(value: object) -> object:
    # exactly these types: a subclass may have a repr of its own
    if type(value) is str:
        text = _TOKEN.sub(f"{PREFIX}…", value) if PREFIX in value else value
        return text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + "…"
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int:
        return value if value.bit_length() <= 64 else "int"
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    return type(value).__name__
