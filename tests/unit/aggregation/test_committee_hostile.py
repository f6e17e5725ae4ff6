"""Secure sums against servers and clients that lie: what is refused, and what cannot be computed."""

from __future__ import annotations

import base64
import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsyn.aggregation.secagg import wire
from fedsyn.aggregation.secagg.facts import DEAL, ENROL, Committee, SecureSumAborted, SumFacts, enrolment, epoch_keys
from fedsyn.aggregation.secagg.server import CommitteeSumServer, Established
from fedsyn.crypto.primitives import Identity, KeyPair
from fedsyn.errors import ConfigError, ProtocolError
from support.committee_parties import Parties, setup_of

THREATS = ("semi_honest", "malicious")


def established(parties: Parties) -> Established:
    assert parties.established is not None
    return parties.established


@pytest.fixture(params=THREATS)
def parties(request: pytest.FixtureRequest) -> Parties:
    parties = Parties(setup_of(12, threat=request.param, dropouts=2))
    assert isinstance(parties.establish(), Established)
    return parties


def first_message(parties: Parties, facts: SumFacts) -> tuple[str, wire.Arrays]:
    step = next(CommitteeSumServer(facts, established(parties), parties.drop).steps())
    return step.stage, step.common


def masked(parties: Parties, facts: SumFacts) -> tuple[CommitteeSumServer, wire.Arrays, dict[int, wire.Arrays]]:
    """A sum whose masked vectors are in: the server, and what it asks of the committee."""
    parties.sums += 1
    server = CommitteeSumServer(facts, established(parties), parties.drop)
    steps = server.steps()
    first = next(steps)
    step = steps.send({k: parties.reply(k, first.stage, facts, [*first.common, *first.each[k]]) for k in first.each})
    return server, step.common, step.each


def seated(parties: Parties) -> list[int]:
    committee = established(parties).committee
    return [committee.setup.clients[i] for i in committee.members]


def contributors(parties: Parties, places: range) -> wire.Bytes:
    flags = np.zeros(len(parties.setup.clients), bool)
    flags[list(places)] = True
    return wire.write_flags(flags)


def gone(parties: Parties, seats: list[int], receiver: int = 0, epoch: int = 0) -> wire.Arrays:
    """What asks a member for its shares of the keys of some others."""
    kept = established(parties)
    flags = np.zeros(len(kept.committee.members), bool)
    flags[seats] = True
    return [wire.write_flags(flags), kept.keys[epoch, seats], kept.sealed[epoch, seats, receiver]]


# What a client answers once ------------------------------------------------------------------------------------------


def test_each_message_is_answered_once(parties: Parties) -> None:
    facts = parties.facts()
    _, common, each = masked(parties, facts)
    stage, keys = first_message(parties, facts)
    member = seated(parties)[0]
    with pytest.raises(ProtocolError, match="took part in that sum"):
        parties.reply(member, stage, facts, keys)
    parties.reply(member, "unmask", facts, [*common, *each[member]])
    with pytest.raises(ProtocolError, match="has answered that sum"):
        parties.reply(member, "unmask", facts, [*common, *each[member]])
    with pytest.raises(ProtocolError, match="enrolled in that setup"):
        parties.client(member).enrol(parties.setup)
    with pytest.raises(ProtocolError, match="has dealt its keys already"):
        parties.client(member).deal(established(parties).committee, [])


def test_an_earlier_sum_is_not_answered_after_a_later_one(parties: Parties) -> None:
    parties.sum(parties.facts(number=5))
    with pytest.raises(SecureSumAborted, match="0 clients contributed"):
        parties.sum(parties.facts(number=4))
    assert all("or in a later one" in reason for reason in parties.dropped.values())


def test_a_memory_that_was_rolled_back_gives_another_mask(parties: Parties) -> None:
    """Two answers of one client to one sum would differ by its noise alone if their masks were the same."""
    facts = parties.facts()
    before = copy.deepcopy(parties.states)
    stage, keys = first_message(parties, facts)
    client = parties.setup.clients[0]
    first, nonce = parties.reply(client, stage, facts, keys)
    parties.states = before
    second, other = parties.reply(client, stage, facts, keys)
    assert not np.array_equal(nonce, other) and not np.any(first == second)


