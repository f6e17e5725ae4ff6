"""Requests by which a hostile server would get more out of a client than the client charges itself for."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsyn.aggregation.base import Limits, noise_of
from fedsyn.config import InferenceNode, RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.front.testing.harness import config_of
from fedsyn.inference import model_size
from fedsyn.inference.capacity import Capacity
from fedsyn.inference.model import Model
from fedsyn.privacy import Ledger, PrivacyBudget
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.runs.holders import _real_holder
from fedsyn.selection.scores import expected_noise, l1_distances
from fedsyn.selection.views import ModelView, pack_model, unpack_model
from fedsyn.settings import AggregationNode
from fedsyn.wire.envelope import ANSWER, Envelope, SumSpec
from fedsyn.wire.holder import Holder

DOMAIN = Domain(("a", "b"), (3, 4))
INFERENCE = InferenceNode()


def client_of(config: RunConfig, codes: np.ndarray | None = None) -> Any:
    if codes is None:
        codes = np.random.default_rng(1).integers(0, DOMAIN.shape, (30, 2)).astype(np.uint8)
    return client_class(config.mechanism.name)(config, Holder(0, codes, DOMAIN, "", Randomness(0)))


def asked(
    client: Any, name: str, params: dict[str, Any], spec: SumSpec | None = None, arrays: Sequence[np.ndarray] = ()
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """What a client sends back: to a sum where its facts are given, else to a question."""
    kind = "ask" if spec is None else "sum"
    envelope = Envelope(name, kind, 1, client.config.sha256, params, sum=spec)
    sent, _, scalars = client.fit(list(arrays), envelope.to_scalars())
    return sent, json.loads(scalars[ANSWER])


# A sum over one client ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["secagg", "plain"])
def test_a_sum_over_one_client_gets_no_share_of_the_noise_of_many(protocol: str) -> None:
    """Shares are sized for `minimum_cohort` clients: alone, and in clear, one hides nothing that it is charged for."""
    aggregation = {"protocol": protocol, "noise": "distributed"}
    config = config_of("distributed_aim", 30, aggregation=aggregation, federation={"minimum_cohort": 25})
    alone = SumSpec(((3,), (4,)), sigma=100.0, sensitivity=1.0, count=2, asked=1)
    client = client_of(config)
    sent, answer = asked(client, "one-way", {}, alone)
    assert answer["ok"] is False and "cannot make the noise" in answer["sentence"]
    assert sent == [] and client.ledger.releases == ()


@pytest.mark.parametrize("asked", [1, 24])
def test_shares_are_never_sized_for_more_clients_than_are_asked(asked: int) -> None:
    spec = SumSpec(((4,),), 10.0, 1.0, 1, asked=asked)
    limits = Limits.of(AggregationNode(noise="distributed"), asked, 25)
    with pytest.raises(ProtocolError, match="cannot make the noise"):
        noise_of("distributed", spec, limits)
    assert noise_of("local", spec, limits).is_local  # each has the full noise: nobody else is needed


# Scores ------------------------------------------------------------------------------------------------------------


def test_a_model_whose_marginals_do_not_sum_to_one_is_refused() -> None:
    """Counts of 1.5e-323 records in all are multiples of 5e-324: five cells get a third of the rows each."""
    domain = Domain(("a",), (8,))
    p = np.array([0.19] * 5 + [0.05 / 3] * 3)
    model = Model(domain, {("a",): np.log(p)}, 1.5e-323)
    few = np.array([[0]] * 40 + [[1]] * 30 + [[2]] * 30)
    view = ModelView(model)
    one, other = (l1_distances(codes, domain, [("a",)], view, 1000.0) for codes in (few, np.vstack([few, [[3]]])))
    assert abs(one - other)[0] > 300  # what a client that took it would be charged as 1
    with pytest.raises(ProtocolError, match="impossible number of records"):
        ModelView.of(domain, pack_model(model), INFERENCE)
    assert unpack_model(domain, pack_model(model.with_total(8.0)), INFERENCE).total == 8.0


@pytest.mark.parametrize("sigma", [1e3, 1e15, 1e18, 1e300])
def test_no_penalty_makes_one_row_count_for_many(sigma: float) -> None:
    """For sensitivity 1 a score may move by 1 with its distance, and rounding may add next to nothing to it."""
    distances = np.arange(0.0, 2000.0)
    scores = distances - expected_noise(sigma, np.full(len(distances), 12.0))
    assert np.abs(np.diff(scores)).max() <= 1.0 + 1e-5


@pytest.mark.parametrize("sigma", [1e15, 1e300])
def test_no_released_size_makes_one_row_count_for_many(sigma: float) -> None:
    config = config_of("augflaim", 1, privacy={"client_sizes": "private"})
    client = client_of(config)
    for _ in range(8):  # the noise is negative half of the time
        client.holder.state.clear()
        client.ledger = Ledger(PrivacyBudget(1.0, 1e-5), noise_by="client")
        client.holder.randomness = Randomness(None)
        answer = asked(client, "sizes", {"sigma": sigma})[1]
        assert answer["ok"] is True and abs(answer["params"]["rows"]) <= 2.0**32
        assert 1.0 <= client.size == max(1.0, answer["params"]["rows"]) <= 2.0**32


# Models that are too large --------------------------------------------------------------------------------------------

WIDE = Domain(tuple(f"a{i}" for i in range(40)), (20,) * 30 + (1,) * 10)


def message(domain: Domain, structural: Any = (), potentials: Any = None, **head: Any) -> list[np.ndarray]:
    """A model's message as anybody can write it: a few hundred bytes, whatever they announce."""
    tables = potentials or {}
    announced = {"format": 1, "attributes": domain.attributes, "shape": domain.shape, "total": (9.0).hex()}
    announced |= {"cliques": list(tables), "structural_cliques": list(structural), **head}
    texts = [np.frombuffer(json.dumps(part).encode(), np.uint8) for part in (["model", "potentials"], announced)]
    return [*texts, np.concatenate([np.zeros(0), *(np.ravel(table) for table in tables.values())])]


