"""Sketches: against explicit matrices, linear to the bit, their row norms, and what a client accepts from a server."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest

from experiments.sketch_aim_ablation.variant import CountSketch, Signs
from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError
from fedsyn.inference import Measurement, estimate
from fedsyn.inference.shrinkage import smoothed
from fedsyn.selection import coarse
from fedsyn.selection.coarse import (
    equal_groups,
    group_counts,
    grouping_keys,
    grouping_of,
    pack_grouping,
    unpack_grouping,
)
from fedsyn.selection.indif import clique_key, splitmix64
from fedsyn.selection.resolution import Ladders
from fedsyn.selection.sketches import Interactions, Sketcher, as_pairs, squared_distance, weight_of_pairs
from fedsyn.table.counting.marginals import count

DOMAIN = Domain(("a", "b", "c", "d"), (7, 2, 12, 30))
CLIQUES = (("a", "b"), ("c", "d"), ("a", "c", "d"))
KINDS = ("interactions", "groups", "count", "signs")


def table(rows: int = 400, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([np.floor(n * rng.random(rows) ** 2).astype(np.uint8) for n in DOMAIN.shape], axis=1)


def sketcher(kind: str, width: int = 10, seed: int = 5) -> Sketcher:
    mass = {
        name: np.bincount(table()[:, j], minlength=n)
        for j, (name, n) in enumerate(zip("abcd", DOMAIN.shape, strict=True))
    }
    if kind in ("count", "signs"):
        return (CountSketch if kind == "count" else Signs)(DOMAIN, CLIQUES, width, {}, seed)
    made = Interactions if kind == "interactions" else Sketcher
    return made(DOMAIN, CLIQUES, width, grouping_of(DOMAIN, CLIQUES, width, mass))


def matrix(sketch: Sketcher, i: int, cells: np.ndarray | None = None) -> np.ndarray:
    """(cells, k_q) rows of clique i's explicit integer matrix: sketches of unit marginals, in the vector's unit."""
    size = DOMAIN.size(sketch.cliques[i])
    units = (np.arange(size) == cell for cell in (range(size) if cells is None else cells))
    return np.stack([sketch.of_marginal(i, unit) for unit in units]) * multiple(sketch, i)


def multiple(sketch: Sketcher, i: int) -> float:
    return sketch.unit(i)


def scalar_splitmix64(key: int, steps: int) -> list[int]:
    """The published generator, one 64-bit word after the other in Python integers."""
    mask, state, out = 2**64 - 1, key, []
    for _ in range(steps):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


# Bits ----------------------------------------------------------------------------------------------------------------


def test_splitmix64_is_the_published_generator():
    # First outputs for the seed 1234567, as they are widely published with the reference implementation.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert scalar_splitmix64(1234567, 3) == published
    assert splitmix64(1234567, np.arange(3, dtype=np.uint64)).tolist() == published
    key = 2**64 - 3
    assert splitmix64(key, np.arange(50, dtype=np.uint64)).tolist() == scalar_splitmix64(key, 50)


def test_keys_differ_between_seeds_and_cliques():
    keys = {clique_key(seed, clique) for seed in range(3) for clique in [*CLIQUES, ("ab",), ("a,b",), ("b", "a")]}
    assert len(keys) == 18
    # Recorded: sketches of one seed must stay what they are, or parties of different versions would not fit together.
    assert clique_key(0, ("a", "b")) == 0xF4754A411C6C3F90


# Matrices ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 6, 10, 70, pytest.param(3000, marks=pytest.mark.slow)])
def test_tables_and_marginals_give_what_the_explicit_matrix_gives(kind, width):
    sketch = sketcher(kind, width)
    codes = table()
    vector = sketch.of_rows(codes)
    assert vector.dtype == np.int64 and vector.shape == (sketch.length,)
    parts = sketch.split(vector)
    for i, marginal in enumerate(count(codes, DOMAIN, CLIQUES)):
        held = np.flatnonzero(marginal)
        explicit = marginal.ravel()[held] @ matrix(sketch, i, held)
        unit = multiple(sketch, i)
        assert np.array_equal(vector[sketch.offsets[i] : sketch.offsets[i + 1]], np.rint(explicit))
        assert np.allclose(sketch.of_marginal(i, marginal), explicit / unit, rtol=1e-12, atol=1e-9)
        assert np.allclose(parts[i], explicit / unit, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 10, 70])
def test_every_row_of_a_matrix_has_the_same_norm_and_so_every_table_row_moves_the_vector_by_the_sensitivity(
    kind, width
):
    sketch = sketcher(kind, width)
    for i in range(len(CLIQUES)):
        rows = matrix(sketch, i)
        assert np.allclose(rows, np.rint(rows), rtol=0, atol=1e-9)
        assert kind == "interactions" or np.abs(rows).max() == 1
        assert np.allclose((rows**2).sum(axis=1), sketch.row_norms[i] ** 2)
        if kind == "interactions":  # half a group of two attributes' rows is at most what a count is
            assert (rows**2).sum(axis=1).max() == pytest.approx(multiple(sketch, i) ** 2 * sketch.spread(i))
    assert sketch.sensitivity == pytest.approx(math.hypot(*sketch.row_norms))
    codes = table(20)
    for row in codes:
        moved = sketch.of_rows(row[None])
        assert math.sqrt(float(moved @ moved)) == pytest.approx(sketch.sensitivity, rel=1e-12)
        assert np.abs(moved).max() <= sketch.magnitude
    one_less = sketch.of_rows(codes[1:])
    assert np.array_equal(sketch.of_rows(codes) - one_less, sketch.of_rows(codes[:1]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_of_the_clients_sketches_is_the_sketch_of_the_pooled_table(kind):
    """To the bit, for every way of splitting the rows, empty clients included."""
    sketch = sketcher(kind, 40)
    codes = table(1000)
    rng = np.random.default_rng(1)
    for owner in (rng.integers(0, 7, 1000), np.argsort(codes[:, 3], kind="stable") // 250, np.zeros(1000, np.int64)):
        total = sum(sketch.of_rows(codes[owner == k]) for k in range(9))
        assert np.array_equal(total, sketch.of_rows(codes))


def test_tables_larger_than_a_block_are_counted_in_full(monkeypatch):
    codes = table(1000)
    expected = [sketcher(kind, 40).of_rows(codes) for kind in KINDS]
    monkeypatch.setattr("fedsyn.selection.sketches._ROWS_AT_ONCE", 64)
    monkeypatch.setattr("experiments.sketch_aim_ablation.variant._CELLS_AT_ONCE", 16)
    for kind, vector in zip(KINDS, expected, strict=True):
        assert np.array_equal(sketcher(kind, 40).of_rows(codes), vector)


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_sketches_in_groups_are_those_of_the_exact_marginals(rows):
    codes, own = table(rows), sketcher("groups", 40)
    marginals = count(codes, DOMAIN, CLIQUES)
    expected = np.concatenate([own.of_marginal(i, marginal) for i, marginal in enumerate(marginals)])
    assert np.array_equal(own.of_rows(codes), expected) and expected.sum() == rows * len(CLIQUES)


def test_lengths_and_signs():
    groups, counted, signs = (sketcher(kind, 10) for kind in KINDS[1:])
    assert counted.lengths == (10, 10, 10) and signs.lengths == (10, 10, 10)
    assert groups.lengths == (10, 9, 8)  # 5 x 2, 3 x 3, 2 x 2 x 2
    assert sketcher("count", 14).lengths == (14, 14, 14) and sketcher("count", 15).lengths == (14, 15, 15)
    assert not groups.signed and counted.signed and signs.signed
    assert signs.row_norms[0] == math.sqrt(10) and counted.row_norms[0] == groups.row_norms[0] == 1.0
    assert signs.sigma_of(1, 6.0) == pytest.approx(6.0 / math.sqrt(10))


@pytest.mark.parametrize("width", [10, 64, 130])
def test_signs_and_buckets_are_those_of_the_generator(width):
    """Cell by cell from the scalar generator: no cell shares a word with another one."""
    words, cells = -(-width // 64), DOMAIN.size(CLIQUES[1])
    outputs = scalar_splitmix64(clique_key(5, CLIQUES[1]), cells * words)
    place = [j % 64 // 8 * 8 + 7 - j % 8 for j in range(width)]  # bytes rising, bits of a byte falling
    signs = [[1 - 2 * (outputs[c * words + j // 64] >> place[j] & 1) for j in range(width)] for c in range(cells)]
    assert np.array_equal(matrix(sketcher("signs", width), 1), signs)
    counted = np.zeros((cells, width))
    for c in range(cells):
        counted[c, (outputs[c] >> 32) * width >> 32] = 1 - 2 * (outputs[c] & 1)
    assert np.array_equal(matrix(sketcher("count", width), 1), counted)


def test_seeds_and_cliques_have_their_own_bits():
    assert not np.array_equal(matrix(sketcher("count"), 1), matrix(sketcher("count", seed=6), 1))
    assert not np.array_equal(matrix(sketcher("signs"), 1), matrix(sketcher("signs", seed=6), 1))
    both = Signs(DOMAIN, (("a", "d"), ("d", "a")), 8, {})
    assert not np.array_equal(both.of_marginal(0, np.arange(210.0)), both.of_marginal(1, np.arange(210.0)))


# Groups --------------------------------------------------------------------------------------------------------------


def brute_force_groups(mass: np.ndarray, groups: int) -> float:
    """Least sum of squared group masses over all cuts into so many runs."""
    best = math.inf
    for cuts in itertools.combinations(range(1, len(mass)), groups - 1):
        best = min(best, sum(float(part.sum()) ** 2 for part in np.split(mass, cuts)))
    return best


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 6])
def test_groups_are_the_best_cuts(groups):
    rng = np.random.default_rng(groups)
    for _ in range(20):
        mass = rng.random(9) ** 4
        got = equal_groups(mass, groups)
        assert np.array_equal(np.unique(got), np.arange(groups)) and (np.diff(got) >= 0).all()
        weight = mass / mass.sum() + 1e-9
        reached = float((np.bincount(got, weights=weight) ** 2).sum())
        assert reached == pytest.approx(brute_force_groups(weight, groups), rel=1e-9)


def test_groups_of_odd_masses():
    assert equal_groups(np.array([1.0, 2.0]), 5).tolist() == [0, 1]
    assert equal_groups(np.array([0.0, 0.0, 0.0, 0.0]), 2).tolist() == [0, 0, 1, 1]
    assert equal_groups(np.array([-5.0, 1.0, 1.0, -3.0]), 2).tolist() in ([0, 0, 1, 1],)
    heavy = equal_groups(np.array([0.96, 0.01, 0.01, 0.02]), 3)
    assert heavy[0] == 0 and (heavy[1:] > 0).all(), "a heavy value must not cost the others their groups"


@pytest.mark.thorough
@pytest.mark.parametrize("groups", [3, 64])
@pytest.mark.parametrize("skew", [0.0, 1.2])
def test_groups_of_many_values_are_nearly_as_even_as_the_best(groups, skew, monkeypatch):
    mass = np.random.default_rng(groups).permutation(np.arange(1.0, 1501.0) ** -skew)
    mass[700] = mass.sum() / 3.0  # a value that no group should share
    got = equal_groups(mass, groups)
    monkeypatch.setattr(coarse, "_PIECES", len(mass))
    best = equal_groups(mass, groups)
    assert np.array_equal(np.unique(got), np.arange(groups)) and (np.diff(got) >= 0).all()
    reached, least = (float((np.bincount(cut, mass) ** 2).sum()) for cut in (got, best))
    assert least <= reached < (1.0 + 1.0 / 64.0) * least


def test_more_groups_than_are_cut_at_once_are_in_use_and_even():
    mass = np.ones(5000)
    mass[[10, 4000]] = 5000.0
    got = equal_groups(mass, 900)
    assert np.array_equal(np.unique(got), np.arange(900)) and (np.diff(got) >= 0).all()
    sizes = np.bincount(got)
    assert sizes[got[10]] == sizes[got[4000]] == 1 and sizes.max() <= 2 * 5000 / 900
    assert equal_groups(mass, 4999).max() == 4998


@pytest.mark.thorough
def test_one_column_of_many_values_takes_no_memory_for_pairs_of_them():
    """The square of 30,000 values has 7.2 GB of numbers, 0.9 GB of bits; its groups take 64 MB."""
    values, n = 30_000, 2_000
    domain = Domain(("code", "sex"), (values, 2))
    mass = {"code": np.arange(1.0, values + 1.0) ** -0.8, "sex": np.ones(2)}
    tracemalloc.start()
    grouping = grouping_of(domain, [("code", "sex")], 64, mass)
    rungs = Ladders(domain, mass).rungs("code")
    fitted = estimate(domain, [Measurement((name,), n * one / one.sum(), 5.0) for name, one in mass.items()], total=n)
    smooth = smoothed(fitted, {"code": 1e-5})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(grouping["code", 32])) == 32 and rungs[-1].count == values
    assert [rung.count for rung in rungs[:3]] == [2, 3, 4] and rungs[0].kept < rungs[5].kept < 1.0
    assert smooth.project(("code",)).min() > 0.0
    assert peak < 64e6


@pytest.mark.parametrize(
    ("clique", "width", "expected"),
    [(("c", "d"), 36, (6, 6)), (("b", "d"), 36, (2, 18)), (("a", "c", "d"), 27, (3, 3, 3)), (("a", "b"), 1, (1, 1))],
)
def test_the_smallest_number_of_groups_grows_first(clique, width, expected):
    assert group_counts(DOMAIN, clique, width) == expected


def test_groups_survive_a_message_and_wrong_ones_are_refused():
    grouping = sketcher("groups", 12).grouping
    assert list(grouping) == grouping_keys(DOMAIN, CLIQUES, 12)
    packed = pack_grouping(grouping)
    unpacked = unpack_grouping(packed, DOMAIN, CLIQUES, 12)
    assert list(unpacked) == list(grouping)
    assert all(np.array_equal(unpacked[key], grouping[key]) for key in grouping)
    beyond = packed.copy()
    beyond[0] = 100
    for wrong in (packed[:-1], packed.astype(np.float64), packed[None], beyond, packed.astype(np.int64) - 1):
        with pytest.raises(ProtocolError, match="groups"):
            unpack_grouping(wrong, DOMAIN, CLIQUES, 12)


def test_whatever_groups_a_server_names_a_row_moves_the_vector_by_the_sensitivity():
    rng = np.random.default_rng(3)
    keys = grouping_keys(DOMAIN, CLIQUES, 12)
    packed = np.concatenate([rng.integers(0, groups, DOMAIN[name]) for name, groups in keys])
    hostile = Sketcher(DOMAIN, CLIQUES, 12, unpack_grouping(packed, DOMAIN, CLIQUES, 12))
    for row in table(20):
        moved = hostile.of_rows(row[None])
        assert float(moved @ moved) == len(CLIQUES)


# Interactions --------------------------------------------------------------------------------------------------------


def test_an_interaction_is_what_a_coarse_marginal_has_beyond_its_parts():
    """The projection against an explicit one: onto the complement of all tensors that are constant along an axis."""
    sketch, groups = sketcher("interactions", 12), sketcher("groups", 12)
    rng = np.random.default_rng(0)
    for i, clique in enumerate(CLIQUES):
        shape = sketch.shapes[i]
        axes = [np.arange(math.prod(shape)).reshape(shape).swapaxes(0, a).reshape(g, -1) for a, g in enumerate(shape)]
        constant = []  # of each line along an axis, its indicator
        for lines in axes:
            for line in lines.T:
                constant.append(np.isin(np.arange(math.prod(shape)), line).astype(float))
        basis = np.linalg.svd(np.array(constant))[2]
        explicit = basis[np.linalg.matrix_rank(np.array(constant)) :]
        assert len(explicit) == sketch.noises(i) == math.prod(g - 1 for g in shape)
        marginal = rng.random(DOMAIN.size(clique))
        coarse = groups.of_marginal(i, marginal)
        assert np.allclose(sketch.of_marginal(i, marginal), explicit.T @ (explicit @ coarse), atol=1e-12)


@pytest.mark.thorough
def test_two_binary_attributes_have_a_quarter_of_the_sensitivity_and_one_noise():
    domain = Domain(("a", "b", "c"), (2, 2, 2))
    cliques = (("a", "b"), ("a", "b", "c"))
    every = dict.fromkeys([("a", 2), ("b", 2), ("c", 2)], np.arange(2))
    sketch = Interactions(domain, cliques, 8, every)
    assert sketch.factors == (8, 8) and sketch.signed and sketch.magnitude == 8.0
    assert [sketch.noises(i) for i in (0, 1)] == [1, 1]
    assert [sketch.row_norms[i] / sketch.factors[i] for i in (0, 1)] == pytest.approx([0.5, math.sqrt(1 / 8)])
    # Noise on the vector is left in one dimension of each sketch, with the standard deviation that `sigma_of` says.
    noisy = np.random.default_rng(1).normal(0, 3.0, (20_000, sketch.length))
    for i in (0, 1):
        left = np.array([np.linalg.norm(sketch.split(z)[i]) for z in noisy])
        # 20,000 squares of one normal: their mean has a standard deviation of 1%; 5% is five of them.
        assert np.mean(left**2) == pytest.approx(sketch.sigma_of(i, 3.0) ** 2, rel=0.05)


def test_whatever_groups_a_server_names_an_interaction_moves_by_its_sensitivity():
    rng = np.random.default_rng(3)
    packed = np.concatenate(
        [rng.integers(0, groups, DOMAIN[name]) for name, groups in grouping_keys(DOMAIN, CLIQUES, 12)]
    )
    hostile = Interactions(DOMAIN, CLIQUES, 12, unpack_grouping(packed, DOMAIN, CLIQUES, 12))
    for row in table(20):
        moved = hostile.of_rows(row[None])
        assert math.sqrt(float(moved @ moved)) == pytest.approx(hostile.sensitivity, rel=1e-12)
        assert np.abs(moved).max() <= hostile.magnitude


def test_squared_distance_takes_off_the_noise_of_every_entry():
    assert squared_distance(np.array([3.0, -4.0]), 0.0) == 25.0
    assert squared_distance(np.array([3.0, -4.0]), 2.0) == 17.0
    assert squared_distance(np.zeros(3), 1.0) == -3.0
    assert squared_distance(np.zeros(4), 1.0, 1) == -1.0


def test_what_pairs_weigh_is_the_best_division_of_a_budget() -> None:
    """By search: sum a / r over sketches of relative precision r^2, at a cost of r^2 each."""
    assert weight_of_pairs({2: 3.0}) == weight_of_pairs({3: 2.0}) == weight_of_pairs({2: 1.0, 3: 8.0}) == 1.0
    for asked in (1.9, 6.0, 28.0):
        weight, ratios = weight_of_pairs({2: asked, 3: 1.0}), np.geomspace(1.0, 30.0, 4001)
        # 10 pairs and 50 triples whose noise is `ratios` times that of pairs, at one price in all.
        noise = np.sqrt(10 + 50 / ratios**2)
        assert ratios[np.argmin(noise * (10 * asked + 50 * ratios))] == pytest.approx(weight, rel=2e-3)
    assert as_pairs({2: 10, 3: 50}, 2.0) == {2: 10.0, 3: 12.5}


def test_triples_have_as_much_more_noise_as_pairs_weigh() -> None:
    cliques = (("a", "b"), ("a", "c"), ("a", "b", "c"))
    domain = Domain(("a", "b", "c"), (2, 4, 4))
    groups = grouping_of(domain, cliques, 16, {name: np.ones(domain[name]) for name in domain})
    for weight in (1.0, 1.5, 2.35):
        sketcher = Interactions(domain, cliques, 16, groups, weight)
        pair, other, triple = (sketcher.sigma_of(i, 1.0) for i in range(3))
        assert pair == other and triple == pytest.approx(weight * pair, rel=0.07)  # in eighths
        rows = np.array([[0, 1, 3], [1, 2, 0]])
        for row in rows:  # what a row adds has the norm that its noise is for, whatever the weight
            assert np.linalg.norm(sketcher.of_rows(row[None]).astype(float)) == pytest.approx(sketcher.sensitivity)
        assert sketcher.of_rows(rows).max() <= sketcher.magnitude