# What a member helps to open -----------------------------------------------------------------------------------------


def test_a_member_opens_no_sum_over_too_few_or_over_strangers(parties: Parties) -> None:
    facts = parties.facts(cohort=parties.setup.clients[:11], fewest=9)
    _, common, each = masked(parties, facts)
    member = seated(parties)[0]
    for places, refusal in ((range(8), "8 clients contributed"), (range(12), "was not asked")):
        nonces = np.zeros((len(places), 16), np.uint8)
        lie = [contributors(parties, places), nonces, *common[2:], *each[member]]
        with pytest.raises(ProtocolError, match=refusal):
            parties.reply(member, "unmask", facts, lie)


def test_two_stories_about_the_contributors_open_nothing(parties: Parties) -> None:
    """Half of the members are told that client 0 did not contribute: no total comes of it, and no single vector."""
    facts = parties.facts(length=64)
    server, common, each = masked(parties, facts)
    short = [contributors(parties, range(1, 12)), common[1][1:], *common[2:]]
    opened = server._total.copy()
    for seat, member in enumerate(seated(parties)):
        story = common if seat % 2 else short
        opened -= parties.reply(member, "unmask", facts, [*story, *each[member]])[0]
    everybody = parties.setup.clients
    wanted = [
        parties.total(everybody, 64),
        parties.total(everybody[1:], 64),
        *(parties.vector(k, 64) for k in everybody),
    ]
    assert not any(np.any(opened == value) for value in wanted)  # equal in no entry; honest totals are in all


def test_facts_of_another_sum_give_other_masks(parties: Parties) -> None:
    """A member that is told of another layout or identifier sums masks that nobody has used."""
    facts = parties.facts(length=16)
    _, common, each = masked(parties, facts)
    member = seated(parties)[0]
    state = copy.deepcopy(parties.states)
    right = parties.reply(member, "unmask", facts, [*common, *each[member]])[0]
    for wrong in (replace(facts, identifier=b"b"), replace(facts, fewest=9), replace(facts, number=9)):
        parties.states = copy.deepcopy(state)
        if wrong.number == facts.number:
            with pytest.raises(ProtocolError, match="taken part in another sum of that number"):
                parties.reply(member, "unmask", wrong, [*common, *each[member]])
            parties.states[member].pop("answered")
        assert not np.any(parties.reply(member, "unmask", wrong, [*common, *each[member]])[0] == right)


def test_no_more_keys_of_an_epoch_are_revealed_than_derived(parties: Parties) -> None:
    facts, member = parties.facts(), seated(parties)[0]
    _, common, _ = masked(parties, facts)
    held, shares = parties.reply(member, "unmask", facts, [*common[:2], *gone(parties, [1, 2])])[1:]
    assert wire.read_flags(held, 2).all() and shares.shape == (2, 33)
    with pytest.raises(ProtocolError, match="3 members of the committee would be gone in this epoch, at most 2"):
        parties.reply(member, "recover", facts, gone(parties, [3]))
    parties.reply(member, "recover", facts, gone(parties, [1]))  # what is known already is no loss
    later = parties.facts()  # nor does the next sum of the epoch allow for more
    _, common, _ = masked(parties, later)
    with pytest.raises(ProtocolError, match="would be gone in this epoch"):
        parties.reply(member, "unmask", later, [*common[:2], *gone(parties, [3])])
    with pytest.raises(ProtocolError, match="as gone that answers"):
        parties.reply(member, "unmask", later, [*common[:2], *gone(parties, [0])])


def test_shares_are_given_for_the_sum_that_was_answered_only(parties: Parties) -> None:
    with pytest.raises(ProtocolError, match="has not answered that sum"):
        parties.reply(seated(parties)[0], "recover", parties.facts(), gone(parties, [1]))


def test_keys_of_an_epoch_that_is_over_are_gone(parties: Parties) -> None:
    parties.sum(parties.facts(epoch=3))
    with pytest.raises(SecureSumAborted):
        parties.sum(parties.facts(epoch=1))
    assert any("not used any more" in reason for reason in parties.dropped.values())
    with pytest.raises(ProtocolError, match="epoch that its setup does not have"):
        parties.facts(epoch=16)


