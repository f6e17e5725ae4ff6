"""Secure sums as mechanisms see them: equal to their simulations; cohorts, limits, configurations, identities."""

from __future__ import annotations

import math
import stat
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedsyn import registry
from fedsyn.aggregation.base import Contribution, Forming, Limits, ServerSum, noise_of
from fedsyn.aggregation.secure import SecureAggregation, read_cohort, write_cohort
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.flower import Message
from fedsyn.flower.messages import array_record, pack
from fedsyn.front.testing.faults import Fault, vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.keys.holder_keys import load_identities, new_identity
from fedsyn.protocol.client import answers
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.plan import Step
from fedsyn.protocol.record import Missing
from fedsyn.protocol.strategy import Protocol
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class, contract_class, strategy_class
from fedsyn.settings import AggregationNode
from fedsyn.wire.envelope import ANSWER, SumSpec, to_json
from fedsyn.wire.holder import MOST_PARTITIONS, Call, Holder
from fedsyn.wire.refusals import Kind, Refusal
from fedsyn.wire.requests import Layout, Sum, Summed, SumRequest

MECHANISM = "fed_naive_bayes"
SECURE = {"protocol": "secagg", "noise": "distributed"}


def federation(clients: int = 6) -> Federation:
    codes = awkward_table("odd_names").encode()
    return Federation(awkward_table("odd_names"), tuple(codes[k::clients] for k in range(clients)))


def config(clients: int = 6, **aggregation: Any) -> RunConfig:
    nodes = {"federation": aggregation.pop("federation")} if "federation" in aggregation else {}
    return config_of(MECHANISM, clients, {"rounds": 2}, aggregation={**SECURE, **aggregation}, **nodes)


def run(clients: int = 6, faults: Any = None, **aggregation: Any) -> Outcome:
    return execute(config(clients, **aggregation), federation(clients), faults=faults)


def arrays(outcome: Outcome) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in finished(outcome).arrays.items()}


# Results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
def test_a_secure_sum_opens_what_its_simulation_opens(threat: str) -> None:
    secure, simulated = run(threat=threat), run(protocol="plain")
    assert arrays(secure) == arrays(simulated)
    assert secure.strategy.ledger.report()["releases"] == simulated.strategy.ledger.report()["releases"]


def test_with_noise_of_the_server_it_opens_the_exact_total() -> None:
    """The server's noise has the same key whatever the protocol, so the models agree only if the totals do."""
    assert arrays(run(noise="server")) == arrays(run(protocol="plain", noise="server"))
    assert arrays(run(noise="server")) != arrays(run(noise="distributed"))


