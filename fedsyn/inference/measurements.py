"""Noisy marginals: merged for a fit, their least squares, a run's evidence.

Least squares without any sign are unbiased, exact, and quick. A marginal over a clique q is the sum of its effects: for
each subset S of q the part that varies with every attribute of S and sums to zero along each. With independent noise of
one sigma in every cell the effects of one measurement are independent, and those of S in two measurements estimate the
same numbers. So the least squares over all tables (which need not be positive) are, effect by effect, the
inverse-variance means (Xiao et al. 2024, ResidualPlanner, sec. 4).

Residuals (`fedsyn.table.counting.sums`) have the effects of two attributes and more, with the same noise. Where groups
of values were counted it is the same on the grid of the groups. One-way marginals of values and of groups are put
together by least squares; effects of more attributes only where their groups are the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Codes, Domain, Flags, Floats, Integers
from fedsyn.errors import ProtocolError
from fedsyn.inference.junction_tree import Axes, axes_of, bits
from fedsyn.table.counting.sums import Groups, dimensions, group_of_cells, residual, sums_of_groups
from fedsyn.table.counting.workload import subsets

# What is measured: a clique, its groups, whether the values are residuals.
_Key = tuple[int, bytes, bool]


@dataclass(frozen=True, eq=False)
class Measurement:
    """A noisy marginal.

    Attributes:
        clique: distinct attributes, in any order; () measures the total.
        values: noisy COUNTS, of shape `domain.shape_of(clique)` (or flat, in C order).
        sigma: standard deviation of the noise in each cell, in records; positive.
        noises: how many independent noises the values carry: what a fit expects noise to leave of them, in units of
            sigma^2; None: one a value. Fewer where values of groups were spread over cells (`fedsyn.selection.coarse`).
        groups: of each attribute of the clique, the group of each value, 0 to its number of groups: `values` are then
            the counts of groups, in the groups' shape. None: each value is its own.
        share: of the federation's rows, those that were counted; the values stand for all of them. A fit ignores it.
        beyond: `values` are what the counts have beyond their one-way marginals and total
            (`fedsyn.table.counting.sums`), up to noise that says nothing of them. Of two attributes or more.
    """

    clique: Clique
    values: np.ndarray
    sigma: float
    noises: int | None = None
    groups: Groups | None = None
    share: float = 1.0
    beyond: bool = False

    @property
    def count(self) -> int:
        """Number of independent noises that the values carry."""
        if self.noises is not None:
            return self.noises
        return dimensions(np.shape(self.values)) if self.beyond else int(np.size(self.values))

    def of_cells(self, table: Floats) -> Floats:
        """Returns what this would measure of a marginal, without noise, (k,).

        The marginal is that of the clique, in its shape or flat.
        """
        flat = np.asarray(table, np.float64).ravel()
        if self.groups is not None:
            index, length = group_of_cells(self.groups)
            flat = sums_of_groups(index, flat, length)
        return residual(flat.reshape(np.shape(self.values))).ravel() if self.beyond else flat

    def to_mbi(self) -> Any:
        """Returns this measurement as a `LinearMeasurement` of Private-PGM's package mbi.

        Its query sums over groups and forms residuals, where those were measured. It needs the extra `pgm`.
        """
        from fedsyn.inference.mbi_forms import linear_measurement

        more = {"beyond": self.beyond, "noises": self.noises, "share": self.share}
        return linear_measurement(self.clique, self.values, self.sigma, self.groups, **more)

    @classmethod
    def from_mbi(cls, theirs: Any) -> Measurement:
        """Reads a `LinearMeasurement` of mbi's.

        Raises:
            ValueError: its query is none of cells, and none of `to_mbi`.
        """
        from fedsyn.inference.mbi_forms import facts_of_measurement

        return cls(**facts_of_measurement(theirs))


@dataclass(frozen=True, eq=False)
class Merged:
    """All measurements of one clique as one: the inverse-variance mean.

    Attributes:
        mask: the clique.
        values: mean, axes by rank, C-contiguous.
        sigma: standard deviation of the mean.
        disagreement: 1/2 sum_i ||(y_i - mean)/sigma_i||^2, the part of the loss that no model can lower.
        noisy: number of values that were measured: those that structural zeros rule out are known to be 0. Fewer, where
            none of the measurements has so many noises.
        index: (cells,) group of each cell, axes by rank, in C order; None: each is its own.
        beyond: the values are residuals.
    """

    mask: int
    values: np.ndarray
    sigma: float
    disagreement: float
    noisy: int
    index: Integers | None = None
    beyond: bool = False


def merge(axes: Axes, measurements: Iterable[Measurement]) -> list[Merged]:
    """Merges measurements of one clique, grouping and kind.

    The result is sorted by clique, with the same bits for every order of the input: measurements are added in the order
    of (sigma, values as bytes). Permuted attributes make no other clique. Impossible cells (`Domain.impossible`) become
    0, unless of residuals: that is public, and exact, whatever noise was measured there.

    Raises:
        ValueError: wrong shape, a value that is not finite, a sigma that is not positive and finite, or a residual of
            fewer than two attributes.
    """
    by_key: dict[_Key, list[tuple[float, np.ndarray]]] = {}
    noises: dict[_Key, int] = {}
    indices: dict[_Key, tuple[Integers, int]] = {}
    # Check each measurement, and collect those of one clique, grouping and kind.
    for measurement in measurements:
        sigma = float(measurement.sigma)
        if not (math.isfinite(sigma) and sigma > 0):
            raise ValueError(f"sigma of the measurement of {measurement.clique} must be positive and finite")
        values, groups = _by_rank(axes, measurement)
        if not np.isfinite(values).all():
            raise ValueError(f"the measurement of {measurement.clique} has values that are not finite")
        key = axes.mask(measurement.clique), b"", measurement.beyond
        if groups is not None:
            grouping = group_of_cells(groups)
            key = key[0], grouping[0].tobytes(), measurement.beyond
            indices[key] = grouping
        by_key.setdefault(key, []).append((sigma, residual(values) if measurement.beyond else values))
        noises[key] = max(noises.get(key, 0), measurement.count)
    # Clear impossible cells, and merge each collection.
    merged = []
    for key in sorted(by_key):
        mask, repeats, index = key[0], by_key[key], indices.get(key)
        cells = None if key[2] else impossible(axes, mask, None if index is None else index[0], repeats[0][1].shape)
        if cells is not None:
            repeats = [(sigma, np.where(cells, 0.0, values)) for sigma, values in repeats]
        one = _merge_one(mask, repeats, 0 if cells is None else int(cells.sum()))
        one = replace(one, index=None if index is None else index[0], beyond=key[2])
        merged.append(one if noises[key] >= one.noisy else replace(one, noisy=noises[key]))
    return merged


def impossible(axes: Axes, mask: int, index: Integers | None, shape: tuple[int, ...]) -> Flags | None:
    """Marks the values that structural zeros rule out.

    A group is ruled out if all of its cells are. The result is None if no zeros concern the clique.
    """
    cells = axes.impossible(mask)
    if cells is None or index is None:
        return cells
    return np.asarray(np.bincount(index, ~cells.ravel(), math.prod(shape)) == 0).reshape(shape)


def _by_rank(axes: Axes, measurement: Measurement) -> tuple[np.ndarray, list[Codes] | None]:
    """Returns values and groups with axes by rank.

    Groups are None if each value is its own.
    """
    clique = tuple(measurement.clique)
    if measurement.beyond and len(clique) < 2:
        raise ValueError(f"the measurement of {clique} is of a residual, which fewer than two attributes do not have")
    if len(set(clique)) != len(clique):
        raise ValueError(f"the measured clique {clique} names an attribute twice")
    shape, groups = axes.domain.shape_of(clique), measurement.groups
    if groups is not None:
        whole = tuple(map(len, groups)) == shape and all(g.dtype.kind in "ui" and int(g.min()) >= 0 for g in groups)
        if not whole:
            raise ValueError(f"the measurement of {clique} needs a group for each value of each attribute")
        shape = tuple(int(g.max()) + 1 for g in groups)
    values = np.asarray(measurement.values, dtype=np.float64)
    if values.shape != shape and values.shape != (math.prod(shape),):
        raise ValueError(f"the measurement of {clique} has shape {values.shape}, its clique has {shape}")
    order = sorted(range(len(clique)), key=lambda axis: axes.rank[clique[axis]])
    ranked = np.ascontiguousarray(values.reshape(shape).transpose(order)).reshape([shape[axis] for axis in order])
    if groups is None or all(np.array_equal(g, np.arange(len(g))) for g in groups):
        return ranked, None
    return ranked, [groups[axis] for axis in order]


def _merge_one(mask: int, group: list[tuple[float, np.ndarray]], known: int) -> Merged:
    noisy = group[0][1].size - known
    if len(group) == 1:
        sigma, values = group[0]
        return Merged(mask, values, sigma, 0.0, noisy)
    group = sorted(group, key=lambda pair: (pair[0], pair[1].tobytes()))
    # Relative to the smallest sigma, so that very small ones do not overflow.
    smallest = group[0][0]
    weights = [(smallest / sigma) ** 2 for sigma, _ in group]
    weight = math.fsum(weights)
    mean = sum((w * values for w, (_, values) in zip(weights, group, strict=True)), np.zeros(())) / weight
    disagreement = math.fsum(
        0.5 * float(np.add.reduce(((values - mean) / sigma) ** 2, None)) for sigma, values in group
    )
    return Merged(mask, np.asarray(mean), smallest / math.sqrt(weight), disagreement, noisy)


def least_variance_total(merged: Iterable[Merged]) -> float:
    """Returns the least-variance unbiased number of records, at least 1.

    It is 1 if nothing was measured. Each clique's possible cells sum to the total with variance cells * sigma^2, as in
    Private-PGM (McKenna et al. 2021). Residuals sum to 0 and say nothing of it.
    """
    sums, variances = [], []
    for measurement in (m for m in merged if not m.beyond):
        sums.append(float(np.add.reduce(measurement.values, None)))
        variances.append(measurement.sigma**2 * measurement.noisy)
    if not sums:
        return 1.0
    least = min(variances)
    weights = [least / variance if variance > 0 else 1.0 for variance in variances]
    mean = math.fsum(w * s for w, s in zip(weights, sums, strict=True)) / math.fsum(weights)
    return max(1.0, mean)


# Effects: least squares without any sign ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MeasuredGrid:
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
    groups: tuple[Integers, ...]
    is_fine: bool
    sigma: float
    beyond: bool = False

    @classmethod
    def of(cls, axes: Axes, one: Merged) -> MeasuredGrid:
        """Returns the grid of measurements whose groups are a product of groups."""
        shape = axes.shape(one.mask)
        if one.index is None:
            return cls(axes, one.mask, tuple(np.arange(size) for size in shape), True, one.sigma, one.beyond)
        cells = np.unravel_index(one.index.reshape(shape), one.values.shape)
        groups = (np.moveaxis(part, axis, 0).reshape(shape[axis], -1)[:, 0] for axis, part in enumerate(cells))
        return cls(axes, one.mask, tuple(part.astype(np.int64) for part in groups), False, one.sigma, one.beyond)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return bits(self.mask)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(groups.max()) + 1 for groups in self.groups)

    @cached_property
    def clique(self) -> Clique:
        """The attributes, by rank."""
        return self.axes.by_rank(self.mask)

    def axis_of(self, rank: int) -> int:
        return self.ranks.index(rank)

    def across(self, values: Floats, ranks: Sequence[int]) -> Floats:
        """Returns a table of some ranks, ready to broadcast.

        Its ranks keep their order; the others get axes of length one.
        """
        wanted = set(ranks)
        lengths = iter(values.shape)
        return values.reshape([next(lengths) if rank in wanted else 1 for rank in self.ranks])

    def margin(self, table: Floats, ranks: Sequence[int]) -> Floats:
        """Sums over all axes but those of some ranks."""
        wanted = set(ranks)
        out: Floats = np.add.reduce(table, tuple(i for i, rank in enumerate(self.ranks) if rank not in wanted))
        return out

    def of_values(self, rank: int, values: Floats) -> Floats:
        """Sums one attribute's values in this grid's groups."""
        groups = self.groups[self.axis_of(rank)]
        return np.bincount(groups, values, int(groups.max()) + 1).astype(np.float64)

    def cells_of(self, codes: Codes) -> Integers:
        """Returns the cells of rows, (n,).

        Rows are (n, d) codes in domain order."""
        columns = [
            groups[codes[:, self.axes.order[rank]]] for rank, groups in zip(self.ranks, self.groups, strict=True)
        ]
        return np.ravel_multi_index(columns, self.shape)

    def counted(self, codes: Codes) -> Floats:
        """Counts rows, (n, d) codes in domain order."""
        counts = np.bincount(self.cells_of(codes), minlength=math.prod(self.shape))
        return counts.astype(np.float64).reshape(self.shape)

    def projected(self, table: Floats) -> Floats:
        """Projects the clique's marginal, axes by rank, onto this grid."""
        if not self.is_fine:
            for axis, groups in enumerate(self.groups):
                sums = np.zeros((self.shape[axis], *np.delete(table.shape, axis)))
                np.add.at(sums, groups, np.moveaxis(table, axis, 0))
                table = np.moveaxis(sums, 0, axis)
        return table

    def measurement(self, values: Floats) -> Measurement:
        """Returns these values as a measurement."""
        return Measurement(self.clique, values, self.sigma, groups=None if self.is_fine else self.groups)