def test_a_malicious_server_may_not_leave_out_members() -> None:
    parties = Parties(setup_of(12, threat="malicious", dropouts=2))
    parties.establish()
    dealt = established(parties).dealt.copy()
    dealt[0] = False
    with pytest.raises(ProtocolError, match="9 members of the committee have dealt keys where 10 are needed"):
        parties.facts(dealt=wire.write_flags(dealt).tobytes())
    honest = Committee(setup_of(12, dropouts=2), wire.write_flags(np.ones(12, bool)).tobytes())
    honest.check_dealt(np.arange(10) < 8)
    with pytest.raises(ProtocolError, match="where 8 are needed"):
        honest.check_dealt(np.arange(10) < 7)


# Keys ----------------------------------------------------------------------------------------------------------------


def test_keys_without_their_owners_signature_are_refused() -> None:
    parties = Parties(setup_of(12, threat="malicious", dropouts=2))
    parties.establish()
    facts, client = parties.facts(), parties.setup.clients[0]
    stage, (keys, signatures) = first_message(parties, facts)
    forged, stranger = signatures.copy(), Identity.generate()
    bound = epoch_keys(facts.transcript, 0, 0, keys[0].tobytes())
    forged[0] = np.frombuffer(stranger.sign(bound), np.uint8)
    swapped = keys[[1, 0, *range(2, len(keys))]]
    for lie in ([swapped, signatures], [keys, forged], [keys, signatures[::-1]]):
        with pytest.raises(ProtocolError, match="does not bear its signature"):
            parties.reply(client, stage, facts, lie)
    with pytest.raises(ProtocolError, match="arrays instead of"):
        parties.reply(client, stage, facts, [keys])
    with pytest.raises(ProtocolError, match="does not bear its signature"):  # of another epoch
        parties.reply(client, stage, replace(facts, epoch=1), [keys, signatures])
    assert parties.reply(client, stage, facts, [keys, signatures])


@pytest.mark.parametrize("change", ["another public key", "twice", "low order"])
def test_a_member_refuses_a_list_of_keys_that_cannot_be(change: str) -> None:
    parties = Parties(setup_of(10))
    table = np.array([parties.client(k).enrol(parties.setup)[0] for k in parties.setup.clients])
    committee = Committee(parties.setup, wire.write_flags(np.ones(10, bool)).tobytes())
    table[0 if change == "another public key" else 1] = 0 if change == "low order" else table[2]
    with pytest.raises(ProtocolError, match=change):
        parties.client(parties.setup.clients[0]).deal(committee, [table])


def test_the_malicious_model_needs_identity_and_roster() -> None:
    parties = Parties(setup_of(10, threat="malicious"))
    rosters = {
        "lacks the public key": {k: v for k, v in parties.roster.items() if k != 4},
        "same public key for two": {**parties.roster, 4: parties.roster[6]},
        "another public key for this client": {**parties.roster, 2: Identity.generate().public},
    }
    for refusal, roster in rosters.items():
        parties.roster = roster
        with pytest.raises(ConfigError, match=refusal):
            parties.client(2).enrol(parties.setup)


def test_a_setup_is_answered_once_and_by_those_invited(parties: Parties) -> None:
    newer = setup_of(12, threat=parties.setup.threat, dropouts=2, number=1)
    client = parties.setup.clients[3]
    parties.client(client).enrol(newer)
    for setup in (newer, parties.setup):
        with pytest.raises(ProtocolError, match="enrolled in that setup"):
            parties.client(client).enrol(setup)
    facts = parties.facts()
    with pytest.raises(ProtocolError, match="has not enrolled in the run's setup"):  # its key of the old one is gone
        parties.reply(client, *first_message(parties, facts)[:1], facts, first_message(parties, facts)[1])
    parties.states[1], parties.identities[1] = {}, Identity.generate()
    with pytest.raises(ConfigError, match="does not invite it"):
        parties.client(1).enrol(newer)


# What is bound to what -----------------------------------------------------------------------------------------------


def again(parties: Parties) -> Parties:
    """The same clients in another run that the server gave the same name: all facts are equal, all keys are fresh."""
    other = Parties(parties.setup)
    assert isinstance(other.establish(), Established)
    assert established(other).committee == established(parties).committee
    return other


