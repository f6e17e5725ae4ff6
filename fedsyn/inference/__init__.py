"""Estimation of a distribution from noisy marginals."""

from fedsyn.inference.consistency import consistent
from fedsyn.inference.estimation import EstimateConfig, estimate
from fedsyn.inference.gum import GumConfig, synthesize
from fedsyn.inference.junction_tree import model_size, pass_cost
from fedsyn.inference.measurements import Evidence, Measurement
from fedsyn.inference.model import FitInfo, Model
from fedsyn.inference.other_models import AnyModel, EmpiricalModel, MixtureModel, read_model, rows_for
from fedsyn.inference.posterior import Posterior
from fedsyn.table.counting.hierarchy import HierarchicalMeasurement, Hierarchy, least_squares

__all__ = [
    "AnyModel",
    "EmpiricalModel",
    "EstimateConfig",
    "Evidence",
    "FitInfo",
    "GumConfig",
    "HierarchicalMeasurement",
    "Hierarchy",
    "Measurement",
    "MixtureModel",
    "Model",
    "Posterior",
    "consistent",
    "estimate",
    "least_squares",
    "model_size",
    "pass_cost",
    "read_model",
    "rows_for",
    "synthesize",
]
