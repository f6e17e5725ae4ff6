"""The client half of the FLAIM family, and its contract.

Clients select locally, then contribute exact marginals to a sum.

Maddock et al. 2024, "FLAIM: AIM-based Synthetic Data Generation in the Federated Setting", Algorithm 1, lines 4-13.
The server half is `strategies/flaim.py`. Table 1's two Gaussian baselines stand at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedsyn.inference.estimation import estimate_config
from fedsyn.mechanism import (
    COUNTS,
    EXPONENTIAL,
    Answer,
    Arrays,
    AskRequest,
    Call,
    CandidateIndices,
    Clique,
    Contract,
    Contribution,
    Domain,
    Field,
    Layout,
    Measurement,
    Model,
    ModelView,
    Node,
    OneWay,
    Positive,
    PrivacyStatement,
    ProtocolError,
    Release,
    RunConfig,
    Step,
    SumRequest,
    TableClient,
    answers,
    check_message,
    estimate,
    most_cells,
    require,
)
from fedsyn.selection.scores import Penalty, expected_noise, l1_distances, penalised_cells
from fedsyn.selection.views import check_model_size, flat_layout
from fedsyn.table.counting.marginals import count

# A client fits what a server sent together with its own: within these, no square of a quotient leaves the doubles.
_LARGEST = 2.0**64
Scale = Annotated[float, Field(gt=1 / _LARGEST, lt=_LARGEST)]


class FlaimOptions(Node):
    """Options of the FLAIM family.

    Attributes:
        rounds: T, global rounds; null: budget annealing from 8 d planned rounds (appendix B.4).
        local_rounds: s, cliques that a client selects per round.
        measure_fraction: r, share of the budget for Gaussian noise; the rest is for selection.
        penalty: what a measurement's noise is expected to cost: in 'cells', n_q as AIM has it, or in the 'effective'
            support (sum over cells of sqrt(p))^2 of the current model.
        iterations: of the fit after each round. A cohort is a sample of the federation, so a converged fit also fits
            the sampling error: few iterations regularise.
        final_iterations: of the last fit.
        local_iterations: of a client's local fits (s > 1 only).
    """

    rounds: int | None = Field(default=10, ge=1, le=10_000)
    local_rounds: int = Field(default=1, ge=1, le=10_000)
    measure_fraction: float = Field(default=0.9, gt=0, lt=1)
    penalty: Penalty = "cells"
    iterations: int = Field(default=12, ge=1)
    final_iterations: int = Field(default=12, ge=1)
    local_iterations: int = Field(default=20, ge=1)


class FlaimContract(Contract):
    """Contract of all variants. They differ in two facts: `moves_per_row` and `one_way_every_round`."""

    Options: ClassVar[type[Node]] = FlaimOptions
    own_sizes = True
    statement = PrivacyStatement(
        server_sees="each client's choices of each round, by the exponential mechanism; {server}",
        client_sees="the current model, the eligible cliques and all clients' choices of each round, for s > 1 also "
        "all measurements so far: functions of released values",
        cost="{cost}. A row sits at one client, so what other clients release costs it nothing",
    )
    #: How far one row moves a score, in multiples of w_q: ||M_q(D_k) - n_k p_q||_1 moves by at most 1, n_k being a
    #: public or released number. A penalty that reads the rows again moves it by as much again (Lemma 4.1).
    moves_per_row: ClassVar[float] = 1.0
    #: Filter and combine (lines 5 and 11): one-way marginals in every round, and none of them among the candidates.
    one_way_every_round: ClassVar[bool] = False

    def score_sensitivity(self, eligible: Sequence[int]) -> float:
        """Returns how far one row moves a score.

        It is `moves_per_row` times the largest w_q of the eligible cliques.
        """
        if not eligible:
            raise ProtocolError("parameter 'eligible' names no clique")
        return self.moves_per_row * float(self.candidates.weights[list(eligible)].max())

    # The plan ---------------------------------------------------------------------------------------------------------

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Divides the budget by Lemma 4.1 for T rounds.

        An annealed run starts with the scales for 8 d rounds and may come to at most `most_of_one`.

        Where a client takes part in m of T rounds, it is in m rounds' choices and sums and, at most, in the first
        round's one-way marginals: m stands for T. Only the budget limits how often a client is asked.
        """
        options, d, s = self.options, len(self.domain), self.options.local_rounds
        rounds, times = (8 * d, 16 * d) if options.rounds is None else (self.paid(options.rounds), options.rounds)
        one_way = d * (rounds if self.one_way_every_round else 1)
        first = gaussian, choice = lemma_4_1(rho, rounds, s, one_way, options.measure_fraction)
        if options.rounds is None:
            gaussian, choice = most_of_one(first, self.per_round, rho, options.measure_fraction)
        step = partial(Step, paid=math.inf, times=times)
        return [
            step(OneWay, gaussian, arrays=d, least=first[0]),
            step(Select, choice, arrays=s, beside=(s - 1) * gaussian, least=first[1]),
            step(Measure, gaussian, arrays=None, least=first[0]),
        ]

    @property
    def per_round(self) -> tuple[int, int]:
        """Gaussian releases, and choices, that one row takes part in per round."""
        s = self.options.local_rounds
        return 2 * s - 1 + (len(self.domain) if self.one_way_every_round else 0), s


