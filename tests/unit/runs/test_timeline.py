"""Where the rows of a person stand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsyn
from experiments.persons import events, gaps, panels
from experiments.persons.run import distance
from fedsyn.runs.timeline import Timeline, _as_far
from fedsyn.table.schema.ordered import IntegerColumn

#: Bins of four to the octave, and eight equal ones.
GAPS = IntegerColumn(bins=[0, *range(1, 12), *np.rint(2.0 ** np.arange(3.75, 20.25, 0.25)).astype(int).tolist()])
COLUMN = IntegerColumn(lower=0, upper=999_999, bins=8)
EVEN = np.triu(np.full((8, 8), 1.0))


def exponential(mean: float) -> np.ndarray:
    """Shares of exponential gaps."""
    return -np.diff(np.exp(-np.asarray(GAPS.edges) / mean))


def a_line(*means: float, absent: float = 0.0, steps: np.ndarray = EVEN, busy: bool = True) -> Timeline:
    """The timeline of so many numbers of rows, each with exponential gaps of its own."""
    values, each = np.append(np.full(8, (1.0 - absent) / 8), absent), len(means)
    shares = np.stack([exponential(mean) for mean in means])
    return Timeline(COLUMN, GAPS, shares, np.stack([steps] * each), np.stack([values] * each), np.full(each, busy))


#: Steps between six years, a third of which stay in theirs.
IN_PANEL = np.eye(6) * 0.5 + np.eye(6, k=1) + 0.1 * np.triu(np.ones((6, 6)), 2)


def a_panel(shares: np.ndarray) -> Timeline:
    """The timeline of six years, with shares of gaps of 0, 1, 2, 3 and more years."""
    years, between = IntegerColumn(lower=2015, upper=2020, bins=6), IntegerColumn(bins=[0, 1, 2, 3, 4, 6])
    return Timeline(years, between, shares, IN_PANEL[None], np.full((1, 7), 1.0), np.zeros(1, bool))


def gone(line: Timeline, persons: int, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of rows after one at the start, by gaps alone, (persons, rows)."""
    at, counts, out = np.zeros(persons), np.zeros(persons, np.int64), np.empty((persons, rows))
    for row in range(rows):
        left = np.full(persons, rows - row)
        shares = line.shares(counts, at, left, ahead=True)
        odds = np.exp(line._steps(counts, at, shares, ahead=True))
        bins = (rng.random((persons, 1)) * odds.sum(axis=1)[:, None] > odds.cumsum(axis=1)).sum(axis=1)
        at = out[:, row] = line.moved(counts, np.minimum(bins, 7), at, shares, rng, ahead=True)
    return out


@pytest.mark.parametrize("mean", [5e3, 5e4, 5e5])
def test_rows_stand_as_if_all_gaps_had_been_drawn_until_they_fit(mean: float) -> None:
    """A hundred exponential gaps in a million. Of mean 5,000 nearly all fit: row k stands at 5,000 k.

    Of longer ones few do. Those that fit are even points: row k of 100 stands at k / 101, with a variance below
    1 / 400. Of 400 persons the mean has a standard deviation below 0.0025; 0.015 is six of them. The other 0.015 are
    what bins of a quarter of an octave and rates that are found step by step leave.
    """
    rows, found = 100, gone(a_line(mean), 400, 100, np.random.default_rng(0))
    assert (np.diff(found, axis=1) >= 0.0).all() and found.min() >= 0.0 and found.max() <= 1e6
    ideal = np.arange(1, rows + 1) * (mean if mean < 1e4 else 1e6 / (rows + 1))
    assert found.mean(axis=0) / 1e6 == pytest.approx(ideal / 1e6, abs=0.03)


@pytest.mark.parametrize("ahead", [True, False])
def test_steps_are_shares_of_gaps_that_lead_there(ahead: bool) -> None:
    """200,000 gaps that are drawn one by one: a share has a standard deviation of at most 0.0011, and 0.007 is six."""
    rng, line, n = np.random.default_rng(0), a_line(2e5), 200_000
    for position in (0.0, 3e5, 5.1e5, 999_999.5):
        bins = rng.choice(len(GAPS.edges) - 1, n, p=np.exp(line.logs[0]))
        gaps = line.low[bins] + rng.random(n) * (line.high[bins] - line.low[bins])
        to = position + gaps if ahead else position - gaps
        counts = np.histogram(to[(to >= 0.0) & (to <= line.marks[0, -1])], line.marks[0])[0]
        odds = np.exp(line._steps(np.array([0]), np.array([position]), np.exp(line.logs), ahead=ahead))[0]
        assert odds == pytest.approx(counts / n, abs=0.007)


