"""The planner against a plain one: every candidate in Python, in every step, until no gain can be better."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import pi, sqrt

import numpy as np
import numpy.typing as npt
import pytest

from fedsyn.domain import Domain
from fedsyn.selection.planning import SURVIVING, MeasurementPlan, ModelErrors, OneByOne, Planner
from fedsyn.selection.resolution import Ladders
from fedsyn.selection.views import effective_cells
from fedsyn.table.counting.workload import Candidates, Workload, all_kway

Floats = npt.NDArray[np.float64]


def offer(
    plan: Planner, i: int, gain: float, distance: float, total: float, budget: float, errors: ModelErrors
) -> tuple[float, int | None]:
    """What one candidate takes away beyond what its noise adds, and its step; None: in cells."""
    noise, cells = float(plan.asked[i]) * SURVIVING * sqrt(2.0 / pi), errors.support(i)
    if errors.ladder is None:
        share = float(np.array([noise * (cells * errors.cost(i))])[0] ** (2.0 / 3.0))
        return gain - ((total + share) ** 1.5 - total**1.5) / sqrt(budget), None
    ladder = errors.ladder(i)
    shares = (noise * (np.minimum(ladder.carried, cells) * ladder.costs)) ** (2.0 / 3.0)
    added = ((total + shares) ** 1.5 - total**1.5) / sqrt(budget)
    variance = float(ladder.costs[-1]) * (total + float(shares[-1])) / (budget * float(shares[-1]))
    net = gain * (1.0 - ladder.missed(distance, errors.rows, cells, variance)) - added
    step = int(np.argmax(net))
    return float(net[step]), step if step + 1 < len(net) else None


def plain(
    plan: Planner,
    errors: ModelErrors,
    eligible: Iterable[int],
    fits: Callable[[int], bool],
    budget: float,
    cells: Floats | None = None,
) -> MeasurementPlan:
    """`Planner.best`, everything computed anew after each addition, one candidate after the other."""
    errors = replace(errors, steps=dict(errors.steps))
    parts, chosen = errors.parts.copy(), list[int]()
    room = np.ones(len(parts)) if cells is None else cells
    open_ = np.zeros(len(parts), bool)
    open_[list(eligible)] = True
    total = sum(plan.share(i, errors) for i in errors.noisy)
    while open_.any():
        gains = np.where(open_, plan.removed(parts), 0.0)
        missed = np.sqrt(plan.inside(np.where(plan.single, 0.0, parts)))
        best, clique, step = 0.0, -1, None
        for i in np.argsort(-gains / room, kind="stable"):
            if gains[i] / room[i] <= best:
                break
            net, at = offer(plan, int(i), float(gains[i]), float(missed[i]), total, budget, errors)
            if net / room[i] > best:
                best, clique, step = net / float(room[i]), int(i), at
        if clique < 0:
            break
        open_[clique] = False
        if fits(clique):
            chosen.append(clique)
            left = 0.0
            if step is not None and errors.ladder is not None:
                errors.steps[clique] = step
                left = float(errors.ladder(clique).unseen[step]) ** 2
            total += plan.share(clique, errors)
            for j, q in enumerate(plan.candidates.cliques):
                if len(q) > 1 and set(q) <= set(plan.candidates.cliques[clique]):
                    parts[j] *= left
    overlooked = float(plan.weights @ np.sqrt(plan.inside(np.where(plan.single, 0.0, parts))[plan.queries]))
    return MeasurementPlan(chosen, overlooked + total**1.5 / sqrt(budget), errors.steps)


def problem(seed: int) -> tuple[Planner, ModelErrors, list[int], float, Floats | None]:
    """A random table, workload and round; in every other one many candidates are alike."""
    rng = np.random.default_rng(seed)
    alike = seed % 2 == 0
    d = int(rng.integers(4, 8))
    sizes = tuple([int(rng.integers(2, 30))] * d if alike else rng.integers(2, 30, d).tolist())
    names = tuple("abcdefgh"[:d])
    domain = Domain(
        names, sizes, ordered={n: s for n, s in zip(names, sizes, strict=True) if alike or rng.random() < 0.5}
    )
    mass = {n: np.ones(s) if alike else rng.dirichlet(np.full(s, 0.5)) for n, s in zip(names, sizes, strict=True)}
    whole = all_kway(domain, int(rng.integers(2, 4)))
    kept = sorted(rng.choice(len(whole.cliques), int(rng.integers(2, len(whole.cliques) + 1)), replace=False))
    weights = rng.integers(1, 4, len(kept)).astype(float) if alike else rng.gamma(2.0, 1.0, len(kept))
    plan = Planner(
        workload := Workload(tuple(whole.cliques[i] for i in kept), tuple(weights)), Candidates.of(workload, domain)
    )
    cliques, m = plan.candidates.cliques, len(plan.candidates)
    parts = rng.choice([0.0, 1e4, 4e4, 1e6], m) if alike else rng.gamma(0.3, 1e5, m)
    made = Ladders(domain, mass, beyond=bool(rng.random() < 0.7))
    support = np.array([float(np.prod([effective_cells(mass[n] / mass[n].sum()) for n in q])) for q in cliques])
    noisy = {i: float(rng.gamma(2.0, 1e-3)) for i, q in enumerate(cliques) if len(q) == 1}
    several = [i for i, q in enumerate(cliques) if len(q) > 1]
    measured = [int(i) for i in rng.choice(several, len(several) // 5, replace=False)]
    noisy |= dict.fromkeys(measured, 1e-3)
    graded = rng.random() < 0.8
    costs = rng.uniform(0.2, 1.0, m) if rng.random() < 0.5 else None
    steps = dict.fromkeys(measured[::2], 0) if graded else {}
    ladder = (lambda i: made.ladder(cliques[i])) if graded else None
    rows = float(rng.choice([0.0, 1e3, 5e4]))
    errors = ModelErrors(parts, support.__getitem__, noisy, ladder, rows, costs, steps)
    room = rng.integers(1, 5, m).astype(float) if rng.random() < 0.4 else None
    return plan, errors, [i for i in several if i not in measured], float(10.0 ** rng.uniform(-2, 1)), room


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_plans_are_those_of_the_plain_planner(start: int) -> None:
    """The same cliques in the same order and steps, the same error to the last bit, and the same questions asked."""
    chosen = 0
    for seed in range(start, start + 20):
        plan, errors, eligible, budget, room = problem(seed)
        asked: list[list[int]] = [[], []]

        def test(own: list[int], refused: int) -> Callable[[int], bool]:
            def fits(i: int) -> bool:
                own.append(i)
                return i % 4 != refused

            return fits

        refused = seed % 7
        expected = plain(plan, errors, eligible, test(asked[0], refused), budget, room)
        for _ in range(2):  # the second has terms of the first
            asked[1].clear()
            found = plan.best(errors, eligible, OneByOne(test(asked[1], refused)), budget, room)
            assert (found.cliques, found.steps, found.error) == (expected.cliques, expected.steps, expected.error)
            assert asked[1] == asked[0]
        chosen += len(found.cliques)
    assert chosen > 20


class Crowded(OneByOne):
    """Room for none of some candidates, and beside others for none of some more.

    Args:
        alone: the remainder by 4 of those that have none even alone.
        beside: the remainder of those that have none beside others.
    """

    def __init__(self, alone: int, beside: int) -> None:
        super().__init__(lambda i: i % 4 not in (alone, beside))
        self.none, self.asked = alone, list[int]()

    def alone(self, i: int) -> bool:
        self.asked.append(i)
        return i % 4 != self.none


def test_what_has_no_room_alone_leaves_no_trace() -> None:
    """The plan of the others, and it is asked only about what was refused. Whatever has no room beside them is told."""
    told = set[tuple[bool, bool]]()
    for seed in range(40):
        plan, errors, eligible, budget, room = problem(seed)
        alone, beside = seed % 5, (seed // 5) % 7  # 4 and more: nothing
        found = plan.best(errors, eligible, crowded := Crowded(alone, beside), budget, room)
        others = [i for i in eligible if i % 4 != alone]
        expected = plain(plan, errors, others, crowded.take, budget, room)
        assert (found.cliques, found.steps, found.error) == (expected.cliques, expected.steps, expected.error)
        assert all(i % 4 in (alone, beside) for i in crowded.asked) and len({*crowded.asked}) == len(crowded.asked)
        lacking = {i % 4 for i in crowded.asked}
        assert (found.too_large, found.full) == (alone in lacking, beside in lacking - {alone})
        told.add((found.too_large, found.full))
    assert len(told) == 4


@pytest.mark.parametrize("d", [20, 40])
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_weighed_grows_as_the_pairs_do(monkeypatch: pytest.MonkeyPatch, d: int, shared: bool) -> None:
    """Few for each addition, beside some passes over all: where all pairs are alike, and where few have anything."""
    rng = np.random.default_rng(0)
    domain = Domain(tuple(f"a{i}" for i in range(d)), tuple(rng.integers(2, 20, d).tolist()))
    workload = all_kway(domain, 2)
    plan = Planner(workload, Candidates.of(workload, domain))
    cliques = plan.candidates.cliques
    made = Ladders(domain, {n: np.ones(s) for n, s in zip(domain, domain.shape, strict=True)}, beyond=True)
    noisy = {i: 1e-3 for i, q in enumerate(cliques) if len(q) == 1}
    parts = rng.normal(1.0, 0.1, len(cliques)) ** 2 * 4e6 if shared else rng.gamma(0.1, 1e6, len(cliques))
    support = [float(domain.size(q)) for q in cliques]
    errors = ModelErrors(parts, support.__getitem__, noisy, lambda i: made.ladder(cliques[i]), 5e4)
    offers, asked = Planner.offers, list[int]()

    def counted(self: Planner, which: npt.NDArray[np.int64], *more: object) -> object:
        asked.append(len(which))
        return offers(self, which, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Planner, "offers", counted)
    pairs = [i for i, q in enumerate(cliques) if len(q) == 2]
    found = plan.best(errors, pairs, OneByOne(), 0.5)
    assert len(found.cliques) > d
    assert sum(asked) < 40 * len(found.cliques) + 10 * len(pairs) and len(asked) < 3 * len(found.cliques)
