"""The ledger refuses before it draws, counts what is entered, and survives a journey as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from fedsyn.errors import BudgetExceeded
from fedsyn.privacy import (
    EXPONENTIAL,
    GAUSSIAN,
    Ledger,
    PrivacyBudget,
    PrivacyStatement,
    Release,
    accountant_for,
    exponential_rho,
    gaussian_rho,
    zcdp_epsilon,
)
from fedsyn.privacy._noise import noise_grid
from fedsyn.privacy.accountant import GaussianAccountant, ZcdpAccountant
from fedsyn.privacy.conversion import gaussian_delta
from fedsyn.privacy.statement import UNIT
from fedsyn.randomness import OS_LABEL, SEEDED_LABEL, OsRandom, Randomness

BUDGET = PrivacyBudget(1.0, 1e-9)
STATEMENT = PrivacyStatement(
    public="schema, workload, client row counts",
    trust="the server adds the noise",
    server_sees="noisy sums",
    client_sees="the model",
    cost="1/(2 sigma²) each",
    sampler=OS_LABEL,
)


def _source(seed: int = 0) -> Any:
    return Randomness(seed).generator("test")


def _state(source: Any) -> dict[str, Any]:
    return source.bit_generator.state


def test_an_overspend_is_refused_before_anything_is_drawn() -> None:
    ledger, source = Ledger(BUDGET), _source()
    sigma = math.sqrt(1.0 / (2.0 * 0.6 * BUDGET.rho))
    values = np.array([3, 1, 4])
    ledger.gaussian([values], Release("measure", 1, GAUSSIAN, sigma=sigma), source)
    before, releases = _state(source), ledger.releases
    with pytest.raises(BudgetExceeded, match="'measure' of round 2"):
        ledger.gaussian([values], Release("measure", 2, GAUSSIAN, sigma=sigma), source)
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        ledger.exponential([1.0, 2.0], Release("select", 2, EXPONENTIAL, epsilon=2.0), source)
    assert _state(source) == before
    assert ledger.releases == releases
    # A smaller release still fits: the refusal changed nothing.
    ledger.gaussian([values], Release("measure", 2, GAUSSIAN, sigma=2.0 * sigma), source)
    assert ledger.spent == pytest.approx(0.75 * BUDGET.rho, rel=1e-12)


def test_error_messages_hold_no_private_value() -> None:
    values = np.array([987654321, 0])
    with pytest.raises(BudgetExceeded) as caught:
        Ledger(BUDGET).gaussian([values], Release("measure", 1, GAUSSIAN, sigma=0.1), _source())
    assert "987654321" not in str(caught.value)


def test_the_filter_takes_adaptive_scales_up_to_the_budget_and_no_further() -> None:
    ledger, source = Ledger(BUDGET), _source()
    sigma = 40.0
    while True:
        release = Release("measure", 1, GAUSSIAN, sigma=sigma)
        if not ledger.can_afford(release):
            break
        (noisy,) = ledger.gaussian([np.array([100])], release, source)
        sigma *= 0.9 if noisy[0] > 100 else 0.8  # the next scale depends on the last result
    rest = ledger.remaining_rho
    assert rest > 0
    ledger.charge(Release("last", 2, GAUSSIAN, sigma=math.sqrt(1.0 / (2.0 * rest))))
    assert ledger.epsilon() <= BUDGET.epsilon
    assert not ledger.can_afford(Release("more", 3, GAUSSIAN, sigma=1e4))


def test_plans_that_sum_to_the_budget_pass_in_floating_point() -> None:
    for parts in (3, 7, 49, 1000):
        ledger = Ledger(BUDGET)
        sigma = math.sqrt(parts / (2.0 * BUDGET.rho))
        for t in range(parts):
            ledger.charge(Release("measure", t, GAUSSIAN, sigma=sigma))
        assert ledger.epsilon() <= BUDGET.epsilon
        with pytest.raises(BudgetExceeded):
            ledger.charge(Release("measure", parts, GAUSSIAN, sigma=sigma))


def test_totals_come_from_the_entries() -> None:
    ledger = Ledger(BUDGET)
    ledger.charge(Release("a", 1, GAUSSIAN, 2.0, sigma=50.0, count=3))
    ledger.charge(Release("b", 1, EXPONENTIAL, 5.0, epsilon=0.1))
    assert ledger.spent == pytest.approx(3 * gaussian_rho(50.0, 2.0) + exponential_rho(0.1), rel=1e-14)
    assert ledger.spent_rho == ledger.spent
    assert ledger.epsilon() == zcdp_epsilon(ledger.spent, BUDGET.delta)
    assert ledger.epsilon(1e-5) < ledger.epsilon()
    assert Ledger(BUDGET).epsilon() == 0.0


def test_the_gaussian_accountant_is_one_gaussian_mechanism() -> None:
    ledger = Ledger(BUDGET, GaussianAccountant.of(BUDGET))
    sigma = math.sqrt(5) / BUDGET.mu
    for t in range(5):
        ledger.charge(Release("measure", t, GAUSSIAN, sigma=sigma))
    # Five releases of sigma are one of sigma / sqrt(5): δ at ε is Balle & Wang's.
    assert gaussian_delta(math.sqrt(ledger.spent), BUDGET.epsilon) == pytest.approx(BUDGET.delta, rel=1e-6)
    assert BUDGET.epsilon * (1 - 1e-6) < ledger.epsilon() <= BUDGET.epsilon
    # ... which zCDP could not have promised.
    assert zcdp_epsilon(ledger.spent_rho, BUDGET.delta) > BUDGET.epsilon
    with pytest.raises(BudgetExceeded, match="mu²"):
        ledger.charge(Release("measure", 5, GAUSSIAN, sigma=100.0 * sigma))


def test_the_gaussian_accountant_refuses_choices_and_draws_nothing() -> None:
    ledger, source = Ledger(BUDGET, GaussianAccountant.of(BUDGET)), _source()
    before = _state(source)
    with pytest.raises(ValueError, match="Gaussian releases only"):
        ledger.exponential([1.0, 2.0], Release("select", 1, EXPONENTIAL, epsilon=0.1), source)
    assert _state(source) == before and not ledger.releases


def test_an_accountant_larger_than_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeds the budget"):
        Ledger(BUDGET, ZcdpAccountant(BUDGET.rho * 1.01))
    with pytest.raises(ValueError, match="exceeds the budget"):
        Ledger(BUDGET, GaussianAccountant(BUDGET.mu * 1.01))
    assert Ledger(BUDGET, ZcdpAccountant(0.5 * BUDGET.rho)).remaining == 0.5 * BUDGET.rho
    assert accountant_for("zcdp", BUDGET).capacity == BUDGET.rho


def test_gaussian_adds_the_source_to_copies() -> None:
    ledger = Ledger(PrivacyBudget(50.0, 1e-5))
    values = [np.array([[1, 2], [3, 4]]), np.arange(3)]
    kept = [array.copy() for array in values]
    sigma = 8.0
    noisy = ledger.gaussian(values, Release("measure", 1, GAUSSIAN, sigma=sigma, count=2), _source(3))
    source = _source(3)
    for ours, exact in zip(noisy, kept, strict=True):
        assert ours.dtype == np.float64 and ours.shape == exact.shape
        expected = exact + sigma * source.standard_normal(exact.shape)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=noise_grid(sigma))
    assert all((a == b).all() for a, b in zip(values, kept, strict=True))
    with pytest.raises(ValueError, match="argument"):  # every row is in both arrays unless argued otherwise
        ledger.gaussian(values, Release("measure", 1, GAUSSIAN, sigma=sigma), _source(3))


def test_an_empty_array_is_charged_too() -> None:
    ledger = Ledger(BUDGET)
    (noisy,) = ledger.gaussian([np.zeros((0,), int)], Release("m", 1, GAUSSIAN, sigma=50.0), _source())
    assert noisy.size == 0
    assert len(ledger.releases) == 1


@pytest.mark.parametrize("sigma", [0.37, 1.0, 77.3, 1e7])
def test_results_lie_on_one_grid_whatever_the_counts(sigma: float) -> None:
    """Mironov's attack reads the low-order bits of a noisy double; counts leave nothing in them."""
    ledger = Ledger(PrivacyBudget(1000.0, 1e-5))
    grid = noise_grid(sigma)
    assert grid <= max(sigma * 2.0**-16, 1e-300) and math.log2(grid) == round(math.log2(grid)) and grid <= 1
    counts = np.array([0, 1, 7, 123_456, 99_999_999])
    results = {}
    for offset in (0, 1):
        (noisy,) = ledger.gaussian([counts + offset], Release("m", 1, GAUSSIAN, sigma=sigma), _source(5))
        assert (noisy / grid == np.rint(noisy / grid)).all()
        results[offset] = noisy - (counts + offset)
    # The same noise comes out of both tables exactly: no bit of it depends on the counts.
    assert (results[0] == results[1]).all()
    (floats,) = ledger.gaussian([np.array([0.1, 1 / 3])], Release("m", 1, GAUSSIAN, sigma=sigma), _source(5))
    assert (floats / grid == np.rint(floats / grid)).all()


