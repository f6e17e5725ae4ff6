"""One-way marginals measured at several resolutions.

The resolutions are cells, and sums of 2, 4, 8, ... neighbouring cells.

Independent noise on cells adds up in ranges: the mass below a value has the noise of all cells below it. Measured at
all resolutions under one noise, a range is the sum of a few blocks (Hay, Rastogi, Miklau & Suciu 2010, "Boosting the
Accuracy of Differentially Private Histograms Through Consistency"). Gaussian noise makes that cheap: L resolutions have
the root of L for their sensitivity. At 100 cells the mass below a value has 0.55 of the noise, and a single cell 1.36
times as much (tests/unit/inference/test_hierarchy.py). None of the four papers measures like this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsyn.domain import Codes, Floats, Integers
from fedsyn.table.counting.sums import dot

#: With fewer ordered cells, sums of neighbours cost more accuracy in the cells than they gain in the ranges.
FEWEST_CELLS = 12
# Of a cell; 1 of every larger block. Equal weights make ranges no better, and cells much worse (2.06 instead of 1.36).
_CELL_WEIGHT = 2.0


@dataclass(frozen=True)
class Hierarchy:
    """Sums of neighbouring cells to measure, and their weights.

    One hierarchy belongs to one attribute.

    Attributes:
        size: cells of the attribute.
        ordered: how many of them, the first ones, have an order; the others (a missing value) are in no larger block.
        widths: cells per block, one entry for each resolution; the first is 1, each a multiple of the one before.
        weights: positive factor of each resolution's blocks; integers where they are asked of a client.
    """

    size: int
    ordered: int
    widths: tuple[int, ...] = (1,)
    weights: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.ordered <= self.size:
            raise ValueError("a hierarchy needs at least one cell, of which no more than all are ordered")
        if len(self.widths) != len(self.weights) or not self.widths or self.widths[0] != 1:
            raise ValueError("a hierarchy needs one weight for each width, and 1 as its first width")
        if any(b <= a or b % a for a, b in zip(self.widths, self.widths[1:], strict=False)):
            raise ValueError("each width of a hierarchy must be a multiple of the one before")
        if self.widths[-1] > max(1, self.ordered):
            raise ValueError("a block of a hierarchy must not be wider than the ordered cells")
        if not all(math.isfinite(weight) and weight > 0 for weight in self.weights):
            raise ValueError("the weights of a hierarchy must be positive")

    @classmethod
    def flat(cls, size: int) -> Hierarchy:
        """The cells only."""
        return cls(size, 0)

    @classmethod
    def binary(cls, size: int, ordered: int) -> Hierarchy:
        """Returns blocks of 1, 2, 4, ... cells, down to two blocks.

        Returns the cells alone where that is better for ranges.
        """
        if ordered < FEWEST_CELLS:
            return cls.flat(size)
        widths = tuple(1 << level for level in range((ordered - 1).bit_length()))
        return cls(size, ordered, widths, (_CELL_WEIGHT, *[1.0] * (len(widths) - 1)))

    @property
    def lengths(self) -> list[int]:
        """Blocks of each resolution."""
        return [self.size, *(-(-self.ordered // width) for width in self.widths[1:])]

    @property
    def length(self) -> int:
        return sum(self.lengths)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of `apply`.

        One row lies in one block of each resolution. A row without order lies in one cell.
        """
        return math.sqrt(math.fsum(weight**2 for weight in self.weights))

    @property
    def noise(self) -> float:
        """Approximate standard deviation of a range's answer.

        Without an order it is that of a cell's answer. `apply` is measured with noise of its own sensitivity.

        Least squares over L resolutions with the weights of `binary` give sqrt(L (L + 3)) / 4 for the mass below a
        value, to 15%.
        """
        levels = len(self.widths)
        return 1.0 if levels == 1 else math.sqrt(levels * (levels + 3)) / 4

    def scaled(self, factor: float) -> Hierarchy:
        """Returns these blocks with their weights times a factor.

        The weights are rounded to positive integers.
        """
        weights = tuple(float(max(1, round(weight * factor))) for weight in self.weights)
        return Hierarchy(self.size, self.ordered, self.widths, weights)

    def apply(self, counts: Codes) -> Integers:
        """(length,) weighted sums of (size,) counts, resolution after resolution.

        Raises:
            ValueError: the weights are not integers.
        """
        if not all(weight == int(weight) for weight in self.weights):
            raise ValueError("only integer weights can be applied to counts")
        parts = [counts * int(self.weights[0])]
        for width, weight in zip(self.widths[1:], self.weights[1:], strict=True):
            parts.append(np.add.reduceat(counts[: self.ordered], np.arange(0, self.ordered, width)) * int(weight))
        return np.concatenate(parts).astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class HierarchicalMeasurement:
    """Noisy counts of one attribute's cells and blocks.

    They are `Hierarchy.apply` with noise, divided by the weights.

    Attributes:
        attribute: its name.
        hierarchy: which blocks, with which weights.
        values: (length,) noisy counts, without the weights.
        sigma: standard deviation of the noise of a block of weight 1; that of another is `sigma` / weight.
    """

    attribute: str
    hierarchy: Hierarchy
    values: Floats
    sigma: float

    def __post_init__(self) -> None:
        if np.shape(self.values) != (self.hierarchy.length,) or not np.isfinite(self.values).all():
            raise ValueError(f"the measurement of {self.attribute} must hold one finite number for each block")
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise ValueError(f"sigma of the measurement of {self.attribute} must be positive and finite")

    @property
    def cells(self) -> Floats:
        """Noisy cells alone, (size,).

        Each has noise `cell_sigma`, independent of all else.
        """
        return self.values[: self.hierarchy.size]

    @property
    def cell_sigma(self) -> float:
        return self.sigma / self.hierarchy.weights[0]


