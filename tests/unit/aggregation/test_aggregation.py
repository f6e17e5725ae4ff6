"""Plain aggregation with server and local noise against brute force: sums, order, minimum, noise, charges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fedsyn.aggregation import make_aggregation
from fedsyn.aggregation.base import Answering, ClientSum, Contribution, ServerSum
from fedsyn.aggregation.plain import PlainAggregation
from fedsyn.domain import Domain
from fedsyn.errors import BudgetExceeded, ProtocolError
from fedsyn.flower import Message
from fedsyn.flower.messages import array_record, pack, read_reply
from fedsyn.front.testing.bench import equal_arrays
from fedsyn.front.testing.faults import vanish
from fedsyn.front.testing.harness import Federation, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.privacy import GAUSSIAN, Ledger, PrivacyBudget
from fedsyn.protocol.client import OneWay, TableClient
from fedsyn.protocol.record import RoundRecord
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.settings import AggregationNode
from fedsyn.wire.envelope import Arrays, Reply, SumSpec
from fedsyn.wire.holder import Call, Holder
from fedsyn.wire.refusals import Kind, Refusal
from fedsyn.wire.requests import Layout, Sum, Summed, SumRequest
from fedsyn.wire.sparse import encode_sparse

DOMAIN = Domain(("a", "b", "c"), (2, 3, 4))
CLIQUES = (("a",), ("b", "c"), ("a", "c"))
LAYOUT = Layout.of_marginals(DOMAIN, CLIQUES)
SHAPES = LAYOUT.shapes
BUDGET = PrivacyBudget(1000.0, 1e-5)


def table(partition: int, rows: int = 30) -> np.ndarray:
    rng = np.random.default_rng(100 + partition)
    return np.column_stack([rng.integers(0, n, rows) for n in DOMAIN.shape]).astype(np.uint8)


def brute_force(tables: Sequence[np.ndarray], clique: Sequence[str]) -> np.ndarray:
    counts = np.zeros(DOMAIN.shape_of(clique))
    for codes in tables:
        for row in codes:
            counts[tuple(row[axis] for axis in DOMAIN.axes(clique))] += 1
    return counts


def client_of(partition: int, rows: int = 30) -> TableClient:
    holder = Holder(partition, table(partition, rows), DOMAIN, "", Randomness(0))
    client: TableClient = client_class("fed_naive_bayes")(config_of("fed_naive_bayes", 1), holder)
    return client


class Unread(OneWay):
    @classmethod
    def read(cls, params: Mapping[str, Any], contract: Any) -> Any:
        pytest.fail("a request's parameters were read")


def part_of(client: TableClient, spec: SumSpec, ledger: Ledger, randomness: Randomness, *key: int | str) -> ClientSum:
    """A client's side of a sum of marginals."""
    call: Call[Any] = Call(1, Unread, {}, client.contract, [], randomness, key)
    return ClientSum("measure", spec, None, call, lambda: ledger, client.holder, "", False)


def answered(steps: Answering, contribution: Contribution) -> Arrays:
    """What a client sends that computes its part when it is asked for it."""
    assert next(steps) == []
    try:
        steps.send(contribution)
    except StopIteration as end:
        arrays: Arrays = end.value
        return arrays
    raise AssertionError("it asks for its part twice")


class Measure(SumRequest):
    """A sum of some marginals."""

    name = "measure"
    leaves, costs = "marginals", "the noise of the sum"

    def layout(self, contract: Any, arrays: Any) -> Layout:
        raise NotImplementedError("the test makes the layout")


