"""`fedsyn report` of a run: its page with plots, and its metrics as CSV and LaTeX."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.counting.marginals import count, count_blocks
from fedsyn.errors import FedsynError, InputError
from fedsyn.loading import load_config
from fedsyn.report import figures
from fedsyn.report.html import picture, read_facts, read_rounds, write_report
from fedsyn.report.tables import latex_table, number
from fedsyn.runs.directory import synthetic_file
from fedsyn.runs.prepare import encoded_table, public_schema
from fedsyn.schema import Schema
from fedsyn.schema.binned import BinnedColumn
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
    metrics = read_facts(out / "metrics.json")
    with (out / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("metric", "value"), *metrics.items()])
    rows = [(name, "not finite" if value is None else number(value)) for name, value in metrics.items()]
    (out / "metrics.tex").write_text(latex_table(("metric", "value"), rows), encoding="utf-8")
    return [page, out / "metrics.csv", out / "metrics.tex"]


def _rounds(out: Path) -> str:
    """What is known of every round, against the round."""
    records = read_rounds(out)
    titles = {
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
    from fedsyn.data import encoded_blocks

    title, note, rows = "<h2>One-way marginals</h2>", "", None
    try:
        schema = public_schema(config)
        names = schema.domain.attributes[:_MOST_ATTRIBUTES]
        blocks = (block.codes for block in encoded_blocks(synthetic_file(out), schema))
        synthetic = count_blocks(blocks, schema.domain, [(name,) for name in names])
    except InputError as error:
        return f"{title}<p>No plots: {escape(str(error))}</p>"
    if real and config.runtime.engine != "deployment":
        try:
            rows = _training_rows(config)
        except FedsynError as error:
            note = f"<p>The real rows are not at hand: {escape(str(error))}</p>"
    if len(names) < len(schema.domain.attributes):
        note += f"<p>The first {len(names)} of {len(schema.domain.attributes)} attributes.</p>"
    labels = {name: _labels(schema.columns[name]) for name in names}
    actual = None if rows is None else _counts(rows, schema, names)
    png = figures.marginals(dict(zip(names, synthetic, strict=True)), actual, labels)
    warning = "" if actual is None else _NOT_PRIVATE
    return f"{title}{warning}{note}{picture(png, 'one-way marginals')}"


def _training_rows(config: RunConfig) -> np.ndarray:
    """(n, d) codes of the rows that the run's clients held together."""
    return encoded_table(config.data).train


def _counts(codes: np.ndarray, schema: Schema, names: Sequence[str]) -> dict[str, np.ndarray]:
    cliques = [(name,) for name in names]
    return dict(zip(names, count(codes, schema.domain, cliques), strict=True))


def _labels(column: CategoricalColumn | BinnedColumn) -> list[str]:
    """What each code stands for: the value, or the lower edge of the bin."""
    return [*column.labels(), *(["missing"] if column.missing else [])]
