"""Public facts of a setup, its committee, and one sum.

Every key is bound to them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.secagg import wire
from fedsyn.aggregation.secagg.size import Size, derive
from fedsyn.crypto.primitives import derive as derive_key
from fedsyn.crypto.primitives import key_stream, seal, unseal
from fedsyn.errors import ConfigError, ProtocolError, refuse

EPOCHS = 16  # of a setup; each has keys of its own, and ends when one of them was revealed
NONCE = 16  # bytes, drawn anew for every answer
LONGEST = 2**26  # entries of a sum: half a gigabyte, before anybody makes room for it
ENROL, DEAL, MASKED, UNMASK, RECOVER = "enrol", "deal", "masked", "unmask", "recover"
SEMI_HONEST, MALICIOUS = "semi_honest", "malicious"


class SecureSumAborted(ProtocolError):
    """Too few clients or members are left; nothing is opened."""


@dataclass(frozen=True)
class Setup:
    """The public facts of one setup, the same at every party.

    A client takes `corrupted`, `dropouts`, `threat` and `statistical_security_bits` from its OWN configuration: its
    privacy rests on them. All of them enter `digest`, to which every key and signature is bound.

    Attributes:
        identifier: binds the run and its configuration.
        number: of the setup in its run.
        clients: partition ids invited, ascending.
        corrupted: most of them that may collude with the server.
        dropouts: most of them that may drop out.
        threat: `semi_honest` or `malicious`.
        statistical_security_bits: see `size`.

    Raises:
        ConfigError: where the parameters cannot protect anybody.
    """

    identifier: bytes
    number: int
    clients: tuple[int, ...]
    corrupted: int
    dropouts: int
    threat: str = SEMI_HONEST
    statistical_security_bits: int = 40

    def __post_init__(self) -> None:
        ids = np.asarray(self.clients, np.int64)
        if not len(ids) or ids[0] < 0 or np.any(np.diff(ids) <= 0):
            raise ConfigError("the clients of a secure sum must be distinct partition numbers in ascending order")
        if self.threat not in (SEMI_HONEST, MALICIOUS):
            raise ConfigError(f"aggregation.threat must be {SEMI_HONEST} or {MALICIOUS}")
        check_hides(len(ids), self.fewest, self.corrupted)
        derive(len(ids), self.corrupted, self.dropouts, self.statistical_security_bits, self.is_malicious)

    @property
    def is_malicious(self) -> bool:
        return self.threat == MALICIOUS

    @property
    def fewest(self) -> int:
        """Fewest clients for which a setup is worth having."""
        return len(self.clients) - self.dropouts

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all facts."""
        facts = [self.number, self.corrupted, self.dropouts, self.threat, self.statistical_security_bits, EPOCHS]
        head = json.dumps(["fedsyn secure sums, one setup", self.identifier.hex(), len(self.clients), *facts])
        return hashlib.sha256(head.encode() + b"\0" + np.asarray(self.clients, "<i8").tobytes()).digest()

    def position(self, partition: int) -> int:
        """Returns a client's place in `clients`; -1 if it was not invited."""
        place = bisect_left(self.clients, partition)
        return place if place < len(self.clients) and self.clients[place] == partition else -1


def check_hides(clients: int, fewest: int, corrupted: int) -> None:
    """Raises ConfigError unless the fewest contributors hold two honest ones."""
    if fewest - corrupted < 2:
        raise ConfigError(
            f"a secure sum of {clients} clients of which {clients - fewest} may drop out and {corrupted} may collude "
            "with the server leaves fewer than two honest contributors: it would hide nothing. Ask more clients, "
            "or lower aggregation.dropout or aggregation.corrupted"
        )


