"""Reference values of a metric, from tables that everybody understands.

The scale beside its value.

The training rows themselves are as good as a table can be expected to be (though a metric that reads held-out rows
may say otherwise); columns drawn independently from the real one-way marginals know no association; a uniform table
knows nothing. A learner of independent columns guesses: it is given rows of one label. Metrics from outside
get none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedsyn.domain import Clique, Domain
from fedsyn.evaluation.inputs import EvaluationInput, sample_rows
from fedsyn.evaluation.real.marginals import COUNTED
from fedsyn.evaluation.real.metrics import evaluate
from fedsyn.evaluation.scores import Codes, Floats, shares
from fedsyn.inference import AnyModel, EmpiricalModel, Model

_FAST = ("workload_error", "nll", "range_query_error")
_ONE_LEARNER = ("auc", "f1", "accuracy", "rmse")
_MOST_ROWS = 200_000  # of the training table; of a longer one a sample stands for it
_FEW_ROWS = 2_000  # teach a learner that nothing is linked as well as many would


def scales(names: Iterable[str], data: EvaluationInput, rng: np.random.Generator) -> dict[str, dict[str, float | None]]:
    """Returns the reference values of each quick metric.

    Metric -> reference -> value; None: not finite.

    Args:
        names: the metrics that the run computes.
        data: what they were computed from.
        rng: draws the rows of the references.
    """
    chosen = [name for name in names if name in _FAST or name in _ONE_LEARNER]
    if not chosen or len(data.train) == 0:
        return {}
    # Three tables that everybody understands, each with its model.
    train = sample_rows(data.train, _MOST_ROWS, rng)
    domain, rows = data.domain, len(train)
    shuffled = _shuffled(train, rng)
    uniform = np.column_stack([rng.integers(0, size, rows) for size in domain.shape]) if len(domain) else shuffled
    references: dict[str, tuple[AnyModel, Codes]] = {
        "training rows": (EmpiricalModel(domain, train), train),
        "independent columns": (_independent(train, domain), shuffled),
        "uniform table": (Model(domain, {}, float(rows)), uniform),
    }
    by_metric: dict[str, dict[str, float | None]] = {name: {} for name in chosen}
    counted = data.cache.setdefault(COUNTED, {})
    for reference, (model, table) in references.items():
        for name in chosen:
            synthetic = table
            if name in _ONE_LEARNER and reference != "training rows":
                if reference == "uniform table":
                    continue
                synthetic = _guess(train[:_FEW_ROWS], train, data)
            value = evaluate([name], replace(data, model=model, synthetic=synthetic, cache={COUNTED: counted}))[name]
            by_metric[name][reference] = value if np.isfinite(value) else None
    return by_metric


def placed(value: float, rows: float, independent: float, uniform: float) -> str:
    """Returns a clause on a metric's place among its references.

    A number that is not known is nan.
    """
    at, what = _position(value, independent, rows), "independent columns"
    if (
        not math.isfinite(at)
        or abs(rows - independent) < 0.1 * abs(rows - uniform)
        or (at <= 0 and _position(value, uniform, rows) <= 0)
    ):
        at, what = _position(value, uniform, rows), "a uniform table"
    if not math.isfinite(at):  # the training rows themselves give no number
        at = _position(value, uniform, independent)
        if not math.isfinite(at):
            return "no scale is known"
        return f"{'better' if at > 1 else 'no better'} than independent columns"
    if at >= 0.9:
        return "nearly as good as the training rows themselves"
    if at <= 0:
        return f"no better than {what}"
    return f"{'more' if at >= 0.5 else 'less'} than half of the way from {what} to the training rows"


def _position(value: float, worst: float, best: float) -> float:
    """Returns a value's place between `worst` (0) and `best` (1).

    It is nan where the two are equal or not finite.
    """
    way = best - worst
    return (value - worst) / way if way and math.isfinite(way) and math.isfinite(value) else math.nan


def _guess(rows: Codes, train: Codes, data: EvaluationInput) -> Codes:
    """Returns rows whose label is always the same.

    They show what can be learned where nothing is linked to the label.

    That is the most frequent value, or for a regression the one nearest to the mean.
    """
    assert data.label is not None
    axis = data.label_axis
    codes = train[:, axis].astype(np.int64)
    guess = int(np.argmax(np.bincount(codes)))
    if data.label_values is not None and np.isfinite(data.label_values[codes]).any():
        guess = int(np.nanargmin(np.abs(data.label_values - np.nanmean(data.label_values[codes]))))
    result = rows.copy()
    result[:, axis] = guess
    return result


def _shuffled(codes: Codes, rng: np.random.Generator) -> Codes:
    """Returns rows whose columns were permuted independently.

    They have the same one-way marginals, and no association.
    """
    columns = [rng.permutation(column) for column in codes.T]
    return np.column_stack(columns) if columns else codes


def _independent(codes: Codes, domain: Domain) -> Model:
    """Returns the product of the one-way marginals.

    A value that no row has counts as half a row, so that none is ruled out.
    """
    least = 0.5 / len(codes)
    parts = zip(domain, shares(codes, domain), strict=True)
    potentials: dict[Clique, Floats] = {(name,): np.log(np.maximum(share, least)) for name, share in parts}
    return Model(domain, potentials, float(len(codes)))
