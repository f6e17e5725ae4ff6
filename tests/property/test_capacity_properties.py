"""Which cliques fit: every answer of the incremental rule against a whole tree, built anew."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.config import InferenceNode
from fedsyn.domain import Clique, Domain
from fedsyn.inference import model_size, pass_cost
from fedsyn.inference.capacity import Capacity


def by_whole_trees(domain: Domain, held: tuple[Clique, ...], clique: Clique, cells: float, cost: float) -> bool:
    """The rule in one line: the tree of all measured cliques and this one, within both bounds."""
    if any(set(clique) <= set(q) for q in held):
        return True
    cliques = [*held, clique]
    return domain.size(clique) <= cells and model_size(domain, cliques) <= cells and pass_cost(domain, cliques) <= cost


def tight_bounds(domain: Domain, held: tuple[Clique, ...], candidates: list[Clique], rng: np.random.Generator):
    """Bounds that some candidates just meet and others just miss."""
    trees = [[*held, q] for q in rng.permutation(np.array(candidates, dtype=object))[:6]] or [list(held)]
    cells = [model_size(domain, [tuple(q) for q in tree]) for tree in trees]
    costs = [pass_cost(domain, [tuple(q) for q in tree]) for tree in trees]
    return int(rng.choice(cells)) + int(rng.integers(-1, 2)), float(rng.choice(costs)) + float(rng.integers(-1, 2))


def compare(domain: Domain, steps: list[Clique], candidates: list[Clique], rng: np.random.Generator) -> int:
    """Adds the cliques one by one and compares all answers each time, at generous and at tight bounds."""
    held, compared = Capacity(domain, InferenceNode()), 0
    for clique in [(), *steps]:
        if clique:
            held.add([clique])
        cells, cost = tight_bounds(domain, held.cliques, candidates, rng)
        for bounds in ((cells, cost), (10**9, cost), (cells, 1e12)):
            held.max_cells, held.max_message_passing_cost = max(1, bounds[0]), max(1.0, bounds[1])
            expected = [
                i
                for i, q in enumerate(candidates)
                if by_whole_trees(domain, held.cliques, q, held.max_cells, held.max_message_passing_cost)
            ]
            assert held.which_fit(candidates) == expected
            assert [i for i, q in enumerate(candidates) if held.fits(q)] == expected
            compared += len(candidates)
    return compared


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_the_answers_are_those_of_whole_trees(seed: int):
    """Awkward domains (attributes of one value, of equal sizes, one of many), cliques of one to four attributes."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 10))
    sizes = rng.choice([[2], [1, 2, 3], [3, 3, 3, 40], [5, 7, 300]][int(rng.integers(4))], d)
    domain = Domain(tuple(f"x{i}" for i in range(d)), tuple(int(size) for size in sizes))
    every = [q for k in range(1, min(d, 3) + 1) for q in combinations(domain.attributes, k)]
    candidates = [every[i] for i in rng.permutation(len(every))[:25]]
    most = min(d, 4)
    steps = [
        tuple(domain.attributes[i] for i in sorted(rng.permutation(d)[: int(rng.integers(1, most + 1))]))
        for _ in range(int(rng.integers(1, 9)))
    ]
    compare(domain, steps, candidates, rng)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_the_same_in_wider_domains(seed: int):
    """Trees, cycles, several cores, cores that a candidate joins: pairs (and triples) over 24 attributes."""
    rng = np.random.default_rng(seed)
    domain = Domain(tuple(f"x{i}" for i in range(24)), tuple(int(s) for s in rng.integers(2, 5 if seed % 2 else 3, 24)))
    pairs = list(combinations(domain.attributes, 2))
    near = [(a, b) for a, b in pairs if domain.axes((b,))[0] - domain.axes((a,))[0] < 6]  # several components
    steps = [(near if seed % 3 else pairs)[i] for i in rng.permutation(len(near if seed % 3 else pairs))[:34]]
    triples = [tuple(domain.attributes[i] for i in sorted(rng.permutation(24)[:3])) for _ in range(8)]
    candidates = [pairs[i] for i in rng.permutation(len(pairs))[:20]] + triples
    assert compare(domain, steps, candidates, rng) > 2000


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_a_clique_that_joins_two_cores(seed: int):
    """Each half of the attributes is in cycles of its own; cliques across, at bounds that one just meets or misses."""
    rng = np.random.default_rng(seed)
    domain = Domain(tuple(f"x{i}" for i in range(12)), tuple(int(s) for s in rng.integers(2, 5, 12)))
    names = domain.attributes
    halves = [list(combinations(half, 2)) for half in (names[:6], names[6:])]
    held = Capacity(domain, InferenceNode())
    held.add([pairs[i] for pairs in halves for i in rng.permutation(15)[:9]])
    across = [(a, b) for a in names[:6] for b in names[6:]] + [
        (*pair, names[6 + i % 6]) for i, pair in enumerate(halves[0])
    ]
    for q in across[::3]:
        held.max_cells = model_size(domain, [*held.cliques, q])
        held.max_message_passing_cost = pass_cost(domain, [*held.cliques, q])
        for cells, cost in ((0, 0), (-1, 0), (0, -1)):
            bounds = (held.max_cells + cells, held.max_message_passing_cost + cost)
            expected = [i for i, c in enumerate(across) if by_whole_trees(domain, held.cliques, c, *bounds)]
            held.max_cells, held.max_message_passing_cost = bounds
            assert held.which_fit(across) == expected
            held.max_cells, held.max_message_passing_cost = bounds[0] - cells, bounds[1] - cost
