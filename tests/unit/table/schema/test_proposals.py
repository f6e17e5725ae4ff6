"""Constraints that a draft proposes: those that hold in all rows, would not hold by chance, and can be stated."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedsyn.table.schema import Schema
from fedsyn.table.schema.draft import drafted_schema
from fedsyn.table.schema.drafted_bins import FINEST
from fedsyn.table.schema.drafting import draft_columns
from fedsyn.table.schema.proposals import proposed_constraints

N = 600


def stays() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    admitted = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, N), "D")
    stay, age, ward = rng.integers(0, 20, N), rng.integers(0, 98, N), rng.choice(["A", "B", "C"], N)
    fee, drugs = rng.integers(1, 90, N), rng.integers(1, 90, N)
    return pd.DataFrame(
        {
            "age": age,
            "group": np.where(age < 18, "minor", np.where(age < 65, "adult", "old")),
            "ward": ward,
            "building": np.where(ward == "C", "South", "North"),
            "admitted": admitted,
            "discharged": admitted + pd.to_timedelta(stay, "D"),
            "stay": stay,
            "fee": fee,
            "drugs": drugs,
            "total": fee + drugs,
            "years": age,
            "flag": (stay > 3).astype(int),  # 1 only where `stay` is
            "parents": rng.integers(0, 3, N),  # always below `weight`
            "weight": rng.integers(40, 120, N),
        }
    )


def plain(frame: pd.DataFrame, label: str | None = None) -> Schema:
    """A draft before it makes room for the constraints that hold."""
    return Schema.from_dict(drafted_schema(draft_columns(frame, bins=FINEST, label=label), label))


def proposed(frame: pd.DataFrame, label: str | None = None) -> dict[str, int]:
    return {one.rule.text: one.rows for one in proposed_constraints(plain(frame, label), frame)}


def test_what_holds_is_proposed_and_nothing_else() -> None:
    found = proposed(stays())
    assert found == dict.fromkeys(
        [
            "years = age",
            "total = fee + drugs",
            "discharged = admitted + stay",
            "age -> group",
            "ward -> building",
        ],
        N,
    )


def test_a_category_of_a_dtype_is_missing_where_its_source_is_other() -> None:
    """pandas' categories and a Parquet file's dictionary have no `other` for what the source does not list."""
    frame = stays()[["ward", "building"]].astype({"building": "category"})
    schema = plain(frame).edited(ward={"other": True})
    (found,) = proposed_constraints(schema, frame)
    assert (found.rule.text, found.rows, found.unknown) == ("ward -> building", N, "building")
    stated = schema.edited(building={"missing": True}).to_dict() | {"constraints": [found.rule.data()]}
    made = Schema.from_dict(stated).decode(np.array([[0], [3]]), np.random.default_rng(0))
    assert made["building"].iloc[0] == "North" and made["building"].isna().tolist() == [False, True]
    both = frame.astype("category")
    assert [one.unknown for one in proposed_constraints(plain(both), both)] == [""]  # all wards have an entry


def test_one_row_that_breaks_it_ends_a_proposal() -> None:
    frame = stays()
    frame.loc[17, "discharged"] = frame.loc[17, "admitted"] - pd.Timedelta(days=1)
    frame.loc[18, "total"] += 1
    frame.loc[19, "building"] = "South" if frame.loc[19, "ward"] != "C" else "North"
    frame.loc[20, "group"] = "old" if frame.loc[20, "age"] < 65 else "minor"
    frame.loc[21, "years"] += 1
    texts = set(proposed(frame))
    assert not texts & {"admitted <= discharged", "total = fee + drugs", "ward -> building", "age -> group"}


def test_no_cut_is_proposed_that_the_bins_do_not_tell_apart() -> None:
    """Prices of one wide bin, in which numbers are drawn on both sides of the cut."""
    rng = np.random.default_rng(0)
    price = np.where(rng.random(N) < 0.7, rng.uniform(20, 24, N), rng.uniform(300, 900, N)).round(2)
    codes = np.where(price < 22, "A", np.where(price < 25, "B", "C"))
    found = proposed(pd.DataFrame({"price": price, "code": codes}))
    assert "price -> code" not in found


def test_rows_without_a_value_are_not_counted() -> None:
    frame = stays()[["admitted", "discharged", "age"]].assign(x=["a", "b"] * (N // 2))
    frame.loc[:99, "discharged"] = pd.NaT
    assert proposed(frame) == {"admitted <= discharged": N - 100}


@pytest.mark.parametrize("later", [0, 100])
def test_dates_that_lie_nearer_than_a_bin_are_told_what_keeps_the_days_between(later: int) -> None:
    frame = stays()[["admitted", "discharged"]]
    frame["discharged"] += pd.Timedelta(days=later)
    coarse = Schema.from_dict(drafted_schema(draft_columns(frame)))
    found = {one.rule.text: one.better for one in proposed_constraints(coarse, frame)}
    asked = "a column of days, hidden or not, with discharged = admitted + days, keeps the gaps."
    assert found["admitted <= discharged"].endswith(asked) is (later == 0)


def test_the_label_is_not_computed() -> None:
    assert "ward -> building" not in proposed(stays(), label="building")
    assert "total = fee + drugs" not in proposed(stays(), label="total")


def test_a_map_names_no_value_of_few_rows() -> None:
    frame = stays()[["ward", "building"]]
    frame.loc[:2, "ward"] = "rare"
    frame.loc[:2, "building"] = "South"
    assert list(proposed(frame)) == ["nested: ward in building"]  # which names none


def test_what_is_proposed_can_be_stated_together() -> None:
    frame = stays()
    schema = Schema.draft(frame)
    rules = [one.rule.data() for one in proposed_constraints(schema, frame)]
    stated = Schema.from_dict({**schema.to_dict(), "constraints": rules})
    assert sum(stated.violations(frame).values()) == 0
    made = stated.decode(stated.encode(frame), np.random.default_rng(0))
    assert sum(stated.violations(made).values()) == 0


def test_a_chain_is_said_by_its_links() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(0, 50, N)
    b = a + rng.integers(0, 50, N)
    frame = pd.DataFrame({"a": a, "b": b, "c": b + rng.integers(0, 50, N)})
    assert list(proposed(frame)) == ["a <= b", "b <= c"]


def test_names_with_operators_stand_in_backticks() -> None:
    frame = stays()[["admitted", "discharged"]].set_axis(["in <= ward", "out"], axis=1)
    assert list(proposed(frame)) == ["`in <= ward` <= out"]