def pairs_of(count: int) -> dict[tuple[str, ...], np.ndarray]:
    return {pair: np.zeros(400) for pair in itertools.combinations(WIDE.attributes[:count], 2)}


def refused(domain: Domain, arrays: list[np.ndarray], words: str, node: InferenceNode = INFERENCE) -> None:
    """In one sentence, and before anything of the announced size was allocated."""
    tracemalloc.start()
    with pytest.raises(ProtocolError, match=words) as caught:
        ModelView.of(domain, arrays, node)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000 + 16 * sum(array.nbytes for array in arrays)
    tracemalloc.stop()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 120


def test_a_model_with_a_larger_tree_than_the_run_allows_is_refused() -> None:
    """409 bytes of one clique of seven attributes made a client build tables of 11 GB."""
    assert ModelView.of(WIDE, message(WIDE, [WIDE.attributes[:4]]), INFERENCE).model.cliques  # 160,000 cells
    for attributes in (7, 6, 30):
        refused(WIDE, message(WIDE, [WIDE.attributes[:attributes]]), "larger than inference.max_cells")
    refused(WIDE, message(WIDE, [WIDE.attributes[:4]]), "larger than", InferenceNode(max_cells=1000))
    refused(WIDE, message(WIDE, potentials=pairs_of(7)), "larger than")  # no clique is large, their tree is
    refused(WIDE, message(WIDE, potentials=pairs_of(30)), "larger than")
    refused(
        WIDE,
        message(WIDE, [WIDE.attributes[:4]]),
        "max_message_passing_cost",
        InferenceNode(max_message_passing_cost=1000),
    )
    ring = [(WIDE.attributes[i], WIDE.attributes[(i + 1) % 30]) for i in range(30)]
    assert ModelView.of(WIDE, message(WIDE, ring), INFERENCE).model.cliques
    refused(WIDE, message(WIDE, ring), "larger than", InferenceNode(max_cells=1000))


def test_the_limit_of_another_configuration_does_not_let_a_model_in() -> None:
    arrays = message(WIDE, [WIDE.attributes[:4]])
    ModelView.of(WIDE, arrays, INFERENCE)  # and is remembered, for this configuration
    refused(WIDE, arrays, "larger than", InferenceNode(max_cells=1000))


def test_what_a_model_announces_must_fit_the_domain_and_the_arrays() -> None:
    a, b = WIDE.attributes[:2]
    for arrays in (
        message(WIDE, potentials={(a, b): np.zeros(399)}),
        message(WIDE, potentials={(a, a): np.zeros(400)}),
        message(WIDE, [[a] * 100_000]),
        message(WIDE, [[a, "another"]]),
        message(WIDE, [[a, 7]]),
        message(WIDE, [[[a], b]]),
        message(WIDE, [(x, y) for x in WIDE for y in WIDE if x < y]),  # more than a forest has cliques
        message(WIDE, shape=[2**60] * 40),
        message(WIDE, attributes=["a0"]),
        message(WIDE, cliques=7),
        [*message(WIDE), np.zeros(3)],
        message(WIDE)[:2],
        [*message(WIDE)[:2], np.zeros(10**15, "V0")],
        [*message(WIDE)[:2], np.zeros(0, np.float32)],
        [message(WIDE)[0], np.frombuffer(b"[" * 100_000, np.uint8), np.zeros(0)],
    ):
        refused(WIDE, arrays, "cannot be read")