@pytest.mark.parametrize(
    "values,match",
    [
        ([np.array([1.0, math.nan])], "finite"),
        ([np.array([math.inf])], "finite"),
        ([], "nothing"),
        (np.array([3, 1]), "expected a list"),
        ([np.array(["a"])], "real"),
        ([np.array([1j])], "real"),
    ],
)
def test_values_that_noise_cannot_hide_are_refused(values: Any, match: str) -> None:
    ledger, source = Ledger(BUDGET), _source()
    before = _state(source)
    with pytest.raises(ValueError, match=match):
        ledger.gaussian(values, Release("m", 1, GAUSSIAN, sigma=50.0), source)
    assert _state(source) == before and not ledger.releases


def test_parallel_composition_needs_an_argument() -> None:
    ledger = Ledger(BUDGET)
    arrays = [np.zeros(2, int)] * 3
    with pytest.raises(ValueError, match="argument"):
        ledger.gaussian(arrays, Release("m", 1, GAUSSIAN, sigma=50.0, count=1), _source())
    because = "each client's marginal is in one of the sums"
    ledger.gaussian(arrays, Release("m", 1, GAUSSIAN, sigma=50.0, count=1, argument=because), _source())
    assert ledger.spent == gaussian_rho(50.0)
    assert ledger.report()["releases"][0]["argument"] == because


