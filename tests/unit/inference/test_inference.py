"""The parts of inference: sizes, merging, totals, sampling, arrays, determinism, errors."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest

from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate, model_size, pass_cost
from fedsyn.inference.junction_tree import (
    adjacency_of,
    axes_of,
    build_tree,
    eliminate_greedily,
    eliminate_simplicial,
    maximal,
)
from fedsyn.inference.measurements import least_variance_total, merge
from fedsyn.inference.solvers import _stalled
from support.inference_reference import CASES, all_cliques, domain_of


def random_model(name: str, scale: float = 1.5, total: float = 1000.0, seed: int = 0) -> Model:
    shape, cliques = CASES[name]
    domain = domain_of(shape)
    rng = np.random.default_rng(seed)
    return Model(domain, {c: scale * rng.standard_normal(domain.shape_of(c)) for c in cliques}, total)


# ---------------------------------------------------------------------- trees and sizes


@pytest.mark.parametrize("name", sorted(CASES))
def test_tree_has_the_running_intersection_property_and_covers_everything(name: str) -> None:
    shape, cliques = CASES[name]
    domain = domain_of(shape)
    axes = axes_of(domain)
    tree = build_tree(axes, map(axes.mask, cliques))
    assert all(tree.containing(axes.mask(clique)) >= 0 for clique in cliques)
    for rank in range(len(domain)):
        nodes = [n for n, mask in enumerate(tree.cliques) if mask >> rank & 1]
        tops = [n for n in nodes if tree.parents[n] < 0 or not tree.cliques[tree.parents[n]] >> rank & 1]
        assert len(tops) == 1  # the nodes that hold an attribute are one subtree
    for node, mask in enumerate(tree.cliques):
        assert not any(mask & other == mask for n, other in enumerate(tree.cliques) if n != node)
    assert sum(tree.cells) == model_size(domain, cliques)


def test_model_size_of_known_graphs() -> None:
    domain = Domain(("a", "b", "c", "d"), (2, 3, 5, 7))
    assert model_size(domain, []) == 17
    assert model_size(domain, [("a", "b"), ("b", "c")]) == 6 + 15 + 7
    # A cycle needs one chord; {a, c} is the cheaper one.
    assert model_size(domain, [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]) == 2 * 3 * 5 + 2 * 5 * 7
    assert model_size(domain, [("d", "c", "b", "a"), ("a",)]) == 210
    assert model_size(Domain((), ()), []) == 0


def test_sizes_do_not_depend_on_the_order_of_cliques_or_attributes() -> None:
    shape, cliques = CASES["grid"]
    domain = domain_of(shape)
    sizes = {model_size(domain, order) for order in list(permutations(cliques))[:200]}
    costs = {pass_cost(domain, [c[::-1] for c in order]) for order in list(permutations(cliques))[:200]}
    assert len(sizes) == len(costs) == 1


def test_the_better_of_the_elimination_orders_is_taken() -> None:
    rng = np.random.default_rng(0)
    wins = set()
    for _ in range(300):
        domain = Domain(tuple("abcdefgh"), tuple(rng.integers(2, 40, 8)))
        axes = axes_of(domain)
        masks = [axes.mask(rng.choice(list("abcdefgh"), 2, replace=False)) for _ in range(14)]
        adjacency = adjacency_of(8, masks)
        free, left = eliminate_simplicial(adjacency, (1 << 8) - 1)
        sizes = []
        for by_fill in (False, True):
            cliques = maximal([*free.values(), *eliminate_greedily(list(adjacency), left, axes, by_fill)])
            sizes.append(sum(axes.cells(mask) for mask in cliques))
        assert model_size(domain, [axes.clique(mask) for mask in masks]) == min(sizes)
        wins.add((sizes[0] < sizes[1]) - (sizes[0] > sizes[1]))
    assert wins == {-1, 0, 1}


def test_pass_cost_is_at_least_the_fixed_passes_and_grows_with_tables() -> None:
    domain = Domain(("a", "b", "c", "d"), (10, 10, 10, 10))
    cliques: list[Clique] = [("a", "b", "c")]
    few = pass_cost(domain, cliques)
    assert few >= 5 * model_size(domain, cliques)
    structural = [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")]
    assert pass_cost(domain, [*cliques, *structural]) > few


# ---------------------------------------------------------------------- measurements


def test_merging_is_the_inverse_variance_mean() -> None:
    domain = Domain(("a", "b"), (2, 3))
    first = Measurement(("a", "b"), np.arange(6.0).reshape(2, 3), 1.0)
    second = Measurement(("b", "a"), np.arange(6.0).reshape(3, 2), 2.0)
    (merged,) = merge(axes_of(domain), [first, second])
    np.testing.assert_allclose(merged.values, (first.values + second.values.T / 4) / 1.25)
    assert merged.sigma == pytest.approx((1 / 1.25) ** 0.5)
    both = sum(
        0.5 * (((m.values if m.clique == ("a", "b") else m.values.T) - merged.values) ** 2).sum() / m.sigma**2
        for m in (first, second)
    )
    assert merged.disagreement == pytest.approx(both)


def test_flat_values_are_taken_in_the_order_of_the_clique() -> None:
    domain = Domain(("a", "b"), (2, 3))
    table = np.arange(6.0).reshape(3, 2)
    (flat,) = merge(axes_of(domain), [Measurement(("b", "a"), table.ravel(), 1.0)])
    (shaped,) = merge(axes_of(domain), [Measurement(("b", "a"), table, 1.0)])
    np.testing.assert_array_equal(flat.values, shaped.values)
    np.testing.assert_array_equal(flat.values, table.T)


def test_total_has_minimum_variance() -> None:
    domain = Domain(("a", "b"), (2, 50))
    measurements = [
        Measurement(("a",), np.array([60.0, 60.0]), 1.0),
        Measurement(("b",), np.full(50, 2.0), 1.0),
        Measurement((), np.array(90.0), 4.0),
    ]
    weights = np.array([1 / 2, 1 / 50, 1 / 16])
    total = least_variance_total(merge(axes_of(domain), measurements))
    assert total == pytest.approx(weights @ [120.0, 100.0, 90.0] / weights.sum())
    assert estimate(domain, measurements).total == total
    assert estimate(domain, [Measurement(("a",), np.array([-9.0, 2.0]), 1.0)]).total == 1.0


def test_order_of_measurements_does_not_change_a_bit() -> None:
    domain = domain_of((3, 4, 2, 3))
    rng = np.random.default_rng(0)
    cliques: list[Clique] = [("a", "b"), ("b", "a"), ("b", "c"), ("a",), ("a",), ("a",), ("d", "c", "a"), ()]
    measurements = [
        Measurement(c, 100 + 9 * rng.standard_normal(domain.shape_of(c)), 1.0 + i % 4) for i, c in enumerate(cliques)
    ]
    config = EstimateConfig(iterations=40)
    bits = set()
    for order in [range(8), range(7, -1, -1), rng.permutation(8), rng.permutation(8)]:
        model = estimate(domain, [measurements[i] for i in order], config=config)
        bits.add((model.to_arrays()["potentials"].tobytes(), model.total, model.project(("d", "b")).tobytes()))
    assert len(bits) == 1


@pytest.mark.parametrize(
    ("clique", "values", "sigma"),
    [
        (("a",), np.zeros(3), 1.0),
        (("a", "a"), np.zeros((2, 2)), 1.0),
        (("a",), np.array([1.0, np.nan]), 1.0),
        (("a",), np.zeros(2), 0.0),
        (("a",), np.zeros(2), float("inf")),
        (("a", "b"), np.zeros((3, 2)), 1.0),
    ],
)
def test_malformed_measurements_are_refused(clique: Clique, values: np.ndarray, sigma: float) -> None:
    with pytest.raises(ValueError):
        estimate(Domain(("a", "b"), (2, 3)), [Measurement(clique, values, sigma)])


# ---------------------------------------------------------------------- solvers


def test_fit_record_tells_what_happened() -> None:
    domain = domain_of((4, 5, 3))
    rng = np.random.default_rng(3)
    measurements = [
        Measurement(c, 20 + 5 * rng.standard_normal(domain.shape_of(c)), 2.0) for c in (("a", "b"), ("b", "c"), ("b",))
    ]
    info = estimate(domain, measurements, config=EstimateConfig(iterations=30, tolerance=0.0)).info
    assert info is not None
    assert (info.iterations, info.converged) == (30, False)
    assert len(info.history) == 31 and info.history[-1] < info.history[0]
    early = estimate(domain, measurements, config=EstimateConfig(iterations=1000, tolerance=1e-3)).info
    assert early is not None and early.converged and early.iterations < 1000


def test_tiny_and_huge_sigmas_give_the_same_fit() -> None:
    domain = domain_of((3, 4, 2))
    rng = np.random.default_rng(5)
    tables = {c: 50 + 9 * rng.standard_normal(domain.shape_of(c)) for c in (("a", "b"), ("b", "c"))}
    config = EstimateConfig(iterations=500, tolerance=0.0)
    models = [
        estimate(domain, [Measurement(c, t, sigma) for c, t in tables.items()], config=config)
        for sigma in (1e-9, 1.0, 1e9)
    ]
    for model in models:
        np.testing.assert_allclose(model.project(("a", "c")), models[1].project(("a", "c")), rtol=1e-6)


def test_stalled_compares_the_last_ten_iterations() -> None:
    falling = [100.0 - i for i in range(20)]
    assert not _stalled(falling, 1e-2)
    assert _stalled(falling + [81.0] * 10, 1e-2)
    assert not _stalled(falling + [81.0] * 10, 0.0)
    assert not _stalled([5.0] * 10, 1e-2)


def test_inference_imports_no_heavy_package() -> None:
    code = (
        "import sys, fedsyn.inference; "
        "print([m for m in ('mbi', 'jax', 'pandas', 'sklearn', 'scipy.optimize') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------------- models


def test_project_refuses_nonsense_and_knows_the_empty_clique() -> None:
    model = random_model("chain")
    assert model.project(()).shape == () and float(model.project(())) == 1000.0
    with pytest.raises(ValueError):
        model.project(("a", "a"))
    for wrong in ("xyz", ("nobody",)):
        with pytest.raises(ValueError, match=r"no attribute '\w+'; a clique is a sequence of names"):
            model.project(wrong)
    with pytest.raises(ValueError):
        model.probability_at(("a", "b"), np.zeros((3, 1), dtype=int))
    with pytest.raises(ValueError):
        model.log_likelihood(np.zeros((3, 2), dtype=int))


def test_results_belong_to_the_caller() -> None:
    model = random_model("chain")
    first = model.project(("a", "b"))
    keep = first.copy()
    first[:] = -1
    np.testing.assert_array_equal(model.project(("a", "b")), keep)


@pytest.mark.parametrize("name", sorted(CASES))
def test_arrays_round_trip_bit_for_bit(name: str) -> None:
    model = random_model(name, total=123.456)
    arrays = model.to_arrays()
    assert {k: v.dtype.kind for k, v in arrays.items()} == {"model": "u", "potentials": "f"}
    again = Model.from_arrays(model.domain, arrays)
    assert again.total == model.total and again.cliques == model.cliques
    assert again.log_partition == model.log_partition
    for clique in all_cliques(model.domain):
        assert again.project(clique).tobytes() == model.project(clique).tobytes()
    for key, value in again.to_arrays().items():
        assert value.tobytes() == arrays[key].tobytes()


def test_an_estimated_model_survives_the_round_trip_bit_for_bit() -> None:
    domain = domain_of((3, 4, 2, 3))
    rng = np.random.default_rng(1)
    measurements = [
        Measurement(c, 30 + 5 * rng.standard_normal(domain.shape_of(c)), 2.0)
        for c in (("a", "b"), ("c", "b"), ("a",), ("d", "a"))
    ]
    fitted = estimate(domain, measurements)
    model = Model(domain, fitted.potentials, fitted.total, structural_cliques=[("d", "c")])
    again = Model.from_arrays(domain, model.to_arrays())
    for other in (again, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other.cliques == model.cliques and other.log_partition == model.log_partition
        for clique in all_cliques(domain):
            assert other.project(clique).tobytes() == model.project(clique).tobytes()


@pytest.mark.parametrize("damage", ["json", "size", "domain", "format", "missing", "nan", "total", "attribute"])
def test_malformed_arrays_are_a_protocol_error(damage: str) -> None:
    model = random_model("chain")
    domain, arrays = model.domain, dict(model.to_arrays())
    text = arrays["model"].tobytes()
    if damage == "json":
        arrays["model"] = arrays["model"][:-3]
    elif damage == "size":
        arrays["potentials"] = arrays["potentials"][1:]
    elif damage == "domain":
        domain = Domain(domain.attributes, (9, *domain.shape[1:]))
    elif damage == "format":
        arrays["model"] = np.frombuffer(text.replace(b'"format": 1', b'"format": 9'), dtype=np.uint8)
    elif damage == "missing":
        del arrays["potentials"]
    elif damage == "nan":
        arrays["potentials"] = np.full_like(arrays["potentials"], np.nan)
    elif damage == "total":
        total = model.total.hex().encode()
        arrays["model"] = np.frombuffer(text.replace(total, b"-0x1p0"), dtype=np.uint8)
    else:
        arrays["model"] = np.frombuffer(text.replace(b'["a", "b"]', b'["a", "z"]'), dtype=np.uint8)
    with pytest.raises(ProtocolError):
        Model.from_arrays(domain, arrays)


def test_a_pickled_model_carries_no_compiled_pass() -> None:
    domain = Domain(("a", "b", "c"), (40, 40, 3))
    model = Model(domain, {("a", "b"): np.zeros((40, 40)), ("c",): np.zeros(3)}, 1.0)
    before = len(pickle.dumps(model))
    model.project(("a", "c"))
    assert len(pickle.dumps(model)) == before


def test_with_total_scales_counts_and_nothing_else() -> None:
    model = random_model("star of triples")
    other = model.with_total(10.0)
    np.testing.assert_allclose(other.project(("a", "e")) * 100, model.project(("a", "e")))
    assert other.log_partition == model.log_partition and model.total == 1000.0
    with pytest.raises(ValueError):
        model.with_total(0.0)


# ---------------------------------------------------------------------- sampling


class Recorder:
    """A source of randomness that only has `random`."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def random(self, size: int) -> np.ndarray:
        return self.rng.random(size)


