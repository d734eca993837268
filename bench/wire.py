"""Requests per second over one mutual TLS 1.3 connection: our peer wire, grpc.aio, and what bare asyncio streams reach.

``python -m bench.wire``. Server on one core, client on the other. A request and its answer carry 256 bytes each. The
floor parses nothing and keeps no account of anything; the other two parse protobuf and match answers to requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.measure import ROUNDS, SERVED, Figures, Report, Tally, ask, python, wait_for
from iop.net.tls import TlsFiles
from iop.testing.pki import TRUST_DOMAIN, Pki
from iop.units import PROTOCOL_VERSION, Role
from iop.wire import control_pb2

PAYLOAD = bytes(range(256))
SYSTEMS = ("iop", "grpc.aio", "asyncio floor")
IN_FLIGHT = (1, 64)
GRPC_METHOD = "/bench.Wire/Ready"


def request() -> control_pb2.EdgeReadyRequest:
    """256 bytes in a message of ours."""
    return control_pb2.EdgeReadyRequest(outcome=control_pb2.ProjectionOutcome(digest=PAYLOAD))


def answer() -> control_pb2.EdgeReadyResponse:
    """256 bytes in another."""
    return control_pb2.EdgeReadyResponse(accepted=True, message="x" * 256)


def _context(files: TlsFiles, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files.trust)
    context.load_cert_chain(files.certificate, files.key)
    return context


# -- ours -------------------------------------------------------------------------------------------------------------


def serve_iop(files: TlsFiles, told: Callable[[int], object]) -> None:
    """Accept an Edge's connection and answer."""
    from twisted.internet import reactor as running
    from twisted.internet.defer import succeed
    from twisted.protocols.tls import TLSMemoryBIOFactory
    from zope.interface import implementer

    from iop.interfaces import IPeerApplication
    from iop.net.clock import ReactorClock
    from iop.net.peer import PeerFactory
    from iop.net.tls import mutual_server, peer_identity
    from iop.wire.dialect import CONTROL

    @implementer(IPeerApplication)
    class Answering:
        def connected(self, peer: Any) -> None: ...
        def asked(self, message: Any) -> Any:
            if isinstance(message, control_pb2.EdgeHelloRequest):
                return succeed(control_pb2.EdgeHelloResponse(accepted=True))
            return succeed(answer())

        def notified(self, message: Any) -> None: ...
        def lost(self, reason: Any) -> None: ...

    reactor: Any = running
    clock = ReactorClock(reactor)
    factory = PeerFactory(CONTROL, initiator=False, application=Answering, clock=clock, identify=peer_identity)
    creator = mutual_server(files, trust_domain=TRUST_DOMAIN, accepts=Role.EDGE)
    listening = reactor.listenTCP(0, TLSMemoryBIOFactory(creator, False, factory), interface="127.0.0.1")
    told(listening.getHost().port)
    reactor.run()


def drive_iop(files: TlsFiles, port: int, in_flight: int) -> dict[str, float]:
    """Ask for a while, ``in_flight`` requests at a time."""
    from bench.peer import drive
    from iop.net.tls import mutual_client
    from iop.wire.dialect import CONTROL

    async def begin(peer: Any, clock: object) -> Callable[[], Awaitable[object]]:
        await peer.request(control_pb2.EdgeHelloRequest(edge_id="edge1", protocol_version=PROTOCOL_VERSION), 10)
        return lambda: peer.request(request(), 10)

    creator = mutual_client(
        files, trust_domain=TRUST_DOMAIN, role=Role.CONTROL_PLANE, name="cp1", server_name="localhost"
    )
    return drive(CONTROL, creator, port, in_flight, begin)


# -- the others -------------------------------------------------------------------------------------------------------