def test_keys_and_shares_of_another_run_of_the_same_name_are_of_no_use(parties: Parties) -> None:
    """Else the members of one run would give away the keys of another, and never count them."""
    other, facts, client = again(parties), parties.facts(), parties.setup.clients[0]
    stage, foreign = first_message(other, other.facts())
    if parties.setup.is_malicious:
        with pytest.raises(ProtocolError, match="does not bear its signature"):
            parties.reply(client, stage, facts, foreign)
        mixed = [np.concatenate([a[:1], b[1:]]) for a, b in zip(foreign, first_message(parties, facts)[1], strict=True)]
        with pytest.raises(ProtocolError, match="does not bear its signature"):  # nor some members of each
            parties.reply(client, stage, facts, mixed)
    member = seated(parties)[0]
    _, common, _ = masked(parties, facts)
    held, shares = parties.reply(member, "unmask", facts, [*common[:2], *gone(other, [1, 2])])[1:]
    assert not wire.read_flags(held, 2).any() and not len(shares)
    with pytest.raises(ProtocolError, match="has dealt no keys for that committee"):
        parties.reply(member, "unmask", replace(facts, transcript=established(other).transcript), common)


def test_a_share_is_for_one_epoch_one_sender_and_one_receiver(parties: Parties) -> None:
    facts, member, kept = parties.facts(), seated(parties)[0], established(parties)
    _, common, _ = masked(parties, facts)
    flags, keys, _ = gone(parties, [1])
    parties.reply(member, "unmask", facts, [*common[:2], flags, keys, kept.sealed[0, [1], 0]])
    assert len(parties.reply(member, "recover", facts, [flags, keys, kept.sealed[0, [1], 0]])[1]) == 1
    wrong = {
        "another receiver's": (keys, kept.sealed[0, [1], 2]),
        "another sender's": (keys, kept.sealed[0, [2], 0]),
        "another epoch's": (keys, kept.sealed[1, [1], 0]),
        "another epoch's, with its key": (kept.keys[1, [1]], kept.sealed[1, [1], 0]),
        "under another key": (kept.keys[0, [2]], kept.sealed[0, [1], 0]),
    }
    for why, (key, sealed) in wrong.items():
        assert not len(parties.reply(member, "recover", facts, [flags, key, sealed])[1]), why


def test_every_fact_of_a_sum_enters_its_masks(parties: Parties) -> None:
    facts = parties.facts()
    dealt = established(parties).dealt.copy()
    dealt[0] = False
    others = {
        "transcript": b"t" * 32,
        "epoch": 1,
        "identifier": b"another",
        "number": 1,
        "cohort": facts.cohort[:-1],
        "length": 6,
        "fewest": facts.fewest - 1,
        "corrupted": 1,
    } | ({} if parties.setup.is_malicious else {"dealt": wire.write_flags(dealt).tobytes()})
    assert set(others) | {"committee", "dealt"} == set(facts.__dataclass_fields__)
    digests = {replace(facts, **{name: value}).digest for name, value in others.items()}
    assert len(digests | {facts.digest}) == len(others) + 1


def test_every_fact_of_a_setup_enters_what_is_signed() -> None:
    setups = [
        setup_of(12, dropouts=2),
        setup_of(12, dropouts=2, number=1),
        setup_of(12, dropouts=1),
        setup_of(12, dropouts=2, corrupted=1),
        setup_of(12, dropouts=2, threat="malicious"),
        setup_of(12, dropouts=2, statistical_security_bits=41),
        replace(setup_of(12, dropouts=2), identifier=b"another run"),
        setup_of(13, dropouts=2),
    ]
    assert len({enrolment(setup, 0, bytes(32)) for setup in setups}) == len(setups)
    everybody = wire.write_flags(np.ones(12, bool)).tobytes()
    some = wire.write_flags(np.arange(12) < 11).tobytes()
    one, fewer = Committee(setups[0], everybody), Committee(setups[0], some)
    transcripts = [one.transcript(b"a"), one.transcript(b"b"), fewer.transcript(b"a")]
    assert len({epoch_keys(t, 0, 0, bytes(32)) for t in transcripts}) == 3
    assert fewer.size.lost == 1 and one.size.lost == 2, "who has not enrolled has dropped out"


