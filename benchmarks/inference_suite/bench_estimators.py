"""Inference alone: CPU seconds to equal loss and peak memory, of the native engine and of every estimator of mbi.

    FEDSYN_DATA=DIR python benchmarks/inference_suite/bench_estimators.py [--tables adult wide60 ...] [--cells 400000]

All get the same noisy marginals of the same random cliques, the same total, zero potentials to start from, and the
same targets: losses within ten and within one percent (`--within`) of the least, which 4,000 native iterations find.
One process per cell, one at a time. CPU seconds are of the process with all its threads, imports left out: `cold` is
the first fit, compilation included; `warm` the same fit once more, with all code compiled, which a mechanism never gets
to see, for its cliques change; `finish` leads from the last target to a model that can be sampled. The last columns are
times the native engine's CPU seconds. mbi fits in double precision, as it advises for more than 100,000 rows, but for
the row that ends in f32.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.inference_suite import tables
from benchmarks.inference_suite.cells import number, run_cell
from benchmarks.inference_suite.estimator_cell import ESTIMATORS, read
from fedsyn.domain import Domain
from fedsyn.inference import EstimateConfig, Measurement, estimate, model_size, pass_cost

_MOST_ITERATIONS = 4000


class Fits:
    """Losses of the native engine's models after given numbers of iterations."""

    def __init__(self, path: Path) -> None:
        head, values = read(str(path))
        self.domain = Domain(tuple(head["attributes"]), tuple(head["shape"]))
        self.measured = [
            Measurement(tuple(q), y, s) for q, y, s in zip(head["cliques"], values, head["sigmas"], strict=True)
        ]
        self.total = head["total"]

    def loss(self, iterations: int, tolerance: float = 0.0) -> float:
        config = EstimateConfig(iterations, tolerance)
        model = estimate(self.domain, self.measured, total=self.total, config=config)
        assert model.info is not None
        return model.info.loss

    def least_iterations(self, target: float) -> int | None:
        """The fewest iterations whose model meets the target: doubled until it does, then halved towards it."""
        low, high = 0, 4
        while self.loss(high) > target:
            low, high = high, 2 * high
            if high > _MOST_ITERATIONS:
                return None
        while high - low > max(1, high // 20):
            middle = (low + high) // 2
            low, high = (low, middle) if self.loss(middle) <= target else (middle, high)
        return high


def lines(name: str, cell: dict[str, Any], targets: list[float], native: list[dict[str, Any] | None]) -> None:
    """Prints a row for each target; `native` holds the native engine's cells, one per target."""
    if "failed" in cell:
        print(f"  {name:28s} {cell['failed']}", flush=True)
        return
    cold, warm = cell["cold"]["met"], cell["warm"]["met"]
    for index, target in enumerate(targets):
        text = f"  {name:28s} {target:10.6g}"
        if index >= min(len(cold), len(warm)):
            print(f"{text}  not met within the limit, loss {cell['warm'].get('loss', float('nan')):.6g}", flush=True)
            break
        text += f" {warm[index]['iterations']:6d} {cold[index]['cpu']:8.2f} {warm[index]['cpu']:8.3f}"
        finish = cell.get("finish_cpu") if index == len(warm) - 1 else None
        text += f" {'> limit' if 'stopped' in cell else number(finish, 8):>8} {cell['peak_mb']:8.0f}"
        ours = native[index]
        if ours is not None and cell is not ours:
            times = [
                mine[index]["cpu"] / ours[kind]["met"][0]["cpu"] for kind, mine in (("cold", cold), ("warm", warm))
            ]
            text += f" {times[0]:8.0f} {times[1]:8.1f}"
        print(text, flush=True)


def compare(name: str, arguments: argparse.Namespace, folder: Path) -> None:
    table = tables.load(name)
    cliques = tables.measured_cliques(table.domain, arguments.measurements, arguments.cells, arguments.seed)
    path = folder / f"{name}.npz"
    tables.write_problem(path, table, cliques, arguments.sigma, arguments.seed)
    size, cost = model_size(table.domain, cliques), pass_cost(table.domain, cliques)
    rows, columns = table.codes.shape
    print(f"\n{name}: {rows} rows, {columns} columns, {len(cliques) - columns} pairs and triples measured, ", end="")
    print(f"model {size} cells, a pass {cost:.3g}")
    least = Fits(path).loss(_MOST_ITERATIONS, 1e-9)
    targets = [(1 + within) * least for within in sorted(arguments.within, reverse=True)]
    print(f"  least loss {least:.6g}")
    print("  engine and estimator             target  iters     cold     warm   finish  peak MB   x cold   x warm")
    native: list[dict[str, Any] | None] = [None] * len(targets)
    for index, target in enumerate(targets):
        iterations = Fits(path).least_iterations(target)
        if iterations is None:
            print(f"  {'fedsyn':28s} {target:10.6g}  not met within {_MOST_ITERATIONS} iterations")
            continue
        cell = run_cell("estimator_cell.py", [str(path), "native", "accelerated", "0", "0", str(iterations)])
        native[index] = cell
        lines("fedsyn", cell, [target], [cell])
    for estimator in arguments.estimators:
        options = [str(path), "mbi", estimator, ",".join(map(repr, targets)), str(arguments.limit), "0"]
        cell = run_cell("estimator_cell.py", options, limit=int(3 * arguments.limit + 60))
        lines(f"mbi {estimator}", cell, targets, native)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=tables.TABLES, default=tables.TABLES)
    parser.add_argument("--estimators", nargs="*", choices=list(ESTIMATORS), default=list(ESTIMATORS))
    parser.add_argument("--measurements", type=int, default=20, help="pairs and triples")
    parser.add_argument("--cells", type=int, default=400_000, help="most cells of the model")
    parser.add_argument("--sigma", type=float, default=40.0)
    parser.add_argument("--within", type=float, nargs="+", default=[0.1, 0.01])
    parser.add_argument("--limit", type=float, default=40.0, help="CPU seconds after which a fit of mbi is given up")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.tables:
            why = tables.missing(name)
            if why:
                print(f"\n{name}: skipped, {why}")
            else:
                compare(name, arguments, Path(folder))


if __name__ == "__main__":
    main()
