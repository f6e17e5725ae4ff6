"""Where the rows of a person stand who has many of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsyn
from experiments.persons import events
from fedsyn.runs.timeline import Timeline
from fedsyn.table.schema.ordered import IntegerColumn

#: Bins of four to the octave, and eight equal ones.
GAPS = IntegerColumn(bins=[0, *range(1, 12), *np.rint(2.0 ** np.arange(3.75, 20.25, 0.25)).astype(int).tolist()])
COLUMN = IntegerColumn(lower=0, upper=999_999, bins=8)


def exponential(mean: float) -> np.ndarray:
    """Shares of exponential gaps."""
    return -np.diff(np.exp(-np.asarray(GAPS.edges) / mean))


def a_line(*means: float, absent: float = 0.0) -> Timeline:
    """The timeline of so many numbers of rows, each with exponential gaps of its own."""
    values = np.append(np.full(8, (1.0 - absent) / 8), absent)
    return Timeline(COLUMN, GAPS, np.stack([exponential(mean) for mean in means]), np.stack([values] * len(means)))


def gone(line: Timeline, persons: int, rows: int, rng: np.random.Generator, start: float = 0.0) -> np.ndarray:
    """Positions of rows after others, (persons, rows)."""
    at, counts, out = np.full(persons, start), np.zeros(persons, np.int64), np.empty((persons, rows))
    for row in range(rows):
        at = out[:, row] = line.moved(counts, at, np.full(persons, rows - row), rng, ahead=True)
    return out


@pytest.mark.parametrize("mean", [5e3, 5e4, 5e5])
def test_rows_stand_as_if_all_gaps_had_been_drawn_until_they_fit(mean: float) -> None:
    """A hundred exponential gaps in a million. Of mean 5,000 nearly all fit: row k stands at 5,000 k.

    Of longer ones few do. Those that fit are even points: row k of 100 stands at k / 101, with a variance below
    1 / 400. Of 400 persons the mean has a standard deviation below 0.0025; 0.015 is six of them. The other 0.015 are
    what bins of a quarter of an octave and rates that are found step by step leave.
    """
    rows, found = 100, gone(a_line(mean), 400, 100, np.random.default_rng(0))
    assert (np.diff(found, axis=1) >= 0.0).all() and found.min() >= 0.0 and found.max() < 1e6
    ideal = np.arange(1, rows + 1) * (mean if mean < 1e4 else 1e6 / (rows + 1))
    assert found.mean(axis=0) / 1e6 == pytest.approx(ideal / 1e6, abs=0.03)


def test_back_and_ahead_are_mirrored() -> None:
    """The same draws, from either end."""
    line, counts, rows = a_line(2e4), np.zeros(500, np.int64), np.full(500, 9)
    ahead = line.moved(counts, np.full(500, 4e5), rows, np.random.default_rng(3), ahead=True)
    back = line.moved(
        counts, np.full(500, line.positions_of_edges[-1] - 4e5), rows, np.random.default_rng(3), ahead=False
    )
    assert ahead - 4e5 == pytest.approx(line.positions_of_edges[-1] - 4e5 - back)


def test_a_row_stands_where_those_before_and_after_it_fit() -> None:
    """Three hundred gaps of mean 100,000 in a million: a row at a quarter has a quarter of the others before.

    Thirty of mean 1,000 fit anywhere there, so any place is as good as the others; at the very start none fits before.
    """
    line, before = a_line(1e5, 1e3), np.arange(299.0)[None]
    odds = line.fit(np.array([0]), np.array([2.5e5]), before, np.array([298]))
    assert odds.max() == 0.0 and abs(int(odds.argmax()) - 75) <= 1 and odds[0, [0, 150, 298]].max() < -10.0
    few = line.fit(np.array([1, 1]), np.array([5e5, 0.0]), np.tile(np.arange(29.0), (2, 1)), np.array([28, 28]))
    assert few[0] == pytest.approx(np.zeros(29)) and few[1].argmax() == 0 and few[1, 1] < -5.0


@given(st.data())
@settings(deadline=None)
def test_positions_stay_in_the_column_and_go_one_way(data: st.DataObject) -> None:
    """Whatever gaps, speeds and missing values there are, also where nothing is left."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    shares = rng.gamma(0.2, size=(3, GAPS.size)) * (rng.random((3, GAPS.size)) < 0.5)
    line = Timeline(COLUMN, GAPS, shares, rng.gamma(0.3, size=(3, COLUMN.size + 1)))
    wanted, drawn = rng.dirichlet(np.full(8, 0.2), size=2)
    line = line.hastened(wanted, drawn).hastened(drawn, wanted[::-1].copy())
    counts, end = rng.integers(0, 3, 50), float(line.positions_of_edges[-1])
    at, back = np.sort([line.positions(rng.integers(0, 8, 50), rng), np.where(rng.random(50) < 0.3, end, 0.0)], axis=0)
    for left in range(20, 0, -1):
        rows, before = np.full(50, left), (back.copy(), at.copy())
        at = line.moved(counts, at, rows, rng, ahead=True)
        back = line.moved(counts, back, rows, rng, ahead=False)
        assert (at >= before[1]).all() and (back <= before[0]).all()
        assert back.min() >= -1e-9 * end and at.max() <= end * (1.0 + 1e-9)
        codes = line.codes(counts, at, rng)
        assert codes.min() >= 0 and codes.max() <= 8


