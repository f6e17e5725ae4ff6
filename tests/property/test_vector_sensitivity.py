"""What one row moves, against what a layout says: vectors of sketches and weighed marginals, on the awkward tables.

The server, hostile, names cliques, weights and groups; the client's own layout must bound what any row then does.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.sketch_aim_ablation.variant import VariantClient, VariantContract, Weighed
from fedsyn.domain import Domain
from fedsyn.front.testing.harness import config_of
from fedsyn.front.testing.schemas import awkward_names, awkward_table
from fedsyn.plugins.clients.sketch_aim import FINEST, FirstLook, MeasureAll, Residuals, Sketches
from fedsyn.randomness import Randomness
from fedsyn.selection.coarse import grouping_keys
from fedsyn.table.counting.sums import cost
from fedsyn.wire.holder import Call
from fedsyn.wire.requests import Layout

VARIANT = "experiments.sketch_aim_ablation.variant:Variant"
ROUNDING = 1.0 + 1e-12


@lru_cache(maxsize=64)
def contract_of(name: str, sketch: str) -> VariantContract:
    schema = awkward_table(name).schema
    return VariantContract(config_of(VARIANT, 2, {"sketch": sketch}), schema.domain)


def vector(contract: VariantContract, request: Any, arrays: list[np.ndarray], codes: np.ndarray) -> np.ndarray:
    """(L,) what a client with these rows contributes."""
    client = object.__new__(VariantClient)
    client.contract, client.domain, client.codes = contract, contract.domain, codes
    call = Call(1, type(request), request.model_dump(), contract, arrays, Randomness(0), ())
    answers: dict[type, Any] = {
        FirstLook: client.one_way,
        Sketches: client.sketch,
        Weighed: client.measure,
        Residuals: client.measure_residuals,
        MeasureAll: client.measure_all,
    }
    part = answers[type(request)](call)
    out = np.zeros(part.layout.length, np.int64)
    out[part.cells] = part.values
    return out


def some_rows(data: st.DataObject, domain: Domain, most: int) -> np.ndarray:
    rows = st.tuples(*(st.integers(0, size - 1) for size in domain.shape))
    return np.array(data.draw(st.lists(rows, min_size=1, max_size=most)), np.int64)


def check(contract: VariantContract, request: Any, arrays: list[np.ndarray], data: st.DataObject) -> Layout:
    """A row added to any table, or exchanged for another one, moves the vector by no more than the layout says."""
    layout: Layout = request.layout(contract, arrays)
    codes, more = some_rows(data, contract.domain, 4), some_rows(data, contract.domain, 2)
    before = vector(contract, request, arrays, codes)
    bound = layout.sensitivity * math.sqrt(layout.count) * ROUNDING
    added = [vector(contract, request, arrays, np.vstack([codes, row])) - before for row in more]
    for change in added:
        assert np.linalg.norm(change) <= bound
        assert np.abs(change).max() <= layout.magnitude
        assert layout.signed or change.min() >= 0
    for other in added:
        assert np.linalg.norm(added[0] - other) <= layout.replaced * bound
    # The norm is that of every row, and not only a bound: the budget buys what it can.
    assert np.linalg.norm(added[0]) == pytest.approx(layout.sensitivity * math.sqrt(layout.count))
    return layout


def groups_of(data: st.DataObject, size: int, most: int) -> np.ndarray:
    """Any map of values to groups, with gaps and in no order."""
    return np.array(data.draw(st.lists(st.integers(0, most - 1), min_size=size, max_size=size)), np.uint16)


@pytest.mark.parametrize("sketch", ["interactions", "groups", "count", "signs"])
@pytest.mark.parametrize("name", awkward_names())
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_sketches_move_as_far_as_their_layout_says(name: str, sketch: str, data: st.DataObject) -> None:
    contract = contract_of(name, sketch)
    able = [i for i in contract.sketchable if contract.domain.size(contract.candidates.cliques[i]) < 10**5]
    if not able:
        return
    chosen = data.draw(st.lists(st.sampled_from(able), min_size=1, max_size=3, unique=True))
    width = data.draw(st.integers(8, contract.options.width))
    arrays = []
    if contract.options.is_grouped:
        cliques = [contract.candidates.cliques[i] for i in chosen]
        keys = grouping_keys(contract.domain, cliques, width)
        arrays = [np.concatenate([groups_of(data, contract.domain[name], most) for name, most in keys])]
    check(contract, Sketches(cliques=chosen, width=width), arrays, data)


def weights_of(data: st.DataObject, count: int) -> list[int]:
    return data.draw(st.lists(st.integers(1, FINEST), min_size=count, max_size=count))


@pytest.mark.parametrize("name", awkward_names())
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_weighed_marginals_move_as_far_as_their_layout_says(name: str, data: st.DataObject) -> None:
    contract = contract_of(name, "interactions")
    domain, cliques = contract.domain, contract.candidates.cliques
    able = [i for i, q in enumerate(cliques) if domain.size(q) < 10**5]
    chosen = data.draw(st.lists(st.sampled_from(able), min_size=1, max_size=4, unique=True))
    weights, shapes, arrays = weights_of(data, len(chosen)), [], []
    if data.draw(st.booleans()):
        shapes = [[data.draw(st.integers(1, domain[a])) for a in cliques[i]] for i in chosen]
        pairs = [(a, g) for i, own in zip(chosen, shapes, strict=True) for a, g in zip(cliques[i], own, strict=True)]
        arrays = [np.concatenate([groups_of(data, domain[a], g) for a, g in pairs])]
    layout = check(contract, Weighed(cliques=chosen, weights=weights, shapes=shapes), arrays, data)
    assert layout.sensitivity == pytest.approx(math.sqrt(sum(c * c for c in weights)))
    layout = check(contract, Residuals(cliques=chosen, weights=weights, shapes=shapes), arrays, data)
    made = shapes or [domain.shape_of(cliques[i]) for i in chosen]
    squared = [(c * math.prod(own)) ** 2 * cost(own) for c, own in zip(weights, made, strict=True)]
    assert layout.sensitivity == pytest.approx(math.sqrt(sum(squared)))


@pytest.mark.parametrize("name", awkward_names())
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_the_first_look_moves_as_far_as_its_layout_says(name: str, data: st.DataObject) -> None:
    contract = contract_of(name, "interactions")
    layout = check(contract, FirstLook(alone=data.draw(st.booleans())), [], data)
    assert layout.count == 1 and contract.factors is not None
    squared = [f * f * (1 - 1 / g) for f, g in zip(contract.factors, contract.domain.shape, strict=True)]
    assert layout.sensitivity == pytest.approx(math.sqrt(sum(squared)))
    assert all(f % g == 0 for f, g in zip(contract.factors, contract.domain.shape, strict=True))


@pytest.mark.parametrize("name", awkward_names())
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_one_way_and_chosen_marginals_move_as_far_as_their_layout_says(name: str, data: st.DataObject) -> None:
    contract = contract_of(name, "interactions")
    able = [i for i, q in enumerate(contract.candidates.cliques) if contract.domain.size(q) < 10**5]
    chosen = data.draw(st.lists(st.sampled_from(able), max_size=3, unique=True))
    one_way, weights = weights_of(data, len(contract.domain)), weights_of(data, len(chosen))
    check(contract, MeasureAll(one_way=one_way, cliques=chosen, weights=weights), [], data)
