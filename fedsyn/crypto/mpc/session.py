"""Operations on shared secrets.

Signs, absolute values and the largest of many are made of products, inputs and openings.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.mpc.checking import Checking
from fedsyn.crypto.mpc.dealing import ServerShare, digest, wire
from fedsyn.crypto.mpc.rounds import BITS, RING, Arithmetic, products
from fedsyn.crypto.mpc.shared import (
    PARTIES,
    Shared,
    Words,
    bits_of,
    concatenate,
    halves,
    packed,
    segment_sums,
    to_planes,
    unpacked,
    words,
)
from fedsyn.errors import ProtocolError

_BLOCK = 1 << 17  # cells whose products are in memory at once where they are checked
_PAIRS = 1 << 17  # comparisons that one argmax may make so as to have fewer rounds: about 1.5 MB a party at 28 bits


class Session(Checking):
    """One party in one computation of three.

    Results are exact integers that depend on no key; the caller answers for the bounds that a method states, outside of
    which its result is arbitrary.

    Araki et al., CCS 2016: products of bits and modulo 2^n, in the form of Mohassel and Rindal, "ABY3" (CCS 2018).

    Arguments: this party's index; the keys of its two slots (`Rounds`); its lines; whether products are checked.

    Why nobody learns anything before an opening: what party i gets is slot i + 1 of a product, which contains
    F(k_{i+2}) from a place of that stream that is read once; k_{i+2} is the one key that party i does not hold. So
    whatever it receives is uniform to it, whatever it sends itself (ChaCha20 as a pseudo-random function). With
    `malicious`, products are checked before an opening (`fedsyn.crypto.mpc.checking`), so what is opened is right.
    """

    # Products

    def multiply(self, x: Shared, y: Shared) -> Shared:
        """Multiplies element by element: 1 round, 8 B per element."""
        return self._multiplied(RING, x, y)

    def inner(self, x: Shared, y: Shared, starts: npt.NDArray[np.int64]) -> Shared:
        """Sums x * y over the segments that begin at `starts`.

        It takes 1 round, 8 B per segment, or per element where parties may be malicious.

        The parties sum their products before they mask: the slots of a sum are the sums of the slots. Where products
        are checked each is made singly, since a check compares products of one shape with triples of that shape.
        """
        if self.malicious:
            return self.multiply(x, y).segment_sums(starts)
        return self._reshared(self._masked(RING, segment_sums(products(RING, x, y), starts)))

    def squared(self, x: Shared, starts: npt.NDArray[np.int64]) -> Shared:
        """Sums squares by segment, as `inner`.

        The result is exact if every sum stays below 2^63.
        """
        return self.inner(x, x, starts)

    def and_planes(self, x: Shared, y: Shared) -> Shared:
        """Returns x & y of words shared by exclusive or.

        This is `multiply` over bits: & for the product, ^ for both sum and difference. A word has 64 gates; it takes 1
        round, 8 B per word (1 bit per gate).
        """
        return self._multiplied(BITS, x, y)

    # In and out

    def constant(self, values: npt.ArrayLike) -> Shared:
        """Shares a public vector in slot 0, without a message."""
        nothing = np.zeros(np.shape(values), np.uint64)
        return Shared(nothing, nothing, self.index) + values

    def input(self, kind: Arithmetic, owner: int, values: Words | None, length: int) -> Shared:
        """Shares a secret vector of party `owner`; the others give None.

        It takes 1 round; the owner alone sends, 8 B per element. Slot owner + 1 is read from the stream that the owner
        shares with the party after it, slot owner is the value minus that and goes to the party before it, the third
        slot is 0. Whatever the owner sends is an input.
        """
        if self.index == owner and (values is None or len(values) != length):
            raise ValueError(f"the owner of an input gives {length} values")
        nothing = np.zeros(length, np.uint64)
        if self.index == owner:
            mask = self._streams[1].words(length)
            share: Words = kind.minus(values, mask)
            self._round({self.before: wire(share)}, {})
            return Shared(share, mask, self.index)
        if self.before == owner:
            self._round({}, {})
            return Shared(self._streams[0].words(length), nothing, self.index)
        payload = self._round({}, {owner: 8 * length})[owner]
        return Shared(nothing, np.frombuffer(payload, "<u8").astype(np.uint64, copy=False), self.index)

    def sum_of_inputs(self, values: npt.NDArray[np.int64]) -> Shared:
        """Sums one secret vector of each party.

        It takes 1 round, 8 B per element, and no product. Slot i is party i's vector plus the masks of a product.
        Whatever a party sends for its slot is its vector plus the masks, for one vector or another: an input.
        """
        return self._reshared(self._masked(RING, words(values)))

    def open(self, x: Shared) -> npt.NDArray[np.int64]:
        """Opens x to all three parties, as signed integers.

        After `verify` it takes 2 rounds, 8 B per element and 36 B.

        It tells x alone: the slot that arrives is x minus the two slots at hand, or x ^ those. Copies are compared
        (`_missing`), and who sees them differ takes the other honest party along (`_agree`).
        """
        return self._opened(RING, x).view(np.int64)

    def open_planes(self, x: Shared) -> Words:
        """Opens words shared by exclusive or, as `open` does."""
        return self._opened(BITS, x)

    def _opened(self, kind: Arithmetic, x: Shared) -> Words:
        self.verify()
        value = kind.sum(x, self._missing(x))
        self._agree()
        return value

    def shares_for_server(self, x: Shared) -> ServerShare:
        """Returns this party's message to a server outside.

        `reconstruct` makes x of three such messages, each of 8 B per element and 32 B.
        """
        self.verify()
        return ServerShare(x.own, digest(x.next))

    # Signs, absolute values, the largest of many

    def negative(self, x: Shared, bits: int) -> Shared:
        """Returns sign bits of values in [-2^(bits-1), 2^(bits-1)).

        They are packed as one plane of ceil(n / 64) words.

        1 to 2 + ceil(log2(bits - 2)) rounds, below 4 * bits bits per value (28 bits: 7 rounds, 98 bits).
        Modulo 2^bits, which costs nothing, x is the sum of three `bits`-bit numbers, slot k known to two parties and
        thereby shared as bits (Araki et al. 2016; Mohassel and Rindal, "ABY3", CCS 2018). A layer of full adders
        (one AND each: carry = ((a^c) & (b^c)) ^ c) makes it a sum of two: the slots read as an exclusive or, and the
        carries one place up. Of that sum only the top bit is wanted, so of its carries only the one into it: a tree
        over (generate, propagate) of neighbouring blocks, one round a level, both ANDs of all merges in one message.
        """
        if not 1 <= bits <= 64:
            raise ValueError("a sign is one of 1 to 64 bits")
        a = x.mapped(lambda slot: to_planes(slot.reshape(-1), bits))
        if bits == 1:
            return a[0]
        carries = self._carries(a[:-1])  # the carry out of the top bit is not wanted
        carry = self._carry_into_top(a, carries)
        top = a[-1] ^ carries[-1]
        return top if carry is None else top ^ carry

    def _carries(self, a: Shared) -> Shared:
        """Returns the carries of a layer of full adders.

        A full adder adds the three slots of a plane.
        """
        return self.and_planes(a.only(0, 2), a.only(1, 2)) ^ a.only(2)

    def _carry_into_top(self, a: Shared, carries: Shared) -> Shared | None:
        """Returns the carry into the last place of a sum.

        The sum is that of the planes `a` and of `carries`, those of every plane but the last, shifted up by one place.
        The result is None for two planes or fewer, which have no such carry.
        """
        if len(a) <= 2:
            return None
        one, other = a[1:-1], carries[: len(a) - 2]  # bit 0 has no carry beside it
        generate, propagate = self.and_planes(one, other), one ^ other
        while len(generate) > 1:
            g_low, g_high, g_rest = halves(generate)
            p_low, p_high, p_rest = halves(propagate)
            # g = g_high ^ (p_high & g_low), p = p_high & p_low; nobody asks whether the lowest block propagates.
            both = self.and_planes(concatenate([p_high, p_high[1:]]), concatenate([g_low, p_low[1:]]))
            merged, propagated = both[: len(g_low)], both[len(g_low) :]
            generate = concatenate([g_high ^ merged, g_rest])
            propagate = concatenate([p_high[:1], propagated, p_rest])  # the first is never read
        return generate[0]

    def _top_bits(self, x: Shared, bits: int) -> tuple[Shared, Shared, Shared]:
        """Returns sign bits modulo 2^bits, and two carries of weight 2^bits.

        The sum of the three slots modulo 2^bits (`bits` at least 2), as an integer, is x modulo 2^bits plus 2^bits
        times both carries. It costs `negative`, one plane wider in the first message, and 1 round of 1 bit per value
        more.
        """
        a = x.mapped(lambda slot: to_planes(slot.reshape(-1), bits))
        carries = self._carries(a)
        carry = self._carry_into_top(a, carries[:-1])
        one, other = a[-1], carries[-2]
        if carry is None:
            return one ^ other, carries[-1], self.and_planes(one, other)
        out = self.and_planes(one ^ carry, other ^ carry) ^ carry
        return one ^ other ^ carry, carries[-1], out

    def sum_of_bounded_inputs(self, values: npt.NDArray[np.int64], bits: int) -> Shared:
        """Sums inputs that lie in [-2^(bits-1), 2^(bits-1)) whatever a party sends.

        An argmax whose values leave their bounds is no argmax: comparisons wrap, and what wins then is another
        function of the secrets. So noise that goes into one should be bounded by construction. A party's values enter
        as `bits` planes of bits, for which there is no wrong message. With b = b_i ^ b_{i+1} (its third slot is 0) a
        bit is b_i + b_{i+1} - 2 b_i b_{i+1} modulo 2^64: one product a bit. 4 rounds, 25 B per bit of a sum.
        """
        if not 1 <= bits <= 63:
            raise ValueError("bounded inputs have 1 to 63 bits")
        high, numbers = 1 << (bits - 1), np.asarray(values)
        if ((numbers < -high) | (numbers >= high)).any():
            raise ValueError(f"a value of this party does not fit {bits} bits")
        planes, columns = to_planes(words(numbers), bits), -(-len(numbers) // 64)
        first, second = [], []
        for owner in range(PARTIES):
            entered = self.input(BITS, owner, planes.reshape(-1), bits * columns).reshape(bits, columns)
            single = bits_of(entered, len(numbers))
            first.append(single.only(owner))
            second.append(single.only((owner + 1) % PARTIES))
        one, other = concatenate(first), concatenate(second)
        entries = (one + other - self.multiply(one, other) * 2).reshape(PARTIES, bits, len(numbers)).sum(0)
        weights = [*(1 << j for j in range(bits - 1)), -high]
        return (entries * np.array(weights)[:, None]).sum(0)

    def l1(self, x: Shared, starts: npt.NDArray[np.int64], bits: int) -> Shared:
        """Sums |x| over the segments that begin at `starts`.

        x is taken modulo 2^bits, in [-2^(bits-1), 2^(bits-1)).

        Where products are checked, in halves until a part has 2^17 elements or one segment, for the sake of memory.

        For EVERY x: whatever a vector holds, an element adds at most 2^(bits-1), and a step of 1 in it moves the sum by
        1 (|x| is as steep where x wraps). So no hostile count makes another row count for more. Sums below 2^63.

        `negative` and 3 rounds, 32 B and 2 bits per element, 24 B per segment. Let X be the sum of the slots modulo
        2^bits, m and k its carries (`_top_bits`), s the sign bit: x = X - 2^bits (m + k + s). With (-1)^b for a bit b,

            |x| = (-1)^s (X - 3 h) + h ((-1)^(s^m) + (-1)^(s^k) + 1),   h = 2^(bits-1).

        (-1)^b = (1 - 2 b_0)(1 - 2 b_1)(1 - 2 b_2), b_k slot k of b: two parties know it, so each factor is trivially
        shared modulo 2^64. The first two factors in one message, X - 3 h with the third; then inner products.
        """
        if not 2 <= bits <= 62:
            raise ValueError("sums of absolute values are of 2 to 62 bits")
        n, half, starts = len(x), 1 << (bits - 1), np.asarray(starts)
        if self.malicious and n > _BLOCK and len(starts) > 1:
            middle = int(np.clip(np.searchsorted(starts, n // 2), 1, len(starts) - 1))
            cut = int(starts[middle])
            rest = [(x[:cut], starts[:middle]), (x[cut:], starts[middle:] - cut)]
            return concatenate([self.l1(part, begin, bits) for part, begin in rest])
        sign, *carries = self._top_bits(x, bits)
        bit = bits_of(concatenate([sign.reshape(1, -1), *(sign.reshape(1, -1) ^ c.reshape(1, -1) for c in carries)]), n)
        f0, f1, f2 = (bit.only(k).reshape(-1) * -2 + 1 for k in range(3))
        low = x.mapped(lambda slot: slot & np.uint64(2 * half - 1)) - 3 * half
        both = self.multiply(concatenate([f0, low]), concatenate([f1, f2[:n]]))
        bounds = np.concatenate([starts + shift for shift in (0, n, 2 * n)])
        sums = self.inner(both[: 3 * n], concatenate([both[3 * n :], f2[n:]]), bounds).reshape(3, len(starts))
        lengths = np.diff(np.append(starts, n))
        return sums[0] + (sums[1] + sums[2] + lengths) * half

    def argmax(self, values: Shared, bits: int) -> int:
        """Returns the index of the largest of m values.

        Among equals it is the first; nothing but the index is opened.

        Every difference of two values in [-2^(bits-1), 2^(bits-1)). A tournament: in a group all pairs are compared
        at once, and the one that beats all others is selected obliviously, with its index, for the next level.
        `group_sizes` says how many levels; for groups of g a level takes `negative` (over all pairs),
        ceil(log2(g - 1)) rounds (g - 2 bits per value) and 2 rounds to select (24 B per value and 16 B per group; in
        the last level of several 16 B and 8 B), then `open`. A single level opens which one won instead, 1 bit each.
        """
        count = len(values)
        if count == 0:
            raise ValueError("nothing is the largest of no values")
        indices = self.constant(np.arange(count))
        sizes = group_sizes(count)
        for level, size in enumerate(sizes):
            groups = -(-len(values) // size)
            # The last value stands in for those that a last group lacks: among equals the first wins, so it wins.
            place = np.minimum(np.arange(groups * size), len(values) - 1)
            values, indices = values[place], indices[place]
            winners = self._winners(values.reshape(groups, size), bits)
            if len(sizes) == 1:
                won = np.flatnonzero(unpacked(self.open_planes(winners), count))
                if len(won) != 1:  # comparisons that wrap can go in a circle
                    raise ProtocolError(f"none of {count} values beats all others: they leave their {bits} bits")
                return int(won[0])
            columns = [indices] if level == len(sizes) - 1 else [indices, values]
            selected = self._selected(bits_of(winners, len(place)), columns, size)
            indices, values = selected[0], selected[-1]
        return int(self.open(indices)[0])

    def _winners(self, values: Shared, bits: int) -> Shared:
        """Returns one bit per value, packed: whether it wins its group.

        Values are (groups, size), and one wins each group: i wins if for no j > i is v_i - v_j < 0, and for all j < i
        is v_j - v_i < 0, so among equals the first.
        """
        groups, size = values.shape
        first, second = np.triu_indices(size, 1)
        pair = np.zeros((size, size), np.int64)
        pair[first, second] = pair[second, first] = np.arange(len(first))
        others = np.array([[j for j in range(size) if j != i] for i in range(size)]).reshape(size, size - 1)
        pair, earlier = np.take_along_axis(pair, others, 1), np.arange(size)[:, None] < others
        negative = self.negative((values[:, first] - values[:, second]).reshape(-1), bits)
        less = bits_of(negative, groups * len(first)).reshape(groups, -1)
        beats = less[:, pair] ^ earlier  # (groups, size, size - 1)
        planes = beats.mapped(lambda slot: packed(slot.reshape(groups * size, size - 1).T))
        while len(planes) > 1:
            low, high, rest = halves(planes)
            planes = concatenate([self.and_planes(low, high), rest])
        return planes[0]

    def _selected(self, hot: Shared, columns: list[Shared], size: int) -> list[Shared]:
        """Selects each group's entry whose bit in `hot` is 1.

        Groups have `size` entries, in every column. It takes 2 rounds.

        With the slots of the bit as integers, b = b_01 + b_2 - 2 b_01 b_2 and b_01 = b_0 + b_1 - 2 b_0 b_1, each b_k
        trivially shared: [b_0 b_1] and all [v b_2] in one message, then sums of v b = v b_2 + b_01 (v - 2 v b_2).
        """
        b0, b1, b2 = (hot.only(k) for k in range(3))
        length = len(hot)
        both = self.multiply(concatenate([b0, *columns]), concatenate([b1, *[b2] * len(columns)]))
        b01 = b0 + b1 - both[:length] * 2
        masked = both[length:]
        rest = concatenate(columns) - masked * 2
        starts = np.arange(0, len(rest), size)
        chosen = self.inner(concatenate([b01] * len(columns)), rest, starts) + masked.segment_sums(starts)
        return [chosen[at : at + length // size] for at in range(0, len(chosen), length // size)]


def group_sizes(count: int) -> list[int]:
    """Returns the group size of each level of a tournament.

    They make the fewest levels for `count` values with at most 2^17 comparisons in all.

    A round costs a millisecond in a network and some 0.1 ms between threads, a comparison about 0.1 microseconds and
    12 B at 28 bits: rounds are worth more than pairs until there are about 10^5. Up to 512 values take one level,
    4,096 two, 10,000 three.
    """
    for levels in range(1, count.bit_length() + 1):
        widest = next(size for size in range(2, count + 2) if size**levels >= count)
        sizes, pairs, left = [], 0, count
        while left > 1:
            groups = -(-left // widest)
            size = -(-left // groups)
            sizes.append(size)
            pairs, left = pairs + groups * size * (size - 1) // 2, groups
        if pairs <= _PAIRS or widest == 2:
            break
    return sizes
