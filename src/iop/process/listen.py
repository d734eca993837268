"""Listening as every role does it: from a configured endpoint string, with a refusal that names the key."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError

from iop.errors import BadConfig
from iop.net.listener import SPARE_DESCRIPTORS, Listener

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IReactorUNIX
    from twisted.internet.protocol import Factory


async def listen(
    reactor: object, endpoint: str, factory: IProtocolFactory, key: str, spare: int = SPARE_DESCRIPTORS
) -> IListeningPort:
    """Listen at a :data:`~iop.process.config.ServerEndpoint`, with a :class:`~iop.net.listener.Listener`.

    :param key: table and key the endpoint was configured with, ``[api] listen``.
    :param spare: file descriptors that are left to everything else.
    :raises BadConfig: if the address cannot be had.
    """
    try:
        port: IListeningPort = await serverFromString(_Listening(reactor, spare), endpoint).listen(factory)
    except CannotListenError as error:
        reason = getattr(error.socketError, "strerror", None) or "the address cannot be had"
        raise BadConfig(
            f"{key} = {endpoint!r}: {reason}", hint="end what listens there, or configure another port"
        ) from error
    return port


def listen_unix(reactor: IReactorUNIX, path: Path, factory: Factory, key: str) -> IListeningPort:
    """Listen at a Unix socket that this user and group may open (0660).

    Whatever socket a process left there that was killed is taken away: the caller knows that it is alone.

    :param key: table and key the path was configured with, ``[operator] socket``.
    :raises BadConfig: if something else is there, or the socket cannot be made.
    """
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _no_socket(path, key, error.strerror) from error
    try:
        return reactor.listenUNIX(str(path), factory, mode=0o660)
    except CannotListenError as error:
        raise _no_socket(path, key, getattr(error.socketError, "strerror", None)) from error


def _no_socket(path: Path, key: str, reason: str | None) -> BadConfig:
    return BadConfig(
        f"{key} = {path}: {reason or 'no socket can be made there'}",
        hint="name a path in a folder that this process may write to, where no other file is",
    )


class _Listening:
    """The reactor as Twisted's endpoints use it to listen, with listeners of ours."""

    def __init__(self, reactor: object, spare: int) -> None:
        self._reactor = reactor
        self._spare = spare

    def listenTCP(self, port: int, factory: IProtocolFactory, backlog: int = 50, interface: str = "") -> IListeningPort:
        listener = Listener(port, factory, backlog, interface, self._reactor, self._spare)
        listener.startListening()
        return listener


def bound_address(port: IListeningPort) -> str:
    """Where a port listens, as ``host:port`` (``[host]:port`` for IPv6)."""
    address = port.getHost()
    if isinstance(address, IPv6Address):
        return f"[{address.host}]:{address.port}"
    if isinstance(address, IPv4Address):
        return f"{address.host}:{address.port}"
    raise TypeError(f"not a TCP listener: {type(address).__name__}")
