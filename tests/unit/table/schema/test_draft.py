"""Drafting a schema: kinds guessed from values, dtypes and names; persons set aside; bounds rounded outward."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsyn.errors import ConfigError, DataError, SchemaError
from fedsyn.table.data.sources import read_cells
from fedsyn.table.schema import Schema
from fedsyn.table.schema.column_base import ASIDE, AsideColumn
from fedsyn.table.schema.columns import KINDS
from fedsyn.table.schema.draft import Guess, drafted_schema
from fedsyn.table.schema.drafted_bins import FINEST
from fedsyn.table.schema.drafting import HOLD, draft_columns, drafted
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.review import without_remarks
from fedsyn.table.schema.vocabulary import FOR_ONE_ROW, PROTECT_PERSONS
from fedsyn.table.schema.written import outward, outward_days, outward_seconds
from support.exports import PERSONAL, hospital

# Cells that people leave in tables.
_TYPED = """1 1.5 2,5 NA 2024-01-01 12:00 - 0 007 % + . 1e5 --3 (5) (1,234.50) 120/80 999 -1 I10.0 never always
    S M 18-24 65+ <10k a;b a Yes yes no Y ? k.A. #? 31.12.2024 true ' " {x}"""
PIECES = [*_TYPED.split(), "", "a b", "€ 5", "prefer not to say", "# no", "a: b", "strongly agree", "- x", "\u2028"]


def guess(values: list[object], name: str = "x", **asked: object) -> Guess:
    """The guess for one column of a file of text, of as many bins as a schema has unless it says."""
    frame = pd.DataFrame({name: pd.Series([str(v) for v in values], dtype=object)})
    return draft_columns(frame, text=True, **{"bins": FINEST, **asked})[name]  # type: ignore[arg-type]


def keys(found: Guess) -> dict[str, object]:
    """What the column says besides its kind, bounds, values of their own, and remarks."""
    data = found.column.model_dump(exclude_defaults=True)
    out = ("kind", "lower", "upper", "drafted", "missing", "categories", "unlisted", "atoms", "values", "multiple_of")
    return {k: v for k, v in data.items() if k not in out}


def several(values: list[object], times: int = 30) -> list[object]:
    return [value for value in values for _ in range(times)]


# Text that is no text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["True", "False"], "boolean", {}),
        (["FALSE", "TRUE"], "boolean", {"texts": ("FALSE", "TRUE")}),
        (["ja", "nein"], "boolean", {"texts": ("nein", "ja")}),
        (["Y", "N"], "boolean", {"texts": ("N", "Y")}),
        (["0", "1"], "integer", {}),
        (["1", "-20", "+3"], "integer", {}),
        (["37.3", "36", "-4.25"], "decimal", {"places": 2, "least_places": 0}),
        (["37,3", "36,0"], "decimal", {"places": 1, "mark": ","}),
        (["0,5", "1,25"], "decimal", {"places": 2, "mark": ",", "least_places": 1}),
        (["1,234.50", "12.00", "1,234,567.89"], "decimal", {"places": 2, "thousands": ","}),
        (["1.234,50", "12,00"], "decimal", {"places": 2, "thousands": ".", "mark": ","}),
        (["1 234,5", "12,0"], "decimal", {"places": 1, "thousands": " ", "mark": ","}),
        (["1'234.50", "12.00"], "decimal", {"places": 2, "thousands": "'"}),
        (["1,234", "12,345", "7"], "integer", {"thousands": ","}),
        (["€1,234.50", "€12.00"], "decimal", {"places": 2, "thousands": ",", "prefix": "€"}),
        (["$5", "$12"], "integer", {"prefix": "$"}),
        (["12,50 €", "3,00 €"], "decimal", {"places": 2, "mark": ",", "suffix": " €"}),
        (["12.5%", "3.0%"], "decimal", {"places": 1, "suffix": "%"}),
        (["120 mg", "60 mg"], "integer", {"suffix": " mg"}),
        (["1e-3", "2.5e7"], "numeric", {"exponent": "e0", "digits": 2}),
        (["1.50E+02", "2.55E-07"], "numeric", {"exponent": "E+00", "digits": 3}),
        (["1.5e-05", "250.25"], "numeric", {"digits": 5}),
        (["0.123456789", "0.5"], "decimal", {"places": 9, "least_places": 1}),
        (["0.12345678901234567", "0.5"], "numeric", {}),
        ([".5", "-.25"], "decimal", {"places": 2, "least_places": 1, "leading_zero": False}),
        (["+1", "-2"], "integer", {"plus": True}),
        (["$-5", "$12"], "integer", {"prefix": "$", "minus": "inside"}),
        (["5.50-", "12.00"], "decimal", {"places": 2, "minus": "end"}),
        (["2024-05-31", "2024-06-01"], "date", {}),
        (["31.05.2024", "01.06.2024"], "date", {"format": "%d.%m.%Y"}),
        (["31/05/2024", "01/06/2024"], "date", {"format": "%d/%m/%Y"}),
        (["05/31/2024", "06/01/2024"], "date", {"format": "%m/%d/%Y"}),
        (["20240531", "20240601"], "date", {"format": "%Y%m%d"}),
        (["31 May 2024", "01 Jun 2024"], "date", {"format": "%d %b %Y"}),
        (["2024-05-31 00:00:00", "2024-06-01 00:00:00"], "date", {"format": "%Y-%m-%d %H:%M:%S"}),
        (["2024-05-31 12:30:15", "2024-06-01 01:02:03"], "datetime", {"format": "%Y-%m-%d %H:%M:%S"}),
        (["2024-05-31 12:30:00", "2024-06-01 01:02:00"], "datetime", {"format": "%Y-%m-%d %H:%M:%S", "step": "minute"}),
        (["2024-05-31T12:30:15", "2024-06-01T01:02:03"], "datetime", {}),
        (["2024-05-31T12:30:15Z", "2024-06-01T01:02:03Z"], "datetime", {"format": "%Y-%m-%dT%H:%M:%SZ", "zone": "UTC"}),
        (["2024-05-31T12:30:15+02:00", "2024-01-01T01:02:03+01:00"], "datetime", {"zone": "UTC"}),
        (["31.05.2024 12:30", "01.06.2024 01:02"], "datetime", {"format": "%d.%m.%Y %H:%M", "step": "minute"}),
        (["12:30", "07:05"], "time", {"step": "minute"}),
        (["7:05:00", "12:30:10"], "time", {"format": "%-H:%M:%S"}),
        (["36:00:10", "07:05:00"], "duration", {"format": "clock"}),
        (["1 days 02:00:00", "3 days 00:00:00"], "duration", {}),
        (["01007", "99999", "12345"], "code", {"other": False}),
        (["12:99", "07:05"], "categorical", {"other": False}),
        (["2024-02-31", "2024-06-01"], "categorical", {"other": False}),
        (["12", "north"], "categorical", {"other": False}),
        (["A12", "B7"], "categorical", {"other": False}),
        (["I10.00", "E11.90"], "categorical", {"other": False}),
    ],
)
def test_what_text_is(values: list[object], kind: str, expected: dict[str, object]) -> None:
    found = guess(several(values))
    assert (found.column.kind, keys(found)) == (kind, expected)
    # The column reads every cell as one of its kind, and writes it as it stands.
    schema = Schema.from_dict({"columns": {"x": found.column}})
    series = pd.Series([str(v) for v in several(values)], name="x")
    codes = schema.encode(series.to_frame())
    assert codes.shape == (len(series), 1)
    if kind in ("boolean", "categorical", "code"):
        assert schema.decode(codes, np.random.default_rng(0))["x"].astype(str).tolist() == series.tolist()


