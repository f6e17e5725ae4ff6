"""One draft at both doors: the same rows in a file and in a frame, its hints, and columns at their ends."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsyn import Schema
from fedsyn.errors import ConfigError, DataError, FedsynError, SchemaError
from fedsyn.front.cli.schemas import drafted as drafted_by_command
from fedsyn.table.data.sources import read_cells
from fedsyn.table.schema.drafting import drafted

ROWS = 240
RNG = np.random.default_rng(0)
DAYS = pd.Series(pd.Timestamp("2018-01-01") + pd.to_timedelta(RNG.integers(0, 2_500, ROWS), "D"))


def as_file(frame: pd.DataFrame, folder: Path) -> Path:
    path = folder / "rows.csv"
    frame.to_csv(path, index=False)
    return path


def said(schema: Schema) -> dict[str, Any]:
    """What a schema says of its columns, but in which dtype they came and how text writes them."""
    how = ("stored", "format", "texts", "other", "categories", "approved")
    columns = {name: {k: v for k, v in c.items() if k not in how} for name, c in schema.to_dict()["columns"].items()}
    for column in columns.values():
        column["drafted"] = [mark for mark in column.get("drafted", ()) if mark != "notation"]
    return {"columns": columns, "hints": schema.hints}


# Dates that are numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["%Y%m%d", "%Y%m", "%d%m%Y", "%m%d%Y"])
@pytest.mark.parametrize("missing", [False, True])
def test_days_and_months_that_are_whole_numbers_are_dates_at_both_doors(
    form: str, missing: bool, tmp_path: Path
) -> None:
    numbers = DAYS.dt.strftime(form).astype(int)
    column = numbers.where(np.arange(ROWS) % 9 > 0).astype("Int64") if missing else numbers
    frame = pd.DataFrame({"when": column, "y": ["a", "b"] * (ROWS // 2)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing rests on what pandas takes numbers for
        schema = Schema.draft(frame)
        made = schema.decode(schema.encode(frame), np.random.default_rng(0))["when"]
    assert schema.columns["when"].kind == "date" and made.dtype == column.dtype
    texts = made.dropna().astype(int).astype(str).str.zfill({"%Y%m": 6}.get(form, 8))
    assert pd.to_datetime(texts, format=form).between("2018-01-01", "2024-12-31").all()
    by_command = drafted(Schema, read_cells(as_file(frame, tmp_path)).frame, text=True).schema
    assert said(by_command) == said(schema)
    assert by_command.columns["when"].format == form  # type: ignore[union-attr]


def test_days_beside_missing_ones_that_pandas_writes_as_floats_are_dates(tmp_path: Path) -> None:
    frame = pd.DataFrame({"when": DAYS.dt.strftime("%Y%m").astype(float).where(np.arange(ROWS) % 9 > 0), "y": 1.5})
    schema = drafted(Schema, read_cells(as_file(frame, tmp_path)).frame, text=True).schema
    assert schema.columns["when"].format == "%Y%m.0" and Schema.draft(frame).columns["when"].kind == "date"


@pytest.mark.parametrize(
    "values",
    [
        [201800, 201813, 201901],  # no months
        [200_103, 200_409],  # two numbers may be months by chance
        [3041990, 5061991, 1011992],  # day or month first?
        [31041990, 5061991, 21011992],  # the 31st of April
    ],
)
def test_digits_that_need_not_be_dates_are_numbers(values: list[int]) -> None:
    assert Schema.draft(pd.DataFrame({"x": values * 20})).columns["x"].kind == "integer"


def test_an_hour_that_a_clock_shows_twice_is_drafted() -> None:
    moments = pd.date_range("2023-10-28", periods=3000, freq="1min", tz="Europe/Berlin")
    frame = pd.DataFrame({"at": moments, "y": np.arange(3000) % 7})
    schema = Schema.draft(frame)
    assert schema.columns["at"].step == "minute"  # type: ignore[union-attr]
    made = schema.decode(schema.encode(frame), np.random.default_rng(0))
    assert (schema.encode(made) == schema.encode(frame)).all()


def test_months_that_a_constraint_compares_stay_in_whole_bins() -> None:
    """What is written without its day is read as the first of its month: no bin may begin within one."""
    rng = np.random.default_rng(0)
    first = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, 2000), unit="D")
    later = first + pd.to_timedelta(rng.integers(0, 90, 2000), unit="D")
    frame = pd.DataFrame(
        {"hired": first.strftime("%Y-%m"), "left": later.strftime("%Y-%m"), "x": rng.integers(0, 9, 2000)}
    )
    schema = Schema.draft(frame)
    assert [one.rule for one in schema.proposed] == ["hired <= left"]
    codes = schema.encode(frame)
    assert (schema.encode(schema.decode(codes, rng)) == codes).all()


def test_periods_come_back() -> None:
    frame = pd.DataFrame({f: DAYS.dt.to_period(f) for f in ("D", "M", "Q")})
    schema = Schema.draft(frame)
    assert [column.kind for column in schema.columns.values()] == ["date", "date", "categorical"]
    made = schema.decode(schema.encode(frame), np.random.default_rng(0))
    assert made.dtypes.tolist() == frame.dtypes.tolist()


# Names that are no text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [0, 2.5, None, True, ("a", "b")])
def test_names_that_are_no_text_are_refused_in_one_sentence(name: Any) -> None:
    frame = pd.DataFrame({"x": [1, 2] * 30, "y": ["a", "b"] * 30})
    schema, odd = Schema.draft(frame), frame.copy()
    odd.columns = pd.Index([name, "y"], dtype=object, tupleize_cols=False)
    for refused in (
        lambda: Schema.draft(odd),
        lambda: schema.approve(frame=odd),
        lambda: schema.approve("x", frame=odd),
    ):
        with pytest.raises(DataError, match=r"^column names must be text: frame.columns = frame.columns.map\(str\)$"):
            refused()
    odd.columns = odd.columns.map(str)
    assert Schema.draft(odd).columns
    with pytest.raises(ConfigError, match="label: expected a column's name, which is text"):
        Schema.draft(frame, label=name or 0)
    for keep in ([name], "x"):
        with pytest.raises(ConfigError, match="keep: expected a list of columns' names"):
            Schema.draft(frame, keep=keep)
    with pytest.raises(SchemaError, match="a column's name is text"):
        schema.approve(name)


def test_columns_of_several_levels_are_named_as_text() -> None:
    frame = pd.DataFrame({("a", "x"): [1, 2] * 30, ("a", "y"): [3, 4] * 30})
    with pytest.raises(DataError, match="column names must be text"):
        Schema.draft(frame)
    frame.columns = frame.columns.map(str)
    assert list(Schema.draft(frame).columns) == ["('a', 'x')", "('a', 'y')"]


# Numbers at their ends ------------------------------------------------------------------------------------------------


SMALL = RNG.integers(0, 50, ROWS)
EXTREME: dict[str, tuple[Any, str]] = {
    "inf": (np.where(SMALL < 5, np.inf, SMALL), "integer"),
    "-inf": (np.where(SMALL < 5, -np.inf, SMALL + 0.5), "decimal"),
    "2^53": (np.r_[SMALL[1:], 2**53 - 1], "integer"),
    "uint64": (SMALL.astype("uint64"), "integer"),
    "beyond int64": (np.where(SMALL < 25, 2**64 - 1, 2**63 + 5).astype("uint64"), "categorical"),
    "huge codes": (2**62 + SMALL % 3, "categorical"),
    "1e-301": (RNG.random(ROWS) * 1e-301, "numeric"),
    "1e18": (RNG.random(ROWS) * 1e18, "numeric"),
    "1e300": (RNG.normal(size=ROWS) * 1e300, "numeric"),
    "ten digits": (SMALL * 10**9 + 7, "integer"),
}


@pytest.mark.parametrize("name", EXTREME)
def test_numbers_at_their_ends_are_drafted_approved_and_come_back(name: str, tmp_path: Path) -> None:
    values, kind = EXTREME[name]
    frame = pd.DataFrame({"x": values, "y": ["a", "b"] * (ROWS // 2)})
    schema = Schema.draft(frame).approve(frame=frame)
    column = schema.columns["x"]
    made = schema.decode(schema.encode(frame), np.random.default_rng(0))["x"]
    assert column.kind == kind and made.dtype == frame["x"].dtype
    by_command = drafted(Schema, read_cells(as_file(frame, tmp_path)).frame, text=True).schema
    if name != "inf":  # as floats with a point they have a decimal in a file
        assert by_command.columns["x"].kind == kind
    if kind == "categorical":
        assert set(made) == set(frame["x"])
        return
    finite = np.asarray(values, np.float64)[np.isfinite(np.asarray(values, np.float64))]
    assert column.lower <= finite.min() and finite.max() <= column.upper  # type: ignore[union-attr]
    assert by_command.columns["x"].upper == column.upper > 0  # type: ignore[union-attr]
    assert np.ptp(made.to_numpy(np.float64) / finite.max()) > 0


def test_whole_numbers_that_float64_does_not_tell_apart_are_codes_unless_they_are_kept() -> None:
    values = 2**60 + RNG.integers(0, 2**61, ROWS)
    frame = pd.DataFrame({"x": values, "y": ["a", "b"] * (ROWS // 2)})
    assert Schema.draft(frame).aside["x"].kind == "identifier"
    schema = Schema.draft(frame, keep=["x"])
    made = schema.decode(schema.encode(frame), np.random.default_rng(0))["x"]
    assert schema.columns["x"].kind == "numeric" and made.dtype == np.int64 and made.min() > 0


def test_a_minus_at_the_end_is_read() -> None:
    frame = pd.DataFrame({"x": [f"{k}-" if k % 2 else str(k) for k in range(90)], "y": ["a", "b"] * 45})
    column: Any = Schema.draft(frame).columns["x"]
    assert column.kind == "integer" and column.minus == "end" and column.parse("3-") == -3


def test_a_column_without_a_value_is_kept_where_somebody_asks_for_it() -> None:
    frame = pd.DataFrame({"empty": [np.nan] * 60, "y": ["a", "b"] * 30})
    assert Schema.draft(frame).aside["empty"].kind == "drop"
    for text in (False, True):
        schema = Schema.draft(frame.astype(object) if text else frame, keep=["empty"], text=text)
        assert schema.columns["empty"].missing
        assert (schema.encode(frame)[:, 0] == schema.columns["empty"].size - 1).all()


# Hints ----------------------------------------------------------------------------------------------------------------


def hinted() -> pd.DataFrame:
    age = [999 if k % 9 == 0 else k % 90 for k in range(ROWS)]
    return pd.DataFrame({"age": age, "answer": ["Yes", "yes", "no"] * (ROWS // 3), "z": ["a", "b"] * (ROWS // 2)})


def test_hints_are_of_the_object_and_of_its_file_until_they_are_answered(tmp_path: Path) -> None:
    schema = Schema.draft(hinted())
    assert set(schema.hints) == {"answer"} | ({"age"} & set(schema.hints))
    (hint,) = schema.hints["answer"]
    assert "several spellings" in hint and hint in repr(schema) and "several spellings" in schema._repr_html_()
    schema.save(tmp_path / "schema.yaml")
    again = Schema.load(tmp_path / "schema.yaml")
    assert again == schema and again.hints == schema.hints
    assert again.dumps() == (tmp_path / "schema.yaml").read_text(encoding="utf-8")
    assert "answer" not in schema.edited(answer={"other": True}).hints and "answer" in schema.edited(z={}).hints
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        approved = schema.approve(frame=hinted())
    assert [str(one.message) for one in given] == [
        f"{name} is approved as it stands. {hint[:1].upper()}{hint[1:]}" for name, (hint,) in schema.hints.items()
    ]
    assert not approved.hints and "#?" not in approved.dumps()


def test_the_text_of_a_schema_that_a_run_accepts_tells_nothing_of_rows() -> None:
    """Whatever was drafted, and however it was approved: hints, and constraints that were seen to hold."""
    frame = pd.DataFrame({"a": np.arange(ROWS) % 50, "b": np.arange(ROWS) % 50 + np.arange(ROWS) % 7}).assign(
        answer=["Yes", "yes", "no"] * (ROWS // 3)
    )
    schema = Schema.draft(frame)
    assert "#?   - a <= b" in schema.dumps()
    with pytest.warns(UserWarning):
        approved = schema.approve()
    flat = schema.model_copy(update={"approved": True})
    assert "#?" not in approved.dumps() + flat.dumps()


# Both doors -----------------------------------------------------------------------------------------------------------


CELLS = {
    "whole": lambda r, n: r.integers(0, 90, n).astype(str),
    "halves": lambda r, n: (r.integers(1, 90, n) / 2 + 0.25).astype(str),
    "hundreds": lambda r, n: (100 * r.integers(1, 900, n)).astype(str),
    "codes": lambda r, n: r.choice(["4111", "5411", "5812"], n),
    "zeros": lambda r, n: np.where(r.random(n) < 0.8, "0", r.integers(1, 9_999, n).astype(str)),
    "sentinel": lambda r, n: np.where(r.random(n) < 0.1, "999", r.integers(18, 90, n).astype(str)),
    "words": lambda r, n: r.choice(["north", "south", "North"], n),
    "likert": lambda r, n: r.choice(["agree", "disagree", "no answer"], n),
    "yes": lambda r, n: r.choice(["yes", "no"], n),
    "flags": lambda r, n: r.choice(["True", "False"], n),
    "days": lambda r, n: (np.datetime64("2020-01-01") + r.integers(0, 900, n)).astype(str),
    "digits": lambda r, n: pd.Series(np.datetime64("2020-01-01") + r.integers(0, 900, n)).dt.strftime("%Y%m%d"),
    "months": lambda r, n: pd.Series(np.datetime64("2020-01-01") + r.integers(0, 900, n)).dt.strftime("%Y%m"),
    "long": lambda r, n: (10**15 + r.integers(0, 10**14, n)).astype(str),
    "ids": lambda r, n: np.arange(n).astype(str),
    "mail": lambda r, n: np.array([f"a{k}@b.de" for k in range(n)]),
    "amounts": lambda r, n: np.exp(8 + 2 * r.normal(size=n)).round(2).astype(str),
    "refused": lambda r, n: np.where(r.random(n) < 0.1, "refused", r.integers(0, 90, n).astype(str)),
    "limit": lambda r, n: np.where(r.random(n) < 0.2, "<0.5", (r.integers(6, 90, n) / 10).astype(str)),
    "zip": lambda r, n: r.integers(10_000, 99_999, n).astype(str),
}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4), st.integers(0, 99), st.integers(40, 400))
def test_python_and_the_command_draft_the_same(names: list[str], seed: int, rows: int) -> None:
    """Rows of a CSV file, as pandas reads them and as the command does, whole or with missing cells."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({f"{name} {j}": CELLS[name](rng, rows) for j, name in enumerate(names)})
    frame = frame.mask(rng.random(frame.shape) < rng.choice([0.0, 0.05]), "").assign(
        y=["a", "b"] * (rows // 2) + ["a"] * (rows % 2)
    )
    typed = pd.read_csv(io.StringIO(frame.to_csv(index=False)))
    drafts = [drafted(Schema, rows_, text=text) for rows_, text in ((frame.astype(object), True), (typed, False))]
    assert said(drafts[0].schema) == said(drafts[1].schema)
    assert [one.rule.text for one in drafts[0].holding] == [one.rule.text for one in drafts[1].holding]


def test_the_command_asks_the_same_function(tmp_path: Path) -> None:
    path = as_file(hinted(), tmp_path)
    cells, draft = drafted_by_command([str(path)], {}, None, None, ())
    assert draft.schema == Schema.draft(cells.frame, text=True)
    assert said(draft.schema) == said(Schema.draft(hinted()))


ODD = [0, 1, -1, 2**31, 2**53, 2**63 - 1, 1.5, 1e-301, 1e18, float("inf"), float("nan"), None, True, "a", "9", b"x"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.sampled_from(
            [
                0,
                1,
                -1,
                2**31,
                2**53,
                2**63 - 1,
                1.5,
                1e-301,
                1e18,
                float("inf"),
                float("nan"),
                None,
                True,
                "a",
                "9",
                b"x",
            ]
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, "object", "float64", "Int64", "str", "category", "string"]),
)
def test_any_column_is_drafted_and_approved_or_refused_in_a_sentence(values: list[Any], dtype: str | None) -> None:
    try:
        series = pd.Series(values * 12, dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        return
    frame = pd.DataFrame({"x": series, "y": ["a", "b"] * (6 * len(values))})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schema = Schema.draft(frame, keep=["x"]).approve(frame=frame, public="x")
    except FedsynError as error:
        assert "\n" not in str(error)
        return
    assert schema.encode(frame).shape[0] == len(frame)


def test_a_code_for_rare_words_is_named_as_read_from_rows() -> None:
    """One cell is enough for it, so the schema says that it is drafted, until somebody decides."""
    ages = [str(20 + k % 60) for k in range(200)]
    columns = [
        drafted(Schema, pd.DataFrame({"age": cells}), text=True).schema.columns["age"]
        for cells in (ages, [*ages[1:], "sixty"])
    ]
    assert [("unlisted" in column.drafted, column.unlisted) for column in columns] == [(False, False), (True, True)]
