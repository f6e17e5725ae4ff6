"""The operations that cost a message: multiplication, input, opening. One `Gates` is one party in one computation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ProtocolError
from fedsyn.mpc.dealing import KeyStream, ServerShare, digest, wire
from fedsyn.mpc.network import Cheating, Network
from fedsyn.mpc.shared import PARTIES, Shared, Words, segment_sums, words

_DIGEST = 32  # bytes


class Gates:
    """Araki et al., CCS 2016: products of bits and modulo 2^n, in the form of Mohassel and Rindal, "ABY3" (CCS 2018).

    All three parties call the same methods in the same order with the same lengths (public facts). `keys` are those
    of this party's two slots: the key of slot s is known to the parties s and s - 1 and to nobody else, is fresh for
    this computation and serves nothing else.

    Why nobody learns anything before an opening: what party i gets is slot i + 1 of a product, which contains
    F(k_{i+2}) from a place of that stream that is read once; k_{i+2} is the one key that party i does not hold. So
    whatever it receives is uniform to it, whatever it sends itself (ChaCha20 as a pseudo-random function).
    """

    def __init__(self, index: int, keys: tuple[bytes, bytes], network: Network, malicious: bool = False) -> None:
        if malicious:
            raise NotImplementedError("malicious: not yet")
        self.index, self.malicious = index, malicious
        self.before, self.after = (index - 1) % PARTIES, (index + 1) % PARTIES
        self.rounds = self.bytes_sent = 0
        self._network, self._streams = network, (KeyStream(keys[0]), KeyStream(keys[1]))

    # Messages

    def _round(self, outgoing: Mapping[int, bytes], expected: Mapping[int, int]) -> dict[int, bytes]:
        """Sends to each party of `outgoing` and waits for a message of so many bytes from each of `expected`."""
        self.rounds += 1
        for to, payload in outgoing.items():
            self.bytes_sent += len(payload)
            self._network.send(to, payload)
        arrived = {sender: self._network.receive(sender) for sender in expected}
        for sender, payload in arrived.items():
            if len(payload) != expected[sender]:
                raise ProtocolError(f"party {sender} sent {len(payload)} bytes where {expected[sender]} are due")
        return arrived

    def _reshared(self, own: Words) -> Shared:
        """The sharing whose slot i is the `own` of party i: 1 round, 8 B per element."""
        payload = self._round({self.before: wire(own)}, {self.after: 8 * own.size})[self.after]
        return Shared(own, np.frombuffer(payload, "<u8").astype(np.uint64, copy=False).reshape(own.shape), self.index)

    def _masks(self, count: int) -> tuple[Words, Words]:
        """F(k_i) and F(k_{i+1}), the next `count` words of both streams."""
        return self._streams[0].words(count), self._streams[1].words(count)

    # Products

    def _masked(self, products: Words) -> Words:
        """products + F(k_i) - F(k_{i+1}), in place: the masks of the three parties cancel in the sum."""
        plus, minus = self._masks(products.size)
        products += plus.reshape(products.shape)
        products -= minus.reshape(products.shape)
        return products

    def multiply(self, x: Shared, y: Shared) -> Shared:
        """x * y, element by element. 1 round, 8 B per element.

        Each of the nine x_j y_k is computed by one party: i takes x_i y_i, x_i y_{i+1} and x_{i+1} y_i.
        """
        return self._reshared(self._masked(_products(x, y)))

    def inner(self, x: Shared, y: Shared, starts: npt.NDArray[np.int64]) -> Shared:
        """Sums of x * y over the segments that begin at `starts`. 1 round, 8 B per segment.

        The parties sum their products before they mask: the slots of a sum are the sums of the slots.
        """
        return self._reshared(self._masked(segment_sums(_products(x, y), starts)))

    def squared(self, x: Shared, starts: npt.NDArray[np.int64]) -> Shared:
        """Sums of squares by segment. 1 round, 8 B per segment. Exact if every sum stays below 2^63."""
        return self.inner(x, x, starts)

    def and_planes(self, x: Shared, y: Shared) -> Shared:
        """x & y of words shared by exclusive or, 64 gates a word. 1 round, 8 B per word (1 bit per gate).

        `multiply` over bits: & for the product, ^ for both sum and difference.
        """
        own = x.own & (y.own ^ y.next)
        own ^= x.next & y.own
        for mask in self._masks(own.size):
            own ^= mask.reshape(own.shape)
        return self._reshared(own)

    # In and out

    def constant(self, values: npt.ArrayLike) -> Shared:
        """A public vector, shared: in slot 0. No message."""
        nothing = np.zeros(np.shape(values), np.uint64)
        return Shared(nothing, nothing, self.index) + values

    def input(self, owner: int, values: npt.NDArray[np.int64] | None, length: int) -> Shared:
        """A secret vector of party `owner`; the others give None. 1 round, 8 B per element, sent by the owner alone.

        Slot owner + 1 is read from the stream that the owner shares with the party after it, slot owner is the value
        minus that and goes to the party before it, the third slot is 0. Whatever the owner sends is an input.
        """
        nothing = np.zeros(length, np.uint64)
        if self.index == owner:
            if values is None or len(values) != length:
                raise ValueError(f"the owner of an input gives {length} values")
            mask = self._streams[1].words(length)
            own = words(values) - mask
            self._round({self.before: wire(own)}, {})
            return Shared(own, mask, self.index)
        if self.before == owner:
            self._round({}, {})
            return Shared(self._streams[0].words(length), nothing, self.index)
        payload = self._round({}, {owner: 8 * length})[owner]
        return Shared(nothing, np.frombuffer(payload, "<u8").astype(np.uint64, copy=False), self.index)

    def sum_of_inputs(self, values: npt.NDArray[np.int64]) -> Shared:
        """The sum of one secret vector of each party. 1 round, 8 B per element.

        Slot i is party i's vector plus the masks of a product: three inputs at once, no product.
        """
        return self._reshared(self._masked(words(values)))

    def _missing(self, x: Shared) -> Words:
        """The slot that this party does not hold, from the party before; the digest of its copy from the party after.

        1 round, 8 B per element and 32 B. Cheating if the two differ, so one party cannot open a wrong value.
        """
        outgoing = {self.after: wire(x.own), self.before: digest(x.next)}
        arrived = self._round(outgoing, {self.before: 8 * x.size, self.after: _DIGEST})
        slot = np.frombuffer(arrived[self.before], "<u8").astype(np.uint64, copy=False)
        if digest(slot) != arrived[self.after]:
            raise Cheating(f"parties {self.before} and {self.after} disagree about a share; nothing was opened")
        return slot.reshape(x.shape)

    def open(self, x: Shared) -> npt.NDArray[np.int64]:
        """x to all three parties, as signed integers. 1 round, 8 B per element and 32 B (see `_missing`).

        It tells x alone: the slot that arrives is x minus the two slots at hand, or x ^ those.
        """
        self.verify()
        return (x.own + x.next + self._missing(x)).view(np.int64)

    def open_planes(self, x: Shared) -> Words:
        """`open` of words shared by exclusive or."""
        self.verify()
        return x.own ^ x.next ^ self._missing(x)

    def shares_for_server(self, x: Shared) -> ServerShare:
        """What this party sends to a server outside, which `reconstruct`s x from three: 8 B per element and 32 B."""
        self.verify()
        return ServerShare(x.own, digest(x.next))

    def verify(self) -> None:
        """Checks all products since the last check; nothing to do among semi-honest parties."""


def _products(x: Shared, y: Shared) -> Words:
    """x_i y_i + x_i y_{i+1} + x_{i+1} y_i, a new array."""
    own = y.own + y.next
    own *= x.own
    own += x.next * y.own
    return own
