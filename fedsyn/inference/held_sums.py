"""Sums that a projection onto distributions must not move.

A fit to signed tables sets negative cells to zero and keeps positive ones. In a cell that is nearly empty this adds a
part of the noise, and in a row of such cells the parts add up: means go towards the tails, coefficients towards zero.
The sums themselves, of a row or of x y over a pair, are known without bias and with far less noise than their cells. So
a fit is moved until it has them, by the exponential family that changes nothing else: the nearest model in relative
entropy (Csiszar 1975). Without it a fit of a hundred iterations has lost 1 to 4% of a slope between two columns of 32
bins, however many rows there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.sparse import csr_array

from fedsyn.domain import Codes, Floats, Integers
from fedsyn.inference.estimation import Compiled
from fedsyn.inference.measurements import MeasuredGrid
from fedsyn.table.counting.sums import dot

# A potential of one may cost a tenth of a sum's noise. What the rest of a table can have costs next to nothing; where
# noise asks for a sum that no table has, it ends the way to potentials without end.
_SLACK = 0.1
# A category's sum is held where its noise moves the category's mean by less than half a standard deviation.
_SURE = 2.0
# Steps of a search at most, and how close to each sum it comes, in noises.
_MOST_STEPS, _CLOSE = 200, 0.05
# Sums whose covariances are looked at, at most: as many as a Cholesky factor takes in a second or two.
_MOST_SUMS = 4096
_BLOCK = 1 << 11
_ROUNDING = 1e-9  # of a covariance of numbers near one
# Steps of the search for counts with a mean of numbers: up to a slope of any count, and to a millionth of it.
_DOUBLINGS, _HALVINGS = 40, 40


class HeldSums:
    """Sums that are known far better than their cells.

    These are the counts of each attribute's values, the first moment of each measured pair of numbers, and the sum of a
    number over the rows of each category: all that a linear or a logistic regression on bins rests on. Each is a
    feature of one grid, with a second moment near one.

    Args:
        grids: of the measurements.
        one_way: rank -> the counts of its values, to scale features by.
        total: records.
        numbers: rank -> the number of each value, NaN of one that has none. Other attributes are categories.

    Attributes:
        features: (k, m), on the numbers of all grids, one after the other.
        noise: (k,) standard deviation that the noise of its grid gives to each sum, as a share of the records.
    """

    def __init__(
        self,
        grids: Sequence[MeasuredGrid],
        one_way: Mapping[int, Floats],
        total: float,
        numbers: Mapping[int, Floats],
    ) -> None:
        self._grids, self._one_way, self._total, self._numbers = grids, one_way, total, numbers
        self._ones, self._pairs = self._hosts(1), self._hosts(2)
        self._starts = np.cumsum([0, *(math.prod(grid.shape) for grid in grids)])
        noise = list[float]()
        rows, columns, values = list[Integers](), list[Integers](), list[Floats]()
        for host, table in self._tables():
            at = np.flatnonzero(table)
            rows.append(np.full(len(at), len(noise)))
            columns.append(self._starts[host] + at)
            values.append(table.ravel()[at])
            noise.append(grids[host].sigma / total * math.sqrt(float(np.add.reduce(table**2, None))))
        entries = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
        self.features = csr_array(entries, shape=(len(noise), int(self._starts[-1])))
        self.noise = np.array(noise)

    def _hosts(self, size: int) -> dict[tuple[int, ...], int]:
        """Returns attributes or pairs with the grid that tells most of each.

        It is the finest one, and of those the smallest.
        """
        hosts: dict[tuple[int, ...], tuple[int, int, int]] = {}
        for i, grid in enumerate(self._grids):
            for part in combinations(grid.ranks, size):
                cells = math.prod(grid.shape[grid.axis_of(rank)] for rank in part)
                hosts[part] = min(hosts.get(part, (1, 0, 0)), (-cells, math.prod(grid.shape), i))
        return {part: host for part, (_, _, host) in hosts.items()}

    def _tables(self) -> Iterator[tuple[int, Floats]]:
        """Yields the number of the grid and the table of each feature."""
        for (rank,), host in self._ones.items():
            grid = self._grids[host]
            for mark in np.diag(self._scales(grid, rank)):
                yield host, np.broadcast_to(grid.across(mark, (rank,)), grid.shape)
        for pair, host in self._pairs.items():
            grid = self._grids[host]
            are_categories = all(rank not in self._numbers for rank in pair)
            first, second = (self._scores(grid, rank, are_categories) for rank in pair)
            for one, other in product(first, second):
                yield host, np.broadcast_to(grid.across(np.multiply.outer(one, other), pair), grid.shape)

    def _scales(self, grid: MeasuredGrid, rank: int) -> Floats:
        """Returns what the mark of each group is multiplied with.

        A group counts as one that its noise would be, at the least.
        """
        counts = grid.of_values(rank, self._one_way[rank])
        least = max(1.0, grid.sigma * math.sqrt(math.prod(grid.shape) / len(counts)))
        return np.sqrt(self._total / np.maximum(counts, least))

    def _scores(self, grid: MeasuredGrid, rank: int, in_order: bool) -> Floats:
        """Returns standard scores of an attribute's groups, (k, groups).

        A number has one, in which a group has the mean of its values; a category has a mark of each but the first. Of a
        pair of categories, values are taken in their order: a sum for each of their cells would be no better known.
        """
        counts = np.maximum(self._one_way[rank], 0.0) + 1e-9  # an empty group has the mean of its values
        values = self._numbers.get(rank, np.arange(len(counts), dtype=np.float64) if in_order else None)
        sizes = grid.of_values(rank, counts)
        if values is None:
            noise = grid.sigma * math.sqrt(math.prod(grid.shape) / len(sizes))
            common = np.flatnonzero(sizes > _SURE * noise)[1:]
            return np.asarray(np.eye(len(sizes))[common] * np.sqrt(self._total / sizes)[common, None])
        known = np.isfinite(values)
        apart = np.where(known, values - np.average(values[known], weights=counts[known]), 0.0)
        scores = grid.of_values(rank, counts * apart) / sizes
        return np.asarray(scores / math.sqrt(np.average(scores**2, weights=sizes) or 1.0))[None]

    def wanted(self, tables: Sequence[Floats], one_way: Mapping[int, Floats]) -> Floats:
        """Returns the sums of signed tables as shares of the records, (k,).

        No count of a value is negative, and the mean of an attribute's numbers is what the signed counts say. Without
        that the mean of a column with long and empty bins would be too large by the noise that stays in them.
        """
        out = self.features @ np.concatenate([table.ravel() for table in tables])
        at = 0
        for (rank,), host in self._ones.items():
            grid = self._grids[host]
            counts = grid.of_values(rank, nearest_counts(one_way[rank], self._numbers.get(rank)))
            out[at : at + len(counts)] = counts * self._scales(grid, rank)
            at += len(counts)
        return np.asarray(out / self._total)

    def spread(self, codes: Codes) -> Floats:
        """Returns a triangular root of the features' covariance, (k, k).

        It is that over rows, with the slack. Where there are too many, only the variance of each counts: (k,).

        Args:
            codes: (n, d) rows of a model, in domain order.
        """
        k = len(self.noise)
        products, sums = np.zeros((k, k) if k <= _MOST_SUMS else k), np.zeros(k)
        columns = self.features.tocsc()
        for block in np.array_split(codes, max(1, len(codes) // _BLOCK)):
            values = np.zeros((k, len(block)))
            for grid, start in zip(self._grids, self._starts, strict=False):
                values += columns[:, start + grid.cells_of(block)].toarray()
            sums += values.sum(axis=1)
            products += values @ values.T if k <= _MOST_SUMS else (values**2).sum(axis=1)
        mean, slack = sums / len(codes), _SLACK * self.noise + _ROUNDING
        if k > _MOST_SUMS:
            return np.asarray(np.sqrt(np.maximum(products / len(codes) - mean**2, 0.0) + slack))
        return np.asarray(cholesky(products / len(codes) - np.outer(mean, mean) + np.diag(slack), lower=True))

    def met(self, compiled: Compiled, theta: Floats, wanted: Floats, spread: Floats) -> Floats:
        """Returns potentials that give a model these sums.

        They minimise log Z(theta + F' w) - w wanted + slack w^2 / 2, which is convex; its gradient is what the model's
        sums have too much of. `spread` brings the steps to one scale.
        """
        from scipy.optimize import minimize  # half a second

        calibrator, slack = compiled.calibrator, _SLACK * self.noise

        def weights_of(steps: Floats) -> Floats:
            return np.asarray(
                solve_triangular(spread, steps, lower=True, trans="T") if spread.ndim > 1 else steps / spread
            )

        def moved(weights: Floats) -> Floats:
            return theta + compiled.seen.back(np.asarray(self.features.T @ weights))

        def height(steps: Floats) -> tuple[float, Floats]:
            weights = weights_of(steps)
            calibrator.theta[...] = moved(weights)
            log_partition = calibrator.run()
            excess = self.features @ compiled.seen.of(calibrator.marginals) - wanted + slack * weights
            slope = solve_triangular(spread, excess, lower=True) if spread.ndim > 1 else excess / spread
            return log_partition - dot(weights, wanted) + 0.5 * dot(weights, slack * weights), np.asarray(slope)

        roots = np.abs(np.diag(spread) if spread.ndim > 1 else spread)
        limits = {"maxiter": _MOST_STEPS, "maxcor": 20, "ftol": 0.0, "gtol": _CLOSE * float((self.noise / roots).min())}
        found = minimize(height, np.zeros(len(self.noise)), jac=True, method="L-BFGS-B", options=limits)
        return moved(weights_of(found.x))


def nearest_counts(counts: Floats, numbers: Floats | None = None) -> Floats:
    """Returns the nearest non-negative numbers with the same sum.

    The sum must be positive (Euclidean projection on a simplex). Counts of numbers keep the mean of these, too, where
    any such counts have it.

    >>> nearest_counts(np.array([50.0, 50, 3, -3])).tolist()
    [49.0, 49.0, 2.0, 0.0]
    >>> nearest_counts(np.array([50.0, 50, 3, -3]), np.array([0.0, 1, 10, 20])).round(3).tolist()
    [80.0, 20.0, 0.0, 0.0]

    Args:
        counts: (values,).
        numbers: (values,) that the values stand for, NaN of one that stands for none; None: they stand for none.
    """
    total = float(np.add.reduce(counts))
    near = _on_simplex(counts, total)
    if numbers is None or counts.min() >= 0.0:
        return near
    known = np.isfinite(numbers)
    mean = float(numbers[known] @ counts[known]) / max(float(np.add.reduce(counts[known])), 1e-9)
    if not known.any() or not numbers[known].min() < mean < numbers[known].max():
        return near
    score = np.where(known, numbers - mean, 0.0)
    score /= np.abs(score).max()

    def tilted(slope: float) -> tuple[Floats, float]:
        """Returns the counts of a slope, and their sum of scores.

        It falls with the slope, and is zero where they have the mean.
        """
        out = _on_simplex(counts - slope * score, total)
        return out, float(score @ out)

    over = float(score @ near)
    low, high = 0.0, math.copysign(1.0, over)
    for _ in range(_DOUBLINGS):
        if tilted(high)[1] * over <= 0.0:
            break
        low, high = high, 2.0 * high
    else:
        return near
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if tilted(middle)[1] * over <= 0.0 else (middle, high)
    return tilted(high)[0]


def _on_simplex(counts: Floats, total: float) -> Floats:
    """Returns the nearest non-negative numbers with a sum, which is positive."""
    ordered = np.sort(counts)[::-1]
    over = (np.cumsum(ordered) - total) / np.arange(1, len(counts) + 1)
    shift = over[np.flatnonzero(ordered > over)[-1]]
    return np.asarray(np.maximum(counts - shift, 0.0))
