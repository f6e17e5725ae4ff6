"""Mean and standard deviation of a column, by its noisy counts: against many draws, and in words."""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.evaluation.predicted.effects import Effects
from fedsyn.evaluation.predicted.links import _at_most
from fedsyn.evaluation.predicted.moments import SeenMoments, _inside, seen_moments
from fedsyn.evaluation.scores import level_of_codes
from fedsyn.evaluation.verdict import judged
from fedsyn.inference import Evidence, Measurement, Model, estimate
from fedsyn.table.schema import NumericColumn, Schema

CLOSE = SeenMoments(0.02, 0.01, 1.0, 0.01)


def seen(rows: np.ndarray, table: np.ndarray, sigma: float, *, upper: float = 32.0, twice: bool = False) -> SeenMoments:
    """Of a column whose noisy counts are of `rows`, beside a model of `table`."""
    column = {"kind": "numeric", "lower": 0, "upper": upper, "bins": len(rows)}
    schema = Schema.from_dict({"columns": {"x": column}})
    released = [Measurement(("x",), rows, sigma)] * (2 if twice else 1)
    model = estimate(schema.domain, [Measurement(("x",), table, 1e-4)], total=float(table.sum()))
    return seen_moments(Effects(model, Evidence(tuple(released), float(rows.sum())), (), [("x",)]), schema)["x"]


def test_moments_are_those_of_the_counts_and_their_noise_is_known() -> None:
    """2,000 draws of noise: the spread of what is found is known to 1.6%, and its mean to 2.2% of that."""
    rng = np.random.default_rng(0)
    middles = np.arange(64) + 0.5
    rows = 20_000 * np.exp(-0.5 * ((middles - 30) / 9) ** 2)
    rows /= rows.sum() / 20_000
    table = 20_000 * np.exp(-0.5 * ((middles - 32) / 11) ** 2)
    table /= table.sum() / 20_000
    exact = seen(rows, table, 10.0, upper=64.0)
    sd = sqrt((rows @ (middles - rows @ middles / 20_000) ** 2) / 20_000)
    assert exact.mean == pytest.approx((table - rows) @ middles / 20_000 / sd, rel=0.02)
    made = (table @ (middles - table @ middles / 20_000) ** 2) / 20_000
    assert exact.variance == pytest.approx(sd**2 / made, rel=0.02)
    drawn = [seen(rows + rng.normal(0, 10.0, 64), table, 10.0, upper=64.0) for _ in range(300)]
    assert np.std([one.mean for one in drawn]) == pytest.approx(exact.mean_spread, rel=0.15)
    assert np.std([one.variance for one in drawn]) == pytest.approx(exact.variance_spread, rel=0.15)
    again = seen(rows, table, 10.0, upper=64.0, twice=True)
    assert again.mean_spread == pytest.approx(exact.mean_spread / sqrt(2.0), rel=0.01)


def test_where_values_lie_inside_bins_is_not_known() -> None:
    """Brute force: the place of each bin's values is drawn 20,000 times; a variance of them is known to 1%."""
    rng = np.random.default_rng(1)
    shares, edges = np.array([0.6, 0.25, 0.1, 0.05]), np.array([-3.0, -1.0, 2.0, 6.0, 20.0])
    at = edges[:-1] + rng.random((20_000, 4)) * np.diff(edges)
    mean, variance = _inside(shares, edges[:-1], edges[1:])
    assert mean == pytest.approx(np.var(at @ shares), rel=0.04)
    assert variance == pytest.approx(np.var(at**2 @ shares), rel=0.06)


def test_bins_that_are_too_wide_are_said_to_be_so() -> None:
    """98% zeros in one of 32 bins of up to 300,000 tell nothing of mean and standard deviation; fine bins do."""
    rows = np.zeros(32)
    rows[:3] = 9_800, 150, 50
    wide = seen(rows, rows, 0.01, upper=300_000.0)
    assert judged("x", wide.losses()).state == "changed"
    assert [text for _, _, text in wide.losses()] == [
        "its bins are too wide to know its mean",
        "its bins are too wide to know its standard deviation",
    ]
    narrow = np.r_[np.zeros(95), np.full(11, 1_800.0), np.zeros(95)]
    noisy = seen(narrow, narrow, 100.0, upper=201.0)
    assert judged("x", noisy.losses()).state == "changed"
    assert noisy.losses()[1][2] == "the noise is too strong to know its standard deviation"
    even = np.full(32, 300.0)
    fine = seen(even, even, 5.0)
    assert judged("x", fine.losses()).state == "kept" and 0.0 < fine.mean_inside < 0.02
    assert fine.losses()[0][2] == "its mean is about 0.00 standard deviations off, estimated from the noisy counts"


