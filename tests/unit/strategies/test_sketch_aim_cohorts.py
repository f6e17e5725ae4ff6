"""sketch_aim with `federation.max_participations`: the first cohort chooses, the others measure the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsyn.errors import ConfigError
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.plugins.clients.sketch_aim import FirstLook, MeasureAll, Residuals, SketchAimClient, Sketches
from fedsyn.plugins.strategies.sketch_aim import CohortPool
from fedsyn.privacy import gaussian_rho
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.plan import allowed
from fedsyn.table.counting.marginals import count

TABLE = awkward_table("every_kind")
CODES = TABLE.encode()
K = 8
FEDERATION = Federation(TABLE, tuple(CODES[k::K] for k in range(K)))
DOMAIN = FEDERATION.domain
ONES = [(name,) for name in DOMAIN]


def config(rounds: int = 4, m: int | None = 1, p: float = 0.25, **nodes: Any) -> Any:
    nodes["federation"] = {"sampling_rate": p, "max_participations": m, **nodes.get("federation", {})}
    return config_of("sketch_aim", K, {"rounds": rounds}, **nodes)


def run(faults: Any = None, **changes: Any) -> Outcome:
    return execute(config(**changes), FEDERATION, faults=faults)


def requests(outcome: Outcome) -> list[tuple[int, str, tuple[int, ...], int]]:
    """(round, request, cliques, partition) of everything that was answered."""
    return [
        (e.envelope["round"], e.envelope["request"], tuple(e.envelope["params"].get("cliques", ())), e.partition)
        for e in outcome.tape.exchanges
        if e.reply["ok"] and e.envelope["request"] not in ("join", "sizes")
    ]


STRONG = {"privacy": {"epsilon": 500.0, "delta": 1e-5, "client_sizes": "public"}}


def test_the_first_cohort_chooses_and_all_others_measure_the_same() -> None:
    outcome = finished(run(**STRONG))
    asked = requests(outcome)
    assert {name for t, name, _, _ in asked if t == 1} == {"one-way", "sketch"}
    later = {(name, cliques) for t, name, cliques, _ in asked if t > 1}
    assert len(later) == 1 and next(iter(later))[0] == "measure-all" and next(iter(later))[1]
    rounds = {k: {t for t, _, _, partition in asked if partition == k} for k in range(K)}
    assert all(len(seen) == 1 for seen in rounds.values())
    per_client = [sum(1 for *_, partition in asked if partition == k) for k in range(K)]
    assert sorted(per_client) == [1] * 6 + [2] * 2


def test_pooled_sums_are_those_of_all_who_were_asked() -> None:
    outcome = finished(run(**STRONG))
    strategy = outcome.strategy
    first = set(strategy.records[1].cohort)
    others = np.concatenate([FEDERATION.parts[k] for k in range(K) if k not in first])
    assert strategy.model is not None
    for clique in strategy.capacity.cliques:
        if len(clique) > 1:
            exact = count(others, DOMAIN, [clique])[0] * len(CODES) / len(others)
            assert np.abs(strategy.model.project(clique) - exact).sum() < 0.35 * len(CODES)
    whole = count(CODES, DOMAIN, ONES)
    for clique, exact in zip(ONES, whole, strict=True):
        pool = CohortPool(clique)
        assert pool.measurement(1.0) == []
        for k in range(K):
            pool.add(count(FEDERATION.parts[k], DOMAIN, [clique])[0].astype(float), 2.0, len(FEDERATION.parts[k]))
        (measured,) = pool.measurement(float(len(CODES)))
        assert np.allclose(measured.values, exact) and measured.sigma == pytest.approx(2.0 * np.sqrt(K))


@pytest.mark.parametrize(("rounds", "m", "p"), [(4, 1, 0.25), (4, 2, 0.5), (2, 2, 1.0), (3, 1, 0.125)])
@pytest.mark.parametrize("sizes", ["public", "private"])
def test_the_account_of_each_client_is_exact(rounds: int, m: int, p: float, sizes: str) -> None:
    outcome = finished(run(rounds=rounds, m=m, p=p, privacy={"client_sizes": sizes}))
    server, contract = outcome.strategy.ledger, outcome.strategy.contract
    assert server.accountant.unit != "rho" and {r.mechanism for r in server.releases} == {"gaussian"}
    asked = requests(outcome)
    size = contract.budget.table - contract.budget.mechanism
    for k in range(K):
        rounds_of_k = {t for t, _, _, partition in asked if partition == k}
        assert len(rounds_of_k) <= m
        expected = size + contract.budget.mechanism * len(rounds_of_k) / m
        spent = outcome.ledgers[k].spent_rho if k in outcome.ledgers else 0.0
        assert spent == pytest.approx(expected, rel=1e-9, abs=1e-15)
    most = max(ledger.spent_rho for ledger in outcome.ledgers.values())
    assert server.spent_rho == pytest.approx(most, rel=1e-9) and server.epsilon() <= 1.0


def test_a_cohort_that_vanishes_leaves_the_first_contact_to_the_next() -> None:
    first = run().strategy.records[1].cohort
    outcome = finished(run(faults=dict.fromkeys(first, vanish(1)), federation={"on_loss": "go_on"}))
    asked = requests(outcome)
    assert {name for t, name, _, _ in asked if t == 2} == {"one-way", "sketch"}
    assert {name for t, name, _, _ in asked if t > 2} == {"measure-all"}
    assert not set(first) & {partition for t, _, _, partition in asked if t > 1}


@pytest.mark.slow
def test_where_noise_drowns_everything_one_way_marginals_alone_are_measured() -> None:
    outcome = finished(run(privacy={"epsilon": 0.01, "delta": 1e-5, "client_sizes": "public"}))
    assert any("one-way marginals alone" in note for note in outcome.strategy.records[1].notes)
    assert {cliques for t, _, cliques, _ in requests(outcome) if t > 1} == {()}


def test_more_budget_measures_no_fewer_marginals() -> None:
    chosen = []
    for epsilon in (0.3, 3.0, 300.0):
        outcome = finished(run(privacy={"epsilon": epsilon, "delta": 1e-5, "client_sizes": "public"}))
        chosen.append(len(outcome.strategy.records[1].selected))
    assert chosen == sorted(chosen) and chosen[-1] > chosen[0]


def test_one_round_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set mechanism\.rounds to 2 or more"):
        config(rounds=1, p=1.0)


@pytest.mark.parametrize("m", [1, 3])
def test_a_client_refuses_less_noise_than_planned(m: int) -> None:
    contract = SketchAimClient.Contract(config(m=m), DOMAIN)
    rho, d = contract.budget.mechanism, len(DOMAIN)
    (later,) = (step for step in contract.steps if step.request is MeasureAll)
    two = [i for i, q in enumerate(contract.candidates.cliques) if len(q) == 2][:2]
    for chosen, weights in (([], []), (two[:1], [3]), (two, [16, 1])):
        request = MeasureAll(one_way=[1] * (d - 1) + [9], cliques=chosen, weights=weights)
        layout = request.layout(contract, ())
        assert layout.sensitivity == pytest.approx(np.sqrt(d - 1 + 81 + sum(w * w for w in weights)))
        once, in_all = allowed(contract.steps, request, layout)
        assert once == pytest.approx(rho / m) and in_all == pytest.approx(rho)
        assert gaussian_rho(later.noise(layout), layout.sensitivity) == pytest.approx(once)
    first = FirstLook(alone=False)
    assert allowed(contract.steps, first, first.layout(contract, ()))[0] == pytest.approx(rho / m / 2)
    residuals = Residuals(shapes=[], cliques=two, weights=[1, 1])
    nothing = allowed(contract.steps, residuals, residuals.layout(contract, ()))
    assert nothing == (0.0, 0.0)  # what the other schedule asks for is no part of this plan
    unbounded = SketchAimClient.Contract(config(m=None), DOMAIN)
    request = MeasureAll(one_way=[1] * d, cliques=two, weights=[1, 1])
    assert allowed(unbounded.steps, request, request.layout(unbounded, ())) == (0.0, 0.0)
    assert Sketches.name == "sketch" and MeasureAll.name not in (OneWay.name, Residuals.name)
