"""FHAIM's steps over CKKS, the scheme of its paper: approximate reals, sums by rotations, selectors.

What may not be read is multiplied by 0, and sums over a clique's slots are formed before anything is sent. SEAL encodes
in doubles, so that a 0 leaves about 2^-50 of a slot; there are no masks modulo a prime, and a uniform real mask, 2^40
times as large as what is left, covers it: 2^-40 for one slot, and so much worse for all of a run. That is for
comparisons, and a deployment is refused this scheme (`fedsyn.aggregation.store.fhe`).

Cliques lie in blocks of powers of two, so that after j rotations by 1, 2, 4, ... a block of 2^j slots has its sum in
its first one. A product, also with a selector, drops two primes, since the scale has two
(`fedsyn.crypto.fhe.parameters`). What the key holder reads is off by the flood, which depends on no data, and is
rounded.

The L1 score of the paper's appendix C is a polynomial of degree 10: α p(x/α), in u = (x/α)² of degree 5.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import ceil, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.fhe.parameters import CKKS_GRID, POOL_REACH, Parameters, ckks_noise, ckks_scale, rescaling_noise
from fedsyn.crypto.fhe.question import Asked
from fedsyn.crypto.fhe.seal import Encryptor, PublicKeys, SecretKeys, ring_of
from fedsyn.crypto.fhe.slots import Piece, SlotLayout, placed
from fedsyn.errors import ProtocolError
from fedsyn.selection.terms import POLYNOMIAL, L1Polynomial, Terms

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


class CkksComputation:
    """The computation entity's side; methods as those of `BfvComputation`.

    Args:
        parameters: of the run.
        keys: public ones, of the key holder.
    """

    def __init__(self, parameters: Parameters, keys: PublicKeys) -> None:
        self.parameters, self.ring = parameters, ring_of(parameters)
        self._relinearise = self.ring.read("RelinKeys", keys.relinearise)
        self._rotate = self.ring.read("GaloisKeys", keys.rotate)
        self._encryptor = Encryptor(parameters, keys.public)

    def read(self, raw: Sequence[bytes]) -> list[Any]:
        """Fresh ciphertexts from a client. Raises ProtocolError for anything else."""
        return [self.ring.ciphertext(piece, at_top=True) for piece in raw]

    # A choice ---------------------------------------------------------------------------------------------------------

    def scores(self, stored: Sequence[Any], layout: SlotLayout, terms: Terms, noise: Integers) -> Asked:
        """Noisy scores, in the first slot of each clique, and 0 in all other slots."""
        slots, unit = self.parameters.slots, float(terms.unit)
        places = [layout.range_of(clique)[0] for clique in terms.cliques]
        used = sorted({start // slots for start in places})
        position = {index: place for place, index in enumerate(used)}
        sent, starts = [], [position[start // slots] * slots + start % slots for start in places]
        for index in used:
            mine = [q for q, start in enumerate(places) if start // slots == index]
            model, added = np.zeros(slots), np.zeros(slots)
            weights: dict[int, Reals] = {}
            for q in mine:
                at, size = places[q] % slots, terms.sizes[q]
                block = (size - 1).bit_length()
                first = terms.starts[q]
                model[at : at + size] = terms.model[first : first + size] / terms.scale
                weights.setdefault(block, np.zeros(slots))[at] = float(terms.weights[q])
                penalty = int(terms.penalties[q]) / unit + self._empty(terms, (1 << block) - size)
                added[at] = int(noise[q]) / unit - int(terms.weights[q]) * penalty
            noisy = self._summed(self._distances(stored[index], model, terms), weights)
            free = np.ones(slots, bool)
            free[[places[q] % slots for q in mine]] = False
            reach = self._largest(terms, max(weights))
            self.ring.evaluator.add_plain_inplace(noisy, self.ring.encoded(added + self._masks(free, reach), noisy))
            sent.append(self._hidden(noisy, self._noise_of(terms, max(weights))))
        return Asked(tuple(sent), tuple(starts), (1,) * len(starts))

    def _distances(self, counts: Any, model: Reals, terms: Terms) -> Any:
        """What one cell adds to a norm, in every slot."""
        far = self.ring.copied(counts)
        self.ring.evaluator.sub_plain_inplace(far, self.ring.encoded(model, far))
        squares = self._product(far, far)
        return squares if terms.norm != L1Polynomial.name else self._polynomial(squares, L1Polynomial.alpha(terms.rows))

    def _polynomial(self, squares: Any, alpha: float) -> Any:
        """α p(x/α) from x²: c0 + c1 u + c2 u² + c3 u u² + (c4 + c5 u) u⁴, times α."""
        squares.scale = squares.scale * alpha**2  # the number divided by α², without a product
        c = [alpha * coefficient for coefficient in POLYNOMIAL]
        u = self._lowered(squares)
        u2 = self._product(u, u)
        u4 = self._product(u2, u2)
        high = self._product(self._affine(c[5], c[4], u), u4)
        middle = self._product(self._affine(c[3], c[2], u), u2)
        low = self._affine(c[1], c[0], u)
        return self._plus(self._plus(high, middle), low)

    def _affine(self, factor: float, constant: float, x: Any) -> Any:
        """factor x + constant, a level below x."""
        result = self._times(x, np.full(self.parameters.slots, factor))
        self.ring.evaluator.add_plain_inplace(
            result, self.ring.encoded(np.full(self.parameters.slots, constant), result)
        )
        return result

    def _plus(self, deep: Any, other: Any) -> Any:
        """A sum at the level and scale of the deeper one; scales differ by what primes differ from powers of two."""
        evaluator, levelled = self.ring.evaluator, self.ring.api.Ciphertext()
        factor = deep.scale / other.scale
        whole = self._times(other, np.ones(self.parameters.slots), factor)
        evaluator.mod_switch_to(whole, deep.parms_id(), levelled)
        levelled.scale = deep.scale
        evaluator.add_inplace(deep, levelled)
        return deep

    def _summed(self, values: Any, weights: dict[int, Reals]) -> Any:
        """Sums over blocks of 2^j slots, times the weights in their first slots; 0 elsewhere."""
        evaluator, total, sums = self.ring.evaluator, values, None
        for j in range(max(weights) + 1):
            if j:
                turned = self.ring.api.Ciphertext()
                evaluator.rotate_vector(total, 1 << (j - 1), self._rotate, turned)
                evaluator.add_inplace(turned, total)
                total = turned
            if j in weights:
                part = self._times(total, weights[j])
                if sums is None:
                    sums = part
                else:
                    evaluator.add_inplace(sums, part)
        return sums

    @staticmethod
    def _empty(terms: Terms, slots: int) -> float:
        """What unused slots of a block add to its norm."""
        return slots * L1Polynomial.alpha(terms.rows) * POLYNOMIAL[0] if terms.norm == L1Polynomial.name else 0.0

    @staticmethod
    def _largest(terms: Terms, block: int) -> float:
        """Bound on a sum of slots, times its weight."""
        one = (2.0 * terms.rows) ** 2 if terms.norm != L1Polynomial.name else 2.0 * L1Polynomial.alpha(terms.rows)
        return one * float(terms.weights.max()) * 2.0**block

    @staticmethod
    def _masks(free: npt.NDArray[np.bool_], reach: float) -> Reals:
        """Uniform in the free slots, and 2^40 times what a selector's zeros leave there of numbers up to `reach`."""
        masks = np.zeros(len(free))
        words = np.frombuffer(os.urandom(8 * int(free.sum())), np.int64)
        masks[free] = words / 2.0**63 * (reach * 2.0**-50 * 2.0**40)
        return masks

    def _noise_of(self, terms: Terms, block: int) -> float:
        """Typical bound on the noise of a score, in units of the last place: how steep it is, added up over a block.

        The polynomial in u = (x/α)² carries a rescaling's rounding of u and its powers up by at most 4 α each.
        """
        noise = ckks_noise(self.parameters) * 4.0 * terms.rows
        if terms.norm == L1Polynomial.name:
            rounded = 12.0 * L1Polynomial.alpha(terms.rows) * rescaling_noise(self.parameters)
            noise = ckks_noise(self.parameters) * 2.0 * L1Polynomial.steepest + rounded
        return noise * float(terms.weights.max()) * 2.0**block

    # An opening -------------------------------------------------------------------------------------------------------

    def marginals(
        self, stored: Sequence[Any], planes: Sequence[Any], factor: int, pieces: Sequence[Piece], rows: int
    ) -> Asked:
        """Cells plus their noise divided by `factor`, and a mask in every other slot; no cell exceeds `rows`."""
        slots, sent = self.parameters.slots, []
        pairs, starts, sizes = placed(pieces, slots)
        for index, plane in pairs:
            wanted = np.zeros(slots)
            for piece in pieces:
                if (piece.index, piece.plane) == (index, plane):
                    wanted[piece.start : piece.stop] = 1.0
            noisy = self._times(stored[index], wanted)
            self.ring.evaluator.add_inplace(noisy, self._times(planes[plane], wanted / factor))
            masks = self._masks(wanted == 0.0, rows + POOL_REACH / factor)
            self.ring.evaluator.add_plain_inplace(noisy, self.ring.encoded(masks, noisy))
            sent.append(self._hidden(noisy, ckks_noise(self.parameters)))
        return Asked(tuple(sent), starts, sizes)

    # Ciphertexts ------------------------------------------------------------------------------------------------------

    def _product(self, one: Any, other: Any) -> Any:
        """Slotwise; `one` and `other` may be the same, and at different levels."""
        evaluator, result = self.ring.evaluator, self.ring.api.Ciphertext()
        if one is other:
            evaluator.square(one, result)
        else:
            levelled = self.ring.api.Ciphertext()
            deep, high = (one, other) if one.coeff_modulus_size() < other.coeff_modulus_size() else (other, one)
            evaluator.mod_switch_to(high, deep.parms_id(), levelled)
            evaluator.multiply(deep, levelled, result)
        evaluator.relinearize_inplace(result, self._relinearise)
        return self._rescaled(result)

    def _times(self, ciphertext: Any, values: Reals, factor: float = 1.0) -> Any:
        """Slotwise with public numbers; the scale is that of the ciphertext (times `factor`) again."""
        evaluator, result = self.ring.evaluator, self.ring.api.Ciphertext()
        size = ciphertext.coeff_modulus_size()
        scale = float(self.ring.primes[size - 1]) * float(self.ring.primes[size - 2]) * factor
        plain = self.ring.encoded(values, ciphertext, scale)
        evaluator.multiply_plain(ciphertext, plain, result)
        return self._rescaled(result)

    def _lowered(self, ciphertext: Any) -> Any:
        """The same at about the scale of a fresh one: times an integer, which its scale takes up, less one prime."""
        prime = self.ring.primes[ciphertext.coeff_modulus_size() - 1]
        factor = float(round(ckks_scale(self.parameters) * prime / ciphertext.scale))
        plain, result = (
            self.ring.encoded(np.ones(self.parameters.slots), ciphertext, factor),
            self.ring.api.Ciphertext(),
        )
        self.ring.evaluator.multiply_plain(ciphertext, plain, result)
        self.ring.evaluator.rescale_to_next_inplace(result)
        return result

    def _rescaled(self, ciphertext: Any) -> Any:
        for _ in range(2):
            self.ring.evaluator.rescale_to_next_inplace(ciphertext)
        return ciphertext

    def _hidden(self, ciphertext: Any, noise: float) -> bytes:
        bits = self.parameters.flood_bits + max(0, ceil(log2(noise / ckks_noise(self.parameters))))
        return self.ring.to_bytes(self.ring.flooded(ciphertext, self._encryptor.inner, bits))


class CkksReader:
    """The key holder's side."""

    def __init__(self, keys: SecretKeys) -> None:
        self.keys, self.ring = keys, keys.ring

    def _slots(self, asked: Asked) -> Reals:
        asked.check(self.ring.parameters.slots)
        read: list[Reals] = [self.keys.decrypted(self.ring.ciphertext(raw)) for raw in asked.ciphertexts]
        return np.concatenate(read)

    def scores(self, asked: Asked, terms: Terms) -> Integers:
        """(m,) noisy scores, rounded to integer steps."""
        if len(asked.starts) != len(terms.sizes) or any(size != 1 for size in asked.sizes):
            raise ProtocolError("a question to the key holder does not fit the terms of the choice")
        return np.rint(self._slots(asked)[list(asked.starts)] * terms.unit).astype(np.int64)

    def numbers(self, asked: Asked) -> Integers:
        """The slots that are asked for, one range after the other, rounded to 1/CKKS_GRID."""
        slots = self._slots(asked)
        ranges = [slots[start : start + size] for start, size in zip(asked.starts, asked.sizes, strict=True)]
        return np.rint(np.concatenate(ranges) * CKKS_GRID).astype(np.int64)