def test_speeds_give_bins_the_rows_that_they_should_have() -> None:
    """Four rounds from a speed of 1 in each bin: L1 from 0.52 to below 0.1; 200,000 rows, so chance adds 0.01."""
    wanted = np.array([0.05, 0.05, 0.1, 0.3, 0.25, 0.15, 0.05, 0.05])
    line, counts, off = a_line(1e5), np.zeros(1000, np.int64), list[float]()
    for _ in range(5):
        rng = np.random.default_rng(1)
        codes = line.codes(counts.repeat(200), gone(line, 1000, 200, rng).ravel(), rng)
        drawn = np.bincount(codes, minlength=8) / len(codes)
        off.append(float(np.abs(drawn - wanted).sum()))
        line = line.hastened(wanted, drawn)
    assert off[0] > 0.5 and off[-1] < 0.1


def test_values_are_missing_as_often_as_they_are() -> None:
    """20,000 rows, of which a tenth has none: the standard deviation is 0.0021, so 0.013 is six of them."""
    line, counts = a_line(1e4, absent=0.1), np.zeros(20_000, np.int64)
    codes = line.codes(counts, np.full(20_000, 1.3e5), np.random.default_rng(0))
    assert set(codes.tolist()) == {1, 8} and np.mean(codes == 8) == pytest.approx(0.1, abs=0.013)


@dataclass(frozen=True)
class Made:
    """Events of people, and a noisy model of them."""

    real: pd.DataFrame
    missing: float
    fitted: fedsyn.Synthesizer


@pytest.fixture(scope="module", params=[0.0, 0.1], ids=["all known", "some missing"])
def made(request: pytest.FixtureRequest) -> Made:
    real, columns = events.events(events.LAWS["payments"], 1000, 0), dict(events.SCHEMA["columns"])
    rows = events.in_words(real)
    if request.param:
        rows.loc[np.random.default_rng(0).random(len(rows)) < request.param, "at"] = None
        columns["at"] = {**columns["at"], "missing": True}
    schema = {**events.SCHEMA, "columns": columns}
    fitted = fedsyn.Synthesizer(1.0, 1e-6, schema, seed=0, privacy={"unit": "person"}).fit(rows)
    return Made(real, request.param, fitted)


@pytest.mark.slow
def test_many_events_of_a_person_lie_all_over_the_year(made: Made) -> None:
    """Months of rows are less than half as far off as by steps, at epsilon 1; the seed is fixed."""
    by_gaps = events.errors(made.fitted, made.real)
    with events.by_steps():
        by_steps = events.errors(made.fitted, made.real)
    assert by_gaps[0] < 0.5 * by_steps[0] and by_gaps[3] < by_steps[3]


@pytest.mark.slow
def test_dates_are_missing_as_often_as_in_the_table(made: Made) -> None:
    assert made.fitted.sample(seed=0)["at"].isna().mean() == pytest.approx(made.missing, abs=0.05)
