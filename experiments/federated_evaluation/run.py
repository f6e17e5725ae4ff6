"""What the holders say of a table beside what their rows say: coverage and width of the intervals, in 100 runs.

    python experiments/federated_evaluation/run.py [--runs N] [--tables NAME ...] [--out FILE]

Each run has another seed, and so other noise and another table. The exact figures are computed from the pooled rows by
the code of the metrics, the classifier's by scikit-learn itself. FEDSYN_DATA names the folder of the tables. Exit code:
0 if every figure is inside its interval at least as often as expected.yaml says, 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn import yamlio
from fedsyn.config import RunConfig
from fedsyn.counting.candidates import build_workload
from fedsyn.data import encode_file
from fedsyn.evaluation import EvaluationInput, column_ranges, evaluate
from fedsyn.evaluation.queries import QUERIES, QUERY_SEED, random_queries
from fedsyn.loading import parse_config
from fedsyn.report.html import read_facts
from fedsyn.runs.directory import JUDGED_FILE
from fedsyn.runs.engines import run
from fedsyn.runs.prepare import split_tables
from fedsyn.schema import Schema

HERE = Path(__file__).resolve().parent
Codes = npt.NDArray[np.integer]


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


def of_cell(document: Mapping[str, Any], cell: Mapping[str, Any], runs: int) -> dict[str, list[tuple[float, ...]]]:
    """Figure -> (exact, low, high, value) of every run; the columns together under one name."""
    found = defaultdict[str, list[tuple[float, ...]]](list)
    for seed in range(runs):
        config = config_of(document, cell, seed)
        tables = split_tables(config)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            run(config, out, full_page=False)
            said = read_facts(out / JUDGED_FILE)["figures"]
            made = encode_file(out / "synthetic.csv", tables.schema)
        for name, value in exact(config, tables.schema, tables.train, made).items():
            figure = said[name]
            found[name.split(":")[0] + (" (each)" if ":" in name else "")].append(
                (value, figure["low"], figure["high"], figure["value"])
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--tables", nargs="*", default=None, help="cells of expected.yaml; default: all")
    options = parser.parse_args()
    expected = yamlio.read_mapping(HERE / "expected.yaml")
    good = True
    print("| table | figure | inside | exact | interval (means) |\n|---|---|---|---|---|")
    for label, cell in expected["cells"].items():
        if options.tables is not None and label not in options.tables:
            continue
        for figure, runs in of_cell(expected["base"], cell, options.runs).items():
            value, low, high, _ = np.array(runs).T
            inside = float(np.mean((low <= value) & (value <= high)))
            good &= inside >= expected["at_least"]
            print(
                f"| {label} | {figure} | {inside:.0%} of {len(runs)} | {value.mean():.4f} | "
                f"{low.mean():.4f} to {high.mean():.4f} |",
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
