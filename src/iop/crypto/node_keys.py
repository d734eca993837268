"""A Node's X25519 keys: born in this process, replaced by boot time, destroyed when no lease can name them (N4, N5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nacl.bindings import crypto_box_keypair, crypto_box_PUBLICKEYBYTES, crypto_scalarmult
from nacl.exceptions import RuntimeError as SodiumError
from nacl.utils import random

from iop.errors import AttestationRefused
from iop.secret import Secret
from iop.units import LEASE_TTL_CAP_SECONDS, NODE_KEY_LIFE_SECONDS, SKEW_SECONDS

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from iop.interfaces import IClock

#: From a key's birth to the expiry of its attestation, in seconds (N4).
ATTESTED_SECONDS: Final = NODE_KEY_LIFE_SECONDS + LEASE_TTL_CAP_SECONDS + SKEW_SECONDS
_FIELD_PRIME: Final = (1 << 255) - 19


def check_recipient_key(public_key: bytes) -> None:
    """Refuse what nobody may seal to: a wrong length, a number that is not reduced, a point of low order (P14).

    X25519 clamps every scalar to a multiple of the cofactor, so a point of low order, all zeros included, gives zero
    with any scalar, and libsodium refuses to return that. One trial with a random scalar thus finds all of them.

    :raises AttestationRefused: if ``public_key`` is one of these.
    """
    if len(public_key) != crypto_box_PUBLICKEYBYTES or int.from_bytes(public_key, "little") >= _FIELD_PRIME:
        raise AttestationRefused("the recipient key is not an X25519 public key")
    try:
        crypto_scalarmult(random(crypto_box_PUBLICKEYBYTES), public_key)
    except SodiumError:
        raise AttestationRefused("the recipient key is a point of low order") from None


@dataclass(frozen=True, slots=True, eq=False)
class NodeKey:
    """One key pair of this process."""

    public_key: bytes
    private_key: Secret = field(repr=False)
    #: Boot seconds from which on a newer key replaces it.
    replaced_at: float
    #: When its attestation expires, Unix milliseconds.
    attested_until_ms: int


@dataclass(slots=True, eq=False)
class _Held:
    key: NodeKey
    destroyed_at: float
    timer: IDelayedCall


class NodeKeys:
    """The keys this process holds: the current one, and older ones until their attestation expiry plus skew has passed.

    Nothing is ever written down, so a restarted Node opens no lease of its predecessor (P5). A key is held for 910 s
    and replaced at the earliest after 600 s, so there are never more than two.
    """

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._held: dict[bytes, _Held] = {}
        self._current = self._make()

    def current(self) -> NodeKey:
        """The newest key; a new one if that one's time is over. A key that was never seen before is to be attested."""
        if self._clock.boot() >= self._current.replaced_at:
            self._current = self._make()
        return self._current

    def find(self, public_key: bytes) -> Secret | None:
        """The private half of a key that is still held, or None."""
        held = self._held.get(public_key)
        if held is None:
            return None
        if self._clock.boot() >= held.destroyed_at:
            held.timer.cancel()
            self._destroy(public_key)
            return None
        return held.key.private_key

    def dispose(self) -> None:
        """Destroy every key; :meth:`find` finds none of them afterwards."""
        for public_key, held in list(self._held.items()):
            held.timer.cancel()
            self._destroy(public_key)

    def _make(self) -> NodeKey:
        public_key, private_key = crypto_box_keypair()
        born = self._clock.boot()
        attested_until_ms = self._clock.wall_ms() + round(ATTESTED_SECONDS * 1000)
        key = NodeKey(public_key, Secret(private_key), born + NODE_KEY_LIFE_SECONDS, attested_until_ms)
        kept_seconds = ATTESTED_SECONDS + SKEW_SECONDS
        timer = self._clock.call_later(kept_seconds, lambda: self._destroy(public_key))
        self._held[public_key] = _Held(key, born + kept_seconds, timer)
        return key

    def _destroy(self, public_key: bytes) -> None:
        self._held.pop(public_key).key.private_key.dispose()
