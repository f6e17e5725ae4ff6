"""Other libraries' mechanisms on this project's rows, workload and metrics.

`fit` writes the encoded training rows and the workload into a file and has `peer_cell.py` run the library on it in a
process of its own (another environment's interpreter, where two libraries want different versions of a third). It makes
an ordinary `Model` of what comes back, so that the metrics are computed by the same code as everybody's.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.peer_cell import PEERS
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError
from fedsyn.inference import Model
from fedsyn.privacy import PrivacyBudget

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT = 600


@dataclass(frozen=True)
class Fitted:
    """What a peer made of a table.

    Attributes:
        model: theirs, as ours; None where there is none.
        cpu: seconds of processor of the mechanism.
        versions: of the libraries.
        absent: why there is no model.
    """

    model: Model | None
    cpu: float = 0.0
    versions: str = ""
    absent: str = ""


def fit(
    peer: str,
    codes: np.ndarray,
    domain: Domain,
    workload: Sequence[Clique],
    *,
    epsilon: float,
    delta: float,
    seed: int,
    python: str = sys.executable,
    limit: int = _LIMIT,
) -> Fitted:
    """Runs a peer.

    Args:
        peer: a name of `PEERS`.
        codes: (n, d) training rows.
        domain: of them.
        workload: cliques; a mechanism without a workload does not look at it.
        epsilon, delta: the budget. Peers get the rho of zCDP that it allows, which all of them take.
        seed: of those that can be seeded.
        python: interpreter of an environment that has the library.
        limit: CPU seconds until it is given up.

    Raises:
        ConfigError: no such peer.
    """
    if peer not in PEERS:
        raise ConfigError(f"no peer '{peer}'; there are {', '.join(PEERS)}")
    head = {"attributes": domain.attributes, "shape": domain.shape, "workload": [list(q) for q in workload]}
    settings = {"peer": peer, "rho": PrivacyBudget(epsilon, delta).rho, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "table.npz", Path(folder) / "out.npz"
        np.savez(table, head=np.frombuffer(json.dumps(head).encode(), np.uint8), codes=codes)
        command = [python, "-m", "benchmarks.peers.peer_cell", str(table), json.dumps(settings), str(out)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)}
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
        )
        if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return Fitted(None, absent=f"not done after {limit} CPU s")
        if done.returncode:
            said = " ".join(done.stderr.split())[-160:] or "it said nothing"
            return Fitted(None, absent=f"failed: {said}")
        with np.load(out) as file:
            report: dict[str, Any] = json.loads(file["report"].tobytes())
            if "absent" in report:
                return Fitted(None, absent=report["absent"])
            tables = [file[f"potential_{i}"] for i in range(len(report["cliques"]))]
    return Fitted(model_of(domain, report["cliques"], tables, report["total"]), report["cpu"], report["versions"])


def model_of(domain: Domain, cliques: Sequence[Sequence[str]], tables: Sequence[np.ndarray], total: float) -> Model:
    """Our model of their potentials; minus infinity, a cell that they rule out, is a number too small to matter."""
    potentials = {
        tuple(clique): np.maximum(np.nan_to_num(table, nan=0.0, neginf=-1e3), -1e3)
        for clique, table in zip(cliques, tables, strict=True)
    }
    return Model(domain, potentials, max(total, 1.0))
