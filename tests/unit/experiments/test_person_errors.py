"""What experiments/persons measures: aggregates of a person's rows, and the ways that it sets side by side."""

from __future__ import annotations

import argparse
import pickle

import pandas as pd
import pytest

from experiments.persons import run


def a_table() -> run.People:
    persons = pd.DataFrame({"id": [7, 8, 9], "sex": ["f", "m", "f"], "city": ["x", "y", "x"]})
    rows = pd.DataFrame({"id": [7, 7, 7, 9], "ward": ["b", "a", "a", "c"]})
    return run.People(persons, rows, 5)


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
    asked = argparse.Namespace(epsilon=1.0, clients=2, caps=[1, 3], sdv=None, epochs=1)
    assert list(run.ways_of(asked)) == [run.OURS, "one row each", f"{run.CAPPED} 3 rows each"]
    asked.caps, asked.sdv = [], "python"
    assert len(run.ways_of(asked)) == 3
    for name, way in run.ways_of(asked).items():
        assert repr(pickle.loads(pickle.dumps(way))) == repr(way), name  # a process of its own can be asked for it
    asked.epochs = 0
    assert [way for way in run.ways_of(asked) if "PAR" in way] == []


def test_caps_that_do_better_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = [0.1] * len(run.ERRORS), [0.05] * len(run.ERRORS)
    assert run.says_otherwise({("shop", run.OURS): bad, ("shop", "at most 3 rows each"): good}) == 0
    assert run.says_otherwise({("shop", run.OURS): good, ("shop", "at most 3 rows each"): bad}) == 1
    assert "shop: aggregates is more than 1.0 of what it is with at most 3 rows each" in capsys.readouterr().out
