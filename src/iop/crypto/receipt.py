"""The issuer's word that one projection was made for one Edge (E8).

The signature is over ``iop/projection/v1\\0`` ‖ the bytes of ``ProjectionReceiptStatement`` as sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from iop.errors import MalformedFrame, ReceiptRefused
from iop.wire import control_pb2
from iop.wire.strict import parse_strict

if TYPE_CHECKING:
    from iop.crypto.issuer import Issuer, PinnedIssuers

DOMAIN: Final = b"iop/projection/v1\0"
STATEMENT_LIMIT: Final = 1024
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ReceiptStatement:
    """What a receipt says."""

    issuer_key_id: bytes
    deployment_id: str
    edge: str
    generation: int
    digest: bytes = field(repr=False)


def sign_receipt(
    issuer: Issuer, deployment_id: str, edge: str, generation: int, digest: bytes
) -> control_pb2.ProjectionReceipt:
    """Sign that ``edge`` was given the projection of this generation and digest."""
    statement = control_pb2.ProjectionReceiptStatement(
        issuer_key_id=issuer.key_id, deployment_id=deployment_id, edge=edge, generation=generation, digest=digest
    ).SerializeToString(deterministic=True)
    return control_pb2.ProjectionReceipt(statement=statement, signature=issuer.sign(DOMAIN + statement))


def read_receipt(receipt: control_pb2.ProjectionReceipt) -> ReceiptStatement:
    """What a receipt says, unverified: for an Edge, which pins no issuer and trusts the connection it came on (E5).

    :raises ReceiptRefused: if it is malformed.
    """
    if len(receipt.statement) > STATEMENT_LIMIT:
        raise ReceiptRefused("the projection receipt is too long")
    try:
        wire = parse_strict(control_pb2.ProjectionReceiptStatement, receipt.statement)
    except MalformedFrame:
        raise ReceiptRefused("the projection receipt is malformed") from None
    if wire.generation == 0 or len(wire.digest) != _DIGEST_BYTES:
        raise ReceiptRefused("the projection receipt names no projection")
    return ReceiptStatement(wire.issuer_key_id, wire.deployment_id, wire.edge, wire.generation, wire.digest)


def verify_receipt(
    pinned: PinnedIssuers, receipt: control_pb2.ProjectionReceipt, *, deployment_id: str, edge: str
) -> ReceiptStatement:
    """What a receipt says, if one of our issuers signed it for this deployment and Edge (P23).

    :param edge: name in the certificate of the Edge that presents it.
    :raises ReceiptRefused: if not.
    """
    key_id = pinned.signer(DOMAIN + receipt.statement, receipt.signature)
    if key_id is None:
        raise ReceiptRefused("the projection receipt is not signed by an issuer of this deployment")
    statement = read_receipt(receipt)
    if statement.issuer_key_id != key_id:
        raise ReceiptRefused("the projection receipt names another issuer than the one that signed it")
    if statement.deployment_id != deployment_id:
        raise ReceiptRefused("the projection receipt belongs to another deployment")
    if statement.edge != edge:
        raise ReceiptRefused("the projection receipt was made for another Edge")
    return statement
