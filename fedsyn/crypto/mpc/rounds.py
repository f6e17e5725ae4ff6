"""Messages between the parties.

A message is a product's masked words, a slot to open, or a word that all is well.

One `Rounds` is one party in one computation. All three call the same methods in the same order with the same lengths
(public facts). It ends at the first error: nothing can be sent or opened after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedsyn.crypto.mpc.dealing import KeyStream, digest, wire
from fedsyn.crypto.mpc.network import Cheating, Network, PartyGone
from fedsyn.crypto.mpc.shared import PARTIES, Shared, Words
from fedsyn.errors import FedsynError, ProtocolError

DIGEST = 32  # bytes
_OK, _STOP = b"ok", b"s"  # of lengths that no other message has: those are 8 k or 8 k + 32 bytes


class Arithmetic(NamedTuple):
    """Meaning of +, - and * on words.

    Words are numbers modulo 2^64, or 64 bits.
    """

    plus: np.ufunc
    minus: np.ufunc
    times: np.ufunc

    def sum(self, x: Shared, missing: Words) -> Words:
        """Returns the value, from two slots and the third one."""
        total: Words = self.plus(x.own, x.next)
        self.plus(total, missing, out=total)
        return total


RING = Arithmetic(np.add, np.subtract, np.multiply)
BITS = Arithmetic(np.bitwise_xor, np.bitwise_xor, np.bitwise_and)


class Rounds:
    """A party's lines and key streams.

    `keys` are those of its two slots: the key of slot s is known to the parties s and s - 1 and to nobody else, is
    fresh for this computation and serves nothing else.
    """

    def __init__(self, index: int, keys: tuple[bytes, bytes], network: Network) -> None:
        self.index = index
        self.before, self.after = (index - 1) % PARTIES, (index + 1) % PARTIES
        self.rounds = self.bytes_sent = 0
        self._network, self._streams = network, (KeyStream(keys[0]), KeyStream(keys[1]))
        self._over: str | None = None  # why, once it is

    # Messages

    def _round(self, outgoing: Mapping[int, bytes], expected: Mapping[int, int]) -> dict[int, bytes]:
        """Sends to the parties of `outgoing` and waits for those expected.

        Each of those owes a message of the length in `expected`.
        """
        self._check_running()
        self.rounds += 1
        try:
            for to, payload in outgoing.items():
                self.bytes_sent += len(payload)
                self._network.send(to, payload)
            arrived = {sender: self._network.receive(sender) for sender in expected}
        except PartyGone as error:
            raise self._ended(error) from None
        for sender, payload in arrived.items():
            if payload == _STOP:
                raise self._ended(Cheating(f"party {sender} has ended the computation: it noticed an error"))
            if len(payload) != expected[sender]:
                reason = f"party {sender} sent {len(payload)} bytes where {expected[sender]} are due"
                raise self._ended(ProtocolError(reason))
        return arrived

    def _check_running(self) -> None:
        if self._over is not None:
            raise Cheating(f"the computation is over: {self._over}")

    def _ended(self, error: FedsynError) -> FedsynError:
        """Ends the computation here and tells the other two.

        Returns the error, for the caller to raise.
        """
        self._over = str(error)
        for to in (self.before, self.after):
            with contextlib.suppress(PartyGone):
                self._network.send(to, _STOP)
        return error

    def _agree(self) -> None:
        """Goes on only if both others say that all is well.

        It takes 1 round, 4 B. An honest party that noticed something has sent `_STOP` instead and takes the other
        honest one with it. (A liar may say "ok" to one and not to the other. The last message of a protocol can always
        be used so unless there is a broadcast: Goldwasser and Lindell, "Secure multi-party computation without
        agreement", J. Cryptology 2005.)
        """
        arrived = self._round({self.before: _OK, self.after: _OK}, {self.before: len(_OK), self.after: len(_OK)})
        for sender, payload in arrived.items():
            if payload != _OK:
                raise self._ended(Cheating(f"party {sender} does not say that all is well"))

    def _reshared(self, share: Words) -> Shared:
        """Returns the sharing whose slot i is party i's share.

        It takes 1 round, 8 B per element.
        """
        payload = self._round({self.before: wire(share)}, {self.after: 8 * share.size})[self.after]
        return Shared(
            share, np.frombuffer(payload, "<u8").astype(np.uint64, copy=False).reshape(share.shape), self.index
        )

    def _missing(self, x: Shared) -> Words:
        """Returns the slot that this party does not hold.

        It comes from the party before; the party after sends the digest of its copy: 1 round, 8 B per element and 32 B.
        If the two differ it raises Cheating, so one party cannot open a wrong value: of the two others one is honest.
        """
        outgoing = {self.after: wire(x.own), self.before: digest(x.next)}
        arrived = self._round(outgoing, {self.before: 8 * x.size, self.after: DIGEST})
        slot = np.frombuffer(arrived[self.before], "<u8").astype(np.uint64, copy=False)
        if digest(slot) != arrived[self.after]:
            reason = f"parties {self.before} and {self.after} disagree about a share; nothing was opened"
            raise self._ended(Cheating(reason))
        return slot.reshape(x.shape)

    # Words that nobody sends

    def _masks(self, count: int) -> tuple[Words, Words]:
        """Returns the next `count` words of both streams, F(k_i) and F(k_{i+1})."""
        return self._streams[0].words(count), self._streams[1].words(count)

    def _random(self, count: int) -> Shared:
        """Returns secret words that are uniform to each party.

        Slot s is read from the stream of slot s, so no message is sent.
        """
        return Shared(*self._masks(count), self.index)

    # Products

    def _masked(self, kind: Arithmetic, products: Words) -> Words:
        """Adds F(k_i) - F(k_{i+1}) to products, in place.

        The masks of the three parties cancel in the sum.
        """
        plus, minus = self._masks(products.size)
        kind.plus(products, plus.reshape(products.shape), out=products)
        kind.minus(products, minus.reshape(products.shape), out=products)
        return products

    def _product(self, kind: Arithmetic, x: Shared, y: Shared) -> Shared:
        """Returns x * y as Araki et al. compute it.

        It is correct if all follow the protocol, and takes 1 round, 8 B per element.
        """
        return self._reshared(self._masked(kind, products(kind, x, y)))


def products(kind: Arithmetic, x: Shared, y: Shared) -> Words:
    """Returns x_i y_i + x_i y_{i+1} + x_{i+1} y_i, a new array.

    So each of the nine x_j y_k is computed by one party.
    """
    terms: Words = kind.plus(y.own, y.next)
    kind.times(terms, x.own, out=terms)
    kind.plus(terms, kind.times(x.next, y.own), out=terms)
    return terms
