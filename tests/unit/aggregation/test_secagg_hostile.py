"""Clients of a secure sum against a server that cheats: they refuse, and what they revealed before opens nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from secagg_parties import Arrays, Parties, session_of

from fedsyn.aggregation.secagg import Identity, SecureSumAborted, SecureSumClient, SecureSumServer, Session, shamir
from fedsyn.aggregation.secagg.bindings import keys_message, pair_mask_key, self_mask_key, survivors_message, transcript
from fedsyn.aggregation.secagg.primitives import KeyPair, apply_masks
from fedsyn.aggregation.secagg.shamir import SHARE, windows
from fedsyn.errors import ConfigError, ProtocolError

THREATS = pytest.mark.parametrize("threat", ["semi_honest", "malicious"])


def at(stage: str, clients: int = 20, **facts) -> tuple[Parties, Arrays, dict[int, Arrays]]:
    """A federation whose next round trip is `stage`, and what the honest server would send."""
    parties = Parties(session_of(clients, **facts))
    parties.until(stage)
    due, common, each = parties.server.outbox()
    assert due == stage
    return parties, common, each


def bitmap(clients: int, without: list[int]) -> np.ndarray:
    flags = np.ones(clients, bool)
    flags[without] = False
    return np.packbits(flags)


def refuses(parties: Parties, position: int, stage: str, inbox: Arrays, words: str) -> None:
    """The client refuses, leaves the sum, has forgotten its secrets and never computed its contribution for nothing."""
    partition = parties.session.clients[position]
    calls = parties.calls.get(partition, 0)
    with pytest.raises(ProtocolError, match=words):
        parties.ask(partition, stage, inbox)
    assert parties.calls.get(partition, 0) == calls
    assert set(parties.states[partition]) == {"session", "next"}
    for again in parties.session.stages:
        with pytest.raises(ProtocolError, match="left the secure sum"):
            parties.ask(partition, again, inbox)


def seen(parties: Parties) -> bytes:
    """The transcript of the keys that the honest server sent to all."""
    there = parties.server._alive["keys"]
    return transcript(parties.session, there, parties.server._publics[there].tobytes())


# ---- replays ---------------------------------------------------------------------------------------------------------


@THREATS
def test_each_stage_is_answered_once_and_in_order(threat: str) -> None:
    parties = Parties(session_of(20, threat=threat))
    partition = parties.session.clients[0]
    earlier: list[tuple[str, Arrays]] = []
    while not parties.server.done:
        stage, common, each = parties.server.outbox()
        for wrong in parties.session.stages:
            if wrong != stage:
                with pytest.raises(ProtocolError, match="once, in order"):
                    parties.ask(partition, wrong, [*common, *each[partition]])
        earlier.append((stage, [*common, *each[partition]]))
        parties.stage()
        for name, inbox in earlier:  # a refused replay costs nothing: the sum goes on
            with pytest.raises(ProtocolError, match="once, in order"):
                parties.ask(partition, name, inbox)
    assert parties.calls[partition] == 1
    with pytest.raises(ProtocolError, match="once, in order"):
        parties.ask(partition, "keys", [])
    np.testing.assert_array_equal(parties.server.result()[0], parties.total(parties.session.clients))


# ---- too few ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threat", "stage"),
    [(threat, stage) for threat in ("semi_honest", "malicious") for stage in ("shares", "masked")]
    + [("semi_honest", "unmask"), ("malicious", "agree")],  # the set at a malicious server's `unmask` is the signed one
)
def test_too_small_a_set_of_survivors_is_refused(threat: str, stage: str) -> None:
    parties, _, _ = at(stage, threat=threat)
    session = parties.session
    gone = [1, 2, 3]  # one more than may drop out
    server = parties.server
    server._in_play[gone] = False  # a server that goes on as if nothing were amiss
    stage, common, each = server.outbox()
    assert len(each) == session.fewest - 1
    for position in (0, 5):
        refuses(parties, position, stage, [*common, *each[session.clients[position]]], "fewer than the 18")


@THREATS
def test_a_client_counted_as_dropped_says_nothing(threat: str) -> None:
    """The double mask: its neighbours give away its mask key, so it must not give away its seed as well."""
    stage = "agree" if threat == "malicious" else "unmask"
    parties, _, _ = at(stage, threat=threat)
    refuses(parties, 4, stage, [bitmap(20, [4])], "counts as dropped")


@THREATS
def test_clients_do_not_come_back(threat: str) -> None:
    parties = Parties(session_of(20, threat=threat, dropouts=3))
    parties.until("masked", {"keys": [7]})
    stage, _, each = parties.server.outbox()
    refuses(parties, 0, stage, [bitmap(20, []), *each[parties.session.clients[0]]], "is back")
    parties.stage([0, 3])
    stage = parties.server.outbox()[0]
    refuses(parties, 5, stage, [bitmap(20, [3])], "is back")


@pytest.mark.thorough
def test_a_client_without_enough_neighbours_stops() -> None:
    """Enough clients are left, but they are not the neighbours of this one: its masks would not protect it."""
    parties, _, _ = at("unmask", 100)
    session = parties.session
    gone = [int(i) for i in session.neighbours[0][:10]]
    assert session.degree - len(gone) == session.threshold
    parties.ask(session.clients[0], "unmask", [bitmap(100, gone)])
    parties, _, _ = at("unmask", 300)  # a graph that is safe for nearly all, not for all, sets of dropouts
    session = parties.session
    gone = [int(i) for i in session.neighbours[0][: session.degree - session.threshold + 1]]
    refuses(parties, 0, "unmask", [bitmap(300, gone)], "too few neighbours")


# ---- both kinds of share ---------------------------------------------------------------------------------------------


@THREATS
def test_one_kind_of_share_per_peer(threat: str) -> None:
    """What a client reveals is the survivors' seed shares and the others' key shares; a second question is refused."""
    parties = Parties(session_of(20, threat=threat, graph="full"))
    gone = 7
    parties.until("unmask", {"masked": [gone]})
    stage, common, each = parties.server.outbox()
    session, asked = parties.session, parties.session.clients[0]
    state = parties.states[asked]
    pairs = parties.client(asked)._memory["shares"]
    reply = parties.ask(asked, stage, [*common, *each[asked]])
    for row, peer in enumerate(i for i in range(20) if i != 0):
        pair = pairs[row * 2 * SHARE : (row + 1) * 2 * SHARE]
        expected, kept = (pair[SHARE:], pair[:SHARE]) if peer == gone else (pair[:SHARE], pair[SHARE:])
        assert reply[2][row].tobytes() == expected
        assert kept not in reply[2].tobytes()
    with pytest.raises(ProtocolError, match="once, in order"):
        parties.ask(asked, stage, [bitmap(20, [8])] if threat == "semi_honest" else common)
    assert state != parties.states[asked]
    assert parties.client(asked)._memory == {}
    assert session.threshold > session.corrupted


# ---- keys ------------------------------------------------------------------------------------------------------------


def shares_inbox(parties: Parties, position: int) -> Arrays:
    _, common, each = parties.server.outbox()
    return [array.copy() for array in (*common, *each[parties.session.clients[position]])]


@pytest.mark.parametrize("facts", [{}, {"graph": "full"}, {"threat": "malicious"}], ids=["sparse", "full", "malicious"])
def test_keys_that_are_repeated_or_reflected_or_weak_are_refused(facts: dict[str, str]) -> None:
    low = [
        bytes(32),
        b"\1" + bytes(31),
        (2**255 - 20).to_bytes(32, "little"),
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    ]
    not_canonical = [(2**255 - 19 + 9).to_bytes(32, "little"), b"\xff" * 32, (9 + 2**255).to_bytes(32, "little")]
    for part in (0, 32):
        cases: list[tuple[bytes | str, str]] = [(key, "low order") for key in (*low, *not_canonical)]
        cases += [("own", "twice"), ("other", "twice"), ("swapped half", "twice")]
        for bad, words in cases:
            parties, _, _ = at("shares", 12, **facts)
            session = parties.session
            inbox = shares_inbox(parties, 0)
            victim = 1 if session.graph == "sparse" else 5  # row of a peer, not the client's own
            own = parties.server._publics[0]
            row = inbox[1][victim]
            if bad == "own":
                row[part : part + 32] = own[part : part + 32]
            elif bad == "other":
                row[part : part + 32] = inbox[1][victim - 1][part : part + 32]
            elif bad == "swapped half":
                row[part : part + 32] = row[32 - part : 64 - part].copy()
            else:
                row[part : part + 32] = np.frombuffer(bad, np.uint8)
            if session.threat == "malicious":  # the peer colludes: it signs what the server wants
                peer = parties.session.clients[victim]
                signature = parties.identities[peer].sign(keys_message(session, victim, row.tobytes()))
                inbox[2][victim] = np.frombuffer(signature, np.uint8)
            refuses(parties, 0, "shares", inbox, words)


@THREATS
def test_a_client_sees_that_its_own_keys_are_misrepresented(threat: str) -> None:
    parties, _, _ = at("shares", 12, threat=threat, graph="full")
    inbox = shares_inbox(parties, 3)
    inbox[1][3, :32] = np.random.default_rng(0).integers(0, 127, 32)
    refuses(parties, 3, "shares", inbox, "other public keys")


def servers_own_keys() -> np.ndarray:
    """Public keys whose secrets the server knows."""
    return np.frombuffer(KeyPair().public + KeyPair().public, np.uint8)


def test_keys_without_their_owners_signature_are_refused() -> None:
    """A server that puts itself between two clients, replays keys of another sum, or swaps two clients' keys."""

    def inserted(parties: Parties, inbox: Arrays) -> None:
        inbox[1][5] = servers_own_keys()

    def signed_by_stranger(parties: Parties, inbox: Arrays) -> None:
        inbox[1][5] = servers_own_keys()
        message = keys_message(parties.session, 5, inbox[1][5].tobytes())
        inbox[2][5] = np.frombuffer(Identity.generate().sign(message), np.uint8)

    def swapped(parties: Parties, inbox: Arrays) -> None:
        for array in inbox[1:]:
            array[[4, 5]] = array[[5, 4]]

    def of_another_sum(parties: Parties, inbox: Arrays) -> None:
        other = Session(b"another", parties.session.clients, 5, 1, 0, "malicious", "full")
        twin = Parties(other)
        twin.until("shares")
        inbox[1][5], inbox[2][5] = twin.server._publics[5], twin.server._signatures[5]

    def one_bit(parties: Parties, inbox: Arrays) -> None:
        inbox[2][5, 0] ^= 1

    for cheat in (inserted, signed_by_stranger, swapped, of_another_sum, one_bit):
        parties, _, _ = at("shares", 12, threat="malicious")
        inbox = shares_inbox(parties, 0)
        cheat(parties, inbox)
        refuses(parties, 0, "shares", inbox, "signature")


