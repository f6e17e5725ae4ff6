"""Analyses of tables of persons: what counts once, which row is shown, and errors of persons."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn import Schema, Synthesizer
from fedsyn.errors import ConfigError, InputError
from fedsyn.evaluation.analysis.estimators import Estimator, Linear, Logit, Means, Quantile
from fedsyn.evaluation.analysis.persons import Per, shown, with_changes
from fedsyn.evaluation.analysis.tables import WEIGHT, Gaps, Records, SyntheticTables, records_facts
from fedsyn.table.schema.persons import BEFORE, COUNT, GAP

PERSONS, POPULATION = 2_000, 100_000


def visits(persons: int, seed: int) -> pd.DataFrame:
    """Those of arm b have more visits, higher pressures, and an effect of their own on each."""
    rng = np.random.default_rng(seed)
    arm = rng.integers(0, 2, persons)
    counts = 1 + rng.poisson(np.where(arm == 1, 3.0, 1.0)).clip(max=9)
    whose = np.repeat(np.arange(persons), counts)
    own = rng.normal(0.0, 8.0, persons)
    place = np.arange(len(whose)) - np.repeat(np.cumsum(counts) - counts, counts)
    pressure = 120 + own[whose] + 6 * arm[whose] + 2.0 * place + rng.normal(0.0, 5.0, len(whose))
    return pd.DataFrame(
        {
            "patient": whose,
            "arm": np.array(["a", "b"])[arm[whose]],
            "day": place * 10 + rng.integers(0, 10, len(whose)),
            "pressure": pressure.round(1).clip(71, 199),
        }
    )


def schema(order: Any) -> Schema:
    columns = {
        "patient": {"kind": "identifier"},
        "arm": {"kind": "categorical", "categories": ["a", "b"], "other": False},
        "pressure": {"kind": "numeric", "lower": 70, "upper": 200, "bins": 26},
    }
    columns |= {"day": {"kind": "integer", "lower": 0, "upper": 99, "bins": 10}} if order == "day" else {}
    persons = {"id": "patient", "constant": ["arm"], "most_rows": 10, "order": order}
    return Schema.from_dict({"columns": columns, "persons": persons})


def tables_of(frame: pd.DataFrame, in_order: bool, held: Any = None) -> SyntheticTables:
    return SyntheticTables([frame, frame], records=Records(rows=["x", "y"], in_order=in_order), held=held)


# What is shown ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_of_rows_in_order_each_is_as_likely_as_another(rows: int) -> None:
    """60,000 persons of k rows: a row's count is off by five standard errors once in 1.7 million."""
    persons = 60_000
    before = np.random.default_rng(0).integers(0, max(rows - 1, 1), persons)
    after = np.where(rows > 1, before + 1.0, np.nan)
    frame = pd.DataFrame({COUNT: rows, BEFORE: before, "x": before.astype(float), "next x": after})
    some, _ = shown(tables_of(frame.assign(y=0.0, **{"next y": 0.0}), True), ["x"], None)
    counts = some.frames[0]["x"].value_counts().sort_index()
    assert list(counts.index) == list(range(rows))
    assert np.abs(counts - persons / rows).max() <= 5 * np.sqrt(persons * (1 / rows) * (1 - 1 / rows))
    assert (some.frames[0][WEIGHT] == rows).all()


@pytest.mark.parametrize(
    ("in_order", "columns", "per", "weight"),
    [
        (False, ["x"], None, 3.0),
        (False, ["x", "next x"], "row", 3.0),
        (True, ["x", "next x"], None, 2.0),
        (True, ["x"], "person", None),
        (False, ["next x"], "person", None),
        (False, ["sex"], None, None),
    ],
)
def test_a_record_stands_for_its_rows_or_for_its_person(
    in_order: bool, columns: list[str], per: Any, weight: float | None
) -> None:
    frame = pd.DataFrame({"sex": ["f", "m"], COUNT: 3, BEFORE: [0, 1], "x": [1.0, 2.0], "next x": [2.0, 3.0]})
    some, notes = shown(tables_of(frame, in_order), columns, per)
    first = some.frames[0]
    assert (WEIGHT not in first) if weight is None else (first[WEIGHT] == weight).all()
    assert (COUNT in some.given) == (weight is not None)
    assert len(notes) == 1 and ("Each person counts once" in notes[0]) == (weight is None)


