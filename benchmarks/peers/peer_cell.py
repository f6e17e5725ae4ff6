"""One run of one library's mechanism on one encoded table, in a process of its own.

    python peer_cell.py TABLE.npz SETTINGS_AS_JSON OUT.json

Needs NumPy and the library, so another environment's interpreter can run it. `cpu` is of the work from the table to its
synthetic rows, imports left out; `whole` is of the process from its start to them; both with their children. `error` is
the mean L1 distance between the normalised workload marginals of the real and of the synthetic rows, between 0 and 2.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import resource
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

warnings.simplefilter("ignore")

Head = dict[str, Any]
Settings = dict[str, Any]
Job = Callable[[], np.ndarray]
Prepare = Callable[[Head, np.ndarray, Settings], Job]

_ATTEMPTS = 30


@dataclass(frozen=True)
class Peer:
    """A library's mechanism.

    Attributes:
        prepare: imports the library and returns the run.
        package: whose version is printed.
        not_private: whether it gives no guarantee.
    """

    prepare: Prepare
    package: str
    not_private: bool = False


def workload_error(head: Head, real: np.ndarray, made: np.ndarray) -> float:
    """Mean over the workload of ||M_q(real)/n - M_q(made)/m||_1."""
    errors = []
    for clique in head["workload"]:
        columns = [head["attributes"].index(name) for name in clique]
        shape = tuple(head["shape"][column] for column in columns)
        shares = []
        for rows in (real, made):
            cells = np.ravel_multi_index([rows[:, column].astype(np.int64) for column in columns], shape)
            shares.append(np.bincount(cells, minlength=int(np.prod(shape))) / max(1, len(rows)))
        errors.append(float(np.abs(shares[0] - shares[1]).sum()))
    return float(np.mean(errors))


def columns_of(head: Head, codes: np.ndarray) -> dict[str, np.ndarray]:
    return {name: codes[:, i].astype(np.int64) for i, name in enumerate(head["attributes"])}


def frame_of(head: Head, codes: np.ndarray) -> Any:
    import pandas as pd

    return pd.DataFrame(columns_of(head, codes))


def rows_of(head: Head, frame: Any) -> np.ndarray:
    return np.asarray(frame[head["attributes"]].to_numpy(), np.int64)


def fedsyn_job(mechanism: str) -> Prepare:
    """This project's mechanism by `Synthesizer`, one trusted holder, row count public as it is to all others."""

    def prepare(head: Head, codes: np.ndarray, settings: Settings) -> Job:
        from fedsyn import Schema, Synthesizer
        from fedsyn.table.schema import CategoricalColumn

        columns = {
            name: CategoricalColumn(categories=tuple(range(size)), other=False)
            for name, size in zip(head["attributes"], head["shape"], strict=True)
        }
        options: dict[str, Any] = {
            "schema": Schema(columns=columns, approved=True),
            "workload": {"cliques": head["workload"]},
            "privacy": {"client_sizes": "public"},
            **({"rounds": settings["rounds"]} if mechanism == "aim" else {}),
        }
        frame, budget = frame_of(head, codes), {name: settings[name] for name in ("epsilon", "delta", "seed")}
        return lambda: rows_of(
            head, Synthesizer(mechanism=mechanism, **budget, **options).fit(frame).sample(len(codes))
        )

    return prepare


def private_pgm_job(algorithm: str) -> Prepare:
    """`mechanisms/mst.py` or `mechanisms/aim.py` of a checkout of private-pgm, which no package ships, and its mbi."""

    def prepare(head: Head, codes: np.ndarray, settings: Settings) -> Job:
        if not settings["private_pgm"]:
            raise ImportError(name="private-pgm: --private-pgm names no checkout")
        import mbi

        domain = mbi.Domain(tuple(head["attributes"]), tuple(head["shape"]))
        data, budget = mbi.Dataset(frame_of(head, codes), domain), (settings["epsilon"], settings["delta"])
        np.random.seed(settings["seed"])  # noqa: NPY002 - what the library draws from
        if algorithm == "MST":
            import mst

            return lambda: rows_of(head, mst.MST(data, *budget).df)
        import aim

        mechanism = aim.AIM(*budget, prng=np.random, rounds=settings["rounds"], max_model_size=settings["megabytes"])
        mechanism.prng = np.random  # its constructor passes `prng` on as another parameter
        workload = [(tuple(clique), 1.0) for clique in head["workload"]]
        return lambda: rows_of(head, mechanism.run(data, workload, num_synth_rows=len(codes))[1].df)

    return prepare


