"""Public constraints: dates, money, computed columns, files, refusals. Brute force: tests/property."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedsyn.errors import SchemaError
from fedsyn.front.cli import app as cli
from fedsyn.table.data.writers import table_writer
from fedsyn.table.schema import Schema

HOSPITAL = """
columns:
  sex: {kind: categorical, categories: [male, female], other: false}
  pregnant: {kind: categorical, categories: ["yes", "no"], other: false, missing: true}
  ward: {kind: categorical, categories: [children, surgery, heart]}
  building: {kind: categorical, categories: [North, South], missing: true}
  floor: {kind: integer, lower: 0, upper: 9, missing: true}
  age: {kind: integer, lower: 0, upper: 99, bins: 5}
  group: {kind: categorical, categories: [minor, adult], other: false}
  admitted: {kind: date, lower: "2024-01-01", upper: "2024-03-31", bins: 6}
  operated: {kind: datetime, lower: "2024-01-01T00:00", upper: "2024-04-30T23:59", step: minute, bins: 4, missing: true}
  discharged: {kind: date, lower: "2024-01-01", upper: "2024-04-30", bins: 5, missing: true}
  days: {kind: integer, lower: 0, upper: 120, missing: true}
  stay: {kind: duration, lower: 0 days, upper: 120 days, step: hour, missing: true}
  fee: {kind: decimal, places: 2, lower: 0, upper: 99.99, bins: 3}
  drugs: {kind: decimal, places: 1, lower: 0, upper: 50, bins: 3}
  total: {kind: decimal, places: 2, thousands: ".", mark: ",", lower: 0, upper: 200}
  rest: {kind: decimal, places: 2, lower: -100, upper: 200}
constraints:
  - admitted <= discharged
  - admitted <= operated
  - days = discharged - admitted
  - stay = discharged - admitted
  - total = fee + drugs
  - rest = total - fee - fee
  - {determines: ward, column: building, map: {children: North, surgery: South}}
  - {determines: building, column: floor, map: {North: 1, South: 2}}
  - {determines: age, column: group, map: {"< 18": minor, ">= 18": adult}}
  - {impossible: {sex: male, pregnant: "yes"}}
  - {when: {ward: children}, then: {age: "<= 17"}}
  - {impossible: {floor: 2, age: "< 10"}}
  - fee <= 90.5
