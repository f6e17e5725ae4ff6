"""The server half of central AIM. The client half, with the contract of both, is `clients/aim.py`.

Maddock et al. 2024, Algorithm 2, after McKenna et al. 2022, "AIM: An Adaptive and Iterative Mechanism for
Differentially Private Synthetic Data".
"""

from __future__ import annotations

import math
from functools import partial

from clients.aim import AimClient, Select
from fedsyn.errors import ProtocolError
from fedsyn.privacy import Scales, divide
from fedsyn.protocol.client import Marginals, OneWay
from fedsyn.protocol.strategy import MechanismStrategy, Protocol
from fedsyn.selection.annealing import annealed, is_settled
from fedsyn.selection.views import pack_model
from fedsyn.wire.envelope import Reply
from fedsyn.wire.requests import Ask, Sum


class Aim(MechanismStrategy):
    """Central AIM: one holder of every row selects, measures and fits, T times or until the budget is spent.

    It is the yardstick of the federated mechanisms and runs through the same protocol, with one client that holds the
    whole table: that client draws the choices, the noise is drawn where `aggregation` says.

    Departures from Algorithm 2 as printed (docs/mechanisms.md): line 2 misses a factor 2 in sigma_0
    (`configs/printed/aim.yaml`); line 6 increments t before line 7 tests for 0, so the initialisation is done before
    the loop; the ledger, not the loop condition, is what stops an overspend.
    """

    Client = AimClient

    def protocol(self) -> Protocol:
        scales, settled = self.first_scales(), False  # lines 1-4
        self.begin_round(1)
        ones = [(name,) for name in self.domain]
        sums = yield Sum(self.everyone(), OneWay(), scales.sigma)  # lines 7-10
        measurements = self.opened(sums, ones)
        self.estimate(measurements)
        while self.model is not None:
            scales, last = self.next_scales(scales, settled)  # lines 17-20
            self.record.sigma, self.record.epsilon = scales.sigma, scales.epsilon
            self.record.cohort = list(self.everyone())
            eligible = self.capacity.which_fit(self.candidates.cliques, self.share())  # line 12
            if not eligible:
                break
            request = Select(eligible=eligible, sigma=scales.sigma, epsilon=scales.epsilon)
            replies = yield Ask(self.everyone(), request, pack_model(self.model))
            choices = self.accept(replies, partial(choice, eligible))
            if not choices:
                break  # the only holder is gone: what was measured so far stands
            chosen = next(iter(choices.values()))  # line 13
            clique = self.candidates.cliques[chosen]
            sums = yield Sum(self.everyone(), Marginals(cliques=[chosen]), scales.sigma)  # line 14
            self.capacity.add([clique])
            measurements += self.opened(sums, [clique])
            before = self.model
            self.estimate(measurements, last)  # line 15
            settled = is_settled(before, self.model, [clique], [scales.sigma])  # line 17
            self.selected([clique])
            if last:
                break
            self.begin_round(self.round + 1)

    # Budget -----------------------------------------------------------------------------------------------------------

    def first_scales(self) -> Scales:
        """Lines 1-2, or the equal division over a fixed number of rounds."""
        rho, d, options = self.ledger.remaining_rho, len(self.domain), self.options
        if options.rounds is None:
            return annealing_start(rho, d, options.ratio, as_printed=options.ablation.printed_start)
        return fixed_scales(rho, options.rounds, d, options.ratio)

    def next_scales(self, scales: Scales, settled: bool) -> tuple[Scales, bool]:
        """Lines 17-20: halves the noise if the last round changed little; all of the budget if little is left."""
        if self.options.rounds is not None:
            return scales, self.round == self.options.rounds
        one_each = Scales(scales.sigma, scales.epsilon, 1, 1)
        return annealed(one_each, settled, self.ledger.remaining_rho, self.options.ratio)

    def share(self) -> float:
        """Share of the largest model that this round may use: what will be spent when the round is over (line 12)."""
        if self.options.rounds is None:
            return min(1.0, max(0.05, self.ledger.spent_rho / self.budget.rho))
        return self.round / float(self.options.rounds)


def choice(eligible: list[int], reply: Reply) -> int:
    """The holder's choice; ProtocolError unless it is one of the eligible cliques."""
    chosen = reply.params.get("chosen")
    if type(chosen) is not int or chosen not in eligible:
        raise ProtocolError("the reply does not choose one eligible clique")
    return chosen


def fixed_scales(rho: float, rounds: int, attributes: int, ratio: float = 0.9) -> Scales:
    """Scales of central AIM with fixed rounds T: d one-way marginals, then T choices and T measurements.

    `sigma = sqrt((T + d) / (2 r rho))`, `epsilon = sqrt(8 (1 - r) rho / T)`; counts, so the sensitivity is 1.

    Args:
        rho: zCDP budget.
        rounds: T, at least 1.
        attributes: d, the number of one-way marginals measured before the first round.
        ratio: r, the share of rho for measuring.
    """
    return divide(rho, rounds + attributes, rounds, ratio)


def annealing_start(rho: float, attributes: int, ratio: float = 0.9, *, as_printed: bool = False) -> Scales:
    """Starting scales of AIM with budget annealing: T = 16 d planned rounds (FLAIM Algorithm 2, lines 1-2).

    Each of the 16 d planned releases gets `r rho / (16 d)`: `sigma² = 16 d / (2 r rho)`, as in AIM itself
    (McKenna et al. 2022). FLAIM's line 2 prints `sigma² = 16 d / (0.9 rho)`, without the 2: private as well,
    but it starts at twice the variance; `as_printed=True` selects it. Annealing chooses the later scales from
    noisy results, so no plan but only the ledger's filter bounds the total.
    """
    planned = 16 * attributes
    scales = divide(rho, planned, planned, ratio)
    if as_printed:
        return Scales(scales.sigma * math.sqrt(2.0), scales.epsilon, planned, planned)
    return scales
