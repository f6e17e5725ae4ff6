"""Persons with several rows: asked about from `init` to the page, with counts for the person who has the file alone."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.front.cli import reviewing
from fedsyn.protocol.explain import explain
from fedsyn.registry import client_class
from fedsyn.runs.holders import load_rows
from fedsyn.table.schema import Schema
from support.node_folders import run_of
from support.typed_commands import Fedsyn, entry_point

NOT_ONE = "not for one person, who may have several"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fedsyn:
    monkeypatch.chdir(tmp_path)
    return entry_point(capsys, monkeypatch)


def visits(people: int = 300, *, once: bool = False) -> pd.DataFrame:
    """Visits of people who have 1 to 7 each, or all rows of different people."""
    rng = np.random.default_rng(5)
    ids = np.repeat(np.arange(people), rng.integers(1, 8, people))
    ids[:14] = np.repeat([0, 1], 7)
    table = pd.DataFrame({"nhs_no": 4_000_000 + 7 * ids, "ward": rng.choice(["north", "south"], len(ids))})
    table["age"] = rng.integers(18, 90, len(ids))
    return table.assign(nhs_no=4_000_000 + 7 * np.arange(len(ids))) if once else table


def flat(text: str) -> str:
    return " ".join(text.split())


def test_from_init_to_the_page_one_row_is_never_the_last_word(call: Fedsyn, tmp_path: Path) -> None:
    table = visits()
    table.to_csv("visits.csv", index=False)
    values, rows = table["nhs_no"].nunique(), len(table)
    counts = f"{values} different values in {rows:,} rows, up to {table['nhs_no'].value_counts().max()} each"
    asked = (
        f"{counts}; if they are persons, epsilon is for one row, {NOT_ONE}; to protect persons, make one row of each"
    )
    assert f"nhs_no: {asked}." in flat(call("init", "visits.csv").out)
    reviewed = call("schema", "review", "schema.yaml", "--all", "--data", "visits.csv")
    assert f"'nhs_no': {asked}." in flat(reviewed.out)
    assert f"'nhs_no': {asked}" in flat(call("schema", "check", "schema.yaml", "--data", "visits.csv").out)
    result = call("run", "run.yaml", "--out", "out")
    assert result.code == 0 and f"'nhs_no': {asked}" in flat(result.err), result
    out = flat(result.out)
    assert f"may be released: epsilon 1 at delta 1e-06, for one row, {NOT_ONE}" in out
    assert "persons: 'nhs_no' says which person a row is of; to protect persons, make one row of each" in out
    assert out.count("for one row") == out.count(NOT_ONE) == 1
    assert call("report", "out", "--no-real").code == 0
    for name in ("README.md", "report_public.html"):
        public = Path("out", name).read_text(encoding="utf-8")
        assert f", {NOT_ONE}." in public, name
    for file in Path("out").iterdir():  # counts of people are the holder's alone
        if file.suffix in (".md", ".html", ".json", ".jsonl", ".yaml"):
            assert f"{values} different" not in file.read_text(encoding="utf-8"), file
    assert f"unit: one row, added or removed, at one client; {NOT_ONE}" in repr(fedsyn.load("out").ledger)


@pytest.mark.parametrize("once", [False, True])
def test_what_is_public_rests_on_the_schema_and_on_no_row(call: Fedsyn, once: bool) -> None:
    """Whether any identifier repeats changes nothing but the terminal of the person who has the file."""
    visits(once=once).to_csv("visits.csv", index=False)
    columns = """
columns:
  nhs_no: {kind: identifier, person: true}
  ward: {kind: categorical, categories: [north, south]}
  age: {kind: integer, lower: 0, upper: 99, bins: 10}
