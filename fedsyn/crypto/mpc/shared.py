"""One party's part of a secret vector, and its linear operations.

None of these costs a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
PARTIES = 3


def words(values: npt.ArrayLike) -> Words:
    """Returns integers, signed or not, as words modulo 2^64."""
    array = np.asarray(values)
    if array.dtype.kind not in "iub":
        raise TypeError(f"shares are integers, not {array.dtype}")
    return array.astype(np.uint64)  # two's complement: -1 becomes 2^64 - 1


def segment_sums(values: Words, starts: npt.NDArray[np.int64]) -> Words:
    """Sums values[starts[j] : starts[j + 1]], the last one to the end.

    `starts` ascends from 0. An empty segment sums to 0 (`numpy.add.reduceat` alone would give it the value at its
    start).
    """
    bounds = np.append(starts, len(values))
    if bounds[0] != 0 or (np.diff(bounds) < 0).any():
        raise ValueError("segments start at 0, in ascending order, inside the vector")
    sums = np.zeros(len(starts), np.uint64)
    filled = bounds[:-1] < bounds[1:]
    if filled.any():
        sums[filled] = np.add.reduceat(values, bounds[:-1][filled])
    return sums


@dataclass(frozen=True, eq=False)
class Shared:
    """A party's two slots of a shared x, as two arrays.

    They are slots `party` and `party + 1` of x = x_0 + x_1 + x_2 mod 2^64 (or x_0 ^ x_1 ^ x_2).

    Slot i is held by the parties i and i - 1: every two parties hold all three, one party's two say nothing about x.
    A linear function of x is that function of each slot: no message, no round. The arrays are never written to.
    """

    own: Words
    next: Words
    party: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.own.shape

    @property
    def size(self) -> int:
        return self.own.size

    def __len__(self) -> int:
        return len(self.own)

    def mapped(self, linear: Callable[[Words], Words]) -> Shared:
        """Applies a linear function to each slot.

        The caller makes sure that it is linear (for planes: over bits).
        """
        return Shared(linear(self.own), linear(self.next), self.party)

    def only(self, *slots: int) -> Shared:
        """Returns the sharing whose other slots are 0.

        With one slot it is a sharing of that slot's value, mod 2^64 and as bits alike: two parties enter what both know
        ("trivially shared") without a message.
        """
        has_own, has_next = self.party in slots, (self.party + 1) % PARTIES in slots
        nothing = self.own if has_own and has_next else np.zeros(self.shape, np.uint64)
        return Shared(self.own if has_own else nothing, self.next if has_next else nothing, self.party)

    def _constant(self, operation: Callable[[Words, Words], Words], public: npt.ArrayLike) -> Shared:
        """Applies an operation with a public constant to slot 0 alone.

        The parties 0 and 2 hold it.
        """
        constant = np.broadcast_to(words(public), self.shape)
        first = operation(self.own, constant) if self.party == 0 else self.own
        return Shared(first, operation(self.next, constant) if self.party == 2 else self.next, self.party)

    def __add__(self, other: Shared | npt.ArrayLike) -> Shared:
        if isinstance(other, Shared):
            return Shared(self.own + other.own, self.next + other.next, self.party)
        return self._constant(np.add, other)

    def __sub__(self, other: Shared | npt.ArrayLike) -> Shared:
        if isinstance(other, Shared):
            return Shared(self.own - other.own, self.next - other.next, self.party)
        return self._constant(np.subtract, other)

    def __mul__(self, public: npt.ArrayLike) -> Shared:
        factor = words(public)
        return self.mapped(lambda slot: slot * factor)

    def __xor__(self, other: Shared | npt.ArrayLike) -> Shared:
        """Xors planes with other planes, or with a public pattern."""
        if isinstance(other, Shared):
            return Shared(self.own ^ other.own, self.next ^ other.next, self.party)
        return self._constant(np.bitwise_xor, other)

    def __getitem__(self, where: Any) -> Shared:
        return self.mapped(lambda slot: np.atleast_1d(slot[where]))

    def reshape(self, *shape: int) -> Shared:
        return self.mapped(lambda slot: slot.reshape(shape))

    def sum(self, axis: int | tuple[int, ...]) -> Shared:
        return self.mapped(lambda slot: np.atleast_1d(slot.sum(axis=axis, dtype=np.uint64)))

    def segment_sums(self, starts: npt.NDArray[np.int64]) -> Shared:
        return self.mapped(lambda slot: segment_sums(slot, starts))


def concatenate(parts: Sequence[Shared]) -> Shared:
    """Joins shared arrays along the first axis."""
    first, second = np.concatenate([part.own for part in parts]), np.concatenate([part.next for part in parts])
    return Shared(first, second, parts[0].party)


# Bit planes ----------------------------------------------------------------------------------------------------------

# Swaps of off-diagonal blocks of 1, 2 and 4 bits transpose 8 x 8 bits (Warren, Hacker's Delight, 2nd ed., 7-3).
_SWAPS = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))


def to_planes(values: Words, bits: int) -> Words:
    """Returns the bit planes of words, (bits, ceil(n / 64)).

    Bit k of word w of plane j is bit j of value 64 w + k; zeros behind the last value.

    330,000 values of 28 bits take about 1.5 ms: bytes of 8 values side by side in one word, 8 x 8 bits transposed
    within it, bytes put back in place. `numpy.unpackbits` and `packbits` along the other axis take 35 ms.
    """
    length, rows = -(-len(values) // 64), -(-bits // 8)
    square = np.zeros((rows, 64 * length), np.uint8)
    square[:, : len(values)] = values.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, :rows].T
    block = square.view("<u8")
    for shift, mask in _SWAPS:
        swapped = ((block >> np.uint64(shift)) ^ block) & np.uint64(mask)
        block ^= swapped ^ (swapped << np.uint64(shift))
    planes = np.ascontiguousarray(block.view(np.uint8).reshape(rows, 8 * length, 8).transpose(0, 2, 1))
    return planes.reshape(8 * rows, 8 * length).view(np.uint64)[:bits]


def packed(bits: Words) -> Words:
    """Packs 0s and 1s along the last axis, 64 to a word."""
    *rows, length = bits.shape
    wide = np.zeros((*rows, 64 * -(-length // 64)), np.uint8)
    wide[..., :length] = bits
    return np.packbits(wide, axis=-1, bitorder="little").view(np.uint64)


def unpacked(plane: Words, length: int) -> Words:
    """Returns the first `length` bits of planes, as words 0 and 1."""
    return np.unpackbits(plane.view(np.uint8), axis=-1, count=length, bitorder="little").astype(np.uint64)


def bits_of(plane: Shared, length: int) -> Shared:
    """Returns a shared plane as words 0 and 1.

    Each is still shared by exclusive or.
    """
    return plane.mapped(lambda slot: unpacked(slot, length))


def halves(planes: Shared) -> tuple[Shared, Shared, Shared]:
    """Returns even and odd neighbours, and a lone last plane.

    This is one level of a tree over planes.
    """
    even = 2 * (len(planes) // 2)
    return planes[0:even:2], planes[1:even:2], planes[even:]
