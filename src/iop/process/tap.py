"""What the three ``tap`` modules share: the options of ``twistd -n iop-ROLE`` and the service they make.

A role's ``tap.py`` is::

    KIND = RoleKind(Role.EDGE, EdgeConfig, EdgeRole, hides_memory=False)
    Options = RoleOptions

    def makeService(options: RoleOptions) -> IService:
        return role_service(options, KIND)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from twisted.python.usage import Options, UsageError

from iop.net.clock import ReactorClock
from iop.process.config import RoleConfig
from iop.process.role import IReactor, RoleKind, RoleProcess

if TYPE_CHECKING:
    from twisted.application.service import IService

C = TypeVar("C", bound=RoleConfig)


class RoleOptions(Options):
    """``--config FILE``."""

    synopsis = "--config FILE"
    optParameters: ClassVar = [["config", "c", None, "The role's configuration (TOML)."]]

    def postOptions(self) -> None:
        """Insist on a file."""
        if not self["config"]:
            raise UsageError("name the configuration file: --config FILE")


def role_service(options: RoleOptions, kind: RoleKind[C]) -> IService:
    """The service that runs a role in this process, on the global reactor."""
    from twisted.internet import reactor

    running = cast(IReactor, reactor)
    return RoleProcess(kind, Path(options["config"]), ReactorClock(running), running)
