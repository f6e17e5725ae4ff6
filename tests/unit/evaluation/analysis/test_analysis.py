"""Combining rules, formulas, and what is said beside an interval."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.stats import norm, t
from typer.testing import CliRunner

import fedsyn
from fedsyn.errors import ConfigError, DataError, InputError
from fedsyn.evaluation.analysis import Linear, Logit, Quantile, combine
from fedsyn.evaluation.analysis.tables import SyntheticTables
from fedsyn.front.cli import app

M = 20


# The rules -----------------------------------------------------------------------------------------------------------


def test_the_variance_is_that_of_raghunathan() -> None:
    q, v = np.array([1.0, 2.0, 4.0, 5.0]), np.array([0.5, 0.7, 0.6, 0.6])
    found = combine(q, v, ratio=1e-9)
    spread = 1.25 * q.var(ddof=1)
    assert found.estimate == 3.0 and not found.floored
    assert found.variance == pytest.approx(spread - 0.6)
    assert found.naive(0.9)[1] == pytest.approx(1.0 + norm.ppf(0.95) * np.sqrt(0.5))


@pytest.mark.parametrize("ratio", [0.25, 4.0])
def test_an_interval_is_the_quantile_of_its_mixture(ratio: float) -> None:
    """300,000 draws of T: a share of 95% has a standard error of 0.0004, and quantiles of T are taken at 100 places."""
    rng, q = np.random.default_rng(5), np.array([1.0, 2.0, 4.0, 5.0, 2.5, 3.5])
    within, inside = 1.5, 0.3
    found = combine(q, np.full(6, within), ratio=ratio, inside=inside)
    total = 5 * (7 / 6) * q.var(ddof=1) / rng.chisquare(5, 300_000)
    true = np.maximum(total - within, ratio * within) + inside  # what is below the least T lies there
    half = (found.interval()[1] - found.interval()[0]) / 2
    assert (2 * norm.cdf(half / np.sqrt(true)) - 1).mean() == pytest.approx(0.95, abs=0.003)
    assert found.widened == pytest.approx(half / norm.ppf(0.975) / np.sqrt(found.variance))
    df = 5 * (found.variance / (7 / 6 * found.between)) ** 2  # Reiter's
    longest = t.ppf(0.975, df) * np.sqrt(found.variance)
    assert half < longest if ratio < 1 else half < 1.5 * longest


def test_a_variance_below_that_of_the_real_rows_is_replaced() -> None:
    same = np.full((5, 2), 3.0)
    found = combine(same, np.full((5, 2), 0.4), ratio=0.5)
    assert found.floored.all() and np.allclose(found.variance, 0.2)
    assert np.allclose(found.widened, 1.0) and np.isfinite(found.interval()).all()


def test_the_variance_is_right_on_average() -> None:
    """Posterior variance W, rows' variance v: the mean of m estimates is off by W + (W + v) / m, and so is E[T].

    k = 20,000 quantities: T has the variance 2 ((1 + 1/m)(W + v))^2 / (m - 1); five standard errors, one in 10^6.
    """
    rng, k, m, W, v = np.random.default_rng(1), 20_000, 10, 4.0, 1.0
    found = combine(rng.normal(0, np.sqrt(W + v), (m, k)), np.full((m, k), v), ratio=1e-9)
    raw = (1 + 1 / m) * found.between - found.within
    error = 1.1 * (W + v) * np.sqrt(2 / (m - 1) / k)
    assert abs(raw.mean() - (W + (W + v) / m)) < 5 * error


def test_intervals_cover_exactly_where_tables_are_endless() -> None:
    """With v = 0 it is a t interval with m - 1 degrees of freedom: 95% of 10,000 within five sd, once in 10^6 not."""
    rng, k = np.random.default_rng(2), 10_000
    centre = rng.normal(0, 1, k)  # where the posterior is, beside the truth 0
    low, high = combine(centre + rng.normal(0, 1, (5, k)), np.zeros((5, k))).interval()
    assert abs(((low < 0) & (high > 0)).mean() - 0.95) < 5 * np.sqrt(0.95 * 0.05 / k)


# Variance of the privacy noise / that of the rows, and rows of a table / real rows.
@pytest.mark.parametrize(("noise", "ratio"), [(0.0, 0.25), (0.5, 1.0), (3.0, 0.25), (3.0, 5.0)])
def test_intervals_cover_with_tables_of_rows(noise: float, ratio: float) -> None:
    """94 to 98%, the more where T has its least value. No wider than 1.6 times what is right.

    10,000 quantities: five standard errors are 0.011, so a rule at 95% fails once in 10^6. Where tables have a quarter
    of the rows and there is no noise, a t with the degrees of freedom of T is 3.3 times as wide, and a posterior that
    is cut off at the least T 1.8 times, with 99.7%.
    """
    rng, k = np.random.default_rng(3), 10_000
    W, v = 1.0 + noise, 1.0 / ratio
    estimates = rng.normal(0, np.sqrt(W), k) + rng.normal(0, np.sqrt(W + v), (M, k))
    low, high = combine(estimates, np.full((M, k), v), ratio=ratio).interval()
    share = ((low < 0) & (high > 0)).mean()
    assert 0.934 < share < (0.97 if noise > 1 else 0.985), share
    assert np.median(high - low) < 1.6 * 2 * norm.ppf(0.975) * np.sqrt(W)


@pytest.mark.parametrize(
    ("estimates", "variances", "said"),
    [
        ([1.0], [1.0], "naive interval only"),
        ([1.0, 2.0], [1.0], "of shape"),
        ([1.0, np.nan], [1.0, 1.0], "finite"),
        ([1.0, 2.0], [1.0, -1.0], "not negative"),
        ([], [], "finite"),
    ],
)
def test_what_cannot_be_combined_is_said(estimates: list[float], variances: list[float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        combine(estimates, variances)


# Formulas ------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="module")
def statsmodels() -> Any:
    return pytest.importorskip("statsmodels.api")


def one(seed: int, n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, ward = rng.integers(18, 95, n), rng.choice(["children", "heart", "surgery"], n)
    hours = 3 * age + 5 * (ward == "heart") + rng.normal(0, 10, n)
    back = np.where(rng.random(n) < 1 / (1 + np.exp(3 - 0.04 * age)), "yes", "no")
    return pd.DataFrame(
        {"age": age, "ward": ward, "hours-per-week": hours, "back": back, "back01": (back == "yes") * 1}
    )


@pytest.fixture(scope="module")
def tables() -> list[pd.DataFrame]:
    return [one(seed) for seed in range(4)]


def test_linear_regression_is_statsmodels_own(tables: list[pd.DataFrame], statsmodels: Any) -> None:
    found = fedsyn.analyse(tables, "hours-per-week ~ age + ward")
    renamed = [frame.rename(columns={"hours-per-week": "hours"}) for frame in tables]
    fits = [statsmodels.formula.ols("hours ~ age + ward", frame).fit(cov_type="HC1") for frame in renamed]
    assert found.about == "linear regression of hours-per-week"
    for name in ("Intercept", "age", "ward[T.heart]"):
        own = combine([fit.params[name] for fit in fits], [fit.bse[name] ** 2 for fit in fits])
        row = found.to_frame().loc[name]
        assert (row.low, row.high) == (pytest.approx(own.interval()[0]), pytest.approx(own.interval()[1]))
        assert row.naive_low == pytest.approx(own.naive()[0])


@pytest.mark.parametrize(
    "formula",
    [
        "hours ~ age * ward",
        "hours ~ 0 + ward + age",
        "hours ~ ward / back",
        "hours ~ (age + ward + back) ** 2",
        "hours ~ C(ward, Treatment('heart')) + I(age ** 2)",
        "hours ~ C(ward, Sum) + center(age)",
        "hours ~ standardize(age) + np.log(age)",
        "np.log(age) ~ Q('ward') - 1",
        "hours ~ bs(age, df=4)",
        "hours ~ (ward == 'heart') + back",
        "hours ~ flag:age",
    ],
)
def test_coefficients_are_those_that_statsmodels_finds_for_the_same_formula(
    tables: list[pd.DataFrame], statsmodels: Any, formula: str
) -> None:
    """statsmodels reads it with patsy: the same terms in the same order, and every table's levels, means and knots."""
    renamed = [frame.rename(columns={"hours-per-week": "hours"}) for frame in tables[:1] * 2]
    renamed = [frame.assign(flag=frame.age > 50) for frame in renamed]
    found, fit = fedsyn.analyse(renamed, formula), statsmodels.formula.ols(formula, renamed[0]).fit()
    assert found.combined.estimate == pytest.approx(fit.params.to_numpy())
    names = [re.sub(r"Q\('(\w+)'\)", r"\1", name) for name in fit.params.index]
    if "bs(" not in formula and "==" not in formula:  # numbered from 1, and in brackets
        assert found.terms == tuple(names)


