"""`fedsyn init` and `fedsyn schema draft | check | review`, as they are typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from fedsyn import yamlio
from fedsyn.front.cli import reviewing
from fedsyn.front.cli.drafts import carried
from fedsyn.front.cli.init import config_text
from fedsyn.loading import load_config, parse_config
from fedsyn.table.schema import Schema
from fedsyn.table.schema.drafted_bins import FINEST
from fedsyn.table.schema.drafting import drafted as draft_of
from support.exports import PERSONAL, hospital, write_hospital
from support.newcomers import patients
from support.typed_commands import Fedsyn, Result, entry_point


@pytest.fixture
def fedsyn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedsyn:
    """The command's own entry point, in this process."""
    return entry_point(capsys, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_hospital(tmp_path / "patients.csv", rows=400)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_one_message(result: Result, *parts: str) -> None:
    assert result.code == 2 and result.out == "", result
    assert len(result.err.strip().splitlines()) == 1 and result.err.startswith("error: "), result.err
    for part in parts:
        assert part in result.err


def assert_no_cell_of_a_person(text: str) -> None:
    rows = hospital(400)
    for name in PERSONAL:
        assert not [cell for cell in rows[name] if str(cell) in text], name


# Draft ----------------------------------------------------------------------------------------------------------------


def test_a_draft_is_one_screen_of_80_columns(fedsyn: Fedsyn, folder: Path) -> None:
    result = fedsyn("schema", "draft", "patients.csv", "--out", "schema.yaml")
    assert result.code == 0 and result.err == ""
    table, _, _ = result.out.partition("schema.yaml: a draft")
    assert all(len(line.rstrip()) <= 80 for line in table.splitlines())
    for name in hospital(1):
        assert name in table
    assert "';' between the cells" in table and "Windows-1252" in table and "400 rows were read" in table
    assert re.search(r"Uhrzeit OP +time .* \d\d\.\d%", table)
    assert "fedsyn schema review schema.yaml --data patients.csv" in result.out
    assert_no_cell_of_a_person(result.out + (folder / "schema.yaml").read_text(encoding="utf-8"))


def test_a_command_that_is_printed_can_be_pasted(fedsyn: Fedsyn, folder: Path) -> None:
    (folder / "patients.csv").rename(folder / "all patients.csv")
    result = fedsyn("init", "all patients.csv")
    assert result.code == 0 and "schema.yaml --data 'all patients.csv'" in result.out
    result = fedsyn("schema", "draft", "all patients.csv", "--out", "my schema.yaml")
    assert "fedsyn schema review 'my schema.yaml' --data 'all patients.csv'" in result.out
    assert "fedsyn schema review 'my schema.yaml' --data FILE" in fedsyn("schema", "check", "my schema.yaml").out


def test_a_draft_to_standard_output_is_yaml_alone(fedsyn: Fedsyn, folder: Path) -> None:
    result = fedsyn("schema", "draft", "patients.csv")
    assert Schema.loads(result.out).unapproved and "Fallnummer" in result.err


def test_a_schema_that_is_there_is_never_written_over(fedsyn: Fedsyn, folder: Path) -> None:
    (folder / "schema.yaml").write_text("edited", encoding="utf-8")
    result = fedsyn("schema", "draft", "patients.csv", "--out", "schema.yaml")
    assert_one_message(result, "schema.yaml exists", "--force")
    assert (folder / "schema.yaml").read_text(encoding="utf-8") == "edited"
    assert fedsyn("schema", "draft", "patients.csv", "--out", "schema.yaml", "--force").code == 0
    assert Schema.load(folder / "schema.yaml").columns


def test_a_personal_column_is_kept_by_name(fedsyn: Fedsyn, folder: Path) -> None:
    result = fedsyn("schema", "draft", "patients.csv", "--keep", "Vorname")
    assert "Vorname" in Schema.loads(result.out).columns
    assert_one_message(fedsyn("schema", "draft", "patients.csv", "--keep", "Vornam"), "did you mean 'Vorname'")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--separator", ""], ["a separator is one character"]),
        (["--separator", ";;"], ["a separator is one character"]),
        (["--separator", ","], ["say --separator ';'"]),
        (["--encoding", "utf-9"], ["an encoding is a name"]),
        (["--encoding", "utf-8"], ["is not text in utf-8"]),
        (["--decimal", "x"], ["a decimal mark is"]),
        (["--sheet", "1"], ["means nothing for patients.csv"]),
        (["--bins", "99999999"], ["bins must lie between 1 and 65535"]),
        (["--bins", "0"], ["bins must lie between 1 and 65535"]),
        (["--label", "Stazion"], ["did you mean 'Station'"]),
    ],
)
def test_options_that_cannot_be_used(fedsyn: Fedsyn, folder: Path, arguments: list[str], parts: list[str]) -> None:
    assert_one_message(fedsyn("schema", "draft", "patients.csv", *arguments), *parts)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["is empty"]),
        (b"a,b\n", ["has no rows"]),
        (b"a,a\n1,2\n", ["more than one column named 'a'"]),
        (b"a,b\n1,\0\n", ["NUL bytes"]),
        (b"a,b\n1,2,3\n", ["line 1 of bad.csv names 2 columns, and most lines below have more cells"]),
        (b"a,b\n,\n,NA\n", ["no column of bad.csv is left to synthesise"]),
        (b"a,b\n" + b"1,x\n" * 30, ["one value in every row"]),
        (b"1.5,2\n3,4.5\n", ["line 1 of bad.csv looks like values", "--no-header"]),
    ],
)
def test_files_that_cannot_be_drafted(fedsyn: Fedsyn, folder: Path, content: bytes, parts: list[str]) -> None:
    (folder / "bad.csv").write_bytes(content)
    assert_one_message(fedsyn("schema", "draft", "bad.csv"), *parts)


