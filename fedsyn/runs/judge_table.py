"""A table that was made elsewhere: holders are asked how good it is, and nothing else, within a budget of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.data import encode_file
from fedsyn.errors import ConfigError, RunError
from fedsyn.inference import EmpiricalModel
from fedsyn.protocol.strategy import MechanismStrategy, Protocol
from fedsyn.registry import strategy_class
from fedsyn.report.html import read_facts
from fedsyn.runs.directory import JUDGED_FILE
from fedsyn.runs.engines import simulation_grid
from fedsyn.runs.prepare import prepare
from fedsyn.runs.serve import serve
from fedsyn.runs.stores import run_store

#: Of the budget: the rest is there for row counts that are private.
SHARE = 0.95


def judge_table(config: RunConfig, table: Path, out: Path) -> dict[str, Any]:
    """Asks the holders of a simulation how good a table is; what evaluation.json says.

    Args:
        config: of their federation: who they are, how sums are formed, and the budget, which is spent on this alone.
            Its mechanism is not run.
        table: rows by the holders' schema.
        out: folder for evaluation.json, ledger.json and the rounds; made, or empty.

    Raises:
        ConfigError: a deployment, an open schema, or a folder that is in use.
        RunError: too few holders answered.
    """
    if config.runtime.engine == "deployment":
        raise ConfigError(
            "--federated: a deployment asks its holders at the end of a run (evaluation: {federated: true}); a table "
            "that was made elsewhere is judged in a simulation only"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: choose a folder that does not exist yet, or an empty one")
    node = config.evaluation.model_copy(update={"metrics": (), "federated": True, "share": SHARE})
    config = config.model_copy(update={"evaluation": node})
    family = strategy_class(config.mechanism.name)
    family.Client.Contract.check(config)
    out.mkdir(parents=True, exist_ok=True)
    with run_store(out) as store:
        prepared = prepare(config, store)
        if prepared.schema.open:
            raise ConfigError("--federated: something of the schema is private; a table made elsewhere needs all of it")
        codes = encode_file(table, prepared.schema)
        if not len(codes):
            raise ConfigError(f"{table} has no rows")
        with simulation_grid(config, prepared) as grid:
            serve(config, prepared, grid, out, None, make=_given(family, codes))
    if not (out / JUDGED_FILE).is_file():
        raise RunError("too few holders answered: nothing is known of the table")
    return read_facts(out / JUDGED_FILE)


def _given(family: type[MechanismStrategy], codes: npt.NDArray[np.integer]) -> type[MechanismStrategy]:
    """The server half of a family that asks its clients nothing: its model is the table."""

    class GivenTable(family):  # type: ignore[misc, valid-type]
        def protocol(self) -> Protocol:
            self.model = EmpiricalModel(self.domain, codes)
            yield from ()

    return GivenTable
