"""Values come out as the input writes them: every kind of column, in both files that a table is written to.

Each notation has a pattern that all of its cells match. A column is drafted from cells of that notation alone, encoded,
decoded and written, and what comes out has to match the pattern, too.
"""

from __future__ import annotations

import datetime as dt
import functools
import io
import re
from collections.abc import Callable
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsyn.errors import SchemaError
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.writers import CsvTable, table_writer
from fedsyn.table.schema import Schema
from fedsyn.table.schema.draft import drafted_schema
from fedsyn.table.schema.drafting import draft_columns
from fedsyn.table.schema.formats import plain, text_of
from fedsyn.table.schema.frames import frame_of_arrow
from fedsyn.table.schema.written import outward_days

ROWS = 300


def _moment(form: str, step: str = "s", zone: str | None = None) -> Callable[[np.random.Generator], list[str]]:
    def cells(rng: np.random.Generator) -> list[str]:
        micro = rng.integers(1_672_531_200, 1_735_603_200, ROWS) * 1_000_000 + rng.integers(0, 1_000_000, ROWS)
        moments = pd.Series(pd.to_datetime(micro, unit="us", utc=True)).dt.floor(step).dt.tz_convert(zone or "UTC")
        return [text_of(moment, form) for moment in moments]

    return cells


def _number(scale: float, text: Callable[[float], str], positive: bool = False) -> Callable[..., list[str]]:
    def cells(rng: np.random.Generator) -> list[str]:
        numbers = rng.lognormal(0.0, 1.5, ROWS) * scale * (1 if positive else rng.choice([-1, 1], ROWS))
        return [text(number) for number in numbers.tolist()]

    return cells


def _span(text: Callable[[int], str]) -> Callable[[np.random.Generator], list[str]]:
    return lambda rng: [text(seconds) for seconds in rng.integers(0, 60 * 3600, ROWS).tolist()]


def _words(*words: str) -> Callable[[np.random.Generator], list[str]]:
    return lambda rng: rng.choice(words, ROWS).tolist()


def _signed(number: float, form: str, below: str) -> str:
    return (below if number < 0 else "{}").format(form.format(abs(number)))


DATE, CLOCK, GROUPS = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d", r"\d{1,3}(,\d{3})*"
SHORT, MONTH = r"[1-9]\d?", r"[A-Z][a-z]{2}"