# Check and review -----------------------------------------------------------------------------------------------------


def drafted(fedsyn: Fedsyn) -> None:
    assert fedsyn("schema", "draft", "patients.csv", "--out", "schema.yaml").code == 0


def test_check_says_what_needs_approval(fedsyn: Fedsyn, folder: Path) -> None:
    drafted(fedsyn)
    result = fedsyn("schema", "check", "schema.yaml", "--data", "patients.csv")
    assert result.code == 1 and "15 of 15 columns need approval" in result.out
    assert "Temperatur: read from the data: its kind; its bounds and bins; whether values are missing" in result.out
    assert_no_cell_of_a_person(result.out)
    assert fedsyn("schema", "review", "schema.yaml", "--all", "--data", "patients.csv").code == 0
    result = fedsyn("schema", "check", "schema.yaml")
    assert result.code == 0 and "nothing needs approval; left out: Fallnummer" in result.out
    text = (folder / "schema.yaml").read_text(encoding="utf-8")
    made = text.replace(
        "    kind: identifier\n", "    kind: identifier\n    make: sequence\n", 1
    )  # made afresh, so not left out
    (folder / "schema.yaml").write_text(made, encoding="utf-8")
    assert "left out: Patienten-ID" in fedsyn("schema", "check", "schema.yaml").out


def test_check_counts_what_does_not_fit(fedsyn: Fedsyn, folder: Path) -> None:
    """And exits with 1 where a value has no place, also once everything is approved."""
    drafted(fedsyn)
    assert fedsyn("schema", "review", "schema.yaml", "--all", "--data", "patients.csv").code == 0
    rows = hospital(400)
    rows.loc[:4, "Temperatur"], rows.loc[:2, "Station"] = "hot", "Keller"
    rows.to_csv(folder / "other.csv", index=False)
    result = fedsyn("schema", "check", "schema.yaml", "--data", "other.csv")
    assert "Temperatur: in 5 of 400 rows (1.25%) there is something other than a number like" in result.out
    assert "Station: in 3 of 400 rows (0.75%) the schema does not list the value: counted as not listed" in result.out
    assert "Keller" not in result.out and "it does not fit: the rows have values that it cannot place" in result.out
    assert result.code == 1 and "need approval" not in result.out
    fits = fedsyn("schema", "check", "schema.yaml", "--data", "patients.csv")
    assert fits.code == 0 and "nothing needs approval" in fits.out