def test_awkward_names_may_be_quoted(tables: list[pd.DataFrame]) -> None:
    plain = fedsyn.analyse(tables, "age ~ hours-per-week")
    for formula in ("age ~ Q('hours-per-week')", "age ~ `hours-per-week`"):
        assert fedsyn.analyse(tables, formula).terms == plain.terms == ("Intercept", "hours-per-week")


@pytest.mark.parametrize("outcome", ["back", "back01"])
def test_two_values_make_it_logistic(tables: list[pd.DataFrame], statsmodels: Any, outcome: str) -> None:
    found = fedsyn.analyse(tables, f"{outcome} ~ age")
    fits = [statsmodels.formula.logit("back01 ~ age", frame).fit(disp=0) for frame in tables]
    assert found.about.startswith("logistic regression")
    assert found.combined.estimate == pytest.approx(np.mean([fit.params for fit in fits], axis=0))
    linear = fedsyn.analyse(tables, f"{outcome} ~ age", "ols")
    assert linear.about.startswith("linear") and linear.combined.estimate[1] < 0.02


def test_means_and_proportions(tables: list[pd.DataFrame]) -> None:
    age = fedsyn.analyse(tables, "mean(age)")
    assert age.combined.within == pytest.approx(np.mean([frame.age.var() / len(frame) for frame in tables]))
    ward = fedsyn.analyse(tables, "ward")
    assert ward.terms == ("ward = children", "ward = heart", "ward = surgery")
    assert ward.combined.estimate.sum() == pytest.approx(1.0)
    assert fedsyn.analyse(tables, "proportion(back01)").terms == ("back01 = 0", "back01 = 1")