@pytest.mark.parametrize(
    ("written", "as_it_is"),
    [
        (["1.234,50", "12,00"], True),
        (["€1,234.50", "€12.00"], True),
        (["12.5%", "3.0%"], True),
        (["31.05.2024 12:30", "01.06.2024 01:02"], True),
        (["36:00:10", "07:05:00"], True),
        (["2024-05-31T12:30:15Z", "2024-06-01T01:02:03Z"], True),
        (["2024-05-31 12:30:00", "2024-06-01 01:02:00"], True),
        (["05/31/2024", "06/01/2024"], True),
    ],
)
def test_a_drafted_column_writes_as_the_file_does(written: list[object], as_it_is: bool) -> None:
    """One bin a value, so that what is drawn is what was read."""
    column = guess(several(written)).column
    numbers, bad = column.parse_all(written, frozenset())  # type: ignore[attr-defined]
    assert not bad.any() and column.texts(numbers) == written  # type: ignore[attr-defined]


def test_day_or_month_first_is_said_where_both_fit() -> None:
    assert "both fit" in guess(several(["03/04/2024", "05/06/2024"])).why
    assert "both fit" not in guess(several(["13/04/2024", "05/06/2024"])).why


def test_a_decimal_mark_that_was_said_decides() -> None:
    ambiguous = several(["1,234", "5,678"])
    assert keys(guess(ambiguous)) == {"thousands": ","}
    assert keys(guess(ambiguous, decimal=",")) == {"places": 3, "mark": ","}


def test_missing_values_are_marked_whatever_stands_for_them() -> None:
    found = guess([*several(["1", "2"]), "", "NA", " n/a "])
    assert found.column.kind == "integer" and found.column.missing and found.missing == pytest.approx(3 / 63)
    assert guess(["", "NA", ""]).column.kind == "drop"


def test_placeholders_among_numbers_and_dates_are_missing_values() -> None:
    found = guess([*several(["1.5", "2"]), "?", "-"])
    assert found.column.kind == "decimal" and found.missing_values == ("-", "?") and found.missing == 2 / 62
    found = guess([*several(["31.12.2024", "01.01.2025"]), "unknown"])
    assert found.column.kind == "date" and found.column.missing
    assert guess(several(["north", "?"])).column.categories == ("?", "north")  # type: ignore[attr-defined]
    frame = pd.DataFrame({"x": [*several(["1", "2"]), "?"], "y": ["?"] * 31 + ["a"] * 30})
    schema = Schema.draft(frame, text=True)
    assert schema.missing_values == ("?",)  # missing in one column, a category in the other
    assert schema.encode(frame)[-1, 0] == 2 and schema.encode(frame)[0, 1] == 0


