"""A new kind of column is a class and a line of the table of kinds: everything else asks the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest

from fedsyn.errors import SchemaError
from fedsyn.front.testing.schemas import awkward_tables
from fedsyn.table.data import encode_file, encoded_blocks
from fedsyn.table.data.writers import table_writer
from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.binned import as_stored
from fedsyn.table.schema.column_base import Reading
from fedsyn.table.schema.columns import KINDS
from fedsyn.table.schema.draft import drafted_schema
from fedsyn.table.schema.drafting import draft_columns
from fedsyn.table.schema.profile import Profile

ROWS = 60


class MonthColumn(BinnedColumn):
    """Months, written 2024|05."""

    origin = "1970|01"

    kind: Literal["month"] = "month"
    lower: str | None = None
    upper: str | None = None
    bins: int | tuple[str, ...] | Literal["values"] = 32

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        if not profile.all_match(r"^\d{4}\|\d{2}$"):
            return None
        texts = sorted(profile.texts.to_pylist())
        return Reading({"lower": texts[0], "upper": texts[-1]}, "months")

    @property
    def scale(self) -> tuple[str, Fraction]:
        return "months", Fraction(1)

    @property
    def expected(self) -> str:
        return "a month like 2024|05"

    def number(self, bound: Any) -> float:
        year, month = map(int, bound.split("|"))
        return 12 * year + month - 1

    def bound(self, number: float) -> Any:
        return f"{int(number) // 12:04d}|{int(number) % 12 + 1:02d}"

    def parse_all(self, values: Sequence[Any], missing_text: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
        bad = np.array([value.count("|") != 1 and value not in missing_text for value in values], dtype=bool)
        numbers = [np.nan if value.count("|") != 1 else self.number(value) for value in values]
        return np.array(numbers, dtype=np.float64), bad

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        return as_stored(self.cells(numbers, absent), self.stored)

    def texts(self, numbers: np.ndarray) -> list[str]:
        return [self.bound(number) for number in numbers.tolist()]


@pytest.fixture(autouse=True)
def month(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setitem(KINDS, "month", MonthColumn)
        Schema.model_rebuild(force=True)
        yield
    Schema.model_rebuild(force=True)


def frame() -> pd.DataFrame:
    first = [f"{2020 + i % 4}|{i % 12 + 1:02d}" for i in range(ROWS)]
    last = [None if i % 7 == 0 else f"{2024 + i % 3}|{i % 12 + 1:02d}" for i in range(ROWS)]
    return pd.DataFrame({"first": first, "last": last, "ward": [f"w{i % 3}" for i in range(ROWS)]})


def drafted() -> Schema:
    guesses = draft_columns(frame(), bins=4, text=True)
    assert [guess.column.kind for guess in guesses.values()] == ["month", "month", "categorical"]
    assert guesses["last"].why == "months" and guesses["last"].missing > 0
    return Schema.from_dict({**drafted_schema(guesses), "constraints": ["first < last"], "approved": True})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_new_kind_is_drafted_encoded_decoded_and_written(tmp_path: Path, suffix: str) -> None:
    schema = drafted()
    assert Schema.loads(schema.dumps()).sha256 == schema.sha256
    codes = schema.encode(frame())
    assert schema.domain.shape == (4, 5, 4) and not schema.domain.violated(codes).any()
    decoded = schema.decode(codes, np.random.default_rng(1))
    assert np.array_equal(schema.encode(decoded), codes)
    path = tmp_path / f"table.{suffix}"
    with table_writer(path, schema) as writer:
        writer.write(writer.render(codes, np.random.default_rng(1)))
    read = pd.read_csv(path) if suffix == "csv" else pd.read_parquet(path)
    assert read["last"].isna().sum() == decoded["last"].isna().sum() > 0
    assert read["first"].tolist() == decoded["first"].tolist()
    assert np.array_equal(encode_file(path, schema), codes)
    assert np.array_equal(np.concatenate([block.codes for block in encoded_blocks(path, schema, rows=7)]), codes)


def test_a_new_kind_can_be_private_and_constrained() -> None:
    schema = Schema.loads(
        "columns: {m: {kind: month, bounds: private}, n: {kind: month, lower: 2020|01, upper: 2020|12}}"
    )
    assert schema.columns["m"].span == (12 * 1970.0, 12 * 1970.0)
    closed = schema.closed({"m": [12 * 2020, 12 * 2021, 12 * 2022]})
    assert closed.columns["m"].bins == ("2020|01", "2021|01", "2021|12")
    with pytest.raises(SchemaError, match="compares months with numbers"):
        Schema.loads(
            "columns: {m: {kind: month, lower: 2020|01, upper: 2020|12}, k: {kind: integer, lower: 0, upper: 9}}\n"
            "constraints: [m < k]"
        )


def test_the_table_of_kinds_is_what_messages_list() -> None:
    with pytest.raises(SchemaError, match=r"kind must be one of .*, duration, month, .*did you mean 'month'"):
        Schema.loads("columns: {m: {kind: mont}}")
    with pytest.raises(SchemaError, match="column 'm': unknown key 'lowest'"):
        Schema.loads("columns: {m: {kind: month, lowest: 2020-01, lower: 2020|01, upper: 2020|12}}")


def test_every_kind_has_an_awkward_table() -> None:
    seen = {column.kind for table in awkward_tables() for column in table.schema.columns.values()}
    assert seen == {*KINDS} - {"month"}
