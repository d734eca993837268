"""Projection receipts."""

from __future__ import annotations

from nacl.bindings import crypto_sign
from twisted.trial.unittest import SynchronousTestCase

from iop.crypto.issuer import PinnedIssuers
from iop.crypto.receipt import STATEMENT_LIMIT, read_receipt, sign_receipt, verify_receipt
from iop.errors import ReceiptRefused
from iop.wire import control_pb2
from tests.crypto.independent import bytes_field, number_field
from tests.crypto.samples import (
    DEPLOYMENT,
    Recipient,
    bit_flips,
    issuer,
    issuer_private_key,
    sealed_lease,
)

DIGEST = bytes(range(32))


def signed(statement: bytes, number: int = 1) -> control_pb2.ProjectionReceipt:
    """Any statement under an issuer's key."""
    signature = crypto_sign(b"iop/projection/v1\0" + statement, issuer_private_key(number))[:64]
    return control_pb2.ProjectionReceipt(statement=statement, signature=signature)


class ReceiptTests(SynchronousTestCase):
    """E8."""

    def setUp(self) -> None:
        self.pinned = PinnedIssuers([issuer(1).public_key, issuer(2).public_key])
        self.receipt = sign_receipt(issuer(), DEPLOYMENT, "edge-1", 300, DIGEST)

    def assert_refused(
        self, receipt: control_pb2.ProjectionReceipt, deployment_id: str = DEPLOYMENT, edge: str = "edge-1"
    ) -> None:
        with self.assertRaises(ReceiptRefused):
            verify_receipt(self.pinned, receipt, deployment_id=deployment_id, edge=edge)

    def test_verifies(self) -> None:
        """What was signed is what is read, verified or not."""
        statement = verify_receipt(self.pinned, self.receipt, deployment_id=DEPLOYMENT, edge="edge-1")
        self.assertEqual((statement.generation, statement.digest), (300, DIGEST))
        self.assertEqual(read_receipt(self.receipt), statement)
        self.assertEqual(statement.issuer_key_id, issuer().key_id)
        self.assertNotIn(DIGEST.hex(), repr(statement))

    def test_another(self) -> None:
        """E8: one made for another Edge or deployment, or by nobody who is pinned, stops nothing but its Edge."""
        self.assert_refused(self.receipt, edge="edge-2")
        self.assert_refused(self.receipt, deployment_id="another")
        self.assert_refused(sign_receipt(issuer(3), DEPLOYMENT, "edge-1", 300, DIGEST))
        self.assert_refused(signed(self.receipt.statement, number=2))
        self.assert_refused(control_pb2.ProjectionReceipt())

    def test_every_bit(self) -> None:
        """Any one bit flipped is refused."""
        for flipped in bit_flips(self.receipt.statement):
            self.assert_refused(control_pb2.ProjectionReceipt(statement=flipped, signature=self.receipt.signature))
        for flipped in bit_flips(self.receipt.signature):
            self.assert_refused(control_pb2.ProjectionReceipt(statement=self.receipt.statement, signature=flipped))

    def test_unknown_fields(self) -> None:
        """P35: a signed statement with more in it than is known is refused, by who verifies and by who only reads."""
        for more in (number_field(9, 1), number_field(4, 301), bytes_field(3, b"edge-1")):
            receipt = signed(self.receipt.statement + more)
            self.assert_refused(receipt)
            self.assertRaises(ReceiptRefused, read_receipt, receipt)

    def test_no_projection(self) -> None:
        """Generation 0, or a digest of another length, is no projection, whoever signed it."""
        for generation, digest in ((0, DIGEST), (1, DIGEST[:-1]), (1, b"")):
            receipt = sign_receipt(issuer(), DEPLOYMENT, "edge-1", generation, digest)
            self.assert_refused(receipt)
            self.assertRaises(ReceiptRefused, read_receipt, receipt)

    def test_too_long(self) -> None:
        """A statement beyond its limit is not even parsed."""
        empty = len(sign_receipt(issuer(), DEPLOYMENT, "", 300, DIGEST).statement)
        longest = sign_receipt(issuer(), DEPLOYMENT, "e" * (STATEMENT_LIMIT - empty - 3), 300, DIGEST)
        self.assertEqual(len(longest.statement), STATEMENT_LIMIT)
        self.assertEqual(read_receipt(longest).generation, 300)
        longer = sign_receipt(issuer(), DEPLOYMENT, "e" * (STATEMENT_LIMIT - empty - 2), 300, DIGEST)
        self.assertRaises(ReceiptRefused, read_receipt, longer)

    def test_another_kind_of_message(self) -> None:
        """One domain string per kind: a lease's signature is none of a receipt, over whatever bytes."""
        lease = sealed_lease(Recipient.new())
        self.assert_refused(control_pb2.ProjectionReceipt(statement=lease.statement, signature=lease.signature))
        plain = crypto_sign(self.receipt.statement, issuer_private_key())[:64]
        self.assert_refused(control_pb2.ProjectionReceipt(statement=self.receipt.statement, signature=plain))
