"""sketch_aim in groups of values: what is measured in how many of them, as its noise allows.

The part of `strategies/sketch_aim.py` for `ablation.resolution: noise`. Groups are functions of released one-way
marginals; `fedsyn/selection/resolution.py` says how many are worth their noise, `fedsyn/selection/coarse.py` what a
client counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

import numpy as np

from fedsyn.plugins.clients.sketch_aim import SketchAimContract, Weighed
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.selection.coarse import Coarse
from fedsyn.selection.planning import Errors
from fedsyn.selection.resolution import Resolutions


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
        cliques = self.candidates.cliques
        ladder = lambda i: self.resolutions.ladder(cliques[i])  # noqa: E731
        return replace(errors, ladder=ladder, rows=self.total, steps=dict(self.measured_in))

    def keep_steps(self, errors: Errors, measured: Iterable[int]) -> None:
        """Notes in which groups these candidates are measured from now on."""
        self.measured_in.update({i: errors.steps[i] for i in measured if i in errors.steps})

    def in_groups(self, request: Weighed) -> tuple[Weighed, Coarse | None]:
        """The request with the groups of its cliques; as it is where every value is its own."""
        if not self.measured_in.keys() & set(request.cliques):
            return request, None
        cliques, groups = request.chosen(self.contract), []
        for i, clique in zip(request.cliques, cliques, strict=True):
            whole = tuple(np.arange(size) for size in self.domain.shape_of(clique))
            step = self.measured_in.get(i)
            groups.append(whole if step is None else self.resolutions.groups(clique, step))
        coarse = Coarse.in_groups(self.domain, cliques, groups)
        return request.model_copy(update={"shapes": [list(shape) for shape in coarse.shapes]}), coarse


__all__ = ["InGroups"]
