"""One seed gives the same bits under every number of BLAS threads and with every kernel of one machine's OpenBLAS.

Run as a script, this file makes the runs and prints their digests: one process per setting, because OpenBLAS reads
its environment when it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

THREADS = ("1", "2", "5")
# Two kernels that nearly every processor of the kind can run, with different instructions for a product.
KERNELS = {"x86_64": ("Haswell", "Nehalem"), "aarch64": ("ARMV8", "NEOVERSEN1")}
MECHANISMS: dict[str, dict[str, Any]] = {
    "aim": {"name": "aim", "rounds": 2},
    "augflaim": {"name": "augflaim", "rounds": 2},
    "distributed_aim": {"name": "distributed_aim", "rounds": 2},
    **{f"sketch_aim {kind}": {"name": "experiments.sketch_aim_ablation.variant:Variant", "rounds": 2, "sketch": kind}
       for kind in ("groups", "count", "signs")},
    **{f"fed_privsyn {kind}": {"name": "fed_privsyn", "synthesizer": kind} for kind in ("gum", "pgm")},
}  # fmt: skip
# Columns of 72 bins: products of two tables are then large enough for OpenBLAS to share them among threads.
DOCUMENT: dict[str, Any] = {
    "data": {
        "source": "synthfs",
        "bins": 72,
        "test_fraction": 0.1,
        "options": {"beta": 1.0, "rows": 1500, "features": 5},
    },
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
    "workload": {"degree": 2, "size": None},
    "evaluation": [
        "workload_error",
        "experiments.paper_metrics:workload_error_l2",
        "nll",
        "range_query_error",
        "experiments.paper_metrics:range_query_error_3",
    ],
    "runtime": {"seed": 3},
}


def run_digests(mechanism: dict[str, Any]) -> dict[str, str]:
    """Digests of a whole run's model, rows and metrics."""
    from fedsyn.loading import parse_config
    from fedsyn.runs.engines import run

    central = mechanism["name"] == "aim"
    federation: dict[str, Any] = {"clients": 1 if central else 4, "partition": {"name": "quantity"}}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        metrics = run(parse_config(DOCUMENT | {"mechanism": mechanism, "federation": federation}), out)
        with np.load(out / "model.npz") as model:
            arrays = b"".join(model[name].tobytes() for name in sorted(model.files))
        rows = (out / "synthetic.csv").read_bytes()
    measured = {name: metrics[name.rpartition(":")[2]].hex() for name in DOCUMENT["evaluation"]}
    return {
        "model": hashlib.sha256(arrays).hexdigest(),
        "synthetic": hashlib.sha256(rows).hexdigest(),
        **measured,
    }


def model_digests() -> dict[str, str]:
    """Digests of one model on a cycle of large tables: what it answers beyond its own cliques, sketches, distances.

    The noise on a score hides its last bits from the choice that a run makes, so these are looked at here.
    """
    from experiments.sketch_aim_ablation.variant import Signs
    from experiments.variants.projections import PROJECTIONS
    from fedsyn.domain import Domain
    from fedsyn.inference import EstimateConfig, Measurement, estimate
    from fedsyn.selection.indif import Noisy, indif_squared
    from fedsyn.selection.sketches import squared_distance
    from fedsyn.table.counting.sums import norm

    rng = np.random.default_rng(0)
    domain = Domain(tuple("abcdefg"), (90, 40, 85, 15, 30, 70, 12))
    cliques = [("a", "b", "d"), ("b", "d", "c"), ("c", "e"), ("e", "f"), ("f", "d"), ("g", "a"), ("g",)]
    measurements = [Measurement(q, 40 + 9 * rng.standard_normal(domain.shape_of(q)), 3.0) for q in cliques]
    model = estimate(domain, measurements, config=EstimateConfig(iterations=15))
    digests = {"potentials": hashlib.sha256(model.to_arrays()["potentials"].tobytes()).hexdigest()}
    for clique in [("a", "c"), ("a", "f", "c"), ("g", "f"), ("e", "a", "b"), ("g", "c", "f"), ("d", "e")]:
        cells = rng.integers(0, domain.shape_of(clique), size=(20, len(clique)))
        answers = model.project(clique).tobytes() + model.probability_at(clique, cells).tobytes()
        digests[" ".join(clique)] = hashlib.sha256(answers).hexdigest()
    pair = ("a", "c")
    table, one, other = (model.project(q).ravel() / model.total for q in (pair, ("a",), ("c",)))
    digests["sketch"] = squared_distance(Signs(domain, (pair,), 36, {}).of_marginal(0, table), 0.1).hex()
    for kind in ("signs", "gaussian"):
        projection = PROJECTIONS[kind](36)
        noisy = [Noisy(values, 0.01) for values in (rng.standard_normal(36), one, other)]
        digests[f"indif {kind}"] = indif_squared(domain, pair, *noisy, projection).hex()
    digests["rows"] = hashlib.sha256(model.sample(2000, rng).tobytes()).hexdigest()
    return digests | {"norm": norm(rng.standard_normal(30_000)).hex()}


def main() -> None:
    from threadpoolctl import threadpool_info

    digests = {name: run_digests(mechanism) for name, mechanism in MECHANISMS.items()} | {"model": model_digests()}
    pools = [
        {key: pool.get(key) for key in ("internal_api", "architecture", "num_threads")}
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    ]
    print(json.dumps({"pools": pools, "digests": digests}))


def child(setting: tuple[str, str]) -> tuple[int, str, str]:
    """Exit status, output and errors of this file as a script under one setting."""
    kernel, threads = setting
    environment = {"OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_neither_threads_nor_kernels_change_a_bit_of_a_run() -> None:
    kernels = KERNELS.get(platform.machine())
    if kernels is None:
        pytest.skip(f"no two OpenBLAS kernels are named here for a processor of kind {platform.machine()}")
    settings = list(product(kernels, THREADS))
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(child, settings))
    if any(status == -signal.SIGILL for status, _, _ in ends):
        pytest.skip(f"this processor cannot run one of the kernels {', '.join(kernels)}")
    assert all(status == 0 for status, _, _ in ends), ends
    found = {setting: json.loads(out.splitlines()[-1]) for setting, (_, out, _) in zip(settings, ends, strict=True)}
    pools = [pool for one in found.values() for pool in one["pools"]]
    if any(pool["internal_api"] != "openblas" for pool in pools):
        pytest.skip("NumPy or SciPy does not use OpenBLAS here")
    # The settings took effect: otherwise nothing was compared.
    counts = {1, min(2, len(os.sched_getaffinity(0)))}  # OpenBLAS starts no more threads than there are cores
    assert {(pool["architecture"], pool["num_threads"]) for pool in pools} >= set(product(kernels, counts))
    first = found[settings[0]]["digests"]
    for setting, one in found.items():
        changed = [
            f"{run}: {name}" for run in first for name in first[run] if one["digests"][run][name] != first[run][name]
        ]
        assert not changed, f"{setting} and {settings[0]} differ in {changed}"


if __name__ == "__main__":
    main()