def test_words_among_numbers_are_codes_limits_or_cells_that_are_not_listed() -> None:
    """Those of many rows are listed; one cell makes no other column of the rest, and is named by nobody."""
    found = guess([*several([str(k) for k in range(20)]), "a lot"])
    assert found.column.kind == "integer" and found.column.unlisted and not found.column.missing
    assert found.hints[0].startswith("1 cell cannot be read as the others are") and "a lot" not in str(found)
    limits = [
        *[f"{k / 10:.1f}".replace(".", ",") for k in range(200)],
        *["<0,5"] * 40,
        *[">100"] * 9,
        *["refused"] * 12,
    ]
    found = guess(limits)
    assert found.column.kind == "decimal" and keys(found)["mark"] == ","
    assert found.column.censored == ("<0,5",) and found.column.missing_codes == ("refused",)  # type: ignore[attr-defined]
    schema = Schema.from_dict({"columns": {"x": found.column}})
    frame = pd.DataFrame({"x": limits})
    made = schema.decode(schema.encode(frame), np.random.default_rng(0))["x"]
    assert made.iloc[200:240].eq("<0,5").all() and made.iloc[249:].eq("refused").all()
    assert made.iloc[:249].str.fullmatch(r"\d+,\d|<0,5").all()
    assert guess([*several(["2024-05-31", "2024-06-01"]), *["ongoing"] * 20]).column.kind == "categorical"
    found = guess([*[f"2024-{k % 12 + 1:02d}-{k % 28 + 1:02d}" for k in range(300)], *["ongoing"] * 20])
    assert found.column.kind == "date" and found.column.missing_codes == ("ongoing",)  # type: ignore[attr-defined]
    assert guess([*several(["1", "2", "3", "4", "5"]), *["?!"] * 20], label="x").column.kind == "categorical"


# Persons --------------------------------------------------------------------------------------------------------------


def numbered(form: str, rows: int = 60) -> list[object]:
    return [form.format(k, 1000 + 7919 * k % 9000) for k in range(rows)]


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("PatientID", numbered("{1}"), "identifier"),
        ("mrn", numbered("{0:06d}"), "identifier"),
        ("Nachname", [f"N{k % 30}" for k in range(300)], "identifier"),
        ("first name", [f"N{k % 30}" for k in range(300)], "identifier"),
        ("contact", numbered("p{0}@example.org"), "identifier"),
        ("token", [str(uuid.UUID(int=k)) for k in range(60)], "identifier"),
        ("reachable", numbered("+49 30 {1}-{0}"), "identifier"),
        ("source", numbered("10.0.{0}.7"), "identifier"),
        ("anything", numbered("word{1}"), "identifier"),  # nearly every row has its own
        ("Unnamed: 0", [str(k) for k in range(60)], "identifier"),
        ("remark", numbered("the patient said {1} times that it hurts"), "text"),
        ("ward_name", several(["north", "south"]), "categorical"),
        ("doctor_id", several(["17", "18"]), "integer"),
        ("income", [str(20_000 + 37 * k * k) for k in range(60)], "integer"),
        ("identity", several(["a", "b"]), "categorical"),
        ("diagnosis", several(["pain in the lower back for weeks", "no finding at all, sent home"]), "categorical"),
    ],
)
def test_what_points_at_persons_is_set_aside(name: str, values: list[object], kind: str) -> None:
    assert guess(values, name).column.kind == kind


def test_a_column_is_kept_by_its_name_only() -> None:
    values = [f"N{k % 30}" for k in range(600)]
    assert guess(values, "Nachname", keep=["Nachname"]).column.kind == "categorical"
    assert guess(values, "Nachname", label="Nachname").column.kind == "categorical"
    with pytest.raises(ConfigError, match=r"keep: the table has no column 'Nachnam' \(did you mean 'Nachname'\?\)"):
        guess(values, "Nachname", keep=["Nachnam"])


def test_no_hint_names_what_a_column_of_persons_holds() -> None:
    found = guess(["anna", "Anna", *(f"p{k}" for k in range(58))])
    assert found.column.kind == "identifier" and found.hints == ()


def test_why_quotes_no_cell() -> None:
    rows = hospital(300)
    said = " ".join(found.why for found in draft_columns(rows, text=True).values())
    for name in PERSONAL:
        assert not any(str(cell) in said for cell in rows[name])


def test_the_export_of_a_hospital() -> None:
    found = draft_columns(hospital(1000), text=True)
    assert {name for name, one in found.items() if one.column.kind in ("identifier", "text", "drop")} == set(PERSONAL)
    kinds = {name: one.column.kind for name, one in found.items() if name not in PERSONAL}
    assert kinds == {
        "Geburtsdatum": "date",
        "Geschlecht": "categorical",
        "PLZ": "code",
        "Aufnahme": "datetime",
        "Entlassung": "date",
        "Uhrzeit OP": "time",
        "Station": "categorical",
        "Gebäude": "categorical",
        "Hauptdiagnose": "categorical",
        "Temperatur": "decimal",
        "Privat": "boolean",
        "Begleiter": "integer",
        "Kosten Arznei": "decimal",
        "Kosten Pflege": "decimal",
        "Kosten gesamt": "decimal",
    }


# Categories -----------------------------------------------------------------------------------------------------------


def test_categories_of_few_rows_are_marked() -> None:
    found = guess([*several(["a", "b"]), "c"])
    assert found.rare == 1 and "rare" in found.column.drafted
    assert "rare" not in guess(several(["a", "b"])).column.drafted


