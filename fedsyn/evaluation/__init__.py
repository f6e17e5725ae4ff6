"""How good a run is: metrics by name, and the input that they are computed from."""

from fedsyn.evaluation.base import ColumnRange, EvaluationInput, Metric, column_ranges, label_values, raw_numbers
from fedsyn.evaluation.real.marginals import client_heterogeneity
from fedsyn.evaluation.real.metrics import METRICS, all_metrics, evaluate, validate_metrics

__all__ = [
    "METRICS",
    "ColumnRange",
    "EvaluationInput",
    "Metric",
    "all_metrics",
    "client_heterogeneity",
    "column_ranges",
    "evaluate",
    "label_values",
    "raw_numbers",
    "validate_metrics",
]
