"""The measurements of a fit laid out once: junction tree, calibrator, what they see of a model, and their scales."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.inference.calibrate import Calibrator
from fedsyn.inference.fitting import start_potentials
from fedsyn.inference.junction_tree import build_tree
from fedsyn.inference.measurements import Merged
from fedsyn.inference.model import Model
from fedsyn.inference.seen import Seen
from fedsyn.inference.triangulation import axes_of

Floats = npt.NDArray[np.float64]


class Compiled:
    """What the fits of the same cliques have in common, whatever the values are.

    Args:
        domain: all attributes.
        measured: with a clique each; a clique and its groups may come twice.
        total: records.
        structural: cliques that get a place in the tree without being measured.

    Attributes:
        calibrator: its factors are the measured cliques.
        seen: A, from the calibrator's cells to the measured numbers.
        unit: the largest total / sigma. Only the ratios of the scales matter to a solver: kept near one, neither tiny
            nor huge sigmas overflow.
        scale: (m,) total / sigma / unit.
    """

    def __init__(
        self, domain: Domain, measured: Sequence[Merged], total: float, structural: Iterable[Clique] = ()
    ) -> None:
        axes = axes_of(domain)
        self.domain, self.total = domain, total
        self._masks = list(dict.fromkeys(m.mask for m in measured))
        tree = build_tree(axes, [*self._masks, *axes.zeros, *(axes.mask(clique) for clique in structural)])
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
