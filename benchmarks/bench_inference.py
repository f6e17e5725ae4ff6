"""Inference: loss reached by the native engine and by mbi in one run, and what each native operation costs.

    FEDSYN_DATA=DIR python benchmarks/bench_inference.py [--mbi] [--measurements 12] [--cells 400000] [--seed 0]

Needs `adult_flaim.csv[.gz]` and `adult_flaim.domain.json` in FEDSYN_DATA. CPU seconds are of this process, all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from fedsyn.domain import Domain
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate, model_size, pass_cost
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.workload import downward_closure, random_kway

T = TypeVar("T")


def timed(function: Callable[[], T], repeat: int = 1) -> tuple[T, float]:
    """Result and the least CPU seconds of one call."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        result = function()
        best = min(best, time.process_time() - start)
    return result, best


def load(folder: Path) -> tuple[np.ndarray, Domain]:
    domain = Domain.from_dict(json.loads((folder / "adult_flaim.domain.json").read_text()))
    path = next(p for p in (folder / "adult_flaim.csv.gz", folder / "adult_flaim.csv") if p.exists())
    return pd.read_csv(path)[list(domain.attributes)].to_numpy(np.uint8), domain


def measurements_of(
    codes: np.ndarray, domain: Domain, number: int, cells: int, rng: np.random.Generator
) -> list[Measurement]:
    """All one-way marginals and `number` random two- and three-way ones whose model stays within `cells`."""
    cliques = [(name,) for name in domain.attributes]
    for clique in downward_closure(random_kway(domain, 3, 64, rng).cliques, domain)[::-3]:
        wanted = len(cliques) < number + len(domain)
        if wanted and len(clique) > 1 and model_size(domain, [*cliques, clique]) <= cells:
            cliques.append(clique)
    out = []
    for clique, counts in zip(cliques, count(codes, domain, cliques), strict=True):
        sigma = 60.0 if len(clique) == 1 else 30.0
        out.append(Measurement(clique, counts + sigma * rng.standard_normal(counts.shape), sigma))
    return out


def compare_losses(domain: Domain, measurements: list[Measurement], with_mbi: bool) -> None:
    print("\nloss on the same measurements (CPU s include mbi's compilation)")
    fits = {
        f"native {n:5d}": partial(estimate, domain, measurements, config=EstimateConfig(n, 0.0))
        for n in (50, 100, 1000)
    }
    if with_mbi:
        from experiments.mbi_engine import estimate_with_mbi

        for n in (100, 1000):
            fits[f"mbi    {n:5d}"] = partial(
                estimate_with_mbi, domain, measurements, iterations=n, tolerance=0.0, solver="mirror_descent"
            )
    for name, fit in fits.items():
        model, seconds = timed(fit)
        assert model.info is not None
        print(f"  {name} iterations  loss {model.info.loss:14.2f}  {seconds:8.2f} s")


def micro(codes: np.ndarray, domain: Domain, model: Model, rng: np.random.Generator) -> None:
    print("\noperations on the fitted model (CPU ms, least of 3)")
    candidates = downward_closure(random_kway(domain, 3, 64, rng).cliques, domain)
    cells = sum(domain.size(clique) for clique in candidates)
    arrays = model.to_arrays()
    fresh = lambda: Model.from_arrays(domain, arrays)  # noqa: E731
    client = codes[:450]
    cliques = list(model.cliques)
    jobs: list[tuple[str, Callable[[], object]]] = [
        (
            f"receive and calibrate ({arrays['potentials'].nbytes / 1e3:.0f} kB)",
            lambda: fresh().log_partition,
        ),
        (
            f"project {len(candidates)} candidates ({cells / 1e6:.1f}M cells)",
            lambda: list(fresh().project_many(candidates)),
        ),
        (
            f"probability_at {len(candidates)} candidates x 450 cells",
            lambda: [model.probability_at(c, client[:, list(domain.axes(c))]) for c in candidates],
        ),
        (f"log_likelihood of {len(codes)} rows", lambda: model.log_likelihood(codes)),
        ("sample 45,000 rows", lambda: model.sample(45_000, np.random.default_rng(0))),
        (
            f"model_size and pass_cost of {len(candidates)} candidates",
            lambda: sizes(domain, cliques, candidates),
        ),
    ]
    for name, job in jobs:
        print(f"  {name:60s} {timed(job, 3)[1] * 1e3:9.2f}")


def sizes(domain: Domain, cliques: list[tuple[str, ...]], candidates: list[tuple[str, ...]]) -> int:
    return sum(
        model_size(domain, [*cliques, c]) <= 400_000 and pass_cost(domain, [*cliques, c]) <= 1e7 for c in candidates
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mbi", action="store_true", help="also run the mbi engine (slow: it compiles)")
    parser.add_argument("--measurements", type=int, default=12)
    parser.add_argument("--cells", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = os.environ.get("FEDSYN_DATA")
    if not folder or not (Path(folder) / "adult_flaim.domain.json").exists():
        print("skipped: FEDSYN_DATA names no folder with adult_flaim")
        return 0
    codes, domain = load(Path(folder))
    rng = np.random.default_rng(args.seed)
    measurements = measurements_of(codes, domain, args.measurements, args.cells, rng)
    cliques = [m.clique for m in measurements]
    print(
        f"{len(cliques)} measurements, model {model_size(domain, cliques)} cells, pass {pass_cost(domain, cliques):.3g}"
    )
    compare_losses(domain, measurements, args.mbi)
    micro(codes, domain, estimate(domain, measurements), rng)
    return 0


if __name__ == "__main__":
    sys.exit(main())
