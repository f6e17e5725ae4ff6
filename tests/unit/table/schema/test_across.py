"""Comparisons of a row with the next one of its person: what they say, where they may stand, who breaks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.domain import Zeros
from fedsyn.errors import SchemaError
from fedsyn.table.schema import Schema
from fedsyn.table.schema.people import People
from fedsyn.table.schema.persons import GAP, NO_ROW, never_back, no_row_code

COLUMNS: dict[str, Any] = {
    "p": {"kind": "identifier"},
    "born": {"kind": "integer", "lower": 1900, "upper": 2020, "bins": 4},
    "day": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 12},
    "nights": {"kind": "integer", "lower": 0, "upper": 39, "bins": 8},
    "left": {"kind": "date", "lower": "2024-01-01", "upper": "2025-12-31"},
    "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 10, "missing": True},
    "stage": {"kind": "categorical", "categories": ["a", "b", "c"], "ordered": True, "other": False},
    "word": {"kind": "categorical", "categories": ["x", "y"], "other": False},
}
PERSONS: dict[str, Any] = {"id": "p", "order": "day", "constant": ["born"], "most_rows": 50}
SUM = "left = day + nights"


def schema(*rules: Any, persons: dict[str, Any] | None = PERSONS, columns: dict[str, Any] | None = None) -> Schema:
    data = {"columns": columns or COLUMNS, "constraints": [SUM, *rules], **({"persons": persons} if persons else {})}
    return Schema.from_dict(data)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("left <= next.day", "left <= next.day"),
        ("next.day >= left", "left <= next.day"),
        ("next.age > age", "age < next.age"),
        ("stage<=next.stage", "stage <= next.stage"),
        ("next.age < age", "age > next.age"),
    ],
)
def test_the_next_row_stands_to_the_right(written: str, read: str) -> None:
    known = schema(written)
    assert [rule.text for rule in known.constraints] == [SUM, read]
    assert Schema.loads(known.dumps()).constraints == known.constraints


def test_backticks_keep_a_column_that_is_named_so() -> None:
    columns = COLUMNS | {"next.age": COLUMNS["age"]}
    inside = schema("age <= `next.age`", columns=columns)
    assert inside.compiled.across == [] and inside.constraints[1].text == "age <= `next.age`"
    both = schema("`next.age` <= next.`next.age`", columns=columns)
    assert Schema.loads(both.dumps()).constraints == both.constraints
    assert both.compiled.across[0].columns == ("next.age",)


@pytest.mark.parametrize(
    ("rule", "persons", "words"),
    [
        ("age <= next.age", None, "persons: {id: COLUMN, order: COLUMN or true, most_rows: N}"),
        ("age <= next.age", PERSONS | {"order": False}, "in which order the rows stand"),
        ("born <= next.age", PERSONS, "'born' is the same in all rows of a person, by persons.constant"),
        ("word <= next.word", PERSONS, "the values of 'word' have no order"),
        ("age <= next.left", PERSONS, "'left' is computed by 'left = day + nights'; no computed column may stand in"),
        ("age <= next.day", PERSONS, "compares"),
        ("day > next.day", PERSONS, "rows stand in the order of 'day', so it never falls"),
        ("next.age <= next.nights", PERSONS, "'next.' stands before one column of a comparison"),
        ("age = next.age", PERSONS, "persons.constant"),
        ("next.age <= 40", PERSONS, "'40' is not a column"),
        ("agee <= next.age", PERSONS, "'agee' is not a column"),
    ],
)
def test_a_comparison_that_says_nothing_is_refused(rule: str, persons: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(SchemaError, match=r".") as refused:
        schema(rule, persons=persons)
    assert words in str(refused.value), refused.value
    assert "\n" not in str(refused.value)


def test_no_possible_next_row_is_refused() -> None:
    one = COLUMNS | {"age": {"kind": "integer", "lower": 7, "upper": 7, "bins": 1}}
    with pytest.raises(SchemaError, match=r"'age < next\.age' leaves no possible next row"):
        schema("age < next.age", columns=one)


def test_breaks_are_counted_along_persons_in_their_order() -> None:
    table = pd.DataFrame(
        {
            "p": ["u", "v", "u", "u", "v", "w"],
            "born": 1980,
            "day": ["2024-03-01", "2024-01-01", "2024-01-01", "2024-02-01", "2024-01-03", "2024-01-01"],
            "nights": [2, 2, 31, 29, 1, 90],
            "age": [40, None, 41, 40, 3, 5],
            "stage": ["a", "b", "c", "b", "b", "a"],
            "word": "x",
        }
    )
    known = schema(
        "left < next.day", "left <= next.day", "age <= next.age", "stage <= next.stage", "stage >= next.stage"
    )
    found = known.violations(table)
    # u: 1 January + 31 nights = 1 February (next), 1 February + 29 = 1 March (next); v: 1 + 2 = 3 January (next).
    assert found["left < next.day"] == 3 and found["left <= next.day"] == 0
    assert found["age <= next.age"] == 1  # 41, 40, 40; a missing side satisfies it
    assert found["stage <= next.stage"] == 2 and found["stage >= next.stage"] == 0
    assert "left <= next.day" not in known.violations(table.drop(columns="p"))


def test_zeros_of_a_record_are_what_no_two_rows_can_have() -> None:
    """Each cell is held against all pairs of numbers that lie in it."""
    known = schema("left <= next.day", "stage <= next.stage", "age < next.age")
    free = schema()
    zeros = {zero.clique: zero.cells for zero in known.records.domain.zeros if zero not in free.records.domain.zeros}
    assert set(zeros) == {("nights", GAP), ("stage", "next stage"), ("age", "next age")}
    nights, gap = known.columns["nights"], known.records.columns[GAP]
    for i in range(nights.size):
        for j in range(gap.size):
            possible = j >= len(gap.edges) - 1 or nights.ends[0][i] <= gap.ends[1][j]
            assert zeros["nights", GAP][i, j] == (not possible)
    after = known.records.columns["next stage"]
    assert not zeros["stage", "next stage"][:, no_row_code(after)].any()
    assert after.categories[no_row_code(after)] == NO_ROW
    assert zeros["age", "next age"][9, :9].all() and not zeros["age", "next age"][9, 9]


@pytest.mark.parametrize(
    ("end", "rules", "least", "follows"),
    [
        ({}, ("day <= end", "end <= next.day"), 0, True),
        ({}, ("day <= end", "end <= next.day"), 1, True),
        ({}, ("day < end", "end < next.day"), 0, True),
        ({"missing": True}, ("day <= end", "end <= next.day"), 0, False),  # a missing side satisfies both
        ({"bins": 3}, ("day <= end", "end <= next.day"), 0, False),  # wide bins leave more than the order does
        ({}, ("day <= end",), 0, False),
        ({}, ("end <= next.day",), 0, False),
    ],
)
def test_the_order_is_a_zero_only_where_others_do_not_say_it(
    end: dict[str, Any], rules: tuple[str, ...], least: int, follows: bool
) -> None:
    """What the zeros of a record allow is, enumerated, in order with or without a zero of its own."""
    day = {"kind": "integer", "lower": 0, "upper": 5, "bins": 6}
    columns = {"p": {"kind": "identifier"}, "day": day, "end": day | end}
    persons = {"id": "p", "order": "day", "most_rows": 3, "least_rows": least}
    known = Schema.from_dict({"columns": columns, "constraints": [*rules], "persons": persons}).records
    domain, back = known.domain, never_back(known.rows, known.columns)
    assert back is not None
    assert (back in domain.zeros) != follows

    def spread(zero: Zeros) -> np.ndarray:
        assert zero.clique == domain.canonical(zero.clique)
        others = [i for i in range(len(domain)) if i not in domain.axes(zero.clique)]
        return np.broadcast_to(np.expand_dims(zero.cells, others), domain.shape)

    possible = ~np.any([spread(zero) for zero in domain.zeros], axis=0)
    assert possible.any()
    assert not (possible & spread(back)).any()


def test_a_run_of_records_is_asked_for_the_same() -> None:
    """A constraint is public: it changes what a model may have, not the record of any person."""
    from fedsyn.table.data.records import RecordMaker

    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "p": rng.integers(0, 40, 200),
            "born": 1950,
            "day": (np.datetime64("2024-01-01") + rng.integers(0, 366, 200)).astype(str),
            "nights": rng.integers(0, 40, 200),
            "age": rng.integers(0, 99, 200),
            "stage": rng.choice(["a", "b", "c"], 200),
            "word": "x",
        }
    )
    records = []
    for known in (schema(), schema("left <= next.day", "age <= next.age")):
        maker = RecordMaker(known, np.random.default_rng(1))
        maker.add(table, known.encoder().block(table), maker.there(table))
        records.append(maker.record().codes)
        assert len(records[-1]) == table["p"].nunique()
    assert known.violations(table)["left <= next.day"] > 20  # rows that break it are rows like any other
    assert (records[0] == records[1]).all()


RULES = [
    "left <= next.day",
    "left < next.day",
    "age <= next.age",
    "age > next.age",
    "stage <= next.stage",
    "nights <= next.age",
]


@settings(deadline=None, max_examples=20)
@given(
    counts=st.lists(st.sampled_from([1, 2, 3, 9]), min_size=1, max_size=4),
    rules=st.lists(st.sampled_from(RULES), min_size=1, max_size=3, unique=True),
    seed=st.integers(0, 99),
    kind=st.sampled_from(["any", "equal", "missing"]),
)
def test_decoded_people_break_nothing_whatever_their_codes(
    counts: list[int], rules: list[str], seed: int, kind: str
) -> None:
    """Codes are drawn without a model, so most people have rows that cannot follow each other: these go."""
    known, rng = schema(*rules), np.random.default_rng(seed)
    n = sum(counts)
    codes = np.stack([rng.integers(0, column.size, n) for column in known.columns.values()], axis=1)
    if kind == "equal":
        codes[:] = codes[0]
    if kind == "missing":
        codes[:, list(known.columns).index("age")] = known.columns["age"].size - 1
    whose, day = np.repeat(np.arange(len(counts)), counts), list(known.columns).index("day")
    codes[:, day] = codes[np.lexsort((codes[:, day], whose)), day]
    codes[:, 0] = codes[(np.cumsum(counts) - counts)[whose], 0]
    made = known.decode(codes, rng, 0, People(np.array(counts), None, ("born",), "day"))
    assert set(known.violations(made).values()) == {0}
    assert made["p"].nunique() == len(counts) and len(made) <= n  # every person keeps a row
    assert made.groupby("p", sort=False)["day"].apply(lambda days: days.is_monotonic_increasing).all()
    if rules == ["age <= next.age"] and kind != "any":
        assert len(made) == n  # equal and missing values are no break


@pytest.mark.thorough
def test_fifty_rows_of_one_person_follow_each_other() -> None:
    """One bin after the other has room for all; in any bin the numbers are drawn anew until they follow."""
    known, rng = schema("left <= next.day", "age <= next.age"), np.random.default_rng(0)
    n, names = 50, list(known.columns)
    codes = np.zeros((2 * n, len(names)), np.int64)
    codes[:, names.index("day")] = np.tile(np.arange(n) * 12 // n, 2)
    codes[:, names.index("age")] = np.tile(np.arange(n) // 5, 2)
    made = known.decode(codes, rng, 0, People(np.array([n, n]), None, ("born",), "day"))
    assert set(known.violations(made).values()) == {0} and len(made) == 2 * n
    ages = made["age"].to_numpy(np.float64)
    assert (ages // 10 == codes[:, names.index("age")]).all()
    assert abs((ages % 10).mean() - 4.5) < 5 * 2.9 / np.sqrt(2 * n)  # sorted, not pressed against the bins' ends


@pytest.mark.thorough
def test_a_draft_asks_about_what_holds_along_people() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(1, 8, 150)
    whose = np.repeat(np.arange(150), counts)
    nights = rng.integers(0, 9, len(whose))
    step = np.r_[0, (nights + rng.integers(0, 90, len(whose)))[:-1]]
    first = np.r_[True, whose[1:] != whose[:-1]]
    step[first] = rng.integers(0, 400, 150)
    since = np.cumsum(step)
    day = since - np.repeat(since[first] - step[first], counts)
    table = pd.DataFrame(
        {
            "patient": whose,
            "admitted": (np.datetime64("2022-01-01") + day).astype(str),
            "discharged": (np.datetime64("2022-01-01") + day + nights).astype(str),
            "cost": rng.gamma(2.0, 300.0, len(whose)).round(2),
        }
    )
    drafted = Schema.draft(table.sample(frac=1, random_state=0))
    assert [rule.text for rule in drafted.constraints] == ["discharged = admitted + admitted_to_discharged"]
    assert [one.rule for one in drafted.proposed] == ["discharged <= next.admitted"]
    stated = drafted.stated("discharged <= next.admitted")
    assert stated.compiled.across and not sum(stated.violations(table).values())
    late = table.assign(discharged=(np.datetime64("2022-01-01") + day + nights + 30).astype(str))
    assert "discharged <= next.admitted" not in [one.rule for one in Schema.draft(late).proposed]
