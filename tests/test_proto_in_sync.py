"""The checked-in protobuf modules are what ``make proto`` makes of the sources (C51)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import iop.wire

ROOT = Path(__file__).resolve().parent.parent


class ProtoInSyncTests(SynchronousTestCase):
    def test_generated_modules_are_those_of_the_sources(self) -> None:
        """C51: whoever changes a ``.proto`` regenerates; a hand-edited module is found too."""
        spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
        assert spec is not None and spec.loader is not None
        generate = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(generate)
        scratch = Path(self.mktemp())
        scratch.mkdir()
        made = {path.name: path.read_text() for path in generate.generate(scratch)}
        (folder,) = iop.wire.__path__
        kept = {
            path.name: path.read_text() for path in Path(folder).glob("*_pb2.py*") if path.suffix in (".py", ".pyi")
        }
        self.assertEqual(sorted(made), sorted(kept))
        for name, text in made.items():
            self.assertEqual(text, kept[name], f"{name} differs from its source: make proto")

    def test_generated_code_is_in_one_folder_only(self) -> None:
        """Everything else imports ``iop.wire``."""
        elsewhere = [path for path in (ROOT / "src").rglob("*_pb2.py") if path.parent != ROOT / "src" / "iop" / "wire"]
        self.assertEqual(elsewhere, [])