@pytest.mark.parametrize(
    "limits", [{"max_cells": 1}, {"max_message_passing_cost": 1.0}, {"max_cells": 1, "max_message_passing_cost": 1e-9}]
)
def test_one_way_marginals_are_always_a_model(limits: dict[str, Any]) -> None:
    """The schema makes them as large as they are: a server cannot fit less."""
    ones = {(name,): np.zeros(WIDE[name]) for name in WIDE}
    assert unpack_model(WIDE, message(WIDE, potentials=ones), InferenceNode(**limits)).total == 9.0


def test_a_model_of_part_of_what_fits_is_taken() -> None:
    """A sum that was not opened leaves a clique out, and the elimination of the others may be worse, not better."""
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(12):
        domain = Domain(tuple("abcdefghijkl"), tuple(int(n) for n in rng.choice([2, 3, 5, 10, 20], 12)))
        node = InferenceNode(max_cells=int(10 ** rng.integers(3, 5)))
        capacity = Capacity(domain, node)
        cliques = [q for size in (2, 3) for q in itertools.combinations(domain.attributes, size)]
        capacity.add_while_fitting([cliques[i] for i in rng.permutation(len(cliques))[:100]])
        for _ in range(20):
            part = [q for q in capacity.cliques if rng.random() < 0.8]
            largest = max(largest, model_size(domain, part) / node.max_cells)
            tables = {q: np.zeros(domain.shape_of(q)) for q in (*((name,) for name in domain), *part)}
            unpack_model(domain, pack_model(Model(domain, tables, 9.0)), node)
    assert largest > 1.0  # so it does happen


def test_measurements_that_a_client_fits_itself_are_bounded_like_a_model() -> None:
    """With local rounds a server sends its measurements, and the client builds their tree."""
    config = config_of("augflaim", 1, {"local_rounds": 2, "rounds": 2})
    codes = np.zeros((5, len(WIDE)), np.uint8)
    client = client_class("augflaim")(config, Holder(0, codes, WIDE, "", Randomness(0)))
    cliques, eligible = list(pairs_of(20)), [0, 1]
    arrays = message(WIDE)
    params = {"eligible": eligible, "epsilon": 0.001, "sigma": 900.0, "model_arrays": len(arrays)}
    params |= {"measured": cliques, "sigmas": [9.0] * len(cliques)}
    sent, answer = asked(client, "select", params, arrays=[*arrays, *(np.zeros((20, 20)) for _ in cliques)])
    assert (answer["ok"], answer["kind"], sent) == (False, "protocol", [])
    assert "larger than inference.max_cells" in answer["sentence"]
    assert client.ledger.releases == ()
    few = {**params, "measured": cliques[:1], "sigmas": [9.0]}
    assert asked(client, "select", few, arrays=[*arrays, np.zeros((20, 20))])[1]["ok"] is True


# Refusals, which are free ------------------------------------------------------------------------------------------


def test_a_refusal_for_lack_of_room_does_not_tell_how_large_counts_are() -> None:
    """With so little noise 127 rows fit into 64 bits and 128 do not: no answer may depend on that before it is paid."""
    config = config_of("fed_privsyn", 10, {}, aggregation={"protocol": "plain", "noise": "distributed"})
    spec = SumSpec(((12,),), sigma=2e-10, sensitivity=65536.0, count=1, magnitude=65536.0, asked=10)
    params = {"pairs": [0], "weights": [65536]}
    for planned, kind in ((True, "protocol"), (False, "budget")):  # also of a mechanism without a plan
        clients = [client_of(config, np.zeros((n, 2), np.uint8)) for n in (127, 128)]
        for client in clients:
            if not planned:
                client.contract.steps = ()
        few, many = (asked(client, "measure", params, spec)[1] for client in clients)
        assert few == many and few["kind"] == kind


