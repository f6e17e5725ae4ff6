"""What a draft gives a place of its own: values that many rows share, a few different ones, and steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.evaluation.verdict import LOST
from fedsyn.front.synthesizer import Synthesizer
from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.approval import left
from fedsyn.table.schema.drafted_bins import FINEST
from fedsyn.table.schema.drafted_values import KEPT_SHARE, KEPT_SPREAD, Held, far_codes, spikes
from fedsyn.table.schema.ordered import IntegerColumn
from fedsyn.table.schema.vocabulary import FEW_ROWS

ROWS = 2_000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def amounts(zeros: float, rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    """Claims: most rows have none, the others a lognormal amount."""
    random = rng(seed)
    amount = np.minimum(300_000, np.exp(8.0 + 1.2 * random.normal(size=rows))).round(2)
    amount = np.where(random.random(rows) < zeros, 0.0, amount)
    return pd.DataFrame(
        {"amount": amount, "age": random.integers(18, 95, rows), "region": random.choice([*"ABC"], rows)}
    )


def column(values: Any, **asked: Any) -> BinnedColumn:
    frame = pd.DataFrame({"x": values, "y": np.resize(["a", "b"], len(values))})
    found = Schema.draft(frame, **asked).columns["x"]
    assert isinstance(found, BinnedColumn)
    return found


# Limits, codes and odd cells ------------------------------------------------------------------------------------------


def assay(limit: str, *first: str) -> list[str]:
    """Results of an assay, with a word in the place of those below its limit."""
    results = np.exp(rng().normal(size=ROWS)).round(2)
    texts = [limit if result < 0.5 else f"{result:.2f}" for result in results]
    return [*first, *texts[len(first) :]]


@pytest.mark.parametrize(
    "values, lower, upper",
    [
        (assay("<0.5"), 0.5, None),
        ([cell.replace(".", ",") for cell in assay("< 0.5")], 0.5, None),
        ([cell.replace("<0.5", "<0.5" if j % 2 else "<1") for j, cell in enumerate(assay("<0.5"))], 0.5, None),
        (assay("<0.5", "0.31"), 0.0, None),  # a number lies there: its bin stays
        (["<35" if x < 35 else str(x) for x in rng().integers(1, 90, ROWS) * 10], 40, None),  # no multiple of ten below
        ([">200" if x > 200 else str(x) for x in rng().integers(1, 90, ROWS) * 10], None, 200),
    ],
)
def test_no_bin_lies_beyond_a_limit_unless_a_number_does(
    values: list[str], lower: float | None, upper: float | None
) -> None:
    found = column(values)
    assert found.censored and (lower is None or found.lower == lower) and (upper is None or found.upper == upper)
    numbers, _ = found.parse_all([value for value in values if value[0] not in "<>"], frozenset())
    assert found.span[0] <= numbers.min() and numbers.max() <= found.span[1]


def test_a_code_for_missing_values_is_never_rounded_to_a_step() -> None:
    """-999 beside hundreds came back as -1000, and -1000 was taken for it."""
    rents = np.where(rng().random(ROWS) < 0.1, -999, 100 * rng(1).integers(-12, 40, ROWS))
    described = {"kind": "integer", "lower": -1200, "upper": 4000, "multiple_of": 100, "missing_codes": [-999]}
    for missing in (False, True):
        schema = Schema.from_dict({"columns": {"rent": {**described, "bins": "values", "missing": missing}}})
        for cells in (rents, rents.astype(str)):
            made = schema.decode(schema.encode(pd.DataFrame({"rent": cells})), rng())["rent"]
            assert made.tolist() == rents.tolist() and pd.api.types.is_integer_dtype(made.dtype)
    found = column(np.where(rents < 0, 9999, rents))
    assert found.missing_codes == (9999,) and found.multiple_of == 100  # type: ignore[attr-defined]
    places = {"kind": "decimal", "places": 1, "lower": -10, "upper": 5, "multiple_of": 0.5, "missing_codes": ["-9,9"]}
    schema = Schema.from_dict({"columns": {"x": {**places, "mark": ",", "bins": "values"}}})
    cells = ["-9,9", "1,5", "-10,0", "0,0"]
    assert schema.decode(schema.encode(pd.DataFrame({"x": cells})), rng())["x"].tolist() == cells


def test_a_whole_step_is_saved_as_one() -> None:
    for kind, step, saved in (("integer", 100, "100\n"), ("decimal", 2.0, "2\n"), ("decimal", 0.5, "0.5\n")):
        described = {"kind": kind, "lower": 0, "upper": 500, "multiple_of": step}
        schema = Schema.from_dict({"columns": {"x": described | ({"places": 1} if kind == "decimal" else {})}})
        assert f"multiple_of: {saved}" in schema.dumps() and Schema.loads(schema.dumps()) == schema


NUMBERS_, DAYS_ = (
    rng().normal(20, 3, 400).round(1).astype(str).tolist(),
    (np.datetime64("2022-01-01") + rng().integers(0, 700, 400)).astype(str).tolist(),
)
TIMES_ = [f"{day} {hour:02d}:00" for day, hour in zip(DAYS_, rng().integers(0, 24, 400), strict=True)]


@pytest.mark.parametrize(
    "values, odd",
    [
        *((NUMBERS_, odd) for odd in ("sixty", "1.2.3", "12,5", "~20", "20.5kg", "120/80")),
        *((DAYS_, odd) for odd in ("2023-02-30", "2023-2-3", "05.03.2023", "2023-01")),
        *((TIMES_, odd) for odd in ("2023-01-05", "2023-02-30 10:00", "24:00")),
        ([f"${1000 + 7 * k:,}" for k in range(400)], "€5,000"),
    ],
)
def test_an_odd_cell_moves_the_draft_as_a_missing_one_does(values: list[str], odd: str) -> None:
    """Such a cell made the column an identifier, or text, and it was left out."""
    keys = {"kind", "lower", "upper", "bins", "atoms", "values", "multiple_of", "format", "places", "zone", "step"}
    drafts = [column([cell, *values[1:]]) for cell in (odd, "")]
    assert len({str(draft.model_dump(include=keys)) for draft in drafts}) == 1
    assert drafts[0].unlisted and not drafts[1].unlisted


def test_what_the_column_reads_is_no_odd_cell() -> None:
    """A few negative numbers stay numbers where another cell is none."""
    found = column(["1.2.3", "-4.5", "-3.5", *NUMBERS_[3:]])
    assert found.unlisted and found.parse("-4.5") is not None and found.lower <= -4.5


def test_days_as_excel_counts_them_are_hinted_at_and_amounts_are_not() -> None:
    random = rng()
    frame = pd.DataFrame({"start": random.integers(43_831, 44_926, ROWS), "pay": random.integers(330, 540, ROWS) * 100})
    frame["rounded"] = np.where(random.random(ROWS) < 0.3, frame["pay"], random.integers(33_000, 54_000, ROWS))
    frame["wide"] = random.integers(20_000, 54_000, ROWS)
    hints = Schema.draft(frame).hints
    assert set(hints) == {"start"} and "dates, counted in days as Excel does (20" in hints["start"][0]


@pytest.mark.parametrize("name", ["abalone", "adult", "compas", "diabetes", "insurance", "marketing", "shoppers"])
def test_no_benchmark_table_has_a_hint_of_days(name: str) -> None:
    folder = os.environ.get("FEDSYN_DATA", "")
    if not Path(folder, f"{name}.csv.gz").is_file():
        pytest.skip("FEDSYN_DATA names no folder with this table")
    frame = pd.read_csv(Path(folder, f"{name}.csv.gz"), nrows=2_000)
    assert not [hint for hints in Schema.draft(frame).hints.values() for hint in hints if "Excel" in hint]


def test_how_cells_are_written_is_a_drafted_fact() -> None:
    """One missing value makes floats of whole numbers: the neighbour's text differs in what is listed alone."""
    whole = pd.DataFrame({"x": [*range(40)] * 3, "y": ["a", "b"] * 60})
    drafts = [Schema.draft(frame) for frame in (whole, whole.assign(x=[*whole["x"][:-1], None]))]
    stored = [draft.columns["x"].stored for draft in drafts]
    assert stored[0] != stored[1] and all("notation" in draft.drafted["x"] for draft in drafts)
    assert "how its values are written" in left(drafts[0])["x"]
    assert "notation" not in Schema.draft(whole.astype(str), text=True).drafted["x"]  # of text there is none to list


