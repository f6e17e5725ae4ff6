"""The server half of the PrivSyn family: central PrivSyn, FedPrivSyn, AdaFedPrivSyn. Client half: `clients/privsyn.py`.

Li et al. 2026, "HeteroFedSyn", Algorithms 1 to 5; Zhang et al. 2021, "PrivSyn: Differentially Private Data Synthesis".
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from fedsyn.config import Node, RunConfig
from fedsyn.inference import (
    EmpiricalModel,
    HierarchicalMeasurement,
    Hierarchy,
    Measurement,
    consistent,
    least_squares,
)
from fedsyn.inference.capacity import Structure
from fedsyn.inference.gum import GumConfig, synthesize
from fedsyn.privacy import PrivacyStatement, sigma_for_rho
from fedsyn.protocol.strategy import MechanismStrategy, Protocol, public_facts, require
from fedsyn.selection.indif import (
    INDIF_SENSITIVITY,
    INDIF_UNIT,
    Noisy,
    Plan,
    Projection,
    all_pairs,
    choose_greedily,
    distance_squared,
    expected_l1,
    expected_l2,
    indif_squared,
    integer_weights,
    root,
)
from fedsyn.selection.scores import Penalty
from fedsyn.selection.views import effective_cells
from fedsyn.wire.messages import Request, Sum

# Where all pairs that `fraction` allows are selected, a smaller rest is not worth another exchange: the last have it.
_LITTLE = 0.1

Scores = npt.NDArray[np.float64]
Steps = Generator[Request, Any, Any]


class PairConfig(Node):
    """Options of every variant.

    Attributes:
        one_way_share: q, share of the budget for the one-way marginals; far above the papers' tenth: their noise is the
            larger part of the error in range queries and Wasserstein distance (docs/mechanisms.md).
        score_share: q, share of the budget for the dependency scores (none where no scores are needed).
        one_way: 'hierarchical': numeric attributes of a dozen values and more at several resolutions, which halves the
            noise in ranges (`fedsyn.inference.hierarchy`), and more of the budget for them; 'flat': as printed.
        select: 'greedy': Eq. 1; 'all': every pair; 'random': a number of pairs drawn uniformly. The last two are
            baselines that release no scores and spend their share on the pairs.
        penalty: the noise error psi of a pair: that of all its 'cells', as in Eq. 1, or of the 'effective' ones, which
            carry the product of its one-way marginals (as for AIM): where those have no mass, making marginals
            consistent and non-negative leaves no noise either.
        allocation: of the pairs' budget: 'cells' minimises the sum of their noise errors, 'even' divides it evenly.
        noise_weight: what a noise error counts beside a dependency error of the same size.
        rest: what becomes of the pairs' budget that the selection leaves over: 'remeasure' the selected pairs (or the
            one-way marginals, where no pair is selected), or 'unspent', as printed.
        synthesizer: 'gum' (PrivSyn's rows) or 'pgm' (`fedsyn.inference`, pairs that its junction tree can hold).
        gum_iterations: of the row updates.
        iterations: of PGM's fit between selections.
        final_iterations: of PGM's last fit.
    """

    one_way_share: float = Field(default=0.5, gt=0, lt=1)
    score_share: float = Field(default=0.1, gt=0, lt=1)
    one_way: Literal["hierarchical", "flat"] = "hierarchical"
    select: Literal["greedy", "all", "random"] = "greedy"
    penalty: Penalty = "effective"
    allocation: Literal["cells", "even"] = "cells"
    noise_weight: float = Field(default=1.0, gt=0)
    rest: Literal["remeasure", "unspent"] = "remeasure"
    synthesizer: Literal["gum", "pgm"] = "gum"
    gum_iterations: int | None = Field(default=None, ge=1)
    iterations: int = Field(default=50, ge=1)
    final_iterations: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.one_way_share + self.score_share >= 1:
            raise ValueError("one_way_share and score_share must leave something for the pairs")
        return self


class FedPairConfig(PairConfig):
    """Options of the federated variants.

    Attributes:
        noise_weight: below 1, because consistency removes much of the noise that is added.
        select: also 'adaptive': Algorithms 3 and 4.
        norm: in which a dependency and its noise are compared: 'l2', as printed, or 'l1', which ranges and transport
            follow: each estimated as its L2 norm times the root of the pair's cells (as `penalty` counts them), which
            keeps a dependency that is spread over many cells from looking small.
        projection: of the first exchange: 'signs' (+-1/sqrt(k)), 'gaussian' (as printed), 'none' (whole marginals).
        k: numbers that a projected pair is sent as.
        projection_seed: of the public matrices.
        fraction: adaptive: the largest share of all pairs that may be selected.
        every: adaptive: m, selections between two syntheses; null: ten, or a twentieth of what may be selected, if that
            is more: wide tables are not made hundreds of times.
    """

    noise_weight: float = Field(default=0.5, gt=0)
    select: Literal["greedy", "adaptive", "all", "random"] = "greedy"  # type: ignore[assignment]
    norm: Literal["l1", "l2"] = "l1"
    projection: Literal["signs", "gaussian", "none"] = "signs"
    k: int = Field(default=10, ge=1)
    projection_seed: int = Field(default=0, ge=0)
    fraction: float = Field(default=1 / 3, gt=0, le=1)
    every: int | None = Field(default=None, ge=1)


class AdaFedPairConfig(FedPairConfig):
    """The same options with adaptive selection as the default, whose `fraction` bounds the number of pairs anyway."""

    noise_weight: float = Field(default=0.25, gt=0)
    select: Literal["greedy", "adaptive", "all", "random"] = "adaptive"


class PairSynthesis(MechanismStrategy):
    """What the variants share: one-way marginals, dependency scores, selection, measured pairs, synthesis.

    Every release is Gaussian noise on one vector of a known L2 norm per row. What the one-way marginals, the scores and
    all pairs together may cost is fixed in advance; which pairs are asked for, with which weights and in which
    exchanges, follows from what was released before. Gaussian releases whose sum of Delta^2 / sigma^2 never exceeds
    mu^2 are mu-GDP, however queries and scales were chosen on the way (Smith & Thakurta 2022): one Gaussian mechanism.
    """

    Config = PairConfig
    accountant = "gaussian"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        every = all_pairs(self.domain)
        # A pair of more cells than a model may have is never a candidate.
        self.numbers = [i for i, q in enumerate(every) if self.domain.size(q) <= self.run.inference.max_cells]
        self.pairs = [every[i] for i in self.numbers]
        self.cells = np.array([float(self.domain.size(pair)) for pair in self.pairs])
        self.structure = Structure(self.domain, self.run.inference)
        self.one_way: list[HierarchicalMeasurement] = []
        self.measurements: list[Measurement] = []  # of pairs
        self.inflation = 1.0
        self.rows_made: npt.NDArray[np.integer] | None = None

    def protocol(self) -> Protocol:
        self.begin_round(1)
        self.record.cohort = list(self.everyone())
        self.rho = self.ledger.remaining_rho  # private sizes are paid for already
        # Algorithm 5, line 1. With one attribute there are no pairs, and nothing else to spend on.
        yield from self.share_one_way(self.rho * (self.config.one_way_share if self.pairs else 1.0))
        if self.one_way and self.pairs:
            self.begin_round(2)
            chosen = yield from self.measure_pairs()  # lines 2 to 6
            if not chosen and self.config.rest == "remeasure":
                yield from self.share_one_way(self.pair_rho)
        self.synthesise(last=True)  # lines 7 and 8

    # Budget -----------------------------------------------------------------------------------------------------------

    @property
    def scored(self) -> bool:
        return self.config.select in ("greedy", "adaptive")

    @property
    def pair_rho(self) -> float:
        """rho_3 = (1 - 2q) rho; the baselines without scores also have the share of the scores."""
        share = 1.0 - self.config.one_way_share - (self.config.score_share if self.scored else 0.0)
        return share * self.rho

    def plan(self) -> Plan:
        """psi in the unit of the scores: proportions of the records, as the sums will be: with local noise sqrt(c) of
        it."""
        sigma = sigma_for_rho(self.pair_rho) * self.inflation / self.total
        weight = self.config.noise_weight
        return Plan(weight * sigma * self.noise_errors(self.counted_cells), self.config.allocation == "even")

    def noise_errors(self, cells: Scores) -> Scores:
        """Expected norm of standard normal noise on so many cells, in the norm of the scores: L1, as InDif."""
        return expected_l1(cells)

    @cached_property
    def counted_cells(self) -> Scores:
        """(m,) cells whose noise counts, of each pair; from the first exchange's released one-way marginals."""
        if self.config.penalty == "cells":
            return self.cells
        ones = consistent(self.domain, [], total=self.total, one_way=self.one_way)
        carried = {name: effective_cells(ones[(name,)] / self.total) for name in self.domain}
        return np.array([carried[a] * carried[b] for a, b in self.pairs])

    # The exchanges ----------------------------------------------------------------------------------------------------

    def vector_sum(self, name: str, length: int, norm: float, rho: float, **more: Any) -> Sum:
        """Asks everybody for ONE vector, which a row moves by at most `norm` in L2, at a cost of exactly rho."""
        return Sum(self.everyone(), name, ((length,),), sigma_for_rho(rho, norm), count=1, sensitivity=norm, **more)

    def hierarchies(self) -> dict[str, Hierarchy]:
        """What is measured of each attribute; the integer weights divide the budget so that noise is least in sum."""
        if self.config.one_way == "flat":
            return {name: Hierarchy.flat(self.domain[name]) for name in self.domain}
        trees = {name: Hierarchy.binary(self.domain[name], self.domain.ordered.get(name, 0)) for name in self.domain}
        if all(len(tree.widths) == 1 for tree in trees.values()):
            return trees
        # A share w of the budget gives noise / sqrt(w): w as noise^(2/3) minimises the sum.
        return {name: tree.scaled(8.0 * tree.noise ** (1 / 3) / tree.sensitivity) for name, tree in trees.items()}

    def share_one_way(self, rho: float) -> Steps:
        """Algorithm 1, lines 1 and 3: the one-way marginals of all d attributes, as one vector, at a cost of rho.

        Sensitivity: one row is in one cell of each attribute, and in one block of each further resolution, each times
        its weight: the root of the sum of all squared weights.
        """
        trees = self.hierarchies()
        norm = math.sqrt(math.fsum(tree.sensitivity**2 for tree in trees.values()))
        request = self.vector_sum(
            "one-way",
            sum(tree.length for tree in trees.values()),
            norm,
            rho,
            magnitude=max(max(tree.weights) for tree in trees.values()),
            params={"resolutions": [[t.ordered, t.widths, [int(w) for w in t.weights]] for t in trees.values()]},
        )
        sums = yield request
        if not sums.contributors:
            self.record.notes.append("too few contributions: no one-way marginal was opened")
            return
        scale = self.scale(sums)
        parts = np.split(sums.arrays[0], np.cumsum([tree.length for tree in trees.values()])[:-1])
        for (name, tree), values in zip(trees.items(), parts, strict=True):
            unweighted = values * (scale / np.repeat(tree.weights, tree.lengths))
            self.one_way.append(HierarchicalMeasurement(name, tree, unweighted, sums.sigmas[0] * scale))
        self.inflation = sums.sigmas[0] / request.sigma

    def scores(self) -> Steps:
        """phi of every pair, in proportions of the records; None if nothing was opened."""
        raise NotImplementedError

    def measure_pairs(self) -> Steps:
        """Selects (Eq. 1, or a baseline) and measures the selected pairs in one exchange; returns them."""
        if self.scored:
            scores = yield from self.scores()
            chosen = [] if scores is None else self.fitting(choose_greedily(scores, self.plan(), len(self.pairs)))
        else:
            random, every = self.randomness.ordinary("pairs"), len(self.pairs)
            number = every if self.config.select == "all" else int(random.integers(1, every + 1))
            chosen = self.fitting(random.permutation(every)[:number].tolist())
        if chosen:
            yield from self.measure(chosen, self.plan().shares(chosen), self.pair_rho)
        return chosen

    def measure(self, chosen: Sequence[int], shares: npt.NDArray[np.float64], rho: float) -> Steps:
        """The chosen pairs' marginals at a cost of exactly rho, divided in about these shares.

        Weighted by integers w, one row moves them all by sqrt(sum w^2); a pair's own noise is the sum's divided by w.
        """
        pairs = [self.pairs[i] for i in chosen]
        weights = integer_weights(shares)
        norm = math.sqrt(sum(weight**2 for weight in weights))
        length = int(self.cells[list(chosen)].sum())
        sums = yield self.vector_sum(
            "measure",
            length,
            norm,
            rho,
            magnitude=float(max(weights)),
            params={"pairs": [self.numbers[i] for i in chosen], "weights": weights},
        )
        self.record.selected = [" × ".join(pair) for pair in pairs]
        if not sums.contributors:
            self.record.notes.append("too few contributions: the selected pairs were not opened")
            return
        scale = self.scale(sums)
        bounds = np.cumsum([0, *(self.domain.size(pair) for pair in pairs)])
        for j, (pair, weight) in enumerate(zip(pairs, weights, strict=True)):
            values = sums.arrays[0][bounds[j] : bounds[j + 1]].reshape(self.domain.shape_of(pair))
            self.measurements.append(Measurement(pair, values * (scale / weight), sums.sigmas[0] * scale / weight))

    # Synthesis --------------------------------------------------------------------------------------------------------

    def fitting(self, chosen: Sequence[int]) -> list[int]:
        """The pairs that a junction tree can hold together, in order of their selection; GUM takes all."""
        if self.config.synthesizer == "gum":
            return list(chosen)
        kept = self.structure.add_while_fitting([self.pairs[i] for i in chosen])
        return [chosen[j] for j in kept]

    def one_way_marginals(self) -> list[Measurement]:
        """Each attribute's least-squares estimate as if its cells had independent noise, which is what PGM can use."""
        out = []
        for name in self.domain:
            values, sigma = least_squares([m for m in self.one_way if m.attribute == name])
            out.append(Measurement((name,), values, sigma))
        return out

    def synthesise(self, *, last: bool) -> None:
        """Rows, or a fitted model, from everything measured. Attributes in no pair follow their one-way marginals."""
        if not self.one_way:
            return
        if self.config.synthesizer == "pgm":
            self.estimate([*self.one_way_marginals(), *self.measurements], last)
            return
        with self.timed("synthesise"):
            rng = self.randomness.ordinary("gum", self.round)
            iterations = self.config.gum_iterations or GumConfig().iterations
            # Between selections the rows start from the last ones, and only score pairs.
            config = GumConfig(iterations=iterations if last else math.ceil(iterations / 5))
            rows = max(1, round(self.total))
            self.rows_made = synthesize(
                self.domain,
                self.measurements,
                rows,
                rng,
                config,
                total=self.total,
                start=None if last else self.rows_made,
                one_way=self.one_way,
            )
            self.model = EmpiricalModel(self.domain, self.rows_made, self.total)  # type: ignore[assignment]

    def statement(self) -> PrivacyStatement:
        seen = self.aggregation.who_sees_what()
        return PrivacyStatement(
            public=public_facts(self.run),
            trust=seen["trust"],
            server_sees=f"noisy sums: one-way marginals, {self.scores_in_words()}the selected pairs; {seen['server']}",
            client_sees="which pairs were selected, a function of released values",
            cost="one Gaussian mechanism in all; shares of mu^2: "
            f"{self.config.one_way_share:g} for the one-way marginals, the rest {self.shares_in_words()}; "
            f"noise drawn by {seen['noise']}",
            sampler="see the run",
        )

    def scores_in_words(self) -> str:
        return "InDif of every pair, " if self.scored else ""

    def shares_in_words(self) -> str:
        return f"{self.config.score_share:g} for the scores and else for the pairs" if self.scored else "for the pairs"


class PrivSyn(PairSynthesis):
    """Central PrivSyn, the yardstick: one holder of every row (Zhang et al. 2021).

    Its holder computes the exact InDif of every pair, sensitivity 4, and they are released with Gaussian noise;
    the pairs that Eq. 1 selects are measured, and GUM makes rows.

    Privacy statement.
    Unit: one row, added or removed, at one client (there is one).
    Public: schema, workload, configuration, the row count (`client_sizes: private` pays for it).
    Trusted not to collude: whoever adds the noise; with `plain` and server noise, the server.
    The server sees: noisy one-way marginals, noisy InDifs, noisy selected pairs; with `plain` also the exact ones.
    A client sees: which pairs were selected, a function of released values.
    Cost of each release: shares of mu^2 of one Gaussian mechanism: `one_way_share`, `score_share`, and the rest.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    central = True

    @classmethod
    def check(cls, config: RunConfig) -> None:
        require(
            config.federation.participation == 1.0,
            "federation.participation: central PrivSyn has one data holder, who takes part; leave participation at 1",
        )

    def scores(self) -> Steps:
        """InDif of every pair, plus noise: multiples of 1/INDIF_UNIT, of sensitivity 4."""
        norm = INDIF_SENSITIVITY * INDIF_UNIT * math.sqrt(len(self.pairs))
        sums = yield self.vector_sum(
            "indif",
            len(self.pairs),
            norm,
            self.config.score_share * self.rho,
            magnitude=INDIF_SENSITIVITY * INDIF_UNIT,
            params={"pairs": self.numbers},
        )
        if not sums.contributors:
            return None
        return np.maximum(0.0, sums.arrays[0]) / INDIF_UNIT / max(1.0, self.rows(sums.contributors))


class FedPrivSyn(PairSynthesis):
    """FedPrivSyn: unbiased InDif2 from projected marginals, all pairs selected at once (Li et al. 2026).

    Departures from the paper, and why (docs/mechanisms.md has them all): marginals are counts of sensitivity 1, not
    proportions times n_i; +-1 projections, whose sensitivity does not depend on the matrix; every client uses the same
    matrix, from a public seed; the debiased square conditions on that public matrix.

    Privacy statement.
    Unit: one row, added or removed, at one client.
    Public: schema, workload, configuration, who answers, the row counts (`client_sizes: private` pays for them).
    Trusted not to collude: as `aggregation` says; with `plain` and server noise, the server itself.
    The server sees: noisy sums of one-way marginals, of projections of all pairs (k numbers each) and of the selected
    pairs' marginals; with `plain` also every exact contribution.
    A client sees: which pairs were selected, a function of released values.
    Cost of each release: shares of mu^2 of one Gaussian mechanism: `one_way_share`, `score_share`, and the rest.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    Config = FedPairConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.projection = Projection(self.config.projection, self.config.k, self.config.projection_seed)
        self.projected: list[Noisy] = []

    def share_projections(self) -> Steps:
        """Algorithm 1, lines 2 and 4: the projections of all pairs; fills `self.projected`."""
        projection = self.projection
        norm = projection.sensitivity(self.domain, self.pairs)
        widths = [projection.width(self.domain, pair) for pair in self.pairs]
        sums = yield self.vector_sum(
            "project",
            sum(widths),
            norm,
            self.config.score_share * self.rho,
            signed=projection.kind != "none",
            magnitude=projection.magnitude(self.domain, self.pairs),
            params={"pairs": self.numbers},
        )
        if not sums.contributors:
            self.record.notes.append("too few contributions: the projections were not opened")
            return
        unit = projection.scale * max(1.0, self.rows(sums.contributors))
        bounds = np.cumsum([0, *widths])
        values, sigma = sums.arrays[0] / unit, sums.sigmas[0] / unit
        self.projected = [Noisy(values[bounds[i] : bounds[i + 1]], sigma) for i in range(len(self.pairs))]

    def scores(self) -> Steps:
        """Algorithm 2: InDif2 of every pair."""
        yield from self.share_projections()
        if not self.projected:
            return None
        ones = self.cells_of_one_way()
        squared = [
            indif_squared(self.domain, pair, self.projected[i], ones[pair[0]], ones[pair[1]], self.projection)
            for i, pair in enumerate(self.pairs)
        ]
        return self.distances(squared)

    def noise_errors(self, cells: Scores) -> Scores:
        return expected_l2(cells) * self.norm_factors(cells)

    def distances(self, squared: Sequence[float], which: Sequence[int] | slice = slice(None)) -> Scores:
        """phi of some pairs, in the configured norm, from estimates of squared L2 distances."""
        return root(np.array(squared)) * self.norm_factors(self.counted_cells)[which]

    def norm_factors(self, cells: Scores) -> Scores:
        """(m,) from L2 to the configured norm; an L1 norm lies between one and root(cells) times the L2 norm."""
        return np.sqrt(cells) if self.config.norm == "l1" else np.ones(len(cells))

    def cells_of_one_way(self) -> dict[str, Noisy]:
        """The cells alone, without the coarser blocks: their noise is independent, as InDif2's debiasing needs it."""
        return {m.attribute: Noisy(m.cells / self.total, m.cell_sigma / self.total) for m in self.one_way}

    def measure_pairs(self) -> Steps:
        if self.config.select != "adaptive":
            return (yield from super().measure_pairs())
        scores = yield from self.scores()
        return [] if scores is None else (yield from self.measure_adaptively(scores))

    def measure_adaptively(self, scores: Scores) -> Steps:
        """Algorithms 3 and 4: selects, measures and re-scores; returns the selected pairs.

        `every` (m) pairs are selected between two updates of the scores; they do not depend on each other's
        measurements, so they are asked for in one exchange. What a pair costs is fixed before the first is selected,
        such that no `most` pairs exceed rho_3 (`Plan.costs`; Algorithm 5 as corrected has 6 rho_3 / (d (d - 1)) for a
        third of all pairs, which is `allocation: even`). What is left over goes to the selected pairs in a last
        exchange, or stays unspent (`rest`). Whatever is selected, rho_3 is spent exactly, or not all of it.
        """
        most = max(1, math.floor(self.config.fraction * len(self.pairs) + 1e-9))
        every = self.config.every or max(10, math.ceil(most / 20))
        plan = self.plan()
        costs = plan.costs(most)
        if self.config.rest == "unspent":
            plan = replace(plan, fixed=costs)
        chosen: list[int] = []
        left = 1.0
        while len(chosen) < most:
            limit = min(most, len(chosen) + every)
            batch = self.fitting(choose_greedily(scores, plan, limit, chosen))
            if not batch:
                break
            chosen += batch
            cost, left = float(costs[batch].sum()), 1.0 - float(costs[chosen].sum())
            if len(chosen) == most and left < _LITTLE and self.config.rest == "remeasure":
                cost, left = cost + left, 0.0
            yield from self.measure(batch, costs[batch] / costs[batch].sum(), self.pair_rho * cost)
            if len(chosen) < most:
                self.synthesise(last=False)
                scores = self.update(scores, chosen)
                self.begin_round(self.round + 1)
        if chosen and left > 1e-9 and self.config.rest == "remeasure":
            yield from self.measure(chosen, plan.shares(chosen), self.pair_rho * left)
        return chosen

    def update(self, scores: Scores, chosen: Sequence[int]) -> Scores:
        """Algorithm 4: a pair that shares an attribute with a selected one is scored against the synthetic rows.

        Only where that lowers its score. The squared distance is debiased as InDif2^2 is: the printed line 3 leaves the
        noise of the projection in it.
        """
        assert self.model is not None
        touched = {name for i in chosen for name in self.pairs[i]}
        open_ = [i for i in range(len(self.pairs)) if i not in set(chosen) and touched & set(self.pairs[i])]
        tables = self.model.project_many([self.pairs[i] for i in open_])
        squared = [
            distance_squared(self.domain, self.pairs[i], self.projected[i], table / self.model.total, self.projection)
            for i, table in zip(open_, tables, strict=True)
        ]
        updated = scores.copy()
        updated[open_] = np.minimum(scores[open_], self.distances(squared, open_))
        return updated

    def scores_in_words(self) -> str:
        return "projections of all pairs, " if self.scored else ""


class AdaFedPrivSyn(FedPrivSyn):
    """AdaFedPrivSyn: FedPrivSyn with adaptive selection (Algorithms 3 and 4), which re-scores pairs on synthetic rows.

    Privacy statement.
    Unit: one row, added or removed, at one client.
    Public: schema, workload, configuration, who answers, the row counts (`client_sizes: private` pays for them).
    Trusted not to collude: as `aggregation` says; with `plain` and server noise, the server itself.
    The server sees: noisy sums of one-way marginals, of projections of all pairs (k numbers each) and of the selected
    pairs' marginals; with `plain` also every exact contribution.
    A client sees: which pairs were selected so far, a function of released values.
    Cost of each release: shares of mu^2 of one Gaussian mechanism: `one_way_share`, `score_share`, and the rest, of
    which a selected pair costs a part, such that no selection within `fraction` exceeds it, and a last exchange what
    is left.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    Config = AdaFedPairConfig
