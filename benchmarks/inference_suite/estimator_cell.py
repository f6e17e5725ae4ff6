"""One estimator on one problem, in a process of its own: CPU seconds until the loss is at most `target`.

    python estimator_cell.py PROBLEM.npz ENGINE ESTIMATOR TARGET LIMIT ITERATIONS OUT.json

Runs twice: `cold` is the first fit of the process, with whatever the engine compiles; `warm` is the same fit again,
where nothing is left to compile. `finish` is what it takes from there to a model that can be asked and sampled from.

The native engine is run with a fixed number of iterations (found before, by another process) and its loss is that of
the finished model. An estimator of mbi is stopped at the first block of `BLOCK` iterations whose marginals meet the
target; these are averages of models for three of them, which is to their advantage: `finish` then fits a model to them.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

#: Iterations between two looks at the loss; mbi's own is 50, with which the target would be met late.
BLOCK = 10
ESTIMATORS = {
    "mirror_descent": "MirrorDescent",
    "mirror_descent_f32": "MirrorDescent",
    "lbfgs": "LBFGS",
    "dual_averaging": "DualAveraging",
    "interior_gradient": "InteriorGradient",
    "universal": "UniversalAcceleratedMethod",
}


def peak() -> float:
    """MB that this process has peaked at."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read(path: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    with np.load(path) as file:
        head = json.loads(file["head"].tobytes())
        return head, [file[f"y{i}"] for i in range(len(head["cliques"]))]


class Reached(Exception):
    """The target is met, or the limit."""


class Clock:
    """CPU and wall seconds of a fit, without those spent on looking at its loss."""

    def __init__(self) -> None:
        self.out_cpu = self.out_wall = 0.0
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def pause(self) -> None:
        self.paused = time.process_time(), time.perf_counter()

    def go(self) -> None:
        self.out_cpu += time.process_time() - self.paused[0]
        self.out_wall += time.perf_counter() - self.paused[1]

    def read(self) -> tuple[float, float]:
        return time.process_time() - self.cpu - self.out_cpu, time.perf_counter() - self.wall - self.out_wall


def native(head: dict[str, Any], values: list[np.ndarray], solver: str, iterations: int) -> dict[str, Any]:
    start = time.process_time()
    from fedsyn.domain import Domain
    from fedsyn.inference import EstimateConfig, Measurement, estimate

    report: dict[str, Any] = {"import_cpu": time.process_time() - start, "import_mb": peak()}
    domain = Domain(tuple(head["attributes"]), tuple(head["shape"]))
    measured = [
        Measurement(tuple(q), y, s) for q, y, s in zip(head["cliques"], values, head["sigmas"], strict=True)
    ]
    config = EstimateConfig(solver=solver, iterations=iterations, tolerance=0.0)
    for name in ("cold", "warm"):
        clock = Clock()
        model = estimate(domain, measured, total=head["total"], config=config)
        assert model.info is not None
        cpu, wall = clock.read()
        report[name] = {"cpu": cpu, "wall": wall, "iterations": model.info.iterations, "loss": model.info.loss}
    return report | {"finish_cpu": 0.0, "final_loss": model.info.loss, "peak_mb": peak()}


def with_mbi(
    head: dict[str, Any], values: list[np.ndarray], name: str, target: float, limit: float
) -> dict[str, Any]:
    start = time.process_time()
    import warnings

    warnings.simplefilter("ignore")
    import jax

    jax.config.update("jax_enable_x64", not name.endswith("_f32"))
    import mbi

    mbi.estimation.CALLBACK_EVERY = BLOCK
    report: dict[str, Any] = {"import_cpu": time.process_time() - start, "import_mb": peak()}
    domain = mbi.Domain(tuple(head["attributes"]), tuple(head["shape"]))
    measured = [
        mbi.LinearMeasurement(y.ravel(), tuple(q), s)
        for q, y, s in zip(head["cliques"], values, head["sigmas"], strict=True)
    ]
    estimator = getattr(mbi.estimation, ESTIMATORS[name])()

    def loss_of(marginals: Any) -> float:
        parts = []
        for q, y, s in zip(head["cliques"], values, head["sigmas"], strict=True):
            p = np.asarray(marginals.project(tuple(q)).datavector(flatten=False), np.float64)
            parts.append(0.5 * float((((p - y) / s) ** 2).sum()))
        return math.fsum(parts)

    def fit() -> dict[str, Any]:
        found: dict[str, Any] = {"iterations": 0, "met": False}
        clock = Clock()

        def look(marginals: Any) -> None:
            jax.block_until_ready(marginals)
            clock.pause()
            found["iterations"] += BLOCK
            found["loss"] = loss_of(marginals)
            clock.go()
            found["cpu"], found["wall"] = clock.read()
            found["met"] = found["loss"] <= target
            if found["met"] or found["cpu"] > limit or not math.isfinite(found["loss"]):
                raise Reached

        try:
            estimator.estimate(domain, measured, known_total=head["total"], iters=100_000, callback_fn=look)
        except Reached:
            pass
        return found

    report["cold"], report["warm"] = fit(), fit()
    report["peak_mb"] = peak()
    if report["warm"]["met"]:
        clock = Clock()
        model = estimator.estimate(domain, measured, known_total=head["total"], iters=report["warm"]["iterations"])
        jax.block_until_ready(model.potentials)
        report["finish_cpu"] = max(0.0, clock.read()[0] - report["warm"]["cpu"])
        report["final_loss"] = loss_of(model)
    return report


def main() -> int:
    path, engine, estimator, target, limit, iterations, out = sys.argv[1:]
    head, values = read(path)
    try:
        if engine == "native":
            report = native(head, values, estimator, int(iterations))
        else:
            report = with_mbi(head, values, estimator, float(target), float(limit))
    except ImportError as error:
        report = {"failed": f"not installed ({error.name})"}
    Path(out).write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
