"""The client half of HeteroFedSyn, and its contract.

Clients contribute projections and PrivSyn's weighted marginals to sums.

Li et al. 2026, "HeteroFedSyn", Algorithm 1. The server half is `strategies/heterofedsyn.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy.typing as npt

from fedsyn.mechanism import COUNTS, TWICE, Call, Contribution, Field, Layout, Node, answers
from fedsyn.plugins.clients.privsyn import PairClient, PairContract, PairOptions, PairScores
from fedsyn.selection.indif import Projection


class FedPairOptions(PairOptions):
    """Options of FedPrivSyn.

    Attributes:
        noise_weight: below 1, because consistency removes much of the noise that is added.
        k: numbers that a projected pair is sent as.
    """

    noise_weight: float = Field(default=0.5, gt=0)
    k: int = Field(default=10, ge=1)


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


class Projections(PairScores):
    """Projections of pairs' exact marginals, as ONE vector.

    A pair becomes at most k integers (Algorithm 1, lines 2 and 4).
    """

    name = "project"
    leaves = "random projections of its two-way marginals, in a sum"
    costs = "one vector; one row adds one row of each pair's public matrix: mu^2 = S^2/sigma^2"

    def layout(self, contract: FedPairContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout, with the projection's own sensitivity (`Projection.sensitivity`)."""
        projection, pairs = contract.projection, [contract.pairs[i] for i in self.pairs]
        return Layout.of_vector(
            sum(projection.width(contract.domain, pair) for pair in pairs),
            projection.sensitivity(contract.domain, pairs),
            signed=projection.signed,
            magnitude=projection.magnitude(contract.domain, pairs),
            replaced=TWICE if projection.signed else COUNTS,
        )


class FedPairContract(PairContract):
    Options: ClassVar[type[Node]] = FedPairOptions
    scoring = Projections
    statement = replace(
        PairContract.statement,
        server_sees="noisy sums: one-way marginals, projections of all pairs, the selected pairs; {server}",
    )

    @property
    def projection(self) -> Projection:
        """The public projection of two-way marginals."""
        return Projection(self.options.k)


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
        return self.one_vector(self.contract.projection.apply(self.codes, self.domain, pairs), call)


class AdaFedPrivSynClient(FedPrivSynClient):
    """A client of AdaFedPrivSyn: it is asked the same, more often."""

    Contract = AdaFedPairContract
