"""Records of persons: one of each, made of that person's rows and coins alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from unit.table.schema.test_person_schemas import records_of, schema, visits

from fedsyn.errors import DataError
from fedsyn.table.data.records import RecordMaker, pairs_of
from fedsyn.table.schema import Schema
from fedsyn.table.schema.holdings import Holding
from fedsyn.table.schema.joined import joined
from fedsyn.table.schema.persons import COUNT, no_row_code


class SameCoins:
    """Coins that are equal for all persons, so that nobody's depend on who else is there."""

    def __init__(self, one: float, two: float) -> None:
        self.one, self.two = one, two

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return np.stack([np.full(shape[1], self.one), np.full(shape[1], self.two)])


def made(rows: Schema, table: pd.DataFrame, coins: Any) -> list[tuple[int, ...]]:
    maker = RecordMaker(rows, coins)
    Holding(rows, maker).encoded(table)
    return [tuple(record) for record in maker.record().codes.tolist()]


def awkward(rng: np.random.Generator) -> pd.DataFrame:
    """Persons without a row, with one, with fifty, and with fifty equal ones."""
    table = visits(rng, 30, none=True)
    fifty = visits(rng, 1).iloc[[0] * 50].assign(patient="fifty", sex="f", born=1950)
    fifty["admitted"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(50), unit="D")
    equal = visits(rng, 1).iloc[[0] * 50].assign(patient="equal", sex="m", born=2001)
    none = visits(rng, 1).iloc[[0]].assign(patient="none", admitted=None, ward=None, cost=None)
    return pd.concat([table, fifty, equal, none], ignore_index=True)


ORDERS: tuple[Any, ...] = ("admitted", True, False)
COINS = (SameCoins(0.0, 0.99), SameCoins(0.4, 0.1), SameCoins(0.999, 0.5))
#: Each order once and each pair of coins once by default, every pair of the two in `make test-all`.
TOSSED = [
    pytest.param(order, coins, marks=[] if place == at else pytest.mark.slow)
    for at, order in enumerate(ORDERS)
    for place, coins in enumerate(COINS)
]


@pytest.mark.parametrize(("order", "coins"), TOSSED)
def test_a_person_more_is_one_record_more(order: Any, coins: SameCoins) -> None:
    """Whole-person neighbours, brute force: every person of a table, with all rows, added or removed."""
    rows, table = schema(order, least=0, most=60), awkward(np.random.default_rng(7))
    every = Counter(made(rows, table, coins))
    for person, own in table.groupby("patient"):
        without = Counter(made(rows, table[table["patient"] != person], coins))
        assert not without - every
        assert sum((every - without).values()) == 1
        assert made(rows, own.copy(), coins) == list((every - without).elements())  # it is that person's own


def test_who_has_too_few_rows_has_no_record() -> None:
    """Everybody else has the same one; the person alone decides, whoever comes or goes; what is left out is said."""
    table, coins = awkward(np.random.default_rng(7)).dropna(subset=["admitted"]), SameCoins(0.4, 0.1)
    rows, sizes = schema("admitted", least=6, most=60), table["patient"].value_counts()
    every = Counter(made(rows, table, coins))
    assert 0 < every.total() == (sizes >= 6).sum() < len(sizes) and 6 in sizes.to_numpy()
    assert every == Counter(made(rows, table[table["patient"].map(sizes) >= 6], coins))
    for person in sizes.index:
        gone = every - Counter(made(rows, table[table["patient"] != person], coins))
        assert gone.total() == (sizes[person] >= 6)
    maker = RecordMaker(rows, coins)
    Holding(rows, maker).encoded(table)
    assert maker.record().codes.shape[0] == maker.records == len({*maker.person} - {-1})
    assert ((maker.person == -1) == (table["patient"].map(sizes) < 6).to_numpy()).all()
    assert maker.sentences() == [
        "'patient': somebody has 1 row, and persons.least_rows in the schema is 6: who has fewer counts nowhere"
    ]
    assert not made(rows, table[table["patient"].map(sizes) < 6], coins)


