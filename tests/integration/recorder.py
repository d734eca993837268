"""A provider as a process of its own that writes down each secret it is sent, and when.

``python -m tests.integration.recorder PORT_FILE RECORD``. The time is the kernel's, of the packet with the request's
first byte, so a provider that is slow to read makes no request look later than it was.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import sys
from pathlib import Path
from threading import Thread

from iop.files import write_atomic

#: Linux's ``SO_TIMESTAMPNS``, which the socket module does not name: when a packet came, in nanoseconds of wall time.
_TIMESTAMP = 35
_TIME = struct.Struct("qq")
_SECRET = re.compile(rb"\r\nauthorization: *bearer +([^\r]+)\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


def _serve(connection: socket.socket, record: int) -> None:
    """Answer request after request with the name in its secret, ``sk-NAME``, once that is written down."""
    while True:
        # one byte alone: with more of them the time would be that of the last
        head, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(_TIME.size))
        if not head:
            return
        seconds, nanoseconds = _TIME.unpack(ancillary[0][2])
        while b"\r\n\r\n" not in head:
            head += connection.recv(65536)
        head, _, body = head.partition(b"\r\n\r\n")
        head += b"\r\n"
        secret, length = _SECRET.search(head), _LENGTH.search(head)
        assert secret is not None
        assert length is not None
        left = int(length[1]) - len(body)
        while left > 0:
            left -= len(connection.recv(left))
        path = head.split(b" ", 2)[1]
        os.write(record, b"%d %s %s\n" % (seconds * 10**9 + nanoseconds, path, secret[1]))
        name = secret[1].removeprefix(b"sk-")
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name))


def main(port_file: Path, record: Path) -> None:
    """Listen until the process ends."""
    written = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        # connections inherit it
        server.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)
        write_atomic(port_file, str(server.getsockname()[1]).encode(), 0o644)
        while True:
            Thread(target=_serve, args=(server.accept()[0], written), daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
