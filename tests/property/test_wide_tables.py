"""What makes wide tables fast changes no bit: each shortcut against the plain way."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsyn.selection.scores as scores
import fedsyn.selection.views as distances
import fedsyn.table.counting.marginals as marginals
from fedsyn.domain import Domain
from fedsyn.inference import EstimateConfig, Measurement, estimate
from fedsyn.inference.growth import Extension
from fedsyn.inference.junction_tree import (
    Axes,
    adjacency_of,
    bits,
    connect,
    eliminate_greedily,
    eliminate_simplicial,
    triangulate,
)
from fedsyn.plugins.strategies.privsyn import gum_config
from fedsyn.selection.scores import contained_in, l1_distances
from fedsyn.selection.views import ModelView
from fedsyn.table.counting.marginals import count, count_sparse_many, dense_to_sparse
from fedsyn.table.counting.stored import StoredLayout, stored_cliques

seeds = st.integers(0, 2**32 - 1)


def a_domain(rng: np.random.Generator, attributes: int, largest: int = 5) -> Domain:
    sizes = rng.integers(1, largest + 1, attributes)
    return Domain(tuple(f"x{i}" for i in range(attributes)), tuple(int(size) for size in sizes))


def a_table(rng: np.random.Generator, domain: Domain, rows: int) -> np.ndarray:
    return (rng.random((rows, len(domain))) ** 2 * domain.shape).astype(np.uint8)


def a_graph(rng: np.random.Generator, attributes: int) -> list[int]:
    edges = list(combinations(range(attributes), 2))
    return [1 << a | 1 << b for a, b in (edges[i] for i in rng.permutation(len(edges))[: int(1.4 * attributes)])]


# Trees -------------------------------------------------------------------------------------------------------------


@given(seeds, st.booleans())
@settings(max_examples=30, deadline=None)
def test_kept_costs_of_an_elimination_are_those_counted_anew(seed: int, by_fill: bool):
    rng = np.random.default_rng(seed)
    domain = a_domain(rng, int(rng.integers(3, 14)), 3)  # few sizes: many ties
    axes = Axes(domain)
    adjacency = adjacency_of(len(domain), a_graph(rng, len(domain)))
    _, alive = eliminate_simplicial(adjacency, (1 << len(domain)) - 1)
    plain, expected, left = list(adjacency), [], alive
    while left:

        def cost(rank: int) -> tuple[int, int, int]:
            near = plain[rank]
            fill = sum((near & ~(1 << u) & ~plain[u]).bit_count() for u in bits(near))
            weight = axes.cells(near | 1 << rank)
            return (fill, weight, rank) if by_fill else (weight, fill, rank)

        rank = min(map(cost, bits(left)))[2]
        near = plain[rank]
        expected.append(near | 1 << rank)
        for other in bits(near):
            plain[other] = (plain[other] | near) & ~(1 << rank) & ~(1 << other)
        found, left = eliminate_simplicial(plain, left ^ (1 << rank))
        expected += found.values()
    assert sorted(eliminate_greedily(list(adjacency), alive, axes, by_fill)) == sorted(expected)


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_the_spanning_forest_is_that_of_prim_over_all_cliques(seed: int):
    rng = np.random.default_rng(seed)
    axes = Axes(a_domain(rng, int(rng.integers(2, 14)), 3))
    cliques = triangulate(axes, a_graph(rng, len(axes.sizes)))
    left = sorted(cliques, key=lambda mask: (-axes.cells(mask), mask))
    order: list[int] = []
    parents: list[int] = []
    while left:
        links = {q: max([((q & o).bit_count(), -i) for i, o in enumerate(order)], default=(0, 0)) for q in left}
        best = max(shared for shared, _ in links.values())
        reached = max(link for link in links.values() if link[0] == best)
        node = next(q for q in left if (links[q] == reached if best else True))
        parents.append(-links[node][1] if best else -1)
        order.append(node)
        left.remove(node)
    tree = connect(axes, cliques)
    assert (tree.cliques, tree.parents) == (tuple(order), tuple(parents))


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_carrying_an_attribute_costs_the_nodes_on_its_way(seed: int):
    """All pairs at once against a walk over the tree; and the tree that results holds the pair."""
    rng = np.random.default_rng(seed)
    axes = Axes(a_domain(rng, int(rng.integers(4, 12))))
    chain = [1 << i | 1 << int(rng.integers(0, i)) for i in range(1, len(axes.sizes))]  # connected
    masks = [*chain, *a_graph(rng, len(axes.sizes))[: int(rng.integers(0, 4))]]
    tree = connect(axes, triangulate(axes, masks))
    extension = Extension(tree, masks)
    for a, b in combinations(range(len(axes.sizes)), 2):
        ways = []
        for first, last in ((a, b), (b, a)):  # carry `first` to the nearest node with `last`
            front = dict.fromkeys(tree.holding[first], 0)
            done = dict(front)
            while front:
                front = {
                    m: far + tree.cells[m] for n, far in front.items() for m in tree.neighbours[n] if m not in done
                }
                done |= front
            ways.append(min(done[n] for n in tree.holding[last]) * (axes.sizes[first] - 1))
        assert extension.added(1 << a | 1 << b)[0] == min(ways)


def test_what_a_test_says_does_not_change_with_later_cliques():
    from fedsyn.config import InferenceNode
    from fedsyn.inference.capacity import Capacity

    domain = Domain(tuple("abcd"), (10, 10, 10, 10))
    held = Capacity(domain, InferenceNode(max_cells=1250))
    fits = held.test()
    assert fits(("a", "b", "c"))
    held.add([("c", "d"), ("b", "d")])
    assert fits(("a", "b", "c")) and not held.test()(("a", "b", "c"))


# Counts ------------------------------------------------------------------------------------------------------------


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_cliques_of_a_small_table_are_counted_together(seed: int):
    """Attributes in any order, repeated cliques too, in several blocks."""
    rng = np.random.default_rng(seed)
    domain = a_domain(rng, int(rng.integers(3, 9)))
    codes = a_table(rng, domain, int(rng.integers(0, 50)))
    names = np.array(domain.attributes)
    cliques = [tuple(rng.permutation(names)[: int(rng.integers(0, 4))].tolist()) for _ in range(20)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marginals, "_NUMBERS_AT_ONCE", 100)
        found = count(codes, domain, cliques)
        patch.setattr(marginals, "_FEW_ROWS", -1)
        expected = count(codes, domain, cliques)
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == two.dtype == np.int64 and np.array_equal(one, two)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_sparse_counts_are_the_same_whole_and_sorted(seed: int):
    rng = np.random.default_rng(seed)
    domain = a_domain(rng, 6)
    codes = a_table(rng, domain, int(rng.integers(0, 60)))
    cliques = [q for k in range(4) for q in combinations(domain.attributes, k)]
    expected = [dense_to_sparse(table) for table in count(codes, domain, cliques)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marginals, "_CELLS_AT_ONCE", 100)
        found = count_sparse_many(codes, domain, cliques)
    for one, two in zip(found, expected, strict=True):
        assert np.array_equal(one.cells, two.cells) and np.array_equal(one.counts, two.counts)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_a_store_keeps_what_lies_in_no_other_clique(seed: int):
    rng = np.random.default_rng(seed)
    domain = a_domain(rng, 7)
    every = [q for k in range(1, 4) for q in combinations(domain.attributes, k)]
    cliques = [every[i] for i in rng.permutation(len(every))[:20]]
    kept = [q for q in cliques if not any(set(q) < set(other) for other in cliques)]
    found = stored_cliques(cliques, domain)
    assert [q for q in found if q in cliques] == kept
    inside = contained_in(kept)
    assert [inside(q) for q in every] == [any(set(q) <= set(other) for other in kept) for q in every]
    layout = StoredLayout(found, domain)
    for clique in cliques:
        holders = [(domain.size(q), i) for i, q in enumerate(found) if set(clique) <= set(q)]
        assert layout.place(clique).start == layout.starts[min(holders)[1]]


# Distances ---------------------------------------------------------------------------------------------------------


def test_distances_of_many_marginals_are_those_of_each(monkeypatch: pytest.MonkeyPatch):
    """To the bit, in the first round and from kept counts, of all cliques and of some of them."""
    rng = np.random.default_rng(5)
    domain = a_domain(rng, 26, 12)
    codes = a_table(rng, domain, 700)
    pairs = list(combinations(domain.attributes, 2))
    cliques = [*((name,) for name in domain.attributes), *pairs]
    measured = [pairs[i] for i in rng.permutation(len(pairs))[:18]]
    model = estimate(
        domain,
        [Measurement(q, rng.random(domain.shape_of(q)) + 0.1, 1.0) for q in measured],
        total=700.0,
        config=EstimateConfig(iterations=3),
    )
    one_by_one = [model.project(q) for q in cliques]
    for found, expected in zip(model.project_many(cliques), one_by_one, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    with monkeypatch.context() as patch:
        patch.setattr(scores, "_MANY", 10**9)
        expected = l1_distances(codes, domain, cliques, ModelView(model), 650.5)
    counted: list[int] = []
    plain = distances.count
    monkeypatch.setattr(distances, "count", lambda *args: (counted.append(1), plain(*args))[1])
    view = ModelView(model)
    for some in (range(len(cliques)), range(1, len(cliques)), range(0, len(cliques), 1)):
        found = l1_distances(codes, domain, [cliques[i] for i in some], view, 650.5)
        assert found.tobytes() == expected[list(some)].tobytes()
    assert len(counted) == 1  # the table was counted once
    other = codes.copy()
    other[0, 0] = (other[0, 0] + 1) % domain.shape[0]
    assert l1_distances(other, domain, cliques, view, 650.5).tobytes() != expected.tobytes()


def test_gum_updates_very_many_pairs_less_often():
    whole = gum_config(None, 400)
    assert (whole.iterations, whole.decay) == (50, 0.95) and gum_config(7, 5000).iterations == 7
    few = gum_config(None, 1000)
    assert few.iterations == 20 and few.decay**20 == pytest.approx(0.95**50)
    assert gum_config(None, 10**6).iterations == 10