# Atoms ----------------------------------------------------------------------------------------------------------------


def test_a_share_that_is_kept_is_half_of_one_that_is_lost() -> None:
    """The draft's threshold is the judge's, who stands on a higher floor."""
    assert (LOST["share"] / 2.0, LOST["spread"] / 2.0) == (KEPT_SHARE, KEPT_SPREAD)


@pytest.mark.parametrize("zeros", [0.7, 0.9, 0.97])
@pytest.mark.parametrize("rows", [1_000, 20_000])
def test_zeros_come_back_within_three_points(zeros: float, rows: int) -> None:
    """Drafted, at epsilon 1; without a bin of their own none or all of them did."""
    frame = amounts(zeros, rows)
    schema = Schema.draft(frame)
    assert schema.columns["amount"].atoms == (0.0,)  # type: ignore[union-attr]
    made = Synthesizer(schema=schema.approve(), epsilon=1.0, seed=1).fit(frame).sample(rows, seed=1)
    assert abs((made["amount"] == 0).mean() - (frame["amount"] == 0).mean()) < 0.03
    assert rows < 20_000 or abs(made["amount"].mean() / frame["amount"].mean() - 1.0) < 0.4  # it was five times


def test_amounts_have_bins_where_they_are() -> None:
    """Not 32 equal ones of 9,375."""
    found = column(amounts(0.92, 20_000)["amount"])
    inner = found.edges[(found.edges > 0) & (found.edges < found.edges[-1])] / 100.0
    assert len(inner) >= 6 and np.median(inner) < 10_000 and found.atoms == (0.0,)


