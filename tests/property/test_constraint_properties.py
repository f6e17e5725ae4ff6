"""Public constraints that hypothesis makes up: zeros are those of brute force over values, decoded rows obey."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fedsyn.errors import SchemaError
from fedsyn.table.schema import Schema, compiled

COMPARED = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}


def columns(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Two to four small columns: whole numbers in steps of 1 or 0.5 with a few bins, and wards."""
    out: dict[str, dict[str, Any]] = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        lower, span = draw(st.integers(-2, 3)), draw(st.integers(0, 4))
        column = {
            "lower": lower,
            "upper": lower + span,
            "bins": draw(st.integers(1, 4)),
            "missing": draw(st.booleans()),
        }
        kind = draw(st.sampled_from(["integer", "decimal", "numeric"]))
        extra = {"integer": {}, "decimal": {"places": 1}, "numeric": {"dtype": "integer"}}[kind]
        out[name] = {"kind": kind, **extra, **column}
        if kind == "decimal":  # in tenths: few values
            out[name]["upper"] = lower + span / 10
    out["ward"] = {"kind": "categorical", "categories": ["x", "y", "z"], "other": False, "missing": draw(st.booleans())}
    return out


def condition(draw: st.DrawFn, name: str, kinds: dict[str, dict[str, Any]]) -> Any:
    column = kinds[name]
    if column["kind"] == "categorical":
        some = draw(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=2, unique=True))
    else:
        lower, upper = column["lower"] - 1, column["upper"] + 1
        number = draw(st.sampled_from([x / 10 for x in range(round(10 * lower), round(10 * upper) + 1)]))
        number = round(number) if column["kind"] != "decimal" else number
        form = draw(st.sampled_from(["<=", "<", ">=", ">", "=", "!=", "value", ".."]))
        if form == "value":
            some = [number]
        elif form == "..":
            some = [f"{number}..{round(number + 1, 1)}"]
        else:
            some = [f"{form} {number}"]
    if column["missing"] and draw(st.booleans()):
        some = [*some, None]
    return some


@st.composite
def schemas(draw: st.DrawFn) -> tuple[dict[str, dict[str, Any]], list[Any]]:
    kinds = columns(draw)
    numbers = [name for name in kinds if name != "ward"]
    rules: list[Any] = []
    for _ in range(draw(st.integers(1, 4))):
        sort = draw(st.sampled_from(["order", "order", "impossible", "when", "dropout", "missing", "zero"]))
        absent = [name for name in kinds if kinds[name]["missing"]]
        if sort == "order" and len(numbers) > 1:
            left, right = draw(st.permutations(numbers))[:2]
            rules.append(f"{left} {draw(st.sampled_from(sorted(COMPARED)))} {right}")
        elif sort == "dropout":
            if absent:
                always = [name for name in kinds if name not in absent]
                names = [*always[: draw(st.integers(1, 2))], *draw(st.permutations(absent))]
                rules += [{"dropout": names}] if len(names) > 1 else []
        elif sort == "missing":
            if absent and len(kinds) > 1:
                name = draw(st.sampled_from(absent))
                others = draw(st.lists(st.sampled_from([n for n in kinds if n != name]), min_size=1, max_size=2))
                rules.append({"missing": name, "where": {other: condition(draw, other, kinds) for other in others}})
        elif sort == "zero":
            if len(numbers) > 1:
                rules.append({"zero": draw(st.permutations(numbers))[: draw(st.integers(2, 3))]})
        elif sort == "impossible":
            names = draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=3, unique=True))
            rules.append({"impossible": {name: condition(draw, name, kinds) for name in names}})
        else:
            first, second = draw(st.permutations(list(kinds)))[:2]
            rules.append(
                {"when": {first: condition(draw, first, kinds)}, "then": {second: condition(draw, second, kinds)}}
            )
    return kinds, rules


def meets(value: Any, wanted: list[Any]) -> bool:
    """What the language says of one value, written down once more and differently."""
    for item in wanted:
        if item is None or value is None:
            if item is None and value is None:
                return True
        elif isinstance(item, str) and item[0] in "<>=!":
            sign, number = item.split(" ")
            if {**COMPARED, "=": operator.eq, "!=": operator.ne}[sign](value, float(number)):
                return True
        elif isinstance(item, str) and ".." in item:
            low, high = map(float, item.split(".."))
            if low <= value <= high:
                return True
        elif value == item:
            return True
    return False


def obeys(row: dict[str, Any], rules: list[Any]) -> bool:
    for rule in rules:
        if isinstance(rule, str):
            left, sign, right = rule.split(" ")
            if row[left] is not None and row[right] is not None and not COMPARED[sign](row[left], row[right]):
                return False
        elif "dropout" in rule:
            absent = [row[name] is None for name in rule["dropout"]]
            if absent != sorted(absent):
                return False
        elif "missing" in rule:
            if (row[rule["missing"]] is None) != all(
                meets(row[name], wanted) for name, wanted in rule["where"].items()
            ):
                return False
        elif "zero" in rule:
            if len({row[name] == 0 for name in rule["zero"] if row[name] is not None}) > 1:
                return False
        elif "impossible" in rule:
            if all(meets(row[name], wanted) for name, wanted in rule["impossible"].items()):
                return False
        elif all(meets(row[name], wanted) for name, wanted in rule["when"].items()) and not all(
            row[name] is None or meets(row[name], wanted) for name, wanted in rule["then"].items()
        ):
            return False
    return True


