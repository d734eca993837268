"""A role's configuration, read and good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from iop.cli.config import check_file
from iop.control_plane.config import ControlPlaneConfig
from iop.control_plane.config import load as load_control_plane
from iop.edge.config import EdgeConfig
from iop.edge.config import load as load_edge
from iop.node.config import NodeConfig
from iop.node.config import load as load_node
from iop.units import Role


@dataclass(frozen=True, slots=True)
class Configured:
    """What stands in the file ``path``."""

    path: Path
    role: Role
    name: str
    config: ControlPlaneConfig | EdgeConfig | NodeConfig

    @classmethod
    def read(cls, path: Path) -> Configured:
        """Read the configuration of whatever role ``path`` is for.

        :raises BadConfig: if it is none, or has mistakes.
        """
        role = check_file(path)
        if role is Role.CONTROL_PLANE:
            control_plane = load_control_plane(path)
            return cls(path, role, control_plane.control_plane.name, control_plane)
        if role is Role.EDGE:
            edge = load_edge(path)
            return cls(path, role, edge.edge.name, edge)
        node = load_node(path)
        return cls(path, role, node.node.name, node)

    @property
    def listens(self) -> Mapping[str, str]:
        """Server endpoint strings of all its listeners, by table."""
        config, listens = self.config, {}
        if isinstance(config, ControlPlaneConfig):
            listens = {"edge_wire": config.edge_wire.listen, "credential_https": config.credential_https.listen}
        elif isinstance(config, EdgeConfig):
            listens = {"api": config.api.listen, "node_wire": config.node_wire.listen}
        return {**listens, "status": config.status.listen}
