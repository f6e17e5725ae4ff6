"""Runs that protect persons give the same bytes in process, on Ray, under `flwr run`, and with one file or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from unit.runs.test_whole_persons import hospital, schema, two_tables

from fedsyn import yamlio
from fedsyn.loading import load_config
from fedsyn.runs.engines import run
from support.loopback import fedsyn_run
from support.run_folders import assert_same_result
from support.typed_flower import run_to_its_end

pytestmark = pytest.mark.xdist_group("flower")

AGGREGATIONS: dict[str, dict[str, Any]] = {
    "plain": {"protocol": "plain", "noise": "server"},
    "secagg": {"protocol": "secagg", "noise": "distributed"},
}


def configured(folder: Path, protocol: str, *, two: bool) -> Path:
    """Three holders of rows of persons, a file each or two."""
    data: dict[str, Any] = {"source": [], "schema": "schema.yaml", **({"persons": []} if two else {})}
    for number in range(3):
        table = hospital(120, none=0.2 if two else 0.0, seed=number)
        tables = two_tables(table) if two else {"visits": table}
        for key, name in (("source", "visits"), ("persons", "patients")):
            if name in tables:
                tables[name].to_csv(folder / f"{name}{number}.csv", index=False)
                data[key].append(str(folder / f"{name}{number}.csv"))
    more = {"least_rows": 0, "tables": ["patients", "visits"]} if two else {}
    (folder / "schema.yaml").write_text(yamlio.dumps(schema(**more)), encoding="utf-8")
    document = {
        "mechanism": {"name": "sketch_aim", "rounds": 2},
        "data": data,
        "privacy": {"unit": "person", "epsilon": 5.0, "delta": 1e-5, "holders_per_person": 2},
        "aggregation": AGGREGATIONS[protocol],
        "evaluation": ["workload_error"],
        "runtime": {"seed": 3},
    }
    (folder / "run.yaml").write_text(yamlio.dumps(document), encoding="utf-8")
    return folder / "run.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("two", [False, True])
def test_the_seed_alone_decides_who_comes_out(tmp_path: Path, two: bool) -> None:
    file = configured(tmp_path, "secagg", two=two)
    run(load_config(file), tmp_path / "one")
    run(load_config(file), tmp_path / "again")
    run(load_config(file, ["runtime.seed=4"]), tmp_path / "other")
    assert_same_result(tmp_path / "again", tmp_path / "one")
    assert (tmp_path / "other" / "synthetic.csv").read_bytes() != (tmp_path / "one" / "synthetic.csv").read_bytes()
    if two:
        patients, visits = (pd.read_csv(tmp_path / "one" / f"synthetic_{name}.csv") for name in ("patients", "visits"))
        assert patients["patient"].is_unique and set(visits["patient"]) < set(patients["patient"])


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "two"), [("plain", False), ("secagg", True)])
def test_ray_gives_the_serial_result(tmp_path: Path, protocol: str, two: bool) -> None:
    file = configured(tmp_path, protocol, two=two)
    run(load_config(file), tmp_path / "serial")
    fedsyn_run(file, tmp_path / "ray", "runtime.engine=ray")
    assert_same_result(tmp_path / "ray", tmp_path / "serial")
    for name in ("patients", "visits") if two else ():
        ours, theirs = (tmp_path / where / f"synthetic_{name}.csv" for where in ("ray", "serial"))
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "two"), [("plain", False), ("secagg", True)])
def test_flwr_run_gives_the_serial_result(
    tmp_path: Path, clone: Path, own_flower: dict[str, str], protocol: str, two: bool
) -> None:
    """Three SuperNodes have the rows of three holders; the app is packed with the configuration, without the rows."""
    file = configured(clone / "configs", protocol, two=two)
    run(load_config(file), tmp_path / "serial")
    asked = f'config="configs/{file.name}" out="{tmp_path / "out"}"'
    words = ["run", ".", "--run-config", asked, "--federation-config", "num-supernodes=3"]
    run_to_its_end(words, clone, own_flower)
    assert_same_result(tmp_path / "out", tmp_path / "serial")
    for name in ("patients", "visits") if two else ():
        ours, theirs = (tmp_path / where / f"synthetic_{name}.csv" for where in ("out", "serial"))
        assert ours.read_bytes() == theirs.read_bytes()
