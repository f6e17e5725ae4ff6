"""Noise of a choice that three parties add in shares.

It makes the exponential mechanism, without anybody who knows the noise.

A store is to choose index i of m with integer scores u_i, which one row moves by at most Δ, as the exponential
mechanism with parameter ε does: P(i) ∝ exp(ε u_i / (2 Δ)). Adding Gumbel noise of scale 2Δ/ε to every score and taking
the largest is that mechanism. Here the noise on score i is X_i + Y_i, one vector from each of TWO of the three parties,
each entry a standard Gumbel variable times `scale` = 2 (Δ + 2) / ε, rounded to an integer. Only the index is opened.

*What is assumed.* At most one party is corrupted: of the two that draw, one is honest. Its source cannot be predicted,
and the computation reveals nothing but the index (`fedsyn.crypto.mpc`).

*Proof.* Let the honest vector be X, and fix Y, whatever it is: drawn by an honest party, or chosen by a corrupted one
from what it knows, which does not depend on X nor, beyond what was released before, on the rows.

1. *Without rounding.* argmax_i (u_i + Y_i + scale G_i), G_i standard Gumbel, has P(i) = A_i / Σ_j A_j with A_i =
   exp((u_i + Y_i)/scale). A neighbour moves each u_i by at most Δ, so log A_i by at most η = Δ/scale, and log P(i) by a
   number in [-η - c, η - c] with the same c = log(Σ A'_j / Σ A_j) for every i: a range of 2η. The offsets Y drop out.
2. *With rounding.* An entry moves by at most 1/2. Index i can win only if u_i + Y_i + scale G_i + 1/2 is at least every
   other one less 1/2, which is case 1 with u_i larger by 1; it wins surely if the same holds with u_i smaller by 1. So
   P(i) changes by a factor between e^{-1/scale} and e^{1/scale}, however ties are broken.
3. *Range.* For neighbours log P(i)/P'(i) then lies in an interval of length 2η + 4/scale = 2 (Δ + 2)/scale = ε. A
   mechanism of bounded range ε is ε²/8-zCDP (Cesar & Rogers 2021), and ε-DP. This is what the ledger charges.

*Price.* Two vectors have twice the variance of one, Gaussian shares 1.5 times (`DistributedNoise` with three parties).
A Gumbel variable is infinitely divisible too, so halves exist of which any two make a whole and three 1.5; but we know
no exact sampler of a half (its moment generating function is Γ(1-t)^(1/2)), and a numerical one would add to δ.

A Gumbel variable of a source is below 800 in absolute value, so the two vectors together stay below 1600 `scale`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsyn.errors import ConfigError

#: Parties that draw: the fewest of which one is honest whichever one of three is corrupted.
DRAWING = (0, 1)
_REACH = 1600.0  # of both vectors, in units of the scale


@dataclass(frozen=True)
class SelectionNoise:
    """The noise of one choice.

    Attributes:
        epsilon: of the exponential mechanism that the choice is.
        moved: Δ, the most that one row moves any integer score.
    """

    epsilon: float
    moved: int

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < math.inf or self.moved < 1:
            raise ValueError("epsilon must be positive and finite, and a row must move a score by at least 1")

    @property
    def scale(self) -> float:
        """Scale of one party's Gumbel noise, in steps of a score.

        2 steps more than Δ pay for rounding.
        """
        return 2.0 * (self.moved + 2) / self.epsilon

    @property
    def reach(self) -> float:
        """Bound on the noise of a score, in steps."""
        return _REACH * self.scale + 1.0

    def check(self, largest: float) -> None:
        """Raises ConfigError unless noisy scores fit 64 bits.

        Scores go up to `largest`. A noise, a double, must also have steps below 1 before it is rounded: it stays below
        2^53 / 4.
        """
        if largest + self.reach >= 2.0**62 or self.reach >= 2.0**51:
            raise ConfigError(
                f"a choice with epsilon {self.epsilon:g} needs noise of up to {self.reach:.3g} steps on scores of up "
                f"to {largest:.3g}, beyond 2^62: choose a larger privacy.epsilon, or fewer rounds"
            )
