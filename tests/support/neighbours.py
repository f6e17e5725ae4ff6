"""Pairs of a holder's tables that differ in one row, whose cells no kind of the schema can read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsyn import yamlio
from fedsyn.front.testing.checks.replay import PUBLIC
from support.deployed import SCHEMA, table

#: Rows of an ordinary holder.
ROWS = 300
#: Pair of CSV lines: the row that the second of two neighbours lacks.
LINES = {
    "a word for a number": "sixty,heart,no,yes",
    "TRUE beside numbers": "TRUE,heart,no,yes",
    "a missing number where none is allowed": ",heart,no,yes",
    "a missing word where none is allowed": "60,,no,yes",
    "a word that is not listed": "60,liver,no,yes",
    "a number beyond any float": "1e999,heart,no,yes",
    "a NUL in a word": "60,he\0art,no,yes",
    "a NUL in a number": "6\0,heart,no,yes",
    "nothing readable": "?,?,?,?",
}


def csv(folder: Path, *more: str, rows: int = ROWS, seed: int = 7) -> Path:
    """Writes a holder's rows, and one line more of each of `more` in their middle."""
    lines = table(rows, seed).to_csv(index=False).splitlines()
    middle = 1 + rows // 2
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.csv").write_text("\n".join([*lines[:middle], *more, *lines[middle:]]) + "\n", encoding="utf-8")
    return folder / "rows.csv"


def nested(folder: Path, with_list: bool) -> Path:
    """Writes rows without wards as Parquet: a list in the only cell that has one makes the column one of lists."""
    frame = table(ROWS, 7)
    columns: dict[str, Any] = {name: pa.array(frame[name].tolist()) for name in ("age", "smoker", "readmitted")}
    if with_list:
        columns = {name: pa.concat_arrays([cells, cells[:1]]) for name, cells in columns.items()}
        columns["ward"] = pa.array([None] * ROWS + [["heart"]])
    else:
        columns["ward"] = pa.nulls(ROWS)
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    return folder / "rows.parquet"


def _line(line: str) -> Callable[[Path, bool], Path]:
    return lambda folder, is_there: csv(folder, *[line] * is_there)


#: What the row is -> writes the table with it, or without.
PAIRS: Mapping[str, Callable[[Path, bool], Path]] = {
    **{what: _line(line) for what, line in LINES.items()},
    "the only row": lambda folder, is_there: csv(folder, rows=int(is_there)),
    "the only row, unreadable": lambda folder, is_there: csv(folder, *["?,?,?,?"] * is_there, rows=0),
    "a list in a Parquet file": nested,
}
#: The files' own schema; of wards it allows that one is missing where a table has none.
WITH_MISSING = SCHEMA.replace("other: false}", "other: false, missing: true}")


def schema_for(what: str) -> str:
    return WITH_MISSING if "Parquet" in what else SCHEMA


def public_shape(out: Path) -> dict[str, Any]:
    """Returns all that a run's public files are, but for the values of numbers and the bytes of arrays."""
    shape: dict[str, Any] = {}
    for name in (*PUBLIC, "waiting.json", "error.json", "README.md"):
        file = out / name
        if not file.is_file():
            continue
        if file.suffix in (".json", ".jsonl"):
            text = file.read_text(encoding="utf-8")
            documents = [text] if file.suffix == ".json" else text.splitlines()
            shape[name] = [_masked(json.loads(each)) for each in documents]
        elif file.suffix == ".yaml":
            document = dict(yamlio.read_mapping(file))
            shape[name] = {key: value for key, value in document.items() if key != "data"}
        elif file.suffix == ".md":
            shape[name] = re.sub(r"\d[\d,.]*(e-?\d+)?%?", "#", file.read_text(encoding="utf-8"))
        elif file.suffix == ".csv":
            shape[name] = file.read_text(encoding="utf-8").splitlines()[0]
        else:
            shape[name] = "there"
    return shape


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [_masked(inside) for inside in value]
    return "#" if isinstance(value, int | float) and not isinstance(value, bool) else value