"""


def hospital(without: tuple[str, ...] = ()) -> Schema:
    data = Schema.loads(HOSPITAL).to_dict()
    data["constraints"] = [rule for rule in data["constraints"] if rule not in without]
    return Schema.from_dict(data)


def possible_codes(schema: Schema, rows: int = 4000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, 20 * rows) for size in schema.domain.shape], axis=1).astype(schema.dtype)
    return codes[~schema.domain.violated(codes)][:rows]


def test_everything_holds_in_every_row_and_codes_stay() -> None:
    schema = hospital()
    assert list(schema.derived) == ["building", "floor", "group", "days", "stay", "total", "rest"]
    codes = possible_codes(schema)
    assert len(codes) == 4000
    table = schema.decode(codes, np.random.default_rng(1))
    assert list(table.columns) == list(schema.every_column)
    assert np.array_equal(schema.encode(table), codes)
    assert schema.violations(table) == {rule.text: 0 for rule in schema.constraints}
    # And as an analyst would look.
    admitted, discharged = pd.to_datetime(table["admitted"]), pd.to_datetime(table["discharged"])
    operated = pd.to_datetime(table["operated"])
    assert ((admitted <= discharged) | discharged.isna()).all() and ((admitted <= operated) | operated.isna()).all()
    within = codes[:, list(schema.columns).index("discharged")] == 0
    assert (admitted[within] < discharged[within]).any() and (admitted[within] == discharged[within]).any()
    assert ((discharged - admitted).dt.days.astype("Int64") == table["days"].astype("Int64")).dropna().all()
    assert (table["days"].isna() == discharged.isna()).all()
    assert (pd.to_timedelta(table["stay"]) == discharged - admitted)[discharged.notna()].all()
    cents = table["total"].str.replace(".", "").str.replace(",", "").astype(int)
    assert (cents == (table["fee"] * 100).round() + (table["drugs"] * 100).round()).all()
    assert ((table["rest"] * 100).round() == cents - 2 * (table["fee"] * 100).round()).all()
    assert table["fee"].max() <= 90.5 and table["fee"].max() > 89
    assert (table["building"].map({"North": 1, "South": 2, "other": np.nan}).astype("Int64").eq(table["floor"])).sum()
    assert table["floor"].isna().equals(~table["building"].isin(["North", "South"]))
    assert not ((table["floor"] == 2) & (table["age"] < 10)).any()
    assert ((table["age"] < 18) == (table["group"] == "minor")).all()
    assert not ((table["sex"] == "male") & (table["pregnant"] == "yes")).any()
    assert (table["age"][table["ward"] == "children"] <= 17).all()


def test_a_date_is_another_one_and_days() -> None:
    """A stay keeps its own bins, and the discharge follows; to a minute of a day no number is added."""
    columns = {
        "admitted": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 12},
        "days": {"kind": "integer", "lower": 0, "upper": 9, "bins": 10, "missing": True},
        "discharged": {"kind": "date", "lower": "2024-01-01", "upper": "2025-01-31", "missing": True},
    }
    schema = Schema.from_dict({"columns": columns, "constraints": ["discharged = admitted + days"]})
    codes = possible_codes(schema)
    table = schema.decode(codes, np.random.default_rng(1))
    days = (pd.to_datetime(table["discharged"]) - pd.to_datetime(table["admitted"])).dt.days
    known = table["days"].notna()
    assert (days[known] == table["days"][known]).all() and table["discharged"].isna().equals(~known)
    assert set(days[known].astype(int)) == set(range(10))
    assert schema.violations(table) == {"discharged = admitted + days": 0}
    late = table.assign(days=table["days"] + 1)
    assert schema.violations(late)["discharged = admitted + days"] == known.sum()
    columns["admitted"] |= {"kind": "datetime", "step": "minute", "upper": "2024-12-31T23:59"}
    columns["discharged"] |= {"kind": "datetime", "step": "minute"}
    with pytest.raises(SchemaError, match="dates and days dates"):
        Schema.from_dict({"columns": columns, "constraints": ["discharged = admitted + days"]})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_hold_what_decoding_gives(tmp_path: Path, suffix: str) -> None:
    schema = hospital()
    codes = possible_codes(schema, 500)
    with table_writer(tmp_path / f"t.{suffix}", schema) as writer:
        writer.write(writer.render(codes, np.random.default_rng(3)))
    decoded = schema.decode(codes, np.random.default_rng(3))
    if suffix == "csv":
        written = io.StringIO(decoded.to_csv(index=False))  # which says 87.6 where a column of two places says 87.60
        pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), pd.read_csv(written))
    else:
        found = pd.read_parquet(tmp_path / "t.parquet")
        assert list(found.columns) == list(decoded.columns)
        assert schema.violations(found) == schema.violations(decoded) == {rule.text: 0 for rule in schema.constraints}


def test_drawing_inside_a_bin_is_uniform_over_what_is_allowed() -> None:
    """Days of one month each: all 496 ordered pairs are equally likely; chi-square of 495 degrees below its 1 - 1e-6
    quantile (640)."""
    month = "{kind: date, lower: 2024-01-01, upper: 2024-01-31, bins: 1}"
    schema = Schema.loads(f"columns: {{a: {month}, b: {month}}}\nconstraints: [a <= b]")
    table = schema.decode(np.zeros((100_000, 2), np.uint8), np.random.default_rng(0))
    pairs = table.groupby(["a", "b"]).size()
    assert len(pairs) == 496
    assert ((pairs - 100_000 / 496) ** 2 / (100_000 / 496)).sum() < 640


def test_numbers_without_a_grid() -> None:
    schema = Schema.loads("""
columns:
  low: {kind: numeric, lower: 0, upper: 1, bins: 2}
  high: {kind: numeric, lower: 0.5, upper: 2, bins: 2}
  total: {kind: numeric, lower: 0, upper: 9}
