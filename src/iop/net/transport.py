"""What this project's protocols ask of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IConsumer, IPushProducer, ISystemHandle, ITCPTransport

if TYPE_CHECKING:
    from OpenSSL import SSL


class IStreamTransport(ITCPTransport, IConsumer, IPushProducer):
    """What TCP connections and TLS connections over TCP both are."""


class ITlsTransport(IStreamTransport, ISystemHandle):
    """What TLS connections over TCP are."""

    def getHandle() -> SSL.Connection:
        """OpenSSL's connection."""
