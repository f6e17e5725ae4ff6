"""Columns that no file has: read from a sum, modelled, and not written."""

import datetime as dt
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsyn
from fedsyn.errors import DataError, SchemaError
from fedsyn.table.data.readers import encode_file, read_table
from fedsyn.table.schema import Schema
from fedsyn.table.schema.holdings import Holding

SCHEMA = """
columns:
  ward: {kind: categorical, categories: [north, south]}
  admitted: {kind: date, lower: "2022-01-01", upper: "2024-12-31", bins: 4}
  stay: {kind: integer, lower: 0, upper: 60, bins: [0, 1, 2, 3, 7, 60], missing: true, hidden: true}
  discharged: {kind: date, lower: "1900-01-01", upper: "2100-12-31", bins: 1, missing: true}
constraints: [RULE]
"""
LATER = "discharged = admitted + stay"


def schema_of(rule: str = LATER, **kinds: str) -> Schema:
    text = SCHEMA.replace("RULE", rule)
    for name, kind in kinds.items():
        text = "\n".join(f"  {name}: {kind}" if line.startswith(f"  {name}:") else line for line in text.split("\n"))
    return Schema.loads(text)


def table(stays: list[int | None], start: str = "2023-05-01") -> pd.DataFrame:
    first = dt.date.fromisoformat(start)
    ends = [None if stay is None else str(first + dt.timedelta(days=stay)) for stay in stays]
    return pd.DataFrame({"ward": "north", "admitted": start, "discharged": ends})


def test_a_hidden_column_is_read_from_the_sum_and_not_written() -> None:
    schema = schema_of()
    frame = table([0, 1, 2, 6, 59, 60, None])
    assert schema.needed == schema.order == ("ward", "admitted", "discharged")
    codes = schema.encode(frame)
    assert list(schema.columns) == ["ward", "admitted", "stay"]
    assert codes[:, 2].tolist() == [0, 1, 2, 3, 4, 4, 5]
    made = schema.decode(codes, np.random.default_rng(0))
    assert list(made.columns) == ["ward", "admitted", "discharged"]
    assert (schema.encode(made) == codes).all()
    stays = (pd.to_datetime(made["discharged"]) - pd.to_datetime(made["admitted"])).dt.days
    assert stays.iloc[:3].tolist() == [0, 1, 2]
    assert made["discharged"].isna().tolist() == [False] * 6 + [True]


@settings(max_examples=40, deadline=None)
@given(
    days=st.lists(st.tuples(st.integers(0, 1000), st.integers(-5, 80)), min_size=1, max_size=30),
    sign=st.sampled_from([LATER, "admitted = discharged - stay"]),
)
def test_what_lies_between_two_dates_comes_back_whichever_is_computed(days: list[tuple[int, int]], sign: str) -> None:
    """What is beyond the bounds goes to the nearest bin, as in any column."""
    wide = '{kind: date, lower: "2021-01-01", upper: "2025-12-31", bins: 7}'
    stay = "{kind: integer, lower: 0, upper: 60, bins: values, hidden: true}"
    schema = schema_of(sign, admitted=wide, discharged=wide, stay=stay)
    first = dt.date(2022, 1, 1)
    begins = [first + dt.timedelta(days=at) for at, _ in days]
    ends = [begin + dt.timedelta(days=stay) for begin, (_, stay) in zip(begins, days, strict=True)]
    frame = pd.DataFrame({"ward": "south", "admitted": begins, "discharged": ends})
    codes = schema.encode(frame)
    at = list(schema.columns).index("stay")
    assert codes[:, at].tolist() == [min(max(stay, 0), 60) for _, stay in days]
    made = schema.decode(codes, np.random.default_rng(1))
    between = (pd.to_datetime(made["discharged"]) - pd.to_datetime(made["admitted"])).dt.days
    assert between.tolist() == codes[:, at].tolist()