@pytest.mark.parametrize("threat", THREATS)
def test_a_member_is_not_told_later_who_is_enrolled(threat: str) -> None:
    """With more clients "enrolled" than it has keys for, its masks of some would be of keys that everybody knows."""
    parties = Parties(setup_of(40, threat=threat, dropouts=8))
    parties.establish({"enrol": parties.setup.clients[-4:]})
    real, member = established(parties).committee, seated(parties)[0]
    facts = parties.facts(fewest=2)
    parties.sum(facts)
    for extra in range(1, 2**4):
        flags = np.ones(40, bool)
        flags[-4:] = [bool(extra >> i & 1) for i in range(4)]
        told = Committee(parties.setup, wire.write_flags(flags).tobytes())
        if told.seat(parties.setup.position(member)) < 0:
            continue
        dealt = wire.write_flags(np.ones(len(told.members), bool)).tobytes()
        lie = replace(parties.facts(fewest=2), committee=told, dealt=dealt)
        assert lie.transcript == facts.transcript and told != real
        for stage in ("unmask", "recover"):
            with pytest.raises(ProtocolError, match="has dealt no keys for that committee"):
                parties.reply(member, stage, lie, [])
        assert lie.digest != parties.facts(fewest=2).digest, "a client that was told so masks for another sum"


def test_members_check_who_enrolled() -> None:
    """A stranger's key among those enrolled would be a contributor that the server has made up."""
    setup = setup_of(12, threat="malicious", dropouts=2)
    parties, earlier = Parties(setup), Parties(setup_of(12, threat="malicious", dropouts=2, number=7))
    replies = [parties.client(k).enrol(setup) for k in setup.clients]
    table, signatures = (np.array([reply[i] for reply in replies]) for i in (0, 1))
    committee = Committee(setup, wire.write_flags(np.ones(12, bool)).tobytes())
    member = setup.clients[committee.members[0]]
    other = 0 if committee.members[0] else 1
    stranger, old = Identity.generate(), earlier.client(setup.clients[other]).enrol(earlier.setup)
    key = KeyPair().public
    forged = np.frombuffer(stranger.sign(enrolment(setup, other, key)), np.uint8)
    for public, signature in ((np.frombuffer(key, np.uint8), forged), old):
        lie = [table.copy(), signatures.copy()]
        lie[0][other], lie[1][other] = public, signature
        with pytest.raises(ProtocolError, match="does not bear its signature"):
            parties.client(member).deal(committee, lie)
    assert parties.client(member).deal(committee, [table, signatures])


def test_a_new_setup_does_not_forget_which_sums_were_answered(parties: Parties) -> None:
    parties.sum(parties.facts(number=5))
    states, before = parties.states, seated(parties)
    parties.setup = setup_of(12, threat=parties.setup.threat, dropouts=2, number=1)
    parties.establish()
    assert parties.states is states
    with pytest.raises(SecureSumAborted, match="0 clients contributed"):
        parties.sum(parties.facts(number=5))
    member = next(k for k in seated(parties) if k in before)
    with pytest.raises(ProtocolError, match="taken part in another sum of that number"):
        parties.reply(member, "unmask", parties.facts(number=5), [])
    parties.states[member].pop("answered")
    with pytest.raises(ProtocolError, match="has answered that sum"):
        parties.reply(member, "unmask", parties.facts(number=5), [])


def test_who_is_not_asked_sends_nothing(parties: Parties) -> None:
    facts = parties.facts(cohort=parties.setup.clients[:11], fewest=9)
    stage, keys = first_message(parties, facts)
    with pytest.raises(ProtocolError, match="does not ask this client"):
        parties.reply(parties.setup.clients[11], stage, facts, keys)


def test_a_layer_that_is_not_used_is_not_given_away() -> None:
    parties = Parties(setup_of(12, dropouts=2))
    silent = Committee(parties.setup, wire.write_flags(np.ones(12, bool)).tobytes())
    absent = parties.setup.clients[silent.members[0]]
    parties.establish({"deal": [absent]})
    facts = parties.facts()
    assert facts.most_lost == 1, "a member that has not dealt is lost already"
    _, common, _ = masked(parties, facts)
    with pytest.raises(ProtocolError, match="has dealt no keys"):
        parties.reply(absent, "unmask", facts, common)
    with pytest.raises(ProtocolError, match="or that it does not use"):
        parties.reply(seated(parties)[1], "unmask", facts, [*common[:2], *gone(parties, [0], 1)])


