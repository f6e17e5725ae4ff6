"""Tables of an analysis.

Data frames, files, or the directory that `fedsyn sample --tables` made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedsyn.bounded import json_of, read_bytes
from fedsyn.domain import Floats
from fedsyn.errors import DataError, InputError
from fedsyn.evaluation.analysis.combining import ONE_TABLE
from fedsyn.table.schema import Schema
from fedsyn.table.schema.binned import BinnedColumn, NumericColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.frames import as_frame, is_table
from fedsyn.table.schema.ordered import TemporalColumn, WrittenNumber
from fedsyn.table.schema.persons import GAP, NO_ROW, no_row_code, row_columns
from fedsyn.table.schema.values import written

if TYPE_CHECKING:
    import pandas as pd

#: What `sample --tables` writes beside the tables.
FACTS_FILE = "tables.json"
#: Where a table in memory says it (`DataFrame.attrs`): `real_rows`, `held`, `given` and `records` of that file, and
#: `bins`.
FACTS = "fedsyn"
#: Column of how many rows each stands for, where not all stand for one. No file can have its name.
WEIGHT = "\0rows"


class Gaps(BaseModel):
    """A record's column of gaps between a row and the next.

    Attributes:
        of: the column by which rows stand in order.
        step: one step of the gap, in that column's numbers or in `unit`.
        unit: of time, in the plural; None: of numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    of: str
    step: float
    unit: str | None


