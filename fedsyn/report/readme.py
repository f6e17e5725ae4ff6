"""README.md of a run: what may be told of its table to whoever gets it. Nothing in it was read from real rows."""

from __future__ import annotations

from dataclasses import replace

from fedsyn.output import markdown
from fedsyn.report.predicted_quality_page import rows
from fedsyn.report.run_page import RunFacts, first_sentence, odds, who_faces_what

_FILES = {
    "synthetic.csv": "the table (or synthetic.parquet)",
    "schema.yaml": "its columns and their values",
    "ledger.json": "the guarantee, and every noisy number that was paid for",
    "predicted_quality.json": "how good the table is predicted to be, column by column and pair by pair",
    "model.npz, measurements.npz": "for more rows, and for intervals that know of the noise",
}


def readme(facts: RunFacts) -> str:
    """Markdown."""
    told = replace(facts, public=True, comparison=None, metrics={})
    private = bool(facts.ledger["private"])
    head = markdown(f"Synthetic table: {facts.source} by {facts.mechanism}")
    lines = [f"# {head}", "", markdown(first_sentence(told)), ""]
    lines += [markdown(odds(told)), ""] if private else ["**Do not release this table: the run is not private.**", ""]
    lines += [faced, ""] if (faced := who_faces_what(told)) else []
    lines += ["## How good it is", "", *_quality(facts), ""]
    lines += ["## How to use it", ""]
    lines += [
        "Rows are nobody's. Means, proportions and regressions of one synthetic table have intervals that are too "
        "narrow, as nothing tells them of the noise: draw twenty tables and combine them.",
        "",
        "```sh",
        "fedsyn sample . --tables 20 --out tables",
        "fedsyn analyse tables 'OUTCOME ~ COLUMN + COLUMN'",
        "```",
        "",
        "## What may go with it",
        "",
        *(f"- `{name}`: {what}" for name, what in _FILES.items()),
        "",
        "Everything else in this folder stays, but for the page that `fedsyn report . --no-real` writes.",
    ]
    return "\n".join(lines) + "\n"


def _quality(facts: RunFacts) -> list[str]:
    predicted = facts.predicted
    if predicted is None:
        return ["Nothing was said of it."]
    said = predicted.sentence()
    lines = [markdown(f"{said[:1].upper()}{said[1:]}.")]
    if predicted.workload_error is None:
        return lines
    lines += [
        "",
        "That is the mean distance, 0 to 2, of the table's model and the real rows over the combinations of columns "
        "that the run was asked for, predicted from what was released: it reads no row and costs no privacy.",
        "",
        markdown(predicted.advice()),
        "",
        "| furthest off | distance | from | to | rests on |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(map(markdown, row))} |" for row in rows(predicted.worst())),
    ]
    return lines