def opendp_job(algorithm: str) -> Prepare:
    """OpenDP's AIM or MST, with the rho of zCDP that epsilon and delta allow."""

    def prepare(head: Head, codes: np.ndarray, settings: Settings) -> Job:
        import mbi
        import opendp.prelude as dp
        import polars as pl
        from opendp.mod import OpenDPException

        if not hasattr(mbi.estimation, "mirror_descent"):
            raise ImportError(name="the mbi 1.1 that opendp.mbi asks for")
        dp.enable_features("contrib", "honest-but-curious")
        names = head["attributes"]
        if algorithm == "AIM":
            queries = [dp.mbi.Count(tuple(clique)) for clique in head["workload"]]
            how = dp.mbi.AIM(queries=queries, rounds=settings["rounds"], max_size=settings["megabytes"])
        else:
            how = dp.mbi.MST()
        # OpenDP adds "no value" to keys that do not have it; here it stands for code 0, so that no cell is too many.
        columns = {name: pl.Series(values).replace(0, None) for name, values in columns_of(head, codes).items()}
        keys = {name: [None, *range(1, size)] for name, size in zip(names, head["shape"], strict=True)}

        def released(rho: float) -> np.ndarray:
            frame = pl.DataFrame(columns).lazy()
            unit, loss = dp.unit_of(contributions=1), dp.loss_of(rho=rho)
            context = dp.Context.compositor(data=frame, privacy_unit=unit, privacy_loss=loss)
            table = context.query(rho=rho).select(*names).contingency_table(keys=keys, algorithm=how).release()
            made = table.synthesize(rows=len(codes), method=settings["draw"]).select(names).fill_null(0)
            return np.asarray(made.to_numpy(), np.int64)

        def job() -> np.ndarray:
            # The parts into which it divides some budgets add up to more, by the last bit, and it refuses them.
            for attempt in range(_ATTEMPTS):
                try:
                    return released(settings["rho"] * (1.0 - 1e-9 * attempt))
                except OpenDPException as error:
                    if attempt == _ATTEMPTS - 1 or "insufficient budget" not in str(error):
                        raise
            raise AssertionError

        return job

    return prepare


def dpmm_job(algorithm: str) -> Prepare:
    """dpmm's AIM or MST without its own binning; AIM's `fit` passes no workload on, so it gets it by its `_fit`."""

    def prepare(head: Head, codes: np.ndarray, settings: Settings) -> Job:
        from functools import partial

        from dpmm.pipelines import AIMPipeline, MSTPipeline

        budget: dict[str, Any] = {
            "epsilon": settings["epsilon"],
            "delta": settings["delta"],
            "disable_processing": True,
        }
        if algorithm == "AIM":
            given = {"rounds": settings["rounds"]}
            pipeline = AIMPipeline(**budget, max_model_size=settings["megabytes"], gen_kwargs=given)
            workload = [(tuple(clique), 1.0) for clique in head["workload"]]
            pipeline.gen.generator._fit = partial(pipeline.gen.generator._fit, W=workload)
        else:
            pipeline = MSTPipeline(**budget)
        frame, domain = frame_of(head, codes), dict(zip(head["attributes"], head["shape"], strict=True))

        def job() -> np.ndarray:
            pipeline.fit(frame, domain=domain, random_state=settings["seed"])
            return rows_of(head, pipeline.generate(n_records=len(codes), random_state=settings["seed"]))

        return job

    return prepare


