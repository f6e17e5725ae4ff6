"""What experiments/persons measures: aggregates of persons, ways side by side, tables of others, truths of terms."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.persons import coverage, events, overlap, run, tables


def a_table() -> tables.People:
    persons = pd.DataFrame({"id": [7, 8, 9], "sex": ["f", "m", "f"], "city": ["x", "y", "x"]})
    rows = pd.DataFrame({"id": [7, 7, 7, 9], "ward": ["b", "a", "a", "c"]})
    return tables.People(persons, rows, 5)


def test_aggregates_are_of_persons_with_rows() -> None:
    found = run.aggregates(a_table().rows, ["ward"])
    # Of three rows two are the commonest: six tenths.
    assert found.loc[7, run.facts(["ward"])].tolist() == ["b", "a", "a", "2", "6"]
    assert found.loc[9, run.facts(["ward"])].tolist() == ["c", "c", "c", "1", "10"]
    assert 8 not in found.index


def test_a_table_is_as_good_as_itself_and_rows_of_others_are_not() -> None:
    real = a_table()
    assert run.errors(real, real) == (0.0,) * len(run.ERRORS)
    moved = real._replace(rows=real.rows.assign(id=[9, 9, 9, 7]))
    # The same persons with rows, of whom one has three and one has one; who is who is another thing.
    pairs, _, inside, numbers, aggregates = run.errors(real, moved)
    assert (inside, numbers, aggregates) == (0.0, 0.0, 0.0)
    assert pairs == 0.0  # both are of one sex and city
    other = real._replace(rows=real.rows.assign(ward=["a", "a", "a", "c"]))
    assert run.errors(real, other)[-1] == pytest.approx(3 / 5)  # three of five aggregates of one of two persons


def test_ways_are_those_that_were_asked_for() -> None:
    asked = argparse.Namespace(epsilon=1.0, clients=2, caps=[1, 3], client_caps=[], limits=False, sdv=None, epochs=1)
    assert list(run.ways_of(asked, 9)) == [run.OURS, "one row each", f"{run.CAPPED} 3 rows each"]
    assert list(run.ways_of(asked, 2)) == [run.OURS, "one row each", f"{run.CAPPED} 2 rows each"]
    asked.caps, asked.sdv = [], "python"
    assert len(run.ways_of(asked, 9)) == 3
    asked.epochs = 0
    assert [way for way in run.ways_of(asked, 9) if "PAR" in way] == []
    asked.client_caps, asked.limits = [2], True
    assert list(run.ways_of(asked, 9))[1] == f"a client each, {run.CAPPED} 2 rows"
    for name, way in run.ways_of(asked, 9).items():
        assert repr(pickle.loads(pickle.dumps(way))) == repr(way), name  # a process of its own can be asked for it


def test_records_as_they_are_say_what_one_row_of_each_person_says() -> None:
    """Every other record's row is one of the person's own, with its next one; the same persons, numbers and columns."""
    real = a_table()
    made = run.as_they_are(real, 0)
    found = made.rows.set_index("id")
    assert list(found["sex"]) == ["f", "m", "f"] and found.loc[8, "ward"] == found.loc[9, "next ward"] == run.NONE
    assert (found.loc[7, "ward"], found.loc[7, "next ward"]) in {("b", "a"), ("a", "a")} and found.loc[9, "ward"] == "c"
    assert run.errors(real, made)[2:4] == (0.0, 0.0)  # persons and numbers of rows are all there
    alike = real._replace(rows=real.rows.assign(ward="a"))
    assert run.errors(alike, run.as_they_are(alike, 0))[:2] == pytest.approx((0.0, 0.0))


def test_rows_of_nobody_stand_for_persons_by_their_number() -> None:
    """Each person's rows, of which two take part at most: what was capped away comes back as weight."""
    rows = pd.DataFrame({"id": np.repeat([1, 2, 3], [1, 2, 8]), "ward": list("abc") + ["d"] * 8})
    real = tables.People(pd.DataFrame({"id": [1, 2, 3], "sex": list("fmm"), "city": list("xyz")}), rows, 8)
    flat = real.persons.assign(**{run.NUMBER: run.groups(real)}).merge(rows, on="id")
    flat["next ward"] = flat.groupby("id")["ward"].shift(-1).fillna(run.NONE)
    kept = flat[(flat["id"] < 3) | (flat.index < 5)]
    made = run.Flat(kept, ["sex", "city"], ["ward"], 2)
    found = made.of_rows().groupby("sex")[run.WEIGHT].sum()
    assert found["f"] == 1.0 and found["m"] == 2.0 + 7.0  # of eight rows: the middle of their group, 6 to 8
    pairs, after, inside, numbers, aggregates = run.errors(real, made)
    assert inside == numbers == 0.0 and pairs < 0.1 and after < 0.1 and np.isnan(aggregates)
    assert run.errors(real, run.Flat(kept, ["sex", "city"], ["ward"], 1))[2] > 0.1  # as if all stood for one person