class AugFlaimContract(FlaimContract):
    moves_per_row = 2.0
    one_way_every_round = True


class AugFlaimOracleContract(FlaimContract):
    """NOT PRIVATE: scores read the pooled table's marginals.

    No party of a federation has them.
    """

    moves_per_row = 2.0  # the pooled marginals are treated as given, which is why this is no mechanism
    not_private = "the oracle's scores read the exact marginals of the pooled table"

    @classmethod
    def check(cls, config: RunConfig) -> None:
        super().check(config)
        require(
            config.runtime.engine != "deployment",
            "mechanism.name: 'augflaim_oracle' reads the pooled table, which no party of a deployment has; "
            "it is a baseline for simulations",
        )


class Select(AskRequest):
    """s choices, each by the exponential mechanism (lines 3-10).

    For s > 1 the request brings the server's measurements so far, behind the arrays of the model.
    """

    name = "select"
    leaves = "the indices of s cliques"
    costs = (
        "s choices: rho epsilon^2/8 each; s - 1 local marginals, which steer the next choice: rho 1/(2 sigma^2) each"
    )

    eligible: CandidateIndices
    sigma: Scale
    epsilon: Positive
    model_arrays: int = Field(ge=1, description="how many of the arrays are the model's")
    measured: list[list[str]] = Field(default_factory=list)
    sigmas: list[Scale] = Field(default_factory=list)

    @classmethod
    def largest(cls, contract: FlaimContract) -> Iterable[Layout]:
        """Nothing is summed; the request brings the model."""
        check_message(8.0 * contract.config.inference.max_cells, "inference.max_cells")
        return ()

    def releases(self, contract: FlaimContract) -> tuple[Release, ...]:
        s = contract.options.local_rounds
        argument = "a row sits at one client, whose choices alone depend on it"
        choices = self.choices(self.epsilon, contract.score_sensitivity(self.eligible), s, argument)
        if s == 1:
            return (choices,)
        argument = "each local measurement steers the client's next choice, which is released"
        return (choices, replace(self.noisy(self.sigma, s - 1, argument=argument), name="local measure"))

    def past(self, arrays: Arrays, domain: Domain) -> list[Measurement]:
        """Returns the server's past measurements.

        Raises ProtocolError unless they fit the arrays behind the model and the domain.
        """
        values = arrays[self.model_arrays :]
        if not len(self.measured) == len(self.sigmas) == len(values):
            raise ProtocolError("parameters 'measured' and 'sigmas' must match the request's arrays")
        past = []
        for clique, sigma, table in zip(map(tuple, self.measured), self.sigmas, values, strict=True):
            known = len(set(clique)) == len(clique) and all(name in domain for name in clique)
            if not known or table.dtype.kind != "f" or table.shape != domain.shape_of(clique):
                raise ProtocolError("a measurement of the request does not fit the domain")
            if not np.all(np.abs(table) < _LARGEST):  # also where a value is not a number
                raise ProtocolError("a measurement of the request has values that cannot be fitted")
            past.append(Measurement(clique, table.astype(np.float64), sigma))
        return past


