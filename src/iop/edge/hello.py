"""The hello of an Edge to its Control Plane, as far as both modes have it in common (E1, E16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iop.errors import DeploymentMismatch, UnexpectedMessage
from iop.units import HANDSHAKE_SECONDS
from iop.wire import control_pb2

if TYPE_CHECKING:
    from iop.interfaces import IPeer


async def greet(peer: IPeer, hello: control_pb2.EdgeHelloRequest, deployment: str) -> control_pb2.EdgeHelloResponse:
    """Say hello; answers what accepted it.

    :param deployment: the id that the Control Plane must name.
    :raises UnexpectedMessage: if something else answers.
    :raises DeploymentMismatch: if the Control Plane is another deployment's.
    """
    answer = await peer.request(hello, HANDSHAKE_SECONDS)
    if not isinstance(answer, control_pb2.EdgeHelloResponse):
        raise UnexpectedMessage("the hello was answered by something else")
    if answer.deployment_id != deployment:
        raise DeploymentMismatch("the Control Plane belongs to another deployment")
    return answer
