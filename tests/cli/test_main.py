"""``iop``: help, lazy loading, and how errors are told."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import click
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from iop.cli.main import COMMANDS, iop, run
from iop.errors import ApiRefused, BadConfig, NotConfirmed


class HelpTests(SynchronousTestCase):
    def commands(self) -> list[tuple[str, click.Command]]:
        """Every command and sub-command, by what is typed for it."""
        found: list[tuple[str, click.Command]] = [("iop", iop)]
        for path, command in found:
            if isinstance(command, click.Group):
                context = click.Context(command)
                for name in command.list_commands(context):
                    inner = command.get_command(context, name)
                    assert inner is not None, name
                    found.append((f"{path} {name}", inner))
        return found

    def test_every_command_loads_and_says_what_it_does(self) -> None:
        self.assertGreater(len(self.commands()), len(COMMANDS))
        for path, command in self.commands():
            self.assertTrue(command.help, path)

    def test_every_leaf_has_json_and_an_example(self) -> None:
        for path, command in self.commands():
            if isinstance(command, click.Group):
                continue
            self.assertIn("--json", {option for each in command.params for option in each.opts}, path)
            self.assertIn("Example", command.help or "", path)

    def test_secrets_are_never_arguments(self) -> None:
        """P25: argv is public; there are options for files with secrets, none for secrets."""
        for path, command in self.commands():
            for parameter in command.params:
                words = set((parameter.name or "").split("_"))
                if words & {"secret", "token", "password", "key"}:
                    self.assertTrue("file" in words or isinstance(parameter.type, click.Path), (path, parameter.name))

    def test_help_imports_no_command(self) -> None:
        """Help answers at once."""
        code = (
            "import sys; from iop.cli.main import run; run(['--help']); print([n for n in sys.modules if 'cli.' in n])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
        self.assertEqual(done.stdout.splitlines()[-1], "['iop.cli.main']")
        for name in COMMANDS:
            self.assertIn(name, done.stdout)


class ErrorTests(SynchronousTestCase):
    """How ``run`` tells errors, with a command that raises them."""

    def setUp(self) -> None:
        self.error: Exception = BadConfig("the file is wrong", hint="correct it")

        @click.command()
        @click.option("--json", "as_json", is_flag=True)
        def fail(as_json: bool) -> None:
            raise self.error

        self.patch(iop, "get_command", lambda context, name: fail)

    def told(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""

        @click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
        @click.argument("words", nargs=-1)
        def shell(words: tuple[str, ...]) -> None:
            sys.exit(run(words))

        done = CliRunner().invoke(shell, ["--", *arguments])
        return done.exit_code, done.stdout, done.stderr

    def test_to_people(self) -> None:
        self.assertEqual(self.told("fail"), (1, "", "Error: the file is wrong\nHint: correct it\n"))

    def test_without_a_hint(self) -> None:
        self.error = BadConfig("the file is wrong")
        self.assertEqual(self.told("fail"), (1, "", "Error: the file is wrong\n"))

    def test_to_programs(self) -> None:
        code, output, told = self.told("fail", "--json")
        error = {"code": "bad_config", "message": "the file is wrong", "hint": "correct it"}
        self.assertEqual((code, json.loads(output), told), (1, {"error": error}, ""))

    def test_refusal_of_the_api_keeps_its_code(self) -> None:
        self.error = ApiRefused(400, "bad_target", "no", hint="")
        self.assertEqual(json.loads(self.told("fail", "--json")[1])["error"]["code"], "bad_target")

    def test_change_that_is_made_but_not_confirmed(self) -> None:
        """K14: told apart from one that was not made."""
        self.error = NotConfirmed("the change is committed", hint="wait")
        self.assertEqual(self.told("fail"), (3, "", "Error: the change is committed\nHint: wait\n"))

    def test_command_line_that_does_not_parse(self) -> None:
        code, output, told = self.told("fail", "--colour")
        self.assertEqual((code, output), (2, ""))
        self.assertIn("--colour", told)
        self.assertIn("--help", told)
        code, output, _ = self.told("fail", "--json", "--colour")
        self.assertEqual((code, json.loads(output)["error"]["code"]), (2, "usage"))

    def test_interrupt(self) -> None:
        self.error = click.Abort()
        self.assertEqual(self.told("fail")[0], 130)

    def test_defect_is_not_hidden(self) -> None:
        """What is not our own error is a defect, and shows as one."""
        self.error = ZeroDivisionError()
        self.assertRaises(ZeroDivisionError, run, ["fail"])


class WholeCommandTests(SynchronousTestCase):
    def test_unknown_command(self) -> None:
        with redirect_stdout(StringIO()) as output:
            self.assertEqual(run(["fly", "--json"]), 2)
        self.assertEqual(json.loads(output.getvalue())["error"]["code"], "usage")

    def test_without_a_sub_command(self) -> None:
        """Whoever types too little is shown what there is, not told off."""
        for arguments, listed in (([], "quickstart"), (["pki"], "issue")):
            out, err = StringIO(), StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = run(arguments)
            self.assertEqual((code, out.getvalue()), (2, ""), arguments)
            self.assertTrue(err.getvalue().startswith("Usage: iop"), err.getvalue())
            self.assertIn(listed, err.getvalue())

    def test_help_fits_a_terminal(self) -> None:
        """One line for each sub-command in 80 columns."""
        shown = CliRunner().invoke(iop, ["--help"], env={"COLUMNS": "80"}).output
        for name, sentence in COMMANDS.items():
            self.assertRegex(shown, rf"(?m)^  {name} +{sentence}$")

    def test_version_option(self) -> None:
        from importlib.metadata import version

        self.assertEqual(CliRunner().invoke(iop, ["--version"]).output, f"iop {version('iop')}\n")

    def test_version(self) -> None:
        from importlib.metadata import version

        done = CliRunner().invoke(iop, ["version", "--json"])
        self.assertEqual(json.loads(done.output)["iop"], version("iop"))

    def test_module_is_the_command(self) -> None:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "iop", "config", "check", str(Path("nowhere.toml"))],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("Error: nowhere.toml cannot be read", done.stderr)
