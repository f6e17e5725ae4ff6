"""Estimation of a distribution from noisy marginals: a NumPy junction-tree engine, and `mbi` behind it."""

from fedsyn.inference.estimation import EstimateConfig, FitInfo, Measurement, estimate
from fedsyn.inference.junction_tree import model_size, pass_cost
from fedsyn.inference.model import Model

__all__ = ["EstimateConfig", "FitInfo", "Measurement", "Model", "estimate", "model_size", "pass_cost"]
