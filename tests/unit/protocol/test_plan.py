"""The run's plan: honest runs keep to it to the last digit, and a server with less noise is refused by every client."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedsyn.errors import FedsynError, ProtocolError
from fedsyn.front.testing.harness import config_of, federation_of, watched_grid, watched_server
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.front.testing.tape import Tape
from fedsyn.privacy import GAUSSIAN, Ledger, PrivacyBudget, Release, accountant_for
from fedsyn.protocol import client as client_module
from fedsyn.protocol.common import Marginals, OneWay, Sizes
from fedsyn.protocol.finding import FindingClient, FindRanges
from fedsyn.protocol.plan import Step, allowed, require_planned
from fedsyn.randomness import Randomness
from fedsyn.registry import MECHANISMS, contract_class
from fedsyn.registry import client_class as client_of
from fedsyn.wire.envelope import Envelope
from fedsyn.wire.holder import Holder
from fedsyn.wire.requests import Layout, Request

REFUSED = "asks for less noise than the run's plan has for it"
FIXED = (
    "augflaim",
    "naive_flaim",
    "flaim_random",
    "fed_naive_bayes",
    "distributed_aim",
    "sketch_aim",
    "mst",
    "fed_mst",
    "privsyn",
    "fed_privsyn",
    "ada_fed_privsyn",
)
Asked = list[tuple[str, float, float]]  # request, its cost, and the most that the plan has for one


def run(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, Any] | None = None,
    *,
    epsilon: float = 1.0,
    **nodes: dict[str, Any],
) -> tuple[Any, Asked]:
    """A run whose server has the budget of `epsilon`, and whose clients go by 1; what they compared with the plan."""
    asked: Asked = []

    def noted(steps: Sequence[Step], request: Request, layout: Layout | None, rho: float, ledger: Ledger) -> None:
        asked.append((request.name, rho, allowed(steps, request, layout)[0]))
        require_planned(steps, request, layout, rho, ledger)

    monkeypatch.setattr(client_module, "require_planned", noted)
    contract = contract_class(name)
    federation = federation_of(awkward_table("every_kind"), contract.central)
    config = config_of(name, len(federation.parts), options, **nodes)
    tape = Tape(None)
    strategy = watched_server(config, tape)(config, federation.domain, federation.table.schema.sha256)
    if epsilon != 1.0:
        budget = PrivacyBudget(epsilon, 1e-5)
        strategy.ledger = Ledger(budget, accountant_for(contract.accountant, budget), noise_by="server")
    try:
        strategy.start(watched_grid(config, federation, tape))
    except FedsynError:
        assert epsilon != 1.0
    return strategy, asked


def reasons(strategy: Any) -> str:
    return " ".join(str(why) for record in strategy.records for why in record.dropped.values())


#: Who adds the noise, whether row counts are public. The default tests have every mechanism once, and one with all.
WAYS = list(itertools.product(("server", "distributed", "local"), ("public", "private")))
HONEST = [
    pytest.param(
        name, *way, marks=[] if name == "fed_naive_bayes" or WAYS[i % len(WAYS)] == way else [pytest.mark.slow]
    )
    for i, name in enumerate(FIXED)
    for way in WAYS
]


@pytest.mark.parametrize(("name", "noise", "sizes"), HONEST)
def test_an_honest_run_asks_for_what_its_plan_says(
    monkeypatch: pytest.MonkeyPatch, name: str, noise: str, sizes: str
) -> None:
    nodes = {"aggregation": {"protocol": "plain", "noise": noise}, "privacy": {"client_sizes": sizes}}
    if noise == "distributed" and contract_class(name).central:
        nodes["aggregation"] |= {"corrupted": 0, "dropout": 0}
    strategy, asked = run(monkeypatch, name, **nodes)
    assert "plan" not in reasons(strategy) and strategy.model is not None
    sums = [rho / once for request, rho, once in asked if request != "sizes"]
    assert max(sums) == pytest.approx(1.0, rel=1e-9)  # so that no less noise would pass
    assert sizes == "public" or any(request == "sizes" for request, _, _ in asked)


@pytest.mark.parametrize("name", FIXED)
def test_a_server_with_less_noise_than_planned_is_refused_by_everybody(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Half a percent more epsilon than the configuration has: nothing is charged, nothing leaves."""
    strategy, asked = run(monkeypatch, name, epsilon=1.005)
    assert REFUSED in reasons(strategy) and strategy.model is None
    assert all(rho > once for _, rho, once in asked) and asked


@pytest.mark.parametrize("name", ["distaim", "aim"])
def test_a_deal_for_more_than_the_budget_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    strategy, _ = run(monkeypatch, name)
    assert strategy.model is not None
    strategy, _ = run(monkeypatch, name, epsilon=1.005)
    assert REFUSED in reasons(strategy)


