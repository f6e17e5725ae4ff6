"""PrivSyn, FedPrivSyn and AdaFedPrivSyn with some of their choices taken back, or all: as their papers print them.

`mechanism: {name: experiments.variants.privsyn:FedPrivSynVariant, select: all}`. What each paper prints is in
configs/printed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Literal

import numpy as np

from experiments.variants.projections import PROJECTIONS
from fedsyn.inference import Hierarchy
from fedsyn.mechanism import Field, Node, Protocol, Request, Step, Steps
from fedsyn.plugins.clients.heterofedsyn import (
    AdaFedPairContract,
    AdaFedPairOptions,
    AdaFedPrivSynClient,
    FedPairContract,
    FedPairOptions,
    FedPrivSynClient,
)
from fedsyn.plugins.clients.privsyn import (
    PairContract,
    PairOptions,
    PrivSynClient,
    PrivSynContract,
)
from fedsyn.plugins.strategies.heterofedsyn import AdaFedPrivSyn, FedPrivSyn, Floats
from fedsyn.plugins.strategies.privsyn import Allocation, PairSynthesis, PrivSyn
from fedsyn.selection.indif import Projection

# Options --------------------------------------------------------------------------------------------------------------


class PairChoices(Node):
    """What the choices of central PrivSyn may be replaced by.

    Attributes:
        one_way: 'hierarchical': numeric attributes of a dozen values and more at several resolutions, which halves the
            noise in ranges (`fedsyn.table.counting.hierarchy`), and more of the budget for them; 'flat': as printed.
        select: 'scores': as the mechanism does; 'all': every pair; 'random': a number of pairs drawn uniformly. The
            last two are baselines that release no scores and spend their share on the pairs.
        allocation: of the pairs' budget: 'cells' minimises the sum of their noise errors, 'even' divides it evenly.
        rest: what becomes of the pairs' budget that the selection leaves over: 'remeasure' the selected pairs (or the
            one-way marginals, where no pair is selected), or 'unspent', as printed.
    """

    one_way: Literal["hierarchical", "flat"] = "hierarchical"
    select: Literal["scores", "all", "random"] = "scores"
    allocation: Literal["cells", "even"] = "cells"
    rest: Literal["remeasure", "unspent"] = "remeasure"


class FedPairChoices(PairChoices):
    """What the choices of HeteroFedSyn may be replaced by.

    Attributes:
        norm: in which a dependency and its noise are compared: 'l2', as printed, or 'l1'.
        projection: of the first exchange: 'signs' (+-1/sqrt(k)), 'gaussian' (as printed), 'none' (whole marginals).
        projection_seed: of the public matrices.
    """

    norm: Literal["l1", "l2"] = "l1"
    projection: Literal["signs", "gaussian", "none"] = "signs"
    projection_seed: int = Field(default=0, ge=0)


class PrivSynVariantOptions(PairChoices, PairOptions):
    """Options of PrivSyn, and what its choices may be replaced by."""


class FedPrivSynVariantOptions(FedPairChoices, FedPairOptions):
    """Options of FedPrivSyn, and what its choices may be replaced by."""


class AdaFedPrivSynVariantOptions(FedPairChoices, AdaFedPairOptions):
    """Options of AdaFedPrivSyn, and what its choices may be replaced by."""


# Contracts and clients ------------------------------------------------------------------------------------------------


class Chosen(PairContract):
    """The budget, and what is measured of an attribute, as the options say."""

    @property
    def scored(self) -> bool:
        """Whether dependency scores are released."""
        return self.options.select == "scores"

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """As the mechanism; without scores, their share is for the pairs, and a rest may stay unspent."""
        steps = [step for step in super().plan(rho, rows) if self.options.rest == "remeasure" or not step.says]
        if self.scored or not self.measurable:
            return steps
        pairs = (1.0 - self.options.one_way_share) * rho
        later = [step for step in steps[1:] if step.request is not self.scoring]
        return [steps[0], *(replace(step, rho=pairs, least=step.least and pairs / step.times) for step in later)]

    def hierarchies(self) -> dict[str, Hierarchy]:
        if self.options.one_way == "hierarchical":
            return super().hierarchies()
        return {name: Hierarchy.flat(self.domain[name]) for name in self.domain}


class FedChosen(Chosen, FedPairContract):
    """The projection, too."""

    @property
    def projection(self) -> Projection:
        return PROJECTIONS[self.options.projection](self.options.k, self.options.projection_seed)


class PrivSynVariantContract(Chosen, PrivSynContract):
    """PrivSyn's, with the options of the variant."""

    Options = PrivSynVariantOptions


