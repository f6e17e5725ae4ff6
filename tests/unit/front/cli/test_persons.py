"""Persons with several rows: asked about from `init` to the page, with counts for the person who has the file alone."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import fedsyn
from fedsyn.errors import InputError
from fedsyn.front.cli import reviewing
from fedsyn.protocol.explain import explain
from fedsyn.registry import client_class
from fedsyn.runs.holders import load_rows
from fedsyn.table.schema import Schema
from support.node_folders import run_of
from support.typed_commands import Fedsyn, entry_point

NOT_ONE = "not for one person, who may have several"
EITHER = (
    "privacy.unit: person protects each of them with all rows; with privacy.unit: row epsilon is for one row, "
    + NOT_ONE
)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fedsyn:
    monkeypatch.chdir(tmp_path)
    return entry_point(capsys, monkeypatch)


def visits(people: int = 300, *, once: bool = False) -> pd.DataFrame:
    """Visits of people who have 1 to 7 each, or all rows of different people."""
    rng = np.random.default_rng(5)
    ids = np.repeat(np.arange(people), rng.integers(1, 8, people))
    ids[:14] = np.repeat([0, 1], 7)
    ages = rng.integers(18, 90, people)
    table = pd.DataFrame({"nhs_no": 4_000_000 + 7 * ids, "ward": rng.choice(["north", "south"], len(ids))})
    table["age"] = ages[ids]
    return table.assign(nhs_no=4_000_000 + 7 * np.arange(len(ids))) if once else table


def flat(text: str) -> str:
    return " ".join(text.split())


def test_from_init_to_the_page_a_person_is_the_unit(call: Fedsyn, tmp_path: Path) -> None:
    table = visits()
    table.to_csv("visits.csv", index=False)
    people, most = table["nhs_no"].nunique(), table["nhs_no"].value_counts().max()
    counts = f"{people} different values in {len(table):,} rows, up to {most} each"
    known = "'nhs_no' says whose a row is; a person has 1 to 10 rows, in no order; 'age' is the same in all of them"
    assert f"nhs_no: {counts}. {known}. " in flat(call("init", "visits.csv").out)
    assert "privacy: {unit: person}" in Path("run.yaml").read_text(encoding="utf-8")
    schema = Schema.load("schema.yaml")
    assert schema.persons is not None and schema.unapproved["nhs_no"] == ("persons",)
    shown = call("schema", "check", "schema.yaml", "--data", "visits.csv")
    assert shown.code == 1 and "nhs_no: read from the data: what persons: says of it" in flat(shown.out)
    assert "3 of 3 columns need approval" in flat(shown.out)
    refused = call("run", "run.yaml", "--out", "out")
    assert refused.code == 2 and "nhs_no: persons" in refused.err
    assert call("schema", "review", "schema.yaml", "--all", "--data", "visits.csv").code == 0
    shown = call("schema", "check", "schema.yaml", "--data", "visits.csv")
    assert (
        shown.code == 0
        and f"persons: {known}" in flat(shown.out)
        and f"'nhs_no': {counts}; {EITHER}" in flat(shown.out)
    )
    result = call("run", "run.yaml", "--out", "out")
    assert result.code == 0 and not result.err, result
    out = flat(result.out)
    assert "may be released: epsilon 1 at delta 1e-06, for one person" in out and f"persons: {known}" in out
    assert "more people: fedsyn sample" in out and "for one row" not in out
    assert call("report", "out", "--no-real").code == 0
    written = pd.read_csv("out/synthetic.csv")
    assert (written.groupby("nhs_no")["age"].nunique() == 1).all() and written["nhs_no"].value_counts().max() <= 10
    whole = f"{written['nhs_no'].nunique():,} people, up to 10 rows each, and 3 columns"
    for name in ("README.md", "report_public.html"):
        public = Path("out", name).read_text(encoding="utf-8")
        assert whole in public and "one row" not in public, name
    for file in Path("out").iterdir():  # counts of people are the holder's alone
        if file.suffix in (".md", ".html", ".json", ".jsonl", ".yaml"):
            assert f"{people} different" not in file.read_text(encoding="utf-8"), file
    assert "unit: one person with all rows at one client, added or removed" in repr(fedsyn.load("out").ledger)
    assert call("sample", "out", "--rows", "7", "--out", "more.csv").err.startswith("7 people in more.csv")
    assert pd.read_csv("more.csv")["nhs_no"].nunique() == 7
    meaning = flat(call("explain", "run.yaml").out)
    assert f"added or removed; {known}" in meaning and "what it costs one person" in meaning


def of_gaussian(mu: float, epsilon: float) -> float:
    """Delta of a Gaussian mechanism (Balle & Wang 2018, theorem 8)."""
    first, second = norm.cdf(mu / 2 - epsilon / mu), norm.cdf(-mu / 2 - epsilon / mu)
    return float(first - np.exp(epsilon) * second)


def test_a_unit_of_rows_has_to_be_said_aloud(call: Fedsyn, tmp_path: Path) -> None:
    """Its epsilon is that of one Gaussian mechanism whose answer a person moves ten times as far as a row."""
    visits().to_csv("visits.csv", index=False)
    assert call("init", "visits.csv").code == 0
    assert call("schema", "review", "schema.yaml", "--all", "--data", "visits.csv").code == 0
    text = Path("run.yaml").read_text(encoding="utf-8")
    Path("run.yaml").write_text(text.replace("privacy: {unit: person}\n", ""), encoding="utf-8")
    mu = brentq(lambda mu: of_gaussian(mu, 1.0) - 1e-6, 0.01, 1.0)
    epsilon = brentq(lambda epsilon: of_gaussian(10 * mu, epsilon) - 1e-6, 1.0, 100.0, xtol=1e-9)
    for command in (
        ("run", "run.yaml", "--out", "out"),
        ("explain", "run.yaml"),
        ("plan", "run.yaml", "--rows", "300"),
    ):
        refused = call(*command)
        said = f"for somebody with 10 rows, as many as the schema allows, it is {epsilon:.4g} at delta 1e-06"
        assert refused.code == 2 and said in flat(refused.err), refused
        assert "10 rows cost 10^2 times the rho of one" in refused.err and "different values" not in refused.err
    assert not Path("out", "ledger.json").exists()
    result = call("run", "run.yaml", "--out", "out", "--set", "privacy.unit=row")
    assert result.code == 0 and f"with privacy.unit: row epsilon is for one row, {NOT_ONE}" in flat(result.err), result
    out = flat(result.out)
    assert f"may be released: epsilon 1 at delta 1e-06, for one row, {NOT_ONE}" in out
    assert "persons: 'nhs_no' says which person a row is of; to protect persons, set privacy.unit: person" in out
    assert f", {NOT_ONE}." in Path("out", "README.md").read_text(encoding="utf-8")
    Path("schema.yaml").write_text(  # one row each, by the schema: nobody has more
        Path("schema.yaml").read_text(encoding="utf-8").replace("most_rows: 10", "most_rows: 1"), encoding="utf-8"
    )
    assert call("explain", "run.yaml").code == 0


@pytest.mark.slow
def test_a_plan_counts_people(call: Fedsyn) -> None:
    """A public table of 300 people with 1,200 rows or so stands in for as many people."""
    table = visits()
    table.to_csv("visits.csv", index=False)
    assert call("init", "visits.csv").code == 0
    assert call("schema", "review", "schema.yaml", "--all", "--data", "visits.csv").code == 0
    result = call("plan", "run.yaml", "--public", "visits.csv", "--epsilon", "1")
    assert result.code == 0 and f"people: {table['nhs_no'].nunique():,}, holders: 1" in result.out, result
    assert "a tenth of the people of" in flat(result.out) or "moves more than a tenth of the people" in flat(result.out)


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
        if said:  # also where nobody repeats: the schema says that somebody may
            refused = call("run", "run.yaml", "--out", "out", "--force")
            assert refused.code == 2 and "for somebody with 10 rows, say, it is " in flat(refused.err), refused
        result = call("run", "run.yaml", "--out", "out", "--force", "--set", "privacy.unit=row")
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
    assert "[y]es, it says which person a row is of" in asked[-1] and asked[-1].strip().endswith("such as: 10")
    assert f"{table['nhs_no'].nunique()} different values in" in flat(capsys.readouterr().out)
    assert Schema.load("schema.yaml").aside["nhs_no"].drafted == ("kind", "person", "persons")
    assert [*Schema.load("schema.yaml").unapproved] == ["nhs_no"]
    for answer, most in (("n", None), ("y", 10), ("25", 25)):
        text = Path("schema.yaml").read_text(encoding="utf-8")
        monkeypatch.setattr(reviewing.typer, "prompt", lambda *_, answer=answer, **__: answer)
        reviewing.review_in_terminal(Path("schema.yaml"), None, 10, table)
        schema = Schema.load("schema.yaml")
        column = schema.aside["nhs_no"]
        assert column.drafted == ("kind",) and column.person is (answer != "n")  # type: ignore[attr-defined]
        assert (None if schema.persons is None else schema.persons.most_rows) == most and not schema.unapproved
        shown = call("schema", "check", "schema.yaml", "--data", "visits.csv")
        said = f"'nhs_no': {table['nhs_no'].nunique()} people, up to 7 rows each; {EITHER}"
        assert shown.code == 0 and (said in flat(shown.out)) == (answer != "n"), shown
        Path("schema.yaml").write_text(text, encoding="utf-8")
    replies = iter(["0", "l"])  # a person has a row
    monkeypatch.setattr(reviewing.typer, "prompt", lambda *_, **__: next(replies))
    reviewing.review_in_terminal(Path("schema.yaml"), None, 10, table)
    assert "error: " in capsys.readouterr().out and not [*replies]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_init_asks_in_a_terminal(call: Fedsyn, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    visits().to_csv("visits.csv", index=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(reviewing.typer, "prompt", lambda *_, **__: answer)
    assert call("init", "visits.csv").code == 0
    schema = Schema.load("schema.yaml")
    assert (schema.persons is not None) == (answer == "y") and "nhs_no" not in schema.unapproved
    assert ("unit: person" in Path("run.yaml").read_text(encoding="utf-8")) == (answer == "y")


def test_a_check_says_what_the_rows_have_against_it(call: Fedsyn) -> None:
    """Columns that differ, and persons with more rows than the schema allows."""
    table = visits()
    table.loc[table.index[:2], "age"] = [20, 21]  # both of the first person
    table.to_csv("visits.csv", index=False)
    Path("schema.yaml").write_text(
        """