def test_a_row_that_may_be_either_needs_both_measured() -> None:
    frame = pd.DataFrame({COUNT: 3, BEFORE: [0, 1], **{name: [1.0, 2.0] for name in ("x", "y", "next x", "next y")}})
    one, both = frozenset({"x", "y"}), frozenset({"next x", "next y"})
    assert not shown(tables_of(frame, True, {one}), ["x", "y"], "person")[0].holds(["x", "y"])
    assert shown(tables_of(frame, True, {one, both}), ["x", "y"], "person")[0].holds(["x", "y"])
    assert shown(tables_of(frame, False, {one}), ["x", "y"], "person")[0].holds(["x", "y"])
    assert not shown(tables_of(frame, False, {one}), ["x", "y"], "row")[0].holds(["x", "y"])
    assert shown(tables_of(frame, False, {one | {COUNT}}), ["x", "y"], "row")[0].holds(["x", "y"])


@pytest.mark.parametrize(
    ("formula", "per", "note"),
    [
        ("mean(x)", None, "25% of the rows are left out, as a value is missing: x."),
        ("mean(x)", "person", "20% of the rows are left out, as a value is missing: x."),
        ("x ~ sex", None, "25% of the rows are left out, as a value is missing: x."),
        ("change(x) ~ sex", None, "33% of the rows are left out, as a value is missing: x."),
        ("number of rows ~ sex", None, None),
        ("mean(arm)", None, "17% of the people are left out, as a value is missing: arm."),
    ],
)
def test_a_person_without_rows_misses_no_value(formula: str, per: Any, note: str | None) -> None:
    """Of six persons one has no row and two have a single one, which no other follows; one misses a value."""
    one = pd.DataFrame(
        {
            "sex": ["f", "m"] * 3,
            "arm": [np.nan, 0, 1, 1, 0, 1],
            COUNT: [0, 1, 2, 2, 1, 2],
            "x": [np.nan, 1.0, 2.0, np.nan, 3.0, 4.0],
            "y": 0.0,
        }
    ).assign(**{"next x": [np.nan, np.nan, 3.0, 4.0, np.nan, 6.0], "next y": 0.0})
    frame = pd.concat([one.assign(**{"next x": one["next x"] + at}) for at in range(10)], ignore_index=True)
    tables = SyntheticTables([frame, frame], records=Records(rows=["x", "y"], in_order=False))
    found = [text for text in fedsyn.analyse(tables, formula, per=per).warnings if "left out" in text]
    assert found == ([] if note is None else [note])


def test_a_change_is_the_next_value_minus_this_one() -> None:
    tables = tables_of(pd.DataFrame({"x": [1.0], "y": [1.0]}), True)
    assert with_changes("change(x) ~ sex", tables) == "{next x - x} ~ sex"
    assert with_changes("change( y )", tables) == "{next y - y} ~ 1"
    assert with_changes("x ~ sex", tables) == "x ~ sex"
    with pytest.raises(ConfigError, match="'sex' does not change from a row of a person to the next"):
        with_changes("change(sex) ~ x", tables)


