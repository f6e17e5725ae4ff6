"""What a metric is, and what it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fedsyn.domain import Clique, Domain
from fedsyn.workload import Workload


class EvaluatedModel(Protocol):
    """The part of `fedsyn.inference.Model` that metrics use."""

    def project_many(self, cliques: Sequence[Clique]) -> list[np.ndarray]: ...

    def probability_at(self, clique: Clique, cells: np.ndarray) -> np.ndarray: ...

    def log_likelihood(self, codes: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationInput:
    """Everything that metrics may look at. Codes are integer arrays with columns in the order of `domain`.

    Attributes:
        train: (n, d) codes of the pooled training table.
        domain: attributes and cardinalities.
        workload: weighted cliques.
        test: (m, d) codes of the held-out rows, or None.
        model: the estimated distribution, or None for a mechanism that has none.
        synthetic: (s, d) codes of the synthetic table, or None.
        partition: row indices (into `train`) of each client, or None.
        label: the attribute that classifiers predict, or None.
        label_values: (cardinality of the label,) number that each label code stands for, NaN for a missing
            value; None where the label is not numeric. See `label_values`.
        cache: results that several metrics share; leave it alone.
    """

    train: np.ndarray
    domain: Domain
    workload: Workload
    test: np.ndarray | None = None
    model: EvaluatedModel | None = None
    synthetic: np.ndarray | None = None
    partition: Sequence[np.ndarray] | None = None
    label: str | None = None
    label_values: np.ndarray | None = None
    cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def has_test(self) -> bool:
        return self.test is not None and self.test.shape[0] > 0


@dataclass(frozen=True)
class Metric:
    """A number that says how good a run is.

    Attributes:
        name: its key in metrics.json.
        compute: the number.
        summary: one line for documentation and command line.
        lower_is_better: direction, for tables and plots.
        needs: the parts of an `EvaluationInput` that must be there.
    """

    name: str
    compute: Callable[[EvaluationInput], float]
    summary: str
    lower_is_better: bool = True
    needs: frozenset[str] = frozenset()
