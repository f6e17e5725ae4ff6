"""Predicted quality of a table, from released values.

No row is read, nothing is spent.
"""

from fedsyn.evaluation.predicted.effects import SketchError
from fedsyn.evaluation.predicted.quality import PredictedError, PredictedQuality, predict_quality

__all__ = ["PredictedError", "PredictedQuality", "SketchError", "predict_quality"]
