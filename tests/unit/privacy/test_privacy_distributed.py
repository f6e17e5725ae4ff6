"""Noise in shares: the plan, every step of its proof in numbers, and the ledger's half.

Where a bound is tested, a variant that breaks it is tested to break it: without the rounding's variance, with shares
sized for too many clients, with the term that Lemma 5 of the Distributed AIM paper prints.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from fedsyn.errors import BudgetExceeded, ConfigError
from fedsyn.front.testing.harness import WatchedRandomness
from fedsyn.front.testing.tape import Tape, TapedLedger
from fedsyn.privacy import (
    GAUSSIAN,
    DistributedNoise,
    Ledger,
    PrivacyBudget,
    Release,
    distributed,
    gaussian_rho,
)
from fedsyn.privacy.accountant import GaussianAccountant
from fedsyn.privacy.conversion import gaussian_delta
from fedsyn.privacy.distributed import (
    FINEST,
    ROUNDING,
    SMALLEST_SHARE,
    _atanh2,
    _shares_excess,
    _theta,
    share_of,
)
from fedsyn.randomness import OS_LABEL, SEEDED_LABEL, OsRandom, Randomness

BUDGET = PrivacyBudget(1.0, 1e-5)


def local(sigma: float, *, count: int, length: int, asked: int) -> DistributedNoise:
    """The whole noise on each client's vector: no other need be honest."""
    facts = {"sensitivity": 1.0, "count": count, "length": length}
    return DistributedNoise.of(sigma, **facts, asked=asked, fewest=1, corrupted=0)  # type: ignore[arg-type]


def printed_excess(share: float, honest: int) -> float:
    """Lemma 5's term as the Distributed AIM paper prints it, which is too small."""
    return 5.0 * math.fsum(math.exp(-4.0 * math.pi**2 * share**2 * k / (k + 1)) for k in range(1, honest))


def plan_of(sigma: float = 40.0, **facts: Any) -> DistributedNoise:
    given = {"sensitivity": 1.0, "count": 3, "length": 6, "asked": 20, "fewest": 18, "corrupted": 1, **facts}
    return DistributedNoise.of(sigma, **given)


# The proof in numbers -----------------------------------------------------------------------------------------------


def summed(s: float, clients: int) -> NDArray[np.float64]:
    """The distribution of the sum of so many N_Z(0, s²), on -n ... n, by convolution; cut where it is below 1e-80."""
    x = np.arange(-math.ceil(20 * s), math.ceil(20 * s) + 1)
    one = np.exp(-0.5 * (x / s) ** 2)
    one /= one.sum()
    result = one
    for _ in range(clients - 1):
        result = np.convolve(result, one)
    return result


def delta_of(noise: NDArray[np.float64], shift: int, epsilon: float) -> float:
    """The exact δ at `epsilon` of adding this noise to an integer that a row moves by `shift`."""
    moved = np.concatenate([noise[shift:], np.zeros(shift)])
    return math.fsum(np.maximum(noise - math.exp(epsilon) * moved, 0.0))


def worst(noise: NDArray[np.float64], sigma: float) -> float:
    """The largest ratio of δ to that of the Gaussian mechanism with `sigma`, over ε and shifts; δ down to 1e-8."""
    ratios = []
    for shift in (1, 2, 4):
        for epsilon in np.arange(0.0, 3.0, 0.02):
            allowed = gaussian_delta(shift / sigma, float(epsilon))
            if allowed > 1e-8:
                ratios.append(delta_of(noise, shift, float(epsilon)) / allowed)
    return max(ratios)


@pytest.mark.parametrize("clients", [1, 2, 3, 5])
def test_the_exact_privacy_loss_of_a_sum_of_shares_is_below_the_gaussian_one(clients: int) -> None:
    """Resolution 1 and a small share show the discreteness at its worst."""
    noise = summed(3.0, clients)
    sigma = math.sqrt(9.0 * clients - ROUNDING**2)
    assert worst(noise, sigma) < 1.0
    # Without r² the discrete noise is charged as continuous noise of the same variance, and is not as good.
    assert worst(noise, math.sqrt(9.0 * clients)) > 1.02
    # Shares sized for one honest client more than there is.
    assert worst(noise, math.sqrt(9.0 * (clients + 1) - ROUNDING**2)) > 2.0


