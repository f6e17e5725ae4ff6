"""The client half of Fed DP-CTGAN and its contract.

A client takes steps of DP-SGD for a discriminator, each private by itself.

The deep baselines of FLAIM's Table 1 (Maddock et al. 2024, Section 5.1 and appendix B.4.1): CTGAN (Xu et al. 2019), its
discriminator trained with DP-FedSGD. With one client it is DP-CTGAN. The server half is `strategies/fed_dp_ctgan.py`.

A client never sees the generator, and the generator never sees a row: it learns from the discriminator, whose every
update is released already. JAX is imported when a step is taken (`ctgan_discriminator`), not with this module.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedsyn.mechanism import (
    Answer,
    Arrays,
    AskRequest,
    Call,
    ConfigError,
    Contract,
    Field,
    Layout,
    Node,
    OneWay,
    PrivacyBudget,
    PrivacyStatement,
    ProtocolError,
    Release,
    RunConfig,
    Step,
    TableClient,
    answers,
    check_message,
    gaussian_rho,
)
from fedsyn.privacy import SAMPLED
from fedsyn.privacy.accountant import RenyiAccountant
from fedsyn.privacy.renyi import best_order, multiplier_for
from fedsyn.protocol.cohorts import rounds_of_one
from fedsyn.version import installing

#: A gradient travels in whole steps of its clipping norm divided by this.
STEPS_OF_CLIP = 2**20
_NEEDED = ("jax", "optax", "jax_privacy")


def require_deep() -> None:
    """Raises ConfigError unless the packages of the extra `deep` are installed.

    It imports none of them.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"mechanism 'fed_dp_ctgan' needs the package '{missing[0]}': {installing('deep')}")


class CtganOptions(Node):
    """Options of (Fed) DP-CTGAN.

    Attributes:
        rounds: T, each one step of DP-SGD at every client of the round's cohort.
        rate: q, probability with which a step takes a row; public, and the same at every client, so that nothing
            depends on a client's size. T q is what the papers call epochs.
        clip: L2 norm to which the discriminator's gradient at a row is clipped.
        discriminator_learning_rate: of Adam, for the discriminator.
        generator_learning_rate: of Adam, for the generator.
        generator_steps: of the generator after each round. They cost no privacy.
        batch: rows that the generator makes for a step.
        hidden: width of the two hidden layers of either network.
        noise_dim: of the generator's input.
        one_way_share: share of the budget for the one-way marginals, from which conditions are drawn.
        start: what the untrained generator makes: 'uniform' values, or those of the released one-way 'marginals'.
        components: noise vectors, with their conditions, that the generator is turned into a model with.
        order: Rényi order at which the run is counted; null: where its steps need least noise. A holder's ledger for
            life keeps to the order of its table's first run.
    """

    rounds: int = Field(default=500, ge=1, le=100_000)
    rate: float = Field(default=0.1, gt=0, le=1)
    clip: float = Field(default=0.5, gt=2.0**-20, lt=2.0**20)
    discriminator_learning_rate: float = Field(default=1e-4, gt=0, lt=1)
    generator_learning_rate: float = Field(default=1e-4, gt=0, lt=1)
    generator_steps: int = Field(default=1, ge=1, le=1000)
    batch: int = Field(default=128, ge=1, le=1 << 14)
    hidden: int = Field(default=128, ge=1, le=4096)
    noise_dim: int = Field(default=128, ge=1, le=4096)
    one_way_share: float = Field(default=0.1, gt=0, lt=1)
    start: Literal["uniform", "marginals"] = "uniform"
    components: int = Field(default=2000, ge=1, le=1 << 17)
    order: int | None = Field(default=None, ge=2, le=512)


