"""The options that ``iop slot`` and ``iop route`` share: which server, checked how, as whom."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from iop.cli.credential_api import CredentialApi, Json
from iop.cli.reactor import run_in_reactor

_required = partial(click.option, required=True, show_envvar=True)


@dataclass(frozen=True, slots=True)
class Server:
    """A credential HTTPS API and who calls it."""

    url: str
    ca: Path
    token_file: Path

    def call(self, work: Callable[[CredentialApi], Coroutine[Any, Any, Json]]) -> Json:
        """Run ``work`` with a client, in the reactor, to its end."""
        return run_in_reactor(lambda reactor: work(CredentialApi(reactor, self.url, self.ca, self.token_file)))


def with_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--url``, ``--ca`` and ``--token-file``, as one :class:`Server` before its other parameters."""
    file = click.Path(path_type=Path)

    @_required("--url", envvar="IOP_URL", help="https://HOST:PORT of the credential API.")
    @_required("--ca", envvar="IOP_CA", type=file, help="PEM file of the server's certificate authority.")
    @_required("--token-file", envvar="IOP_TOKEN_FILE", type=file, help="Private file with a manage token.")
    @wraps(command)
    def call(url: str, ca: Path, token_file: Path, **others: object) -> None:
        command(Server(url, ca, token_file), **others)

    return call