class Parties:
    """A sum among real client halves, without messages between them; remembers each party's ledger."""

    def __init__(self, noise: str, active: Mapping[int, Sequence[int]], seed: int | None = 0) -> None:
        self.node = AggregationNode(noise=noise)
        self.aggregation = make_aggregation(self.node)
        self.active = dict(active)
        self.randomness = Randomness(seed)
        self.ledgers = {k: Ledger(BUDGET, noise_by="client") for k in active}
        self.server = Ledger(BUDGET, noise_by="server")
        self.record = RoundRecord(1)
        self.dropped, self.notes = self.record.dropped, self.record.notes
        self.replaced: dict[int, list[np.ndarray]] = {}
        self.missing: set[int] = set()
        self.arrival = list(active)

    def replies(self, spec: SumSpec, cohort: Sequence[int]) -> dict[int, Reply]:
        replies = {}
        for k in self.arrival:
            if k in cohort and k not in self.missing:
                part = part_of(client_of(k), spec, self.ledgers[k], self.randomness, "client", k)
                sent = answered(self.aggregation.answer(part), client_of(k).marginals(LAYOUT, self.active[k]))
                replies[k] = Reply(k, self.replaced.get(k, sent), {})
        return replies

    def sum(self, sigma: float, minimum: int = 1, count: int = 3) -> Summed:
        cohort = tuple(sorted(self.active))
        layout = Layout.of_marginals(DOMAIN, CLIQUES, count=count, argument="fewer than all are active")
        spec = layout.spec(sigma, len(cohort), 0)

        whole = ServerSum(
            Sum(cohort, Measure(), sigma),
            layout,
            spec,
            self.record,
            1e6,
            "",
            self.server,
            self.randomness.generator("server"),
        )
        steps = make_aggregation(self.node, minimum).form(whole)
        message = next(steps)
        assert message.arrays == [] and message.each is None and message.stage is None and message.exact
        with pytest.raises(StopIteration) as end:
            steps.send(iter(sorted(self.replies(spec, message.cohort).values(), key=lambda reply: reply.partition)))
        summed: Summed = end.value.value
        return summed


EVERYTHING = dict.fromkeys(range(4), (0, 1, 2))
SOME = {0: (0, 1, 2), 1: (0, 2), 2: (0,), 3: ()}


@pytest.mark.parametrize("noise", ["server", "local"])
@pytest.mark.parametrize("active", [EVERYTHING, SOME])
def test_the_sum_is_that_of_the_contributed_marginals(noise: str, active: dict[int, tuple[int, ...]]) -> None:
    sums = Parties(noise, active).sum(sigma=0.08)
    assert sums.contributors == (0, 1, 2, 3)
    for j, (clique, noisy) in enumerate(zip(CLIQUES, sums.arrays, strict=True)):
        expected = brute_force([table(k) for k, chosen in active.items() if j in chosen], clique)
        assert noisy.shape == expected.shape and noisy.dtype == np.float64
        assert np.abs(noisy - expected).max() < 6 * sums.sigmas[j]
        assert np.any(noisy != expected)


@pytest.mark.parametrize("noise", ["server", "local"])
def test_the_order_of_arrival_changes_no_bit(noise: str) -> None:
    results = []
    for arrival in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        parties = Parties(noise, EVERYTHING)
        parties.arrival = arrival
        sums = parties.sum(sigma=np.pi)
        assert sums.contributors == (0, 1, 2, 3)
        results.append(b"".join(array.tobytes() for array in sums.arrays))
    assert len(set(results)) == 1


def test_below_the_minimum_local_vectors_are_not_used_but_were_released() -> None:
    parties = Parties("local", EVERYTHING)
    parties.missing = {1, 2}
    assert parties.sum(sigma=2.0, minimum=3) == Summed.nothing()
    assert [release.noise_by for release in parties.server.releases] == ["each client"]


def test_below_the_minimum_nothing_is_opened_drawn_or_charged() -> None:
    parties = Parties("server", EVERYTHING)
    parties.missing = {1, 2}
    assert parties.sum(sigma=2.0, minimum=3) == Summed.nothing()
    assert parties.server.releases == ()
    parties.missing = {1}
    assert parties.sum(sigma=2.0, minimum=3).contributors == (0, 2, 3)
    assert len(parties.server.releases) == 1


def test_nobody_answers() -> None:
    parties = Parties("server", EVERYTHING)
    parties.missing = {0, 1, 2, 3}
    assert parties.sum(sigma=2.0) == Summed.nothing()
    assert parties.server.spent == 0


def test_server_noise_has_the_sigma_that_was_asked_for() -> None:
    sums = Parties("server", SOME).sum(sigma=2.5)
    assert sums.sigmas == (2.5, 2.5, 2.5)


def test_local_noise_grows_with_the_square_root_of_its_contributors() -> None:
    sums = Parties("local", SOME).sum(sigma=2.5)
    np.testing.assert_allclose(sums.sigmas, 2.5 * np.sqrt([3, 1, 2]))


