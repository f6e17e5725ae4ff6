"""Noise that the clients of a sum add in shares.

Here are the plan of one sum, and the proof that it protects.

The sum of integer vectors v (a row moves it by at most Δ in L2 norm) is to carry the Gaussian noise that was planned,
N(0, σ²), though nobody draws it. Client i sends γ v_i + X_i, where γ is a public power of two, the `resolution`, and
the entries of X_i come from N_Z(0, s²), the discrete Gaussian on the integers. With H honest contributors at least

    s² = ((γ σ)² + r²) / H,    r = 2,

the honest shares alone are as good as the planned noise. The server divides what it opens by γ.

*What is assumed.* Of the n clients that are asked, at least m (`fewest`) are in the sum when it is opened, else it is
not; at most C (`corrupted`) of the n pool what they know with the server. So the noise of H = m - C contributors
remains when the adversary has subtracted its own. An honest client draws its share from a source that the adversary
cannot predict, and the sum reveals nothing but itself (a secure sum; under `plain` the server sees each vector with one
share on it and must be trusted: a simulation of what a secure sum opens).

*Proof.* γ is an integer, so one row moves the integers γ v by at most γ Δ, exactly: nothing is rounded. Further
contributors add noise that depends on nobody's rows; corrupted ones add what the adversary knows: both is
post-processing of γ v + X₁ + ... + X_H. Take one entry, Z the sum of its H shares, S² = H s².

1. *Sum against one discrete Gaussian.* P(Z = z) = N_Z(0, S²)(z) e^{h(z)} where h has oscillation (largest less smallest
   value) at most t = Σ_{k=1}^{H-1} log((1+θ_k)/(1-θ_k)), with θ_k = 2 Σ_{j>=1} exp(-2π² j² s² k/(k+1)). By induction:
   the convolution of N_Z(0, k s²) and N_Z(0, s²) at z is, with the square completed, exp(-z²/(2(k+1)s²)) times
   Σ_y exp(-(y-m)²/(2c²)), c² = s² k/(k+1), m real; by Poisson summation this sum is √(2π) c (1 + 2 Σ_j exp(-2π²c²j²)
   cos(2πjm)), between 1-θ_k and 1+θ_k up to a constant. For s >= 1, t <= 5 Σ_{k=1}^{H-1} exp(-2π² s² k/(k+1)).
2. *zCDP.* Let x be the shift of the entry's neighbour. log P(Z=z)/P(Z=z+x) = (x²+2xz)/(2S²) + h(z) - h(z+x). For α > 1,
   D_α <= t + x²/(2S²) + log E[exp((α-1) x Z/S²)]/(α-1). A discrete Gaussian's moment generating function is at most
   exp(λ²s²/2) (the sum over exp(-(y-m)²/(2s²)) is largest for integer m, Poisson again), so
   D_α <= α x²/(2S²) + t. Entries are independent: for a vector of L entries D_α <= α γ²Δ²/(2S²) + L t, that is
   (γΔ)²/(2S²) + L t in zCDP, and S² > (γσ)².
3. *Discrete against continuous.* Let G be the continuous Gaussian mechanism with σ' >= σ, (γσ')² + r² = S² (a share is
   rounded up), Y = γ(v + N(0, σ'²)), followed by randomised rounding: an integer z with probability ∝ exp(-(z-Y)²/
   (2r²)). With θ_r = 2 Σ_j exp(-2π² r² j²) the normaliser is √(2π) r (1 ± θ_r), and without it z has the density of
   N(γv, (γσ')² + r²) = N(γv, S²). So the rounded G is N_Z(γv, S²) up to a factor between e^{-u} and e^{u}, u =
   log((1+θ_r)/(1-θ_r)) = 2.1e-34, and by 1. the opened vector is post-processing of G up to a factor between e^{-T} and
   e^T, T = L (t + u).
4. *Gaussian DP.* A transcript of releases each within e^{±T_i} of one of continuous Gaussian mechanisms, whatever came
   before, is within e^{±T}, T = Σ T_i, of theirs. Are those, together, one Gaussian mechanism with μ, then the
   transcript is (ε + 2T, e^T δ_μ(ε))-DP. The ledger reports δ_μ'(ε) with μ'² = μ² + 2x for a charged x. That covers it
   if x >= T μ' (R(a) + R(b)), R Mills' ratio, a = ε/μ' - μ'/2, b = ε/μ' + μ'/2: since ∂δ/∂μ = φ(a) and ∂δ/∂ε =
   -φ(a) R(b), δ = φ(a)(R(a) - R(b)), the derivative of e^{(1-p)T} δ_{μ(p)}(ε - 2(1-p)T), μ(p)² = μ² + 2xp, is at least
   0. And R(a) + R(b) <= 4.8: where μ <= 2, a >= -1; where μ > 2 and δ <= 0.3, a >= 0. So x = 1000 T is enough for every
   budget with δ <= 0.3 and μ <= 200 (ε up to 20,000).

`extra_rho` is therefore 1000 T = 1000 L (t + u), above what 2. asks for, and is charged beside the Gaussian's own rho
in either accounting. It is of the order of 1e-25: it stands in the ledger for completeness, not for its size.

*Sources.* Kairouz, Liu & Steinke 2021 ("The Distributed Discrete Gaussian Mechanism", Theorem 1): rho = Δ²/(2Hs²) +
τL/4, τ = 10 Σ exp(-2π² s² k/(k+1)); L t is at most twice their term. The Distributed AIM paper quotes it as Lemma 5
with 5 Σ exp(-4π² s² k/(k+1)) and without L. That is too small: for H = 2 and a shift of 1 even the Kullback-Leibler
divergence exceeds it (tests/unit/privacy/test_privacy_distributed.py), and entries add up.
The paper's share variance, γ²Δ²/(2(1-θ)nρ), is ours without r² and with every client staying; its encoding truncates.

*Sampler.* A share's law is within 2^-170 of N_Z(0, s²) in total variation (fedsyn.privacy._discrete). A run of 2^40
draws is within 2^-130 of the one above, which adds at most (1 + e^ε) 2^-130 to δ; this is not charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedsyn.errors import ConfigError
from fedsyn.privacy.budget import positive
from fedsyn.privacy.release import CLIENTS, GAUSSIAN, PARTIES, TWICE, Release, Shares

#: r: the part of the noise, in units of 1/gamma, that pays for its being discrete.
ROUNDING = 2.0
#: gamma sigma is at least this, so that r costs at most 0.013% of sigma.
FINEST = 128.0
SMALLEST_SHARE = 3.0
#: Largest resolution, and largest share.
MOST = 2**40
_SAFETY = 1000.0  # step 4 of the proof
_TAIL_BITS = 60
_RING_BITS = 63  # of an integer in [-2^63, 2^63)


@dataclass(frozen=True)
class DistributedNoise:
    """Noise of one sum, as its clients' shares; made by `of`.

    Attributes:
        sigma: the standard deviation that was asked for and is charged, in units of the summed values.
        sensitivity: L2 sensitivity of one summed array, in the same units.
        count: the most arrays that one row touches.
        length: L, entries of the summed vector.
        asked: n, clients that are asked.
        fewest: m, contributors below which the sum is not opened.
        corrupted: C, the most asked clients that pool what they know with the server.
        resolution: γ, a power of two; summed values are multiplied by it.
        share: s, parameter of one client's discrete Gaussian, in units of 1/γ.
        extra_rho: what the shares cost beyond the Gaussian mechanism with `sigma`; for the whole vector.
        by: who draws the shares, as a ledger names them.
    """

    sigma: float
    sensitivity: float
    count: int
    length: int
    asked: int
    fewest: int
    corrupted: int
    resolution: int
    share: float
    extra_rho: float
    by: str = CLIENTS

    @classmethod
    def of(
        cls,
        sigma: float,
        *,
        sensitivity: float,
        count: int,
        length: int,
        asked: int,
        fewest: int,
        corrupted: int,
        by: str = CLIENTS,
    ) -> DistributedNoise:
        """Returns shares sized for the fewest honest contributors.

        They are `fewest - corrupted`.

        Raises:
            ConfigError: if no contributor need be honest.
        """
        if corrupted < 0 or min(asked, fewest, count, length) < 1:
            raise ValueError("asked, fewest, count and length must be at least 1, corrupted at least 0")
        honest = fewest - corrupted
        if honest < 1:
            raise ConfigError(
                f"of {asked} clients asked, a sum may be opened with {fewest}, and {corrupted} may be corrupted: no "
                "honest share of the noise would be certain. Lower aggregation.corrupted or aggregation.dropout, raise "
                "federation.minimum_cohort, or ask more clients; fewest contributors less corrupted must be at least 1"
            )
        positive("sigma", sigma)
        positive("sensitivity", sensitivity)
        # The coarsest grid whose steps are fine beside the noise, and on which one share is wide enough for step 1.
        gamma = 1
        while gamma < MOST and (gamma * sigma < FINEST or share_of(gamma * sigma, honest) < SMALLEST_SHARE):
            gamma *= 2
        share = share_of(gamma * sigma, honest)
        if not SMALLEST_SHARE <= share <= MOST or gamma * sigma < FINEST:
            raise ConfigError(
                f"distributed noise cannot have a standard deviation of {sigma:g}; allowed: 1e-8 to 1e+12"
            )
        extra = _extra_rho(length, share, honest)
        return cls(sigma, sensitivity, count, length, asked, fewest, corrupted, gamma, share, extra, by)

    @classmethod
    def of_parties(cls, sigma: float, *, count: int, length: int) -> DistributedNoise:
        """Returns the shares of a store's three parties.

        All must be there, and one may be corrupted. The opened marginals then carry 1.5 times the variance that is
        charged. Each marginal has sensitivity 1.
        """
        facts = {"sensitivity": 1.0, "count": count, "length": length}
        return cls.of(sigma, **facts, asked=3, fewest=3, corrupted=1, by=PARTIES)  # type: ignore[arg-type]

    @classmethod
    def of_pool(
        cls, sigma: float, *, asked: int, fewest: int, corrupted: int, count: int, length: int, most: int
    ) -> DistributedNoise:
        """Returns shares that clients drew before sigma was known.

        The integers are scaled to the noise, not the noise to them: each client deals shares of `pool_share(H)`; what
        is opened with them is multiplied by the largest γ, any integer, with H s² >= (γσ)² + r². The proof above asks
        no more of γ and s.

        Args:
            sigma: as for `of`, of marginals, each of sensitivity 1.
            asked: as for `of`.
            fewest: as for `of`.
            corrupted: as for `of`.
            count: the most arrays that one row touches.
            length: L.
            most: largest γ that leaves the integers room.

        Raises:
            ConfigError: sigma is larger than the pool's noise can stand for, or no contributor need be honest.
        """
        share = pool_share(honest := fewest - corrupted)
        # The γ at which H s² is exactly (γσ)² + r²; rounded down to an integer, so that the noise is no less.
        exact = math.sqrt(honest * share * share - ROUNDING * ROUNDING) / sigma
        gamma = min(most, math.floor(exact * (1.0 - 2.0**-40)))
        if not gamma >= 1 or gamma * sigma < FINEST:
            raise ConfigError(
                f"noise with a standard deviation of {sigma:g} cannot be made from what the clients dealt: "
                f"allowed: {FINEST / max(1, most):.3g} to {exact * sigma:.3g}"
            )
        extra = _extra_rho(length, share, honest)
        return cls(sigma, 1.0, count, length, asked, fewest, corrupted, gamma, share, extra)

    @property
    def honest(self) -> int:
        """H, the number of shares that make the planned noise."""
        return self.fewest - self.corrupted

    @property
    def shares(self) -> Shares:
        """Makers of the noise, as a server's entry says.

        `fedsyn.privacy.against` reads them.
        """
        return Shares(self.asked, self.fewest, self.honest)

    @property
    def is_local(self) -> bool:
        """True if a single share is the planned noise.

        Each client's vector is then protected by itself.
        """
        return self.honest == 1

    @property
    def noise_by(self) -> str:
        """Drawer of the noise, as a ledger names it."""
        return "each client" if self.is_local and self.by == CLIENTS else self.by

    def whole(self) -> DistributedNoise:
        """Returns the plan of the whole noise once more, by one drawer.

        The drawer need trust no contributor. The noise is in the same units of 1/γ. H = 1 in the proof: this share
        alone is the planned noise, whatever the others' are. It is charged with what the shares cost beyond it, which
        is no less.
        """
        return replace(self, share=share_of(self.resolution * self.sigma, 1), asked=1, fewest=1, corrupted=0)

    def sigma_of(self, contributors: int) -> float:
        """Returns the standard deviation of an opened sum, in summed units.

        The sum has all shares of this many clients in it.
        """
        return self.share * math.sqrt(contributors) / self.resolution

    def release(
        self,
        name: str,
        round: int,
        *,
        argument: str = "",
        replaced: float = TWICE,
    ) -> Release:
        """Returns the ledger entry of this sum.

        It is for a row that touches as many of the sum's arrays as one row may.
        """
        return Release(
            name,
            round,
            GAUSSIAN,
            self.sensitivity,
            sigma=self.sigma,
            count=self.count,
            noise_by=self.noise_by,
            argument=argument,
            extra=self.extra_rho,
            replaced=replaced,
        )

    def check_ring(self, largest: float) -> None:
        """Raises ConfigError if a sum might wrap around in [-2^63, 2^63).

        All shares of the asked clients together are subgaussian with variance n s²; their sum stays within
        s √(2 n log(2 L 2^60)) in every one of the L entries but for a probability of 2^-60.

        Args:
            largest: bound on the absolute value of an entry of the sum, in summed units (rows times magnitude).

        Raises:
            ConfigError: if the sum and its noise may not fit.
        """
        tail = self.share * math.sqrt(2.0 * self.asked * (math.log(2.0 * self.length) + _TAIL_BITS * math.log(2.0)))
        reach = self.resolution * largest + tail
        # Doubles: a relative 1e-12 covers the rounding of every step above.
        if not reach * (1.0 + 1e-12) < 2.0**_RING_BITS:
            # What finer noise makes larger is the resolution; what coarser noise does is the noise itself.
            epsilon = "larger" if tail > self.resolution * largest else "smaller" if self.resolution > 1 else ""
            remedy = f", or choose a {epsilon} privacy.epsilon" if epsilon else ""
            raise ConfigError(
                f"a sum of values up to {largest:.3g} with noise of {self.sigma:.3g} may reach "
                f"{reach:.3g} in units of 1/{self.resolution}, beyond the ring's 2^{_RING_BITS} = "
                f"{2.0**_RING_BITS:.3g}: sum fewer rows or smaller marginals (workload.degree, data.bins, "
                f"inference.max_cells){remedy}"
            )


def share_of(scaled_sigma: float, honest: int) -> float:
    """Returns s = √(((γσ)² + r²)/H), rounded up.

    H s² is at least (γσ)² + r² in spite of floating point.
    """
    return math.sqrt((scaled_sigma * scaled_sigma + ROUNDING * ROUNDING) / honest) * (1.0 + 2.0**-50)


def pool_share(honest: int) -> float:
    """Returns s of shares that are dealt before their use is known.

    H of them make 2^30 (`DistributedNoise.of_pool`). The finer the pool, the closer the noise comes to what was asked
    for: γ is about 2^30/σ, and one integer step of it is all that is lost.

    Raises:
        ConfigError: if no contributor need be honest.
    """
    if honest < 1:
        raise ConfigError(
            "no honest share of the noise would be certain: lower aggregation.corrupted or aggregation.dropout, or "
            "raise federation.minimum_cohort; fewest contributors less corrupted must be at least 1"
        )
    return 2.0**30 / math.sqrt(honest)


def _extra_rho(length: int, share: float, honest: int) -> float:
    """Returns 1000 L (t + u) of step 4.

    It is the cost of discrete shares beyond a continuous Gaussian's.
    """
    return _SAFETY * length * (_shares_excess(share, honest) + _atanh2(_theta(ROUNDING**2)))


@lru_cache(maxsize=256)
def _shares_excess(share: float, honest: int) -> float:
    """Returns t = Σ_{k=1}^{H-1} log((1+θ_k)/(1-θ_k)) of step 1, for s >= 1."""
    k = np.arange(1, honest, dtype=np.float64)
    exponent = -2.0 * np.pi**2 * share**2 * k / (k + 1.0)
    # theta_k is exp(exponent) times 2 (1 + exp(3 exponent) + ...) < 2.01; log((1+θ)/(1-θ)) < 2.01 θ for θ < 0.1.
    return float(2.01 * 2.01 * np.exp(exponent).sum())


def _theta(variance: float) -> float:
    """Returns θ = 2 Σ_{j>=1} exp(-2π² j² variance)."""
    return 2.0 * math.fsum(math.exp(-2.0 * (math.pi * j) ** 2 * variance) for j in range(1, 8))


def _atanh2(theta: float) -> float:
    """Returns log((1+θ)/(1-θ))."""
    return 2.0 * math.atanh(theta)
