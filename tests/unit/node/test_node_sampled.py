"""A holder's ledger for life that adds up steps of DP-SGD: what it accepts is within the limit, and who is refused."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.errors import BudgetExceeded, LedgerDamaged, NodeError
from fedsyn.ledgers.limits import (
    Cost,
    LifetimeLimits,
    adding,
    counted,
    epsilon_of,
    order_of,
    require_filter,
    require_joined,
    rho_of,
    total,
)
from fedsyn.ledgers.node_ledger import NodeLedger, init_ledger
from fedsyn.ledgers.node_lines import LedgerRun
from fedsyn.node.answering import Answering
from fedsyn.node.file import load_node_file
from fedsyn.node.task import Task
from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, SAMPLED, Ledger, PrivacyBudget, Release
from fedsyn.privacy.accountant import RenyiAccountant
from fedsyn.privacy.renyi import best_order, multiplier_for
from fedsyn.randomness import Randomness
from fedsyn.table.schema import Schema
from fedsyn.wire.envelope import ANSWER
from support.lifetime_ledgers import noted_at_first
from support.node_folders import POLICY, SCHEMA, header_of, make_node, run_of

BUDGET, RATE, STEPS = PrivacyBudget(2.0, 1e-5), 0.05, 40
ORDER = best_order(2.0, 1e-5, RATE, STEPS)
KIND = f"renyi {ORDER}"
SETTINGS = settings(max_examples=15, deadline=None, derandomize=True)


def facts(budget: PrivacyBudget = BUDGET, accountant: str = KIND, name: str = "fed_dp_ctgan") -> LedgerRun:
    return LedgerRun("c", "s", name, accountant, budget)


def step(multiplier: float, t: int = 1, rate: float = RATE) -> Release:
    return Release("step", t, SAMPLED, 1.0, sigma=multiplier, rate=rate, noise_by="client")


def planned() -> float:
    """z of so many equal steps that use the whole budget up."""
    return multiplier_for(RenyiAccountant.of(BUDGET, ORDER).capacity / STEPS, RATE, ORDER)


def book(path: Path, lifetime: PrivacyBudget = BUDGET, **limits: Any) -> NodeLedger:
    if not path.exists():
        init_ledger(path)
    return NodeLedger(path, LifetimeLimits(limits.get("per_run"), limits.get("per_period"), lifetime))


# The sum -------------------------------------------------------------------------------------------------------------


ENTRIES = st.lists(
    st.tuples(st.sampled_from([GAUSSIAN, EXPONENTIAL, SAMPLED]), st.floats(0.7, 30.0), st.floats(0.001, 1.0)),
    max_size=30,
)


@SETTINGS
@given(ENTRIES, st.floats(0.2, 8.0), st.sampled_from([2, 3, 8, 24, 64]))
def test_what_is_accepted_is_within_epsilon_and_delta(
    asked: list[tuple[str, float, float]], epsilon: float, order: int
) -> None:
    """By dp-accounting's own sums: nothing of this project's arithmetic is believed."""
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    kind, delta = f"renyi {order}", 1e-5
    (limit,) = adding(LifetimeLimits(None, None, PrivacyBudget(epsilon, delta)))
    taken, theirs, choices = list[Cost](), RdpAccountant([float(order)]), 0.0
    for mechanism, z, rate in asked:
        if mechanism == EXPONENTIAL:
            release = Release("a", 1, EXPONENTIAL, epsilon=1.0 / z)
        elif mechanism == GAUSSIAN:
            release = Release("a", 1, GAUSSIAN, 1.0, sigma=z)
        else:
            release = step(z, rate=rate)
        more = Cost(counted(release, kind), mechanism == GAUSSIAN)
        if not limit.fits(total(taken, kind), more.under(kind), kind):
            continue
        taken.append(more)
        event = dp_accounting.GaussianDpEvent(z)
        if mechanism == EXPONENTIAL:
            choices += order / (8.0 * z * z)
        else:
            theirs.compose(event if mechanism == GAUSSIAN else dp_accounting.PoissonSampledDpEvent(rate, event))
    spent = float(theirs._rdp[0]) + choices
    reached = spent + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    assert not taken or reached <= epsilon * (1 + 1e-12)
    assert epsilon_of(total(taken, kind), delta, kind) <= epsilon
    assert not taken or epsilon_of(total(taken, kind), delta, kind) >= reached * (1 - 1e-12)


def test_equal_steps_are_an_upper_bound_of_their_privacy_loss_distribution() -> None:
    """By dp-accounting's numerical composition, which is tight: what the ledger says is above it, by less than 25%."""
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    z = planned()
    tight = PLDAccountant(value_discretization_interval=1e-3)
    tight.compose(dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(z)), STEPS)
    exact = tight.get_epsilon(BUDGET.delta)
    said = epsilon_of(STEPS * counted(step(z), KIND), BUDGET.delta, KIND)
    assert exact < said <= BUDGET.epsilon and said < 1.25 * exact


