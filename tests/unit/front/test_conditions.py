"""Conditional rows: the model's own distribution given the conditions, also inside bins that a range cuts."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.domain import Domain
from fedsyn.errors import InputError
from fedsyn.front.conditions import Except, read_conditions, restrict
from fedsyn.inference import EmpiricalModel, Model
from fedsyn.selection.factors import Cuts, factor_model
from fedsyn.table.schema import Schema
from fedsyn.table.schema.binned import Within
from fedsyn.table.schema.conditions import Between

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 10},
            "ward": {"kind": "categorical", "categories": ["children", "adults"], "missing": True},
            "triage": {"kind": "categorical", "categories": ["low", "mid", "high"], "ordered": True, "other": False},
            "cost": {"kind": "decimal", "places": 2, "lower": 0, "upper": 10, "bins": 4, "missing": True},
            "height": {"kind": "numeric", "lower": 0.0, "upper": 2.0, "bins": 4},
            "day": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 12},
            "zip": {"kind": "code", "categories": ["01007", "99999"], "width": 5, "other": False},
            "smokes": {"kind": "boolean"},
            "note": {"kind": "text"},
        }
    }
)


def model() -> Model:
    """Random potentials on a chain of columns, so that a condition on one tells of the others."""
    rng = np.random.default_rng(3)
    domain = SCHEMA.domain
    names = domain.attributes
    cliques = list(itertools.pairwise(names))
    return Model(domain, {q: rng.normal(0, 1.5, domain.shape_of(q)) for q in cliques}, 10_000.0)


@cache
def every_row() -> pd.DataFrame:
    return rows({}, n=100_000)


def rows(where: dict[str, Any], n: int = 400_000, seed: int = 0, own: Model | None = None) -> pd.DataFrame:
    schema, given = restrict(SCHEMA, own or model(), where)
    rng = np.random.default_rng(seed)
    return schema.decode(given.sample(n, rng), rng)


CONDITIONS: list[tuple[dict[str, Any], Any]] = [
    ({"ward": "children"}, lambda t: t["ward"] == "children"),
    ({"ward": None}, lambda t: t["ward"].isna()),
    ({"ward": ["children", None]}, lambda t: t["ward"].isna() | (t["ward"] == "children")),
    ({"ward": Except(("children",))}, lambda t: t["ward"] != "children"),
    ({"age": (0, 16)}, lambda t: t["age"] <= 16),
    ({"age": (37, 42), "ward": "adults"}, lambda t: t["age"].between(37, 42) & (t["ward"] == "adults")),
    ({"age": [3, 7, 95]}, lambda t: t["age"].isin([3, 7, 95])),
    ({"age": Except((3, 50))}, lambda t: ~t["age"].isin([3, 50])),
    ({"age": Between(16, 18, above=True, below=True)}, lambda t: t["age"] == 17),
    ({"triage": ("mid", None)}, lambda t: t["triage"].isin(["mid", "high"])),
    ({"cost": (1.25, 3.1)}, lambda t: t["cost"].between(1.25, 3.1)),
    ({"cost": None}, lambda t: t["cost"].isna()),
    ({"height": (0.4, 1.1)}, lambda t: t["height"].between(0.4, 1.1)),
    ({"day": ("2024-02-10", "2024-03-04")}, lambda t: t["day"].between("2024-02-10", "2024-03-04")),
    ({"zip": 1007, "smokes": True}, lambda t: (t["zip"] == "01007") & t["smokes"]),
]


@pytest.mark.parametrize(("where", "holds"), CONDITIONS, ids=[str(where) for where, _ in CONDITIONS])
def test_rows_are_those_that_rejection_would_leave(where: dict[str, Any], holds: Any) -> None:
    """Every row meets the conditions, and every column is as among all rows that do.

    Counts of a sample are within one of their expectation, in every batch; the bound below is for the unconditional
    sample, of which chance decides who is left: 6 standard deviations.
    """
    every = every_row()
    left = every[holds(every)]
    given = rows(where, n=20_000, seed=1)
    assert holds(given).all()
    for name in SCHEMA.columns:
        own, expected = (
            table[name].astype(str).where(~table[name].isna(), "missing").value_counts(normalize=True)
            for table in (_coarse(given), _coarse(left))
        )
        for value, share in expected.items():
            chance = 6 * math.sqrt(share * (1 - share) * (1 / len(left) + 1 / len(given))) + 4 / len(left)
            assert abs(own.get(value, 0.0) - share) <= chance, (name, value)
    total = restrict(SCHEMA, model(), where)[1].total
    share = len(left) / len(every)
    assert total == pytest.approx(10_000 * share, abs=10_000 * 6 * math.sqrt(share / len(every)) + 1)


def _coarse(table: pd.DataFrame) -> pd.DataFrame:
    """Columns with few values, so that each has a frequency; not by the schema's bins, which a condition may cut."""
    months = table["day"].str[:7]
    return table.assign(
        cost=np.floor(table["cost"] * 2), height=np.floor(table["height"] * 5), age=table["age"] // 3, day=months
    )


