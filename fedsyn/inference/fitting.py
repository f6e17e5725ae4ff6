"""How a model is fitted: settings, and the potentials that a fit starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsyn.config import InferenceNode
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, nearest
from fedsyn.inference.model import Model
from fedsyn.inference.triangulation import axes_of, bits

ENGINES = ("native", "mbi")
SOLVERS = ("accelerated", "mirror_descent")


@dataclass(frozen=True)
class EstimateConfig:
    """How a model is fitted.

    Attributes:
        engine: "native", or "mbi" for the reference implementation (needs `pip install fedsyn[pgm]`).
        solver: "accelerated" (default) or "mirror_descent".
        iterations: at most this many. A converged fit also fits the noise, and the sampling error of measurements that
            saw only some of the federation's rows: it drives cells with small noisy counts to 0, which costs likelihood
            on other rows. Stopping early regularises; benchmarks/README.md has figures for two mechanisms. An
            iteration costs 1.3 calibrations (2 for mirror descent).
        tolerance: stop when 10 iterations lowered the loss by less than this, relatively; 0 makes all iterations.
        until_noise: stop as well when the noise of the measurements explains what the model leaves of them
            (`solvers.Problem.is_explained`).
    """

    engine: str = "native"
    solver: str = "accelerated"
    iterations: int = 100
    tolerance: float = 1e-4
    until_noise: bool = False

    def __post_init__(self) -> None:
        for name, value, allowed in (("engine", self.engine, ENGINES), ("solver", self.solver, SOLVERS)):
            if value not in allowed:
                raise ConfigError(f"inference.{name} must be one of {', '.join(allowed)}{nearest(str(value), allowed)}")
        if self.iterations < 0:
            raise ConfigError("inference.iterations must not be negative")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ConfigError("inference.tolerance must be a number and not negative")


def estimate_config(node: InferenceNode, iterations: int, *, until_noise: bool = False) -> EstimateConfig:
    """Settings of one fit: the configuration's engine and solver with the mechanism's number of iterations."""
    until_noise = until_noise if node.until_noise is None else node.until_noise
    return EstimateConfig(node.engine, node.solver, iterations, until_noise=until_noise and node.engine == "native")


def start_potentials(domain: Domain, masks: Sequence[int], model: Model | None) -> list[np.ndarray]:
    """Potentials of a model carried over to other cliques: one table per mask, axes by rank, zero where it has none.

    Each potential goes to the smallest of the masks that contains its clique.
    """
    axes = axes_of(domain)
    tables = {mask: np.zeros(axes.shape(mask)) for mask in masks}
    for mask, table in (model.rank_potentials() if model is not None else {}).items():
        hosts = [other for other in masks if mask & other == mask]
        if hosts:
            host = min(hosts, key=lambda other: (axes.cells(other), other))
            shape = [axes.sizes[rank] if mask >> rank & 1 else 1 for rank in bits(host)]
            tables[host] += table.reshape(shape)
    return [tables[mask] for mask in masks]