@pytest.mark.parametrize(("step", "written"), [(1.0, "until next row ~ sex"), (0.25, "{until next row * 0.25} ~ sex")])
def test_a_change_of_the_order_is_the_gap(step: float, written: str) -> None:
    """Gaps of 4 and 8 steps; pairs of two columns say nothing else, whatever their own numbers are."""
    frame = pd.DataFrame({"sex": ["f", "m"] * 20, COUNT: 3, BEFORE: 0, GAP: [4, 8] * 20, "day": 0, "next day": 0})
    records = Records(rows=["day"], in_order=True, gaps=Gaps(of="day", step=step, unit="days"))
    tables = SyntheticTables([frame, frame], records=records, held=frozenset({frozenset({GAP, COUNT, "sex"})}))
    assert with_changes("change(day) ~ sex", tables) == written
    frame.loc[0, GAP] = 5  # else no row differs from another
    found = fedsyn.analyse(tables, "change(day) ~ sex")
    assert found.to_frame()["estimate"].tolist() == pytest.approx([4.05 * step, 3.95 * step])
    assert found.to_frame()["held"].all() and any("'until next row' is in days" in note for note in found.warnings)
    weights = shown(tables, [GAP, "sex"], None)[0].frames[0][WEIGHT]
    assert (weights == 2.0).all()  # pairs, of which three rows have two


@pytest.mark.parametrize(
    ("column", "gaps"),
    [
        ({"kind": "date", "lower": "2020-01-01", "upper": "2020-12-31"}, Gaps(of="at", step=1.0, unit="days")),
        (
            {"kind": "datetime", "lower": "2020-01-01", "upper": "2020-12-31", "step": "minute", "multiple_of": 15},
            Gaps(of="at", step=15.0, unit="minutes"),
        ),
        ({"kind": "decimal", "places": 2, "lower": 0, "upper": 9}, Gaps(of="at", step=0.01, unit=None)),
        ({"kind": "numeric", "lower": 0, "upper": 9}, Gaps(of="at", step=1.0, unit=None)),
        (None, None),
    ],
)
def test_records_say_in_what_gaps_are(column: dict[str, Any] | None, gaps: Gaps | None) -> None:
    columns = {"id": {"kind": "identifier"}, "x": {"kind": "integer", "lower": 0, "upper": 9}}
    columns |= {"at": column} if column else {}
    persons = {"id": "id", "most_rows": 9, "order": "at" if column else True}
    facts = records_facts(Schema.from_dict({"columns": columns, "persons": persons}).records)
    assert Records.model_validate(facts) == Records(rows=[*columns][1:], in_order=True, gaps=gaps)


def test_a_slope_of_changes_rests_on_pairs() -> None:
    """Sums of products of differences are those of the columns, two by two."""
    rng = np.random.default_rng(6)
    frames = []
    for _ in range(3):
        x, y, z, w = rng.normal(size=(4, 500))
        frames.append(pd.DataFrame({COUNT: 2, "x": x, "y": x + y, "next x": z, "next y": z + w}))
    pairs = {frozenset(pair) for pair in combinations(["x", "y", "next x", "next y"], 2)}
    records = Records(rows=["x", "y"], in_order=False)
    for held, answer in ((pairs, True), (pairs - {frozenset({"next x", "y"})}, False)):
        tables = SyntheticTables(frames, 100, frozenset(held), records=records)
        found = fedsyn.analyse(tables, "change(y) ~ change(x)", per="person").to_frame()
        assert found["held"].tolist() == [answer] * 2
        assert found["estimate"].iloc[1] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(
    ("records", "columns", "per", "sentence"),
    [
        (True, ["x"], "rows", "per: expected row or person, found 'rows'"),
        (True, ["sex"], "row", "per: the formula has no column that differs"),
        (False, ["x"], "person", "per: the tables are not of a run that protects persons"),
    ],
)
def test_what_cannot_count_is_refused(records: bool, columns: list[str], per: Any, sentence: str) -> None:
    frame = pd.DataFrame({"x": [1.0], "sex": ["f"], COUNT: [1]})
    tables = tables_of(frame, False) if records else SyntheticTables([frame, frame])
    with pytest.raises(ConfigError, match=sentence):
        shown(tables, columns, per)


