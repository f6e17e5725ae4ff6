"""The measurements of a fit laid out once: junction tree, calibrator, what they see of a model, and their scales.

What measurements see of a model: of each clique all cells, or sums over groups of them, in several ways at once.

A fit compares what is measured with A p, p the probabilities of all cells of the measured cliques and A a 0/1 matrix.
Where each clique is measured once and cell by cell, A is the identity, and nothing here does any work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain
from fedsyn.inference.calibrate import Calibrator
from fedsyn.inference.junction_tree import build_tree
from fedsyn.inference.measurements import Merged
from fedsyn.inference.model import Model
from fedsyn.inference.triangulation import axes_of, bits
from fedsyn.table.counting.groups import sums_of_groups

Floats = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]


class Seen:
    """A, as a sum over groups of cells and as its transpose.

    Args:
        offsets: (f + 1,) where each clique's cells begin among all n.
        parts: of each measurement, one after the other: which clique, the group of each of its cells (None: each is its
            own), and how many groups there are.
    """

    def __init__(self, offsets: Sequence[int], parts: Sequence[tuple[int, Groups | None, int]]) -> None:
        self.cells = int(offsets[-1])
        self._parts: list[tuple[slice, slice, Groups | None]] = []
        start = 0
        for factor, groups, length in parts:
            own = slice(start, start + length)
            self._parts.append((own, slice(int(offsets[factor]), int(offsets[factor + 1])), groups))
            start += length
        self.length = start
        self.is_plain = [cells for _, cells, _ in self._parts] == [own for own, _, _ in self._parts] and all(
            groups is None for _, _, groups in self._parts
        )

    def of(self, cells: Floats) -> Floats:
        """(m,) A p, of (n,) p."""
        if self.is_plain:
            return cells
        out = np.empty(self.length)
        for own, where, groups in self._parts:
            part = cells[where]
            out[own] = part if groups is None else sums_of_groups(groups, part, own.stop - own.start)
        return out

    def back(self, values: Floats) -> Floats:
        """(n,) A' r, of (m,) r."""
        if self.is_plain:
            return values
        out = np.zeros(self.cells)
        for own, where, groups in self._parts:
            part = values[own]
            out[where] += part if groups is None else part[groups]
        return out


class Compiled:
    """What the fits of the same cliques have in common, whatever the values are.

    Args:
        domain: all attributes.
        measured: with a clique each; a clique and its groups may come twice.
        total: records.

    Attributes:
        calibrator: its factors are the measured cliques.
        seen: A, from the calibrator's cells to the measured numbers.
        unit: the largest total / sigma. Only the ratios of the scales matter to a solver: kept near one, neither tiny
            nor huge sigmas overflow.
        scale: (m,) total / sigma / unit.
    """

    def __init__(self, domain: Domain, measured: Sequence[Merged], total: float) -> None:
        axes = axes_of(domain)
        self.domain, self.total = domain, total
        self._masks = list(dict.fromkeys(m.mask for m in measured))
        tree = build_tree(axes, [*self._masks, *axes.zeros])
        self.calibrator = Calibrator(tree, self._masks, axes.zeros)
        sizes = [m.values.size for m in measured]
        self.seen = Seen(
            self.calibrator.offsets.tolist(), [(self._masks.index(m.mask), m.index, m.values.size) for m in measured]
        )
        self.unit = max((total / m.sigma for m in measured), default=1.0)
        self.scale = np.repeat([total / m.sigma / self.unit for m in measured], sizes)

    def target(self, values: Iterable[Floats]) -> Floats:
        """(m,) counts of every measurement, as probabilities."""
        return np.concatenate([np.zeros(0), *(table.ravel() / self.total for table in values)])

    def potentials(self, model: Model | None) -> Floats:
        """(n,) a model's potentials on the calibrator's factors."""
        return np.concatenate([np.zeros(0), *(t.ravel() for t in start_potentials(self.domain, self._masks, model))])

    def model(self, theta: Floats) -> Model:
        """The model with these potentials, (n,); it shares no memory with the calibrator."""
        axes = axes_of(self.domain)
        views = zip(self._masks, self.calibrator.views(theta), strict=True)
        return Model(self.domain, {axes.by_rank(mask): table for mask, table in views}, self.total)


def start_potentials(domain: Domain, masks: Sequence[int], model: Model | None) -> list[np.ndarray]:
    """Potentials of a model carried over to other cliques: one table per mask, axes by rank, zero where it has none.

    Each potential goes to the smallest of the masks that contains its clique.
    """
    axes = axes_of(domain)
    tables = {mask: np.zeros(axes.shape(mask)) for mask in masks}
    for mask, table in (model.rank_potentials() if model is not None else {}).items():
        hosts = [other for other in masks if mask & other == mask]
        if hosts:
            host = min(hosts, key=lambda other: (axes.cells(other), other))
            shape = [axes.sizes[rank] if mask >> rank & 1 else 1 for rank in bits(host)]
            tables[host] += table.reshape(shape)
    return [tables[mask] for mask in masks]
