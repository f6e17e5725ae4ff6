"""What lies between the rows of a person: it is part of the record, and comes out again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsyn
from fedsyn.runs.gaps import spaced
from fedsyn.table.data.records import RecordMaker
from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.holdings import Holding
from fedsyn.table.schema.ordered import DateColumn
from fedsyn.table.schema.persons import COUNT, GAP, gap_column, no_row_code

DAY: dict[str, Any] = {"kind": "date", "lower": "2022-01-01", "upper": "2023-12-31", "bins": 8}
KIND: dict[str, Any] = {"kind": "categorical", "categories": ["control", "new"], "other": False}


def a_schema(day: dict[str, Any] = DAY, **persons: Any) -> dict[str, Any]:
    keys = {"id": "patient", "order": "day", "most_rows": 8, **persons}
    columns = {"patient": {"kind": "identifier", "make": "sequence"}, "day": day, "kind": KIND}
    return {"columns": columns, "persons": keys}


def visits(persons: int, seed: int = 0) -> pd.DataFrame:
    """Controls come a week after the last visit, others after half a year; a bin of the schema is three months."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, persons)
    whose = np.repeat(np.arange(persons), counts)
    new = rng.random(len(whose)) < 0.3
    gap = np.where(new, rng.integers(150, 200, len(whose)), rng.integers(6, 9, len(whose)))
    first = np.r_[True, whose[1:] != whose[:-1]]
    gap[first] = rng.integers(0, 300, persons)
    since = np.cumsum(gap)
    day = since - np.repeat(since[first] - gap[first], counts)
    table = pd.DataFrame({"patient": whose, "day": day, "kind": np.where(new, "new", "control")})
    table = table[day < 730].reset_index(drop=True)
    return table.assign(day=(np.datetime64("2022-01-01") + table["day"].to_numpy()).astype(str))


def gaps(table: pd.DataFrame) -> pd.Series:
    days = pd.to_datetime(table["day"].astype(str))
    return days.groupby(table["patient"]).diff().dt.days.dropna()


@pytest.mark.slow
def test_visits_a_week_apart_come_out_a_week_apart() -> None:
    """At epsilon 5 and 2,000 persons; about 2,900 gaps, so a share is off by 0.009 by chance; the seed is fixed.

    Bins alone know nothing below three months: their gaps of a week are those of chance, a tenth of them.
    """
    real = visits(2000)
    made = fedsyn.Synthesizer(5.0, 1e-6, a_schema(), seed=0, privacy={"unit": "person"}).fit(real).sample()
    weeks = [gaps(table).between(5, 10).mean() for table in (real, made)]
    halves = [gaps(table).between(140, 220).mean() for table in (real, made)]
    assert weeks[0] > 0.6 and weeks[1] == pytest.approx(weeks[0], abs=0.1)
    assert halves[1] == pytest.approx(halves[0], abs=0.1)
    for _, own in made.groupby("patient"):
        assert own["day"].astype(str).is_monotonic_increasing


@pytest.mark.thorough
def test_released_gaps_are_those_that_come_out() -> None:
    """Persons have at most two visits, and dates one bin: a gap that comes out is a draw from the released ones.

    The release is noisy; what is tested is the way from it to the table. Persons are independent of each other. For a
    set of bins of gaps, the share of n gaps in it is above its expectation by t with a probability of at most
    exp(-2 n t^2) (Hoeffding). An L1 distance is twice the largest such excess of a set, and K bins have 2^K sets. So
    it is above sqrt(2 (K ln 2 + ln 1e9) / n) by chance in at most one of 1e9 seeds: 0.07 for 16,000 gaps and 28 bins.
    Dates that are drawn without gaps are off by 1.7.
    """
    schema = a_schema({**DAY, "bins": 1}, most_rows=2)
    real = visits(2000).groupby("patient").head(2)
    fitted = fedsyn.Synthesizer(1.0, 1e-6, schema, seed=0, privacy={"unit": "person"}, progress=False).fit(real)
    column = Schema.model_validate(schema).records.columns[GAP]
    (released,) = fitted.model.project_many([(GAP,)])
    bins = len(column.edges) - 1  # and one for "no row"
    expected = released[:bins] / released[:bins].sum()
    between = gaps(fitted.sample(20_000, seed=1)).to_numpy(np.float64)
    shares = np.bincount(column.codes_of(between), minlength=bins) / len(between)
    assert len(between) > 15_000 and bins <= 30
    assert np.abs(shares - expected).sum() < np.sqrt(2 * (bins * np.log(2) + np.log(1e9)) / len(between))


