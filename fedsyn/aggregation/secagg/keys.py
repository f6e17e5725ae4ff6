"""What a pair of client and member share, and the mask that comes of it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from fedsyn.aggregation.secagg.facts import SumFacts
from fedsyn.aggregation.secagg.primitives import derive, seal, unseal

NONCE = 16  # bytes, drawn anew for every answer


@dataclass(frozen=True)
class SharePlace:
    """Which share this is: of the key of member `sender` in an epoch, for member `receiver` (their seats).

    Its key is bound to the public half of the shared key too. That one is fresh, so no key seals two messages.
    """

    transcript: bytes
    epoch: int
    sender: int
    receiver: int
    epoch_public: bytes

    @property
    def bound(self) -> bytes:
        return self.transcript + b"".join(i.to_bytes(8, "little") for i in (self.epoch, self.sender, self.receiver))

    def key(self, agreed: bytes, sender: bytes, receiver: bytes) -> bytes:
        ids, publics = (self.epoch, self.sender, self.receiver), (sender, receiver, self.epoch_public)
        return derive(agreed, self.transcript, b"share", ids, publics)


def layer_key(
    transcript: bytes, seat: int, epoch: int, position: int, agreed: bytes, epoch_public: bytes, public: bytes
) -> bytes:
    """The key of one client under the layer of one member, for an epoch.

    Args:
        transcript: of the setup.
        seat: of the member.
        position: of the client.
        agreed: the X25519 secret of the client's key and the member's key of this epoch.
        epoch_public: that key's public half.
        public: the client's.
    """
    return derive(agreed, transcript, b"layer", (seat, epoch, position), (epoch_public, public))


def mask_key(facts: SumFacts, layer: bytes, nonce: bytes) -> bytes:
    """The key of the mask of one client under one layer in one sum.

    A fresh nonce of the client makes two answers to one sum (after a rolled back memory) two unrelated masks.
    """
    return hmac.digest(layer, facts.digest + nonce, "sha256")


def seal_share(agreed: bytes, sender: bytes, receiver: bytes, place: SharePlace, share: bytes) -> bytes:
    """A share of a member's epoch key, under what the members' keys of the setup agree; both public keys are bound."""
    return seal(place.key(agreed, sender, receiver), share, place.bound)


def unseal_share(agreed: bytes, sender: bytes, receiver: bytes, place: SharePlace, sealed: bytes) -> bytes | None:
    """The share, or None if it was not sealed so."""
    return unseal(place.key(agreed, sender, receiver), sealed, place.bound)
