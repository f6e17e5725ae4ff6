"""The server's half: a setup, and the sums that it serves.

The package's docstring says who sees what.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.secagg import shamir, wire
from fedsyn.aggregation.secagg.client import SEALED, check_keys
from fedsyn.aggregation.secagg.facts import (
    DEAL,
    ENROL,
    EPOCHS,
    MASKED,
    NONCE,
    RECOVER,
    UNMASK,
    Committee,
    SecureSumAborted,
    Setup,
    SumFacts,
    enrolment,
    epoch_keys,
    layer_key,
    mask_key,
)
from fedsyn.crypto.primitives import (
    KEY,
    SIGNATURE,
    KeyPair,
    Roster,
    apply_masks,
    signed_by,
    usable_public_key,
)
from fedsyn.errors import ConfigError, ProtocolError, refuse

Drop = Callable[[int, str], None]
_ARRAYS = ("publics", "dealt", "keys", "signatures", "sealed")  # of a setup, in the order of its fields
Replies = Mapping[int, wire.Arrays]


@dataclass(frozen=True)
class StageRequest:
    """One exchange of a setup or a sum: who is asked what.

    The generator that yields it is sent the replies by partition.

    Attributes:
        stage: its name.
        common: arrays for all who are asked.
        each: further arrays of each of them, by partition.
        enough: whether what comes next can be had with the replies of these partitions.
    """

    stage: str
    common: wire.Arrays
    each: dict[int, wire.Arrays]
    enough: Callable[[Collection[int]], bool]


@dataclass
class Established:
    """A finished setup, as the server keeps it.

    Attributes:
        committee: its members.
        publics: (n, 32) enrolled clients' keys, by rank among the enrolled.
        dealt: (m,) members that have dealt.
        keys: (EPOCHS, m, 32) their public keys.
        signatures: (EPOCHS, m, 64) on these, if the threat is malicious.
        sealed: (EPOCHS, m, m, 49) shares, by sender and receiver; noise to the server.
        epoch: that sums use now.
        revealed: secret key of this epoch of each member that was gone, by seat.
        unreachable: seats of members that did not answer when they were asked last.
    """

    committee: Committee
    publics: wire.Bytes
    dealt: wire.Flags
    keys: wire.Bytes
    signatures: wire.Bytes
    sealed: wire.Bytes
    epoch: int = 0
    revealed: dict[int, bytes] = field(default_factory=dict)
    unreachable: set[int] = field(default_factory=set)

    @property
    def transcript(self) -> bytes:
        return self.committee.transcript(self.publics.tobytes())

    @property
    def is_spent(self) -> bool:
        """True if every epoch has been used up."""
        return self.epoch >= EPOCHS

    def renew(self) -> None:
        """Ends an epoch in which a key was revealed.

        Absent clients may return while others leave.
        """
        if self.revealed:
            self.epoch, self.revealed = self.epoch + 1, {}

    def progress(self) -> dict[str, Any]:
        """Returns what sums change of the setup, as JSON values."""
        revealed = [[seat, key.hex()] for seat, key in self.revealed.items()]
        return {"epoch": self.epoch, "revealed": revealed, "unreachable": sorted(self.unreachable)}

    def to_entry(self) -> dict[str, Any]:
        """Returns the rest of the setup, as JSON values and arrays."""
        setup, arrays = self.committee.setup, {name: getattr(self, name) for name in _ARRAYS}
        facts = {"number": setup.number, "identifier": setup.identifier.hex(), "invited": list(setup.clients)}
        return {**facts, "enrolled": self.committee.enrolled.hex(), **arrays}

    @classmethod
    def read(cls, setup: Setup, entry: Mapping[str, Any], progress: Mapping[str, Any]) -> Established:
        """Restores a setup from `to_entry` and `progress`."""
        established = cls(Committee(setup, bytes.fromhex(entry["enrolled"])), *(entry[name] for name in _ARRAYS))
        established.epoch, established.unreachable = int(progress["epoch"]), set(progress["unreachable"])
        established.revealed = {int(seat): bytes.fromhex(key) for seat, key in progress["revealed"]}
        return established

    def public_of(self, position: int) -> bytes:
        return bytes(self.publics[int(np.searchsorted(self.committee.places, position))])


class SetupServer:
    """The server of one setup.

    Args:
        setup: its facts.
        roster: the clients' pinned public keys, if the server has them. It then leaves out a client with a bad
            signature, which otherwise the members would refuse.
        drop: records whose reply was refused, and why.
    """

    def __init__(self, setup: Setup, roster: Roster | None, drop: Drop) -> None:
        self.setup, self._drop = setup, drop
        self._roster = roster if setup.is_malicious else None
        self._publics: dict[int, bytes] = {}
        self._signed: dict[int, bytes] = {}

    def steps(self) -> Generator[StageRequest, Replies, Established | list[int]]:
        """Runs both exchanges.

        Returns the setup, or the partitions without which it has to be tried again.

        Raises:
            SecureSumAborted: if too few are left for a setup.
        """
        clients, fewest = self.setup.clients, self.setup.fewest
        enrolled = yield StageRequest(ENROL, [], {k: [] for k in clients}, lambda replied: len(replied) >= fewest)
        committee = self._enrolled(enrolled)
        places = [int(i) for i in committee.places]
        common = [
            np.frombuffer(committee.enrolled, np.uint8),
            wire.table([self._publics[i] for i in places], KEY),
        ]
        if self.setup.is_malicious:
            common.append(wire.table([self._signed[i] for i in places], SIGNATURE))
        members = {clients[i]: list[Any]() for i in committee.members}
        dealt = yield StageRequest(DEAL, common, members, lambda replied: len(replied) >= committee.dealers)
        return self._dealt(committee, dealt)

    def _enrolled(self, replies: Replies) -> Committee:
        for partition in sorted(replies):
            try:
                self._enrol(self.setup.position(partition), replies[partition])
            except ProtocolError as error:
                self._drop(partition, str(error))
        owners: dict[bytes, list[int]] = {}
        for position, public in self._publics.items():
            owners.setdefault(public, []).append(position)
        for position in (i for group in owners.values() if len(group) > 1 for i in group):
            del self._publics[position]
            self._drop(self.setup.clients[position], "sent a public key that another client sent too")
        flags = np.zeros(len(self.setup.clients), bool)
        flags[list(self._publics)] = True
        try:
            return Committee(self.setup, wire.write_flags(flags).tobytes())
        except (ProtocolError, ConfigError) as error:
            raise SecureSumAborted(str(error)) from None

    def _enrol(self, position: int, arrays: wire.Arrays) -> None:
        signed = self.setup.is_malicious
        refuse(position < 0, "was not invited to the setup of secure sums")
        wire.count_arrays(arrays, 2 if signed else 1)
        public = wire.read_bytes(arrays[0], KEY).tobytes()
        refuse(not usable_public_key(public), "a public key is malformed or of low order")
        if signed:
            signature = wire.read_bytes(arrays[1], SIGNATURE).tobytes()
            self._check_signature(position, signature, enrolment(self.setup, position, public))
            self._signed[position] = signature
        self._publics[position] = public

    def _check_signature(self, position: int, signature: bytes, message: bytes) -> None:
        if self._roster is None:
            return
        if not signed_by(self._roster.get(self.setup.clients[position], b""), signature, message):
            raise ProtocolError("a signature is not that of the pinned identity")

    def _dealt(self, committee: Committee, replies: Replies) -> Established | list[int]:
        clients, m = self.setup.clients, len(committee.members)
        dealt = np.zeros(m, bool)
        keys = np.zeros((EPOCHS, m, KEY), np.uint8)
        signatures = np.zeros((EPOCHS, m, SIGNATURE), np.uint8)
        sealed = np.zeros((EPOCHS, m, m, SEALED), np.uint8)
        # What the members sign: keys of this very committee.
        publics = wire.table([self._publics[int(i)] for i in committee.places], KEY)
        transcript = committee.transcript(publics.tobytes())
        # Read and check each member's keys; drop members whose keys are wrong.
        for seat, position in enumerate(committee.members):
            arrays = replies.get(clients[position])
            if arrays is None:
                continue
            try:
                wire.count_arrays(arrays, 3 if self.setup.is_malicious else 2)
                member_keys = wire.read_bytes(arrays[0], EPOCHS, KEY)
                shares = wire.read_bytes(arrays[1], EPOCHS, m - 1, SEALED)
                check_keys(wire.rows(member_keys))
                if self.setup.is_malicious:
                    signatures[:, seat] = wire.read_bytes(arrays[2], EPOCHS, SIGNATURE)
                    for epoch in range(EPOCHS):
                        message = epoch_keys(transcript, seat, epoch, member_keys[epoch].tobytes())
                        self._check_signature(position, signatures[epoch, seat].tobytes(), message)
            except ProtocolError as error:
                self._drop(clients[position], str(error))
                continue
            keys[:, seat], dealt[seat] = member_keys, True
            sealed[:, seat, np.arange(m) != seat] = shares
        # Without enough dealers the members that have not dealt are returned.
        missing = [clients[committee.members[seat]] for seat in np.flatnonzero(~dealt)]
        try:
            committee.check_dealt(dealt)
        except ProtocolError:
            return missing
        return Established(committee, publics, dealt, keys, signatures, sealed)


class CommitteeSumServer:
    """The server of one sum.

    Args:
        facts: of the sum.
        established: the setup that it uses; its revealed keys grow.
        drop: records whose reply was refused, and why.

    Raises:
        SecureSumAborted: before anybody is asked, if too few of the cohort are enrolled.
    """

    def __init__(self, facts: SumFacts, established: Established, drop: Drop) -> None:
        if not facts.is_possible:
            raise SecureSumAborted(f"{int(facts.asked.sum())} of its clients are enrolled, {facts.fewest} are needed")
        self.facts, self.established, self._drop = facts, established, drop
        self._total = np.zeros(facts.length, np.uint64)
        self._nonces: dict[int, bytes] = {}  # of the contributors, by position
        self._gone: set[int] = set()  # seats that are not asked, or did not answer
        self._asked: set[int] = set()  # seats whose answer is waited for
        self._shares: dict[int, dict[int, bytes]] = {}  # of whose key (seat): by holder
        self._committee = facts.committee
        self._clients = facts.committee.setup.clients

    def steps(self) -> Generator[StageRequest, Replies, tuple[npt.NDArray[np.uint64], tuple[int, ...]]]:
        """Runs the exchanges of a sum.

        Returns the (length,) sum modulo 2^64 over the contributors, and their partitions, ascending.

        Each step's `enough` tells whether the sum can be opened in the end if only these partitions reply to it.

        Raises:
            SecureSumAborted: when too few clients or members are left; nothing is opened.
        """
        facts, established = self.facts, self.established
        # Clients mask their vectors under the present members' keys.
        common = [established.keys[facts.epoch, facts.present]]
        if self._committee.setup.is_malicious:
            common.append(established.signatures[facts.epoch, facts.present])
        messages = {self._clients[i]: list[Any]() for i in np.flatnonzero(facts.asked)}
        self._masked((yield StageRequest(MASKED, common, messages, lambda replied: len(replied) >= facts.fewest)))
        # Members take off their masks over the contributors.
        contributors = np.zeros(len(self._clients), bool)
        contributors[list(self._nonces)] = True
        nonces = [self._nonces[i] for i in sorted(self._nonces)]
        common, known = [wire.write_flags(contributors), wire.table(nonces, NONCE)], len(self._gone) + len(self._asked)
        replies = yield self._step(UNMASK, common, lambda replied: known - len(replied) <= facts.most_lost)
        answered = self._answered(replies, is_first=True)
        self._gone |= self._asked - answered
        self._check_lost()
        self._asked = answered
        # Ask once more for shares if some member's key is still missing.
        if not self._all_recovered():
            threshold = self._committee.size.threshold
            self._answered((yield self._step(RECOVER, [], lambda replied: len(replied) >= threshold)), is_first=False)
            if not self._all_recovered():
                raise SecureSumAborted("the shares of a committee member's key do not give it")
        self._unmask_gone()
        return self._total, tuple(self._clients[i] for i in sorted(self._nonces))

    def _step(self, stage: str, common: wire.Arrays, enough: Callable[[Collection[int]], bool]) -> StageRequest:
        """Returns a request to the present members.

        Each gets its sealed shares of the keys of those that are gone.
        """
        epoch, established, gone = self.facts.epoch, self.established, sorted(self._wanted())
        flags = np.zeros(len(self._committee.members), bool)
        flags[gone] = True
        each = {self._partition(seat): [established.sealed[epoch, gone, seat]] for seat in sorted(self._asked)}
        return StageRequest(stage, [*common, wire.write_flags(flags), established.keys[epoch, gone]], each, enough)

    def _wanted(self) -> set[int]:
        """Returns seats of lost members whose key is still unknown."""
        return {seat for seat in self._gone if seat not in self.established.revealed}

    def _partition(self, seat: int) -> int:
        return self._clients[self._committee.members[seat]]

    def _answered(self, replies: Replies, *, is_first: bool) -> set[int]:
        """Takes the members' shares and, the first time, their masks.

        Returns the seats of those that answered.
        """
        answered: set[int] = set()
        for seat in sorted(self._asked):
            partition = self._partition(seat)
            if partition not in replies:
                continue
            try:
                self._helped(seat, replies[partition], is_first)
                answered.add(seat)
            except ProtocolError as error:
                self._drop(partition, str(error))
        self.established.unreachable = (self.established.unreachable | self._asked) - answered
        return answered

    def _all_recovered(self) -> bool:
        """Recovers lost members' keys; returns whether every one is known."""
        missing = [seat for seat in sorted(self._wanted()) if not self._recovered(seat)]
        return not missing

    def _masked(self, replies: Replies) -> None:
        facts, setup = self.facts, self._committee.setup
        for partition in sorted(replies):
            position = setup.position(partition)
            try:
                refuse(position < 0 or not facts.asked[position], "was not asked in the secure sum")
                wire.count_arrays(replies[partition], 2)
                vector, nonce = replies[partition]
                values, raw = wire.read_vector(vector, facts.length), wire.read_bytes(nonce, NONCE)
            except ProtocolError as error:
                self._drop(partition, str(error))
                continue
            self._total += values
            self._nonces[position] = raw.tobytes()
        if len(self._nonces) < facts.fewest:
            raise SecureSumAborted(f"{len(self._nonces)} clients contributed, {facts.fewest} are needed")
        # Who has sent no vector might be late, or unwilling: it is not asked if it did not answer the last time either.
        members = self._committee.members
        silent = {seat for seat in facts.seats if facts.asked[members[seat]] and members[seat] not in self._nonces}
        self._gone = (silent & self.established.unreachable) | set(self.established.revealed)
        self._asked = set(facts.seats) - self._gone
        self._check_lost()

    def _check_lost(self) -> None:
        if len(self._gone) > self.facts.most_lost:
            raise SecureSumAborted(
                f"{len(self._gone)} members of the committee are gone, at most {self.facts.most_lost} may be"
            )

    def _helped(self, seat: int, arrays: wire.Arrays, is_first: bool) -> None:
        """Takes one member's masks and shares."""
        wanted = sorted(self._wanted())
        wire.count_arrays(arrays, 3 if is_first else 2)
        held = wire.read_flags(arrays[-2], len(wanted))
        shares = wire.rows(wire.read_bytes(arrays[-1], int(held.sum()), shamir.SHARE))
        if is_first:
            self._total -= wire.read_vector(arrays[0], self.facts.length)
        for owner, share in zip(np.array(wanted, np.int64)[held], shares, strict=True):
            self._shares.setdefault(int(owner), {})[seat] = share

    def _recovered(self, owner: int) -> bool:
        """Recovers a member's key; returns whether its shares give it.

        One wrong share among more than enough is left out.
        """
        shares, threshold = self._shares.get(owner, {}), self._committee.size.threshold
        holders = sorted(shares)
        public = self.established.keys[self.facts.epoch, owner].tobytes()
        for start in shamir.windows(len(holders), threshold):
            chosen = [holders[(start + i) % len(holders)] for i in range(threshold)]
            secret = shamir.join(tuple(i + 1 for i in chosen), [shares[i] for i in chosen])
            if secret is not None and KeyPair(secret).public == public:
                self.established.revealed[owner] = secret
                return True
        return False

    def _unmask_gone(self) -> None:
        """Takes the lost members' masks off the sum.

        Those of the others are off already.
        """
        facts, established = self.facts, self.established
        for seat in sorted(self._gone):
            public = established.keys[facts.epoch, seat].tobytes()
            pair = KeyPair(established.revealed[seat], public)
            keys = []
            for position, nonce in self._nonces.items():
                other = established.public_of(position)
                layer = layer_key(facts.transcript, seat, facts.epoch, position, pair.agree(other), public, other)
                keys.append(mask_key(facts, layer, nonce))
            apply_masks(self._total, (), keys)