@pytest.mark.parametrize(("types", "in_rows"), [("text", ()), ("numbers and text", ()), ("text", ("born",))])
def test_a_person_more_in_two_tables_is_one_record_more(types: str, in_rows: tuple[str, ...]) -> None:
    """Every person, and every row without an identifier, of both tables: empty identifiers are nobody's in common."""
    document = schema(False, least=0, most=60).to_dict()
    document["persons"] |= {"tables": ["patients", "visits"], "in_rows": in_rows}
    for name in ("sex", "born"):  # of a visit by somebody whom the other table lacks nothing is known
        document["columns"][name]["missing"] = True
    rows, table = Schema.from_dict(document), awkward(np.random.default_rng(7))
    table["patient"] = pd.factorize(table["patient"])[0].astype(str)
    own = table.drop_duplicates("patient")[["patient", *(name for name in ("sex", "born") if name not in in_rows)]]
    visits = table.dropna(subset=["ward"])[["patient", "admitted", "ward", "cost", *in_rows]].astype(object)
    none = [None, "", "NA", np.nan]
    nobody = own.iloc[[0] * 4].assign(patient=none), visits.iloc[[3] * 4].assign(patient=none)
    own = pd.concat([own, nobody[0], own.iloc[[5, 6]].assign(sex="f")], ignore_index=True)  # two stand twice
    visits = pd.concat([visits, nobody[1], visits.iloc[[9]].assign(patient="none such")], ignore_index=True)
    if types == "numbers and text":
        own["patient"] = [float(value) if str(value).isdigit() else value for value in own["patient"]]
    # Whom each row is of: the identifier as it is written, or the row itself.
    whose = [
        pd.Series([f"{value:g}" if isinstance(value, float) else str(value) for value in each["patient"]])
        for each in (own, visits)
    ]
    for at, each in enumerate(whose):
        alone = each.isin(["None", "", "NA", "nan"])
        each[alone] = [f"table {at}, row {number}" for number in np.flatnonzero(alone)]
    coins = SameCoins(0.4, 0.1)

    def records(who: str | None) -> Counter[tuple[int, ...]]:
        parts = [part[(each != who).to_numpy()] for part, each in zip((own, visits), whose, strict=True)]
        return Counter(made(rows, joined(*parts, rows, ("patients", "visits"), first=True), coins))

    every, names = records(None), list(rows.records.columns)
    for name in in_rows:  # who has no row has none
        column = rows.records.columns[name]
        none = no_row_code(column)
        assert all((one[names.index(name)] == none) == (one[names.index(COUNT)] == 0) for one in every)
    people = {*whose[0], *whose[1]}
    assert every.total() == len(people)
    for who in people:
        without = records(who)
        assert not without - every and (every - without).total() == 1, who


def test_a_record_depends_on_no_order_of_others_rows() -> None:
    rows, table = schema(least=0, most=60), awkward(np.random.default_rng(8))
    table["admitted"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(len(table)), unit="D")
    coins = SameCoins(0.3, 0.3)
    shuffled = table.sample(frac=1.0, random_state=3)
    assert Counter(made(rows, table, coins)) == Counter(made(rows, shuffled, coins))


def test_each_row_with_a_next_one_is_as_likely_as_another() -> None:
    """Of five rows, four have a next one. 40,000 persons: shares within 5 deviations of sqrt(3/16 / 40,000)."""
    n = 40_000
    person = np.repeat(np.arange(n), 5)
    number = np.tile(np.arange(5), n)
    shown = pairs_of(person, -number.astype(float), True, n, np.random.default_rng(0))
    here, after = number[shown.here], number[shown.after]
    assert (after == here - 1).all()  # in order of -number
    shares = np.bincount(here, minlength=5) / n
    assert shares[0] == 0.0
    assert np.abs(shares[1:] - 0.25).max() < 5 * np.sqrt(3 / 16 / n)
    assert (shown.before == 4 - here).all()


def test_rows_without_an_order_are_any_two() -> None:
    n = 40_000
    person, number = np.repeat(np.arange(n), 3), np.tile(np.arange(3), n)
    shown = pairs_of(person, None, False, n, np.random.default_rng(0))
    pairs = number[shown.here] * 3 + number[shown.after]
    shares = np.bincount(pairs, minlength=9).reshape(3, 3) / n
    assert (np.diag(shares) == 0.0).all()
    assert np.abs(shares[~np.eye(3, dtype=bool)] - 1 / 6).max() < 5 * np.sqrt(5 / 36 / n)


def test_a_row_without_an_identifier_is_a_person_of_its_own() -> None:
    table = visits(np.random.default_rng(0), 10)
    table.loc[table.index[:6], "patient"] = [None, "", "NA", np.nan, None, "null"]
    whole = records_of(schema(most=60), table)
    named = table["patient"].iloc[6:].nunique()
    assert len(whole) == named + 6


def test_identifiers_are_told_apart_by_their_text() -> None:
    table = visits(np.random.default_rng(0), 40)
    numbers = table.assign(patient=table["patient"].str.slice(1).astype(int))
    assert (records_of(schema(), table) == records_of(schema(), numbers)).all()


def test_a_column_that_changes_within_a_person_is_said() -> None:
    table = visits(np.random.default_rng(0), 40)
    counts = table["patient"].value_counts()
    person = counts.index[counts > 2][0]
    table.loc[table.index[table["patient"] == person][0], "sex"] = "m"
    table.loc[table.index[table["patient"] == person][1], "sex"] = "f"
    maker = RecordMaker(schema(), np.random.default_rng(0))
    Holding(schema(), maker).encoded(table)
    maker.record()
    assert maker.changing == {"sex": 1}


def test_a_table_without_the_identifier_is_refused() -> None:
    table = visits(np.random.default_rng(0), 5).drop(columns="patient")
    with pytest.raises(DataError, match="lacks the column 'patient'"):
        records_of(schema(), table)


def test_blocks_give_the_records_of_the_whole() -> None:
    table = visits(np.random.default_rng(1), 200)
    rows = schema(most=60)
    maker = RecordMaker(rows, np.random.default_rng(4))
    holding = Holding(rows, maker)
    for start in range(0, len(table), 37):
        holding.encoded(table.iloc[start : start + 37])
    assert (maker.record().codes == records_of(rows, table, seed=4)).all()
    assert len(maker.person) == len(table)
