"""Engines of fits that a configuration names.

fedsyn's own needs no package. The others are estimators of Private-PGM's package `mbi`, which is imported for the first
fit.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass

from fedsyn.config import InferenceNode
from fedsyn.errors import ConfigError
from fedsyn.inference.estimation import Engine, Task
from fedsyn.inference.model import Model
from fedsyn.version import installing

_MAJOR = "2"


@dataclass(frozen=True)
class Fits:
    """Properties of a run's fits that not every estimator can have.

    Attributes:
        zeros: cells that structural zeros rule out.
        shrinkage: shrinkage towards independence.
        noise_level: an end at the noise level.
        factors: hidden factors.
    """

    zeros: bool = False
    shrinkage: bool = False
    noise_level: bool = False
    factors: bool = False


@dataclass(frozen=True)
class Mbi:
    """One of mbi's estimators, by its name there.

    Attributes:
        name: of the class in `mbi.estimation`.
        averages: it returns a model fitted to averages of its iterates. Potentials then move that nothing measured,
            and a cell with probability zero leaves no number.
    """

    name: str
    averages: bool = True

    def __call__(self, task: Task) -> Model:
        """Makes a fit."""
        from fedsyn.inference.mbi_fits import fit_by_mbi

        return fit_by_mbi(task, self.name)

    def require(self, fits: Fits) -> None:
        """Raises ConfigError unless the estimator can make such fits."""
        require_mbi()
        if not self.averages:
            return
        remedies = {
            "honour structural zeros": fits.zeros and "remove the constraints that the schema has",
            "hold hidden factors": fits.factors and "take another mechanism",
            "shrink towards independence": fits.shrinkage and "set inference.shrinkage: 0",
            "end at the noise level": fits.noise_level and "set inference.stop_at_noise_level: false",
        }
        for what, remedy in remedies.items():
            if remedy:
                raise ConfigError(
                    f"inference.estimator: {self.name} cannot {what}, as fits of this run do; "
                    f"take inference.estimator: MirrorDescent, or {remedy}"
                )


#: mbi's estimators by name.
ESTIMATORS: Mapping[str, Mbi] = {
    one.name: one
    for one in (
        Mbi("MirrorDescent", averages=False),
        Mbi("InteriorGradient"),
        Mbi("UniversalAcceleratedMethod"),
    )
}


def engine_of(node: InferenceNode) -> Mbi | None:
    """Returns the configured engine; None is fedsyn's own."""
    return ESTIMATORS[node.estimator] if node.engine == "mbi" else None


def require_mbi() -> None:
    """Raises ConfigError unless mbi is installed, in its second version.

    It imports nothing.
    """
    try:
        version = importlib.metadata.version("mbi")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    if version.split(".")[0] != _MAJOR:
        found = f"found version {version}" if version else "not installed"
        raise ConfigError(f"inference.engine: mbi needs the package 'mbi', version 2 ({found}): {installing('pgm')}")


__all__ = ["ESTIMATORS", "Engine", "Fits", "Mbi", "engine_of", "require_mbi"]