def smartnoise_job(algorithm: str) -> Prepare:
    """smartnoise-synth's AIM or MST on columns whose values it is told."""

    def prepare(head: Head, codes: np.ndarray, settings: Settings) -> Job:
        from snsynth.aim import AIMSynthesizer
        from snsynth.mst import MSTSynthesizer
        from snsynth.transform import LabelTransformer, TableTransformer

        budget = {"epsilon": settings["epsilon"], "delta": settings["delta"]}
        if algorithm == "AIM":
            kept = {"rounds": settings["rounds"], "max_model_size": settings["megabytes"]}
            synthesizer = AIMSynthesizer(**budget, **kept)
            inner = {name: f"col{i}" for i, name in enumerate(head["attributes"])}
            workload = [tuple(inner[name] for name in clique) for clique in head["workload"]]
            synthesizer.get_workload = lambda *_, **__: workload
        else:
            synthesizer = MSTSynthesizer(**budget)
        values = TableTransformer([LabelTransformer(nullable=False) for _ in head["shape"]])
        largest = np.array(head["shape"]) - 1
        values.fit(frame_of(head, np.minimum(np.arange(max(head["shape"]))[:, None], largest)))
        np.random.seed(settings["seed"])  # noqa: NPY002 - what the library draws from

        def job() -> np.ndarray:
            with contextlib.redirect_stdout(sys.stderr):
                synthesizer.fit(frame_of(head, codes), transformer=values)
            # MST's own `sample` gives columns in the order of its elimination under the names of the table's.
            made = synthesizer.synthesizer.synthetic_data(rows=len(codes), method=settings["draw"])
            made = made if algorithm == "AIM" else synthesizer.undo_compress_fn(made)
            return np.stack([made.df[f"col{i}"] for i in range(len(largest))], axis=1).astype(np.int64)

        return job

    return prepare


def sdv_job(head: Head, codes: np.ndarray, settings: Settings) -> Job:
    """SDV's Gaussian copula, every column a category."""
    from sdv.metadata import Metadata
    from sdv.single_table import GaussianCopulaSynthesizer

    kinds = {name: {"sdtype": "categorical"} for name in head["attributes"]}
    synthesizer = GaussianCopulaSynthesizer(Metadata.load_from_dict({"tables": {"table": {"columns": kinds}}}))
    frame = frame_of(head, codes)

    def job() -> np.ndarray:
        synthesizer.fit({"table": frame})
        return rows_of(head, synthesizer.sample(len(codes))["table"])

    return job


PEERS: dict[str, Peer] = {
    "fedsyn sketch_aim": Peer(fedsyn_job("sketch_aim"), "fedsyn"),
    "fedsyn aim": Peer(fedsyn_job("aim"), "fedsyn"),
    "fedsyn mst": Peer(fedsyn_job("mst"), "fedsyn"),
    "private-pgm AIM": Peer(private_pgm_job("AIM"), "jax"),
    "private-pgm MST": Peer(private_pgm_job("MST"), "jax"),
    "opendp AIM": Peer(opendp_job("AIM"), "opendp"),
    "opendp MST": Peer(opendp_job("MST"), "opendp"),
    "dpmm AIM": Peer(dpmm_job("AIM"), "dpmm"),
    "dpmm MST": Peer(dpmm_job("MST"), "dpmm"),
    "smartnoise AIM": Peer(smartnoise_job("AIM"), "smartnoise-synth"),
    "smartnoise MST": Peer(smartnoise_job("MST"), "smartnoise-synth"),
    "sdv GaussianCopula": Peer(sdv_job, "sdv", not_private=True),
}


def seconds() -> float:
    """CPU seconds of this process and its children."""
    return sum(os.times()[:4])


def version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return f"{package} {importlib.metadata.version(package)}"
    return package


def report_of(head: Head, codes: np.ndarray, settings: Settings) -> dict[str, Any]:
    """The figures of one run."""
    peer = PEERS[settings["peer"]]
    try:
        job = peer.prepare(head, codes, settings)
    except ImportError as error:
        return {"failed": f"not installed: {error.name}"}
    imported = seconds()
    made = job()
    whole = seconds()
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    figures = {"cpu": whole - imported, "whole": whole, "peak_mb": max(peaks) / 1024}
    return figures | {"error": workload_error(head, codes, made), "version": version(peer.package)}


def main() -> int:
    table, settings, out = sys.argv[1:]
    with np.load(table) as file:
        head, codes = json.loads(file["head"].tobytes()), file["codes"]
    Path(out).write_text(json.dumps(report_of(head, codes, json.loads(settings))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
