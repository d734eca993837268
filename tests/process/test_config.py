"""Strict configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator
from twisted.trial.unittest import SynchronousTestCase

from iop.errors import BadConfig
from iop.process.config import (
    CONFIG_LIMIT,
    PROBLEMS_LISTED,
    ClientEndpoint,
    ConfigPath,
    Name,
    RoleConfig,
    ServerEndpoint,
    Strict,
    TlsTable,
    load,
)
from iop.units import Role

GOOD = """
[deployment]
id = "d-1"
trust_domain = "iop.test"
[status]
listen = "tcp:port=0:interface=127.0.0.1"
[run]
directory = "run"
[thing]
name = "thing-1"
count = 3
listen = "tcp:port=8443"
"""


class Part(Strict):
    name: Name
    size: float = 1.0


class Thing(Strict):
    name: Name
    count: Annotated[int, Field(ge=1, le=5)]
    listen: ServerEndpoint
    dial: ClientEndpoint = "tcp:host=127.0.0.1:port=1"
    file: ConfigPath | None = None
    parts: tuple[Part, ...] = ()
    words: Annotated[tuple[Name, ...], Field(min_length=1)] = ("one",)
    flag: bool = False
    most: int = Field(default_factory=lambda already: int(already["count"]))


class ThingConfig(RoleConfig):
    thing: Thing
    tls: TlsTable | None = None

    @model_validator(mode="after")
    def _whole(self) -> ThingConfig:
        if self.thing.flag and self.tls is None:
            raise ValueError("flag needs [tls]")
        return self


class LoadTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = Path(self.mktemp())
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def read(self, text: str) -> ThingConfig:
        self.path.write_text(text)
        return load(self.path, ThingConfig)

    def refusal(self, text: str | bytes) -> str:
        """What is told about a file with this text."""
        self.path.write_bytes(text.encode() if isinstance(text, str) else text)
        with self.assertRaises(BadConfig) as caught:
            load(self.path, ThingConfig)
        self.assertIn(str(self.path), caught.exception.message)
        self.assertIn("iop config check", caught.exception.hint)
        return str(caught.exception.message)

    def test_good(self) -> None:
        """Everything is read, paths are absolute from the file's folder, arrays are tuples."""
        config = self.read(GOOD + 'file = "sub/x.pem"\n[[thing.parts]]\nname = "a"\nsize = 2\n')
        self.assertEqual(config.thing.file, self.path.absolute().parent / "sub/x.pem")
        self.assertEqual(config.thing.parts, (Part(name="a", size=2.0),))
        self.assertFalse(config.quickstart)

    def test_frozen(self) -> None:
        config = self.read(GOOD)
        with self.assertRaises(ValueError):
            setattr(config.thing, "count", 4)  # noqa: B010 - a checker would refuse the plain form, as it should

    def test_absolute_path_kept(self) -> None:
        self.assertEqual(self.read(GOOD + 'file = "/etc/x"').thing.file, Path("/etc/x"))

    def test_unknown_key_names_file_table_and_key(self) -> None:
        self.assertIn("[thing] colour: is not a known key", self.refusal(GOOD + 'colour = "red"'))

    def test_unknown_table(self) -> None:
        """Alone or in an array, it is told as a table; a key outside of tables is none."""
        self.assertIn(": [extra]: is not a known table", self.refusal(GOOD + "[extra]\nx = 1"))
        self.assertIn(": [extra]: is not a known table", self.refusal(GOOD + "[[extra]]\nx = 1"))
        self.assertIn(": extra: is not a known key", self.refusal("extra = [1]\n" + GOOD))

    def test_paths_are_straightened(self) -> None:
        """People read them; where a link makes ``..`` lead elsewhere, they are left as they are."""
        root = self.path.absolute().parent
        self.assertEqual(self.read(GOOD + 'file = "a/../x.pem"').thing.file, root / "x.pem")
        (root / "far" / "away").mkdir(parents=True)
        (root / "link").symlink_to("far/away")
        self.assertEqual(self.read(GOOD + 'file = "link/../x.pem"').thing.file, root / "link" / ".." / "x.pem")
        (root / "key.pem").symlink_to("x.pem")
        self.assertEqual(self.read(GOOD + 'file = "a/../key.pem"').thing.file, root / "key.pem")

    def test_missing_key(self) -> None:
        self.assertIn("[thing] count: is missing", self.refusal(GOOD.replace("count = 3\n", "")))

    def test_missing_table(self) -> None:
        self.assertIn("[run]: is missing", self.refusal(GOOD.replace('[run]\ndirectory = "run"\n', "")))

    def test_wrong_types(self) -> None:
        """Nothing is converted: not text to a number, not a number to text, not 1 to true."""
        for old, new, place in (
            ("count = 3", 'count = "3"', "[thing] count"),
            ("count = 3", "count = 3.0", "[thing] count"),
            ('name = "thing-1"', "name = 1", "[thing] name"),
            ("count = 3", "count = 3\nflag = 1", "[thing] flag"),
            ('directory = "run"', "directory = 7", "[run] directory"),
        ):
            self.assertIn(f"{place}: ", self.refusal(GOOD.replace(old, new)), new)

    def test_out_of_range(self) -> None:
        """At the limit it is taken, one past it is not."""
        self.assertEqual(self.read(GOOD.replace("count = 3", "count = 5")).thing.count, 5)
        self.assertIn("[thing] count: ", self.refusal(GOOD.replace("count = 3", "count = 6")))

    def test_entry_of_array_is_counted_from_one(self) -> None:
        text = GOOD + '[[thing.parts]]\nname = "a"\n[[thing.parts]]\nname = "B"\n'
        self.assertIn("[thing.parts #2] name: must be 1-63", self.refusal(text))

    def test_whole_file_rule(self) -> None:
        """A rule between tables has no place of its own, and is told all the same."""
        self.assertIn(": flag needs [tls]", self.refusal(GOOD + "flag = true"))

    def test_several_problems_at_once(self) -> None:
        message = self.refusal(GOOD.replace("count = 3", "count = 0").replace('id = "d-1"', 'id = ""'))
        self.assertIn("has 2 problems:", message)
        self.assertIn("[deployment] id: ", message)
        self.assertIn("[thing] count: ", message)

    def test_default_that_waits_for_a_mistake(self) -> None:
        """A key that is left out is no mistake, if what its default follows from is one."""
        message = self.refusal(GOOD.replace("count = 3", "count = 0"))
        self.assertIn("[thing] count: ", message)
        self.assertNotIn("most", message)

    def test_array_that_is_too_short(self) -> None:
        """That is told once: not of an array whose only entry is wrong, and so was not counted."""
        self.assertIn("[thing] words: must have at least one entry", self.refusal(GOOD + "words = []"))
        message = self.refusal(GOOD + 'words = ["NO"]')
        self.assertIn("[thing.words] #1: must be 1-63", message)
        self.assertNotIn("at least", message)

    def test_wrong_type_is_told_in_words(self) -> None:
        self.assertIn("[thing] count: must be a valid integer", self.refusal(GOOD.replace("count = 3", 'count = "3"')))

    def test_another_role(self) -> None:
        """One sentence, not a list of everything in which two roles differ."""
        for table, role in (("node", Role.NODE), ("edge", Role.EDGE), ("control_plane", Role.CONTROL_PLANE)):
            self.path.write_text(GOOD + f"[{table}]\n")
            for wanted in (Role.NODE, Role.EDGE, Role.CONTROL_PLANE):
                error = self.assertRaises(BadConfig, load, self.path, ThingConfig, wanted)
                self.assertEqual("where role" in error.message, wanted is not role)

    def test_long_list_is_cut(self) -> None:
        message = self.refusal(GOOD + "".join(f"extra{number} = 1\n" for number in range(PROBLEMS_LISTED + 3)))
        self.assertIn("and 3 more", message)

    def test_not_toml(self) -> None:
        for text in ("[thing", b"\xff\xfe", "[a]\n[a]\n", "x = " + "[" * 5000):
            self.assertIn("it is not TOML", self.refusal(text))

    def test_dates_and_infinities_have_no_place(self) -> None:
        self.assertIn("write it as a string", self.refusal(GOOD + "[extra]\nx = 2026-01-01"))
        self.assertIn("size", self.refusal(GOOD + '[[thing.parts]]\nname = "a"\nsize = inf\n'))

    def test_file_missing_and_too_long(self) -> None:
        self.path = Path(self.mktemp())
        with self.assertRaises(BadConfig) as caught:
            load(self.path, ThingConfig)
        self.assertIn(str(self.path), caught.exception.message)
        self.path.write_text("#" * (CONFIG_LIMIT + 1))
        with self.assertRaises(BadConfig):
            load(self.path, ThingConfig)
        self.assertTrue(self.read(GOOD + "#" * (CONFIG_LIMIT - len(GOOD))))


