"""Listening as every role does it: from a configured endpoint string, with a refusal that names the key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError

from iop.errors import BadConfig

if TYPE_CHECKING:
    from twisted.internet.interfaces import IListeningPort, IProtocolFactory


async def listen(reactor: object, endpoint: str, factory: IProtocolFactory, key: str) -> IListeningPort:
    """Listen at a :data:`~iop.process.config.ServerEndpoint`.

    :param key: table and key the endpoint was configured with, ``[api] listen``.
    :raises BadConfig: if the address cannot be had.
    """
    try:
        port: IListeningPort = await serverFromString(reactor, endpoint).listen(factory)
    except CannotListenError as error:
        reason = getattr(error.socketError, "strerror", None) or "the address cannot be had"
        raise BadConfig(
            f"{key} = {endpoint!r}: {reason}", hint="end what listens there, or configure another port"
        ) from error
    return port


def bound_address(port: IListeningPort) -> str:
    """Where a port listens, as ``host:port`` (``[host]:port`` for IPv6)."""
    address = port.getHost()
    if isinstance(address, IPv6Address):
        return f"[{address.host}]:{address.port}"
    if isinstance(address, IPv4Address):
        return f"{address.host}:{address.port}"
    raise TypeError(f"not a TCP listener: {type(address).__name__}")
