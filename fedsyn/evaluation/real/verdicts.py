"""Words for scores: where a number stands between what knows nothing and what could not be better."""

from __future__ import annotations

import math
from typing import Literal

from fedsyn.evaluation.learners.prediction import Prediction
from fedsyn.evaluation.real.attack import Attack

Mood = Literal["good", "mid", "bad"]
Verdict = tuple[str, Mood]


def position(value: float, worst: float, best: float) -> float:
    """Where a value stands on the way from `worst` (0) to `best` (1); nan where the two are equal or not finite.

    >>> position(0.75, 0.5, 1.0), position(0.9, 1.0, 0.0) > 0
    (0.5, True)
    """
    way = best - worst
    return (value - worst) / way if way and math.isfinite(way) and math.isfinite(value) else math.nan


def of_metric(value: float, rows: float, independent: float, uniform: float) -> Verdict:
    """A metric beside the training rows themselves, independent columns and a uniform table; nan: not known."""
    at = position(value, independent, rows)
    if not math.isfinite(at) or abs(rows - independent) < 0.1 * abs(rows - uniform):
        at = position(value, uniform, rows)
        return _worded(at, "a uniform table") if math.isfinite(at) else _beyond(value, independent, uniform)
    if at <= 0 and math.isfinite(uniform) and position(value, uniform, rows) <= 0:
        return "no better than a uniform table", "bad"
    return _worded(at, "independent columns")


def _beyond(value: float, independent: float, uniform: float) -> Verdict:
    """Where the training rows themselves give no number."""
    at = position(value, uniform, independent)
    if not math.isfinite(at):
        return "no scale is known", "mid"
    return ("better than independent columns", "good") if at > 1 else ("no better than independent columns", "bad")


def _worded(at: float, what: str) -> Verdict:
    if at >= 0.9:
        return "nearly as good as the training rows themselves", "good"
    if at >= 0.5:
        return f"more than half of the way from {what} to the training rows", "good"
    if at > 0:
        return f"less than half of the way from {what} to the training rows", "mid"
    return f"no better than {what}", "bad"


def of_prediction(found: Prediction) -> Verdict:
    """What a model learns from the table beside what it learns from real rows."""
    good = (found.real - found.guess) * (-1 if found.measure == "RMSE" else 1)
    if good <= (0.02 if found.measure == "AUC" else 0.02 * abs(found.guess)):
        return f"real rows do not predict {found.label} either", "mid"
    if found.kept >= 0.9:
        return "predicts nearly as well as real rows", "good"
    if found.kept >= 0.5:
        return "predicts, worse than real rows", "mid"
    return "predicts little" if found.kept > 0.1 else "predicts nothing", "bad"


def of_attack(found: Attack) -> Verdict:
    """What the attack found out."""
    if found.lower <= 0.5:
        return "this attack cannot tell training rows from others", "good"
    if found.auc < 0.6:
        return "this attack tells training rows from others a little better than by guessing", "mid"
    return "this attack tells training rows from others: the table remembers rows", "bad"
