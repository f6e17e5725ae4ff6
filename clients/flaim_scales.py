"""The noise scales of the FLAIM family: what the server half asks for, and the client half allows.

Maddock et al. 2024, "FLAIM: AIM-based Synthetic Data Generation in the Federated Setting", Lemma 4.1 and appendix B.4.
"""

from __future__ import annotations

from fedsyn.privacy import Scales, divide, exponential_rho, gaussian_rho


def lemma_4_1(
    rho: float, rounds: int, local_rounds: int, one_way: int, measure_fraction: float = 0.9, *, as_printed: bool = False
) -> Scales:
    """FLAIM's sigma_t and epsilon_t (Maddock et al. 2024, Lemma 4.1), corrected for more than one local round.

    A row sits at one client, so only that client's choices and the sums it joins touch the row: parallel
    composition over clients, no factor for their number. Of a client that is asked in all T rounds these are

    * T s choices by the exponential mechanism, `epsilon_t = sqrt(8 (1 - r) rho / (T s))`;
    * the server's noisy sums: T s of chosen marginals, and those of the one-way marginals;
    * T (s - 1) local noisy measurements (Algorithm 1, line 9). Each steers the client's next choice, and the
      choice is sent to the server, so its noise is no post-processing of the server's later noise on the same
      marginal: it is a release of its own. The last local step of a round has none, because nothing reads the
      local model after it.

    Lemma 4.1 prints s for 2s - 1: the same for s = 1, an UNDER-CHARGE for s > 1, where it leaves the local
    measurements unpaid.

    Args:
        rho: zCDP budget.
        rounds: T.
        local_rounds: s.
        one_way: one-way marginals that a row takes part in: d if they are measured once, T d if in every round.
        measure_fraction: r, the share of rho for measuring.
        as_printed: use s in place of 2s - 1. For showing the difference only: with s > 1 a ledger that charges what is
            released refuses such a run.
    """
    steps = rounds * local_rounds
    measured = steps if as_printed else rounds * (2 * local_rounds - 1)
    return divide(rho, measured + one_way, steps, measure_fraction)


def most_of_one(first: Scales, per_round: tuple[int, int], rho: float, measure_fraction: float) -> tuple[float, float]:
    """The most that annealing ever spends on one Gaussian release, and on one choice, in zCDP.

    A round that is not the last costs less than half of what is left, in the proportions of the first round: a settled
    round quadruples both costs. The last round spends the rest, that share of it on its Gaussian releases, evenly.

    Args:
        first: scales of the first round.
        per_round: Gaussian releases and choices that one row takes part in per round.
        rho: that a run has at most.
        measure_fraction: r, the share of rho for measuring.
    """
    gaussians, choices = per_round
    one, choice = gaussian_rho(first.sigma), exponential_rho(first.epsilon)
    half = 0.5 * rho / (gaussians * one + choices * choice)  # how often the first round fits into half of the budget
    return (
        max(one, half * one, measure_fraction * rho / gaussians),
        max(choice, half * choice, (1.0 - measure_fraction) * rho / choices),
    )