def test_tables_of_others_are_read_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYN_DATA", str(tmp_path))
    name = "no_such_package_of_tables"
    with pytest.raises(
        SystemExit, match=f"install it .pip install {name}., or put its data/x.csv into FEDSYN_DATA/{name}"
    ):
        tables.of_package(name, "data/x.csv")
    (tmp_path / name / "data").mkdir(parents=True)
    pd.DataFrame({"a": [1]}).to_csv(tmp_path / name / "data" / "x.csv", index=False)
    assert tables.of_package(name, "data/x.csv")["a"].tolist() == [1]
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FEDSYN_DATA", str(tmp_path / "elsewhere"))
    assert tables.of_package(name, "data/x.csv")["a"].tolist() == [1]  # installed


@pytest.mark.parametrize("name", list(tables.JUDGING))
def test_panels_are_persons_with_rows_in_order(name: str) -> None:
    try:
        table = tables.JUDGING[name](0)
    except SystemExit as why:
        pytest.skip(str(why))
    counts = table.rows.groupby("id").size()
    assert table.persons["id"].is_unique and set(counts.index) == {*table.persons["id"]} and counts.max() <= table.most
    words = pd.concat([table.persons, table.rows]).drop(columns="id")
    assert words.nunique().between(2, 11).all()


@pytest.mark.parametrize("order", list(coverage.ORDERS))
def test_truths_are_those_of_the_rows(order: str) -> None:
    """Beside statsmodels, with errors of clusters; and slopes as they were planted.

    A slope is off by five errors once in 1.7 million.
    """
    import statsmodels.api as sm

    rows = coverage.visits(3_000, 5)
    found, errors = coverage.by_rows(rows, coverage.Asked("event ~ arm + dose", "row"), order)
    X = sm.add_constant(np.column_stack([rows["arm"] == "b", rows["dose"]]).astype(float))
    fit = sm.Logit(rows["event"] == "yes", X).fit(disp=0, cov_type="cluster", cov_kwds={"groups": rows["pid"]})
    assert np.allclose(found, fit.params) and np.allclose(errors, fit.bse, rtol=0.01)
    for formula, planted in {"change(sbp) ~ change(dose)": 1.5, "change(sbp) ~ change(day)": 0.05}.items():
        for per in ("row", "person"):
            slope, error = (part[1] for part in coverage.by_rows(rows, coverage.Asked(formula, per), order))
            assert abs(slope - planted) < 5 * error
    (mean,), _ = coverage.by_rows(rows, coverage.Asked("sbp", "person"), order)
    assert mean == pytest.approx(rows.groupby("pid")["sbp"].mean().mean())


def test_caps_that_do_better_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = [0.1] * len(run.ERRORS), [0.05] * len(run.ERRORS)
    assert run.says_otherwise({("shop", run.OURS): bad, ("shop", "at most 3 rows each"): good}) == 0
    assert run.says_otherwise({("shop", run.OURS): good, ("shop", "at most 3 rows each"): bad}) == 1
    assert "shop: aggregates is more than 1.0 of what it is with at most 3 rows each" in capsys.readouterr().out


def test_visits_that_are_planted_do_not_overlap_and_are_no_way_off_themselves() -> None:
    seen = overlap.Seen.of(overlap.visits(300, 1))
    assert seen.overlap == 0.0 and seen.off(seen) == [0.0, 0.0, 0.0] and (seen.gaps >= 0).all()
    late = overlap.visits(300, 1).assign(discharged="2025-01-01")
    assert overlap.Seen.of(late).overlap == 1.0


@pytest.mark.slow
def test_events_in_miniature(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--families", "stays", "growth", "--epsilons", "4", "--persons", "300", "--seeds", "1"]
    monkeypatch.setattr("sys.argv", ["events.py", *asked])
    events.main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:3] for row in rows] == [
        [law, "4", way] for law in ("stays", "growth") for way in ("by gaps", "by steps")
    ]
    errors = [[float(cell) for cell in row[3:]] for row in rows]
    assert all(len(row) == 4 and min(row) > 0.0 and max(row) <= 2.0 for row in errors)
    assert errors[0] != errors[1] and errors[2] != errors[3]


def test_events_are_no_way_off_themselves() -> None:
    real = events.events(events.LAWS["readings"], 50, 3)
    found = [(one.value_counts(normalize=True), other) for one, other in zip(*[events.seen(real)] * 2, strict=True)]
    assert [run.distance(one, other.value_counts(normalize=True)) for one, other in found] == [0.0] * 4
    assert real["at"].between(0, events.YEAR).all() and real.groupby("id")["at"].is_monotonic_increasing.all()


@pytest.mark.slow
def test_overlaps_in_miniature(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["overlap.py", "--persons", "200", "--seeds", "1", "--epsilon", "4"])
    assert overlap.main() == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[1] for row in rows] == ["no", "yes"] * 3
    assert [row[5] == "0.0%" for row in rows] == [False, True] * 3
    assert [row[2:6] for row in rows[:2]] == [row[2:6] for row in rows[2:4]]  # hidden or not, it is the same model
