"""The secure sum among honest parties: exact sums, dropouts at every stage, state, malformed messages."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from secagg_parties import Parties, session_of

from fedsyn.aggregation.secagg import Identity, SecureSumAborted, SecureSumClient, SecureSumServer, Session
from fedsyn.errors import ConfigError, ProtocolError

pytestmark = pytest.mark.thorough

SEMI = {"threat": "semi_honest", "graph": "sparse"}
FULL = {"threat": "semi_honest", "graph": "full"}
MALICIOUS = {"threat": "malicious", "graph": "full"}
STAGES = ("keys", "shares", "masked", "unmask")


def scattered(clients: int, count: int, seed: int = 1) -> list[int]:
    """Positions of `count` clients that drop out."""
    return [int(i) for i in np.random.default_rng(seed).permutation(clients)[:count]]


def check_sum(parties: Parties, gone: dict[str, list[int]]) -> None:
    """The sum is exact, over those that sent a masked vector and nobody else."""
    parties.run(gone)
    total, contributors = parties.server.result()
    session = parties.session
    before = {i for stage, positions in gone.items() if stage in ("keys", "shares", "masked") for i in positions}
    assert contributors == tuple(c for i, c in enumerate(session.clients) if i not in before)
    assert total.dtype == np.uint64
    np.testing.assert_array_equal(total, parties.total(contributors))
    assert not parties.dropped
    # Only those who were asked for it computed their contribution, once.
    early = {i for stage in ("keys", "shares") for i in gone.get(stage, [])}
    late = {session.clients[i] for i in gone.get("masked", [])}
    assert set(parties.calls) == {c for i, c in enumerate(session.clients) if i not in early} - late
    assert set(parties.calls.values()) == {1}


@pytest.mark.parametrize("facts", [SEMI, FULL, MALICIOUS], ids=["sparse", "full", "malicious"])
def test_sums_of_20_clients_are_exact(facts: dict[str, str]) -> None:
    session = session_of(20, **facts)
    check_sum(Parties(session), {})
    for stage in session.stages:
        check_sum(Parties(session), {stage: scattered(20, session.dropouts)})


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dropouts", [10, 25])
def test_sums_of_100_clients_survive_the_most_dropouts_at_each_stage(stage: str, dropouts: int) -> None:
    session = session_of(100, dropouts=dropouts)
    check_sum(Parties(session), {stage: scattered(100, dropouts)})


def test_sums_of_100_clients_without_dropouts_and_on_the_full_graph() -> None:
    check_sum(Parties(session_of(100, length=9000)), {})  # longer than one piece of key stream
    check_sum(Parties(session_of(50, **FULL)), {"masked": scattered(50, 5)})


@pytest.mark.parametrize("facts", [SEMI, FULL, MALICIOUS], ids=["sparse", "full", "malicious"])
def test_dropouts_mixed_over_the_stages(facts: dict[str, str]) -> None:
    session = session_of(40, dropouts=10, **facts)
    gone = scattered(40, 10)
    plan = {stage: [gone.pop() for _ in range(2)] for stage in session.stages}
    check_sum(Parties(session), plan)


def test_sums_of_200_clients_with_dropouts_at_the_stages_that_cost_the_server_most() -> None:
    gone = scattered(200, 20)
    check_sum(Parties(session_of(200, length=2)), {"masked": gone[:10], "unmask": gone[10:]})


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["nobody", *STAGES])
def test_sums_of_1000_clients_survive_the_most_dropouts_at_each_stage(stage: str) -> None:
    check_sum(Parties(session_of(1000, length=2)), {} if stage == "nobody" else {stage: scattered(1000, 100)})


@pytest.mark.parametrize(
    ("clients", "facts"),
    [(20, SEMI), (20, FULL), (20, MALICIOUS), (100, SEMI)],
    ids=["20-sparse", "20-full", "20-malicious", "100-sparse"],
)
def test_one_more_dropout_ends_the_sum_and_opens_nothing(facts: dict[str, str], clients: int) -> None:
    session = session_of(clients, **facts)
    for stage in session.stages:
        parties = Parties(session)
        with pytest.raises(SecureSumAborted, match="nothing was opened"):
            parties.run({stage: scattered(clients, session.dropouts + 1)})
        assert not parties.server.done
        for refused in (parties.server.result, parties.server.outbox):
            with pytest.raises(SecureSumAborted):
                refused()
        with pytest.raises(SecureSumAborted):
            parties.server.receive({}, parties.dropped.setdefault)
        if stage != "unmask":  # no client revealed a share
            assert not [name for name, _, _ in parties.inbox if name == "unmask"]


def test_dropouts_count_over_all_stages() -> None:
    session = session_of(40, dropouts=4)
    gone = scattered(40, 5)
    for stages in itertools.combinations(STAGES, 2):
        with pytest.raises(SecureSumAborted):
            Parties(session).run({stages[0]: gone[:3], stages[1]: gone[3:]})


def test_a_masked_vector_that_comes_late_is_not_in_the_sum() -> None:
    """A client that is declared dropped does not come back, and clients refuse to treat it as a survivor."""
    parties = Parties(session_of(20))
    parties.until("masked")
    stage, common, each = parties.server.outbox()
    late = parties.session.clients[4]
    reply = parties.ask(late, stage, [*common, *each[late]])
    parties.stage([4])
    parties.server.receive(
        {p: parties.ask(p, "unmask", parties.server.outbox()[1]) for p in parties.server.outbox()[2]} | {late: reply},
        parties.dropped.setdefault,
    )
    assert "was not asked" in parties.dropped[late]
    total, contributors = parties.server.result()
    assert late not in contributors
    np.testing.assert_array_equal(total, parties.total(contributors))


def test_entries_wrap_modulo_2_64() -> None:
    session = session_of(20, length=4)
    top = np.uint64(2**64 - 1)
    column = np.array([[0, 1, top, top - np.uint64(5)]], np.uint64).repeat(20, axis=0)
    parties = Parties(session, column)
    parties.run()
    expected = np.array([0, 20, (20 * (2**64 - 1)) % 2**64, (20 * (2**64 - 6)) % 2**64], np.uint64)
    np.testing.assert_array_equal(parties.server.result()[0], expected)
    negative = np.full((20, 4), -7, np.int64).view(np.uint64)  # signed sums travel as two's complement
    parties = Parties(session, negative)
    parties.run()
    assert parties.server.result()[0].view(np.int64).tolist() == [-140] * 4


def test_smallest_sums() -> None:
    for clients in (2, 3, 4):
        check_sum(Parties(session_of(clients)), {})
    check_sum(Parties(session_of(3, dropouts=1)), {"unmask": [1]})
    check_sum(Parties(session_of(3, threat="malicious")), {})


def test_sums_do_not_repeat_their_randomness() -> None:
    """Two runs of the same session give the same sum, from messages of which no two are alike."""
    first, second = Parties(session_of(20)), Parties(session_of(20))
    first.run()
    second.run()
    np.testing.assert_array_equal(first.server.result()[0], second.server.result()[0])
    messages = [reply[0].tobytes() for parties in (first, second) for _, _, reply in parties.inbox]
    assert len(messages) == 2 * 20 * 4
    assert len(set(messages)) == len(messages)


# ---- state -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [SEMI, MALICIOUS], ids=["semi_honest", "malicious"])
def test_state_between_stages_is_small_json_and_forgets(facts: dict[str, str]) -> None:
    parties = Parties(session_of(20, **facts))
    client = parties.session.clients[0]
    secrets: dict[str, str] = {}
    while not parties.server.done:
        stage = parties.stage()
        state = parties.states[client]
        assert json.loads(json.dumps(state)) == state
        assert len(json.dumps(state)) < 6000
        if stage == "keys":
            secrets = {name: state[name] for name in ("mask", "channel")}
        if stage == "shares":
            assert "channel" not in state  # the sealing key has served
        if stage == "masked":
            assert not set(secrets.values()) & set(state.values())  # nobody can put the masks together again
    assert set(parties.states[client]) == {"session", "next"}
    assert parties.states[client]["next"] == "done"


def test_a_client_is_the_same_whether_or_not_it_was_restored() -> None:
    session = session_of(20)
    parties = Parties(session)
    living = {c: SecureSumClient(session, c) for c in session.clients}
    while not parties.server.done:
        stage, common, each = parties.server.outbox()
        replies = {c: living[c].answer(stage, common + own, lambda c=c: parties.vectors[c]) for c, own in each.items()}
        parties.server.receive(replies, parties.dropped.setdefault)
    np.testing.assert_array_equal(parties.server.result()[0], parties.total(session.clients))


def test_state_of_another_session_or_client_is_refused() -> None:
    parties = Parties(session_of(20))
    parties.stage()
    a, b = parties.session.clients[:2]
    with pytest.raises(ProtocolError, match="another secure sum"):
        SecureSumClient(parties.session, b, state=parties.states[a])
    with pytest.raises(ProtocolError, match="another secure sum"):
        SecureSumClient(session_of(20, length=6), a, state=parties.states[a])
    for broken in ({"next": "later"}, {"mask": 3}, {"mask": "?"}):
        with pytest.raises(ProtocolError, match="malformed"):
            SecureSumClient(parties.session, a, state={**parties.states[a], **broken})


# ---- malformed messages of one client --------------------------------------------------------------------------------


def nonsense(rng: np.random.Generator, reply: list[np.ndarray]) -> list[np.ndarray]:
    """A reply that differs from `reply` in the type, shape or number of its arrays, or is no array at all."""
    which = int(rng.integers(len(reply)))
    array = reply[which]
    wrong = [
        array.astype(np.int64).view(np.uint64)[..., None] if array.dtype != np.uint64 else array.astype(np.float64),
        array[:-1],
        np.concatenate([array, array]),
        array[None],
        array.ravel()[:0],
        np.zeros((), array.dtype),
        array.astype(np.int8),
        rng.standard_normal(3),
        np.array(["x"] * 3),
        array.astype(array.dtype.newbyteorder(">")) if array.itemsize > 1 else array.astype(bool),
        list(array),
        None,
    ]
    choice = int(rng.integers(len(wrong) + 3))
    if choice < len(wrong):
        return [*reply[:which], wrong[choice], *reply[which + 1 :]]
    return [[], [*reply, array], reply[:which] + reply[which + 1 :]][choice - len(wrong)]


@pytest.mark.parametrize("facts", [SEMI, MALICIOUS], ids=["semi_honest", "malicious"])
def test_malformed_messages_cost_their_sender_only(facts: dict[str, str]) -> None:
    rng = np.random.default_rng(7)
    session = session_of(12, dropouts=5, **facts)
    for bad_stage in session.stages:
        for _ in range(8):
            parties = Parties(session)
            culprits = {int(c) for c in rng.choice(session.clients, 5, replace=False)}

            def change(stage, partition, reply, bad_stage=bad_stage, culprits=culprits):
                return nonsense(rng, reply) if stage == bad_stage and partition in culprits else reply

            parties.run(change=change)
            assert set(parties.dropped) == culprits
            total, contributors = parties.server.result()
            assert culprits.isdisjoint(contributors) == (bad_stage not in ("agree", "unmask"))
            np.testing.assert_array_equal(total, parties.total(contributors))


def test_random_bytes_of_the_right_shape_do_not_break_the_server() -> None:
    """Well-formed nonsense in one client's keys, shares or secrets never gives a wrong sum of the others."""
    session = session_of(20)
    rng = np.random.default_rng(3)
    for stage in ("keys", "shares", "unmask"):
        parties = Parties(session)
        culprit = session.clients[5]

        def change(name, partition, reply, stage=stage, culprit=culprit):
            if (name, partition) != (stage, culprit):
                return reply
            return [rng.integers(0, 256, array.shape, dtype=np.uint8) for array in reply]

        if stage == "shares":  # neither its seed nor the shares of it can be believed
            with pytest.raises(SecureSumAborted):
                parties.run(change=change)
            continue
        if stage == "keys":  # its neighbours mask for keys that it does not have: as if it had sent a wrong vector
            parties.run(change=change)
            continue
        parties.run(change=change)
        assert set(parties.dropped) == {culprit}
        total, contributors = parties.server.result()
        np.testing.assert_array_equal(total, parties.total(contributors))


