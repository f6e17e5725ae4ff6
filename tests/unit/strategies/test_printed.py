"""The presets of configs/printed run, each beside the default that it is compared with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fedsyn.config import RunConfig
from fedsyn.front.testing.bench import equal_arrays
from fedsyn.loading import load_config, parse_config
from fedsyn.randomness import SEEDED_LABEL
from fedsyn.registry import MECHANISMS, contract_class, strategy_class
from fedsyn.runs.directory import load_model
from fedsyn.runs.engines import run

FOLDER = Path(__file__).resolve().parents[3] / "configs" / "printed"
PRESETS = sorted(FOLDER.glob("*.yaml"))
# Whose class a preset names, below experiments.variants.
VARIANTS = {
    "ada_fed_privsyn": "privsyn:AdaFedPrivSynVariant",
    "aim": "aim:PrintedAim",
    "augflaim": "flaim:AugFlaimVariant",
    "distributed_aim": "distributed_aim:DistributedAimVariant",
    "fed_privsyn": "privsyn:FedPrivSynVariant",
    "naive_flaim": "flaim:NaiveFlaimVariant",
    "privsyn": "privsyn:PrivSynVariant",
}
# The papers' tables and federations, made small. Partitioned as generated: clients are unlike each other.
SMALL = (
    "data={source: synthfs, bins: 6, test_fraction: 0.1, options: {beta: 2.0, clients: 4, rows: 1200, features: 5}}",
    "federation={clients: 4, partition: {name: native}}",
    "privacy.epsilon=2.0",
    "workload={degree: 2, size: null}",
    "evaluation=[workload_error]",
)


def name_of(path: Path) -> str:
    return path.stem


def small(path: Path) -> RunConfig:
    return load_config(path, SMALL)


def test_every_family_with_a_printed_variant_has_its_preset() -> None:
    assert [path.stem for path in PRESETS] == sorted(VARIANTS)
    assert set(VARIANTS) <= set(MECHANISMS)
    for name, variant in VARIANTS.items():
        assert issubclass(strategy_class(f"experiments.variants.{variant}"), strategy_class(name))


@pytest.mark.parametrize("path", PRESETS, ids=name_of)
def test_a_preset_says_in_three_lines_what_it_follows(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    comment = re.findall(r"^#.*$", text, re.MULTILINE)
    assert 1 <= len(comment) <= 3 and text.startswith("\n".join(comment))
    said = " ".join(line.lstrip("# ") for line in comment)
    assert re.search(r"Not followed|left out for privacy", said), "what is not followed, and whether privacy is why"
    assert yaml.safe_load(text)["mechanism"]["name"] == f"experiments.variants.{VARIANTS[path.stem]}"
    assert load_config(path).privacy.client_sizes == "public", "all of the papers take row counts for public"


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.slow] * (path.stem != "privsyn")) for path in PRESETS], ids=name_of
)
def test_a_preset_is_another_algorithm_than_the_default(path: Path, tmp_path: Path) -> None:
    """Same table and seed: another model, inside the same budget."""
    printed = small(path)
    document = printed.to_dict()
    document["mechanism"] = {"name": path.stem}
    default = parse_config(document)
    contract = contract_class(printed.mechanism.name)
    assert contract.options_of(printed) != contract.Options(), "as printed is not as the variant does by itself"
    metrics = {}
    for name, config in (("printed", printed), ("default", default)):
        metrics[name] = run(config, tmp_path / name)
        ledger = json.loads((tmp_path / name / "ledger.json").read_text(encoding="utf-8"))
        assert 0 < ledger["epsilon"] <= 2.0 and ledger["not_private_because"] == [SEEDED_LABEL]
        assert len(pd.read_csv(tmp_path / name / "synthetic.csv")) == 1080
        assert 0 <= metrics[name]["workload_error"] < 2
    models = [load_model(tmp_path / name / "model.npz").to_arrays() for name in metrics]
    assert not equal_arrays(*models)
