"""The propensity score of a whole table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeRegressor

from fedsyn.evaluation.real.comparison import compare_tables
from fedsyn.evaluation.real.propensity import MOST_ROWS, Propensity, _pmse, _scores, propensity
from support.wrong_tables import POPULATIONS, right_tables, wrong_tables


def scored(real: np.ndarray, synthetic: np.ndarray) -> Propensity:
    """Of columns of codes."""
    found = propensity(np.atleast_2d(real.T).T, np.atleast_2d(synthetic.T).T, np.random.default_rng(0))
    assert isinstance(found, Propensity)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
def test_fresh_rows_have_a_ratio_of_one_and_wrong_tables_more(name: str) -> None:
    population, rng = POPULATIONS[name], np.random.default_rng(5)
    real = population.draw(3_000, rng)

    def ratio(table: pd.DataFrame) -> Propensity:
        found = compare_tables(real, table, rng=np.random.default_rng(0)).propensity
        assert found is not None
        return found

    right = {what: ratio(table) for what, table in right_tables(population, real, rng)}
    assert 0.8 <= right["fresh rows"].ratio <= 1.25 and not right["fresh rows"].beyond_chance
    assert right["fresh rows"].told == pytest.approx(0.5, abs=0.02)
    assert right["a good model"].ratio <= 1.25 and not right["a good model"].beyond_chance
    assert 1.25 <= right["a bootstrap"].ratio <= 2.0  # the other sample's chance, and that of drawing from it
    wrong = {one.way: ratio(one.table) for one in wrong_tables(population, rng)}
    for way in ("zeros smeared", "rows repeated", "missing filled", "sign turned", "a code's zeros lost"):
        assert wrong[way].ratio > 2.5 and wrong[way].beyond_chance, (way, wrong[way])
    # A link that is gone is seen, though no column alone has changed: what main effects would miss.
    assert wrong["permuted within bins"].ratio > 1.25


def test_pmse_is_the_mean_squared_distance_from_the_share_of_synthetic_rows() -> None:
    # Two leaves, each of one table: scores 0 and 1, a half away from a half.
    X, marks = np.repeat([0, 1], 300)[:, None], np.repeat([0.0, 1.0], 300)
    assert _pmse(X, marks) == pytest.approx(0.25)
    # Three of four rows of the one leaf, one of four of the other are synthetic.
    marks = np.tile(np.r_[np.zeros(3), 1.0], 75)
    assert _pmse(X, np.r_[marks, 1.0 - marks]) == pytest.approx(0.25**2)
    # A third of the rows is synthetic, and nothing tells which.
    assert _pmse(np.zeros((600, 1), int), np.tile([0.0, 0.0, 1.0], 200)) == pytest.approx(0.0)


def test_rows_of_other_values_are_told_in_every_case() -> None:
    rng = np.random.default_rng(0)
    real = rng.integers(0, 40, (400, 2))
    found = scored(real, real + np.array([100, 0]))
    assert found.told == 1.0 and found.pmse == pytest.approx(0.25) and found.ratio > 4
    assert found.words() == "a model tells synthetic rows from real ones in 100 of 100 cases (a guess in 50)"
    same = np.zeros((400, 1), int)
    assert scored(same, same) == Propensity(0.0, 1.0, 0.5, 800)
    assert (
        scored(same, same).words()
        == "a model tells synthetic rows from real ones in 50 of 100 cases, no more than a guess"
    )
    # Three rows of ten have a code that real rows lack.
    fresh = np.where(rng.random((400, 1)) < 0.3, 60, rng.integers(0, 40, (400, 2)))
    assert scored(real, fresh).told == pytest.approx(0.65, abs=0.08) and scored(real, fresh).beyond_chance


@pytest.mark.parametrize(("rows", "columns"), [(20_000, 6), (3_000, 1)])
def test_the_tree_is_that_of_scikit_learn(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    codes = np.minimum(rng.poisson(20.0, (rows, columns)), 60).astype(np.uint8)
    marks = rng.random(rows) < 0.2 + 0.6 * ((codes[:, 0] > 20) ^ (codes[:, -1] > 24))  # no two splits are as good
    theirs = DecisionTreeRegressor(min_samples_leaf=max(5, rows // 100), random_state=0).fit(codes, marks)
    ours = _scores(codes, marks.astype(np.float64), codes)
    assert len(np.unique(ours)) > 15
    np.testing.assert_allclose(ours, theirs.predict(codes), atol=1e-12)


def test_chance_is_three_standard_errors_of_a_guess() -> None:
    assert Propensity(0.1, 1.0, 0.5151, 10_000).beyond_chance and not Propensity(0.1, 1.0, 0.5149, 10_000).beyond_chance


def test_work_is_bounded_and_few_rows_are_refused() -> None:
    many = np.arange(MOST_ROWS + 5)
    assert scored(many, many[:60]).rows == 120 and scored(many, many).rows == 2 * MOST_ROWS
    table = many[:, None]
    assert propensity(table, table[:49], np.random.default_rng(0)) == "needs 50 rows of each table"


def test_chance_is_the_mean_of_five_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.06, 0.01, 0.02, 0.03, 0.04, 0.05])
    monkeypatch.setattr("fedsyn.evaluation.real.propensity._pmse", lambda X, marks: next(scores))
    rng = np.random.default_rng(0)
    found = propensity(rng.integers(0, 4, (200, 2)), rng.integers(0, 4, (300, 2)), rng)
    assert not isinstance(found, str) and (found.pmse, found.ratio, found.rows) == (0.06, pytest.approx(2.0), 400)
