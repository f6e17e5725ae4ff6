"""How good a table is predicted to be, from what its run released anyway: no row is read, nothing is spent."""

from fedsyn.evaluation.predicted.effects import SketchError
from fedsyn.evaluation.predicted.quality import PredictedError, PredictedQuality, predict_quality

__all__ = ["PredictedError", "PredictedQuality", "SketchError", "predict_quality"]
