"""What a column lost, each figure written down again by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from fedsyn.evaluation.real.columns import ColumnScore, ReadColumn, column_score, through_schema
from fedsyn.table.schema import NumericColumn, Schema


def score(real: object, made: object) -> ColumnScore:
    return column_score("x", ReadColumn.of([pd.Series(real), pd.Series(made)]), None)


def amounts(found: ColumnScore) -> dict[str, float]:
    """The largest loss of each kind."""
    losses: dict[str, float] = {}
    for kind, amount, _ in found.losses():
        losses[kind] = max(amount, losses.get(kind, 0.0))
    return losses


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_mean_moves_in_real_standard_deviations() -> None:
    real = rng().normal(80.0, 15.0, 3_000).round(1)
    found = score(real, real + 6.0)
    assert amounts(found)["mean"] == pytest.approx(6.0 / real.std())
    words = next(words for kind, _, words in found.losses() if kind == "mean")
    assert words.startswith(f"its mean moved by {6.0 / real.std():.2f} standard deviations, from ")
    constant = score(np.full(50, 5.0), np.full(50, 6.0))
    assert amounts(constant)["mean"] == 10.0 and amounts(score(np.full(50, 5.0), np.full(50, 5.0)))["mean"] == 0.0
    some = score(np.full(100, 5.0), np.repeat([5.0, 6.0], [96, 4]))  # of no real standard deviation
    assert amounts(some)["mean"] == pytest.approx(0.04 / math.sqrt(0.04 * 0.96))
    words = [words for kind, _, words in some.losses() if kind in ("mean", "spread")]
    assert words == ["all real rows have 5, and its mean is 5.04"]


def test_a_standard_deviation_changes_beyond_its_error_and_beyond_one_row() -> None:
    """The error of its logarithm is the root of (kurtosis - 1) / 4n, of either table."""
    real, made = rng(1).exponential(1.0, 2_000), 1.5 * rng(2).exponential(1.0, 500)

    def logs(values: np.ndarray) -> list[float]:
        rest = np.delete(values, np.argmax(np.abs(values - values.mean())))
        return [math.log(values.std()), math.log(rest.std())]

    def error(values: np.ndarray) -> float:
        z = (values - values.mean()) / values.std()
        return math.sqrt((float((z**4).mean()) - 1.0) / (4 * len(values)))

    least = min(abs(a - b) for a in logs(real) for b in logs(made))
    found = score(real, made)
    assert found.spread == pytest.approx(least - math.hypot(error(real), error(made)), rel=1e-3)
    words = next(words for kind, _, words in found.losses() if kind == "spread")
    assert words == f"its standard deviation is {made.std() / real.std():.2f} times the real one"
    far = np.append(real, 1e5)
    assert score(real, far).spread == 0.0  # one row made it


def test_a_tail_is_what_lies_beyond_the_middle_98_of_100_less_two_errors() -> None:
    real = rng(3).normal(0.0, 1.0, 20_000)
    low, high = np.quantile(real, [0.01, 0.99])
    made = np.where(np.arange(20_000) % 4 > 0, np.clip(real, low, high), real)[:10_000]
    found = score(real, made)
    assert found.tail is not None
    was, now = (float(((x < low) | (x > high)).mean()) for x in (real, made))
    error = math.sqrt(1 / (was * 20_000) + 1 / (was * 10_000))
    assert (found.tail.real, found.tail.synthetic) == pytest.approx((was, now), rel=1e-3)
    assert found.tail_lost == pytest.approx(1.0 - now / was - 2.0 * error, rel=1e-2) and 0.5 < found.tail_lost < 0.7


def test_a_tail_of_fewer_than_one_row_in_two_hundred_changes_a_column_at_most() -> None:
    """Two claims have 40 rows of 10,000, or 60; of 12 nothing can be said."""
    for few, state in ((60, "lost"), (40, "changed"), (12, "kept")):
        real = np.r_[np.zeros(7_000), np.ones(3_000 - few), np.full(few, 2.0)]
        judged = score(real, np.minimum(real, 1.0)).judged()
        assert judged.state == state and score(real, real).judged().loss == 0.0
        assert state == "kept" or judged.why == f"0.{few // 10}% of the real rows lie far out, and 0% of its rows do"


def test_a_limit_of_the_middle_that_few_rows_reach_is_far_out() -> None:
    """Two percent of an answer are 500: 99 of 100 lie below or there. Of one in sixteen that is said as of others."""
    real = np.repeat([200.0, 404.0, 500.0], [1_780, 180, 40])
    gone = score(real, np.minimum(real, 404.0))
    assert gone.tail == ("far out", 0.02, 0.0) and gone.judged().state == "lost"
    assert score(real, real).tail_lost == 0.0
    assert score(-real, -np.minimum(real, 404.0)).judged().state == "lost"
    often = np.repeat([200.0, 500.0], [1_875, 125])
    assert score(often, np.minimum(often, 200.0)).tail is None


def test_a_rare_word_that_is_gone_changes_a_column() -> None:
    def rows(info: int, warn: int, error: int) -> list[str]:
        return ["INFO"] * info + ["WARN"] * warn + ["ERROR"] * error

    real = rows(1_780, 180, 40)
    gone, half, few = (score(real, rows(1_780 + n, 180, 40 - n)) for n in (40, 20, 10))
    assert gone.judged().state == "changed" and gone.judged().why == "'ERROR' had 2% of the rows and has 0%"
    assert gone.rare_lost == pytest.approx(1.0 - 2.5 * math.sqrt(2 / 40), abs=1e-3)
    assert half.rare is None and half.judged().state == few.judged().state == "kept"  # by chance, once in a while
    assert score(rows(17_800, 1_800, 400), rows(18_000, 1_800, 200)).judged().state == "changed"
    assert score(rows(1_850, 128, 22), rows(1_872, 128, 0)).judged().state == "kept"


def test_new_values_count_beyond_what_new_rows_of_the_same_kind_bring() -> None:
    """As many as rows of which each is the only one with its value (Good and Turing)."""
    real = np.r_[np.arange(200.0), np.repeat(np.arange(300.0, 310.0), 80)]
    made = np.r_[np.full(400, 1_000.0 / 3), np.full(600, 300.0)]
    assert score(real, made).unlike == pytest.approx(0.4 - 0.2, abs=1e-3)
    words = ["a"] * 500 + ["b"] * 400 + [f"w{i}" for i in range(100)]
    found = score(words, ["a"] * 700 + ["new"] * 300)
    assert found.new == pytest.approx(0.3 - 0.1) and found.gone == pytest.approx(0.5)
    beyond = score(real, np.r_[np.full(300, 2_000.0), np.full(700, 300.0)])
    assert beyond.new == pytest.approx(0.3)  # numbers beyond all real ones
    # Numbers that no real row has change a column, and lose none.
    all_new = score(100.0 * rng().integers(300, 900, 3_000), 100.0 * rng().integers(300, 900, 3_000) + 50.0)
    assert all_new.unlike > 0.9 and max(a for k, a, w in all_new.losses() if "stand in no" in w) == pytest.approx(0.15)


def test_of_values_that_many_rows_share_the_one_that_moved_most_is_named() -> None:
    """Real or invented, from one row in twenty on; of words the most frequent one however few have it."""
    real = np.r_[np.full(80, 7.0), rng().normal(50.0, 9.0, 920)]
    lost = score(real, np.r_[np.full(20, 7.0), rng(1).normal(50.0, 9.0, 980)]).common
    assert lost == ("7", 0.08, 0.02)
    assert score(real, np.r_[np.full(80, 7.0), np.full(60, 33.0), rng(1).normal(50.0, 9.0, 860)]).common == (
        "33",
        0.0,
        0.06,
    )
    below = score(real, np.r_[np.full(80, 7.0), np.full(45, 33.0), rng(1).normal(50.0, 9.0, 875)]).common
    assert below is not None and below.label == "7"
    rare = score(["a"] * 600 + ["b"] * 380 + ["c"] * 20, ["a"] * 560 + ["b"] * 350 + ["c"] * 90).common
    assert rare == ("c", 0.02, 0.09)
    names = [f"n{i % 40}" for i in range(1_000)]
    shared = score([*names, *["most"] * 40], [*names, *["n1"] * 40]).common
    assert shared == ("most", pytest.approx(40 / 1_040, abs=1e-4), 0.0)


def test_digits_are_counted_up_to_six() -> None:
    values = rng().integers(0, 10**6, 500)
    for digits in (0, 1, 4, 6):
        assert score(values / 10**digits, values / 10**digits).decimals == (digits, digits)
    assert score(values, values / 7e6).decimals == (0, None)


def test_a_schema_is_blamed_where_it_loses_the_column_by_itself() -> None:
    """Bounds that cut a tail off, and bins that only widen a column."""
    real = pd.DataFrame({"x": rng().lognormal(3.0, 1.5, 4_000)})
    for upper, blamed in ((30.0, True), (float(real["x"].max()), False)):
        schema = Schema(columns={"x": NumericColumn(lower=0, upper=upper, bins=200, dtype="float")}, approved=True)
        through = through_schema(schema, real, rng())
        made = real["x"] * 3.0  # lost in any case
        found = column_score("x", ReadColumn.of([real["x"], made]), through["x"])
        assert found.judged().state == "lost" and found.by_schema is blamed and found.codes == 200
    # What it changes by itself it does not lose: numbers that are no hundreds.
    hundreds = pd.DataFrame({"x": 100 * rng().integers(300, 900, 4_000)})
    schema = Schema(columns={"x": NumericColumn(lower=0, upper=100_000, bins=200, dtype="integer")}, approved=True)
    through = through_schema(schema, hundreds, rng())["x"]
    assert column_score("x", ReadColumn.of([through.real, through.made]), None).judged().state == "changed"
    found = column_score("x", ReadColumn.of([hundreds["x"], hundreds["x"] * 3]), through)
    assert found.judged().state == "lost" and not found.by_schema