@pytest.mark.parametrize(("noise", "clients"), [("server", 1), ("server", 9), ("local", 1), ("local", 9)])
def test_the_noise_in_the_sum_is_as_large_as_it_says(noise: str, clients: int) -> None:
    errors: list[float] = []
    for seed in range(60):
        parties = Parties(noise, dict.fromkeys(range(clients), (0, 1, 2)), seed=seed)
        sums = parties.sum(sigma=4.0)
        for j, clique in enumerate(CLIQUES):
            exact = brute_force([table(k) for k in range(clients)], clique)
            errors += ((sums.arrays[j] - exact) / sums.sigmas[j]).ravel().tolist()
        if seed == 0:
            assert sums.sigmas[0] == pytest.approx(4.0 * (1 if noise == "server" else np.sqrt(clients)))
    # 1,320 standard normal numbers: their variance lies within 5 standard errors of 1.
    assert len(errors) == 60 * 22
    assert abs(np.mean(errors)) < 5 / np.sqrt(len(errors))
    assert abs(np.var(errors) - 1) < 5 * np.sqrt(2 / len(errors))


def test_local_noise_is_each_clients_own() -> None:
    """What reaches the server of one client differs from its exact counts by that client's noise alone."""
    parties = Parties("local", EVERYTHING)
    spec = SumSpec(SHAPES, 3.0, 1.0, 3)
    sent = parties.replies(spec, (0, 1))
    noises = []
    for k in (0, 1):
        exact = np.concatenate([brute_force([table(k)], clique).ravel() for clique in CLIQUES])
        assert sent[k].arrays[0].tolist() == [0, 1, 2]
        noises.append(sent[k].arrays[1] - exact)
    assert not np.allclose(noises[0], noises[1])
    assert 1.5 < np.std(noises) < 5.0


@pytest.mark.parametrize("noise", ["server", "local"])
def test_every_ledger_is_charged_for_its_own_part(noise: str) -> None:
    parties = Parties(noise, SOME)
    parties.sum(sigma=2.0, count=3)
    (release,) = parties.server.releases
    assert (release.mechanism, release.count, release.sigma, release.sensitivity) == (GAUSSIAN, 3, 2.0, 1.0)
    assert release.noise_by == ("server" if noise == "server" else "each client")
    assert [parties.ledgers[k].spent for k in range(4)] == pytest.approx([n / (2 * 2.0**2) for n in (3, 2, 1, 0)])
    for k in range(3):
        (entry,) = parties.ledgers[k].releases
        assert entry.noise_by == ("server" if noise == "server" else "client")


class NeverAsked:
    """A source of randomness from which nothing may be drawn."""

    def generator(self, *_: int | str) -> NeverAsked:
        return self

    def standard_normal(self, size: Any = None) -> Any:
        pytest.fail("noise was drawn before the charge was refused")


@pytest.mark.parametrize("noise", ["server", "local"])
def test_a_client_contributes_nothing_beyond_its_budget(noise: str) -> None:
    poor = Ledger(PrivacyBudget(0.1, 1e-6), noise_by="client")
    part = part_of(client_of(0), SumSpec(SHAPES, 1.0, 1.0, 3), poor, NeverAsked())
    with pytest.raises(BudgetExceeded):
        answered(make_aggregation(AggregationNode(noise=noise)).answer(part), client_of(0).marginals(LAYOUT, None))
    assert poor.releases == ()


@pytest.mark.parametrize("noise", ["server", "local"])
@pytest.mark.parametrize(
    "spec", [SumSpec(SHAPES, 1.0, 1.0, 2), SumSpec(SHAPES, 1.0, 0.5, 3)], ids=["count", "sensitivity"]
)
def test_a_client_refuses_a_sum_that_accounts_for_too_little(noise: str, spec: SumSpec) -> None:
    ledger = Ledger(BUDGET, noise_by="client")
    part = part_of(client_of(0), spec, ledger, Randomness(0), "x")
    with pytest.raises(ProtocolError):
        answered(make_aggregation(AggregationNode(noise=noise)).answer(part), client_of(0).marginals(LAYOUT, None))
    assert ledger.releases == ()


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