@pytest.mark.parametrize("signed", [True, False])
def test_a_refusal_does_not_tell_whether_a_value_is_negative(signed: bool) -> None:
    """What a sum's description says of signs is compared with the layout, and with no value."""
    config = config_of("fed_privsyn", 10, {}, aggregation={"protocol": "plain", "noise": "distributed"})
    spec = SumSpec(((10,),), sigma=1e6, sensitivity=4.0, count=1, asked=10, magnitude=2.0, signed=signed)
    for rows in (0, 1):
        client = client_of(config, np.zeros((rows, 2), np.uint8))
        _, answer = asked(client, "project", {"pairs": [0]}, spec)
        assert answer["ok"] is signed and len(client.ledger.releases) == signed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shapes": ((2, 5),)}, "another domain"),
        ({"shapes": ((4,), (6,))}, "another domain"),
        ({"signed": False}, "another domain"),
        ({"magnitude": 0.5}, "less room for one row"),
        ({"sensitivity": 1.0}, "smaller sensitivity"),
    ],
)
def test_the_description_of_a_sum_is_compared_with_the_clients_own(change: dict[str, Any], said: str) -> None:
    config = config_of("fed_privsyn", 10, {}, aggregation={"protocol": "plain", "noise": "distributed"})
    honest = SumSpec(((10,),), sigma=1e6, sensitivity=4.0, count=1, asked=10, magnitude=2.0, signed=True)
    client = client_of(config)
    sent, answer = asked(client, "project", {"pairs": [0]}, replace(honest, **change))
    assert answer["ok"] is False and said in answer["sentence"] and sent == [] and client.ledger.releases == ()
    assert asked(client, "project", {"pairs": [0]}, honest)[1]["ok"] is True


def test_a_refusal_does_not_tell_whether_a_client_has_rows() -> None:
    """Potentials that add up to infinity make all marginals NaN, which only a client with rows would stumble over."""
    domain = Domain(("a", "b"), (2, 2))
    huge = np.array([1e308, 0.0])
    with pytest.raises(ProtocolError, match="too large to add up"):
        potentials = {("a",): huge, ("a", "b"): np.array([[1e308, 0], [0, 0]])}
        ModelView.of(domain, pack_model(Model(domain, potentials, 9.0)), INFERENCE)
    assert unpack_model(domain, pack_model(Model(domain, {("a",): huge / 1e200}, 9.0)), INFERENCE).total == 9.0


# The configuration, which a deployment's server submits --------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "rows.csv").write_text("smokes\nno\nyes\n", encoding="utf-8")
    (tmp_path / "schema.yaml").write_text(
        "columns:\n  smokes: {kind: categorical, categories: ['no', 'yes']}\n", encoding="utf-8"
    )
    return {"data": str(tmp_path / "rows.csv"), "schema": str(tmp_path / "schema.yaml")}


def deployed(**nodes: Any) -> RunConfig:
    return config_of("augflaim", 4, runtime={"engine": "deployment", "seed": None}, **nodes)


def test_a_holder_refuses_another_configuration_than_it_agreed_to(node: dict[str, Any]) -> None:
    agreed = deployed(aggregation={"protocol": "secagg", "noise": "distributed"}, federation={"minimum_cohort": 4})
    pinned = {**node, "config-sha256": agreed.sha256}
    assert len(_real_holder(agreed, pinned, {}).codes) == 2
    weaker = [
        deployed(aggregation={"protocol": "plain", "noise": "distributed"}, federation={"minimum_cohort": 4}),
        deployed(aggregation={"protocol": "secagg", "noise": "server"}, federation={"minimum_cohort": 4}),
        deployed(aggregation={"protocol": "secagg", "noise": "distributed"}),
    ]
    for config in weaker:
        assert len(_real_holder(config, node, {}).codes) == 2  # a holder that pinned nothing
        with pytest.raises(ConfigError, match="agreed to other configurations"):
            _real_holder(config, pinned, {})


def test_a_holder_with_a_roster_is_not_talked_out_of_the_malicious_model(node: dict[str, Any]) -> None:
    pinned = {**node, "identity": "key", "roster": "roster.yaml", "partition-id": 0}
    secure = {"protocol": "secagg", "noise": "distributed", "threat": "malicious"}
    assert _real_holder(deployed(aggregation=secure), pinned, {}).partition == 0
    for weaker in ({**secure, "threat": "semi_honest"}, {"protocol": "plain"}):
        with pytest.raises(ConfigError, match="malicious only"):
            _real_holder(deployed(aggregation=weaker), pinned, {})
    with pytest.raises(ConfigError, match="malicious cannot go with protocol: plain"):  # it would protect nothing
        deployed(aggregation={"protocol": "plain", "threat": "malicious"})
