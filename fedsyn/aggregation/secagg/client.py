"""A data holder's half: contributor, and member of the committee.

The package's docstring says who sees what. Whatever is read from a message is checked; what does not fit is refused and
changes nothing. What has to be remembered is a small JSON-able dictionary, so that a client can be a new process for
every message. It is SECRET.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.secagg import shamir, wire
from fedsyn.aggregation.secagg.facts import (
    EPOCHS,
    NONCE,
    Committee,
    Setup,
    SharePlace,
    SumFacts,
    enrolment,
    epoch_keys,
    layer_key,
    mask_key,
)
from fedsyn.crypto.primitives import (
    KEY,
    SIGNATURE,
    TAG,
    Identity,
    KeyPair,
    Roster,
    apply_masks,
    signed_by,
    usable_public_key,
)
from fedsyn.errors import ConfigError, ProtocolError, refuse

SEALED = shamir.SHARE + TAG


class CommitteeClient:
    """One client of a run with one setup.

    Args:
        partition: this client's.
        identity: its signing key; needed when the threat is malicious.
        roster: the pinned public keys of all clients; likewise.
        state: what it remembers; changed by every answer.
    """

    def __init__(
        self,
        partition: int,
        state: dict[str, Any],
        *,
        identity: Identity | None = None,
        roster: Roster | None = None,
    ) -> None:
        self.partition = partition
        self.state = state
        self._identity, self._roster = identity, roster

    # ---- the setup -------------------------------------------------------------------------------------------------

    def enrol(self, setup: Setup) -> wire.Arrays:
        """Returns the public half of a fresh key; forgets every earlier setup.

        The key is signed if the threat is malicious.

        Raises:
            ConfigError: if the client was not invited, or lacks the identity or roster that it needs.
            ProtocolError: if this setup, or a later one, was there already.
        """
        position = self._position(setup)
        if setup.number <= self.state.get("setup", -1):
            raise ProtocolError("this client has enrolled in that setup, or in a later one, already")
        self._check_roster(setup)
        pair = KeyPair()
        memory: dict[str, Any] = {
            name: self.state[name] for name in ("answered", "masked", "opened") if name in self.state
        }
        self.state.clear()
        self.state |= {**memory, "setup": setup.number, "digest": setup.digest.hex(), "secret": _text(pair.secret)}
        self.state["public"] = _text(pair.public)
        reply = [np.frombuffer(pair.public, np.uint8)]
        if setup.is_malicious:
            assert self._identity is not None
            reply.append(np.frombuffer(self._identity.sign(enrolment(setup, position, pair.public)), np.uint8))
        return reply

    def deal(self, committee: Committee, inbox: wire.Arrays) -> wire.Arrays:
        """Draws a key for each epoch, and seals its shares for members.

        Args:
            committee: that this client has to be a member of.
            inbox: the enrolled clients' public keys (n, 32) [their signatures (n, 64)].

        Returns:
            The public halves (EPOCHS, 32), the sealed shares (EPOCHS, m - 1, 49) [signatures (EPOCHS, 64)].
        """
        setup = committee.setup
        seat, key_pair = self._seat(committee), self._own(setup)
        refuse("epochs" in self.state, "this member has dealt its keys already")
        # The other members, and the keys agreed with them.
        publics = self._enrolled(committee, inbox)
        transcript = committee.transcript(b"".join(publics.values()))
        others = [(other, publics[place]) for other, place in enumerate(committee.members) if other != seat]
        agreed = {other: key_pair.agree(public) for other, public in others}
        # Draw one key pair per epoch, and seal a share of each for every other member.
        pairs = [KeyPair() for _ in range(EPOCHS)]
        sealed = []
        for epoch, pair in enumerate(pairs):
            shares = shamir.split(pair.secret, committee.size.threshold, [other + 1 for other, _ in others])
            for (other, public), share in zip(others, shares, strict=True):
                place = SharePlace(transcript, epoch, seat, other, pair.public)
                sealed.append(place.seal(agreed[other], key_pair.public, public, share))
        # Reply with the public halves and the sealed shares, signed if the threat is malicious.
        reply = [
            wire.table([pair.public for pair in pairs], KEY),
            wire.table(sealed, SEALED).reshape(EPOCHS, len(others), SEALED),
        ]
        if setup.is_malicious:
            assert self._identity is not None
            signatures = [
                self._identity.sign(epoch_keys(transcript, seat, epoch, pair.public))
                for epoch, pair in enumerate(pairs)
            ]
            reply.append(wire.table(signatures, SIGNATURE))
        # Remember the secrets for the sums to come.
        self.state["transcript"] = transcript.hex()
        self.state["epochs"] = _text(b"".join(pair.secret + pair.public for pair in pairs))
        self.state["clients"] = _text(b"".join(publics.values()))
        return reply

    def _enrolled(self, committee: Committee, inbox: wire.Arrays) -> dict[int, bytes]:
        """Returns the public key of each enrolled client, by position.

        They are checked: usable, distinct, our own right [, and signed].
        """
        setup = committee.setup
        wire.count_arrays(inbox, 2 if setup.is_malicious else 1)
        places = [int(i) for i in committee.places]
        keys = wire.rows(wire.read_bytes(inbox[0], len(places), KEY))
        publics = dict(zip(places, keys, strict=True))
        if publics[self._position(setup)] != _bytes(self.state["public"]):
            raise ProtocolError("the server lists another public key for this client than it sent")
        self._check_signed(setup, keys, inbox, places, lambda rank, public: enrolment(setup, places[rank], public))
        return publics

    def _check_signed(
        self,
        setup: Setup,
        keys: Sequence[bytes],
        inbox: wire.Arrays,
        places: Sequence[int],
        facts: Callable[[int, bytes], bytes],
    ) -> None:
        """Raises ProtocolError unless these keys are usable and distinct.

        [Each must be signed by the client at its place.]
        """
        check_keys(keys)
        if not setup.is_malicious:
            return
        self._check_roster(setup)
        assert self._roster is not None
        signatures = wire.rows(wire.read_bytes(inbox[1], len(places), SIGNATURE))
        for rank, (place, public, signature) in enumerate(zip(places, keys, signatures, strict=True)):
            if not signed_by(self._roster[setup.clients[place]], signature, facts(rank, public)):
                raise ProtocolError("the public key of a client of the secure sum does not bear its signature")

    # ---- a sum -----------------------------------------------------------------------------------------------------

    def layers(self, facts: SumFacts, inbox: wire.Arrays) -> list[bytes]:
        """Returns this client's key under each member's layer.

        It refuses a sum that the client may not contribute to, before the client computes its part.

        Args:
            facts: of the sum.
            inbox: the members' public keys of the epoch (p, 32) [their signatures (p, 64)]. All members have to have
                signed for the same transcript.
        """
        committee = facts.committee
        position = self._position(committee.setup)
        self._check_enrolled(committee.setup)
        refuse(not facts.asked[position], "the secure sum does not ask this client")
        refuse(not facts.is_possible, "too few of those whom the secure sum asks are enrolled: it could not be opened")
        if facts.number <= self.state.get("answered", -1):
            raise ProtocolError("this client took part in that sum, or in a later one, already")
        return self._layers(facts, inbox, position)

    def mask(self, facts: SumFacts, layers: Sequence[bytes], vector: npt.NDArray[np.uint64]) -> wire.Arrays:
        """Returns the contribution under one mask per member, and its nonce.

        Args:
            facts: of the sum.
            layers: of `layers`, which has checked all else.
            vector: (length,) the contribution.
        """
        values = np.array(wire.read_vector(vector, facts.length))
        self.state["answered"], self.state["masked"] = facts.number, facts.digest.hex()
        nonce = os.urandom(NONCE)
        apply_masks(values, [mask_key(facts, layer, nonce) for layer in layers], ())
        return [values, np.frombuffer(nonce, np.uint8)]

    def _layers(self, facts: SumFacts, inbox: wire.Arrays, position: int) -> list[bytes]:
        """Returns this client's key under each layer, agreed once an epoch."""
        committee, seats = facts.committee, facts.seats
        wire.count_arrays(inbox, 2 if committee.setup.is_malicious else 1)
        keys = wire.rows(wire.read_bytes(inbox[0], len(seats), KEY))
        context = (facts.transcript + facts.dealt + b"".join(keys)).hex() + f":{facts.epoch}"
        if self.state.get("context") == context:
            return _parts(_bytes(self.state["layers"]), KEY)

        def signed(rank: int, public: bytes) -> bytes:
            return epoch_keys(facts.transcript, seats[rank], facts.epoch, public)

        self._check_signed(committee.setup, keys, inbox, [committee.members[seat] for seat in seats], signed)
        key_pair = self._own(committee.setup)
        layers = [
            layer_key(facts.transcript, seat, facts.epoch, position, key_pair.agree(public), public, key_pair.public)
            for seat, public in zip(seats, keys, strict=True)
        ]
        self.state["context"], self.state["layers"] = context, _text(b"".join(layers))
        return layers

    # ---- a sum, as a member ----------------------------------------------------------------------------------------

    def unmask(self, facts: SumFacts, inbox: wire.Arrays) -> wire.Arrays:
        """Returns this member's masks over the contributors, and shares.

        The shares are of the keys of members that are gone. Each sum is answered once, for one set of contributors.

        Args:
            facts: of the sum.
            inbox: bitmap of the contributors, their nonces (s, 16), bitmap of the members gone, their epoch keys
                (g, 32), their shares that are sealed for this member (g, 49).

        Returns:
            The (length,) uint64 sum of masks, a bitmap of the shares that could be read, and those (r, 33).
        """
        # Refuse a sum of another committee, of another epoch, or that was answered before.
        committee = facts.committee
        seat = self._seat(committee)
        if self.state.get("transcript") != facts.transcript.hex():
            raise ProtocolError("this member has dealt no keys for that committee")
        if self.state.get("answered") == facts.number and self.state["masked"] != facts.digest.hex():
            raise ProtocolError("this member has taken part in another sum of that number")
        if facts.number <= self.state.get("opened", -1):
            raise ProtocolError("this member has answered that sum, or a later one, already")
        refuse(facts.epoch < self.state.get("epoch", 0), "the keys of that epoch are not used any more")
        refuse(not facts.present[seat], "the secure sum does not use this member's layer")
        # Read the contributors; refuse too few of them.
        wire.count_arrays(inbox, 5)
        contributors = wire.read_flags(inbox[0], len(committee.setup.clients))
        refuse(np.any(contributors & ~facts.asked), "a contributor of the secure sum was not asked, or is not enrolled")
        places = wire.members(contributors)
        if len(places) < facts.fewest:
            raise ProtocolError(
                f"{len(places)} clients contributed to the secure sum, fewer than the {facts.fewest} that it needs"
            )
        nonces = wire.rows(wire.read_bytes(inbox[1], len(places), NONCE))
        # Shares of lost members' keys, and this member's masks over the contributors.
        revealed = self._revealed(facts, seat, inbox[2:])
        layers = self._own_layer(facts, seat, places)
        total = np.zeros(facts.length, np.uint64)
        apply_masks(total, (mask_key(facts, layer, nonce) for layer, nonce in zip(layers, nonces, strict=True)), ())
        self.state["opened"], self.state["sum"] = facts.number, facts.digest.hex()
        return [total, *revealed]

    def recover(self, facts: SumFacts, inbox: wire.Arrays) -> wire.Arrays:
        """Returns shares of the keys of further members that are gone.

        The sum must be the one that this member has just answered.
        """
        seat = self._seat(facts.committee)
        refuse(self.state.get("sum") != facts.digest.hex(), "this member has not answered that sum")
        wire.count_arrays(inbox, 3)
        return self._revealed(facts, seat, inbox)

    def _own_layer(self, facts: SumFacts, seat: int, places: Sequence[int]) -> list[bytes]:
        """Returns each contributor's key under this layer, agreed once an epoch."""
        committee, epoch = facts.committee, facts.epoch
        if self.state.get("epoch", -1) != epoch:
            self.state["epoch"], self.state["pairs"] = epoch, ""
            secrets = _bytes(self.state["epochs"])  # those of the epochs before serve nothing any more
            self.state["epochs"] = _text(bytes(2 * KEY * epoch) + secrets[2 * KEY * epoch :])
        here = {int(place): i for i, place in enumerate(committee.places)}
        publics = _parts(_bytes(self.state["clients"]), KEY)
        pairs = bytearray(_bytes(self.state["pairs"])) or bytearray(KEY * len(here))
        if len(pairs) != KEY * len(here) or len(publics) != len(here):
            raise ProtocolError("this member has dealt no keys for that committee")
        secret, public = _epoch_key(self.state, epoch)
        pair, empty, keys = KeyPair(secret, public), bytes(KEY), []
        for place in places:
            at = slice(KEY * here[place], KEY * here[place] + KEY)
            if pairs[at] == empty:
                other = publics[here[place]]
                pairs[at] = layer_key(facts.transcript, seat, epoch, place, pair.agree(other), public, other)
            keys.append(bytes(pairs[at]))
        self.state["pairs"] = _text(bytes(pairs))
        return keys

    def _revealed(self, facts: SumFacts, seat: int, inbox: wire.Arrays) -> wire.Arrays:
        """Returns this member's shares of lost members' epoch keys.

        They never concern more members than the derived number.
        """
        committee, epoch = facts.committee, facts.epoch
        # Read which members are gone, with their keys and sealed shares.
        gone = wire.read_flags(inbox[0], len(committee.members))
        if gone[seat] or np.any(gone & ~facts.present):
            raise ProtocolError("the secure sum counts a member as gone that answers, or that it does not use")
        seats = wire.members(gone)
        keys = wire.rows(wire.read_bytes(inbox[1], len(seats), KEY))
        sealed = wire.rows(wire.read_bytes(inbox[2], len(seats), SEALED))
        # Refuse to reveal keys of too many members of this epoch.
        before = set(self.state.get("revealed", {}).get(str(epoch), []))
        after = sorted(before | set(seats))
        refuse(
            len(after) > facts.most_lost,
            f"{len(after)} members of the committee would be gone in this epoch, at most {facts.most_lost} may be: "
            "nothing is revealed",
        )
        # Open the shares that were sealed for this member.
        key_pair, publics = self._own(committee.setup), _parts(_bytes(self.state["clients"]), KEY)
        here = {int(place): i for i, place in enumerate(committee.places)}
        shares: list[bytes | None] = []
        for other, key, text in zip(seats, keys, sealed, strict=True):
            public = publics[here[committee.members[other]]]
            place = SharePlace(facts.transcript, epoch, other, seat, key)
            shares.append(place.unseal(key_pair.agree(public), public, key_pair.public, text))
        if seats:
            self.state.setdefault("revealed", {})[str(epoch)] = after
        held = np.array([share is not None for share in shares], bool)
        return [wire.write_flags(held), wire.table([share for share in shares if share is not None], shamir.SHARE)]

    # ---- common ----------------------------------------------------------------------------------------------------

    def _position(self, setup: Setup) -> int:
        position = setup.position(self.partition)
        if position < 0:
            raise ConfigError("a client cannot take part in secure sums whose setup does not invite it")
        return position

    def _seat(self, committee: Committee) -> int:
        seat = committee.seat(self._position(committee.setup))
        refuse(seat < 0, "this client is not a member of the committee")
        self._check_enrolled(committee.setup)
        known = self.state.get(
            "transcript"
        )  # the server may say at any time who is enrolled; the keys are those of the deal
        if known is not None and committee.transcript(_bytes(self.state["clients"])).hex() != known:
            raise ProtocolError("this member has dealt no keys for that committee")
        return seat

    def _check_enrolled(self, setup: Setup) -> None:
        if self.state.get("digest") != setup.digest.hex():
            raise ProtocolError("this client has not enrolled in the run's setup of secure sums")

    def _own(self, setup: Setup) -> KeyPair:
        """Returns this client's key of the setup.

        It raises ProtocolError if the client has not enrolled in it.
        """
        self._check_enrolled(setup)
        return KeyPair(_bytes(self.state["secret"]), _bytes(self.state["public"]))

    def _check_roster(self, setup: Setup) -> None:
        if not setup.is_malicious:
            return
        identity, roster = self._identity, self._roster
        if identity is None or roster is None:
            raise ConfigError("aggregation.threat: malicious needs the client's identity and the roster")
        pinned = [roster.get(other, b"") for other in setup.clients]
        if any(len(key) != KEY for key in pinned):
            raise ConfigError("the roster lacks the public key of a client of the secure sum")
        if len(set(pinned)) != len(pinned):  # its owner would count twice
            raise ConfigError("the roster holds the same public key for two clients of the secure sum")
        if roster[self.partition] != identity.public:
            raise ConfigError("the roster holds another public key for this client than its identity's")


def check_keys(keys: Sequence[bytes]) -> None:
    """Raises ProtocolError unless the X25519 keys are usable and distinct."""
    refuse(len(set(keys)) != len(keys), "a public key is listed twice")
    refuse(not all(map(usable_public_key, keys)), "a public key is malformed or of low order")


def _epoch_key(state: Mapping[str, Any], epoch: int) -> tuple[bytes, bytes]:
    pair = _parts(_bytes(state["epochs"]), 2 * KEY)[epoch]
    return pair[:KEY], pair[KEY:]


def _parts(raw: bytes, size: int) -> list[bytes]:
    return [raw[i : i + size] for i in range(0, len(raw), size)]


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