#: Notation -> the cells of a column, and the pattern that all of them match.
NOTATIONS: dict[str, tuple[Callable[[np.random.Generator], list[str]], str]] = {
    "whole": (_number(900, "{:.0f}".format), r"-?\d+"),
    "whole with a plus": (_number(900, lambda x: f"{int(x) or 1:+d}"), r"[+-][1-9]\d*"),
    "whole, thousands": (_number(9e4, lambda x: f"{int(x):,}"), f"-?{GROUPS}"),
    "whole with .0": (_number(900, lambda x: f"{int(x)}.0"), r"-?\d+\.\d"),
    "two places": (_number(90, "{:.2f}".format), r"-?\d+\.\d\d"),
    "places without zeros": (_number(90, lambda x: f"{x:.2f}".rstrip("0").rstrip(".")), r"-?\d+(\.\d?[1-9])?"),
    "places as Python has them": (_number(90, lambda x: repr(round(x, 2))), r"-?\d+\.(\d|\d[1-9])"),
    "nine places": (_number(0.1, "{:.9f}".format), r"-?\d+\.\d{9}"),
    "no zero in front": (_number(0.01, lambda x: f"{x % 1.0:.3f}"[1:]), r"(\.\d|1\.0)\d\d"),
    "decimal comma": (_number(90, lambda x: f"{x:.1f}".replace(".", ",")), r"-?\d+,\d"),
    "exponents": (_number(1e9, "{:.3e}".format), r"-?\d\.\d{3}e[+-]\d\d"),
    "exponents in capitals": (_number(1e-9, "{:.2E}".format), r"-?\d\.\d\dE[+-]\d\d"),
    "exponents without zeros": (
        _number(1e12, lambda x: f"{x:.2e}".replace("e+0", "e").replace("e+", "e")),
        r"-?\d\.\d\de\d+",
    ),
    "euro": (_number(90, "{:.2f} €".format, positive=True), r"\d+\.\d\d €"),
    "minus before a currency": (_number(9e3, lambda x: _signed(x, "${:,.2f}", "-{}")), rf"-?\${GROUPS}\.\d\d"),
    "minus after a currency": (_number(9e3, "$ {:,.2f}".format), rf"\$ -?{GROUPS}\.\d\d"),
    "minus at the end": (_number(90, lambda x: _signed(x, "{:.2f}", "{}-")), r"\d+\.\d\d-?"),
    "parentheses": (_number(90, lambda x: _signed(x, "{:.2f}", "({})")), r"\d+\.\d\d|\(\d+\.\d\d\)"),
    "percent": (_number(5, "{:.1f}%".format), r"-?\d+\.\d%"),
    "date": (_moment("%Y-%m-%d", "D"), DATE),
    "date, short": (_moment("%-d.%-m.%Y", "D"), rf"{SHORT}\.{SHORT}\.\d{{4}}"),
    "date, two digits of a year": (_moment("%m/%d/%y", "D"), r"\d\d/\d\d/\d\d"),
    "date, month in capitals": (_moment("%d-%^b-%Y", "D"), r"\d\d-[A-Z]{3}-\d{4}"),
    "date of SAS": (_moment("%d%^b%Y", "D"), r"\d\d[A-Z]{3}\d{4}"),
    "date, month": (_moment("%-d %b %Y", "D"), rf"{SHORT} {MONTH} \d{{4}}"),
    "date, whole month": (_moment("%B %-d, %Y", "D"), rf"[A-Z][a-z]+ {SHORT}, \d{{4}}"),
    "date at midnight": (_moment("%Y-%m-%d %H:%M:%S", "D"), f"{DATE} 00:00:00"),
    "date at midnight, AM": (_moment("%-m/%-d/%Y %I:%M:%S %p", "D"), rf"{SHORT}/{SHORT}/\d{{4}} 12:00:00 AM"),
    "T": (_moment("%Y-%m-%dT%H:%M:%S"), f"{DATE}T{CLOCK}"),
    "blank": (_moment("%Y-%m-%d %H:%M:%S"), f"{DATE} {CLOCK}"),
    "minutes": (_moment("%Y-%m-%dT%H:%M", "min"), rf"{DATE}T\d\d:\d\d"),
    "seconds that are zero": (_moment("%Y-%m-%d %H:%M:%S", "min"), rf"{DATE} \d\d:\d\d:00"),
    "short hours": (_moment("%-d.%-m.%Y %-H:%M", "min"), rf"{SHORT}\.{SHORT}\.\d{{4}} (\d|1\d|2\d):\d\d"),
    "AM and PM": (_moment("%m/%d/%Y %I:%M %p", "min"), r"\d\d/\d\d/\d{4} [01]\d:\d\d [AP]M"),
    "am and pm": (_moment("%-m/%-d/%Y %-I:%M:%S %P"), rf"{SHORT}/{SHORT}/\d{{4}} {SHORT}:\d\d:\d\d [ap]m"),
    "milliseconds and Z": (_moment("%Y-%m-%dT%H:%M:%S.%3fZ", "ms"), rf"{DATE}T{CLOCK}\.\d{{3}}Z"),
    "tenths": (_moment("%Y-%m-%d %H:%M:%S.%1f", "ms"), rf"{DATE} {CLOCK}\.\d"),
    "microseconds": (_moment("%Y-%m-%d %H:%M:%S.%6f", "us"), rf"{DATE} {CLOCK}\.\d{{6}}"),
    "nanoseconds": (_moment("%Y-%m-%d %H:%M:%S.%9f", "us"), rf"{DATE} {CLOCK}\.\d{{9}}"),
    "milliseconds after a comma": (_moment("%Y-%m-%d %H:%M:%S,%3f", "ms"), rf"{DATE} {CLOCK},\d{{3}}"),
    "Z": (_moment("%Y-%m-%dT%H:%M:%SZ"), f"{DATE}T{CLOCK}Z"),
    "UTC": (_moment("%Y-%m-%d %H:%M:%S UTC"), f"{DATE} {CLOCK} UTC"),
    "offset": (_moment("%Y-%m-%dT%H:%M:%S%:z", zone="Etc/GMT-3"), rf"{DATE}T{CLOCK}\+03:00"),
    "offset with milliseconds": (
        _moment("%Y-%m-%d %H:%M:%S.%3f%:z", "ms", "Asia/Kolkata"),
        rf"{DATE} {CLOCK}\.\d{{3}}\+05:30",
    ),
    "offset without a colon": (_moment("%Y-%m-%dT%H:%M:%S%z", zone="Etc/GMT+8"), f"{DATE}T{CLOCK}-0800"),
    "offset after a blank": (_moment("%Y-%m-%d %H:%M:%S %z"), rf"{DATE} {CLOCK} \+0000"),
    "offset in hours": (_moment("%Y-%m-%d %H:%M:%S%:::z"), rf"{DATE} {CLOCK}\+00"),
    "offsets of summer and winter": (
        _moment("%Y-%m-%d %H:%M:%S%:z", zone="Europe/Berlin"),
        rf"{DATE} {CLOCK}\+0[012]:00",
    ),
    "time": (_moment("%H:%M:%S"), CLOCK),
    "time, short hours": (_moment("%-H:%M", "min"), r"(\d|1\d|2\d):\d\d"),
    "time, milliseconds": (_moment("%H:%M:%S.%3f", "ms"), rf"{CLOCK}\.\d{{3}}"),
    "time, hundredths": (_moment("%H:%M:%S.%2f", "ms"), rf"{CLOCK}\.\d\d"),
    "time, seven digits": (_moment("%H:%M:%S.%7f", "us"), rf"{CLOCK}\.\d{{7}}"),
    "time, AM and PM": (_moment("%-I:%M%p", "min"), rf"{SHORT}:\d\d[AP]M"),
    "span": (_span(lambda s: f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}"), r"\d\d:\d\d:\d\d"),
    "span, short hours": (_span(lambda s: f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}"), r"(\d|[1-9]\d):\d\d:\d\d"),
    "span, milliseconds": (
        _span(lambda s: f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}.{s % 1000:03d}"),
        r"\d\d:\d\d:\d\d\.\d{3}",
    ),
    "span of pandas": (_span(lambda s: str(pd.Timedelta(seconds=s))), r"\d days \d\d:\d\d:\d\d"),
    "span of pandas, fine": (_span(lambda s: str(pd.Timedelta(milliseconds=s))), r"0 days \d\d:\d\d:\d\d(\.\d{3}000)?"),
    "days": (_span(lambda s: f"{1 + s % 90} day{'s' * (s % 90 > 0)}"), r"1 day|([02-9]|\d\d) days"),
    "true": (_words("true", "false"), "true|false"),
    "TRUE": (_words("TRUE", "FALSE"), "TRUE|FALSE"),
    "Y": (_words("Y", "N"), "Y|N"),
    "quotes": (_words("a b", "C, d", 'say "x"'), 'a b|C, d|say "x"'),
    "leading zeros": (_words("01007", "12345"), "01007|12345"),
}


def drafted(frame: pd.DataFrame, *, text: bool) -> Schema:
    return Schema.from_dict({**drafted_schema(draft_columns(frame, text=text, keep=[*frame])), "approved": True})


def csv_cells(schema: Schema, frame: pd.DataFrame) -> list[str]:
    out = io.BytesIO()
    with CsvTable(out, schema, FileOptions()) as table:
        table.write(table.render(schema.encode(frame), np.random.default_rng(1)))
    read = pd.read_csv(io.BytesIO(out.getvalue()), dtype=str, keep_default_na=False)["x"]
    return [text for text in read.tolist() if text != "other"]


@functools.cache
def read(notation: str, seed: int) -> tuple[list[str], Schema]:
    """Cells of a notation, and their schema: drafting is most of what the two tests below take."""
    cells = NOTATIONS[notation][0](np.random.default_rng(seed))
    return cells, drafted(pd.DataFrame({"x": pd.Series(cells, dtype=object)}), text=True)


# The notations are the branches; other cells of the same notation are for `make test-all`.
@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1))])
def test_cells_come_out_in_the_notation_of_the_input(notation: str, seed: int) -> None:
    pattern = NOTATIONS[notation][1]
    cells, schema = read(notation, seed)
    assert all(re.fullmatch(pattern, cell) for cell in cells)
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
    written = csv_cells(schema, frame)
    assert len(written) > ROWS / 2 and [cell for cell in written if not re.fullmatch(pattern, cell)] == []
    # What was written is read as what it is, and a table of text has the same cells as a file.
    again = pd.DataFrame({"x": pd.Series(written, dtype=object)})
    assert not schema.encoder().unplaced.get("x", 0) and len(schema.encode(again)) == len(written)
    typed = drafted(frame.astype("string"), text=False)
    table = typed.decode(typed.encode(frame), np.random.default_rng(1))["x"]
    assert table.dtype == "string"
    assert [cell for cell in table.tolist() if cell != "other" and not re.fullmatch(pattern, cell)] == []


