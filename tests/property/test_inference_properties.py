"""Properties of inference on models that hypothesis makes up, each against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsyn.domain import Clique, Domain
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate, model_size, pass_cost
from fedsyn.inference.calibrate import sum_out
from fedsyn.inference.junction_tree import axes_of, bits
from fedsyn.inference.project import matmul
from support.inference_reference import CASES, BruteForce, all_cliques, domain_of


@st.composite
def structures(draw: st.DrawFn) -> tuple[Domain, list[Clique]]:
    """A domain of at most six small attributes and cliques over it: an awkward case, or anything."""
    if draw(st.booleans()):
        shape, cliques = CASES[draw(st.sampled_from(sorted(CASES)))]
        return domain_of(shape), list(cliques)
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    domain = domain_of(shape)
    clique = st.lists(st.sampled_from(domain.attributes), max_size=3, unique=True).map(tuple)
    return domain, draw(st.lists(clique, max_size=7))


@given(structures(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 30.0]))
@settings(max_examples=60, deadline=None)
def test_oracles_agree_with_brute_force(structure: tuple[Domain, list[Clique]], seed: int, scale: float) -> None:
    domain, cliques = structure
    rng = np.random.default_rng(seed)
    potentials = {c: scale * rng.standard_normal(domain.shape_of(c)) for c in cliques}
    truth = BruteForce(domain, {c: t for c, t in potentials.items() if c})
    model = Model(domain, potentials, 10.0)
    np.testing.assert_allclose(model.log_partition, truth.log_partition, rtol=1e-12, atol=1e-9)
    codes = np.stack([rng.integers(0, n, 8) for n in domain.shape], axis=1)
    rows = truth.log_joint[tuple(codes.T)]
    np.testing.assert_allclose(model.log_likelihood(codes), rows, rtol=1e-12, atol=1e-9)
    asked = all_cliques(domain)
    for index in rng.choice(len(asked), size=min(8, len(asked)), replace=False):
        clique = asked[index]
        expected = truth.marginal(clique)
        np.testing.assert_allclose(model.project(clique) / 10.0, expected, atol=1e-12)
        cells = codes[:, list(domain.axes(clique))]
        np.testing.assert_allclose(model.probability_at(clique, cells), expected[tuple(cells.T)], atol=1e-12)


@given(structures(), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_estimation_never_does_worse_than_uniform_and_ignores_order(
    structure: tuple[Domain, list[Clique]], seed: int
) -> None:
    domain, cliques = structure
    rng = np.random.default_rng(seed)
    measurements = [
        Measurement(c, 10 * rng.standard_normal(domain.shape_of(c)), float(rng.uniform(0.1, 9))) for c in cliques
    ]
    config = EstimateConfig(iterations=12)
    model = estimate(domain, measurements, total=20.0, config=config)
    nothing = estimate(domain, measurements, total=20.0, config=EstimateConfig(iterations=0))
    assert model.info is not None and nothing.info is not None
    assert model.info.loss <= nothing.info.loss * (1 + 1e-12)
    shuffled = [measurements[i] for i in rng.permutation(len(measurements))]
    again = estimate(domain, shuffled, total=20.0, config=config)
    for key, value in model.to_arrays().items():
        assert again.to_arrays()[key].tobytes() == value.tobytes()
    rows = model.sample(17, rng)
    assert rows.shape == (17, len(domain)) and (rows < np.array(domain.shape)).all()


def flat_model(domain: Domain, cliques: list[Clique]) -> Model:
    return Model(domain, {c: np.zeros(domain.shape_of(c)) for c in cliques}, 1.0)


@st.composite
def known_parts(draw: st.DrawFn) -> tuple[Domain, list[Clique], Clique]:
    """A structure, and some attributes of one clique of its junction tree."""
    domain, cliques = draw(structures())
    inside = draw(st.sampled_from(flat_model(domain, cliques).cliques))
    return domain, cliques, tuple(draw(st.permutations(inside)))[: draw(st.integers(0, len(inside)))]


# A ring has several trees: of 44 cells as greedy elimination finds it, of 40 with (c, d, e), which is in both.
@example((domain_of((2, 3, 2, 3, 2, 2)), list(CASES["cycle of six"][1]), ("c", "d", "e")))
@given(known_parts())
@settings(max_examples=60, deadline=None)
def test_model_size_counts_the_tree_and_a_known_clique_is_free(case: tuple[Domain, list[Clique], Clique]) -> None:
    domain, cliques, part = case
    size = model_size(domain, cliques)
    tree = flat_model(domain, cliques).cliques
    assert size == sum(domain.size(c) for c in tree)
    # Known: inside a clique that was given, or beside all of the tree's, which no elimination then misses.
    assert model_size(domain, [*cliques, *tree, part]) == size
    if any(set(part) <= set(c) for c in cliques):
        assert model_size(domain, [*cliques, part]) == size
    # A part of the tree alone may lead greedy elimination to another tree, smaller or larger; its size is what counts.
    other = flat_model(domain, [*cliques, part]).cliques
    assert model_size(domain, [*cliques, part]) == sum(domain.size(c) for c in other)
    assert any(set(part) <= set(c) for c in other)
    assert pass_cost(domain, cliques) >= 5 * size


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_sum_out_is_a_sum(shape: list[int], kept: list[bool], seed: int) -> None:
    axes = axes_of(domain_of(shape))
    mask = (1 << len(shape)) - 1
    keep = sum(1 << i for i in range(len(shape)) if kept[i])
    table = np.random.default_rng(seed).standard_normal(axes.shape(mask))
    gone = tuple(i for i in range(len(shape)) if not kept[i])
    assert bits(keep) == tuple(i for i in range(len(shape)) if kept[i])
    np.testing.assert_allclose(sum_out(table, axes, mask, keep), table.sum(axis=gone), atol=1e-12)


@example(b=2, m=3, k=129, n=2, turned=False, seed=0)
@example(b=1, m=2, k=257, n=3, turned=True, seed=0)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 400),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_products_are_products(b: int, m: int, k: int, n: int, turned: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    left, right = rng.random((b, m, k)), rng.random((b, k, n))
    if turned:  # the same numbers, laid out the other way round
        left, right = np.asfortranarray(left), np.asfortranarray(right)
    np.testing.assert_allclose(matmul(left, right), left @ right, rtol=1e-12)