@dataclass(frozen=True)
class Committee:
    """The enrolled clients, and the members that follow from them.

    Attributes:
        setup: its facts.
        enrolled: bitmap of the invited clients that are.

    Raises:
        ProtocolError: if fewer are enrolled than the setup allows for.
        ConfigError: if no committee of them protects.
    """

    setup: Setup
    enrolled: bytes

    def __post_init__(self) -> None:
        if len(self.places) < self.setup.fewest:
            raise ProtocolError(
                f"{len(self.places)} clients are enrolled for secure sums, fewer than the {self.setup.fewest} needed"
            )
        self.size  # noqa: B018 - derived here, or refused

    @cached_property
    def places(self) -> npt.NDArray[np.int64]:
        """Positions of the enrolled clients, ascending."""
        flags = wire.read_flags(np.frombuffer(self.enrolled, np.uint8), len(self.setup.clients))
        return np.flatnonzero(flags)

    @cached_property
    def size(self) -> Size:
        """Size of the committee.

        Clients that did not enrol count as the first of those that may drop out.
        """
        setup, n = self.setup, len(self.places)
        left = setup.dropouts - (len(setup.clients) - n)
        return derive(n, setup.corrupted, left, setup.statistical_security_bits, setup.is_malicious)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(b"fedsyn committee\0" + self.setup.digest + self.enrolled).digest()

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Positions of the members, ascending.

        They are the first of the enrolled in an order that the digest draws.
        """
        order = np.argsort(np.frombuffer(key_stream(self.digest, 8 * len(self.places)), "<u8"), kind="stable")
        return tuple(int(i) for i in np.sort(self.places[order[: self.size.members]]))

    def seat(self, position: int) -> int:
        """Returns the number of a member in the committee, or -1."""
        place = bisect_left(self.members, position)
        return place if place < len(self.members) and self.members[place] == position else -1

    def transcript(self, publics: bytes) -> bytes:
        """Returns SHA-256 of the committee and of the enrolled clients' keys.

        The keys are those that one party has seen. The server repeats names and numbers as it likes. Each client's key
        is fresh, so a transcript belongs to one memory of each client; shares and keys that are bound to it are of no
        use to any other setup, and members that were shown different keys do not sign for each other.
        """
        return hashlib.sha256(b"fedsyn transcript\0" + self.digest + publics).digest()

    @property
    def dealers(self) -> int:
        """Number of members that have to deal keys.

        A malicious server may not leave out any.
        """
        return len(self.members) if self.setup.is_malicious else len(self.members) - self.size.lost

    def check_dealt(self, dealt: wire.Flags) -> None:
        """Raises ProtocolError if too few members have dealt keys."""
        if int(dealt.sum()) < self.dealers:
            raise ProtocolError(
                f"{int(dealt.sum())} members of the committee have dealt keys where {self.dealers} are needed"
            )


@lru_cache(maxsize=8)
def committee_of(setup: Setup, enrolled: bytes) -> Committee:
    """Returns the committee; clients that share a process share it."""
    return Committee(setup, enrolled)


@dataclass(frozen=True)
class SumFacts:
    """The public facts of one sum.

    Attributes:
        committee: whose layers mask it.
        transcript: of the setup's keys, as this party has seen them or was told.
        dealt: bitmap of the members whose layers are used.
        epoch: whose keys are used.
        identifier: binds request, round, layout and noise.
        number: of the sum in its run.
        cohort: partition ids asked, ascending.
        length: entries of the summed vector, each in Z_2^64.
        fewest: contributors below which no member helps to open it.
        corrupted: of the cohort.

    Raises:
        ConfigError: where the sum would hide nothing.
        ProtocolError: for an epoch that the setup does not have, too few members, or too long a vector.
    """

    committee: Committee
    transcript: bytes
    dealt: bytes
    epoch: int
    identifier: bytes
    number: int
    cohort: tuple[int, ...]
    length: int
    fewest: int
    corrupted: int

    def __post_init__(self) -> None:
        check_hides(len(self.cohort), self.fewest, self.corrupted)
        refuse(not 0 <= self.epoch < EPOCHS, "the secure sum names an epoch that its setup does not have")
        refuse(not 0 < self.length <= LONGEST, f"a secure sum has between 1 and {LONGEST} entries")
        if len(self.transcript) != hashlib.sha256().digest_size:
            raise ProtocolError("the message does not say which keys the setup of secure sums has")
        self.committee.check_dealt(self.present)

    @cached_property
    def present(self) -> wire.Flags:
        """Members whose layers are used, (m,)."""
        return wire.read_flags(np.frombuffer(self.dealt, np.uint8), len(self.committee.members))

    @cached_property
    def seats(self) -> tuple[int, ...]:
        """Numbers of these members, ascending."""
        return tuple(wire.members(self.present))

    @cached_property
    def asked(self) -> npt.NDArray[np.bool_]:
        """The cohort's enrolled clients, as flags over the setup's clients."""
        flags = np.zeros(len(self.committee.setup.clients), bool)
        flags[self.committee.places] = True
        return flags & np.isin(self.committee.setup.clients, self.cohort)

    @cached_property
    def is_possible(self) -> bool:
        """True if enough of the cohort are enrolled."""
        return int(self.asked.sum()) >= self.fewest

    @cached_property
    def most_lost(self) -> int:
        """Number of this epoch's keys that may be revealed.

        Members that have not dealt count as lost already.
        """
        return self.committee.size.lost - (len(self.present) - len(self.seats))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all facts.

        It separates this sum's masks from those of every other.
        """
        facts = [self.epoch, self.number, self.length, self.fewest, self.corrupted, self.identifier.hex()]
        head = (
            b"fedsyn masked sum\0" + self.committee.digest + self.transcript + self.dealt + json.dumps(facts).encode()
        )
        return hashlib.sha256(head + b"\0" + np.asarray(self.cohort, "<i8").tobytes()).digest()


