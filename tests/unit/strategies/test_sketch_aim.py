"""sketch_aim: its budget, what is asked and contributed, and the choice against its definition."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from math import pi, prod, sqrt
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from experiments.held_out.held_cells import fitted
from experiments.sketch_aim_ablation.variant import Variant, VariantClient, Weighed
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import Measurement, Model, estimate
from fedsyn.inference.junction_tree import model_size
from fedsyn.loading import parse_config
from fedsyn.plugins.clients.sketch_aim import (
    FINEST,
    FirstLook,
    Residuals,
    SketchAimClient,
    SketchAimContract,
    Sketches,
)
from fedsyn.plugins.strategies.sketch_aim import SketchAim, Sketched, precision
from fedsyn.privacy import PrivacyBudget
from fedsyn.privacy.conversion import gaussian_epsilon
from fedsyn.protocol.joining import Participant
from fedsyn.randomness import Randomness
from fedsyn.selection.coarse import group_counts, pack_grouping
from fedsyn.selection.planning import shrunk
from fedsyn.selection.sketches import Sketcher, shows_nothing, sketched_sizes, width_of
from fedsyn.selection.views import ModelView, effective_cells
from fedsyn.table.counting.marginals import count
from fedsyn.table.schema import Schema
from fedsyn.wire.holder import Holder
from fedsyn.wire.requests import Sum, Summed
from support.halves import asked

TABLE = awkward_table("missing_values")
DOMAIN = TABLE.schema.domain
CODES = TABLE.encode()
D = len(DOMAIN)
MU = PrivacyBudget(1.0, 1e-5).mu
KINDS = ["interactions", "groups", "count", "signs"]
SWITCHES = {"always", "room", "staged", "sketch", "sizes", "even", "residuals"}


def config(clients: int = 3, nodes: Any = None, **options: Any) -> Any:
    name = "sketch_aim" if SWITCHES.isdisjoint(options) else "experiments.sketch_aim_ablation.variant:Variant"
    return config_of(name, clients, {"rounds": 3, **options}, **(nodes or {}))


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


def server(codes: np.ndarray = CODES, sigma: float = 1e-6, **options: Any) -> Server:
    """Nearly no noise, unless `sigma` says otherwise."""
    setup = config(1, **options)
    ours = setup.mechanism.name == "sketch_aim"
    strategy = (SketchAim if ours else Variant)(setup, DOMAIN, TABLE.schema.sha256, randomness=Randomness(0))
    strategy.clients = {0: Participant(0, 1, float(len(codes)))}
    cliques = [(name,) for name in DOMAIN]
    ones = Summed([count(codes, DOMAIN, [q])[0] for q in cliques], (sigma,) * D, (0,))
    measurements = strategy.opened(ones, cliques)
    strategy.estimate(measurements)
    request = the_sum(strategy)
    half = SketchAimClient if ours else VariantClient
    client = half(setup, Holder(0, codes, DOMAIN, TABLE.schema.sha256, Randomness(0)))
    sums = Summed([client.sketch(call(client, request)).dense().astype(float)], (sigma,), (0,))
    return Server(strategy, measurements, strategy.sketches_of(all_sketches(strategy), sums))


def the_sum(strategy: SketchAim) -> Sum:
    """What the server yields for all its sketches, at the noise of one sensitivity."""
    return strategy.sum_of_sketches(all_sketches(strategy), 1.0)


def all_sketches(strategy: SketchAim) -> Sketches:
    return Sketches(cliques=strategy.sketched(), width=strategy.width)


def call(client: SketchAimClient, request: Sum, **changes: Any) -> Any:
    return asked(client, (Sketches, {**request.request.model_dump(), **changes}), request.arrays)


# Budget --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(2,), (2, 3), (3,)])
def test_the_run_is_one_gaussian_mechanism_that_spends_the_budget(kind: str, sizes: tuple[int, ...]) -> None:
    nodes = {"workload": {"degree": 3, "size": 3, "seed": 1}}
    outcome = finished(run(nodes=nodes, sketch=kind, sizes=sizes, width=9, one_way_share=0.3, sketch_share=0.1))
    ledger = outcome.strategy.ledger
    assert {r.mechanism for r in ledger.releases} == {"gaussian"}
    (ones,), (sketch,), measured = (
        releases(outcome, "one-way"),
        releases(outcome, "sketch"),
        releases(outcome, "measure"),
    )
    assert ones.count == 1 and ones.sensitivity / ones.sigma == pytest.approx(sqrt(0.3) * MU, rel=1e-8)
    cliques = [outcome.strategy.candidates.cliques[i] for i in outcome.strategy.sketched()]
    norm = sqrt(outcome.strategy.width) if kind == "signs" else 1.0
    squared = len(cliques) * norm**2
    if kind == "interactions":  # a multiple of the number of groups, projected
        shapes = [group_counts(DOMAIN, q, outcome.strategy.width) for q in cliques]
        most = max(map(prod, shapes))
        # Where triples may be sketched, too, each of six pairs is in one and a half of three triples, on average.
        finest, of_pairs = (8, 1.5 ** (1 / 3)) if sizes == (2, 3) else (1, 1.0)
        weights = [finest * (of_pairs if len(shape) == 2 else 1.0) * most / prod(shape) for shape in shapes]
        factors = [round(weight) * prod(shape) for weight, shape in zip(weights, shapes, strict=True)]
        squared = sum(f**2 * prod(1 - 1 / g for g in shape) for shape, f in zip(shapes, factors, strict=True))
    assert sketch.count == 1 and sketch.sensitivity == pytest.approx(sqrt(squared), rel=1e-12)
    assert sketch.sigma == pytest.approx(sketch.sensitivity / sqrt(0.1) / MU, rel=1e-8)
    assert all(r.count == 1 for r in measured)
    assert sum((r.sensitivity / r.sigma) ** 2 for r in measured) == pytest.approx(0.6 * MU**2, rel=1e-8)
    mu = sqrt(sum(r.count * (r.sensitivity / r.sigma) ** 2 for r in ledger.releases))
    assert mu == pytest.approx(MU, rel=1e-8)
    assert gaussian_epsilon(mu, 1e-5) <= 1.0
    for client in outcome.ledgers.values():
        assert client.spent_rho == pytest.approx(ledger.spent_rho, rel=1e-12)


def test_private_sizes_leave_less_for_the_rest() -> None:
    outcome = finished(run(nodes={"privacy": {"client_sizes": "private"}}))
    (sizes,) = releases(outcome, "sizes")
    assert sizes.rho == pytest.approx(0.05 * MU**2 / 2)
    assert releases(outcome, "one-way")[0].rho == pytest.approx(0.1 * 0.95 * MU**2 / 2)
    assert outcome.strategy.ledger.spent == pytest.approx(MU**2, rel=1e-8)


def test_without_anything_to_choose_the_one_way_marginals_get_the_budget() -> None:
    outcome = finished(run(nodes={"workload": {"degree": 1, "size": None, "seed": 0}}))
    (ones,) = outcome.strategy.ledger.releases
    assert ones.name == "one-way" and outcome.strategy.ledger.spent == pytest.approx(MU**2, rel=1e-8)


def test_the_weights_of_a_request_round_its_plan_and_keep_its_sum() -> None:
    plan = {3: 1.0, 5: 0.25, 7: 1e-9}
    request, sigma = server(residuals=False).strategy.request(list(plan), list(plan.values()), [], False)
    assert request.cliques == [3, 5, 7] and request.weights == [FINEST, FINEST // 2, 1]
    assert sum(c * c for c in request.weights) / sigma**2 == pytest.approx(sum(plan.values()), rel=1e-12)


def test_a_sketch_is_as_wide_as_what_it_must_show_allows() -> None:
    """At the width found, what a pair of mean-square contingency 0.1 leaves is one standard deviation of the noise."""
    sketched, mu2, rows = {2: 50.0, 3: 20.0}, 1e-3, 5000.0
    k = width_of(mu2, sketched, rows, 64)
    assert 4 < k < 64
    for width, above in ((k, True), (k + 1, False)):
        squared = 50.0 * (1 - width**-0.5) ** 2 + 20.0 * (1 - width ** (-1 / 3)) ** 3
        shown, noise = 0.1 * rows**2 / width, sqrt(2) * (sqrt(width) - 1) * squared / mu2
        assert (shown >= noise) == above
    assert width_of(1e-9, {2: 50.0}, 100.0, 64) == 4 and width_of(1.0, {2: 50.0}, 1e6, 64) == 64
    assert width_of(1e-9, {3: 50.0}, 100.0, 64) == 8 and width_of(1e-9, {2: 50.0}, 100.0, 4) == 4


def test_triples_are_sketched_where_eight_entries_show_something() -> None:
    sketched, mu2, most = {2: 50.0, 3: 500.0}, 1e-3, 64
    found = {rows: sketched_sizes(mu2, sketched, rows, most) for rows in (100.0, 1000.0, 3000.0, 10_000.0, 1e6)}
    assert found[100.0] == [2] and found[1e6] == [2, 3]
    for rows, sizes in found.items():
        assert (3 in sizes) == (width_of(mu2, sketched, rows, most) >= 8)
    assert sketched_sizes(mu2, {3: 1.0}, 1.0, most) == [3] and sketched_sizes(mu2, {2: 1.0}, 1e9, 7) == [2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"one_way_share": 0.3, "sketch_share": 0.4}, "less than 0.7 together"),
        ({"sketch": "gaussian"}, "groups"),
        ({"width": 3}, "width"),
        ({"widht": 8}, "width"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(**options)


# What is asked and contributed ---------------------------------------------------------------------------------------


def test_clients_are_asked_for_sums_only_and_for_the_sketches_once() -> None:
    outcome = finished(run(nodes={"federation": {"sampling_rate": 0.5}}))
    kinds = [(e.envelope["request"], e.envelope["kind"]) for e in outcome.tape.exchanges]
    assert set(kinds) == {("join", "ask"), ("one-way", "sum"), ("sketch", "sum"), ("measure", "sum")}
    assert kinds.count(("sketch", "sum")) == kinds.count(("one-way", "sum")) == 3
    assert 0 < kinds.count(("measure", "sum")) < 9, "with p = 0.5 some cohort must be smaller than the federation"


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
    pair = next(i for i, q in enumerate(strategy.candidates.cliques) if len(q) == 2)
    cells = DOMAIN.size(strategy.candidates.cliques[pair])
    counts = Summed([np.full(cells, 10.0)], (3.0,), (1,))
    (weighed_one,) = strategy.opened_residuals(counts, Weighed(shapes=[], cliques=[pair], weights=[5]), [])
    assert np.array_equal(weighed_one.values.ravel(), np.full(cells, 10.0 / 5 * 4))
    # Noise 3 / 5 times the expansion 4, and 80 records of which every fourth is seen: 80 (4 - 1) over the cells.
    assert weighed_one.sigma == pytest.approx(sqrt((3.0 / 5 * 4) ** 2 + 80 * 3 / cells))
    vector = np.concatenate([s * held.sketcher.unit(i) for i, s in enumerate(held.sketched.values)])
    again = strategy.sketches_of(all_sketches(strategy), Summed([vector], (5.0,), (1,)))
    assert np.allclose(again.values[0], 4 * held.sketched.values[0]) and again.sigma == 20.0


def test_clients_that_vanish_before_the_sketches_leave_the_one_way_model() -> None:
    outcome = finished(run(faults={k: vanish(2) for k in range(3)}, nodes={"federation": {"on_loss": "go_on"}}))
    assert [r.name for r in outcome.strategy.ledger.releases] == ["one-way"]
    assert any("no sketches" in note for record in outcome.strategy.records for note in record.notes)
    one_way = [Measurement((a,), count(CODES, DOMAIN, [(a,)])[0] * 1.0, 1.0) for a in DOMAIN]
    independent = estimate(DOMAIN, one_way, total=float(len(CODES)))
    assert set(outcome.strategy.model.cliques) == set(independent.cliques)


@pytest.mark.parametrize("kind", KINDS)
def test_the_contribution_claims_the_sensitivity_of_one_row(kind: str) -> None:
    strategy = server(sketch=kind).strategy
    request = the_sum(strategy)
    layout = request.request.layout(strategy.contract, request.arrays)
    assert layout.signed == (kind != "groups") and layout.count == 1
    assert layout.magnitude == 1.0 or kind == "interactions"
    assert request.sigma == layout.sensitivity
    vectors = []
    for rows in (CODES, CODES[1:]):
        client = VariantClient(config(1, sketch=kind), Holder(0, rows, DOMAIN, "", Randomness(0)))
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
    with pytest.raises(ProtocolError, match="width"):
        client.sketch(call(client, request, width=65))
    for wrong in ([single], [], [10_000], [0.5], "0", [request.request.cliques[0]] * 2):
        with pytest.raises(ProtocolError, match="cliques"):
            client.sketch(call(client, request, cliques=wrong))
    for arrays in ([], [request.arrays[0]] * 2, [request.arrays[0][:-1]]):
        with pytest.raises(ProtocolError, match="groups"):
            client.sketch(asked(client, request.request, arrays))


def test_a_weighed_vector_moves_by_its_sensitivity_when_a_row_goes() -> None:
    client = VariantClient(config(1, residuals=False), Holder(0, CODES, DOMAIN, "", Randomness(0)))
    fewer = VariantClient(config(1, residuals=False), Holder(0, CODES[1:], DOMAIN, "", Randomness(0)))
    request = Weighed(shapes=[], cliques=[0, 3, 8], weights=[16, 1, 7])
    parts = [each.measure(asked(each, request, [])) for each in (client, fewer)]
    moved = parts[0].dense() - parts[1].dense()
    assert sorted(moved[moved != 0].tolist()) == [1, 7, 16]
    layout = parts[0].layout
    assert layout.sensitivity == pytest.approx(sqrt(256 + 1 + 49), rel=1e-12) == sqrt(float(moved @ moved))
    assert (layout.magnitude, layout.count, layout.signed) == (16.0, 1, False)
    cliques = [client.contract.candidates.cliques[i] for i in request.cliques]
    exact = [c * m.ravel() for c, m in zip(request.weights, count(CODES, DOMAIN, cliques), strict=True)]
    assert np.array_equal(parts[0].dense(), np.concatenate(exact))


def test_residuals_move_by_their_sensitivity_whichever_row_goes() -> None:
    """Brute force over every row of the table: of the first look, and of three marginals with weights."""
    whole = SketchAimClient(config(1), Holder(0, CODES, DOMAIN, "", Randomness(0)))
    requests = [FirstLook(alone=False), Residuals(shapes=[], cliques=[0, 3, 8], weights=[16, 1, 7])]
    answers = [lambda client, sent: client.one_way(sent), lambda client, sent: client.measure_residuals(sent)]
    for request, answer in zip(requests, answers, strict=True):
        part = answer(whole, asked(whole, request, []))
        assert part.layout.count == 1 and part.layout.signed
        for row in np.unique(CODES, axis=0):
            more = SketchAimClient(config(1), Holder(0, np.vstack([CODES, row]), DOMAIN, "", Randomness(0)))
            moved = answer(more, asked(more, request, [])).dense() - part.dense()
            assert sqrt(float(moved @ moved)) == pytest.approx(part.layout.sensitivity, rel=1e-12)
            assert np.abs(moved).max() <= part.layout.magnitude
    with pytest.raises(ProtocolError, match="at most"):
        too_heavy = Residuals(shapes=[], cliques=[0, 3], weights=[2**31, 1])
        whole.measure_residuals(asked(whole, too_heavy, []))


@pytest.mark.parametrize(
    ("weights", "says"),
    [([1], "one weight for each"), ([1, 2, 3], "one weight for each"), ([17, 1], "weights"), ([0, 1], "weights"),
     ([1.5, 1], "weights"), ([True, 1], "weights"), ([], "weights"), ("11", "weights")],
)  # fmt: skip
def test_a_client_refuses_weights_that_no_plan_has(weights: Any, says: str) -> None:
    client = VariantClient(config(1, residuals=False), Holder(0, CODES, DOMAIN, "", Randomness(0)))
    with pytest.raises(ProtocolError, match=says):
        client.measure(asked(client, (Weighed, {"shapes": [], "cliques": [0, 3], "weights": weights}), []))
    client = SketchAimClient(config(1), Holder(0, CODES, DOMAIN, "", Randomness(0)))
    weights = [2**31 + 1, 1] if weights == [17, 1] else weights
    with pytest.raises(ProtocolError, match=says):
        client.measure_residuals(asked(client, (Residuals, {"shapes": [], "cliques": [0, 3], "weights": weights}), []))


# The plan ------------------------------------------------------------------------------------------------------------


def dependent() -> np.ndarray:
    """Independent columns, except that the second repeats the first as far as it has values for it."""
    rng = np.random.default_rng(7)
    codes = np.stack([rng.integers(0, n, 3000) for n in DOMAIN.shape], axis=1).astype(CODES.dtype)
    sizes = np.array(DOMAIN.shape)
    first, second = np.argsort(-sizes, kind="stable")[:2]
    codes[:, second] = codes[:, first] % sizes[second]
    return codes


@pytest.mark.parametrize("kind", KINDS)
def test_the_dependent_pair_is_chosen_in_the_first_round(kind: str) -> None:
    codes = dependent()
    first, second = np.argsort(-np.array(DOMAIN.shape), kind="stable")[:2]
    workload = {"workload": {"degree": 2, "size": None, "seed": 0}}
    parts = tuple(codes[k::3] for k in range(3))
    nodes = {"privacy": {"epsilon": 5.0, "delta": 1e-5}, **workload}
    outcome = finished(run(parts, nodes=nodes, sketch=kind))
    pair = " × ".join(DOMAIN.canonical((DOMAIN.attributes[first], DOMAIN.attributes[second])))
    chosen = [q for q in outcome.strategy.records[1].selected if " × " in q]
    assert pair in chosen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(2,), (2, 3), (3,)])
def test_the_errors_of_a_round_are_those_of_the_definition(kind: str, sizes: tuple[int, ...]) -> None:
    """Parts: of a sketched clique its squared error beyond that of its parts, of an attribute its noise."""
    codes = dependent()
    held = server(codes, sigma=3.0, sketch=kind, sizes=sizes, nodes={"workload": {"degree": 3, "size": 4, "seed": 1}})
    strategy, view = held.strategy, ModelView(held.model)
    errors = strategy.errors(held.sketched, held.measurements, view)
    cliques, squared = strategy.candidates.cliques, held.sketched.errors(view)
    found = dict(zip(held.sketcher.cliques, squared, strict=True))
    for i, q in enumerate(cliques):
        if len(q) == 1:
            cells = effective_cells(held.model.project(q) / held.model.total)
            # The total is known: of g counts with noise, g - 1 are free.
            free = 1 - 1 / DOMAIN.size(q)
            assert errors.parts[i] == pytest.approx(2 / pi * cells**2 * 9.0 * free)
            assert errors.noisy[i] == pytest.approx(1 / 9)
        elif q not in found:
            assert errors.parts[i] == 0.0
        else:
            inside = [errors.parts[j] for j, r in enumerate(cliques) if set(r) < set(q) and len(r) > 1]
            below = [] if kind == "interactions" else inside
            assert errors.parts[i] == pytest.approx(max(0.0, found[q] - sum(below)))


def test_a_link_is_kept_among_columns_that_nothing_links() -> None:
    """Admission and discharge in quarters beside six columns that know nothing: the noise of 27 pairs hides no link."""
    rng = np.random.default_rng(3)
    quarter, late = rng.integers(0, 4, 1_000), rng.random(1_000) < 0.1
    others = [rng.integers(0, size, 1_000) for size in (3, 6, 6, 16, 2, 100)]
    codes = np.stack([quarter, np.minimum(3, quarter + late), *others], axis=1)
    sizes = tuple(int(own.max()) + 1 for own in codes.T)
    domain = Domain(tuple("abcdefgh"), sizes, dict(zip("abcdefgh", sizes, strict=True)))
    nodes = {"privacy": {"epsilon": 1.0, "delta": 1e-6}, "workload": {"degree": 2, "size": None}}
    kept = []
    for seed in range(3):
        made = fitted(config_of("sketch_aim", 2, {}, **nodes, runtime={"seed": seed}), codes, domain)
        kept.append(made.model.project(("a", "b")).diagonal().sum() / 1_000)
    assert np.mean(codes[:, 0] == codes[:, 1]) > 0.9
    assert min(kept) > 0.7, kept


def test_independent_rows_leave_the_one_way_model_and_the_run_says_so() -> None:
    """Few rows, little budget: nothing promises more than its noise, and all of it goes to one-way marginals."""
    outcome = finished(run(nodes={"privacy": {"epsilon": 0.02, "delta": 1e-5}}, always=True))
    strategy = outcome.strategy
    assert strategy.capacity.cliques == ()
    assert any("one-way marginals alone" in note for record in strategy.records for note in record.notes)
    measured = [r for r in strategy.records if r.selected]
    assert measured and all("×" not in name for r in measured for name in r.selected)
    assert strategy.ledger.spent == pytest.approx(PrivacyBudget(0.02, 1e-5).mu ** 2, rel=1e-8)


@pytest.mark.parametrize("below_noise_level", [True, False])
def test_where_no_association_could_show_one_look_has_everything(below_noise_level: bool) -> None:
    """As if the workload asked for nothing else: the same request, the same noise, the same table."""
    mu2, pairs = PrivacyBudget(0.05, 1e-5).mu ** 2, sum(len(q) == 2 for q in server().strategy.candidates.cliques)
    bound = sqrt(sqrt(2.0) * pairs / (0.1 * mu2))
    assert shows_nothing(0.1 * mu2, pairs, 0.999 * bound) and not shows_nothing(0.1 * mu2, pairs, 1.001 * bound)
    assert len(CODES) < bound
    budget = {"privacy": {"epsilon": 0.05 if below_noise_level else 1.0, "delta": 1e-5}}
    outcome = finished(run(nodes=budget))
    said = [note for record in outcome.strategy.records for note in record.notes if "perfect association" in note]
    names = [release.name for release in outcome.strategy.ledger.releases]
    assert (len(said), names == ["one-way"], "sketch" in names) == (
        below_noise_level,
        below_noise_level,
        not below_noise_level,
    )
    if below_noise_level:
        alone = finished(run(nodes=budget | {"workload": {"degree": 1, "size": None, "seed": 0}}))
        mine, other = outcome.strategy.model.to_arrays(), alone.strategy.model.to_arrays()
        assert all(np.array_equal(mine[key], other[key]) for key in mine)
        assert outcome.strategy.ledger.spent == pytest.approx(mu2, rel=1e-8)


@pytest.mark.parametrize(
    ("columns", "rows", "times"), [(20, 9_000, 1.0), (30, 9_000, 1.323), (30, 600, 1.0), (80, 9_000, 3.0)]
)
def test_many_sketches_have_a_larger_share_and_the_budget_is_spent(columns: int, rows: int, times: float) -> None:
    """By hand: 30 columns have 435 pairs, each in 28 of 4,060 triples. Each of these pays for 1 / 9.221 of a pair's.

    The root of (435 + 440) / 500 is 1.323. 600 rows allow pairs alone.
    """
    config = parse_config(
        {
            "mechanism": {"name": "sketch_aim"},
            "data": {"source": "table"},
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "workload": {"degree": 3, "size": None if columns < 80 else 6000},
        }
    )
    own = SketchAimContract(config, Domain([f"c{i}" for i in range(columns)], (2,) * columns))
    rho, share = own.budget.mechanism, own.sketch_share(rows)
    assert share == pytest.approx(0.1 * times, rel=1e-3)
    for known in (rows, math.inf):
        steps = {step.request: step for step in own.plan(rho, known) if step.where != {"alone": True}}
        assert steps[Sketches].first_rho <= share * rho * (1 + 1e-12)
        assert steps[Sketches].rho >= share * rho * (1 - 1e-12)
        assert steps[Residuals].rho >= own.rho_of_rounds(rho, share) > 0.0
    spent = {step.request: step.rho for step in own.plan(rho, rows) if step.where != {"alone": True}}
    assert sum(spent.values()) == pytest.approx(rho)


@pytest.mark.slow
def test_a_larger_share_is_that_of_the_noise_and_of_the_ledger() -> None:
    rows = np.random.default_rng(2).integers(0, 2, (4_000, 40)).astype(np.uint8)
    frame = pd.DataFrame(rows | rows[:, :1], columns=[f"c{i}" for i in range(40)])
    schema = Schema.from_dict({"columns": {name: {"kind": "categorical", "categories": [0, 1]} for name in frame}})
    made = fedsyn.Synthesizer(schema=schema, epsilon=3.0, delta=1e-5, seed=1).fit(frame)
    paid = dict[str, float]()
    for one in made.ledger.releases:
        mu2 = one["count"] * (one["sensitivity"] / one["sigma"]) ** 2
        paid[one["name"]] = paid.get(one["name"], 0.0) + mu2
    # 1,000 triples hold nearly all of 780 pairs; with all of them it is the root of (780 + 407) / 500.
    assert 1.50 < paid["sketch"] / paid["one-way"] <= 1.541
    assert sum(paid.values()) == pytest.approx(PrivacyBudget(3.0, 1e-5).mu ** 2, rel=1e-6)


def test_nothing_is_measured_that_the_model_has_no_room_for() -> None:
    room = 100  # for the dependent pair from the second round on, and not for all of the workload
    nodes = {"inference": {"max_cells": room}, "privacy": {"epsilon": 5.0, "delta": 1e-5}}
    parts = tuple(dependent()[k::3] for k in range(3))
    outcome = finished(run(parts, nodes=nodes))
    cliques = outcome.strategy.capacity.cliques
    assert cliques and model_size(DOMAIN, cliques) <= room < model_size(DOMAIN, outcome.strategy.candidates.cliques)


def test_a_round_plans_for_its_part_of_the_tree() -> None:
    nodes = {"inference": {"max_cells": 100}, "privacy": {"epsilon": 5.0, "delta": 1e-5}}
    parts = tuple(dependent()[k::3] for k in range(3))
    sizes = {}
    for staged in (True, False):
        records = finished(run(parts, nodes=nodes, staged=staged)).strategy.records
        sizes[staged] = model_size(DOMAIN, [tuple(clique.split(" × ")) for clique in records[1].selected])
    assert sizes[True] <= 100 / 3 < sizes[False] <= 100


def test_rounds_share_the_room_that_structural_zeros_leave() -> None:
    """A first round without room would spend the whole budget on one-way marginals."""
    columns = {name: {"kind": "numeric", "lower": 0, "upper": 12, "bins": 12} for name in ("start", "end", "a", "b")}
    schema = Schema.from_dict({"columns": columns, "constraints": ["start <= end"], "approved": True})
    rng = np.random.default_rng(0)
    start, a = rng.integers(0, 12, (2, 2000))
    frame = pd.DataFrame({"start": start, "end": np.maximum(start, rng.integers(0, 12, 2000)), "a": a, "b": a})
    cells = 144 + 12 + 12
    setup = config(1, {"inference": {"max_cells": 4 * cells}, "privacy": {"epsilon": 5.0, "delta": 1e-5}})
    codes = schema.block(frame).codes
    strategy = SketchAim(setup, schema.domain, schema.sha256, randomness=Randomness(0))
    rounds = strategy.options.rounds
    assert model_size(schema.domain, []) == cells and strategy.filled == 0.25
    assert [strategy.share_of_tree(t) for t in (1, rounds)] == [pytest.approx(0.25 + 0.75 / rounds), 1.0]
    table = replace(TABLE, schema=schema, frame=frame)
    records = finished(execute(setup, Federation(table, (codes,)))).strategy.records
    assert any("a × b" in record.selected for record in records)
    assert SketchAim(setup, DOMAIN, TABLE.schema.sha256, randomness=Randomness(0)).filled == 0.0, "no zeros"


def test_the_last_round_says_what_a_larger_model_would_be_worth() -> None:
    nodes = {"inference": {"max_cells": 100}, "privacy": {"epsilon": 5.0, "delta": 1e-5}}
    parts = tuple(dependent()[k::3] for k in range(3))
    for room in (True, False):
        strategy = finished(run(parts, nodes=nodes, room=room)).strategy
        records = strategy.records
        notes = [note for record in records for note in record.notes if "max_cells" in note]
        assert len(notes) == 1 and notes[0] in records[-1].notes
        found = re.search(r"without these limits the predicted error would be (\d+)% less", notes[0])
        assert found and 0 < int(found[1]) < 100
        assert f"{strategy.limited:.0%}" == f"{found[1]}%"


def test_what_is_known_of_a_clique_adds_up_over_its_measurements() -> None:
    twice = [Measurement(("age",), np.zeros(DOMAIN.shape_of(("age",))), sigma) for sigma in (2.0, 4.0)]
    assert precision(twice) == {("age",): 1 / 4 + 1 / 16} and precision([]) == {}


def test_a_clique_inside_a_measured_one_is_not_measured_again_as_new() -> None:
    nodes = {"workload": {"degree": 3, "size": 1, "seed": 0}}
    held = server(dependent(), nodes=nodes)
    plan = held.strategy.plan(held.sketched, held.measurements, 1.0, 1)
    assert any(len(held.strategy.candidates.cliques[i]) > 1 for i in plan)
    held = server(dependent(), nodes=nodes)
    triple = next(q for q in held.strategy.candidates.cliques if len(q) == 3)
    held.strategy.capacity.add([triple])
    plan = held.strategy.plan(held.sketched, held.measurements, 1.0, 1)
    assert all(len(held.strategy.candidates.cliques[i]) == 1 for i in plan)


def test_what_was_fitted_to_the_sketches_is_taken_off_their_praise() -> None:
    """Least squares of p parameters to m noises: the distance to them is short of that to the truth by 2 p sigma^2."""
    held = server(dependent(), width=9)
    pairs = [q for q in held.sketcher.cliques if len(q) == 2]
    one = dict.fromkeys(pairs[0], 0.5)
    view = ModelView(held.model)
    (before, *rest), (after, *same) = held.sketched.distances(view), held.sketched.fitted_to([one]).distances(view)
    sigmas = np.array([held.sketcher.sigma_of(i, held.sketched.sigma) for i in range(len(pairs))])
    inside = np.array([q == pairs[0] for q in pairs])
    assert after - before == pytest.approx(np.where(inside, 2.0 * 2 * sigmas**2, 0.0))
    assert np.array_equal(rest, same)


def test_what_public_zeros_restrict_is_believed_by_itself() -> None:
    held = server(dependent(), sigma=3000.0, sizes=(2, 3), nodes={"workload": {"degree": 3, "size": 4, "seed": 1}})
    cliques = held.sketcher.cliques
    cells = np.zeros(DOMAIN.shape_of(cliques[0]), bool)
    cells[-1, -1] = True
    model = Model(replace(DOMAIN, zeros=((cliques[0], cells),)), held.model.potentials, held.model.total)
    squared, spread, support = held.sketched.distances(ModelView(model))
    expected = np.empty(len(cliques))
    kinds = [(len(q), set(cliques[0]) <= set(q)) for q in cliques]
    assert len(set(kinds)) == 4
    for kind in set(kinds):
        own = [i for i, other in enumerate(kinds) if other == kind]
        doubt = 1.6448536 if kind[0] == 3 else 0.0  # of triples' mean what noise exceeds in one run of twenty
        expected[own] = shrunk(squared[own], spread[own], doubt) * support[own]
    found, others = held.sketched.errors(ModelView(model)), held.sketched.errors(ModelView(held.model))
    assert found == pytest.approx(np.minimum(expected, (2.0 * model.total) ** 2))
    assert not np.allclose(found, others, rtol=0.01)


def test_a_query_counts_again_for_each_column_that_its_attributes_determine() -> None:
    strategy = SketchAim(config(1), DOMAIN, TABLE.schema.sha256, randomness=Randomness(0))
    name = DOMAIN.attributes[0]
    even = dict(zip(strategy.workload.cliques, strategy.planner.weights, strict=True))
    strategy.domain = replace(DOMAIN, coarser={name: ((0,) * DOMAIN[name], (0,) * DOMAIN[name])})
    del strategy.planner
    for clique, weight in zip(strategy.workload.cliques, strategy.planner.weights, strict=True):
        assert weight == even[clique] * (3.0 if name in clique else 1.0)


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
    nodes = {**nodes, "privacy": {"epsilon": 20.0, "delta": 1e-5}}
    for sizes in ((2,), (2, 3), (3,)):
        held = server(dependent(), sizes=sizes, nodes=nodes)
        assert {len(q) for q in held.sketcher.cliques} == set(sizes)