constraints: [low < high, total = low + high, low >= 0.25]
""")
    codes = possible_codes(schema, 3000)
    table = schema.decode(codes, np.random.default_rng(0))
    assert (table["low"] < table["high"]).all() and (table["low"] >= 0.25).all()
    assert (table["total"] == table["low"] + table["high"]).all() and np.array_equal(schema.encode(table), codes)


def test_real_rows_that_break_a_constraint_are_encoded_all_the_same() -> None:
    schema = hospital()
    table = schema.decode(possible_codes(schema, 50), np.random.default_rng(0))
    table.loc[:9, "sex"], table.loc[:9, "pregnant"] = "male", "yes"
    table.loc[:4, "building"] = "South"
    codes = schema.encode(table)
    assert len(codes) == 50 and schema.domain.violated(codes).sum() == 10
    found = schema.violations(table)
    assert found["impossible: sex = male and pregnant = yes"] == 10
    assert found["ward -> building"] == (table["ward"][:5] != "surgery").sum()
    assert len(schema.decode(codes, np.random.default_rng(0))) == 50


def test_a_table_without_computed_columns_is_checked_for_the_others() -> None:
    schema = hospital()
    table = schema.decode(possible_codes(schema, 20), np.random.default_rng(0)).drop(columns=["total", "building"])
    assert "total = fee + drugs" not in schema.violations(table) and "admitted <= discharged" in schema.violations(
        table
    )
    assert schema.encode(table).shape == (20, len(schema.columns))


def test_the_file_and_the_hash() -> None:
    schema = hospital()
    assert Schema.loads(schema.dumps()) == schema and Schema.loads(schema.dumps()).sha256 == schema.sha256
    assert schema.adjusted(label="ward").sha256 != schema.sha256 == hospital().sha256
    fewer = hospital(without=("admitted <= discharged",))
    assert fewer.sha256 != schema.sha256 and fewer.domain != schema.domain
    assert "admitted <= discharged" in schema.dumps() and "`odd <= name` <= b" in odd().dumps()


def odd() -> Schema:
    return Schema.from_dict(
        {
            "columns": {name: {"kind": "integer", "lower": 0, "upper": 9} for name in ("odd <= name", "b", "c - d")},
            "constraints": ["`odd <= name` <= b", "b <= `c - d`"],
        }
    )


def test_names_that_hold_operators() -> None:
    schema = odd()
    table = schema.decode(possible_codes(schema, 300), np.random.default_rng(0))
    assert (table["odd <= name"] <= table["b"]).all() and (table["b"] <= table["c - d"]).all()


NUMBER = {"kind": "integer", "lower": 0, "upper": 9}
REFUSED: dict[str, tuple[Any, str]] = {
    "not a list": ("a <= b", "constraints: expected a list"),
    "no operator": (["a b"], "constraint 1 ('a b'): a constraint is"),
    "a mapping by mistake": ([{"total": "a + b"}], "put quotes around a line that holds ': '"),
    "two kinds": ([{"impossible": {"a": 1}, "when": {"a": 1}}], "constraint 1: a constraint is"),
    "unknown key": ([{"when": {"a": 1}, "than": {"b": 2}}], "unknown key 'than' (did you mean 'then'?)"),
    "half": ([{"when": {"a": 1}}], "'then' is missing beside 'when'"),
    "empty": ([{"impossible": {}}], "impossible must be a mapping of at least one entry"),
    "no map": (["ward -> building"], "write {determines: ward, column: building, map: {value: value, ...}}"),
    "unknown column": (["a <= bb"], "did you mean 'b'?"),
    "unknown column in a condition": ([{"impossible": {"aa": 1}}], "'aa' is not a column (did you mean 'a'?)"),
    "unknown category": ([{"impossible": {"ward": "chidren"}}], "did you mean 'children'?"),
    "no number": ([{"impossible": {"a": "many"}}], "'many' is not a number"),
    "no date": ([{"impossible": {"day": "> yesterday"}}], "'yesterday' is not a date like"),
    "empty range": ([{"impossible": {"a": "5..3"}}], "is an empty range"),
    "null without missing": ([{"impossible": {"a": None}}], "has no missing values"),
    "no order": (["ward <= building"], "the values of 'ward' have no order"),
    "families": (["a <= day"], "compares numbers with moments"),
    "itself": (["a <= a"], "compares 'a' with itself"),
    "a circle of comparisons": (["a <= b", "b <= a"], "lead back to itself"),
    "a circle of sums": (["total = a + b", "a = total - b"], "compute total, a from each other, in a circle"),
    "computed twice": (["total = a + b", "total = a - b"], "two constraints compute 'total'"),
    "a computed side": (["total = a + b", "a <= total"], "'total' is computed by another constraint"),
    "a condition on a sum": (["total = a + b", {"impossible": {"total": 3}}], "so state it for a, b instead"),
    "a condition on ranges of numbers": (
        [
            {"determines": "a", "column": "building", "map": {"< 5": "north", ">= 5": "south"}},
            {"impossible": {"building": "north"}},
        ],
        "so state it for a instead",
    ),
    "a map with a gap": (
        [{"determines": "wide", "column": "ward", "map": {"<= 5": "children", ">= 7": "surgery"}}],
        "the map has no entry for '0' of 'wide'",
    ),
    "nothing to add": (["total = a + ward"], "'ward' is not a column of numbers"),
    "dates add up to nothing": (["total = day + day"], "do not add up to numbers"),
    "a sum of text": (["ward = a + b"], "'ward' must be a column of numbers"),
    "too few places": (["total = a + price"], "'price' is finer than 'total'"),
    "a missing term": (["total = a + maybe"], "'maybe' may be missing, so 'total' needs missing: true"),
    "an incomplete map": (
        [{"determines": "ward", "column": "b", "map": {"children": 1}}],
        "the map has no entry for 'surgery'",
    ),
    "a wrong value in a map": (
        [{"determines": "ward", "column": "b", "map": {"children": "x"}}],
        "'x' is not a number",
    ),
    "nothing is possible": (["a <= -1"], "'a <= -1' leaves no possible row"),
    "contradiction": (["a < b", {"impossible": {"b": ">= 1"}}], "leaves no possible row beside those before it"),
    "contradiction inside bins": (
        ["wide >= 6", "wide <= narrow", {"impossible": {"narrow": ">= 6"}}],
        "no possible row",
    ),
    "an aside column": (["note <= a"], "'note' is not a column"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    rules, said = REFUSED[name]
    columns = {
        "a": NUMBER,
        "b": NUMBER,
        "total": {**NUMBER, "upper": 18},
        "maybe": {**NUMBER, "missing": True},
        "wide": {**NUMBER, "bins": 1},
        "narrow": {**NUMBER, "bins": 5},
        "price": {"kind": "decimal", "places": 2, "lower": 0, "upper": 9},
        "day": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31"},
        "ward": {"kind": "categorical", "categories": ["children", "surgery"], "other": False},
        "building": {"kind": "categorical", "categories": ["north", "south"]},
        "note": {"kind": "text"},
    }
    with pytest.raises(SchemaError, match=re.escape(said)) as raised:
        Schema.from_dict({"columns": columns, "constraints": rules})
    assert "\n" not in str(raised.value) and "validation error" not in str(raised.value)


def test_a_computed_label_is_refused() -> None:
    data = hospital().to_dict()
    with pytest.raises(SchemaError, match="the label 'total' is computed"):
        Schema.from_dict({**data, "label": "total"})


def test_the_domain_knows_which_values_share_one_of_a_column_that_they_determine() -> None:
    """Numbers are no groups (`floor`); a bin across two entries (0 to 19) goes with the first."""
    assert hospital().domain.coarser == {"ward": ((0, 1, 2, 2),), "age": ((0, 1, 1, 1, 1),)}
    wards = {"children": "South", "surgery": "North", "heart": "South"}
    chain: list[Any] = [
        {"determines": "ward", "column": "building", "map": wards},
        {"determines": "building", "column": "entrance", "map": {"North": "back"}},
    ]
    known = hospital().to_dict()["columns"]
    columns = {name: known[name] for name in ("ward", "building")} | {
        "entrance": {**known["ward"], "categories": ["back"]}
    }
    found = Schema.from_dict({"columns": columns, "constraints": chain}).domain
    assert found.attributes == ("ward",) and found.coarser == {"ward": ((1, 0, 1, 2), (1, 0, 1, 1))}


def test_chains_of_dates_with_equal_bins_need_pairs_only() -> None:
    day = {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 24}
    schema = Schema.from_dict({"columns": dict.fromkeys("abc", day), "constraints": ["a <= b", "b <= c"]})
    assert [zeros.clique for zeros in schema.domain.zeros] == [("a", "b"), ("b", "c")]
    table = schema.decode(possible_codes(schema, 2000), np.random.default_rng(0))
    assert (table["a"] <= table["b"]).all() and (table["b"] <= table["c"]).all()


def test_too_many_columns_together_are_refused() -> None:
    day = {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 50}
    rules = [f"{a} <= {b}" for a, b in zip("abcd", "bcde", strict=True)]
    with pytest.raises(SchemaError, match="give these columns fewer bins"):
        Schema.from_dict({"columns": dict.fromkeys("abcde", day), "constraints": rules})


def test_ordered_categories_compare() -> None:
    stage = {"kind": "categorical", "categories": ["I", "II", "III"], "ordered": True, "other": False}
    columns = {"before": stage, "after": stage, "rooms": {"kind": "categorical", "categories": [1, 2, 3]}}
    rules = ["before <= after", {"when": {"after": ">= II"}, "then": {"rooms": "> 1"}}]
    schema = Schema.from_dict({"columns": columns, "constraints": rules})
    codes = np.array(np.meshgrid(range(3), range(3), range(3))).reshape(3, -1).T
    fine = ~schema.domain.violated(codes)
    assert fine.tolist() == [(a <= b and (b < 1 or r >= 1)) for a, b, r in codes.tolist()]


OPEN = """
columns:
  paid: {kind: integer, lower: 0, upper: private}
  cost: {kind: integer, lower: 0, upper: 9}
  rest: {kind: integer, lower: -9, upper: 9}
  ward: {kind: categorical, categories: private}
  site: {kind: categorical, categories: [north, south]}
