"""The messages of secure sums: how many, dropouts, latecomers, and what a client refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fedsyn.aggregation import make_aggregation
from fedsyn.aggregation.secure import STATE, write_cohort
from fedsyn.errors import ConfigError, Lost
from fedsyn.flower import Message
from fedsyn.front.testing.faults import Fault, vanish
from fedsyn.front.testing.harness import Federation, Outcome, config_of, execute, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.front.testing.tape import TapedExchange
from fedsyn.keys.holder_keys import simulated_identities
from fedsyn.settings import AggregationNode
from support.recorded_client import Client, changed

MECHANISM = "fed_naive_bayes"
SECURE = {"protocol": "secagg", "noise": "distributed"}
GO_ON = {"on_loss": "go_on"}


def federation(clients: int) -> Federation:
    codes = awkward_table("odd_names").encode()
    return Federation(awkward_table("odd_names"), tuple(codes[k::clients] for k in range(clients)))


def run(clients: int = 6, faults: Any = None, rounds: int = 2, **aggregation: Any) -> Outcome:
    nodes = {"federation": aggregation.pop("federation")} if "federation" in aggregation else {}
    config = config_of(MECHANISM, clients, {"rounds": rounds}, aggregation={**SECURE, **aggregation}, **nodes)
    return execute(config, federation(clients), faults=faults)


def sums(outcome: Outcome) -> list[TapedExchange]:
    return [e for e in outcome.tape.exchanges if e.envelope["kind"] == "sum"]


def counts(outcome: Outcome) -> Counter[str]:
    return Counter(e.envelope["stage"]["name"] for e in sums(outcome))


def model(outcome: Outcome) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in finished(outcome).arrays.items()}


# Configuration -------------------------------------------------------------------------------------------------------


def test_configurations_that_protect_nobody_are_refused() -> None:
    node = AggregationNode(protocol="secagg", corrupted=0.2, dropout=0.4, threat="malicious", noise="distributed")
    with pytest.raises(ConfigError, match="twice those that may drop out; here 5 clients, 1 and 2"):
        make_aggregation(node).check(5)


# Messages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
def test_a_client_gets_one_message_for_a_sum_and_a_member_one_more(threat: str) -> None:
    outcome = finished(run(14, rounds=4, threat=threat))
    number = len({e.envelope["sum"]["number"] for e in sums(outcome)})
    assert number == 4
    assert counts(outcome) == {"enrol": 14, "deal": 10, "masked": 4 * 14, "unmask": 4 * 10}
    assert not outcome.dropped
    assert model(outcome) == model(run(14, rounds=4, protocol="plain"))


def test_cohorts_take_part_and_members_outside_of_them_help() -> None:
    settings = {"federation": {"sampling_rate": 0.5, "minimum_cohort": 4}}
    secure, plain = (run(14, rounds=4, **settings, **more) for more in ({}, {"protocol": "plain"}))
    assert model(secure) == model(plain)
    asked = Counter(e.partition for e in sums(secure) if e.envelope["stage"]["name"] == "unmask")
    masked = Counter(e.partition for e in sums(secure) if e.envelope["stage"]["name"] == "masked")
    assert len(asked) == 10 and set(asked.values()) == {4}
    assert sum(masked.values()) == sum(len(record.cohort) for record in secure.strategy.records[1:]) < 4 * 14


# Dropouts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", ["semi_honest", "malicious"])
@pytest.mark.parametrize("after", range(1, 6))
def test_a_client_that_vanishes_at_any_stage_costs_itself_only(after: int, threat: str) -> None:
    """After `join` it answers `after` - 1 messages: enrol, deal, masked, unmask, masked."""
    outcome = finished(run(6, faults={5: vanish(after)}, dropout=0.2, threat=threat))
    assert outcome.dropped == {5}
    assert [bool(record.dropped) for record in outcome.strategy.records[1:]] == [after < 5, True]
    names = counts(outcome)
    # A member that sends no vector might only be late: it is asked for its masks, and then the others for its key.
    assert names["recover"] == (5 if after >= 3 else 0)
    if threat == "malicious" and after == 2:  # it enrolled and did not deal: the setup is made again without it
        assert names["enrol"] == 11 and names["deal"] == 11


def test_one_dropout_too_many_opens_nothing() -> None:
    outcome = run(6, faults={4: vanish(3), 5: vanish(3)}, dropout=0.2)
    assert isinstance(outcome.error, Lost) and "'one-way' of round 1 was not opened" in str(outcome.error)
    assert not outcome.strategy.ledger.releases
    outcome = run(6, faults={4: vanish(3), 5: vanish(3)}, federation=GO_ON, dropout=0.2)
    assert outcome.error is not None and "no round got enough replies" in str(outcome.error)
    assert not outcome.strategy.ledger.releases
    assert any("was not opened" in note for note in outcome.strategy.records[1].notes)
    assert counts(outcome)["unmask"] == 0


def test_a_committee_that_is_gone_is_drawn_again() -> None:
    """Two of six vanish for one message, between their vectors and their masks: one sum is lost, not the run."""

    def absent_once(reply: Message, earlier: int) -> Message | None:
        return None if earlier == 4 else reply

    outcome = finished(run(6, faults={4: absent_once, 5: absent_once}, federation=GO_ON, rounds=3, dropout=0.2))
    notes = [record.notes for record in outcome.strategy.records[1:]]
    assert any("2 members of the committee are gone, at most 1 may be" in note for note in notes[0])
    assert not notes[1] and not notes[2]
    assert counts(outcome)["enrol"] == 12


def late(messages: int) -> Fault:
    """Answers `join`, then nothing for some messages."""

    def fault(reply: Message, earlier: int) -> Message | None:
        return None if 1 <= earlier <= messages else reply

    return fault


def test_a_client_that_was_not_there_at_the_setup_comes_in_with_the_next() -> None:
    outcome = finished(run(6, faults={5: late(1)}, rounds=10, dropout=0.2))
    dropped = [set(record.dropped) for record in outcome.strategy.records[1:]]
    assert dropped == [{5}] * 8 + [set()] * 2
    assert "not enrolled" in str(outcome.strategy.records[2].dropped[5])
    assert counts(outcome)["enrol"] == 12


def test_a_holder_that_no_longer_contributes_still_helps_to_open() -> None:
    """As one whose own limit is reached: it gives no vector, and its masks are not worth a new epoch."""

    def unwilling(reply: Message, earlier: int) -> Message | None:
        return None if earlier >= 3 and earlier % 2 else reply  # after join, enrol, deal: masked, unmask, masked, ...

    outcome = finished(run(6, faults={5: unwilling}, rounds=6, dropout=0.2))
    assert all(5 in record.dropped for record in outcome.strategy.records[1:])
    assert counts(outcome) == {"enrol": 6, "deal": 6, "masked": 36, "unmask": 36}


# What a server may ask a client --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> Outcome:
    return finished(run())


def of(recorded: Outcome, stage: str, client: int = 0) -> list[TapedExchange]:
    return [e for e in sums(recorded) if e.partition == client and e.envelope["stage"]["name"] == stage]


def test_a_recorded_first_stage_is_answered_once(recorded: Outcome) -> None:
    (first,), client = of(recorded, "enrol"), Client(recorded)
    assert client.ask(first.envelope, first.arrays)["ok"] is True and STATE in client.memory
    again = client.ask(first.envelope, first.arrays)
    assert again["ok"] is False and "already" in again["sentence"]


@pytest.mark.parametrize("stage", ["deal", "masked", "unmask"])
def test_nothing_is_answered_without_the_setup(recorded: Outcome, stage: str) -> None:
    later = of(recorded, stage)[0]
    answer = Client(recorded).ask(later.envelope, later.arrays)
    assert answer["ok"] is False and "has not enrolled" in answer["sentence"] and answer["arrays"] == []


def test_keys_of_another_setup_are_of_no_use(recorded: Outcome) -> None:
    """The recorded messages go to a client that has drawn another key."""
    client = Client(recorded)
    (first,), (deal,) = of(recorded, "enrol"), of(recorded, "deal")
    assert client.ask(first.envelope, first.arrays)["ok"] is True
    answer = client.ask(deal.envelope, deal.arrays)
    assert answer["ok"] is False and "another public key for this client" in answer["sentence"]
    for lie in (changed(first, "stage", run="another"), {**first.envelope, "stage": {"name": "enrol"}}):
        assert client.ask(lie, first.arrays)["ok"] is False


@pytest.mark.parametrize("stage", ["enrol", "deal", "masked", "unmask"])
@pytest.mark.parametrize(
    ("part", "facts", "refusal"),
    [
        ("stage", {"name": None}, "no stage"),
        ("stage", {"name": "keys"}, "no stage"),
        ("stage", {"skip": -1}, "no stage"),
        ("stage", {"skip": 99}, "no stage"),
        ("stage", {"run": None}, "no stage"),
        ("sum", {"shapes": "nonsense"}, "malformed"),
    ],
)
def test_a_message_that_belongs_to_no_stage_is_refused(
    recorded: Outcome, stage: str, part: str, facts: dict[str, Any], refusal: str
) -> None:
    exchange, client = of(recorded, stage)[0], Client(recorded)
    answer = client.ask(changed(exchange, part, **facts), exchange.arrays)
    assert answer["ok"] is False and refusal in answer["sentence"] and answer["arrays"] == []
    assert not client.memory.get(STATE)


@pytest.mark.parametrize("stage", ["enrol", "deal", "masked", "unmask"])
def test_malformed_arrays_are_refused(recorded: Outcome, stage: str) -> None:
    exchange = of(recorded, stage)[0]
    wrong = [np.zeros(3), np.zeros(0, np.uint8), np.zeros((2, 2), np.int64), np.array([10**12], np.int64)]
    for place in range(len(exchange.arrays)):
        for array in wrong:
            lie = [array if i == place else given for i, given in enumerate(exchange.arrays)]
            answer = Client(recorded).ask(exchange.envelope, lie)
            assert answer["ok"] is False and answer["arrays"] == []
            assert answer["kind"] == "protocol", (place, array)
    for cut in range(len(exchange.arrays)):
        answer = Client(recorded).ask(exchange.envelope, exchange.arrays[:cut])
        assert answer["ok"] is False and answer["kind"] != "broken", cut


def test_a_server_cannot_claim_a_larger_cohort_than_it_names(recorded: Outcome) -> None:
    """With more clients the shares of noise would be smaller."""
    exchange = of(recorded, "masked")[0]
    answer = Client(recorded).ask(changed(exchange, "sum", asked=600), exchange.arrays)
    assert answer["ok"] is False and "more or fewer clients" in answer["sentence"]


def test_clients_that_do_not_exist_do_not_open_a_sum(recorded: Outcome) -> None:
    """A cohort of 600 names makes shares of noise small; the members miss the 540 contributors that it takes."""
    client = Client(recorded)
    (first,) = of(recorded, "enrol")
    (deal,) = of(recorded, "deal")
    reply = client.ask(first.envelope, first.arrays)
    publics = deal.arrays[2].copy()
    publics[0] = reply["arrays"][0]
    assert client.ask(deal.envelope, [deal.arrays[0], deal.arrays[1], publics, deal.arrays[-1]])["ok"] is True
    unmask = of(recorded, "unmask")[0]
    transcript = np.frombuffer(bytes.fromhex(client.memory[STATE]["transcript"]), np.uint8)
    honest = [*unmask.arrays[:3], transcript, *unmask.arrays[4:]]
    crowd = [write_cohort(range(600)), *honest[1:]]
    answer = client.ask(changed(unmask, "sum", asked=600), crowd)
    assert answer["ok"] is False and "6 clients contributed to the secure sum, fewer than the 540" in answer["sentence"]
    assert client.ask(unmask.envelope, honest)["ok"] is True


def test_a_message_for_another_client_is_refused(recorded: Outcome) -> None:
    for stage in ("enrol", "deal", "masked", "unmask"):
        other = of(recorded, stage, client=1)[0]
        answer = Client(recorded).ask(other.envelope, other.arrays)
        assert answer["ok"] is False and "another client" in answer["sentence"]


def test_a_sum_of_one_exact_vector_is_refused() -> None:
    recorded = finished(run(noise="server"))
    exchange = of(recorded, "masked")[0]
    answer = Client(recorded).ask(changed(exchange, "sum", asked=1), exchange.arrays)
    assert answer["ok"] is False and "exact vector" in answer["sentence"]


def test_a_node_without_an_identity_takes_no_part_in_the_malicious_model() -> None:
    recorded = finished(run(threat="malicious"))
    (first,) = of(recorded, "enrol")
    client = Client(recorded)
    make = client.make

    def without() -> Any:
        made = make()
        object.__setattr__(made.holder, "identities", lambda: (None, {}))
        return made

    client.make = without
    answer = client.ask(first.envelope, first.arrays)
    assert answer["ok"] is False and "identity" in answer["sentence"]


def test_masked_vectors_fill_the_ring(recorded: Outcome) -> None:
    """Counts of a few rows are small; what leaves the client does not show it."""
    for exchange in of(recorded, "masked"):
        vector = exchange.reply_arrays[0]
        assert len(vector) >= 4 and np.median(vector >> np.uint64(32)) > 2**20


@pytest.mark.parametrize("part", ["stage", "sum"])
@pytest.mark.parametrize("value", [..., "nonsense", [], 3, None])
def test_a_message_without_facts_or_stage_is_refused(recorded: Outcome, part: str, value: Any) -> None:
    (first,), client = of(recorded, "enrol"), Client(recorded)
    without = {key: given for key, given in first.envelope.items() if key != part}
    answer = client.ask(without if value is ... else {**without, part: value}, first.arrays)
    assert (answer["ok"], answer["kind"], answer["arrays"]) == (False, "protocol", [])
    assert client.memory == {}


def test_the_sums_of_two_runs_of_one_configuration_are_different(recorded: Outcome) -> None:
    names = {e.envelope["stage"]["run"] for outcome in (recorded, run()) for e in sums(outcome)}
    assert len(names) == 2


def test_a_server_with_a_roster_names_who_signs_badly() -> None:
    """Clients 5 and 6 sign with keys that are not those of the server's roster: it costs them only."""
    roster = {k: key.hex() for k, key in simulated_identities(0, 7)[1].items()}
    assert model(run(7, threat="malicious", roster=roster)) == model(run(7, protocol="plain"))
    wrong = {**roster, 5: roster[6], 6: roster[5]}
    outcome = run(7, threat="malicious", roster=wrong, dropout=0.3)
    assert outcome.dropped == {5, 6}