class CtganContract(Contract):
    """Equal steps on secret Poisson samples.

    One noisy sum of one-way marginals comes before them.
    """

    Options: ClassVar[type[Node]] = CtganOptions
    accountant = "renyi"
    statement = PrivacyStatement(
        server_sees="each client's noisy sum of clipped gradients in every round it takes part in; once the one-way "
        "marginals: {server}",
        client_sees="the discriminator after each round: a function of released values",
        cost="{cost}; z C of a step is drawn by each client. A row sits at one client, so what other clients release "
        "costs it nothing",
        public="{public}; the sampling rate",
        trust="{trust}; nobody for the steps, whose samples and noise each client draws",
    )

    # The plan ---------------------------------------------------------------------------------------------------------

    @property
    def steps_of_a_row(self) -> int:
        """The steps that a row is counted in: T, or `federation.max_participations`."""
        return self.paid(self.options.rounds)

    @classmethod
    def order_of(cls, config: RunConfig) -> int:
        """Returns the Rényi order that the whole run is counted at.

        It is the configured one, or the one where the steps of one row need least noise. It follows from the
        configuration alone, before anything is released.
        """
        privacy, options = config.privacy, cls.options_of(config)
        steps = rounds_of_one(config.federation, options.rounds)
        try:
            return options.order or best_order(privacy.epsilon, privacy.delta, options.rate, steps)
        except ValueError:
            raise ConfigError(
                f"privacy.epsilon = {privacy.epsilon:g} does not pay for {steps} steps; choose fewer rounds"
            ) from None

    @cached_property
    def order(self) -> int:
        return self.order_of(self.config)

    def accountant_of(self, budget: PrivacyBudget) -> RenyiAccountant:
        return RenyiAccountant.of(budget, self.order)

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Divides the budget between one-way marginals and a row's steps.

        Steps are in rho as ledgers enter them: as if a step took every row. `rho` is what a Gaussian release might cost
        if it were the only one: α rho is the Rényi divergence to divide.
        """
        d, options, paid = len(self.domain), self.options, self.steps_of_a_row
        one_way = Step(OneWay, options.one_way_share * rho / d, arrays=d)
        says = f"on rows sampled with rate {options.rate:g}, clipped to C = {options.clip:g}; {paid} count for each row"
        step = Step(Descent, gaussian_rho(self.multiplier(rho)), paid=paid, times=options.rounds, says=says)
        return [one_way, step]

    def multiplier(self, rho: float) -> float:
        """Returns z, the noise of a step over its clipping norm.

        A row's steps share what the one-way marginals leave of rho.
        """
        options = self.options
        step = (1.0 - options.one_way_share) * rho * self.order / self.steps_of_a_row
        return multiplier_for(step, options.rate, self.order)

    # The discriminator ------------------------------------------------------------------------------------------------

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the discriminator's parameters.

        It has two hidden layers and a score, and reads a row and a condition over all values.
        """
        cells, hidden = sum(self.domain.shape), self.options.hidden
        return ((2 * cells, hidden), (hidden,), (hidden, hidden), (hidden,), (hidden, 1), (1,))

    @cached_property
    def length(self) -> int:
        """P, the discriminator's number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes)


class Descent(AskRequest):
    """One step of DP-SGD for the discriminator that the request brings."""

    name = "step"
    leaves = "the sum of the discriminator's clipped gradients over a secret sample of its rows, with noise"
    costs = "one sampled Gaussian release of noise multiplier z (`fedsyn.privacy.renyi`); rho 1/(2 z^2) if not sampled"

    attribute: int = Field(ge=0, description="whose value is a row's condition")
    multiplier: float = Field(ge=1e-3, le=1e6)

    @classmethod
    def largest(cls, contract: CtganContract) -> Iterable[Layout]:
        """Nothing is summed; request and reply have the discriminator's parameters."""
        check_message(8.0 * contract.length, "mechanism.hidden")
        return ()

    def releases(self, contract: CtganContract) -> tuple[Release, ...]:
        """Returns the release of a step, in steps of clipping.

        A row that is sampled moves the sum by at most 2^20 of them (`gradient`).
        """
        return (
            Release(
                self.name,
                0,
                SAMPLED,
                float(STEPS_OF_CLIP),
                sigma=self.multiplier * STEPS_OF_CLIP,
                rate=contract.options.rate,
                noise_by="each client",
                argument="a row sits at one client, whose steps alone depend on it",
            ),
        )

    def discriminator(self, arrays: Arrays, contract: CtganContract) -> Arrays:
        """Returns the request's parameters.

        Raises ProtocolError unless they are those of a discriminator of this run.
        """
        if self.attribute >= len(contract.domain):
            raise ProtocolError(f"parameter 'attribute' must be below {len(contract.domain)}")
        if tuple(array.shape for array in arrays) != contract.shapes or any(a.dtype.kind != "f" for a in arrays):
            raise ProtocolError("the request's arrays do not have the shapes of this run's discriminator")
        return arrays


class CtganClient(TableClient):
    """Takes steps of DP-SGD on its own rows.

    It also adds its one-way marginals to a sum (the base class's answer).
    """

    Contract = CtganContract
    contract: CtganContract

    @answers(Descent)
    def step(self, call: Call[Descent]) -> Answer:
        """Returns the noisy sum of clipped gradients, (P,) float32.

        The sum is over a Poisson sample of this client's rows.

        Sensitivity: a row that is sampled adds its own clipped gradient to the sum and changes no other row's, so it
        moves the sum by at most the clipping norm C: 2^20 steps of C / 2^20, in which gradients are rounded towards
        zero and added as integers (`ctgan_discriminator.clipped_sum`). Each row is sampled with probability q,
        independently of all others and of how many there are.

        What float32 leaves open: a row's gradient may differ in its last bits with its place in a chunk of 32.
        """
        require_deep()
        from fedsyn.plugins.clients.ctgan_discriminator import clipped_sum

        request, contract = call.request, self.contract
        parameters = request.discriminator(call.arrays, contract)
        (release,) = request.releases(contract)

        def total(chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            rows, clip = self.codes[chosen], contract.options.clip
            return clipped_sum(parameters, rows, self.domain.shape, request.attribute, clip, STEPS_OF_CLIP)

        entry = replace(release, round=call.round)
        noisy = self.ledger.sampled_gaussian(total, len(self.codes), entry, call.source)
        unit = contract.options.clip / STEPS_OF_CLIP
        return [(np.asarray(noisy, np.float64) * unit).astype(np.float32)], {}