def test_files_of_either_kind_give_the_codes_of_the_frame(tmp_path) -> None:
    schema, frame = schema_of(), table([0, 3, None, 12])
    codes = schema.encode(frame)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.assign(stay=999).to_csv(tmp_path / "more.csv", index=False)
    for name in ("t.csv", "t.parquet", "more.csv"):
        assert (encode_file(tmp_path / name, schema) == codes).all()
        assert (schema.encode(read_table(tmp_path / name, schema)) == codes).all()
    with pytest.raises(DataError, match="lacks columns of the schema: 'discharged'"):
        encode_file_of(tmp_path, frame.drop(columns="discharged"), schema)
    # A column of the table with the name of the hidden one has no say.
    assert (schema.encode(frame.assign(stay=999)) == codes).all()


def encode_file_of(folder, frame: pd.DataFrame, schema: Schema) -> None:
    frame.to_csv(folder / "less.csv", index=False)
    encode_file(folder / "less.csv", schema)


def test_moments_have_spans_of_time_between_them() -> None:
    moment = '{kind: datetime, lower: "2022-01-01T00:00:00", upper: "2024-12-31T23:59:00", bins: 3, step: minute}'
    stay = '{kind: duration, lower: "0 days", upper: "2 days", bins: 4, step: minute, hidden: true}'
    schema = schema_of(admitted=moment, discharged=moment, stay=stay)
    frame = pd.DataFrame(
        {"ward": "north", "admitted": "2022-03-01 10:00", "discharged": ["2022-03-01 10:05", "2022-03-02 23:00"]}
    )
    codes = schema.encode(frame)
    assert codes[:, 2].tolist() == [0, 3]
    made = schema.decode(codes, np.random.default_rng(0))
    assert (schema.encode(made) == codes).all()


def test_other_constraints_may_name_it() -> None:
    schema = schema_of(f"{LATER}, {{when: {{ward: north}}, then: {{stay: '<= 2'}}}}")
    assert list(schema.violations(table([1, 2, 9, 40])).values()) == [0, 2]


def test_a_row_that_it_cannot_be_read_from_is_one_without_a_value() -> None:
    """Where the column has no place for it the row is left out and counted."""
    strict = schema_of(
        admitted='{kind: date, lower: "2022-01-01", upper: "2024-12-31", bins: 4, unlisted: true}',
        stay="{kind: integer, lower: 0, upper: 60, hidden: true}",
        discharged='{kind: date, lower: "1900-01-01", upper: "2100-12-31", bins: 1}',
    )
    frame = table([1, 2, 3])
    frame.loc[1, "discharged"] = "soon"
    holding = Holding(strict)
    block = holding.encoded(frame)
    assert len(block.codes) == 2
    assert holding.encoder.left_out == 1
    assert holding.encoder.unplaced["stay"] == 1


@pytest.mark.parametrize(
    ("rule", "kinds", "message"),
    [
        ("admitted <= '2030-01-01'", {}, "'stay' is hidden, so no file has it, and stands in no constraint"),
        (f"{LATER}, ended = admitted + stay", {"ward": None}, "stands in 2 sums"),
        ("discharged = admitted + stay + stay", {}, "stands twice"),
        ("stay = discharged - admitted", {}, "'stay' is hidden, and computed by a constraint"),
        (LATER, {"admitted": "{kind: integer, lower: 0, upper: 9}"}, "do not add up"),
        (LATER, {"stay": "{kind: integer, lower: 0, upper: 60, hidden: true}"}, "needs missing: true"),
        (LATER, {"ward": "{kind: categorical, categories: [a], hidden: true}"}, "unknown key 'hidden'"),
    ],
)
def test_a_hidden_column_that_cannot_be_read_is_refused(rule: str, kinds: dict[str, str | None], message: str) -> None:
    text = SCHEMA.replace("RULE", rule)
    if kinds.get("ward", "") is None:
        date = '{kind: date, lower: "1900-01-01", upper: "2100-12-31", bins: 1, missing: true}'
        text, kinds = text.replace("constraints:", f"  ended: {date}\nconstraints:"), {}
    for name, kind in kinds.items():
        text = "\n".join(f"  {name}: {kind}" if line.startswith(f"  {name}:") else line for line in text.split("\n"))
    with pytest.raises(SchemaError, match=message):
        Schema.loads(text)