def test_a_point_of_a_column_of_floats_is_that_point() -> None:
    assert set(rows({"height": 1.0}, n=50)["height"]) == {1.0}
    assert set(rows({"height": [0.25, 2.0]}, n=500)["height"]) == {0.25, 2.0}


def test_a_model_that_is_a_table_gives_its_rows() -> None:
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, 4000) for size in SCHEMA.domain.shape], axis=1)
    own = EmpiricalModel(SCHEMA.domain, codes)
    schema, given = restrict(SCHEMA, own, {"age": (0, 14), "ward": "children"})
    table = schema.decode(given.sample(20_000, rng), rng)
    assert (table["ward"] == "children").all() and table["age"].between(0, 14).all()
    # The second bin of age, 10 to 19, is half as likely as the first.
    assert (table["age"] < 10).mean() == pytest.approx(2 / 3, abs=0.05)


def test_without_conditions_nothing_changes() -> None:
    own = model()
    assert restrict(SCHEMA, own, {}) == (SCHEMA, own)


@pytest.mark.parametrize(
    ("where", "match"),
    [
        ({"wrad": "children"}, r"unknown column 'wrad' \(did you mean 'ward'\?\)"),
        (
            {"ward": "chldren"},
            r"'chldren' is not a category of column 'ward' \(did you mean 'children'\?\)",
        ),
        ({"ward": ("adults", "children")}, "'ward' has no order"),
        ({"ward": []}, "no value of 'ward' meets all"),
        ({"triage": None}, "'triage' has no missing values"),
        ({"triage": ("high", "low")}, "'high..low' of column 'triage' is an empty range"),
        ({"age": (120, 140)}, "no value of 'age' is in that range; its values are 0"),
        ({"age": (20, 10)}, "'20..10' of column 'age' is an empty range"),
        ({"age": 120}, "no value of 'age' is in that range; its values are 0 to 99"),
        ({"age": 16.5}, "no value of 'age' is in that range"),
        ({"age": "sixteen"}, "'sixteen' is not a number like 1234, as column 'age' holds"),
        ({"age": None}, "'age' has no missing values"),
        ({"day": ("soon", None)}, "'soon' is not a date like 2024-01-01, as column 'day' holds"),
        ({"note": "x"}, r"'note' is set aside in the schema \(kind text\)"),
    ],
)
def test_what_cannot_be_is_one_sentence(where: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match) as raised:
        restrict(SCHEMA, model(), where)
    assert "\n" not in str(raised.value)


def test_what_the_model_rules_out_is_said() -> None:
    domain = Domain(
        SCHEMA.domain.attributes, SCHEMA.domain.shape, zeros=((("ward",), np.array([True, False, False, False])),)
    )
    with pytest.raises(InputError, match="probability is 0"):
        restrict(SCHEMA, Model(domain, {}, 10.0), {"ward": "children"})


@pytest.mark.parametrize(
    ("texts", "where"),
    [
        (["ward=children"], {"ward": ["children"]}),
        (["ward=children", "ward=adults"], {"ward": ["children", "adults"]}),
        (["ward="], {"ward": [None]}),
        (["ward != children"], {"ward": Except(("children",))}),
        (["age<=16"], {"age": Between(None, "16")}),
        (["age>3", "age<16"], {"age": Between("3", "16", True, True)}),
        (["day>=2024-02-10", "ward=adults"], {"ward": ["adults"], "day": Between("2024-02-10", None)}),
    ],
)
def test_conditions_are_read_as_they_are_typed(texts: list[str], where: dict[str, Any]) -> None:
    assert read_conditions(SCHEMA, texts) == where
    restrict(SCHEMA, model(), where)


def test_a_columns_name_may_hold_signs() -> None:
    schema = Schema.from_dict({"columns": {"a": {"kind": "boolean"}, "a<=b": {"kind": "boolean"}}})
    assert read_conditions(schema, ["a<=b=true"]) == {"a<=b": ["true"]}


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (["ward"], "expected COLUMN=VALUE"),
        (["wrad=x"], r"did you mean 'ward'\?"),
        (["age<=3", "age<5"], "given twice"),
        (["age=3", "age<5"], "'age' is asked for with '='"),
        (["age<"], "a value is missing after '<'"),
    ],
)
def test_a_badly_typed_condition_is_one_sentence(texts: list[str], match: str) -> None:
    with pytest.raises(InputError, match=match):
        read_conditions(SCHEMA, texts)