def varying(table: Floats) -> Floats:
    """Returns the part that sums to zero along every axis."""
    for axis in range(table.ndim):
        table = table - table.mean(axis=axis, keepdims=True)
    return table


class LeastSquares:
    """Effects that some grids have, weighted by precision.

    Args:
        grids: of the measurements; the noise of one is taken as independent in all of its groups.
    """

    def __init__(self, grids: Sequence[MeasuredGrid]) -> None:
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
        """Returns least-squares counts of each attribute's values, by rank.

        They sum to `total` and may be negative.
        """
        out = {}
        for rank, sources in self._one_way.items():
            right = np.zeros(self.grids[sources[0][0]].axes.sizes[rank])
            for i, weight in sources:
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
        """Returns least-squares tables on every grid, and `one_way`.

        All agree with each other and with `total`.

        Args:
            values: as measured, on each grid.
            total: records; known.
        """
        ones = self.one_way(values, total)
        means = {
            key: sum(
                (weight * varying(self.grids[i].margin(values[i], self._part(key, i))) for i, weight in sources),
                np.zeros(()),
            )
            / sum(weight for _, weight in sources)
            for key, sources in self._weights.items()
        }
        out = []
        for grid in self.grids:
            table = np.full(grid.shape, total / np.prod(grid.shape, dtype=np.float64))
            for part in subsets(grid.ranks):
                effect = varying(grid.of_values(part[0], ones[part[0]])) if len(part) == 1 else means[_key(grid, part)]
                table = table + grid.across(effect, part) * (effect.size / table.size)
            out.append(table)
        return out, ones

    def _part(self, key: tuple[bytes, ...], i: int) -> tuple[int, ...]:
        return next(part for part in subsets(self.grids[i].ranks, 2) if _key(self.grids[i], part) == key)

    def _solver(self, rank: int) -> Floats:
        """Returns the diagonal of an attribute's normal equations.

        If groups were counted, it returns their inverse with the total's constraint instead.
        """
        sources = self._one_way[rank]
        size = self.grids[sources[0][0]].axes.sizes[rank]
        weighted = [(self.grids[i].groups[self.grids[i].axis_of(rank)], weight) for i, weight in sources]
        if all(len(groups) == int(groups.max()) + 1 for groups, _ in weighted):
            return np.full(size, sum(weight for _, weight in weighted))
        system = np.zeros((size + 1, size + 1))
        for groups, weight in weighted:
            system[:size, :size] += weight * (groups[:, None] == groups[None, :])
        scale = system[:size, :size].diagonal().max()
        system[:size, size] = system[size, :size] = scale
        inverse = np.asarray(np.linalg.pinv(system, hermitian=True)[:size], np.float64)
        inverse[:, size] *= scale
        return inverse


