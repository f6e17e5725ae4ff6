"""The secure sums of the Distributed AIM paper, for the experiments on its running times.

Bell et al. 2020 ("Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", semi-honest) on a sparse graph of
neighbours, and Bonawitz et al. 2017 ("Practical Secure Aggregation for Privacy-Preserving Machine Learning") on the
full one, also malicious. fedsyn itself forms secure sums with a committee (docs/secure_sums.md); keys, masks, shares
and the noise are its own. Every sum agrees its own keys, in one exchange per stage:

| stage  | a client receives                        | a client sends                                             |
|--------|------------------------------------------|------------------------------------------------------------|
| keys   | nothing                                  | two public keys: of masks, of sealed shares [+ signature]  |
| shares | its neighbours' keys [their signatures]  | per neighbour, sealed: a share of the seed of its own mask |
|        |                                          | and one of its mask key                                    |
| masked | the shares that are sealed for it        | its vector + its own mask +- a mask for each neighbour     |
| agree  | [whose vector arrived]                   | [a signature on that set]                                  |
| unmask | whose vector arrived [signatures on it]  | its seed; per neighbour the seed's share, or the mask      |
|        |                                          | key's if its vector did not arrive                         |

[...] with `threat: malicious` only. All parties are one process and follow the protocol. Signatures are checked, since
that costs time; whatever else a client would have to refuse is not looked for. So this is no protocol for a deployment.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import Answering, ClientSum, Limits, Message, ServerSum, promised
from fedsyn.aggregation.secagg import shamir, wire
from fedsyn.aggregation.secagg.facts import SecureSumAborted
from fedsyn.aggregation.secagg.size import hypergeometric_tail
from fedsyn.aggregation.secure import SecureAggregation, read_cohort, read_place, write_cohort
from fedsyn.crypto.primitives import (
    KEY,
    SIGNATURE,
    TAG,
    Identity,
    KeyPair,
    Roster,
    apply_masks,
    derive,
    key_stream,
    seal,
    signed_by,
    unseal,
)
from fedsyn.errors import ProtocolError
from fedsyn.privacy import DistributedNoise
from fedsyn.wire.envelope import Arrays, Stage, SumSpec, to_json

KEYS, SHARES, MASKED, AGREE, UNMASK = "keys", "shares", "masked", "agree", "unmask"
STATE = "bell"  # what a client remembers of the sum that is under way, in the holder's state
_PAIR = 2 * shamir.SHARE  # a share of the seed, then one of the mask key
Replies = dict[int, Arrays]  # by position in the cohort
Total = tuple[npt.NDArray[np.uint64], tuple[int, ...]]


@lru_cache(maxsize=64)
def degree_and_threshold(n: int, corrupted: int, dropouts: int, failure_bits: int) -> tuple[int, int]:
    """Returns the smallest even degree k, and the largest threshold t with it, that keep three promises.

    Bell et al., Section 3.4, with exact fractions: (1) no honest client has t corrupted neighbours, and (2) the honest
    survivors stay connected, which fails only if two disjoint windows of k / 2 places on the circle are gone; both
    together except with probability 2^-failure_bits. (3) Every client keeps t neighbours, except with as much. Where no
    k < n - 1 keeps them, the graph is full and t a majority (Bonawitz et al.).
    """
    allowed, lost = Fraction(1, 2**failure_bits), 0
    for k in range(2, n - 1, 2):
        while n * hypergeometric_tail(n - 1, dropouts, k, lost + 1) > allowed:
            lost += 1
        removed, pairs = corrupted + dropouts, Fraction(n * (n - k + 1), 2)
        apart = pairs * Fraction(math.perm(removed, k), math.perm(n, k))
        exposed = (n - corrupted) * hypergeometric_tail(n - 1, corrupted, k, k - lost)
        if lost < k and exposed + apart <= allowed:
            return k, k - lost
    return n - 1, min(n - 1 - dropouts, max(corrupted + 1, n // 2 + 1))


@dataclass(frozen=True)
class Facts:
    """The public facts of one sum.

    Attributes:
        digest: of all of them; every key is bound to it.
        clients: partition ids asked, ascending.
        fewest: contributors below which nothing is opened.
        threshold: shares that give a secret.
        neighbours: (n, k) positions, ascending in each row.
    """

    digest: bytes
    clients: tuple[int, ...]
    fewest: int
    threshold: int
    neighbours: npt.NDArray[np.int64]

    def peers(self, position: int, alive: wire.Flags) -> list[int]:
        row = self.neighbours[position]
        return [int(i) for i in row[alive[row]]]

    def pair_mask(self, one: int, other: int, keys: Mapping[int, bytes], agreed: bytes) -> bytes:
        """Returns the key of the mask of a pair, the same for both of them."""
        ends = sorted((one, other))
        return derive(agreed, self.digest, b"pair mask", ends, [keys[i] for i in ends])

    def own_mask(self, position: int, seed: bytes) -> bytes:
        return derive(seed, self.digest, b"self mask", (position,))

    def bound(self, purpose: bytes, *parts: bytes) -> bytes:
        """Returns what is signed, or what a sealed share is bound to."""
        return b"bell: " + purpose + b"\0" + self.digest + b"".join(parts)


@lru_cache(maxsize=8)  # all clients of a simulation share it
def facts_of(
    cohort: tuple[int, ...], limits: Limits, spec: SumSpec, bits: int, sparse: bool, name: tuple[Any, ...]
) -> Facts:
    n = len(cohort)
    text = json.dumps([*name, to_json(asdict(spec)), list(cohort), asdict(limits), bits, sparse])
    digest = hashlib.sha256(text.encode()).digest()
    full = n - 1, min(n - 1 - limits.dropouts, max(limits.colluding + 1, n // 2 + 1))
    degree, threshold = degree_and_threshold(n, limits.colluding, limits.dropouts, bits) if sparse else full
    if degree == n - 1:
        table = np.broadcast_to(np.arange(n), (n, n))[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    else:  # a circle in random order, each joined to the k / 2 next ones on either side
        order = np.argsort(np.frombuffer(key_stream(digest, 8 * n), "<u8"), kind="stable")
        steps = np.array([s for s in range(-(degree // 2), degree // 2 + 1) if s])
        table = np.empty((n, degree), np.int64)
        table[order] = np.sort(order[(np.arange(n)[:, None] + steps) % n], axis=1)
    return Facts(digest, cohort, limits.fewest, threshold, table)


class Client:
    """One client of one sum. Between two stages it is a small JSON-able dictionary.

    Args:
        facts: of the sum.
        position: this client's, in the cohort.
        state: what it remembers; changed by every stage.
        identity: its signing key where the threat is malicious; None elsewhere.
        roster: the pinned public keys of all clients.
    """

    def __init__(
        self, facts: Facts, position: int, state: dict[str, str], identity: Identity | None, roster: Roster
    ) -> None:
        self.facts, self.me, self.state, self.identity, self.roster = facts, position, state, identity, roster

    def answer(self, stage: str, inbox: Arrays, vector: npt.NDArray[np.uint64] | None) -> Arrays:
        """Returns the reply to one stage; one of them has the vector."""
        if stage == MASKED:
            assert vector is not None
            return self.masked(inbox, vector)
        return {KEYS: self.keys, SHARES: self.shares, AGREE: self.agree, UNMASK: self.unmask}[stage](inbox)

    def keys(self, inbox: Arrays) -> Arrays:
        mask, channel = KeyPair(), KeyPair()
        publics = mask.public + channel.public
        self._keep(mask=mask.secret, channel=channel.secret, publics=publics)
        return [_array(publics), *self._signed(b"keys", publics)]

    def shares(self, inbox: Arrays) -> Arrays:
        facts, me, publics, peers = self.facts, self.me, self._kept("publics"), self._peers(inbox[0])
        theirs = dict(zip(peers, wire.rows(inbox[1]), strict=True))
        if self.identity is not None:
            for peer, signature in zip(peers, wire.rows(inbox[2]), strict=True):
                self._check(peer, signature, facts.bound(b"keys", theirs[peer]))
        own, seed, points = KeyPair(self._kept("channel"), publics[KEY:]), os.urandom(KEY), [i + 1 for i in peers]
        parts = [shamir.split(secret, facts.threshold, points) for secret in (seed, self._kept("mask"))]
        sealed, opening = [], []
        for peer, one, other in zip(peers, *parts, strict=True):
            agreed, ends = own.agree(theirs[peer][KEY:]), (publics[KEY:], theirs[peer][KEY:])
            key = derive(agreed, facts.digest, b"seal", (me, peer), ends)
            sealed.append(seal(key, one + other, facts.bound(b"share")))
            opening.append(derive(agreed, facts.digest, b"seal", (peer, me), ends[::-1]))
        seen = hashlib.sha256(b"".join(key for _, key in sorted([*theirs.items(), (me, publics)]))).digest()
        self._keep(seed=seed, alive=inbox[0].tobytes(), opening=b"".join(opening), seen=seen)
        self._keep(peers=b"".join(key[:KEY] for key in theirs.values()))
        return [wire.table(sealed, _PAIR + TAG)]

    def masked(self, inbox: Arrays, vector: npt.NDArray[np.uint64]) -> Arrays:
        facts, me, before, peers = self.facts, self.me, self._peers(_array(self._kept("alive"))), self._peers(inbox[0])
        keys = dict(zip(before, _parts(self._kept("peers"), KEY), strict=True)) | {me: self._kept("publics")[:KEY]}
        opening = dict(zip(before, _parts(self._kept("opening"), KEY), strict=True))
        shares = []
        for peer, sealed in zip(peers, wire.rows(inbox[1]), strict=True):
            share = unseal(opening[peer], sealed, facts.bound(b"share"))
            if share is None:
                raise ProtocolError("a share is sealed for somebody else")
            shares.append(share)
        pair, plus, minus = KeyPair(self._kept("mask"), keys[me]), [facts.own_mask(me, self._kept("seed"))], []
        for peer in peers:
            (plus if me < peer else minus).append(facts.pair_mask(me, peer, keys, pair.agree(keys[peer])))
        values = np.array(vector)
        apply_masks(values, plus, minus)
        self._keep(alive=inbox[0].tobytes(), shares=b"".join(shares))
        return [values]

    def agree(self, inbox: Arrays) -> Arrays:
        self._keep(survivors=inbox[0].tobytes())
        return self._signed(b"survivors", self._kept("seen"), self._kept("survivors"))

    def unmask(self, inbox: Arrays) -> Arrays:
        if self.identity is not None:
            self._check_agreement(inbox)
        survivors = self._flags(_array(self._kept("survivors")) if self.identity is not None else inbox[0])
        peers, pairs = self._peers(_array(self._kept("alive"))), _parts(self._kept("shares"), _PAIR)
        revealed = [
            pair[: shamir.SHARE] if survivors[peer] else pair[shamir.SHARE :]
            for peer, pair in zip(peers, pairs, strict=True)
        ]
        seed = self._kept("seed")
        self.state.clear()
        return [_array(seed), wire.table(revealed, shamir.SHARE)]

    def _check_agreement(self, inbox: Arrays) -> None:
        """Raises ProtocolError unless as many as have to contribute signed the set that this client signed."""
        message = self.facts.bound(b"survivors", self._kept("seen"), self._kept("survivors"))
        signers = zip(wire.members(self._flags(inbox[0])), wire.rows(inbox[1]), strict=True)
        others = [(i, signature) for i, signature in signers if i != self.me][: self.facts.fewest - 1]
        for i, signature in others:
            self._check(i, signature, message)
        if 1 + len(others) < self.facts.fewest:
            raise ProtocolError("too few clients signed the set of survivors")

    def _signed(self, purpose: bytes, *parts: bytes) -> Arrays:
        return [] if self.identity is None else [_array(self.identity.sign(self.facts.bound(purpose, *parts)))]

    def _check(self, position: int, signature: bytes, message: bytes) -> None:
        if not signed_by(self.roster[self.facts.clients[position]], signature, message):
            raise ProtocolError("a signature is not that of the pinned identity")

    def _flags(self, array: npt.NDArray[Any]) -> wire.Flags:
        return wire.read_flags(array, len(self.facts.clients))

    def _peers(self, alive: npt.NDArray[Any]) -> list[int]:
        return self.facts.peers(self.me, self._flags(alive))

    def _keep(self, **parts: bytes) -> None:
        self.state.update({name: base64.b64encode(part).decode("ascii") for name, part in parts.items()})

    def _kept(self, name: str) -> bytes:
        return base64.b64decode(self.state[name])


def form(
    facts: Facts, malicious: bool, length: int
) -> Generator[tuple[str, Arrays, dict[int, Arrays]], Replies, Total]:
    """Yields each stage with its arrays, is sent the replies, and returns the server's total.

    Args:
        facts: of the sum.
        malicious: whether keys and survivors are signed.
        length: of the vectors.

    Raises:
        SecureSumAborted: too few are left; nothing is opened.
    """

    def flags(replies: Iterable[int]) -> wire.Flags:
        there = np.zeros(len(facts.clients), bool)
        there[list(replies)] = True
        return there

    def stage(name: str, common: Arrays, each: dict[int, Arrays]) -> Generator[Any, Replies, Replies]:
        replies = yield name, common, each
        if len(replies) < facts.fewest:
            raise SecureSumAborted(f"{len(replies)} clients answered {name}, {facts.fewest} are needed")
        return replies

    sent = yield from stage(KEYS, [], {i: [] for i in range(len(facts.clients))})
    near = {i: facts.peers(i, flags(sent)) for i in sent}
    lists = [[np.array([sent[peer][a] for peer in near[i]], np.uint8) for a in range(1 + malicious)] for i in sent]
    dealt = yield from stage(SHARES, [wire.write_flags(flags(sent))], dict(zip(sent, lists, strict=True)))
    shared = {i: facts.peers(i, flags(dealt)) for i in dealt}
    sealed = {(owner, peer): row for owner in dealt for peer, row in zip(near[owner], dealt[owner][0], strict=True)}
    boxes = {i: [np.array([sealed[owner, i] for owner in shared[i]], np.uint8)] for i in dealt}
    masked = yield from stage(MASKED, [wire.write_flags(flags(dealt))], boxes)
    total = np.zeros(length, np.uint64)
    for arrays in masked.values():
        total += wire.read_vector(arrays[0], length)
    asked, proof = masked, [wire.write_flags(flags(masked))]
    if malicious:
        asked = yield from stage(AGREE, proof, {i: [] for i in masked})
        proof = [wire.write_flags(flags(asked)), wire.table([asked[i][0].tobytes() for i in sorted(asked)], SIGNATURE)]
    opened = yield from stage(UNMASK, proof, {i: [] for i in asked})
    shares: dict[int, dict[int, bytes]] = {}
    for holder, (_, revealed) in opened.items():
        for owner, share in zip(shared[holder], wire.rows(revealed), strict=True):
            shares.setdefault(owner, {})[holder + 1] = share

    def secret(owner: int) -> bytes:
        points = tuple(sorted(shares.get(owner, {})))[: facts.threshold]
        found = shamir.join(points, [shares[owner][point] for point in points]) if points else None
        if found is None or len(points) < facts.threshold:
            raise SecureSumAborted("too few neighbours of a client that dropped out are left")
        return found

    plus: list[bytes] = []
    minus = [facts.own_mask(i, opened[i][0].tobytes() if i in opened else secret(i)) for i in masked]
    keys = {i: sent[i][0][:KEY].tobytes() for i in dealt}
    for gone in set(dealt) - set(masked):  # its masks are in its neighbours' vectors
        pair = KeyPair(secret(gone), keys[gone])
        for peer in facts.peers(gone, flags(masked)):
            mask = facts.pair_mask(gone, peer, keys, pair.agree(keys[peer]))
            (minus if peer < gone else plus).append(mask)
    apply_masks(total, plus, minus)
    return total, tuple(facts.clients[i] for i in sorted(masked))


class Bonawitz(SecureAggregation):
    """Secure sums on the full graph; `fedsyn.aggregation.PROTOCOLS["secagg"]` while an experiment runs."""

    sparse = False

    def answer(self, part: ClientSum) -> Answering:
        assert part.stage is not None
        stage, arrays, state = part.stage, part.call.arrays, part.holder.state
        cohort = read_cohort(arrays[stage.skip], part.spec.asked)
        (partition,) = read_place(arrays[-1], 1)
        identity, roster = part.holder.identities() if self.node.threat == "malicious" else (None, {})
        facts = self._sum(part.spec, cohort, (part.name, part.call.round, part.config_hash, stage.run))
        if stage.name == KEYS:
            state[STATE] = {}
        client = Client(facts, bisect_left(cohort, partition), state[STATE], identity, roster)
        vector = None
        if stage.name == MASKED:
            vector = self.vector(part, (yield arrays[: stage.skip]))
        return client.answer(stage.name, arrays[stage.skip + 1 : -1], vector)

    def _total(self, whole: ServerSum, noise: DistributedNoise) -> Generator[Message, Any, Total]:
        facts = self._sum(
            whole.spec, tuple(whole.asked.cohort), (whole.name, whole.record.round, whole.config_hash, self._run)
        )
        steps, replies = form(facts, self.node.threat == "malicious", whole.spec.length), None
        while True:
            try:
                stage, common, each = steps.send(replies)
            except StopIteration as end:
                return end.value
            if stage == UNMASK and self.node.noise != "server":
                whole.ledger.promise(promised(whole, noise))
            ours = list(whole.asked.arrays) if stage == MASKED else []
            named = {facts.clients[i]: [*arrays, np.array([facts.clients[i]], np.int64)] for i, arrays in each.items()}
            place = Stage(stage, len(ours), self._run)
            arrays = [*ours, write_cohort(whole.asked.cohort), *common]
            came = yield Message(sorted(named), arrays, named, place, exact=stage == MASKED)
            replies = {i: came[facts.clients[i]].arrays for i in each if facts.clients[i] in came}

    def _sum(self, spec: SumSpec, cohort: tuple[int, ...], name: tuple[Any, ...]) -> Facts:
        sparse = self.sparse and self.node.threat == "semi_honest"
        return facts_of(cohort, self.limits(len(cohort)), spec, self.node.statistical_security_bits, sparse, name)


class Bell(Bonawitz):
    """Secure sums on the sparse graph, semi-honest."""

    sparse = True


def _parts(raw: bytes, size: int) -> list[bytes]:
    return [raw[i : i + size] for i in range(0, len(raw), size)]


def _array(raw: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8)
