"""GUM beside PGM: seconds, memory and marginal errors of rows made from the same noisy marginals.

    FEDSYN_DATA=DIR python benchmarks/bench_gum.py [--source adult] [--pairs 30] [--sigma 60] [--iterations 50]

All one-way marginals and the most dependent pairs (by the distance to independence, without noise: this measures the
synthesis, not the selection), 100 bins. PGM gets the pairs, in the same order, that its junction tree can hold in
`--cells`, and GUM is run on those alone as well. Errors are mean L1 distances between normalised marginals of the real
and the synthetic rows. CPU seconds are of this process; memory is what the whole process has peaked at so far.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np

from fedsyn.domain import Clique, Domain
from fedsyn.inference import GumConfig, Measurement, consistent, estimate, model_size, synthesize
from fedsyn.table.counting.marginals import count
from fedsyn.table.data import load_dataset

Make = Callable[[list[Measurement]], np.ndarray]


def by_dependence(codes: np.ndarray, domain: Domain) -> list[Clique]:
    """All pairs, the one furthest from independence (in L1) first."""
    ones = {name: m / len(codes) for name, (m,) in zip(domain, ([c] for c in _one_way(codes, domain)), strict=True)}
    pairs: list[Clique] = list(combinations(domain.attributes, 2))
    gap = {
        pair: float(np.abs(m / len(codes) - np.outer(ones[pair[0]], ones[pair[1]])).sum())
        for pair, m in zip(pairs, count(codes, domain, pairs), strict=True)
    }
    return sorted(pairs, key=lambda pair: (-gap[pair], pair))


def _one_way(codes: np.ndarray, domain: Domain) -> list[np.ndarray]:
    return count(codes, domain, [(name,) for name in domain])


def measure(
    codes: np.ndarray, domain: Domain, pairs: list[Clique], sigma: float, rng: np.random.Generator
) -> list[Measurement]:
    """One-way marginals with half the noise, and pairs."""
    cliques: list[Clique] = [(name,) for name in domain] + pairs
    noise = {clique: sigma * (0.5 if len(clique) == 1 else 1.0) for clique in cliques}
    return [
        Measurement(clique, m + noise[clique] * rng.standard_normal(m.shape), noise[clique] or 1.0)
        for clique, m in zip(cliques, count(codes, domain, cliques), strict=True)
    ]


def report(name: str, codes: np.ndarray, domain: Domain, measured: list[Measurement], make: Make) -> None:
    start = time.process_time()
    made = make(measured)
    seconds = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    pairs: list[Clique] = list(combinations(domain.attributes, 2))
    cliques: list[Clique] = [(n,) for n in domain] + pairs
    real, ours = (count(rows, domain, cliques) for rows in (codes, made))
    error = {
        q: float(np.abs(a / len(codes) - b / len(made)).sum()) for q, a, b in zip(cliques, real, ours, strict=True)
    }
    held = {m.clique for m in measured}
    rest = [error[q] for q in pairs if q not in held]
    columns = (
        np.mean([error[q] for q in pairs if q in held]),
        np.mean(rest) if rest else 0.0,
        np.mean([error[(n,)] for n in domain]),
    )
    print(
        f"{name:>34}  measured pairs {columns[0]:.4f}  other pairs {columns[1]:.4f}  one-way {columns[2]:.4f}"
        f"  {seconds:6.2f} s  {memory:5.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="adult")
    parser.add_argument("--bins", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--sigma", type=float, default=60.0, help="noise of a pair's cell, in records; 0: none")
    parser.add_argument("--iterations", type=int, default=GumConfig().iterations)
    parser.add_argument("--cells", type=int, default=400_000, help="of PGM's junction tree")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    data = load_dataset(
        str(Path(arguments.source)) if "/" in arguments.source else arguments.source, bins=arguments.bins
    )
    codes, domain = data.encode(), data.schema.domain
    rows = len(codes)
    pairs = by_dependence(codes, domain)[: arguments.pairs]
    rng = np.random.default_rng(arguments.seed)
    measured = measure(codes, domain, pairs, arguments.sigma, rng)
    fitting: list[Clique] = [(name,) for name in domain]
    for pair in pairs:
        if model_size(domain, [*fitting, pair]) <= arguments.cells:
            fitting.append(pair)
    held = [m for m in measured if m.clique in fitting]
    config = GumConfig(iterations=arguments.iterations)

    def gum(measurements: list[Measurement]) -> np.ndarray:
        made = np.random.default_rng(arguments.seed)
        return synthesize(domain, measurements, rows, made, config, total=rows)

    def pgm(measurements: list[Measurement]) -> np.ndarray:
        return estimate(domain, measurements, total=rows).sample(rows, np.random.default_rng(arguments.seed))

    print(f"{arguments.source}: {rows} rows, {len(domain)} attributes, sigma {arguments.sigma:g}")
    start = time.process_time()
    tables = consistent(domain, measured, total=rows)
    seconds = time.process_time() - start
    truth = dict(zip(pairs, count(codes, domain, pairs), strict=True))
    missed = np.mean([np.abs(tables[q] - truth[q]).sum() / rows for q in pairs])
    print(f"{f'consistent, {len(pairs)} pairs':>34}  measured pairs {missed:.4f}{'':45}{seconds:6.2f} s")
    report(f"GUM, {len(pairs)} pairs", codes, domain, measured, gum)
    report(f"GUM, {len(held) - len(domain)} pairs that PGM can hold", codes, domain, held, gum)
    report(f"PGM, {len(held) - len(domain)} pairs that it can hold", codes, domain, held, pgm)


if __name__ == "__main__":
    main()