class FedPrivSynVariantContract(FedChosen):
    """FedPrivSyn's, with the options of the variant."""

    Options = FedPrivSynVariantOptions


class AdaFedPrivSynVariantContract(FedChosen, AdaFedPairContract):
    """AdaFedPrivSyn's, with the options of the variant."""

    Options = AdaFedPrivSynVariantOptions


class PrivSynVariantClient(PrivSynClient):
    """Answers as PrivSyn's client."""

    Contract = PrivSynVariantContract


class FedPrivSynVariantClient(FedPrivSynClient):
    """Answers as FedPrivSyn's client."""

    Contract = FedPrivSynVariantContract


class AdaFedPrivSynVariantClient(AdaFedPrivSynClient):
    """Answers as AdaFedPrivSyn's client."""

    Contract = AdaFedPrivSynVariantContract


# Allocations ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Even(Allocation):
    """The same noise on every pair."""

    @cached_property
    def parts(self) -> Floats:
        return np.ones(len(self.unit))

    def errors_with_one_more(self, chosen: Sequence[int]) -> Floats:
        return np.asarray(sqrt(len(chosen) + 1.0) * (self.unit[list(chosen)].sum() + self.unit))


@dataclass(frozen=True, eq=False)
class Fixed(Allocation):
    """Each pair gets its `share` (m,) of the budget, whatever else is chosen."""

    share: Floats

    def costs(self, most: int) -> Floats:
        return self.share

    def error(self, chosen: Sequence[int]) -> float:
        return float((self.unit / np.sqrt(self.share))[list(chosen)].sum())

    def errors_with_one_more(self, chosen: Sequence[int]) -> Floats:
        errors = self.unit / np.sqrt(self.share)
        return np.asarray(errors[list(chosen)].sum() + errors)


# Server halves --------------------------------------------------------------------------------------------------------


class Choosing(PairSynthesis):
    """Selection and rest as the options say."""

    contract: Chosen

    def share_scores(self, steps: Mapping[type[Request], Step]) -> Steps:
        if self.contract.scored:
            return (yield from super().share_scores(steps))
        return np.zeros(len(self.pairs))

    def share_rest(self, chosen: Sequence[int], allocation: Allocation, rho: float) -> Steps:
        if self.options.rest == "remeasure":
            yield from super().share_rest(chosen, allocation, rho)

    def allocation(self, rho: float, inflation: float) -> Allocation:
        allocation = super().allocation(rho, inflation)
        return allocation if self.options.allocation == "cells" else Even(allocation.unit)

    def choose(self, scores: Floats, allocation: Allocation) -> list[int]:
        """As the mechanism; or all pairs, or a random number of them: what the selection is compared with."""
        if self.contract.scored:
            return super().choose(scores, allocation)
        random, every = self.randomness.ordinary("pairs"), len(self.pairs)
        number = every if self.options.select == "all" else int(random.integers(1, every + 1))
        return self.fitting(random.permutation(every)[:number].tolist())


class FedChoosing(Choosing, FedPrivSyn):
    """The norm, too."""

    def norm_factors(self, cells: Floats) -> Floats:
        return super().norm_factors(cells) if self.options.norm == "l1" else np.ones(len(cells))


class PrivSynVariant(Choosing, PrivSyn):
    """PrivSyn, with what its options replace."""

    Client = PrivSynVariantClient


class FedPrivSynVariant(FedChoosing):
    """FedPrivSyn, with what its options replace."""

    Client = FedPrivSynVariantClient


class AdaFedPrivSynVariant(FedChoosing, AdaFedPrivSyn):
    """AdaFedPrivSyn, with what its options replace."""

    Client = AdaFedPrivSynVariantClient

    def protocol(self) -> Protocol:
        """As AdaFedPrivSyn; baselines select all of their pairs at once."""
        adaptive = self.contract.scored
        yield from AdaFedPrivSyn.protocol(self) if adaptive else PairSynthesis.protocol(self)

    @property
    def little(self) -> float:  # type: ignore[override]
        return AdaFedPrivSyn.little if self.options.rest == "remeasure" else -1.0

    def allocation(self, rho: float, inflation: float) -> Allocation:
        """With a rest that stays unspent, what a pair costs does not fall when few are chosen."""
        allocation = super().allocation(rho, inflation)
        if self.options.rest == "remeasure" or not self.contract.scored:
            return allocation
        return Fixed(allocation.unit, allocation.costs(self.most))