"""
    for person, said in (("person: true", True), ("person: false", False)):
        Path("schema.yaml").write_text(columns.replace("person: true", person), encoding="utf-8")
        document = (
            "data: {source: visits.csv, schema: schema.yaml}\nepsilon: 1\ndelta: 1.0e-6\nfederation: {clients: 1}\n"
        )
        Path("run.yaml").write_text(document, encoding="utf-8")
        result = call("run", "run.yaml", "--out", "out", "--force")
        assert result.code == 0, result
        readme = Path("out", "README.md").read_text(encoding="utf-8")
        assert (NOT_ONE in readme) == said and (NOT_ONE in flat(result.out)) == said
        assert ("up to 7 rows each" in flat(result.err)) == (said and not once)


def test_a_review_asks_and_no_is_an_answer(
    call: Fedsyn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = visits()
    table.to_csv("visits.csv", index=False)
    assert call("init", "visits.csv").code == 0
    answers, asked = iter(["y", "y", "l"]), list[str]()
    monkeypatch.setattr(reviewing.typer, "prompt", lambda text, **_: asked.append(text) or next(answers))
    reviewing.review_in_terminal(Path("schema.yaml"), None, 10, table)
    assert "[y]es, it says which person a row is of" in asked[-1]
    assert f"{table['nhs_no'].nunique()} different values in" in flat(capsys.readouterr().out)
    assert Schema.load("schema.yaml").aside["nhs_no"].drafted == ("kind", "person")
    for answer in ("n", "y"):
        text = Path("schema.yaml").read_text(encoding="utf-8")
        monkeypatch.setattr(reviewing.typer, "prompt", lambda *_, answer=answer, **__: answer)
        reviewing.review_in_terminal(Path("schema.yaml"), None, 10, table)
        column = Schema.load("schema.yaml").aside["nhs_no"]
        assert column.drafted == ("kind",) and column.person is (answer == "y")  # type: ignore[attr-defined]
        shown = call("schema", "check", "schema.yaml", "--data", "visits.csv")
        said = f"'nhs_no': {table['nhs_no'].nunique()} people, up to 7 rows each: epsilon is for one row, {NOT_ONE}"
        assert shown.code == 0 and (said in flat(shown.out)) == (answer == "y"), shown
        Path("schema.yaml").write_text(text, encoding="utf-8")


def test_fit_says_it_in_python(caplog: pytest.LogCaptureFixture) -> None:
    """Of one table and of several holders', whose names stand before what is said of theirs."""
    table = visits()
    schema = Schema.draft(table).approve("ward", "age", frame=table)
    with caplog.at_level(logging.WARNING, logger="fedsyn"):
        model = fedsyn.Synthesizer(schema=schema).fit(table)
        fedsyn.Synthesizer(schema=schema).fit([table.iloc[:500], table.iloc[500:]])
    told = [record.getMessage() for record in caplog.records if "nhs_no" in record.getMessage()]
    assert len(told) == 3 and told[0].startswith(f"'nhs_no': {table['nhs_no'].nunique()} different values in")
    assert told[1].startswith("table 1: 'nhs_no': ") and told[2].startswith("table 2: 'nhs_no': ")
    assert NOT_ONE in repr(model.ledger_) and NOT_ONE in model.report()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_holder_hears_it_before_its_node_is_online(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"rows{suffix}"
    visits().to_csv(path, index=False) if suffix == ".csv" else visits().to_parquet(path)
    schema = Schema.draft(visits()).approve("ward", "age", frame=visits())
    schema.save(tmp_path / "schema.yaml")
    with caplog.at_level(logging.WARNING, logger="fedsyn"):
        load_rows(str(path), str(tmp_path / "schema.yaml"), None, None)
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.match(r"'nhs_no': [\d,]+ different values in [\d,]+ rows, up to 7 each; if they are persons, ", line)


def test_explain_says_it_before_anybody_joins() -> None:
    schema = Schema.from_dict(
        {
            "columns": {
                "pid": {"kind": "identifier", "person": True},
                "x": {"kind": "categorical", "categories": ["a", "b"]},
            }
        }
    )
    config = run_of()
    text = explain(config, schema.domain, client_class(config.mechanism.name), schema).render(10_000)
    assert f"Unit: one row, added or removed, at one client; {NOT_ONE} (pid)" in text
