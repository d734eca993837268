"""Provider secrets as commands take them: from a private file or standard input, never from argv, which is public."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from iop.errors import FileRefused
from iop.files import read_private
from iop.secret import Secret
from iop.units import SECRET_LIMIT


def read_secret(source: str) -> Secret:
    """Read a secret from the private file named ``source``, or from standard input if that is ``-``.

    One newline at the end is dropped, and said so on stderr: editors and ``echo`` add it, no provider means it.

    :raises FileRefused: for a file that is open to others or missing, and for more than 16 KiB.
    """
    # one newline more than the limit, which is dropped
    limit = SECRET_LIMIT + 1
    text = bytearray(sys.stdin.buffer.read(limit + 1)) if source == "-" else read_private(Path(source), limit)
    if text.endswith(b"\n"):
        del text[-1:]
        click.echo("Notice: one newline at the end of the secret was dropped.", err=True)
    if len(text) > SECRET_LIMIT:
        text[:] = bytes(len(text))
        raise FileRefused(
            f"the secret is longer than {SECRET_LIMIT} bytes", hint="check that this is the one you meant"
        )
    return Secret(text)
