"""Residues as a fit takes them: with the one-way marginals that were measured beside them.

A fit to noisy residues alone would move one-way marginals to make room for noise that no table has: a count that noise
makes negative costs less where its row and column are fuller. Their own measurements, with noise of their own, do not
hold them. So a fit is asked for the whole marginal, its residue as measured and its parts as their least squares: they
agree with the own measurements, and hold what noise in the residue would move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedsyn.inference.effects import Effects
from fedsyn.inference.grids import Grid
from fedsyn.inference.measurements import Merged, impossible
from fedsyn.inference.triangulation import Axes

Floats = npt.NDArray[np.float64]


def completed(axes: Axes, merged: Sequence[Merged], total: float) -> list[Merged]:
    """Residues as counts, with as many noises as they had; all else as it is, and every clique and grouping once.

    Args:
        axes: of the domain.
        merged: what was measured.
        total: records.
    """
    if not any(m.beyond for m in merged):
        return list(merged)
    counted = [m for m in merged if m.mask and not m.beyond]
    ones = Effects([Grid.of(axes, m) for m in counted]).one_way([m.values for m in counted], total)
    return [_with_parts(axes, m, ones, total) if m.beyond else m for m in merged]


def _with_parts(axes: Axes, one: Merged, ones: Mapping[int, Floats], total: float) -> Merged:
    """The counts that have this residue and these one-way marginals; an attribute that has none is even."""
    grid = Grid.of(axes, one)
    values = one.values + total / one.values.size
    for axis, rank in enumerate(grid.ranks):
        counts = ones.get(rank, np.full(axes.sizes[rank], total / axes.sizes[rank]))
        own = grid.of_values(rank, counts) - total / grid.shape[axis]
        values = values + grid.across(own, (rank,)) * (len(own) / values.size)
    barred, noisy = impossible(axes, one.mask, one.index, values.shape), one.noisy
    if barred is not None:
        values, noisy = np.where(barred, 0.0, values), min(noisy, values.size - int(barred.sum()))
    return replace(one, values=values, noisy=noisy, beyond=False)


__all__ = ["completed"]