# Weights ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [Linear(), Logit(), Means()])
def test_weights_are_rows_of_one_observation(estimator: Estimator) -> None:
    """Estimates are those of rows that are there so often, and errors those of clusters of them."""
    import statsmodels.api as sm

    rng = np.random.default_rng(1)
    n = 400
    X = np.column_stack([np.ones(n), rng.normal(size=n)])
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ [0.3, 0.8]))).astype(float)
    weights = rng.integers(1, 6, n).astype(float)
    times = np.repeat(np.arange(n), weights.astype(int))
    found, variance = estimator.estimate(y, X, ["1", "x"], weights)
    assert np.allclose(found, estimator.estimate(y[times], X[times], ["1", "x"])[0], atol=1e-6)
    if isinstance(estimator, Means):
        expected = np.array([sm.OLS(column[times], np.ones(len(times))) for column in X.T], dtype=object)
        expected = np.array([m.fit(cov_type="cluster", cov_kwds={"groups": times}).bse[0] ** 2 for m in expected])
    else:
        model = (sm.OLS if isinstance(estimator, Linear) else sm.Logit)(y[times], X[times])
        expected = model.fit(disp=0, cov_type="cluster", cov_kwds={"groups": times}).bse ** 2
    assert np.allclose(variance, expected, rtol=0.01)  # corrections for few observations differ
    assert not np.allclose(variance, estimator.estimate(y[times], X[times], ["1", "x"])[1], rtol=0.3)


def test_a_quantile_of_weights_is_that_of_rows() -> None:
    rng = np.random.default_rng(2)
    y, weights = rng.exponential(1.0, 400_000), rng.integers(1, 6, 400_000).astype(float)
    times = np.repeat(np.arange(len(y)), weights.astype(int))
    estimator, X = Quantile(0.8), np.zeros(0)
    found, variance = (part[0] for part in estimator.estimate(y, X, (), weights))
    plain, of_rows = (part[0] for part in estimator.estimate(y[times], X, ()))
    assert found == pytest.approx(plain, abs=0.02)
    # A person's rows are one observation: the variance is that of E w^2 / (E w)^2 / n, here 11 / 9 / n,
    # and told by the values near the quantile to about 8%.
    assert variance / of_rows == pytest.approx(3.0 * 11 / 9, rel=0.3)
    same = estimator.estimate(y, X, (), np.ones(len(y)))
    assert np.allclose(np.array(same), np.array(estimator.estimate(y, X, ())), rtol=0.1)


# Whole ---------------------------------------------------------------------------------------------------------------


def of_population(order: bool) -> dict[tuple[str, Per], float]:
    """What the rows of 100,000 persons say, without a schema."""
    rows = visits(POPULATION, 99)
    rows = rows.sort_values(["patient", "day"])
    each = rows.groupby("patient")
    counts, b = each["arm"].transform("size"), rows["arm"] == "b"
    after = each["pressure"].shift(-1) - rows["pressure"]
    mean = {arm: np.average(rows["pressure"][b == arm], weights=1 / counts[b == arm]) for arm in (False, True)}
    return {
        ("pressure", "row"): rows["pressure"].mean(),
        ("pressure", "person"): np.average(rows["pressure"], weights=1 / counts),
        ("pressure ~ arm", "person"): mean[True] - mean[False],
        ("number of rows ~ arm", "person"): each.size()[each["arm"].first() == "b"].mean()
        - each.size()[each["arm"].first() == "a"].mean(),
        ("change(pressure)", "person"): np.average(after.dropna(), weights=1 / (counts[after.notna()] - 1)) * order,
    }


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("order", ["day", False])
def test_intervals_of_persons_hold_what_their_rows_say(order: Any) -> None:
    """An epsilon at which noise is small beside chance.

    An interval of twice the width misses once in 11,000, ten of them once in 1,100; naive ones of rows that are taken
    for independent have a third of the width.
    """
    rows = visits(PERSONS, 3)
    fitted = Synthesizer(60, 1e-6, schema=schema(order), privacy={"unit": "person"}, seed=5, progress=False).fit(rows)
    tables = fitted.sample(tables=6, seed=1)
    assert len(tables[0]) == pytest.approx(5 * PERSONS, rel=0.05) and "patient" not in tables[0]
    held = 0
    for (formula, per), true in of_population(bool(order)).items():
        found = fedsyn.analyse(tables, formula, per=per).to_frame().iloc[-1]
        if not found.held:  # and says so
            continue
        held, half = held + 1, found.high - found.low
        assert found.estimate - half <= true <= found.estimate + half, (formula, per, true, found)
    assert held >= 2