class EndpointTests(SynchronousTestCase):
    def listener(self, text: str, *, quickstart: bool = False) -> str:
        context = {"folder": Path(), "loopback_only": quickstart}
        thing = Thing.model_validate({"name": "a", "count": 1, "listen": text}, context=context)
        return thing.listen

    def test_listeners_taken(self) -> None:
        for text in ("tcp:8443", "tcp:port=0:interface=127.0.0.1", "tcp6:port=1:interface=\\:\\:1", "tcp:65535"):
            self.assertEqual(self.listener(text), text)

    def test_listeners_refused(self) -> None:
        for text in ("", "8443", "tcp:", "tcp:port=x", "tcp:65536", "tcp:-1", "unix:/x", "ssl:443", "tcp:1:colour=red"):
            with self.assertRaises(ValueError, msg=text):
                self.listener(text)

    def test_quickstart_mark_keeps_listeners_on_loopback(self) -> None:
        """A configuration that quickstart wrote refuses every listener that others could reach."""
        for good in ("tcp:port=0:interface=127.0.0.1", "tcp:port=0:interface=localhost", "tcp6:0:interface=\\:\\:1"):
            self.assertEqual(self.listener(good, quickstart=True), good)
        for bad in (
            "tcp:port=0",
            "tcp:port=0:interface=0.0.0.0",
            "tcp:0:interface=10.0.0.1",
            "tcp6:0:interface=\\:\\:",
        ):
            with self.assertRaises(ValueError, msg=bad) as caught:
                self.listener(bad, quickstart=True)
            self.assertIn("loopback", str(caught.exception))

    def test_status_is_on_loopback_whatever_the_mark(self) -> None:
        path = Path(self.mktemp())
        path.write_text(GOOD.replace("interface=127.0.0.1", "interface=0.0.0.0"))
        with self.assertRaises(BadConfig) as caught:
            load(path, ThingConfig)
        self.assertIn("[status] listen: must listen on loopback", caught.exception.message)

    def test_dialled(self) -> None:
        def dial(text: str) -> str:
            return Thing(name="a", count=1, listen="tcp:1", dial=text).dial

        for good in ("tcp:host=edge.example.org:port=7443", "tcp:127.0.0.1:1"):
            self.assertEqual(dial(good), good)
        for bad in (
            "",
            "tcp:",
            "tcp:host=x",
            "tcp:host=x:port=0",
            "tcp:host=:port=1",
            "tls:x:1",
            "tcp:host=x:port=70000",
        ):
            with self.assertRaises(ValueError, msg=bad):
                dial(bad)