def test_hundreds_of_values_become_other_and_it_is_counted() -> None:
    values = [*several([f"v{k}" for k in range(20)], 50), *(f"w{k}" for k in range(200))]
    found = guess(values)
    assert len(found.column.categories) == 20 and found.folded == (200, 200) and not found.rare  # type: ignore[attr-defined]
    assert found.column.other_value == "other"  # type: ignore[attr-defined]


def test_the_label_is_one_of_classes() -> None:
    found = guess(several(["1", "2", "3"]), label="x").column
    assert found.kind == "categorical" and found.categories == (1, 2, 3)  # type: ignore[attr-defined]
    assert guess(several(["a", "b"]), label="x").column.other is False  # type: ignore[attr-defined]


# What a draft sees in the values --------------------------------------------------------------------------------------


def test_words_in_order_are_drafted_so() -> None:
    found = guess(several(["agree", "disagree", "strongly agree", "keine Angabe"])).column
    assert found.categories == ("disagree", "agree", "strongly agree", "keine Angabe")  # type: ignore[attr-defined]
    assert keys(guess(several(["agree", "disagree"]))) == {"ordered": True, "other": False}
    assert found.unordered == ("keine Angabe",)  # type: ignore[attr-defined]
    assert guess(several(["low", "mid", "high"]), label="x").column.other is False  # type: ignore[attr-defined]


def test_a_column_of_one_value_is_left_out() -> None:
    for values in (several(["x"]), several(["7"]), several(["2024-01-01"])):
        assert (guess(values).column.kind, guess(values).why[:9]) == ("drop", "one value")
    assert guess([*several(["x"]), ""]).column.kind == "categorical"  # whether it is missing is something to learn
    assert guess(several(["x"]), keep=["x"]).column.kind == "categorical"
    assert Schema.draft(pd.DataFrame({"a": [1] * 30, "b": [1, 2] * 15})).aside["a"].kind == "drop"


#: Names that people give to what says which person a row is of.
NAMES_OF_PERSONS = [
    *["patient_id", "person", "case_no", "customer", "subject_id", "pid", "user", "user_id", "Employee ID", "member"],
    *["household_id", "Versichertennummer", "participant", "respondent_id", "nhs_no", "mrn", "ssn", "uuid", "id"],
    *["hospital_number", "PatNr", "account_id", "insurance_no", "device_id", "record_id", "pat", "Fallnummer"],
]


@pytest.mark.parametrize("form", ["numbers in text", "text", "typed"])
@pytest.mark.parametrize("name", NAMES_OF_PERSONS)
def test_an_identifier_that_repeats_is_asked_about_whatever_its_name(name: str, form: str) -> None:
    """1,500 people of 1 to 7 rows each, and not a word about persons only if no identifier repeats."""
    rng = np.random.default_rng(3)
    ids = np.repeat(np.arange(1500), rng.integers(1, 8, 1500))
    values = 4_000_000 + 7 * ids if form != "text" else np.array([f"P{k:05d}" for k in ids])
    frame = pd.DataFrame({name: values if form == "typed" else values.astype(str), "y": 1 + ids % 2})
    found = draft_columns(frame, text=form != "typed")[name]
    assert found.column.kind == "identifier" and found.column.person  # type: ignore[attr-defined]
    assert found.column.drafted[:2] == ("kind", "person")
    (hint,) = found.hints
    assert re.search("1,500 (people|different values in .* rows), up to 7( rows)? each", hint) and FOR_ONE_ROW in hint
    once = draft_columns(frame.drop_duplicates(name), text=form != "typed")[name]
    assert once.column.kind == "identifier" and not once.column.person and not once.hints  # type: ignore[attr-defined]


def test_values_that_only_look_measured_are_no_persons() -> None:
    """A column that is set aside since its numbers could not be read."""
    found = guess([*[f"{k / 7:.2f}" for k in range(300)], *["<0,5", "1.2.3", "0.14"] * 12])
    assert found.column.kind == "identifier" and not found.column.person  # type: ignore[attr-defined]
    assert not any("person" in hint for hint in found.hints)


@pytest.mark.parametrize("name", ["Vorname", "last_name", "Street"])
def test_a_name_that_different_persons_share_is_not_asked_about(name: str) -> None:
    frame = pd.DataFrame({name: [f"n{k % 60}" for k in range(400)], "y": [1, 2] * 200})
    found = draft_columns(frame, text=True)[name]
    assert found.column.kind == "identifier" and not found.column.person and not found.hints  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "once", "asked"),
    [("patient_id", True, False), ("Patienten-ID", True, False), ("patient_id", False, True), ("visit_no", True, True)],
)
def test_an_address_that_repeats_is_no_person_beside_one_a_row(name: str, once: bool, asked: bool) -> None:
    """Two patients share an address now and then; where each row has a patient of its own, a row is a patient."""
    rows = 400
    ids = [f"P{i:05d}" for i in range(rows)]
    ids[-1] = ids[-1] if once else ids[0]
    mail = [f"someone.{i % (rows - 3)}@example.org" for i in range(rows)]
    frame = pd.DataFrame({name: ids, "e-mail": mail, "age": np.arange(rows) % 90})
    found = drafted(Schema, frame)
    assert (found.persons is not None) == (found.schema.persons is not None) == asked
    mails = found.guesses["e-mail"]
    assert mails.column.person == bool(mails.hints) == asked  # type: ignore[attr-defined]