class Records(BaseModel):
    """Tables of records, one of each person (`fedsyn.table.schema.persons`).

    Attributes:
        rows: the columns that differ between the rows of a person.
        in_order: whether the rows of a person have an order.
        gaps: what the records know of the way from a row to the next one; None: no column of theirs gives the order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rows: list[str]
    in_order: bool
    gaps: Gaps | None = None


@dataclass(frozen=True, eq=False)
class SyntheticTables:
    """Several synthetic tables with what was released beside them.

    Attributes:
        frames: the tables, two or more.
        real_rows: how many real rows the model stands for, as released; None where nobody said.
        held: cliques of columns whose joint distribution was measured; None where nobody said.
        given: columns that a condition restricts: every estimate rests on them as well.
        bins: edges of the numeric columns' bins; empty where nobody said.
        marked: columns some of whose cells are codes for missing or censored values; the frames have text in them.
        records: of persons, one of each in a row; None: rows are what the tables are of.
        versions: other columns in whose place a row may have those of the model: all of them have to be held.
    """

    frames: Sequence[pd.DataFrame]
    real_rows: float | None = None
    held: frozenset[frozenset[str]] | None = None
    given: frozenset[str] = frozenset()
    bins: Mapping[str, Sequence[float]] = field(default_factory=dict)
    marked: Mapping[str, BinnedColumn] = field(default_factory=dict)
    records: Records | None = None
    versions: Sequence[Mapping[str, str]] = ({},)

    @property
    def ratio(self) -> float:
        """Rows of a table per real row.

        1 where the number of real rows is not known.
        """
        if self.real_rows is None:
            return 1.0
        return sum(map(len, self.frames)) / len(self.frames) / self.real_rows

    @property
    def columns(self) -> list[str]:
        """Names of the columns that a formula may have."""
        return [name for name in self.frames[0].columns if name != WEIGHT]

    def holds(self, columns: Iterable[str]) -> bool:
        """Returns whether the model was fitted to these columns together.

        The columns of a condition count as well, and one measurement must hold them all.

        True where nobody said.
        """
        wanted = self.given.union(columns)
        each = [{version.get(name, name) for name in wanted} for version in self.versions]
        return self.held is None or all(any(names <= clique for clique in self.held) for names in each)


def tables_of(tables: Any) -> SyntheticTables:
    """Returns the tables of a folder or of a list.

    Args:
        tables: a directory made by `fedsyn sample RUN --tables M --out DIR`, or a list of DataFrames or of paths.

    Raises:
        InputError: one table only.
        DataError: something else, or files that cannot be read.
    """
    if isinstance(tables, SyntheticTables):
        return tables
    if isinstance(tables, str | Path):
        return _of_path(Path(tables))
    if is_table(tables):
        raise InputError(ONE_TABLE)
    if not isinstance(tables, list | tuple) or not all(is_table(one) or isinstance(one, str | Path) for one in tables):
        raise DataError(f"expected a folder of tables, or a list of DataFrames or paths; found {type(tables).__name__}")
    frames: Sequence[pd.DataFrame] = [as_frame(one) if is_table(one) else _frame(Path(one), None) for one in tables]
    facts = frames[0].attrs.get(FACTS) if frames else None
    if facts is None or any(frame.attrs.get(FACTS) != facts for frame in frames):
        return SyntheticTables(_checked(frames))
    marked = marked_columns(Schema.from_dict(facts["marked"])) if facts.get("marked") else {}
    frames = _checked([as_words(frame, marked) for frame in frames])
    held, given_columns = frozenset(map(frozenset, facts["held"])), frozenset(facts["given"])
    records = _records_in(facts)
    return SyntheticTables(frames, facts.get("real_rows"), held, given_columns, facts.get("bins", {}), marked, records)


def _of_path(path: Path) -> SyntheticTables:
    if path.is_file():
        raise InputError(f"{path}: {ONE_TABLE}")
    facts_file = path / FACTS_FILE
    if not facts_file.is_file():
        if (path / "model.npz").is_file():
            raise DataError(
                f"{path} is a run and holds one table; draw several from it: fedsyn sample {path} --tables 20 --out DIR"
            )
        raise DataError(f"{path} has no {FACTS_FILE}: give a folder made by fedsyn sample RUN --tables 20 --out DIR")
    # The facts beside the tables, which a stranger may have written.
    try:
        facts = json_of(read_bytes(facts_file), str(facts_file))
        names = [str(one["file"] if isinstance(one, dict) else one) for one in facts["tables"]]
        real, held = facts.get("real_rows"), facts.get("held")
        cliques = None if held is None else frozenset(frozenset(map(str, clique)) for clique in held)
        real_rows = None if real is None else float(real)
        given_columns = frozenset(map(str, facts.get("given", ())))
        records = _records_in(facts)
    except (DataError, ValueError, KeyError, TypeError, OverflowError):
        raise DataError(f"{facts_file} cannot be read: draw the tables again") from None
    file = path / "schema.yaml"
    schema = Schema.load(file) if file.is_file() else None
    marked = {} if schema is None else marked_columns(schema)
    frames = [as_words(_frame(_inside(path, name), schema), marked) for name in names]
    bins = {} if schema is None else bins_of(schema)
    return SyntheticTables(_checked(frames), real_rows, cliques, given_columns, bins, marked, records)


def _records_in(facts: Mapping[str, Any]) -> Records | None:
    """Returns what facts say of records.

    Raises ValueError where they cannot be read.
    """
    return None if facts.get("records") is None else Records.model_validate(facts["records"])


def _inside(folder: Path, name: str) -> Path:
    """Returns the path of a table inside of the folder.

    A stranger's may name any file of the user's. Raises DataError if it lies elsewhere.
    """
    if Path(name).name != name or (folder / name).is_symlink():
        raise DataError(f"{folder / FACTS_FILE}: '{name}' is not a file of this folder: draw the tables again")
    return folder / name


def records_facts(schema: Schema) -> dict[str, Any]:
    """Returns what an analysis has to know of records, as plain data.

    Args:
        schema: of the records.
    """
    persons, rows = schema.of_persons, list(row_columns(schema.rows))
    assert persons is not None
    gaps = None
    if GAP in schema.columns and isinstance(persons.order, str):
        column = schema.rows.columns[persons.order]
        if isinstance(column, TemporalColumn):
            gaps = Gaps(of=persons.order, step=float(column.multiple_of), unit=f"{column.step}s")
        else:
            assert isinstance(column, BinnedColumn)
            gaps = Gaps(of=persons.order, step=float(column.scale[1]) if column.whole else 1.0, unit=None)
    return Records(rows=rows, in_order=persons.in_order, gaps=gaps).model_dump()


def bins_of(schema: Schema) -> dict[str, list[float]]:
    """Returns bin edges of the numeric columns, in a table's numbers."""
    columns = {n: c for n, c in schema.columns.items() if isinstance(c, BinnedColumn) and holds_numbers(c)}
    return {n: (c.edges * c.scale[1].numerator / c.scale[1].denominator).tolist() for n, c in columns.items()}


def holds_numbers(column: BinnedColumn) -> bool:
    """Returns whether the values of a column can be averaged."""
    return isinstance(column, NumericColumn | WrittenNumber)


def marked_columns(schema: Schema) -> dict[str, BinnedColumn]:
    """Returns the columns with codes for missing or censored values."""
    ordered = {name: column for name, column in schema.columns.items() if isinstance(column, BinnedColumn)}
    return {name: column for name, column in ordered.items() if {*column.missing_codes} - {NO_ROW} or column.censored}