def records_of(schema: Schema, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    maker = RecordMaker(schema, np.random.default_rng(0))
    Holding(schema, maker).encoded(table)
    block = maker.record()
    names = list(schema.records.columns)
    ordered = [name for name in names if hasattr(schema.records.columns[name], "edges")]
    return block.codes[:, names.index(GAP)], block.numbers[:, ordered.index(GAP)]


def test_a_record_has_the_gap_of_its_two_rows() -> None:
    schema = Schema.model_validate(a_schema())
    table = pd.DataFrame(
        {
            "patient": [1, 1, 2, 3, 3],
            "day": ["2022-03-01", "2022-02-01", "2022-05-05", "2022-01-01", "2023-12-31"],
            "kind": "new",
        }
    )
    codes, numbers = records_of(schema, table)
    column = schema.records.columns[GAP]
    assert numbers[[0, 2]].tolist() == [28.0, 729.0] and np.isnan(numbers[1])
    assert codes[1] == no_row_code(column)
    low, high = column.ends
    assert (low[codes[[0, 2]]] <= [28, 729]).all() and (high[codes[[0, 2]]] >= [28, 729]).all()
    # "no row" stands beside a single row, and beside no other number.
    zero = next(zero for zero in schema.records.domain.zeros if zero.clique == (COUNT, GAP))
    assert not zero.cells[0, no_row_code(column)] and zero.cells[1:, no_row_code(column)].all()


def test_a_row_without_a_day_has_no_gap() -> None:
    schema = Schema.model_validate(a_schema({**DAY, "missing": True}))
    table = pd.DataFrame({"patient": [1, 1], "day": ["2022-03-01", None], "kind": "new"})
    codes, numbers = records_of(schema, table)
    column = schema.records.columns[GAP]
    assert column.missing and codes[0] == len(column.edges) - 1
    assert np.isnan(numbers[0])


def test_gaps_are_of_columns_that_give_the_order() -> None:
    for order in (True, False):
        assert gap_column(Schema.model_validate(a_schema(order=order))) is None
    number = {"kind": "numeric", "lower": 0.0, "upper": 4.0, "bins": 4}
    column = gap_column(Schema.model_validate(a_schema(number)))
    assert column is not None and column.edges[0] == 0.0 and column.edges[-1] == 4.0
    whole = gap_column(Schema.model_validate(a_schema({"kind": "integer", "lower": 3, "upper": 3, "bins": 1})))
    assert whole is not None and whole.size == 2  # no gap but 0, and no row


@pytest.mark.parametrize(
    "order",
    [
        {"kind": "integer", "lower": 0, "upper": 1460, "bins": 24},
        {"kind": "integer", "lower": 0, "upper": 12_000, "bins": 24},
        {"kind": "numeric", "lower": 0.0, "upper": 3.0, "bins": 12},
    ],
)
def test_empty_bins_of_long_gaps_do_not_move_a_mean_much_farther_than_all_others(order: dict[str, Any]) -> None:
    """Equal noise in bins moves a mean by the root of the sum of the squares of their numbers.

    In units of where the last two octaves begin, that is 3.4 for them with one bin each, and 1.8 for all below with
    four bins each: 1.9 times as much. With four bins in each of the two, too, it would be 6.8, 3.9 times as much.
    """
    column = gap_column(Schema.model_validate(a_schema(order)))
    assert column is not None
    middles, begin = (column.edges[:-1] + column.edges[1:]) / 2.0, column.edges[-1] / 4.0
    far = column.edges[1:] > 1.2 * begin
    assert np.linalg.norm(middles[far]) < 2.3 * np.linalg.norm(middles[~far])
    starts, widths = column.edges[:-1][~far], np.diff(column.edges)[~far]
    assert (widths[1:] <= np.maximum(1.0, 0.26 * starts[1:])).all() and len(starts) > 20  # a week is not ten days


@pytest.mark.parametrize(("most", "parts"), [(365 * 35, 4), (31 * 86_400, 2), (366 * 86_400, 1)])
def test_the_more_octaves_there_are_the_fewer_bins_has_each(most: int, parts: int) -> None:
    """Days of 35 years, seconds of a month and of a year: noise of a run lies in every bin."""
    column = gap_column(Schema.model_validate(a_schema({"kind": "integer", "lower": 0, "upper": most, "bins": 24})))
    assert column is not None and len(column.edges) - 1 <= 45
    short = column.edges[(column.edges >= 16) & (column.edges <= most / 8)]
    assert (short[parts:] == 2 * short[:-parts]).all() and len(short) > parts


@given(st.data())
def test_numbers_stay_in_their_bins_ascend_and_keep_gaps_that_bins_allow(data: st.DataObject) -> None:
    counts = np.array(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    rows, width = int(counts.sum()), data.draw(st.integers(1, 40))
    whose = np.repeat(np.arange(len(counts)), counts)
    # True numbers that ascend, the bins in which they lie, and any numbers of these bins.
    true = np.array(data.draw(st.lists(st.integers(0, 200), min_size=rows, max_size=rows)), np.int64)
    true = true[np.lexsort((true, whose))]
    low = (true // width * width).astype(np.float64)
    high = low + width - 1
    drawn = low.astype(np.int64) + data.draw(st.integers(0, width - 1))
    same = np.r_[False, whose[1:] == whose[:-1]] if rows else np.zeros(0, bool)
    gaps = np.where(same, np.diff(true, prepend=0), np.nan)
    found = spaced(counts, drawn, (low, high), lambda here, *_: gaps[here + 1])
    assert ((found >= low) & (found <= high)).all()
    assert (np.diff(found, prepend=0)[same] == gaps[same]).all()  # they can be kept: true numbers do
    # Gaps that no bins allow, unknown ones and rows without a number move nothing out of its bin or back.
    wrong = np.where(same, data.draw(st.integers(0, 300)), np.nan)
    wrong[::2] = np.nan
    found = spaced(counts, drawn, (low, high), lambda here, *_: wrong[here + 1])
    assert ((found >= low) & (found <= high)).all() and (np.diff(found, prepend=0)[same] >= 0).all()
    unknown = np.full(rows, np.nan)
    assert (spaced(counts, drawn, (unknown, unknown), lambda here, *_: gaps[here + 1]) == drawn).all()


def test_days_are_drawn_once(watch: Callable[[type, str], list[Any]]) -> None:
    """The column that gives the order has its numbers before the others are drawn, and keeps them."""
    made = fedsyn.Synthesizer(5.0, 1e-6, a_schema(), seed=0, privacy={"unit": "person"}).fit(visits(300))
    drawn = watch(BinnedColumn, "draw")
    table = made.sample(200, seed=1)
    days = [call for call in drawn if isinstance(call.owner, DateColumn) and len(call.arguments[0]) == len(table)]
    assert len(days) == 1


def test_gaps_that_do_not_fit_together_come_nearly_as_if_all_were_drawn_until_they_fit() -> None:
    """Three visits in a bin of ninety days, whose gaps are even among 5, 40 and 80: six of nine pairs fit.

    They are 5 and 5, 5 and 40, 40 and 5, 40 and 40, 5 and 80, 80 and 5. So half of the gaps are 5, a third 40, a sixth
    80. One sweep comes as near as 0.043; 80 would be a third of the later gaps if they were drawn first. A share of
    40,000 has a standard deviation of at most 0.0025, so 0.055 is 4.8 of them more: by chance, one of six is beyond it
    in less than 1e-5 of all seeds.
    """
    rng, persons, days = np.random.default_rng(0), 40_000, np.array([5.0, 40.0, 80.0])

    def draws(here: np.ndarray, nearest: np.ndarray, farthest: np.ndarray, _: np.ndarray) -> np.ndarray:
        fits = (days >= nearest[:, None]) & (days <= farthest[:, None])
        place = rng.random(len(here)) * fits.sum(axis=1)
        return np.asarray(days[(place[:, None] >= fits.cumsum(axis=1)).sum(axis=1)])

    counts, bins = np.full(persons, 3), (np.zeros(3 * persons), np.full(3 * persons, 89.0))
    found = spaced(counts, rng.integers(0, 90, 3 * persons), bins, draws).reshape(persons, 3)
    assert (found >= 0).all() and (found < 90).all()
    for gap in np.diff(found, axis=1).T:
        shares = [np.mean(gap == day) for day in days]
        assert shares == pytest.approx([1 / 2, 1 / 3, 1 / 6], abs=0.055)


@pytest.mark.parametrize("unit", [1.0, 1e-4])
def test_many_rows_in_one_bin_lie_all_over_it(unit: float) -> None:
    """A hundred rows in a bin of a thousand, each gap exponential with mean 50: they have to be five times as short.

    Exponential gaps that have to fit are those of even points: of mean 10, and rows lie anywhere in the bin alike. A
    sweep alone left five of six rows at its beginning. A share of 200 people's gaps, of which each person's lie in one
    bin, has a standard deviation below 0.003; the other 0.03 are what rates that are found in four moves leave.
    """
    rng, persons, size = np.random.default_rng(0), 200, 100

    def draws(here: np.ndarray, nearest: np.ndarray, farthest: np.ndarray, rates: np.ndarray) -> np.ndarray:
        rate = 1.0 / (50.0 * unit) + rates
        below = np.exp(-rate * np.maximum(nearest, 0.0)), np.exp(-rate * np.maximum(farthest, 0.0))
        return np.asarray(-np.log(below[0] - rng.random(len(here)) * (below[0] - below[1])) / rate)

    rows = persons * size
    counts, bins = np.full(persons, size), (np.zeros(rows), np.full(rows, 1000.0 * unit))
    found = spaced(counts, 1000.0 * unit * rng.random(rows), bins, draws).reshape(persons, size) / unit
    gaps = np.diff(found, axis=1)
    assert (gaps >= 0.0).all() and found.min() >= 0.0 and found.max() <= 1000.0
    for below in (1.0, 5.0, 10.0, 30.0):
        assert np.mean(gaps < below) == pytest.approx(1.0 - np.exp(-below / 10.0), abs=0.04)
    for at in (250.0, 500.0, 750.0):
        assert np.mean(found < at) == pytest.approx(at / 1000.0, abs=0.04)