constraints:
  - paid <= cost
  - rest = cost - paid
  - {impossible: {ward: [heart, rare], cost: 3}}
  - {impossible: {ward: rare, cost: 4}}
  - {when: {cost: 0}, then: {ward: [heart, rare]}}
  - {determines: ward, column: site, map: {heart: north, rare: south}}
"""


def test_constraints_wait_for_what_is_found_and_forget_categories_that_are_not() -> None:
    schema = Schema.loads(OPEN)
    assert schema.domain.zeros == () and list(schema.derived) == ["rest", "site"]
    closed = schema.closed({"paid": [0, 4, 10], "ward": ["heart", "eyes"]})
    table = closed.decode(possible_codes(closed, 1000), np.random.default_rng(0))
    assert (table["paid"] <= table["cost"]).all() and (table["rest"] == table["cost"] - table["paid"]).all()
    assert not ((table["ward"] == "heart") & (table["cost"] == 3)).any()
    assert set(table["ward"][table["cost"] == 0]) == {"heart"}
    assert set(table["site"][table["ward"] != "heart"]) == {"other"}
    assert "ward: rare" not in closed.dumps() and closed.sha256 != schema.sha256


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("paid <= cost", "paidd <= cost", "did you mean 'paid'?"),
        ("paid <= cost", "paid <= ward", "the values of 'ward' have no order"),
        ("paid <= cost", "paid <= much", "'much' is not a number"),
        ("upper: 9}\n  ward", "upper: private}\n  ward", "column 'rest': a constraint computes it"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_paid_for(old: str, new: str, said: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(said)):
        Schema.loads(OPEN.replace(old, new))


def test_the_command_line_counts_rows_that_break_a_constraint(tmp_path: Path) -> None:
    schema = hospital()
    table = schema.decode(possible_codes(schema, 60), np.random.default_rng(0))
    table.loc[:6, "sex"], table.loc[:6, "pregnant"] = "male", "yes"
    table.drop(columns="days").to_csv(tmp_path / "t.csv", index=False)
    schema.save(tmp_path / "s.yaml")
    shown = CliRunner().invoke(cli, ["schema", "check", str(tmp_path / "s.yaml"), "--data", str(tmp_path / "t.csv")])
    assert shown.exit_code == 0, shown.output
    assert "constraint 'impossible: sex = male and pregnant = yes': 7 of 60 rows break it" in shown.output
    assert shown.output.count("break it") == 1