def test_shares_of_a_plan_give_the_planned_loss() -> None:
    plan = plan_of(1.0, fewest=4, corrupted=1)
    gamma = plan.resolution
    assert gamma == 128
    noise = summed(plan.share, plan.honest)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        allowed = gaussian_delta(1.0, epsilon)
        assert 0.99 * allowed < delta_of(noise, gamma, epsilon) < allowed
        # Sized for the clients asked, or for the fewest without regard to the corrupted ones, it would not be enough.
        for too_many in (plan.asked, plan.fewest):
            assert delta_of(summed(share_of(gamma * 1.0, too_many), plan.honest), gamma, epsilon) > 1.05 * allowed


def exact_sum(s: float, clients: int) -> dict[int, Any]:
    """As `summed`, in 60-digit arithmetic."""
    reach = math.ceil(20 * s)
    weights = {x: mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(s) ** 2)) for x in range(-reach, reach + 1)}
    total = mpmath.fsum(weights.values())
    one = {x: w / total for x, w in weights.items()}
    result = one
    for _ in range(clients - 1):
        sums: dict[int, Any] = {}
        for x, p in result.items():
            for y, q in one.items():
                sums[x + y] = sums.get(x + y, 0) + p * q
        result = sums
    return result


@pytest.mark.parametrize("s,clients", [(1.0, 2), (1.0, 3), (1.25, 4)])
def test_step_1_the_sum_is_one_discrete_gaussian_up_to_t(s: float, clients: int) -> None:
    with mpmath.workdps(60):
        law = exact_sum(s, clients)
        variance = clients * mpmath.mpf(s) ** 2
        inner = [x for x in law if abs(x) < 8 * s]
        h = [mpmath.log(law[x]) + mpmath.mpf(x) ** 2 / (2 * variance) for x in inner]
        oscillation = float(max(h) - min(h))
    excess = _shares_excess(s, clients)
    # More shares smooth what the first two leave, which t does not use.
    assert (0.5 if clients == 2 else 0.001) * excess < oscillation < excess
    assert excess <= 5 * sum(math.exp(-2 * math.pi**2 * s**2 * k / (k + 1)) for k in range(1, clients))
    if clients == 2:
        assert printed_excess(s, clients) < 1e-3 * oscillation


@pytest.mark.parametrize("s,clients", [(1.0, 2), (1.5, 2), (1.0, 3)])
def test_step_2_zcdp_holds_with_t_and_fails_with_the_printed_term(s: float, clients: int) -> None:
    """Lemma 5 of the Distributed AIM paper has 4π² where the theorem that it quotes has 2π²."""
    with mpmath.workdps(60):
        law = exact_sum(s, clients)
        variance = clients * mpmath.mpf(s) ** 2
        inner = [x for x in law if abs(x) < 13 * s]
        for shift in (1, 2, 3):
            rho = mpmath.mpf(shift) ** 2 / (2 * variance)
            for order in (1.001, 1.5, 2.0, 8.0, 32.0):
                a = mpmath.mpf(order)
                moments = mpmath.fsum(law[x] ** a * law[x + shift] ** (1 - a) for x in inner)
                assert mpmath.log(moments) / (a - 1) <= a * (rho + _shares_excess(s, clients))
        # Order 1, the Kullback-Leibler divergence, at shift 1.
        divergence = mpmath.fsum(law[x] * mpmath.log(law[x] / law[x + 1]) for x in inner)
        excess = float(divergence - 1 / (2 * variance))
    assert excess < _shares_excess(s, clients)
    if clients == 2:
        assert excess > 3.0 * printed_excess(s, clients)