@pytest.mark.parametrize(
    ("mean", "inside", "state"),
    [
        (0.02, 0.0, "kept"),
        (0.15, 0.0, "changed"),
        (0.3, 0.0, "lost"),
        (0.02, 0.11, "changed"),
        (0.3, 0.2, "changed"),
    ],
)
def test_a_mean_is_judged_by_its_loss_and_its_doubt(mean: float, inside: float, state: str) -> None:
    one = replace(CLOSE, mean=mean, mean_inside=inside)
    assert judged("x", one.losses()).state == state
    assert ("too wide" in judged("x", one.losses()).why) == (inside > 0.1216)  # 1.645 of it are a fifth


@pytest.mark.parametrize(
    ("times", "inside", "state"),
    [(1.05, 0.0, "kept"), (1.3, 0.0, "changed"), (1.7, 0.0, "lost"), (1.7, 0.3, "changed")],
)
def test_a_spread_is_judged_by_its_loss_and_its_doubt(times: float, inside: float, state: str) -> None:
    for factor in (times, 1.0 / times):
        one = replace(CLOSE, variance=factor**-2, variance_spread=0.01, spread_inside=inside)
        assert judged("x", one.losses()).state == state
        if not inside and state == "lost":
            assert judged("x", one.losses()).why == (
                f"its standard deviation is about {factor:.2f} times the real one, estimated from the noisy counts"
            )
    noisy = replace(CLOSE, variance=1.7**-2, variance_spread=0.6 * 1.7**-2)  # log 1.7 = 0.53, less half of 0.3
    assert judged("x", noisy.losses()).loss == pytest.approx((log(1.7) - 0.15) / log(1.5), rel=0.01)
    assert noisy.spread_doubt == pytest.approx(0.3)


def test_only_columns_with_bins_whose_values_were_counted_have_moments() -> None:
    columns = {"x": {"kind": "numeric", "lower": 0, "upper": 8, "bins": 8}, "y": {"kind": "boolean"}}
    schema = Schema.from_dict({"columns": columns})
    domain: Domain = schema.domain
    model: Model = estimate(domain, [], total=100.0)
    coarse = Measurement(("x",), np.array([50.0, 50.0]), 1.0, groups=(np.repeat([0, 1], 4),))
    for released in ((), (coarse,)):
        assert seen_moments(Effects(model, Evidence(released, 100.0), (), [("x",)]), schema) == {}


def test_a_correlation_is_kept_at_most_by_the_ratio_of_the_spreads() -> None:
    """Noise that widens a column and a fit that narrows it both take half of a correlation."""
    for factor in (4.0, 0.25):
        assert _at_most(replace(CLOSE, variance=factor), CLOSE)[0] == pytest.approx(0.5)


def test_moments_are_sums_over_bins_written_down_again() -> None:
    """Two noisy counts of an integer column of one value a bin, so each stands at one place."""
    counts, sigmas = (np.array([300.0, 500.0, 200.0]), np.array([340.0, 420.0, 240.0])), (10.0, 20.0)
    table = np.array([200.0, 400.0, 400.0]) / 1_000
    schema = Schema.from_dict({"columns": {"x": {"kind": "integer", "lower": 0, "upper": 2, "bins": 3}}})
    model = estimate(schema.domain, [Measurement(("x",), 1_000 * table, 1e-4)], total=1_000.0)
    released = tuple(Measurement(("x",), one, sigma) for one, sigma in zip(counts, sigmas, strict=True))
    found = seen_moments(Effects(model, Evidence(released, 1_000.0), (), [("x",)]), schema)["x"]
    precision = 10.0**-2 + 20.0**-2
    rows = (counts[0] / 10.0**2 + counts[1] / 20.0**2) / precision / 1_000
    at, noise = np.arange(3.0), precision**-0.5 / 1_000
    mean, of_table = rows @ at, table @ (at - table @ at) ** 2
    spread = sqrt(rows @ (at - mean) ** 2)
    assert found.mean == pytest.approx((table @ at - mean) / spread, rel=1e-3)
    assert found.mean_spread == pytest.approx(noise * sqrt(((at - mean) ** 2).sum()) / spread, rel=1e-3)
    assert found.variance == pytest.approx(spread**2 / of_table, rel=1e-3)
    assert found.variance_spread == pytest.approx(noise * sqrt(((at - mean) ** 4).sum()) / of_table, rel=1e-3)
    assert (found.mean_inside, found.spread_inside) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_noise_that_hides_a_spread_takes_the_smaller_unit() -> None:
    """A column in one bin of 64, counted with much noise: it is at least as wide as noise says."""
    rows, table = np.zeros(64), np.zeros(64)
    rows[32], table[16:48] = 1_000.0, 1_000.0 / 32
    found = seen(rows, table, 30.0, upper=64.0)
    assert found.variance == found.variance_spread > 1.0  # by noise alone
    exact = seen(np.roll(rows, 8), table, 30.0, upper=64.0)
    # Eight values and a half beyond the table's middle, in the table's standard deviations.
    assert exact.mean == pytest.approx(8.5 / sqrt(32**2 / 12), rel=0.05)


