"""Inference: both engines on one set of measurements, and what each native operation costs.

    FEDSYN_DATA=DIR python benchmarks/bench_inference.py [--engines NAME ...] [--measurements 12] [--cells 400000]

`distance` is the largest L1 distance of a measured marginal from that of the first model, of probabilities. mbi makes
its fit twice: the first time JAX compiles, which a mechanism pays for with every new set of cliques. The last column is
times the CPU seconds of the first row. Needs `adult_flaim.csv[.gz]` and `adult_flaim.domain.json` in FEDSYN_DATA. CPU
seconds are of this process, all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from fedsyn.domain import Domain
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate, model_size, pass_cost
from fedsyn.inference.engines import ESTIMATORS, Engine
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


def compare_engines(domain: Domain, measurements: list[Measurement], engines: Mapping[str, Engine | None]) -> None:
    print("\n| engine, iterations | loss | distance | CPU s, first | CPU s, again | times |")
    print("|---" * 6 + "|")
    fits = {("native", n): None for n in (1000, 100, 50)} | {(name, 1000): engine for name, engine in engines.items()}
    reference: tuple[Model, float] | None = None
    for (name, iterations), engine in fits.items():
        config = EstimateConfig(iterations, 0.0)
        fit = partial(estimate, domain, measurements, config=config, engine=engine)
        model, first = timed(fit)
        again = timed(fit)[1] if engine else first
        reference = reference or (model, first)
        pairs = ((model.project(m.clique), reference[0].project(m.clique)) for m in measurements)
        distance = max(float(np.abs(mine - theirs).sum()) for mine, theirs in pairs) / model.total
        assert model.info is not None
        numbers = (f"{model.info.loss:.2f}", f"{distance:.5f}", f"{first:.2f}", f"{again:.2f}")
        print(f"| {name}, {iterations} | {' | '.join(numbers)} | {first / reference[1]:.1f} |", flush=True)


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
    parser.add_argument("--engines", nargs="*", choices=list(ESTIMATORS), default=[], help="estimators of mbi")
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
    compare_engines(domain, measurements, {name: ESTIMATORS[name] for name in args.engines})
    micro(codes, domain, estimate(domain, measurements), rng)
    return 0


if __name__ == "__main__":
    sys.exit(main())