def test_exponential_chooses_the_best_when_noise_is_small_and_never_an_ineligible_one() -> None:
    ledger = Ledger(PrivacyBudget(1e5, 1e-5))
    scores = np.array([-math.inf, 3.0, 5.0, -math.inf, 4.0])
    choose = lambda epsilon: ledger.exponential(  # noqa: E731
        scores, Release("select", 1, EXPONENTIAL, epsilon=epsilon), OsRandom()
    )
    # P(not index 2) < 2 exp(-100/2): never, in the life of this test.
    assert {choose(100.0) for _ in range(20)} == {2}
    # Nearly uniform over three: P(one of them missing in 400) = 3 (2/3)^400 < 1e-69.
    assert {choose(1e-6) for _ in range(400)} == {1, 2, 4}


@pytest.mark.parametrize("scores", [[], [math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf], [[1.0, 2.0]], 3.0])
def test_bad_scores_are_refused_before_the_charge(scores: Any) -> None:
    ledger, source = Ledger(BUDGET), _source()
    before = _state(source)
    with pytest.raises(ValueError, match=r"scores|eligible"):
        ledger.exponential(scores, Release("select", 1, EXPONENTIAL, epsilon=0.1), source)
    assert _state(source) == before and not ledger.releases


def test_huge_scores_do_not_overflow() -> None:
    ledger = Ledger(BUDGET)
    scores = np.array([-1.7e308, 1.7e308, 1e300])
    pick = ledger.exponential(scores, Release("s", 1, EXPONENTIAL, epsilon=0.1), _source())
    assert pick == 1


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_scales_must_be_positive_and_finite(bad: float) -> None:
    ledger, source = Ledger(BUDGET), _source()
    with pytest.raises(ValueError, match="positive"):
        ledger.gaussian([np.zeros(2, int)], Release("m", 1, GAUSSIAN, sigma=bad), source)
    with pytest.raises(ValueError, match="positive"):
        ledger.gaussian([np.zeros(2, int)], Release("m", 1, GAUSSIAN, bad, sigma=50.0), source)
    with pytest.raises(ValueError, match="positive"):
        ledger.exponential([1.0], Release("s", 1, EXPONENTIAL, epsilon=bad), source)
    for count in (0, -1, 1.5):
        with pytest.raises(ValueError, match="count"):
            Release("m", 1, GAUSSIAN, sigma=1.0, count=count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gaussian"):
        Release("m", 1, "laplace", sigma=1.0)
    with pytest.raises(ValueError, match="gaussian"):
        Release("m", 1, GAUSSIAN, sigma=1.0, epsilon=1.0)


def test_absurd_scales_are_refused_as_too_expensive() -> None:
    for release in (
        Release("m", 1, GAUSSIAN, sigma=1e-200),
        Release("m", 1, GAUSSIAN, 1e300, sigma=1e-300),
        Release("s", 1, EXPONENTIAL, epsilon=1e200),
    ):
        with pytest.raises(BudgetExceeded):
            Ledger(BUDGET).charge(release)


def test_numpy_numbers_survive_json() -> None:
    ledger = Ledger(BUDGET)
    ledger.charge(Release("m", np.int64(3), GAUSSIAN, sigma=np.float64(50.0), count=np.int64(2)))  # type: ignore[arg-type]
    assert Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))).releases == ledger.releases
    assert ledger.report()["unit"] == UNIT