def test_the_paper_s_own_example_is_what_it_prints() -> None:
    """Section 4.7: rho = 0.1, n = 5000, γ = 100, Δ = 1 give η = 9.39e-86 (with no corrupted client)."""
    share = math.sqrt(100**2 / (2 * 5000 * 0.1))
    assert printed_excess(share, 5000) == pytest.approx(9.39e-86, rel=1e-3)
    assert _shares_excess(share, 5000) > 1e40 * printed_excess(share, 5000)


@pytest.mark.parametrize("width", [0.5, 0.6, 0.7])
def test_step_3_a_randomly_rounded_gaussian_is_the_discrete_one_up_to_u(width: float) -> None:
    """The integral over the continuous Gaussian, by the trapezoidal rule, at scales where the difference shows."""
    large = width * math.sqrt(1.1)
    y = np.arange(-30.0, 30.0, 1 / 256)
    density = np.exp(-0.5 * (y / math.sqrt(large**2 - width**2)) ** 2)
    z = np.arange(-40, 41)
    kernel = np.exp(-0.5 * ((z[:, None] - y[None, :]) / width) ** 2)
    rounded = (kernel / kernel.sum(axis=0)) @ density
    discrete = np.exp(-0.5 * (z / large) ** 2)
    inner = abs(z) < 8 * large
    ratio = np.log(rounded[inner] / rounded.sum() / (discrete[inner] / discrete.sum()))
    u = _atanh2(_theta(width**2))
    assert 0.3 * u < np.abs(ratio).max() < u
    assert _atanh2(_theta(ROUNDING**2)) == pytest.approx(4 * math.exp(-8 * math.pi**2), rel=1e-12)


def test_step_4_the_charge_covers_the_factor_in_gaussian_dp() -> None:
    """With T large enough to see: δ at (μ² + 2000 T) is above e^T δ_μ(ε - 2T), also with x = 5 T μ', not with 0.1 T."""
    excess = 1e-5

    def covers(mu: float, epsilon: float, charge: float) -> bool:
        needed = math.exp(excess) * gaussian_delta(mu, epsilon - 2 * excess)
        return gaussian_delta(math.sqrt(mu * mu + 2 * charge), epsilon) >= needed

    cases = [(mu, epsilon) for mu in (0.05, 0.2, 1.0, 2.0, 5.0) for epsilon in (0.1, 0.5, 1.0, 5.0, 20.0)]
    cases = [(mu, epsilon) for mu, epsilon in cases if 1e-200 < gaussian_delta(mu, epsilon) < 0.3]
    assert len(cases) > 12
    assert all(
        covers(mu, epsilon, 1000 * excess) and covers(mu, epsilon, 5 * excess * 1.1 * mu) for mu, epsilon in cases
    )
    assert not any(covers(mu, epsilon, 1e-3 * excess * mu) for mu, epsilon in cases)


# The plan -----------------------------------------------------------------------------------------------------------


def test_a_plan_in_figures() -> None:
    """100 clients, 10 of which may drop out and 5 be corrupted: s² = ((16 * 10)² + 4) / 85."""
    plan = plan_of(10.0, asked=100, fewest=90, corrupted=5, length=10_000, count=14)
    assert (plan.resolution, plan.honest, plan.is_local) == (16, 85, False)
    assert plan.share == pytest.approx(math.sqrt(25_604 / 85), rel=1e-14)
    assert plan.sigma_of(85) == pytest.approx(10.0, rel=1e-3) and plan.sigma_of(85) >= 10.0
    assert plan.sigma_of(100) == pytest.approx(10.0 * math.sqrt(100 / 85), rel=1e-3)
    u = 4 * math.exp(-8 * math.pi**2)
    assert plan.extra_rho == pytest.approx(1000 * 10_000 * u, rel=1e-9)
    assert plan.noise_by == "the clients, a share each"
    assert plan_of(10.0, asked=100, fewest=90, corrupted=5, length=20_000).extra_rho == 2 * plan.extra_rho