@pytest.mark.thorough
def test_a_change_of_the_order_knows_weeks_in_bins_of_months() -> None:
    """Visits of arm a are 5 to 9 days apart, of arm b 24 to 31, in bins of 61 days: the truth is in the plan.

    Noise is small at this epsilon. An interval of twice the width misses once in 11,000, two of them once in 5,000. The
    difference of two numbers, each drawn in its own bin, does not know the arms apart.
    """
    rng = np.random.default_rng(8)
    arm, counts = rng.integers(0, 2, PERSONS), rng.integers(2, 7, PERSONS)
    whose, first = np.repeat(np.arange(PERSONS), counts), np.cumsum(counts) - counts
    since = np.cumsum(np.where(arm[whose] == 1, rng.integers(24, 32, len(whose)), rng.integers(5, 10, len(whose))))
    rows = pd.DataFrame({"patient": whose, "arm": np.array(["a", "b"])[arm[whose]]})
    rows["day"] = rng.integers(0, 1200, PERSONS)[whose] + since - since[first][whose]
    columns = {
        "patient": {"kind": "identifier"},
        "arm": {"kind": "categorical", "categories": ["a", "b"], "other": False},
        "day": {"kind": "integer", "lower": 0, "upper": 1460, "bins": 24},
    }
    persons = {"id": "patient", "constant": ["arm"], "most_rows": 6, "order": "day"}
    table = Schema.from_dict({"columns": columns, "persons": persons})
    fitted = Synthesizer(
        60, 1e-6, mechanism="mst", schema=table, privacy={"unit": "person"}, seed=5, progress=False
    ).fit(rows)
    tables = fitted.sample(tables=6, seed=1)
    found = fedsyn.analyse(tables, "change(day) ~ arm", per="person").to_frame()
    assert found["held"].all()
    half = found["high"] - found["low"]
    assert ((found["estimate"] - [7.0, 20.5]).abs() <= half).all(), found
    assert half.iloc[1] < 20.5 / 2  # the arms are told apart
    by_bins = fedsyn.analyse(tables, "next day - day ~ arm", per="person").to_frame()
    assert abs(by_bins["estimate"].iloc[1] - 20.5) > 10.0, by_bins


def test_a_folder_says_what_its_tables_are_of(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fedsyn.front.cli import app

    fitted = Synthesizer(
        5, 1e-6, mechanism="mst", schema=schema(True), privacy={"unit": "person"}, seed=5, progress=False
    ).fit(visits(300, 3))
    fitted.save(tmp_path / "model.fedsyn")
    run = CliRunner()
    out = str(tmp_path / "tables")
    drawn = run.invoke(app, ["sample", str(tmp_path / "model.fedsyn"), "--tables", "3", "--out", out, "--seed", "1"])
    assert drawn.exit_code == 0, drawn.output
    text = (tmp_path / "tables" / "table_01.csv").read_text(encoding="utf-8")
    assert text.splitlines()[0] == "arm,number of rows,rows before,pressure,next pressure"
    found = run.invoke(app, ["analyse", out, "pressure", "--per", "person", "--json"])
    assert found.exit_code == 0 and "Each person counts once, by one row." in found.output
    beside = fedsyn.analyse(fitted.sample(tables=3, seed=1), "pressure", per="person").to_dict()
    assert beside["terms"][0]["estimate"] == pytest.approx(
        fedsyn.analyse(out, "pressure", per="person").combined.estimate[0]
    )
    with pytest.raises(InputError, match="'pressure' differs between the rows of a person, and tables for an analysis"):
        fitted.sample(tables=3, where={"pressure": (100, None)})
    assert len(fitted.sample(tables=3, where={"arm": "a"})) == 3
