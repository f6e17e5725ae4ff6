"""Properties of norm-sub, consistency and GUM on what hypothesis makes up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsyn.domain import Domain
from fedsyn.inference import GumConfig, Measurement, consistent, synthesize
from fedsyn.inference.consistency import norm_sub
from fedsyn.inference.gum import update
from fedsyn.inference.whole_rows import WholeRows

numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
tables = st.integers(1, 40).flatmap(lambda n: arrays(np.float64, n, elements=numbers))


@given(tables, st.floats(1e-3, 1e6))
@example(np.zeros(5), 1.0)
@example(np.array([1e6, 1e6, -1e6]), 1e-3)
@settings(max_examples=100, deadline=None)
def test_norm_sub_is_the_nearest_valid_array(values: np.ndarray, total: float) -> None:
    made = norm_sub(values, total)
    assert made.min() >= 0
    assert abs(made.sum() - total) <= 1e-9 * total
    # Optimality: one number is subtracted from every cell that stays, and from no other would more be left.
    scale = max(1.0, float(np.abs(values).max()), total)
    kept = made > 0
    taken = values[kept] - made[kept]
    assert np.ptp(taken) <= 1e-9 * scale
    assert (values[~kept] <= taken.mean() + 1e-9 * scale).all()


@given(tables)
@settings(max_examples=50, deadline=None)
def test_norm_sub_leaves_valid_arrays_alone(values: np.ndarray) -> None:
    values = np.abs(values) + (values == 0)
    np.testing.assert_allclose(norm_sub(values, float(values.sum())), values, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(norm_sub(values, 0.0), np.zeros(len(values)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Domain, list[Measurement]]:
    """Up to five small attributes and any measurements over up to three of them, repeats and permutations too."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    domain = Domain(tuple("abcde"[: len(shape)]), shape)
    cliques = draw(st.lists(st.lists(st.sampled_from(domain.attributes), max_size=3, unique=True), max_size=7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.0, 1.0, 300.0]))
    out = []
    for clique in cliques:
        values = 20 * rng.random(domain.shape_of(clique)) + scale * rng.standard_normal(domain.shape_of(clique))
        out.append(Measurement(tuple(clique), values, float(rng.uniform(0.1, 9.0))))
    return domain, out


@given(problems(), st.one_of(st.none(), st.sampled_from([0.0, 1.0, 250.0])))
@settings(max_examples=50, deadline=None)
def test_consistent_marginals_share_their_one_way_projections(
    problem: tuple[Domain, list[Measurement]], total: float | None
) -> None:
    domain, measurements = problem
    made = consistent(domain, measurements, total=total)
    assert set(made) == {domain.canonical(m.clique) for m in measurements if m.clique}
    ones: dict[str, np.ndarray] = {}
    for clique, table in made.items():
        assert table.shape == domain.shape_of(clique) and table.min() >= 0
        for axis, name in enumerate(clique):
            one = table.sum(axis=tuple(i for i in range(table.ndim) if i != axis))
            size = max(1.0, float(one.sum()))
            np.testing.assert_allclose(one, ones.setdefault(name, one), atol=1e-9 * size)
            if total is not None:
                assert abs(one.sum() - total) <= 1e-9 * size


@given(problems(), st.integers(0, 60), st.integers(0, 2**32 - 1), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_rows_keep_their_number_and_domain(
    problem: tuple[Domain, list[Measurement]], rows: int, seed: int, duplicate: float
) -> None:
    domain, measurements = problem
    config = GumConfig(iterations=5, duplicate=duplicate)
    made = synthesize(domain, measurements, rows, np.random.default_rng(seed), config)
    assert made.shape == (rows, len(domain))
    assert (made < np.array(domain.shape)).all()
    assert (made == synthesize(domain, measurements, rows, np.random.default_rng(seed), config)).all()


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 1.0), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_updates_of_one_marginal_only_bring_it_nearer(seed: int, alpha: float, duplicate: float) -> None:
    rng = np.random.default_rng(seed)
    table = WholeRows(rng.integers(0, 6, (2, 400)).astype(np.uint8), [[0, 1]])
    target = rng.dirichlet(np.full(36, 0.3)).reshape(6, 6) * 400

    def error() -> float:
        return float(np.abs(np.bincount(table[0] * 6 + table[1], minlength=36) - target.ravel()).sum())

    errors = [error()]
    for _ in range(30):
        update(table, (0, 1), target, alpha, duplicate, rng)
        errors.append(error())
    assert all(after <= before + 1e-9 for before, after in pairwise(errors))
    if alpha == 1.0:
        assert errors[1] <= 36
    assert errors[-1] <= max(72.0, 0.9 * errors[0])