@pytest.mark.parametrize(
    ("noise", "arrays"),
    [
        ("server", [np.zeros(1, np.uint8)]),
        ("server", encode_sparse(np.array([22]), np.array([1]))),
        ("server", [np.array([0.5]), np.array([1.0])]),
        ("local", []),
        ("local", [np.array([0])]),
        ("local", [np.array([3]), floats(1, 2)]),
        ("local", [np.array([-1]), floats(*range(8))]),
        ("local", [np.array([0, 0]), floats(1, 2, 3, 4)]),
        ("local", [np.array([0]), floats(1, 2, 3)]),
        ("local", [np.array([0]), floats(1, np.nan)]),
        ("local", [np.array([0]), floats(1, np.inf)]),
        ("local", [np.array([0]), floats(1, 1.7e308)]),
        ("local", [np.array([0]), floats(1, -(2.0**53))]),
        ("local", [np.array([0]), np.array([1, 2])]),
        ("local", [np.array([0]), floats(1, 2).reshape(1, 2)]),
        ("local", [np.array([[0]]), floats(1, 2)]),
        ("local", [floats(0), floats(1, 2)]),
        ("local", [np.array([0]), floats(1, 2), floats(3)]),
        ("local", [np.array([2**64 - 1], np.uint64), floats(1, 2)]),
    ],
)
def test_a_malformed_contribution_costs_only_its_client(noise: str, arrays: list[np.ndarray]) -> None:
    parties = Parties(noise, EVERYTHING)
    parties.replaced[2] = arrays
    sums = parties.sum(sigma=0.08)
    assert sums.contributors == (0, 1, 3) and list(parties.dropped) == [2]
    for clique, noisy, sigma in zip(CLIQUES, sums.arrays, sums.sigmas, strict=True):
        exact = brute_force([table(k) for k in (0, 1, 3)], clique)
        assert np.abs(noisy - exact).max() < 6 * sigma


def too_large(reply: Message, earlier: int) -> Message:
    """A client that joins, and then sends finite numbers of which two add up to infinity."""
    if earlier:
        arrays, scalars = read_reply(reply)
        reply.content = pack(array_record([arrays[0], np.full_like(arrays[1], 1.7e308)]), scalars)
    return reply


def test_vectors_that_add_up_to_infinity_cost_their_clients_only() -> None:
    codes = awkward_table("odd_names").encode()
    federation = Federation(awkward_table("odd_names"), tuple(codes[k::6] for k in range(6)))
    config = config_of("fed_naive_bayes", 6, {"rounds": 2}, aggregation={"noise": "local"})
    hostile = finished(execute(config, federation, faults={1: too_large, 4: too_large}))
    absent = finished(execute(config, federation, faults={1: vanish(1), 4: vanish(1)}))
    assert hostile.dropped == {1, 4}
    for record in hostile.strategy.records[1:]:
        assert sorted(record.dropped) == [1, 4] and set(record.dropped.values()) == {
            Refusal(Kind.REPLY, "a noisy vector holds values that are not numbers below 2^53")
        }
    assert equal_arrays(hostile.arrays, absent.arrays)
    np.testing.assert_array_equal(hostile.synthetic, absent.synthetic)


def test_a_marginal_contribution_is_sparse_and_laid_out_in_order() -> None:
    part = client_of(5).marginals(LAYOUT, (0, 2))
    expected = [brute_force([table(5)], clique).ravel() for clique in CLIQUES]
    expected[1][:] = 0
    np.testing.assert_array_equal(part.dense(), np.concatenate(expected))
    assert np.all(np.diff(part.cells) > 0) and np.all(part.values > 0)
    assert (part.count, part.active, part.length) == (2, (0, 2), 22)


def test_a_client_without_rows_contributes_zeros() -> None:
    part = client_of(0, rows=0).marginals(LAYOUT)
    assert isinstance(part, Contribution) and not part.dense().any() and part.length == 22


def test_the_statement_says_who_sees_what() -> None:
    server = PlainAggregation(AggregationNode(noise="server")).who_sees_what()
    local = PlainAggregation(AggregationNode(noise="local")).who_sees_what()
    assert "exact" in server["server"] and "the server" in server["trust"]
    assert local["trust"].startswith("nobody") and "exact" not in local["server"]