columns:
  nhs_no: {kind: identifier}
  ward: {kind: categorical, categories: [north, south]}
  age: {kind: integer, lower: 0, upper: 99}
persons: {id: nhs_no, constant: [age], most_rows: 5, least_rows: 2}
""",
        encoding="utf-8",
    )
    out = flat(call("schema", "check", "schema.yaml", "--data", "visits.csv").out)
    assert "'nhs_no': somebody has 7 rows, and persons.most_rows in the schema is 5" in out
    assert (
        "'nhs_no': somebody has 1 row, and persons.least_rows in the schema is 2: who has fewer counts nowhere" in out
    )
    assert "column 'age' differs between the rows of 1 person, and the schema says" in out


def test_a_person_without_a_row_is_no_row_that_could_break_a_constraint(
    call: Fedsyn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"p": ["a", "b", "b", "c"], "low": [None, 1, 2, 9], "high": [None, 2, 3, 1]}).to_csv(
        "rows.csv", index=False
    )
    column = {"kind": "numeric", "lower": 0, "upper": 10, "bins": 5}
    persons = {"id": "p", "order": True, "most_rows": 2, "least_rows": 0}
    columns = {"p": {"kind": "identifier"}, "low": column, "high": column}
    document = {"columns": columns, "constraints": ["low <= high"], "persons": persons}
    Schema.from_dict(document).save(tmp_path / "s.yaml")
    assert "1 of 3 rows break it" in flat(call("schema", "check", "s.yaml", "--data", "rows.csv").out)


def test_what_a_draft_says_of_persons(tmp_path: Path) -> None:
    """Order is the date that is never later than another; a column that differs in one person is not constant."""
    table = visits()
    came = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(len(table)) * 7 % 300, unit="D")
    table["came"], table["left"] = came, came + pd.to_timedelta(1 + np.arange(len(table)) % 9, unit="D")
    persons = Schema.draft(table).persons
    assert persons is not None and (persons.id, persons.order) == ("nhs_no", "came")
    assert persons.constant == ("age",) and persons.most_rows == 10
    nights = (table["left"] - table["came"]).dt.days  # left = came + nights: a rule that says more than came <= left
    persons = Schema.draft(table.assign(nights=nights)).persons
    assert persons is not None and persons.order == "came"
    early = table.assign(left=table["left"].where(table.index > 0, pd.Timestamp("2023-12-31")))
    assert Schema.draft(early).persons.order is False  # type: ignore[union-attr]
    table.loc[table.index[0], "age"] += 1
    persons = Schema.draft(table.drop(columns="left")).persons
    assert persons is not None and persons.constant == () and persons.order == "came"
    assert Schema.draft(visits(once=True)).persons is None
    assert Schema.draft(visits().rename(columns={"ward": "next age"})).persons is None  # a record has such a column
    assert Schema.draft(visits()).edited(nhs_no={"person": False}).persons is None


def test_the_rows_of_a_panel_stand_in_the_order_of_a_column_that_counts_on() -> None:
    """In whatever order its rows come; a product's number in a basket does not repeat, and is no order."""
    rng = np.random.default_rng(0)
    whose = np.repeat(np.arange(200), 5)
    year = 2015 + np.tile(np.arange(5), 200) + (whose % 3)
    born = rng.integers(1950, 1990, 200)[whose]
    panel = pd.DataFrame(
        {"person_id": whose + 1000, "year": year, "age": year - born, "income": rng.normal(3, 1, 1000)}
    )
    panel = panel.sample(frac=1.0, random_state=1)

    def order(table: pd.DataFrame) -> bool | str:
        persons = Schema.draft(table).persons
        assert persons is not None
        return persons.order

    assert order(panel) == "year" and order(panel.drop(columns="year")) == "age"
    assert order(pd.concat([panel, panel.iloc[:3]])) == "year"  # three rows stand twice
    assert order(panel.assign(year=panel["year"] // 2).drop(columns="age")) is False
    back = panel.assign(turn=10 - panel["year"] + 2015)  # counts on the other way: nobody knows which
    assert order(back) is False
    goods = np.concatenate([rng.choice(np.arange(40) ** 2, 5, replace=False) for _ in range(200)])
    assert order(panel.drop(columns=["year", "age"]).assign(good=goods)) is False
    came = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, 1000), unit="D")
    assert order(panel.assign(came=came)) == "came"


