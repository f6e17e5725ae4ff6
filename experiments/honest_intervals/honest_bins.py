"""What bins lose: Adult's own values beside the same population in the bins of its schema.

A table's numbers are drawn evenly within each bin by `Schema.decode`; the experiment takes the middle of each bin. An
interval is for the population in bins, and this table says how far that is from the raw one.
"""

from __future__ import annotations

import numpy as np

from experiments.honest_intervals.honest_estimands import ESTIMANDS, Estimand, linear, logistic
from experiments.honest_intervals.honest_populations import ADULT
from experiments.honest_intervals.honest_runs import truth
from fedsyn.table.data import load_dataset
from fedsyn.table.schema import Schema

BINS = (8, 16, 32)


def lines() -> list[str]:
    """A table in Markdown: estimands with a numeric column, their raw value, and that in several numbers of bins."""
    heads = [
        "raw",
        *(f"{bins} bins, evenly" for bins in BINS),
        "16 bins, middles",
        "95% interval of 5,000 raw rows: half",
    ]
    out = ["| estimate | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    dataset = load_dataset("adult", bins=16)
    raw = _columns(dataset.frame, dataset.schema)
    decoded = [_decoded(bins) for bins in BINS]
    numeric = {name for name in ADULT if dataset.schema.columns[name].kind == "numeric"} - {"education-num"}
    for what in ESTIMANDS["adult"]:
        if not numeric & set(what.clique):
            continue
        estimate, variance = _of_rows(what, raw)
        others = [_of_rows(what, columns)[0] for columns in decoded]
        for i, name in enumerate(what.names):
            half = 1.96 * np.sqrt(variance[i] * len(raw["age"]) / 5000)
            values = [estimate[i], *(other[i] for other in others), truth("adult", what)[i], half]
            out.append(f"| {name} | " + " | ".join(f"{value:.4f}" for value in values) + " |")
    return out


def _decoded(bins: int) -> dict[str, np.ndarray]:
    dataset = load_dataset("adult", bins=bins)
    return _columns(dataset.schema.decode(dataset.encode(), np.random.default_rng(0)), dataset.schema)


def _columns(frame, schema: Schema) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    """Numbers as they are, categories as their codes, of rows without a missing number."""
    codes, domain, out = schema.encode(frame), schema.domain, {}
    for name in ADULT:
        is_number = schema.columns[name].kind == "numeric"
        out[name] = frame[name].to_numpy(float) if is_number else codes[:, domain.attributes.index(name)].astype(float)
    return out


def _of_rows(what: Estimand, columns: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    y, ones = columns[what.outcome], np.ones(len(columns[what.outcome]))
    if not what.terms:
        y = (y == what.of).astype(float) if what.kind == "proportion" else y
        return np.array([y.mean()]), np.array([y.var(ddof=1) / len(y)])
    X = np.stack([ones, *(columns[term] for term in what.terms)], axis=1)
    estimate, variance = (linear if what.kind == "linear" else logistic)(y, X, ones)
    return estimate[1:], variance[1:]