def test_identifiers_of_two_holders_are_not_compared() -> None:
    """Each counts its patients from 1. What repeats is another person, unless it repeats at one of them."""
    ids = [f"P{i:04d}" for i in range(200)]
    frame = pd.DataFrame({"patient_id": ids * 2, "age": np.arange(400) % 90, "ward": ["a", "b"] * 200})
    assert drafted(Schema, frame).persons is not None  # one holder's patients came twice
    assert drafted(Schema, frame, holdings=(200, 200)).persons is None
    frame.loc[201, "patient_id"] = ids[0]  # the second holder's first patient came twice
    found = drafted(Schema, frame, holdings=(200, 200)).persons
    assert found is not None
    assert (found.people, found.rows, found.most) == (399, 400, 2)


def test_a_kept_column_that_may_name_persons_has_a_hint() -> None:
    """It is named like an identifier, or too few rows hold each of its values for a list."""
    devices = pd.DataFrame(
        {"device_id": [f"d{k % 50}" for k in range(5000)], "kind": [f"k{k % 50}" for k in range(5000)]}
    )
    found = draft_columns(devices, text=True)
    assert found["device_id"].column.kind == "categorical"
    assert (
        found["device_id"]
        .hints[0]
        .startswith("50 different values in 5,000 rows, up to 100 each; if they are persons, ")
    )
    assert found["device_id"].hints[0].endswith("(kind: identifier, person: true)") and not found["kind"].hints
    seldom = draft_columns(pd.DataFrame({"who": [f"w{k % 900}" for k in range(5000)], "y": [1, 2] * 2500}), text=True)
    assert "900 different values in 5,000 rows, up to 6 each" in seldom["who"].hints[0]


