"""A data holder's half of one secure sum. See the package's docstring for the stages and for who sees what.

A client trusts nobody's message: whatever it reads is checked, and the first message that does not fit makes it leave
the sum for good, its secrets erased. It answers each stage once. What it must remember between two stages is a small
JSON-able dictionary, so that it can be a new process for every message.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.secagg import shamir, wire
from fedsyn.aggregation.secagg.bindings import (
    keys_message,
    pair_mask_key,
    sealed_for,
    seed_commitment,
    self_mask_key,
    survivors_message,
    transcript,
)
from fedsyn.aggregation.secagg.primitives import (
    KEY,
    SIGNATURE,
    Identity,
    KeyPair,
    Roster,
    apply_masks,
    derive,
    seal,
    signed_by,
    unseal,
    usable_public_key,
)
from fedsyn.aggregation.secagg.session import AGREE, KEYS, MALICIOUS, MASKED, SHARES, SPARSE, UNMASK, Session
from fedsyn.errors import ConfigError, ProtocolError

DONE, LEFT = "done", "left"
Memory = dict[str, bytes]
Vector = Callable[[], npt.NDArray[np.uint64]]


class SecureSumClient:
    """One client of one secure sum.

    Args:
        session: the public facts; privacy rests on them, so they come from the client's own configuration.
        partition: this client's.
        identity: this client's signing key; needed when the threat is malicious.
        roster: the pinned public keys of all clients of the session; needed when the threat is malicious.
        state: of `to_state` after the stage before; None at the first stage.

    Raises:
        ConfigError: if the client is not part of the session or lacks an identity or roster that it needs.
        ProtocolError: for a state that is not of this session and client.
    """

    def __init__(
        self,
        session: Session,
        partition: int,
        *,
        identity: Identity | None = None,
        roster: Roster | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._me = session.position(partition)
        if self._me < 0:
            raise ConfigError("a client cannot take part in a secure sum that does not name it")
        self.session = session
        self.partition = partition
        self._identity, self._roster = identity, roster
        if session.threat == MALICIOUS:
            if identity is None or roster is None:
                raise ConfigError("aggregation.threat: malicious needs the client's identity and the roster")
            pinned = [roster.get(other, b"") for other in session.clients]
            if any(len(key) != KEY for key in pinned):
                raise ConfigError("the roster lacks the public key of a client of the secure sum")
            if len(set(pinned)) != len(pinned):  # its owner's signature would count twice
                raise ConfigError("the roster holds the same public key for two clients of the secure sum")
            if roster[partition] != identity.public:
                raise ConfigError("the roster holds another public key for this client than its identity's")
        self._next: str = KEYS
        self._memory: Memory = {}
        if state is not None:
            self._restore(state)

    # ---- state ---------------------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What the client must remember: JSON-able, SECRET (keys and shares), tiny once it is done.

        Keep the last one for as long as the session's identifier could come back: it is what refuses a replay.
        """
        memory = {name: base64.b64encode(value).decode("ascii") for name, value in self._memory.items()}
        return {"session": self._name(), "next": self._next, **memory}

    def _name(self) -> str:
        return f"{self.partition}:{self.session.digest.hex()}"

    def _restore(self, state: dict[str, Any]) -> None:
        if state.get("session") != self._name():
            raise ProtocolError("the remembered state belongs to another secure sum")
        if state.get("next") not in (*self.session.stages, DONE, LEFT):
            raise ProtocolError("the remembered state of the secure sum is malformed")
        try:
            memory = {k: base64.b64decode(v, validate=True) for k, v in state.items() if k not in ("session", "next")}
        except (TypeError, ValueError):
            raise ProtocolError("the remembered state of the secure sum is malformed") from None
        self._next, self._memory = state["next"], memory

    def answer(self, stage: str, inbox: wire.Arrays, vector: Vector | None = None) -> wire.Arrays:
        """The reply to one stage's message.

        Args:
            stage: its name.
            inbox: the arrays that all clients get, followed by this client's own.
            vector: gives the (length,) uint64 contribution; called in stage `masked` only, once all checks are passed.

        Raises:
            ProtocolError: for a stage that is not due (replayed, skipped, after the end), which changes nothing, and
                for a message that does not fit, upon which the client leaves the sum.
        """
        if self._next == LEFT:
            raise ProtocolError("this client has left the secure sum after a message that it refused")
        if stage != self._next:
            raise ProtocolError("a client answers each stage of a secure sum once, in order")
        memory, self._memory, self._next = self._memory, {}, LEFT  # where an error leaves us
        if stage == MASKED:
            reply, kept = self._masked(memory, inbox, vector)
        else:
            work = {KEYS: self._keys, SHARES: self._shares, AGREE: self._agree, UNMASK: self._unmask}
            reply, kept = work[stage](memory, inbox)
        order = (*self.session.stages, DONE)
        self._memory, self._next = kept, order[order.index(stage) + 1]
        return reply

    # ---- stage keys ----------------------------------------------------------------------------------------------

    def _keys(self, memory: Memory, inbox: wire.Arrays) -> tuple[wire.Arrays, Memory]:
        """Sends two fresh public keys; signed when the threat is malicious."""
        wire.count_arrays(inbox, 0)
        mask, channel = KeyPair(), KeyPair()
        publics = mask.public + channel.public
        reply = [np.frombuffer(publics, np.uint8)]
        if self._identity is not None and self.session.threat == MALICIOUS:
            signature = self._identity.sign(keys_message(self.session, self._me, publics))
            reply.append(np.frombuffer(signature, np.uint8))
        return reply, {"mask": mask.secret, "channel": channel.secret, "publics": publics}

    # ---- stage shares --------------------------------------------------------------------------------------------

    def _shares(self, memory: Memory, inbox: wire.Arrays) -> tuple[wire.Arrays, Memory]:
        """Seals for each neighbour a share of a fresh self-mask seed and one of the mask key."""
        session, me, publics = self.session, self._me, memory["publics"]
        alive = self._survivors(inbox, None)
        peers = self._peers(alive)
        peer_keys = self._read_keys(inbox, alive, peers, publics)
        channel = KeyPair(memory["channel"], publics[KEY:])
        seed = os.urandom(KEY)
        points = [peer + 1 for peer in peers]
        seed_shares = shamir.split(seed, session.threshold, points)
        key_shares = shamir.split(memory["mask"], session.threshold, points)
        sealed, opening = [], []
        for peer, keys, first, second in zip(peers, peer_keys, seed_shares, key_shares, strict=True):
            secret = channel.agree(keys[KEY:])
            ends = (publics[KEY:], keys[KEY:])
            key = derive(secret, session.digest, b"seal", (me, peer), ends)
            sealed.append(seal(key, first + second, sealed_for(session, me, peer)))
            opening.append(derive(secret, session.digest, b"seal", (peer, me), ends[::-1]))
        kept = {
            "mask": memory["mask"],
            "public": publics[:KEY],
            "seed": seed,
            "alive": wire.write_flags(alive).tobytes(),
            "peers": b"".join(keys[:KEY] for keys in peer_keys),
            "opening": b"".join(opening),
        }
        if session.threat == MALICIOUS:
            kept["seen"] = transcript(session, alive, inbox[1].tobytes())
        reply = [
            wire.table(sealed, wire.SEALED_SIZE),
            np.frombuffer(seed_commitment(session, me, seed), np.uint8),
        ]
        return reply, kept

    def _read_keys(self, inbox: wire.Arrays, alive: wire.Flags, peers: Sequence[int], publics: bytes) -> list[bytes]:
        """The peers' public keys, all usable, distinct, not our own and, when the threat is malicious, signed."""
        signed = self.session.threat == MALICIOUS
        wire.count_arrays(inbox, 3 if signed else 2)
        everybody = wire.members(alive)
        senders = list(peers) if self.session.graph == SPARSE else everybody
        keys = wire.rows(wire.read_bytes(inbox[1], len(senders), wire.KEYS_SIZE))
        if signed:
            signatures = wire.rows(wire.read_bytes(inbox[2], len(senders), SIGNATURE))
            assert self._roster is not None
            for sender, key, signature in zip(senders, keys, signatures, strict=True):
                public = self._roster[self.session.clients[sender]]
                if sender != self._me and not signed_by(public, signature, keys_message(self.session, sender, key)):
                    raise ProtocolError("the public keys of a client do not bear its signature")
        by_sender = dict(zip(senders, keys, strict=True))
        if by_sender.pop(self._me, publics) != publics:
            raise ProtocolError("the server lists other public keys for this client than it sent")
        single = [part for pair in (*by_sender.values(), publics) for part in (pair[:KEY], pair[KEY:])]
        if len(set(single)) != len(single):
            raise ProtocolError("a public key is listed twice")
        if not all(usable_public_key(part) for part in single):
            raise ProtocolError("a public key is malformed or of low order")
        return [by_sender[peer] for peer in peers]

    # ---- stage masked --------------------------------------------------------------------------------------------

    def _masked(self, memory: Memory, inbox: wire.Arrays, vector: Vector | None) -> tuple[wire.Arrays, Memory]:
        """Sends the contribution under the self mask and the pairwise masks of the neighbours that sent shares."""
        session, me, public = self.session, self._me, memory["public"]
        wire.count_arrays(inbox, 2)
        before = self._flags(memory["alive"])
        alive = self._survivors(inbox, before)
        peers, peers_before = self._peers(alive), self._peers(before)
        sealed = wire.rows(wire.read_bytes(inbox[1], len(peers), wire.SEALED_SIZE))
        peer_keys = dict(zip(peers_before, _parts(memory["peers"], KEY), strict=True))
        opening = dict(zip(peers_before, _parts(memory["opening"], KEY), strict=True))
        # A share that cannot be read is one share fewer for its owner, and nobody else's loss.
        shares = [
            unseal(opening[peer], text, sealed_for(session, peer, me)) for peer, text in zip(peers, sealed, strict=True)
        ]
        held = np.array([share is not None for share in shares], bool)
        if session.threat == MALICIOUS and 1 + int(held.sum()) < session.fewest:
            raise ProtocolError("too few clients have sealed shares for this client's keys: the others may be replays")
        mask = KeyPair(memory["mask"], public)
        plus = [self_mask_key(session, me, memory["seed"])]
        minus: list[bytes] = []
        for peer in peers:
            key = pair_mask_key(session, me, peer, public, peer_keys[peer], mask.agree(peer_keys[peer]))
            (plus if me < peer else minus).append(key)
        if vector is None:
            raise ProtocolError("a client needs its contribution to answer stage masked")
        values = np.array(wire.read_vector(vector(), session.length))
        apply_masks(values, plus, minus)
        kept = {
            "seed": memory["seed"],
            "alive": wire.write_flags(alive).tobytes(),
            "held": wire.write_flags(held).tobytes(),
            "shares": b"".join(share for share in shares if share is not None),
        }
        if "seen" in memory:
            kept["seen"] = memory["seen"]
        return [values], kept

    # ---- stages agree and unmask ---------------------------------------------------------------------------------

    def _agree(self, memory: Memory, inbox: wire.Arrays) -> tuple[wire.Arrays, Memory]:
        """Signs the set of survivors: the only one that this client will ever sign in this session."""
        wire.count_arrays(inbox, 1)
        survivors = self._survivors(inbox, self._flags(memory["alive"]))
        assert self._identity is not None
        signature = self._identity.sign(survivors_message(self.session, memory["seen"], survivors))
        return [np.frombuffer(signature, np.uint8)], {**memory, "survivors": wire.write_flags(survivors).tobytes()}

    def _unmask(self, memory: Memory, inbox: wire.Arrays) -> tuple[wire.Arrays, Memory]:
        """Reveals, for each neighbour, the seed's share if it is a survivor and the mask key's share if it is not."""
        sharers = self._flags(memory["alive"])
        if self.session.threat == MALICIOUS:
            survivors = self._flags(memory["survivors"])
            self._check_agreement(inbox, memory["seen"], survivors)
        else:
            wire.count_arrays(inbox, 1)
            survivors = self._survivors(inbox, sharers)
        peers = self._peers(sharers)
        held = wire.read_flags(np.frombuffer(memory["held"], np.uint8), len(peers))
        revealed = []
        for peer, pair in zip(np.array(peers)[held], _parts(memory["shares"], wire.PAIR_SIZE), strict=True):
            revealed.append(pair[: shamir.SHARE] if survivors[peer] else pair[shamir.SHARE :])
        reply = [
            np.frombuffer(memory["seed"], np.uint8),
            wire.write_flags(held),
            wire.table(revealed, shamir.SHARE),
        ]
        return reply, {}

    def _check_agreement(self, inbox: wire.Arrays, seen: bytes, survivors: wire.Flags) -> None:
        """ProtocolError unless at least `fewest` survivors signed the very set and keys that this client signed."""
        wire.count_arrays(inbox, 2)
        signers = wire.read_flags(inbox[0], len(self.session.clients))
        order = wire.members(signers)
        signatures = wire.rows(wire.read_bytes(inbox[1], len(order), SIGNATURE))
        message = survivors_message(self.session, seen, survivors)
        assert self._roster is not None
        agreed = 1  # this client signed itself
        for signer, signature in zip(order, signatures, strict=True):
            if agreed == self.session.fewest:
                break
            if signer != self._me and survivors[signer]:
                agreed += signed_by(self._roster[self.session.clients[signer]], signature, message)
        if agreed < self.session.fewest:
            raise ProtocolError(
                f"{agreed} valid signatures on the set of survivors where {self.session.fewest} are needed: "
                "nothing is revealed"
            )

    # ---- common --------------------------------------------------------------------------------------------------

    def _flags(self, raw: bytes) -> wire.Flags:
        return wire.read_flags(np.frombuffer(raw, np.uint8), len(self.session.clients))

    def _peers(self, alive: wire.Flags) -> list[int]:
        """Positions of the neighbours among `alive`, ascending."""
        row = self.session.neighbours_of(self._me)
        return [int(i) for i in row[alive[row]]]

    def _survivors(self, inbox: wire.Arrays, before: wire.Flags | None) -> wire.Flags:
        """The set of clients that the server says is left, if this client can live with it; else ProtocolError."""
        if not inbox:
            raise ProtocolError("a message of the secure sum lacks the set of survivors")
        alive = wire.read_flags(inbox[0], len(self.session.clients))
        if int(alive.sum()) < self.session.fewest:
            raise ProtocolError(
                f"{int(alive.sum())} clients are left in the secure sum, fewer than the {self.session.fewest} "
                "that it needs: nothing is revealed"
            )
        if not alive[self._me]:
            raise ProtocolError("the server asks a client that it counts as dropped")
        if before is not None and np.any(alive & ~before):
            raise ProtocolError("a client that had dropped out of the secure sum is back")
        if len(self._peers(alive)) < self.session.threshold:
            raise ProtocolError("too few neighbours of this client are left to protect it")
        return alive


def _parts(raw: bytes, size: int) -> list[bytes]:
    return [raw[i : i + size] for i in range(0, len(raw), size)]