def test_a_level_that_one_table_lacks_is_named(tables: list[pd.DataFrame]) -> None:
    without = [tables[0], tables[1][tables[1].ward != "heart"]]
    with pytest.raises(DataError, match=r"table 2 of 2: no row tells anything of ward\[T.heart\]"):
        fedsyn.analyse(without, "age ~ ward")


def test_rows_of_a_rare_value_that_one_table_lacks_are_left_out(tables: list[pd.DataFrame]) -> None:
    """As `other`, which every draft adds to text and few synthetic rows hold."""
    rare = [frame.assign(ward=frame.ward.where(np.arange(len(frame)) != 3, "other")) for frame in tables]
    rare[1] = rare[1][rare[1].ward != "other"]
    short = [frame[frame.ward != "other"] for frame in rare]
    found, expected = fedsyn.analyse(rare, "age ~ ward"), fedsyn.analyse(short, "age ~ ward")
    assert found.terms == expected.terms and found.combined.estimate == pytest.approx(expected.combined.estimate)
    assert found.warnings[-1].startswith("Rows whose ward is 'other' are left out, up to 0.")
    assert not [note for note in expected.warnings if "left out" in note]
    asked = [frame.assign(ward=frame.ward.where(np.arange(len(frame)) > 2, "other")) for frame in tables]
    rare = fedsyn.analyse(asked, "age ~ (ward == 'other')")
    assert not [note for note in rare.warnings if "left out" in note], "who asks for a value gets it"


def test_rows_with_missing_values_are_left_out(tables: list[pd.DataFrame]) -> None:
    holed = [frame.assign(age=frame.age.astype(float).where(frame.age < 80)) for frame in tables]
    short = [frame[frame.age < 80] for frame in tables]
    for formula in ("hours-per-week ~ age", "age"):
        found = [fedsyn.analyse(given, formula).combined.estimate for given in (holed, short)]
        assert found[0] == pytest.approx(found[1])


def test_rows_that_are_left_out_are_counted(tables: list[pd.DataFrame]) -> None:
    """By column, and together; of a column that the formula does not have nothing is said."""
    rows = np.arange(300)
    holed = [
        frame.assign(
            age=frame.age.astype(float).where(rows % 10 > 0),
            ward=frame.ward.where(rows % 20 != 5),
            back=frame.back.where(rows > 150),
        )
        for frame in tables
    ]
    notes = fedsyn.analyse(holed, "hours-per-week ~ age + ward").warnings
    assert "15% of the rows are left out, as a value is missing: age 10%, ward 5%." in notes
    assert "10% of the rows are left out, as a value is missing: age." in fedsyn.analyse(holed, "mean(age)").warnings
    assert not any("left out" in note for note in fedsyn.analyse(tables, "hours-per-week ~ age").warnings)


def test_a_comparison_with_a_missing_value_is_missing(tables: list[pd.DataFrame]) -> None:
    holed = [frame.assign(ward=frame.ward.where(frame.age < 60)) for frame in tables]
    short = [frame[frame.age < 60] for frame in tables]
    for formula in ("(ward == 'heart') ~ age", "age ~ (ward == 'heart')"):
        found = [fedsyn.analyse(given, formula).combined.estimate for given in (holed, short)]
        assert found[0] == pytest.approx(found[1])
    # a text in a comparison is no column, even where there is one of its name
    named = [frame.assign(heart=np.nan) for frame in tables]
    same = [fedsyn.analyse(given, "(ward == 'heart') ~ age").combined.estimate for given in (named, tables)]
    assert same[0] == pytest.approx(same[1])


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e7])
def test_a_logistic_regression_is_the_same_in_every_unit(tables: list[pd.DataFrame], scale: float) -> None:
    scaled = [frame.assign(age=frame.age * scale) for frame in tables]
    found, plain = (fedsyn.analyse(given, "back ~ age").combined for given in (scaled, tables))
    assert found.estimate[1] * scale == pytest.approx(plain.estimate[1])
    assert found.variance[1] * scale**2 == pytest.approx(plain.variance[1], rel=1e-6)


def test_a_steep_logistic_regression_is_not_taken_for_a_perfect_one() -> None:
    rng = np.random.default_rng(0)
    frames = [pd.DataFrame({"x": rng.normal(size=2000)}) for _ in range(3)]
    frames = [frame.assign(y=(rng.random(2000) < 0.5 + 0.5 * np.tanh(100 * frame.x)) * 1) for frame in frames]
    assert fedsyn.analyse(frames, "y ~ x").combined.estimate[1] > 50
    exact = [frame.assign(y=(frame.x > 0) * 1) for frame in frames]
    with pytest.raises(DataError, match="apart exactly"):
        fedsyn.analyse(exact, "y ~ x")


