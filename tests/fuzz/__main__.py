"""``python -m tests.fuzz [TARGET]``: fuzz all targets, or one, each for ``FUZZ_SECONDS`` (60 if not set)."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from subprocess import run

import atheris

with atheris.instrument_imports(include=["iop"]):
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS

#: The most bytes of an input: more than every limit in the targets.
_LONGEST = 4096


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one target in this process, which ends with it. An input that fails is left in the current folder."""
    with tempfile.TemporaryDirectory(prefix="iop-fuzz-") as corpus:
        for number, seed in enumerate(seeds()[name]):
            Path(corpus, str(number)).write_bytes(seed)
        limits = [f"-max_total_time={seconds}", f"-max_len={_LONGEST}", "-timeout=10", "-rss_limit_mb=1024"]
        atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix=fuzz-{name}-", corpus], TARGETS[name])
        atheris.Fuzz()


def main(arguments: list[str]) -> int:
    """How many targets failed."""
    seconds = int(os.environ.get("FUZZ_SECONDS", "60"))
    if len(arguments) == 1 and arguments[0] in TARGETS:
        fuzz(arguments[0], seconds)
        return 0
    if arguments:
        raise SystemExit(f"Targets: {', '.join(TARGETS)}")
    failed = 0
    for name in TARGETS:
        # one process each: a fuzzer ends the process it runs in
        failed += run([sys.executable, "-m", "tests.fuzz", name], check=False).returncode != 0  # noqa: S603 - ourselves
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
