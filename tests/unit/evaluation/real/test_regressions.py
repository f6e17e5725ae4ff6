"""Regressions on real rows and on synthetic ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from fedsyn.errors import ConfigError, DataError
from fedsyn.evaluation.real.reading import Notation
from fedsyn.evaluation.real.regressions import Coefficient, RegressionScore, regressions
from support.wrong_tables import POPULATIONS, right_tables, wrong_tables


def notations(real: pd.DataFrame) -> dict[str, Notation]:
    return {name: Notation.of(real[name]) for name in real}


def regression(formula: str, real: pd.DataFrame, synthetic: pd.DataFrame) -> RegressionScore:
    found = regressions([formula], real, synthetic, None, (), notations(real))
    assert not isinstance(found, str) and found[0].named
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
def test_a_regression_is_lost_with_its_effect_and_kept_by_right_tables(name: str) -> None:
    population, rng = POPULATIONS[name], np.random.default_rng(3)
    real = population.draw(3_000, rng)
    for what, table in right_tables(population, real, rng):
        found = regression(population.question, real, table)
        assert found.judged().state == "kept", (what, found.words())  # type: ignore[union-attr]
    states = {
        wrong.way: regression(population.question, real, wrong.table).judged().state  # type: ignore[union-attr]
        for wrong in wrong_tables(population, rng)
    }
    assert states["a group's effect removed"] == "lost"
    assert {states["dates shifted"], states["zeros smeared"], states["a code's zeros lost"]} == {"kept"}
    if name != "staff":  # whose question holds neither of the two numbers
        assert states["sign turned"] == states["outliers added"] == "lost"
    if name == "trial":  # placebo and the high dose changed places
        assert states["words recoded"] == "lost"


def coefficient(real: float, synthetic: float, wider: float = 1.0, scale: float = 1.0) -> Coefficient:
    """One with a standard error of 1 in the real table."""
    return Coefficient("dose", real, synthetic, 1.0, wider, scale, wider)


def judged(*some: Coefficient) -> str:
    found = RegressionScore("y ~ dose", "", True, some).judged()
    return "not judged" if found is None else found.state


def test_a_difference_counts_beyond_chance_by_the_share_that_is_left() -> None:
    # One coefficient, so 1.96 standard errors of the difference of two estimates, sqrt(2).
    chance = 1.96 * math.sqrt(2)
    assert judged(coefficient(20, 20)) == "kept"
    assert judged(coefficient(20, 15.1)) == "kept" and judged(coefficient(20, 14.9)) == "changed"
    assert judged(coefficient(20, 10.1)) == "changed" and judged(coefficient(20, 9.9)) == "lost"
    assert judged(coefficient(10, 20.1)) == "lost"  # twice as large
    assert judged(coefficient(-20, 20)) == "lost" and judged(coefficient(20, 0)) == "lost"
    # Of one that a table of fresh rows would not tell from its half nothing is said.
    assert judged(coefficient(2 * chance - 0.1, 4)) == "not judged"
    assert judged(coefficient(2 * chance + 0.1, 4)) == "kept"
    # What real rows do not show is lost if it turns up beyond chance, and is no weak link.
    assert judged(coefficient(0, chance + 0.1)) == "lost" and judged(coefficient(0, chance - 0.1)) == "not judged"
    assert judged(coefficient(0, 3, scale=0.034)) == "lost" and judged(coefficient(0, 3, scale=0.033)) == "not judged"
    # A small one that real rows show counts whatever its scale.
    assert judged(coefficient(20, 5, scale=1e-3)) == "lost"


def test_chance_is_that_of_all_coefficients_together() -> None:
    # Ten coefficients: 2.807 standard errors of each.
    others = [coefficient(100, 100)] * 9
    assert judged(coefficient(3.96, 0.0), *others) == "kept"
    assert judged(coefficient(3.98, 0.0), *others) == "lost"
    assert norm.sf(3.975 / math.sqrt(2)) * 2 * 10 == pytest.approx(0.05, abs=1e-3)


def test_an_interval_too_wide_to_tell_the_effect_is_said() -> None:
    # 30: told up to an error of 30 / 2 / 2.77 = 5.4.
    assert judged(coefficient(30, 30, wider=5.3)) == "kept"
    found = RegressionScore("y ~ dose", "", True, (coefficient(30, 30, wider=5.5),)).judged()
    assert found is not None and found.state == "lost" and found.why == "the interval of dose is 5.5 times as wide"


def test_intervals_overlap_as_karr_and_others_define_it() -> None:
    # [0, 4] and [3, 5] in units of the quantile: a quarter of the first, a half of the second.
    half = float(norm.isf(0.025))
    one = Coefficient("x", 2 * half, 4 * half, 2.0, 1.0, 1.0, 1.0)
    assert one.interval(True) == pytest.approx((0.0, 4 * half)) and one.interval(False) == pytest.approx(
        (3 * half, 5 * half)
    )
    assert one.overlap == pytest.approx(0.5 * (1 / 4 + 1 / 2))
    assert one.difference == pytest.approx(half)
    assert replace(one, synthetic=9 * half).overlap == pytest.approx(0.5 * (-4 / 4 - 4 / 2))
    words = RegressionScore("y ~ x", "", True, (replace(one, real=90.0, synthetic=86.0),)).words()
    assert words == "the regression y ~ x is kept (its intervals overlap by 36%)"


def test_estimates_are_those_of_each_table_and_its_size() -> None:
    rng = np.random.default_rng(0)
    real, synthetic = (
        pd.DataFrame({"x": x, "z": rng.choice(["a", "b"], n), "y": slope * x + rng.normal(size=n)})
        for n, slope in ((4_000, 2.0), (1_000, 1.0))
        for x in [3 * rng.normal(size=n)]
    )
    found = regression("y ~ x + z", real, synthetic)
    assert found.about == "linear regression of y" and {one.name for one in found.coefficients} == {"x", "z[T.b]"}
    slope = next(one for one in found.coefficients if one.name == "x")
    assert (slope.real, slope.synthetic) == pytest.approx((2.0, 1.0), abs=0.05)
    assert slope.real_error == pytest.approx(1 / (3 * math.sqrt(4_000)), rel=0.1)
    assert slope.synthetic_error == pytest.approx(1 / (3 * math.sqrt(1_000)), rel=0.1)
    assert slope.wider == pytest.approx(1.0, abs=0.1)  # as wide as a quarter of the rows makes it
    assert slope.scale == pytest.approx(3 / math.sqrt(37), rel=0.05)
    assert found.words() == (
        f"the regression y ~ x + z is lost (the coefficient of x went from {slope.real:.3g} to {slope.synthetic:.3g})"
    )
    # Log odds are on a scale of their own.
    for table in (real, synthetic):
        table["y"] = np.where(table["y"] > 0, "yes", "no")
    logit = regression("y ~ x", real, synthetic)
    assert logit.about == "logistic regression of y[yes]"
    assert logit.coefficients[0].scale == pytest.approx(3 * math.sqrt(3) / math.pi, rel=0.05)


def test_a_table_without_the_words_has_lost_the_regression() -> None:
    rng = np.random.default_rng(1)
    real = pd.DataFrame({"x": rng.normal(size=500), "y": rng.choice(["no", "yes"], 500)})
    for answers in (["false", "true"], ["no", "no"]):
        found = regression("y ~ x", real, real.assign(y=rng.choice(answers, 500)))
        judged = found.judged()
        assert judged is not None and judged.state == "lost"
        assert (
            found.words().startswith("the regression y ~ x cannot be estimated from the table. ")
            and "table 2" not in found.failed
        )
    # Numbers of two values stay an outcome of two.
    marks = real.assign(y=(real["y"] == "yes").astype(float))
    assert regression("y ~ x", marks, marks.assign(y=rng.normal(size=500))).failed


def test_what_real_rows_cannot_tell_is_the_readers_error() -> None:
    real = pd.DataFrame({"x": [1.0, 2.0, 3.0] * 20, "one": "a", "y": [1.0, 2.0, 4.0, 3.0] * 15})
    with pytest.raises(ConfigError, match="'age' is not a column"):
        regression("y ~ age", real, real)
    with pytest.raises(ConfigError, match=r"regression 'mean\(y\)' has no outcome"):
        regression("mean(y)", real, real)
    with pytest.raises(DataError, match="regression 'y ~ one' of the real rows: 'one' has one value"):
        regression("y ~ one", real, real)


def test_without_a_name_the_label_is_regressed_on_its_strongest_links() -> None:
    rng = np.random.default_rng(2)
    rows = 600
    frame = pd.DataFrame({"x y": rng.normal(size=rows), "z": rng.normal(size=rows), "day": rng.integers(0, 300, rows)})
    frame["day"] = np.datetime_as_string(np.datetime64("2024-01-01") + frame["day"].to_numpy())
    frame["same"], frame["text"] = frame["x y"] * 2, [f"note {i}" for i in range(rows)]
    frame["left"] = np.where(frame["x y"] + rng.normal(size=rows) > 0, "yes", "no")
    frame["cost"] = frame["x y"] + rng.normal(size=rows)
    frame["ward"] = np.where(frame["x y"] + rng.normal(size=rows) > 0, "it's", rng.choice(["b", "c"], rows))
    order, read = ["x y", "same", "text", "z", "day", "cost"], notations(frame)
    # A column that says the same as one before it is left out, and so is one of too many words.
    for label, formula in (
        ("left", "left ~ `x y` + z + day"),
        ("cost", "cost ~ `x y` + z + day"),
        ("ward", """(ward == "it's") ~ `x y` + z + day"""),
    ):
        found = regressions((), frame, frame, label, order, read)
        assert not isinstance(found, str)
        assert [one.formula for one in found] == [formula] and not found[0].named
        assert {one.name for one in found[0].coefficients} == {"x y", "z", "day"}
        assert found[0].judged().state == "kept"  # type: ignore[union-attr]
    assert (
        regressions((), frame, frame, None, order, read)
        == "needs a label, or a regression that you name: OUTCOME ~ COLUMN + COLUMN"
    )
    assert regressions((), frame, frame, "left", [], read) == "no column is linked to left"
    assert str(regressions((), frame, frame, "left", ["text"], read)).startswith("'text' has 600 values")


def test_dates_are_days() -> None:
    rng = np.random.default_rng(4)
    days = rng.integers(0, 300, 500)
    text = np.datetime_as_string(np.datetime64("2024-01-01") + days)
    frame = pd.DataFrame({"day": text, "y": 0.5 * days + rng.normal(size=500)})
    late = frame.assign(day=np.datetime_as_string(np.datetime64("2024-03-01") + days))
    (slope,) = regression("y ~ day", frame, late).coefficients
    assert (slope.real, slope.synthetic) == pytest.approx((0.5, 0.5), abs=0.01)


def test_numbers_are_read_as_numbers_and_codes_as_words() -> None:
    rng = np.random.default_rng(3)
    rows = 400
    count = rng.integers(0, 4, rows)
    frame = pd.DataFrame({"count": count.astype(str), "code": [f"0{c}" for c in count], "y": (2.0 * count).astype(str)})
    frame["y"] = (2.0 * count + rng.normal(size=rows)).round(2).astype(str)
    frame.loc[::40, "count"] = ""
    found = regression("y ~ count", frame, frame.assign(count=frame["count"].replace("3", "unknown")))
    assert [one.name for one in found.coefficients] == ["count"]
    assert found.coefficients[0].real == pytest.approx(2.0, abs=0.1)
    assert found.coefficients[0].real_error < found.coefficients[0].synthetic_error  # without the rows of a word
    assert [one.name for one in regression("y ~ code", frame, frame).coefficients] == [
        "code[T.01]",
        "code[T.02]",
        "code[T.03]",
    ]
