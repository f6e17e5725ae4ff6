"""The parties of a run, as its server drives them.

They are services or the states of a simulation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.fhe.bfv import DecryptionQuery, Sums
from fedsyn.crypto.mpc.dealing import reconstruct
from fedsyn.crypto.mpc.shared import PARTIES
from fedsyn.errors import ProtocolError, RunError
from fedsyn.stores.parties.crypto import KeyHolder
from fedsyn.stores.parties.interface import (
    Announcement,
    Begun,
    ChooseOrder,
    OpenOrder,
    PartyCost,
    SealedDeal,
    TotalOrder,
)
from fedsyn.stores.parties.party import Party
from fedsyn.stores.parties.sealing import DealPart

P = ParamSpec("P")
T = TypeVar("T")
_CHUNK = 8 << 20  # bytes of deals in one message, unless one client's alone are more


class Driven(ABC):
    """Parties that a server drives through one run after the other.

    Every method raises RunError, in one sentence, if a party is gone, slow, refuses or lies; nothing is opened then,
    and the run is over.
    """

    @property
    @abstractmethod
    def costs(self) -> tuple[PartyCost, ...]:
        """Returns what each party has spent so far in this run.

        A crypto party sends nothing to others.
        """

    @abstractmethod
    def enter(self, announcement: Announcement) -> None:
        """Reaches the parties for a run that is to be announced."""

    @abstractmethod
    def take(self, step: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        """Returns a step's result at each party, in order.

        They take it at the same time.

        Args:
            step: of the role's class.
            arguments: of the step, at each party.
        """

    @abstractmethod
    def end(self) -> None:
        """Ends the run; the parties forget what they kept of it.

        It never raises an error.
        """

    def fail(self, sentence: str) -> NoReturn:
        """Ends the run everywhere, and says why."""
        self.end()
        raise RunError(f"{sentence}; nothing was opened")


class ComputeParties(Driven):
    """The three computing parties."""

    @property
    @abstractmethod
    def keys(self) -> tuple[bytes, bytes, bytes]:
        """X25519 public keys, to which clients seal."""

    def begin(self, announcement: Announcement) -> bytes:
        """Announces a run; returns the id that the parties agreed on."""
        self.end()
        self.enter(announcement)
        return self._agreed(Party.begin, [(announcement,)] * PARTIES)

    def deal(self, deals: Mapping[int, SealedDeal]) -> dict[int, str]:
        """Hands over deals by partition id; returns why each was refused.

        One party refuses, or their comparison does.
        """
        refused: dict[int, str] = {}
        for chunk in _chunks(deals):
            parts = [({k: DealPart.of(deal, index) for k, deal in chunk.items()},) for index in range(PARTIES)]
            refused |= self._agreed(Party.deal, parts)
        return refused

    def choose(self, order: ChooseOrder) -> int:
        """The index that the parties opened, on which all three agree."""
        index = self._agreed(Party.choose, [(order,)] * PARTIES)
        if not 0 <= index < len(order.terms.cliques):
            self.fail("the parties have chosen what was not offered to them: one of them lies")
        return index

    def open(self, order: OpenOrder) -> npt.NDArray[np.int64]:
        """Returns the marginals one after the other, (L',).

        They are multiplied by the noise's resolution, and have all three shares of the noise.
        """
        shares = self.take(Party.open, [(order,)] * PARTIES)
        try:
            return reconstruct(shares)
        except ProtocolError as error:
            self.fail(f"the parties' shares do not fit together ({error})")

    def _agreed(self, step: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> T:
        first, *others = self.take(step, arguments)
        if any(other != first for other in others):
            self.fail("the parties give different answers: one of them lies")
        return first


class CryptoParty(Driven):
    """The crypto party."""

    def begin(self, announcement: Announcement) -> Begun:
        """Announces a run."""
        self.end()
        self.enter(announcement)
        return self._said(KeyHolder.begin, announcement)

    def choose(self, order: ChooseOrder, query: DecryptionQuery) -> npt.NDArray[np.int64]:
        """(1,) the index; with `selector: gaussian` (m,) noisy scores."""
        return self._said(KeyHolder.choose, order, query)

    def open(self, order: OpenOrder, brought: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """Returns the marginals of the order, in pieces.

        The pieces follow from the order (`fedsyn.crypto.fhe.slots`).

        `brought`: of a store with pads one string, its padded numbers of 8 bytes each; else the ciphertexts.
        """
        return self._said(KeyHolder.open, order, brought)

    def admit(self, order: TotalOrder | None, boxes: Mapping[int, bytes]) -> dict[int, str]:
        """Names contributors, by partition; returns why each was refused.

        They contribute to a sum or, without one (None), to the store.
        """
        return self._said(KeyHolder.admit, order, boxes)

    def total(self, order: TotalOrder, vector: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the total of a sum, (L,).

        It covers all contributors that the party has admitted.
        """
        return self._said(KeyHolder.total, order, vector)

    def unpad(self) -> list[bytes]:
        """The store is whole: what takes the pads off its counts, encrypted."""
        return self._said(KeyHolder.unpad)

    def sums(self, query: DecryptionQuery, sums: Sums) -> list[bytes]:
        """Linear combinations of sums of slots, encrypted again."""
        return self._said(KeyHolder.sums, query, sums)

    def _said(self, step: Callable[Concatenate[KeyHolder, P], T], *arguments: P.args, **_: P.kwargs) -> T:
        (answer,) = self.take(step, [arguments])
        return answer


def _chunks(deals: Mapping[int, SealedDeal]) -> list[dict[int, SealedDeal]]:
    """Deals in messages of bounded size."""
    chunks: list[dict[int, SealedDeal]] = []
    size = _CHUNK
    for partition, deal in sorted(deals.items()):
        length = sum(map(len, deal.to_parts()))
        if size + length > _CHUNK:
            chunks.append({})
            size = 0
        chunks[-1][partition] = deal
        size += length
    return chunks
