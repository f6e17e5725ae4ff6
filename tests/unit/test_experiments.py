"""The experiments' files fit together: sweeps are valid, expected values point into them, READMEs name the command."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from fedsyn.errors import ConfigError
from fedsyn.evaluation import METRICS
from fedsyn.loading import parse_config
from fedsyn.registry import partitioner as make_partitioner
from fedsyn.sweep import load_sweep

pytestmark = pytest.mark.thorough

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
FOLDERS = sorted(path.parent for path in EXPERIMENTS.glob("*/expected.yaml"))
SWEEPS = [folder for folder in FOLDERS if (folder / "sweep.yaml").exists()]
COSTS = {"seconds", "peak_mb", "client_mb_up", "client_mb_down", "party_mb", "party_rounds", "party_cpu"}


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("experiments_check", EXPERIMENTS / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def by_name(folder: Path) -> str:
    return folder.name


def test_every_folder_is_an_experiment() -> None:
    folders = sorted(path for path in EXPERIMENTS.iterdir() if path.is_dir() and not path.name.startswith("_"))
    assert folders == FOLDERS
    assert len(FOLDERS) >= 15


@pytest.mark.parametrize("folder", FOLDERS, ids=by_name)
def test_readme_names_the_command(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    sweep = folder in SWEEPS
    command = f"python experiments/check.py {folder.name}" if sweep else f"python experiments/{folder.name}/run.py"
    assert command in text
    assert "/work/" not in text


@pytest.mark.parametrize("folder", SWEEPS, ids=by_name)
def test_expected_values_are_of_the_sweep(folder: Path, check: ModuleType) -> None:
    sweep = load_sweep(folder / "sweep.yaml")  # parses, and validates the configuration of every cell
    lookup, expected = check.Lookup(sweep), check.Expected.load(folder / "expected.yaml")
    known = COSTS | {metric for cell in sweep.cells for metric in cell.config.evaluation}
    assert known <= COSTS | set(METRICS)
    assert expected.values or expected.claims
    for value in expected.values:
        lookup.combination(value.where)
        assert value.metric in known
        assert value.tolerance > 0
    for claim in expected.claims:
        assert claim.metric in known
        assert len(claim.descending) > 1
        cells = [lookup.combination(claim.where | step).id for step in claim.descending]
        assert len(set(cells)) == len(cells), "a claim compares a combination with itself"
    for panel in expected.panels:
        assert panel.metric in known
        assert lookup.matching(panel.where)


@pytest.mark.parametrize("folder", SWEEPS, ids=by_name)
def test_every_combination_has_several_seeds(folder: Path) -> None:
    seeds: dict[str, set[int | None]] = {}
    for cell in load_sweep(folder / "sweep.yaml").cells:
        seeds.setdefault(repr(cell.axes), set()).add(cell.seed)
    assert all(len(found) >= 3 and None not in found for found in seeds.values())


def test_heterogeneity_expects_valid_partitions() -> None:
    document = yaml.safe_load((EXPERIMENTS / "flaim_table5" / "expected.yaml").read_text(encoding="utf-8"))
    assert len(document["values"]) == 8
    for value in document["values"]:
        options = dict(value["partition"])
        make_partitioner(options.pop("name"), **options)
        assert 0 < value["paper"] < 1


SMALL = """
base:
  mechanism: {name: aim, rounds: 2}
  data: {source: synthfs, options: {rows: 400, clients: 4, features: 3}, bins: 4}
  federation: {clients: 4, partition: native}
  privacy: {epsilon: 1.0, delta: 1.0e-5}
  workload: {degree: 2, size: 2}
  evaluation: [workload_error]
grid: {privacy.epsilon: [0.1, 100.0]}
seeds: [0, 1]
"""
EXPECTED = """
values: [{where: {privacy.epsilon: 100.0}, metric: workload_error, expected: 0.1, tolerance: 0.3, paper: 0.2}]
claims:
  - says: more budget, less error
    metric: workload_error
    descending: [{privacy.epsilon: 0.1}, {privacy.epsilon: 100.0}]
    held: true
panels: [{metric: workload_error, x: privacy.epsilon}]
"""


@pytest.mark.parametrize(
    ("old", "new", "good"),
    [
        ("", "", True),
        ("held: true", "held: false", False),
        ("expected: 0.1", "expected: 9.0", False),
        ("held: true", "held: true, factor: 1000", False),
    ],
)
def test_check_runs_compares_and_draws(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, good: bool
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "sweep.yaml").write_text(SMALL)
    (folder / "expected.yaml").write_text(EXPECTED.replace(old, new.replace(", ", "\n    ")) if old else EXPECTED)
    monkeypatch.setattr(check, "HERE", tmp_path)
    out = tmp_path / "out"
    assert check.check("small", out, 1) is good
    table = (out / "table.md").read_text(encoding="utf-8")
    assert "more budget, less error" in table and "epsilon 100.0" in table
    assert (out / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_check_refuses_what_the_sweep_does_not_hold(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SMALL)
    lookup = check.Lookup(load_sweep(tmp_path / "sweep.yaml"))
    with pytest.raises(ConfigError, match="no cell"):
        lookup.combination({"privacy.epsilon": 3.0})
    with pytest.raises(ConfigError, match="several"):
        lookup.combination({"mechanism.name": "aim"})
    with pytest.raises(ConfigError, match="no experiment"):
        check.check("nothing", tmp_path, 1)
    (tmp_path / "expected.yaml").write_text("values: [{where: {}, metric: nll, expectd: 1, tolerance: 1}]")
    with pytest.raises(ConfigError, match="expectd"):
        check.Expected.load(tmp_path / "expected.yaml")


def test_lookup_sees_resolved_keys(check: ModuleType) -> None:
    config = parse_config(yaml.safe_load(SMALL)["base"], "small")
    assert check.flat(config.to_dict())["data.options.features"] == 3
    assert np.isclose(check.flat(config.to_dict())["federation.participation"], 1.0)
