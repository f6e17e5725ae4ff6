"""The neighbour graph, and the degree and threshold that are derived for it."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from fedsyn.aggregation.secagg import graph

SEEDS = [bytes([i]) * 32 for i in range(5)]


@pytest.mark.parametrize(("clients", "degree"), [(5, 2), (20, 4), (21, 18), (100, 16), (257, 30), (9, 8), (2, 1)])
def test_neighbourhoods_are_regular_symmetric_and_sorted(clients: int, degree: int) -> None:
    for seed in SEEDS:
        table = graph.neighbours(seed, clients, degree)
        assert table.shape == (clients, degree)
        assert np.all(np.diff(table, axis=1) > 0)
        assert not np.any(table == np.arange(clients)[:, None])
        pairs = {(i, int(j)) for i, row in enumerate(table) for j in row}
        assert pairs == {(j, i) for i, j in pairs}
        slots = graph.slots(table)
        for i, s in itertools.product(range(clients), range(degree)):
            assert table[table[i, s], slots[i, s]] == i
        assert len(component(pairs, set(range(clients)))) == clients


def component(pairs: set[tuple[int, int]], alive: set[int]) -> set[int]:
    """All that one member of `alive` reaches inside it."""
    near: dict[int, list[int]] = {}
    for i, j in pairs:
        near.setdefault(i, []).append(j)
    reached = {min(alive)}
    todo = [min(alive)]
    while todo:
        for j in near.get(todo.pop(), []):
            if j in alive and j not in reached:
                reached.add(j)
                todo.append(j)
    return reached


def test_the_graph_is_a_function_of_the_seed() -> None:
    first = graph.neighbours(SEEDS[0], 50, 8)
    assert np.array_equal(first, graph.neighbours(bytes(32), 50, 8))
    assert not np.array_equal(first, graph.neighbours(SEEDS[1], 50, 8))
    # Two machines must find the same one: the order comes from ChaCha20, not from a library's shuffle.
    assert first[0].tolist() == GOLDEN_ROW


GOLDEN_ROW = [4, 7, 27, 31, 32, 33, 37, 42]


def test_hypergeometric_tails_are_exact() -> None:
    for population, marked, draws in [(10, 3, 4), (30, 12, 7), (99, 5, 16), (999, 50, 46)]:
        for least in range(draws + 2):
            ours = graph.hypergeometric_tail(population, marked, draws, least)
            assert float(ours) == pytest.approx(
                scipy.stats.hypergeom.sf(least - 1, population, marked, draws), rel=1e-9, abs=1e-300
            )
    subsets = list(itertools.combinations(range(8), 3))
    hits = sum(len({0, 1, 2, 3} & set(subset)) >= 2 for subset in subsets)
    assert graph.hypergeometric_tail(8, 4, 3, 2) == Fraction(hits, len(subsets))


def test_disconnection_is_bounded_against_every_removal() -> None:
    """Brute force over all removals from small circles: the bound holds, and is zero exactly where it says so."""
    for clients, degree, removed in [(9, 2, 2), (9, 2, 4), (10, 4, 4), (11, 4, 5), (12, 4, 6), (11, 6, 6), (12, 4, 3)]:
        table = graph.neighbours(SEEDS[0], clients, degree)
        pairs = {(i, int(j)) for i, row in enumerate(table) for j in row}
        apart = total = 0
        for gone in itertools.combinations(range(clients), removed):
            alive = set(range(clients)) - set(gone)
            apart += len(component(pairs, alive)) < len(alive)
            total += 1
        bound = graph.disconnection_bound(clients, removed, degree)
        assert Fraction(apart, total) <= bound
        assert (apart == 0) == (bound == 0)


def failures(clients: int, corrupted: int, dropouts: int, degree: int, threshold: int, trials: int) -> np.ndarray:
    """Monte Carlo: how often the graph is unsafe, and how often it cannot be opened."""
    rng = np.random.default_rng(5)
    unsafe = stuck = 0
    for _ in range(trials):
        table = graph.neighbours(rng.bytes(32), clients, degree)
        colluding = np.arange(clients) < corrupted  # fixed sets: the graph is what is random
        gone = np.arange(clients) >= clients - dropouts
        exposed = np.any(colluding[table[~colluding]].sum(axis=1) >= threshold)
        left = ~colluding & ~gone
        edges = {(i, int(j)) for i in np.flatnonzero(left) for j in table[i] if left[j]}
        alive = {int(i) for i in np.flatnonzero(left)}
        unsafe += bool(exposed) or len(component(edges, alive)) < len(alive)
        stuck += bool(np.any((~gone)[table].sum(axis=1) < threshold))
    return np.array([unsafe, stuck]) / trials


@pytest.mark.parametrize(
    ("clients", "corrupted", "dropouts", "bits"), [(40, 6, 10, 3), (60, 20, 10, 4), (30, 3, 9, 2), (60, 6, 18, 3)]
)
def test_derived_parameters_keep_their_promise(clients: int, corrupted: int, dropouts: int, bits: int) -> None:
    """Relaxed failure probabilities, so that failures would be seen.

    1,500 graphs; the bound is exceeded by more than five standard errors with probability below 3e-7.
    """
    degree, threshold = graph.derive(clients, corrupted, dropouts, bits)
    assert degree < clients - 1
    allowed = 2.0**-bits
    slack = 5 * math.sqrt(allowed / 1500)
    assert np.all(failures(clients, corrupted, dropouts, degree, threshold, 1500) <= allowed + slack)


def test_smaller_parameters_would_fail() -> None:
    """The checks above can fail: half the degree, or a threshold moved either way, breaks a promise.

    300 graphs: the rates seen are 0.40, 1.0 and 1.0 where 0.06 is promised.
    """
    degree, threshold = graph.derive(60, 20, 10, 4)
    assert failures(60, 20, 10, 10, threshold // 2, 300)[0] > 0.3
    assert failures(60, 20, 10, degree, threshold // 2, 300)[0] > 0.3
    assert failures(60, 20, 10, degree, threshold + 4, 300)[1] > 0.3


def promises(clients: int, corrupted: int, dropouts: int, degree: int, threshold: int) -> tuple[float, float]:
    """Union bounds on (insecure, stuck), computed with SciPy's hypergeometric distribution and floats."""
    tail = scipy.stats.hypergeom.sf
    exposed = (clients - corrupted) * tail(threshold - 1, clients - 1, corrupted, degree)
    removed = corrupted + dropouts
    apart = 0.0
    if removed >= degree:
        logs = math.lgamma(removed + 1) - math.lgamma(removed - degree + 1)
        logs -= math.lgamma(clients + 1) - math.lgamma(clients - degree + 1)
        apart = clients * (clients - degree + 1) / 2 * math.exp(logs)
    return exposed + apart, clients * tail(degree - threshold, clients - 1, dropouts, degree)


