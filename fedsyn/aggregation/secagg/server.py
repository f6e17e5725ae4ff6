"""The server's half of one secure sum. See the package's docstring for the stages and for who sees what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.secagg import graph, shamir, wire
from fedsyn.aggregation.secagg.bindings import (
    keys_message,
    pair_mask_key,
    seed_commitment,
    self_mask_key,
    survivors_message,
    transcript,
)
from fedsyn.aggregation.secagg.primitives import (
    KEY,
    SIGNATURE,
    KeyPair,
    Roster,
    apply_masks,
    signed_by,
    usable_public_key,
)
from fedsyn.aggregation.secagg.session import (
    AGREE,
    KEYS,
    MALICIOUS,
    MASKED,
    SHARES,
    SPARSE,
    UNMASK,
    SecureSumAborted,
    Session,
)
from fedsyn.errors import ProtocolError

Drop = Callable[[int, str], None]


class SecureSumServer:
    """The server of one secure sum: take `outbox`, carry it to the clients, hand their replies to `receive`, repeat.

    Args:
        session: the public facts.
        roster: the clients' pinned public keys, if the server has them. It then refuses a client with a bad signature,
            which otherwise every other client would, and the sum would end.

    Attributes:
        done: whether the sum is open.
    """

    def __init__(self, session: Session, roster: Roster | None = None) -> None:
        self.session = session
        self.done = False
        self._roster = roster if session.threat == MALICIOUS else None
        n, k = len(session.clients), session.degree
        self._stage = 0
        self._ended = ""
        self._in_play = np.ones(n, bool)  # answered every stage so far
        self._alive: dict[str, wire.Flags] = {}  # stage -> who had answered up to and including it
        self._table = session.neighbours
        self._slots = graph.slots(self._table)
        self._publics = np.zeros((n, wire.KEYS_SIZE), np.uint8)
        self._signatures = np.zeros((n, SIGNATURE), np.uint8)
        self._sealed = np.zeros((n, k, wire.SEALED_SIZE), np.uint8)  # by sender and its neighbours
        self._commitments: dict[int, bytes] = {}
        self._total = np.zeros(session.length, np.uint64)
        self._seeds: dict[int, bytes] = {}
        self._held = np.zeros((n, k), bool)  # by holder and its neighbours
        self._right = np.zeros(n, bool)  # whose shares have given a secret
        self._shares = np.zeros((n, k, shamir.SHARE), np.uint8)

    # ---- what goes out -------------------------------------------------------------------------------------------

    def outbox(self) -> tuple[str, wire.Arrays, dict[int, wire.Arrays]]:
        """The next stage's name, the arrays for all, and the further arrays of each client that is still in play.

        Raises:
            SecureSumAborted: if the sum has ended without being opened.
            ProtocolError: if it is done.
        """
        stage = self._due()
        positions = wire.members(self._in_play)
        common: wire.Arrays = []
        each: dict[int, wire.Arrays] = {i: [] for i in positions}
        if stage == SHARES:
            common = [wire.write_flags(self._in_play)]
            if self.session.graph == SPARSE:
                each = {i: [self._publics[self._of(i, self._in_play)]] for i in positions}
            else:
                common.append(self._publics[self._in_play])
            if self.session.threat == MALICIOUS:
                common.append(self._signatures[self._in_play])
        elif stage == MASKED:
            common = [wire.write_flags(self._in_play)]
            for i in positions:
                there = self._in_play[self._table[i]]
                each[i] = [self._sealed[self._table[i][there], self._slots[i][there]]]
        elif stage == AGREE or (stage == UNMASK and self.session.threat != MALICIOUS):
            common = [wire.write_flags(self._in_play)]
        elif stage == UNMASK:
            common = [wire.write_flags(self._in_play), self._signatures[self._in_play]]
        clients = self.session.clients
        return stage, common, {clients[i]: arrays for i, arrays in each.items()}

    def _of(self, position: int, alive: wire.Flags) -> npt.NDArray[np.int64]:
        """Positions of a client's neighbours among `alive`, ascending."""
        row = self._table[position]
        return np.asarray(row[alive[row]])

    def _due(self) -> str:
        if self._ended:
            raise SecureSumAborted(self._ended)
        if self.done:
            raise ProtocolError("the secure sum is done")
        return self.session.stages[self._stage]

    # ---- what comes in -------------------------------------------------------------------------------------------

    def enough(self, replied: Collection[int]) -> bool:
        """Whether the sum can go on, or be opened, with the replies of these partitions."""
        return len(replied) >= self.session.fewest

    def receive(self, replies: Mapping[int, wire.Arrays], drop: Drop) -> None:
        """Takes one stage's replies; whoever is missing has dropped out.

        Args:
            replies: by partition.
            drop: called with the partition and the reason for every reply that is refused.

        Raises:
            SecureSumAborted: when fewer than `session.fewest` clients are left; nothing is opened.
        """
        stage = self._due()
        read = {
            KEYS: self._read_keys,
            SHARES: self._read_shares,
            MASKED: self._read_masked,
            AGREE: self._read_agree,
            UNMASK: self._read_unmask,
        }[stage]
        answered = np.zeros(len(self._in_play), bool)
        for partition in sorted(replies):
            position = self.session.position(partition)
            if position < 0 or not self._in_play[position]:
                drop(partition, f"was not asked in stage {stage} of the secure sum")
                continue
            try:
                read(position, replies[partition])
                answered[position] = True
            except ProtocolError as error:
                drop(partition, str(error))
        if stage == KEYS:
            for position in self._duplicates(answered):
                answered[position] = False
                drop(self.session.clients[position], "sent a public key that another client sent too")
        self._in_play = answered
        self._alive[stage] = answered
        left = int(answered.sum())
        if left < self.session.fewest:
            self._abort(f"{left} clients answered stage {stage}, {self.session.fewest} are needed")
        self._stage += 1
        if stage == UNMASK:
            self._open()

    def _abort(self, reason: str) -> None:
        """Ends the sum, forgets everything that was collected and raises."""
        self._ended = f"the secure sum ended and nothing was opened: {reason}"
        self._total = np.zeros(0, np.uint64)
        self._seeds, self._shares, self._sealed = {}, self._shares[:0], self._sealed[:0]
        raise SecureSumAborted(self._ended)

    def _read_keys(self, position: int, arrays: wire.Arrays) -> None:
        signed = self.session.threat == MALICIOUS
        wire.count_arrays(arrays, 2 if signed else 1)
        raw = wire.read_bytes(arrays[0], wire.KEYS_SIZE)
        publics = raw.tobytes()
        if not (usable_public_key(publics[:KEY]) and usable_public_key(publics[KEY:])):
            raise ProtocolError("a public key is malformed or of low order")
        if signed:
            signature = wire.read_bytes(arrays[1], SIGNATURE)
            self._check_signature(position, signature, keys_message(self.session, position, publics))
            self._signatures[position] = signature
        self._publics[position] = raw

    def _check_signature(self, position: int, signature: wire.Bytes, message: bytes) -> None:
        if self._roster is None:
            return
        public = self._roster.get(self.session.clients[position], b"")
        if not signed_by(public, signature.tobytes(), message):
            raise ProtocolError("a signature is not that of the pinned identity")

    def _duplicates(self, answered: wire.Flags) -> list[int]:
        """Positions of the clients that sent a public key which occurs twice."""
        owners: dict[bytes, list[int]] = {}
        for position in wire.members(answered):
            publics = self._publics[position].tobytes()
            for key in (publics[:KEY], publics[KEY:]):
                owners.setdefault(key, []).append(position)
        return sorted({position for group in owners.values() if len(group) > 1 for position in group})

    def _read_shares(self, position: int, arrays: wire.Arrays) -> None:
        wire.count_arrays(arrays, 2)
        there = self._alive[KEYS][self._table[position]]
        sealed = wire.read_bytes(arrays[0], int(there.sum()), wire.SEALED_SIZE)
        self._commitments[position] = wire.read_bytes(arrays[1], KEY).tobytes()
        self._sealed[position, there] = sealed

    def _read_masked(self, position: int, arrays: wire.Arrays) -> None:
        wire.count_arrays(arrays, 1)
        self._total += wire.read_vector(arrays[0], self.session.length)

    def _read_agree(self, position: int, arrays: wire.Arrays) -> None:
        wire.count_arrays(arrays, 1)
        signature = wire.read_bytes(arrays[0], SIGNATURE)
        if self._roster is not None:
            there = self._alive[KEYS]
            seen = transcript(self.session, there, self._publics[there].tobytes())
            self._check_signature(position, signature, survivors_message(self.session, seen, self._alive[MASKED]))
        self._signatures[position] = signature

    def _read_unmask(self, position: int, arrays: wire.Arrays) -> None:
        wire.count_arrays(arrays, 3)
        there = np.flatnonzero(self._alive[SHARES][self._table[position]])
        seed = wire.read_bytes(arrays[0], KEY).tobytes()
        held = wire.read_flags(arrays[1], len(there))
        shares = wire.read_bytes(arrays[2], int(held.sum()), shamir.SHARE)
        if seed_commitment(self.session, position, seed) != self._commitments[position]:
            raise ProtocolError("the seed of a self mask is not the one that was shared")
        self._seeds[position] = seed
        self._held[position, there[held]] = True
        self._shares[position, there[held]] = shares

    # ---- the sum -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Takes the self masks off the sum, and the pairwise masks that the dropped clients left in it."""
        session, survivors = self.session, self._alive[MASKED]
        seeds = dict(self._seeds)
        for position in wire.members(survivors & ~self._in_play):  # gone after their masked vector
            seeds[position] = self._secret(position, self._is_seed)
        plus: list[bytes] = []
        minus = [self_mask_key(session, i, seed) for i, seed in seeds.items()]
        for position in wire.members(self._alive[SHARES] & ~survivors):
            public = self._publics[position, :KEY].tobytes()
            pair = KeyPair(self._secret(position, self._is_mask_key), public)
            for other in (int(i) for i in self._of(position, survivors)):
                key = self._publics[other, :KEY].tobytes()
                mask = pair_mask_key(session, position, other, public, key, pair.agree(key))
                (minus if other < position else plus).append(mask)  # the lower of the two had added it
        apply_masks(self._total, plus, minus)
        self.done = True

    def _is_seed(self, position: int, secret: bytes) -> bool:
        return seed_commitment(self.session, position, secret) == self._commitments[position]

    def _is_mask_key(self, position: int, secret: bytes) -> bool:
        return KeyPair(secret).public == self._publics[position, :KEY].tobytes()

    def _secret(self, owner: int, right: Callable[[int, bytes], bool]) -> bytes:
        """A secret of `owner` from the shares that its neighbours revealed; aborts if they do not give it.

        One wrong share among more than t is left out, see `shamir.windows`. Who was right before comes first, so that a
        client that lies about many secrets makes the server search once.
        """
        threshold = self.session.threshold
        row, slots = self._table[owner], self._slots[owner]
        usable = self._in_play[row] & self._held[row, slots]
        usable = np.flatnonzero(usable)[np.argsort(~self._right[row[usable]], kind="stable")]
        holders, shares = row[usable], self._shares[row[usable], slots[usable]]
        count = len(holders)
        for start in shamir.windows(count, threshold):
            chosen = np.arange(start, start + threshold) % count
            points = tuple(int(i) + 1 for i in holders[chosen])
            secret = shamir.join(points, wire.rows(shares[chosen]))
            if secret is not None and right(owner, secret):
                self._right[holders[chosen]] = True
                return secret
        self._abort(f"a client that dropped out cannot be replaced: {count} shares of a secret do not give it")
        raise AssertionError  # not reached

    def result(self) -> tuple[npt.NDArray[np.uint64], tuple[int, ...]]:
        """The (length,) sum modulo 2^64 over the contributors, and their partitions, ascending.

        Raises:
            SecureSumAborted: if nothing was opened.
            ProtocolError: if stages are missing.
        """
        if self._ended:
            raise SecureSumAborted(self._ended)
        if not self.done:
            raise ProtocolError("the secure sum is not finished")
        return self._total, tuple(self.session.clients[i] for i in wire.members(self._alive[MASKED]))
