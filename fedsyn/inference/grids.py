"""The grid that a measurement counts rows on: of each attribute of its clique the values, or groups of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique
from fedsyn.inference.measurements import Measurement, Merged
from fedsyn.inference.model import Model
from fedsyn.inference.triangulation import Axes, bits

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Grid:
    """A clique by rank with the groups of its attributes' values.

    Attributes:
        axes: of the domain.
        mask: the clique.
        groups: of each rank of the mask, the group of each of its values.
        is_fine: whether every value is its own group.
        sigma: of the noise in each group.
        beyond: the values are residuals: they tell nothing of one attribute.
    """

    axes: Axes
    mask: int
    groups: tuple[npt.NDArray[np.int64], ...]
    is_fine: bool
    sigma: float
    beyond: bool = False

    @classmethod
    def of(cls, axes: Axes, one: Merged) -> Grid:
        """Merges measurements whose groups are a product of groups of values."""
        shape = axes.shape(one.mask)
        if one.index is None:
            return cls(axes, one.mask, tuple(np.arange(size) for size in shape), True, one.sigma, one.beyond)
        cells = np.unravel_index(one.index.reshape(shape), one.values.shape)
        own = (np.moveaxis(part, axis, 0).reshape(shape[axis], -1)[:, 0] for axis, part in enumerate(cells))
        return cls(axes, one.mask, tuple(part.astype(np.int64) for part in own), False, one.sigma, one.beyond)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return bits(self.mask)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(own.max()) + 1 for own in self.groups)

    @cached_property
    def clique(self) -> Clique:
        """The attributes, by rank."""
        return self.axes.by_rank(self.mask)

    def axis_of(self, rank: int) -> int:
        return self.ranks.index(rank)

    def across(self, values: Floats, ranks: Sequence[int]) -> Floats:
        """A table over some of the ranks, in their order, with axes of length one for the others."""
        wanted = set(ranks)
        lengths = iter(values.shape)
        return values.reshape([next(lengths) if rank in wanted else 1 for rank in self.ranks])

    def margin(self, table: Floats, ranks: Sequence[int]) -> Floats:
        """Sums over all axes but those of some ranks."""
        wanted = set(ranks)
        out: Floats = np.add.reduce(table, tuple(i for i, rank in enumerate(self.ranks) if rank not in wanted))
        return out

    def of_values(self, rank: int, values: Floats) -> Floats:
        """Sums of one attribute's values in this grid's groups."""
        own = self.groups[self.axis_of(rank)]
        return np.bincount(own, values, int(own.max()) + 1).astype(np.float64)

    def counted(self, codes: npt.NDArray[np.integer]) -> Floats:
        """Counts of rows, (n, d) codes in domain order."""
        columns = [own[codes[:, self.axes.order[rank]]] for rank, own in zip(self.ranks, self.groups, strict=True)]
        cells = np.ravel_multi_index(columns, self.shape)
        return np.bincount(cells, minlength=math.prod(self.shape)).astype(np.float64).reshape(self.shape)

    def projected(self, table: Floats) -> Floats:
        """A marginal of the clique, axes by rank, on this grid."""
        if not self.is_fine:
            for axis, own in enumerate(self.groups):
                sums = np.zeros((self.shape[axis], *np.delete(table.shape, axis)))
                np.add.at(sums, own, np.moveaxis(table, axis, 0))
                table = np.moveaxis(sums, 0, axis)
        return table

    def measurement(self, values: Floats) -> Measurement:
        """These values as a measurement."""
        return Measurement(self.clique, values, self.sigma, groups=None if self.is_fine else self.groups)


def on_grids(model: Model, grids: Sequence[Grid]) -> list[Floats]:
    """A model's counts on each grid, not negative."""
    tables = model.project_many([grid.clique for grid in grids])
    return [np.maximum(grid.projected(table), 0.0) for grid, table in zip(grids, tables, strict=True)]