def test_check_counts_what_a_sentinel_leaves_behind(fedsyn: Fedsyn, folder: Path) -> None:
    """Rows that become missing need a place, and bounds that reach none of them."""
    ages = ["999"] * 30 + ["40", "75"] * 100
    (folder / "ages.csv").write_text("age,land\n" + "".join(f"{age},NA\n{age},GB\n" for age in ages), encoding="utf-8")
    result = fedsyn("schema", "draft", "ages.csv", "--out", "schema.yaml")
    hint = "Then missing_codes: [999], and bounds without it."
    assert hint in " ".join(result.out.split())
    text = """columns:
  age:
    kind: integer
    lower: 0
    upper: 60
  land: {kind: categorical, categories: [GB, NA]}
"""
    (folder / "schema.yaml").write_text(text + "missing_values: ['999']\n", encoding="utf-8")
    said = fedsyn("schema", "check", "schema.yaml", "--data", "ages.csv").out
    assert "age: in 60 of 460 rows (13%) there is no value: left out; missing: true keeps them missing\n" in said
    beyond = "in 200 of 460 rows (43.5%) the value lies beyond the bounds: counted in the first or last bin"
    assert f"age: {beyond}\n" in said
    assert "left out: 60 of 460 rows (13%), which count nowhere; unlisted: true in a column gives its values a" in said
    assert "land: " not in said.replace("land: read", "")  # NA is one of its categories
    text = re.sub("upper: 60", "upper: 110\n    missing: true", text)
    (folder / "schema.yaml").write_text(text + "missing_values: ['999']\n", encoding="utf-8")
    assert "there is no value" not in fedsyn("schema", "check", "schema.yaml", "--data", "ages.csv").out


def test_review_approves_named_columns(fedsyn: Fedsyn, folder: Path) -> None:
    drafted(fedsyn)
    result = fedsyn("schema", "review", "schema.yaml", "--approve", "PLZ", "--approve", "Station")
    assert result.code == 0 and "approved 2 columns; still to approve: Geburtsdatum" in result.out
    schema = Schema.load(folder / "schema.yaml")
    assert schema.columns["PLZ"].approved and not schema.columns["Privat"].approved
    assert_one_message(fedsyn("schema", "review", "schema.yaml", "--approve", "PZL"), "did you mean 'PLZ'")


def test_review_refuses_what_few_rows_hold(fedsyn: Fedsyn, folder: Path) -> None:
    drafted(fedsyn)
    rows = ["schema", "review", "schema.yaml", "--approve", "Geschlecht", "--data", "patients.csv", "--few", "50"]
    before = (folder / "schema.yaml").read_text(encoding="utf-8")
    assert_one_message(fedsyn(*rows), "categories of 'Geschlecht'", "fewer than 50 rows", "--public WHY")
    assert (folder / "schema.yaml").read_text(encoding="utf-8") == before
    assert fedsyn(*rows, "--public", "there are three").code == 0
    assert Schema.load(folder / "schema.yaml").columns["Geschlecht"].public == "there are three"
    assert fedsyn(*rows, "--fold").code == 0
    assert Schema.load(folder / "schema.yaml").columns["Geschlecht"].categories == ("m", "w")


def test_review_without_a_terminal_says_what_to_type(fedsyn: Fedsyn, folder: Path) -> None:
    drafted(fedsyn)
    assert_one_message(fedsyn("schema", "review", "schema.yaml"), "--approve COLUMN, or --all")
    assert_one_message(fedsyn("schema", "review", "schema.yaml", "--all", "--fold"), "--data FILE")


