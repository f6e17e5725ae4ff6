"""Sums of look-ups for many cliques in one set of array calls: a small client spends its time in their overhead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class Lookups:
    """For each clique and each of its attributes a table from value to integer; what a row gets is their sum.

    Args:
        axes: of each clique, the columns of its attributes.
        tables: of each clique, one (values,) int64 array per attribute.
        first: number of values of the first column.
    """

    def __init__(
        self, axes: Sequence[tuple[int, ...]], tables: Sequence[Sequence[npt.NDArray[np.int64]]], first: int
    ) -> None:
        flat = [table for own in tables for table in own]
        longest, end = max(map(len, axes), default=0), sum(map(len, flat))
        # A clique without such a place looks up the zeros at the end, by the values of the first column.
        columns = np.zeros((longest, len(axes)), np.int64)
        begins = np.full((longest, len(axes)), end, np.int64)
        position = 0
        for i, (clique, own) in enumerate(zip(axes, tables, strict=True)):
            for place, (axis, table) in enumerate(zip(clique, own, strict=True)):
                columns[place, i], begins[place, i] = axis, position
                position += len(table)
        self._places = list(zip(columns, begins, strict=True))
        self._flat = np.concatenate([*flat, np.zeros(first, np.int64)])

    def sums(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """(n, cliques) int64 of (n, d) codes."""
        total = np.zeros((len(codes), len(self._places[0][0]) if self._places else 0), np.int64)
        for columns, begins in self._places:
            total += self._flat[begins + codes[:, columns]]
        return total
