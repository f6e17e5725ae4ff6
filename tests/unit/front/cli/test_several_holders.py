"""Several holders' files in one person's hands: what differs is named at once, with ways out, before a run."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.table.schema import Schema
from support.typed_commands import Fedsyn, entry_point

WORDS = "no word in common between a2.csv, b2.csv and c2.csv"
SCALE = "the median of b2.csv is 2.2 times the others' (pounds and kilograms?)"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fedsyn:
    monkeypatch.chdir(tmp_path)
    return entry_point(capsys, monkeypatch)


def holder(words: list[str], times: float = 1.0, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    weight = np.round(rng.normal(75, 12, 300) * times, 1)
    return pd.DataFrame({"sex": rng.choice(words, 300), "weight": weight, "age": rng.integers(18, 90, 300)})


def three() -> dict[str, pd.DataFrame]:
    """Three holders who code differently: three pairs of words for a sex, and one who weighs in pounds."""
    return {
        "a2.csv": holder(["M", "F"]),
        "b2.csv": holder(["male", "female"], 2.2046, 1),
        "c2.csv": holder(["1", "2"], seed=2),
    }


def flat(text: str) -> str:
    return " ".join(text.split())


def test_words_and_scales_that_holders_do_not_share_are_named_before_a_run(call: Fedsyn) -> None:
    """At init, review, check and run, and in nothing that may be published."""
    for name, rows in three().items():
        rows.to_csv(name, index=False)
    files = [word for name in three() for word in ("--data", name)]
    drafted = call("init", *three())
    assert drafted.code == 0 and f"sex: {WORDS}." in flat(drafted.out) and f"weight: {SCALE}." in flat(drafted.out)
    assert f"#? {WORDS}\n" in Path("schema.yaml").read_text(encoding="utf-8")
    assert call("schema", "review", "schema.yaml", "--all", *files).code == 0
    assert "#?" not in Path("schema.yaml").read_text(encoding="utf-8")
    checked = call("schema", "check", "schema.yaml", *files)
    assert f"sex: {WORDS}\n" in checked.out and f"weight: {SCALE}\n" in checked.out
    assert "b2.csv: sex: 4 of 6 listed words never occur here\n" in checked.out
    result = call("run", "run.yaml", "--out", "out", "--set", "aggregation={protocol: plain, noise: local}")
    assert result.code == 0 and f"sex: {WORDS}" in flat(result.err) and f"weight: {SCALE}" in flat(result.err), result
    assert call("report", "out", "--no-real").code == 0
    for name in (
        "README.md",
        "report_public.html",
        "ledger.json",
        "rounds.jsonl",
        "schema.yaml",
        "predicted_quality.json",
    ):
        text = Path("out", name).read_text(encoding="utf-8")
        assert "in common" not in text and "2.2 times" not in text, name


def test_python_names_them_too(caplog: pytest.LogCaptureFixture) -> None:
    frames = list(three().values())
    schema = Schema.draft(pd.concat(frames)).approve(frame=pd.concat(frames))
    with caplog.at_level(logging.WARNING, logger="fedsyn"):
        fedsyn.Synthesizer(schema=schema).fit(frames)
    told = [record.getMessage() for record in caplog.records]
    assert told[:2] == [
        "sex: no word in common between table 1, table 2 and table 3",
        "weight: the median of table 2 is 2.2 times the others' (pounds and kilograms?)",
    ]


def test_all_differences_are_in_one_message_and_each_way_out_works(call: Fedsyn) -> None:
    """An extra column, a lacking one and another case: three edits in three runs before, one line now."""
    rows = holder(["M", "F"]).assign(id_no=range(300))
    rows.to_csv("a.csv", index=False)
    rows[["age", "id_no", "sex", "weight"]].assign(note="x").to_csv("b.csv", index=False)
    rows.drop(columns="id_no").rename(columns={"age": "Age"}).to_csv("c.csv", index=False)
    refused = call("init", "a.csv", "b.csv", "c.csv")
    assert refused.code == 2 and refused.err == (
        "error: all holders need the same columns, and these differ: b.csv has 'note', which others lack; "
        "c.csv lacks 'age', 'id_no' and has 'Age', which others lack (b.csv: in another order, which changes nothing). "
        "Give what is the same one name: --rename Age=age, in a run data.options.rename: {Age: age}; "
        "and leave out what not all have: --common\n"
    )
    result = call("init", "a.csv", "b.csv", "c.csv", "--rename", "Age=age", "--common")
    assert result.code == 0 and "b.csv: left out, as not every file has it: id_no, note" in flat(result.out)
    assert list(Schema.load("schema.yaml").every_column) == ["sex", "weight", "age"]
    review = next(line for line in result.out.splitlines() if "schema review" in line).split()[1:]
    assert review[-2:] == ["--rename", "Age=age"] and call(*review, "--all").code == 0
    assert call("schema", "check", *review[2:]).code == 0
    plain = "aggregation={protocol: plain, noise: local}"
    assert call("run", "run.yaml", "--out", "out", "--set", plain).code == 0
    assert list(pd.read_csv("out/synthetic.csv").columns) == ["sex", "weight", "age"]
    refused = call("run", "run.yaml", "--out", "other", "--set", plain, "--set", "data.options={}")
    assert refused.code == 2 and "c.csv lacks columns of the schema: 'age'. Give what is the same" in refused.err
    nowhere = call("init", "a.csv", "b.csv", "--rename", "Aeg=years", "--force")
    assert nowhere.code == 2 and "--rename Aeg=years: a.csv, b.csv have no column 'Aeg'" in nowhere.err
    assert "; columns: " in nowhere.err
    mistyped = call("init", "a.csv", "b.csv", "--rename", "Age", "--force")
    assert mistyped.code == 2 and "--rename: expected OLD=NEW" in mistyped.err