def test_a_promise_names_who_draws_the_noise() -> None:
    ledger = Ledger(BUDGET, noise_by="client")
    ledger.promise(Release("measure", 1, GAUSSIAN, sigma=50.0, noise_by="server"))
    assert ledger.spent == gaussian_rho(50.0)
    report = ledger.report()
    assert report["noise_promised_by"] == ["server"]
    assert report["sampler"] == ["drawn by server, not seen here"]
    for nobody in ("", "self", "client"):
        with pytest.raises(ValueError, match="name the other party"):
            ledger.promise(Release("measure", 1, GAUSSIAN, sigma=50.0, noise_by=nobody))
    with pytest.raises(BudgetExceeded):
        ledger.promise(Release("measure", 1, GAUSSIAN, sigma=0.5, noise_by="server"))


def test_seeded_noise_is_reported_as_not_private() -> None:
    ledger = Ledger(BUDGET, statement=STATEMENT)
    ledger.gaussian([np.zeros(2, int)], Release("m", 1, GAUSSIAN, sigma=50.0), OsRandom())
    assert ledger.private and ledger.report()["sampler"] == [OS_LABEL]
    # A NumPy generator without a seed is not a cryptographic source either.
    ledger.gaussian([np.zeros(2, int)], Release("m", 2, GAUSSIAN, sigma=50.0), np.random.default_rng())
    assert not ledger.private
    ledger.not_private(SEEDED_LABEL)  # a strategy says so too; once is enough
    assert ledger.report()["not_private_because"] == [SEEDED_LABEL]


def test_a_baseline_that_reads_exact_data_says_so() -> None:
    ledger = Ledger(BUDGET)
    ledger.not_private("oracle: reads the exact global marginals")
    ledger.not_private("oracle: reads the exact global marginals")
    again = Ledger.from_dict(ledger.to_dict())
    assert not again.private and again.caveats == ("oracle: reads the exact global marginals",)


def _filled(accountant: Any = None) -> Ledger:
    ledger = Ledger(BUDGET, accountant, STATEMENT, assumptions={"client_sizes": "public"}, noise_by="client")
    for t in (1, 2, 3):
        ledger.gaussian([np.zeros(2, int)] * 2, Release("one-way", t, GAUSSIAN, sigma=60.0, count=2), OsRandom())
        ledger.promise(Release("measure", t, GAUSSIAN, sigma=80.0, noise_by="server"))
        if accountant is None:
            ledger.exponential([1.0, 2.0], Release("s", t, EXPONENTIAL, 2.0, epsilon=0.02), OsRandom())
    return ledger


@pytest.mark.parametrize("accountant", [None, GaussianAccountant.of(BUDGET)])
def test_state_survives_json(accountant: Any) -> None:
    ledger = _filled(accountant)
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert again.report() == ledger.report()
    assert again.to_dict() == ledger.to_dict()
    compact = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict(compact=True))))
    assert len(compact.releases) < len(ledger.releases)
    assert compact.spent == pytest.approx(ledger.spent, rel=1e-14)
    one_way = compact.releases[0]
    assert (one_way.round, one_way.until, one_way.count) == (1, 3, 6)
    # Merging again keeps the span.
    assert Ledger.from_dict(compact.to_dict(compact=True)).releases == compact.releases


def test_costs_are_computed_anew_from_a_state() -> None:
    state = _filled().to_dict()
    for entry in state["releases"]:
        entry["rho"] = 0.0
    assert Ledger.from_dict(state).spent == _filled().spent
    state["releases"][0]["sigma"] = 0.1
    with pytest.raises(BudgetExceeded):
        Ledger.from_dict(state)
    with pytest.raises(ValueError, match="format"):
        Ledger.from_dict({**state, "format": 99})
    with pytest.raises(ValueError, match="exceeds the budget"):
        Ledger.from_dict({**state, "accountant": {"name": "zcdp", "rho": 10.0}})


def test_the_report_is_complete_json() -> None:
    report = json.loads(json.dumps(_filled().report()))
    assert report["unit"] == UNIT == report["statement"]["unit"]
    assert report["assumptions"] == {"client_sizes": "public"}
    assert report["epsilon"] <= report["budget"]["epsilon"] and report["delta"] == BUDGET.delta
    assert report["rho"] == pytest.approx(sum(entry["rho"] for entry in report["releases"]), rel=1e-12)
    assert len(report["releases"]) == 9


def test_the_statement_has_its_fixed_form() -> None:
    lines = STATEMENT.render().splitlines()
    titles = ["Unit", "Public", "Trusted not to collude", "The server sees", "A client sees"]
    assert [line.split(":")[0] for line in lines] == [*titles, "Cost of each release", "Sampler"]
    assert lines[0] == f"Unit: {UNIT}"
    assert PrivacyStatement.from_dict(STATEMENT.to_dict()) == STATEMENT
    with pytest.raises(ValueError, match="must say something under 'Public'"):
        PrivacyStatement("s", "c", public=" ")
