"""Intervals from several synthetic tables: `combine` for any estimator, `analyse` for a formula."""

from fedsyn.analysis.combining import Combined, combine
from fedsyn.analysis.estimators import Estimator, Linear, Logit, Means
from fedsyn.analysis.result import Analysis
from fedsyn.analysis.whole import analyse

__all__ = ["Analysis", "Combined", "Estimator", "Linear", "Logit", "Means", "analyse", "combine"]
