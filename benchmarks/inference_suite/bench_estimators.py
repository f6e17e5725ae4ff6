"""Inference alone: CPU seconds to equal loss and peak memory, of the native engine and of every estimator of mbi.

    FEDSYN_DATA=DIR python benchmarks/inference_suite/bench_estimators.py [--tables adult wide60 ...] [--cells 400000]

All get the same noisy marginals of the same random cliques, the same total, zero potentials to start from, and the
same target: a loss within one percent of the least that any run of this script found (`--within`). One process per
cell, one at a time. CPU seconds are of the process with all its threads: `cold` is the first fit, compilation included;
`warm` the same fit once more, with all code compiled, which a mechanism never gets to see, for its cliques change;
`finish` leads from there to a model that can be sampled. The last columns are times the native engine's CPU seconds.
mbi fits in double precision, as it advises for more than 100,000 rows, but for the row that ends in f32.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import tables
from cells import number, run_cell
from estimator_cell import ESTIMATORS, read

from fedsyn.domain import Domain
from fedsyn.inference import EstimateConfig, Measurement, estimate, model_size, pass_cost

_MOST_ITERATIONS = 4000
SOLVERS = ("accelerated", "mirror_descent")


class Fits:
    """Losses of the native engine's models after given numbers of iterations."""

    def __init__(self, path: Path, solver: str) -> None:
        head, values = read(str(path))
        self.domain = Domain(tuple(head["attributes"]), tuple(head["shape"]))
        self.measured = [
            Measurement(tuple(q), y, s) for q, y, s in zip(head["cliques"], values, head["sigmas"], strict=True)
        ]
        self.total, self.solver = head["total"], solver

    def loss(self, iterations: int, tolerance: float = 0.0) -> float:
        config = EstimateConfig(solver=self.solver, iterations=iterations, tolerance=tolerance)
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


def line(name: str, cell: dict[str, Any], native: dict[str, Any] | None) -> str:
    if "failed" in cell:
        return f"  {name:28s} {cell['failed']}"
    cold, warm = cell["cold"], cell["warm"]
    met = warm.get("met", True)
    text = f"  {name:28s} {warm['iterations']:6d} {number(cold['cpu'], 8)} {number(warm['cpu'], 8, 3)}"
    text += f" {number(cell.get('finish_cpu'), 8)} {number(cell['import_cpu'], 7)} {cell['peak_mb']:7.0f}"
    if not met:
        return f"{text}   not within the limit: loss {warm.get('loss', float('nan')):.5g}"
    if native is not None and cell is not native:
        text += f" {cold['cpu'] / native['cold']['cpu']:8.0f} {warm['cpu'] / native['warm']['cpu']:8.1f}"
    return text


def compare(name: str, arguments: argparse.Namespace, folder: Path) -> None:
    table = tables.load(name)
    cliques = tables.measured_cliques(table.domain, arguments.measurements, arguments.cells, arguments.seed)
    path = folder / f"{name}.npz"
    tables.write_problem(path, table, cliques, arguments.sigma, arguments.seed)
    size, cost = model_size(table.domain, cliques), pass_cost(table.domain, cliques)
    rows, columns = table.codes.shape
    print(f"\n{name}: {rows} rows, {columns} columns, {len(cliques) - columns} pairs and triples measured, ", end="")
    print(f"model {size} cells, a pass {cost:.3g}")
    best = Fits(path, "accelerated").loss(_MOST_ITERATIONS, 1e-9)
    target = (1 + arguments.within) * best
    print(f"  least loss {best:.6g}, target {target:.6g}")
    print("  engine and estimator          iters    cold    warm   finish  import peak MB  x cold   x warm")
    native = None
    for solver in SOLVERS:
        iterations = Fits(path, solver).least_iterations(target)
        if iterations is None:
            print(f"  {'fedsyn ' + solver:28s} not within {_MOST_ITERATIONS} iterations")
            continue
        cell = run_cell("estimator_cell.py", [str(path), "native", solver, repr(target), "0", str(iterations)])
        native = native or cell
        print(line(f"fedsyn {solver}", cell, native), flush=True)
    for estimator in arguments.estimators:
        options = [str(path), "mbi", estimator, repr(target), str(arguments.limit), "0"]
        cell = run_cell("estimator_cell.py", options, limit=8 * arguments.limit + 120)
        print(line(f"mbi {estimator}", cell, native), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=tables.TABLES, default=tables.TABLES)
    parser.add_argument("--estimators", nargs="*", choices=list(ESTIMATORS), default=list(ESTIMATORS))
    parser.add_argument("--measurements", type=int, default=20, help="pairs and triples")
    parser.add_argument("--cells", type=int, default=400_000, help="most cells of the model")
    parser.add_argument("--sigma", type=float, default=40.0)
    parser.add_argument("--within", type=float, default=0.01)
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds after which a fit of mbi is given up")
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
