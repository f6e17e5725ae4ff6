"""Nothing starts that could not finish: what a plan may ask for is tried before its first charge."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.aggregation import make_aggregation
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, FedsynError, RunError
from fedsyn.front.testing.harness import config_of, execute, federation_of
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference.capacity import Capacity
from fedsyn.plugins.clients.sketch_aim import Residuals
from fedsyn.protocol import joining
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.driving import Driver
from fedsyn.protocol.joining import Participant
from fedsyn.protocol.plan import Step, largest_measured, most_cells
from fedsyn.protocol.room import require_feasible
from fedsyn.registry import MECHANISMS, contract_class
from fedsyn.runs.open_tables import check_before
from fedsyn.settings import AggregationNode
from fedsyn.table.schema import Schema
from fedsyn.wire.requests import Choose, Layout, Open, Request, Sum

PROTOCOLS = get_args(AggregationNode.model_fields["protocol"].annotation)
NOISES = get_args(AggregationNode.model_fields["noise"].annotation)
ROWS = (10**3, 10**5, 10**7)
CLIENTS = 50
#: Like the Adult table: the largest candidate of three attributes has 49,728 cells.
WIDE = Domain(tuple("abcdefgh"), (16, 2, 5, 10, 3, 42, 7, 74))
TWO = {"columns": {name: {"kind": "categorical", "categories": ["x", "y"]} for name in "ab"}}
#: Ways to run that bring sums of their own.
BESIDE: dict[str, dict[str, Any]] = {
    "public sizes": {},
    "private sizes, evaluated": {
        "privacy": {"client_sizes": "private"},
        "evaluation": {"metrics": [], "federated": True},
    },
    "whole clients": {
        "privacy": {"client_sizes": "private", "unit": "client", "rows_per_client": 8},
    },
    "cohorts": {"federation": {"sampling_rate": 0.2, "max_participations": 2}},
}


def config_for(name: str, protocol: str, noise: str, **nodes: Any) -> RunConfig:
    aggregation = {"protocol": protocol, "noise": noise}
    workload = {"degree": 3, "size": None}
    return config_of(name, CLIENTS, {}, aggregation=aggregation, workload=workload, **nodes)


def allowed(config: RunConfig) -> bool:
    """Whether the configuration is one; if not, its refusal must be a sentence."""
    family = contract_class(config.mechanism.name)
    try:
        family.trusted(config).check(config.federation.clients)
        family.check(config)
    except ConfigError as error:
        assert is_sentence(str(error)), error
        return False
    return True


def is_sentence(text: str) -> bool:
    return 20 < len(text) < 600 and "\n" not in text and "Traceback" not in text


@pytest.mark.parametrize("way", BESIDE)
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_plan_fits_or_is_refused_in_a_sentence_before_anything_is_sent(name: str, way: str) -> None:
    tried, fitting = 0, 0
    for protocol in PROTOCOLS:
        for noise in NOISES:
            try:
                config = config_for(name, protocol, noise, **BESIDE[way])
            except FedsynError as error:
                assert is_sentence(str(error)), error
                continue
            if not allowed(config):
                continue
            contract = contract_class(name)(config, WIDE)
            for rows in ROWS:
                tried += 1
                try:
                    require_feasible(contract, CLIENTS, rows, rows / CLIENTS)
                except ConfigError as error:
                    assert is_sentence(str(error)), error
                    assert f"mechanism '{name}' over aggregation.protocol: {protocol}" in str(error)
                    # Squared scores of ten million rows leave 62 bits, and steps of doubles before that.
                    assert name == "fhaim" and rows == 10**7, error
                else:
                    fitting += 1
    assert tried == 0 or fitting > 0, "nothing of this mechanism fits: no check of what would"
    central = contract_class(name).central
    assert tried > 0 or way in ("whole clients", "cohorts") or central or way == "private sizes, evaluated"


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_family_says_what_its_plan_may_ask_for(name: str) -> None:
    config = config_for(name, *contract_class(name).default_aggregation().values())
    steps = contract_class(name)(config, WIDE).steps
    kinds = {step.request.kind for step in steps}
    assert kinds - {"ask"} == ({"deal", "choose", "open"} if contract_class(name).store else {"sum"})


# Real runs: what is asked for lies within what was foreseen ----------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Driver, Any]]]:
    """Every sum, choice and opening of a run, as its server asks for it."""
    found: list[tuple[Driver, Any]] = []
    answer = Driver.answer

    def watched(self: Driver, yielded: Any, *rest: Any) -> Any:
        found.append((self, yielded))
        return answer(self, yielded, *rest)

    monkeypatch.setattr(Driver, "answer", watched)
    yield found


def within(driver: Driver, yielded: Any, steps: list[Step], rows: int) -> bool:
    """Whether a step of the plan is at least as large, with as little noise and as much."""
    contract = driver.contract
    if isinstance(yielded, Sum):
        layout = yielded.request.layout(contract, yielded.arrays)
        named = [one for step in steps if step.matches(yielded.request) for one in sums_of(contract, step)]
        # In units of what one row adds: noise and magnitude are scaled together.
        least = min(sigmas[0] / one.magnitude for one, sigmas in named)
        return (
            max(one.length for one, _ in named) >= layout.length
            and max(one.magnitude for one, _ in named) >= layout.magnitude
            and yielded.sigma / layout.magnitude >= least * (1 - 1e-9)
            and yielded.sigma <= max(sigmas[1] for _, sigmas in named) * (1 + 1e-9)
        )
    if isinstance(yielded, Choose):
        (step,) = (step for step in steps if step.matches(yielded.request))
        parts = (step.first_rho / step.rho, 1.0)
        reach = max(contract.largest_terms(part, rows).reach for part in parts)
        return reach >= yielded.terms.reach and yielded.request.epsilon >= step.first_epsilon * (1 - 1e-9)
    if isinstance(yielded, Open):
        openings = [step for step in steps if step.request.kind == "open"]
        layout = yielded.request.layout(contract)
        cells = max(one.length for step in openings for one in step.request.largest(contract))
        return cells >= layout.length and yielded.request.sigma >= min(s.sigma for s in openings) * (1 - 1e-9)
    return True


def sums_of(contract: Contract, step: Step) -> Iterator[tuple[Layout, tuple[float, float]]]:
    """The largest layouts of a step, each with its least and most noise."""
    for layout in step.request.largest(contract):
        yield layout, step.sigmas(layout)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("table", "epsilon"),
    [
        ("more_categories_than_rows", 0.01),
        ("every_kind", 100.0),
        pytest.param("more_categories_than_rows", 100.0, marks=pytest.mark.slow),
        pytest.param("every_kind", 0.01, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "fed_dp_ctgan"])
def test_what_is_asked_for_was_foreseen(name: str, table: str, epsilon: float, asked: list[tuple[Driver, Any]]) -> None:
    family = contract_class(name)
    federation = federation_of(awkward_table(table), family.central)
    config = config_of(
        name,
        len(federation.parts),
        aggregation={"protocol": "plain", "noise": "distributed"},
        privacy={"epsilon": epsilon},
        workload={"degree": 3, "size": 6},
    )
    execute(config, federation)
    own = [one for one in asked if isinstance(one[1], Sum | Choose | Open)]
    assert own, "nothing was asked for"
    driver = own[0][0]
    rows = math.ceil(driver.most_rows(driver.clients))
    steps = list(driver.contract.plan(driver.contract.budget.mechanism, rows))
    for driver, yielded in own:
        assert within(driver, yielded, steps, rows), (yielded, steps)
    times: Counter[type[Request]] = Counter()
    for step in steps:
        times[step.request] += step.times
    turns = len(driver.clients) if family.alone else 1
    assert all(sum(type(one.request) is request for _, one in own) <= most * turns for request, most in times.items())


def test_a_model_takes_no_more_cells_at_a_time_than_is_foreseen() -> None:
    """Every clique of three attributes that the tree can hold, one after the other, at three sizes of it."""
    for room in (500, 5_000, 10**6):
        config = config_for("sketch_aim", "plain", "distributed", inference={"max_cells": room})
        contract = contract_class("sketch_aim")(config, WIDE)
        cliques = contract.candidates.cliques
        capacity = Capacity(WIDE, config.inference)
        kept = capacity.add_while_fitting([q for q in cliques if len(q) == 3] + [q for q in cliques if len(q) < 3])
        assert kept
        three = [q for q in cliques if len(q) == 3 and Capacity(WIDE, config.inference).fits(q)]
        inside = [q for q in three if any(set(q) <= set(own) for own in capacity.cliques)]
        assert sum(WIDE.size(q) for q in inside) <= most_cells(contract)
        assert max(map(WIDE.size, inside), default=1) <= largest_measured(contract)


# Residuals over ciphertexts ------------------------------------------------------------------------------------------


def of_residuals(config: RunConfig) -> tuple[Layout, tuple[float, float]]:
    contract = contract_class("sketch_aim")(config, WIDE)
    (step,) = (step for step in contract.plan(contract.budget.mechanism, 48_842) if step.request is Residuals)
    return max(sums_of(contract, step), key=lambda one: one[0].magnitude)


def test_residuals_of_48_842_private_rows_fit_ciphertexts() -> None:
    """Also where nothing is known of the rows but that they are below 2^40: a sum is formed modulo 2^64."""
    config = config_for("sketch_aim", "fhe", "distributed", privacy={"client_sizes": "private"})
    sums, (layout, noises) = make_aggregation(config.aggregation), of_residuals(config)
    sigma, rows = 30.0, 48_842 / CLIENTS
    clients = [Participant(k, k, rows) for k in range(CLIENTS)]
    most = joining.most_of_released(clients, sigma)
    assert 48_842 < most < 60_000
    for noise in noises:
        for largest in (most, joining.LARGEST_SUM):
            sums.room(layout.spec(noise, CLIENTS, 0), largest)


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "magnitude", "sigma"), [(2.0**40, 2.0**19, 2.0**22), (1e3, 1.0, 1e-8), (2.0**45, 2.0**20, 1e3)]
)
@pytest.mark.parametrize("protocol", ["plain", "secagg", "fhe"])
def test_a_sum_that_is_refused_before_is_the_sum_that_would_fail(
    protocol: str, rows: float, magnitude: float, sigma: float
) -> None:
    """The bound is arithmetic: it refuses exactly where the largest total and its noise leave the ring."""
    config = config_for("sketch_aim", protocol, "distributed")
    sums = make_aggregation(config.aggregation)
    spec = Layout.of_vector(10, magnitude, magnitude=magnitude).spec(sigma, CLIENTS, 0)
    bits = 63
    try:
        plan = sums.room(spec, rows)
    except ConfigError as error:
        assert is_sentence(str(error))
        finest = 1
        while finest * sigma < 128 or finest * sigma / math.sqrt(CLIENTS) < 3:
            finest *= 2
        assert finest * rows * magnitude * 1.01 >= 2.0**bits or sigma <= 1e-8
    else:
        assert plan is not None and plan.resolution * rows * magnitude < 2.0**bits


def test_a_message_that_flower_would_not_carry_is_refused_before() -> None:
    config = config_for("naive_flaim", "plain", "server", inference={"max_cells": 10**9})
    with pytest.raises(ConfigError, match=r"inference\.max_cells: 7,629 MiB would be sent at once"):
        require_feasible(contract_class("naive_flaim")(config, WIDE), CLIENTS)


@pytest.mark.parametrize("mechanism", ["sketch_aim", "aim", "naive_flaim"])
def test_a_marginal_that_cannot_be_formed_is_refused_before_anybody_joins(mechanism: str) -> None:
    cells = 16 * 42 * 74
    for at_once in (cells - 1, cells):
        bounds = {"max_cells": 10**6, "max_cells_at_once": at_once}
        config = config_for(mechanism, "plain", "server", inference=bounds)
        contract = contract_class(mechanism)(config, WIDE)
        if at_once == cells:
            require_feasible(contract, CLIENTS)
            continue
        with pytest.raises(
            ConfigError, match=r"columns a, f, h have 49,728 cells together.*49,727.*fewer bins"
        ) as error:
            require_feasible(contract, CLIENTS)
        assert is_sentence(str(error.value))


def test_a_plan_without_room_is_refused_before_anybody_joins() -> None:
    schema = Schema.from_dict(TWO)
    config = config_of("distributed_aim", 3, {"resolution": 2**20}, workload={"degree": 2, "size": None})
    check_before(config, schema)
    with pytest.raises(ConfigError, match=r"mechanism\.resolution is too large for a client of 9,000,000 rows"):
        check_before(config, schema, [np.arange(9_000_000), np.arange(10)])


def test_what_released_sizes_have_no_room_for_costs_the_sizes_alone(tmp_path: Path) -> None:
    """Their noise is millions of rows here: scores of clients with as many would not be exact."""
    table = pd.DataFrame({"a": ["x", "y"] * 30, "b": ["x", "y", "y"] * 20})
    document = {
        "mechanism": {"name": "distributed_aim", "resolution": 2**20},
        "data": {"source": "given"},
        "federation": {"clients": 3},
        "privacy": {"epsilon": 1e-8, "delta": 1e-12},
        "aggregation": {"protocol": "plain", "noise": "server"},
        "workload": {"degree": 2, "size": None},
        "evaluation": [],
        "runtime": {"seed": 3},
    }
    with pytest.raises(RunError, match=r"may leave the 2\^53 .* was spent"):
        fedsyn.run(document, table=table, schema=Schema.from_dict(TWO), out=tmp_path / "out")
    ledger = json.loads((tmp_path / "out" / "ledger.json").read_text())
    assert {release["name"] for release in ledger["releases"]} == {"sizes"}
