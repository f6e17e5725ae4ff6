"""Slots of a store's cells, and used slots of encrypted noise.

All cliques that may be chosen or opened lie one after the other, so that each cell has a slot of its own and no
ciphertext is ever rotated. Where all of them fit into one ciphertext several times, they do: `copies` of the same cells
stand in different slots, and each copy can be opened with noise of its own slots.

Noise comes in *planes*, ciphertexts with noise in every slot. A marginal that lies in the slots [a, b) of its
ciphertext is opened with the slots [a, b) of a plane in which none of them was used (`NoiseRanges`); which ones were is
counted per slot. FHAIM's Protocol 3, line 7 advances its counter by the number of attributes where it used one noise
per cell, so that neighbouring rounds share noise: their difference then shows exact counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.errors import RunError


@dataclass(frozen=True)
class Piece:
    """Some cells of an opening: the slots [start, stop) of ciphertext `index`.

    They are opened under the noise of plane `plane`.

    `first`: of the opening's cells, which one lies in `start`.
    """

    index: int
    start: int
    stop: int
    plane: int
    first: int


def placed(pieces: Sequence[Piece], slots: int) -> tuple[list[tuple[int, int]], tuple[int, ...], tuple[int, ...]]:
    """Returns the request that stands for an opening.

    It has (stored ciphertext, plane) of each ciphertext sent, and each piece's first slot and size.

    Server and key holder both derive it from the order: no slot of an opening is the server's choice.
    """
    pairs = list(dict.fromkeys((piece.index, piece.plane) for piece in pieces))
    starts = tuple(pairs.index((piece.index, piece.plane)) * slots + piece.start for piece in pieces)
    return pairs, starts, tuple(piece.stop - piece.start for piece in pieces)


class SlotLayout:
    """Cells of some cliques in ciphertexts.

    >>> domain = Domain(("age", "sex"), (10, 2))
    >>> layout = SlotLayout([("age",), ("sex",), ("age", "sex")], domain, 128)
    >>> layout.length, layout.copies, layout.ciphertexts, layout.range_of(("sex",))
    (32, 4, 1, (10, 12))

    Args:
        cliques: in order; each may be chosen or opened.
        domain: of the schema.
        slots: of one ciphertext.
    """

    def __init__(self, cliques: Sequence[Clique], domain: Domain, slots: int) -> None:
        self.cliques, self.domain, self.slots = tuple(dict.fromkeys(cliques)), domain, slots
        sizes = {clique: domain.size(clique) for clique in self.cliques}
        starts = dict(zip(self.cliques, accumulate(sizes.values(), initial=0), strict=False))
        self.length = sum(sizes.values())
        self._ranges = {clique: (starts[clique], starts[clique] + sizes[clique]) for clique in self.cliques}
        self.copies = max(1, slots // self.length)

    @property
    def ciphertexts(self) -> int:
        return ceil(self.length / self.slots)

    @property
    def entries(self) -> int:
        """Number of entries of `vector`."""
        return self.copies * self.length

    @property
    def noisy(self) -> int:
        """Slots of a plane that are used."""
        return min(self.copies * self.length, self.slots)

    def range_of(self, clique: Clique) -> tuple[int, int]:
        """Returns [start, stop) of a clique in the first copy.

        It raises KeyError if the clique is not stored.
        """
        return self._ranges[clique]

    def vector(self, cells: dict[Clique, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        """Returns the vector to encrypt: every copy of every clique's cells."""
        one = np.zeros(self.length, np.int64)
        for clique, (start, stop) in self._ranges.items():
            one[start:stop] = cells[clique]
        return np.tile(one, self.copies)

    def runs(self, cliques: Sequence[Clique]) -> list[tuple[int, int, int]]:
        """Returns the runs of cells of some cliques, with neighbours joined.

        Each is (start, stop, first), where `first` counts the cells in the cliques' order.
        """
        runs: list[tuple[int, int, int]] = []
        first = 0
        for clique in cliques:
            start, stop = self._ranges[clique]
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], stop, runs[-1][2])
            else:
                runs.append((start, stop, first))
            first += stop - start
        return runs


class NoiseRanges:
    """Slots of each noise plane that were used; none is used twice.

    Args:
        layout: of the store.
        openings: the most openings that there will be.
        first: cliques that one of them opens; the others open one clique each.
    """

    def __init__(self, layout: SlotLayout, openings: int, first: Sequence[Clique]) -> None:
        self.layout = layout
        self.planes = planes_of(layout, openings, first)
        self._used = np.zeros((self.planes, layout.slots), bool)

    @property
    def used(self) -> int:
        """Number of slots used so far."""
        return int(self._used.sum())

    def reserve(self, cliques: Sequence[Clique]) -> list[Piece]:
        """Returns slots, each with noise that was never used.

        Raises RunError if none is left.
        """
        pieces = []
        for start, stop, first in self.layout.runs(cliques):
            for low in _cuts(start, stop, self.layout.slots):
                high = min(stop, (low // self.layout.slots + 1) * self.layout.slots)
                pieces.append(self._reserved(low, high, first + low - start))
        return pieces

    def _reserved(self, low: int, high: int, first: int) -> Piece:
        index, start = divmod(low, self.layout.slots)
        for plane in range(self.planes):
            for copy in range(self.layout.copies):
                at = start + copy * self.layout.length
                here = self._used[plane, at : at + high - low]
                if not here.any():
                    here[:] = True
                    return Piece(index, at, at + high - low, plane, first)
        raise RunError("the encrypted noise that the clients dealt is used up: nothing more is opened")


def planes_of(layout: SlotLayout, openings: int, first: Sequence[Clique]) -> int:
    """Returns a number of planes that is certainly enough.

    Two openings compete for a plane's slots where their slots overlap. With copies (one ciphertext) only openings of
    the same clique do, and one plane serves as many of them as there are copies. Else each piece of an opening, a run
    of slots in one ciphertext, may compete with every other one, and each has a plane to itself in the worst case.
    """
    if layout.ciphertexts == 1:
        return ceil(openings / layout.copies)
    largest = max(stop - start for start, stop in map(layout.range_of, layout.cliques))
    begun = sum(len(_cuts(start, stop, layout.slots)) for start, stop, _ in layout.runs(first))
    return begun + (openings - 1) * (ceil(largest / layout.slots) + 1)


def _cuts(start: int, stop: int, slots: int) -> list[int]:
    """Returns the starts of the parts of [start, stop) in each ciphertext."""
    return [start, *range((start // slots + 1) * slots, stop, slots)]
