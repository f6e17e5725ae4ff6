"""Public integers behind one choice from a store.

A store may have to compare on secret shares or ciphertexts, where numbers are integers. So a score is one:

    score_q = W_q ( N(γ M_q - m_q) - P_q ),   m_q = round(γ n p_q),

with M_q the stored counts, p_q the model's marginal, n the (public or released) number of stored rows, γ a power of
two, W_q the weight, P_q the penalty, N the L1 norm (AIM's) or the squared L2 norm (FHAIM's). γ M_q is exact; only
public numbers are rounded, so one row moves a score by exactly what `moved` of the norm says: no rounding enters the
sensitivity. Every store computes these same integers: a choice does not depend on which one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import pi, sqrt
from typing import ClassVar

import numpy as np

from fedsyn.domain import Clique, Floats, Integers
from fedsyn.errors import ConfigError

#: Scores, with any counts whatever and all noise, stay below this in absolute value: they are compared in 64 bits.
LARGEST_SCORE = 2**62
#: Scores of honest tables below this are exact as doubles.
EXACT = 2**53
#: One row moves the largest score by at least this many integer steps: `SelectionNoise` pays 2 of them for rounding.
FINEST = 2**11
#: A cell of the model is rounded by at most 1/64 of the noise that its measurement would carry.
_STEPS_OF_SIGMA = 32.0


class L1:
    """AIM's norm: the sum of |γ M - m|.

    Its penalty is the expected L1 norm of the noise, sqrt(2/pi) sigma n_q. `SquaredL2` has the same methods.
    """

    name: ClassVar[str] = "l1"

    def scale(self, sigma: float, weight: int) -> int:
        """Returns γ, a power of two.

        It follows from the noise of a measurement, in records, and from the largest weight.
        """
        return _power_of_two(max(_STEPS_OF_SIGMA / sigma, FINEST / weight))

    def penalty(self, sigma: float, cells: Floats, scale: int) -> Floats:
        """Returns the norms that a measurement's noise adds, (m,).

        `cells` are the marginals' sizes; norms are in units of γ or γ².
        """
        return scale * sqrt(2.0 / pi) * sigma * cells

    def moved(self, scale: int, rows: int) -> int:
        """Returns γ, the most that one row moves N(γ M - m).

        One row changes one cell of M by 1, and an absolute value by no more, wherever m lies. (No count and no model
        cell may exceed `rows` records.)

        `measure` takes differences modulo 2^bits, where |x| is as steep: no count that a hostile client deals can make
        another client's row move a score by more, nor a score leave its bound.
        """
        return scale

    def unit(self, scale: int) -> int:
        """Returns the integer steps of a norm of 1."""
        return scale

    def largest(self, bits: int, cells: int) -> int:
        """Returns the largest N, whatever clients have dealt.

        It is a sum over `cells` cells of values of at most 2^(bits-1).
        """
        return cells << (bits - 1)

    def honest(self, scale: int, rows: int) -> int:
        """Returns the largest N between two tables of `rows` rows."""
        return 2 * scale * rows

    def measure(self, differences: Integers, terms: ChoiceTerms) -> Integers:
        """Returns the norm of each clique's γ M - m, (m,).

        The plain store computes it this way, and is the reference for the other stores.
        """
        half = np.int64(1 << (terms.bits - 1))
        centred = ((differences + half) & (2 * half - 1)) - half
        return _segments(np.abs(centred), terms.starts)


class SquaredL2:
    """FHAIM's norm: the sum of (γ M - m)².

    Its penalty is the noise's expected squared norm, sigma² n_q (its Theorem D.2).
    """

    name: ClassVar[str] = "squared_l2"

    def scale(self, sigma: float, weight: int) -> int:
        return _power_of_two(_STEPS_OF_SIGMA / sigma)

    def penalty(self, sigma: float, cells: Floats, scale: int) -> Floats:
        return scale**2 * sigma**2 * cells

    def moved(self, scale: int, rows: int) -> int:
        """Returns γ² (2 rows + 1): one row moves N no more.

        As |(γ(x+1) - m)² - (γx - m)²| = γ |2(γx - m) + γ| (FHAIM, Theorem D.1, where γ = 1). It holds only as long as
        no cell exceeds `rows`: this norm needs public row counts, and clients who deal no more.
        """
        return scale**2 * (2 * rows + 1)

    def unit(self, scale: int) -> int:
        return scale**2

    def largest(self, bits: int, cells: int) -> int:
        return cells << (2 * bits - 2)

    def honest(self, scale: int, rows: int) -> int:
        return (2 * scale * rows) ** 2

    def measure(self, differences: Integers, terms: ChoiceTerms) -> Integers:
        return _segments(differences**2, terms.starts)


NORMS: dict[str, L1 | SquaredL2] = {L1.name: L1(), SquaredL2.name: SquaredL2()}


@dataclass(frozen=True)
class ChoiceTerms:
    """Public numbers that a store needs to choose.

    Attributes:
        norm: name of the norm, of `NORMS`.
        cliques: m eligible cliques, in the order of the answer's index.
        sizes: (m,) cells of each.
        weights: (m,) int64 W_q, at least 1.
        penalties: (m,) int64 P_q.
        model: (sum of sizes,) int64 γ n p, one clique after the other in C order.
        scale: γ.
        rows: bound on every count and model cell, in records.
    """

    norm: str
    cliques: tuple[Clique, ...]
    sizes: tuple[int, ...]
    weights: Integers
    penalties: Integers
    model: Integers
    scale: int
    rows: int

    @classmethod
    def of(
        cls,
        norm: str,
        cliques: Sequence[Clique],
        probabilities: Sequence[Floats],
        weights: Floats,
        cells: Floats,
        *,
        sigma: float,
        size: float,
        rows: int,
    ) -> ChoiceTerms:
        """Rounds the public numbers of one choice.

        Args:
            norm: name of the norm.
            cliques: m eligible cliques.
            probabilities: of the model, one flat marginal each.
            weights: (m,) AIM's w_q.
            cells: (m,) that the penalty counts, all of a marginal's or its effective ones.
            sigma: noise of the measurement that would follow, in records.
            size: n, rows of the store, public or released.
            rows: bound on them.

        Raises:
            ConfigError: the scores might leave 62 bits, however coarse the model.
        """
        used = NORMS[norm]
        steps = np.maximum(1, np.rint(weights * _steps(weights))).astype(np.int64)
        sizes = tuple(len(p.ravel()) for p in probabilities)
        # A marginal whose noise is that large is never chosen, and so its score stays exact also as a double.
        most, scale = float(EXACT // (2 * int(steps.max()))), used.scale(sigma, int(steps.max()))
        while True:
            penalties = np.rint(np.minimum(used.penalty(sigma, cells, scale), most)).astype(np.int64)
            terms = cls(norm, tuple(cliques), sizes, steps, penalties, np.zeros(0, np.int64), scale, rows)
            if scale == 1 or (terms.reach < LARGEST_SCORE and terms.bits <= 62):
                break
            scale //= 2  # rather a coarser model than a run that ends here: the sensitivity follows from the scale
        terms = replace(terms, model=np.empty(sum(sizes), np.int64))
        for one, p in zip(terms.alone(), probabilities, strict=True):
            one.model[:] = np.rint(p.ravel() * (scale * size))
            np.minimum(one.model, scale * rows, out=one.model)
        terms.check()
        return terms

    def check(self) -> None:
        """Raises ConfigError if terms do not fit together or leave 62 bits."""
        m = len(self.cliques)
        whole = len(self.sizes) == len(self.weights) == len(self.penalties) == m > 0
        if not whole or len(self.model) != sum(self.sizes) or self.norm not in NORMS or self.scale < 1 or self.rows < 1:
            raise ConfigError("the terms of a choice do not fit together")
        if int(self.weights.min()) < 1 or int(self.model.min(initial=0)) < 0:
            raise ConfigError("the terms of a choice have a weight below 1, or a negative model")
        if int(self.model.max(initial=0)) > self.scale * self.rows or self.bits > 62:
            raise ConfigError("the terms of a choice have a model of more rows than they say")
        if self.reach >= LARGEST_SCORE:
            raise ConfigError(
                f"scores of marginals of up to {max(self.sizes)} cells over {self.rows} rows could reach "
                f"{float(self.reach):.3g}, beyond 2^62: lower workload.degree, data.bins or inference.max_cells, or "
                "sum fewer rows"
            )

    @property
    def reach(self) -> int:
        """Bound on the absolute value of every score, whatever clients have dealt."""
        return max(
            int(w) * (NORMS[self.norm].largest(self.bits, n) + abs(int(p)))
            for w, n, p in zip(self.weights, self.sizes, self.penalties, strict=True)
        )

    @property
    def exact(self) -> bool:
        """True if doubles hold every score of an honest table.

        They then hold every step of its computation exactly, too.
        """
        norm, w = NORMS[self.norm], int(self.weights.max())
        return w * (norm.honest(self.scale, self.rows) + int(np.abs(self.penalties).max())) < EXACT

    @property
    def bits(self) -> int:
        """Bits of γ M - m with its sign.

        No count may exceed `rows`.
        """
        return (self.scale * self.rows).bit_length() + 1

    @cached_property
    def starts(self) -> Integers:
        """First cell of each clique, (m,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    @property
    def moved(self) -> int:
        """Δ, the most that one row moves any score."""
        return int(self.weights.max()) * NORMS[self.norm].moved(self.scale, self.rows)

    @property
    def unit(self) -> int:
        """Integer steps of a score of 1."""
        return NORMS[self.norm].unit(self.scale)

    @property
    def sensitivity(self) -> float:
        """Δ in units of the weighted norm, as a ledger names it."""
        return self.moved / self.unit

    def alone(self) -> Iterator[ChoiceTerms]:
        """Yields the terms of each clique by itself.

        Their models are views of this one.
        """
        for i, model in enumerate(np.split(self.model, self.starts[1:])):
            at = slice(i, i + 1)
            yield replace(
                self, cliques=self.cliques[at], sizes=self.sizes[at], weights=self.weights[at],
                penalties=self.penalties[at], model=model,
            )  # fmt: skip

    def scores(self, marginals: Iterable[Integers]) -> Integers:
        """Returns scores from exact counts, (m,).

        It is for stores that may see counts; every other store computes the same without.
        """
        norm, pairs = NORMS[self.norm], zip(self.alone(), marginals, strict=True)
        norms = [norm.measure(self.scale * marginal.ravel() - one.model, one) for one, marginal in pairs]
        return np.asarray(self.weights * (np.concatenate(norms) - self.penalties))


def _segments(values: Integers, starts: Integers) -> Integers:
    sums: Integers = np.add.reduceat(values, starts)
    return sums


def _steps(weights: Floats) -> float:
    """Returns the factor that brings weights to integers.

    It is 1 where they are integers, as AIM's are; otherwise rounding is within 2^-12 of the largest.
    """
    return 1.0 if np.array_equal(weights, np.rint(weights)) else 2.0**12 / float(weights.max())


def _power_of_two(least: float) -> int:
    """Returns the smallest power of two that is at least `least`.

    It lies between 1 and 2^20.
    """
    scale = 1
    while scale < min(least, 2.0**20):
        scale *= 2
    return scale
