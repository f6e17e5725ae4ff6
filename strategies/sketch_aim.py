"""The server half of sketch_aim, our own mechanism. The client half is `clients/sketch_aim.py`.

docs/sketch_aim.md: the algorithm, the proof of its privacy, the estimator's mean and variance, and what was tried.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from fedsyn.config import Node
from fedsyn.counting.candidates import Candidates
from fedsyn.domain import Clique, Domain
from fedsyn.inference import Measurement
from fedsyn.inference.capacity import Structure
from fedsyn.privacy import PrivacyStatement
from fedsyn.protocol.strategy import MechanismStrategy, Protocol, public_facts
from fedsyn.selection.scores import Penalty, expected_noise, penalised_cells
from fedsyn.selection.sketches import Sketcher, grouping_of, make_sketcher, pack_grouping, squared_distance
from fedsyn.selection.views import ModelView, effective_cells
from fedsyn.wire.messages import Sum, Summed

# So many marginals carried what 5,000 to 50,000 rows have to say at epsilon = 1 on most tables (docs/sketch_aim.md).
_MARGINALS = 20


class SketchAimConfig(Node):
    """Options of sketch_aim.

    Attributes:
        rounds: T, sums of chosen marginals.
        marginals: M, chosen marginals in all, spread evenly over the rounds; null: 20, or one a round if T is larger.
        one_way_share: share of the budget (mu^2) for the d one-way marginals.
        sketch_share: share of the budget for the sketches; the rest measures the M chosen marginals.
        sketch: 'groups': coarse marginals, of neighbouring values of about equal mass put together; 'count':
            CountSketch; 'signs': a +-1/sqrt(k) projection.
        width: k, most entries of a sketch.
        weights: integer weights c of the sketches of cliques with 2, 3, ... attributes; the noise on a sketch is
            sigma / c. 0, or a size beyond the list: no sketch; such a clique is judged by those of its parts.
        caution: how many standard deviations of its noise are taken off a squared distance before its root.
        penalty: what a measurement's noise is expected to cost: in 'cells', n_q as AIM has it, or in the 'effective'
            support (sum over cells of sqrt(p))^2 of the current model.
        seed: public, of the bits of 'count' and 'signs'.
        iterations: of the fit after each round.
        final_iterations: of the last fit.
    """

    rounds: int = Field(default=10, ge=1)
    marginals: int | None = Field(default=None, ge=1)
    one_way_share: float = Field(default=0.2, gt=0, lt=1)
    sketch_share: float = Field(default=0.05, gt=0, lt=1)
    sketch: Literal["groups", "count", "signs"] = "groups"
    width: int = Field(default=36, ge=1, le=65536)
    weights: tuple[int, ...] = (1,)
    caution: float = Field(default=1.0, ge=0)
    penalty: Penalty = "effective"
    seed: int = Field(default=0, ge=0)
    iterations: int = Field(default=25, ge=1)
    final_iterations: int = Field(default=25, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> SketchAimConfig:
        if self.one_way_share + self.sketch_share >= 1:
            raise ValueError("one_way_share and sketch_share must leave a share of the budget for measuring")
        if self.planned < self.rounds:
            raise ValueError(f"marginals ({self.marginals}) must be at least one for each of the {self.rounds} rounds")
        if not any(self.weights) or any(not 0 <= c <= 1000 for c in self.weights):
            raise ValueError("weights must be integers from 0 to 1000, one of them at least 1")
        return self

    @property
    def planned(self) -> int:
        """M."""
        return self.marginals or max(_MARGINALS, self.rounds)

    def in_round(self, t: int) -> int:
        """Marginals of round t, 1 to T; the first rounds take what does not divide."""
        return self.planned // self.rounds + (t <= self.planned % self.rounds)

    def weight_of(self, clique: Clique) -> int:
        """c_q; 0: no sketch."""
        position = len(clique) - 2
        return self.weights[position] if 0 <= position < len(self.weights) else 0

    def sketcher(
        self, domain: Domain, cliques: Sequence[Clique], packed: npt.NDArray[np.generic] | None = None
    ) -> Sketcher:
        """The sketches of some cliques under these options, the same on server and clients."""
        weights = tuple(self.weight_of(q) for q in cliques)
        return make_sketcher(domain, tuple(cliques), self.sketch, self.width, weights, self.seed, packed)


@dataclass(frozen=True)
class Plan:
    """Noise scales, fixed before the first request; standard deviations on what is summed.

    Attributes:
        one_way: of the one-way marginals, in records.
        per_sensitivity: of the sketches, in multiples of their joint L2 sensitivity.
        measure: of a chosen marginal, in records.
    """

    one_way: float
    per_sensitivity: float
    measure: float

    @classmethod
    def of(cls, mu2: float, config: SketchAimConfig, attributes: int, choice: bool = True) -> Plan:
        """Divides mu^2: d one-way marginals, one vector of sketches, M chosen marginals, each kind by its share.

        Where there is nothing to choose from, the one-way marginals get all of it.
        """
        if not choice:
            return cls(sqrt(attributes / mu2), math.inf, math.inf)
        left = 1.0 - config.one_way_share - config.sketch_share
        return cls(
            sqrt(attributes / (config.one_way_share * mu2)),
            1.0 / sqrt(config.sketch_share * mu2),
            sqrt(config.planned / (left * mu2)),
        )


class SketchAim(MechanismStrategy):
    """Selection from linear statistics: what a sum over clients gives is what one holder of all rows would have.

    Before the first round every client contributes to two sums: all one-way marginals, and sketches of the candidates.
    A sketch is linear in the table, so the sum of the clients' sketches is the pooled table's, however the rows are
    spread. It depends on no model: it is paid for once, and after every fit the server compares it with the sketch of
    its current model, which estimates without bias how far the model is off (`squared_distance`). Each round the
    cliques with the largest expected gain are summed and fitted. No client selects anything.

    Privacy statement.
    Unit: one row, added or removed, at one client.
    Public: schema, workload, configuration, who answers, the row counts (`client_sizes: private` pays for them).
    Trusted not to collude: as `aggregation` says; with `plain` and server noise, the server itself.
    The server sees: three kinds of noisy sums: one-way marginals, sketches, chosen marginals; with `plain` also every
    client's exact or less noisy vector.
    A client sees: groups of neighbouring values and the chosen cliques, functions of released values.
    Cost of each release: d one-way marginals at mu^2 = 1/sigma^2 each, the sketches once at S^2/sigma^2 with S^2 the
    sum of their squared sensitivities, per round the chosen marginals at 1/sigma^2 each; accounted exactly, as one
    Gaussian mechanism.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    Config = SketchAimConfig
    accountant = "gaussian"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.candidates = Candidates.of(self.workload, self.domain)
        self.structure = Structure(self.domain, self.run.inference)
        self.measurements: list[Measurement] = []
        self.precision: dict[Clique, float] = {}  # sum of 1/sigma^2 over the measurements of each clique

    def protocol(self) -> Protocol:
        which = self.sketched()
        plan = Plan.of(2.0 * self.ledger.remaining_rho, self.config, len(self.domain), bool(which))
        self.begin_round(1)
        sums = yield self.one_way_sum(self.everyone(), plan.one_way)
        self.measured(sums, [(name,) for name in self.domain])
        self.estimate(self.measurements)
        if self.model is None or not which:
            return
        sums = yield self.sum_of_sketches(which, plan)
        if not sums.contributors:
            self.record.notes.append("too few contributions: no sketches were opened, so nothing could be chosen")
            return
        self.keep(sums)
        for t in range(1, self.config.rounds + 1):
            if t > 1:
                self.begin_round(t)
            self.record.sigma = plan.measure
            cohort = self.sample(self.run.federation.participation)
            with self.timed("select"):
                chosen = self.best(plan.measure, self.config.in_round(t), t / self.config.rounds)
            if not chosen:
                break
            cliques = [self.candidates.cliques[i] for i in chosen]
            sums = yield self.sum_of_chosen(cohort, chosen, plan)
            self.measured(sums, cliques)
            self.record.selected = [" × ".join(clique) for clique in cliques]
            self.estimate(self.measurements, t == self.config.rounds)

    # Requests ---------------------------------------------------------------------------------------------------------

    def sketched(self) -> list[int]:
        """The candidates to be sketched, a public fact: those with a weight that the model could take."""
        cliques = self.candidates.cliques
        return [i for i in self.structure.which_fit(cliques) if self.config.weight_of(cliques[i])]

    def sum_of_sketches(self, which: Sequence[int], plan: Plan) -> Sum:
        """One vector of all sketches. One row adds one row of each matrix: sensitivity sqrt(sum of (c_q r)^2)."""
        assert self.model is not None
        cliques = [self.candidates.cliques[i] for i in which]
        arrays: list[npt.NDArray[Any]] = []
        if self.config.sketch == "groups":
            mass = {name: self.model.project((name,)) for name in self.domain}
            arrays = [pack_grouping(grouping_of(self.domain, cliques, self.config.width, mass))]
        self.sketcher = self.config.sketcher(self.domain, cliques, *arrays)
        return Sum(
            self.everyone(),
            "sketch",
            ((self.sketcher.length,),),
            plan.per_sensitivity * self.sketcher.sensitivity,
            count=1,
            sensitivity=self.sketcher.sensitivity,
            params={"cliques": list(which)},
            arrays=arrays,
            signed=self.sketcher.signed,
            magnitude=self.sketcher.magnitude,
        )

    def sum_of_chosen(self, cohort: Sequence[int], chosen: Sequence[int], plan: Plan) -> Sum:
        shapes = tuple(self.domain.shape_of(self.candidates.cliques[i]) for i in chosen)
        params = {"cliques": list(chosen)}
        return Sum(tuple(cohort), "measure", shapes, plan.measure, count=len(chosen), params=params)

    # Answers ----------------------------------------------------------------------------------------------------------

    def measured(self, sums: Summed, cliques: Sequence[Clique]) -> None:
        """Keeps the sums as measurements of the whole federation, and the precision of each clique."""
        new = self.opened(sums, cliques)
        self.measurements += new
        for m in new:
            self.precision[m.clique] = self.precision.get(m.clique, 0.0) + m.sigma**-2

    def keep(self, sums: Summed) -> None:
        """The opened sketches, brought to the federation's total."""
        scale = self.scale(sums)
        self.sketches = self.sketcher.split(sums.arrays[0] * scale)
        self.sketch_sigma = sums.sigmas[0] * scale

    # The choice -------------------------------------------------------------------------------------------------------

    def best(self, sigma: float, count: int, share: float) -> list[int]:
        """At most `count` candidates to be measured next, which the model can take together.

        New cliques come first, as long as one promises to gain anything. After that measured ones are measured again,
        those first where that takes away most noise: a clique whose error the noise of a measurement would drown does
        the model more harm than good.
        """
        assert self.model is not None
        view = ModelView(self.model)
        eligible = self.structure.which_fit(self.candidates.cliques, share)
        chosen = self.new_cliques(view, eligible, sigma, count, share)
        cliques, weights = self.candidates.cliques, self.candidates.weights
        again = [i for i in eligible if cliques[i] in self.precision] if len(chosen) < count else []
        gains = {i: weights[i] * self.less_noise(view, i, sigma) for i in again}
        return sorted(chosen + sorted(again, key=lambda i: (-gains[i], i))[: count - len(chosen)])

    def new_cliques(
        self, view: ModelView, eligible: Sequence[int], sigma: float, count: int, share: float
    ) -> list[int]:
        """At most `count` cliques of the largest positive gain: w_q (estimated L1 error - expected noise), as in AIM.

        Cells are counted as `penalty` says. The model's supports, which take long to compute for large cliques, are
        computed for those candidates only whose gain without the penalty could still be among the best.
        """
        cliques, weights = self.candidates.cliques, self.candidates.weights
        inside = [set(q) for q in self.structure.cliques]
        new = [i for i in eligible if len(cliques[i]) > 1 and not any(set(cliques[i]) <= q for q in inside)]
        heap = [(-gain, i, False) for gain, i in zip(weights[new] * self.distances(view, new), new, strict=True)]
        heapq.heapify(heap)
        chosen: list[int] = []
        while heap and len(chosen) < count and heap[0][0] < 0:
            loss, i, exact = heapq.heappop(heap)
            if not exact:
                noise = expected_noise(sigma, penalised_cells(self.config.penalty, self.candidates, [i], view))
                heapq.heappush(heap, (loss + weights[i] * float(noise[0]), i, True))
            elif self.structure.fits(cliques[i], share) and not any(set(cliques[i]) <= set(cliques[j]) for j in chosen):
                self.structure.add([cliques[i]])
                chosen.append(i)
        return chosen

    def less_noise(self, view: ModelView, i: int, sigma: float) -> float:
        """Expected L1 noise that one more measurement takes away from a measured clique, in records."""
        before = self.precision[self.candidates.cliques[i]]
        less = before**-0.5 - (before + sigma**-2) ** -0.5
        return float(expected_noise(less, penalised_cells(self.config.penalty, self.candidates, [i], view))[0])

    def distances(self, view: ModelView, which: Sequence[int]) -> npt.NDArray[np.float64]:
        """(m,) estimated L1 errors of the model on some candidates, in records.

        A clique without a sketch is judged by the sketched cliques inside it: the root of the sum of their squares, as
        if their errors were orthogonal. Nothing is capped at the largest possible error, 2 n: where several parts are
        badly off, the sum still tells a clique with three of them from one with two.
        """
        found: dict[Clique, float] = {}
        for i, clique in enumerate(self.sketcher.cliques):
            (probabilities,) = view.probabilities([clique])
            found[clique] = self.distance(i, probabilities)
        parts = {q: frozenset(q) for q in found}
        out = np.empty(len(which))
        for position, i in enumerate(which):
            clique = self.candidates.cliques[i]
            if clique in found:
                out[position] = found[clique]
            else:
                inside = [found[q] for q, own in parts.items() if own <= set(clique)]
                out[position] = sqrt(sum(distance * distance for distance in inside))
        return out

    def distance(self, i: int, probabilities: npt.NDArray[np.float64]) -> float:
        """sqrt(squared L2 error * support) of sketch i: the L1 norm of an error that is spread like sqrt(p)."""
        assert self.model is not None
        sigma = self.sketcher.sigma_of(i, self.sketch_sigma)
        seen = self.sketcher.of_marginal(i, probabilities)
        squared = squared_distance(self.sketches[i] - self.model.total * seen, sigma)
        squared -= self.config.caution * sqrt(2.0 * len(seen)) * sigma * sigma
        support = effective_cells(seen if self.config.sketch == "groups" else probabilities)
        return sqrt(max(squared, 0.0) * support)

    def statement(self) -> PrivacyStatement:
        seen = self.aggregation.who_sees_what()
        return PrivacyStatement(
            public=public_facts(self.run),
            trust=seen["trust"],
            server_sees=f"noisy sums of one-way marginals, sketches and chosen marginals; {seen['server']}",
            client_sees="groups of neighbouring values and the chosen cliques: functions of released values",
            cost=(
                f"once, {len(self.domain)} one-way marginals at mu^2 = 1/sigma^2 each and one vector of sketches at "
                f"S^2/sigma^2; {self.config.planned} chosen marginals at 1/sigma^2 each; noise drawn by {seen['noise']}"
            ),
            sampler="see the run",
        )
