"""What configurations of one deployment say of each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from iop.cli.doctor.checks import Check, Finding, fault, ok, warning
from iop.cli.doctor.machine import running
from iop.edge.config import EdgeConfig
from iop.net.target import is_loopback
from iop.node.config import NodeConfig
from iop.node.targets import why_refused
from iop.process.config import dialled_address, listening_address
from iop.units import Role

if TYPE_CHECKING:
    from iop.cli.doctor.configured import Configured
    from iop.edge.config import ControlPlaneTable, ProviderTable
    from iop.node.config import EdgeTable
    from iop.process.config import RoleConfig


def between(files: Sequence[Configured]) -> Iterator[Check]:
    """The checks of every pair that has to do with each other; none for a file alone."""
    if len(files) > 1:
        yield Check("[deployment] id", lambda: _agree(files, "id", lambda config: config.deployment.id))
        yield Check(
            "[deployment] trust_domain",
            lambda: _agree(files, "trust_domain", lambda config: config.deployment.trust_domain),
        )
    planes, edges = ([each for each in files if each.role is role] for role in (Role.CONTROL_PLANE, Role.EDGE))
    for one in files:
        if isinstance(one.config, EdgeConfig):
            if one.config.control_plane is not None:
                yield from _dialled(one, "[control_plane]", one.config.control_plane, planes, "edge_wire")
        elif isinstance(one.config, NodeConfig):
            yield from _dialled(one, "[edge]", one.config.edge, edges, "node_wire")
            for edge in edges:
                if edge.name == one.config.edge.name and isinstance(edge.config, EdgeConfig):
                    yield from _catalogue(edge, edge.config, one, one.config)


def _agree(files: Sequence[Configured], key: str, value: Callable[[RoleConfig], str]) -> Finding:
    """Whether all files have one value."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in files:
        found[value(each.config)].append(str(each.path))
    if len(found) == 1:
        return ok(next(iter(found)))
    said = "; ".join(f"{each} in {', '.join(paths)}" for each, paths in found.items())
    return fault(f"they are not of one deployment: {said}", f"write the same {key} in [deployment] of every file")


def _dialled(
    one: Configured, table: str, dialled: ControlPlaneTable | EdgeTable, peers: Sequence[Configured], key: str
) -> Iterator[Check]:
    """Whether one role dials another that is here, and the listener for it.

    :param table: where ``dialled`` stands.
    :param key: the table of the peer's listener.
    """

    def named() -> Finding:
        if peer is not None:
            return ok(f"{dialled.name} is {peer.path}")
        there = ", ".join(f"{each.name} of {each.path}" for each in peers)
        return fault(
            f"{one.path} names {dialled.name}, and here is {there}",
            f"correct {table} name, or leave out the other file",
        )

    peer = next((each for each in peers if each.name == dialled.name), None)
    if peers:
        yield Check(f"{one.name} {table} name", named)
    if peer is not None:
        there = peer
        yield Check(f"{one.name} {table} endpoint", lambda: _leads(one, table, dialled.endpoint, there, key))


def _leads(one: Configured, table: str, endpoint: str, peer: Configured, key: str) -> Finding:
    """Whether a client endpoint string has the port of the peer's listener ``key``."""
    host, port = dialled_address(endpoint)
    ports = _ports(peer)
    wanted = ports[key]
    if port == wanted:
        return ok(f"port {port} is [{key}] of {peer.path}")
    hint = f"write port={wanted or 'PORT'} in {table} endpoint of {one.path}, the port of [{key}] listen in {peer.path}"
    other = next((table for table, taken in ports.items() if taken == port), None)
    if other is not None:
        return fault(f"port {port} is [{other}] of {peer.path}, not [{key}]", hint)
    if wanted == 0:
        return ok(f"[{key}] of {peer.path} takes any free port, which is known when it runs")
    if host == "localhost" or is_loopback(host):
        return fault(f"nothing of {peer.path} listens at port {port}", hint)
    return warning(f"port {port} is not [{key}] of {peer.path}", f"{hint}; nothing is wrong if something forwards it")


def _ports(peer: Configured) -> Mapping[str, int]:
    """The port of each listener; where any free one may be taken, that of the process that runs, or 0."""
    record = running(peer.config.run.directory, peer.role)
    held = record.addresses if record else {}
    configured = {key: listening_address(endpoint)[1] for key, endpoint in peer.listens.items()}
    return {key: port or int(held.get(key, ":0").rpartition(":")[2]) for key, port in configured.items()}


def _catalogue(edge: Configured, edge_config: EdgeConfig, node: Configured, node_config: NodeConfig) -> Iterator[Check]:
    """Whether an Edge has a Node in its catalogue, with providers that the Node serves."""
    names = [each.name for each in edge_config.nodes]

    def listed() -> Finding:
        if node.name in names:
            return ok(f"{node.name} is listed")
        there = f"has only {', '.join(names)}" if names else "has none"
        return fault(
            f"{edge.path} does not list {node.name}, so it refuses it: it {there}",
            f'add [[nodes]] with name = "{node.name}" and its providers to {edge.path}',
        )

    def one_mode() -> Finding:
        modes = {each.path: each_config.credential_plane.enabled for each, each_config in both}
        if len(set(modes.values())) == 1:
            return ok("managed" if edge_config.credential_plane.enabled else "legacy")
        said = ", ".join(f"{'true' if enabled else 'false'} in {path}" for path, enabled in modes.items())
        return fault(f"it is {said}, so the Node refuses every run", "set enabled in both files to the same")

    both: list[tuple[Configured, EdgeConfig | NodeConfig]] = [(edge, edge_config), (node, node_config)]
    yield Check(f"{edge.name} [[nodes]] {node.name}", listed)
    yield Check(f"{node.name} [credential_plane] enabled", one_mode)
    for each in edge_config.nodes:
        if each.name == node.name:
            yield from (_served(edge, provider, node, node_config) for provider in each.providers)


def _served(edge: Configured, provider: ProviderTable, node: Configured, node_config: NodeConfig) -> Check:
    """Whether the Node serves a provider that the Edge has for it."""
    target, profile = provider.target, provider.profile
    allowed = {name: table.profiles for name, table in node_config.targets.items()}

    def look() -> Finding:
        refusal = why_refused(target, profile, allowed)
        if refusal is None:
            return ok(f"{profile} at {target}")
        if refusal == "unknown_target":
            return fault(
                f"{node.path} has no target {target}, only {', '.join(allowed)}",
                f"correct the provider's target in {edge.path}, or add [targets.{target}] to {node.path}",
            )
        return fault(
            f"[targets.{target}] of {node.path} does not allow profile {profile}, only {', '.join(allowed[target])}",
            f"correct the provider's profile in {edge.path}, or add it to profiles there",
        )

    return Check(f"{edge.name} provider {provider.id}", look)