class NormalEquations:
    """Least squares over one attribute's measurements.

    Minimises x A x / 2 - b x, where A = sum Q'Q / sigma^2 and b = sum Q'y / sigma^2. A consists of blocks
    within blocks and is never formed.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.right = np.zeros(size)
        self.diagonal = np.zeros(size)
        self._blocks: list[tuple[int, int, float]] = []  # ordered cells, width, precision

    def add_cells(self, values: Floats, precision: float) -> None:
        """Cells with independent noise of variance 1 / precision."""
        self.diagonal += precision
        self.right += precision * values

    def add(self, measurement: HierarchicalMeasurement) -> None:
        tree = measurement.hierarchy
        if tree.size != self.size:
            raise ValueError(f"the measurement of {measurement.attribute} does not have one cell for each value")
        self.add_cells(measurement.cells, measurement.cell_sigma**-2)
        parts = np.split(measurement.values, np.cumsum(tree.lengths)[:-1])
        for width, weight, values in zip(tree.widths[1:], tree.weights[1:], parts[1:], strict=True):
            precision = (weight / measurement.sigma) ** 2
            self.right[: tree.ordered] += precision * np.repeat(values, width)[: tree.ordered]
            self._blocks.append((tree.ordered, width, precision))

    def times(self, x: Floats) -> Floats:
        """A x."""
        out: Floats = self.diagonal * x
        for ordered, width, precision in self._blocks:
            sums = np.add.reduceat(x[:ordered], np.arange(0, ordered, width))
            out[:ordered] += precision * np.repeat(sums, width)[:ordered]
        return out

    @property
    def largest(self) -> float:
        """Upper bound of A's largest eigenvalue.

        It is A's largest row sum, because A has no negative entry.
        """
        return float(self.times(np.ones(self.size)).max())


def least_squares(measurements: Sequence[HierarchicalMeasurement]) -> tuple[Floats, float]:
    """Returns least-variance unbiased counts and a bound of their noise.

    The counts are the (size,) counts of one attribute. The bound holds for each cell.

    Conjugate gradients, which end after about as many steps as there are resolutions; no dense matrix, and the same
    bits for every number of threads. The bound is the noise of the measured cells alone: blocks lower it by at most a
    fifth (measured, up to 1,000 cells).

    Raises:
        ValueError: no measurement, or measurements of different numbers of cells.
    """
    if not measurements:
        raise ValueError("no measurement")
    equations = NormalEquations(measurements[0].hierarchy.size)
    for measurement in measurements:
        equations.add(measurement)
    x = equations.right / equations.diagonal
    residual = equations.right - equations.times(x)
    direction, size = residual, dot(residual, residual)
    enough = 1e-24 * dot(equations.right, equations.right)
    for _ in range(equations.size):
        if size <= enough:
            break
        image = equations.times(direction)
        step = size / dot(direction, image)
        x, residual = x + step * direction, residual - step * image
        previous, size = size, dot(residual, residual)
        direction = residual + (size / previous) * direction
    return x, float(equations.diagonal.min()) ** -0.5
