"""A store that three parties compute on and none sees.

`aggregation.protocol: mpc`.

Clients seal their shares to the parties; the server carries the sealed shares and drives the parties, and learns what
they open: indices and noisy marginals. `fedsyn.stores.parties` has the parties, `fedsyn.crypto.mpc` what they compute.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from fedsyn.aggregation.base import opened
from fedsyn.capabilities import MPC
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.privacy import SelectionNoise
from fedsyn.privacy.release import PARTIES
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.settings import AggregationNode
from fedsyn.stores.base import ClientDeal, ServedRun, Store, StoreServer
from fedsyn.stores.parties import connect
from fedsyn.stores.parties.checks import room_of_scores
from fedsyn.stores.parties.driven import ComputeParties
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, OpenOrder, SealedDeal, sealed_for
from fedsyn.stores.parties.sealing import seal_deal
from fedsyn.wire.envelope import Arrays, Reply
from fedsyn.wire.requests import Choose, Layout, Open, Summed

_KEY, _RUN = 32, 32  # bytes
_PARTIES = 3


class MpcStore(Store):
    """`aggregation.protocol: mpc`."""

    capabilities = MPC

    def check(self, clients: int) -> None:
        super().check(clients)
        if not self.simulated and self.node.parties is None:
            raise ConfigError(
                "aggregation.parties: a deployment with protocol: mpc needs the cards of its three parties "
                "(fedsyn party card prints one)"
            )

    def assumptions(self) -> dict[str, str | int | float]:
        return {**super().assumptions(), "threat": self.node.threat, "parties": 3, "corrupted": 1}

    def answer(self, part: ClientDeal) -> Arrays:
        """Returns a client's share for each party, sealed to it.

        The keys are those of the configuration that its holder agreed to; in a simulation, which protects nobody,
        those that the message brings.
        """
        run, keys = _read_invitation(part.call.arrays)
        if part.config.runtime.engine == "deployment":
            keys = _pinned(self.node)
        partition = part.partition
        part.promise(PARTIES)
        exact = part.answer(part.call)
        agreed = sealed_for(run, part.config, part.holder.domain, exact.layout.cliques)
        sealed = seal_deal(exact.dense(), agreed, keys, partition, rho=part.request.rho, rows=part.public_rows)
        return [np.frombuffer(piece, np.uint8) for piece in sealed.to_parts()]

    def serve(self, run: ServedRun) -> StoreServer:
        return MpcServer(run, self)

    def room_of_choice(self, terms: ChoiceTerms, epsilon: float) -> SelectionNoise:
        """Returns the noise of a choice, as each party plans it."""
        return room_of_scores(terms, epsilon, bounded=self.node.threat == "malicious").noise

    def who_sees_what(self) -> dict[str, str]:
        malicious = self.node.threat == "malicious"
        played = " (here a simulation, which protects nobody: one process plays all three)" if self.simulated else ""
        return {
            "trust": "nobody alone: of the three computing parties at most one is corrupted, "
            + ("whatever it does" if malicious else "and follows the protocol")
            + f"; it may collude with the server and with clients{played}",
            "server": "sealed shares, which it cannot read; of what was dealt, only what the parties open",
            "noise": "the three parties, a share each (two for a choice), of which any one may be known: 1.5 times the "
            "variance of central noise on marginals, 2 times on choices",
        }


class MpcServer(StoreServer):
    """The server's half: announces the run, and carries.

    Args:
        run: what it serves.
        store: of the configuration.
    """

    def __init__(self, run: ServedRun, store: Store) -> None:
        super().__init__(run, store)
        self._parties: ComputeParties | None = None
        self._run = b""

    def announce(self, rho: float, clients: int) -> None:
        run, layout = self.run, self.run.layout
        self._parties = connect.connect(run.config, run.randomness)
        nonce = secrets.token_bytes(16)
        self._run = self._parties.begin(
            Announcement(run.config, layout.domain, layout.cliques, rho, self.store.fewest, nonce, clients)
        )

    @property
    def invitation(self) -> Arrays:
        """Run id and the parties' keys."""
        assert self._parties is not None
        return [np.frombuffer(piece, np.uint8) for piece in (self._run, b"".join(self._parties.keys))]

    def deal(self, replies: Mapping[int, Reply]) -> None:
        if not replies or self._parties is None:
            return
        sealed: dict[int, SealedDeal] = {}
        for partition, reply in sorted(replies.items()):
            try:
                sealed[partition] = _read_sealed(reply.arrays, self.run.layout.length)
            except ProtocolError as error:
                self.run.drop(partition, str(error))
        refused = self._parties.deal(sealed)
        for partition in sealed:
            if partition in refused:
                self.run.drop(partition, refused[partition])
            else:
                self.dealt.append(partition)

    def choose(self, choice: Choose, round: int) -> int:
        self.charge_choice(choice, round)
        assert self._parties is not None
        request = choice.request
        return self._parties.choose(ChooseOrder(self.next_order(), request.name, round, request.epsilon, choice.terms))

    def open(self, opening: Open, layout: Layout, round: int) -> Summed:
        noise, _ = self.charge_opening(opening, layout, round)
        assert self._parties is not None
        request = opening.request
        order = OpenOrder(self.next_order(), request.name, round, request.sigma, layout.cliques)
        return opened(self._parties.open(order), layout.shapes, noise, self.dealt, _PARTIES)

    def close(self) -> None:
        if self._parties is not None:
            self._parties.end()

    def traffic(self) -> list[dict[str, float]]:
        return [] if self._parties is None else [asdict(cost) for cost in self._parties.costs]


def _pinned(node: AggregationNode) -> tuple[bytes, bytes, bytes]:
    if node.parties is None:
        raise ProtocolError("aggregation.parties is missing: a real client takes no party's key from the server")
    first, second, third = (bytes.fromhex(party.key) for party in node.parties)
    return first, second, third


def _read_invitation(arrays: Arrays) -> tuple[bytes, tuple[bytes, bytes, bytes]]:
    """Run id and the parties' keys, from a request to deal."""
    sizes = [(array.dtype.kind, array.size) for array in arrays]
    if sizes[:2] != [("u", _RUN), ("u", 3 * _KEY)] or len(arrays) != 3:
        raise ProtocolError("the request to deal does not name its run and the parties' keys")
    keys = arrays[1].astype(np.uint8).tobytes()
    first, second, third = (keys[i : i + _KEY] for i in range(0, 3 * _KEY, _KEY))
    return arrays[0].astype(np.uint8).tobytes(), (first, second, third)


def _read_sealed(arrays: Arrays, length: int) -> SealedDeal:
    if len(arrays) != 5 or any(array.dtype != np.uint8 or array.ndim != 1 for array in arrays):
        raise ProtocolError("a sealed deal has five parts of bytes")
    public, one, two, three, correction = (array.tobytes() for array in arrays)
    if len(public) != _KEY or len(correction) > 8 * length + 64 or max(map(len, (one, two, three))) > 1024:
        raise ProtocolError("a sealed deal has parts of the wrong length")
    return SealedDeal(public, (one, two, three), correction)