def test_many_clients_raise_the_resolution_until_a_share_is_wide_enough() -> None:
    plan = plan_of(5.0, asked=5000, fewest=4500, corrupted=250)
    assert plan.resolution == 64 and plan.share >= SMALLEST_SHARE
    assert share_of(32 * 5.0, plan.honest) < SMALLEST_SHARE and FINEST < 32 * 5.0
    assert plan_of(127.0).resolution == 2 and plan_of(129.0).resolution == 1  # 128 is worth one doubling


def test_the_extra_term_counts_the_shares_and_the_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of 3 and more add 1e-38 to the rounding's 2e-34, so narrower ones have to show it."""
    monkeypatch.setattr(distributed, "SMALLEST_SHARE", 1.0)
    plan = plan_of(130.0, asked=5000, fewest=5000, corrupted=0, length=7)
    assert plan.resolution == 1 and 1.8 < plan.share < 1.9
    excess = _shares_excess(plan.share, 5000) + _atanh2(_theta(ROUNDING**2))
    assert plan.extra_rho == pytest.approx(7000 * excess, rel=1e-12)
    assert _shares_excess(plan.share, 5000) > 1e10 * _atanh2(_theta(ROUNDING**2))
    narrow, many = _shares_excess(3.0, 2), _shares_excess(3.0, 5000)
    assert 0 < narrow < many < 5000 * narrow


def test_a_local_plan_is_full_noise_at_every_client() -> None:
    plan = local(10.0, count=3, length=6, asked=20)
    assert plan.is_local and plan.honest == 1 and plan.noise_by == "each client"
    assert plan.sigma_of(1) == pytest.approx(10.0, rel=1e-3) and plan.sigma_of(20) == plan.share * math.sqrt(20) / 16


def test_a_sum_without_an_honest_contributor_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"aggregation\.corrupted or aggregation\.dropout.*minimum_cohort"):
        plan_of(fewest=3, corrupted=3)
    assert plan_of(fewest=3, corrupted=2).honest == 1
    for bad in ({"fewest": 0}, {"corrupted": -1}, {"asked": 0}, {"length": 0}, {"count": 0}, {"sensitivity": 0.0}):
        with pytest.raises(ValueError, match=r"at least|positive"):
            plan_of(**bad)
    for sigma in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive"):
            plan_of(sigma)
    for sigma in (1e-11, 1e14):
        with pytest.raises(ConfigError, match="standard deviation"):
            plan_of(sigma)


def test_the_ring_holds_the_sum_and_its_noise() -> None:
    plan = plan_of(10.0, asked=100, fewest=90, corrupted=5, length=1000)
    plan.check_ring(2.0**40)
    tail = plan.share * math.sqrt(2 * 100 * math.log(2 * 1000 * 2**60))
    edge = (2.0**63 - tail) / 16
    plan.check_ring(edge * (1 - 1e-11))
    for largest in (edge * (1 + 1e-11), 2.0**60, math.inf, math.nan):
        with pytest.raises(ConfigError, match=r"beyond the ring's 2\^63.*sum fewer rows"):
            plan.check_ring(largest)
    # Noise alone can be too wide: 2^40 wide shares of 2^45 clients.
    with pytest.raises(ConfigError, match=r"larger privacy\.epsilon"):
        replace(plan, share=2.0**40, asked=2**45).check_ring(1.0)


# The ledger ---------------------------------------------------------------------------------------------------------


def entered(
    ledger: Ledger,
    values: Any = (1, 2, 3, 0, 0, 4),
    noise: DistributedNoise | None = None,
    source: Any = None,
    takes_part: bool = True,
    **changes: Any,
) -> NDArray[np.int64]:
    plan, source = noise or plan_of(), source or Randomness(4).generator("share")
    entry = replace(plan.release("measure", 2), **changes)
    return ledger.distributed(np.asarray(values), plan, entry, source, takes_part=takes_part)