def test_tables_of_other_types_or_of_one_value_are_refused(tables: list[pd.DataFrame]) -> None:
    text = tables[1].assign(back01=tables[1].back01.astype(str))
    for given in ([tables[0], text], [text, tables[0]]):
        for formula in ("back01", "age ~ back01"):
            with pytest.raises(DataError, match=r"'back01' holds (text|numbers) in some tables"):
                fedsyn.analyse(given, formula)
    constant = [frame.assign(sex="f") for frame in tables]
    with pytest.raises(DataError, match="'sex' has one value in all tables"):
        fedsyn.analyse(constant, "age ~ sex")
    missing = tables[1].assign(back01=None)  # nothing is of every type
    assert fedsyn.analyse([tables[0], tables[2], missing], "age")
    doubled = [pd.concat([frame, frame.age], axis=1) for frame in tables]
    with pytest.raises(DataError, match="two columns of the name 'age'"):
        fedsyn.analyse(doubled, "back")


def test_values_that_only_some_tables_have_do_not_change_how_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(
        "columns:\n"
        "  visits: {kind: categorical, categories: ['1', '2', '3+'], ordered: true, other: false}\n"
        "  seen: {kind: categorical, categories: ['1', 'x'], other: false}\n"
        "  step: {kind: categorical, categories: ['1', '2', '3'], ordered: true, other: false}\n"
    )
    (tmp_path / "table_1.csv").write_text("visits,seen,step\n1,1,1\n2,1,2\n")
    (tmp_path / "table_2.csv").write_text("visits,seen,step\n3+,x,3\n1,1,3\n")
    (tmp_path / "tables.json").write_text(json.dumps({"tables": ["table_1.csv", "table_2.csv"]}))
    assert fedsyn.analyse(tmp_path, "visits").combined.estimate.tolist() == [0.5, 0.25, 0.25]
    assert fedsyn.analyse(tmp_path, "seen").combined.estimate.tolist() == [0.75, 0.25]
    assert fedsyn.analyse(tmp_path, "mean(step)").combined.estimate[0] == pytest.approx(2.25)


def test_awkward_names_and_small_numbers(tables: list[pd.DataFrame]) -> None:
    names = {"age": "class", "ward": "my ward", "hours-per-week": "it's"}
    awkward = [frame.rename(columns=names) for frame in tables]
    awkward = [frame.assign(tiny=1e-8 * frame["it's"].rank() % 37) for frame in awkward]
    found = fedsyn.analyse(awkward, "it's ~ class + my ward")
    assert found.terms == ("Intercept", "my ward[T.heart]", "my ward[T.surgery]", "class")
    small = str(fedsyn.analyse(awkward, "tiny ~ class"))
    assert max(map(len, small.splitlines())) <= 80 and "e-0" in small
    with pytest.raises(DataError, match="table 1 of 4: every row has a missing value"):
        fedsyn.analyse([frame.assign(tiny=np.nan) for frame in awkward], "class ~ tiny")


def test_a_value_that_a_table_lacks_has_the_proportion_none(tables: list[pd.DataFrame]) -> None:
    found = fedsyn.analyse([tables[0], tables[1][tables[1].ward != "heart"]], "ward")
    assert found.combined.estimate[1] == pytest.approx((tables[0].ward == "heart").mean() / 2)


def test_an_estimator_of_ones_own(tables: list[pd.DataFrame], statsmodels: Any) -> None:
    textbook = fedsyn.analyse(tables, "back01 ~ age", Linear(robust=False))
    fits = [statsmodels.formula.ols("back01 ~ age", frame).fit() for frame in tables]
    assert textbook.combined.within == pytest.approx(np.mean([fit.bse**2 for fit in fits], axis=0))
    assert Logit(robust=False).title == "logistic regression"


@pytest.mark.parametrize(
    ("formula", "model", "said"),
    [
        ("ward ~ age", None, "the outcome has 3 values"),
        ("bakc ~ age", None, r"'bakc' is not a column \(did you mean 'back'\?\)"),
        ("back ~ agee", None, "did you mean 'age'"),
        ("wrad", None, "did you mean 'ward'"),
        ("back ~ age +", None, "Operator `\\+`"),
        ("back ~ (age", None, "brackets or quotes"),
        ("age ~ nowhere(ward)", None, "nowhere"),
        ("age ~ __import__('os').getpid() + ward", None, "'__import__' is not a column"),
        ("age ~ np.log(f'{__import__}')", None, "a text that Python would evaluate"),
        ("age ~ ward | back", None, "disabled"),
        ("mean(ward)", None, "not numbers"),
        ("age", "ols", "no outcome"),
        ("age ~ ward", "logit", "more than two values"),
        ("age ~ ward", "lgit", "did you mean 'logit'"),
        ("age ~ back + back01", None, r"back01 is a combination of the terms before it: leave it out"),
        ("back ~ back01", None, "tell the outcome apart exactly"),
        ("age ~ age + ward", None, "age is on both sides"),
        ("proportion(hours-per-week)", None, "too many for proportions"),
        ("age ~ ward + np.log(back01)", None, r"table 1 of 4: np.log\(back01\) is infinite"),
        ("np.log(back01) ~ age", None, "the outcome is infinite"),
        ("age ~ np.sqrt(back01 - 1)", None, r"np.sqrt\(back01 - 1\) is infinite or no number"),
    ],
)
def test_what_cannot_be_analysed_is_one_sentence(
    tables: list[pd.DataFrame], formula: str, model: str | None, said: str
) -> None:
    with pytest.raises(InputError, match=said) as found:
        fedsyn.analyse(tables, formula, model)
    assert "\n" not in str(found.value)