def test_back_and_ahead_are_mirrored() -> None:
    line = a_line(2e5)
    end, counts, gaps_alone = line.marks[0, -1], np.zeros(3, np.int64), np.exp(line.logs)[[0, 0, 0]]
    positions = np.array([1e5, 5e5, 9e5])
    ahead = line._steps(counts, positions, gaps_alone, ahead=True)
    back = line._steps(counts, end - positions, gaps_alone, ahead=False)
    assert ahead == pytest.approx(back[:, ::-1])


def test_steps_of_the_model_stand_where_gaps_say_nothing_else() -> None:
    """Over all positions of a bin and all persons a step is as likely as the model says, if its gaps are as far.

    From the model's own persons, nearly all of whom stand in the first bin, with steps as gaps of the means 50,000 and
    300,000 alike make them; weights are taken to be those of one over their mean, so it is met to 0.05.
    """
    rng, counts = np.random.default_rng(0), np.repeat([0, 1], 20_000)
    absent, codes, line = np.zeros(40_000, np.bool_), np.zeros(40_000, np.int64), a_line(5e4, 3e5)
    positions = line.positions(counts, codes, rng)
    shares = line.shares(counts, positions, np.zeros(40_000, np.int64), ahead=True)
    by_gaps = np.exp(line._steps(counts, positions, shares, ahead=True))
    steps = np.triu(np.full((8, 8), 1e-4))
    steps[0] = (by_gaps / by_gaps.sum(axis=1, keepdims=True)).mean(axis=0)
    line = a_line(5e4, 3e5, steps=steps)
    odds = line.odds(counts, codes, positions, shares, absent, ahead=True)[:, :8]
    share = np.exp(odds) * steps[0]
    share /= share.sum(axis=1, keepdims=True)
    assert share.mean(axis=0) == pytest.approx(steps[0], abs=0.05)
    # Who goes slowly stays longer; who stands at the end of the bin leaves it.
    slow, late = counts == 0, positions > 1.1e5
    assert share[slow, 0].mean() > share[~slow, 0].mean() + 0.1 and share[late, 0].mean() < share[~late, 0].mean() - 0.1


def test_steps_are_fitted_to_gaps_and_keep_what_gaps_leave_open() -> None:
    """Steps that have the released gaps stay; others take them, and the odds of two steps with one gap stay."""
    rng = np.random.default_rng(0)
    parts = rng.gamma(0.5, size=(4, 6, 6))
    parts /= parts.sum(axis=0)
    every, started = rng.dirichlet(np.ones(6), 6), rng.gamma(2.0, size=6)
    found = np.einsum("gab,ab,a->g", parts, every, started)
    assert _as_far(every, parts, started, found) == pytest.approx(every, abs=1e-3)
    wanted = found * [3.0, 1.0, 0.5, 1.0]
    fitted = _as_far(every, parts, started, wanted)
    assert fitted.sum(axis=1) == pytest.approx(np.ones(6))
    # A gap alone leads to two bins at a time.
    alone = np.repeat(np.eye(3), 2, axis=1)[:, None, :].repeat(6, axis=1)
    fitted = _as_far(every, alone, started, np.array([0.7, 0.2, 0.1]))
    assert np.einsum("gab,ab,a->g", alone, fitted, started) / started.sum() == pytest.approx([0.7, 0.2, 0.1], abs=5e-3)
    assert fitted[:, 0::2] / fitted[:, 1::2] == pytest.approx(every[:, 0::2] / every[:, 1::2])


