"""The client half of HeteroFedSyn, and its contract: projections, and PrivSyn's weighted marginals, for sums.

Li et al. 2026, "HeteroFedSyn", Algorithm 1. The server half is `strategies/heterofedsyn.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy.typing as npt
from pydantic import Field

from fedsyn.aggregation import Contribution
from fedsyn.plugins.clients.privsyn import PairAblation, PairClient, PairContract, PairOptions
from fedsyn.privacy.release import COUNTS, TWICE
from fedsyn.protocol.client import answers
from fedsyn.selection.indif import Projection
from fedsyn.settings import Node
from fedsyn.wire.holder import Call
from fedsyn.wire.requests import Layout, PairIndices, SumRequest


class FedPairAblation(PairAblation):
    """What serves a comparison only: PrivSyn's, and what concerns the estimated scores.

    Attributes:
        norm: in which a dependency and its noise are compared: 'l2', as printed, or 'l1', which ranges and transport
            follow: each estimated as its L2 norm times the root of the pair's cells (as `penalty` counts them), which
            keeps a dependency that is spread over many cells from looking small.
        projection: of the first exchange: 'signs' (+-1/sqrt(k)), 'gaussian' (as printed), 'none' (whole marginals).
        projection_seed: of the public matrices.
    """

    norm: Literal["l1", "l2"] = "l1"
    projection: Literal["signs", "gaussian", "none"] = "signs"
    projection_seed: int = Field(default=0, ge=0)


class FedPairOptions(PairOptions):
    """Options of FedPrivSyn.

    Attributes:
        noise_weight: below 1, because consistency removes much of the noise that is added.
        k: numbers that a projected pair is sent as.
    """

    noise_weight: float = Field(default=0.5, gt=0)
    k: int = Field(default=10, ge=1)
    ablation: FedPairAblation = Field(default_factory=FedPairAblation)

    @property
    def projection(self) -> Projection:
        """The public projection of two-way marginals."""
        return Projection(self.ablation.projection, self.k, self.ablation.projection_seed)


class AdaFedPairAblation(FedPairAblation):
    """What serves a comparison only: FedPrivSyn's, with Algorithms 3 and 4 in place of the greedy choice."""

    select: Literal["adaptive", "all", "random"] = "adaptive"  # type: ignore[assignment]


class AdaFedPairOptions(FedPairOptions):
    """Options of AdaFedPrivSyn.

    Attributes:
        noise_weight: lower still, for `fraction` bounds the number of pairs anyway.
        fraction: the largest share of all pairs that may be selected.
        every: m, selections between two syntheses; null: ten, or a twentieth of what may be selected, if that is more:
            wide tables are not made hundreds of times.
    """

    noise_weight: float = Field(default=0.25, gt=0)
    fraction: float = Field(default=1 / 3, gt=0, le=1)
    every: int | None = Field(default=None, ge=1)
    ablation: AdaFedPairAblation = Field(default_factory=AdaFedPairAblation)


class Projections(SumRequest):
    """Algorithm 1, lines 2 and 4: the projection of some pairs' exact marginals, k integers each, as ONE vector."""

    name = "project"
    leaves = "random projections of its two-way marginals, in a sum"
    costs = "one vector; one row adds one row of each pair's public matrix: mu^2 = S^2/sigma^2"

    pairs: PairIndices

    def layout(self, contract: FedPairContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Sensitivity: `Projection.sensitivity`."""
        projection, pairs = contract.options.projection, [contract.pairs[i] for i in self.pairs]
        signed = projection.kind != "none"
        return Layout.of_vector(
            sum(projection.width(contract.domain, pair) for pair in pairs),
            projection.sensitivity(contract.domain, pairs),
            signed=signed,
            magnitude=projection.magnitude(contract.domain, pairs),
            replaced=TWICE if signed else COUNTS,
        )


class FedPairContract(PairContract):
    Options: ClassVar[type[Node]] = FedPairOptions
    scoring = Projections
    scores = "projections of all pairs, "
    general_words: ClassVar[dict[str, object]] = {"scores": scores, "rest": "for projections and pairs"}


class AdaFedPairContract(FedPairContract):
    Options = AdaFedPairOptions


class FedPrivSynClient(PairClient):
    """A client of FedPrivSyn."""

    Contract = FedPairContract
    contract: FedPairContract

    @answers(Projections)
    def project(self, call: Call[Projections]) -> Contribution:
        """The projections of its own marginals, exact integers."""
        pairs = [self.contract.pairs[i] for i in call.request.pairs]
        return self.one_vector(self.options.projection.apply(self.codes, self.domain, pairs), call)


class AdaFedPrivSynClient(FedPrivSynClient):
    """A client of AdaFedPrivSyn: it is asked the same, more often."""

    Contract = AdaFedPairContract
