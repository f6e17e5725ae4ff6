"""Rules of missing values, zeros and nested codes: what they say, what a draft finds, what a table keeps of them."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.errors import InputError, SchemaError
from fedsyn.table.schema import Schema
from fedsyn.table.schema.nested import likeliest
from fedsyn.table.schema.proposals import proposed_constraints
from fedsyn.table.schema.review import with_constraint, with_map
from support import planted_rules

NUMBER = {"kind": "integer", "lower": 0, "upper": 3, "bins": "values"}
MAYBE = NUMBER | {"missing": True}


def schema_of(columns: dict[str, Any], *rules: Any) -> Schema:
    return Schema.from_dict({"columns": columns, "constraints": list(rules)})


def possible(schema: Schema) -> set[tuple[int, ...]]:
    every = np.array(list(itertools.product(*map(range, schema.domain.shape))))
    return {tuple(row) for row in every[~schema.domain.violated(every)].tolist()}


# What they say --------------------------------------------------------------------------------------------------------


def test_what_is_missing_stays_missing() -> None:
    schema = schema_of({"a": NUMBER, "b": MAYBE, "c": MAYBE, "d": MAYBE}, {"dropout": ["a", "b", "c", "d"]})
    cells = possible(schema)
    missing = {tuple(code == 4 for code in row[1:]) for row in cells}
    assert missing == {(False,) * 3, (False, False, True), (False, True, True), (True,) * 3}
    assert len(cells) == 4 * (64 + 16 + 4 + 1)
    frame = pd.DataFrame({"a": [1, 1, 1], "b": [1, None, None], "c": [1, None, 2], "d": [None, None, None]})
    assert schema.violations(frame) == {"dropout: a, b, c, d": 1}


def test_a_status_decides_what_is_missing_in_both_directions() -> None:
    status = {"kind": "categorical", "categories": ["on", "off", "left"], "other": False, "missing": True}
    schema = schema_of({"s": status, "end": MAYBE}, {"missing": "end", "where": {"s": ["on", None]}})
    assert possible(schema) == {(0, 4), (3, 4), *itertools.product((1, 2), range(4))}
    frame = pd.DataFrame({"s": ["on", "on", "off", "left", None], "end": [None, 1, None, 2, None]})
    assert schema.violations(frame) == {"end is missing exactly where s = on or missing": 2}


@pytest.mark.parametrize("bins", [2, "values"])
def test_zero_there_means_zero_here(bins: Any) -> None:
    """Also where zero shares its bin with other numbers: the numbers inside it decide."""
    columns = {"n": NUMBER, "cost": {"kind": "integer", "lower": 0, "upper": 9, "bins": bins, "missing": True}}
    schema = schema_of(columns, {"zero": ["n", "cost"]})
    missing = schema.domain["cost"] - 1
    assert {row for row in possible(schema) if row[1] != missing} == (
        {(0, 0), *itertools.product((1, 2, 3), range(2))}
        if bins == 2
        else {(0, 0), *itertools.product((1, 2, 3), range(1, 10))}
    )
    codes = np.array(sorted(possible(schema)) * 50)
    made = schema.decode(codes, np.random.default_rng(0))
    known = made.dropna()
    assert ((known["n"] == 0) == (known["cost"] == 0)).all() and set(schema.violations(made).values()) == {0}
    assert np.array_equal(schema.encode(made), codes)


def test_what_is_not_listed_becomes_a_value_that_fits_all_rules() -> None:
    """Each rule alone would leave it one, another one each."""
    status = {"kind": "categorical", "categories": ["left", "on"], "other": False, "unlisted": True}
    rules = [{"missing": name, "where": {"s": "on"}} for name in ("end", "why")]
    schema = schema_of({"s": status, "end": MAYBE, "why": MAYBE}, *rules)
    codes = np.array(sorted(possible(schema)))
    assert (codes[:, 0] == 2).any()
    made = schema.decode(np.repeat(codes, 5, axis=0), np.random.default_rng(0))
    assert set(schema.violations(made).values()) == {0} and set(made["s"]) == {"left", "on"}


def test_a_code_for_missing_is_missing_too() -> None:
    coded = NUMBER | {"missing_codes": [-9]}
    schema = schema_of({"a": coded, "b": coded}, {"dropout": ["a", "b"]})
    assert possible(schema) == {*itertools.product(range(4), range(5)), (4, 4)}


CITY = {"kind": "categorical", "categories": ["p", "q", "r"], "missing": True}
LAND = {"kind": "categorical", "categories": ["x", "y"], "other": False, "missing": True}
REFUSED: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "one column": ({}, [{"dropout": ["a"]}], "dropout must be a list of at least two columns"),
    "twice": ({}, [{"zero": ["a", "a"]}], "it names 'a' twice"),
    "in itself": ({}, [{"missing": "b", "where": {"b": 1}}], "it names 'b' twice"),
    "no condition": ({}, [{"missing": "b"}], "'where' is missing beside 'missing'"),
    "never missing": ({}, [{"missing": "a", "where": {"b": 1}}], "'a' has no missing values"),
    "a later one that is always there": ({}, [{"dropout": ["b", "a"]}], "'a' has no missing values"),
    "no number": ({"s": CITY}, [{"zero": ["a", "s"]}], "'s' is not a column of numbers"),
    "no categories": ({"s": CITY}, [{"nested": ["s", "a"]}], "'a' is not a modelled column of categories"),
    "unknown": ({}, [{"nested": ["aa", "b"]}], "'aa' is not a column (did you mean 'a'?)"),
    "circle": ({"s": CITY, "t": LAND}, [{"nested": ["s", "t"]}, {"nested": ["t", "s"]}], "nested in each other"),
    "two codes": (
        {"s": CITY, "t": CITY, "u": LAND},
        [{"nested": ["s", "u"]}, {"nested": ["t", "u"]}],
        "codes of two columns lie in 'u'",
    ),
    "a group that something else is about": (
        {"s": CITY, "t": LAND},
        [{"nested": ["s", "t"]}, {"impossible": {"t": "x", "a": 1}}],
        "'t' follows from 's', so state 'impossible: t = x and a = 1' for 's'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(case: str) -> None:
    columns, rules, said = REFUSED[case]
    with pytest.raises(SchemaError) as caught:
        schema_of({"a": NUMBER, "b": MAYBE} | columns, *rules)
    assert said in str(caught.value)


# Nested codes ---------------------------------------------------------------------------------------------------------


def nested() -> Schema:
    area = {"kind": "categorical", "categories": ["east", "west"], "other": False}
    map_ = {"determines": "land", "column": "area", "map": {"x": "east", "y": "west"}}
    return schema_of(
        {"city": CITY, "land": LAND | {"missing": False}, "area": area}, {"nested": ["city", "land"]}, map_
    )


def test_each_code_of_a_decoded_table_lies_in_one_group() -> None:
    schema = nested()
    rng = np.random.default_rng(0)
    city = rng.integers(0, 5, 600)
    land = np.where(rng.random(600) < 0.8, np.array([0, 1, 1, 0, 0])[city], rng.integers(0, 2, 600))
    codes = np.stack([city, land], axis=1)
    made = schema.decode(codes, np.random.default_rng(1))
    groups = made.groupby("city")["land"].agg(lambda some: sorted(set(some)))
    assert groups[["p", "q", "r"]].tolist() == [["x"], ["y"], ["y"]] and len(groups["other"]) == 2
    assert set(schema.violations(made).values()) == {0}
    assert (made["area"] == made["land"].map({"x": "east", "y": "west"})).all()  # computed of the group that is written
    assert np.array_equal(schema.encode(made), schema.placed(codes, np.random.default_rng(0)))
    broken = schema.violations(schema.decode(codes, rng).assign(land=np.array(["x", "y"])[land]))
    assert broken["nested: city in land"] == sum(
        land[city == at].tolist().count(1 - to) for at, to in enumerate((0, 1, 1))
    )


def test_the_category_of_unknown_codes_lies_in_no_group() -> None:
    city = {"kind": "categorical", "categories": ["p", "Other"]}
    schema = schema_of({"city": city, "land": LAND}, {"nested": ["city", "land"]})
    codes = np.array([[0, 0], [0, 0], [0, 1], [0, 2], [1, 0], [1, 0], [1, 1], [1, 2]])
    assert schema.placed(codes, np.random.default_rng(0))[:, 1].tolist() == [0, 0, 0, 2, 0, 0, 1, 2]
    assert set(schema.violations(schema.decode(codes, np.random.default_rng(0))).values()) == {0}


def test_every_batch_of_a_table_has_the_same_groups() -> None:
    """The groups come from the released model, not from the rows of a batch."""
    table = np.array([[9.0, 1], [1, 9], [2, 8], [5, 5], [5, 5]])
    schema = nested().shaped({}, nested={("city", "land"): table})
    batch = np.array([[0, 1], [0, 1], [1, 0], [2, 1], [3, 1], [3, 0]])
    assert schema.placed(batch, np.random.default_rng(0))[:, 1].tolist() == [0, 0, 1, 1, 1, 0]
    assert schema.decode(batch, np.random.default_rng(0))["land"].tolist() == ["x", "x", "y", "y", "y", "x"]


def test_groups_keep_their_shares_where_nothing_is_known_of_a_code() -> None:
    sizes, shares = np.arange(1.0, 41), np.array([0.5, 0.3, 0.15, 0.05])
    found = likeliest(np.outer(sizes, shares))
    assert np.abs(np.bincount(found, sizes, 4) / sizes.sum() - shares).max() < 0.03
    exact = np.zeros((40, 4))
    exact[np.arange(40), np.arange(40) % 4] = sizes
    assert np.array_equal(likeliest(exact), np.arange(40) % 4)
    assert likeliest(np.zeros((3, 2))).tolist() == [0, 0, 0] and likeliest(np.ones((3, 1))).tolist() == [0, 0, 0]


# What a draft finds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", planted_rules.TABLES)
def test_planted_rules_are_proposed_and_only_true_ones(table: str) -> None:
    frame = planted_rules.TABLES[table]()
    found = {str(one.rule.data()): one for one in proposed_constraints(Schema.draft(frame), frame)}
    wanted = [str(rule) for rule in planted_rules.PLANTED[table]]
    assert list(found) == wanted
    # Independent columns: of n rows so many would break it, give or take five standard errors of 10,000 pairs.
    if table == "staff":
        terminated = (frame["status"] == "terminated").mean()
        assert abs(found[wanted[0]].breaks - 2 * terminated * (1 - terminated)) < 0.025
        hired, left = frame["hired"].to_numpy(), frame["terminated_on"].dropna().to_numpy()
        assert abs(found["hired <= terminated_on"].breaks - (hired[:, None] > left[None, :]).mean()) < 0.025
    assert all(0.05 < one.breaks < 1 for one in found.values())


def test_one_row_that_breaks_it_ends_a_proposal() -> None:
    for table, name, value, where in (
        ("trial", "sbp_v4", 140, lambda frame: frame["sbp_v3"].isna()),
        ("staff", "reason", None, lambda frame: frame["status"] == "terminated"),
        ("claims", "amount", 0, lambda frame: frame["claims"] > 0),
    ):
        frame = planted_rules.TABLES[table]()
        frame.loc[where(frame).idxmax(), name] = value
        texts = [one.rule.text for one in proposed_constraints(Schema.draft(frame), frame)]
        assert not any(text.startswith((f"{name} is", "zero")) or f"{name}," in text for text in texts), texts


def test_numbers_of_different_units_are_not_compared() -> None:
    """A count of claims is below each amount that is not zero: that is what zeros and ranges make it."""
    rng = np.random.default_rng(0)
    claims = np.where(rng.random(3000) < 0.3, rng.integers(1, 5, 3000), 0)
    amount = np.where(claims > 0, rng.integers(100, 9000, 3000), 0)
    frame = pd.DataFrame(
        {"claims": claims, "amount": amount, "exact": amount * 1.37, "part": rng.random(3000) * claims}
    )
    texts = [one.rule.text for one in proposed_constraints(Schema.draft(frame), frame)]
    assert texts and not any("<=" in text for text in texts)
    low = rng.integers(50, 90, 3000)
    frame = pd.DataFrame({"diastolic": low, "systolic": low + rng.integers(5, 60, 3000)})
    assert [one.rule.text for one in proposed_constraints(Schema.draft(frame), frame)] == ["diastolic <= systolic"]


def test_zero_that_is_only_the_lower_end_of_a_scale_is_not_proposed() -> None:
    rng = np.random.default_rng(0)
    stay = rng.integers(0, 20, 3000)
    frame = pd.DataFrame({"stay": stay, "late": stay * rng.integers(0, 4, 3000)})
    texts = [one.rule.text for one in proposed_constraints(Schema.draft(frame), frame)]
    assert not any(text.startswith(("when", "zero")) for text in texts)
    visits = np.where(rng.random(3000) < 0.6, 0, rng.integers(1, 9, 3000))
    frame = pd.DataFrame({"visits": visits, "admissions": rng.binomial(visits, 0.3)})
    texts = [one.rule.text for one in proposed_constraints(Schema.draft(frame), frame)]
    assert texts == ["admissions <= visits"]  # which says it of zero, too
    smoker = rng.random(3000) < 0.2
    packs = np.where(smoker & (rng.random(3000) < 0.7), rng.integers(1, 60, 3000), 0)
    frame = pd.DataFrame({"smokes": smoker.astype(int), "packs": packs})
    texts = [one.rule.text for one in proposed_constraints(Schema.draft(frame), frame)]
    assert "when smokes = 0: packs = 0" in texts


# What a person is told, and answers -----------------------------------------------------------------------------------


def test_a_draft_carries_what_it_proposes_and_approval_names_what_is_not_stated() -> None:
    frame = planted_rules.staff()
    schema = Schema.draft(frame)
    assert [one.rule for one in schema.proposed][-1] == "hired <= terminated_on"
    assert Schema.loads(schema.dumps()).proposed == schema.proposed
    with pytest.warns(UserWarning, match="not stated, so it may fail") as caught:
        approved = schema.approve(public="planted")
    said = [str(one.message) for one in caught]
    share = next(one.breaks for one in schema.proposed if one.rule == "hired <= terminated_on")
    assert any("hired <= terminated_on (it holds in " in text and f"{share}% would break it" in text for text in said)
    assert len(said) == 3 and approved.constraints == ()
    assert "hired <= terminated_on" not in approved.dumps()  # what a run accepts says nothing of rows
    one = schema.stated("hired <= terminated_on")
    assert [rule.text for rule in one.constraints] == ["hired <= terminated_on"] and len(one.proposed) == 2
    every = schema.stated()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(every.approve(public="planted").constraints) == 3 and not every.proposed
    assert set(every.violations(frame).values()) == {0}


def test_a_public_map_is_read_from_a_file(tmp_path: Path) -> None:
    text = Schema.from_dict(
        {"columns": {"city": CITY, "land": LAND}, "constraints": [{"nested": ["city", "land"]}]}
    ).dumps()
    file = tmp_path / "map.csv"
    file.write_text("city,land\np,x\nq,y\nr,y\nelsewhere,x\n", encoding="utf-8")
    with pytest.raises(SchemaError, match="not a modelled column of categories"):
        with_map(text, file)  # the run is not to find what is known
    plain = Schema.from_dict({"columns": {"city": CITY, "land": LAND}}).dumps()
    schema = Schema.loads(with_map(plain, file))
    assert schema.constraints[0].data() == {
        "determines": "city",
        "column": "land",
        "map": {"p": "x", "q": "y", "r": "y"},
    }
    for content, said in (
        ("city,land\np,x\np,y\n", "'p' is in two groups"),
        ("town,land\np,x\n", "found 'town'"),
        ("city\np\n", "expected two columns"),
    ):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            with_map(plain, file)
    with pytest.raises(InputError, match=r"none\.csv"):
        with_map(plain, tmp_path / "none.csv")


def test_a_constraint_is_added_where_the_others_stand() -> None:
    text = "columns: {a: {kind: integer, lower: 0, upper: 9}, b: {kind: integer, lower: 0, upper: 9}}\n"
    for before in ("", "constraints:  # ours\n  - a <= 8\n", "constraints:\n- a <= 8\nlabel: a\n"):
        rules = Schema.loads(with_constraint(text + before, "a <= b")).constraints
        assert "a <= b" in [rule.text for rule in rules] and len(rules) == 1 + bool(before)
    with pytest.raises(SchemaError, match="on a line of its own"):
        with_constraint(f"{text}constraints: [a <= 8]\n", "a <= b")