def values_of(column: dict[str, Any]) -> list[Any]:
    absent = [None] if column["missing"] else []
    if column["kind"] == "categorical":
        return ["x", "y", "z", *absent]
    step = 10 if column["kind"] == "decimal" else 1
    first, last = round(step * column["lower"]), round(step * column["upper"])
    return [*(number / step for number in range(first, last + 1)), *absent]


def circular(rules: list[Any]) -> bool:
    after: dict[str, set[str]] = {}
    for rule in rules:
        if isinstance(rule, str):
            left, sign, right = rule.split(" ")
            first, second = (left, right) if sign[0] == "<" else (right, left)
            after.setdefault(first, set()).add(second)
    reached = {name: set(then) for name, then in after.items()}
    for _ in range(3):
        reached = {n: then.union(*(reached.get(other, set()) for other in then)) for n, then in reached.items()}
    return any(name in then for name, then in reached.items())


def whole(lower: int, upper: int, bins: int, missing: bool = False) -> dict[str, Any]:
    return {"kind": "integer", "lower": lower, "upper": upper, "bins": bins, "missing": missing}


WARD = {"kind": "categorical", "categories": ["x", "y", "z"], "other": False, "missing": False}
# a <= b and b <= c allow bins that a <= c rules out; of pairs, or (where b may be missing) of all three.
CHAIN = {"a": whole(5, 9, 1), "b": whole(0, 6, 1), "c": whole(0, 6, 3), "ward": WARD}
GAP = {"a": whole(0, 9, 2), "b": whole(0, 9, 1, missing=True), "c": whole(0, 9, 2), "ward": WARD}
# Inside one bin of a, the ward's range and the comparison leave nothing together.
RANGE = {"a": whole(0, 9, 1), "b": whole(0, 9, 5), "ward": WARD}
NARROW = [{"when": {"ward": ["x"]}, "then": {"a": [">= 6"]}}, "a <= b", {"impossible": {"b": ["8..9"], "ward": ["y"]}}]


@example((CHAIN, ["a <= b", "b <= c"]), 0, False)
@example((GAP, ["a < b", "b < c"]), 1, False)
@example((RANGE, NARROW), 2, False)
@example(
    (GAP | {"a": whole(0, 9, 2, missing=True)}, [{"dropout": ["c", "a", "b"]}, "a <= b", {"zero": ["b", "a"]}]), 3, True
)
@example((GAP, [{"missing": "b", "where": {"ward": ["x"], "a": ["< 3"]}}, "b <= c"]), 4, False)
@given(schemas(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=50, deadline=None)
def test_zeros_and_rows_are_those_of_brute_force(
    case: tuple[dict[str, dict[str, Any]], list[Any]], seed: int, redraws: bool
) -> None:
    kinds, rules = case
    assume(rules and not circular(rules))
    with pytest.MonkeyPatch.context() as patch:
        if not redraws:  # every row that breaks a constraint is placed
            patch.setattr(compiled, "_DRAWS", 0)
        against_brute_force(kinds, rules, seed)


def against_brute_force(kinds: dict[str, dict[str, Any]], rules: list[Any], seed: int) -> None:
    rows = [dict(zip(kinds, row, strict=True)) for row in itertools.product(*map(values_of, kinds.values()))]
    plain = Schema.from_dict({"columns": kinds})
    frame = pd.DataFrame(rows, columns=list(kinds), dtype=object)
    codes = plain.encode(frame)
    fine = np.array([obeys(row, rules) for row in rows])
    if not fine.any():
        try:
            Schema.from_dict({"columns": kinds, "constraints": rules})
        except SchemaError as error:
            assert "no possible row" in str(error)
            return
        raise AssertionError("constraints that nothing satisfies were accepted")
    schema = Schema.from_dict({"columns": kinds, "constraints": rules})
    assert Schema.loads(schema.dumps()) == schema and schema.sha256 != plain.sha256
    possible = {tuple(row) for row in codes[fine].tolist()}
    every = np.array(list(itertools.product(*map(range, plain.domain.shape))), dtype=plain.dtype)
    barred = schema.domain.violated(every)
    assert [tuple(row) in possible for row in every.tolist()] == (~barred).tolist()
    # Every possible row of codes decodes to values that obey, and encodes to itself.
    given_codes = np.repeat(every[~barred], 7, axis=0)
    decoded = schema.decode(given_codes, np.random.default_rng(seed))
    assert np.array_equal(schema.encode(decoded), given_codes)
    for row in decoded.astype(object).where(decoded.notna(), None).to_dict("records"):
        assert obeys(row, rules), row
    assert set(schema.violations(decoded).values()) == {0}
    broken = schema.violations(frame)
    for rule, text in zip(rules, [constraint.text for constraint in schema.constraints], strict=True):
        assert broken[text] == sum(not obeys(row, [rule]) for row in rows)
