"""Regenerate the checked-in protobuf modules: ``python proto/generate.py [DESTINATION]`` (or ``make proto``).

The generated modules live in ``src/iop/wire`` and nowhere else; a test runs this into a temporary folder and compares.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
SOURCES = ("iop/runtime.proto", "iop/control.proto")


def generate(destination: Path) -> list[Path]:
    """Write ``*_pb2.py`` and ``*_pb2.pyi`` for every source into ``destination`` and return their paths."""
    written: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch:
        status = protoc.main(
            [
                "protoc",
                f"-I{ROOT}",
                f"-I{files('grpc_tools') / '_proto'}",
                f"--python_out={scratch}",
                f"--pyi_out={scratch}",
                *SOURCES,
            ]
        )
        if status != 0:
            raise SystemExit(f"protoc refused the sources (exit {status})")
        for made in sorted(Path(scratch, "iop").glob("*_pb2.py*")):
            # protoc derives the import from the source's folder; the modules live one package deeper. Its stubs leave
            # out what a mapping maps.
            text = made.read_text().replace("from iop import ", "from iop.wire import ")
            text = re.sub(r"\b_Mapping\b(?=\])", "_Mapping[str, object]", text)
            target = destination / made.name
            target.write_text(text)
            written.append(target)
    return written


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "src" / "iop" / "wire"
    for path in generate(place):
        sys.stdout.write(f"{path}\n")