def test_rows_of_a_panel_stand_in_one_year_after_the_other() -> None:
    """Who has a row each year has one, though the model knows steps between years badly.

    A third of the steps of this model stay in their year, and it knows that gaps are of one year.
    """
    line, steps = a_panel(np.array([[0.002, 0.99, 0.005, 0.003, 0.0]])), IN_PANEL
    rng, zeros = np.random.default_rng(0), np.zeros(2_000, np.int64)
    positions = line.positions(zeros, zeros + 1, rng)
    shares = line.shares(zeros, positions, zeros + 3, ahead=True)
    odds = line.odds(zeros, zeros + 1, positions, shares, np.zeros(2_000, bool), ahead=True)[:, :6]
    weights = np.exp(odds) * steps[1]
    weights /= weights.sum(axis=1, keepdims=True)
    assert weights[:, 1].max() < 0.03 and weights[:, 2].min() > 0.95


def test_gaps_fit_as_often_as_theirs_do() -> None:
    """Of exponential gaps by the formula, to a fiftieth of a gap each: bins of gaps are even inside.

    Of gaps of a year, one in a hundred of none, k + 1 fit into k years with probability 1 - 0.99^(k + 1), and the bound
    is above it by less than a factor of 3.
    """
    line, before = a_line(5e4), np.array([[10.0, 40.0, 200.0]])
    odds = line.fit(np.zeros(1, np.int64), np.array([5e5]), before, np.array([400]))
    share = np.minimum(5e5 / (5e4 * np.stack([before, 401.0 - before])), 1.0)
    expected = -(np.stack([before, 401.0 - before]) * (share - 1.0 - np.log(share))).sum(axis=0)
    assert odds == pytest.approx(expected - expected.max(), abs=8.0)
    yearly = a_panel(np.array([[0.01, 0.99, 0.0, 0.0, 0.0]]))
    for k in (1, 2, 3):
        found = yearly.fit(np.zeros(1, np.int64), np.array([k + 0.5]), np.array([[k, k + 1.0]]), np.array([k + 1]))
        chance = 1.0 - 0.99 ** (k + 1)
        assert chance < np.exp(found[0, 1] - found[0, 0]) < 3.0 * chance


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
def test_positions_stay_in_their_bins_and_go_one_way(data: st.DataObject) -> None:
    """Whatever gaps, steps, speeds and missing values there are, also where nothing is left."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    shares = rng.gamma(0.2, size=(3, GAPS.size)) * (rng.random((3, GAPS.size)) < 0.5)
    steps = np.triu(rng.gamma(0.3, size=(3, 8, 8)) * (rng.random((3, 8, 8)) < 0.7))
    line = Timeline(COLUMN, GAPS, shares, steps, rng.gamma(0.3, size=(3, COLUMN.size + 1)), rng.random(3) < 0.5)
    wanted, drawn = rng.dirichlet(np.full(8, 0.2), size=2)
    line = line.hastened(wanted, drawn).hastened(drawn, wanted[::-1].copy())
    counts, codes = rng.integers(0, 3, 50), rng.integers(0, 8, 50)
    each = line.busy[counts].astype(int)
    at, bins, absent = line.positions(counts, codes, rng), codes.copy(), rng.random(50) < 0.2
    for ahead in (True, False):
        for left in range(20, 0, -1):
            shares = line.shares(counts, at, np.full(50, left), ahead=ahead)
            odds = line.odds(counts, bins, at, shares, absent, ahead=ahead)
            assert np.isfinite(odds).all() and odds.shape == (50, COLUMN.size)
            assert ((odds[:, :8].max(axis=1) < -20.0) == absent).all()
            to = rng.integers(0, 8, 50)
            to = np.maximum(to, bins) if ahead else np.minimum(to, bins)
            before, bins = at, to
            at = line.moved(counts, bins, at, shares, rng, ahead=ahead)
            assert ((at >= before) if ahead else (at <= before)).all()
            slack = 1e-9 * line.marks[each, -1]
            assert (at >= line.marks[each, bins] - slack).all() and (at <= line.marks[each, bins + 1] + slack).all()


def test_speeds_give_bins_the_rows_that_they_should_have() -> None:
    """Four rounds from a speed of 1 in each bin: L1 from 0.5 to below 0.1; 200,000 rows, so chance adds 0.01."""
    wanted = np.array([0.05, 0.05, 0.1, 0.3, 0.25, 0.15, 0.05, 0.05])
    line, off = a_line(1e5), list[float]()
    for _ in range(5):
        found = gone(line, 1000, 200, np.random.default_rng(1))
        drawn = np.histogram(found, line.marks[1])[0] / found.size
        off.append(float(np.abs(drawn - wanted).sum()))
        line = line.hastened(wanted, drawn)
    assert off[0] > 0.5 and off[-1] < 0.1


@dataclass(frozen=True)
class Made:
    """Events of people, and a noisy model of them."""

    real: pd.DataFrame
    missing: float
    fitted: fedsyn.Synthesizer


@pytest.fixture(scope="module", params=[0.0, 0.1], ids=["all known", "some missing"])
def made(request: pytest.FixtureRequest) -> Made:
    missing: float = request.param
    real, columns = events.events(events.LAWS["payments"], 1000, 0), dict(events.SCHEMA["columns"])
    rows = events.in_words(real)
    if missing:
        rows.loc[np.random.default_rng(0).random(len(rows)) < missing, "at"] = None
        columns["at"] = {**columns["at"], "missing": True}
    schema = {**events.SCHEMA, "columns": columns}
    return Made(real, missing, fedsyn.Synthesizer(1.0, 1e-6, schema, seed=0, privacy={"unit": "person"}).fit(rows))


@pytest.mark.slow
def test_many_events_of_a_person_lie_all_over_the_year(made: Made) -> None:
    """Months of rows are less than half as far off as by steps, at epsilon 1; the seed is fixed."""
    by_gaps = events.errors(made.fitted, made.real)
    with events.by_steps():
        by_steps = events.errors(made.fitted, made.real)
    assert by_gaps[0] < 0.5 * by_steps[0] and by_gaps[3] < by_steps[3]


@pytest.mark.slow
def test_dates_are_missing_as_often_as_in_the_table(made: Made) -> None:
    """Of each person's number of rows a share of the model; by steps a third of them would be."""
    assert made.fitted.sample(seed=0)["at"].isna().mean() == pytest.approx(made.missing, abs=0.03)


