"""Plans against their definition: errors removed, floors, posterior means, the greedy choice."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from fedsyn.domain import Domain
from fedsyn.selection.planning import SURVIVING, MeasurementPlan, ModelErrors, OneByOne, Planner, above_floors, shrunk
from fedsyn.table.counting.workload import Candidates, Workload, random_kway

DOMAIN = Domain(tuple("abcdef"), (2, 3, 4, 5, 6, 7))
TRIPLES = random_kway(DOMAIN, 3, 7, np.random.default_rng(3))
WEIGHED = Workload((("a", "b"), ("b", "c", "d"), ("e", "f"), ("a",)), (1.0, 2.5, 0.5, 1.0))


def planner(workload: Workload) -> Planner:
    return Planner(workload, Candidates.of(workload, DOMAIN))


def errors_of(plan: Planner, seed: int, noise: float = 1.0) -> ModelErrors:
    """Random parts; noise is known of all attributes."""
    rng = np.random.default_rng(seed)
    cliques = plan.candidates.cliques
    parts = rng.gamma(0.5, 400.0, len(cliques))
    noisy = {i: noise**-2 for i, q in enumerate(cliques) if len(q) == 1}
    return ModelErrors(parts, lambda i: float(DOMAIN.size(cliques[i])), noisy)


@pytest.mark.parametrize("workload", [TRIPLES, WEIGHED])
def test_what_a_measurement_removes_is_the_difference_of_the_queries_errors(workload: Workload) -> None:
    plan = planner(workload)
    cliques, parts = plan.candidates.cliques, errors_of(plan, 1).parts
    removed = plan.removed(parts)
    for i, q in enumerate(cliques):
        expected = 0.0
        for r, weight in zip(workload.cliques, workload.weights, strict=True):
            inside = [j for j, s in enumerate(cliques) if set(s) <= set(r)]
            own = [j for j in inside if set(cliques[j]) <= set(q) and len(cliques[j]) > 1]
            if set(q) <= set(r):
                before = sum(parts[j] for j in inside)
                expected += weight * (sqrt(before) - sqrt(before - sum(parts[j] for j in own)))
        assert removed[i] == pytest.approx(expected, rel=1e-9, abs=1e-9)
        held = [w for r, w in zip(workload.cliques, workload.weights, strict=True) if set(q) <= set(r)]
        assert plan.asked[i] == pytest.approx(sum(held))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(0, 1e3)), min_size=1, max_size=8),
    st.floats(1e-3, 1e3),
)
def test_what_is_added_is_the_budget_and_lifts_all_above_their_floor_alike(
    items: list[tuple[float, float]], budget: float
) -> None:
    shares, floors = np.array(items).T
    added = above_floors(shares, floors, budget)
    assert (added >= 0).all() and added.sum() == pytest.approx(budget, rel=1e-9)
    levels = (floors + added) / shares
    lifted = added > 0
    assert np.allclose(levels[lifted], levels[lifted][0], rtol=1e-9)
    assert (levels[~lifted] >= levels[lifted][0] * (1 - 1e-9)).all(), "who gets nothing has more than its share"


def test_squared_distances_are_posterior_means() -> None:
    squared, spread = np.array([-2.0, 0.5, 3.0, 40.0]), np.array([1.0, 1.0, 2.0, 3.0])
    mean = float(squared.mean())
    for value, estimate, sigma in zip(shrunk(squared, spread), squared, spread, strict=True):

        def weight(x: float, estimate: float = estimate, sigma: float = sigma) -> float:
            return float(np.exp(-0.5 * ((x - estimate) / sigma) ** 2 - x / mean))

        above = estimate + 40 * sigma
        top = quad(lambda x: x * weight(x), 0, max(above, 40.0), limit=200, points=[max(estimate, 0.1)])[0]
        assert value == pytest.approx(
            top / quad(weight, 0, max(above, 40.0), limit=200, points=[max(estimate, 0.1)])[0]
        )
    assert shrunk(np.zeros(0), np.zeros(0)).shape == (0,)
    nothing = shrunk(np.array([-5.0, -3.0]), np.ones(2))
    assert (nothing >= 0).all() and nothing.max() < 0.01, "where only noise shows, nothing is believed"
    assert np.isfinite(shrunk(np.array([-1e9, 1e9]), np.array([1.0, 1e8]))).all()


def test_a_mean_that_noise_explains_is_not_believed_where_it_is_doubted() -> None:
    """All of 1,000 distances but one are 0, seeded: undoubted posterior means add up to what noise happens to show."""
    noise = np.random.default_rng(1).normal(size=1_000)
    noise += 1.2 * 1_000**-0.5 - noise.mean()  # as much in the mean as noise exceeds in one run of nine
    noise[0] = 12.0
    believed, doubted = shrunk(noise, np.ones(1_000)), shrunk(noise, np.ones(1_000), 1.645)
    assert doubted[1:].sum() < 0.2 * believed[1:].sum()
    assert shrunk(noise + 1.0, np.ones(1_000), 1.645).sum() == pytest.approx(
        shrunk(noise + 1.0, np.ones(1_000)).sum(), rel=0.05
    )


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("workload", [TRIPLES, WEIGHED])
def test_the_choice_is_greedy_in_what_is_removed_less_what_is_added(workload: Workload, seed: int, dense: bool) -> None:
    """Against a plain evaluation of every candidate in every step, all supports known."""
    plan = planner(workload)
    errors, cliques = errors_of(plan, seed), plan.candidates.cliques
    budget, taken = 2.0 if dense else 40.0, seed + 1
    eligible = [i for i, q in enumerate(cliques) if len(q) > 1]

    def cost(chosen: list[int]) -> float:
        every = [*errors.noisy, *chosen]
        noise = [plan.asked[i] * SURVIVING * sqrt(2 / pi) * DOMAIN.size(cliques[i]) for i in every]
        return float(sum(x ** (2 / 3) for x in noise) ** 1.5 / sqrt(budget))

    parts, expected, open_ = errors.parts.copy(), [], list(eligible)
    while open_:
        net = {i: plan.removed(parts)[i] - (cost([*expected, i]) - cost(expected)) for i in open_}
        best = max(open_, key=lambda i: net[i] / (DOMAIN.size(cliques[i]) if dense else 1))
        if net[best] <= 0:
            break
        open_.remove(best)
        if len(expected) < taken:
            expected.append(best)
            for j, s in enumerate(cliques):
                if len(s) > 1 and set(s) <= set(cliques[best]):
                    parts[j] = 0.0
    room = [taken]

    def fits(i: int) -> bool:
        room[0] -= 1
        return room[0] >= 0

    cells = np.array([float(DOMAIN.size(q)) for q in cliques]) if dense else None
    assert plan.best(errors, eligible, OneByOne(fits), budget, cells).cliques == expected and expected
    room = [taken]
    assert dense or plan.best(errors, eligible, OneByOne(fits), budget).cliques == expected


def test_nothing_is_chosen_where_noise_is_more_than_what_there_is() -> None:
    plan = planner(TRIPLES)
    assert plan.best(errors_of(plan, 0), range(len(plan.candidates)), OneByOne(), 1e-9).cliques == []


def test_precisions_spend_what_is_left() -> None:
    plan = planner(TRIPLES)
    errors = errors_of(plan, 2)
    chosen = [i for i, q in enumerate(plan.candidates.cliques) if len(q) == 2][:3]
    found = plan.precisions(errors, chosen, 5.0)
    assert sum(found.values()) == pytest.approx(5.0) and set(found) <= {*chosen, *errors.noisy}
    assert set(chosen) <= set(found)


def knapsack(room: int | None, dense: bool) -> tuple[Planner, ModelErrors, MeasurementPlan]:
    """Every pair is a query; cf misses most, and ab, ac, bc nearly as much in a fraction of its cells."""
    pairs = (("a", "b"), ("a", "c"), ("b", "c"), ("c", "f"))
    plan = planner(Workload(pairs, (1.0,) * 4))
    cliques = plan.candidates.cliques
    missed = {("c", "f"): 1000.0, ("a", "b"): 900.0, ("a", "c"): 800.0, ("b", "c"): 700.0}
    parts = np.array([missed.get(q, 1.0) ** 2 for q in cliques])
    noisy = {i: 1.0 for i, q in enumerate(cliques) if len(q) == 1}
    errors = ModelErrors(parts, lambda i: float(DOMAIN.size(cliques[i])), noisy)
    left = [np.inf if room is None else room]

    def fits(i: int) -> bool:
        left[0] -= DOMAIN.size(cliques[i])
        if left[0] < 0:
            left[0] += DOMAIN.size(cliques[i])
            return False
        return True

    cells = np.array([float(DOMAIN.size(q)) for q in cliques]) if dense else None
    pair = [i for i, q in enumerate(cliques) if len(q) == 2]
    return plan, errors, plan.best(errors, pair, OneByOne(fits), 10.0, cells)


def test_where_room_is_scarce_gain_for_room_fills_it_better() -> None:
    found = {dense: knapsack(30, dense) for dense in (False, True)}
    names = {dense: [plan.candidates.cliques[i] for i in best.cliques] for dense, (plan, _, best) in found.items()}
    assert names == {False: [("c", "f")], True: [("a", "b"), ("a", "c"), ("b", "c")]}
    assert found[True][2].error < found[False][2].error
    roomy = {dense: knapsack(None, dense)[2] for dense in (False, True)}
    assert set(roomy[False].cliques) == set(roomy[True].cliques) and len(roomy[True].cliques) == 4
    assert roomy[True].error == pytest.approx(roomy[False].error)
    assert roomy[True].error < found[True][2].error


def test_the_predicted_error_is_what_is_missed_and_what_noise_adds() -> None:
    plan, errors, best = knapsack(30, True)
    shares = sum(plan.share(i, errors) for i in [*best.cliques, *errors.noisy])
    assert best.error == pytest.approx(1000.0 + shares**1.5 / sqrt(10.0))
