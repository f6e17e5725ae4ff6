"""Noisy marginals as estimation sees them: merged per clique, with the least-variance total."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique
from fedsyn.inference.triangulation import Axes
from fedsyn.table.counting.groups import Groups, group_of_cells, sums_of_groups
from fedsyn.table.counting.residuals import dimensions, residual

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
            (`fedsyn.table.counting.residuals`), up to noise that says nothing of them. Of two attributes or more.
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
        """How many independent noises the values carry."""
        if self.noises is not None:
            return self.noises
        return dimensions(np.shape(self.values)) if self.beyond else int(np.size(self.values))

    def of_cells(self, table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(k,) what a marginal of the clique, in its shape or flat, has where this measures."""
        flat = np.asarray(table, np.float64).ravel()
        if self.groups is not None:
            index, length = group_of_cells(self.groups)
            flat = sums_of_groups(index, flat, length)
        return residual(flat.reshape(np.shape(self.values))).ravel() if self.beyond else flat


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
    index: npt.NDArray[np.int64] | None = None
    beyond: bool = False


def merge(axes: Axes, measurements: Iterable[Measurement]) -> list[Merged]:
    """One measurement per clique, grouping and kind, sorted by clique; the same bits for every order of the input.

    Measurements of a clique with its attributes permuted count as the same clique. They are
    added in the order of (sigma, values as bytes). Impossible cells (`Domain.impossible`) become 0, but of residuals:
    that is public, and exact, whatever noise was measured there.

    Raises:
        ValueError: wrong shape, a value that is not finite, a sigma that is not positive and finite, or a residual of
            fewer than two attributes.
    """
    found: dict[_Key, list[tuple[float, np.ndarray]]] = {}
    noises: dict[_Key, int] = {}
    indices: dict[_Key, tuple[npt.NDArray[np.int64], int]] = {}
    for measurement in measurements:
        sigma = float(measurement.sigma)
        if not (math.isfinite(sigma) and sigma > 0):
            raise ValueError(f"sigma of the measurement of {measurement.clique} must be positive and finite")
        values, groups = _by_rank(axes, measurement)
        if not np.isfinite(values).all():
            raise ValueError(f"the measurement of {measurement.clique} has values that are not finite")
        key = axes.mask(measurement.clique), b"", measurement.beyond
        if groups is not None:
            made = group_of_cells(groups)
            key = key[0], made[0].tobytes(), measurement.beyond
            indices[key] = made
        found.setdefault(key, []).append((sigma, residual(values) if measurement.beyond else values))
        noises[key] = max(noises.get(key, 0), measurement.count)
    merged = []
    for key in sorted(found):
        mask, own, index = key[0], found[key], indices.get(key)
        cells = None if key[2] else impossible(axes, mask, None if index is None else index[0], own[0][1].shape)
        if cells is not None:
            own = [(sigma, np.where(cells, 0.0, values)) for sigma, values in own]
        one = _merge_one(mask, own, 0 if cells is None else int(cells.sum()))
        one = replace(one, index=None if index is None else index[0], beyond=key[2])
        merged.append(one if noises[key] >= one.noisy else replace(one, noisy=noises[key]))
    return merged


def impossible(
    axes: Axes, mask: int, index: npt.NDArray[np.int64] | None, shape: tuple[int, ...]
) -> npt.NDArray[np.bool_] | None:
    """Which values structural zeros rule out: a group where all of its cells are; None: of no cell of the clique."""
    cells = axes.impossible(mask)
    if cells is None or index is None:
        return cells
    return np.asarray(np.bincount(index, ~cells.ravel(), math.prod(shape)) == 0).reshape(shape)


def _by_rank(axes: Axes, measurement: Measurement) -> tuple[np.ndarray, list[npt.NDArray[np.integer]] | None]:
    """Values and groups with axes by rank; no groups where each value is its own."""
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
    """Minimum-variance unbiased estimate of the number of records, at least 1; 1 where nothing was measured.

    Each clique's possible cells sum to the total with variance cells * sigma^2. As in Private-PGM (McKenna et al.
    2021). Residuals sum to 0 and say nothing of it.
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
