"""Persons and their rows in two files: drafted from both, approved, run and compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn import yamlio
from fedsyn.errors import DataError, SchemaError
from fedsyn.front.cli import reviewing
from fedsyn.table.schema import Schema
from fedsyn.table.schema.approval import findings
from fedsyn.table.schema.joined import joined
from fedsyn.table.schema.proposals import proposed_constraints
from support.typed_commands import Fedsyn, entry_point


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fedsyn:
    monkeypatch.chdir(tmp_path)
    return entry_point(capsys, monkeypatch)


def tables(people: int = 300, none: int = 30) -> dict[str, pd.DataFrame]:
    """Patients, some of whom have no visit, and visits in no order of patients."""
    rng = np.random.default_rng(0)
    ids = np.array([f"P{n:05d}" for n in rng.permutation(90_000)[:people]])
    whose = np.repeat(np.arange(none, people), rng.integers(1, 6, people - none))
    rng.shuffle(whose)
    patients = pd.DataFrame(
        {"patient_id": ids, "sex": rng.choice(["f", "m"], people), "born": rng.integers(1930, 2020, people)}
    )
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, len(whose)), unit="D")
    ward = rng.choice(["heart", "eye"], len(whose))
    visits = pd.DataFrame({"patient_id": ids[whose], "admitted": day.strftime("%Y-%m-%d"), "ward": ward})
    return {"patients": patients, "visits": visits}


def write(**frames: pd.DataFrame) -> list[str]:
    for name, frame in frames.items():
        frame.to_csv(f"{name}.csv", index=False)
    return [f"{name}.csv" for name in frames]


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("turned", [False, True])
def test_two_files_are_one_schema(call: Fedsyn, turned: bool) -> None:
    files = write(**tables())
    result = call("init", *(files[::-1] if turned else files))
    assert result.code == 0, result
    said = "patients.csv has one row of each person, visits.csv has their rows: 'patient_id' says whose"
    assert f"{said}; 30 people without a row" in flat(result.out)
    assert "patient_id identifier, new 300 " in flat(result.out)  # people, not rows or those who have one
    assert "--data patients.csv" in result.out and "--data visits.csv" in result.out
    persons = Schema.load("schema.yaml").persons
    assert persons is not None and persons.tables == ("patients", "visits") and persons.least_rows == 0
    assert (persons.id, persons.order, set(persons.constant), persons.most_rows) == (
        "patient_id",
        "admitted",
        {"sex", "born"},
        5,
    )
    schema = Schema.load("schema.yaml")
    assert not any(getattr(column, "missing", False) for column in schema.columns.values())  # nobody's row lacks a cell
    data = yamlio.read_mapping(Path("run.yaml"))
    assert data["data"]["source"] == "visits.csv" and data["data"]["persons"] == "patients.csv"
    assert data["privacy"] == {"unit": "person"}
    both = ("--data", "visits.csv", "--data", "patients.csv")
    assert call("schema", "review", "schema.yaml", "--all", *both).code == 0
    checked = call("schema", "check", "schema.yaml", *both)
    assert checked.code == 0 and "300 people, up to 5 rows each" in flat(checked.out), checked


def test_from_two_files_to_a_report(call: Fedsyn) -> None:
    files = write(**tables())
    assert call("init", *files).code == 0
    assert call("schema", "review", "schema.yaml", "--all", "--data", files[0], "--data", files[1]).code == 0
    result = call("run", "run.yaml", "--out", "out")
    assert result.code == 0 and "synthetic_patients.csv" in result.out and "synthetic_visits.csv" in result.out, result
    assert "…" not in result.out  # seven uses have their room
    made = {name: pd.read_csv(f"out/synthetic_{name}.csv") for name in ("patients", "visits")}
    assert made["patients"]["patient_id"].is_unique and {*made["visits"]["patient_id"]} <= {
        *made["patients"]["patient_id"]
    }
    page = Path("out/report.html").read_text(encoding="utf-8")
    for words in ("Counts of people", "Next rows", "Aggregates of people", "300 real people, up to 5 rows each"):
        assert words in page, words
    assert call("report", "out", "--no-real").code == 0
    public = Path("out/report_public.html").read_text(encoding="utf-8")
    assert "number of rows" in public and "Counts of people" in public and "Aggregates of people" not in public
    charts = public.split("All columns")[1].split("All links")[0]
    assert "admitted" in charts and "next admitted" not in charts and "rows before" not in charts
    refused = call("report", "out", "--data", "visits.csv")
    assert refused.code == 2 and "name both, that of the persons first" in refused.err, refused
    assert call("report", "out", "--data", files[0], "--data", files[1]).code == 0
    judged = call("evaluate", "out", "--real", files[0], "--real", files[1])
    assert judged.code == 0 and "300 real people, up to 5 rows each" in judged.out, judged
    for file, sentence in ((files[1], "of patients (sex, born)"), (files[0], "of visits (admitted, ward)")):
        refused = call("evaluate", "out", "--real", file)
        assert refused.code == 2 and f"{file} lacks columns of the table {sentence}: give both" in flat(refused.err)
    alone = call("evaluate", "out/synthetic_visits.csv", "--real", files[1])
    assert alone.code == 0 and "270 real people, up to 5 rows each" in alone.out, alone
    pd.read_csv(files[0]).merge(pd.read_csv(files[1]), how="left").to_csv("both.csv", index=False)
    assert "300 real people" in call("evaluate", "out", "--real", "both.csv").out
    checked = call("schema", "check", "out/schema.yaml", *(f"--data=out/synthetic_{n}.csv" for n in made))
    assert checked.code == 0 and "6 columns" not in checked.out and "nothing needs approval" in checked.out, checked
    refused = call("evaluate", "out", "--real", files[0], "--real", files[1], "--real", files[1])
    assert refused.code == 2 and "two only of persons and of their rows" in flat(refused.err)
    refused = call("sample", "out", "--rows", "5", "--where", "ward=eye")
    assert refused.code == 2 and "'ward' differs between the rows of a person" in refused.err, refused
    asked = ("--where", "born>=1990", "--where", "number of rows>=2")
    assert call("sample", "out", "--rows", "40", *asked, "--out", "some.csv").code == 0
    some = pd.read_csv("some.csv")
    assert some["born"].min() >= 1990 and some["patient_id"].value_counts().min() >= 2


def test_a_constant_column_of_rows_stays_theirs(call: Fedsyn) -> None:
    """The arm of a trial stands in each visit: it is drafted as the person's own, and comes out the same in all."""
    two = tables(600, 60)
    ids = two["patients"]["patient_id"]
    two["visits"]["arm"] = two["visits"]["patient_id"].map(dict(zip(ids, np.resize(["a", "b"], len(ids)), strict=True)))
    files = write(**two)
    both = [f"--data={file}" for file in files]
    assert call("init", *files).code == 0
    assert call("schema", "review", "schema.yaml", "--all", *both).code == 0
    persons = Schema.load("schema.yaml").persons
    assert persons is not None and persons.in_rows == ("arm",) and "arm" in persons.constant
    checked = call("schema", "check", "schema.yaml", *both)
    assert checked.code == 0 and "nothing needs approval" in checked.out, checked
    assert call("run", "run.yaml", "--out", "out").code == 0
    own, visits = (pd.read_csv(f"out/synthetic_{name}.csv") for name in two)
    assert list(own) == list(two["patients"]) and set(visits) == set(two["visits"])
    assert (visits.groupby("patient_id")["arm"].nunique() == 1).all() and len(own) > len(set(visits["patient_id"]))
    assert visits["arm"].notna().all()
    whole = pd.read_csv("out/synthetic.csv")
    assert whole.loc[whole["admitted"].isna(), "arm"].isna().all()
    assert call("evaluate", "out", *(f"--real={file}" for file in files)).code == 0
    assert call("sample", "out", "--rows", "40", "--where", "arm=b", "--out", "some.csv").code == 0
    some = pd.read_csv("some.csv")
    assert {*some["arm"]} == {"b"} and some["admitted"].notna().all()


