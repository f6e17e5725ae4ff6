"""What the computation asks the key holder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ProtocolError


@dataclass(frozen=True)
class DecryptionQuery:
    """What the computation sends to be decrypted.

    Attributes:
        ciphertexts: their slots, one after the other, are numbered from 0.
        starts: (m,) first slot of each sum that is asked for.
        sizes: (m,) slots of each.
        offsets: (m,) what is added to each of them after the weight; below t.
    """

    ciphertexts: tuple[bytes, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...] = ()

    def check(self, slots: int) -> None:
        """ProtocolError if the ranges do not lie in the slots."""
        whole = len(self.ciphertexts) * slots
        if len(self.starts) != len(self.sizes) or any(
            not 0 <= start < start + size <= whole for start, size in zip(self.starts, self.sizes, strict=True)
        ):
            raise ProtocolError("a question to the key holder names slots that it does not bring")


@dataclass(frozen=True)
class Sums:
    """What the key holder makes of sums of slots before it encrypts them again: linear combinations, in certain slots.

    Attributes:
        slots: (k,) where a term goes.
        sums: (k,) which sum it is.
        factors: (k,) times what.
        length: slots of one copy.
        copies: of everything, one after the other.
    """

    slots: npt.NDArray[np.int64]
    sums: npt.NDArray[np.int64]
    factors: npt.NDArray[np.int64]
    length: int
    copies: int

    @classmethod
    def of(cls, terms: Sequence[tuple[int, int, int]], length: int, copies: int) -> Sums:
        table = np.array(terms, np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2], length, copies)

    def check(self, sums: int) -> None:
        """ProtocolError if a term is of no sum, or goes nowhere."""
        parts = (self.slots, self.sums, self.factors)
        shaped = len({part.shape for part in parts}) == 1 and all(type(n) is int for n in (self.length, self.copies))
        if not shaped or not 1 <= self.copies * self.length <= 2**27 or self.copies < 1:
            raise ProtocolError("a question to the key holder does not say where its answers go")
        inside = ((self.slots >= 0) & (self.slots < self.length) & (self.sums >= 0) & (self.sums < sums)).all()
        if not inside or (np.abs(self.factors) > 2**20).any():
            raise ProtocolError("a question to the key holder combines sums that it does not ask for")
