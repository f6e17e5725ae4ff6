"""Reading tables from files: CSV (plain or compressed) and Parquet, with one clear message for everything
that fails.

A CSV cell is text, and what it means depends on the schema, never on its neighbours: a column that holds only
`0` in one client's file and `0`, `4+` in another's must be read the same way by both. Categorical columns are
therefore read as text and matched with the schema's categories; only numeric columns are parsed as numbers.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.errors import DataError, nearest
from fedsyn.schema.binned import BinnedColumn
from fedsyn.schema.columns import CategoricalColumn, Column
from fedsyn.schema.model import Schema
from fedsyn.schema.values import MISSING_TEXT, parse_number

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip", ".csv.zst", ".parquet")


def read_table(path: str | Path, schema: Schema | None = None, separator: str = ",") -> pd.DataFrame:
    """Reads a table from a file.

    Args:
        path: a CSV file in UTF-8 with a header row (compressed: `.csv.gz` and the like), or a Parquet file.
        schema: reads only its columns, in its order, as it defines them. Without one, types are guessed per
            column.
        separator: what stands between the cells of a CSV file.

    Returns:
        The table with at least one row; missing cells are None or NaN.

    Raises:
        DataError: no such file, an unknown format, a damaged or empty file, no rows, or columns of the schema
            are missing. The message never quotes a cell.
    """
    path = require_table(path)
    with readable(path):
        if is_parquet(path):
            frame = _read_parquet(path, schema)
        else:
            frame = _read_csv(path, schema, separator)
    if len(frame) == 0:
        raise DataError(f"{path} has no rows")
    return frame


def require_table(path: str | Path) -> Path:
    """The path of a file that is there and has the name of a table; DataError for any other."""
    path = Path(path)
    if not any(path.name.lower().endswith(suffix) for suffix in SUFFIXES):
        raise DataError(f"cannot read {path}: its name must end in one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        present = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"no such file: {path}{nearest(path.name, present)}")
    return path


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns what pandas and pyarrow raise about a file into a DataError without the file's content."""
    import pandas as pd
    import pyarrow as pa

    try:
        yield
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} is empty") from None
    except pd.errors.ParserError as error:
        # "Error tokenizing data. C error: Expected 3 fields in line 5, saw 4" holds line numbers, no cells.
        reason = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise DataError(f"{path} is not a well-formed CSV file: {reason}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8") from None
    except pa.ArrowInvalid:
        raise DataError(f"{path} is not a well-formed Parquet file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'the file is damaged'}") from None


def _read_parquet(path: Path, schema: Schema | None) -> pd.DataFrame:
    import pandas as pd
    import pyarrow.parquet as pq

    if schema is None:
        return pd.read_parquet(path)
    schema.require_columns(pq.read_schema(path).names, where=str(path))
    return pd.read_parquet(path, columns=list(schema.columns))


def _read_csv(path: Path, schema: Schema | None, separator: str) -> pd.DataFrame:
    import pandas as pd

    if schema is None:
        header, options = _header(path, separator)
        frame = _parse(path, header, dtype=str, **options)
        return frame.apply(_guess) if len(frame) else frame
    header, options = csv_options(path, schema, separator)
    frame = _parse(path, header, **options)
    columns = {}
    for name, column in schema.columns.items():
        series = frame[name]
        columns[name] = _own_values(series, column, schema) if isinstance(column, CategoricalColumn) else series
    return pd.DataFrame(columns)


def _reads_numbers(column: Column) -> bool:
    """Whether a column's cells are plain numbers; those of every other kind are read as text."""
    return isinstance(column, BinnedColumn) and column.reads_numbers


def _header(path: Path, separator: str) -> tuple[list[str], dict[str, Any]]:
    """The column names of a CSV file, and how its cells are told apart."""
    import pandas as pd

    options: dict[str, Any] = {"sep": separator, "encoding": "utf-8-sig", "keep_default_na": False}
    return pd.read_csv(path, header=None, nrows=1, dtype=str, **options).iloc[0].astype(str).tolist(), options


