"""A cell, and a line, means the same whatever stands in the others: random pairs of cells, and random small files."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedsyn.table.data.lines import records
from fedsyn.table.data.readers import encoded_blocks
from fedsyn.table.schema import Schema

COLUMNS = {
    "plain": {"kind": "numeric", "lower": -10, "upper": 100, "bins": 110},
    "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 100, "missing": True},
    "cost": {"kind": "decimal", "places": 1, "lower": 0, "upper": 20, "bins": 200},
    "fee": {"kind": "integer", "lower": 0, "upper": 2000, "bins": 20, "thousands": "'", "suffix": " €"},
    "day": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 12},
    "at": {"kind": "time", "step": "minute", "bins": 24},
    "ok": {"kind": "boolean", "texts": ["no", "yes"]},
    "code": {"kind": "code", "categories": ["01", "1", "NA"], "other": True},
    "ward": {"kind": "categorical", "categories": ["north", "Süd", 3], "other": False, "missing": True},
}
#: What a column cannot place has a code, so that it is seen; of a cost it leaves the row out.
SCHEMA = Schema.from_dict(
    {
        "columns": {
            name: {**keys, **({} if name in ("cost", "code") else {"unlisted": True})} for name, keys in COLUMNS.items()
        },
        "missing_values": ["unknown", "99"],
    }
)
FINE = ["5", "6", "1", "1'000 €", "2024-05-05", "10:00", "yes", "01", "north"]
CELLS = [
    *[
        "1",
        "7",
        "07",
        "1.5",
        "1,5",
        "1.5e1",
        "1,5e1",
        "-2",
        "+3",
        ".5",
        "1.",
        "1_0",
        "١٢",
        "99",
        "99.0",
        "1e999",
        "nan",
        "inf",
        "-inf",
        "0x1",
        "TRUE",
        "True",
        "false",
        "yes",
        "no",
        "Y",
        "t",
    ],
    *[
        "NA",
        "NA ",
        " unknown",
        "unknown",
        " 3 ",
        "3.0",
        "north",
        " north",
        "North",
        "Süd",
        "SÃ¼d",
        "01",
        "2024-03-01",
        "2024-03-01 ",
        "01.03.2024",
    ],
    *[
        "2024-13-01",
        "12:30",
        "25:00",
        "1'200 €",
        "1200",
        "#DIV/0!",
        "#N/A",
        "<0.5",
        ">100",
        "-",
        "sixty",
        "3 kg",
        "1.234,5",
        "1,234.5",
    ],
]


def coded(path: Path, lines: list[str], decimal: str) -> tuple[list[tuple[int, ...]], int]:
    """The codes of a file's rows below a fine one, those that the schema leaves out as (), and their number."""
    path.write_text("\n".join([";".join(COLUMNS), ";".join(FINE), *lines]), encoding="utf-8")
    codes: list[tuple[int, ...]] = []
    for block in encoded_blocks(path, SCHEMA, {"separator": ";", "decimal": decimal}):
        here = np.ones(block.read, dtype=bool) if block.kept is None else block.kept
        rows = iter(block.codes.tolist())
        codes += [tuple(next(rows)) if stays else () for stays in here]
    assert codes[0]
    return codes[1:], len(codes) - 1


@pytest.mark.slow
@pytest.mark.parametrize("most", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_of_pairs_of_cells_none_is_read_otherwise_together(most: int, tmp_path: Path) -> None:
    """Each cell in each column, alone and below and above another: no refusal, and the same codes."""
    rng, path = random.Random(0), tmp_path / "t.csv"
    lines = [";".join([*FINE[:j], cell, *FINE[j + 1 :]]) for j in range(len(FINE)) for cell in CELLS]
    lines = rng.sample(lines, min(most, len(lines)))
    for decimal in (".", ","):
        alone = {line: coded(path, [line], decimal)[0] for line in lines}
        assert len({codes[0] for codes in alone.values()}) > 12, alone
        for _ in range(2):
            together = rng.sample(lines, len(lines))
            pairs = [together[k : k + 2] for k in range(0, len(together), 2)]
            for pair in pairs:
                assert coded(path, pair, decimal)[0] == [code for line in pair for code in alone[line]], pair
        assert coded(path, together, decimal)[0] == [code for line in together for code in alone[line]]


@pytest.mark.slow
@pytest.mark.parametrize("files", [50, pytest.param(900, marks=pytest.mark.slow)])
def test_no_line_of_a_file_decides_about_another(files: int, tmp_path: Path) -> None:
    """Random files without each of their records: the others have the codes that they had, and nothing is refused.

    Cells have separators, quotation marks and line ends in them, rightly and wrongly. A record is a line, or those that
    a cell in quotation marks joins; what is one is decided by the text, so records whose mark is not closed come last
    in their file, where they have no line to swallow.
    """
    rng, path, seen = random.Random(1), tmp_path / "t.csv", Counter[str]()
    for _ in range(files):
        lines = [_line(rng) for _ in range(rng.randint(1, 5))]
        broken = [line for line in lines if _stray(line)]
        lines = [line for line in lines if not _stray(line)] + broken[:1]
        whole, rows = coded(path, lines, ",")
        parts = [coded(path, [line], ",")[0] for line in lines]
        assert whole == [code for part in parts for code in part], lines
        for k in range(len(lines)):
            without = coded(path, lines[:k] + lines[k + 1 :], ",")[0]
            assert without == [code for j, part in enumerate(parts) for code in part if j != k], (lines, k)
        seen["rows"] += rows
        seen["left out"] += sum(code == () for code in whole)
        seen["no rows"] += sum(not part for part in parts)
    assert all(seen[what] > files / 9 for what in ("rows", "left out", "no rows")), seen


def _line(rng: random.Random) -> str:
    """A line of random cells, with too few or too many of them at times, quoted or not."""
    cells = [rng.choice(CELLS) for _ in range(rng.choice([9, 9, 9, 9, 2, 8, 10, 11]))]
    for _ in range(rng.choice([0, 0, 1, 3])):
        at = rng.randrange(len(cells))
        cells[at] = rng.choice(['"a;b"', '"a\nb"', '"a""b"', '""', '5" x', '"x', '"x"y', "", f'"{cells[at]}"'])
    return ";".join(cells) + rng.choice(["", "", ";", ";;"])


def _stray(line: str) -> bool:
    """Whether a line has a quotation mark that is not closed, or more than one record."""
    return len(found := list(records(line, ";", len(COLUMNS)))) > 1 or found[0].cells is None