@pytest.mark.parametrize("name", sorted(CASES))
def test_samples_have_every_row_and_the_models_marginals_up_to_rounding(name: str) -> None:
    model = random_model(name, scale=2.0)
    domain, n = model.domain, 5000
    codes = model.sample(n, np.random.default_rng(0))
    assert codes.shape == (n, len(domain)) and codes.dtype == np.uint8
    assert (codes < np.array(domain.shape)).all()
    again = model.sample(n, Recorder(0))
    assert codes.tobytes() == again.tobytes()
    for clique in model.cliques:
        counts = np.zeros(domain.shape_of(clique))
        np.add.at(counts, tuple(codes[:, list(domain.axes(clique))].T), 1.0)
        error = np.abs(counts - model.with_total(n).project(clique))
        # Each attribute drawn rounds every group by less than one row; groups are at most the clique's cells.
        assert error.max() <= 4 * len(domain) * np.sqrt(domain.size())
        assert counts[model.project(clique) == 0].sum() == 0
    assert model.sample(0, np.random.default_rng(0)).shape == (0, len(domain))


def test_the_first_attribute_of_each_component_is_within_one_row_of_its_expectation() -> None:
    domain = Domain(("a", "b"), (7, 5))
    rng = np.random.default_rng(0)
    model = Model(domain, {("a",): rng.standard_normal(7), ("b",): rng.standard_normal(5)}, 1.0)
    for n in (1, 2, 13, 1000):
        codes = model.sample(n, rng)
        for i, name in enumerate(domain.attributes):
            counts = np.bincount(codes[:, i], minlength=domain[name])
            assert counts.sum() == n
            assert np.abs(counts - n * model.project((name,))).max() < 1


def test_sampling_is_unbiased_and_independent_attributes_stay_independent() -> None:
    domain = Domain(("a", "b", "c"), (2, 3, 2))
    rng = np.random.default_rng(1)
    model = Model(domain, {("a", "b"): rng.standard_normal((2, 3)), ("c",): np.array([0.0, 1.0])}, 1.0)
    mean = np.zeros(domain.shape)
    for _ in range(2000):
        np.add.at(mean, tuple(model.sample(5, rng).astype(int).T), 1 / 10_000)
    expected = model.project(domain.attributes)
    assert np.abs(mean - expected).max() < 5 * np.sqrt(0.25 / 10_000)


def test_impossible_values_are_never_sampled() -> None:
    domain = Domain(("a", "b"), (4, 4))
    table = np.full((4, 4), -2000.0)
    table[1, 2] = table[2, 1] = 0.0
    codes = Model(domain, {("a", "b"): table}, 1.0).sample(101, np.random.default_rng(2))
    assert set(map(tuple, codes.tolist())) == {(1, 2), (2, 1)}
