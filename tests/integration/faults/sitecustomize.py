"""Loaded by the interpreter of a role that tests start with this folder on ``PYTHONPATH``: logs all, breaks on demand.

The role logs at debug level. While the file ``fault`` in its working folder names a hop, the real call is made there,
then an exception raised that has every secret that was in hand in its message and its locals. With ``crash`` before the
name the process dies of SIGSEGV there instead. If ``IOP_TEST_TAP`` is set, an Edge appends the plaintext of all its TLS
connections to that file.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final

#: By hop: module, attribute path of what is called there.
HOPS: Final = {
    "control plane: keyring": ("iop.crypto.keyring", "Keyring.key"),
    "control plane: unseal": ("iop.crypto.at_rest", "_open"),
    "control plane: seal lease": ("iop.control_plane.leases", "seal_lease"),
    "control plane: sign": ("iop.crypto.issuer", "Issuer.sign"),
    "control plane: seal slot": ("iop.control_plane.credential_api", "seal_secret"),
    "control plane: check slot": ("iop.control_plane.api_request", "check_secret"),
    "control plane: store": ("iop.store.sqlite.slots", "SqliteSlots.create"),
    "node: open": ("iop.node.leases", "open_lease"),
    "node: header": ("iop.node.runs", "credential_header"),
    "node: request": ("iop.net.upstream", "_request_head"),
    "node: send": ("iop.net.upstream_call", "UpstreamCall.begin"),
    "node: answer head": ("iop.node.runs", "passed_headers"),
    "node: redact": ("iop.node.redact", "Redactor.feed"),
    "edge: lease": ("iop.edge.leases", "Leases._checked_expiry"),
    "edge: answer head": ("iop.edge.answer", "Answer.head"),
    "edge: answer data": ("iop.edge.answer", "Answer.data"),
    "edge: parse": ("iop.edge.api", "parse_object"),
}


class Injected(Exception):
    """What a hop raises; its message holds what no log may."""


def role_started_here() -> str:
    """``control-plane``, ``edge`` or ``node``, or nothing in every other process."""
    words = sys.orig_argv
    if not any(word.endswith("twistd") for word in words[:3]):
        return ""
    return next((word.removeprefix("iop-") for word in words if word.startswith("iop-")), "")


def shown(values: Iterable[object]) -> str:
    """Everything in hand, secrets included."""
    from iop.secret import Secret

    return " ".join(repr(bytes(value.reveal())) if isinstance(value, Secret) else repr(value) for value in values)


def break_on_demand(hop: str, module: str, attribute: str) -> None:
    """Put the fault in front of everybody who calls this."""
    owner: Any = import_module(module)
    *path, name = attribute.split(".")
    for part in path:
        owner = getattr(owner, part)
    real: Callable[..., object] = getattr(owner, name)
    fault = Path("fault")

    @wraps(real)
    def broken(*arguments: object, **named: object) -> object:
        asked = fault.read_text() if fault.exists() else ""
        result = real(*arguments, **named)
        if asked == f"crash {hop}":
            os.kill(os.getpid(), signal.SIGSEGV)
        if asked == hop:
            raise Injected(shown([*arguments, *named.values(), result, getattr(result, "secret", "")]))
        return result

    setattr(owner, name, broken)


def tap(path: Path) -> None:
    """Append what crosses TLS here, decrypted, to a file."""
    from twisted.protocols.policies import ProtocolWrapper
    from twisted.protocols.tls import TLSMemoryBIOProtocol

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # untyped there
    received: Callable[[ProtocolWrapper, bytes], None] = ProtocolWrapper.dataReceived
    write: Callable[[TLSMemoryBIOProtocol, bytes], None] = TLSMemoryBIOProtocol.write

    def tapped_received(self: ProtocolWrapper, data: bytes) -> None:
        os.write(descriptor, data)
        received(self, data)

    def tapped_write(self: TLSMemoryBIOProtocol, data: bytes) -> None:
        os.write(descriptor, data)
        write(self, data)

    # a subclass calls its parent's by name, so these two see all plaintext in both directions
    ProtocolWrapper.dataReceived = tapped_received  # type: ignore[method-assign]
    TLSMemoryBIOProtocol.write = tapped_write  # type: ignore[method-assign]


def main(role: str) -> None:
    """Change this process."""
    from twisted.logger import LogLevel

    from iop.process.logs import JsonLog

    JsonLog.__init__.__defaults__ = (LogLevel.debug,)
    for hop, place in HOPS.items():
        if hop.startswith(role.replace("-", " ")):
            break_on_demand(hop, *place)
    if role == "edge" and "IOP_TEST_TAP" in os.environ:
        tap(Path(os.environ["IOP_TEST_TAP"]))


if started := role_started_here():
    main(started)