def test_secrets_of_earlier_epochs_are_wiped(parties: Parties) -> None:
    parties.sum(parties.facts(epoch=0))
    member = seated(parties)[0]
    before = base64.b64decode(parties.states[member]["epochs"])
    parties.sum(parties.facts(epoch=3))
    after = base64.b64decode(parties.states[member]["epochs"])
    assert after[: 3 * 64] == bytes(3 * 64) and after[3 * 64 :] == before[3 * 64 :]


def test_members_keys_have_to_be_usable_and_different() -> None:
    parties = Parties(setup_of(12, dropouts=2))
    parties.establish()
    facts, client = parties.facts(), parties.setup.clients[0]
    stage, (keys,) = first_message(parties, facts)
    for change, refusal in ((keys[1], "twice"), (0, "low order")):
        lie = keys.copy()
        lie[0] = change
        with pytest.raises(ProtocolError, match=refusal):
            parties.reply(client, stage, facts, [lie])


def test_a_sum_is_not_longer_than_anybody_can_hold(parties: Parties) -> None:
    with pytest.raises(ProtocolError, match="between 1 and 67108864 entries"):
        parties.facts(length=2**33)


NONSENSE: list[wire.Arrays] = [[], [np.zeros(3)], [np.zeros(5, np.uint64)] * 3, [np.zeros((0, 49), np.uint8)] * 2]


@pytest.mark.parametrize("stage", [ENROL, DEAL, "masked", "unmask"])
@pytest.mark.parametrize("kind", range(len(NONSENSE)))
def test_nonsense_costs_its_sender_only(stage: str, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever one client answers in whatever stage: the sum is that of the others."""
    parties = Parties(setup_of(10, dropouts=2))  # everybody is a member
    liar = parties.setup.clients[1]

    def lying(method: Any) -> Any:
        return lambda k, s, *rest: NONSENSE[kind] if (k, s) == (liar, stage) else method(k, s, *rest)

    monkeypatch.setattr(parties, "setup_reply", lying(parties.setup_reply))
    monkeypatch.setattr(parties, "reply", lying(parties.reply))
    parties.establish()
    total, who = parties.sum(parties.facts())
    assert who == tuple(k for k in parties.setup.clients if k != liar or stage in (DEAL, "unmask"))
    np.testing.assert_array_equal(total, parties.total(who, 5))
    assert set(parties.dropped) == {liar}


# What the server holds -----------------------------------------------------------------------------------------------


def test_vectors_are_hidden_until_the_last_member_answers(parties: Parties) -> None:
    """Masked vectors are uniform, and without one member's answer their sum still is.

    12 clients times 4,096 entries, their high bytes in 256 bins; the threshold is the 1 - 1e-9 quantile of chi-squared
    with 255 degrees of freedom, 409 (scipy.stats.chi2.isf(1e-9, 255)), so uniform bytes fail once in 10^9 runs. Vectors
    without masks (all entries below 2^32, so high bytes of 0) give 49152 * 255.
    """
    length, small = 4096, np.uint64(1) << np.uint64(32)
    parties.vector = lambda k, n: np.random.default_rng(k).integers(0, small, n, np.uint64)  # type: ignore[method-assign]
    facts = parties.facts(length=length)
    stage, keys = first_message(parties, facts)
    replies = {k: parties.reply(k, stage, facts, keys) for k in parties.setup.clients}
    high = np.concatenate([vector for vector, _ in replies.values()]) >> np.uint64(56)
    counts = np.bincount(high.astype(int), minlength=256)
    expected = len(high) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 409
    parties.sums += 1
    server = CommitteeSumServer(facts, established(parties), parties.drop)
    steps = server.steps()
    next(steps)
    step = steps.send(replies)
    masks = [
        parties.reply(member, "unmask", facts, [*step.common, *step.each[member]])[0] for member in seated(parties)
    ]
    partly = server._total - sum(masks[1:], np.zeros(length, np.uint64))
    total = parties.total(parties.setup.clients, length)
    assert not np.any(partly == total)
    np.testing.assert_array_equal(partly - masks[0], total)
