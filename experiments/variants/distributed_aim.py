"""Distributed AIM with each of its departures from the paper taken back.

`mechanism: {name: experiments.variants.distributed_aim:DistributedAimVariant, initial: none, remeasure: true}`. All of
them together are the paper's Protocol 2: configs/printed/distributed_aim.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedsyn.mechanism import Clique, ModelView, Step, Sum
from fedsyn.plugins.clients.distributed_aim import (
    DistributedAimClient,
    DistributedAimContract,
    DistributedAimOptions,
    Scores,
)
from fedsyn.plugins.strategies.distributed_aim import DistributedAim
from fedsyn.selection.scores import expected_noise, penalised_cells


class DistributedAimVariantOptions(DistributedAimOptions):
    """Options of Distributed AIM, and what its choices may be replaced by.

    Attributes:
        initial: 'one_way': all one-way marginals are measured before the first round; 'none': the first scores are
            taken against the uniform distribution, as printed.
        remeasure: whether a clique inside a measured one may be selected, as printed. A local score does not fall when
            its clique is measured, so the same few are then selected over and over.
        printed_scores: noise of the scores for a sensitivity of sqrt(|R|) max w_r (Algorithm 2, line 1), and a penalty
            without weights (Protocol 2, step 2a).
    """

    initial: Literal["one_way", "none"] = "one_way"
    remeasure: bool = False
    printed_scores: bool = False


class DistributedAimVariantContract(DistributedAimContract):
    """Distributed AIM's, with the budget of the variant."""

    Options = DistributedAimVariantOptions

    @property
    def initial(self) -> int:
        return super().initial if self.options.initial == "one_way" else 0

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """As Distributed AIM; printed scores have more noise: a larger sensitivity than the weights have."""
        steps = super().plan(rho, rows)
        if not self.options.printed_scores:
            return steps
        return [replace(step, least=step.first_rho / 2.0) if step.request is Scores else step for step in steps]


class DistributedAimVariantClient(DistributedAimClient):
    """Answers as Distributed AIM's client."""

    Contract = DistributedAimVariantContract


class DistributedAimVariant(DistributedAim):
    """Distributed AIM, with what its options replace."""

    Client = DistributedAimVariantClient

    def score_sum(self, cohort: Sequence[int], eligible: list[int], per_sensitivity: float) -> Sum:
        """The scores, printed with the noise of Algorithm 2, line 1."""
        asked = super().score_sum(cohort, eligible, per_sensitivity)
        if not self.options.printed_scores:
            return asked
        moves = self.contract.score_moves(eligible)
        return replace(asked, sigma=sqrt(len(moves)) * float(moves.max()) * per_sensitivity)

    def inside(self, measured: Sequence[Clique]) -> Callable[[Clique], bool]:
        return (lambda clique: False) if self.options.remeasure else super().inside(measured)

    def penalty(self, eligible: list[int], sigma: float) -> npt.NDArray[np.float64]:
        """(m,) the expected noise, printed without weights (Protocol 2, step 2a)."""
        if not self.options.printed_scores:
            return super().penalty(eligible, sigma)
        view = ModelView(self.current_model)
        return expected_noise(sigma, penalised_cells(self.options.penalty, self.candidates, eligible, view))