@pytest.mark.parametrize(
    ("aggregation", "factor"),
    [
        ({"noise": "distributed", "dropout": 0.1, "corrupted": 0.0}, 12 / 11),  # 12 shares; 11 have to be enough
        ({"noise": "distributed", "dropout": 0.1, "corrupted": 0.17}, 12 / 9),  # and 2 of the 11 may be known
        ({"noise": "distributed", "dropout": 0.0, "corrupted": 0.0}, 1.0),
        ({"noise": "local"}, 12.0),
        ({"noise": "server"}, 1.0),
    ],
)
def test_a_total_carries_the_noise_of_all_shares(
    aggregation: dict, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[tuple[float, Summed]] = []
    form = SecureAggregation.form

    def watched(self: SecureAggregation, whole: ServerSum) -> Forming:
        sums.append((whole.spec.sigma, (yield from form(self, whole))))
        return sums[-1][1]

    monkeypatch.setattr(SecureAggregation, "form", watched)
    outcome = finished(run(12, **aggregation))
    assert len(sums) == 2
    for sigma, summed in sums:
        np.testing.assert_allclose(summed.sigmas, sigma * np.sqrt(factor), rtol=2e-4)
    promised = {release.noise_by for release in outcome.strategy.ledger.releases}
    names = {"local": "each client", "server": "server"}
    assert promised == {names.get(aggregation["noise"], "the clients, a share each")}
    drawn_by = {release.noise_by for ledger in outcome.ledgers.values() for release in ledger.releases}
    expected = {"local": "client", "server": "server"}
    assert drawn_by == {expected.get(aggregation["noise"], "the clients, a share each")}


def test_a_cohort_too_small_to_hide_in_loses_its_round_only() -> None:
    outcome = run(6, federation={"sampling_rate": 0.35, "minimum_cohort": 1}, dropout=0.0, corrupted=0.4)
    reasons = {str(why) for record in outcome.strategy.records for why in record.dropped.values()}
    sizes = [len(record.cohort) for record in outcome.strategy.records[1:]]
    assert min(sizes) < 6 and (outcome.error is None or any("hide nothing" in reason for reason in reasons))


# Parameters of a mechanism -----------------------------------------------------------------------------------------


class OddlyNamed(SumRequest):
    """A sum of one-way marginals whose parameters have the names of what an envelope says of a sum."""

    name = "oddly named"
    leaves = "the counts of every attribute, in a sum"
    costs = "d marginals of sensitivity 1"

    sum: str
    stage: str
    skip: int
    run: int
    number: int
    sigma: float
    count: int

    def layout(self, contract: Contract, arrays: Sequence[np.ndarray]) -> Layout:
        return Layout.of_marginals(contract.domain, [(name,) for name in contract.domain])


class OddlyNamedContract(contract_class(MECHANISM)):  # type: ignore[misc]
    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        return [Step(OddlyNamed, rho / len(self.domain), arrays=len(self.domain))]


class OddlyNamedClient(client_class(MECHANISM)):  # type: ignore[misc]
    Contract = OddlyNamedContract
    seen: ClassVar[list[OddlyNamed]] = []

    @answers(OddlyNamed)
    def odd(self, call: Call[OddlyNamed]) -> Contribution:
        self.seen.append(call.request)
        return self.marginals(call.request.layout(self.contract, call.arrays))


class OddlyNamedStrategy(strategy_class(MECHANISM)):  # type: ignore[misc]
    Client = OddlyNamedClient
    asked = OddlyNamed(sum="all", stage="last", skip=99, run=7, number=10**6, sigma=1e-9, count=0)

    def protocol(self) -> Protocol:
        self.begin_round(1)
        summed: Summed = yield Sum(self.everyone(), self.asked, 50.0)
        self.estimate(self.opened(summed, [(name,) for name in self.domain]))


@pytest.mark.parametrize("protocol", ["plain", "secagg"])
def test_a_parameter_may_have_the_name_of_a_fact_of_the_sum(protocol: str) -> None:
    registry.MECHANISMS["odd"] = registry.MechanismEntry(
        f"{__name__}:OddlyNamedStrategy", f"{__name__}:OddlyNamedClient"
    )
    try:
        OddlyNamedClient.seen.clear()
        odd = config_of("odd", 6, {"rounds": 1}, aggregation={**SECURE, "protocol": protocol})
        outcome = finished(execute(odd, federation()))
    finally:
        del registry.MECHANISMS["odd"]
    assert outcome.dropped == set()
    assert OddlyNamedClient.seen == [OddlyNamedStrategy.asked] * 6
    (release,) = outcome.strategy.ledger.releases
    assert (release.sigma, release.count) == (50.0, len(outcome.federation.domain))


# Who joins ---------------------------------------------------------------------------------------------------------


def claims(partition: object) -> Fault:
    """Joins as this partition, and answers whatever it is asked."""

    def fault(reply: Message, earlier: int) -> Message:
        if not earlier:
            joined = {"request": "join", "ok": True, "params": {"partition": partition, "rows": 10}}
            reply.content = pack(array_record([]), {ANSWER: to_json(joined)})
        return reply

    return fault


@pytest.mark.parametrize("partition", [MOST_PARTITIONS, 4 * 10**9, 10**15, 10**30, -1, True, 4.0, "5"])
def test_a_client_with_an_impossible_id_costs_nobody_anything(partition: object) -> None:
    """Each id takes part in the list of clients that every message of a secure sum brings, as one bit."""
    hostile, absent = run(faults={5: claims(partition)}), run(faults={5: vanish(0)})
    assert sorted(finished(hostile).strategy.clients) == [0, 1, 2, 3, 4]
    sentence = f"the partition id is not an integer from 0 to {MOST_PARTITIONS - 1}"
    assert hostile.strategy.records[0].not_joined == [Missing("node 6", Refusal(Kind.REPLY, sentence))]
    assert hostile.dropped == set()
    assert arrays(hostile) == arrays(absent)
    down = [[costs.bytes_down for costs in outcome.strategy.costs] for outcome in (hostile, absent)]
    assert down[0] == down[1] and len(down[0]) == 3
    assert [e.envelope["request"] for e in hostile.tape.exchanges if e.partition == 5] == ["join"]


def test_the_largest_id_takes_part_and_its_messages_stay_small() -> None:
    """A bit for each id up to a million, all but a few of them zero: a few hundred bytes."""
    members = write_cohort((0, 3, MOST_PARTITIONS - 1))
    assert members.nbytes < 300
    assert read_cohort(members, 3) == (0, 3, MOST_PARTITIONS - 1)


@given(st.sets(st.integers(0, MOST_PARTITIONS - 1), min_size=1, max_size=60))
@example({MOST_PARTITIONS - 1})
@example(set(range(MOST_PARTITIONS - 9, MOST_PARTITIONS)))
def test_a_cohort_survives_the_round_trip(cohort: set[int]) -> None:
    members = tuple(sorted(cohort))
    assert read_cohort(write_cohort(members), len(members)) == members


@given(st.binary(max_size=400), st.integers(1, 10))
def test_bytes_that_are_no_cohort_are_refused(text: bytes, asked: int) -> None:
    for sent in (np.frombuffer(text, np.uint8), np.frombuffer(zlib.compress(text) + b"more", np.uint8)):
        try:
            assert len(read_cohort(sent, asked)) == asked
        except ProtocolError as error:
            assert "secure sum" in str(error)


def bomb(bits: int) -> np.ndarray:
    """So many bits, of which the first three are set, in as few bytes as zlib makes of them."""
    packer = zlib.compressobj(9)
    blocks = [packer.compress(b"\xe0")]
    blocks += [packer.compress(bytes(1 << 20)) for _ in range(bits >> 23)]
    return np.frombuffer(b"".join([*blocks, packer.flush()]), np.uint8)


def test_a_cohort_never_unfolds_to_more_than_the_most_clients() -> None:
    assert len(read_cohort(np.frombuffer(zlib.compress(b"\xe0"), np.uint8), 3)) == 3
    for bits in (1 << 23, 1 << 31):  # a kilobyte that unfolds to a megabyte, and 256 times as much
        message = bomb(bits)
        assert message.nbytes < bits >> 11
        tracemalloc.start()
        with pytest.raises(ProtocolError, match="more or fewer clients"):
            read_cohort(message, 3)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * MOST_PARTITIONS + 2 * message.nbytes


def test_one_more_id_than_there_may_be_is_refused() -> None:
    """Exactly as many bits as there may be clients are read, and not one byte more."""
    full = np.zeros(MOST_PARTITIONS // 8, np.uint8)
    full[0] = 0x80
    for more, taken in ((b"", True), (b"\0", False), (b"\1", False)):
        message = np.frombuffer(zlib.compress(full.tobytes() + more), np.uint8)
        if taken:
            assert read_cohort(message, 1) == (0,)
        else:
            with pytest.raises(ProtocolError):
                read_cohort(message, 1)


@pytest.mark.parametrize(
    "array", [np.zeros(3, np.int64), np.zeros((1, 3), np.uint8), np.zeros(0, np.uint8), np.array(3, np.uint8)]
)
def test_what_is_no_compressed_cohort_is_refused(array: np.ndarray) -> None:
    with pytest.raises(ProtocolError, match="secure sum"):
        read_cohort(array, 1)


# Limits, configurations, identities --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "minimum", "dropout", "corrupted", "expected"),
    [
        (100, 1, 0.1, 0.05, (90, 5)),
        (30, 1, 0.1, 0.1, (27, 3)),  # 0.1 * 30 is a little more than 3 in floating point
        (9, 1, 0.1, 0.1, (9, 1)),  # one that knows its own share
        (10, 10, 0.5, 0.0, (10, 0)),
        (10, 20, 0.5, 0.0, (20, 0)),
        (1, 1, 0.9, 0.9, (1, 0)),
    ],
)
def test_limits(asked: int, minimum: int, dropout: float, corrupted: float, expected: tuple[int, int]) -> None:
    limits = Limits.of(AggregationNode(dropout=dropout, corrupted=corrupted), asked, minimum)
    assert (limits.fewest, limits.corrupted) == expected and limits.dropouts == asked - expected[0]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"dropout": 0.6, "corrupted": 0.4}, "below 1"),
        ({"dropout": 0.9, "corrupted": 0.0}, "hide nothing"),
        ({"threat": "malicious", "dropout": 0.5}, "twice those that may drop out"),
        ({"threat": "malicious", "noise": "server"}, "cannot go with"),
        ({"statistical_security_bits": 3}, "aggregation.statistical_security_bits"),
    ],
)
def test_configurations_that_protect_nobody_are_refused(node: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(10, **node)


def test_a_new_identity_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "holder.key"
    public = new_identity(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(bytes.fromhex(public)) == 32
    with pytest.raises(ConfigError, match="cannot be created"):
        new_identity(path)
    roster = tmp_path / "roster.yaml"
    roster.write_text(f"0: {public}\n1: {'ab' * 32}\n")
    identity, keys = load_identities(str(path), str(roster))
    assert identity.public.hex() == public and keys == {0: identity.public, 1: b"\xab" * 32}


@pytest.mark.parametrize(
    "text", ["", "3", "- a", "0: xyz", "0: abcd", f"0: {'ab' * 32}\n1: {'ab' * 32}", "x: [", "a: b"]
)
def test_a_bad_roster_is_one_clear_error(tmp_path: Path, text: str) -> None:
    new_identity(tmp_path / "key")
    (tmp_path / "roster.yaml").write_text(text)
    with pytest.raises(ConfigError, match="roster"):
        load_identities(str(tmp_path / "key"), str(tmp_path / "roster.yaml"))


def test_a_bad_key_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("not a key")
    with pytest.raises(ConfigError, match="fedsyn identity"):
        load_identities(str(tmp_path / "key"), str(tmp_path / "roster.yaml"))


def test_a_holder_without_a_roster_has_no_identities() -> None:
    bare = Holder(0, federation().parts[0], federation().domain, "", Randomness(0))
    with pytest.raises(ProtocolError, match="roster"):
        bare.identities()


def test_a_sum_that_could_overflow_is_refused() -> None:
    noise = noise_of("distributed", SumSpec(((4,),), 10.0, 1.0, 1, asked=10), Limits(10, 9, 0))
    noise.check_ring(1e6)
    with pytest.raises(ConfigError, match="ring"):
        noise.check_ring(2.0**62)


@pytest.mark.parametrize("key", ["ab", "AB" * 32, "zz" * 32])
def test_a_bad_key_in_the_servers_roster_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match="partition 3"):
        config(6, threat="malicious", roster={3: key})