def test_low_order_and_repeated_keys_are_dropped() -> None:
    session = session_of(20)
    low = np.zeros(64, np.uint8)
    parties = Parties(session)
    parties.run(change=lambda stage, p, reply: [low] if (stage, p) == ("keys", session.clients[2]) else reply)
    assert "low order" in parties.dropped[session.clients[2]]
    np.testing.assert_array_equal(parties.server.result()[0], parties.total(parties.server.result()[1]))

    parties = Parties(session)
    kept: list[np.ndarray] = []

    def copy(stage, partition, reply):
        if stage == "keys" and partition in session.clients[:2]:
            kept.extend(reply)
            return [kept[0]]
        return reply

    parties.run(change=copy)
    assert set(parties.dropped) == set(session.clients[:2])


def test_a_wrong_share_is_found_and_left_out() -> None:
    """One neighbour reveals nonsense for a client that is gone: its other neighbours' shares give the secret."""
    session = session_of(40)
    for stage in ("masked", "unmask"):
        for seed in range(5):
            parties = Parties(session, seed=seed)
            gone = 7
            liar = session.clients[session.neighbours[gone][seed % session.degree]]

            def lie(name, partition, reply, liar=liar):
                if (name, partition) == ("unmask", liar):
                    reply[2] = reply[2] ^ np.uint8(1)
                return reply

            parties.run({stage: [gone]}, change=lie)
            total, contributors = parties.server.result()
            np.testing.assert_array_equal(total, parties.total(contributors))


