"""``twistd -n iop-edge --config FILE``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iop.edge.config import EdgeConfig
from iop.edge.service import Edge
from iop.process.role import RoleKind
from iop.process.tap import RoleOptions, role_service
from iop.units import Role

if TYPE_CHECKING:
    from twisted.application.service import IService

#: An Edge holds nothing worth hiding, and tests look into its memory for what must not be there (P6).
KIND = RoleKind(Role.EDGE, EdgeConfig, Edge, hides_memory=False)
Options = RoleOptions


def makeService(options: RoleOptions) -> IService:
    """Called by twistd."""
    return role_service(options, KIND)