def test_neither_the_label_nor_the_order_of_persons_is_hidden() -> None:
    with pytest.raises(SchemaError, match="the label 'stay' is hidden"):
        Schema.from_dict(schema_of().to_dict() | {"label": "stay"})
    data = schema_of().to_dict()
    data["columns"]["id"] = {"kind": "identifier"}
    with pytest.raises(SchemaError, match="'stay' is hidden, so no table has it"):
        Schema.from_dict(data | {"persons": {"id": "id", "order": "stay", "most_rows": 5}})


def test_a_schema_without_one_has_todays_hash() -> None:
    """The key is part of the encoding, and of nothing else."""
    plain = Schema.loads("columns: {age: {kind: integer, lower: 0, upper: 9}}")
    assert "hidden" not in plain.dumps()
    assert schema_of().sha256 != schema_of(stay="{kind: integer, lower: 0, upper: 60, missing: true}").sha256


# Drafts ---------------------------------------------------------------------------------------------------------------


def visits(rows: int = 3000, longest: int = 25) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    begins = pd.Timestamp("2022-01-01") + pd.to_timedelta(rng.integers(0, 1000, rows), unit="D")
    stays = np.minimum(rng.geometric(0.3, rows) - 1, longest)
    return pd.DataFrame(
        {
            "ward": rng.choice(["north", "south"], rows),
            "admitted": begins.strftime("%Y-%m-%d"),
            "discharged": (begins + pd.to_timedelta(stays, unit="D")).strftime("%Y-%m-%d"),
        }
    )


def test_a_draft_keeps_stays_that_are_shorter_than_a_bin() -> None:
    frame = visits()
    schema = Schema.draft(frame)
    assert schema.columns["admitted_to_discharged"].hidden
    assert [rule.text for rule in schema.constraints] == ["discharged = admitted + admitted_to_discharged"]
    # Of the dates that are computed nothing stands in the draft but how they are written.
    assert schema.derived["discharged"].lower == "1900-01-01"
    assert not schema.derived["discharged"].drafted
    approved = schema.approve(frame=frame)
    made = approved.decode(approved.encode(frame), np.random.default_rng(0))
    stays = (pd.to_datetime(made["discharged"]) - pd.to_datetime(made["admitted"])).dt.days
    real = (pd.to_datetime(frame["discharged"]) - pd.to_datetime(frame["admitted"])).dt.days
    assert abs(stays.mean() - real.mean()) < 0.2
    assert abs((stays == 0).mean() - (real == 0).mean()) < 0.01


def test_a_draft_has_none_between_dates_that_bins_keep_apart_or_that_cross() -> None:
    frame = visits()
    far = frame.assign(
        discharged=(pd.to_datetime(frame["discharged"]) + pd.Timedelta(days=400)).dt.strftime("%Y-%m-%d")
    )
    crossed = frame.copy()
    crossed.loc[7, ["admitted", "discharged"]] = crossed.loc[7, ["discharged", "admitted"]].to_numpy()
    crossed.loc[7, "admitted"] = "2024-12-30"
    for other in (far, crossed):
        schema = Schema.draft(other)
        assert not schema.compiled.hidden
        assert not schema.derived
    open_admission = frame.copy()
    open_admission.loc[3, "admitted"] = None  # then the first date is computed from the second
    schema = Schema.draft(open_admission)
    assert [rule.text for rule in schema.constraints] == ["admitted = discharged - admitted_to_discharged"]


