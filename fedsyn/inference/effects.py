"""Least squares of overlapping noisy marginals without any sign: unbiased, exact, and quick.

A marginal over a clique q is the sum of its effects: for each subset S of q the part that varies with every attribute of
S and sums to zero along each. With independent noise of one sigma in every cell the effects of one measurement are
independent, and those of S in two measurements estimate the same numbers. So the least squares over all tables (which
need not be positive) are, effect by effect, the inverse-variance means (Xiao et al. 2024, ResidualPlanner, sec. 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedsyn.inference.calibrate import broadcast_shape
from fedsyn.inference.measurements import Merged
from fedsyn.inference.triangulation import Axes, bits

Floats = npt.NDArray[np.float64]


def subsets(mask: int) -> list[int]:
    """All subsets of a mask, the empty one and itself included."""
    out, part = [mask], mask
    while part:
        part = (part - 1) & mask
        out.append(part)
    return out


def effect(table: Floats, mask: int, keep: int) -> Floats:
    """The part of a marginal over `mask` that varies with every attribute of `keep`, axes by rank, of `keep`."""
    axis = 0
    for rank in bits(mask):
        if keep >> rank & 1:
            table = table - table.mean(axis=axis, keepdims=True)
            axis += 1
        else:
            table = table.sum(axis=axis)
    return np.asarray(table)


class Effects:
    """Which effects some measured cliques have, and how much each measurement tells of them.

    Args:
        axes: of the domain.
        measured: one measurement per clique; its noise is taken as independent in all cells.
    """

    def __init__(self, axes: Axes, measured: Sequence[Merged]) -> None:
        self.axes = axes
        self._weights: dict[int, list[tuple[int, float]]] = {}
        for one in measured:
            for part in subsets(one.mask):
                weight = axes.cells(part) / (axes.cells(one.mask) * one.sigma**2)
                self._weights.setdefault(part, []).append((one.mask, weight))

    def tables(self, values: Mapping[int, Floats], total: float, wanted: Iterable[int]) -> dict[int, Floats]:
        """Least-squares marginals of some cliques inside measured ones; they agree with each other, and with `total`.

        Args:
            values: clique -> measured table, axes by rank.
            total: records; known.
            wanted: masks.
        """
        found: dict[int, Floats] = {0: np.asarray(float(total))}
        out = {}
        for mask in wanted:
            table = np.zeros(self.axes.shape(mask))
            for part in subsets(mask):
                if part not in found:
                    found[part] = self._mean(values, part)
                shape = broadcast_shape(self.axes, part, mask)
                table += found[part].reshape(shape) * (self.axes.cells(part) / self.axes.cells(mask))
            out[mask] = table
        return out

    def _mean(self, values: Mapping[int, Floats], part: int) -> Floats:
        given = self._weights[part]
        total = sum(weight for _, weight in given)
        sums = [weight / total * effect(values[mask], mask, part) for mask, weight in given]
        return np.asarray(sum(sums[1:], sums[0]))
