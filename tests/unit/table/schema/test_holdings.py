"""Words and scales that holders do not share are named, and nothing is said of what chance explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.table.schema import Schema
from fedsyn.table.schema import holdings as module
from fedsyn.table.schema.holdings import Holding, holdings_of, sentences, unlike

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "sex": {"kind": "categorical", "categories": ["M", "F", "male", "female", "1", "2"]},
            "weight": {"kind": "decimal", "lower": 0, "upper": 100_000_000, "places": 2, "bins": 32},
            "came": {"kind": "date", "lower": "2000-01-01", "upper": "2040-12-31", "bins": 41},
            "site": {"kind": "categorical", "categories": ["x", "y", "z"]},
            "smoker": {"kind": "boolean"},
        }
    }
)


def table(rng: np.random.Generator, words: list[str], times: float = 1.0, rows: int = 300, **more: Any) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "sex": rng.choice(words, rows),
            "weight": np.round(rng.normal(75, 12, rows) * times, 2),
            "came": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1500, rows), "D"),
            "site": "x",
            "smoker": rng.choice([True, False], rows),
            **more,
        }
    )


def said(tables: dict[str, pd.DataFrame], schema: Schema = SCHEMA) -> dict[str, str]:
    return unlike(holdings_of(schema, tables))


def test_three_holders_that_code_differently_are_named() -> None:
    """Three letters for a sex, and one who weighs in pounds; each column of another holder's name is left alone."""
    rng = np.random.default_rng(1)
    tables = {
        "a2.csv": table(rng, ["M", "F"], smoker="yes"),
        "b2.csv": table(rng, ["male", "female"], 2.2046, site="y", smoker=rng.choice(["true", "false"], 300)),
        "c2.csv": table(rng, ["1", "2"], site="z"),
    }
    assert said(tables) == {
        "sex": "no word in common between a2.csv, b2.csv and c2.csv",
        "weight": "the median of b2.csv is 2.2 times the others' (pounds and kilograms?)",
    }
    two = {name: tables[name] for name in ("b2.csv", "a2.csv")}
    assert said(two)["weight"] == "the median of b2.csv is 2.2 times that of a2.csv (pounds and kilograms?)"
    tables |= {"d.csv": table(rng, ["M", "F"]), "e.csv": table(rng, ["F"]), "f.csv": table(rng, ["M"])}
    assert said(tables)["sex"] == "no word in common between (a2.csv, d.csv, e.csv, f.csv), b2.csv and c2.csv"


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        (2.54, "inches and centimetres"),
        (12, "months and years"),
        (24, "hours and days"),
        (60, "minutes and hours"),
        (100, "per cent and shares"),
        (365.25, "days and years"),
        (1000, "grams and kilograms"),
        (1e6, "units and millions"),
        (5.0, ""),
        (180.0, ""),
    ],
)
def test_a_unit_is_named_by_the_ratio_of_medians(times: float, unit: str) -> None:
    rng = np.random.default_rng(2)
    pair = {"a": table(rng, ["M", "F"]), "b": table(rng, ["M", "F"], times)}
    sentence = said(pair)["weight"]
    assert sentence.startswith("the median of b is ") and (f"({unit}?)" in sentence if unit else "(" not in sentence)


def test_numbers_without_a_ratio_and_dates_are_said_to_lie_apart() -> None:
    rng = np.random.default_rng(3)
    late = table(rng, ["M", "F"], 0.0).assign(came=pd.Timestamp("2035-03-01"))
    assert said({"a": table(rng, ["M", "F"]), "b": late, "c": table(rng, ["M", "F"])}) == {
        "weight": "three quarters of the rows of b lie below three quarters of the others'",
        "came": "three quarters of the rows of b lie above three quarters of the others'",
    }


def test_chance_says_nothing() -> None:
    """Holders of 3 to 200 rows of the same population: 600 comparisons of a column, each alarm has a chance below 1e-4.

    So does one of a few rows each, whose words or numbers lie apart by chance.
    """
    rng = np.random.default_rng(4)
    for _ in range(200):
        rows = rng.integers(3, 200, 3)
        tables = {
            f"t{k}": table(rng, ["M", "F"], rows=int(n), site=rng.choice(["x", "y", "z"])) for k, n in enumerate(rows)
        }
        assert said(tables) == {}, rows
    few = {"a": table(rng, ["M", "F"], rows=19), "b": table(rng, ["M", "F"], 1000, rows=19)}
    assert "weight" not in said(few)
    assert said({"a": table(rng, ["M", "F"], rows=2), "b": table(rng, ["male", "female"], rows=2)}) == {}


def test_rare_words_of_a_long_list_say_nothing() -> None:
    """Each of two holders of 40 rows has other diagnoses of 5,000, and most of them once."""
    schema = Schema.from_dict(
        {"columns": {"icd": {"kind": "categorical", "categories": [f"c{k}" for k in range(5000)]}}}
    )
    rng = np.random.default_rng(5)
    drawn = rng.permutation(5000)[:80]
    pair = {
        "a": pd.DataFrame({"icd": [f"c{k}" for k in drawn[:40]]}),
        "b": pd.DataFrame({"icd": [f"c{k}" for k in drawn[40:]]}),
    }
    assert said(pair, schema) == {}
    often = {name: pd.concat([frame] * 30) for name, frame in pair.items()}  # now each word stands 30 times
    assert said(often, schema) == {"icd": "no word in common between a and b"}


def test_blocks_are_counted_like_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the blocks are; of a long table every second, every fourth row of numbers is kept."""
    monkeypatch.setattr(module, "_KEPT", 100)
    rng = np.random.default_rng(6)
    rows = table(rng, ["M", "F"], rows=1000).assign(weight=np.arange(1000.0))
    whole, parts = Holding(SCHEMA), Holding(SCHEMA)
    whole.encoded(rows)
    for start in range(0, 1000, 7):
        parts.encoded(rows.iloc[start : start + 7])
    cents = list(range(0, 100_000, 1600))
    assert parts.numbers_of("weight").tolist() == cents == whole.numbers_of("weight").tolist()
    assert parts.counts["sex"].tolist() == whole.counts["sex"].tolist()
    assert parts.listed("sex").tolist() == [
        (rows["sex"] == word).sum() for word in ("M", "F", "male", "female", "1", "2")
    ]


def test_people_are_counted_over_blocks() -> None:
    schema = Schema.from_dict({"columns": {**SCHEMA.to_dict()["columns"], "pid": {"kind": "identifier"}}})
    rng = np.random.default_rng(7)
    rows = table(rng, ["M", "F"], rows=100).assign(pid=[None, "NA", *[f"p{k % 30}" for k in range(98)]])
    holding = Holding(schema)
    for start in range(0, 100, 9):
        holding.encoded(rows.iloc[start : start + 9])
    assert tuple(holding.repeats()["pid"]) == (30, 98, 4, 3)


def test_words_of_rows_that_are_left_out_are_not_said_to_be_absent() -> None:
    """Another holder's words for a smoker leave every row out; its sites stand in the rows all the same."""
    tables = {"": table(np.random.default_rng(1), ["M", "F"], smoker="raucht", site=["x", "y", "z"] * 100)}
    schema = Schema.from_dict({"columns": {name: SCHEMA.to_dict()["columns"][name] for name in ("site", "smoker")}})
    lines = sentences(holdings_of(schema, tables))
    assert lines[0] == "smoker: in 300 of 300 rows (100%) the schema does not list the value: left out"
    assert not any("never" in line for line in lines)
