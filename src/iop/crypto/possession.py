"""How a Node proves that it holds the private half of a key, without ever returning what it opened (N3, P14).

The challenge is a sealed box of ``iop/pop/v1\\0`` ‖ 32 random bytes. A Node opens nothing else, so a recorded lease
gets no answer; and what it answers is a MAC under those bytes, bound to both names, the key and this one connection.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

from nacl.bindings import crypto_box_seal, crypto_box_seal_open, crypto_box_SEALBYTES
from nacl.exceptions import CryptoError

from iop.crypto.fields import length_prefixed
from iop.crypto.node_keys import check_recipient_key
from iop.errors import CannotOpen, PossessionRefused
from iop.secret import Secret

#: Label and length of the TLS keying material (RFC 8446, 7.5) that an answer is bound to.
EXPORTER_LABEL: Final = b"EXPORTER-iop-pop-v1"
EXPORTER_BYTES: Final = 32
NONCE_BYTES: Final = 32
_CHALLENGE_DOMAIN: Final = b"iop/pop/v1\0"
_ANSWER_DOMAIN: Final = b"iop/pop-answer/v1\0"
_SEALED_BYTES: Final = crypto_box_SEALBYTES + len(_CHALLENGE_DOMAIN) + NONCE_BYTES


def challenge(public_key: bytes) -> tuple[bytes, Secret]:
    """Edge side: a new challenge for ``public_key``, and the nonce to check its one answer with.

    :raises AttestationRefused: if the key is one that nobody may seal to.
    """
    check_recipient_key(public_key)
    nonce = Secret(bytearray(os.urandom(NONCE_BYTES)))
    return crypto_box_seal(_CHALLENGE_DOMAIN + bytes(nonce.reveal()), public_key), nonce


def answer(private_key: Secret, sealed: bytes, *, edge: str, node: str, public_key: bytes, exporter: bytes) -> bytes:
    """Node side: the answer to a challenge.

    :param edge: name in the certificate of the Edge that asks.
    :param public_key: public half of ``private_key``.
    :param exporter: 32 bytes of this connection's keying material.
    :raises CannotOpen: if ``sealed`` is anything but a challenge to this key.
    """
    if len(sealed) != _SEALED_BYTES:
        raise CannotOpen
    try:
        opened = Secret(crypto_box_seal_open(sealed, public_key, bytes(private_key.reveal())))
    except CryptoError:
        raise CannotOpen from None
    with opened:
        plain = opened.reveal()
        if not plain.startswith(_CHALLENGE_DOMAIN):
            raise CannotOpen
        del plain[: len(_CHALLENGE_DOMAIN)]
        return _mac(opened, edge, node, public_key, exporter)


def check(nonce: Secret, answered: bytes, *, edge: str, node: str, public_key: bytes, exporter: bytes) -> None:
    """Edge side: take the one answer to a challenge; the nonce is gone afterwards, whatever the outcome.

    :raises PossessionRefused: if it is not the answer of whoever holds the private key, on this connection.
    """
    with nonce:
        if not nonce or not hmac.compare_digest(_mac(nonce, edge, node, public_key, exporter), answered):
            raise PossessionRefused("the Node did not prove that it holds its key")


def _mac(nonce: Secret, edge: str, node: str, public_key: bytes, exporter: bytes) -> bytes:
    if len(exporter) != EXPORTER_BYTES:
        raise PossessionRefused("this connection gave no keying material to bind a proof to")
    message = _ANSWER_DOMAIN + length_prefixed(edge.encode(), node.encode(), public_key) + exporter
    return hmac.digest(nonce.reveal(), message, "sha256")