class Measure(SumRequest):
    """One-way marginals (if requested) and chosen marginals, lines 11-13.

    A chosen marginal comes from the clients that chose it.
    """

    name = "measure"
    leaves = "the counts of its own choices (and of every attribute), in a sum"
    costs = "s chosen marginals (and d one-way marginals) of sensitivity 1: rho 1/(2 sigma^2), mu^2 twice that, each"

    cliques: CandidateIndices
    one_way: bool

    def layout(self, contract: FlaimContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        ones = [(name,) for name in contract.domain] if self.one_way else []
        most_chosen = min(len(self.cliques), contract.options.local_rounds)
        return Layout.of_marginals(
            contract.domain,
            ones + [contract.candidates.cliques[i] for i in self.cliques],
            count=max(1, len(ones) + most_chosen),
            argument="a client contributes only to the one-way marginals and to the cliques that it chose",
        )

    @classmethod
    def largest(cls, contract: FlaimContract) -> Iterable[Layout]:
        """One-way marginals, and all cells that a model can take."""
        cells = sum(contract.domain.shape) + most_cells(contract)
        count = contract.options.local_rounds + (len(contract.domain) if contract.one_way_every_round else 0)
        return [Layout(((cells,),), count, replaced=COUNTS)]


class FlaimClient(TableClient):
    """NaiveFLAIM: selects cliques on its own table, then contributes their marginals.

    These are lines 4-10 and 11-13.
    """

    Contract = FlaimContract
    contract: FlaimContract

    def proxy(self, cliques: list[Clique], view: ModelView) -> npt.NDArray[np.float64]:
        """Returns the proxy tau_k that distances are reduced by (line 7).

        (m,) records; zero in the naive variant.
        """
        return np.zeros(len(cliques))

    @answers(Select)
    def select(self, call: Call[Select]) -> Answer:
        """Makes s choices by the exponential mechanism (lines 4-10).

        Returns their candidate indices.
        """
        request, candidates = call.request, self.candidates
        if request.model_arrays > len(call.arrays):
            raise ProtocolError("parameter 'model_arrays' must count arrays of the request")
        view = self.view(call.arrays[: request.model_arrays])
        past = request.past(call.arrays, self.domain)
        if past:  # the model alone was checked when it was read
            check_model_size(self.domain, [m.clique for m in past], self.config.inference)
        chosen: list[int] = []
        steps = min(self.options.local_rounds, len(request.eligible))
        for step in range(steps):
            # A choice is released, so leaving it out of the next one costs nothing.
            open_ = [i for i in request.eligible if i not in chosen]
            cliques = [candidates.cliques[i] for i in open_]
            # Line 7: distance from the model, less the expected noise and the proxy tau_k.
            distances = l1_distances(self.codes, self.domain, cliques, view, self.size)
            cells = penalised_cells(self.options.penalty, candidates, open_, view)
            penalty = expected_noise(request.sigma, cells) + self.proxy(cliques, view)
            # The exponential mechanism, through the ledger.
            sensitivity = self.contract.score_sensitivity(open_)
            entry = Release(request.name, call.round, EXPONENTIAL, sensitivity, epsilon=request.epsilon)
            best = self.ledger.exponential(candidates.weights[open_] * (distances - penalty), entry, call.source)
            chosen.append(open_[best])
            if step + 1 < steps:  # line 10 after the last choice would fit a model that nothing reads
                past.append(self._measure_locally(cliques[best], call, view.model.total))
                view = ModelView(self._local_model(view.model, past), view.at_once)
        self.holder.state["chosen"] = {"round": call.round, "candidates": chosen}
        return [], {"chosen": chosen}

    def _measure_locally(self, clique: Clique, call: Call[Select], total: float) -> Measurement:
        """Measures a marginal for this client's next choice (line 9).

        The noisy marginal never leaves the client but steers the next choice: a release of its own.
        """
        exact, sigma = count(self.codes, self.domain, [clique]), call.request.sigma
        _, release = call.request.releases(self.contract)
        (noisy,) = self.ledger.gaussian(exact, replace(release, round=call.round, count=1, argument=""), call.source)
        factor = total / max(1.0, self.size)
        return Measurement(clique, noisy * factor, sigma * factor)

    def _local_model(self, model: Model, measurements: list[Measurement]) -> Model:
        """Fits the server's measurements and this client's own (line 10)."""
        return estimate(
            self.domain,
            measurements,
            total=model.total,
            config=estimate_config(self.config.inference, self.options.local_iterations),
            warm_start=model,
        )

    @answers(Measure)
    def measure(self, call: Call[Measure]) -> Contribution:
        """Contributes exact marginals (lines 11-13).

        They are all one-way marginals (if requested) and those of its own choices. One row touches each of them once,
        and each is a count: L2 sensitivity 1 per marginal.
        """
        request = call.request
        state = self.holder.state.get("chosen", {})
        choices = set(state["candidates"]) if state.get("round") == call.round else set()
        ones = len(self.domain) if request.one_way else 0
        active = [*range(ones), *(ones + j for j, i in enumerate(request.cliques) if i in choices)]
        return self.marginals(request.layout(self.contract, call.arrays), active)


class AugFlaimClient(FlaimClient):
    """AugFLAIM (Private): penalises cliques by the proxy tau_k.

    The proxy of a clique is the mean distance of its attributes' one-way marginals.
    """

    Contract = AugFlaimContract

    def proxy(self, cliques: list[Clique], view: ModelView) -> npt.NDArray[np.float64]:
        """Returns the proxy tau_k(q) of each clique (line 7, Private).

        The mean over j in q of ||M_j(D_k) - n_k p_j||_1; one row moves it by at most 1.
        """
        attributes = list(self.domain)
        distances = l1_distances(self.codes, self.domain, [(name,) for name in attributes], view, self.size)
        return _means(distances, self.domain, tuple(cliques))


class AugFlaimOracleClient(FlaimClient):
    """AugFLAIM (Oracle); not private.

    It penalises a clique by the client's true distance from the pooled table.
    """

    Contract = AugFlaimOracleContract

    def proxy(self, cliques: list[Clique], view: ModelView) -> npt.NDArray[np.float64]:
        """Returns the true tau_k(q) in place of a proxy (line 7, Oracle).

        tau_k(q) = ||M_q(D_k) - n_k M_q(D) / n||_1.
        """
        if self.holder.pooled is None:
            raise ProtocolError("the oracle needs the pooled table, which only a simulation has")
        return l1_distances(self.codes, self.domain, cliques, self.holder.pooled(), self.size)


def _means(values: npt.NDArray[np.float64], domain: Domain, cliques: tuple[Clique, ...]) -> npt.NDArray[np.float64]:
    """Returns means over each clique's attributes, (m,).

    `values` is (d,); the means are the same to the last bit as clique by clique.
    """
    means = np.empty(len(cliques))
    for places, axes in flat_layout(domain, cliques).by_length:
        means[places] = values[axes].mean(axis=1)
    return means


# The Gaussian baselines of Table 1 ------------------------------------------------------------------------------------
#
# Only Gaussian noise of a scale fixed in advance is ever added: a run is accounted exactly, as one Gaussian mechanism.


class FlaimRandomOptions(FlaimOptions):
    """Options of FLAIM (Random): those of the family; its rounds are fixed."""

    rounds: int = Field(default=10, ge=1, le=10_000)


class FlaimRandomContract(FlaimContract):
    Options = FlaimRandomOptions
    accountant = "gaussian"
    own_sizes = False
    statement = PrivacyStatement(
        server_sees="each client's choices of each round, which depend on no row; {server}",
        client_sees="the eligible cliques and all clients' choices of each round: functions of released values",
        public="{public}; the choices, which depend on no row",
    )

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Gives all of the budget to marginals.

        These are the s chosen ones of each of a client's rounds, and the one-way ones.
        """
        options, d = self.options, len(self.domain)
        rounds = self.paid(options.rounds)
        each = rho / (rounds * options.local_rounds + d * (rounds if self.one_way_every_round else 1))
        step = partial(Step, paid=math.inf, times=options.rounds)
        return [step(OneWay, each, arrays=d), step(Measure, each, arrays=None)]


class BlindDraw(AskRequest):
    """s distinct eligible cliques, uniformly."""

    name = "select"
    leaves = "the indices of s cliques, drawn without looking at a row"
    costs = "nothing: the choice depends on no row"

    eligible: CandidateIndices

    def releases(self, contract: FlaimRandomContract) -> tuple[Release, ...]:
        return ()


class FlaimRandomClient(FlaimClient):
    """FLAIM (Random): chooses without looking at its rows."""

    Contract = FlaimRandomContract

    @answers(BlindDraw)
    def select(self, call: Call[BlindDraw]) -> Answer:  # type: ignore[override]
        """Draws s distinct eligible cliques, uniformly."""
        eligible = call.request.eligible
        order = call.source.permutation(len(eligible))
        chosen = [eligible[int(i)] for i in order[: self.options.local_rounds]]
        self.holder.state["chosen"] = {"round": call.round, "candidates": chosen}
        return [], {"chosen": chosen}


class FedNaiveBayesOptions(Node):
    """Options of FedNaiveBayes.

    Attributes:
        rounds: T.
        iterations: of the fit after each round.
        final_iterations: of the last fit.
    """

    rounds: int = Field(default=10, ge=1, le=10_000)
    iterations: int = Field(default=12, ge=1)
    final_iterations: int = Field(default=12, ge=1)


class FedNaiveBayesContract(Contract):
    Options = FedNaiveBayesOptions
    accountant = "gaussian"
    statement = PrivacyStatement(server_sees="{server}", client_sees="the names of the requests")

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Gives every marginal equal noise.

        There are d of them in each round that a client takes part in.
        """
        d, rounds = len(self.domain), self.options.rounds
        return [Step(OneWay, rho / (self.paid(rounds) * d), arrays=d, paid=math.inf, times=rounds)]


class FedNaiveBayesClient(TableClient):
    """Contributes all one-way marginals, which is the base class's answer."""

    Contract = FedNaiveBayesContract


# The plan's parts ----------------------------------------------------------------------------------------------------


def lemma_4_1(
    rho: float, rounds: int, local_rounds: int, one_way: int, measure_fraction: float = 0.9
) -> tuple[float, float]:
    """Returns rho of one measurement and of one choice.

    This is Lemma 4.1, corrected for more than one local round.

    A row sits at one client, so only that client's choices and the sums it joins touch the row: parallel
    composition over clients, no factor for their number. Of a client that is asked in all T rounds these are

    * T s choices by the exponential mechanism, `epsilon_t = sqrt(8 (1 - r) rho / (T s))`;
    * the server's noisy sums: T s of chosen marginals, and those of the one-way marginals;
    * T (s - 1) local noisy measurements (Algorithm 1, line 9). Each steers the client's next choice, and the
      choice is sent to the server, so its noise is no post-processing of the server's later noise on the same
      marginal: it is a release of its own. The last local step of a round has none, because nothing reads the
      local model after it.

    Lemma 4.1 prints s for 2s - 1: the same for s = 1, an UNDER-CHARGE for s > 1, where it leaves the local
    measurements unpaid (Maddock et al. 2024).

    Args:
        rho: zCDP budget.
        rounds: T.
        local_rounds: s.
        one_way: one-way marginals that a row takes part in: d if they are measured once, T d if in every round.
        measure_fraction: r, the share of rho for measuring.
    """
    gaussians, choices = rounds * (2 * local_rounds - 1) + one_way, rounds * local_rounds
    return measure_fraction * rho / gaussians, (1.0 - measure_fraction) * rho / choices


def most_of_one(
    first: tuple[float, float], per_round: tuple[int, int], rho: float, measure_fraction: float
) -> tuple[float, float]:
    """Returns the largest rho of one measurement and one choice under annealing.

    A round that is not the last costs less than half of what is left, in the proportions of the first round: a settled
    round quadruples both costs. The last round spends the rest, that share of it on its Gaussian releases, evenly.

    Args:
        first: rho of one Gaussian release, and of one choice, in the first round.
        per_round: Gaussian releases and choices that one row takes part in per round.
        rho: that a run has at most.
        measure_fraction: r, the share of rho for measuring.
    """
    (gaussians, choices), (one, choice) = per_round, first
    half = 0.5 * rho / (gaussians * one + choices * choice)  # how often the first round fits into half of the budget
    return (
        max(one, half * one, measure_fraction * rho / gaussians),
        max(choice, half * choice, (1.0 - measure_fraction) * rho / choices),
    )