@pytest.mark.parametrize(
    "notation", [n for n in NOTATIONS if not re.search("offsets|quotes|leading zeros|true|TRUE|Y$|nanos|pandas", n)]
)
def test_cells_that_were_read_are_written_back(notation: str) -> None:
    cells, schema = read(notation, 2)
    column: Any = schema.columns["x"]
    numbers, bad = column.parse_all(cells, frozenset())
    assert not bad.any() and column.kind != "categorical"
    back = [str(cell) for cell in column.cells(numbers, np.zeros(len(cells), bool)).tolist()]
    assert back == [re.sub(r"^-(0\.0+)$|^(0\.00)-$|^\((0\.00)\)$", r"\1\2\3", cell) for cell in cells]  # no -0


OBJECTS = {
    "Timestamps": [pd.Timestamp("2024-05-31 12:30:15") + pd.Timedelta(minutes=i) for i in range(60)],
    "Timestamps with a zone": [pd.Timestamp("2024-05-31 12:30", tz="UTC") + pd.Timedelta(hours=i) for i in range(60)],
    "datetimes": [dt.datetime(2024, 5, 31, 12, i) for i in range(60)],
    "datetimes at midnight": [dt.datetime(2024, 5, 1 + i % 31) for i in range(60)],
    "dates": [dt.date(2024, 5, 1 + i % 31) for i in range(60)],
    "times": [dt.time(12, i) for i in range(60)],
    "decimals": [Decimal(i) / 4 for i in range(60)],
}


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("suffix", ["frame", "parquet"])
def test_objects_come_back_as_objects(name: str, suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": pd.Series([*OBJECTS[name], None], dtype=object)})
    schema = drafted(frame, text=False)
    codes = schema.encode(frame)
    if suffix == "frame":
        made = schema.decode(codes, np.random.default_rng(0))["x"]
        assert made.dtype == object and made.iloc[-1] is None
        assert {type(value) for value in made.iloc[:-1]} <= {type(OBJECTS[name][0]), pd.Timestamp}
        assert all(isinstance(value, type(OBJECTS[name][0])) for value in made.iloc[:-1])
        return
    with table_writer(tmp_path / "made.parquet", schema) as writer:
        writer.write(writer.render(codes, np.random.default_rng(0)))
    kind = pq.read_schema(tmp_path / "made.parquet").field("x").type
    real = pa.array(OBJECTS[name]).type
    assert kind.id == real.id and getattr(kind, "tz", None) == getattr(real, "tz", None)


@pytest.mark.parametrize(
    "kind", [pa.decimal128(10, 2), pa.decimal128(38, 15), pa.decimal128(30, 0), pa.decimal256(50, 3)]
)
def test_decimals_of_arrow_keep_their_type(kind: pa.DataType, tmp_path: Path) -> None:
    digits = kind.precision - kind.scale
    values = [Decimal(7 * i).scaleb(digits - 5) / 2 for i in range(60)]
    exact = Context(prec=kind.precision)
    table = pa.table({"x": pa.array([exact.quantize(v, Decimal(1).scaleb(-kind.scale)) for v in values], kind)})
    frame = frame_of_arrow(table)
    schema = drafted(frame, text=False)
    with table_writer(tmp_path / "made.parquet", schema) as writer:
        writer.write(writer.render(schema.encode(frame), np.random.default_rng(0)))
    assert pq.read_schema(tmp_path / "made.parquet").field("x").type == kind
    assert frame_of_arrow(pq.read_table(tmp_path / "made.parquet")).dtypes.equals(frame.dtypes)


def test_floats_have_the_digits_they_came_with() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": np.round(rng.normal(0, 1, ROWS), 8)})
    schema = drafted(frame, text=False)
    made = schema.decode(schema.encode(frame), rng)["x"]
    assert made.dtype == np.float64 and np.array_equal(np.round(made, 8), made)
    assert not np.signbit(made[made == 0]).any()


def test_significant_digits_stay_in_their_bins() -> None:
    column = {"kind": "numeric", "lower": 0.0, "upper": 1.0, "bins": [0.0, 0.1234, 0.12345678, 1.0], "digits": 2}
    schema = Schema.from_dict({"columns": {"x": column}})
    codes = np.repeat(np.arange(3), 200)[:, None].astype(schema.dtype)
    made = schema.decode(codes, np.random.default_rng(0))
    assert np.array_equal(schema.encode(made), codes)
    short = made["x"].map(lambda x: float(f"{x:.2g}") == x)
    assert short[:200].all() and short[400:].all() and not short[200:400].any()  # the middle bin has no such number


def test_a_format_of_own_codes() -> None:
    moment = dt.datetime(2024, 7, 1, 6, 5, 4, 198_765, dt.timezone(dt.timedelta(hours=-3, minutes=-30)))
    assert text_of(moment, "%-d/%-m %^B %%d %-H %3f|%9f %:z %:::z %P") == "1/7 JULY %d 6 198|198765000 -03:30 -03:30 am"
    assert plain("%-d/%-m %^B %%d %-H %3f|%9f %:z %:::z %P") == "%d/%m %B %%d %H %f|%f %z %z %p"
    assert text_of(moment.replace(tzinfo=None), "%H%:z") == "06"
    assert [text_of(dt.time(hour), "%-I%P %-H") for hour in (0, 1, 12, 23)] == ["12am 0", "1am 1", "12pm 12", "11pm 23"]


def test_an_offset_is_a_zone() -> None:
    bounds = {"lower": "2024-01-01T00:00:00", "upper": "2024-12-31T23:59:59"}
    schema = Schema.from_dict({"columns": {"x": {"kind": "datetime", **bounds, "zone": "+03:00"}}})
    assert schema.columns["x"].texts(np.array([schema.columns["x"].span[0]])) == ["2024-01-01T00:00:00+03:00"]  # type: ignore[union-attr]
    with pytest.raises(SchemaError, match=r"not a time zone; use .*, or \+03:00"):
        Schema.from_dict({"columns": {"x": {"kind": "datetime", **bounds, "zone": "+15:00"}}})


def test_the_last_month_ends_with_its_last_day() -> None:
    assert outward_days(dt.date(9999, 12, 3), dt.date(9999, 12, 9)) == (dt.date(9999, 12, 1), dt.date(9999, 12, 31))
    assert outward_days(dt.date(2024, 2, 3), dt.date(2024, 2, 9)) == (dt.date(2024, 2, 1), dt.date(2024, 2, 29))