def _payments(rows: int = 8000, people: int = 1200) -> pd.DataFrame:
    """A quarter of the people make most of the payments; nothing is named for what it is."""
    rng = np.random.default_rng(0)
    often = rng.pareto(2.0, people) + 0.3
    who = 10_000 + rng.choice(people, rows, p=often / often.sum())
    amount = np.round(rng.gamma(2.0, 400.0, rows), -1).astype(int)
    height = rng.normal(1700, 70, rows).round().astype(int)
    sent = np.where(rng.random(rows) < 0.4, 0, rng.integers(1, 60_000, rows) // 7 * 7)
    far = rng.choice(10**6, people, replace=False)[who - 10_000]
    return pd.DataFrame({"x1": who, "x2": [f"K{n}" for n in who], "x3": far, "x4": amount, "x5": height, "x6": sent})


@pytest.mark.parametrize("text", [False, True])
def test_numbers_that_may_be_persons_have_a_hint_whatever_their_name(text: bool) -> None:
    """Numbers without gaps, codes of which a few are frequent, and numbers far apart; no amount, height or count."""
    table = _payments()
    guesses = draft_columns(table.astype(str) if text else table, text=text)
    asked = {name for name, guess in guesses.items() for hint in guess.hints if "if they are persons" in hint}
    assert asked == {"x1", "x2", "x3"}
    assert all(not isinstance(guesses[name].column, AsideColumn) for name in asked)  # it asks, and decides nothing


def test_nobody_is_asked_who_a_person_is_where_it_is_known() -> None:
    table = _payments()[["x1", "x4"]].assign(patient_id=lambda rows: rows["x1"].map("P{}".format))
    schema = Schema.draft(table)
    assert schema.persons is not None and schema.persons.id == "patient_id"
    assert not any("if they are persons" in hint for hint in schema.hints.get("x1", ()))


@pytest.mark.parametrize("typed", [False, True])
def test_a_column_that_says_which_person_a_row_is_of(typed: bool) -> None:
    values = [k % 40 for k in range(200)]
    frame = pd.DataFrame({"subject": values if typed else [f"s{k}" for k in values], "y": [1, 2] * 100})
    found = draft_columns(frame, text=not typed)["subject"]
    assert found.column.kind == "identifier" and found.column.person  # type: ignore[attr-defined]
    assert found.hints == (f"40 people, up to 5 rows each: {FOR_ONE_ROW}; {PROTECT_PERSONS}",)
    once = draft_columns(pd.DataFrame({"patient_id": [f"s{k}" for k in range(60)]}), text=True)["patient_id"]
    assert not once.column.person and once.hints == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", [150, 400, 1000])
def test_codes_are_rolled_up_as_far_as_rows_carry_them(rows: int) -> None:
    """Most rows keep a code that ten rows hold, however short it gets; with 400 rows and 150 groups a draft failed."""
    rng = np.random.default_rng(0)
    icd = [f"{rng.choice(list('ACEIJKMN'))}{rng.integers(0, 40):02d}.{rng.integers(0, 10)}" for _ in range(rows)]
    found = draft_columns(pd.DataFrame({"x": icd, "y": ["a", "b"] * (rows // 2)}), text=True)["x"]
    assert found.column.kind == "code" and found.folded[1] <= rows / 2
    assert found.column.leading == {150: 2, 400: 2, 1000: 2}[rows]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["subject", "chip", "room"])
def test_what_looks_like_a_code_of_a_diagnosis_is_none_without_a_dot_or_a_name(name: str) -> None:
    numbers = [f"S{k:03d}" for k in range(190)]
    frame = pd.DataFrame({name: [numbers[k % 190] for k in range(600)], "y": ["a", "b"] * 300})
    assert "ICD" not in draft_columns(frame, text=True)[name].why


def test_codes_of_many_values_are_rolled_up() -> None:
    """By their first characters, so that no code of few rows has to be listed; none is lost in `other`."""
    rng = np.random.default_rng(0)
    icd = [f"{rng.choice(list('ACEI'))}{rng.integers(0, 20):02d}.{rng.integers(0, 9)}" for _ in range(3000)]
    zips = [f"{rng.integers(1000, 99999):05d}" for _ in range(3000)]
    frame = pd.DataFrame({"diagnosis": icd, "plz": zips, "case": zips})
    found = draft_columns(frame, text=True)
    assert [found[name].column.kind for name in frame] == ["code", "code", "identifier"]
    columns = [found[name].column for name in ("diagnosis", "plz")]
    assert [column.leading for column in columns] == [3, 2]  # type: ignore[attr-defined]
    assert [found[name].folded for name in ("diagnosis", "plz")] == [(0, 0), (0, 0)]
    schema = Schema.from_dict({"columns": dict(zip(("diagnosis", "plz"), columns, strict=True))})
    made = schema.decode(schema.encode(frame), rng)
    assert made["diagnosis"].tolist() == [code[:3] for code in icd] and made["plz"].tolist() == [z[:2] for z in zips]
    assert (schema.encode(made) == schema.encode(frame)).all()
    assert (
        schema.encode(pd.DataFrame({"diagnosis": ["N/A", "Z99.9"], "plz": ["NA", 1067]}))[0, 0] == columns[0].size - 1
    )
    with pytest.raises(SchemaError, match="3 characters count, and a category has more"):
        Schema.from_dict({"columns": {"x": {"kind": "code", "leading": 3, "categories": ["I10.0"]}}})


@pytest.mark.parametrize("written", [["(1,234.50)", "12.00"], ["($5)", "$7"], ["1.234,5", "(0,5)"], ["(5)", "70"]])
def test_negative_amounts_in_parentheses_are_read_and_written(written: list[object]) -> None:
    found = guess(several(written)).column
    numbers, bad = found.parse_all(written, frozenset())  # type: ignore[attr-defined]
    assert not bad.any() and (numbers < 0).sum() == 1 and found.texts(numbers) == written  # type: ignore[attr-defined]
    assert guess(several(["(3)", "-2"])).column.kind == "categorical"


@pytest.mark.parametrize(
    ("other", "values", "thousands"),
    [
        ("1,5", ["7.192", "12.040", "800"], "."),
        ("1,5", ["7.192 €", "12.040 €"], "."),
        ("1,5", ["0.192", "12.040"], None),
        ("1,5", ["7.19", "12.040"], None),
        ("1.5", ["7.192", "12.040"], None),
        ("1", ["7.192", "12.040"], None),
    ],
)
def test_three_digits_behind_a_point_are_thousands_in_a_file_of_decimal_commas(
    other: str, values: list[str], thousands: str | None
) -> None:
    frame = pd.DataFrame({"a": several([other, other.replace("5", "7")]), "b": several(values, 60 // len(values))})
    column = draft_columns(frame, text=True)["b"].column
    assert column.model_dump().get("thousands") == thousands
    assert column.kind == ("decimal" if thousands is None else "integer")
    assert draft_columns(frame.assign(b=[7.192, 12.04] * 30))["b"].column.kind == "decimal"


@pytest.mark.parametrize(
    ("values", "rows", "codes"),
    [
        ([*range(90)] * 4, [999] * 30, (999,)),
        ([1, 2, 3, 4, 5] * 60, [99] * 30 + [98] * 12, (99, 98)),
        ([k / 10 for k in range(300)], [-999] * 30, (-999,)),
        ([*range(18, 98)] * 4, [99] * 30, ()),  # an age
        ([*range(0, 9)] * 40, [-1] * 30, ()),  # a step below the others may be a value
        ([*range(360, 850)], [999] * 40, ()),  # near: hinted at
        ([1, 2, 3, 4, 5] * 60, [99] * 9, ()),  # what few rows hold
        ([1, 2, 3, 4, 5] * 60, [55] * 30, ()),  # which no table uses so
        ([1, 2] * 60, [99] * 30, ()),
    ],
)
@pytest.mark.parametrize("text", [True, False])
def test_codes_for_missing_values_far_from_all_others_are_drafted(
    values: list[float], rows: list[float], codes: tuple[int, ...], text: bool
) -> None:
    frame = pd.DataFrame({"x": [*values, *rows], "y": np.resize(["a", "b"], len(values) + len(rows))})
    cells = frame.astype(str).astype(object) if text else frame
    schema = Schema.draft(cells, text=text)
    column = schema.columns["x"]
    assert column.missing_codes == codes  # type: ignore[union-attr]
    assert not codes or (column.upper < 200 and column.lower >= 0)  # type: ignore[union-attr, operator]
    made = pd.to_numeric(schema.decode(schema.encode(cells), np.random.default_rng(0))["x"])
    for code in codes:
        assert ((made == code) == (frame["x"] == code)).all()


def test_a_day_that_stands_for_no_day_is_a_code() -> None:
    days = (np.datetime64("2020-01-01") + np.arange(300)).astype(str).tolist()
    frame = pd.DataFrame({"x": [*days, *["9999-12-31"] * 30], "y": ["a", "b"] * 165})
    for cells, text in ((frame, True), (frame.assign(x=frame["x"].astype("datetime64[s]")), False)):
        schema = Schema.draft(cells, text=text)
        column = schema.columns["x"]
        assert column.missing_codes == ("9999-12-31",) and column.upper == "2020-10-31"  # type: ignore[union-attr]
        made = schema.decode(schema.encode(cells), np.random.default_rng(0))["x"].astype(str)
        assert made.str.startswith("9999").tolist() == [False] * 300 + [True] * 30


def test_a_place_is_said_of_both_its_columns() -> None:
    rng = np.random.default_rng(0)
    found = draft_columns(
        pd.DataFrame({"lat": rng.normal(48, 1, 60), "lng": rng.normal(9, 1, 60), "x": rng.random(60)})
    )
    assert [bool(one.hints) for one in found.values()] == [True, True, False] and "'lng'" in found["lat"].hints[0]


# Dtypes ---------------------------------------------------------------------------------------------------------------

ROWS = 120
WHEN = pd.Timestamp("2024-03-01 08:30")
TYPED = {
    "int32": (pd.Series(np.arange(ROWS) % 50, dtype="int32"), "integer"),
    "Int64": (pd.Series([None, *range(ROWS - 1)], dtype="Int64") % 50, "integer"),
    "float64": (pd.Series(np.arange(ROWS) % 50 / 4), "decimal"),
    "float32": (pd.Series(np.linspace(0, 1, ROWS), dtype="float32"), "numeric"),
    "whole floats": (pd.Series([np.nan, *np.arange(ROWS - 1) % 50]), "integer"),
    "bool": (pd.Series([True, False] * (ROWS // 2)), "boolean"),
    "boolean": (pd.Series([True, None] * (ROWS // 2), dtype="boolean"), "boolean"),
    "category": (pd.Series(["b", "a"] * (ROWS // 2), dtype="category"), "categorical"),
    "ordered": (pd.Series(pd.Categorical(["lo", "hi"] * (ROWS // 2), ["lo", "hi"], ordered=True)), "categorical"),
    "string": (pd.Series(["b", None] * (ROWS // 2), dtype="string"), "categorical"),
    "days": (pd.Series(pd.date_range("2024-01-01", periods=ROWS)), "date"),
    "minutes": (pd.Series(pd.date_range(WHEN, periods=ROWS, freq="7min")), "datetime"),
    "zoned": (pd.Series(pd.date_range(WHEN, periods=ROWS, freq="7s", tz="Europe/Berlin")), "datetime"),
    "offset": (
        pd.Series(pd.date_range(WHEN, periods=ROWS, freq="7s", tz=dt.timezone(dt.timedelta(hours=2)))),
        "datetime",
    ),
    "arrow dates": (
        pd.Series([dt.date(2024, 1, 1 + k % 28) for k in range(ROWS)]).astype(pd.ArrowDtype(pa.date32())),
        "date",
    ),
    "timedelta": (pd.Series(pd.to_timedelta(np.arange(ROWS), "h")), "duration"),
    "dates": (pd.Series([dt.date(2024, 1, 1 + k % 28) for k in range(ROWS)], dtype=object), "date"),
    "times": (pd.Series([dt.time(k % 24, 5) for k in range(ROWS)], dtype=object), "time"),
    "decimals": (pd.Series([decimal.Decimal(k % 7) / 4 for k in range(ROWS)], dtype=object), "decimal"),
    "text of dates": (pd.Series(["2024-01-01", "2024-01-02"] * (ROWS // 2), dtype=object), "date"),
}


@pytest.mark.parametrize("name", TYPED)
def test_every_dtype_comes_back_as_it_came(name: str) -> None:
    series, kind = TYPED[name]
    schema = Schema.draft(pd.DataFrame({"x": series}), bins=1000)
    assert schema.columns["x"].kind == kind
    again = schema.decode(schema.encode(pd.DataFrame({"x": series})), np.random.default_rng(0))["x"]
    assert again.dtype == series.dtype
    assert type(again.dropna().iloc[0]) is type(series.dropna().iloc[0])
    assert again.isna().tolist() == series.isna().tolist()
    if kind in ("boolean", "categorical", "integer", "date"):
        assert again.dropna().astype(str).tolist() == series.dropna().astype(str).tolist()


def test_what_has_no_kind_is_dropped() -> None:
    frame = pd.DataFrame({"c": np.arange(60) * 1j, "l": [[k] for k in range(60)], "x": [1, 2] * 30})
    schema = Schema.draft(frame)
    assert {name: column.kind for name, column in schema.aside.items()} == {"c": "drop", "l": "drop"}


def test_identifiers_are_found_in_typed_columns_too() -> None:
    frame = pd.DataFrame({"patient_id": np.arange(200) * 7, "row": np.arange(200), "big": 2**60 + np.arange(200) * 3})
    found = draft_columns(frame)
    assert [found[name].column.kind for name in ("patient_id", "row")] == ["identifier", "identifier"]
    assert found["big"].column.kind in ("numeric", "identifier")


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_bounds_are_rounded_outward() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        low, high = np.sort(rng.normal(0, 10.0 ** rng.integers(-3, 9), 2))
        places = int(rng.integers(0, 5))
        lower, upper = outward(low, high, 9)
        assert lower <= low and high <= upper and upper - lower <= 2.5 * (high - low) + 0.3 * abs(upper)
        lower, upper = outward(round(low, places), round(high, places), places)
        assert lower <= round(low, places) and round(high, places) <= upper
        assert round(lower, places) == lower and round(upper, places) == upper
    assert outward(18, 91) == (0, 100) and outward(1, 5) == (1, 5) and outward(1931, 2004) == (1930, 2010)
    assert outward(5, 5) == (5, 5) and outward(0, 0) == (0, 0)


def test_bounds_of_days_and_spans() -> None:
    assert outward_days(dt.date(2024, 2, 9), dt.date(2024, 12, 2)) == (dt.date(2024, 2, 1), dt.date(2024, 12, 31))
    assert outward_days(dt.date(1931, 2, 9), dt.date(2004, 7, 2)) == (dt.date(1931, 1, 1), dt.date(2004, 12, 31))
    assert outward_days(dt.date(9999, 12, 1), dt.date(9999, 12, 31))[1] >= dt.date(9999, 12, 30)
    lower, upper = outward_seconds(3_700, 900_000)
    assert lower <= 3_700 and upper >= 900_000 and lower % 60 == upper % 60 == 0


# Whole tables ---------------------------------------------------------------------------------------------------------


def test_a_profile_counts_what_stands_in_a_column() -> None:
    profile = Profile.of(pd.Series(["b", " a", "a", "", None, "NA", "b", "a "], name="x"))
    assert (profile.texts.to_pylist(), profile.counts.tolist()) == (["a", "b"], [3, 2])
    assert (profile.rows, profile.missing, profile.values, profile.unlike) == (8, 3, 2, 0.4)


@pytest.mark.parametrize(
    ("frame", "asked", "message"),
    [
        (pd.DataFrame({"a": []}), {}, "no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "more than one column is named 'a'"),
        (pd.DataFrame({"a": [1]}), {"label": "b"}, "no column 'b'"),
        (pd.DataFrame({"a": [1]}), {"bins": 0}, "bins must lie between 1 and 65535; got 0"),
        (pd.DataFrame({"a": [1]}), {"bins": 99_999_999}, "bins must lie between"),
    ],
)
def test_what_cannot_be_drafted(frame: pd.DataFrame, asked: dict[str, object], message: str) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        draft_columns(frame, **asked)  # type: ignore[arg-type]


def test_a_table_of_persons_only_leaves_nothing_to_model() -> None:
    with pytest.raises(DataError, match="no column of the table is left to synthesise"):
        Schema.draft(pd.DataFrame({"email": [f"a{k}@b.de" for k in range(50)]}))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5), min_size=1, max_size=4), st.integers(0, 99))
def test_a_draft_of_any_awkward_table_is_a_schema_that_reads_it(columns: list[list[str]], seed: int) -> None:
    """With its remarks it is the same schema; with all that it proposes stated it still is one, and every row obeys."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {f"c {j}": rng.choice(values, 60) for j, values in enumerate(columns)} | {"y": ["a", "b"] * 30}
    )
    draft = drafted(Schema, frame, text=True)
    schema, holding = draft.schema, draft.holding
    text = schema.dumps()
    assert Schema.loads(text) == schema and Schema.loads(without_remarks(text)).to_dict() == schema.to_dict()
    assert schema.encode(frame).shape == (60, len(schema.columns))
    stated = Schema.loads("\n".join(line.removeprefix("#? ") for line in text.split("\n") if HOLD not in line))
    assert len(stated.constraints) == len(holding) and not any(stated.violations(frame).values())


@pytest.mark.slow
def test_drafting_reads_awkward_files(tmp_path: Path) -> None:
    """Every file that can be read can be drafted, and its schema reads it again."""
    rng = np.random.default_rng(0)
    for trial in range(60):
        values = rng.choice(rng.choice(PIECES, 4), 40)
        path = tmp_path / f"{trial}.csv"
        pd.DataFrame({"x": values, "y": ["a", "b"] * 20}).to_csv(path, index=False)
        cells = read_cells(path)
        guesses = draft_columns(cells.frame, text=True)
        schema = Schema.from_dict(drafted_schema(guesses))
        assert schema.encode(cells.frame).shape == (40, len(schema.columns))


def test_the_schema_of_the_documentation_is_one() -> None:
    """Every kind stands in its example, and in its table."""
    text = (Path(__file__).resolve().parents[4] / "docs" / "schemas.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(columns:.*?)```", text, re.DOTALL)
    assert example is not None
    schema = Schema.loads(example[1])
    schema.require_approved()
    table = text[text.index("| kind | holds |") :].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines()))) == {*KINDS, *ASIDE}
    assert {column.kind for column in schema.every_column.values()} <= {*KINDS, *ASIDE}