async def serve_grpc(files: TlsFiles, told: Callable[[int], object]) -> None:
    """The same answer by grpc.aio."""
    import grpc

    async def handle(asked: Any, context: Any) -> Any:
        return answer()

    handler = grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=control_pb2.EdgeReadyRequest.FromString,
        response_serializer=control_pb2.EdgeReadyResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Wire", {"Ready": handler}),))
    credentials = grpc.ssl_server_credentials(
        [(files.key.read_bytes(), files.certificate.read_bytes())],
        root_certificates=files.trust.read_bytes(),
        require_client_auth=True,
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    told(port)
    await server.wait_for_termination()


async def drive_grpc(files: TlsFiles, port: int, in_flight: int) -> dict[str, float]:
    """The same questions by grpc.aio."""
    import grpc

    credentials = grpc.ssl_channel_credentials(
        root_certificates=files.trust.read_bytes(),
        private_key=files.key.read_bytes(),
        certificate_chain=files.certificate.read_bytes(),
    )
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        call = channel.unary_unary(
            GRPC_METHOD,
            request_serializer=control_pb2.EdgeReadyRequest.SerializeToString,
            response_deserializer=control_pb2.EdgeReadyResponse.FromString,
        )
        return await _drive(lambda: call(request()), in_flight)


async def serve_floor(files: TlsFiles, told: Callable[[int], object]) -> None:
    """Frames in, frames out."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                data = await reader.readexactly(length)
                writer.write(length.to_bytes(4, "big") + data)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=_context(files, True))
    told(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def drive_floor(files: TlsFiles, port: int, in_flight: int) -> dict[str, float]:
    """Frames of 256 bytes, answered in order."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=_context(files, False), server_hostname="localhost"
    )
    frame = len(PAYLOAD).to_bytes(4, "big") + PAYLOAD
    waiting: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def read() -> None:
        while True:
            await reader.readexactly(len(frame))
            waiting.get_nowait().set_result(None)

    async def call() -> None:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.put_nowait(answered)
        writer.write(frame)
        await answered

    reading = asyncio.ensure_future(read())
    try:
        return await _drive(call, in_flight)
    finally:
        reading.cancel()
        writer.transport.abort()


async def _drive(call: Callable[[], Awaitable[Any]], in_flight: int) -> dict[str, float]:
    tally = Tally()

    async def worker() -> None:
        while tally.going():
            began = time.perf_counter()
            await call()
            tally.count(began)

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return tally.result()


# -- the command ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Measure, or be one of the children that are measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.wire", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--serve", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--drive", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--in-flight", type=int, default=64, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        files, port_file = _files(options.folder, "cp1"), options.folder / f"{options.serve}.port"

        def told(port: int) -> None:
            port_file.write_text(str(port))

        if options.serve == "iop":
            serve_iop(files, told)
        else:
            asyncio.run((serve_grpc if options.serve == "grpc.aio" else serve_floor)(files, told))
    elif options.drive:
        files = _files(options.folder, "edge1")
        if options.drive == "iop":
            result = drive_iop(files, options.port, options.in_flight)
        else:
            drive = drive_grpc if options.drive == "grpc.aio" else drive_floor
            result = asyncio.run(drive(files, options.port, options.in_flight))
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        measure(options.rounds)


def _files(folder: Path, name: str) -> TlsFiles:
    return TlsFiles(folder / f"{name}.pem", folder / f"{name}.key", folder / "trust.pem")


def measure(rounds: int) -> None:
    """Rounds over all systems in turn, so that a machine that slows down slows all of them."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        pki = Pki(folder / "pki")
        for role, name in ((Role.CONTROL_PLANE, "cp1"), (Role.EDGE, "edge1")):
            issued, wanted = pki.issue(role, name), _files(folder, name)
            wanted.certificate.write_bytes(issued.certificate.read_bytes())
            wanted.key.touch(0o600)
            wanted.key.write_bytes(issued.key.read_bytes())
        (folder / "trust.pem").write_bytes(pki.trust.read_bytes())
        servers = [python("-m", "bench.wire", "--serve", system, "--folder", made, core=SERVED) for system in SYSTEMS]
        try:
            figures: dict[tuple[str, int], dict[str, Figures]] = {}
            for _ in range(rounds):
                for in_flight in IN_FLIGHT:
                    for system in SYSTEMS:
                        port = wait_for(folder / f"{system}.port")
                        arguments = ("--folder", made, "--port", port, "--in-flight", str(in_flight))
                        got = ask("-m", "bench.wire", "--drive", system, *arguments)
                        kept = figures.setdefault((system, in_flight), {key: Figures() for key in got})
                        for key, value in got.items():
                            kept[key].values.append(value)
        finally:
            for server in servers:
                server.terminate()
                server.wait()
    title = "Peer wire, one mTLS connection, 256 B each way"
    report = Report("wire", title, ["requests/s", "p50 µs", "p99 µs", "times grpc.aio"])
    for in_flight in IN_FLIGHT:
        for system in SYSTEMS:
            got = figures[system, in_flight]
            ratio = got["rate"].median / figures["grpc.aio", in_flight]["rate"].median
            report.row(
                f"{system}, {in_flight} in flight",
                {
                    "requests/s": got["rate"],
                    "p50 µs": got["p50"],
                    "p99 µs": got["p99"],
                    "times grpc.aio": f"{ratio:.1f}",
                },
            )
    report.finish(["Twisted", "pyOpenSSL", "protobuf", "grpcio"])


if __name__ == "__main__":
    main()
