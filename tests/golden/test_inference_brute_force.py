"""The junction-tree engine against brute force over the whole domain, to 1e-9 and better."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedsyn.domain import Clique, Domain
from fedsyn.inference import Model, model_size
from fedsyn.inference import project as project_module
from support.inference_reference import CASES, BruteForce, all_cliques, domain_of


def random_potentials(domain: Domain, cliques: tuple[Clique, ...], scale: float, seed: int) -> dict[Clique, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {clique: scale * rng.standard_normal(domain.shape_of(clique)) for clique in cliques}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Domain, tuple[Clique, ...]]:
    shape, cliques = CASES[request.param]
    return domain_of(shape), cliques


@pytest.mark.parametrize("scale", [0.5, 5.0, 300.0])
def test_every_oracle_agrees_with_brute_force(
    case: tuple[Domain, tuple[Clique, ...]], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain, cliques = case
    potentials = random_potentials(domain, cliques, scale, 0)
    # The empty clique's potential shifts scores and log Z alike; the model leaves it out.
    truth = BruteForce(domain, {c: t for c, t in potentials.items() if c})
    model = Model(domain, potentials, 1000.0)
    assert model.log_partition == pytest.approx(truth.log_partition, rel=1e-12, abs=1e-9)

    rng = np.random.default_rng(1)
    for clique in all_cliques(domain):
        expected = truth.marginal(clique)
        got = model.project(clique)
        assert got.shape == expected.shape and got.flags.c_contiguous
        np.testing.assert_allclose(got / 1000.0, expected, rtol=0, atol=1e-12)
        cells = np.stack([rng.integers(0, n, 9) for n in expected.shape] or [np.zeros(9)], axis=1)
        cells = cells.astype(np.int64)[:, : len(clique)]
        for cell_cost in (0.0, 1e9):  # cell by cell, and by the whole marginal
            monkeypatch.setattr(project_module, "_CELL_COST", cell_cost)
            values = model.probability_at(clique, cells)
            np.testing.assert_allclose(values, expected[tuple(cells.T)], rtol=0, atol=1e-12)

    codes = np.stack(np.unravel_index(np.arange(domain.size()), domain.shape), axis=1)
    np.testing.assert_allclose(model.log_likelihood(codes), truth.log_joint.ravel(), rtol=1e-12, atol=1e-9)


def test_projections_are_relatively_accurate_in_their_smallest_cells(
    case: tuple[Domain, tuple[Clique, ...]],
) -> None:
    domain, cliques = case
    potentials = random_potentials(domain, cliques, 8.0, 3)
    truth = BruteForce(domain, {c: t for c, t in potentials.items() if c})
    model = Model(domain, potentials, 1.0)
    for clique in all_cliques(domain):
        np.testing.assert_allclose(model.project(clique), truth.marginal(clique), rtol=1e-10)


def test_project_many_equals_project_and_does_not_depend_on_what_was_asked_before(
    case: tuple[Domain, tuple[Clique, ...]],
) -> None:
    domain, cliques = case
    potentials = random_potentials(domain, cliques, 2.0, 5)
    asked = all_cliques(domain)
    forward = list(Model(domain, potentials, 7.0).project_many(asked))
    backward = list(Model(domain, potentials, 7.0).project_many(asked[::-1]))[::-1]
    for clique, first, second in zip(asked, forward, backward, strict=True):
        assert first.tobytes() == second.tobytes()
        assert first.tobytes() == Model(domain, potentials, 7.0).project(clique).tobytes()


def test_slicing_a_large_projection_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chain", "cycle of six", "grid", "star of triples"):
        shape, cliques = CASES[name]
        domain = domain_of(shape)
        model = Model(domain, random_potentials(domain, cliques, 2.0, 7), 1.0)
        asked = all_cliques(domain)
        expected = list(model.project_many(asked))
        with monkeypatch.context() as patch:
            patch.setattr(project_module, "_PEAK_CELLS", 4)
            for clique, table in zip(asked, expected, strict=True):
                np.testing.assert_allclose(model.project(clique), table, rtol=1e-12)


def test_structural_cliques_get_a_place_and_leave_the_distribution_alone() -> None:
    domain = domain_of((3, 2, 4, 2))
    potentials = random_potentials(domain, (("a", "b"), ("b", "c")), 2.0, 11)
    plain = Model(domain, potentials, 5.0)
    wide = Model(domain, potentials, 5.0, structural_cliques=[("a", "c", "d")])
    assert any({"a", "c", "d"} <= set(clique) for clique in wide.cliques)
    assert wide.log_partition == pytest.approx(plain.log_partition, abs=1e-12)
    for clique in all_cliques(domain):
        np.testing.assert_allclose(wide.project(clique), plain.project(clique), atol=1e-12)


def test_attributes_that_nobody_measured_cost_one_cell_per_value() -> None:
    shape = (50,) * 60
    domain = Domain(tuple(f"x{i}" for i in range(60)), shape)
    assert model_size(domain, [("x3", "x7")]) == 58 * 50 + 50 * 50
    model = Model(domain, {("x3", "x7"): np.zeros((50, 50))}, 100.0)
    np.testing.assert_allclose(model.project(("x0", "x3", "x59")), 100.0 / 50**3, rtol=1e-12)
    assert model.log_partition == pytest.approx(60 * np.log(50), rel=1e-12)
    assert model.sample(10, np.random.default_rng(0)).shape == (10, 60)


@pytest.mark.parametrize("seed", range(6))
def test_all_pairs_across_a_tree_are_those_of_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two sweeps: trees with and without structural zeros of their own, several components, wide separators."""
    rng = np.random.default_rng(seed)
    names = tuple(f"a{i}" for i in range(9))
    domain = Domain(names, tuple(rng.integers(1, 4, 9).tolist()))
    potentials = {}
    for _ in range(8 + seed):
        clique = tuple(sorted(rng.choice(names, int(rng.integers(2, 4)), replace=False).tolist()))
        table = rng.normal(size=domain.shape_of(clique))
        potentials[clique] = np.where(rng.random(table.shape) < 0.1 * (seed % 2), -40.0, table)
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in combinations(names, 2)]
    truth = BruteForce(domain, potentials)
    swept, plain = [], project_module.TreeProjector._sweep

    def sweep(self: project_module.TreeProjector, nodes: list[int], wanted: set[int], found: dict[int, object]) -> None:
        plain(self, nodes, wanted, found)  # type: ignore[arg-type]
        swept.append(len(wanted))
        assert found.keys() >= wanted, "none is left to be computed by itself"

    monkeypatch.setattr(project_module, "_MANY_PAIRS", 1)
    monkeypatch.setattr(project_module.TreeProjector, "_sweep", sweep)
    for pair, found in zip(pairs, Model(domain, potentials, 1.0).project_many(pairs), strict=True):
        np.testing.assert_allclose(found, truth.marginal(pair), rtol=1e-9, atol=1e-15)
    assert sum(swept) > 4