def test_a_share_is_charged_as_the_sum_and_added_to_scaled_values() -> None:
    plan, ledger = plan_of(), Ledger(BUDGET, noise_by="client")
    vector = entered(ledger)
    assert vector.dtype == np.int64 and plan.resolution == 4
    noise = entered(Ledger(BUDGET), values=np.zeros(6, np.int64))
    assert (vector - noise == plan.resolution * np.array([1, 2, 3, 0, 0, 4])).all() and noise.any()
    (release,) = ledger.releases
    assert release == Release(
        "measure",
        2,
        GAUSSIAN,
        sigma=40.0,
        count=3,
        noise_by="the clients, a share each",
        sampler=SEEDED_LABEL,
        extra=plan.extra_rho,
    )
    assert ledger.spent == 3 * gaussian_rho(40.0) + plan.extra_rho
    report = json.loads(json.dumps(ledger.report()))
    assert report["noise_promised_by"] == ["the clients, a share each"]
    assert report["releases"][0]["extra"] == plan.extra_rho and not report["private"]
    other = Ledger(BUDGET)
    entered(other, sigma=39.0, sensitivity=2.0, count=1, argument="because")
    (release,) = other.releases
    assert (release.sigma, release.sensitivity, release.count, release.argument) == (39.0, 2.0, 1, "because")
    entered(ledger, source=OsRandom(), noise=local(40.0, count=3, length=6, asked=20))
    assert ledger.releases[1].noise_by == "client" and ledger.releases[1].sampler == OS_LABEL


def test_nothing_is_drawn_beyond_the_budget() -> None:
    source: Any = Randomness(1).generator("share")
    before = source.bit_generator.state
    ledger = Ledger(BUDGET)
    with pytest.raises(BudgetExceeded, match="'measure' of round 2"):
        entered(ledger, noise=plan_of(4.0), source=source)
    assert source.bit_generator.state == before and not ledger.releases
    entered(ledger, source=source)
    assert source.bit_generator.state != before


def test_a_client_without_rows_in_the_sum_pays_nothing_and_still_adds_its_share() -> None:
    ledger = Ledger(BUDGET)
    idle = entered(ledger, values=np.zeros(6, np.int64), takes_part=False)
    assert not ledger.releases and ledger.spent == 0.0
    assert idle.any() and (idle == entered(ledger, values=np.zeros(6, np.int64))).all()
    with pytest.raises(ValueError, match="count of at least 1"):
        entered(ledger, takes_part=False)


@pytest.mark.parametrize(
    "values,changes,match",
    [
        ((1.0,) * 6, {}, "6 integers"),
        ((1,) * 5, {}, "6 integers"),
        (np.ones((2, 3), int), {}, "6 integers"),
        ((1,) * 6, {"sigma": 41.0}, "more noise"),
        ((1,) * 6, {"sigma": -1.0}, "positive"),
    ],
)
def test_what_a_share_cannot_protect_is_refused_before_the_charge(values: Any, changes: Any, match: str) -> None:
    ledger = Ledger(BUDGET)
    source: Any = Randomness(1).generator("share")
    before = source.bit_generator.state
    with pytest.raises(ValueError, match=match):
        entered(ledger, values=values, source=source, **changes)
    assert not ledger.releases and source.bit_generator.state == before


@pytest.mark.parametrize("value", [2**61, -(2**63)])
def test_values_without_room_are_refused_after_the_charge(value: int) -> None:
    """Whether they fit is a fact about the rows, and whoever asked sees the refusal: it is not for free."""
    ledger = Ledger(BUDGET)
    source: Any = Randomness(1).generator("share")
    before = source.bit_generator.state
    with pytest.raises(ValueError, match="64 bits"):
        entered(ledger, values=(value,) * 6, source=source)
    assert len(ledger.releases) == 1 and source.bit_generator.state == before


def test_small_integer_types_are_widened_before_they_are_scaled() -> None:
    noise = entered(Ledger(BUDGET), values=np.zeros(6, np.int64))
    assert (entered(Ledger(BUDGET), values=np.full(6, 255, np.uint8)) - noise == 4 * 255).all()