def test_only_a_ledger_of_that_order_counts_less_for_a_sample() -> None:
    release = step(planned())
    assert counted(release, KIND) < 0.1 * counted(release, "zcdp") == pytest.approx(0.1 * release.rho)
    assert counted(release, "gaussian") == release.rho
    assert counted(step(1.0, rate=1.0), KIND) == pytest.approx(0.5)
    for other in (Release("a", 1, GAUSSIAN, 1.0, sigma=3.0), Release("a", 1, EXPONENTIAL, epsilon=0.3)):
        assert counted(other, KIND) == other.rho


@pytest.mark.parametrize("kind", ["renyi", "renyi 1", "renyi 02", "renyi 2.5", "renyi 1000", "Renyi 3", "", "rdp"])
def test_there_is_no_other_filter(kind: str) -> None:
    with pytest.raises(ValueError, match="no filter"):
        order_of(kind)


def test_a_budget_too_small_for_an_order_allows_nothing_and_nothing_spent_is_nothing() -> None:
    assert rho_of(PrivacyBudget(0.1, 1e-9), "renyi 2") == 0.0
    assert epsilon_of(0.0, 1e-9, "renyi 2") == 0.0 < epsilon_of(1e-9, 1e-9, "renyi 2")
    (limit,) = adding(LifetimeLimits(None, None, PrivacyBudget(0.1, 1e-9)))
    assert not limit.fits(0.0, 1e-12, "renyi 2")


# The book ------------------------------------------------------------------------------------------------------------


def test_a_first_run_of_steps_fits_to_the_last_one_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    account = book(path).account("first", facts())
    accountant = RenyiAccountant.of(BUDGET, ORDER)
    ledger, z = Ledger(BUDGET, accountant, noise_by="client", record=account.charge), planned()
    for t in range(1, STEPS + 1):
        entry = Release("step", t, SAMPLED, sigma=z, rate=RATE)
        source = Randomness(None).generator("step", t)
        ledger.sampled_gaussian(lambda rows: np.array([len(rows)]), 100, entry, source)
    again = book(path)
    assert again.kind == KIND and again.runs["first"].spent == again.spent
    assert ORDER * again.spent == pytest.approx(accountant.capacity, rel=1e-6)
    assert 0.999 * BUDGET.epsilon < again.epsilon <= BUDGET.epsilon
    with pytest.raises(BudgetExceeded):
        again.account("first", facts()).charge(step(z, STEPS + 1))
    with pytest.raises(BudgetExceeded, match="limit for life"):
        again.account("second", facts(PrivacyBudget(0.5, 1e-5), "gaussian", "sketch_aim"))


def test_runs_of_other_accountants_follow_in_rho(tmp_path: Path) -> None:
    life = PrivacyBudget(4.0, 1e-5)
    made = book(tmp_path / "ledger.jsonl", life)
    account = made.account("first", facts())
    for t in range(STEPS):
        account.charge(step(planned(), t))
    steps = made.spent
    small = PrivacyBudget(0.8, 1e-6)
    for accountant in ("gaussian", "zcdp"):
        later = made.account(accountant, facts(small, accountant, "aim"))
        rho = rho_of(small, accountant)
        later.charge(Release("one-way", 1, GAUSSIAN, 1.0, sigma=1 / math.sqrt(2 * rho)))
        steps += rho
        assert made.spent == pytest.approx(steps, rel=1e-12)
    assert made.epsilon <= life.epsilon
    assert made.epsilon == pytest.approx(RenyiAccountant(ORDER, 1e3).epsilon(ORDER * made.spent, life.delta))


@pytest.mark.parametrize("first", ["gaussian", "zcdp", f"renyi {ORDER + 1}"])
def test_a_ledger_that_adds_up_otherwise_refuses_the_run_before_it_begins(tmp_path: Path, first: str) -> None:
    made = book(tmp_path / "ledger.jsonl", PrivacyBudget(9.0, 1e-5))
    made.account("first", facts(accountant=first))
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(NodeError, match=r"mechanism.order" if first.startswith("renyi") else "has no rho"):
        made.account("second", facts())
    assert (tmp_path / "ledger.jsonl").read_bytes() == before and set(made.runs) == {"first"}
    require_joined("gaussian", first)
    require_joined(first, first)


