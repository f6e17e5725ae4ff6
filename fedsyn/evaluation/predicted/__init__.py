"""How good a table is predicted to be, from what its run released anyway: no row is read, nothing is spent."""

from fedsyn.evaluation.predicted.effects import Glimpse
from fedsyn.evaluation.predicted.quality import PredictedError, PredictedQuality, predict_quality

__all__ = ["Glimpse", "PredictedError", "PredictedQuality", "predict_quality"]
