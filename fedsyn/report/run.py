"""`fedsyn report` of a run: its page with plots, and its metrics as CSV and LaTeX."""

from __future__ import annotations

import csv
import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn.config import RunConfig, load_config
from fedsyn.errors import FedsynError, InputError
from fedsyn.report import figures
from fedsyn.report.html import picture, write_report
from fedsyn.report.tables import latex_table, number
from fedsyn.schema import Schema
from fedsyn.schema.columns import CategoricalColumn

# Plots of more attributes than this would not fit a page of 2 MB.
_MOST_ATTRIBUTES = 45
_NOT_PRIVATE = (
    '<p class="warn"><b>Not private:</b> the plots below are drawn from the real rows, without noise and outside the '
    "guarantee. Do not publish this page; <code>fedsyn report --no-real</code> writes one without them.</p>"
)


def write_full_report(out: Path, *, real: bool = True) -> list[Path]:
    """Rewrites report.html with plots and writes metrics.csv and metrics.tex. Returns the paths."""
    config = load_config(out / "config.yaml")
    page = write_report(out, _rounds(out) + _marginals(config, out, real))
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    with (out / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("metric", "value"), *metrics.items()])
    rows = [(name, "not finite" if value is None else number(value)) for name, value in metrics.items()]
    (out / "metrics.tex").write_text(latex_table(("metric", "value"), rows), encoding="utf-8")
    return [page, out / "metrics.csv", out / "metrics.tex"]


def _rounds(out: Path) -> str:
    """What rounds.jsonl says about every round, against the round: errors where the mechanism records any."""
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    titles = {
        "error": "error",
        "workload_error": "workload error",
        "sigma": "sigma (records)",
        "epsilon": "epsilon of a selection",
        "bytes_up": "bytes from clients",
        "bytes_down": "bytes to clients",
    }
    lines = {}
    for key, title in titles.items():
        known = [(r["round"], r[key]) for r in records if r.get(key) is not None and r["round"] > 0]
        if known:
            rounds, values = zip(*known, strict=True)
            lines[title] = (np.array(rounds), np.array(values, dtype=float))
    return f"<h2>By round</h2>{picture(figures.by_round(lines), 'quantities by round')}" if lines else ""


def _marginals(config: RunConfig, out: Path, real: bool) -> str:
    """One-way marginals of the synthetic table; beside them the real ones where this is a simulation."""
    from fedsyn.data import read_table

    title, note, actual = "<h2>One-way marginals</h2>", "", None
    try:
        schema, rows = _public_schema(config), None
        if real and config.runtime.engine != "deployment":
            schema, rows = _training_rows(config)
    except FedsynError as error:
        note = f"<p>The real rows are not at hand: {escape(str(error))}</p>"
    try:
        schema = schema if not note else _public_schema(config)
        synthetic = schema.encode(read_table(out / "synthetic.csv", schema))
    except InputError as error:
        return f"{title}<p>No plots: {escape(str(error))}</p>"
    names = schema.domain.attributes[:_MOST_ATTRIBUTES]
    if len(names) < len(schema.domain.attributes):
        note += f"<p>The first {len(names)} of {len(schema.domain.attributes)} attributes.</p>"
    if not note and rows is not None:
        pass
    if rows is not None:
        actual = _counts(rows, schema)
    labels = {name: _labels(schema.columns[name]) for name in names}
    counts = {name: value for name, value in _counts(synthetic, schema).items() if name in names}
    png = figures.marginals(counts, actual, labels)
    return f"{title}{_NOT_PRIVATE if actual is not None else ''}{note}{picture(png, 'one-way marginals')}"
