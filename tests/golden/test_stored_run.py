"""A run directory that format 1 left: every later reader must still read it.

Made by `fedsyn run` on its own config.yaml at the commit that added it; never made again. A change of a format adds a
directory beside it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import fedsyn
from fedsyn.config import FORMAT
from fedsyn.errors import ConfigError, DataError
from fedsyn.front.cli import app
from fedsyn.runs.directory import load_metrics, read_facts, read_rounds
from fedsyn.settings import AggregationNode, FederationNode, InferenceNode
from fedsyn.sweep.report import report_folder

STORED = Path(__file__).parent / "run_format_1"


def test_its_configuration_runs_again(tmp_path: Path) -> None:
    """The same releases; compared as numbers, which may differ in their last digits on another processor.

    A model's number of rows was the sum of the released row counts then; today the one-way marginals have a say in it.
    """
    metrics = fedsyn.run(fedsyn.load_config(STORED / "config.yaml"), tmp_path)
    assert metrics["workload_error"] == pytest.approx(load_metrics(STORED)["workload_error"], rel=0.02)
    written, stored = ((folder / "config.yaml").read_text("utf-8") for folder in (tmp_path, STORED))
    for gone in ("graph: auto", "engine: native", "solver: accelerated", "workers: 1"):  # there is no other any more
        stored = stored.replace(f"  {gone}\n", "")
    for node in (FederationNode, AggregationNode, InferenceNode):
        for old, new in node.renamed.items():
            stored = stored.replace(f"  {old}: ", f"  {new}: ")
    assert written == stored
    for again, stored in zip(read_rounds(tmp_path), read_rounds(STORED), strict=True):
        assert all(again[key] == stored[key] for key in ("round", "cohort", "dropped", "selected", "notes"))
        assert (again["sigma"] or 0.0) == pytest.approx(stored["sigma"] or 0.0, rel=1e-9)
    again, stored = (pd.read_csv(folder / "synthetic.csv") for folder in (tmp_path, STORED))
    assert list(again.columns) == list(stored.columns) and len(again) == pytest.approx(len(stored), rel=0.1)


def test_its_model_is_read() -> None:
    model = fedsyn.load_model(STORED / "model.npz")
    assert model.total == pytest.approx(sum(model.project((model.domain.attributes[0],))))
    assert model.total == pytest.approx(len(pd.read_csv(STORED / "synthetic.csv")), abs=1)


def test_its_ledger_and_rounds_are_read() -> None:
    ledger, rounds = read_facts(STORED / "ledger.json"), read_rounds(STORED)
    assert ledger["epsilon"] <= 2.0 and ledger["epsilon_replace_one"] >= ledger["epsilon"]
    assert [line["round"] for line in rounds] == [0, 1, 2] and all(line["bytes_up"] > 0 for line in rounds)


@pytest.mark.parametrize("former", ["", "setup: sum, graph: full, ", "setup: sum, graph: auto, threat: malicious, "])
def test_its_report_is_written(tmp_path: Path, former: str) -> None:
    """Also of a run whose secure sums agreed their keys one by one, which is not run again."""
    out = tmp_path / "run"
    shutil.copytree(STORED, out)
    if former:
        before, _, after = (out / "config.yaml").read_text("utf-8").partition("aggregation:\n")
        after = after[after.index("inference:") :]
        text = f"{before}aggregation: {{{former}protocol: secagg, noise: distributed}}\n{after}"
        (out / "config.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="setup is no longer an option: leave it out"):
            fedsyn.load_config(out / "config.yaml")
    assert report_folder(out)[0].is_file()
    assert fedsyn.load_model(out / "model.npz").total > 0
    sampled = CliRunner().invoke(app, ["sample", str(out), "--rows", "5", "--out", str(tmp_path / "more.csv")])
    assert sampled.exit_code == 0 and len(pd.read_csv(tmp_path / "more.csv")) == 5


def test_a_later_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(STORED, out)
    facts = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    (out / "ledger.json").write_text(json.dumps({**facts, "format": FORMAT + 1}), encoding="utf-8")
    with pytest.raises(DataError, match=f"reads formats up to {FORMAT}"):
        read_facts(out / "ledger.json")
    text = (out / "config.yaml").read_text(encoding="utf-8")
    (out / "config.yaml").write_text(text.replace("format: 1", f"format: {FORMAT + 1}"), encoding="utf-8")
    with pytest.raises((ConfigError, DataError), match=f"reads formats up to {FORMAT}"):
        fedsyn.load_config(out / "config.yaml")
