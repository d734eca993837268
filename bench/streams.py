"""Streamed answers: an upstream that writes each event by itself, and a client that counts them.

Both are children of :mod:`bench.gateway`: ``--serve`` is the upstream, on a plain and a TLS port; ``--drive`` asks it,
or an Edge in front of it, and prints what it saw as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import statistics
import sys
import time
from pathlib import Path

#: Events of one answer when only their number counts.
BURST_EVENTS = 500
#: Events of one answer when the first one's time counts, and the pause between them.
PACED_EVENTS, PACE_SECONDS = 5, 0.002
SECONDS = 3.0
WARM_SECONDS = 0.5
EVENT = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "token "}}]}).encode() + b"\n\n"
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_ANSWER = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}}]}).encode()
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_ANSWER), _ANSWER)
END = b"\r\n0\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            asked = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
            if not asked.get("stream"):
                writer.write(WHOLE)
                continue
            writer.write(HEAD)
            paced = asked["messages"][0]["content"] == "paced"
            for _ in range(PACED_EVENTS if paced else BURST_EVENTS):
                writer.write(CHUNK)
                # lets the event leave by itself, as a model's tokens do
                await asyncio.sleep(PACE_SECONDS if paced else 0)
                await writer.drain()
            writer.write(LAST)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve(folder: Path) -> None:
    """Answer until killed; the two ports go to ``streams.port`` in ``folder``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    plain = await asyncio.start_server(_answer, "127.0.0.1", 0)
    tls = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context)
    ports = [server.sockets[0].getsockname()[1] for server in (plain, tls)]
    (folder / "streams.port").write_text(json.dumps(ports))
    await asyncio.gather(plain.serve_forever(), tls.serve_forever())


async def drive(port: int, token: str, streams: int, *, paced: bool) -> dict[str, float]:
    """Ask ``streams`` at a time; events per second and the time to the first one, in microseconds."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    message = {"role": "user", "content": "paced" if paced else "burst"}
    body = json.dumps({"model": "m1", "stream": True, "messages": [message]}).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n%s" % (token.encode(), len(body), body)
    )
    begin = time.perf_counter() + WARM_SECONDS
    end = begin + SECONDS
    events, first = 0, list[float]()

    async def stream() -> None:
        nonlocal events
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        while (asked := time.perf_counter()) < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"refused: {head!r}")
            tail, rest, came = b"", b"", 0.0
            while not tail.endswith(END):
                data = await reader.read(65536)
                if not data:
                    raise SystemExit("the stream broke off")
                now = time.perf_counter()
                # an event cut in two is counted when its end comes
                whole = rest + data
                count = whole.count(EVENT)
                rest = whole[whole.rfind(b"\n\n") + 2 :] if b"\n\n" in whole else whole
                if count and not came:
                    came = now
                if begin <= now <= end:
                    events += count
                tail = (tail + data)[-len(END) :]
            if asked >= begin:
                first.append(came - asked)
        writer.transport.abort()

    await asyncio.gather(*(stream() for _ in range(streams)))
    cuts = statistics.quantiles(first, n=100)
    return {"chunks": events / SECONDS, "p50": cuts[49] * 1e6, "p99": cuts[98] * 1e6}


def main() -> None:
    """Be one of the two."""
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__)
    parser.add_argument("--serve", type=Path, metavar="FOLDER")
    parser.add_argument("--drive", type=int, metavar="PORT")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--paced", action="store_true")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
    else:
        token = options.token_file.read_text().strip()
        seen = asyncio.run(drive(options.drive, token, options.streams, paced=options.paced))
        sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