def test_more_wrong_shares_end_the_sum_instead_of_falsifying_it() -> None:
    session = session_of(40)
    parties = Parties(session)
    liars = {session.clients[i] for i in session.neighbours[7]}

    def lie(name, partition, reply):
        if name == "unmask" and partition in liars:
            reply[2] = reply[2] ^ np.uint8(1)
        return reply

    with pytest.raises(SecureSumAborted, match="shares of a secret"):
        parties.run({"masked": [7]}, change=lie)
    with pytest.raises(SecureSumAborted):
        parties.server.result()


def test_unreadable_shares_cost_their_owner_nothing_while_it_stays() -> None:
    session = session_of(40)
    culprit = session.clients[3]

    def spoil(stage, partition, reply):
        if (stage, partition) == ("shares", culprit):
            reply[0] = reply[0] ^ np.uint8(1)
        return reply

    parties = Parties(session)
    parties.run({"masked": [9]}, change=spoil)
    np.testing.assert_array_equal(parties.server.result()[0], parties.total(parties.server.result()[1]))
    parties = Parties(session)
    with pytest.raises(SecureSumAborted):  # its masks cannot be taken off
        parties.run({"masked": [3]}, change=spoil)


# ---- parameters ------------------------------------------------------------------------------------------------------


def test_sessions_that_protect_nobody_are_refused() -> None:
    for facts, words in [
        ({"clients": (1,)}, "fewer than two honest"),
        ({"clients": ()}, "fewer than two honest"),
        ({"clients": tuple(range(10)), "dropouts": 9}, "fewer than two honest"),
        ({"clients": tuple(range(10)), "corrupted": 9}, "fewer than two honest"),
        ({"clients": tuple(range(10)), "dropouts": 4, "corrupted": 5}, "fewer than two honest"),
        ({"clients": (2, 1)}, "ascending"),
        ({"clients": (1, 1, 2)}, "ascending"),
        ({"clients": (-1, 2)}, "ascending"),
        ({"threat": "evil"}, "aggregation.threat"),
        ({"graph": "star"}, "aggregation.graph"),
        ({"length": 0}, "at least one entry"),
        ({"dropouts": -1}, "negative"),
        ({"failure_bits": 0}, "failure_bits"),
        ({"threat": "malicious", "graph": "sparse"}, "full"),
        ({"threat": "malicious", "graph": "full", "dropouts": 4, "corrupted": 2}, "two different sets"),
    ]:
        defaults = {"clients": tuple(range(10)), "length": 3, "dropouts": 0, "corrupted": 0}
        with pytest.raises(ConfigError, match=words):
            Session(b"x", **{**defaults, **facts})
    Session(b"x", tuple(range(10)), 3, 3, 3, "malicious", "full")  # 2 * 7 > 10 + 3


