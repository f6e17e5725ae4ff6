"""What the holders say of a table beside what their rows say: coverage and width of the intervals, in 100 runs.

    python experiments/federated_evaluation/run.py --out FILE [--runs N] [--cells NAME ...] [--report]

Each run has another seed: another table, made by the mechanism, and other noise on what the holders say of it. The
exact figures are computed from the pooled rows by the code of the metrics, the classifier's by scikit-learn itself.
FEDSYN_DATA names the folder of the tables.

Each run's figures are appended to FILE (CSV) when it ends, and runs that FILE has are not made again: the command may
be killed and typed again. With --report nothing is run. Exit code: 0 if every figure is inside its interval at least
as often as expected.yaml says, in as many runs as asked, 1 if not.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn import yamlio
from fedsyn.config import RunConfig
from fedsyn.evaluation.boxes import QUERIES, QUERY_SEED, random_queries
from fedsyn.evaluation.inputs import EvaluationInput, column_ranges
from fedsyn.evaluation.real.metrics import evaluate
from fedsyn.evaluation.record import FEDERATED_FILE
from fedsyn.loading import parse_config
from fedsyn.runs.directory import read_facts
from fedsyn.runs.engines import run
from fedsyn.runs.prepare import split_tables
from fedsyn.table.counting.candidates import build_workload
from fedsyn.table.data import encode_file
from fedsyn.table.schema import Schema

HERE = Path(__file__).resolve().parent
Codes = npt.NDArray[np.integer]
FIELDS = ("cell", "seed", "figure", "exact", "low", "high", "value", "cpu")
LAST = "column_score"  # figure of a run


def config_of(document: Mapping[str, Any], cell: Mapping[str, Any], seed: int) -> RunConfig:
    """The configuration of one run; a cell's nodes are merged into those of all."""
    merged = {key: dict(node) if isinstance(node, dict) else node for key, node in document.items()}
    for key, node in cell.items():
        merged[key] = {**merged.get(key, {}), **node} if isinstance(node, dict) else node
    return parse_config({**merged, "runtime": {"seed": seed}})


def exact(config: RunConfig, schema: Schema, rows: Codes, made: Codes) -> dict[str, float]:
    """The figures from the pooled rows."""
    domain, ranges = schema.domain, column_ranges(schema)
    data = EvaluationInput(
        train=rows,
        domain=domain,
        workload=build_workload(config.workload, domain),
        test=rows,
        synthetic=made,
        label=schema.label,
        ranges=ranges,
    )
    figures = evaluate(["workload_error", *(["accuracy"] if schema.label else [])], data)
    queries = random_queries(domain, ranges, 2, QUERIES, np.random.default_rng([QUERY_SEED, 2]))
    answers = [queries.answers(data.positions(codes)) for codes in (rows, made)]
    figures["range_query_error"] = float(np.abs(answers[0] - answers[1]).mean())
    scores = []
    for axis, (name, size) in enumerate(zip(domain.attributes, domain.shape, strict=True)):
        shares = [np.bincount(codes[:, axis], minlength=size) / len(codes) for codes in (rows, made)]
        scores.append(float(1.0 - np.abs(shares[0] - shares[1]).sum() / 2.0))
        figures[f"column_score: {name}"] = scores[-1]
    return {**figures, "column_score": float(np.mean(scores))}


def one_run(document: Mapping[str, Any], label: str, seed: int) -> list[dict[str, Any]]:
    """The rows of the file that a run of a cell gives: one for each figure."""
    started, config = time.process_time(), config_of(document["base"], document["cells"][label], seed)
    tables = split_tables(config)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        run(config, out, full_page=False)
        said = read_facts(out / FEDERATED_FILE)["figures"]
        made = encode_file(out / "synthetic.csv", tables.schema)
    known = exact(config, tables.schema, tables.train, made)
    both = {"cell": label, "seed": seed, "cpu": round(time.process_time() - started, 2)}
    return [{**both, "figure": name, "exact": value, **said[name]} for name, value in known.items()]


def read_rows(file: Path) -> list[dict[str, str]]:
    """What the file has of whole runs: where one was killed while it wrote, its last figure is missing."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        rows = list(reader)
    if tuple(reader.fieldnames or FIELDS) != FIELDS:
        raise SystemExit(f"{file} is a file of something else")
    whole = {(row["cell"], row["seed"]) for row in rows if row["figure"] == LAST and row["cpu"]}
    return [row for row in rows if (row["cell"], row["seed"]) in whole]


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]], mode: str) -> None:
    """All rows in one write; with a header in mode `w`."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    if mode == "w":
        writer.writeheader()
    writer.writerows(rows)
    with file.open(mode, encoding="utf-8") as out:
        out.write(text.getvalue())


def report(rows: Iterable[Mapping[str, str]], runs: int, at_least: float) -> bool:
    """Prints the table of a file's runs; whether each figure is inside often enough. The columns share one line."""
    found, seeds = defaultdict[tuple[str, str], list[tuple[float, ...]]](list), defaultdict[str, set[str]](set)
    for row in rows:
        name = row["figure"].split(":")[0] + (" (each)" if ":" in row["figure"] else "")
        found[row["cell"], name].append(tuple(float(row[key]) for key in ("exact", "low", "high", "value")))
        seeds[row["cell"]].add(row["seed"])
    good = True
    print("| cell | runs | figure | inside | exact | interval (means) | its width |\n|---|---|---|---|---|---|---|")
    for (cell, figure), figures in found.items():
        value, low, high, _ = np.array(figures).T
        inside = float(np.mean((low <= value) & (value <= high)))
        good &= inside >= at_least and len(seeds[cell]) >= runs
        print(
            f"| {cell} | {len(seeds[cell])} | {figure} | {inside:.1%} of {len(figures)} | {value.mean():.4f} | "
            f"{low.mean():.4f} to {high.mean():.4f} | {(high - low).mean():.4f} |"
        )
    return good


def _run(file: Path, expected: Mapping[str, Any], cells: list[str], runs: int) -> None:
    """The runs that the file does not have, of all cells side by side: half a file is of use."""
    rows = read_rows(file)
    write_rows(file, rows, "w")
    have = {(row["cell"], row["seed"]) for row in rows}
    for seed in range(runs):
        for label in cells:
            if (label, str(seed)) not in have:
                write_rows(file, one_run(expected, label, seed), "a")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the file of the runs")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--cells", nargs="*", default=None, help="of expected.yaml; default: all")
    parser.add_argument("--report", action="store_true", help="run nothing, print what the file has")
    options = parser.parse_args()
    expected = yamlio.read_mapping(HERE / "expected.yaml")
    cells = list(expected["cells"]) if options.cells is None else options.cells
    if not set(cells) <= set(expected["cells"]):
        parser.error(f"--cells: of {list(expected['cells'])}")
    if not options.report:
        _run(options.out, expected, cells, options.runs)
    rows = [row for row in read_rows(options.out) if row["cell"] in cells and int(row["seed"]) < options.runs]
    return 0 if report(rows, options.runs, expected["at_least"]) and rows else 1


if __name__ == "__main__":
    sys.exit(main())
