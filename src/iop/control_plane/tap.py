"""``twistd -n iop-control-plane --config FILE``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iop.control_plane.config import ControlPlaneConfig
from iop.control_plane.service import ControlPlane
from iop.process.role import RoleKind
from iop.process.tap import RoleOptions, role_service
from iop.units import Role

if TYPE_CHECKING:
    from twisted.application.service import IService

KIND = RoleKind(Role.CONTROL_PLANE, ControlPlaneConfig, ControlPlane, hides_memory=True)
Options = RoleOptions


def makeService(options: RoleOptions) -> IService:
    """Called by twistd."""
    return role_service(options, KIND)
