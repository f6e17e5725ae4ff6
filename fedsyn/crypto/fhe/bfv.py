"""FHAIM's three steps over BFV, in exact integers.

Only the sums that are meant to be read can be read.

*What goes to the key holder.* Every slot of a ciphertext that it decrypts carries a mask, uniform modulo the prime t:
what is read there is uniform, whatever was computed. Of a choice it is told, for each clique, a number that brings the
sum over the clique's slots, and nothing else, to the noisy score. Of an opening the requested slots alone have no mask:
they carry the noise that was dealt, encrypted, by the clients. The ciphertext itself is re-randomised and flooded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.fhe.parameters import Parameters
from fedsyn.crypto.fhe.seal import Encryptor, PublicKeys, SecretKeys, ring_of
from fedsyn.crypto.fhe.slots import Piece, SlotLayout, placed
from fedsyn.errors import ProtocolError
from fedsyn.selection.terms import ChoiceTerms

Integers = npt.NDArray[np.int64]
Residues = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class DecryptionQuery:
    """Ciphertexts that the computation sends to be decrypted.

    Attributes:
        ciphertexts: their slots, one after the other, are numbered from 0.
        starts: (m,) first slot of each sum that is asked for.
        sizes: (m,) slots of each.
        offsets: (m,) what is added to each of them after the weight; below t.
    """

    ciphertexts: tuple[bytes, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...] = ()

    def check(self, slots: int) -> None:
        """Raises ProtocolError unless the ranges lie in the slots."""
        whole = len(self.ciphertexts) * slots
        if len(self.starts) != len(self.sizes) or any(
            not 0 <= start < start + size <= whole for start, size in zip(self.starts, self.sizes, strict=True)
        ):
            raise ProtocolError("a question to the key holder names slots that it does not bring")


@dataclass(frozen=True)
class Sums:
    """Linear combinations of slots that the key holder encrypts again.

    Each goes into a slot of its own.

    Attributes:
        slots: (k,) where a term goes.
        sums: (k,) which sum it is.
        factors: (k,) times what.
        length: slots of one copy.
        copies: of everything, one after the other.
    """

    slots: npt.NDArray[np.int64]
    sums: npt.NDArray[np.int64]
    factors: npt.NDArray[np.int64]
    length: int
    copies: int

    @classmethod
    def of(cls, terms: Sequence[tuple[int, int, int]], length: int, copies: int) -> Sums:
        table = np.array(terms, np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2], length, copies)

    def check(self, sums: int) -> None:
        """Raises ProtocolError if a term is of no sum, or goes nowhere."""
        parts = (self.slots, self.sums, self.factors)
        shaped = len({part.shape for part in parts}) == 1 and all(type(n) is int for n in (self.length, self.copies))
        if not shaped or not 1 <= self.copies * self.length <= 2**27 or self.copies < 1:
            raise ProtocolError("a question to the key holder does not say where its answers go")
        inside = ((self.slots >= 0) & (self.slots < self.length) & (self.sums >= 0) & (self.sums < sums)).all()
        if not inside or (np.abs(self.factors) > 2**20).any():
            raise ProtocolError("a question to the key holder combines sums that it does not ask for")


class BfvComputation:
    """The computation entity's side.

    Args:
        parameters: of the run.
        keys: public ones, of the key holder.
    """

    def __init__(self, parameters: Parameters, keys: PublicKeys) -> None:
        self.parameters, self.ring = parameters, ring_of(parameters)
        self._relinearise = self.ring.read("RelinKeys", keys.relinearise) if keys.relinearise else None
        self._encryptor = Encryptor(parameters, keys.public)

    def read(self, raw: Sequence[bytes]) -> list[Any]:
        """Reads fresh ciphertexts from a client; raises ProtocolError for anything else."""
        return [self.ring.ciphertext(piece, at_top=True) for piece in raw]

    def encrypted(self, vector: Integers) -> list[Any]:
        """Encrypts a public vector, in as many ciphertexts as it takes."""
        return self.read(self._encryptor.to_bytes(vector))

    def relinearised(self, product: Any) -> Any:
        """Brings a product to two parts again, in place."""
        self.ring.evaluator.relinearize_inplace(product, self._relinearise)
        return product

    def scores(self, stored: Sequence[Any], layout: SlotLayout, terms: ChoiceTerms, noise: Integers) -> DecryptionQuery:
        """Returns the query that shows noisy scores to the key holder.

        It reads W_q (|γ M_q - m_q|² - P_q) + noise_q, and nothing of the summands.
        """
        t, slots = self.ring.modulus, self.parameters.slots
        places = [layout.range_of(clique) for clique in terms.cliques]
        used = sorted({index for start, stop in places for index in range(start // slots, (stop - 1) // slots + 1)})
        position = {index: place for place, index in enumerate(used)}
        model = np.zeros(len(used) * slots, np.int64)
        first = [position[start // slots] * slots + start % slots for start, _ in places]
        for at, start, size in zip(first, terms.starts, terms.sizes, strict=True):
            model[at : at + size] = terms.model[start : start + size]
        sent, masks = [], uniform(t, len(model))
        for place, index in enumerate(used):
            here = slice(place * slots, (place + 1) * slots)
            squares = self.squares(stored[index], model[here], terms.scale)
            sent.append(self.hidden(squares, masks[here]))
        offsets = []
        for q, (at, size) in enumerate(zip(first, terms.sizes, strict=True)):
            weight, hidden = int(terms.weights[q]), sum_modulo(masks[at : at + size], t)
            offsets.append((int(noise[q]) - weight * (int(terms.penalties[q]) + hidden)) % t)
        return DecryptionQuery(tuple(sent), tuple(first), terms.sizes, tuple(offsets))

    def squares(self, counts: Any, model: Integers, scale: int) -> Any:
        """Returns (γ M - m)² in every slot."""
        evaluator, far = self.ring.evaluator, self.ring.api.Ciphertext()
        evaluator.multiply_plain(counts, self.ring.constant(scale), far)
        if model.any():
            evaluator.sub_plain_inplace(far, self.ring.encoded(model))
        square = self.ring.api.Ciphertext()
        evaluator.square(far, square)
        return self.relinearised(square)

    def marginals(
        self, stored: Sequence[Any], planes: Sequence[Any], factor: int, pieces: Sequence[Piece]
    ) -> DecryptionQuery:
        """Returns the query for cells times `factor`, plus their noise.

        It has one ciphertext for each pair of a stored one and a plane.

        Args:
            stored: the store's ciphertexts.
            planes: of encrypted noise.
            factor: γ, an integer.
            pieces: what is opened, with which noise.
        """
        evaluator, slots, sent = self.ring.evaluator, self.parameters.slots, []
        pairs, starts, sizes = placed(pieces, slots)
        for index, plane in pairs:
            noisy = self.ring.api.Ciphertext()
            evaluator.multiply_plain(stored[index], self.ring.constant(factor), noisy)
            evaluator.add_inplace(noisy, planes[plane])
            masks = uniform(self.ring.modulus, slots)
            for piece in pieces:
                if (piece.index, piece.plane) == (index, plane):
                    masks[piece.start : piece.stop] = 0
            sent.append(self.hidden(noisy, masks))
        return DecryptionQuery(tuple(sent), starts, sizes)

    def hidden(self, ciphertext: Any, masks: npt.NDArray[np.uint64]) -> bytes:
        """Masks, re-randomises and floods a ciphertext, in place; returns its bytes."""
        self.ring.evaluator.add_plain_inplace(ciphertext, self.ring.encoded(masks.astype(np.int64)))
        return self.ring.to_bytes(self.ring.flooded(ciphertext, self._encryptor.inner))


class BfvReader:
    """The key holder's side."""

    def __init__(self, keys: SecretKeys) -> None:
        self.keys, self.ring = keys, keys.ring

    def slots(self, query: DecryptionQuery) -> npt.NDArray[np.uint64]:
        """Decrypts all slots, modulo t."""
        query.check(self.ring.parameters.slots)
        read = [self.keys.decrypted(self.ring.ciphertext(raw)) for raw in query.ciphertexts]
        return np.concatenate([np.zeros(0, np.uint64), *read])

    def scores(self, query: DecryptionQuery, terms: ChoiceTerms) -> Integers:
        """Returns noisy scores, (m,): sums of slots, times the weight, plus offset."""
        if query.sizes != terms.sizes or len(query.offsets) != len(terms.sizes):
            raise ProtocolError("a question to the key holder does not fit the terms of the choice")
        slots, t = self.slots(query), self.ring.modulus
        values = []
        for start, size, weight, offset in zip(query.starts, query.sizes, terms.weights, query.offsets, strict=True):
            values.append(centred((int(weight) * sum_modulo(slots[start : start + size], t) + offset) % t, t))
        return np.array(values, np.int64)

    def numbers(self, query: DecryptionQuery) -> Integers:
        """Returns the requested slots as integers around 0.

        The ranges follow one another.
        """
        slots, t = self.slots(query), self.ring.modulus
        ranges = [slots[start : start + size] for start, size in zip(query.starts, query.sizes, strict=True)]
        return centred_all(np.concatenate(ranges), t)

    def again(self, query: DecryptionQuery, sums: Sums) -> list[bytes]:
        """Encrypts linear combinations of sums of slots again."""
        sums.check(len(query.starts))
        slots, t = self.slots(query), self.ring.modulus
        totals = [sum_modulo(slots[i : i + size], t) for i, size in zip(query.starts, query.sizes, strict=True)]
        vector = [0] * sums.length
        for slot, index, factor in zip(sums.slots.tolist(), sums.sums.tolist(), sums.factors.tolist(), strict=True):
            vector[slot] += factor * totals[index]
        whole = np.tile(np.array([value % t for value in vector], np.int64), sums.copies)
        return Encryptor(self.ring.parameters, self.keys.public.public).to_bytes(whole)


