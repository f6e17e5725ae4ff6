"""Least squares of overlapping noisy marginals without any sign: unbiased, exact, and quick.

A marginal over a clique q is the sum of its effects: for each subset S of q the part that varies with every attribute
of S and sums to zero along each. With independent noise of one sigma in every cell the effects of one measurement are
independent, and those of S in two measurements estimate the same numbers. So the least squares over all tables (which
need not be positive) are, effect by effect, the inverse-variance means (Xiao et al. 2024, ResidualPlanner, sec. 4).

Residuals (`fedsyn.table.counting.residuals`) have the effects of two attributes and more, with the same noise. Where
groups of values were counted it is the same on the grid of the groups. One-way marginals of values and of groups
are put together by least squares; effects of more attributes only where their groups are the same.
"""

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
from fedsyn.table.counting.workload import subsets

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


def varying(table: Floats) -> Floats:
    """The part of a table that sums to zero along every axis."""
    for axis in range(table.ndim):
        table = table - table.mean(axis=axis, keepdims=True)
    return table


class Effects:
    """Which effects some grids have, and how much each measurement tells of them.

    Args:
        grids: of the measurements; the noise of one is taken as independent in all of its groups.
    """

    def __init__(self, grids: Sequence[Grid]) -> None:
        self.grids = grids
        self._weights: dict[tuple[bytes, ...], list[tuple[int, float]]] = {}
        self._one_way: dict[int, list[tuple[int, float]]] = {}
        for i, grid in enumerate(grids):
            for part in subsets(grid.ranks, 2 if grid.beyond else 1):
                cells = np.prod([grid.shape[grid.axis_of(rank)] for rank in part], dtype=np.float64)
                weight = float(cells / (np.prod(grid.shape, dtype=np.float64) * grid.sigma**2))
                if len(part) == 1:
                    self._one_way.setdefault(part[0], []).append((i, weight))
                else:
                    self._weights.setdefault(_key(grid, part), []).append((i, weight))
        if any(rank not in self._one_way for grid in grids for rank in grid.ranks):
            raise ValueError("residuals were measured of an attribute whose own counts were not")
        self._solved = {rank: self._solver(rank) for rank in self._one_way}

    def one_way(self, values: Sequence[Floats], total: float) -> dict[int, Floats]:
        """Rank -> least-squares counts of its values; they sum to `total`, and may be negative."""
        out = {}
        for rank, given in self._one_way.items():
            right = np.zeros(self.grids[given[0][0]].axes.sizes[rank])
            for i, weight in given:
                grid = self.grids[i]
                right += weight * grid.margin(values[i], (rank,))[grid.groups[grid.axis_of(rank)]]
            solved = self._solved[rank]
            if solved.ndim == 1:  # values alone: a diagonal
                counts = right / solved
                out[rank] = counts + (total - counts.sum()) / len(counts)
            else:
                out[rank] = solved @ np.append(right, total)
        return out

    def tables(self, values: Sequence[Floats], total: float) -> tuple[list[Floats], dict[int, Floats]]:
        """Least-squares tables on every grid, which agree with each other and with `total`, and `one_way`.

        Args:
            values: as measured, on each grid.
            total: records; known.
        """
        ones = self.one_way(values, total)
        means = {
            key: sum(
                (weight * varying(self.grids[i].margin(values[i], self._part(key, i))) for i, weight in given),
                np.zeros(()),
            )
            / sum(weight for _, weight in given)
            for key, given in self._weights.items()
        }
        out = []
        for grid in self.grids:
            table = np.full(grid.shape, total / np.prod(grid.shape, dtype=np.float64))
            for part in subsets(grid.ranks):
                own = varying(grid.of_values(part[0], ones[part[0]])) if len(part) == 1 else means[_key(grid, part)]
                table = table + grid.across(own, part) * (own.size / table.size)
            out.append(table)
        return out, ones

    def _part(self, key: tuple[bytes, ...], i: int) -> tuple[int, ...]:
        return next(part for part in subsets(self.grids[i].ranks, 2) if _key(self.grids[i], part) == key)

    def _solver(self, rank: int) -> Floats:
        """The diagonal of the normal equations; where groups were counted, the inverse with the total's constraint."""
        given = self._one_way[rank]
        size = self.grids[given[0][0]].axes.sizes[rank]
        groups = [(self.grids[i].groups[self.grids[i].axis_of(rank)], weight) for i, weight in given]
        if all(len(own) == int(own.max()) + 1 for own, _ in groups):
            return np.full(size, sum(weight for _, weight in groups))
        system = np.zeros((size + 1, size + 1))
        for own, weight in groups:
            system[:size, :size] += weight * (own[:, None] == own[None, :])
        scale = system[:size, :size].diagonal().max()
        system[:size, size] = system[size, :size] = scale
        inverse = np.asarray(np.linalg.pinv(system, hermitian=True)[:size], np.float64)
        inverse[:, size] *= scale
        return inverse


def _key(grid: Grid, part: tuple[int, ...]) -> tuple[bytes, ...]:
    """An effect on its groups."""
    groups = (grid.groups[grid.axis_of(rank)].tobytes() for rank in part)
    return (repr(part).encode(), *groups)