def test_a_server_with_the_roster_drops_whoever_signs_wrongly() -> None:
    for bad_stage in ("keys", "agree"):
        parties = Parties(session_of(20, threat="malicious"))
        culprit = parties.session.clients[2]

        def forge(stage, partition, reply, culprit=culprit, bad_stage=bad_stage):
            if (stage, partition) == (bad_stage, culprit):
                reply[-1] = reply[-1] ^ np.uint8(1)
            return reply

        parties.run(change=forge)
        assert "pinned identity" in parties.dropped[culprit]
        np.testing.assert_array_equal(parties.server.result()[0], parties.total(parties.server.result()[1]))


def test_shares_for_somebody_else_are_not_read() -> None:
    """Sealed shares that were moved to another receiver, sender or sum cannot be opened: they count as missing."""
    parties, common, each = at("masked", 20)
    asked = parties.session.clients[0]
    rows = each[asked][0].copy()
    rows[[0, 1]] = rows[[1, 0]]
    other = int(parties.session.neighbours[0][2])  # what this peer sealed for somebody else
    rows[2] = parties.server._sealed[other][(parties.server._slots[0][2] + 1) % parties.session.degree]
    parties.ask(asked, "masked", [*common, rows])
    held = np.unpackbits(np.frombuffer(parties.client(asked)._memory["held"], np.uint8))
    assert held[:4].tolist() == [0, 0, 0, 1]