def test_a_constant_column_in_the_wrong_table_says_where_to_name_it(call: Fedsyn) -> None:
    two = tables()
    schema = Schema.draft(two).approve()
    two["visits"]["sex"] = "f"
    two["patients"] = two["patients"].drop(columns="sex")
    with pytest.raises(DataError, match=r"visits' has it: name it under persons.in_rows, too"):
        joined(two["patients"], two["visits"], schema, ("patients", "visits"))
    data = schema.to_dict()
    for change, said in (
        ({"in_rows": ["ward"]}, "'ward' is not among persons.constant"),
        ({"in_rows": ["sex"], "tables": None}, "one table has all columns"),
    ):
        with pytest.raises(SchemaError, match=said):
            Schema.from_dict(data | {"persons": data["persons"] | change})


def test_single_rows_have_no_table_of_persons(call: Fedsyn) -> None:
    """Each row would be a person of its own, with one visit, and nobody's number of visits is real."""
    files = write(**tables())
    assert call("init", *files).code == 0
    assert call("schema", "review", "schema.yaml", "--all", "--data", files[0], "--data", files[1]).code == 0
    result = call("run", "run.yaml", "--out", "out", "--set", "privacy.unit=row")
    assert result.code == 0 and "a run for single rows knows no persons, so patients have no table" in flat(result.out)
    assert sorted(path.name for path in Path("out").glob("synthetic*")) == ["synthetic.csv"]
    assert "as 2 tables" not in Path("out/README.md").read_text(encoding="utf-8")