def test_fit_says_it_in_python(caplog: pytest.LogCaptureFixture) -> None:
    """Of one table and of several holders', whose names stand before what is said of theirs."""
    table = visits()
    schema = Schema.draft(table).approve(frame=table)
    with pytest.raises(InputError, match="epsilon 1 is for one row"):
        fedsyn.Synthesizer(schema=schema).fit(table)
    by_rows = {"privacy": {"unit": "row"}}
    with caplog.at_level(logging.WARNING, logger="fedsyn"):
        model = fedsyn.Synthesizer(schema=schema, **by_rows).fit(table)
        fedsyn.Synthesizer(schema=schema, **by_rows).fit([table.iloc[:500], table.iloc[500:]])
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
    schema = Schema.draft(visits()).approve(frame=visits())
    schema.save(tmp_path / "schema.yaml")
    with caplog.at_level(logging.WARNING, logger="fedsyn"):
        load_rows(str(path), str(tmp_path / "schema.yaml"), None, None)
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.match(r"'nhs_no': [\d,]+ different values in [\d,]+ rows, up to 7 each; privacy.unit: person ", line)


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


def test_a_review_sells_nothing_that_a_run_for_persons_refuses(call: Fedsyn, monkeypatch: pytest.MonkeyPatch) -> None:
    visits().to_csv("visits.csv", index=False)
    assert call("schema", "draft", "visits.csv", "--out", "s.yaml").code == 0
    asked, answers = list[str](), iter(["b", "b", "n"] + ["n"] * 9)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(reviewing.typer, "prompt", lambda text, **_: asked.append(text) or next(answers))
    shown = call("schema", "review", "s.yaml", "--data", "visits.csv")
    assert shown.code == 0 and not any("[b]uy" in text for text in asked), shown
    assert flat(shown.out).count("error: a run for persons does not find bounds or categories") == 2
    assert not Schema.load("s.yaml").open
    Path("t.yaml").write_text(Path("s.yaml").read_text(encoding="utf-8").split("persons:\n")[0], encoding="utf-8")
    answers = iter(["b"] + ["n"] * 9)
    assert Schema.load("t.yaml").persons is None and call("schema", "review", "t.yaml").code == 0
    assert "[b]uy" in asked[-2] and Schema.load("t.yaml").open


def test_who_alone_sets_the_bound_of_rows_is_said(call: Fedsyn, monkeypatch: pytest.MonkeyPatch) -> None:
    table = visits()
    long = pd.concat([table, table.iloc[[-1] * 900]])
    long.to_csv("visits.csv", index=False)
    said = (
        "1 person alone has more than 10 rows: for all others most_rows: 10 is enough, and who has more counts as one"
    )
    answers = iter(["l", *"nnn", "l"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(reviewing.typer, "prompt", lambda *_, **__: next(answers))
    shown = flat(call("init", "visits.csv").out)
    assert "a person has 1 to 1,000 rows" in shown and shown.count(said) == 2  # of the draft, and where it is asked
    assert said in flat(call("schema", "review", "schema.yaml", "--data", "visits.csv").out)
    table.to_csv("few.csv", index=False)
    assert "alone ha" not in flat(call("schema", "draft", "few.csv").err)