def test_a_client_that_can_read_no_share_still_answers() -> None:
    parties, common, each = at("masked", 20)
    asked = parties.session.clients[0]
    parties.ask(asked, "masked", [*common, np.zeros_like(each[asked][0])])
    reply = parties.ask(asked, "unmask", [bitmap(20, [])])
    assert reply[2].shape == (0, SHARE) and not reply[1].any()


# ---- agreement -------------------------------------------------------------------------------------------------------


def agreement(clients: int = 20) -> tuple[Parties, np.ndarray, dict[int, bytes]]:
    """A malicious federation at `unmask`: who signed, and each signature."""
    parties, common, _ = at("unmask", clients, threat="malicious")
    return parties, common[0], {i: parties.server._signatures[i].tobytes() for i in range(clients)}


def unmask_inbox(clients: int, signatures: dict[int, bytes]) -> Arrays:
    signers = [i for i in range(clients) if i not in signatures]
    rows = [np.frombuffer(signatures[i], np.uint8) for i in sorted(signatures)]
    return [bitmap(clients, signers), np.array(rows, np.uint8).reshape(len(rows), 64)]


def test_shares_are_released_against_enough_valid_signatures_only() -> None:
    parties, _, signatures = agreement()
    session = parties.session
    message = survivors_message(session, seen(parties), np.ones(20, bool))
    smaller = survivors_message(session, seen(parties), np.arange(20) != 1)
    others = list(range(1, 20))

    def some(count: int) -> dict[int, bytes]:
        """This client's signature and those of `count` others."""
        return {0: signatures[0]} | {i: signatures[i] for i in others[:count]}

    need = session.fewest - 1  # besides its own
    stranger = Identity.generate()
    forgeries = {
        "missing": some(need - 1),
        "of strangers": some(need - 1) | {i: stranger.sign(message) for i in others[need - 1 :]},
        "on another set": some(need - 1)
        | {i: parties.identities[session.clients[i]].sign(smaller) for i in others[need - 1 :]},
        "repeated": some(need - 1) | dict.fromkeys(others[need - 1 :], signatures[1]),
        "flipped": {i: bytes([raw[0] ^ 1]) + raw[1:] for i, raw in signatures.items()},
    }
    before = dict(parties.states)
    for forged in forgeries.values():
        parties.states = dict(before)
        refuses(parties, 0, "unmask", unmask_inbox(20, forged), "valid signatures")
    parties.states = dict(before)
    reply = parties.ask(session.clients[0], "unmask", unmask_inbox(20, some(need)))
    assert len(reply[2]) == 19


