"""A run whose fits Private-PGM makes, and refusals before anything is charged."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.loading import parse_config
from fedsyn.runs.engines import run

CLOSED = """\
columns:
  age: {kind: integer, lower: 18, upper: 89, bins: 4}
  smoker: {kind: boolean}
"""
OPEN = CLOSED.replace("lower: 18, upper: 89, bins: 4", "bounds: private, bins: {private: 4}")


def config_of(folder: Path, schema: str, mechanism: str, **inference: str) -> RunConfig:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(18, 90, 300), "smoker": rng.random(300) < 0.3})
    table.to_csv(folder / "rows.csv", index=False)
    (folder / "schema.yaml").write_text(schema, encoding="utf-8")
    return parse_config(
        {
            "mechanism": {"name": mechanism},
            "data": {"source": str(folder / "rows.csv"), "schema": str(folder / "schema.yaml"), "test_fraction": 0.0},
            "federation": {"clients": 3},
            "privacy": {"epsilon": 8.0, "delta": 1e-5},
            "workload": {"degree": 2},
            "inference": {"engine": "mbi"} | inference,
            "evaluation": [],
            "runtime": {"seed": 1},
        }
    )


@pytest.mark.parametrize("schema", [CLOSED, OPEN], ids=["closed", "open"])
def test_what_an_estimator_cannot_fit_is_refused_before_a_charge(schema: str, tmp_path: Path) -> None:
    pytest.importorskip("mbi")
    config = config_of(tmp_path, schema, "sketch_aim", estimator="InteriorGradient")
    with pytest.raises(ConfigError, match="InteriorGradient cannot hold hidden factors"):
        run(config, tmp_path / "out")
    assert not (tmp_path / "out" / "ledger.json").exists()


def test_a_missing_package_is_named_before_a_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.metadata.version

    def version(name: str) -> str:
        if name == "mbi":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    config = config_of(tmp_path, OPEN, "sketch_aim")
    with pytest.raises(ConfigError, match=r"inference\.engine: mbi needs the package 'mbi'"):
        run(config, tmp_path / "out")
    assert not (tmp_path / "out" / "ledger.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("schema", [CLOSED, OPEN], ids=["closed", "open"])
def test_a_run_costs_what_it_costs_with_the_native_engine(schema: str, tmp_path: Path) -> None:
    pytest.importorskip("mbi")
    spent = []
    for engine in ("mbi", "native"):
        out = tmp_path / engine
        run(config_of(tmp_path, schema, "fed_mst", engine=engine), out)
        assert len(pd.read_csv(out / "synthetic.csv")) > 200
        spent.append(json.loads((out / "ledger.json").read_text(encoding="utf-8"))["epsilon"])
    assert spent[0] == pytest.approx(spent[1])