def test_tables_of_other_libraries(tables: list[pd.DataFrame]) -> None:
    arrow = [pa.Table.from_pandas(frame) for frame in tables]
    found = fedsyn.analyse(arrow, "hours-per-week ~ age + ward")
    assert found.to_dict() == fedsyn.analyse(tables, "hours-per-week ~ age + ward").to_dict()
    with pytest.raises(InputError, match="naive interval only"):
        fedsyn.analyse(arrow[0], "age")


def test_a_naive_interval_never_stands_alone(tables: list[pd.DataFrame]) -> None:
    for alone in (tables[0], tables[:1]):
        with pytest.raises(InputError, match=r"naive interval only.*--tables 20"):
            fedsyn.analyse(alone, "age")
    lines = str(fedsyn.analyse(tables, "hours-per-week ~ age")).splitlines()
    assert "honest 95%" in lines[2] and "naive 95%" in lines[2]


def test_without_statsmodels_it_says_what_to_type(tables: list[pd.DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedsyn-.*\.whl\[analysis\]'"):
        fedsyn.analyse(tables, "back ~ age")


# What is said beside it ----------------------------------------------------------------------------------------------


def test_terms_that_the_model_does_not_hold_are_marked(tables: list[pd.DataFrame]) -> None:
    held = frozenset({frozenset({"hours-per-week", "age"}), frozenset({"age", "ward"})})
    found = fedsyn.analyse(SyntheticTables(tables, 300.0, held), "hours-per-week ~ age + ward")
    assert found.unheld == set(found.terms)
    assert "hours-per-week × ward: not measured value by value" in " ".join(found.warnings)
    assert "ward[T.heart] *" in str(found) and not found.to_frame().held["age"]
    both = SyntheticTables(tables, 300.0, frozenset({frozenset({"hours-per-week", "age", "ward"})}))
    assert not fedsyn.analyse(both, "hours-per-week ~ age * ward").unheld
    pairs = frozenset(map(frozenset, [("hours-per-week", "age"), ("hours-per-week", "ward")]))
    told_apart = fedsyn.analyse(SyntheticTables(tables, 300.0, pairs), "hours-per-week ~ age + ward")
    assert "age" in told_apart.unheld  # a term is told apart from the others by their pairs
    assert not fedsyn.analyse(SyntheticTables(tables, 300.0, pairs), "hours-per-week ~ ward").unheld
    pairs = frozenset(map(frozenset, [("hours-per-week", "age"), ("age", "ward"), ("hours-per-week", "ward")]))
    crossed = fedsyn.analyse(SyntheticTables(tables, 300.0, pairs), "hours-per-week ~ age * ward")
    assert "age:ward[T.heart]" in crossed.unheld  # an interaction needs the three together


@pytest.mark.parametrize(
    ("formula", "columns"),
    [
        ("(ward == 'heart') ~ age", {"ward", "age"}),
        ("('heart' != ward) ~ back", {"ward", "back"}),
        ("hours-per-week ~ (ward == 'heart')", {"hours-per-week", "ward"}),
        ("hours-per-week ~ {ward.isin(['heart', 'surgery']) * 1}", {"hours-per-week", "ward"}),
        ("hours-per-week ~ C(ward)", {"hours-per-week", "ward"}),
        ("hours-per-week ~ I(age ** 2)", {"hours-per-week", "age"}),
        ("hours-per-week ~ {age.clip(20, 60)}", {"hours-per-week", "age"}),
        ("np.log(age) ~ back", {"age", "back"}),
        ("{age.clip(20, 60)} ~ back", {"age", "back"}),
        ("{(ward == 'heart') * (age > 40)} ~ back", {"ward", "age", "back"}),
        ("back01 * age ~ ward", {"back01", "age", "ward"}),
        ("age ~ (ward == 'heart'):back", {"ward", "age", "back"}),
    ],
)
def test_a_term_is_held_by_the_columns_that_it_reads(
    tables: list[pd.DataFrame], formula: str, columns: set[str]
) -> None:
    """However they are written: held where a measurement has all of them, not held where it lacks any one."""
    whole = fedsyn.analyse(SyntheticTables(tables, 300.0, frozenset({frozenset(columns)})), formula)
    assert not whole.unheld
    for name in columns:
        lesser = fedsyn.analyse(SyntheticTables(tables, 300.0, frozenset({frozenset(columns - {name})})), formula)
        assert lesser.unheld == set(lesser.terms), name


def test_a_pair_that_is_not_held_moves_the_coefficients_of_the_others() -> None:
    """y follows w, and the model holds y × a and a × w only, so it knows y from a: a's coefficient is 0 in truth."""
    held = frozenset(map(frozenset, [("y", "a"), ("a", "w")]))
    frames = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        a = rng.normal(size=3000)
        # as the model has it: both w and y = w + noise are 0.8 a and the rest, independent of each other given a
        w, y = 0.8 * a + rng.normal(0, 0.6, 3000), 0.8 * a + rng.normal(0, 1.2, 3000)
        frames.append(pd.DataFrame({"y": y, "a": a, "w": w}))
    found = fedsyn.analyse(SyntheticTables(frames, 3000.0, held), "y ~ a + w")
    assert found.to_frame().low["a"] > 0.5  # far from the truth, and sure of it
    assert found.unheld == {"Intercept", "a", "w"}


def test_a_column_that_was_never_measured_is_marked(tables: list[pd.DataFrame]) -> None:
    given = SyntheticTables(tables, 300.0, frozenset({frozenset({"back", "age"})}))
    assert not fedsyn.analyse(given, "age").unheld and fedsyn.analyse(given, "ward").unheld
    assert fedsyn.analyse(given, "back01 ~ 1").unheld == {"Intercept"}


def test_under_a_condition_everything_rests_on_its_columns_too(tables: list[pd.DataFrame]) -> None:
    held = frozenset(map(frozenset, [("age", "ward"), ("age", "back")]))
    given = SyntheticTables(tables, 300.0, held, given=frozenset({"ward"}))
    assert not fedsyn.analyse(given, "age").unheld
    found = fedsyn.analyse(given, "back ~ age")
    assert found.unheld == {"Intercept", "age"} and "age × back × ward: not measured value by value" in " ".join(
        found.warnings
    )


def test_tables_in_memory_say_what_their_model_holds(tables: list[pd.DataFrame]) -> None:
    told = [frame.copy() for frame in tables]
    for frame in told:
        frame.attrs["fedsyn"] = {"real_rows": len(frame) / 5, "held": [["age", "back"]], "given": [], "bins": {}}
    assert not fedsyn.analyse(told, "back ~ age").unheld
    found = fedsyn.analyse(told, "back ~ age + ward")
    assert found.unheld == set(found.terms) and "came without" not in str(found)
    given = SyntheticTables(tables, len(tables[0]) / 5, frozenset({frozenset({"age", "back"})}))
    assert (
        fedsyn.analyse(told, "age").to_frame().equals(fedsyn.analyse(given, "age").to_frame())
    )  # as wide as a folder's
    told[1].attrs.clear()
    assert not fedsyn.analyse(told, "back ~ age + ward").unheld
    assert "These tables came without what was released beside them." in fedsyn.analyse(told, "back ~ age").warnings[0]


def test_more_tables_are_asked_for_where_they_make_an_interval_narrower(tables: list[pd.DataFrame]) -> None:
    assert "More tables, or larger ones, would make" in str(fedsyn.analyse(tables[:2], "age"))
    frames = [one(seed) for seed in range(20)]
    assert "More tables" not in str(fedsyn.analyse(SyntheticTables(frames, 300.0), "age"))
    assert "More tables" in str(fedsyn.analyse(SyntheticTables(frames, 3000.0), "age"))


def test_samples_of_one_model_are_noticed() -> None:
    same = [one(0)] * 5
    assert "samples of ONE model" in str(fedsyn.analyse(same, "ward"))
    assert "samples of ONE model" in str(fedsyn.analyse(SyntheticTables(same, 60.0), "ward"))
    # a tenth of the real rows: tables of a posterior differ by a tenth more than their rows do
    assert "samples of ONE model" not in str(fedsyn.analyse(SyntheticTables(same, 3000.0), "ward"))
    constant = [frame.assign(age=1.0) for frame in same]
    assert "samples of ONE model" not in str(fedsyn.analyse(constant, "age"))


def test_a_folder_of_tables(tables: list[pd.DataFrame], tmp_path: Path) -> None:
    for number, frame in enumerate(tables, 1):
        frame.to_csv(tmp_path / f"table_{number:02d}.csv", index=False)
    facts = {
        "tables": [{"file": f"table_{number:02d}.csv"} for number in range(1, 5)],
        "real_rows": 150.0,
        "held": [["age", "back"]],
        "given": [],
    }
    (tmp_path / "tables.json").write_text(json.dumps(facts))
    found = fedsyn.analyse(tmp_path, "back ~ age")
    expected = fedsyn.analyse(SyntheticTables(tables, 150.0), "back ~ age")
    assert fedsyn.analyse(
        SyntheticTables(tables, 3.0), "back ~ age"
    ).combined.floored.all()  # 100 times as many rows as real
    assert np.array_equal(found.combined.variance, expected.combined.variance) and not found.unheld
    (tmp_path / "tables.json").write_text(json.dumps({**facts, "given": ["ward"]}))
    assert fedsyn.analyse(tmp_path, "back ~ age").unheld == set(found.terms)
    (tmp_path / "tables.json").write_text(json.dumps(facts))
    shown = CliRunner().invoke(app, ["analyse", str(tmp_path), "back ~ age"])
    assert shown.exit_code == 0 and shown.stdout == f"{found}\n"
    assert max(map(len, shown.stdout.splitlines())) <= 80
    data = json.loads(CliRunner().invoke(app, ["analyse", str(tmp_path), "back ~ age", "--json"]).stdout)
    assert data["terms"][1]["term"] == "age" and data["terms"][1]["low"] == found.to_frame().low["age"]


def test_numbers_in_words_of_the_schema_are_numbers_and_codes_are_text(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(
        "columns:\n"
        "  cost: {kind: decimal, places: 2, thousands: ',', lower: 0, upper: 20000, bins: 4, missing: true}\n"
        "  ward: {kind: categorical, categories: ['1', '2', '3'], other: false}\n"
    )
    for number in (1, 2):
        (tmp_path / f"table_{number}.csv").write_text('cost,ward\n"1,234.50",1\n"2,000.00",2\n,3\n0.50,3\n')
    (tmp_path / "tables.json").write_text(json.dumps({"tables": ["table_1.csv", "table_2.csv"]}))
    cost = fedsyn.analyse(tmp_path, "cost")
    assert cost.combined.estimate[0] == pytest.approx((1234.5 + 2000 + 0.5) / 3)
    assert fedsyn.analyse(tmp_path, "ward").terms == ("ward = 1", "ward = 2", "ward = 3")


def test_text_of_many_values_is_no_category(tables: list[pd.DataFrame]) -> None:
    dated = [frame.assign(day=(frame["hours-per-week"] * 1000).astype(int).astype(str)) for frame in tables]
    with pytest.raises(ConfigError, match=r"'day' has .* values that are not numbers"):
        fedsyn.analyse(dated, "age ~ day")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no tables.json"),
        ({"model.npz": ""}, "--tables 20"),
        ({"tables.json": "{"}, "draw the tables again"),
        ({"tables.json": '{"tables": ' + "[" * 100_000}, "tables.json cannot be read: draw the tables again"),
        (
            {"tables.json": '{"tables": ["a.csv", "b.csv"], "real_rows": 1' + "0" * 400 + "}"},
            "tables.json cannot be read",
        ),
        ({"tables.json": '{"tables": ["../x.csv"]}'}, "'../x.csv' is not a file of this folder"),
        ({"tables.json": '{"tables": [{"file": "/x.csv"}]}'}, "'/x.csv' is not a file of this folder"),
    ],
)
def test_a_folder_of_something_else(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said):
        fedsyn.analyse(tmp_path, "age")


def test_a_link_is_no_table_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("age\n1\n2\n")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.csv").symlink_to(tmp_path / "mine.csv")
    (tmp_path / "tables" / "tables.json").write_text('{"tables": ["a.csv", "a.csv"]}')
    with pytest.raises(DataError, match=r"'a\.csv' is not a file of this folder"):
        fedsyn.analyse(tmp_path / "tables", "mean(age)")


def test_an_infinite_end_is_no_number_of_json() -> None:
    frames = [pd.DataFrame({"x": np.random.default_rng(seed).normal(size=20)}) for seed in range(3)]
    found = fedsyn.analyse(SyntheticTables(frames, 1e6), "x")
    combined = dataclasses.replace(found.combined, inside=np.full(1, np.inf))
    wide = dataclasses.replace(found, combined=combined).to_dict()
    assert wide["terms"][0]["low"] is None and json.dumps(wide, allow_nan=False)


def test_a_result_has_eighty_columns(tables: list[pd.DataFrame]) -> None:
    long = {"age": "a_column_with_a_name_that_nobody_would_like_to_type_twice", "hours-per-week": "hours"}
    found = fedsyn.analyse([frame.rename(columns=long) for frame in tables], f"hours ~ {long['age']} * ward")
    assert max(map(len, str(found).splitlines())) <= 80


def test_a_heavy_tail_in_a_wide_bin_is_not_held() -> None:
    """Where more than a third of a variance is inside one bin, no mean and no slope is held; below that it is said."""
    rng = np.random.default_rng(3)
    columns = {"cost": lambda: np.exp(rng.normal(8, 1, 2000)), "age": lambda: rng.uniform(0, 100, 2000)}
    frames = [pd.DataFrame({name: draw() for name, draw in columns.items()}) for _ in range(3)]
    bins = {"cost": [0.0, 1000, 2000, 4000, 8000, 1e6], "age": [0.0, 25, 50, 75, 100]}
    tables = SyntheticTables(frames, 2000.0, None, bins=bins)
    for formula in ("mean(cost)", "cost ~ age", "(age > 50) ~ cost"):
        found = fedsyn.analyse(tables, formula)
        (said,) = (note for note in found.warnings if "variance of cost" in note)
        assert "inside one bin, 8000 to 1e+06, too wide" in said
        assert found.unheld == set(found.terms)
    for formula in ("quantile(cost, 0.9)", "mean(age)"):
        found = fedsyn.analyse(tables, formula)
        assert not found.unheld and not any("variance of" in note for note in found.warnings)
    narrower = {**bins, "cost": [0.0, 1000, 2000, 4000, 8000, 9000, 1e6]}
    frames = [frame.assign(cost=frame.cost.clip(upper=35_000)) for frame in frames]
    found = fedsyn.analyse(SyntheticTables(frames, 2000.0, None, bins=narrower), "mean(cost)")
    assert not found.unheld and any("Finer bins there would tell" in note for note in found.warnings)


def test_an_outcome_that_is_a_difference_is_one(tables: list[pd.DataFrame]) -> None:
    """R subtracts there; a list of terms would leave the second column out, without a word."""
    frames = [frame.assign(after=frame.age + frame["hours-per-week"]) for frame in tables]
    for formula in ("after - age ~ ward", "(after - age) ~ ward", "I(after - age) ~ ward"):
        found = fedsyn.analyse(frames, formula)
        assert found.combined.estimate == pytest.approx(
            fedsyn.analyse(frames, "hours-per-week ~ ward").combined.estimate
        )
    facts = {"held": [["after", "ward"], ["age", "ward"]], "given": [], "real_rows": 300.0}
    for frame in frames:
        frame.attrs["fedsyn"] = facts
    found = fedsyn.analyse(frames, "after - age ~ ward")
    assert "after × age:" in " ".join(found.warnings) and found.unheld
    assert "after × age × ward:" in " ".join(fedsyn.analyse(frames, "I(after * age) ~ ward").warnings)
    for frame in frames:  # least squares are linear in the outcome: no need of all three together
        frame.attrs["fedsyn"] = {**facts, "held": [*facts["held"], ["after", "age"]]}
    assert not fedsyn.analyse(frames, "after - age ~ ward").unheld
    assert fedsyn.analyse(frames, "I(after * age) ~ ward").unheld


def test_quantiles_cover_the_populations() -> None:
    """200 runs of ten tables that are as far apart as rows are; 95 % of 200: at least 180 but for one time in 500."""
    rng, held, true = np.random.default_rng(0), 0, -np.log(0.1)
    for _ in range(200):
        centres = rng.normal(0, 0.1) + rng.normal(0, 0.1, 10)
        frames = [pd.DataFrame({"x": rng.exponential(1.0, 4000) + centre}) for centre in centres]
        low, high = (end[0] for end in fedsyn.analyse(frames, "quantile(x, 0.9)").combined.interval())
        held += low <= true <= high
    assert 180 <= held < 200
    within = Quantile(0.9).estimate(rng.exponential(1.0, 10**6), np.zeros(0), ())[1][0]
    assert within == pytest.approx(0.9 * 0.1 / (10**6 * 0.1**2), rel=0.05)  # p (1 - p) / (n f^2)


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("quantile(age)", "a quantile needs a share"),
        ("mean(age, 0.5)", "a quantile needs a share"),
        ("quantile(age, 1.5)", "expected a share between 0 and 1"),
        ("quantile(age, 0.5.5)", "the share '0.5.5' is not a number"),
        ("median(ward)", "'ward' has no median"),
    ],
)
def test_what_is_no_quantile_is_one_sentence(tables: list[pd.DataFrame], formula: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fedsyn.analyse(tables, formula)
    assert fedsyn.analyse(tables, "median(age)").combined.first[0][0] == tables[0].age.median()


def test_a_quarter_of_what_a_slope_owes_to_the_inside_of_bins_is_uncertain() -> None:
    """Wide bins, in which x and y go together as between them: with shuffled numbers the slope loses some."""
    rng, edges = np.random.default_rng(0), [-9.0, -1.0, 1.0, 9.0]
    frames = []
    for _ in range(5):
        x = rng.normal(0, 1, 20_000)
        frames.append(pd.DataFrame({"x": x, "y": x + rng.normal(0, 0.5, 20_000)}))
    wide, narrow = (
        SyntheticTables(frames, bins=bins)
        for bins in ({"x": edges, "y": edges}, {"x": np.linspace(-9, 9, 901), "y": np.linspace(-9, 9, 901)})
    )
    fine, coarse, unbinned = (fedsyn.analyse(some, "y ~ x") for some in (narrow, wide, SyntheticTables(frames)))

    def shuffled(frame: pd.DataFrame) -> float:
        """Slope where columns go together as the means of their bins do."""
        means = {name: frame.groupby(np.digitize(frame[name], edges))[name].transform("mean") for name in frame}
        return float(np.cov(means["x"], means["y"])[0, 1] / frame.x.var())

    moved = np.mean([np.polyfit(frame.x, frame.y, 1)[0] - shuffled(frame) for frame in frames[:4]])
    assert abs(moved) > 0.2
    more = coarse.combined.variance[1] - unbinned.combined.variance[1]
    assert more == pytest.approx((moved / 4) ** 2, rel=0.05)  # a shuffle of 20,000 rows has some chance
    assert fine.combined.variance[1] == pytest.approx(unbinned.combined.variance[1], rel=0.02)
    assert coarse.combined.widened[1] < 1.01 < unbinned.combined.widened[1]  # more tables do not tell of bins
    note = "where numbers lie inside their bins"
    assert any(note in text for text in coarse.warnings) and not any(note in text for text in fine.warnings)
    assert np.all(fedsyn.analyse(wide, "mean(x)").combined.inside == 0.0)
