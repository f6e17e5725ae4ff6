"""FHAIM's COMPUTE step as its Protocols 1 and 4 print it, beside the packed products of the product.

Protocol 1 multiplies two columns for every cell, adds up the slots by rotations and moves the sum to its slot by
Protocol 4: a selector, a rotation, an addition. The result is masked and encrypted again as packed sums are, so that
both go on with equal ciphertexts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.fhe.bfv import BfvComputation, BfvReader, DecryptionQuery, uniform
from fedsyn.crypto.fhe.parameters import PLAIN_BITS, Parameters, bfv_for_store, fresh_noise, product_noise, with_room
from fedsyn.crypto.fhe.products import Column, ColumnLayout, Columns, Products
from fedsyn.crypto.fhe.seal import Encryptor, PublicKeys, SecretKeys
from fedsyn.crypto.fhe.slots import SlotLayout
from fedsyn.domain import Domain
from fedsyn.loading import parse_config
from fedsyn.runs.prepare import split_tables
from fedsyn.table.counting.stored import StoreFacts

_PRODUCTS = 2**10  # of columns that are added up slotwise, at most


def naive_parameters() -> Parameters:
    """Returns parameters for sums of products that are also formed by rotations and moved by a selector."""

    def noise(degree: int) -> float:
        # The sum over n slots doubles log2(n) times; a selector has coefficients up to t/2; n cells are combined.
        columns = _PRODUCTS * product_noise(degree, fresh_noise(degree))
        return (columns + 2.0**22) * degree**3 * 2.0 ** (PLAIN_BITS - 1)

    return with_room(noise, "the printed circuit")


class NaiveLayout(ColumnLayout):
    """A column for every value, each in ciphertexts of its own."""

    @classmethod
    def of(cls, rows: int, slots: int, domain: Domain, held: Sequence[str]) -> NaiveLayout:
        columns: list[Column] = [(name, value) for name in held for value in range(domain.size((name,)))]
        return cls(rows, slots, tuple(columns))

    @property
    def width(self) -> int:
        return 1


class RotatingKeys(SecretKeys):
    """A key holder's keys, with public ones for rotations."""

    def _published(self, made: Any) -> PublicKeys:
        rotate = self.ring.api.GaloisKeys()
        made.create_galois_keys(rotate)
        self.rotate = self.ring.to_bytes(rotate)
        return super()._published(made)


class NaiveComputation(BfvComputation):
    """The computation entity with keys for rotations.

    Args:
        keys: of the key holder; only public ones are read.
    """

    def __init__(self, keys: RotatingKeys) -> None:
        super().__init__(keys.ring.parameters, keys.public)
        self._rotate = self.ring.read("GaloisKeys", keys.rotate)

    def summed(self, ciphertext: Any) -> Any:
        """Returns the sum of all slots, in every slot: a rotation for each power of two."""
        evaluator, total = self.ring.evaluator, self.ring.copied(ciphertext)
        step = 1
        while step < self.parameters.slots // 2:  # BFV's slots are two rows
            turned = self.ring.api.Ciphertext()
            evaluator.rotate_rows(total, step, self._rotate, turned)
            evaluator.add_inplace(total, turned)
            step *= 2
        turned = self.ring.api.Ciphertext()
        evaluator.rotate_columns(total, self._rotate, turned)
        evaluator.add_inplace(total, turned)
        return total

    def moved(self, ciphertext: Any, slot: int) -> Any:
        """Returns the first slot alone, in another slot: Protocol 4."""
        evaluator, moved = self.ring.evaluator, self.ring.api.Ciphertext()
        evaluator.multiply_plain(ciphertext, self.ring.encoded(np.ones(1, np.int64)), moved)
        row, step = divmod(slot, self.parameters.slots // 2)
        if step:
            evaluator.rotate_rows_inplace(moved, -step, self._rotate)
        if row:
            evaluator.rotate_columns_inplace(moved, self._rotate)
        return moved


class NaiveProducts(Products):
    """Protocols 1 and 4: a product, a sum by rotations, a selector and a rotation for every cell."""

    computation: NaiveComputation

    def counts(self) -> list[Any]:
        cells = {frozenset(name): cell for name, cell in self._cells()}
        combined: dict[int, Any] = {}
        for ciphertext, ((name, _),) in self._sums():
            key = frozenset(name) if isinstance(name[0], tuple) else frozenset([name])
            if key not in cells:
                continue
            index, slot = divmod(cells[key], self._slots)
            moved = self.computation.moved(self.computation.summed(ciphertext), slot)
            if index in combined:
                self.ring.evaluator.add_inplace(combined[index], moved)
            else:
                combined[index] = moved
        sent: list[bytes] = []
        starts: list[int] = []
        terms, known = [], {}
        for index in sorted(combined):
            mask = uniform(self.ring.modulus, self._slots)
            for cell in range(index * self._slots, min(self.layout.length, (index + 1) * self._slots)):
                terms.append((cell, len(starts), 1))
                starts.append(len(sent) * self._slots + cell % self._slots)
                known[cell] = -int(mask[cell % self._slots])
            sent.append(self.computation.hidden(combined[index], mask))
        return self._with(self._again(DecryptionQuery(tuple(sent), tuple(starts), (1,) * len(starts)), terms), known)


def table_of(source: str) -> tuple[npt.NDArray[np.integer], Domain]:
    """Returns a registered table in five bins, 80% of its rows, or one with the shape of FHAIM's COMPAS."""
    if source == "made-up":
        domain = Domain(tuple("abcdefg"), (2, 3, 6, 3, 2, 3, 3))
        rng = np.random.default_rng(0)
        return np.stack([rng.integers(0, size, 4120) for size in domain.shape], axis=1), domain
    document = {
        "mechanism": "fhaim",
        "data": {"source": source, "bins": 5, "test_fraction": 0.2},
        "federation": {"clients": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-9, "client_sizes": "public"},
        "runtime": {"seed": 0},
    }
    tables = split_tables(parse_config(document))
    return tables.train, tables.schema.domain


def facts_of(domain: Domain) -> StoreFacts:
    """Returns what a store of all pairs may be asked for."""
    names = list(domain)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return StoreFacts((*((name,) for name in names), *pairs), 10, 11, "squared_l2")


def compute(codes: npt.NDArray[np.integer], domain: Domain, packed: bool) -> tuple[float, npt.NDArray[np.int64], int]:
    """Returns the seconds of COMPUTE, from a client's columns to encrypted counts, the counts, and the products."""
    facts = facts_of(domain)
    keys = SecretKeys(bfv_for_store(_PRODUCTS, _PRODUCTS)) if packed else RotatingKeys(naive_parameters())
    rotating = isinstance(keys, RotatingKeys)
    computation = NaiveComputation(keys) if rotating else BfvComputation(keys.ring.parameters, keys.public)
    slots, reader = keys.ring.parameters.slots, BfvReader(keys)
    layout = SlotLayout(facts.cliques, domain, slots)
    encryptor = Encryptor(keys.ring.parameters, keys.public.public)
    started = time.perf_counter()
    columns = (ColumnLayout if packed else NaiveLayout).of(len(codes), slots, domain, tuple(domain))
    vectors = columns.vectors({name: codes[:, i] for i, name in enumerate(domain)})
    sent = computation.read([piece for vector in vectors for piece in encryptor.to_bytes(vector)])
    kind = Products if packed else NaiveProducts
    made = kind(computation, [Columns.of(columns, sent)], domain, layout, reader.again)
    stored = made.counts()
    seconds = time.perf_counter() - started
    return seconds, keys.decrypted(stored[0])[: layout.length].astype(np.int64), made.count
