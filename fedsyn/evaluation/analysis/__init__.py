"""Intervals from several synthetic tables.

`combine` for any estimator, `analyse` for a formula.
"""

from fedsyn.evaluation.analysis.combining import Combined, combine
from fedsyn.evaluation.analysis.estimators import Estimator, Linear, Logit, Means, Quantile
from fedsyn.evaluation.analysis.result import Analysis
from fedsyn.evaluation.analysis.whole import analyse

__all__ = ["Analysis", "Combined", "Estimator", "Linear", "Logit", "Means", "Quantile", "analyse", "combine"]