@pytest.mark.parametrize("order, budget", [(2, BUDGET), (512, BUDGET), (ORDER, PrivacyBudget(0.01, 1e-9))])
def test_a_first_run_cannot_leave_the_holder_with_a_bad_order(
    tmp_path: Path, order: int, budget: PrivacyBudget
) -> None:
    made = book(tmp_path / "ledger.jsonl", budget)
    with pytest.raises(NodeError, match="leaves less than a quarter of its limits") as refused:
        made.account("first", facts(accountant=f"renyi {order}"))
    named = re.findall(r"mechanism.order to (\d+) to (\d+)", str(refused.value))
    assert bool(named) is (budget is BUDGET) or "no order leaves more" in str(refused.value)
    for allowed in named and named[0]:
        require_filter(f"renyi {allowed}", None, made.limits)
    assert not made.runs and made.account("second", facts(budget, "gaussian", "sketch_aim")).releases == ()


def test_a_line_that_counts_less_than_its_step_costs_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    made = book(path)
    made.account("first", facts()).charge(step(planned()))
    entry = json.loads(path.read_bytes().splitlines()[-1])
    assert entry["rho"] == counted(step(planned()), KIND) < 0.1 * entry["release"]["rho"]
    made.lines.take({**entry, "number": 1})
    with pytest.raises(ValueError):
        made.lines.take({**entry, "number": 2, "rho": 0.9 * entry["rho"]})
    with pytest.raises(ValueError):
        made.lines.take({**made.lines.entries[1], "run": "b", "accountant": f"renyi {ORDER + 1}"})


def test_a_torn_step_counts_what_can_be_read_of_it_or_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    made = book(path)
    account = made.account("first", facts())
    account.charge(step(planned(), 1))
    account.charge(step(planned(), 2))
    lines = path.read_bytes().splitlines(keepends=True)
    each = counted(step(planned()), KIND)
    for tail, spent in ((lines[-1][:-30], 2 * each), (b"\0" * 64, rho_of(BUDGET, KIND))):
        path.write_bytes(b"".join(lines))
        noted_at_first(path)
        path.write_bytes(b"".join(lines[:-1]) + tail)
        again = book(path)
        assert again.spent == pytest.approx(spent, rel=1e-9) and again.epsilon <= BUDGET.epsilon


def test_a_rewritten_rate_is_noticed(tmp_path: Path) -> None:
    """A smaller rate would make every step cheaper: the chain of lines holds the release."""
    path = tmp_path / "ledger.jsonl"
    account = book(path).account("first", facts())
    account.charge(step(planned()))
    account.charge(step(planned(), 2))
    path.write_bytes(
        path.read_bytes().replace(b'"rate": 0.05', b'"rate": 0.01').replace(b'"rate":0.05', b'"rate":0.01')
    )
    with pytest.raises(LedgerDamaged):
        book(path)


# A node that takes the steps -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax_privacy") is None, reason="the extra deep is not installed")
def test_a_node_takes_the_steps_of_a_run_and_its_ledger_adds_them_up(tmp_path: Path) -> None:
    from fedsyn.plugins.clients.fed_dp_ctgan import CtganContract

    options = {"rounds": 3, "rate": 0.2, "hidden": 4, "noise_dim": 4, "batch": 8, "components": 10}
    config = run_of(mechanism={"name": "fed_dp_ctgan", **options})
    policy = {**POLICY, "lifetime": {"epsilon": 1.2, "delta": 1e-6}}
    node = Answering(load_node_file(make_node(tmp_path / "node", policy=policy)))
    contract = CtganContract(config, Schema.loads(SCHEMA, "schema.yaml").domain)
    multiplier = contract.multiplier(contract.budget.mechanism)
    arrays = [np.zeros(shape, np.float32) for shape in contract.shapes]

    def asked(t: int, z: float, run: str = "first") -> dict[str, Any]:
        header = header_of(config, "step", "ask", t, t, run, attribute=0, multiplier=z)
        task = Task(7, header["run_config"], header["fab_hash"], header["scalars"], arrays)
        told: dict[str, Any] = json.loads(node.answer(task).scalars[ANSWER])
        return told

    refused = asked(1, 0.99 * multiplier)
    assert not refused["ok"] and "less noise than the run's plan" in refused["sentence"] and node.book.spent == 0.0
    for t in range(1, 4):
        assert asked(t, multiplier)["ok"]
        paid = t * counted(step(multiplier, rate=0.2), node.book.kind)
        assert node.book.kind == f"renyi {contract.order}" and node.book.spent == pytest.approx(paid)
    assert "as often as the run's plan has it" in asked(4, multiplier)["sentence"]
    told = asked(1, multiplier, "second")
    assert not told["ok"] and "limit for life is epsilon = 1.2" in told["sentence"]
