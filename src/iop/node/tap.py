"""``twistd -n iop-node --config FILE``."""

from __future__ import annotations

from twisted.application.service import IService

from iop.node.config import NodeConfig
from iop.node.service import NodeRole
from iop.process.role import RoleKind
from iop.process.tap import RoleOptions, role_service
from iop.units import Role

KIND = RoleKind(Role.NODE, NodeConfig, NodeRole, hides_memory=True)
Options = RoleOptions


def makeService(options: RoleOptions) -> IService:
    """The service that runs a Node in this process."""
    return role_service(options, KIND)