def test_a_limit_and_a_cap_end_the_column() -> None:
    """Nothing is below a limit of detection, or above a cap."""
    load = np.clip(np.exp(3.0 + 2.0 * rng().normal(size=ROWS)), 20, 200).round()
    found = column(load)
    assert (found.lower, found.upper) == (20, 200) and set(found.atoms) == {20, 200}
    made = found.decode(found.codes_of(load), rng())
    assert made.between(20, 200).all() and (made == 20).mean() == pytest.approx((load == 20).mean())


def test_days_have_atoms_too() -> None:
    days = np.datetime64("2020-01-01") + rng().integers(0, 1_500, ROWS)
    days[: ROWS // 4] = np.datetime64("2021-01-01")
    assert column(days).atoms == ("2021-01-01",)


def test_a_column_whose_bins_are_single_values_has_no_atoms() -> None:
    assert column(np.where(rng().random(ROWS) < 0.8, 0, rng().integers(0, 20, ROWS))).atoms == ()


def test_a_share_that_noise_hides_or_that_its_bin_keeps_is_no_atom() -> None:
    numbers, counts = np.arange(100.0), np.full(100, 9)
    wide = IntegerColumn(lower=0, upper=99, bins=10)
    counts[40] = 109
    assert spikes(wide, Held(numbers, counts, counts), 1_000, 0.0).tolist() == [
        40.0
    ]  # 109 - 190 / 10 of 1,000 rows are moved
    assert spikes(wide, Held(numbers, counts, counts), 1_000, 0.046).tolist() == []  # two cells' noise are 92
    counts[40] = 62  # 62 - 143 / 10 = 48 of 1,000
    assert spikes(wide, Held(numbers, counts, counts), 1_000, 0.0).tolist() == []
    assert spikes(wide.cut(100), Held(numbers, counts, counts), 1_000, 0.0).tolist() == []
    few = np.array([FEW_ROWS - 1, *np.zeros(99, int)])
    assert spikes(wide, Held(numbers, few, few), FEW_ROWS, 0.0).tolist() == []  # of which nobody may hear
    counts[40] = 109
    people = np.where(numbers == 40, FEW_ROWS - 1, 9)
    assert spikes(wide, Held(numbers, counts, people), 1_000, 0.0).tolist() == []  # all of a few people


def test_a_number_of_bins_that_is_asked_for_has_atoms_beside_it() -> None:
    found = column(amounts(0.9)["amount"], bins=20)
    assert found.bins == 20 and found.atoms == (0.0,)


# Few values, and steps ------------------------------------------------------------------------------------------------


def test_a_few_different_values_are_listed_and_nothing_else_is_written() -> None:
    fte = rng().choice([0.5, 0.6, 0.75, 0.8, 1.0], ROWS)
    found = column(fte)
    assert found.values == (0.5, 0.6, 0.75, 0.8, 1.0)
    assert set(found.decode(rng().integers(0, 5, 500), rng())) == {0.5, 0.6, 0.75, 0.8, 1.0}
    codes = column(rng().choice([200, 404, 500], ROWS))
    assert codes.values == (200, 404, 500)
    assert column(rng().integers(0, 12, ROWS)).values == ()  # which bins of one number each hold as well


def test_a_value_that_few_rows_hold_is_not_listed() -> None:
    fte = np.r_[rng().choice([0.5, 0.75, 1.0], ROWS), np.full(FEW_ROWS - 1, 0.6)]
    assert column(fte).values == () and column(np.r_[fte, 0.6]).values == (0.5, 0.6, 0.75, 1.0)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        (100 * rng().integers(1, 900, ROWS), 100),
        (rng().integers(1, 400, ROWS) / 2, 0.5),
        (rng().integers(1, 400, ROWS) / 4, 0.25),
        (pd.Timestamp("2024-01-01") + pd.to_timedelta(15 * rng().integers(0, 9_000, ROWS), "min"), 15),
        (pd.to_timedelta(300 * rng().integers(0, 9_000, ROWS), "s"), 300),
        ([f"{k // 12:02d}:{k % 12 * 5:02d}" for k in rng().integers(0, 288, ROWS).tolist()], 5),
    ],
)
def test_steps_are_drafted_and_every_value_is_a_multiple(values: Any, step: float) -> None:
    frame = pd.DataFrame({"x": values, "y": np.resize(["a", "b"], ROWS)})
    schema = Schema.draft(frame)
    found = schema.columns["x"]
    assert isinstance(found, BinnedColumn) and found.multiple_of == step  # type: ignore[attr-defined]
    made = schema.decode(schema.encode(frame), rng())["x"]
    numbers, bad = found.parse_all(made.tolist(), frozenset())
    assert not bad.any() and np.array_equal(numbers, np.floor(numbers)) and made.dtype == frame["x"].dtype
    real, _ = found.parse_all(frame["x"].tolist(), frozenset())
    assert found.span[0] <= real.min() and real.max() <= found.span[1]


