"""JSON logs, and what never gets into them."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import Logger, LogLevel, LogPublisher
from twisted.python.failure import Failure
from twisted.python.log import LogPublisher as OldPublisher
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.tokens import mint
from iop.errors import BadConfig
from iop.process.logs import FIELD_LIMIT, FRAME_LIMIT, TEXT_LIMIT, JsonLog
from iop.records import TokenKind
from iop.secret import Secret

CANARY = "sk-canary-7f3a"


class Telltale:
    """Something whose every description gives a secret away."""

    def __repr__(self) -> str:
        return CANARY

    __str__ = __repr__


class TelltaleText(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return CANARY


class JsonLogTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.out = StringIO()
        observer = JsonLog(self.out, "edge")
        observer.name = "edge-1"
        self.log = Logger("iop.test", observer=LogPublisher(observer))

    def line(self) -> dict[str, Any]:
        """The one line that was written."""
        (line,) = self.out.getvalue().splitlines()
        value = json.loads(line)
        assert isinstance(value, dict)
        return value

    def test_tokens_in_text(self) -> None:
        """P25: a token that a caller put into a name is not written, wherever in the text it stands and however cut."""
        token = bytes(mint(TokenKind.USE).text.reveal()).decode()
        text = f"{token} and x{token[:30]}"
        self.log.info("edge.request.finished", model=text, reason=f"{'x' * (TEXT_LIMIT - 40)}{token}", code="iop_short")
        line = self.line()
        self.assertEqual((line["model"], line["code"]), ("iop_… and xiop_…", "iop_short"))
        self.assertNotIn(token[4:10], self.out.getvalue())

    def test_event_with_fields(self) -> None:
        self.log.info("edge.request.finished", request_id="r-1", status=200, seconds=0.5, streamed=True, model=None)
        line = self.line()
        self.assertRegex(line.pop("time"), r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")
        self.assertEqual(
            line,
            {
                "level": "info",
                "event": "edge.request.finished",
                "role": "edge",
                "name": "edge-1",
                "request_id": "r-1",
                "status": 200,
                "seconds": 0.5,
                "streamed": True,
                "model": None,
            },
        )

    def test_fields_cannot_pass_for_ours(self) -> None:
        self.log.info("edge.node.ready", name="node-1", role="x", event="y")
        line = self.line()
        self.assertEqual((line["name"], line["role"], line["event"]), ("edge-1", "edge", "edge.node.ready"))
        self.assertEqual((line["name_"], line["role_"], line["event_"]), ("node-1", "x", "y"))

    def test_only_plain_values_appear(self) -> None:
        """P25: anything but text, numbers, truth values and None is the name of its type."""
        self.log.info(
            "edge.test.values",
            secret=Secret(CANARY.encode()),
            raw=CANARY.encode(),
            listed=[CANARY],
            mapped={CANARY: CANARY},
            telltale=Telltale(),
            subclass=TelltaleText("x"),
            huge=10**5000,
            endless=float("inf"),
        )
        line = self.line()
        self.assertNotIn(CANARY, self.out.getvalue())
        self.assertEqual(
            [line[key] for key in ("secret", "raw", "listed", "mapped", "telltale", "subclass", "huge", "endless")],
            ["Secret", "bytes", "list", "dict", "Telltale", "TelltaleText", "int", "inf"],
        )

    def test_lengths_are_bounded(self) -> None:
        self.log.info("edge.test.long", at="x" * TEXT_LIMIT, past="x" * (TEXT_LIMIT + 1))
        line = self.line()
        self.assertEqual((line["at"], line["past"]), ("x" * TEXT_LIMIT, "x" * TEXT_LIMIT + "…"))

    def test_count_of_fields_is_bounded(self) -> None:
        self.log.info("edge.test.many", **{f"field{number}": number for number in range(FIELD_LIMIT + 1)})
        self.assertEqual(sum(key.startswith("field") for key in self.line()), FIELD_LIMIT)

    def test_a_line_is_one_line(self) -> None:
        self.log.info("edge.test.injected", text='\n{"event": "forged"}\r\n\x1b[31m')
        self.assertEqual(self.line()["text"], '\n{"event": "forged"}\r\n\x1b[31m')

    @given(st.text())
    def test_any_text(self, text: str) -> None:
        self.out.truncate(0)
        self.out.seek(0)
        self.log.info("edge.test.text", text=text)
        (line,) = self.out.getvalue().split("\n")[:-1]
        self.assertEqual(json.loads(line)["text"][:TEXT_LIMIT], text[:TEXT_LIMIT])

    def test_failure_of_others_shows_type_and_frames_alone(self) -> None:
        """P25: a message of somebody else's exception, and locals, may hold anything."""

        def inner() -> None:
            local = CANARY
            raise ValueError(local)

        try:
            inner()
        except ValueError:
            self.log.failure("edge.test.broke", Failure(captureVars=True), request_id="r-1")
        line = self.line()
        self.assertNotIn(CANARY, self.out.getvalue())
        self.assertEqual((line["event"], line["level"], line["request_id"]), ("edge.test.broke", "critical", "r-1"))
        self.assertEqual(line["failure"]["type"], "builtins.ValueError")
        self.assertRegex(line["failure"]["frames"][-1], r"\Atests/process/test_logs\.py:\d+ inner\Z")

    def test_failure_of_ours_shows_its_message(self) -> None:
        try:
            raise BadConfig("the file is wrong", hint="correct it")
        except BadConfig:
            self.log.failure("role.refused", Failure())
        failure = self.line()["failure"]
        told = (failure["code"], failure["message"], failure["hint"])
        self.assertEqual(told, ("bad_config", "the file is wrong", "correct it"))

    def test_frames_are_bounded(self) -> None:
        def deep(levels: int) -> None:
            if not levels:
                raise ValueError
            deep(levels - 1)

        try:
            deep(FRAME_LIMIT * 2)
        except ValueError:
            self.log.failure("edge.test.deep", Failure())
        self.assertEqual(len(self.line()["failure"]["frames"]), FRAME_LIMIT)

    def test_failure_in_the_old_log_system_shows_its_place(self) -> None:
        """P25: what Twisted logs for an exception in a protocol says where it was, and not what it said."""
        observer = JsonLog(self.out, "edge")
        old = OldPublisher(LogPublisher(), LogPublisher(observer))
        try:
            raise ValueError(CANARY)
        except ValueError:
            old.msg(failure=Failure(), why=CANARY, isError=1)
        line = self.line()
        self.assertEqual((line["event"], line["level"]), ("library", "critical"))
        self.assertEqual(line["failure"]["type"], "builtins.ValueError")
        self.assertIn("test_logs.py", line["failure"]["frames"][-1])
        self.assertNotIn(CANARY, self.out.getvalue())

    def test_quiet_events_of_libraries_are_dropped(self) -> None:
        self.log.info("Starting factory {factory}", factory=Telltale())
        self.assertEqual(self.out.getvalue(), "")

    def test_loud_events_of_libraries_are_not_formatted(self) -> None:
        """P25: the format of a library's event is constant text, its values are not shown."""
        self.log.error("Cannot do {thing}", thing=Telltale())
        line = self.line()
        self.assertEqual((line["event"], line["format"], line["from"]), ("library", "Cannot do {thing}", "iop.test"))
        self.assertNotIn(CANARY, self.out.getvalue())

    def test_levels_below_the_lowest_are_dropped(self) -> None:
        self.log.debug("edge.test.detail")
        self.assertEqual(self.out.getvalue(), "")
        loud = Logger("iop.test", observer=LogPublisher(JsonLog(self.out, "edge", LogLevel.debug)))
        loud.debug("edge.test.detail")
        self.assertEqual(self.line()["level"], "debug")
