"""Typed requests: what a record takes, what it costs, and what every mechanism's client does with garbage."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn import registry
from fedsyn.domain import Domain
from fedsyn.front.testing.harness import Outcome, config_of, execute, federation_of, finished
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.front.testing.tape import TapedExchange
from fedsyn.privacy.release import COUNTS, TWICE
from fedsyn.protocol.client import KEPT, TableClient, answers
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class, contract_class
from fedsyn.selection.views import pooled_view
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema
from fedsyn.table.schema.columns import Column
from fedsyn.wire.envelope import ANSWER, ENVELOPE, SumSpec, to_json
from fedsyn.wire.holder import Holder
from fedsyn.wire.requests import AskRequest, DealRequest, Layout, Summed, SumRequest

# Requests as they were really sent -----------------------------------------------------------------------------------

OPTIONS = {  # with two local rounds FLAIM's clients are sent measurements, which they fit together with their own
    name: {"rounds": 2, "local_rounds": 2} for name in ("naive_flaim", "augflaim", "augflaim_oracle", "flaim_random")
}
OPTIONS["fed_dp_ctgan"] = {"rounds": 2, "hidden": 8, "components": 10}


def table() -> AwkwardTable:
    """Four columns, one of them wide enough for several resolutions, and two of them alike."""
    columns: dict[str, Column] = {
        name: CategoricalColumn(categories=tuple(range(n)), other=False) for name, n in (("a", 3), ("b", 2), ("d", 4))
    }
    columns["c"] = NumericColumn(lower=0, upper=15, dtype="integer")
    schema = Schema(columns=columns)
    rng = np.random.default_rng(3)
    codes = (rng.random((60, 4)) ** 2 * np.array(schema.domain.shape)).astype(schema.dtype)
    codes[:, 2] = codes[:, 0]  # a pair that no mechanism leaves out
    return AwkwardTable("four columns", schema, schema.decode(codes, rng))


#: What a configuration has in which a request is asked, where that is not the ordinary one.
SETTINGS = {
    "sizes": ("private", None),
    "rows": ("client", None),
    "measure-all": ("public", 2),
    "evaluate": ("evaluate", None),
}


def recorded(name: str, request: str) -> Outcome:
    """A run in which the request is asked."""
    return recorded_with(name, *SETTINGS.get(request, ("public", None)))


@cache
def recorded_with(name: str, client_sizes: str, max_participations: int | None) -> Outcome:
    federation = federation_of(table(), contract_class(name).central)
    nodes: dict[str, Any] = {"privacy": {"client_sizes": client_sizes, "epsilon": 5.0}}
    if client_sizes == "client":
        nodes = {"privacy": {"epsilon": 5.0, "client_sizes": "private", "unit": "client", "rows_per_client": 4}}
    if client_sizes == "evaluate":
        nodes = {"privacy": {"epsilon": 5.0}, "evaluation": {"federated": True}}
    nodes |= {} if max_participations is None else {"federation": {"max_participations": max_participations}}
    # FHAIM's own score needs public sizes.
    options = {"score": "l1"} if (name, client_sizes) == ("fhaim", "private") else OPTIONS.get(name)
    return finished(execute(config_of(name, len(federation.parts), options, **nodes), federation))


@cache
def exchange(name: str, request: str) -> TapedExchange:
    """The last request of this name to the first client."""
    outcome = recorded(name, request)
    return [e for e in outcome.tape.exchanges if e.partition == 0 and e.envelope["request"] == request][-1]


def before(name: str, request: str, sent: TapedExchange) -> list[TapedExchange]:
    """What the same client was asked earlier in the same round."""
    tape = recorded(name, request).tape.exchanges
    mine = [e for e in tape if e.partition == 0 and e.envelope["round"] == sent.envelope["round"]]
    return mine[: next(i for i, e in enumerate(mine) if e is sent)]


def fresh(name: str, request: str = "join") -> TableClient:
    """The client of an exchange, as it was before its first message."""
    outcome = recorded(name, request)
    federation = outcome.federation
    schema_hash = federation.table.schema.sha256
    pooled = pooled_view(np.concatenate(federation.parts), federation.domain)
    holder = Holder(0, federation.parts[0], federation.domain, schema_hash, Randomness(0), pooled=lambda: pooled)
    client: TableClient = client_class(name)(outcome.config, holder)
    return client


def asked(client: TableClient, sent: TapedExchange, **fields: Any) -> dict[str, Any]:
    """The answer to a request with other fields in its envelope."""
    arrays, examples, scalars = client.fit(list(sent.arrays), {ENVELOPE: to_json({**sent.envelope, **fields})})
    assert examples == 0
    return {**json.loads(scalars[ANSWER]), "arrays": arrays}


REQUESTS = [  # what every client answers in the same way is damaged once
    (name, request)
    for name in registry.MECHANISMS
    for request in client_class(name).requests
    if (request != "evaluate" or name == "sketch_aim")
    # Sizes of clients as the unit, which an accountant of single rows refuses.
    and (request != "rows" or contract_class(name).accountant in ("zcdp", "gaussian"))
    # It refuses the limit on participations under which `measure-all` is asked, and so few rows buy no order.
    and (name != "each_alone" or request not in ("arrange", "measure-all"))
]
every_request = pytest.mark.parametrize(("name", "request_"), REQUESTS)


def _every_record() -> Iterator[Any]:
    """Every request; the default tests take each record once, whichever mechanisms answer it."""
    seen = set()
    for name, request in REQUESTS:
        record = client_class(name).requests[request]
        yield pytest.param(name, request, marks=[pytest.mark.slow] if record in seen else [])
        seen.add(record)


every_record = pytest.mark.parametrize(("name", "request_"), _every_record())


@every_request
def test_the_requests_that_are_damaged_below_are_answered_as_they_are(name: str, request_: str) -> None:
    assert asked(fresh(name, request_), exchange(name, request_))["ok"] is True


# Garbage -------------------------------------------------------------------------------------------------------------

SECRET = "§"  # in every text that a hostile server writes here; no message may repeat it
texts = st.text(max_size=30).map(lambda text: f"{SECRET}{text}")
numbers = st.integers() | st.floats() | st.sampled_from([math.nan, math.inf, 10**400, -0.0])
garbage = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
KINDS = {bool: "flag", int: "number", float: "number", str: "text", list: "list", dict: "object", type(None): "nothing"}
NO_NUMBER = [math.nan, math.inf, -math.inf, -1, -8675309, -0.5]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in the parameters something can be wrong: every part of them, whatever it is nested in."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))


def wrong(good: Any) -> st.SearchStrategy[Any]:
    """Values that no record takes in the place of a good one: of another type, or beyond every bound."""
    other = garbage.filter(lambda value: KINDS[type(value)] != KINDS[type(good)])
    if isinstance(good, str):
        return other | texts
    if isinstance(good, list) and good:
        return other | st.just([*good, good[-1]])  # an entry twice, or one more than the other parameters have
    if KINDS[type(good)] == "number":
        return other | st.sampled_from([*NO_NUMBER, *([0.5, 10**30] if isinstance(good, int) else [0, 10**400])])
    return other


@st.composite
def damaged(draw: st.DrawFn, params: Mapping[str, Any]) -> dict[str, Any]:
    """Good parameters with one fault: a wrong value somewhere, a parameter too many, or one too few."""
    bad = copy.deepcopy(dict(params))
    fault = draw(st.sampled_from(["value", "value", "value", "extra", "missing"] if params else ["extra"]))
    if fault == "extra":
        objects = [bad, *(part for value in bad.values() if isinstance(value, list) for part in value)]
        target = draw(st.sampled_from([part for part in objects if isinstance(part, dict)]))
        target[draw(texts | st.sampled_from(["", "\ud800", "sum", "name", "__class__"]))] = draw(garbage)
        return bad
    path = draw(st.sampled_from(list(places(bad)))) if fault == "value" else (draw(st.sampled_from(list(bad))),)
    target = bad
    for key in path[:-1]:
        target = target[key]
    if fault == "missing":
        del target[path[-1]]
    else:
        target[path[-1]] = draw(wrong(target[path[-1]]))
    return bad


def refused(client: TableClient, answer: Mapping[str, Any]) -> str:
    """The message of a refusal that shows nothing, and costs nothing."""
    assert (answer["ok"], answer["kind"], answer["arrays"]) == (False, "protocol", []), answer
    assert client.ledger.releases == () and client.holder.state.keys() <= {KEPT}
    message: str = answer["sentence"]
    assert len(message) <= 160 and "\n" not in message
    return message


@every_record
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_garbage_in_the_place_of_a_parameter_is_refused(name: str, request_: str, data: st.DataObject) -> None:
    sent, client = exchange(name, request_), fresh(name, request_)
    message = refused(client, asked(client, sent, params=data.draw(damaged(sent.envelope["params"]))))
    assert SECRET not in message and "8675309" not in message


@every_record
def test_long_lists_and_deep_ones_are_refused(name: str, request_: str) -> None:
    sent, client = exchange(name, request_), fresh(name, request_)
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    for key, good in sent.envelope["params"].items():
        for bad in (list(range(100_000)), [True] * 100_000, [[0]] * 1000, deep, {"0": good}):
            refused(client, asked(client, sent, params={**sent.envelope["params"], key: bad}))


INDICES = {"eligible": "candidates", "cliques": "candidates", "pairs": "pairs"}
pointing = [
    (name, r, key) for name, r in REQUESTS for key in INDICES if key in client_class(name).requests[r].model_fields
]


@pytest.mark.parametrize(("name", "request_", "key"), pointing)
def test_an_index_out_of_range_is_refused(name: str, request_: str, key: str) -> None:
    sent, client = exchange(name, request_), fresh(name, request_)
    params, length = sent.envelope["params"], len(getattr(client.contract, INDICES[key]))
    for index in (length, length + 1, 2**31, 2**63, 10**30):
        for indices in ([index], [0, index]):
            message = refused(client, asked(client, sent, params={**params, key: indices}))
            assert message == f"parameter '{key}' must be a list of integers from 0 to {length - 1}"
    for index in (-1, -length, -(10**30)):
        message = refused(client, asked(client, sent, params={**params, key: [index]}))
        assert message == f"parameter '{key}' should be greater than or equal to 0"
    assert refused(client, asked(client, sent, params={**params, key: [0, 0]})) == f"parameter '{key}' repeats an entry"
    record, others = client.requests[request_], {"weights": [1], "pairs": [0]}
    last = {**params, **{other: value for other, value in others.items() if other in params}, key: [length - 1]}
    assert record.read(last, client.contract) is not None


@every_request
def test_a_refusal_names_the_parameter_and_what_is_allowed(name: str, request_: str) -> None:
    sent, client = exchange(name, request_), fresh(name, request_)
    params, fields = sent.envelope["params"], list(client.requests[request_].model_fields)
    unknown = refused(client, asked(client, sent, params={**params, "give me the table": 1}))
    assert unknown == f"'{request_}' has a parameter that it does not take; allowed: {', '.join(fields) or 'none'}"
    for key in params:
        message = refused(client, asked(client, sent, params={**params, key: None}))
        assert message.startswith(f"parameter '{key}' should be a valid ")


@pytest.mark.filterwarnings("ignore:overflow")
@every_request
def test_numbers_at_the_ends_of_their_range_break_nothing(name: str, request_: str) -> None:
    """They are of the right type: what a client makes of them is a refusal, or an answer that its ledger can pay."""
    sent = exchange(name, request_)
    for key, good in sent.envelope["params"].items():
        for extreme in (5e-324, 1e-160, 1e-9, 1e160, 1.7e308):
            client = fresh(name, request_)
            if isinstance(good, float):
                answer = asked(client, sent, params={**sent.envelope["params"], key: extreme})
            elif isinstance(good, list) and good and isinstance(good[0], float):
                answer = asked(client, sent, params={**sent.envelope["params"], key: [extreme] * len(good)})
            else:
                continue
            assert answer["ok"] or answer["kind"] in ("protocol", "budget"), answer


# Measurements that FLAIM's clients are sent --------------------------------------------------------------------------


def measured(values: np.ndarray, clique: list[str], **params: Any) -> dict[str, Any]:
    """The answer to a choice whose last measurement is another one."""
    sent, client = exchange("augflaim", "select"), fresh("augflaim", "select")
    good = sent.envelope["params"]
    changed = {**good, "measured": [*good["measured"][:-1], clique], **params}
    answer = asked(client, replace(sent, arrays=(*sent.arrays[:-1], values)), params=changed)
    return answer if answer["ok"] else {"sentence": refused(client, answer)}


def test_a_measurement_that_fits_is_taken() -> None:
    for clique in (["a", "b"], ["b", "a"], ["c"], []):
        assert measured(np.full([{"a": 3, "b": 2, "c": 16}[name] for name in clique], 7.0), clique)["ok"] is True


@pytest.mark.parametrize(
    ("values", "clique"),
    [
        (np.zeros((3, 3)), ["a", "a"]),
        (np.zeros(3), ["b"]),
        (np.zeros(3), ["elsewhere"]),
        (np.zeros(3, np.int64), ["a"]),
        (np.zeros(3, complex), ["a"]),
        (np.array(["1", "2", "3"]), ["a"]),
    ],
)
def test_a_measurement_that_does_not_fit_the_domain_is_refused(values: np.ndarray, clique: list[str]) -> None:
    assert measured(values, clique)["sentence"] == "a measurement of the request does not fit the domain"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7e308, -(2.0**64)])
def test_a_measurement_that_cannot_be_fitted_is_refused(value: float) -> None:
    message = measured(np.array([1.0, value, 1.0]), ["a"])["sentence"]
    assert message == "a measurement of the request has values that cannot be fitted"


# What a sum adds up --------------------------------------------------------------------------------------------------


def test_a_layout_of_marginals_has_one_array_each() -> None:
    domain = Domain(("a", "b"), (2, 3))
    layout = Layout.of_marginals(domain, [("b",), ("b", "a")])
    assert layout == Layout(((3,), (3, 2)), 2, replaced=COUNTS, cliques=(("b",), ("b", "a")))
    assert Layout.of_marginals(domain, [("a",), ("b",)], count=1, argument="why").count == 1
    assert Layout.of_marginals(domain, []).count == 1  # of a sum that nobody is asked for


def test_a_layout_of_one_vector_moves_as_a_whole() -> None:
    layout = Layout.of_vector(10, 2.5, signed=True, magnitude=3.0)
    assert layout == Layout(((10,),), 1, 2.5, True, 3.0, TWICE)


def test_what_clients_are_told_of_a_sum_follows_from_its_layout() -> None:
    layout = Layout(((2, 3), (4,)), 2, 1.25, signed=True, magnitude=3.0)
    assert layout.spec(1.5, 7, 4) == SumSpec(((2, 3), (4,)), 1.5, 1.25, 2, True, 3.0, asked=7, number=4)
    assert layout.spec(1.5, 0, 0).asked == 1 and layout.spec(1.5, 2, 0).length == 10


def test_a_sum_that_was_not_opened_says_so() -> None:
    assert not Summed.nothing().opened and Summed.nothing() == Summed([], (), ())
    assert Summed([np.zeros(2)], (1.0,), (0, 3)).opened


@every_request
def test_a_request_costs_what_both_halves_charge(name: str, request_: str) -> None:
    """Server and client read the price of a request off the same record."""
    sent, client = exchange(name, request_), fresh(name, request_)
    for earlier in before(name, request_, sent):  # FLAIM's clients contribute what they chose in the same round
        assert asked(client, earlier)["ok"] is True
    record = client.requests[request_].read(sent.envelope["params"], client.contract)
    paid = client.ledger.spent_rho
    assert asked(client, sent)["ok"] is True
    spent = (client.ledger.spent_rho - paid) / client.ledger.unit.factor
    if isinstance(record, AskRequest):
        assert spent == pytest.approx(sum(release.rho for release in record.releases(client.contract)))
    elif isinstance(record, DealRequest):
        assert spent == pytest.approx(record.rho)
    else:
        assert isinstance(record, SumRequest)
        layout, facts = record.layout(client.contract, sent.arrays), sent.envelope["sum"]
        assert (layout.count, layout.sensitivity) == (facts["count"], facts["sensitivity"])
        most = layout.count * layout.sensitivity**2 / (2 * facts["sigma"] ** 2)
        assert 0 < spent <= most * (1 + 1e-9)
        assert layout.argument or spent == pytest.approx(most)  # without an argument a row touches all of the arrays


def test_a_method_that_hides_another_answer_is_refused() -> None:
    class Another(AskRequest):
        name, leaves, costs = "another", "nothing", "nothing"

        def releases(self, contract: Any) -> tuple[()]:
            return ()

    with pytest.raises(TypeError, match=r"Hiding: one of its methods hides the answer to 'rows'; rename it"):

        class Hiding(TableClient):
            @answers(Another)
            def count_rows(self, call: Any) -> Any:
                return [], {}