def csv_options(path: Path, schema: Schema, separator: str) -> tuple[list[str], dict[str, Any]]:
    """The header of a CSV file and the options of `read_csv` by which its columns are what the schema says.

    Raises:
        DataError: columns of the schema are missing or doubled.
    """
    header, options = _header(path, separator)
    schema.require_columns(header, where=str(path))
    numeric = [name for name, column in schema.columns.items() if _reads_numbers(column)]
    # All columns are read, also those that the schema does not name: pandas notices a row with too many
    # cells, whose values would otherwise slip into the wrong columns, only then.
    return header, {
        **options,
        "skip_blank_lines": len(header) > 1,  # in a table of one column a blank line is a missing value
        "dtype": {
            name: object for name in header if name not in numeric
        },  # text as it stands; "category" makes 7 of 007
        "na_values": {name: list(schema.missing_text) for name in numeric},
        **exact_floats(),
        "low_memory": False,
    }


def exact_floats() -> dict[str, Any]:
    """Options that make `read_csv` read every float exactly: a number on the edge of a bin must not slip
    below it.

    pandas 3 always does, and warns about the option that older ones need.
    """
    import pandas as pd

    return {} if int(pd.__version__.split(".")[0]) >= 3 else {"float_precision": "round_trip"}


def _parse(path: Path, header: list[str], **options: Any) -> pd.DataFrame:
    """The cells of a CSV file under its own header (pandas renames doubled names).

    Raises:
        ParserError: a row has more cells than the header, so that its values may belong to other columns.
    """
    import pandas as pd

    with _no_surplus():
        frame = pd.read_csv(path, index_col=False, **options)
    frame.columns = pd.Index(header)
    return frame


@contextmanager
def _no_surplus() -> Iterator[None]:
    """Refuses rows that have more cells than the header."""
    import pandas as pd

    with warnings.catch_warnings():
        # With index_col=False pandas cuts surplus cells off and warns; without, it takes the first column for
        # an index and shifts the others in silence.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            yield
        except pd.errors.ParserWarning:
            raise pd.errors.ParserError("the rows have more cells than the header") from None


def csv_blocks(path: Path, header: list[str], options: Mapping[str, Any], rows: int) -> Iterator[pd.DataFrame]:
    """The cells of a CSV file under its own header, `rows` at a time; raises what `_parse` raises."""
    import pandas as pd

    with pd.read_csv(path, index_col=False, chunksize=rows, **options) as reader:
        while True:
            with _no_surplus():  # not around the yield: warnings are the caller's own in between
                frame = next(reader, None)
            if frame is None:
                return
            frame.columns = pd.Index(header)
            yield frame


def _own_values(series: pd.Series, column: CategoricalColumn, schema: Schema) -> pd.Series:
    """Turns text into the values of the schema's categories; unknown text stays, missing becomes None."""
    import pandas as pd

    inverse, texts = pd.factorize(series)
    values: list[Any] = [column.value_of(text, schema.missing_text) for text in texts.tolist()]
    table = np.empty(len(values) + 1, dtype=object)
    table[:-1] = values
    return pd.Series(table[inverse], name=series.name).infer_objects()


def _guess(series: pd.Series) -> pd.Series:
    """A text column as numbers or booleans if all of it is; text like 007 stays text."""
    import pandas as pd

    inverse, uniques = pd.factorize(series)
    present = {text: text.strip() for text in uniques.tolist() if text.strip() not in MISSING_TEXT}
    numbers = {text: parse_number(stripped) for text, stripped in present.items()}
    padded = any(t.lstrip("+-").startswith("0") and t.lstrip("+-")[1:2].isdigit() for t in present.values())
    if present and not padded and all(number is not None for number in numbers.values()):
        table = np.array([numbers.get(text, np.nan) for text in uniques.tolist()], dtype=np.float64)
        result = pd.Series(table[inverse], name=series.name)
        whole = all(text.lstrip("+-").isdigit() for text in present.values())
        if whole and np.abs(table[np.isfinite(table)]).max() <= 2**53:
            return result.astype("int64" if len(present) == len(uniques) else "Int64")
        return result
    if present and {text.lower() for text in present.values()} <= {"true", "false"}:
        flags = [present[t].lower() == "true" if t in present else None for t in uniques.tolist()]
        dtype = "bool" if len(present) == len(uniques) else "boolean"
        return pd.Series(pd.array(flags, dtype=dtype).take(inverse), name=series.name)
    keep = np.array([text if text in present else None for text in uniques.tolist()], dtype=object)
    return pd.Series(keep[inverse], name=series.name)
