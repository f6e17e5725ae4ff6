"""The server half of Fed DP-CTGAN, FLAIM's deep baseline.

With one client it is DP-CTGAN.

Maddock et al. 2024, Section 5.1 and appendix B.4.1; CTGAN itself: Xu et al. 2019. Client half and contract:
`clients/fed_dp_ctgan.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedsyn.errors import RunError
from fedsyn.inference import EmpiricalModel, MixtureModel, consistent, rows_for
from fedsyn.mechanism import Ask, Contract, Domain, MechanismStrategy, OneWay, Protocol, ProtocolError, Reply, Steps
from fedsyn.plugins.clients.fed_dp_ctgan import CtganClient, CtganContract, Descent, require_deep

_MOST_TRIES = 300  # tables of rows until enough keep to the constraints
_PARTS = 10**6  # in which jax-privacy's accountant takes a sampling rate


class FedDpCtgan(MechanismStrategy):
    """Federated averaging of one-step updates (DP-FedSGD).

    Noisy gradient sums add up to one step of the discriminator.

    The mean of the clients' gradients, weighted by their rows, is one step of DP-SGD over the whole federation, except
    that every client's own noise is in it: with K clients it is sqrt(K) times what one client with all rows would add.
    """

    Client = CtganClient
    contract: CtganContract

    @classmethod
    def fits_model(cls, contract: Contract) -> bool:
        return False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_deep()
        super().__init__(*args, **kwargs)

    def protocol(self) -> Protocol:
        from fedsyn.plugins.strategies.ctgan_networks import Networks

        options, multiplier = self.options, self.contract.multiplier(self.ledger.remaining_rho)
        sigma = self.steps()[OneWay].sigma
        self.begin_round(1)
        self.second_opinion(multiplier)
        first = self.sample(self.config.federation.sampling_rate)
        # Everybody, unless a round that a client takes part in is one that it has less.
        contributors = self.everyone() if self.config.federation.max_participations is None else first
        marginals = yield from self.one_way_marginals(contributors, sigma)
        random = self.randomness.ordinary("networks")
        networks = Networks(self.contract, marginals, int(random.integers(2**31)))
        learned = 0
        for t in range(1, options.rounds + 1):
            self.begin_round(t)
            cohort = first if t == 1 else self.sample(self.config.federation.sampling_rate)
            attribute = int(random.integers(len(self.domain)))
            request = Descent(attribute=attribute, multiplier=multiplier)
            replies = yield Ask(cohort, request, networks.arrays())
            gradients = self.accept(replies, self.gradient_of)
            if not gradients:
                continue
            learned += 1
            with self.timed("learn"):
                total = np.sum([gradients[partition] for partition in sorted(gradients)], axis=0, dtype=np.float64)
                networks.learn(total / (options.rate * max(1.0, self.rows(gradients))), attribute)
        if learned:
            with self.timed("synthesise"):
                self.model = self.obeying(networks.mixture())  # type: ignore[assignment]

    def one_way_marginals(self, contributors: Sequence[int], sigma: float) -> Steps:
        """Returns released shares of every attribute's values, (C,).

        Conditions are drawn from them; they are uniform if nothing was opened.
        """
        one_way = [(name,) for name in self.domain]
        measurements = yield from self.measurements_of(contributors, OneWay(), sigma)
        if not measurements:
            return np.concatenate([np.full(size, 1.0 / size) for size in self.domain.shape])
        tables = consistent(self.domain, measurements, total=self.total)
        return np.concatenate([tables[clique] / tables[clique].sum() for clique in one_way])

    def obeying(self, components: np.ndarray) -> MixtureModel | EmpiricalModel:
        """Returns the generator's distribution, within the schema's constraints.

        The generator makes each column by itself. Under constraints its rows are therefore drawn until enough of them
        break none, and these are the table.
        """
        free = Domain(self.domain.attributes, self.domain.shape, self.domain.ordered)
        mixture, rows = MixtureModel(free, components, self.total), rows_for(free, self.total)
        if not self.domain.zeros:
            return mixture
        random, batches, rows_drawn = self.randomness.ordinary("rows"), [], 0
        for _ in range(_MOST_TRIES):
            drawn = mixture.sample(max(rows, 1000), random)
            batches.append(drawn[~self.domain.violated(drawn)])
            rows_drawn += len(batches[-1])
            if rows_drawn >= rows:
                return EmpiricalModel(self.domain, np.concatenate(batches)[:rows], self.total)
        raise RunError("hardly any row that the generator makes keeps to the schema's constraints: leave them out")

    def gradient_of(self, reply: Reply) -> np.ndarray:
        """Returns the gradient sum of a reply, (P,).

        Raises ProtocolError unless it is one finite vector of that length.
        """
        if len(reply.arrays) != 1 or reply.arrays[0].shape != (self.contract.length,):
            raise ProtocolError(f"the reply is not one vector of {self.contract.length} numbers")
        vector = np.asarray(reply.arrays[0], np.float64)
        if reply.arrays[0].dtype.kind != "f" or not np.isfinite(vector).all():
            raise ProtocolError("the reply holds a value that is not a finite number")
        return vector

    def second_opinion(self, multiplier: float) -> None:
        """Checks all steps with jax-privacy's own accountant.

        Raises RunError if they come to more than the budget.
        """
        options, budget, steps = self.options, self.budget.guarantee, self.contract.steps_of_a_row
        epsilon = steps_epsilon(options.rate, multiplier, steps, budget.delta)
        if epsilon > budget.epsilon:
            raise RunError("jax-privacy's accountant finds this plan beyond the budget: nothing was asked for")
        self.record.notes.append(
            f"{steps} steps, noise multiplier {multiplier:.4g}, rate {options.rate:g}, counted at Rényi order "
            f"{self.contract.order}; by jax-privacy's PLD accountant they are epsilon {epsilon:.4g} at delta "
            f"{budget.delta:g}"
        )


@lru_cache(maxsize=16)
def steps_epsilon(rate: float, multiplier: float, steps: int, delta: float) -> float:
    """Returns ε of equal steps, composed numerically by jax-privacy's PLD accountant."""
    from jax_privacy import accounting

    taken = min(_PARTS, int(np.ceil(rate * _PARTS)))
    plan = accounting.DpParams(noise_multipliers=multiplier, num_samples=_PARTS, batch_size=taken, delta=delta)
    accountant = accounting.DpsgdTrainingAccountant(accounting.PldAccountantConfig())
    return float(accountant.compute_epsilon(steps, plan))
