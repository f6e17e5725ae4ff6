"""The server's half of a store of ciphertexts.

It adds them up, and asks the crypto party for what may come out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import Limits, opened
from fedsyn.crypto.fhe.bfv import BfvComputation, plus_modulo
from fedsyn.crypto.fhe.products import ColumnLayout, Columns, Products, columns_of, message_of, parameters_of
from fedsyn.crypto.fhe.seal import added
from fedsyn.crypto.fhe.slots import NoiseRanges, SlotLayout
from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.stores.base import ServedRun, Store, StoreServer
from fedsyn.stores.crypto import CryptoRun, unpack
from fedsyn.stores.parties.boxes import opening_of
from fedsyn.stores.parties.interface import ChooseOrder, OpenOrder
from fedsyn.stores.parties.sealing import DealFacts
from fedsyn.wire.envelope import Arrays, Reply, check_message
from fedsyn.wire.requests import Choose, Layout, Open, Summed

_BOX = 256  # bytes, at most


class FheServer(StoreServer):
    """The computation entity of a store of ciphertexts.

    It adds them up, and asks the crypto party for what may come out.

    Args:
        run: what it serves.
        store: of the configuration.
        limits: who must have dealt before anything comes out, and who may be corrupted.
    """

    def __init__(self, run: ServedRun, store: Store, limits: Limits) -> None:
        super().__init__(run, store)
        self.limits, self.fhe = limits, run.config.fhe
        layout = run.layout
        self.crypto = CryptoRun(run.config, layout.domain, run.randomness, layout.cliques)
        self._stored: list[Any] | None = None
        self._counts: list[Any] | None = None  # the same without pads; None until the store is whole
        self._planes: list[Any] | None = None  # encrypted; of a store with pads:
        self._numbers: npt.NDArray[np.uint64] | None = None  # what is opened of it, padded
        self._entities: dict[int, Columns] = {}  # where columns are split over holders

    # Public facts -----------------------------------------------------------------------------------------------------

    @cached_property
    def layout(self) -> SlotLayout:
        return SlotLayout(self.run.facts.cliques, self.run.layout.domain, self.parameters.slots)

    @cached_property
    def parameters(self) -> Any:
        return parameters_of(self.run.config)

    @cached_property
    def ranges(self) -> NoiseRanges:
        facts = self.run.facts
        return NoiseRanges(self.layout, facts.openings, facts.attributes)

    @cached_property
    def computation(self) -> Any:
        return BfvComputation(self.parameters, self.crypto.begun.keys)

    @property
    def is_open(self) -> bool:
        return self._stored is not None and super().is_open

    # Deals ------------------------------------------------------------------------------------------------------------

    def announce(self, rho: float, clients: int) -> None:
        check_message(self._message, "aggregation: fhe")
        self.crypto.announce(rho, clients)

    @property
    def _message(self) -> float:
        return message_of(self.fhe, self.layout.ciphertexts, self.ranges.planes, self.layout, self.parameters)

    @property
    def invitation(self) -> Arrays:
        return self.crypto.invitation

    @property
    def at_once(self) -> int:
        """Number of deals that fit a gigabyte.

        Encrypted columns come from few clients anyway.
        """
        return max(1, int(2**30 // self._message))

    def deal(self, replies: Mapping[int, Reply]) -> None:
        read, boxes = dict[int, tuple[list[Any], int]](), dict[int, bytes]()
        for partition, reply in sorted(replies.items()):
            try:
                if self.fhe.is_bound:
                    boxes[partition] = self._box(partition, reply.arrays)
                read[partition] = self._read(partition, reply.arrays)
            except (ProtocolError, ConfigError) as error:
                self.run.drop(partition, str(error))
        boxes = {partition: box for partition, box in boxes.items() if partition in read}
        refused = self.crypto.party.admit(None, boxes) if boxes else {}
        for partition, (ciphertexts, count) in read.items():
            if partition in refused:
                self.run.drop(partition, f"the crypto party: {refused[partition]}")
                continue
            if self.fhe.compute == "client":
                self._stored = added(self.computation.ring, self._stored, ciphertexts[:count])
            if self.fhe.is_bound:
                numbers, before = replies[partition].arrays[2], self._numbers
                self._numbers = numbers if before is None else plus_modulo(before, numbers, self.modulus)
            else:
                self._planes = added(self.computation.ring, self._planes, ciphertexts[count:])
            self._counts = None
            self.dealt.append(partition)

    @property
    def modulus(self) -> int:
        """t."""
        modulus: int = self.computation.ring.modulus
        return modulus

    def _box(self, partition: int, arrays: Arrays) -> bytes:
        """Returns a client's box, beside padded numbers for openings.

        Raises ProtocolError if either cannot be used.
        """
        length = self.layout.entries + self.ranges.planes * self.layout.noisy
        fits = len(arrays) == 4 and arrays[2].dtype == np.uint64 and arrays[2].shape == (length,)
        if not fits or arrays[3].dtype != np.uint8 or arrays[3].ndim != 1 or len(arrays[3]) > _BOX:
            raise ProtocolError("what it sent is not ciphertexts, padded numbers and a box")
        if arrays[2].max(initial=0) >= self.modulus:
            raise ProtocolError("a padded number that it sent is as large as the modulus, or larger")
        box = arrays[3].tobytes()
        if DealFacts.of(box[: DealFacts.SIZE]).rows != (self.run.rows(partition) or 0):
            raise ProtocolError("another row count is sealed with its deal than it has published")
        return box

    def _read(self, partition: int, arrays: Arrays) -> tuple[list[Any], int]:
        """Reads a client's ciphertexts.

        It returns also how many of them hold counts (or columns). Raises ProtocolError if unusable.
        """
        columns = None if self.fhe.compute == "client" else self._columns_of(partition)
        count = self.layout.ciphertexts if columns is None else columns.ciphertexts
        planes = 0 if self.fhe.is_bound else self.ranges.planes
        ciphertexts = self.computation.read(unpack(arrays[:2] if self.fhe.is_bound else arrays, count + planes))
        if columns is not None:
            self._multiply(partition, columns, ciphertexts[:count])
        return ciphertexts, count

    def _columns_of(self, partition: int) -> ColumnLayout:
        rows = self.run.rows(partition) or 0
        if any(entity.layout.rows != rows for entity in self._entities.values()):
            raise ProtocolError("it has more or fewer rows than the other holder of these people's columns")
        return columns_of(self.run.config, self.run.layout.domain, partition, rows, self.parameters.slots)

    def _multiply(self, partition: int, layout: ColumnLayout, ciphertexts: Sequence[Any]) -> None:
        """Counts, as soon as all attributes of some people are there."""
        config, columns = self.run.config, Columns.of(layout, ciphertexts)
        entities = [columns]
        if config.federation.columns is not None:
            self._entities[partition] = columns
            if len(self._entities) < len(config.federation.columns):
                return
            entities = [entity for _, entity in sorted(self._entities.items())]
        parts = (self.computation, entities, self.run.layout.domain, self.layout, self.crypto.party.sums)
        self._stored = added(self.computation.ring, self._stored, Products(*parts).counts())

    # What comes out ---------------------------------------------------------------------------------------------------

    def choose(self, choice: Choose, round: int) -> int:
        terms, request, number = choice.terms, choice.request, self.next_order()
        assert self._stored is not None
        noise, entry = self.charge_choice(choice, round)
        source = self.run.randomness.generator("party", 0, round, request.name, number)
        zeros = np.zeros(len(terms.cliques), np.int64)
        share = self.run.party_ledger(0).selection_share(zeros, noise, entry, source, draws=True)
        question = self.computation.scores(self._unpadded(), self.layout, terms, share)
        answer = self.crypto.party.choose(ChooseOrder(number, request.name, round, request.epsilon, terms), question)
        if answer.shape != (1,) or not 0 <= int(answer[0]) < len(terms.cliques):
            raise RunError("the crypto party has chosen what was not offered to it")
        return int(answer[0])

    def _unpadded(self) -> list[Any]:
        """Returns the counts without pads.

        The crypto party gives what takes them off, when the store is whole.
        """
        assert self._stored is not None
        if self._counts is None:
            self._counts = self._stored
            if self.fhe.is_bound:
                minus = self.computation.read(self.crypto.party.unpad())
                copies = [self.computation.ring.copied(one) for one in self._stored]
                self._counts = added(self.computation.ring, copies, minus)
        return self._counts

    def open(self, opening: Open, layout: Layout, round: int) -> Summed:
        request, number = opening.request, self.next_order()
        noise, _ = self.charge_opening(opening, layout, round)
        assert self._stored is not None
        self._unpadded()  # nothing comes out before the crypto party knows that the store is whole
        pieces = self.ranges.reserve(layout.cliques)
        brought: Sequence[bytes]
        if self._numbers is not None:
            padded = opening_of(self._numbers, self.layout, pieces, noise.resolution, self.modulus)
            brought = (padded.astype("<u8", copy=False).tobytes(),)
        else:
            assert self._planes is not None
            question = self.computation.marginals(self._stored, self._planes, noise.resolution, pieces)
            brought = question.ciphertexts
        order = OpenOrder(number, request.name, round, request.sigma, layout.cliques)
        answer = self.crypto.party.open(order, brought)
        total = np.zeros(noise.length, np.int64)
        if answer.shape != total.shape:
            raise RunError("the crypto party has opened something else than it was asked for")
        at = 0
        for piece in pieces:
            size = piece.stop - piece.start
            total[piece.first : piece.first + size] = answer[at : at + size]
            at += size
        return opened(total, layout.shapes, noise, self.dealt)

    def close(self) -> None:
        self.crypto.close()

    def traffic(self) -> list[dict[str, float]]:
        return self.crypto.traffic()
