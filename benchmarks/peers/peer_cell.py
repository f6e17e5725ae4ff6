"""One run of another library's mechanism on one encoded table, in a process of its own.

    python -m benchmarks.peers.peer_cell TABLE.npz SETTINGS_AS_JSON OUT.npz

Needs NumPy and the library, nothing else, so another environment's interpreter can run it. What comes out is the
library's own model, as potentials on cliques: the caller judges it by the code by which it judges its own. `cpu` is of
the mechanism up to its model.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import warnings
from typing import Any

import numpy as np

warnings.simplefilter("ignore")

from benchmarks.inference_suite.cell_process import Head, Job, Prepare, run_job  # noqa: E402

_ATTEMPTS = 30


def opendp_job(algorithm: str) -> Prepare:
    """OpenDP's AIM or MST with its defaults; AIM is told the workload."""

    def prepare(head: Head, codes: np.ndarray, settings: dict[str, Any]) -> Job:
        import opendp.prelude as dp
        import polars as pl
        from opendp.mod import OpenDPException

        dp.enable_features("contrib", "honest-but-curious")
        _require_mbi_of_opendp()
        if algorithm == "AIM":
            how = dp.mbi.AIM(queries=[dp.mbi.Count(tuple(clique)) for clique in head["workload"]])
        else:
            how = dp.mbi.MST()
        # OpenDP adds "no value" to keys that do not have it; here it stands for code 0, so that no cell is too many.
        columns = {
            name: pl.Series(codes[:, i].astype(np.int64)).replace(0, None) for i, name in enumerate(head["attributes"])
        }
        keys = {name: [None, *range(1, size)] for name, size in zip(head["attributes"], head["shape"], strict=True)}

        def released(rho: float) -> Any:
            frame = pl.DataFrame(columns).lazy()
            unit, loss = dp.unit_of(contributions=1), dp.loss_of(rho=rho)
            context = dp.Context.compositor(data=frame, privacy_unit=unit, privacy_loss=loss)
            query = context.query(rho=rho).select(*head["attributes"])
            return query.contingency_table(keys=keys, algorithm=how).release().model

        def job() -> Any:
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


def _require_mbi_of_opendp() -> None:
    import mbi

    if not hasattr(mbi.estimation, "mirror_descent"):
        raise ImportError(name="the mbi 1.1 that opendp.mbi asks for")


def mbi_aim_job(head: Head, codes: np.ndarray, settings: dict[str, Any]) -> Job:
    """AIM with T = 10 written on mbi 2.0 alone, which ships no mechanism: benchmarks/inference_suite/mbi_aim.py."""
    import mbi

    if not hasattr(mbi.estimation, "MirrorDescent"):
        raise ImportError(name="mbi 2")
    import mbi_aim

    given = {"rounds": 10, "iterations": 1000, "megabytes": 8.0} | settings
    return lambda: mbi_aim.fit(head, codes, given)


def dpsynth_job(algorithm: str) -> Prepare:
    """dpsynth's AIM or MST with its defaults. Written after its sources; no package index that we reach has it."""

    def prepare(head: Head, codes: np.ndarray, settings: dict[str, Any]) -> Job:
        import dpsynth.discrete_mechanisms as theirs
        import mbi

        domain = mbi.Domain(tuple(head["attributes"]), tuple(head["shape"]))
        columns = {name: codes[:, i].astype(np.int64) for i, name in enumerate(head["attributes"])}
        given = {"workload": [tuple(clique) for clique in head["workload"]]} if algorithm == "AIM" else {}
        mechanism = getattr(theirs, f"{algorithm}Config")(**given).configure(zcdp_rho=settings["rho"])
        rng = np.random.default_rng(settings["seed"])
        return lambda: mechanism(rng, mbi.Dataset(columns, domain)).model

    return prepare


PEERS: dict[str, Prepare] = {
    "opendp AIM": opendp_job("AIM"),
    "opendp MST": opendp_job("MST"),
    "mbi AIM": mbi_aim_job,
    "dpsynth AIM": dpsynth_job("AIM"),
    "dpsynth MST": dpsynth_job("MST"),
}


def potentials_of(model: Any) -> dict[tuple[str, ...], np.ndarray]:
    """Clique -> log potential, of any mbi's model."""
    found = {}
    for clique in model.potentials.cliques:
        factor = model.potentials[clique]
        found[tuple(factor.domain.attributes)] = np.asarray(factor.values, np.float64).reshape(factor.domain.shape)
    return found


def versions(peer: str) -> str:
    """The library and the mbi below it."""
    found = []
    for name in dict.fromkeys((peer.split()[0], "mbi")):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(name)
    return ", ".join(found)


def main() -> int:
    done = run_job(lambda settings: PEERS[settings["peer"]])
    report: dict[str, Any] = {"absent": f"not installed: {done.absent}"}
    arrays: dict[str, np.ndarray] = {}
    if not done.absent:
        found = potentials_of(done.made)
        report = {"cpu": done.cpu, "total": float(done.made.total), "cliques": [list(clique) for clique in found]}
        report["versions"] = versions(done.settings["peer"])
        arrays = {f"potential_{i}": values for i, values in enumerate(found.values())}
    with done.out.open("wb") as file:
        np.savez(file, report=np.frombuffer(json.dumps(report).encode(), np.uint8), **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
