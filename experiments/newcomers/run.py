"""Tables as newcomers bring them, from `fedsyn init` to a page: what a person has to type, and what comes out.

    python experiments/newcomers/run.py [--tables NAME ...] [--keep FOLDER]

Each table is written as its file, and taken through three commands: `fedsyn init FILE`, `fedsyn schema review
schema.yaml --all`, which approves the draft without a change, and `fedsyn run run.yaml`, seed 1. *hints*: lines of the
draft on what the rows show. Exit code: 1 if a command fails or leaves no page, or if expected.yaml asks for more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedsyn import yamlio
from fedsyn.evaluation.real.comparison import TableComparison
from fedsyn.evaluation.verdict import Judged
from tests.support import newcomers


class Table(NamedTuple):
    """A newcomer's table.

    Attributes:
        write: puts it into a folder and returns the file and the table.
        typed: what `init` has to be told.
    """

    write: Callable[[Path], tuple[str, pd.DataFrame]]
    typed: Sequence[str] = ()


def _csv(frame: pd.DataFrame, **options: object) -> Callable[[Path], tuple[str, pd.DataFrame]]:
    def write(folder: Path) -> tuple[str, pd.DataFrame]:
        frame.to_csv(folder / "table.csv", index=False, **options)  # type: ignore[call-overload]
        return "table.csv", frame

    return write


def _parquet(folder: Path) -> tuple[str, pd.DataFrame]:
    """With a nested column, which no table of columns can have."""
    frame = newcomers.patients()
    frame.assign(codes=[[1, 2]] * len(frame)).to_parquet(folder / "table.parquet", index=False)
    return "table.parquet", frame


def _excel(above: Sequence[Sequence[str]]) -> Callable[[Path], tuple[str, pd.DataFrame]]:
    """With rows above the names: a title, or names of groups of columns."""

    def write(folder: Path) -> tuple[str, pd.DataFrame]:
        frame = newcomers.survey()
        padded = [[*row, *[""] * (frame.shape[1] - len(row))] for row in above]
        rows = [*padded, list(frame.columns), *frame.to_numpy().tolist()]
        pd.DataFrame(rows).to_excel(folder / "table.xlsx", index=False, header=False)
        return "table.xlsx", frame

    return write


HEAD = (
    *("table", "rows x columns", "typed at `init`", "hints", "left out", "columns kept / changed / lost"),
    *("linked pairs kept / changed / lost", "good for"),
)
_ITEMS = [f"q{i + 1}" for i in range(10)]
TABLES = {
    "survey": Table(_csv(newcomers.survey())),
    "ten items": Table(_csv(newcomers.survey(3_000)[_ITEMS])),
    "patients": Table(_csv(newcomers.patients())),
    "patients, German export": Table(_csv(newcomers.patients(), sep=";", decimal=",", encoding="latin-1")),
    "patients, Parquet with a nested column": Table(_parquet),
    "visits": Table(_csv(newcomers.visits())),
    "60 columns": Table(_csv(newcomers.wide(60))),
    "300 columns": Table(_csv(newcomers.wide(300))),
    "messy": Table(_csv(newcomers.messy())),
    "Excel, a title": Table(_excel([["Survey of the members, spring"]]), ("--skip-rows", "1")),
    "Excel, two rows of names": Table(_excel([["answers", *[""] * 9, "person", *[""] * 3]]), ("--header", "2")),
}


def fedsyn(folder: Path, *words: str) -> str:
    """What a command printed. Exits where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "fedsyn.front.cli", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"fedsyn {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def states(found: Sequence[Judged]) -> str:
    counts = Counter(one.state for one in found)
    return " / ".join(str(counts[state]) for state in ("kept", "changed", "lost"))


def taken(name: str, folder: Path) -> list[str]:
    """The table's row of what came out."""
    file, frame = TABLES[name].write(folder)
    fedsyn(folder, "init", file, *TABLES[name].typed)
    # Less the lines that say what such lines are, and how many links show.
    hints = (folder / "schema.yaml").read_text(encoding="utf-8").count("#?") - 1
    fedsyn(folder, "schema", "review", "schema.yaml", "--all")
    fedsyn(folder, "run", "run.yaml", "--out", "out", "--set", "runtime.seed=1")
    if "<html" not in (folder / "out" / "report.html").read_text(encoding="utf-8")[:1000]:
        sys.exit(f"{name}: no page")
    found = TableComparison.of_document(json.loads((folder / "out" / TableComparison.FILE).read_text(encoding="utf-8")))
    left = frame.shape[1] - len(found.columns)
    fit = ", ".join(use.name for use in found.verdict().good()) or "none"
    links = [pair.judged() for pair in found.pairs if pair.linked]
    size = f"{len(frame):,} x {frame.shape[1]}"
    typed = " ".join(TABLES[name].typed) or "-"
    columns = states([column.judged() for column in found.columns])
    return [name, size, typed, str(hints), str(left), columns, states(links), fit]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES), metavar="NAME")
    parser.add_argument("--keep", type=Path, help="folder for the files and runs; default: none are kept")
    options = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    first: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for at, name in enumerate(options.tables):
            folder = (options.keep or Path(temporary)) / f"{at:02d}"
            folder.mkdir(parents=True)
            row = taken(name, folder)
            print(f"| {' | '.join(row)} |", flush=True)
            first[name] = row[-1]
    fit = yamlio.read_mapping(Path(__file__).with_name("expected.yaml"))["fit"]
    wrong = [name for name, clause in fit.items() if not first.get(name, clause).startswith(clause)]
    print(f"not as expected: {', '.join(wrong)}" if wrong else "as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