def uniform(modulus: int, size: int) -> npt.NDArray[np.uint64]:
    """Draws independent uniform residues from the operating system, (size,)."""
    return residues(os.urandom, modulus, size)


def residues(read: Callable[[int], bytes], modulus: int, size: int) -> Residues:
    """Draws uniform residues, (size,).

    They are those words below the modulus, in order, among the bytes that `read` gives.
    """
    words = size + 16
    while True:  # the largest 60-bit prime refuses one word in 2^40: once
        stream = np.frombuffer(read(8 * words), "<u8") >> np.uint64(64 - modulus.bit_length())
        accepted = stream[stream < np.uint64(modulus)]
        if len(accepted) >= size:
            return accepted[:size].astype(np.uint64, copy=False)
        words = 2 * words + 64


def sum_modulo(values: npt.NDArray[np.uint64], modulus: int) -> int:
    """Sums residues below 2^60."""
    high, low = int((values >> np.uint64(30)).sum()), int((values & np.uint64(2**30 - 1)).sum())
    return ((high << 30) + low) % modulus


def plus_modulo(one: Residues, other: Residues, modulus: int) -> Residues:
    """Adds residues of a modulus below 2^63."""
    return (one + other) % np.uint64(modulus)


def less_modulo(one: Residues, other: Residues, modulus: int) -> Residues:
    return plus_modulo(one, np.uint64(modulus) - other, modulus)


def times_modulo(values: Residues, factor: int, modulus: int) -> Residues:
    """Multiplies residues of a modulus below 2^60 by a public factor.

    The factor is at least 0; four of its bits are taken at a time.
    """
    t, product = np.uint64(modulus), np.zeros(len(values), np.uint64)
    for shift in range(4 * ((factor.bit_length() + 3) // 4) - 4, -1, -4):
        digit = np.uint64(factor >> shift & 15)
        product = ((product << np.uint64(4)) % t + values * digit % t) % t
    return product


def centred(value: int, modulus: int) -> int:
    return value - modulus if value > modulus // 2 else value


def centred_all(values: npt.NDArray[np.uint64], modulus: int) -> Integers:
    signed = values.astype(np.int64)
    return np.where(signed > modulus // 2, signed - modulus, signed)