def test_a_no_in_the_terminal_writes_no_run(call: Fedsyn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(reviewing.typer, "prompt", lambda *_, **__: "n")
    refused = call("init", *write(**tables()))
    assert refused.code == 2 and "are one table only where 'patient_id' says whose a row is" in flat(refused.err)
    assert "nothing was written. For one of them alone: fedsyn init visits.csv" in flat(refused.err)
    assert not Path("run.yaml").exists() and not Path("schema.yaml").exists()  # nothing stops the next init
    assert "300 people with" in flat(refused.out)
    assert "'patient_id': 300 people, up to 5 rows each;" in flat(refused.out)  # with those who have none


def test_files_without_a_key_are_refused_in_one_sentence(call: Fedsyn) -> None:
    two = tables()
    twice = pd.concat([two["patients"], two["patients"][:3]])
    bare = two["patients"].assign(patient_id=two["patients"]["patient_id"].str.lstrip("P").str.lstrip("0"))
    zeros = two["visits"].assign(patient_id=two["visits"]["patient_id"].str.replace("P", "00"))
    other = two["patients"].rename(columns={"patient_id": "number"})
    for first, rows, said in (
        (twice, two["visits"], "patients.csv has 3 rows too many: it must have one row of each person, and 'patient_"),
        (bare, zeros, "'patient_id' is written with zeros at its beginning in one of patients.csv and visits.csv"),
        (other, two["visits"], "need one column in common that says whose a row is: different in each row of the tab"),
    ):
        for turned in (False, True):
            files = write(patients=first, visits=rows)
            refused = call("init", *(files[::-1] if turned else files), "--force")
            assert refused.code == 2 and said in flat(refused.err), refused
            assert ("all holders" in refused.err) == (first is other)
    with pytest.raises(DataError, match="patients and visits: tables of persons and of their rows need one column"):
        Schema.draft({"patients": other, "visits": two["visits"]})
    with pytest.raises(DataError, match="patients has 3 rows too many"):
        Schema.draft({"patients": twice, "visits": two["visits"]})


def test_columns_in_the_wrong_table_are_named(call: Fedsyn) -> None:
    two = tables()
    schema = Schema.draft(two).approve()
    data = schema.to_dict()
    ward = data["persons"] | {"constant": ["sex", "born", "ward"]}
    born = data["persons"] | {"constant": ["sex"]}
    renamed = {"patient_no" if name == "patient_id" else name: column for name, column in data["columns"].items()}
    for other, said in (
        (
            data | {"persons": ward},
            ["'ward' stands in visits.csv, and is the same in all rows of a person, by persons"],
        ),
        (data | {"persons": born}, ["'born' stands in patients.csv, and is not among persons.constant"]),
        (
            data | {"columns": renamed, "persons": data["persons"] | {"id": "patient_no"}},
            [f"{file}.csv lacks 'patient_no', which says whose a row is (did you mean" for file in two],
        ),
    ):
        Schema.from_dict(other).save("other.yaml")
        files = write(**two)
        refused = call("schema", "check", "other.yaml", "--data", files[0], "--data", files[1])
        assert refused.code == 2 and all(one in flat(refused.err) for one in said), refused
        assert "lacks columns" not in refused.err


def test_a_wrong_key_of_persons_is_compared_with_theirs() -> None:
    data = Schema.draft(tables()).to_dict()
    most = data["persons"].pop("most_rows")
    for key, said in (("max_rows", r"\(did you mean 'most_rows'\?\)"), ("zzz", r"\(allowed: id, order, constant, ")):
        with pytest.raises(SchemaError, match=f"persons: missing key 'most_rows'; persons: unknown key '{key}' {said}"):
            Schema.from_dict(data | {"persons": data["persons"] | {key: most}})


def test_a_column_in_both_is_the_persons_own() -> None:
    """Of a person whose rows say something else the table of persons is right."""
    two = tables()
    two["visits"]["sex"] = "f"
    schema = Schema.draft(two)
    assert schema.persons is not None and set(schema.persons.constant) == {"sex", "born"}
    assert schema.persons.tables == ("patients", "visits")
    assert Schema.draft(two["visits"]).persons is not None


def test_a_plan_takes_two_public_files(call: Fedsyn) -> None:
    """In either order they are one table, and 300 people stand in for as many; two others are refused."""
    two = tables()
    files = write(**two)
    assert call("init", *files).code == 0
    assert call("schema", "review", "schema.yaml", "--all", "--data", files[0], "--data", files[1]).code == 0
    plans = []
    for public in (files, files[::-1]):
        result = call("plan", "run.yaml", "--epsilon", "1", "--json", *(f"--public={file}" for file in public))
        assert result.code == 0, result
        plans.append(json.loads(result.out))
    assert [(one["rows"], one["of"], one["basis"]) for one in plans] == [(300, "people", "a public table")] * 2
    text = call("plan", "run.yaml", "--epsilon", "1", *(f"--public={file}" for file in files)).out
    assert "people: 300, holders: 1, columns of a person's record: 9" in text and "People of a public table" in text
    assert plans[0]["expected"][0]["run"]["error"] == plans[1]["expected"][0]["run"]["error"]
    for wrong in ([files[1]] * 2, [*files, files[0]], [files[0], *write(other=two["visits"].drop(columns="ward"))]):
        refused = call("plan", "run.yaml", *(f"--public={file}" for file in wrong))
        assert refused.code == 2 and "two only of persons and of their rows" in flat(refused.err), refused


@pytest.mark.parametrize("nobody", ["P999999", None])
def test_rows_of_nobody_known_are_drafted_too(call: Fedsyn, nobody: str | None) -> None:
    """They are a person's like any other, of whom the other table says nothing."""
    two = tables()
    two["visits"].loc[[3, 50], "patient_id"] = nobody
    files = write(**two)
    result = call("init", *files)
    assert result.code == 0, result
    more = "2 rows of somebody whom patients.csv does not have" if nobody else "2 rows without a 'patient_id'"
    assert more in flat(result.out) and "what is said of such a person is missing" in flat(result.out)
    assert f"{301 if nobody else 302} people with" in flat(result.out)
    schema = Schema.load("schema.yaml")
    assert Schema.draft(two).persons == schema.persons
    assert {name for name, column in schema.columns.items() if column.missing} == {"sex", "born"}
    both = ("--data", files[0], "--data", files[1])
    assert call("schema", "review", "schema.yaml", "--all", *both).code == 0
    checked = call("schema", "check", "schema.yaml", *both)
    assert checked.code == 0 and "left out" not in checked.out, checked


def test_a_patient_without_an_identifier_is_one_without_a_row(call: Fedsyn) -> None:
    two = tables()
    two["patients"].loc[[1, 2], "patient_id"] = None  # neither has a visit
    result = call("init", *write(**two))
    assert result.code == 0 and "30 people without a row" in flat(result.out), result
    assert "300 people with" in flat(result.out)


def test_constraints_are_sought_in_the_rows_that_have_a_code() -> None:
    """A row that the schema leaves out is in no constraint, and shifts no other row's person."""
    two = tables()
    rows = two["visits"].merge(two["patients"], on="patient_id").assign(left=lambda rows: rows["admitted"])
    schema = Schema.draft(rows)
    assert schema.persons is not None and schema.persons.order is False
    schema = Schema.from_dict(
        schema.to_dict() | {"persons": schema.persons.model_dump() | {"order": "admitted", "tables": None}}
    )
    whose = pd.factorize(rows["patient_id"])[0]
    whole = proposed_constraints(schema, rows, whose)
    odd = pd.concat([rows[:1].assign(born=None), rows], ignore_index=True)
    assert schema.rows_of(odd)[1] is not None
    assert proposed_constraints(schema, odd, np.append(max(whose) + 1, whose)) == whole != []


def checked(call: Fedsyn, schema: Schema, two: dict[str, pd.DataFrame]) -> list[str]:
    schema.save("checked.yaml")
    files = write(**two)
    out = call("schema", "check", "checked.yaml", "--data", files[0], "--data", files[1]).out
    return [" ".join(line.split()) for line in out.splitlines()]


def test_a_check_names_each_column_where_some_have_no_row(call: Fedsyn) -> None:
    """Columns of rows are counted in rows, and columns of persons in people, with those who have no row."""
    two = tables()
    whole = Schema.draft(two).approve()
    data = whole.to_dict()
    ruled = Schema.from_dict(data | {"constraints": [{"impossible": {"ward": "eye", "sex": "f"}}]})
    assert any(f" of {len(two['visits']):,} rows break it" in line for line in checked(call, ruled, two))
    few = Schema.from_dict(data | {"persons": data["persons"] | {"most_rows": 3}})
    assert few.persons is not None and few.persons.least_rows == 0
    beyond = "'patient_id': somebody has 5 rows, and persons.most_rows in the schema is 3:"
    assert any(line.startswith(beyond) for line in checked(call, few, two))
    rows = len(two["visits"])
    some = two["visits"].copy()
    some.loc[:39, "ward"], some.loc[:7, "patient_id"] = "psychiatry", None
    odd = two["patients"].copy()
    odd.loc[[0, 299], "sex"] = "x"  # the first has no visit
    lines = checked(call, whole, {"patients": odd, "visits": some})
    for line in (
        f"ward: in 40 of {rows:,} rows ({100 * 40 / rows:.3g}%) the schema does not list the value: counted as not",
        "born: in 8 of 308 people (2.6%) there is no value: left out",
        "sex: in 2 of 308 people (0.649%) the schema does not list the value: counted as not listed",
        "'patient_id': 8 rows have no value, and each counts as a person of its own",
        "'patient_id': 300 people, up to",
    ):
        assert any(one.startswith(line) for one in lines), (line, lines)


def test_a_review_counts_people_without_a_row() -> None:
    two = tables()
    schema = Schema.draft(two).approve()
    rows = joined(two["patients"], two["visits"], schema, ("patients", "visits"))
    found = findings(schema, rows)
    sex = two["patients"]["sex"].value_counts()
    assert found["sex"].shown == ", ".join(f"{word} {sex[word]}" for word in sex.index) + " (people)"
    assert found["born"].shown.endswith(f"up to {two['patients']['born'].sort_values().iloc[150]}")
    assert "missing" not in found["ward"].shown and "missing" not in found["admitted"].shown


def test_two_tables_are_looked_at_in_python_as_one() -> None:
    two = tables()
    drafted = Schema.draft(two)
    with pytest.warns(UserWarning, match="patient_id is approved as it stands"):
        schema = drafted.approve(frame=two)  # no category is rare among people
    late = {"when": {"ward": "eye"}, "then": {"born": "<= 1989"}}
    schema = Schema.from_dict(schema.to_dict() | {"constraints": [late]})
    rows = two["visits"].merge(two["patients"], on="patient_id")
    broken = int(((rows["ward"] == "eye") & (rows["born"] > 1989)).sum())
    assert [*schema.violations(two).values()] == [*schema.violations(rows).values()] == [broken]
    with pytest.raises(DataError, match="the schema is of 'patients' and 'visits'; found 'a', 'b'"):
        schema.violations({"a": two["patients"], "b": two["visits"]})


def test_several_holders_with_two_tables_hear_what_to_do(call: Fedsyn) -> None:
    one, two = tables(), tables(200, 20)
    files = write(pa=one["patients"], va=one["visits"], pb=two["patients"], vb=two["visits"])
    refused = call("init", *files)
    said = "these are persons and their rows of 2 holders, and a draft is of one: fedsyn init pa.csv va.csv. Then"
    assert refused.code == 2 and said in flat(refused.err), refused
    with pytest.raises(DataError, match="draft it from the tables of one holder"):
        Schema.draft([one, two])  # type: ignore[arg-type]


def test_a_review_says_what_it_stated_and_counts_as_a_check_does(call: Fedsyn) -> None:
    two = tables()
    two["visits"]["left"] = two["visits"]["admitted"]
    two["visits"].loc[::2, "left"] = "2025-01-01"
    files = write(**two)
    both = ("--data", files[0], "--data", files[1])
    assert call("init", *files).code == 0
    stated = call("schema", "review", "schema.yaml", "--state", "admitted <= left", *both)
    assert stated.code == 0 and "schema.yaml: stated: admitted <= left; still to approve: sex" in flat(stated.out), (
        stated
    )
    assert "approved" not in stated.out.split("still to approve")[0]
    assert "schema.yaml: approved 6 columns; nothing is left" in flat(
        call("schema", "review", "schema.yaml", "--all", *both).out
    )
    assert "schema.yaml: 6 columns, nothing needs approval" in flat(call("schema", "check", "schema.yaml", *both).out)


def test_a_check_takes_two_files_of_each_of_several_holders(call: Fedsyn) -> None:
    one, other = tables(), tables(people=200, none=0)
    other["visits"]["ward"] = other["visits"]["ward"].replace("heart", "cardiology")
    write(**one)
    write(**{f"{name}_2": table for name, table in other.items()})
    assert call("init", "patients.csv", "visits.csv").code == 0
    assert call("schema", "review", "schema.yaml", "--all", "--public", "known").code == 0
    files = ["patients.csv", "patients_2.csv", "visits.csv", "visits_2.csv"]
    result = call("schema", "check", "schema.yaml", *(part for file in files for part in ("--data", file)))
    assert result.code == 1, result  # somebody has values that the schema does not list
    assert "patients.csv and visits.csv: 'patient_id': 300 people" in flat(result.out)
    assert "patients_2.csv and visits_2.csv: 'patient_id': 200 people" in flat(result.out)
    assert "patients_2.csv and visits_2.csv: ward: " in flat(result.out + result.err)
    result = call("schema", "check", "schema.yaml", *(part for file in files[:3] for part in ("--data", file)))
    assert result.code != 0
    assert "patients.csv lacks columns of the schema" in flat(result.err)


def test_a_file_of_names_alone_has_no_rows(call: Fedsyn) -> None:
    files = write(**tables())
    for file in files:
        Path(f"no_{file}").write_text(Path(file).read_text().split("\n")[0] + "\n")
    assert "no_visits.csv has no rows" in flat(call("init", "patients.csv", "no_visits.csv").err)
    result = call("evaluate", "no_visits.csv", "--real", "visits.csv")
    assert result.code != 0
    assert "the synthetic table has no rows to compare" in flat(result.err)


# Stays of two dates ---------------------------------------------------------------------------------------------------


def stays(visits: pd.DataFrame) -> pd.Series:
    return (pd.to_datetime(visits["discharged"]) - pd.to_datetime(visits["admitted"])).dt.days


def test_stays_are_as_long_as_they_were_and_no_file_has_their_column(call: Fedsyn) -> None:
    """Stays of 0 to 6 days, at random by ward, in bins of dates of weeks.

    At epsilon 100 noise is small beside the sampling of 800 people with about 2,400 visits: the share of stays of one
    length, about 1 in 7, has a standard error of 0.01 between two such tables, and 0.06 is beyond five of them.
    """
    two = tables(people=800, none=0)
    visits = two["visits"]
    lasting = np.random.default_rng(1).integers(0, 3, len(visits)) + 4 * (visits["ward"] == "heart")
    visits["discharged"] = (pd.to_datetime(visits["admitted"]) + pd.to_timedelta(lasting, unit="D")).dt.strftime(
        "%Y-%m-%d"
    )
    files = write(**two)
    result = call("init", *files)
    assert result.code == 0, result
    assert getattr(Schema.load("schema.yaml").columns["admitted_to_discharged"], "hidden", False)
    assert "Left out" not in result.out
    data = [part for file in files for part in ("--data", file)]
    result = call("schema", "review", "schema.yaml", *data, "--all", "--public", "known")
    assert result.code == 0, result
    result = call("run", "run.yaml", "--set", "privacy.epsilon=100", "--out", "runs/a")
    assert result.code == 0, result
    made = pd.read_csv("runs/a/synthetic_visits.csv")
    assert list(made.columns) == list(visits.columns)
    assert list(pd.read_csv("runs/a/synthetic_patients.csv").columns) == list(two["patients"].columns)
    for ward in ("heart", "eye"):
        here, there = (stays(table[table["ward"] == ward]).value_counts(normalize=True) for table in (made, visits))
        assert here.sub(there, fill_value=0).abs().max() < 0.06, ward
    result = call("schema", "check", "runs/a/schema.yaml", *data)
    assert result.code == 0, result
    result = call("evaluate", "runs/a", "--real", "patients.csv", "--real", "visits.csv")
    assert result.code == 0, result
    result = call("sample", "runs/a", "--rows", "50", "--out", "more.csv")
    assert result.code == 0, result
    assert "admitted_to_discharged" not in Path("more.csv").read_text().split("\n")[0]