@pytest.mark.parametrize("whole", [True, False])
def test_draws_stay_in_their_bins_and_pieces(whole: bool) -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        edges = np.unique(rng.integers(-20, 60, rng.integers(2, 8))).astype(float)
        if len(edges) < 2:
            continue
        cuts = np.sort(rng.integers(-25, 65, 2 * rng.integers(1, 4))) + (0 if whole else rng.random())
        pieces = list(zip(cuts[::2].tolist(), cuts[1::2].tolist(), strict=True))
        if not whole and any(low == high for low, high in pieces):
            continue  # a point holds nothing of a range of floats
        if any(before >= after for (_, before), (after, _) in itertools.pairwise(pieces)):
            continue  # pieces are disjoint
        within = Within(edges, whole, pieces)
        grid = np.arange(edges[0], edges[-1]) if whole else np.linspace(edges[0], edges[-1], 20_001)
        allowed = np.any([(grid >= low) & (grid <= high) for low, high in pieces], axis=0)
        bins = np.clip(np.searchsorted(edges, grid, side="right") - 1, 0, len(edges) - 2)
        for code, weight in enumerate(within.weights):
            assert weight == pytest.approx(allowed[bins == code].mean(), abs=1e-9 if whole else 0.01)
            if weight > 0 and len({low for low, _ in pieces}) == len(pieces):
                drawn = within.draw(np.full(300, code), rng.random(300))
                assert np.any([(drawn >= low) & (drawn <= high) for low, high in pieces], axis=0).all()
                assert (drawn >= edges[code]).all() and (drawn < edges[code + 1]).sum() >= 299


def test_a_range_in_which_nothing_is_drawn_is_not_called_out_of_bounds() -> None:
    """Where neighbouring counts fall towards a bound, no value of the outermost bin is drawn beside it."""
    schema = Schema.from_dict({"columns": {"fee": {"kind": "numeric", "lower": 0, "upper": 500, "bins": 16}}})
    fees = np.random.default_rng(0).gamma(6, 20, 3000).clip(0, 499)
    own = EmpiricalModel(schema.domain, (fees[:, None] // 31.25).astype(int))
    restrict(schema, own, {"fee": (0, 20)})
    with pytest.raises(InputError, match="no value of 'fee' that is drawn lies in that range; ask for a wider one"):
        restrict(schema, own, {"fee": (0, 1)})


# Beside constraints --------------------------------------------------------------------------------------------------


def stay() -> Schema:
    """A stay in hospital: two dates in order, a sum, a building that the ward decides."""
    wards = {"A": "north", "B": "north", "C": "south"}
    return Schema.from_dict(
        {
            "columns": {
                "ward": {"kind": "categorical", "categories": ["A", "B", "C"], "other": False},
                "building": {"kind": "categorical", "categories": ["north", "south"], "other": False},
                "admitted": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 3},
                "discharged": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 3},
                "a": {"kind": "integer", "lower": 0, "upper": 9, "bins": 2},
                "b": {"kind": "integer", "lower": 0, "upper": 9, "bins": 2},
                "total": {"kind": "integer", "lower": 0, "upper": 18},
            },
            "constraints": [
                "admitted < discharged",
                "total = a + b",
                {"determines": "ward", "column": "building", "map": wards},
            ],
        }
    )


@pytest.mark.parametrize("table", [False, True])
def test_conditions_and_constraints_hold_together_in_every_row(table: bool) -> None:
    """Both dates lie in one bin, of which the range leaves four days: most first draws break the order."""
    schema, rng = stay(), np.random.default_rng(0)
    own: Model | EmpiricalModel = Model(schema.domain, {}, 1000.0)
    if table:
        own = EmpiricalModel(schema.domain, own.sample(5000, rng))
    where = {"admitted": ("2024-02-20", "2024-02-23"), "discharged": ("2024-02-19", "2024-02-23"), "building": "north"}
    restricted, given = restrict(schema, own, where)
    rows = restricted.decode(given.sample(2000, rng), rng)
    assert rows["admitted"].between("2024-02-20", "2024-02-22").all()
    assert (rows["admitted"] < rows["discharged"]).all() and (rows["discharged"] <= "2024-02-23").all()
    assert set(rows["ward"]) == {"A", "B"} and (rows["building"] == "north").all()
    assert (rows["total"] == rows["a"] + rows["b"]).all()


def test_a_model_with_a_factor_is_asked_beside_constraints() -> None:
    """The factor is no column: a model of the schema's domain alone would not know it."""
    schema, rng = stay(), np.random.default_rng(0)
    cuts = {
        name: Cuts.of(np.full(n, 1.0 / n), np.arange(float(n)))
        for name, n in zip(schema.domain, schema.domain.shape, strict=True)
    }
    own = factor_model(schema.domain, cuts, [{"admitted": 0.9, "discharged": 0.9}], 1000.0)
    restricted, given = restrict(schema, own, {"admitted": ("2024-02-20", "2024-02-23")})
    rows = restricted.decode(given.sample(500, rng), rng)
    assert rows["admitted"].between("2024-02-20", "2024-02-23").all() and (rows["admitted"] < rows["discharged"]).all()


def test_what_conditions_and_constraints_rule_out_together_is_said() -> None:
    schema = stay()
    own = Model(schema.domain, {}, 1000.0)
    for where in (
        {"admitted": ("2024-02-20", None), "discharged": (None, "2024-02-20")},  # one bin
        {"admitted": ("2024-09-20", None), "discharged": (None, "2024-02-20")},
        {"building": "north", "ward": "C"},
    ):
        with pytest.raises(InputError, match=r"no row|no value"):
            _, given = restrict(schema, own, where)
            given.sample(1, np.random.default_rng(0))
    with pytest.raises(InputError, match="'total' is computed by 'total = a"):
        restrict(schema, own, {"total": 3})