def test_a_mean_inside_bins_is_in_the_rows_standard_deviations() -> None:
    """Two bins of width 8: each place of a bin's values is as likely, which has the variance 64/12."""
    shares, column = np.array([0.95, 0.05]), NumericColumn(lower=0, upper=16, bins=2)
    found = seen(1_000 * shares, 1_000 * shares, 1e-3, upper=16.0)
    at = level_of_codes(column, shares, column.middles, 1_000.0)  # means inside the bins, where the table's values lie
    mean, of_mean = float(shares @ at), float(shares @ shares) * 64 / 12
    unit = sqrt(shares @ (at - mean) ** 2)
    assert found.mean_inside == pytest.approx(sqrt(of_mean) / unit, rel=2e-3)
    places = [np.linspace(low - mean, low - mean + 8.0, 100_001) ** 2 for low in (0.0, 8.0)]
    moved = sqrt(shares**2 @ [each.var() for each in places])
    # Their mean moves with them, and its own variance is missing from theirs.
    assert found.spread_inside == pytest.approx(0.5 * np.hypot(moved, of_mean) / unit**2, rel=2e-3)


def test_doubt_is_half_a_standard_deviation_of_noise_beside_all_of_the_bins() -> None:
    """Of a loss of 0.12, kept up to 0.1; of one of 0.3, lost from 0.2 on."""
    noisy = replace(CLOSE, mean=0.08, mean_spread=0.038)
    assert judged("x", noisy.losses()).state == "kept"
    assert judged("x", replace(noisy, mean_spread=0.042).losses()).state == "changed"
    assert judged("x", noisy.losses(doubt=1.2)).state == "changed"
    sure = replace(CLOSE, mean=0.3, mean_spread=0.18)
    assert judged("x", sure.losses()).state == "lost"
    assert judged("x", replace(sure, mean_spread=0.22).losses()).state == "changed"
    assert judged("x", replace(sure, mean_inside=0.06).losses()).state == "changed"  # hypot(0.09, 0.06) > 0.1
    wide = replace(CLOSE, variance=0.4, spread_inside=0.24)
    assert "too wide" not in wide.losses()[1][2] and "too wide" in replace(wide, spread_inside=0.25).losses()[1][2]


@pytest.mark.parametrize(("variance", "noise", "is_known"), [(1.2, 1.19, True), (1.2, 1.21, False), (0.9, 1.0, True)])
def test_noise_alone_makes_no_standard_deviation_larger(variance: float, noise: float, is_known: bool) -> None:
    words = replace(CLOSE, variance=variance, variance_spread=noise).losses()[1][2]
    assert ("the noise is too strong" not in words) == is_known


def test_the_doubt_of_a_correlation_is_that_of_both_spreads() -> None:
    first = replace(CLOSE, variance=0.81, variance_spread=0.081, spread_inside=0.03)
    second = replace(CLOSE, variance=0.64, variance_spread=0.0, spread_inside=0.04)
    share, spread = _at_most(first, second)
    assert share == pytest.approx(0.72) and spread == pytest.approx(0.72 * sqrt(0.05**2 + 0.03**2 + 0.04**2))


def test_a_ratio_is_said_with_its_interval_where_it_may_be_one() -> None:
    """A variance of 0.47 that noise may have made says nothing of 1.46 times the real standard deviation."""
    of = SeenMoments(0.0, 0.0, 0.4706, 0.4706)
    words = "its standard deviation is at least 0.90 times the real one, estimated from the noisy counts"
    assert of.losses()[1][2] == words and of.ratio() == "at least 0.90"
    assert SeenMoments(0.0, 0.0, 0.8, 0.2).ratio() == "0.94 to 1.46"
    assert (
        SeenMoments(0.0, 0.0, 0.8, 0.1).ratio() == "about 1.12"
        and SeenMoments(0.0, 0.0, 2.0, 0.5).ratio() == "about 0.71"
    )
