"""Bad schemas and constraints: exit code 2, one sentence that helps, nothing spent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.bad_inputs import SCHEMA, Bad, Content, Try, bad, by_kind, check_each, furnish

#: A column in place of `age`, and the words of the answer.
COLUMNS = [
    ("{kind: nmueric}", "'age'", "kind", "did you mean 'numeric'"),
    ("{kind: 5}", "'age'", "kind"),
    ("{}", "'age'", "kind"),
    ("12", "'age'"),
    ("[integer]", "'age'"),
    ("null", "'age'"),
    ("{kind: integer}", "'age'", "lower"),
    ("{kind: integer, lower: 18}", "'age'", "upper"),
    ("{kind: integer, lower: 90, upper: 18}", "'age'", "lower"),
    ("{kind: integer, lower: 18, upper: 18.5}", "'age'"),
    ("{kind: integer, lower: 2020-01-01, upper: 2021-01-01}", "'age'"),
    ("{kind: integer, lower: old, upper: 90}", "'age'"),
    ("{kind: integer, lower: .nan, upper: 90}", "'age'"),
    ("{kind: integer, lower: 0, upper: .inf}", "'age'"),
    ("{kind: integer, lower: 0, upper: 1e30}", "'age'"),
    ("{kind: integer, lower: 0, upper: 90, bins: 0}", "'age'", "bins"),
    ("{kind: integer, lower: 0, upper: 90, bins: [0]}", "'age'", "edges must ascend"),
    ("{kind: integer, lower: 0, upper: 90, bins: [0, 50, 20, 90]}", "'age'", "edges must ascend"),
    ("{kind: integer, lower: 0, upper: 90, bins: many}", "'age'", "bins"),
    ("{kind: integer, lower: 0, upper: 1000000, bins: values}", "'age'", "values"),
    ("{kind: integer, lower: 0, upper: 90, bin: 3}", "'age'", "did you mean 'bins'"),
    ("{kind: integer, lower: 0, upper: 90, categories: [1, 2]}", "'age'", "categories"),
    ("{kind: integer, lower: 0, upper: 90, missing: perhaps}", "'age'", "missing"),
    ("{kind: integer, lower: 0, upper: 90, dtype: text}", "'age'"),
    ("{kind: categorical}", "'age'", "categories"),
    ("{kind: categorical, categories: []}", "'age'", "categories"),
    ("{kind: categorical, categories: 5}", "'age'", "categories"),
    ("{kind: categorical, categories: [a, a]}", "'age'", "categories"),
    ("{kind: categorical, categories: [1, '1']}", "'age'", "categories"),
    ("{kind: categorical, categories: [a, [b]]}", "'age'", "categories"),
    ("{kind: categorical, categories: [a, null]}", "'age'", "categories"),
    ("{kind: boolean, 'true': ja}", "'age'"),
    ("{kind: boolean, 'true': ja, 'false': ja}", "'age'"),
    ("{kind: decimal, places: -1, lower: 0, upper: 1}", "'age'", "places"),
    ("{kind: decimal, places: 2, lower: 0, upper: 1, mark: ';'}", "'age'", "mark"),
    ("{kind: date, lower: 2020-13-01, upper: 2021-01-01}", "'age'"),
    ("{kind: date, lower: 2022-01-01, upper: 2021-01-01}", "'age'", "lower"),
    ("{kind: date, lower: 5, upper: 9}", "'age'"),
    ("{kind: date, lower: 2020-01-01, upper: 2021-01-01, format: DD.MM}", "'age'", "format"),
    ("{kind: datetime, lower: 2020-01-01, upper: 2021-01-01, zone: Mars/Olympus}", "'age'", "zone"),
    ("{kind: identifier, make: number}", "'age'", "make"),
    ("{kind: drop, keep: true}", "'age'"),
    ("{kind: integer, lower: private, upper: 90, bins: values}", "age"),
    ("{kind: integer, lower: 18, upper: 90, drafted: [lower]}", "not approved", "age"),
    ("{kind: date, lower: 1900-01-01, upper: 2000-01-01}", "age"),
    ("{kind: integer, lower: 18, upper: 90, bins: 4}\n  age: {kind: drop}", "'age' is given twice", "lines 2 and 3"),
]
#: Constraints, and the words of the answer.
CONSTRAINTS = [
    ("age <= cost", "constraints"),
    ("[age <= agee]", "agee", "did you mean 'age'"),
    ("[age <= job]", "job"),
    ("[age < age]", "age"),
    ("[age <=]", "constraint 1", "a <= b"),
    ("[age is fine]", "constraint 1", "a <= b"),
    ("[5]", "constraint 1", "a <= b"),
    ("[age <= 10]", "age"),
    ("[age < cost, cost < age]", "age"),
    ("[cost = cost + age]", "cost"),
    ("[age = cost + cost, cost = age + age]", "cost"),
    ("[cost = job + age]", "job"),
    ("[{determines: job, column: smokes, map: {clerk: 'no'}}]", "smokes"),
    ("[{determines: jobs, column: age, map: {a: 1}}]", "jobs", "did you mean 'job'"),
    ("[{determines: job, column: cost, map: {pilot: 1}}]", "pilot"),
    ("[{impossible: {job: pilot}}]", "pilot"),
    ("[{impossible: {}}]", "impossible"),
    ("[{impossible: {jobb: clerk}}]", "jobb", "did you mean 'job'"),
    ("[{impossible: {age: '>= 18'}}]", "age"),
    ("[{impossible: {job: [clerk, driver, nurse, other]}}]", "job"),
    ("[{when: {job: clerk}}]", "then"),
    ("[{when: {job: clerk}, then: {age: old}}]", "age"),
    ("[{when: {job: clerk}, than: {age: '<= 20'}}]", "than", "then"),
    ("[{forbid: {job: clerk}}]", "impossible"),
]
#: A whole schema, and the words of the answer.
FILES: list[tuple[Content, *tuple[str, ...]]] = [
    ("", "columns"),
    ("- a\n", "columns"),
    ("columns:\n", "columns"),
    ("columns: []\n", "columns"),
    ("columns: {}\n", "columns: must not be empty"),
    ("columns: {1: {kind: drop}}\n", "quotes"),
    ("columns: {'': {kind: integer, lower: 0, upper: 1}}\n", "name"),
    ("columns: {a: {kind: drop}}\n", "set aside"),
    ("\tcolumns: {}\n", "not valid YAML", "tab"),
    (SCHEMA.replace("columns:", "colums:"), "missing key 'columns'", "unknown key 'colums'", "did you mean 'columns'"),
    (SCHEMA.replace("label: smokes", "label: smoke"), "did you mean 'smokes'"),
    (SCHEMA.replace("label: smokes", "label: [smokes]"), "label"),
    (SCHEMA + "label: job\n", "'label' is given twice"),
    (SCHEMA + "approved: maybe\n", "approved"),
    (SCHEMA + "missing_values: '?'\n", "missing_values"),
    (SCHEMA + "open: {}\n", "unknown key 'open'"),
    (SCHEMA.replace("job:", "ward:"), "'ward'"),
    (SCHEMA.replace("job:", "jobs:"), "'jobs'", "did you mean 'job'"),
    (SCHEMA.replace("{kind: categorical, categories: [clerk, driver, nurse]}", "{kind: integer, lower: 0, upper: 9}"),
     "'job'"),
    (SCHEMA.encode("utf-16"), "not UTF-8"),
    (b"\0\0\0\0", "not valid YAML"),
]  # fmt: skip


@pytest.fixture
def attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Try:
    return lambda cases: check_each(cases, tmp_path, furnish, capsys, monkeypatch)


def run_with(schema: Content, *says: str) -> Bad:
    return bad("run run.yaml --out out --set data.schema=bad.yaml", *says, files={"bad.yaml": schema})


def kind_of(said: tuple[str, ...]) -> str:
    """The kind that a column claims to have."""
    return kind[1] if (kind := re.match(r"\{kind: (\w+)", said[0])) else "none"


@pytest.mark.parametrize("cases", by_kind(COLUMNS, kind_of).values(), ids=by_kind(COLUMNS, kind_of))
def test_a_column_that_cannot_be(cases: list[tuple[str, ...]], attempt: Try) -> None:
    age = "{kind: integer, lower: 18, upper: 90, bins: 4}"
    attempt(run_with(SCHEMA.replace(age, column), *says) for column, *says in cases)


def test_a_constraint_that_cannot_be(attempt: Try) -> None:
    attempt(run_with(f"{SCHEMA}constraints: {constraint}\n", *says) for constraint, *says in CONSTRAINTS)


def test_a_schema_that_is_written_wrongly(attempt: Try) -> None:
    attempt(run_with(*said) for said in FILES)
