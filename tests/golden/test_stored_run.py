"""Stored files of format 1, which every reader must read.

`run_format_1` is what `fedsyn run` left of augflaim on 200 rows of synthfs (see its config.yaml), without its page;
`party_format_1/ledger.jsonl` what a party left of two runs, the second without an end, as a kill leaves it. A change of
a format adds a directory beside them.
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
from fedsyn.errors import BudgetExceeded, ConfigError, DataError
from fedsyn.front.cli import app
from fedsyn.ledgers.party_ledger import PartyLedger, read_party_lines
from fedsyn.privacy import PrivacyBudget
from fedsyn.runs.directory import load_metrics, read_facts, read_rounds
from fedsyn.sweep.report import report_folder

STORED = Path(__file__).parent / "run_format_1"
PARTY = Path(__file__).parent / "party_format_1" / "ledger.jsonl"
TOTAL = PrivacyBudget(4.0, 1e-5)
FIRST, SECOND = f"{1:064x}", f"{2:064x}"

# A run's directory ----------------------------------------------------------------------------------------------------


def test_its_configuration_runs_again(tmp_path: Path) -> None:
    """Compares numbers: the last digits may differ on another processor."""
    metrics = fedsyn.run(fedsyn.load_config(STORED / "config.yaml"), tmp_path)
    assert metrics["workload_error"] == pytest.approx(load_metrics(STORED)["workload_error"], rel=1e-6)
    written, stored = ((folder / "config.yaml").read_text("utf-8") for folder in (tmp_path, STORED))
    assert written == stored
    for again, stored in zip(read_rounds(tmp_path), read_rounds(STORED), strict=True):
        assert all(again[key] == stored[key] for key in ("round", "cohort", "dropped", "selected", "notes"))
        assert (again["sigma"] or 0.0) == pytest.approx(stored["sigma"] or 0.0, rel=1e-9)
    again, stored = (pd.read_csv(folder / "synthetic.csv") for folder in (tmp_path, STORED))
    assert list(again.columns) == list(stored.columns) and len(again) == len(stored)


def test_its_model_is_read() -> None:
    model = fedsyn.load_model(STORED / "model.npz")
    assert model.total == pytest.approx(sum(model.project((model.domain.attributes[0],))))
    assert model.total == pytest.approx(len(pd.read_csv(STORED / "synthetic.csv")), abs=1)


def test_its_ledger_and_rounds_are_read() -> None:
    ledger, rounds = read_facts(STORED / "ledger.json"), read_rounds(STORED)
    assert ledger["epsilon"] <= 2.0 and ledger["epsilon_replace_one"] >= ledger["epsilon"]
    assert [line["round"] for line in rounds] == [0, 1, 2] and all(line["bytes_up"] > 0 for line in rounds)


def test_its_report_is_written_and_rows_are_sampled(tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(STORED, out)
    assert report_folder(out)[0].is_file()
    sampled = CliRunner().invoke(app, ["sample", str(out), "--rows", "5", "--out", str(tmp_path / "more.csv")])
    assert sampled.exit_code == 0 and len(pd.read_csv(tmp_path / "more.csv")) == 5
    assert len(fedsyn.load(out).sample(4)) == 4


@pytest.mark.parametrize("other", [0, FORMAT + 1, "1", None])
def test_another_format_is_refused_in_one_sentence(tmp_path: Path, other: object) -> None:
    """Refuses a missing format, too, except in a configuration that a person wrote."""
    out = tmp_path / "run"
    shutil.copytree(STORED, out)
    says = rf"expected format {FORMAT}, found {other!r}; read it with the fedsyn that wrote it$"
    facts = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    (out / "ledger.json").write_text(json.dumps({**facts, "format": other}), encoding="utf-8")
    with pytest.raises(DataError, match=says):
        read_facts(out / "ledger.json")
    text = (out / "config.yaml").read_text(encoding="utf-8")
    (out / "config.yaml").write_text(text.replace("format: 1", f"format: {json.dumps(other)}"), encoding="utf-8")
    with pytest.raises(DataError, match=says):
        fedsyn.load_config(out / "config.yaml")


# A party's ledger -----------------------------------------------------------------------------------------------------


def test_a_partys_ledger_is_read_and_continued(tmp_path: Path) -> None:
    reading = read_party_lines(PARTY)
    assert reading.runs == {FIRST: [0.01, pytest.approx(0.006)], SECOND: [0.01, pytest.approx(0.006)]}
    assert reading.spent == pytest.approx(0.012, rel=1e-12) and reading.open == SECOND and not reading.torn

    ledger = tmp_path / "ledger.jsonl"
    shutil.copy(PARTY, ledger)
    book = PartyLedger(ledger, TOTAL)
    try:
        assert book.spent == pytest.approx(0.012, rel=1e-12)
        with pytest.raises(BudgetExceeded):
            book.begin("a" * 64, TOTAL.rho - 0.0119)
        book.begin("a" * 64, 0.01)
        book.charge("a" * 64, 0.004, name="open")
    finally:
        book.close()
    lines = ledger.read_text("utf-8").splitlines()
    assert lines[: len(PARTY.read_text("utf-8").splitlines())] == PARTY.read_text("utf-8").splitlines()
    assert read_party_lines(ledger).spent == pytest.approx(0.016, rel=1e-12)


def test_a_changed_line_of_a_stored_ledger_is_noticed(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(PARTY.read_text("utf-8").replace('"rho": 0.003', '"rho": 0.0003', 1), encoding="utf-8")
    with pytest.raises(ConfigError, match="ledger"):
        read_party_lines(ledger)