def test_every_fact_of_a_session_separates_it() -> None:
    base = {"identifier": b"x", "clients": tuple(range(20)), "length": 3, "dropouts": 2, "corrupted": 1}
    base |= {"threat": "semi_honest", "graph": "full", "failure_bits": 40}
    others = {"identifier": b"y", "clients": tuple(range(1, 21)), "length": 4, "dropouts": 1, "corrupted": 0}
    others |= {"threat": "malicious", "graph": "sparse", "failure_bits": 41}
    digests = {Session(**base).digest} | {Session(**{**base, name: value}).digest for name, value in others.items()}
    assert len(digests) == 1 + len(base)


def test_malicious_clients_need_their_identity_and_the_roster() -> None:
    session = session_of(4, threat="malicious")
    identity = Identity.generate()
    own = session.clients[0]
    roster = {c: identity.public if c == own else Identity.generate().public for c in session.clients}
    for arguments, words in [
        ({}, "identity and the roster"),
        ({"identity": identity}, "identity and the roster"),
        ({"identity": identity, "roster": {own: identity.public}}, "lacks"),
        ({"identity": Identity.generate(), "roster": roster}, "another public key"),
        ({"identity": identity, "roster": dict.fromkeys(session.clients, identity.public)}, "the same public key"),
    ]:
        with pytest.raises(ConfigError, match=words):
            SecureSumClient(session, own, **arguments)
    with pytest.raises(ConfigError, match="does not name it"):
        SecureSumClient(session, 4, identity=identity, roster=roster)


def test_the_server_gives_no_result_early() -> None:
    server = SecureSumServer(session_of(4))
    with pytest.raises(ProtocolError, match="not finished"):
        server.result()