@pytest.mark.parametrize(("start", "lasting"), [(15, 15), (15, 60), (1, 15), (60, 5)])
def test_a_draft_of_times_keeps_what_they_are_multiples_of(start: int, lasting: int) -> None:
    """Minutes between two starts, and of each span: both times are multiples of what divides both."""
    rng = np.random.default_rng(0)
    begins = pd.Timestamp("2022-01-01") + pd.to_timedelta(
        start * rng.integers(0, 700 * 1440 // start, 2000), unit="min"
    )
    ends = begins + pd.to_timedelta(lasting * rng.integers(0, 30, 2000), unit="min")
    frame = pd.DataFrame({"ward": rng.choice(["a", "b"], 2000), "start": begins, "end": ends})
    schema = Schema.draft(frame)
    assert [rule.text for rule in schema.constraints] == ["end = start + start_to_end"]
    made = schema.decode(schema.encode(frame), np.random.default_rng(0))
    assert not (made["start"].astype("int64") % (60_000_000 * start)).any()
    assert not (made["end"].astype("int64") % (60_000_000 * math.gcd(start, lasting))).any()


def test_a_draft_has_none_where_a_column_says_it() -> None:
    frame = visits()
    days = (pd.to_datetime(frame["discharged"]) - pd.to_datetime(frame["admitted"])).dt.days
    schema = Schema.draft(frame.assign(nights=days))
    assert not schema.compiled.hidden
    assert "discharged = admitted + nights" in [one.rule for one in schema.proposed]


def test_a_draft_of_visits_keeps_their_order_and_sees_that_none_overlap() -> None:
    frame = visits()
    rng = np.random.default_rng(5)
    frame["patient_id"] = [f"P{number:04d}" for number in rng.integers(0, 900, len(frame))]
    frame = frame.sort_values(["patient_id", "admitted"]).reset_index(drop=True)
    after = frame.groupby("patient_id")["admitted"].shift(-1)
    frame["discharged"] = np.where(after.notna() & (frame["discharged"] > after), after, frame["discharged"])
    schema = Schema.draft(frame)
    assert schema.persons is not None
    assert schema.persons.order == "admitted"
    assert list(schema.derived) == ["discharged"]
    assert "discharged <= next.admitted" in [one.rule for one in schema.proposed]
    text = schema.dumps()
    assert Schema.loads(text.replace("#?   - discharged", "  - discharged")).compiled.across


@pytest.mark.parametrize("apart", [False, True])
def test_two_dates_of_a_person_have_one_too(apart: bool) -> None:
    """What lies between columns that are the same in all rows of a person is, too, also where a person has no row."""
    rng, people = np.random.default_rng(4), 600
    found = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, people), unit="D")
    treated = found + pd.to_timedelta(rng.integers(0, 9, people), unit="D")
    patients = pd.DataFrame(
        {
            "patient_id": [f"P{number:04d}" for number in range(people)],
            "diagnosed": found.strftime("%Y-%m-%d"),
            "treated": treated.strftime("%Y-%m-%d"),
        }
    )
    whose = np.repeat(np.arange(50 if apart else 0, people), rng.integers(1, 5, people - 50 if apart else people))
    stays = visits(len(whose)).assign(patient_id=patients["patient_id"].to_numpy()[whose])
    tables: Any = {"patients": patients, "visits": stays} if apart else stays.merge(patients, on="patient_id")
    schema = Schema.draft(tables)
    assert sorted(rule.text for rule in schema.constraints) == [
        "discharged = admitted + admitted_to_discharged",
        "treated = diagnosed + diagnosed_to_treated",
    ]
    assert schema.persons is not None
    assert {*schema.persons.constant} == {"diagnosed", "treated", "diagnosed_to_treated"}
    assert schema.persons.least_rows == (0 if apart else 1)
    schema = schema.approve(frame=tables)
    assert not sum(schema.violations(tables).values())
    made = fedsyn.Synthesizer(50.0, 1e-6, schema, seed=1, privacy={"unit": "person"}).fit(tables).sample()
    own = made["patients"] if apart else made.drop_duplicates("patient_id")
    between = (pd.to_datetime(own["treated"]) - pd.to_datetime(own["diagnosed"])).dt.days
    assert between.between(0, 9).all()
    shares = between.value_counts(normalize=True).reindex(range(9), fill_value=0.0)
    assert (shares - 1 / 9).abs().max() < 0.08  # 600 people: five standard errors of 0.013, and noise
    if not apart:
        assert (made.groupby("patient_id")["treated"].nunique() == 1).all()


def test_a_hidden_column_is_constant_where_its_sources_are() -> None:
    data = schema_of().to_dict()
    data["columns"]["id"] = {"kind": "identifier"}
    for constant, message in (
        (["admitted", "discharged"], "which persons.constant names: name it there, too"),
        (["stay"], "which persons.constant does not name: leave it out there"),
    ):
        persons = {"id": "id", "most_rows": 5, "constant": constant}
        with pytest.raises(SchemaError, match=message):
            Schema.from_dict(data | {"persons": persons})
