"""What this project's protocols ask of a connection."""

from __future__ import annotations

from twisted.internet.interfaces import IConsumer, IPushProducer, ITCPTransport


class IStreamTransport(ITCPTransport, IConsumer, IPushProducer):
    """What TCP connections and TLS connections over TCP both are."""
