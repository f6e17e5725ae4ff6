"""The client half of Distributed AIM, and its contract.

Clients contribute local scores and exact marginals, both only to sums.

Sedimo & Near, "Efficient Distributed Differentially Private Synthetic Data with High Utility via Secure Aggregation",
Protocols 1 and 2. The server half is `strategies/distributed_aim.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.mechanism import (
    Call,
    ConfigError,
    Contract,
    Contribution,
    Field,
    Layout,
    Marginals,
    Node,
    OneWay,
    PrivacyStatement,
    ProtocolError,
    SomeCandidates,
    Step,
    SumRequest,
    TableClient,
    answers,
    check_message,
)
from fedsyn.selection.scores import Penalty
from fedsyn.table.counting.sums import norm

#: Floating point may move an encoded value of at most LARGEST by this much before it is rounded. Sums of
#: millions of cells are exact to 3e-15 of their value, LARGEST times that is 0.05.
_FLOAT_ERROR = 0.1
LARGEST = 2.0**44


class DistributedAimOptions(Node):
    """Options of Distributed AIM.

    Attributes:
        rounds: T.
        top: k, cliques that are selected and measured in a round.
        measure_fraction: share of the budget for measuring; the rest is for scores. The paper's is a half.
        penalty: what a measurement's noise is expected to cost: in 'cells', n_r as AIM has it, or in the 'effective'
            support (sum of the square roots of the model's probabilities)^2, which is smaller for sparse marginals.
        resolution: gamma, integer steps of a score.
        iterations: of the fit after each round.
        final_iterations: of the last fit.
    """

    rounds: int = Field(default=10, ge=1, le=10_000)
    top: int = Field(default=5, ge=1)
    measure_fraction: float = Field(default=0.9, gt=0, lt=1)
    penalty: Penalty = "cells"
    resolution: int = Field(default=1000, ge=1, le=2**20)
    iterations: int = Field(default=50, ge=1)
    final_iterations: int = Field(default=50, ge=1)


class DistributedAimContract(Contract):
    Options = DistributedAimOptions
    accountant = "gaussian"
    own_sizes = True
    statement = PrivacyStatement(
        server_sees="noisy sums of scores and of marginals; {server}",
        client_sees="the current model, the eligible and the selected cliques: functions of released values",
    )

    @property
    def initial(self) -> int:
        """Number of marginals measured before the first round: all one-way ones."""
        return len(self.domain)

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Divides the budget between marginals and scores.

        One part is for the one-way marginals, once, and k marginals in each round; the rest is for the rounds' scores.
        A row pays for those of the T rounds in which its client takes part.
        """
        options, top, rounds = self.options, self.options.top, self.options.rounds
        paid, initial = self.paid(rounds), self.initial
        marginal = options.measure_fraction * rho / (paid * top + initial)
        scores = (1.0 - options.measure_fraction) * rho / paid
        return [
            *([Step(OneWay, marginal, arrays=initial)] if initial else []),
            Step(Scores, scores, least=scores / len(self.candidates), paid=paid, times=rounds),
            Step(Marginals, marginal, arrays=top, least=marginal / top, paid=paid, times=rounds),
        ]

    def require_size(self, rows: float) -> None:
        """Raises ConfigError where a client's scores would not be exact.

        A client rounds these real numbers to integers below `LARGEST`.
        """
        largest = 2.0 * rows * float(self.candidates.weights.max()) * self.options.resolution
        if largest > LARGEST:
            raise ConfigError(
                f"mechanism.resolution is too large for a client of {rows:,.0f} rows: its scores would not be exact; "
                f"allowed: at most {int(LARGEST / largest * self.options.resolution)}"
            )

    def score_moves(self, eligible: Sequence[int]) -> npt.NDArray[np.float64]:
        """Returns how far one row moves each encoded score, (m,) N_r.

        The model is scaled to a client's size n_i, a public or an already released number, so one row moves the
        distance by at most 1 and the score by at most w_r; rounding is part of N_r.
        """
        weights = self.candidates.weights[list(eligible)]
        return encoded_moves(weights, self.options.resolution).astype(np.float64)


class Scores(SumRequest):
    """Scores of every eligible clique (Protocol 1, steps 1-2).

    The score of r is w_r ||M_r(D_i) - n_i p_r||_1, in integers of 1 / `resolution`.
    """

    name = "scores"
    leaves = "its distances from the current model, rounded, in a sum"
    costs = "one vector of L2 sensitivity sqrt(sum of N_r^2): mu^2 is that squared / sigma^2"

    eligible: SomeCandidates

    def layout(self, contract: DistributedAimContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout: all scores move together, by sqrt(sum_r N_r^2) in L2.

        A distance of n_i rows from a model of n_i rows is at most 2 n_i; that, and 1 for rounding, is `magnitude`.
        """
        largest = float(contract.candidates.weights[self.eligible].max())
        return Layout.of_vector(
            len(self.eligible),
            norm(contract.score_moves(self.eligible)),
            magnitude=float(ceil(2.0 * contract.options.resolution * largest) + 1),
        )

    @classmethod
    def largest(cls, contract: DistributedAimContract) -> Iterable[Layout]:
        """Returns layouts of the heaviest candidate's score, and of all.

        The request also brings the model: a message must hold it.
        """
        check_message(8.0 * contract.config.inference.max_cells, "inference.max_cells")
        heaviest = int(np.argmax(contract.candidates.weights))
        every = list(range(len(contract.candidates)))
        return [cls(eligible=eligible).layout(contract, ()) for eligible in ([heaviest], every)]


class DistributedAimClient(TableClient):
    """A client that releases nothing by itself: it only contributes to sums."""

    Contract = DistributedAimContract
    contract: DistributedAimContract

    @answers(Scores)
    def scores(self, call: Call[Scores]) -> Contribution:
        """Contributes its encoded scores (Protocol 1, steps 1-2).

        The penalty is the same for all clients: the server subtracts it, once.
        """
        eligible, resolution = call.request.eligible, self.options.resolution
        weights = self.candidates.weights[eligible]
        try:
            self.contract.require_size(self.size)  # decided by public numbers
        except ConfigError as error:
            raise ProtocolError(str(error)) from None
        encoded = encode(weights * self.distances(eligible, call.arrays), resolution)
        return Contribution.of_vector(encoded, call.layout)

    @answers(Marginals)
    def measure(self, call: Call[Marginals]) -> Contribution:
        """Contributes the selected cliques' exact marginals (Protocol 2, step 2b).

        Each has L2 sensitivity 1. Counts are integers already: nothing is rounded.
        """
        return self.marginals(call.layout)


# Real numbers as integers, and back: Algorithms 3 and 4 without noise and ring, which are the aggregation's -----------


def encode(values: npt.ArrayLike, resolution: int) -> npt.NDArray[np.int64]:
    """Returns `resolution * values`, rounded to the nearest integers.

    Algorithm 3, line 1, truncates instead.

    Raises:
        ValueError: a value is not finite, or 2^53 or larger when scaled.
    """
    scaled = np.asarray(values, np.float64) * resolution
    if not (np.abs(scaled) < 2.0**53).all():
        raise ValueError("a value to encode is not finite or too large for its resolution")
    return np.rint(scaled).astype(np.int64)


def decode(sums: npt.ArrayLike, resolution: int) -> npt.NDArray[np.float64]:
    """Returns `sums / resolution` (Algorithm 4, line 7).

    The sums are signed, and with noise on them they need not be integers.
    """
    return np.asarray(sums, np.float64) / resolution


def encoded_moves(moves: npt.ArrayLike, resolution: int) -> npt.NDArray[np.int64]:
    """Returns the most that encoded values move, if values move by `moves`.

    Rounding two numbers to the nearest integers moves their distance x by at most 1, and leaves an integer: at most
    floor(x + 1). With x = resolution * moves that is x + 1 where x is whole (0.5 and 1.5 are one apart and round to 0
    and 2), and the ceiling of x otherwise. Another tenth is for the values' own floating point error, up to LARGEST.
    """
    return np.floor(np.asarray(moves, np.float64) * resolution + 1.0 + _FLOAT_ERROR).astype(np.int64)