def without_words(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Returns records in which a row that is not there is missing."""
    import pandas as pd

    there, marked = {}, marked_columns(schema)
    for name, column in schema.columns.items():
        if no_row_code(column) >= 0:
            series = frame[name].where(frame[name] != NO_ROW)
            if isinstance(column, BinnedColumn) and holds_numbers(column) and name not in marked:
                series = _numbers(series, column) if isinstance(column, WrittenNumber) else pd.to_numeric(series)
            there[name] = series
    return frame.assign(**there)


def marked_facts(schema: Schema) -> dict[str, Any]:
    """Returns the marked columns as a schema's plain data.

    It is empty where there are none.
    """
    names, data = marked_columns(schema), schema.to_dict()
    return {"columns": {name: data["columns"][name] for name in names}} if names else {}


def as_words(frame: pd.DataFrame, marked: Mapping[str, BinnedColumn]) -> pd.DataFrame:
    """Returns a table with its marked columns as text.

    So they are of one kind in all tables.
    """
    texts = {
        name: [None if gone else written(cell) for cell, gone in zip(frame[name], frame[name].isna(), strict=True)]
        for name in marked
        if name in frame
    }
    return frame.assign(**texts) if texts else frame


def _frame(path: Path, schema: Schema | None) -> pd.DataFrame:
    """Reads a table by its schema's kinds.

    What the schema calls categories stays text, and what it calls a number becomes one, however written.
    """
    import pandas as pd

    if not path.is_file():
        raise DataError(f"no such table: {path}")
    try:
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path)
        none = [] if schema is None or all(no_row_code(column) < 0 for column in schema.columns.values()) else [NO_ROW]
        text = {} if schema is None else {name: str for name, column in schema.columns.items() if _is_text(column)}
        frame = pd.read_csv(path, dtype=text, keep_default_na=False, na_values=["", *none])
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    marked = {} if schema is None else marked_columns(schema)
    for name, column in ({} if schema is None else schema.columns).items():
        if (
            isinstance(column, WrittenNumber)
            and name not in marked
            and name in frame
            and frame[name].dtype.kind not in "iuf"
        ):
            frame[name] = _numbers(frame[name], column)
    return frame


def _numbers(series: pd.Series[Any], column: WrittenNumber) -> Floats:
    """Returns the numbers that a column writes."""
    steps, _ = column.parse_all(series.where(series.notna(), "").tolist(), frozenset({""}))
    return np.asarray(steps / 10.0**column.decimals)


def _is_text(column: object) -> bool:
    """Returns whether a column of categories stays text.

    Two values have no order to lose, and ordered ones may be numbers: the file says what they are.

    But not where any of them is no number: a table without that value would be read as another kind than the rest.
    """
    if not isinstance(column, CategoricalColumn):
        return False
    return (not column.ordered and column.size > 2) or not all(map(_is_number, column.values))


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, bool | int | float) or math.isfinite(float(str(value)))
    except ValueError:
        return False


def _checked(frames: Sequence[pd.DataFrame]) -> Sequence[pd.DataFrame]:
    if len(frames) == 1:
        raise InputError(ONE_TABLE)
    if not frames:
        raise DataError("no table was given")
    for number, frame in enumerate(frames, 1):
        if list(frame.columns) != list(frames[0].columns):
            raise DataError(f"table {number} has other columns than table 1")
        if not len(frame):
            raise DataError(f"table {number} has no rows")
    if not frames[0].columns.is_unique:
        twice = frames[0].columns[frames[0].columns.duplicated()][0]
        raise DataError(f"the tables have two columns of the name '{twice}'")
    for name in frames[0].columns:
        kinds = [kind for frame in frames if (kind := _kind(frame[name]))]
        if len(set(kinds)) > 1:
            raise DataError(
                f"'{name}' holds {kinds[0]} in some tables and {next(k for k in kinds if k != kinds[0])} in others: "
                "read every table with the same types"
            )
    return frames


def _kind(column: pd.Series[Any]) -> str:
    """Returns the kind of a column; nothing where all is missing."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column):
        return "yes and no"
    if pd.api.types.is_numeric_dtype(column):
        return "numbers" if column.notna().any() else ""
    values = column.dropna()
    if not len(values):
        return ""
    return "yes and no" if pd.api.types.infer_dtype(values) == "boolean" else "text"
