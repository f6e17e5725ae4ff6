"""AIM (McKenna et al. 2022) with a fixed number of rounds on mbi 2.0 alone, for want of a package that ships it.

What mbi offers mechanisms is used as it is: `MirrorDescent` with a warm start, `bulk_variable_elimination` for the
candidates, `hypothetical_model_size` for what fits, and its own synthetic rows. Scales are those of fedsyn's `aim`.
"""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np

warnings.simplefilter("ignore")
import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
import mbi  # noqa: E402


def _closure(workload: list[list[str]]) -> dict[tuple[str, ...], float]:
    """Candidates with their weights: the attributes that each shares with the cliques of the workload."""
    parts = {part for q in workload for size in range(1, len(q) + 1) for part in itertools.combinations(tuple(q), size)}
    return {part: float(sum(len(set(part) & set(q)) for q in workload)) for part in sorted(parts)}


def _choose(scores: list[float], epsilon: float, sensitivity: float, rng: np.random.Generator) -> int:
    return int(np.argmax(np.array(scores) * 0.5 * epsilon / sensitivity + rng.gumbel(size=len(scores))))


def run(head: dict[str, Any], codes: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    """(n, d) synthetic codes."""
    made = fit(head, codes, settings).synthetic_data(rows=len(codes))
    return np.stack([np.asarray(made.data[name]) for name in head["attributes"]], axis=1)


def fit(head: dict[str, Any], codes: np.ndarray, settings: dict[str, Any]) -> Any:
    """mbi's model after the last round."""
    names, rounds, rho = head["attributes"], settings["rounds"], settings["rho"]
    rng = np.random.default_rng(settings["seed"])
    domain = mbi.Domain(tuple(names), tuple(head["shape"]))
    data = mbi.Dataset({name: codes[:, i].astype(np.int64) for i, name in enumerate(names)}, domain)
    weights = _closure(head["workload"])
    sigma = math.sqrt((rounds + len(names)) / (2 * 0.9 * rho))
    epsilon = math.sqrt(8 * 0.1 * rho / rounds)
    answers = {clique: np.asarray(data.project(clique).datavector()) for clique in weights}

    def measure(clique: tuple[str, ...]) -> Any:
        exact = answers[clique]
        return mbi.LinearMeasurement(exact + sigma * rng.standard_normal(exact.shape), clique, sigma)

    estimator = mbi.estimation.MirrorDescent()
    measured = [measure((name,)) for name in names if (name,) in weights]
    model = estimator.estimate(domain, measured, iters=settings["iterations"])
    for t in range(1, rounds + 1):
        limit = settings["megabytes"] * t / rounds
        small = [
            clique
            for clique in weights
            if any(set(clique) <= set(other) for other in model.cliques)
            or mbi.junction_tree.hypothetical_model_size(domain, [*model.cliques, clique]) <= limit
        ]
        estimates = mbi.marginal_oracles.bulk_variable_elimination(model.potentials, small, total=model.total)
        scores = []
        for clique in small:
            gap = float(np.abs(answers[clique] - np.asarray(estimates[clique].datavector())).sum())
            scores.append(weights[clique] * (gap - math.sqrt(2 / math.pi) * sigma * domain.size(clique)))
        chosen = small[_choose(scores, epsilon, max(weights[clique] for clique in small), rng)]
        measured.append(measure(chosen))
        model = estimator.estimate(domain, measured, iters=settings["iterations"], warm_start=model)
    return model
