"""A ledger that is filled to the brim can be read again, whatever was merged; a larger one cannot."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.errors import BudgetExceeded
from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, Ledger, PrivacyBudget, Release
from fedsyn.privacy.accountant import GaussianAccountant, ZcdpAccountant
from fedsyn.privacy.budget import ROUNDING_ROOM

kinds = st.tuples(st.booleans(), st.floats(0.05, 1.0), st.floats(0.1, 8.0), st.floats(0.0, 1e-3))
plans = st.lists(kinds, min_size=1, max_size=4)
rounds = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()), min_size=3, max_size=40)


def brimful(exact: bool, budget: PrivacyBudget, plan: list, order: list) -> Ledger:
    """Entries of a few kinds in many rounds, and a last one that takes the room for rounding to its last ulp."""
    ledger = Ledger(budget, GaussianAccountant.of(budget) if exact else ZcdpAccountant.of(budget))
    capacity, per_rho = ledger.accountant.capacity, 2.0 if exact else 1.0
    weights = sum(plan[which % len(plan)][1] * count for which, count, _ in order)
    for t, (which, count, with_extra) in enumerate(order):
        choice, weight, sensitivity, extra = plan[which % len(plan)]
        rho = 0.98 * capacity / per_rho * weight / weights  # of each of `count`
        if choice and not exact:
            release = Release("select", t, EXPONENTIAL, epsilon=math.sqrt(8 * rho), count=count)
        else:
            sigma = sensitivity / math.sqrt(2 * rho)
            extra *= with_extra * rho
            release = Release("measure", t, GAUSSIAN, sensitivity, sigma=sigma, count=count, extra=extra)
        ledger.charge(release)
    least = math.sqrt(0.5 * per_rho / (capacity * (1 + ROUNDING_ROOM) - ledger.spent))
    small, large = least * (1 - 1e-9), least * (1 + 1e-9)
    while (middle := 0.5 * (small + large)) not in (small, large):
        small, large = (small, middle) if ledger.can_afford(last(middle)) else (middle, large)
    ledger.charge(last(large))
    return ledger


def last(sigma: float) -> Release:
    return Release("measure", 99, GAUSSIAN, sigma=sigma)


@pytest.mark.parametrize("exact", [False, True], ids=["zcdp", "gaussian"])
@given(epsilon=st.floats(0.01, 20.0), plan=plans, order=rounds)
@settings(deadline=None, max_examples=100)
def test_a_ledger_filled_to_the_last_ulp_can_be_read_again(
    exact: bool, epsilon: float, plan: list, order: list
) -> None:
    ledger = brimful(exact, PrivacyBudget(epsilon, 1e-6), plan, order)
    full = ledger.accountant.capacity * (1 + ROUNDING_ROOM)
    assert full * (1 - 1e-15) <= ledger.spent <= full
    for compact in (False, True):
        again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict(compact=compact))))
        assert again.spent == pytest.approx(ledger.spent, rel=2e-15)
        assert again.epsilon() <= epsilon
        with pytest.raises(BudgetExceeded):  # and it is full
            again.charge(last(math.sqrt(1e12 / ledger.accountant.capacity)))
        twice = Ledger.from_dict(json.loads(json.dumps(again.to_dict(compact=True))))
        assert twice.epsilon() <= epsilon
    state = ledger.to_dict(compact=True)
    for entry in state["releases"]:
        entry["sensitivity"] *= 1 + 5e-14
        if "epsilon" in entry:
            entry["epsilon"] *= 1 + 5e-14
        entry["extra"] = entry.get("extra", 0.0) * (1 + 1e-13)
    with pytest.raises(BudgetExceeded):
        Ledger.from_dict(state)
