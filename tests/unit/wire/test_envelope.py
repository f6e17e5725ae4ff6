"""Envelopes, and what they say of a sum and of its stage: malformed ones are refused, not believed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsyn.errors import ProtocolError
from fedsyn.wire.envelope import ENVELOPE, PROTOCOL_VERSION, Envelope, Stage, SumSpec, from_json, to_json

# The envelope ------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


positive = st.floats(1e-300, 1e300)
number = st.integers(1, 2**20)
specs = st.builds(
    SumSpec,
    st.lists(st.lists(st.integers(1, 10**5), max_size=3).map(tuple), min_size=1, max_size=3).map(tuple),
    positive,
    positive,
    number,
    st.booleans(),
    positive,
    number,
    number,
)
stages = st.builds(Stage, st.text(), st.integers(0, 99), st.text())


@pytest.mark.thorough
@given(
    st.text(),
    st.text(),
    st.integers(0, 10**6),
    st.text(),
    st.dictionaries(st.text() | st.sampled_from(["sum", "stage", "name", "skip", "run", "asked"]), json_values),
    st.integers(0, 10**6),
    st.none() | specs,
    st.none() | stages,
)
def test_envelopes_survive_the_round_trip(
    request_: str,
    kind: str,
    t: int,
    config: str,
    params: dict,
    sequence: int,
    spec: SumSpec | None,
    stage: Stage | None,
) -> None:
    """Also with parameters that have the names of what the envelope says of a sum."""
    sent = Envelope(request_, kind, t, config, params, sequence, spec, stage)
    assert Envelope.from_scalars(sent.to_scalars()) == sent


def fields(**changes: object) -> dict[str, str]:
    good = {"version": PROTOCOL_VERSION, "request": "r", "kind": "ask", "round": 1, "sequence": 3}
    good |= {"config": "c", "params": {}}
    return {ENVELOPE: json.dumps({k: v for k, v in (good | changes).items() if v is not ...})}


def test_the_good_envelope_of_these_tests_is_accepted() -> None:
    assert Envelope.from_scalars(fields()) == Envelope("r", "ask", 1, "c", {}, 3)


@pytest.mark.parametrize("field", ["request", "kind", "config", "params", "round", "sequence", "version"])
@pytest.mark.parametrize("value", [..., None, [], True, 1.5])
def test_an_envelope_needs_every_field_with_its_type(field: str, value: object) -> None:
    with pytest.raises(ProtocolError, match=field):
        Envelope.from_scalars(fields(**{field: value}))


def test_another_protocol_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(ProtocolError, match=r"version 99, this side speaks .*install the same fedsyn"):
        Envelope.from_scalars(fields(version=99))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "null", b"{}", 3, None, "[" * 200_000, '{"n": ' + "9" * 10_000 + "}", "\ud800"]
)
def test_what_is_not_a_json_object_is_a_protocol_error(text: object) -> None:
    with pytest.raises(ProtocolError, match="not a JSON object"):
        from_json(text, "answer")


def test_json_is_written_the_same_whatever_the_order_of_keys() -> None:
    assert to_json({"b": 1, "a": [2]}) == to_json({"a": [2], "b": 1}) == '{"a":[2],"b":1}'


# The description of a sum ------------------------------------------------------------------------------------------


GOOD = {
    "shapes": [[2, 3]],
    "sigma": 1.0,
    "sensitivity": 1.0,
    "count": 1,
    "signed": False,
    "magnitude": 1.0,
    "asked": 1,
    "number": 0,
}


def test_the_good_description_of_these_tests_is_accepted() -> None:
    spec = SumSpec(((2, 3),), 1.0, 1.0, 1)
    assert SumSpec.read(GOOD) == spec and spec.length == 6
    assert SumSpec.read(json.loads(json.dumps(asdict(spec)))) == spec


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": None},
        {"shapes": [[0]]},
        {"shapes": [[-2, -3]]},
        {"shapes": [["x"]]},
        {"shapes": 3},
        {"shapes": [[math.inf]]},
        {"sigma": 0},
        {"sigma": -1.0},
        {"sigma": math.inf},
        {"sigma": math.nan},
        {"sigma": "1e"},
        {"sigma": 10**400},
        {"sensitivity": 0},
        {"sensitivity": math.nan},
        {"sensitivity": math.inf},
        {"count": 0},
        {"count": -1},
        {"count": None},
        {"magnitude": 0},
        {"magnitude": math.nan},
        {"asked": 0},
        {"asked": None},
        {"number": -1},
        {"shapes": []},
        {"shapes": [[2**30, 2**30]]},
        {"shapes": {}},
        {"shapes": "23"},
        {"shapes": ["23"]},
        {"shapes": [["2", "3"]]},
        {"shapes": [[True, 3]]},
        {"shapes": [[2.0, 3]]},
        {"shapes": [[2**53]]},
        {"sigma": True},
        {"sigma": "1.0"},
        {"count": True},
        {"count": 1.5},
        {"count": 10**400},
        {"signed": 0},
        {"signed": None},
        {"magnitude": math.inf},
        {"asked": 2**53},
        {"number": "0"},
        {"number": 2.0},
    ],
)
def test_a_malformed_description_of_a_sum_is_refused(change: dict) -> None:
    with pytest.raises(ProtocolError, match="description of the sum is malformed"):
        Envelope.from_scalars(fields(sum=GOOD | change))


@pytest.mark.parametrize("key", list(GOOD))
def test_a_description_of_a_sum_needs_every_fact(key: str) -> None:
    with pytest.raises(ProtocolError, match="description of the sum is malformed"):
        Envelope.from_scalars(fields(sum={name: value for name, value in GOOD.items() if name != key}))


@pytest.mark.parametrize("value", [None, "", "{}", [], 3, True, [[[2]], 1.0, 1.0]])
@pytest.mark.parametrize("part", ["sum", "stage"])
def test_what_is_no_description_at_all_is_refused(part: str, value: object) -> None:
    with pytest.raises(ProtocolError, match=f"message field '{part}' is not a dict"):
        Envelope.from_scalars(fields(**{part: value}))


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from(list(GOOD)), json_values | st.just(math.nan), min_size=1))
def test_whatever_a_server_says_of_a_sum_is_taken_or_refused(change: dict[str, Any]) -> None:
    try:
        spec = Envelope.from_scalars(fields(sum=GOOD | change)).sum
    except ProtocolError as error:
        assert str(error) == "the description of the sum is malformed"
    else:
        assert spec is not None and spec == SumSpec.read(json.loads(json.dumps(asdict(spec))))


# The stage of a secure sum -----------------------------------------------------------------------------------------

STAGE = {"name": "keys", "skip": 0, "run": "r"}


def test_the_good_stage_of_these_tests_is_accepted() -> None:
    assert Envelope.from_scalars(fields(stage=STAGE)).stage == Stage("keys", 0, "r")


@pytest.mark.parametrize(
    "change", [{key: value} for key in STAGE for value in (..., None, [], {}, True, -1, 1.5)] + [{"skip": "0"}]
)
def test_a_malformed_stage_is_refused(change: dict) -> None:
    stage = {name: value for name, value in (STAGE | change).items() if value is not ...}
    with pytest.raises(ProtocolError, match="no stage of a secure sum"):
        Envelope.from_scalars(fields(stage=stage))
