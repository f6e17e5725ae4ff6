"""sketch_aim: its budget, what is asked and contributed, and the choice against its definition."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np
import pytest
from halves import asked

from fedsyn.counting.marginals import count
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.inference import Measurement, Model, estimate
from fedsyn.plugins.clients.sketch_aim import Sigmas, SketchAimClient, SketchAimOptions, Sketches
from fedsyn.plugins.strategies.sketch_aim import SketchAim, Sketched, precision
from fedsyn.privacy import PrivacyBudget, gaussian_epsilon
from fedsyn.protocol.joining import Participant
from fedsyn.randomness import Randomness
from fedsyn.selection.sketches import Sketcher, pack_grouping
from fedsyn.selection.views import ModelView, effective_cells
from fedsyn.testing.harness import Federation, Outcome, config_of, execute, finished, vanish
from fedsyn.testing.schemas import awkward_table
from fedsyn.wire.holder import Holder
from fedsyn.wire.requests import Sum, Summed

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
CODES = TABLE.encode()
D = len(DOMAIN)
MU = PrivacyBudget(1.0, 1e-5).mu
KINDS = ["groups", "count", "signs"]


ABLATION = ("sketch", "weights", "caution")


def config(clients: int = 3, nodes: Any = None, **options: Any) -> Any:
    ablation = {key: options.pop(key) for key in ABLATION if key in options}
    given = {"rounds": 3, "marginals": 5, **options, "ablation": ablation}
    return config_of("sketch_aim", clients, given, **(nodes or {}))


def run(parts: Any = None, faults: Any = None, nodes: Any = None, **options: Any) -> Outcome:
    parts = (CODES[:10], CODES[10:35], CODES[35:]) if parts is None else parts
    return execute(config(len(parts), nodes, **options), Federation(TABLE, tuple(parts)), faults=faults)


def releases(outcome: Outcome, name: str) -> list[Any]:
    return [release for release in outcome.strategy.ledger.releases if release.name == name]


@dataclass
class Server:
    """A server after its first fit, with the sketches of one client that has all rows."""

    strategy: SketchAim
    measurements: list[Measurement]
    sketched: Sketched

    @property
    def model(self) -> Model:
        assert self.strategy.model is not None
        return self.strategy.model

    @property
    def sketcher(self) -> Sketcher:
        return self.sketched.sketcher

    def new_cliques(self, sigma: float) -> list[int]:
        """At most three, of all candidates."""
        strategy, view = self.strategy, ModelView(self.model)
        return strategy.new_cliques(self.sketched, view, lambda clique: True, sigma, 3, 1.0)


def server(codes: np.ndarray = CODES, sigma: float = 1e-6, **options: Any) -> Server:
    """Nearly no noise, unless `sigma` says otherwise."""
    setup = config(1, **options)
    strategy = SketchAim(setup, DOMAIN, TABLE.schema.sha256, randomness=Randomness(0))
    strategy.clients = {0: Participant(0, 1, float(len(codes)))}
    cliques = [(name,) for name in DOMAIN]
    ones = Summed([count(codes, DOMAIN, [q])[0] for q in cliques], (sigma,) * D, (0,))
    measurements = strategy.opened(ones, cliques)
    strategy.estimate(measurements)
    request = the_sum(strategy)
    client = SketchAimClient(setup, Holder(0, codes, DOMAIN, TABLE.schema.sha256, Randomness(0)))
    sums = Summed([client.sketch(call(client, request)).dense().astype(float)], (sigma,), (0,))
    return Server(strategy, measurements, strategy.sketches_of(strategy.sketched(), sums))


def the_sum(strategy: SketchAim) -> Sum:
    """What the server yields for all its sketches, at the noise of one sensitivity."""
    return strategy.sum_of_sketches(strategy.sketched(), Sigmas(1.0, 1.0, 1.0))


def call(client: SketchAimClient, request: Sum, **changes: Any) -> Any:
    return asked(client, (Sketches, {**request.request.model_dump(), **changes}), request.arrays)


# Budget --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", [(1,), (2, 3), (0, 1)])
def test_the_run_is_one_gaussian_mechanism_that_spends_the_budget(kind: str, weights: tuple[int, ...]) -> None:
    nodes = {"workload": {"degree": 3, "size": 3, "seed": 1}}
    outcome = finished(run(nodes=nodes, sketch=kind, weights=weights, width=7, one_way_share=0.3, sketch_share=0.1))
    ledger = outcome.strategy.ledger
    assert {r.mechanism for r in ledger.releases} == {"gaussian"}
    (ones,), (sketch,), measured = (
        releases(outcome, "one-way"),
        releases(outcome, "sketch"),
        releases(outcome, "measure"),
    )
    assert ones.count == D and ones.sigma == pytest.approx(sqrt(D / 0.3) / MU, rel=1e-8)
    given = [weights[len(q) - 2] for q in outcome.strategy.candidates.cliques if 1 < len(q) < 2 + len(weights)]
    norm = sqrt(7) if kind == "signs" else 1.0
    assert sketch.count == 1 and sketch.sensitivity == pytest.approx(norm * sqrt(sum(c * c for c in given)), rel=1e-12)
    assert sketch.sigma == pytest.approx(sketch.sensitivity / sqrt(0.1) / MU, rel=1e-8)
    assert [r.count for r in measured] == [2, 2, 1] and [r.round for r in measured] == [1, 2, 3]
    assert all(r.sigma == pytest.approx(sqrt(5 / 0.6) / MU, rel=1e-8) for r in measured)
    mu = sqrt(sum(r.count * (r.sensitivity / r.sigma) ** 2 for r in ledger.releases))
    assert mu == pytest.approx(MU, rel=1e-8)
    assert gaussian_epsilon(mu, 1e-5) <= 1.0
    for client in outcome.ledgers.values():
        assert client.spent_rho == pytest.approx(ledger.spent_rho, rel=1e-12)


def test_private_sizes_leave_less_for_the_rest() -> None:
    outcome = finished(run(nodes={"privacy": {"client_sizes": "private"}}))
    (sizes,) = releases(outcome, "sizes")
    assert sizes.rho == pytest.approx(0.05 * MU**2 / 2)
    assert releases(outcome, "one-way")[0].rho == pytest.approx(0.2 * 0.95 * MU**2 / 2)
    assert outcome.strategy.ledger.spent == pytest.approx(MU**2, rel=1e-8)


def test_without_anything_to_choose_the_one_way_marginals_get_the_budget() -> None:
    outcome = finished(run(nodes={"workload": {"degree": 1, "size": None, "seed": 0}}))
    (ones,) = outcome.strategy.ledger.releases
    assert ones.name == "one-way" and outcome.strategy.ledger.spent == pytest.approx(MU**2, rel=1e-8)


@pytest.mark.parametrize(
    ("rounds", "marginals", "expected"),
    [(10, None, [2] * 10), (20, None, [1] * 20), (30, None, [1] * 30), (6, None, [4, 4, 3, 3, 3, 3]), (2, 5, [3, 2])],
)
def test_marginals_are_spread_over_the_rounds(rounds: int, marginals: int | None, expected: list[int]) -> None:
    options = SketchAimOptions(rounds=rounds, marginals=marginals)
    assert [options.in_round(t) for t in range(1, rounds + 1)] == expected
    assert sum(expected) == options.planned


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"one_way_share": 0.6, "sketch_share": 0.4}, "leave a share"),
        ({"weights": (0, 0)}, "at least 1"),
        ({"weights": ()}, "at least 1"),
        ({"weights": (-1, 2)}, "from 0 to 1000"),
        ({"rounds": 4, "marginals": 3}, "at least one for each of the 4 rounds"),
        ({"sketch": "gaussian"}, "groups"),
        ({"width": 0}, "width"),
        ({"caution": -1}, "caution"),
        ({"penalty": "half"}, "cells"),
        ({"widht": 8}, "width"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(**options)


# What is asked and contributed ---------------------------------------------------------------------------------------


def test_clients_are_asked_for_sums_only_and_for_the_sketches_once() -> None:
    outcome = finished(run(nodes={"federation": {"participation": 0.5}}))
    kinds = [(e.envelope["request"], e.envelope["kind"]) for e in outcome.tape.exchanges]
    assert set(kinds) == {("join", "ask"), ("one-way", "sum"), ("sketch", "sum"), ("measure", "sum")}
    assert kinds.count(("sketch", "sum")) == kinds.count(("one-way", "sum")) == 3
    assert kinds.count(("measure", "sum")) < 9, "with p = 0.5 some cohort must be smaller than the federation"


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_does_not_depend_on_how_the_rows_are_spread(kind: str) -> None:
    """Every message of the server, and the model, bit for bit: even, sorted, one holder of all and empty others."""
    rng = np.random.default_rng(2)
    owner = rng.integers(0, 3, len(CODES))
    ordered = CODES[np.lexsort(CODES.T)]
    splits = [
        [CODES[owner == k] for k in range(3)],
        [ordered[:5], ordered[5:30], ordered[30:]],
        [CODES, CODES[:0], CODES[:0]],
    ]
    models, requests = [], []
    for parts in splits:
        outcome = finished(run(parts, sketch=kind))
        models.append(outcome.strategy.model.to_arrays())
        mine = [e for e in outcome.tape.exchanges if e.partition == 0]
        requests.append([(e.envelope, [array.tobytes() for array in e.arrays]) for e in mine])
    for other, messages in zip(models[1:], requests[1:], strict=True):
        assert all(np.array_equal(models[0][key], other[key]) for key in models[0])
        assert messages == requests[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cohort_stands_for_the_federation(kind: str) -> None:
    held = server(sketch=kind)
    strategy = held.strategy
    strategy.clients = {0: Participant(0, 1, 60.0), 1: Participant(1, 2, 20.0)}
    values = np.full(DOMAIN.size(DOMAIN.attributes[:2]), 2.0)
    (measurement,) = strategy.opened(Summed([values], (3.0,), (1,)), [DOMAIN.attributes[:2]])
    assert np.array_equal(measurement.values, 4 * values) and measurement.sigma == 12.0
    vector = np.concatenate([s * held.sketcher.row_norm for s in held.sketched.values])
    again = strategy.sketches_of(strategy.sketched(), Summed([vector], (5.0,), (1,)))
    assert np.allclose(again.values[0], 4 * held.sketched.values[0]) and again.sigma == 20.0


def test_clients_that_vanish_before_the_sketches_leave_the_one_way_model() -> None:
    outcome = finished(run(faults={k: vanish(2) for k in range(3)}))
    assert [r.name for r in outcome.strategy.ledger.releases] == ["one-way"]
    assert any("no sketches" in note for record in outcome.strategy.records for note in record.notes)
    one_way = [Measurement((a,), count(CODES, DOMAIN, [(a,)])[0] * 1.0, 1.0) for a in DOMAIN]
    independent = estimate(DOMAIN, one_way, total=float(len(CODES)))
    assert set(outcome.strategy.model.cliques) == set(independent.cliques)


@pytest.mark.parametrize("kind", KINDS)
def test_the_contribution_claims_the_sensitivity_of_one_row(kind: str) -> None:
    strategy = server(sketch=kind, weights=(3,)).strategy
    request = the_sum(strategy)
    layout = request.request.layout(strategy.contract, request.arrays)
    assert layout.signed == (kind != "groups") and layout.magnitude == 3.0 and layout.count == 1
    assert request.sigma == layout.sensitivity
    vectors = []
    for rows in (CODES, CODES[1:]):
        client = SketchAimClient(config(1, sketch=kind, weights=(3,)), Holder(0, rows, DOMAIN, "", Randomness(0)))
        contribution = client.sketch(call(client, request))
        assert contribution.layout == layout and contribution.count == 1
        vectors.append(contribution.dense())
    moved = vectors[0] - vectors[1]
    assert sqrt(float(moved @ moved)) == pytest.approx(layout.sensitivity, rel=1e-12)
    assert np.abs(moved).max() <= layout.magnitude


def test_a_client_refuses_what_its_options_do_not_sketch() -> None:
    strategy = server().strategy
    request = the_sum(strategy)
    client = SketchAimClient(config(1), Holder(0, CODES, DOMAIN, "", Randomness(0)))
    single = next(i for i, q in enumerate(strategy.candidates.cliques) if len(q) == 1)
    for wrong in ([single], [], [10_000], [0.5], "0", [request.request.cliques[0]] * 2):
        with pytest.raises(ProtocolError, match="cliques"):
            client.sketch(call(client, request, cliques=wrong))
    for arrays in ([], [request.arrays[0]] * 2, [request.arrays[0][:-1]]):
        with pytest.raises(ProtocolError, match="groups"):
            client.sketch(asked(client, request.request, arrays))


# The choice ----------------------------------------------------------------------------------------------------------


def dependent() -> np.ndarray:
    """Independent columns, except that the second repeats the first as far as it has values for it."""
    rng = np.random.default_rng(7)
    codes = np.stack([rng.integers(0, n, 3000) for n in DOMAIN.shape], axis=1).astype(CODES.dtype)
    sizes = np.array(DOMAIN.shape)
    first, second = np.argsort(-sizes, kind="stable")[:2]
    codes[:, second] = codes[:, first] % sizes[second]
    return codes


@pytest.mark.parametrize("kind", KINDS)
def test_the_dependent_pair_is_chosen_first(kind: str) -> None:
    codes = dependent()
    first, second = np.argsort(-np.array(DOMAIN.shape), kind="stable")[:2]
    workload = {"workload": {"degree": 2, "size": None, "seed": 0}}
    parts = tuple(codes[k::3] for k in range(3))
    nodes = {"privacy": {"epsilon": 5.0, "delta": 1e-5}, **workload}
    outcome = finished(run(parts, nodes=nodes, sketch=kind, marginals=3, caution=0.0))
    chosen = outcome.strategy.records[1].selected
    assert chosen == [" × ".join(DOMAIN.canonical((DOMAIN.attributes[first], DOMAIN.attributes[second])))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", ["cells", "effective"])
@pytest.mark.parametrize("weights", [(1,), (1, 2), (0, 1)])
def test_new_cliques_are_those_of_the_largest_gain(kind: str, penalty: str, weights: tuple[int, ...]) -> None:
    """Against a plain evaluation of the definition for every candidate, one clique after the other."""
    codes = dependent()
    for seed in range(3):
        nodes = {"workload": {"degree": 3, "size": 4, "seed": seed}}
        held = server(codes, sigma=30.0, sketch=kind, penalty=penalty, weights=weights, caution=0.5, nodes=nodes)
        strategy, model, total, sigma = held.strategy, held.model, float(len(codes)), 2.0
        distance = {}
        for j, q in enumerate(held.sketcher.cliques):
            p = model.project(q) / total
            seen = held.sketcher.of_marginal(j, p)
            noise = held.sketcher.sigma_of(j, 30.0)
            squared = np.sum((held.sketched.values[j] - total * seen) ** 2)
            squared -= (len(seen) + 0.5 * sqrt(2 * len(seen))) * noise**2
            support = effective_cells(seen if kind == "groups" else p)
            distance[q] = sqrt(max(0.0, squared) * support)
        gains = {}
        for i, q in enumerate(strategy.candidates.cliques):
            if len(q) > 1:
                inside = [distance[r] for r in distance if set(r) <= set(q)]
                error = distance.get(q, sqrt(sum(x * x for x in inside)))
                cells = DOMAIN.size(q) if penalty == "cells" else effective_cells(model.project(q) / total)
                gains[i] = strategy.candidates.weights[i] * (error - sqrt(2 / pi) * sigma * cells)
        ranked = sorted((i for i in gains if gains[i] > 0), key=lambda i: -gains[i])
        expected: list[int] = []
        for i in ranked:
            nested = any(set(strategy.candidates.cliques[i]) <= set(strategy.candidates.cliques[j]) for j in expected)
            if len(expected) < 3 and not nested:
                expected.append(i)
        got = held.new_cliques(sigma)
        assert got == expected and got, "some clique must promise a gain, or the test shows nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_caution_takes_standard_deviations_off_the_squared_distance(kind: str) -> None:
    squares = []
    for caution in (0.0, 2.0):
        held = server(dependent(), sigma=4.0, sketch=kind, caution=caution, weights=(2,), width=11)
        p = held.model.project(held.sketcher.cliques[0]).ravel() / held.model.total
        seen = held.sketcher.of_marginal(0, p)
        support = effective_cells(seen if kind == "groups" else p)
        squares.append(held.sketched.distance(0, held.model, p) ** 2 / support)
    noise = 4.0 / (2 * (sqrt(11) if kind == "signs" else 1.0))
    assert squares[0] - squares[1] == pytest.approx(2.0 * sqrt(2 * len(seen)) * noise**2, rel=1e-6)


def test_cliques_that_promise_nothing_are_left_and_measured_ones_are_measured_again() -> None:
    rng = np.random.default_rng(5)
    codes = np.stack([rng.integers(0, n, 2000) for n in DOMAIN.shape], axis=1).astype(CODES.dtype)
    held = server(codes, sigma=1.0)
    strategy, known = held.strategy, precision(held.measurements)
    chosen = strategy.best(held.sketched, known, 1e4, 2, 1.0)
    cliques = [strategy.candidates.cliques[i] for i in chosen]
    assert len(chosen) == 2 and all(len(q) == 1 for q in cliques)
    gains = {
        i: strategy.candidates.weights[i] * strategy.less_noise(ModelView(held.model), i, known[q], 1e4)
        for i, q in enumerate(strategy.candidates.cliques)
        if q in known
    }
    assert set(known) == {(name,) for name in DOMAIN} and set(known.values()) == {1.0}
    assert sorted(chosen) == sorted(sorted(gains, key=lambda i: -gains[i])[:2])
    assert strategy.capacity.cliques == ()


def test_one_more_measurement_takes_away_what_it_should() -> None:
    strategy = server(sigma=3.0).strategy
    i = next(i for i, q in enumerate(strategy.candidates.cliques) if len(q) == 1)
    clique = strategy.candidates.cliques[i]
    cells = effective_cells(strategy.model.project(clique) / strategy.model.total)
    less = strategy.less_noise(ModelView(strategy.model), i, 3.0**-2, 4.0)
    assert less == pytest.approx(sqrt(2 / pi) * cells * (3.0 - 1 / sqrt(1 / 9 + 1 / 16)), rel=1e-9)


def test_what_is_known_of_a_clique_adds_up_over_its_measurements() -> None:
    twice = [Measurement(("age",), np.zeros(DOMAIN.shape_of(("age",))), sigma) for sigma in (2.0, 4.0)]
    assert precision(twice) == {("age",): 1 / 4 + 1 / 16} and precision([]) == {}


def test_a_clique_inside_a_measured_one_is_not_new() -> None:
    held = server(dependent(), nodes={"workload": {"degree": 3, "size": 1, "seed": 0}})
    assert held.new_cliques(1.0) != []
    held = server(dependent(), nodes={"workload": {"degree": 3, "size": 1, "seed": 0}})
    triple = next(q for q in held.strategy.candidates.cliques if len(q) == 3)
    held.strategy.capacity.add([triple])
    assert held.new_cliques(1.0) == []


def test_groups_follow_the_released_one_way_marginals() -> None:
    held = server(dependent(), width=9)
    packed = the_sum(held.strategy).arrays[0]
    assert np.array_equal(packed, pack_grouping(held.sketcher.grouping))
    for (name, groups), own in held.sketcher.grouping.items():
        if groups < DOMAIN[name]:
            mass = np.bincount(own, weights=held.model.project((name,)))
            assert len(mass) == groups and mass.max() < 2.5 * len(dependent()) / groups


def test_candidates_are_those_that_the_options_sketch() -> None:
    nodes = {"workload": {"degree": 3, "size": 2, "seed": 1}}
    for weights, sizes in (((1,), {2}), ((1, 1), {2, 3}), ((0, 1), {3})):
        held = server(weights=weights, nodes=nodes)
        assert {len(q) for q in held.sketcher.cliques} == sizes