def test_signatures_of_clients_outside_the_set_do_not_count() -> None:
    """A server that lets the dropped clients sign too, to make up the number."""
    parties = Parties(session_of(20, threat="malicious"))
    parties.until("agree", {"masked": [1, 2]})
    session = parties.session
    survivors = ~np.isin(np.arange(20), [1, 2])
    stage, common, each = parties.server.outbox()
    for partition in each:
        parties.ask(partition, stage, common)
    message = survivors_message(session, seen(parties), survivors)
    signatures = {i: parties.identities[session.clients[i]].sign(message) for i in range(20)}
    for position, others in ((0, range(4, 20)), (19, range(3, 19))):
        few = {position: signatures[position]} | {i: signatures[i] for i in (1, 2, *others)}
        assert len(few) >= session.fewest  # 18 or more in number, 17 of them of survivors
        refuses(parties, position, "unmask", unmask_inbox(20, few), "17 valid signatures")


def test_signatures_of_an_earlier_sum_with_the_same_facts_do_not_count() -> None:
    """A configuration that is run twice has the same sessions: what was signed once must not serve again."""
    earlier, _, signatures = agreement()
    parties, _, _ = agreement()
    assert earlier.session.digest == parties.session.digest
    refuses(parties, 0, "unmask", unmask_inbox(20, signatures), "1 valid signatures")


