"""What measurements see of a model: of each clique all cells, or sums over groups of them, in several ways at once.

A fit compares what is measured with A p, p the probabilities of all cells of the measured cliques. A adds up groups of
cells and, where residues were measured, projects the sums (`fedsyn.counting.residues`). Where each clique is measured
once and cell by cell, A is the identity, and nothing here does any work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedsyn.counting.groups import sums_of_groups
from fedsyn.counting.residues import cost, residue

Floats = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]


class Seen:
    """A, as sums over groups of cells and their projections, and as its transpose.

    Args:
        offsets: (f + 1,) where each clique's cells begin among all n.
        parts: of each measurement, one after the other: which clique, the group of each of its cells (None: each is its
            own), the groups' shape, and whether residues were measured.
    """

    def __init__(
        self, offsets: Sequence[int], parts: Sequence[tuple[int, Groups | None, tuple[int, ...], bool]]
    ) -> None:
        self.cells = int(offsets[-1])
        self._parts: list[tuple[slice, slice, Groups | None, tuple[int, ...] | None]] = []
        start = 0
        for factor, groups, shape, beyond in parts:
            own = slice(start, start + math.prod(shape))
            cells = slice(int(offsets[factor]), int(offsets[factor + 1]))
            self._parts.append((own, cells, groups, shape if beyond else None))
            start = own.stop
        self.length = start
        self.is_plain = all(own == cells and groups is beyond is None for own, cells, groups, beyond in self._parts)

    def of(self, cells: Floats) -> Floats:
        """(m,) A p, of (n,) p."""
        if self.is_plain:
            return cells
        out = self.counts(cells)
        for own, _, _, shape in self._parts:
            if shape is not None:
                out[own] = residue(out[own].reshape(shape)).ravel()
        return out

    def counts(self, cells: Floats) -> Floats:
        """(m,) the sums over groups that A p is made of, before any projection."""
        out = np.empty(self.length)
        for own, where, groups, _ in self._parts:
            part = cells[where]
            out[own] = part if groups is None else sums_of_groups(groups, part, own.stop - own.start)
        return out

    @cached_property
    def told(self) -> Floats:
        """(m,) how many numbers each value tells: 1, of residues fewer."""
        out = np.ones(self.length)
        for own, _, _, shape in self._parts:
            if shape is not None:
                out[own] = cost(shape)
        return out

    def back(self, values: Floats) -> Floats:
        """(n,) A' r, of (m,) r."""
        if self.is_plain:
            return values
        out = np.zeros(self.cells)
        for own, where, groups, shape in self._parts:
            part = values[own] if shape is None else residue(values[own].reshape(shape)).ravel()
            out[where] += part if groups is None else part[groups]
        return out


__all__ = ["Seen"]