@pytest.mark.parametrize("local", [1, 2])
@pytest.mark.parametrize("name", ["augflaim", "naive_flaim"])
def test_annealing_keeps_to_what_it_can_come_to(monkeypatch: pytest.MonkeyPatch, name: str, local: int) -> None:
    strategy, asked = run(monkeypatch, name, {"rounds": None, "local_rounds": local})
    assert strategy.model is not None and "plan" not in reasons(strategy) and strategy.round > 1
    assert max(rho / once for _, rho, once in asked) <= 1.0 + 1e-9


def test_private_sizes_cost_their_share_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, asked = run(monkeypatch, "sketch_aim", epsilon=1.005, privacy={"client_sizes": "private"})
    assert [request for request, _, _ in asked] == ["sizes"] * len(asked) and REFUSED in reasons(strategy)


def test_what_is_planned_for_a_run_is_asked_once() -> None:
    """Each time by itself would be within the plan: it is the sum that is not."""
    budget = PrivacyBudget(10.0, 1e-5)
    ledger = Ledger(budget, accountant_for("gaussian", budget), noise_by="client")
    release = Release("one-way", 1, GAUSSIAN, 1.0, sigma=5.0, count=3, extra=1e-3)
    rho = release.rho - release.extra
    steps = [Step(OneWay, rho / 3, arrays=3, paid=2, times=2), Step(Marginals, rho)]
    for _ in range(2):
        require_planned(steps, OneWay(), None, rho, ledger)
        ledger.charge(release)
    with pytest.raises(ProtocolError, match="asked as often"):
        require_planned(steps, OneWay(), None, rho, ledger)
    other = Marginals(cliques=[0])
    require_planned(steps, other, None, rho, ledger)
    with pytest.raises(ProtocolError, match="less noise"):
        require_planned(steps, other, None, float("nan"), ledger)


def test_steps_of_one_request_add_up_and_others_are_refused() -> None:
    budget = PrivacyBudget(10.0, 1e-5)
    ledger = Ledger(budget, accountant_for("gaussian", budget), noise_by="client")
    steps = [Step(OneWay, 0.01, arrays=3), Step(OneWay, 0.02, arrays=2, says="again")]
    assert allowed(steps, OneWay(), None) == (pytest.approx(0.04), pytest.approx(0.07))
    assert allowed([Step(OneWay, 0.01, arrays=None)], OneWay(), Layout(((4,),), 4))[0] == pytest.approx(0.04)
    with pytest.raises(ProtocolError, match="less noise"):
        require_planned(steps, Marginals(cliques=[0]), None, 1e-9, ledger)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("table", ["single_column", "every_kind"])
def test_the_steps_of_a_plan_spend_the_budget_and_no_more(name: str, table: str) -> None:
    """Steps in another's place (`says`) are left out, and so are those that only the budget limits together."""
    family = contract_class(name)
    contract = family(config_of(name, 1 if family.central else 3), awkward_table(table).schema.domain)
    whole, on_samples = contract.budget.mechanism, name == "fed_dp_ctgan"
    for step in contract.steps:
        assert 0.0 < step.first_rho <= step.rho and step.sentence(whole)
        # A step of DP-SGD has the rho of a release of all rows; on its sample of them it costs far less.
        assert step.rho <= whole or (on_samples and step.request is not OneWay)
    limited = [step for step in contract.steps if not step.says and step.paid < math.inf]
    if not on_samples:
        assert math.fsum(step.once() * step.paid for step in limited) <= whole * (1 + 1e-9)


@pytest.mark.parametrize("name", FIXED)
def test_row_counts_and_what_is_found_have_their_own_shares(name: str) -> None:
    """Whatever a mechanism plans: also where it has nothing to choose from."""
    for table in ("single_column", "every_kind"):
        schema = awkward_table(table).schema
        holder = Holder(0, awkward_table(table).encode(), schema.domain, "", Randomness(0))
        client = client_of(name)(config_of(name, 3, privacy={"client_sizes": "private"}), holder)
        (step,) = client.steps_for(Sizes(sigma=1.0))
        assert step.once() == pytest.approx(client.contract.budget.sizes)
        assert FindingClient.steps_for(client, FindRanges()) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("sigma", [1e-3, 1e9])
def test_a_row_is_counted_only_when_the_sum_is_paid_for(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is free and may be asked for again and again: its time must not follow the rows."""
    table = awkward_table("every_kind")
    config = config_of("fed_naive_bayes", 3)
    holder = Holder(0, table.encode(), table.schema.domain, "", Randomness(0))
    client = client_of("fed_naive_bayes")(config, holder)
    counted: list[int] = []
    monkeypatch.setattr(type(client), "marginals", lambda *_: counted.append(1))
    spec = OneWay().layout(client.contract, ()).spec(sigma, 3, 0)
    for shapes in (((3,),), spec.shapes):
        assert not counted
        envelope = Envelope("one-way", "sum", 1, config.sha256, {}, 1, replace(spec, shapes=shapes))
        _, _, told = client.fit([], envelope.to_scalars())
        assert '"ok":false' in told["answer"]
    assert bool(counted) == (sigma > 1.0)  # the honest one gets so far
