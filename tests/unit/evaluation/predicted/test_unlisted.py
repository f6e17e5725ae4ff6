"""Shares of what a schema does not list: their intervals against simulated noise, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fedsyn.domain import Clique
from fedsyn.evaluation.predicted import PredictedQuality
from fedsyn.evaluation.predicted.unlisted import UnlistedShare, clauses, unlisted_shares
from fedsyn.evaluation.record import percent
from fedsyn.evaluation.verdict import CHANCE
from fedsyn.inference import Evidence, Measurement, MixtureModel, estimate
from fedsyn.table.schema import Schema

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "smoker": {"kind": "boolean", "unlisted": True},
            "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 5, "unlisted": True},
            "sex": {"kind": "categorical", "categories": ["f", "m"], "other": False},
        }
    }
)
COUNTS = {"smoker": [900.0, 350.0, 750.0], "age": [500.0, 500.0, 400.0, 400.0, 200.0, 0.0], "sex": [1100.0, 900.0]}
SIGMA = 20.0


def noisy(rng: np.random.Generator, clique: Clique, sigma: float = SIGMA, **how: object) -> Measurement:
    """A noisy marginal of independent columns."""
    exact = np.ones(1)
    for name in clique:
        exact = np.multiply.outer(exact, np.array(COUNTS[name]) / 2000.0)
    exact = 2000.0 * exact.reshape(SCHEMA.domain.shape_of(clique))
    return Measurement(clique, exact + rng.normal(0, sigma, exact.shape), sigma, **how)  # type: ignore[arg-type]


def shares_of(rng: np.random.Generator, cliques: list[Clique]) -> dict[str, UnlistedShare]:
    measured = tuple(noisy(rng, clique) for clique in cliques)
    model = estimate(SCHEMA.domain, measured, total=2000.0)
    return {one.column: one for one in unlisted_shares(SCHEMA, model, Evidence(measured, model.total))}


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], [("smoker", "sex")]])
def test_intervals_hold_the_share_and_empty_cells_are_seldom_seen(more: list[Clique]) -> None:
    """Of 200 releases 180 intervals hold the share in theory, at least 168 but for a chance of 2e-3 (binomial).

    An empty cell is seen with a chance of 0.025 for each of two columns: in more than 14 of 200 with one of 2e-4.
    """
    rng = np.random.default_rng(0)
    runs = [shares_of(rng, [("smoker",), ("age",), ("sex",), *more]) for _ in range(200)]
    smokers = [run["smoker"] for run in runs]
    held = sum(one.low <= 0.375 <= one.high for one in smokers if one.low is not None and one.high is not None)
    assert held >= 168
    assert all(one.seen and not one.ordered for one in smokers)
    assert sum(run["age"].seen for run in runs) <= 14
    assert all(run["age"].ordered and (run["age"].high or 0.0) < 0.05 for run in runs)
    # No wider than noise demands: the exact standard deviation of the cell, and that of a total that is not given.
    widths = [one.high - one.low for one in smokers if one.low is not None and one.high is not None]
    assert float(np.mean(widths)) < 2 * 1.645 * np.hypot(SIGMA, 0.375 * SIGMA * np.sqrt(6)) / 2000.0 + 1e-3
    assert CHANCE == 0.05


def test_a_measurement_of_fewer_rows_or_of_groups_says_less() -> None:
    rng = np.random.default_rng(1)
    whole, part = (noisy(rng, ("smoker",), share=share) for share in (1.0, 0.1))
    grouped = Measurement(("smoker",), np.array([900.0, 1100.0]), 5.0, groups=(np.array([0, 1, 1]),))
    model = estimate(SCHEMA.domain, [whole, noisy(rng, ("age",)), noisy(rng, ("sex",))], total=2000.0)

    def share(*measured: Measurement) -> UnlistedShare:
        return unlisted_shares(SCHEMA, model, Evidence(measured, 2000.0))[0]

    widths = [(one.high or 0.0) - (one.low or 0.0) for one in map(share, (whole, part))]
    assert widths[1] > 2.0 * widths[0]  # sqrt(2000 p (1 - p) 9) = 65 rows beside noise of 20
    assert share(grouped).low is None  # the group holds listed values, too
    alone = Measurement(("smoker",), np.array([1250.0, 750.0]), 5.0, groups=(np.array([0, 0, 1]),))
    assert (share(alone).high or 1.0) - (share(alone).low or 0.0) < widths[0]


def test_a_model_without_marginals_has_its_own_share_and_no_interval() -> None:
    cells = np.concatenate([np.array(COUNTS[name]) / sum(COUNTS[name]) for name in COUNTS])
    model = MixtureModel(SCHEMA.domain, [cells], 2000.0)
    smoker, age = unlisted_shares(SCHEMA, model, None)
    assert (smoker.value, smoker.low, smoker.high, smoker.seen) == (0.375, None, None, True)
    assert (age.value, age.seen) == (0.0, False)
    said = PredictedQuality(unlisted=(smoker, age), why="the mechanism releases no marginals")
    assert said.sentence() == (
        "nobody can say how good it is, because the mechanism releases no marginals; about 38% of the model's rows "
        "hold values of 'smoker' that the schema does not list, and nothing released says how far that is off"
    )
    assert said.to_dict()["verdict"] == smoker.sentence()
    assert PredictedQuality.from_dict(said.to_dict()) == said


def test_what_noise_could_make_is_bounded_and_no_more() -> None:
    shares = [
        UnlistedShare("smoker", 0.3812, 0.362, 0.4, True, False),
        UnlistedShare("age", 0.001, 0.0, 0.00311, False, True),
        UnlistedShare("ward", 0.0, 0.0, 0.0021, False, False),
    ]
    assert clauses(shares) == [
        "about 38% of the rows hold values of 'smoker' that the schema does not list (36% to 40% in nine runs of ten)",
        "fewer than 0.32% of the rows hold values of 'age', 'ward' that the schema does not list",
    ]
    assert clauses(shares[:1]) == clauses(shares)[:1] and clauses([]) == []


def test_percentages_round_as_bounds_do() -> None:
    assert [percent(x) for x in (0.0, 0.00042, 0.015, 0.0996, 0.5, 1.0)] == [
        "0%",
        "0.042%",
        "1.5%",
        "10%",
        "50%",
        "100%",
    ]
    assert [percent(x, up=True) for x in (0.0, 0.000421, 0.0101, 0.501)] == ["0%", "0.043%", "1.1%", "51%"]


def four(*, sigma: float, **filled: float) -> dict[str, UnlistedShare]:
    """Four columns without unlisted rows but for some shares of 2,000, counted with little noise."""
    names = ("a", "b", "c", "d")
    schema = Schema.from_dict({"columns": {name: {"kind": "boolean", "unlisted": True} for name in names}})
    rows = [
        np.array([1_000.0, 1_000.0, 0.0]) + 2_000 * filled.get(name, 0.0) * np.array([-0.5, -0.5, 1.0])
        for name in names
    ]
    model = estimate(
        schema.domain, [Measurement((n,), r, 1e-4) for n, r in zip(names, rows, strict=True)], total=2_000.0
    )
    measured = tuple(Measurement((n,), r, sigma) for n, r in zip(names, rows, strict=True))
    return {one.column: one for one in unlisted_shares(schema, model, Evidence(measured, 2_000.0))}


def test_a_share_is_seen_where_noise_fills_one_of_all_columns_in_one_table_of_twenty() -> None:
    """One chance in twenty among four columns: from the quantile of 1 - 0.05 / 4 of the noise on."""
    least = 10.0 / 2_000 * norm.isf(0.05 / 4)
    found = four(sigma=10.0, a=0.99 * least, b=1.01 * least)
    assert [one.seen for one in found.values()] == [False, True, False, False]


def test_an_interval_is_that_of_all_counts_of_the_code_and_of_the_rows() -> None:
    """A count of all rows, one of a tenth of them, and one of two columns, in whose cells the code has two noises."""
    rng = np.random.default_rng(2)
    measured = (
        noisy(rng, ("smoker",), 20.0),
        noisy(rng, ("smoker",), 10.0, share=0.1),
        noisy(rng, ("smoker", "sex"), 15.0),
    )
    exact = [Measurement((name,), np.array(values), 1e-4) for name, values in COUNTS.items()]
    model = estimate(SCHEMA.domain, exact, total=2_000.0)
    found = unlisted_shares(SCHEMA, model, Evidence(measured, 2_000.0))[0]
    variances = 20.0**2, 10.0**2 + 2_000 * 0.375 * 0.625 * 0.9 / 0.1, 2 * 15.0**2
    noise = 1.0 / sum(1.0 / one for one in variances)
    rows = 0.375**2 * min(3 * 20.0**2, 6 * 15.0**2)  # the number of rows, by the best count of all of them
    around = norm.ppf(0.95) * np.sqrt(noise + rows) / 2_000
    assert (found.value, found.low, found.high) == pytest.approx((0.375, 0.375 - around, 0.375 + around), abs=2e-6)


def test_a_share_without_an_interval_is_named_where_it_rounds_to_one_in_a_hundred() -> None:
    schema = Schema.from_dict({"columns": {name: {"kind": "boolean", "unlisted": True} for name in ("a", "b")}})
    cells = np.array([0.5, 0.4951, 0.0049, 0.5, 0.4949, 0.0051])
    found = unlisted_shares(schema, MixtureModel(schema.domain, [cells], 1_000.0), None)
    assert [one.seen for one in found] == [False, True]
