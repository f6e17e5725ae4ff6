"""sketch_aim in groups of values: what is measured in how many of them, and one-way marginals at several resolutions.

The part of `strategies/sketch_aim.py` that turns a plan into a request. Groups are functions of released one-way
marginals: `fedsyn/selection/resolution.py` says how many are worth their noise, `fedsyn/selection/coarse.py` what a
client counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import sqrt

import numpy as np

from fedsyn.counting.groups import Groups
from fedsyn.inference import Hierarchy
from fedsyn.plugins.clients.sketch_aim import SketchAimContract, Weighed
from fedsyn.plugins.strategies.sketch_aim_cohorts import integer_weights
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.selection.coarse import Coarse
from fedsyn.selection.planning import Errors
from fedsyn.selection.resolution import Resolutions

#: One part of a request: a candidate, the groups it is counted in (None: cells), and its 1/sigma^2.
Look = tuple[int, Groups | None, float]


class InGroups(MechanismStrategy):
    """A clique is measured in the groups with which its first measurement was planned, as often as it is."""

    contract: SketchAimContract

    @cached_property
    def resolutions(self) -> Resolutions:
        """Of the first model, which every later round keeps."""
        assert self.model is not None
        return Resolutions(self.domain, {name: self.model.project((name,)) for name in self.domain})

    @cached_property
    def measured_in(self) -> dict[int, int]:
        """Candidate -> step on its ladder, of those that were measured in groups."""
        return {}

    def graded(self, errors: Errors) -> Errors:
        """The errors with what groups would save and miss, where groups are allowed."""
        if self.options.ablation.resolution == "cells":
            return errors
        ladders, cliques = self.resolutions, self.candidates.cliques
        return replace(
            errors, ladder=lambda i: ladders.ladder(cliques[i]), rows=self.total, steps=dict(self.measured_in)
        )

    def keep_steps(self, errors: Errors, measured: Iterable[int]) -> None:
        """Notes in which groups these candidates are measured from now on."""
        self.measured_in.update({i: errors.steps[i] for i in measured if i in errors.steps})

    def asked(self, plan: Mapping[int, float]) -> tuple[Weighed, float, Coarse | None]:
        """The request for a plan, the noise on its vector, and its groups; None where all is measured in cells."""
        looks = [look for i, precision in plan.items() for look in self.looks(i, precision)]
        which, precisions = [i for i, _, _ in looks], [precision for _, _, precision in looks]
        if all(groups is None for _, groups, _ in looks):
            return *weighed(which, precisions), None
        cliques = [self.candidates.cliques[i] for i in which]
        own = [tuple(np.arange(size) for size in self.domain.shape_of(clique)) for clique in cliques]
        groups = [cells if coarse is None else coarse for cells, (_, coarse, _) in zip(own, looks, strict=True)]
        made = Coarse.in_groups(self.domain, cliques, groups)
        return *weighed(which, precisions, [list(shape) for shape in made.shapes]), made

    def looks(self, i: int, precision: float) -> list[Look]:
        """Candidate i as it is measured: in cells, in groups, or one attribute at all resolutions of its hierarchy.

        The resolutions share 1/sigma^2 as the squares of the hierarchy's weights: one row pays what it paid for cells.
        """
        clique = self.candidates.cliques[i]
        if len(clique) == 1 and self.options.ablation.one_way == "hierarchical":
            tree = Hierarchy.binary(self.domain[clique[0]], self.domain.ordered.get(clique[0], 0))
            shares = np.square(tree.weights) / tree.sensitivity**2
            pairs = zip(tree.groups(), shares, strict=True)
            return [(i, (groups,), precision * float(share)) for groups, share in pairs]
        step = self.measured_in.get(i)
        return [(i, None if step is None else self.resolutions.groups(clique, step), precision)]


def weighed(
    cliques: Sequence[int], precisions: Sequence[float], shapes: Sequence[list[int]] = ()
) -> tuple[Weighed, float]:
    """The request that gives each clique its 1/sigma^2, up to the rounding of its weight, and the noise on the vector.

    Their sum is kept: sum of c^2 / sigma^2, less a hair, so that no rounding of sums goes beyond the budget.
    """
    weights = integer_weights(precisions)
    sigma = sqrt(sum(c * c for c in weights) / sum(precisions)) * (1.0 + 1e-13)
    return Weighed(shapes=list(shapes), cliques=list(cliques), weights=weights), sigma


__all__ = ["InGroups", "weighed"]
