"""Which checks each role has, in the order in which faults explain each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import succeed
from twisted.internet.endpoints import clientFromString

from iop.certificates import read_certificates
from iop.cli.doctor.certificates import Mutual, Presented
from iop.cli.doctor.checks import Check, Finding, fault, ok
from iop.cli.doctor.database import denials, secrets
from iop.cli.doctor.machine import descriptors, files_in_force, folder, listener, process, running
from iop.cli.doctor.network import LOOK_SECONDS, meet, reach, readiness
from iop.cli.quickstart.configs import STAND_IN_TARGET
from iop.control_plane.config import ControlPlaneConfig
from iop.control_plane.service import CONNECTIONS as CONTROL_PLANE_CONNECTIONS
from iop.control_plane.service import read_pinned
from iop.crypto.attestation import AttestationVerifier
from iop.crypto.issuer import Issuer, PinnedIssuers
from iop.crypto.keyring import Keyring
from iop.crypto.node_keys import NodeKeys
from iop.edge.config import EdgeConfig
from iop.edge.projections import Projections
from iop.edge.service import CONNECTIONS as EDGE_CONNECTIONS
from iop.files import straightened
from iop.net.target import parse_target
from iop.net.tls import ClientConnections, TlsFiles, mutual_client, mutual_server, web_server
from iop.net.upstream import endpoint_of
from iop.node.attest import Attester
from iop.node.config import NodeConfig
from iop.node.service import connections_of
from iop.node.targets import read_trust
from iop.process.config import dialled_address
from iop.store.lock import is_held
from iop.store.sqlite import open_sqlite
from iop.units import Identity, Role

if TYPE_CHECKING:
    from twisted.internet.interfaces import IStreamClientEndpoint

    from iop.cli.doctor.configured import Configured
    from iop.edge.config import ControlPlaneTable
    from iop.interfaces import IClock
    from iop.node.config import EdgeTable
    from iop.process.role import IReactor

_PROCESS: Final = "process"


def checks_of(one: Configured, among: Sequence[Configured], reactor: IReactor, clock: IClock) -> Iterator[Check]:
    """The checks of one role.

    :param among: all whose configurations are at hand.
    """
    config = one.config
    if isinstance(config, ControlPlaneConfig):
        return _control_plane(one, config, among, reactor, clock)
    return _edge(one, config, reactor, clock) if isinstance(config, EdgeConfig) else _node(one, config, reactor, clock)


def _control_plane(
    one: Configured, config: ControlPlaneConfig, among: Sequence[Configured], reactor: IReactor, clock: IClock
) -> Iterator[Check]:
    wire, https, keys, store = config.edge_wire, config.credential_https, config.keys, config.store.path
    deployment, domain, directory = config.deployment.id, config.deployment.trust_domain, config.run.directory
    files = TlsFiles(wire.certificate, wire.key, wire.trust)
    shared = (https.certificate, https.key) == (wire.certificate, wire.key)

    def use_wire() -> None:
        mutual_server(files, trust_domain=domain, accepts=Role.EDGE)

    def keyring() -> Finding:
        return ok(f"{keys.keyring}, with primary key {Keyring.load(keys.keyring).primary}")

    def issuer() -> Finding:
        Issuer.load(keys.issuer)
        return ok(f"{keys.issuer} is an issuer key that only this user can read")

    def pinned() -> Finding:
        read_pinned(keys.pinned_issuers, Issuer.load(keys.issuer))
        return ok(f"the issuer key is in {keys.pinned_issuers}")

    async def database() -> Finding:
        opened = await open_sqlite(store, deployment, reactor, clock.wall_ms)
        await opened.close()
        return ok(f"{store} is of deployment {deployment} and has the current schema")

    def lock() -> Finding:
        held, record = is_held(store), running(directory, Role.CONTROL_PLANE)
        if held and record is None:
            return fault(
                f"a Control Plane runs on {store}, and it is not the one of this configuration",
                "stop it: one database serves one Control Plane",
            )
        return ok("held by this role" if held else "free")

    listeners = [wire.listen, https.listen] if shared else [wire.listen]
    presented = Presented("[edge_wire]", wire.certificate, wire.key, use_wire, listeners)
    yield from Mutual(presented, wire.trust, Identity(domain, Role.CONTROL_PLANE, config.control_plane.name)).checks(
        clock.wall_ms
    )
    if not shared:
        yield from _web("[credential_https]", https.certificate, https.key, https.listen).checks(clock.wall_ms)
    yield Check("[keys] keyring", keyring)
    yield Check("[keys] issuer", issuer)
    yield Check("[keys] pinned_issuers", pinned, ["[keys] issuer"])
    read_again = [wire.certificate, wire.key, wire.trust, https.certificate, https.key, keys.pinned_issuers]
    yield from _process(one, reactor, CONTROL_PLANE_CONNECTIONS, read_again)
    yield Check("[store] folder", lambda: folder(store.parent))
    yield Check("[store] lock", lock, ["[store] folder", _PROCESS])
    yield Check("[store] path", database, ["[store] folder"])
    yield Check("[store] secrets", lambda: secrets(store, deployment, keys.keyring), ["[store] path", "[keys] keyring"])
    yield Check("[store] denials", lambda: denials(store, deployment, among, one.path), ["[store] path"])
    yield _readiness(directory, Role.CONTROL_PLANE, reactor)


def _edge(one: Configured, config: EdgeConfig, reactor: IReactor, clock: IClock) -> Iterator[Check]:
    tls, api, domain = config.tls, config.api, config.deployment.trust_domain
    files = TlsFiles(tls.certificate, tls.key, tls.trust)
    shared = (api.certificate, api.key) == (tls.certificate, tls.key)
    dialled = config.control_plane

    def use_files() -> object:
        return mutual_server(files, trust_domain=domain, accepts=Role.NODE)

    def dial(there: ControlPlaneTable) -> ClientConnections:
        return mutual_client(
            files, trust_domain=domain, role=Role.CONTROL_PLANE, name=there.name, server_name=there.server_name
        )

    def record(state: Path) -> Finding:
        if not state.exists():
            return ok("no projection yet")
        Projections(state, config.deployment.id, config.edge.name, clock, lambda _: succeed(0), lambda: 0).load()
        return ok("this Edge's own")

    listeners = [api.listen, config.node_wire.listen] if shared else [config.node_wire.listen]
    presented = Presented("[tls]", tls.certificate, tls.key, use_files, listeners)
    mutual = Mutual(presented, tls.trust, Identity(domain, Role.EDGE, config.edge.name))
    yield from mutual.checks(clock.wall_ms)
    if api.certificate is not None and api.key is not None and not shared:
        yield from _web("[api]", api.certificate, api.key, api.listen).checks(clock.wall_ms)
    read_again = [tls.certificate, tls.key, tls.trust, *filter(None, (api.certificate, api.key))]
    yield from _process(one, reactor, EDGE_CONNECTIONS, read_again)
    if config.credential_plane.enabled:
        yield Check("[state] directory", partial(folder, config.state_directory))
        yield Check("[state] record", partial(record, config.state_directory), ["[state] directory"])
    if dialled is not None:
        yield from _peer(one, "[control_plane]", dialled, "the Control Plane", partial(dial, dialled), mutual, reactor)
    yield _readiness(config.run.directory, Role.EDGE, reactor)


def _node(one: Configured, config: NodeConfig, reactor: IReactor, clock: IClock) -> Iterator[Check]:
    tls, dialled, domain = config.tls, config.edge, config.deployment.trust_domain
    files = TlsFiles(tls.certificate, tls.key, tls.trust)
    edge = Identity(domain, Role.EDGE, dialled.name)

    def use_files() -> ClientConnections:
        return mutual_client(
            files, trust_domain=domain, role=edge.role, name=edge.name, server_name=dialled.server_name
        )

    def attestation() -> Finding:
        keys = NodeKeys(clock)
        try:
            key = keys.current()
            AttestationVerifier(read_certificates(tls.trust), domain, config.limits.skew_seconds).verify(
                Attester.load(files, edge, config.node.name)(key),
                edge=edge.name,
                node=config.node.name,
                public_key=key.public_key,
                now_ms=clock.wall_ms(),
            )
        finally:
            keys.dispose()
        return ok("a Control Plane that trusts the same authority accepts this Node's keys")

    def pinned(path: Path) -> Finding:
        count = len(dict(PinnedIssuers.load(path)))
        return ok(f"{path} has {count} {'issuer' if count == 1 else 'issuers'}")

    mutual = Mutual(
        Presented("[tls]", tls.certificate, tls.key, use_files),
        tls.trust,
        Identity(domain, Role.NODE, config.node.name),
    )
    yield from mutual.checks(clock.wall_ms)
    yield Check("[tls] attestation", attestation, [*mutual.needs, "[tls] identity"])
    read_again = [tls.certificate, tls.key, tls.trust, *filter(None, (each.trust for each in config.targets.values()))]
    if config.issuers is not None:
        yield Check("[issuers] pinned", partial(pinned, config.issuers.pinned))
        read_again.append(config.issuers.pinned)
    yield from _process(one, reactor, connections_of(config), read_again)
    yield from _peer(one, "[edge]", dialled, "the Edge", use_files, mutual, reactor)
    for name in config.targets:
        yield from _target(one, name, config, reactor)
    yield _readiness(config.run.directory, Role.NODE, reactor)


def _web(table: str, certificate: Path, key: Path, listen: str) -> Presented:
    """What an HTTPS listener presents, where that is not what the mTLS wire presents as well."""
    return Presented(table, certificate, key, lambda: web_server(certificate, key), [listen])


def _process(one: Configured, reactor: IReactor, connections: int, read_again: Sequence[Path]) -> Iterator[Check]:
    """Its process, and what that takes of the machine.

    :param connections: as many as it may have at once.
    :param read_again: the files that it reads again at SIGHUP.
    """
    directory, role = one.config.run.directory, one.role

    def listens_at(key: str, endpoint: str) -> Check:
        return Check(f"[{key}] listen", lambda: listener(reactor, key, endpoint, running(directory, role)), [_PROCESS])

    yield Check(_PROCESS, lambda: process(directory, role))
    yield Check("descriptors", lambda: descriptors(connections, running(directory, role)), [_PROCESS])
    yield Check("[run] directory", lambda: folder(directory))
    yield Check("files in force", lambda: files_in_force(directory, role, read_again), [_PROCESS])
    for key, endpoint in one.listens.items():
        yield listens_at(key, endpoint)


def _peer(
    one: Configured,
    table: str,
    dialled: ControlPlaneTable | EdgeTable,
    who: str,
    tls: Callable[[], ClientConnections],
    mutual: Mutual,
    reactor: IReactor,
) -> Iterator[Check]:
    """The one peer that a role dials."""
    host, port = dialled_address(dialled.endpoint)
    place = f"{host}:{port}"

    def endpoint() -> IStreamClientEndpoint:
        leads: IStreamClientEndpoint = clientFromString(reactor, dialled.endpoint)
        return leads

    reached = f"{table} endpoint"
    yield Check(reached, lambda: reach(reactor, endpoint(), place, _start(one, who)))
    yield Check(f"{table} name", lambda: meet(reactor, endpoint(), tls(), table, place), [reached, *mutual.needs])


def _start(one: Configured, who: str) -> str:
    """What starts whom a role dials; a quickstart starts all of its own at once."""
    quickstart = f"start it: iop quickstart --home {straightened(one.path.parent)}"
    return quickstart if one.config.quickstart else f"start {who}"


def _target(one: Configured, name: str, config: NodeConfig, reactor: IReactor) -> Iterator[Check]:
    """One place that a Node calls."""
    table, key = config.targets[name], f"[targets.{name}]"
    place = parse_target(table.base_url)
    if table.trust is not None:
        trust = table.trust

        def trusted() -> Finding:
            read_trust({name: table})
            return ok(f"{trust} is what this target is verified by")

        yield Check(f"{key} trust", trusted)
    where = f"{place.host}:{place.port}"
    start = _start(one, "it") if name == STAND_IN_TARGET else "start it"
    yield Check(
        f"{key} base_url", lambda: reach(reactor, endpoint_of(reactor, place, None, LOOK_SECONDS), where, start)
    )


def _readiness(directory: Path, role: Role, reactor: IReactor) -> Check:
    async def look() -> Finding:
        record = running(directory, role)
        if record is None:
            return ok("not asked, since the role does not run")
        return await readiness(reactor, record.addresses.get("status", ""))

    return Check("/readyz", look, [_PROCESS])
