"""One estimator on one problem, in a process of its own: CPU seconds until the loss is at most some targets.

    python estimator_cell.py PROBLEM.npz ENGINE ESTIMATOR TARGETS LIMIT ITERATIONS OUT.json

TARGETS are losses, the highest first, with commas between them. Fits twice: `cold` is the first fit of the process,
with whatever the engine compiles; `warm` is the same fit again, where nothing is left to compile. `finish` is what it
takes from there to a model that can be asked and sampled from.

The native engine is run with a fixed number of iterations for one target (found before, by another process) and its
loss is that of the finished model. An estimator of mbi meets a target with the first block of `BLOCK` iterations after
which its marginals do, and goes on to the next one. The marginals are averages of models for three of the estimators,
which is to their advantage: `finish` then fits a model to them, after the last target that was met.
"""

from __future__ import annotations

import contextlib
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


def native(head: dict[str, Any], values: list[np.ndarray], iterations: int) -> dict[str, Any]:
    start = time.process_time()
    from fedsyn.domain import Domain
    from fedsyn.inference import EstimateConfig, Measurement, estimate

    report: dict[str, Any] = {"import_cpu": time.process_time() - start}
    domain = Domain(tuple(head["attributes"]), tuple(head["shape"]))
    measured = [Measurement(tuple(q), y, s) for q, y, s in zip(head["cliques"], values, head["sigmas"], strict=True)]
    config = EstimateConfig(iterations, 0.0)
    for name in ("cold", "warm"):
        clock = Clock()
        model = estimate(domain, measured, total=head["total"], config=config)
        assert model.info is not None
        cpu, wall = clock.read()
        met = {"cpu": cpu, "wall": wall, "iterations": iterations, "loss": model.info.loss}
        report[name] = {"met": [met], "loss": model.info.loss}
    return report | {"finish_cpu": 0.0, "peak_mb": peak()}


class MbiFit:
    """Fits of one estimator of mbi to one problem.

    Args:
        name: key of ESTIMATORS.
        targets: losses to reach, the highest first.
        limit: CPU seconds after which a fit is given up.
    """

    def __init__(
        self, head: dict[str, Any], values: list[np.ndarray], name: str, targets: list[float], limit: float
    ) -> None:
        start = time.process_time()
        import warnings

        warnings.simplefilter("ignore")
        import jax

        jax.config.update("jax_enable_x64", not name.endswith("_f32"))
        import mbi

        mbi.estimation.CALLBACK_EVERY = BLOCK
        self.import_cpu = time.process_time() - start
        self.wait = jax.block_until_ready
        self.cliques = [tuple(clique) for clique in head["cliques"]]
        self.values, self.sigmas, self.total = values, head["sigmas"], head["total"]
        self.targets, self.limit = targets, limit
        self.domain = mbi.Domain(tuple(head["attributes"]), tuple(head["shape"]))
        self.measured = [
            mbi.LinearMeasurement(y.ravel(), q, s) for q, y, s in zip(self.cliques, values, self.sigmas, strict=True)
        ]
        self.estimator = getattr(mbi.estimation, ESTIMATORS[name])()

    def loss(self, marginals: Any) -> float:
        parts = []
        for clique, values, sigma in zip(self.cliques, self.values, self.sigmas, strict=True):
            table = np.asarray(marginals.project(clique).datavector(flatten=False), np.float64)
            parts.append(0.5 * float((((table - values) / sigma) ** 2).sum()))
        return math.fsum(parts)

    def until_met(self) -> dict[str, Any]:
        """One fit that ends at the last target: what each target took, and the last loss."""
        found: dict[str, Any] = {"met": [], "iterations": 0}
        clock = Clock()

        def look(marginals: Any) -> None:
            self.wait(marginals)
            clock.pause()
            found["iterations"] += BLOCK
            found["loss"] = self.loss(marginals)
            clock.go()
            cpu, wall = clock.read()
            while len(found["met"]) < len(self.targets) and found["loss"] <= self.targets[len(found["met"])]:
                now = {"cpu": cpu, "wall": wall, "iterations": found["iterations"], "loss": found["loss"]}
                found["met"].append(now)
            if len(found["met"]) == len(self.targets) or cpu > self.limit or not math.isfinite(found["loss"]):
                raise Reached

        with contextlib.suppress(Reached):
            self.estimator.estimate(
                self.domain, self.measured, known_total=self.total, iters=1_000_000, callback_fn=look
            )
        return found

    def finish(self, met: dict[str, Any]) -> float:
        """CPU seconds from the marginals of the last target to a model."""
        clock = Clock()
        model = self.estimator.estimate(self.domain, self.measured, known_total=self.total, iters=met["iterations"])
        self.wait(model.potentials)
        return max(0.0, clock.read()[0] - float(met["cpu"]))


def main() -> int:
    path, engine, estimator, targets, limit, iterations, out = sys.argv[1:]
    head, values = read(path)
    try:
        if engine == "native":
            report = native(head, values, int(iterations))
        else:
            fit = MbiFit(head, values, estimator, [float(target) for target in targets.split(",")], float(limit))
            report = {"import_cpu": fit.import_cpu, "cold": fit.until_met(), "warm": fit.until_met(), "peak_mb": peak()}
            Path(out).write_text(json.dumps(report))  # kept if the process is stopped while it finishes
            if report["warm"]["met"]:
                report["finish_cpu"] = fit.finish(report["warm"]["met"][-1])
    except ImportError as error:
        report = {"failed": f"not installed ({error.name})"}
    Path(out).write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