def test_review_in_a_terminal_goes_column_by_column(
    fedsyn: Fedsyn, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers as they are typed: yes, a reason, an edited column, no, quit."""
    drafted(fedsyn)
    answers = iter(["y", "p", "three are known", "e", "y", "n", "q"])
    monkeypatch.setattr(reviewing.typer, "prompt", lambda *_, **__: next(answers))

    def edited(text: str, **_: object) -> str:
        return text.replace("'80331'", "'80333'")

    monkeypatch.setattr("click.edit", edited)
    reviewing.review_in_terminal(folder / "schema.yaml", None, 10)
    schema = Schema.load(folder / "schema.yaml")
    approved = [name for name, column in schema.columns.items() if column.approved]
    assert approved == ["Geburtsdatum", "Geschlecht", "PLZ"] and not list(answers)
    assert schema.columns["Geschlecht"].public == "three are known" and "80333" in schema.columns["PLZ"].categories
    assert "1 of 15: Geburtsdatum" in capsys.readouterr().out


VISITS = "subject;ward;side;came;left;q1\n" + "".join(
    f"s{k % 40};{'ABC'[k % 3]};{'NSS'[k % 3]};2024-01-{1 + k % 20:02d};2024-01-{1 + k % 20 + k % 9:02d};"
    f"{('agree', 'disagree', 'keine Angabe')[k % 7 % 3]}\n"
    for k in range(240)
)


def test_a_review_shows_the_rows_takes_what_is_typed_and_asks_about_constraints(
    fedsyn: Fedsyn, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No editor is needed, and what the rows show is on the screen alone."""
    (folder / "visits.csv").write_text(VISITS, encoding="utf-8")
    result = fedsyn("init", "visits.csv")
    out = " ".join(result.out.split())
    said = "40 people, up to 6 rows each. 'subject' says whose a row is; a person has 6 rows, in the order of 'left'"
    assert f"subject: {said}; 'came' is the same in all of them." in out
    assert re.search(r"Holds in all 240 rows: came <= left\. .*% would break it if its columns were independent\.", out)
    # Of what was dropped nothing is asked.
    answers = iter(["A, B, C", "y", "2024-01-01, 2024-06-30", "0", "d", "y", "n", "y"])
    asked: list[str] = []
    monkeypatch.setattr(reviewing.typer, "prompt", lambda text, **_: asked.append(text) or next(answers))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    result = fedsyn("schema", "review", "schema.yaml", "--data", "visits.csv")
    assert result.code == 0 and not list(answers) and len(asked) == 8, result
    assert "'subject': 40 people, up to 6 rows each" in result.out
    assert "the rows: A 40, B 40, C 40 (people)" in result.out
    assert (
        "the rows: from 2024-01-01 to 2024-01-20" in result.out and "error: expected one of the letters" in result.out
    )
    text = (folder / "schema.yaml").read_text(encoding="utf-8")
    schema = Schema.loads(text)
    assert not schema.unapproved and "DRAFT" not in text and "people" not in text and "#?" not in text
    assert schema.columns["ward"].categories == ("A", "B", "C") and schema.columns["came"].upper == "2024-06-30"
    assert schema.columns["q1"].unordered == ("keine Angabe",) and schema.aside["left"].kind == "drop"
    assert schema.persons is not None and (schema.persons.order, schema.persons.constant) == (False, ("came",))
    result = fedsyn("schema", "check", "schema.yaml", "--data", "visits.csv")
    assert result.code == 0 and "'subject': 40 people" in result.out


def test_bounds_are_asked_for_and_typed_as_the_cells_are_written(
    fedsyn: Fedsyn, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in ISO 8601; an editor that is not there ends nothing."""
    rows = "".join(f"{1 + k % 28:02d}.0{1 + k % 9}.2024;{k % 90},5;{k % 3}\n" for k in range(200))
    (folder / "stays.csv").write_text("came;weight;n\n" + rows, encoding="utf-8")
    assert fedsyn("schema", "draft", "stays.csv", "--out", "schema.yaml").code == 0
    answers = iter(["e", "01.01.2024, 2024-12-31", "0,5; 120", "0, 9"])
    asked: list[str] = []
    monkeypatch.setattr(reviewing.typer, "prompt", lambda text, **_: asked.append(text) or next(answers))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setenv("EDITOR", "/no/such/editor")
    result = fedsyn("schema", "review", "schema.yaml")
    assert result.code == 0 and "error: /no/such/editor" in result.out and "set EDITOR" in result.out, result
    examples = [text.rstrip().rpartition("such as: ")[2] for text in asked[1:]]
    assert examples == ["01.01.2024, 30.09.2024", "0,0; 90,0", "0, 2"]
    bounds = [(column.lower, column.upper) for column in Schema.load(folder / "schema.yaml").columns.values()]
    assert bounds == [("2024-01-01", "2024-12-31"), (0.5, 120.0), (0, 9)]


ANSWERS = (("yes", ""), ("quit", ""), ("drop", ""), ("north, south", "error: "), ("0, 10", "error: "))


# Each answer once by default, with the rows and without them in turn; both ways in `make test-all`.
@pytest.mark.parametrize(
    ("answer", "said", "data"),
    [
        pytest.param(answer, said, data, marks=[] if at % 2 == place else pytest.mark.slow)
        for at, (answer, said) in enumerate(ANSWERS)
        for place, data in enumerate(([], ["--data", "visits.csv"]))
    ],
)
def test_a_word_is_its_key_and_categories_that_no_row_holds_are_refused(
    answer: str, said: str, data: list[str], fedsyn: Fedsyn, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "visits.csv").write_text(VISITS, encoding="utf-8")
    assert fedsyn("init", "visits.csv").code == 0
    answers = iter([answer, "Quit"])
    monkeypatch.setattr(reviewing.typer, "prompt", lambda *_, **__: next(answers))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    result = fedsyn("schema", "review", "schema.yaml", *data)
    assert result.code == 0 and ("error: " in result.out) == bool(said), result
    ward = Schema.load(folder / "schema.yaml").every_column["ward"].model_dump()
    assert ward["kind"] == "drop" if answer == "drop" else ward["categories"] == ("A", "B", "C")
    if said:
        assert "error: column 'ward' has none of these values: type a key, or categories that it holds" in result.out


def test_a_constraint_that_was_seen_is_stated_only_if_a_person_says_so(
    fedsyn: Fedsyn, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "visits.csv").write_text(VISITS, encoding="utf-8")
    result = fedsyn("init", "visits.csv")
    assert result.code == 0 and "240 rows were read. " in " ".join(result.out.split())
    drafted = Schema.load(folder / "schema.yaml").columns  # 240 rows carry fewer bins, but a constraint needs fine ones
    assert {drafted[name].bins for name in ("came", "left")} == {FINEST}
    result = fedsyn("schema", "review", "schema.yaml", "--all", "--data", "visits.csv")
    out = " ".join(result.out.split())
    assert "not stated, so it may fail in the synthetic table: came <= left (it holds in 240 rows; " in out
    assert "in every row, for example: fedsyn schema review schema.yaml --state '{determines: ward, " in out
    assert Schema.load(folder / "schema.yaml").constraints == ()
    before = (folder / "schema.yaml").read_text(encoding="utf-8")
    result = fedsyn("schema", "review", "schema.yaml", "--state", "came <= gone")
    assert result.code == 2 and "does not propose 'came <= gone'; it proposes " in result.err
    assert "'came <= left'" in result.err and "under `constraints:` in the file" in result.err
    assert fedsyn("schema", "review", "schema.yaml", "--state", '"came <= left"').code == 0  # any YAML of the rule
    assert [rule.text for rule in Schema.load(folder / "schema.yaml").constraints] == ["came <= left"]
    (folder / "schema.yaml").write_text(before, encoding="utf-8")
    result = fedsyn("schema", "review", "schema.yaml", "--state", "all")
    assert (
        result.code == 0
        and len(Schema.load(folder / "schema.yaml").constraints) == 2
        and "not stated" not in result.out
    )
    (folder / "schema.yaml").write_text(before, encoding="utf-8")
    answers = iter(["n", "y", "n"])
    monkeypatch.setattr(reviewing.typer, "prompt", lambda *_, **__: next(answers))
    reviewing.review_in_terminal(folder / "schema.yaml", None, 10)
    assert [rule.text for rule in Schema.load(folder / "schema.yaml").constraints] == ["came <= left"]
    assert "#?" not in (folder / "schema.yaml").read_text(encoding="utf-8")


# Init -----------------------------------------------------------------------------------------------------------------


def test_init_writes_two_files_that_are_ready_to_edit(fedsyn: Fedsyn, folder: Path) -> None:
    result = fedsyn("init", "patients.csv", "--label", "Station")
    assert result.code == 0 and "fedsyn run run.yaml" in result.out
    assert Schema.load(folder / "schema.yaml").label == "Station"
    config = load_config(folder / "run.yaml")
    assert config.data.options == {"separator": ";", "encoding": "cp1252"}
    assert config.data.schema_file == str(folder / "schema.yaml")
    assert (
        config.to_dict()
        == parse_config(
            {
                "data": {"source": "patients.csv", "schema": "schema.yaml", "options": config.data.options},
                "epsilon": 1,
                "delta": 1e-6,
                "federation": {"clients": 1},
            },
            folder=folder,
        ).to_dict()
    )
    assert_one_message(fedsyn("init", "patients.csv"), "run.yaml exists", "--force")


def test_a_table_in_one_file_has_one_holder_who_adds_the_noise() -> None:
    written = parse_config(yamlio.loads(config_text(["rows.csv"], {}), "run.yaml"))
    assert (written.federation.clients, written.privacy.epsilon, written.privacy.delta) == (1, 1.0, 1e-6)
    assert (written.aggregation.protocol, written.aggregation.noise) == ("plain", "local")
    typed = parse_config(yamlio.loads(config_text(["a.parquet", "b.parquet"], {}), "run.yaml"))
    assert (typed.federation.clients, typed.synthesis.format) == (2, "parquet")


def test_what_init_says_fits_80_columns_and_counts_one_of_each(fedsyn: Fedsyn, folder: Path) -> None:
    """Commands are not broken, which are to be pasted."""
    (folder / "one.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    result = fedsyn("init", "one.csv")
    lines = [line.rstrip() for line in result.out.splitlines() if not line.startswith("  fedsyn ")]
    assert result.code == 0 and max(map(len, lines)) <= 80
    out = " ".join(result.out.split())
    assert (
        "1 row was read. With 1 row and epsilon 1, noise hides every link between columns." in out
        and "whole numbers; 1 bin " in out
    )
    assert "1 column:" in repr(Schema.loads("columns: {a: {kind: boolean}}")) and "2 of 2 columns need" in (
        fedsyn("schema", "check", "schema.yaml").out
    )


def test_several_files_are_holders(fedsyn: Fedsyn, folder: Path) -> None:
    write_hospital(folder / "second.csv", rows=200, seed=1, encoding="utf-8")
    result = fedsyn("init", "patients.csv", "second.csv")
    assert result.code == 0 and "600 rows were read" in result.out
    assert "--data patients.csv --data second.csv" in result.out
    config = load_config(folder / "run.yaml")
    assert config.data.holders == (str(folder / "patients.csv"), str(folder / "second.csv"))
    assert (config.federation.clients, config.federation.partition.name) == (2, "native")
    (folder / "third.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    result = fedsyn("init", "patients.csv", "third.csv", "--force")
    assert_one_message(result, "third.csv lacks 'Fallnummer', 'Patienten-ID'", "has 'a', 'b', which others lack")


def test_a_table_of_scikit_learn_is_a_source_too(fedsyn: Fedsyn, folder: Path) -> None:
    pytest.importorskip("sklearn")
    assert fedsyn("init", "sklearn:iris").code == 0
    result = fedsyn("schema", "review", "schema.yaml", "--all", "--data", "sklearn:iris")
    assert result.code == 0 and "nothing is left to approve" in result.out


def test_what_init_says_comes_next_reads_the_same_sheet(fedsyn: Fedsyn, folder: Path) -> None:
    pytest.importorskip("openpyxl", reason="Excel files need openpyxl")
    rows = pd.DataFrame({"ward": ["a", "b"] * 30, "age": range(20, 80)})
    with pd.ExcelWriter(folder / "book.xlsx") as writer:
        pd.DataFrame({"cover": []}).to_excel(writer, sheet_name="cover", index=False)
        rows.to_excel(writer, sheet_name="our rows", index=False, startrow=1)
    result = fedsyn("init", "book.xlsx", "--sheet", "our rows", "--skip-rows", "1", "--skip-footer", "0")
    assert result.code == 0, result
    review = next(line for line in result.out.splitlines() if "schema review" in line)
    assert fedsyn(*shlex.split(review)[1:], "--all").code == 0
    check = review.replace("review", "check")
    assert fedsyn(*shlex.split(check)[1:]).code == 0
    lost = fedsyn("schema", "check", "schema.yaml", "--data", "book.xlsx")
    assert lost.code == 2 and "the sheet 'cover' (--sheet NAME reads another: 'our rows')" in lost.err


def test_init_says_of_which_pairs_nothing_is_known() -> None:
    frame = patients()
    draft = draft_of(Schema, frame)
    some, all_ = carried(draft, 3_000), carried(draft, 3_000_000)
    found = re.search(r"are seen in ([\d,]+) of 21 pairs of columns\. Of the others nothing can be said\.", some)
    assert found and 1 <= int(found[1]) < 21
    assert "seen in all 21 pairs of columns." in all_ and "Of the others" not in all_
