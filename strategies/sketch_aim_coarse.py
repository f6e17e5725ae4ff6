"""sketch_aim in groups of values: what is measured in how many of them, and one-way marginals at several resolutions.

The part of `strategies/sketch_aim.py` that turns a plan into a request. Marginals are measured without what their parts
say of them: `fedsyn/counting/residues.py`. Groups are functions of released one-way
marginals: `fedsyn/selection/resolution.py` says how many are worth their noise, `fedsyn/selection/coarse.py` what a
client counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedsyn.counting.groups import Groups
from fedsyn.counting.residues import cost
from fedsyn.inference import Measurement
from fedsyn.plugins.clients.sketch_aim import SketchAimContract
from fedsyn.plugins.clients.sketch_aim_cohorts import FINEST
from fedsyn.plugins.clients.sketch_aim_rounds import Residues, residue_weights
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.selection.coarse import Coarse
from fedsyn.selection.planning import Errors
from fedsyn.selection.resolution import Resolutions
from fedsyn.wire.requests import Summed

#: One part of a request: a candidate, the groups it is counted in (None: cells), and its mu^2.
Look = tuple[int, Groups | None, float]


class InGroups(MechanismStrategy):
    """A clique is measured in the groups with which its first measurement was planned, as often as it is."""

    contract: SketchAimContract

    @cached_property
    def resolutions(self) -> Resolutions:
        """Resolutions from the first model; every later round keeps them."""
        assert self.model is not None
        mass = {name: self.model.project((name,)) for name in self.domain}
        return Resolutions(self.domain, mass, beyond=True)

    @cached_property
    def measured_in(self) -> dict[int, int]:
        """Candidate -> step on its ladder, of those that were measured in groups."""
        return {}

    def graded(self, errors: Errors) -> Errors:
        """The errors with what residues cost, and with what groups would save and miss."""
        ladders, cliques = self.resolutions, self.candidates.cliques
        return replace(
            errors,
            costs=self.prices,
            ladder=lambda i: ladders.ladder(cliques[i]),
            rows=self.total,
            steps=dict(self.measured_in),
        )

    @cached_property
    def prices(self) -> npt.NDArray[np.float64]:
        """(m,) mu^2 that 1/sigma^2 = 1 costs of each candidate's residue in cells."""
        return np.array([cost(self.domain.shape_of(clique)) for clique in self.candidates.cliques])

    def keep_steps(self, errors: Errors, measured: Iterable[int]) -> None:
        """Notes in which groups these candidates are measured from now on."""
        self.measured_in.update({i: errors.steps[i] for i in measured if i in errors.steps})

    def asked(self, plan: Mapping[int, float]) -> tuple[Residues, float, Coarse | None]:
        """The request for a plan, the noise on its vector, and its groups; None where all is measured in cells."""
        looks = self.looks(plan)
        which, budgets = [i for i, _, _ in looks], [budget for _, _, budget in looks]
        made = None if all(groups is None for _, groups, _ in looks) else self.in_groups(looks)
        return *self.request(which, budgets, made), made

    def request(self, which: list[int], budgets: list[float], made: Coarse | None) -> tuple[Residues, float]:
        """Return the request for these candidates, in these groups, and the noise on its vector."""
        sent = [] if made is None else [list(shape) for shape in made.shapes]
        shapes = [self.domain.shape_of(self.candidates.cliques[i]) for i in which] if made is None else made.shapes
        weights, sigma = residue_weights(budgets, shapes, FINEST)
        return Residues(shapes=sent, cliques=which, weights=weights), sigma

    def in_groups(self, looks: Sequence[Look]) -> Coarse:
        """The candidates in the groups that they are counted in."""
        cliques = [self.candidates.cliques[i] for i, _, _ in looks]
        own = [tuple(np.arange(size) for size in self.domain.shape_of(clique)) for clique in cliques]
        groups = [cells if coarse is None else coarse for cells, (_, coarse, _) in zip(own, looks, strict=True)]
        return Coarse.in_groups(self.domain, cliques, groups)

    def looks(self, plan: Mapping[int, float]) -> list[Look]:
        """Return each candidate as it is measured, in cells or in groups, with its mu^2."""
        cliques, steps = self.candidates.cliques, self.measured_in
        return [
            (i, self.resolutions.groups(cliques[i], steps[i]) if i in steps else None, mu2) for i, mu2 in plan.items()
        ]

    def opened_first(self, sums: Summed) -> list[Measurement]:
        """The one-way marginals of the first look, each with its own noise."""
        ones, factors = [(name,) for name in self.domain], self.contract.factors
        if factors is None or not self.is_open(sums, "one-way marginals"):
            return self.opened(sums, ones)
        parts = np.split(sums.arrays[0], np.cumsum(self.domain.shape)[:-1])
        values = [part / f for part, f in zip(parts, factors, strict=True)]
        apart = replace(sums, arrays=values, sigmas=tuple(sums.sigmas[0] / f for f in factors))
        return [self.residue_of(one) for one in self.opened(apart, ones)]

    def residue_of(self, measured: Measurement) -> Measurement:
        """A noisy residue as a fit takes it: of one attribute, with the total, its counts."""
        if len(measured.clique) > 1:
            return replace(measured, beyond=True)
        values = np.asarray(measured.values)
        return replace(measured, values=values + (self.total - values.sum()) / values.size)
