"""In how many groups a clique is measured: what groups keep of a dependence, ladders, and what a plan makes of them."""

from __future__ import annotations

from dataclasses import replace
from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.domain import Domain
from fedsyn.selection.planning import ModelErrors, OneByOne, Planner
from fedsyn.selection.resolution import Ladders, Rung
from fedsyn.table.counting.workload import Candidates, Workload

DOMAIN = Domain(("age", "job", "sex", "bmi"), (24, 30, 2, 41), ordered={"age": 24, "bmi": 40})
RNG = np.random.default_rng(0)
MASS = {name: RNG.dirichlet(np.full(size, 0.6)) for name, size in zip(DOMAIN, DOMAIN.shape, strict=True)}
MADE = Ladders(DOMAIN, MASS)


def between(p: np.ndarray, groups: np.ndarray, effect: np.ndarray) -> float:
    """Variance of an effect's means over groups, as a share of its whole variance."""
    centre = (p * effect).sum()
    means = [(p * effect)[groups == g].sum() / p[groups == g].sum() for g in groups]
    return float((p * (np.array(means) - centre) ** 2).sum() / (p * (effect - centre) ** 2).sum())


def rungs(name: str) -> list[Rung]:
    return MADE.rungs(name)[:-1]


def test_groups_of_neighbours_keep_the_variance_of_ranks_between_them() -> None:
    p = MASS["age"] / MASS["age"].sum()
    ranks = np.cumsum(p) - p / 2
    assert len(rungs("age")) == 8
    for rung in rungs("age"):
        assert (np.diff(rung.groups) >= 0).all() and rung.count == len(set(rung.groups.tolist()))
        assert rung.kept == pytest.approx(between(p, rung.groups, ranks), rel=1e-6)
        masses = np.bincount(rung.groups, p)
        assert rung.carried == pytest.approx(np.sqrt(masses).sum() ** 2, rel=1e-6)


def test_of_values_without_an_order_the_rare_ones_share_a_group() -> None:
    p = MASS["job"]
    for rung in rungs("job"):
        by_mass = rung.groups[np.argsort(-p, kind="stable")]
        assert (np.diff(by_mass) >= 0).all(), "groups are of values next to each other in the order of their mass"
    # On average over effects that are drawn alike: the ratio of means, of 4,000 draws.
    rng, rung = np.random.default_rng(1), rungs("job")[4]
    effects = rng.normal(size=(4000, len(p)))
    centred = effects - (effects * p).sum(axis=1, keepdims=True)
    means = np.stack([(centred * p)[:, rung.groups == g].sum(axis=1) for g in range(rung.count)], axis=1)
    masses = np.bincount(rung.groups, p)
    shares = (means**2 / masses).sum(axis=1).mean() / (centred**2 * p).sum(axis=1).mean()
    assert rung.kept == pytest.approx(shares, rel=0.05)


def test_a_missing_value_keeps_a_group_of_its_own() -> None:
    for rung in rungs("bmi"):
        assert (rung.groups == rung.groups[-1]).sum() == 1 and rung.groups[-1] == rung.count - 1


