"""The operations that cost a message: multiplication, input, opening. One `Gates` is one party in one computation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.mpc.checking import Checking
from fedsyn.crypto.mpc.dealing import ServerShare, digest, wire
from fedsyn.crypto.mpc.rounds import BITS, RING, Arithmetic, products
from fedsyn.crypto.mpc.shared import Shared, Words, segment_sums, words


class Gates(Checking):
    """Araki et al., CCS 2016: products of bits and modulo 2^n, in the form of Mohassel and Rindal, "ABY3" (CCS 2018).

    Arguments: this party's index; the keys of its two slots (`Rounds`); its lines; whether products are checked.

    Why nobody learns anything before an opening: what party i gets is slot i + 1 of a product, which contains
    F(k_{i+2}) from a place of that stream that is read once; k_{i+2} is the one key that party i does not hold. So
    whatever it receives is uniform to it, whatever it sends itself (ChaCha20 as a pseudo-random function). With
    `malicious`, products are checked before an opening (`fedsyn.crypto.mpc.checking`), so what is opened is right.
    """

    # Products

    def multiply(self, x: Shared, y: Shared) -> Shared:
        """x * y, element by element. 1 round, 8 B per element."""
        return self._multiplied(RING, x, y)

    def inner(self, x: Shared, y: Shared, starts: npt.NDArray[np.int64]) -> Shared:
        """Sums of x * y over the segments that begin at `starts`. 1 round, 8 B per segment; malicious: per element.

        The parties sum their products before they mask: the slots of a sum are the sums of the slots. Where products
        are checked each is made singly, since a check compares products of one shape with triples of that shape.
        """
        if self.malicious:
            return self.multiply(x, y).segment_sums(starts)
        return self._reshared(self._masked(RING, segment_sums(products(RING, x, y), starts)))

    def squared(self, x: Shared, starts: npt.NDArray[np.int64]) -> Shared:
        """Sums of squares by segment: `inner`. Exact if every sum stays below 2^63."""
        return self.inner(x, x, starts)

    def and_planes(self, x: Shared, y: Shared) -> Shared:
        """x & y of words shared by exclusive or, 64 gates a word. 1 round, 8 B per word (1 bit per gate).

        `multiply` over bits: & for the product, ^ for both sum and difference.
        """
        return self._multiplied(BITS, x, y)

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
        if self.index == owner and (values is None or len(values) != length):
            raise ValueError(f"the owner of an input gives {length} values")
        return self._input(RING, owner, None if values is None else words(values), length)

    def _input(self, kind: Arithmetic, owner: int, values: Words | None, length: int) -> Shared:
        nothing = np.zeros(length, np.uint64)
        if self.index == owner:
            mask = self._streams[1].words(length)
            own: Words = kind.minus(values, mask)
            self._round({self.before: wire(own)}, {})
            return Shared(own, mask, self.index)
        if self.before == owner:
            self._round({}, {})
            return Shared(self._streams[0].words(length), nothing, self.index)
        payload = self._round({}, {owner: 8 * length})[owner]
        return Shared(nothing, np.frombuffer(payload, "<u8").astype(np.uint64, copy=False), self.index)

    def sum_of_inputs(self, values: npt.NDArray[np.int64]) -> Shared:
        """The sum of one secret vector of each party. 1 round, 8 B per element.

        Slot i is party i's vector plus the masks of a product: three inputs at once, no product. Whatever a party
        sends for its slot is its vector plus the masks, for one vector or another: an input.
        """
        return self._reshared(self._masked(RING, words(values)))

    def open(self, x: Shared) -> npt.NDArray[np.int64]:
        """x to all three parties, as signed integers. After `verify` 2 rounds, 8 B per element and 36 B.

        It tells x alone: the slot that arrives is x minus the two slots at hand, or x ^ those. Copies are compared
        (`_missing`), and who sees them differ takes the other honest party along (`_agree`).
        """
        return self._opened(RING, x).view(np.int64)

    def open_planes(self, x: Shared) -> Words:
        """`open` of words shared by exclusive or."""
        return self._opened(BITS, x)

    def _opened(self, kind: Arithmetic, x: Shared) -> Words:
        self.verify()
        value = kind.sum(x, self._missing(x))
        self._agree()
        return value

    def shares_for_server(self, x: Shared) -> ServerShare:
        """What this party sends to a server outside, which `reconstruct`s x from three: 8 B per element and 32 B."""
        self.verify()
        return ServerShare(x.own, digest(x.next))
