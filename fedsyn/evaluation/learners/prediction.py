"""Prediction: train on synthetic rows beside training on real rows, both tested on the same real rows."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from fedsyn.domain import Domain
from fedsyn.evaluation.base import EvaluationInput, label_values, sample_rows
from fedsyn.evaluation.learners.boosting import auc, rmse
from fedsyn.evaluation.real.scores import Codes
from fedsyn.table.counting.workload import Workload
from fedsyn.table.schema import Schema
from fedsyn.version import installing

MOST_ROWS = 10_000  # of each kind: enough for 100 trees of depth 4
MOST_CLASSES = 8  # classes beyond these, the rarest, count as one


@dataclass(frozen=True)
class Prediction:
    """How well a model that was trained on the synthetic table predicts real rows.

    Attributes:
        label: the predicted column.
        measure: 'AUC' (higher is better, 0.5 is guessing) or 'RMSE' (lower is better, in the label's unit).
        synthetic: of the model trained on synthetic rows.
        real: of the same model trained on as many real rows.
        guess: of a prediction that looks at nothing: 0.5, or the spread of the label.
        held_out: whether the rows tested on were held out; otherwise they are a half of the rows that the table was
            made from, which flatters both.
        rows: tested rows.
        chance: gain over guessing that a model which knows nothing has by chance in one table of 700 (three standard
            errors of an AUC of 0.5, Hanley & McNeil 1982); 0 where the measure is no AUC.
    """

    label: str
    measure: str
    synthetic: float
    real: float
    guess: float
    held_out: bool
    rows: int
    chance: float = 0.0

    @property
    def can_judge(self) -> bool:
        """Whether real rows predict the label at all: by more than a fiftieth, and by more than chance."""
        good = (self.real - self.guess) * (-1 if self.measure == "RMSE" else 1)
        return good > max(self.chance, 0.02 if self.measure == "AUC" else 0.02 * abs(self.guess))

    @property
    def kept(self) -> float:
        """What share of what can be learned from real rows is learned from synthetic ones; may lie outside 0 to 1."""
        gain = self.real - self.guess
        return (self.synthetic - self.guess) / gain if gain else 0.0

    def words(self) -> str:
        """Return what a model learns from the table beside what it learns from real rows, as a clause."""
        if not self.can_judge:
            return f"{self.rows:,} real rows do not show that {self.label} can be predicted"
        if self.kept >= 0.9:
            return "predicts nearly as well as real rows"
        if self.kept >= 0.5:
            return "predicts, worse than real rows"
        return "predicts little" if self.kept > 0.1 else "predicts nothing"


def prediction(
    schema: Schema,
    real: Codes,
    synthetic: Codes,
    holdout: Codes | None,
    label: str | None,
    halves: tuple[Codes, Codes],
    rng: np.random.Generator,
) -> Prediction | str:
    """Histogram gradient boosting as of the metric `auc`, on at most 10,000 rows; or a text that says what is missing.

    A label of many categories is predicted as its most frequent ones and the rest.
    """
    if label is None:
        return "needs a label: the column to predict (data.label)"
    if find_spec("sklearn") is None or find_spec("threadpoolctl") is None:
        return f"needs scikit-learn: {installing('evaluation')}"
    held_out = holdout is not None and len(holdout) > 0
    train, test = (real, holdout) if held_out else halves
    assert test is not None
    train, test, made = (sample_rows(codes, MOST_ROWS, rng) for codes in (train, test, synthetic))
    axis, domain, values = schema.domain.axes((label,))[0], schema.domain, label_values(schema, label)
    numeric = values is not None and domain[label] > MOST_CLASSES
    if not numeric and domain[label] > MOST_CLASSES:
        classes = _classes(train[:, axis], domain[label])
        train, test, made = (_with_label(codes, axis, classes) for codes in (train, test, made))
        domain = Domain(domain.attributes, tuple(MOST_CLASSES if i == axis else n for i, n in enumerate(domain.shape)))
    scores = [
        (rmse if numeric else auc)(
            EvaluationInput(
                train=train,
                domain=domain,
                workload=Workload((), ()),
                test=test,
                synthetic=rows,
                label=label,
                label_values=values if numeric else None,
            )
        )
        for rows in (made, train)
    ]
    spread = 0.5
    if numeric:
        assert values is not None
        known, learned = values[test[:, axis]], values[train[:, axis]]
        spread = float(np.sqrt(np.nanmean((known - np.nanmean(learned)) ** 2)))
    chance = 0.0 if numeric else _chance(test[:, axis])
    return Prediction(label, "RMSE" if numeric else "AUC", scores[0], scores[1], spread, held_out, len(test), chance)


def _chance(labels: Codes) -> float:
    """Three standard errors of the mean over the classes of an AUC of 0.5, or more: as if the classes' were one."""
    rows, counts = len(labels), np.unique(labels, return_counts=True)[1].astype(np.float64)
    apart = counts[counts < rows]
    return float(np.mean(3.0 * np.sqrt((rows + 1.0) / (12.0 * apart * (rows - apart))))) if len(apart) else 0.0


def _classes(codes: Codes, size: int) -> Codes:
    """(size,) class of each label code: the most frequent ones, and one for the rest."""
    result = np.full(size, MOST_CLASSES - 1)
    frequent = np.argsort(-np.bincount(codes.astype(np.int64), minlength=size), kind="stable")[: MOST_CLASSES - 1]
    result[frequent] = np.arange(MOST_CLASSES - 1)
    return result


def _with_label(codes: Codes, axis: int, classes: Codes) -> Codes:
    result = codes.astype(np.int64)
    result[:, axis] = classes[codes[:, axis]]
    return result