@pytest.mark.slow
def test_visits_of_summers_stay_in_summer() -> None:
    """Steps know the season, gaps do not: both together are nearer in months of the year and in gaps than steps."""
    rng = np.random.default_rng([48, 0])
    whose = np.repeat(np.arange(2000), np.minimum(rng.geometric(0.1, 2000), 20))
    day = np.clip(rng.integers(0, 4, len(whose)) * 365 + rng.normal(180, 45, len(whose)), 0, gaps.SPAN - 1).astype(int)
    day = day[np.lexsort([day, whose])]
    names = rng.integers(0, [[2], [6]], (2, len(whose)))
    real = pd.DataFrame({"id": whose, "sex": np.where(whose % 2, "m", "f"), "day": day})
    real["kind"], real["ward"] = np.array(["early", "late"])[names[0]], np.array(list("abcdef"))[names[1]]
    start = np.datetime64("2020-01-01")
    rows = real.assign(day=(start + real["day"].to_numpy()).astype(str))
    fitted = fedsyn.Synthesizer(1.0, 1e-6, gaps.SCHEMA, seed=0, privacy={"unit": "person"}).fit(rows)

    def off() -> list[float]:
        made = fitted.sample(seed=1)
        made["day"] = (pd.to_datetime(made["day"].astype(str)) - start).dt.days
        seen = [
            (
                (table["day"] % 365 // 30).value_counts(normalize=True),
                gaps.gaps(table)["gap"].value_counts(normalize=True),
            )
            for table in (real, made)
        ]
        return [distance(one, other) for one, other in zip(*seen, strict=True)]

    by_gaps = off()
    with events.by_steps():
        by_steps = off()
    assert by_gaps[0] < by_steps[0] and by_gaps[1] < 0.9 * by_steps[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["entries", "waves"])
def test_a_released_panel_has_the_steps_of_the_real_one(name: str) -> None:
    """Of one run: steps between years are nearer, and fewer rows of a firm share a year, than by steps alone."""
    real = panels.PANELS[name](1000, 0)
    made = fedsyn.Synthesizer(1.0, 1e-6, panels.schema(real), seed=0, privacy={"unit": "person"}).fit(real)
    by_gaps = panels.errors(made, real)
    with events.by_steps():
        by_steps = panels.errors(made, real)
    assert by_gaps[1] < 0.8 * by_steps[1] and by_gaps[3] < by_steps[3]