@pytest.mark.parametrize("name", ["age", "job", "bmi"])
def test_values_that_determine_another_column_may_be_measured_in_its_values(name: str) -> None:
    """Of an effect of that column's values the grouping keeps all; it takes the place of the one with as many groups.

    Its middle value is of the last code alone: of `bmi` the missing one, which has no place among the ranks.
    """
    p, size = MASS[name], DOMAIN[name]
    ward = np.where(np.arange(size) == size - 1, 1, 2 * (np.arange(size) // 3 % 2))
    made = Ladders(replace(DOMAIN, coarser={name: (tuple(ward.tolist()),)}), MASS)
    own = next(rung for rung in made.rungs(name) if rung.count == 3)
    assert own.groups.tolist() == ward.tolist() and [rung.count for rung in made.rungs(name)].count(3) == 1
    assert 0.5 < own.kept <= 1.0
    rng = np.random.default_rng(1)
    shares = [between(p, own.groups, rng.normal(size=3)[ward]) for _ in range(3)]
    assert shares == pytest.approx([1.0] * 3)
    before = next(rung for rung in MADE.rungs(name) if rung.count == 4)
    after = next(rung for rung in made.rungs(name) if rung.count == 4)
    effects = rng.normal(size=(4000, 3))
    effects -= (effects * np.bincount(ward, p)).sum(axis=1, keepdims=True)  # over the rows
    masses = np.bincount(after.groups, p)
    means = np.stack([(effects[:, ward] * p)[:, after.groups == g].sum(axis=1) for g in range(4)], axis=1)
    through = (means**2 / masses).sum(axis=1).mean() / (effects[:, ward] ** 2 * p).sum(axis=1).mean()
    assert after.kept == pytest.approx((before.kept + through) / 2, rel=0.03)


@pytest.mark.parametrize("clique", [("age", "job"), ("age", "sex"), ("age", "job", "bmi"), ("sex",)])
def test_a_ladder_climbs_from_few_groups_to_all_cells(clique: tuple[str, ...]) -> None:
    ladder = MADE.ladder(clique)
    assert (np.diff(ladder.counts, axis=0).sum(axis=1) > 0).all() and (np.diff(ladder.counts, axis=0) >= 0).all()
    assert (np.diff(ladder.carried) >= -1e-12).all() and (np.diff(ladder.unseen) <= 1e-12).all()
    assert tuple(ladder.counts[-1]) == DOMAIN.shape_of(clique) and ladder.unseen[-1] == 0.0
    for step in range(len(ladder.counts)):
        groups = MADE.groups(clique, step)
        assert tuple(int(g.max()) + 1 for g in groups) == tuple(ladder.counts[step])
        kept = [r.kept for name, g in zip(clique, groups, strict=True) for r in MADE.rungs(name) if r.groups is g]
        assert ladder.unseen[step] == pytest.approx(sqrt(max(0.0, 1.0 - np.prod(kept))), abs=1e-12)


def test_what_groups_miss_grows_with_the_dependence_unseen_and_with_the_roughness_of_the_table() -> None:
    ladder = MADE.ladder(("age", "bmi"))
    cells = float(ladder.carried[-1])
    assert np.allclose(ladder.missed(100.0, 0.0, cells, 1.0), ladder.unseen)
    quiet, loud = ladder.missed(300.0, 1000.0, cells, 1e-3), ladder.missed(300.0, 1000.0, cells, 1e6)
    assert (quiet[:-1] > loud[:-1]).all() and quiet[-1] == loud[-1] == 0.0
    chance = 2 / pi * 1000.0 * cells
    for step in range(len(quiet) - 1):
        inside = chance * (1 - ladder.carried[step] / cells)
        expected = sqrt((ladder.unseen[step] ** 2 * 9e4 + inside) / (9e4 + chance))
        assert quiet[step] == pytest.approx(expected, rel=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=40), st.integers(0, 2**32 - 1))
def test_any_mass_has_a_ladder(mass: list[float], seed: int) -> None:
    size = len(mass)
    for ordered in (0, size, size - 1):
        domain = Domain(("a", "b"), (size, 3), ordered={"a": ordered})
        made = Ladders(domain, {"a": np.array(mass) * (seed % 3), "b": np.array([1.0, 0.0, -2.0])})
        ladder = made.ladder(("a", "b"))
        assert np.isfinite(ladder.unseen).all() and np.isfinite(ladder.carried).all()
        assert ((ladder.unseen >= 0) & (ladder.unseen <= 1)).all() and tuple(ladder.counts[-1]) == (size, 3)


# The plan ------------------------------------------------------------------------------------------------------------

WORKLOAD = Workload((("age", "job", "sex"), ("age", "bmi")), (1.0, 1.0))


def planned(budget: float, rows: float = 1000.0, dependence: float = 400.0) -> tuple[list[int], ModelErrors, Planner]:
    plan = Planner(WORKLOAD, Candidates.of(WORKLOAD, DOMAIN))
    cliques = plan.candidates.cliques
    parts = np.array([dependence**2 if len(q) == 2 else 0.0 for q in cliques])
    support = {i: float(MADE.ladder(q).carried[-1]) for i, q in enumerate(cliques)}
    noisy = {i: 1e-4 for i, q in enumerate(cliques) if len(q) == 1}
    errors = ModelErrors(parts, support.__getitem__, noisy, lambda i: MADE.ladder(cliques[i]), rows)
    pairs = [i for i, q in enumerate(cliques) if len(q) == 2]
    found = plan.best(errors, pairs, OneByOne(), budget)
    errors.steps.update(found.steps)
    return found.cliques, errors, plan


def test_with_less_noise_a_clique_is_planned_in_more_groups_and_at_last_in_cells() -> None:
    cells = []
    for budget in (0.02, 0.1, 1.0, 100.0):
        chosen, errors, plan = planned(budget)
        place = plan.candidates.cliques.index(("age", "bmi"))
        assert place in chosen
        cells.append(errors.carried(place))
        whole = float(MADE.ladder(("age", "bmi")).carried[-1])
        assert (place not in errors.steps) == (cells[-1] == whole)
    assert cells == sorted(cells) and cells[0] < cells[-1] == whole


def test_groups_make_worth_measuring_what_is_not_in_cells() -> None:
    chosen, errors, plan = planned(0.005)
    alone = replace(errors, ladder=None, steps={})
    pairs = [i for i, q in enumerate(plan.candidates.cliques) if len(q) == 2]
    assert len(plan.best(alone, pairs, OneByOne(), 0.005).cliques) < len(chosen)


def test_the_step_planned_is_the_best_of_the_ladder() -> None:
    """Against every step by itself, for the clique that is chosen first."""
    budget = 0.1
    chosen, errors, plan = planned(budget)
    first = chosen[0]
    ladder = MADE.ladder(plan.candidates.cliques[first])
    total = sum(plan.share(i, replace(errors, steps={})) for i in errors.noisy)
    gain = float(plan.removed(errors.parts)[first])
    net = []
    for step in range(len(ladder.carried)):
        share = plan.share(first, replace(errors, steps={first: step}))
        whole = plan.share(first, replace(errors, steps={}))
        variance = (total + whole) / (budget * whole)
        missed = float(ladder.missed(400.0, errors.rows, float(ladder.carried[-1]), variance)[step])
        net.append(gain * (1 - missed) - ((total + share) ** 1.5 - total**1.5) / sqrt(budget))
    assert errors.steps[first] == int(np.argmax(net)) < len(net) - 1