def test_the_extra_term_is_part_of_every_total() -> None:
    release = Release("m", 1, GAUSSIAN, 2.0, sigma=50.0, count=3, extra=1e-3)
    assert release.rho == 3 * gaussian_rho(50.0, 2.0) + 1e-3 and release.mu2 == 2 * release.rho
    assert Release.from_dict(release.to_dict()) == release
    assert "extra" not in Release("m", 1, GAUSSIAN, sigma=50.0).to_dict()
    for accountant in (None, GaussianAccountant.of(BUDGET)):
        ledger = Ledger(BUDGET, accountant, noise_by="server")
        for t in (1, 2, 3):
            ledger.promise(replace(release, round=t, extra=t * 1e-3, noise_by="the clients, a share each"))
        compact = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict(compact=True))))
        (entry,) = compact.releases
        assert (entry.count, entry.round, entry.until) == (9, 1, 3) and entry.extra == pytest.approx(6e-3, rel=1e-14)
        assert compact.spent == pytest.approx(ledger.spent, rel=1e-14)
        unit = 1.0 if accountant is None else 2.0
        assert ledger.spent == pytest.approx(unit * (9 * gaussian_rho(50.0, 2.0) + 6e-3), rel=1e-14)
    for bad in (-1e-9, math.inf, math.nan):
        with pytest.raises(ValueError, match="extra"):
            replace(release, extra=bad)
    with pytest.raises(ValueError, match="extra"):
        Release("s", 1, "exponential", epsilon=0.1, extra=1e-3)


def test_a_large_extra_term_is_refused() -> None:
    with pytest.raises(BudgetExceeded):
        Ledger(BUDGET).charge(Release("m", 1, GAUSSIAN, sigma=1e6, extra=2 * BUDGET.rho))


def test_honest_shares_reach_the_planned_variance_in_exact_arithmetic() -> None:
    for sigma in (1.0, 10.0, 0.1, 333.333, 1e6 / 7):
        for fewest in (1, 2, 7, 95, 4500):
            plan = plan_of(sigma, asked=fewest, fewest=fewest, corrupted=0)
            scaled = Fraction(plan.resolution) * Fraction(sigma)
            assert plan.honest * Fraction(plan.share) ** 2 >= scaled**2 + 4


# What the conformance checks watch --------------------------------------------------------------------------------


def test_the_watched_ledger_repeats_a_share_and_knows_how_far_a_row_moves_it() -> None:
    def client(tape: Tape, values: Any, takes_part: bool = True) -> NDArray[np.int64]:
        ledger = TapedLedger.wrap(Ledger(BUDGET, noise_by="client"), tape, "client 0")
        source = WatchedRandomness(5, tape).generator("client", 0, 2)
        return entered(ledger, values=values, takes_part=takes_part, source=source)

    first = Tape()
    vector = client(first, [1, 2, 3, 0, 0, 4])
    (draw,) = first.draws["client 0"]
    assert (draw.kind, draw.name, draw.round, draw.count) == ("distributed", "measure", 2, 1)
    assert draw.sensitivity == pytest.approx(math.sqrt(3)) and (draw.inputs[0] == [1, 2, 3, 0, 0, 4]).all()
    assert not first.problems
    again = Tape(script=first.draws)
    assert (client(again, [0, 2, 3, 1, 0, 5]) == vector).all() and not again.problems
    idle = Tape()
    client(idle, np.zeros(6, np.int64), takes_part=False)
    assert idle.draws["client 0"][0].sensitivity == 0.0 and not idle.problems


def test_integers_that_are_drawn_outside_a_ledger_entry_are_noticed() -> None:
    tape = Tape()
    source = WatchedRandomness(5, tape).generator("client", 0, 2)
    entered(TapedLedger.wrap(Ledger(BUDGET), tape, "client 0"), source=source)
    assert not tape.problems
    source.integers(0, 10, 3)
    assert len(tape.problems) == 1 and "drawn outside a ledger entry" in tape.problems[0]
    entered(
        TapedLedger.wrap(Ledger(BUDGET), tape, "client 0"), source=WatchedRandomness(5, tape).generator("client", 0, 2)
    )
    assert "equal noise, twice" in tape.problems[1]
