"""A table compared with real rows: known answers, the scales, and what the work is bounded by."""

from __future__ import annotations

import datetime
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedsyn.errors import DataError
from fedsyn.evaluation.real.attack import Attack, auc_interval, membership
from fedsyn.evaluation.real.columns import ReadColumn
from fedsyn.evaluation.real.comparison import MOST_PAIRED_COLUMNS, TableComparison, compare_tables
from fedsyn.evaluation.real.reading import Readings
from fedsyn.evaluation.real.scales import placed
from fedsyn.evaluation.scores import (
    MOST_GROUPS,
    Grouping,
    association,
    axis_labels,
    closeness,
    places,
    shares,
)
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema
from fedsyn.table.schema.columns import BooleanColumn
from fedsyn.table.schema.ordered import DateColumn


def linked(rows: int, columns: int, rng: np.random.Generator) -> pd.DataFrame:
    """A column of numbers from 0 to 9, and words that follow it, with some noise."""
    x = rng.integers(0, 10, rows)
    others = [np.where(rng.random(rows) < 0.8, x // 4, rng.integers(0, 3, rows)) for _ in range(columns - 1)]
    return pd.DataFrame({"x": x} | {f"c{i}": np.array(["a", "b", "c"])[other] for i, other in enumerate(others)})


def attacked(real: pd.DataFrame, held: pd.DataFrame, made: pd.DataFrame) -> Attack | None:
    """The attack, in the judge's codes."""
    columns = {name: ReadColumn.of([table[name] for table in (real, held, made)]) for name in real}
    codes = [np.stack([column.codes[at] for column in columns.values()], axis=1) for at in range(3)]
    return membership(Readings({name: column.reading for name, column in columns.items()}), *codes, rng())


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_real_rows_themselves_score_one() -> None:
    real, held = linked(2000, 3, rng(1)), linked(1000, 3, rng(2))
    found = compare_tables(real, real, holdout=held, rng=rng())
    assert found.column_score == 1.0 and all(pair.score == 1.0 for pair in found.pairs)
    assert all(column.judged().loss == 0 and column.moved == 0 for column in found.columns)
    assert all(pair.linked and pair.kept == 1.0 for pair in found.pairs)
    # Nearly all of the few possible rows of three columns occur: little can be told from distances that are zero.
    assert found.attack is not None and found.attack.auc < 0.52


def test_a_table_that_copies_its_rows_is_found_out() -> None:
    """Twenty columns: hardly a row occurs by chance. A table of other rows of the same kind is not found out."""
    real, held, other = (linked(600, 20, rng(seed)) for seed in (1, 2, 3))
    copied = attacked(real, held, real)
    assert copied is not None and copied.lower > 0.9 and copied.copies == 1.0 and copied.copies_held_out < 0.2
    assert "remembers rows" in copied.words()
    for lower, auc, words in ((0.5, 0.55, "cannot tell"), (0.51, 0.59, "a little"), (0.51, 0.6, "remembers rows")):
        assert words in replace(copied, lower=lower, auc=auc).words()
    honest = attacked(real, held, other)
    assert honest is not None and honest.lower < 0.5 < honest.upper
    assert attacked(real, held[:1], other) is None


def test_links_of_independent_columns_are_lost() -> None:
    real = linked(20_000, 3, rng(1))
    shuffled = pd.DataFrame({name: rng(i).permutation(real[name]) for i, name in enumerate(real)})
    found = compare_tables(real, shuffled, rng=rng())
    assert found.column_score == 1.0
    for pair in found.pairs:
        assert pair.association > 0.3 and pair.association_synthetic < 0.02
        assert abs(pair.kept) < 0.05 and pair.judged().state == "lost"


def test_the_worst_comes_first() -> None:
    real = linked(5000, 3, rng(1))
    made = real.copy()
    made["c1"] = "a"
    found = compare_tables(real, made, rng=rng())
    assert found.columns[0].name == "c1" and found.columns[-1].score == 1.0
    kept = [pair.kept for pair in found.pairs]
    assert kept == sorted(kept) and "c1" in (found.pairs[0].first, found.pairs[0].second)
    assert "Worst is c1" in found.sentence() and "Next: in the schema, list the values of c1" in repr(found)


def test_total_variation_is_that_of_its_definition() -> None:
    p, q = rng(1).dirichlet(np.ones(8)), rng(2).dirichlet(np.ones(8))
    assert closeness(p, q) == pytest.approx(1 - 0.5 * np.abs(p - q).sum())
    assert closeness(p, np.zeros(8)) == 0.0


def test_association_is_none_for_independence_and_one_for_a_function() -> None:
    rows = 4000
    a, b = rng(1).integers(0, 6, rows), rng(2).integers(0, 5, rows)
    table = np.histogram2d(a, b, bins=[np.arange(7), np.arange(6)])[0] / rows
    from scipy.stats.contingency import association as cramer

    assert association(table, rows) < 0.03 < cramer((table * rows).round().astype(int)) + 0.02
    assert association(np.eye(4) / 4, rows) == pytest.approx(1.0)
    assert association(np.eye(4)[:1], rows) == 0.0


def test_the_interval_of_an_auc_is_that_of_every_comparison() -> None:
    positive, negative = rng(1).integers(0, 20, 80) + 2.0, rng(2).integers(0, 20, 70) + 0.0
    auc, lower, upper = auc_interval(positive, negative)
    wins = (positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean()
    assert auc == pytest.approx(wins) and lower < auc < upper


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Of 400 intervals at 95%, 380 are expected to cover; fewer than 360 or more than 396 in less than one of 10^4."""
    truth = 0.5 * (1 + math.erf(0.5 / 2))  # P(N(0.5, 1) > N(0, 1)) with a difference of variance 2
    covered = 0
    for seed in range(400):
        _, lower, upper = auc_interval(rng(seed).normal(0.5, 1, 100), rng(10_000 + seed).normal(0, 1, 100))
        covered += lower <= truth <= upper
    assert 360 <= covered <= 396


def test_columns_of_many_values_are_read_in_groups_of_equal_mass() -> None:
    values = tuple(f"v{i}" for i in range(100))
    wide = Schema(
        columns={
            "n": NumericColumn(lower=0, upper=100, bins=100, missing=True),
            "k": CategoricalColumn(categories=values),
            "s": BooleanColumn(),
        },
        approved=True,
    )
    rows = 20_000
    n = np.minimum(100, rng(1).exponential(15, rows).astype(int))
    codes = np.column_stack([np.where(rng(2).random(rows) < 0.1, 100, n), rng(3).zipf(1.5, rows) % 100, n % 2])
    grouping = Grouping.of(wide, shares(codes, wide.domain), list(wide.domain))
    assert grouping.domain.shape[1:] == (MOST_GROUPS, 2) and grouping.domain.shape[0] <= MOST_GROUPS
    assert grouping.groups[0][-1] == grouping.domain.shape[0] - 1  # missing stays alone
    assert (np.diff(grouping.groups[0][:-1]) >= 0).all()
    mass = np.bincount(grouping.read(codes)[:, 0], minlength=grouping.domain.shape[0]) / rows
    assert mass[-1] == pytest.approx(0.1, abs=0.01) and mass[:-1].max() < 0.2
    folded = grouping.fold(shares(codes, wide.domain))
    assert np.allclose(folded[0], mass)
    assert sum(table.sum() for table in grouping.count(codes)) == pytest.approx(3)


@pytest.mark.slow
def test_work_is_bounded_and_the_page_says_how() -> None:
    real = linked(12_000, MOST_PAIRED_COLUMNS + 5, rng(1))
    found = compare_tables(real, real, label="c3", rng=rng())
    assert len(found.pairs) == MOST_PAIRED_COLUMNS * (MOST_PAIRED_COLUMNS - 1) // 2
    assert any("c3" in (pair.first, pair.second) for pair in found.pairs)
    assert len(found.rules) == 2 and "60 of the 65 columns" in found.rules[0] and "11,299 rows" in found.rules[1]


@pytest.mark.slow
def test_prediction_stands_between_a_guess_and_the_real_rows() -> None:
    pytest.importorskip("sklearn")
    real, held = linked(3000, 4, rng(1)), linked(1500, 4, rng(2))
    good = compare_tables(real, linked(3000, 4, rng(3)), holdout=held, label="c0", rng=rng()).prediction
    assert good is not None and good.held_out and good.measure == "AUC" and good.real > 0.85
    assert good.kept == pytest.approx(1, abs=0.1) and good.words() == "predicts nearly as well as one from real rows"
    broken = real.copy()
    broken["c0"] = rng(4).permutation(broken["c0"])
    bad = compare_tables(real, broken, label="c0", rng=rng()).prediction
    assert (
        bad is not None
        and not bad.held_out
        and abs(bad.kept) < 0.4
        and bad.words() in ("predicts little", "predicts nothing")
    )
    number = compare_tables(real, real, holdout=held, label="x", rng=rng()).prediction
    assert number is not None and number.measure == "RMSE" and number.real < number.guess
    assert number.kept == pytest.approx(1, abs=0.05)


def test_it_comes_back_from_json_as_it_was() -> None:
    real, held = linked(500, 3, rng(1)), linked(300, 3, rng(2))
    found = compare_tables(real, linked(500, 3, rng(3)), holdout=held, rng=rng())
    again = TableComparison.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found and repr(again) == repr(found)
    assert "label" in found.missing["prediction"] and "attack" not in found.missing
    assert "test_fraction" in compare_tables(real, real, rng=rng()).missing["attack"]


def test_tables_without_rows_are_refused() -> None:
    real = linked(10, 3, rng(1))
    with pytest.raises(DataError, match="the synthetic table has no rows to compare"):
        compare_tables(real, real[:0], rng=rng())
    with pytest.raises(DataError, match="the real table has no rows to compare"):
        compare_tables(real[:0], real, rng=rng())
    for rows in (1, 2, 3):  # too few for halves, groups or an attack, but no error
        found = compare_tables(real[:rows], real, holdout=real[:1], rng=rng())
        assert 0 <= found.column_score <= 1 and "ood for " in found.sentence()


def test_dates_are_shown_as_dates_and_stand_in_order() -> None:
    column = DateColumn(lower=datetime.date(2020, 1, 1), upper=datetime.date(2020, 12, 31), bins=4, missing=True)
    labels = axis_labels(column)
    assert labels[0] == "2020-01-01" and labels[-1] == "missing" and len(labels) == 5
    at = places(Schema(columns={"d": column}, approved=True), "d")
    assert at is not None and np.isnan(at[-1]) and (np.diff(at[:-1]) > 0).all()
    ordered = Schema(columns={"o": CategoricalColumn(categories=("low", "mid", "high"), ordered=True)}, approved=True)
    assert places(ordered, "o") is not None


@pytest.mark.parametrize(
    ("value", "rows", "independent", "uniform", "words"),
    [
        (0.01, 0.0, 0.3, 1.7, "nearly as good as the training rows themselves"),
        (0.05, 0.0, 0.3, 1.7, "more than half of the way from independent columns to the training rows"),
        (0.2, 0.0, 0.3, 1.7, "less than half of the way from independent columns to the training rows"),
        (0.5, 0.0, 0.3, 1.7, "no better than independent columns"),
        (1.8, 0.0, 0.3, 1.7, "no better than a uniform table"),
        (18.0, math.nan, 20.0, 38.0, "better than independent columns"),
        (21.0, math.nan, 20.0, 38.0, "no better than independent columns"),
        (0.89, 0.91, 0.5, 0.5, "nearly as good as the training rows themselves"),
        (0.49, 0.91, 0.5, 0.5, "no better than a uniform table"),
        (0.6, 0.0, 0.01, 1.7, "more than half of the way from a uniform table to the training rows"),
        (1.0, math.nan, math.nan, math.nan, "no scale is known"),
    ],
)
def test_a_metric_is_judged_by_its_scale(
    value: float, rows: float, independent: float, uniform: float, words: str
) -> None:
    assert placed(value, rows, independent, uniform) == words


def test_columns_of_one_table_alone_are_named() -> None:
    real = linked(200, 3, rng(1))
    found = compare_tables(real[["x", "c0"]], real, rng=rng())
    assert found.rules[0] == "Not judged, because the real rows lack them: c1."
    assert {column.name for column in found.columns} == {"x", "c0"}
    with pytest.raises(DataError, match="no column in common"):
        compare_tables(real, real.rename(columns=str.upper), rng=rng())
    with pytest.raises(DataError, match="no column 'y' in common, which is to be predicted"):
        compare_tables(real, real, label="y", rng=rng())
