"""Secure sums among honest parties: exact, whoever drops out, one message per client and member."""

from __future__ import annotations

import numpy as np
import pytest

from fedsyn.aggregation.secagg.facts import EPOCHS, SecureSumAborted, Setup
from fedsyn.aggregation.secagg.server import Established
from fedsyn.errors import ConfigError, ProtocolError
from support.committee_parties import Gone, Parties, setup_of

THREATS = ("semi_honest", "malicious")


def established(clients: int, **facts: object) -> Parties:
    parties = Parties(setup_of(clients, **facts))  # type: ignore[arg-type]
    assert isinstance(parties.establish(), Established)
    return parties


def members(parties: Parties) -> list[int]:
    assert parties.established is not None
    committee = parties.established.committee
    return [committee.setup.clients[i] for i in committee.members]


def check(parties: Parties, gone: Gone | None = None, length: int = 5) -> None:
    """The total is exact over those whose vector arrived, and nobody was dropped who answered."""
    gone = gone or {}
    facts = parties.facts(length) if gone or length != 5 else None
    total, contributors = parties.sum(facts, gone)
    assert contributors == tuple(k for k in parties.setup.clients if k not in gone.get("masked", ()))
    np.testing.assert_array_equal(total, parties.total(contributors, length))
    assert not parties.dropped


@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("clients", [2, 3, 7, 40])
def test_sums_are_exact_with_one_message_of_each_client_and_of_each_member(threat: str, clients: int) -> None:
    parties = established(clients, threat=threat)
    for _ in range(3):
        check(parties)
    check(parties, length=9000)  # longer than one piece of key stream
    committee = len(members(parties))
    assert committee == min(clients, 10)
    assert parties.calls == {"enrol": clients, "deal": committee, "masked": 4 * clients, "unmask": 4 * committee}


@pytest.mark.parametrize("threat", THREATS)
def test_dropouts_at_every_stage(threat: str) -> None:
    parties = established(60, threat=threat, dropouts=6, corrupted=3)
    seated = members(parties)
    others = [k for k in parties.setup.clients if k not in seated]
    check(parties, {"masked": others[:6]})  # costs nobody anything
    assert "recover" not in parties.calls
    check(parties, {"masked": seated[:2] + others[:4], "unmask": seated[:2]})  # asked, as they might only be late
    assert parties.calls.pop("recover") == len(seated) - 2
    check(parties, {"masked": seated[:2], "unmask": seated[:2]})  # known by now to be gone
    assert "recover" not in parties.calls
    check(parties, {"masked": seated[:2], "unmask": seated[2:4]})  # between the two messages
    check(parties, {"unmask": seated[:6]})  # all others are back
    check(parties)


def test_an_epoch_in_which_a_key_was_revealed_is_not_used_again() -> None:
    """So every sum bears all the dropouts that it may have, also when others come back."""
    parties = established(20, dropouts=2)
    kept, seated = parties.established, members(parties)
    assert kept is not None
    for _ in range(2):
        check(parties)
    assert kept.epoch == 0 and not kept.revealed
    for t in range(1, EPOCHS):
        check(parties, {"unmask": [seated[t % 10], seated[(t + 1) % 10]]})
        kept.renew()
        assert kept.epoch == t and not kept.revealed
    check(parties)
    assert not kept.is_spent
    check(parties, {"unmask": seated[:1]})
    kept.renew()
    assert kept.is_spent


def test_a_setup_bears_dropouts_and_a_malicious_one_asks_for_every_member() -> None:
    for threat in THREATS:
        parties = Parties(setup_of(20, threat=threat, dropouts=4))
        absent = parties.setup.clients[:2]
        found = parties.establish({"enrol": absent})
        assert isinstance(found, Established)
        parties.sums += 1
        total, contributors = parties.sum(parties.facts())
        assert contributors == parties.setup.clients[2:]
        np.testing.assert_array_equal(total, parties.total(contributors, 5))
        silent = members(parties)[:2]
        found = Parties(parties.setup).establish({"enrol": absent, "deal": silent})
        assert isinstance(found, Established) if threat == "semi_honest" else found == silent
    with pytest.raises(SecureSumAborted, match="15 clients are enrolled"):
        Parties(setup_of(20, dropouts=4)).establish({"enrol": parties.setup.clients[:5]})


def test_too_few_contributors_or_members_open_nothing() -> None:
    parties = established(20, dropouts=2)
    with pytest.raises(SecureSumAborted, match="17 clients contributed, 18 are needed"):
        parties.sum(gone={"masked": parties.setup.clients[:3]})
    assert "unmask" not in parties.calls
    with pytest.raises(SecureSumAborted, match="3 members of the committee are gone"):
        parties.sum(gone={"unmask": members(parties)[:3]})
    check(parties)  # the next sum is another one


def test_a_sum_that_could_not_be_opened_is_not_asked_for() -> None:
    """Nobody's vector is masked, and charged, for it; and a client would refuse."""
    parties = Parties(setup_of(20, dropouts=2))
    parties.establish({"enrol": parties.setup.clients[:2]})
    facts = parties.facts(fewest=19)
    with pytest.raises(SecureSumAborted, match="18 of its clients are enrolled, 19 are needed"):
        parties.sum(facts)
    with pytest.raises(ProtocolError, match="it could not be opened"):
        parties.reply(parties.setup.clients[5], "masked", facts, [])


def test_a_member_with_wrong_shares_is_left_out() -> None:
    parties = established(20, dropouts=3)
    kept = parties.established
    assert kept is not None
    absent, liar, *_ = members(parties)
    answer = parties.reply

    def lying(partition, stage, facts, inbox):  # type: ignore[no-untyped-def]
        reply = answer(partition, stage, facts, inbox)
        return [*reply[:-1], reply[-1] ^ 1] if partition == liar and stage in ("unmask", "recover") else reply

    parties.reply = lying  # type: ignore[method-assign]
    total, contributors = parties.sum(gone={"unmask": [absent]})
    np.testing.assert_array_equal(total, parties.total(contributors, 5))


def test_a_committee_that_could_protect_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than two honest contributors"):
        setup_of(3, corrupted=1, dropouts=1)
    with pytest.raises(ConfigError, match="and twice those that may drop out"):
        setup_of(6, corrupted=1, dropouts=3, threat="malicious")
    assert isinstance(setup_of(6, corrupted=1, dropouts=3), Setup)
