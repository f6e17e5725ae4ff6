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
from fedsyn.evaluation.verdict import judged
from fedsyn.inference import Evidence, Measurement, Model, estimate
from fedsyn.table.schema import Schema

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
    assert judged("x", wide.losses()).state == "weakened"
    assert [text for _, _, text in wide.losses()] == [
        "its bins are too wide to know its mean",
        "its bins are too wide to know its standard deviation",
    ]
    narrow = np.r_[np.zeros(95), np.full(11, 1_800.0), np.zeros(95)]
    noisy = seen(narrow, narrow, 100.0, upper=201.0)
    assert judged("x", noisy.losses()).state == "weakened"
    assert noisy.losses()[1][2] == "the noise is too strong to know its standard deviation"
    even = np.full(32, 300.0)
    fine = seen(even, even, 5.0)
    assert judged("x", fine.losses()).state == "kept" and 0.0 < fine.mean_inside < 0.02
    assert fine.losses()[0][2] == "its mean is about 0.00 standard deviations off, estimated from the noisy counts"


@pytest.mark.parametrize(
    ("mean", "inside", "state"),
    [
        (0.02, 0.0, "kept"),
        (0.15, 0.0, "weakened"),
        (0.3, 0.0, "lost"),
        (0.02, 0.11, "weakened"),
        (0.3, 0.2, "weakened"),
    ],
)
def test_a_mean_is_judged_by_its_loss_and_its_doubt(mean: float, inside: float, state: str) -> None:
    one = replace(CLOSE, mean=mean, mean_inside=inside)
    assert judged("x", one.losses()).state == state
    assert ("too wide" in judged("x", one.losses()).why) == (inside > 0.1216)  # 1.645 of it are a fifth


@pytest.mark.parametrize(
    ("times", "inside", "state"),
    [(1.05, 0.0, "kept"), (1.3, 0.0, "weakened"), (1.7, 0.0, "lost"), (1.7, 0.3, "weakened")],
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