def test_keys_of_an_earlier_sum_with_the_same_facts_do_not_serve_again() -> None:
    """The server replays signed keys of a sum in which it learned the mask keys of those who dropped out.

    A client that masked for them alone would be bare once its seed is opened. It notices that nobody who holds those
    keys has sealed a share for it.
    """
    earlier, _, _ = at("shares", 20, threat="malicious")
    parties, common, _ = at("shares", 20, threat="malicious")
    session, asked = parties.session, parties.session.clients[0]
    replayed = range(5, 8)  # one more than may drop out
    for position in replayed:
        common[1][position] = earlier.server._publics[position]
        common[2][position] = earlier.server._signatures[position]
    fooled = parties.ask(asked, "shares", common)  # the signatures are good
    honest = parties.server.outbox()[1]
    replies = {c: parties.ask(c, "shares", honest) for c in session.clients[1:]}
    parties.server.receive({asked: fooled, **replies}, parties.dropped.setdefault)
    stage, common, each = parties.server.outbox()
    refuses(parties, 0, stage, [*common, *each[asked]], "may be replays")


def test_two_views_of_the_survivors_cannot_both_be_opened() -> None:
    """The server tells half of the clients that A dropped out and the others that it did not.

    With both kinds of share of A it could strip A's masked vector bare. Each half signs its own view; neither has
    enough signatures, even with the corrupted client's on both.
    """
    parties, _, _ = at("agree", 20, threat="malicious")
    session = parties.session
    victim, corrupted = 9, 3
    views = {0: np.ones(20, bool), 1: np.arange(20) != victim}
    signed: dict[int, dict[int, bytes]] = {0: {}, 1: {}}
    for position in range(20):
        if position == corrupted:
            for view, survivors in views.items():
                key = parties.identities[session.clients[position]]
                signed[view][position] = key.sign(survivors_message(session, seen(parties), survivors))
            continue
        view = 0 if position < 10 else 1
        reply = parties.ask(session.clients[position], "agree", [np.packbits(views[view])])
        signed[view][position] = reply[0].tobytes()
        with pytest.raises(ProtocolError, match="once, in order"):  # and nobody signs a second view
            parties.ask(session.clients[position], "agree", [np.packbits(views[1 - view])])
    for view, positions in ((0, range(10)), (1, range(10, 20))):
        for position in positions:
            if position != corrupted:
                before = dict(parties.states)
                refuses(parties, position, "unmask", unmask_inbox(20, signed[view]), "valid signatures")
                parties.states = before
                both = unmask_inbox(20, signed[1 - view] | signed[view])
                refuses(parties, position, "unmask", both, "1[01] valid signatures")


def test_no_two_sets_can_gather_enough_signatures() -> None:
    """Exhaustively: however the honest clients are divided, with the corrupted ones' signatures both fall short."""
    for clients in range(3, 30):
        for dropouts in range(clients):
            for corrupted in range(clients):
                try:
                    session = session_of(clients, dropouts=dropouts, corrupted=corrupted, threat="malicious")
                except ConfigError:
                    continue
                honest = clients - corrupted
                for first in range(honest + 1):
                    assert min(first + corrupted, honest - first + corrupted) < session.fewest


# ---- what a server can do with what it gets --------------------------------------------------------------------------