@pytest.mark.parametrize("clients", [20, 50, 100, 200, 500, 1000, 5000])
@pytest.mark.parametrize("theta", [0.05, 0.33])
def test_derived_degree_is_the_smallest_that_is_safe(clients: int, theta: float) -> None:
    corrupted, dropouts = int(theta * clients), clients // 10
    degree, threshold = graph.derive(clients, corrupted, dropouts, 40)
    if degree < clients - 1:
        insecure, stuck = promises(clients, corrupted, dropouts, degree, threshold)
        assert insecure <= 2**-40 and stuck <= 2**-40
    for smaller in range(max(2, degree - 6), degree, 2):
        assert all(
            max(promises(clients, corrupted, dropouts, smaller, t)) > 2**-40 * (1 - 1e-6) for t in range(1, smaller + 1)
        )


def test_known_degrees() -> None:
    """The figures of the documentation: 5% corrupted, 10% dropouts, 2^-40."""
    figures = {n: graph.derive(n, n // 20, n // 10, 40) for n in (20, 100, 1000, 5000)}
    assert figures == {20: (4, 2), 100: (16, 6), 1000: (46, 21), 5000: (52, 23)}
    assert graph.derive(10, 0, 1, 40) == (2, 1)  # a circle: one gap does not cut it, and nobody colludes


def test_full_graph_where_no_smaller_one_is_safe() -> None:
    assert graph.derive(10, 4, 4, 40) == (9, 5)
    for clients, corrupted, dropouts in [(2, 0, 0), (3, 0, 1), (10, 4, 4), (100, 33, 10), (50, 0, 48)]:
        threshold = graph.full_threshold(clients, corrupted, dropouts)
        assert corrupted < threshold <= clients - 1 - dropouts


# Large federations ----------------------------------------------------------------------------------------------------


def exact_search(n: int, corrupted: int, dropouts: int, bits: int) -> tuple[int, int]:
    """The search as it is defined: every degree in turn, in exact fractions. For few clients only."""
    allowed = Fraction(1, 2**bits)
    for degree in range(2, n - 1, 2):
        lost = 0
        while lost < degree and n * graph.hypergeometric_tail(n - 1, dropouts, degree, lost + 1) > allowed:
            lost += 1
        exposed = (n - corrupted) * graph.hypergeometric_tail(n - 1, corrupted, degree, degree - lost)
        if lost < degree and exposed + graph.disconnection_bound(n, corrupted + dropouts, degree) <= allowed:
            return degree, degree - lost
    return n - 1, graph.full_threshold(n, corrupted, dropouts)


def test_the_fast_search_finds_what_the_exact_one_finds() -> None:
    small = [(n, c, d) for n in range(2, 17) for c in range(n - 1) for d in range(n - 1 - c)]
    rng = np.random.default_rng(3)
    for n in rng.integers(17, 90, 60):
        corrupted = int(rng.integers(0, n - 1))
        small.append((int(n), corrupted, int(rng.integers(0, n - 1 - corrupted))))
    found = 0
    for facts in small:
        for bits in (1, 3, 10, 40, 256):
            expected = exact_search(*facts, bits)
            assert graph.derive(*facts, bits) == expected, (*facts, bits)
            found += expected[0] < facts[0] - 1
    assert found > 500  # the search, and not only its fallback


@pytest.mark.parametrize(
    ("clients", "corrupted", "dropouts", "bits"),
    [
        (1000, 300, 450, 40),
        (1000, 300, 450, 120),
        (1000, 300, 698, 40),  # hardly anybody is left: no sparse graph, which takes all degrees to find out
        (100_000, 5_000, 10_000, 40),
        (100_000, 41_526, 56_408, 40),
        (100_000, 5, 99_900, 120),
        (100_000, 49_999, 49_999, 10),
    ],
)
def test_few_exact_checks_are_made_for_any_public_facts(
    clients: int, corrupted: int, dropouts: int, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts come with a server's message: an exact check of every degree would not end for some of them."""
    exact, checks = graph.hypergeometric_tail, []

    def counted(*arguments: int) -> Fraction:
        checks.append(arguments)
        assert len(checks) <= 8
        return exact(*arguments)

    monkeypatch.setattr(graph, "hypergeometric_tail", counted)
    degree, threshold = graph.derive.__wrapped__(clients, corrupted, dropouts, bits)
    if degree == clients - 1:
        assert threshold == graph.full_threshold(clients, corrupted, dropouts)
        return
    assert 1 <= threshold <= degree
    insecure, stuck = promises(clients, corrupted, dropouts, degree, threshold)
    assert max(insecure, stuck) <= 2.0**-bits * (1 + 1e-6)
    insecure, _ = promises(clients, corrupted, dropouts, degree - 2, threshold - 1)
    assert insecure > 2.0**-bits


def test_a_client_finds_its_own_neighbours_alone() -> None:
    for clients, degree in [(5, 2), (20, 4), (101, 16), (9, 8), (2, 1)]:
        table = graph.neighbours(SEEDS[1], clients, degree)
        rows = [graph.neighbours_of(SEEDS[1], clients, degree, i).tolist() for i in range(clients)]
        assert rows == table.tolist()
