"""One run of one library's AIM on one encoded table, in a process of its own.

    python aim_cell.py TABLE.npz SETTINGS_AS_JSON OUT.json

Needs NumPy and the library, nothing else, so another environment's interpreter can run it. `cpu` and `wall` are of the
mechanism up to its synthetic rows; `whole_cpu` is of the process from its start, imports included. `error` is the mean
L1 distance between the normalised workload marginals of the real and of the synthetic rows.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.inference_suite.cell_process import Settings, run_job


def workload_error(head: Settings, real: np.ndarray, made: np.ndarray) -> float:
    """Mean over the workload of ||M_q(real)/n - M_q(made)/m||_1, between 0 and 2.

    A column may hold one value more than it has, `shape`, for made rows without a value: no real row agrees with them.
    """
    errors = []
    for clique in head["workload"]:
        columns = [head["attributes"].index(name) for name in clique]
        shape = tuple(head["shape"][column] + 1 for column in columns)
        shares = []
        for rows in (real, made):
            cells = np.ravel_multi_index([rows[:, column].astype(np.int64) for column in columns], shape)
            shares.append(np.bincount(cells, minlength=int(np.prod(shape))) / max(1, len(rows)))
        errors.append(float(np.abs(shares[0] - shares[1]).sum()))
    return float(np.mean(errors))


def fedsyn_run(head: Settings, codes: np.ndarray, settings: Settings) -> Callable[[], np.ndarray]:
    """The whole of `fedsyn run`, files and report included; the engine is native, or mbi with equal iterations."""
    import pandas as pd

    from fedsyn.loading import parse_config
    from fedsyn.runs.engines import run
    from fedsyn.table.schema import CategoricalColumn, Schema

    frame = pd.DataFrame({name: codes[:, i] for i, name in enumerate(head["attributes"])})
    columns = {
        name: CategoricalColumn(categories=tuple(range(size)), other=False)
        for name, size in zip(head["attributes"], head["shape"], strict=True)
    }
    schema = Schema(columns=columns, approved=True)

    def job() -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            schema.save(Path(folder) / "schema.yaml")
            inference: Settings = {"max_cells": int(settings["megabytes"] * 2**17)}
            if settings["equal_size"]:
                inference["max_message_passing_cost"] = 1e12
            if settings["library"] == "fedsyn_mbi":
                inference |= {"engine": "mbi", "estimator": "UniversalAcceleratedMethod"}
                inference |= {"iterations": settings["iterations"], "final_iterations": settings["iterations"]}
            document = {
                "mechanism": {"name": "aim", "rounds": settings["rounds"]},
                "data": {"source": "table.csv", "schema": str(Path(folder) / "schema.yaml"), "test_fraction": 0.0},
                "privacy": {"epsilon": settings["epsilon"], "delta": settings["delta"], "client_sizes": "public"},
                "federation": {"clients": 1},
                "aggregation": {"protocol": "plain", "noise": "server"},
                "workload": {"cliques": head["workload"]},
                "inference": inference,
                "evaluation": [],
                "runtime": {"engine": "inprocess", "seed": settings["seed"]},
            }
            run(parse_config(document), Path(folder) / "out", table=frame)
            made = pd.read_csv(Path(folder) / "out" / "synthetic.csv")
            return made[head["attributes"]].to_numpy(np.int64)

    return job


def mbi_loop(head: Settings, codes: np.ndarray, settings: Settings) -> Callable[[], np.ndarray]:
    """AIM written on mbi 2.0 with the parts that it offers mechanisms: `mbi_aim.py`."""
    import mbi_aim

    return lambda: mbi_aim.run(head, codes, settings)


def opendp_run(head: Settings, codes: np.ndarray, settings: Settings) -> Callable[[], np.ndarray]:
    """OpenDP's AIM at its own number of iterations; it anneals, so `rounds` is the most it makes."""
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib", "honest-but-curious")
    if not hasattr(dp, "mbi") or not hasattr(dp.mbi, "AIM"):
        raise ImportError(name="opendp.mbi")
    import mbi

    if not hasattr(mbi.estimation, "mirror_descent"):
        raise ImportError(name="the mbi that opendp.mbi asks for")
    names = head["attributes"]
    frame = pl.DataFrame({name: codes[:, i].astype(np.int64) for i, name in enumerate(names)})

    def job() -> np.ndarray:
        context = dp.Context.compositor(
            data=frame.lazy(), privacy_unit=dp.unit_of(contributions=1), privacy_loss=dp.loss_of(rho=settings["rho"])
        )
        columns = len(names)
        algorithm = dp.mbi.AIM(
            queries=[dp.mbi.Count(tuple(clique)) for clique in head["workload"]],
            rounds=settings["rounds"],
            max_size=settings["megabytes"],
            oneway_split=0.9 * columns / (columns + settings["rounds"]),
        )
        keys = {name: list(range(size)) for name, size in zip(names, head["shape"], strict=True)}
        table = context.query(rho=settings["rho"]).select(*names).contingency_table(keys=keys, algorithm=algorithm)
        made = table.release().synthesize(rows=len(codes)).select(names)
        # OpenDP adds "no value" to every column's keys.
        filled = [made[name].fill_null(size).to_numpy() for name, size in zip(names, head["shape"], strict=True)]
        return np.stack(filled, axis=1)

    return job


def dpsynth_run(head: Settings, codes: np.ndarray, settings: Settings) -> Callable[[], np.ndarray]:
    """dpsynth's AIM. Written after its sources and never run by us: no package index that we reach has it."""
    import dpsynth.discrete_mechanisms.aim as theirs
    import mbi

    domain = mbi.Domain(tuple(head["attributes"]), tuple(head["shape"]))
    data = mbi.Dataset({name: codes[:, i].astype(np.int64) for i, name in enumerate(head["attributes"])}, domain)
    config = theirs.AIMConfig(
        workload=[tuple(clique) for clique in head["workload"]],
        max_rounds=settings["rounds"],
        max_model_size=settings["megabytes"],
        pgm_iters=settings["iterations"],
    )

    def job() -> np.ndarray:
        mechanism = config.configure(zcdp_rho=settings["rho"])
        made = mechanism(np.random.default_rng(settings["seed"]), data).model.synthetic_data(rows=len(codes))
        return np.stack([np.asarray(made.data[name]) for name in head["attributes"]], axis=1)

    return job


LIBRARIES = {
    "fedsyn": fedsyn_run,
    "fedsyn_mbi": fedsyn_run,
    "mbi": mbi_loop,
    "opendp": opendp_run,
    "dpsynth": dpsynth_run,
}


def main() -> int:
    done = run_job(lambda settings: LIBRARIES[settings["library"]])
    if done.absent:
        done.out.write_text(json.dumps({"failed": f"not installed ({done.absent})"}))
        return 0
    report = {"cpu": done.cpu, "wall": done.wall, "whole_cpu": time.process_time()}
    report["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report["error"] = workload_error(done.head, done.codes, done.made)
    done.out.write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