def test_refusing_clients_leave_the_sum_closed() -> None:
    """All honest clients refuse a too small set: a server that ignores its own rule still has no secret to use."""
    parties, _, _ = at("unmask", 20)
    server: SecureSumServer = parties.server
    session = parties.session
    small = [bitmap(20, [1, 2, 3])]
    revealed = []
    for partition in session.clients:
        try:
            revealed.append(parties.ask(partition, "unmask", small))
        except ProtocolError:
            assert parties.states[partition]["next"] == "left"
    assert not revealed
    with pytest.raises(ProtocolError):
        server.receive({}, parties.dropped.setdefault)


def test_late_vector_stays_hidden_by_the_self_mask() -> None:
    """The mask key of a client declared dropped takes its pairwise masks off its late vector, not its self mask."""
    session = session_of(20, length=4)
    parties = Parties(session, np.zeros((20, 4), np.uint64))
    parties.until("masked")
    stage, common, each = parties.server.outbox()
    late = session.clients[4]
    secret = parties.client(late)._memory["seed"]
    vector = parties.ask(late, stage, [*common, *each[late]])[0]
    parties.stage([4])
    while not parties.server.done:
        parties.stage()
    key = parties.server._secret(4, parties.server._is_mask_key)  # the server's, from the shares
    public = parties.server._publics[4, :32].tobytes()
    plus, minus = [], []
    for peer in map(int, session.neighbours[4]):
        other = parties.server._publics[peer, :32].tobytes()
        mask = pair_mask_key(session, 4, peer, public, other, KeyPair(key, public).agree(other))
        (minus if peer > 4 else plus).append(mask)
    apply_masks(vector, plus, minus)
    assert vector.any()  # what is left is the self mask ...
    apply_masks(vector, [], [self_mask_key(session, 4, secret)])
    assert not vector.any()  # ... and nothing else


# ---- memory and work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "graph"), [(30_000, "sparse"), (3_000, "full")])
def test_a_client_needs_memory_for_its_own_neighbours_only(clients: int, graph: str) -> None:
    """The server says how many clients a sum has; a table of all their neighbours would have 13 or 72 MB here."""
    session = Session(b"crowd", tuple(range(clients)), 1, clients // 10, clients // 20, graph=graph)
    client = SecureSumClient(session, 0)
    client.answer("keys", [])
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="1 arrays instead of 2"):
        client.answer("shares", [bitmap(clients, [])])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


@pytest.mark.parametrize("count", range(2, 90))
def test_whichever_single_share_is_wrong_a_window_avoids_it(count: int) -> None:
    for size in range(1, count):
        tried = [set(np.arange(start, start + size) % count) for start in windows(count, size)]
        assert all(any(share not in window for window in tried) for share in range(count))
        assert len(tried) == (count if count <= 64 else -(-count // (count - size)))
    assert windows(count, count) == [0] and windows(count, count + 1) == []


def joins(session: Session, liars: Sequence[int], gone: list[int], monkeypatch: pytest.MonkeyPatch) -> Parties:
    """A sum in which `gone` vanish before their vectors and `liars` reveal wrong shares; at most 12 joins are made."""
    parties, join, made = Parties(session), shamir.join, []

    def counted(points: tuple[int, ...], shares: Sequence[bytes]) -> bytes | None:
        made.append(points)
        assert len(made) <= 12
        return join(points, shares)

    def lie(stage: str, partition: int, reply: Arrays) -> Arrays:
        if stage == "unmask" and partition in {session.clients[i] for i in liars}:
            reply[2] = reply[2] ^ np.uint8(1)
        return reply

    monkeypatch.setattr(shamir, "join", counted)
    parties.run({"masked": gone}, change=lie)
    return parties


def test_a_client_that_lies_about_many_secrets_makes_the_server_search_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = joins(session_of(100, graph="full"), [20], list(range(10)), monkeypatch)
    total, contributors = parties.server.result()
    np.testing.assert_array_equal(total, parties.total(contributors))


def test_shares_that_fit_nowhere_are_not_joined_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a client that dealt nonsense and vanished: each of the 99 windows would cost an honest secret's work."""
    with pytest.raises(SecureSumAborted, match="shares of a secret"):
        joins(session_of(100, graph="full"), range(100), [7], monkeypatch)