# What is derived and signed, each bound to its purpose and to everybody concerned -------------------------------------


def enrolment(setup: Setup, position: int, public: bytes) -> bytes:
    """Returns the bytes that a client signs when it enrols."""
    return b"fedsyn secure sums: enrol\0" + setup.digest + position.to_bytes(8, "little") + public


def epoch_keys(transcript: bytes, seat: int, epoch: int, public: bytes) -> bytes:
    """Returns the bytes that a member signs for each epoch."""
    place = seat.to_bytes(8, "little") + epoch.to_bytes(8, "little")
    return b"fedsyn secure sums: epoch\0" + transcript + place + public


@dataclass(frozen=True)
class SharePlace:
    """Place of a share: epoch, sender and receiver.

    Member `receiver` gets the share of member `sender`'s key in this epoch; both are seats.

    Its key is bound to the public half of the shared key too. That one is fresh, so no key seals two messages.
    """

    transcript: bytes
    epoch: int
    sender: int
    receiver: int
    epoch_public: bytes

    @property
    def _bound(self) -> bytes:
        return self.transcript + b"".join(i.to_bytes(8, "little") for i in (self.epoch, self.sender, self.receiver))

    def seal(self, agreed: bytes, sender: bytes, receiver: bytes, share: bytes) -> bytes:
        """Seals a share under the members' agreed key.

        Both public keys of the setup are bound.
        """
        return seal(self._key(agreed, sender, receiver), share, self._bound)

    def unseal(self, agreed: bytes, sender: bytes, receiver: bytes, sealed: bytes) -> bytes | None:
        """Returns the share, or None if it was not sealed like this."""
        return unseal(self._key(agreed, sender, receiver), sealed, self._bound)

    def _key(self, agreed: bytes, sender: bytes, receiver: bytes) -> bytes:
        ids, publics = (self.epoch, self.sender, self.receiver), (sender, receiver, self.epoch_public)
        return derive_key(agreed, self.transcript, b"share", ids, publics)


def layer_key(
    transcript: bytes, seat: int, epoch: int, position: int, agreed: bytes, epoch_public: bytes, public: bytes
) -> bytes:
    """Returns one client's key under one member's layer, for an epoch.

    Args:
        transcript: of the setup.
        seat: of the member.
        position: of the client.
        agreed: the X25519 secret of the client's key and the member's key of this epoch.
        epoch_public: that key's public half.
        public: the client's.
    """
    return derive_key(agreed, transcript, b"layer", (seat, epoch, position), (epoch_public, public))


def mask_key(facts: SumFacts, layer: bytes, nonce: bytes) -> bytes:
    """Returns the mask's key of one client, layer and sum.

    A fresh nonce of the client makes two answers to one sum (after a rolled back memory) two unrelated masks.
    """
    return hmac.digest(layer, facts.digest + nonce, "sha256")
