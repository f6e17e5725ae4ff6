"""GUM and its consistency step, against definitions and brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedsyn.domain import Clique, Domain
from fedsyn.front.testing.schemas import awkward_names, awkward_table
from fedsyn.inference import GumConfig, Measurement, consistent, synthesize
from fedsyn.inference.consistency import agree
from fedsyn.inference.gum import _cells, _peel, fit_rows, update
from fedsyn.inference.rows_by_cell import RowsByCell
from fedsyn.inference.whole_rows import WholeRows
from fedsyn.table.counting.marginals import count

DOMAIN = Domain(("a", "b", "c", "d", "e"), (4, 3, 5, 2, 6))
RING = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("a", "c")]


def table(rows: int = 3000, seed: int = 0, domain: Domain = DOMAIN) -> np.ndarray:
    """Rows whose attributes all depend on a common number, each in its own way."""
    rng = np.random.default_rng(seed)
    common = rng.random(rows)
    columns = []
    for i, size in enumerate(domain.shape):
        mixed = np.where(rng.random(rows) < 0.7, common ** (1 + i / 3), rng.random(rows))
        columns.append((mixed * size).astype(np.uint8))
    return np.stack(columns, axis=1)


def measured(
    codes: np.ndarray, cliques: list[Clique], sigma: float = 0.0, seed: int = 0, domain: Domain = DOMAIN
) -> list[Measurement]:
    rng = np.random.default_rng(seed)
    return [
        Measurement(q, m + sigma * rng.standard_normal(m.shape), sigma or 1.0)
        for q, m in zip(cliques, count(codes, domain, cliques), strict=True)
    ]


def distance(made: np.ndarray, real: np.ndarray, clique: Clique, domain: Domain = DOMAIN) -> float:
    a, b = (count(codes, domain, [clique])[0] / max(1, len(codes)) for codes in (made, real))
    return float(np.abs(a - b).sum())


# Consistency ----------------------------------------------------------------------------------------------------------


def least_squares(
    tables: dict[Clique, np.ndarray], sigmas: dict[Clique, float], total: float, domain: Domain
) -> dict[Clique, np.ndarray]:
    """Marginals of the signed table p that minimises sum ||(M_q p - y_q)/sigma_q||^2 with sum(p) = total."""
    cells = np.arange(domain.size()).reshape(domain.shape)
    rows, values = [np.full(domain.size(), 1e5)], [1e5 * total]
    operators = {}
    for clique, y in tables.items():
        index = np.moveaxis(cells, domain.axes(clique), range(len(clique))).reshape(y.size, -1)
        operator = np.zeros((y.size, domain.size()))
        np.put_along_axis(operator, index, 1.0, axis=1)
        operators[clique] = operator
        rows.extend(operator / sigmas[clique])
        values.extend(y.ravel() / sigmas[clique])
    p = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
    return {clique: (operators[clique] @ p).reshape(y.shape) for clique, y in tables.items()}


@pytest.mark.parametrize(
    "cliques",
    [
        [("a",), ("b",), ("a", "b"), ("b", "c")],
        [("a", "b"), ("b", "c"), ("a", "c")],
        [("a", "b", "c"), ("b", "c", "d"), ("c",), ("a", "d")],
    ],
)
def test_agree_is_the_least_squares_estimate_over_all_signed_tables(cliques: list[Clique]) -> None:
    domain = Domain(("a", "b", "c", "d"), (3, 2, 4, 2))
    rng = np.random.default_rng(3)
    tables = {q: 10 * rng.standard_normal(domain.shape_of(q)) for q in cliques}
    sigmas = {q: float(rng.uniform(0.3, 3.0)) for q in cliques}
    expected = least_squares(tables, sigmas, 17.0, domain)
    agree(tables, sigmas, 17.0)
    for clique in cliques:
        np.testing.assert_allclose(tables[clique], expected[clique], atol=1e-6)


def test_agree_makes_shared_projections_equal() -> None:
    cliques = [("a",), ("a", "b"), ("b", "c"), ("a", "c", "d"), ("c", "d", "e"), ("e",)]
    rng = np.random.default_rng(1)
    tables = {q: 100 * rng.standard_normal(DOMAIN.shape_of(q)) for q in cliques}
    agree(tables, {q: float(rng.uniform(1, 9)) for q in cliques}, 500.0)
    for p, q in combinations(cliques, 2):
        shared = [name for name in p if name in q]
        ours, theirs = (t.sum(axis=tuple(i for i, n in enumerate(x) if n not in shared)) for x, t in _two(tables, p, q))
        np.testing.assert_allclose(ours, theirs, atol=1e-9)
    assert all(abs(t.sum() - 500.0) < 1e-9 for t in tables.values())


def _two(tables: dict[Clique, np.ndarray], p: Clique, q: Clique) -> list[tuple[Clique, np.ndarray]]:
    return [(p, tables[p]), (q, tables[q])]


def test_agree_brings_noisy_marginals_nearer_to_the_truth_every_time() -> None:
    # Deterministic, not only on average: an orthogonal projection (in the norm of squares over sigma^2) onto an affine
    # set that holds the truth never moves away from it.
    codes = table()
    cliques: list[Clique] = [(name,) for name in DOMAIN] + RING
    truth = dict(zip(cliques, count(codes, DOMAIN, cliques), strict=True))
    rng = np.random.default_rng(7)
    sigmas = {q: (5.0 if len(q) == 1 else 20.0) for q in cliques}

    def error(tables: dict[Clique, np.ndarray]) -> float:
        return sum(float((((tables[q] - truth[q]) / sigmas[q]) ** 2).sum()) for q in cliques)

    for _ in range(20):
        tables = {q: truth[q] + sigmas[q] * rng.standard_normal(truth[q].shape) for q in cliques}
        before = error(tables)
        agree(tables, sigmas, float(len(codes)))
        assert error(tables) < before


def test_consistent_marginals_are_valid_and_nearer_to_the_truth_than_clipping_each_alone() -> None:
    # 30 draws. Each comparison is between means over 30 x 5 pairs; the improvement is about 20 times its standard
    # error, so a false alarm is out of the question.
    codes = table()
    cliques: list[Clique] = [(name,) for name in DOMAIN] + RING
    truth = dict(zip(cliques, count(codes, DOMAIN, cliques), strict=True))
    ours, alone = [], []
    for seed in range(30):
        noisy = measured(codes, cliques, sigma=60.0, seed=seed)
        tables = consistent(DOMAIN, noisy, total=len(codes))
        for m in noisy:
            made = tables[m.clique]
            assert made.min() >= 0
            for axis, name in enumerate(m.clique):
                rest = tuple(i for i in range(made.ndim) if i != axis)
                np.testing.assert_allclose(made.sum(axis=rest), tables[(name,)], atol=1e-9)
            if len(m.clique) == 2:
                clipped = np.maximum(m.values, 0)
                ours.append(np.abs(made - truth[m.clique]).sum())
                alone.append(np.abs(clipped * len(codes) / clipped.sum() - truth[m.clique]).sum())
    assert np.mean(ours) < 0.9 * np.mean(alone)


def test_consistent_keeps_what_is_consistent_already() -> None:
    codes = table()
    cliques = [("a",), ("b",), *RING, ("b", "d", "e"), ("d", "e", "a")]
    tables = consistent(DOMAIN, measured(codes, cliques))
    for clique, values in zip(cliques, count(codes, DOMAIN, cliques), strict=True):
        clique, order = DOMAIN.canonical(clique), np.argsort(DOMAIN.axes(clique))
        np.testing.assert_allclose(tables[clique], values.transpose(order), atol=1e-6)


def test_consistent_with_a_total_of_zero_and_with_nothing() -> None:
    assert consistent(DOMAIN, []) == {}
    noisy = [Measurement(("a", "b"), np.full((4, 3), 2.0), 1.0), Measurement(("a",), np.zeros(4), 1.0)]
    assert all((values == 0).all() for values in consistent(DOMAIN, noisy, total=0.0).values())
    with pytest.raises(ValueError, match="total"):
        consistent(DOMAIN, noisy, total=-1.0)


def test_shared_pairs_of_three_way_marginals_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsyn.inference.consistency._MOST_TURNS", 300)
    codes = table()
    cliques = [("a", "b", "c"), ("b", "c", "d"), ("b", "c")]
    tables = consistent(DOMAIN, measured(codes, cliques, sigma=10.0), total=len(codes))
    pair = tables[("b", "c")]
    for other in (tables[("a", "b", "c")].sum(axis=0), tables[("b", "c", "d")].sum(axis=2)):
        assert np.abs(other - pair).sum() < 1e-3 * len(codes)


# Rows -----------------------------------------------------------------------------------------------------------------


def test_noise_free_marginals_come_back() -> None:
    codes = table()
    cliques: list[Clique] = [(name,) for name in DOMAIN] + RING
    made = synthesize(DOMAIN, measured(codes, cliques), len(codes), np.random.default_rng(0), total=len(codes))
    for clique in RING:
        assert distance(made, codes, clique) < 0.02 < 0.1 * independent(codes, clique)
    for name in DOMAIN:
        assert distance(made, codes, (name,)) < 0.01


def independent(codes: np.ndarray, clique: Clique) -> float:
    pair, a, b = (m / len(codes) for m in count(codes, DOMAIN, [clique, clique[:1], clique[1:]]))
    return float(np.abs(pair - np.outer(a, b)).sum())


@pytest.mark.parametrize("config", [GumConfig(), GumConfig(duplicate=0.0)])
def test_every_way_of_fitting_reaches_the_marginals(config: GumConfig) -> None:
    codes = table()
    made = synthesize(DOMAIN, measured(codes, RING), len(codes), np.random.default_rng(0), config)
    assert max(distance(made, codes, clique) for clique in RING) < 0.04


def test_three_way_marginals_come_back() -> None:
    codes = table()
    cliques = [("a", "b", "c"), ("b", "c", "d"), ("a", "d", "e"), ("c", "e")]
    made = synthesize(DOMAIN, measured(codes, cliques), len(codes), np.random.default_rng(0), total=len(codes))
    for clique in cliques:
        assert distance(made, codes, clique) < (0.1 if len(clique) == 3 else 0.05)


def test_a_forest_of_pairs_needs_no_update() -> None:
    codes = table()
    forest = [("a", "b"), ("b", "c"), ("d", "e")]
    config = GumConfig(iterations=0)
    made = synthesize(DOMAIN, measured(codes, forest), len(codes), np.random.default_rng(0), config)
    for clique in forest:
        cells = DOMAIN.size(clique)
        assert distance(made, codes, clique) <= 2 * cells / len(codes)  # rounding: each cell by at most one or two


def test_an_attribute_in_no_pair_follows_its_one_way_marginal_exactly() -> None:
    codes = table()
    cliques = [(name,) for name in DOMAIN] + [("a", "b"), ("b", "c"), ("a", "c")]
    made = synthesize(DOMAIN, measured(codes, cliques), len(codes), np.random.default_rng(0), total=len(codes))
    for name in ("d", "e"):
        ours, real = (count(x, DOMAIN, [(name,)])[0] for x in (made, codes))
        assert np.abs(ours - real).max() <= 1
    assert independent(made, ("c", "d")) < 0.12  # 0.05 to 0.08 by chance; the real rows have more
    assert independent(codes, ("c", "d")) > 0.2


def test_an_attribute_that_nothing_measures_is_uniform() -> None:
    made = synthesize(DOMAIN, [], 600, np.random.default_rng(0))
    for name, size in zip(DOMAIN.attributes, DOMAIN.shape, strict=True):
        assert np.abs(count(made, DOMAIN, [(name,)])[0] - 600 / size).max() <= 1


def test_the_result_is_scaled_to_the_number_of_rows() -> None:
    codes = table()
    for rows in (0, 1, 7, 6000):
        made = synthesize(DOMAIN, measured(codes, RING), rows, np.random.default_rng(0), total=len(codes))
        assert made.shape == (rows, 5) and made.dtype == np.uint8
    assert distance(made, codes, ("a", "b")) < 0.03
    with pytest.raises(ValueError, match="rows"):
        synthesize(DOMAIN, [], -1, np.random.default_rng(0))


def test_the_same_generator_gives_the_same_rows() -> None:
    noisy = measured(table(), RING, sigma=20.0)
    first, again, other = (synthesize(DOMAIN, noisy, 500, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert (first == again).all()
    assert (first != other).any()


def test_starting_rows_are_used() -> None:
    codes = table()
    config = GumConfig(iterations=0)
    rng = np.random.default_rng(0)
    made = synthesize(DOMAIN, measured(codes, RING), len(codes), rng, config, start=codes)
    assert (made[:, :4] == codes[:, :4]).all()
    for rows in (100, 7000):
        made = synthesize(DOMAIN, measured(codes, RING), rows, rng, config, start=codes)
        assert len(made) == rows and distance(made, codes, ("a", "c")) < 0.6
    for bad in (codes[:, :2], codes + 200, codes[:0]):
        with pytest.raises(ValueError, match="start"):
            synthesize(DOMAIN, measured(codes, RING), 100, rng, config, start=bad)


def test_copies_keep_the_correlations_that_replacements_break() -> None:
    # From a table whose columns a and b are equal, only a's marginal is to change.
    rng = np.random.default_rng(0)
    column = rng.integers(0, 4, 4000).astype(np.uint8)
    target = np.array([2200.0, 600.0, 600.0, 600.0])
    copied, replaced = (WholeRows(np.stack([column, column]), [[0, 1]]) for _ in range(2))
    assert update(copied, (0,), target, 1.0, 1.0, np.random.default_rng(1)) > 1000
    update(replaced, (0,), target, 1.0, 0.0, np.random.default_rng(1))
    for made in (copied, replaced):
        assert np.abs(np.bincount(made[0], minlength=4) - target).max() <= 1
    assert (copied[0] == copied[1]).all()
    assert (replaced[0] != replaced[1]).sum() > 1000


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32])
def test_rows_are_found_by_their_cells(kind: type[np.integer]) -> None:
    cell = np.array([2, 0, 2, 1, 2, 0, 2], dtype=kind)
    cells = RowsByCell.of(cell, np.bincount(cell, minlength=5))
    assert cells.rows.tolist() == [1, 5, 3, 0, 2, 4, 6]  # cell after cell, inside a cell in their order
    assert cells.starts.tolist() == [0, 2, 3, 7, 7] and cells.counts.tolist() == [2, 1, 4, 0, 0]
    freed = cells.free(np.array([1, 0, 3, 0, 0]), np.random.default_rng(0))
    assert sorted(freed) == [0, 1, 2, 4]  # the first of each cell
    wanted = np.repeat([0, 1, 2], 200)
    drawn = cells.one_of(wanted, np.random.default_rng(0))
    assert (cell[drawn] == wanted).all() and set(drawn) == set(range(7))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("most", [1, 3, 40])
def test_enough_rows_of_each_cell_are_its_first(kind: type[np.integer], most: int) -> None:
    # Of every cell at least what is asked for, or all; where few are, those are its first rows in the table.
    rng = np.random.default_rng(most)
    cell = rng.choice(40, 4000, p=rng.dirichlet(np.full(40, 0.3))).astype(kind)
    have = np.bincount(cell, minlength=40)
    assert (have == 0).any() and (have[have > 0] < 4).any() and have.max() > 400
    needed = rng.integers(0, most + 1, 40)
    cells = RowsByCell.enough(cell, have, needed)
    assert len(cells.rows) < len(cell) or most == 40
    for c in range(40):
        known = cells.rows[cells.starts[c] : cells.starts[c] + cells.counts[c]]
        assert len(known) >= min(needed[c], have[c])
        assert known.tolist() == np.flatnonzero(cell == c)[: len(known)].tolist()


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32])
def test_whole_rows_are_copied_in_their_group(kind: type[np.unsignedinteger]) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 200, (9, 50)).astype(kind)
    whole = WholeRows(table, [[0, 2, 3, 5, 8], [1, 4]])
    assert (whole.table() == table).all() and whole.rows == 50
    source, target, order = np.array([3, 4, 4]), np.array([10, 11, 12]), rng.permutation(50)
    whole.copy(2, source, target)
    whole[7][:2] = 9
    whole.reorder(order)
    expected = table.copy()
    expected[np.ix_([0, 2, 3, 5, 8], target)] = table[np.ix_([0, 2, 3, 5, 8], source)]
    expected[7, :2] = 9
    assert (whole.table() == expected[:, order]).all() and whole.table().dtype == kind


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((15, 17), np.uint8),
        ((16, 16), np.uint16),
        ((1, 256), np.uint16),
        ((255, 257), np.uint16),
        ((256, 256), np.uint32),
    ],
)
@pytest.mark.parametrize("stored", [np.uint8, np.uint16, np.uint32])
def test_cells_have_the_smallest_type_that_holds_them(
    shape: tuple[int, int], kind: type[np.integer], stored: type[np.integer]
) -> None:
    # Tables are stored by their widest attribute, which may be another one.
    rng = np.random.default_rng(0)
    values = np.stack([np.r_[rng.integers(0, size, 500), 0, size - 1] for size in shape])
    table = values.astype(np.promote_types(stored, np.min_scalar_type(max(shape) - 1)))
    cell = _cells(list(table), shape, table.shape[1])
    assert cell.dtype == kind
    assert (cell == np.ravel_multi_index(tuple(values), shape)).all()


def test_peeling_leaves_the_cycles() -> None:
    shape = (2, 2, 2, 2, 2, 2)
    cliques = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4, 5)]
    marginals = {q: np.ones([shape[i] for i in q]) for q in cliques}
    peeled = _peel(marginals)
    assert set(peeled.core) == {(0, 1), (1, 2), (0, 2)}
    assert [axis for axis, _ in peeled.taken] == [4, 5, 3] and peeled.taken[0][1] == (3, 5)
    # A zero inside a marginal goes with the attribute, and leaves what can be completed; one across keeps it.
    zero = np.array([[True, False], [True, True]])
    peeled = _peel(marginals, (((4, 3), zero), ((5, 0), zero)))
    assert [axis for axis, _ in peeled.taken] == [4] and (3, 5) in peeled.core
    assert peeled.zeros[0][0] == (5, 0) and peeled.zeros[1][0] == (3, 5)
    assert peeled.zeros[1][1].tolist() == [[True, True], [False, False]]
    assert peeled.barred[4][:, 0].tolist() == zero.T.tolist()


def test_two_attributes_of_a_hundred_values() -> None:
    domain = Domain(("x", "y", "z"), (100, 100, 2))
    rng = np.random.default_rng(0)
    x = rng.integers(0, 100, 20_000)
    codes = np.stack([x, (x + rng.integers(0, 8, 20_000)) % 100, x // 50], axis=1).astype(np.uint8)
    cliques = [("x", "y"), ("y", "z"), ("x", "z")]
    made = synthesize(domain, measured(codes, cliques, domain=domain), 20_000, rng, total=20_000)
    assert all(distance(made, codes, clique, domain) < 0.03 for clique in cliques)


@pytest.mark.parametrize("name", awkward_names())
def test_awkward_tables(name: str) -> None:
    awkward = awkward_table(name)
    codes, domain = awkward.encode(), awkward.schema.domain
    pairs = list(combinations(domain.attributes, 2))[:40]
    cliques: list[Clique] = [(n,) for n in domain] + pairs
    for sigma in (0.0, 50.0):
        noisy = measured(codes, cliques, sigma, domain=domain)
        made = synthesize(domain, noisy, len(codes), np.random.default_rng(0), total=len(codes))
        assert made.shape == codes.shape and made.dtype == awkward.schema.dtype
        assert (made < np.array(domain.shape)).all()
        if sigma == 0.0:  # as far as whole rows allow
            assert max(distance(made, codes, (n,), domain) for n in domain) <= 0.5


def test_marginals_of_any_scale_and_order_fit() -> None:
    codes = table()
    cliques = [("c", "a"), ("b", "a"), ("c", "b")]
    marginals = {q: m / (7.0 + i) for i, (q, m) in enumerate(zip(cliques, count(codes, DOMAIN, cliques), strict=True))}
    made = fit_rows(DOMAIN, marginals, len(codes), np.random.default_rng(0))
    assert max(distance(made, codes, clique) for clique in cliques) < 0.02


@pytest.mark.parametrize("shape", [(300, 300, 2), (256, 256, 1), (1, 60_000, 2)])
def test_more_cells_than_two_bytes_number(shape: tuple[int, int, int]) -> None:
    domain = Domain(("x", "y", "z"), shape)
    rng = np.random.default_rng(0)
    columns = [np.minimum(size - 1, (size * rng.random(4000) ** 2).astype(np.int64)) for size in shape]
    columns[2] = columns[1] * shape[2] // shape[1]
    codes = np.stack(columns, axis=1)
    cliques = [("x", "y"), ("y", "z"), ("x", "z")]
    made = synthesize(domain, measured(codes, cliques, domain=domain), 4000, rng, total=4000)
    assert made.dtype == np.uint16 or max(shape) <= 256
    assert distance(made, codes, ("y", "z"), domain) < 0.1
    assert distance(made, codes, ("x", "y"), domain) < 0.6  # about 3,000 cells of one row; independent rows: 1.6
