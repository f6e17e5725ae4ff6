"""Holders who write one column in different words: the table's shares, and what is said of values that nobody lists."""

from __future__ import annotations

import html
import json
import logging
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.evaluation.record import sentence
from fedsyn.front.synthesizer import log
from support.typed_commands import Fedsyn, entry_point

ROWS = 800
SHARE = "of the rows hold values of 'smoker' that the schema does not list"


def holder(seed: int, no: str, yes: str) -> pd.DataFrame:
    """160 smokers of 800, who are older."""
    rng = np.random.default_rng(seed)
    smokes = rng.permutation(np.arange(ROWS) < ROWS // 5)
    return pd.DataFrame({"smoker": np.where(smokes, yes, no), "age": rng.integers(20, 80, ROWS) + 10 * smokes})


def run_of(folder: Path, frames: list[pd.DataFrame], smoker: str, *changes: str) -> Path:
    """Files of a run of two holders."""
    files = []
    for number, frame in enumerate(frames):
        files.append(f"holder{number}.csv")
        frame.to_csv(folder / files[-1], index=False)
    columns = f"  smoker: {{{smoker}}}\n  age: {{kind: integer, lower: 0, upper: 99, bins: 10, unlisted: true}}\n"
    (folder / "schema.yaml").write_text(f"columns:\n{columns}", encoding="utf-8")
    data = f"{{source: [{', '.join(files)}], schema: schema.yaml, test_fraction: 0.0}}"
    text = f"data: {data}\nprivacy: {{epsilon: 1, delta: 1e-6}}\nruntime: {{seed: 5}}\n"
    (folder / "run.yaml").write_text(text + "\n".join(changes), encoding="utf-8")
    return folder / "run.yaml"


def shares(out: Path) -> dict[str, float]:
    table = pd.read_csv(out / "synthetic.csv", dtype=str)
    return {str(word): float(share) for word, share in table["smoker"].value_counts(normalize=True).items()}


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedsyn:
    return entry_point(capfd, monkeypatch)


def test_yes_no_and_true_false_are_one_column(tmp_path: Path, call: Fedsyn) -> None:
    config = run_of(tmp_path, [holder(0, "no", "yes"), holder(1, "false", "true")], "kind: boolean, unlisted: true")
    printed = call("run", str(config), "--out", str(tmp_path / "out"))
    assert printed.code == 0
    assert abs(shares(tmp_path / "out")["True"] - 0.2) < 0.03
    assert "not listed:" not in printed.out + printed.err
    predicted = json.loads((tmp_path / "out" / "predicted_quality.json").read_text())
    assert [one["seen"] for one in predicted["unlisted"]] == [False, False]
    assert (
        "Fewer than" in predicted["verdict"] and "'smoker', 'age' that the schema does not list" in predicted["verdict"]
    )


@pytest.mark.parametrize("mechanism", ["sketch_aim", "mst", "fed_privsyn"])
def test_words_that_nobody_lists_are_said_with_their_share_and_no_row_is_changed(
    tmp_path: Path, call: Fedsyn, mechanism: str
) -> None:
    """Half of the rows are `raucht` or `rauchfrei`: the others' share of smokers is the table's."""
    frames = [holder(0, "no", "yes"), holder(1, "rauchfrei", "raucht")]
    config = run_of(tmp_path, frames, "kind: boolean, unlisted: true", f"mechanism: {mechanism}")
    printed = call("run", str(config), "--out", str(tmp_path / "out"))
    assert printed.code == 0, printed.err
    found, out = shares(tmp_path / "out"), tmp_path / "out"
    assert set(found) == {"True", "False"} and abs(found["True"] - 0.2) < 0.04
    # Released values alone: terminal, page, README and the prediction have the same sentence.
    predicted = fedsyn.load(out).predicted_quality
    assert predicted is not None
    clause = predicted.seen_unlisted()[0]
    smoker = predicted.unlisted[0]
    assert SHARE in clause and smoker.low is not None and smoker.high is not None
    assert smoker.low - 0.02 < 0.5 < smoker.high + 0.02
    text = " ".join(printed.out.split())
    said = sentence(clause)
    assert f"not listed: {said[:-1]}" in text
    page = html.unescape((out / "report.html").read_text())
    assert said in page and said in (out / "README.md").read_text()
    facts = json.loads((out / "predicted_quality.json").read_text())
    assert said in facts["verdict"] and "list the values of smoker" in facts["verdict"]
    assert "Worst is smoker (about" in facts["verdict"]
    # Real rows have the cell, and the table has none.
    compared = json.loads((out / "comparison.json").read_text())["quality"]
    column = next(one for one in compared["columns"] if one["name"] == "smoker")
    assert dict(zip(column["labels"], column["synthetic"], strict=True))["raucht"] == 0.0
    assert column["gone"] == 1.0  # of no and yes, too: the table has False and True
    assert "Next: in the schema, list the values of smoker" in compared["verdict"]


def test_a_session_of_python_hears_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens to the log there; with a handler the log has it, and no warning repeats it."""
    frames = [holder(0, "no", "yes"), holder(1, "rauchfrei", "raucht")]
    schema = {
        "columns": {
            "smoker": {"kind": "boolean", "unlisted": True},
            "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 10},
        }
    }
    monkeypatch.setattr(log, "handlers", [logging.NullHandler()])
    monkeypatch.setattr(logging.root, "handlers", [])
    with pytest.warns(UserWarning, match=SHARE):
        synthesizer = fedsyn.Synthesizer(1.0, 1e-6, schema, seed=5).fit(frames)
    assert synthesizer.predicted_quality is not None and SHARE in synthesizer.predicted_quality.sentence()
    assert "Next: in the schema, list the values of smoker" in synthesizer.evaluate(frames).sentence()
    handler_texts: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            handler_texts.append(record.getMessage())

    monkeypatch.setattr(log, "handlers", [Listening()])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fedsyn.Synthesizer(1.0, 1e-6, schema, seed=5).fit(frames)
    assert any(SHARE in text for text in handler_texts)