def test_a_step_of_few_values_or_of_days_is_none() -> None:
    assert getattr(column(np.resize([1200, 123450], 400)), "multiple_of", None) is None  # 50 by chance
    assert column(np.datetime64("2024-01-01") + 7 * rng().integers(0, 300, ROWS)).multiple_of == 1  # type: ignore[attr-defined]


# Months ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("months", [20, 80, 200])
def test_months_have_bins_of_whole_months(months: int) -> None:
    """So no month's rows go to the next, and none of its shares by more than its bin."""
    when = np.datetime64("2010-01", "M") + np.minimum(*rng().integers(0, months, (2, ROWS)))
    numbers = pd.Series(when).dt.strftime("%Y%m").astype(int)
    found = column(numbers)
    assert len(found.edges) - 1 <= max(FINEST, months if found.values else 0)
    if not found.values:
        assert all(str(found.bound(edge)).endswith("-01") for edge in found.edges[:-1])
    frame = pd.DataFrame({"x": numbers, "y": np.resize(["a", "b"], ROWS)})
    schema = Schema.draft(frame)
    made = schema.decode(schema.encode(frame), rng())["x"]
    assert (made % 100).between(1, 12).all() and (schema.encode(frame.assign(x=made)) == schema.encode(frame)).all()


# Codes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "held", "codes"),
    [
        ([1, 2, 3, 4, 99], 30, [99]),
        ([-9, -8, 1, 2, 3], 30, [-9, -8]),
        ([-999, 1, 2, 3, 999], 30, [-999]),  # 999 is nearer to 3 than -999 to 1, seen from above
        ([1, 2, 3, 99], 9, []),
        ([1, 2, 60, 99], 30, []),
    ],
)
def test_codes_are_farther_from_all_others_than_these_from_each_other(
    numbers: list[float], held: int, codes: list[float]
) -> None:
    found = far_codes(np.array(numbers, float), np.full(len(numbers), held), [-999, -9, -8, 99, 999])
    assert sorted(found) == codes