def _key(grid: MeasuredGrid, part: tuple[int, ...]) -> tuple[bytes, ...]:
    """Returns the key of an effect: its attributes and their groups."""
    groups = (grid.groups[grid.axis_of(rank)].tobytes() for rank in part)
    return (repr(part).encode(), *groups)


# Evidence: what a run keeps of them -----------------------------------------------------------------------------------


_FORMAT = 1
_MOST_CELLS = 1 << 27  # of a measured clique


@dataclass(frozen=True, eq=False)
class Evidence:
    """Noisy sums as released, and what is known of their noise.

    Attributes:
        measurements: noisy marginals in counts of the whole federation.
        total: records, as released.
    """

    measurements: tuple[Measurement, ...]
    total: float

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns arrays for an npz file.

        They are `evidence` (uint8, JSON), and all `values` and all `groups` (uint32) one after the other.
        """
        head = {
            "format": _FORMAT,
            "total": float(self.total).hex(),
            "measurements": [
                {
                    "clique": list(m.clique),
                    "sigma": float(m.sigma).hex(),
                    "noises": m.noises,
                    "share": float(m.share).hex(),
                    "groups": m.groups is not None,
                    "beyond": m.beyond,
                }
                for m in self.measurements
            ],
        }
        values = [np.asarray(m.values, np.float64).ravel() for m in self.measurements]
        groups = [np.asarray(of_axis, np.uint32) for m in self.measurements for of_axis in m.groups or ()]
        return {
            "evidence": np.frombuffer(json.dumps(head).encode(), np.uint8).copy(),
            "values": np.concatenate([np.zeros(0), *values]),
            "groups": np.concatenate([np.zeros(0, np.uint32), *groups]),
        }

    @classmethod
    def from_arrays(cls, domain: Domain, arrays: Mapping[str, npt.NDArray[Any]]) -> Evidence:
        """Reads what `to_arrays` described, bit for bit.

        Raises:
            ProtocolError: the arrays are malformed or belong to another domain.
        """
        try:
            head = json.loads(np.asarray(arrays["evidence"], np.uint8).tobytes())
            if head["format"] != _FORMAT:
                raise ProtocolError(f"unknown format {head['format']!r} of measurements; this version reads {_FORMAT}")
            values, groups = _Pieces(arrays["values"]), _Pieces(arrays["groups"])
            measurements = tuple(_measurement(domain, one, values, groups) for one in head["measurements"])
            merge(axes_of(domain), measurements)  # refuses what no fit could take
            total = float.fromhex(head["total"])
            if not (values.is_done and groups.is_done and 0 < total < float("inf")):
                raise ValueError("other sizes than the head says, or no total")
            return cls(measurements, total)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ProtocolError("the stored measurements are malformed") from error


class _Pieces:
    """A flat array, taken piece by piece."""

    def __init__(self, flat: npt.NDArray[Any]) -> None:
        self._flat, self._at = np.asarray(flat).ravel(), 0

    def take(self, size: int) -> npt.NDArray[Any]:
        self._at += size
        if self._at > len(self._flat):
            raise ValueError("too short")
        return self._flat[self._at - size : self._at]

    @property
    def is_done(self) -> bool:
        return self._at == len(self._flat)


def _measurement(domain: Domain, head: Mapping[str, Any], values: _Pieces, groups: _Pieces) -> Measurement:
    clique = tuple(map(str, head["clique"]))
    shape, noises, share = domain.shape_of(clique), head["noises"], float.fromhex(head["share"])
    if not 0 < share <= 1 or not (noises is None or (type(noises) is int and noises > 0)):
        raise ValueError("a share or a number of noises that cannot be")
    if domain.size(clique) > _MOST_CELLS:
        raise ValueError("a clique that no fit can take")
    grouping = None
    if head["groups"]:
        grouping = tuple(groups.take(size).astype(np.int64) for size in shape)
        if any(len(part) and int(part.max()) >= len(part) for part in grouping):
            raise ValueError("more groups than values")
        shape = tuple(int(part.max()) + 1 for part in grouping)
    taken = np.asarray(values.take(int(np.prod(shape, dtype=np.int64))), np.float64).reshape(shape)
    beyond = head.get("beyond", False)  # runs of before do not say
    if type(beyond) is not bool:
        raise ValueError("residuals or not")
    return Measurement(clique, taken, float.fromhex(head["sigma"]), noises, grouping, share, beyond)
