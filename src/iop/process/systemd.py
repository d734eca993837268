"""Readiness as systemd hears it (sd_notify(3)): one datagram to the socket it named."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Tell the service manager ``READY=1`` or ``STOPPING=1``; nothing happens without one, or if it does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.setblocking(False)
        try:
            channel.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
        except OSError:
            # A manager that went away must not end the service; it will find out by itself.
            return
