"""The weakest link of two columns that a noisy look shows.

A look adds up what two columns have beyond independence, in groups of their values, and noise of a known size. How much
of a link it shows depends on where the link is, so a limit is one of the links that people meet: products of contrasts,
one of each column.

- *Scores*, of a column with an order. Two such columns are linked as cut bivariate normal scores of some correlation.
- *One group of values against all others*: every group of a column without an order, and of one with an order those
  without a place in it, missing values above all. A rare value has little mass to show, and one that a look counts
  together with others shows a part only. Such a link is no stronger than the masses allow.

With k independent noises the look's squared length, in units of their variance, is a noncentral chi-square variable.
`needed` is the noncentrality that exceeds a threshold in nine of ten looks. The limit of a pair is the weakest
association from which on every such link of it exceeds the threshold so, or is stronger than the masses allow. Where
the strongest links do not, nothing can be said of the pair.

All of this is a function of released values and public facts. `init` takes columns to have their values equally often,
`plan` and `run` know the released masses and the noise that there was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, chndtrinc, ndtri

from fedsyn.domain import Floats, Integers
from fedsyn.evaluation.scores import few_groups, places
from fedsyn.evaluation.verdict import CHANCE, LEAST_LINK
from fedsyn.selection.coarse import group_counts, grouping_of
from fedsyn.selection.factors import Cuts
from fedsyn.selection.sketches import as_pairs, more_for_many, sketched_sizes, weight_of_pairs, width_of
from fedsyn.table.counting.sums import sums_of_groups
from fedsyn.table.schema import Schema

#: Share of the links of the named strength that a look shows.
POWER = 0.9
_QUANTILE = float(ndtri(POWER))
_MOST_PAIRS = 100  # that stand for all of a table before a run
_TERMS = 12  # of Mehler's series; eight groups of normal scores have hardly more


@lru_cache(maxsize=4096)
def needed(free: int, chance: float) -> float:
    """Returns the noncentrality that nine of ten looks tell from noise.

    Args:
        free: independent noises.
        chance: of a false alarm.
    """
    return float(chndtrinc(float(chdtri(free, chance)), free, 1.0 - POWER))


def raised(least: npt.ArrayLike, free: int) -> Floats:
    """Returns the noncentrality that nine of ten looks estimate above `least`.

    A noncentral chi-square variable of mean k + y has variance 2 k + 4 y, and is nearly normal where this counts.
    """
    floor, z = np.asarray(least, np.float64), _QUANTILE**2
    return np.asarray(floor + 2.0 * z + np.sqrt(4.0 * z * floor + 4.0 * z * z + 2.0 * z * free))


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Contrasts of a column's values, by which links are taken to run.

    Attributes:
        parts: (contrasts, values) each value's mass times its contrast, which has mean 0 and variance 1.
        shares: mass of the group that is set against all others, one number a contrast; NaN: the scores.
        hermite: (terms, terms) products of the scores' Hermite polynomials between few groups; None without an order.
    """

    parts: Floats
    shares: Floats
    hermite: Floats | None

    @classmethod
    def of(cls, mass: Floats, at: Floats | None, few: Integers) -> Contrasts:
        """Makes the contrasts of a column.

        Args:
            mass: (size,) of its values.
            at: (size,) their places, NaN for one without; None without an order.
            few: (size,) the few groups in which associations are measured.
        """
        mass = np.maximum(np.asarray(mass, np.float64), 0.0) / max(float(np.sum(np.maximum(mass, 0.0))), 1e-300)
        groups, placed = np.bincount(few, mass), np.zeros(len(mass), bool) if at is None else np.isfinite(at)
        parts, shares, hermite = list[Floats](), list[float](), None
        named = range(len(groups)) if len(groups) > 2 else range(1)
        if len(np.unique(few[placed])) > 1:
            order = np.full(len(mass), -1)
            order[placed] = np.argsort(np.argsort(np.asarray(at)[placed], kind="stable"))
            moments = Cuts.of(mass, order).moments(_TERMS)
            joined = np.stack([np.bincount(few, moments[:, k]) for k in range(_TERMS)])
            hermite = joined / np.maximum(groups, 1e-300) @ joined.T
            parts, shares = [moments[:, 0]], [math.nan]
            named = np.unique(few[~placed])  # type: ignore[assignment]
        for group in named:
            if 0.0 < (share := float(groups[group])) < 1.0:
                parts.append(mass * ((few == group) - share) / math.sqrt(share * (1.0 - share)))
                shares.append(share)
        return cls(np.array(parts).reshape(len(parts), len(mass)), np.array(shares), hermite)

    def between(self, groups: npt.NDArray[np.integer]) -> Floats:
        """Returns the sum of each contrast in each group, (contrasts, groups)."""
        return np.array([sums_of_groups(groups, part) for part in self.parts]).reshape(-1, int(groups.max()) + 1)


def sketched_lengths(pair: Sequence[Contrasts], groups: Sequence[npt.NDArray[np.integer]], least: float) -> Floats:
    """Returns the squared correlations of contrasts that a sketch shows.

    Args:
        pair: contrasts of both columns.
        groups: of their values, in the sketch.
        least: squared length that the sketch needs, in shares of the rows.
    """
    first, second = ((one.between(sums) ** 2).sum(axis=1) for one, sums in zip(pair, groups, strict=True))
    return np.asarray(least / np.maximum(np.outer(first, second), 1e-300))


def limit(pair: tuple[Contrasts, Contrasts], lengths: Floats, most: float) -> float:
    """Returns the weakest association that nine of ten looks show; infinite: none.

    Args:
        pair: the contrasts of both columns.
        lengths: (contrasts of one, of the other) the squared correlation of two contrasts that a look needs.
        most: largest squared length of a link in few groups, that of association 1.
    """
    if not lengths.size:
        return math.inf
    possible = _possible(*(one.shares for one in pair))
    seen, squared = lengths <= possible, lengths.copy()
    first, second = (one.hermite for one in pair)
    if first is not None and second is not None:  # one correlation of scores, and all that it brings with it
        powers = math.sqrt(min(float(lengths[0, 0]), 1.0)) ** np.arange(1, _TERMS + 1)
        squared[0, 0] = float(powers @ (first * second) @ powers)
        possible[0, 0] = float((first * second).sum())
    weakest = float(np.where(seen, squared, possible).max())
    shown = bool((seen & (possible >= weakest)).any())
    return math.sqrt(weakest / most) if shown else math.inf


def _possible(first: Floats, second: Floats) -> Floats:
    """Returns the largest squared correlation of each two contrasts.

    Of two groups of shares p <= q it is p (1 - q) / (q (1 - p)) where one holds the other, and where they exclude each
    other p q / ((1 - p) (1 - q)), or the inverse. Of a group beside normal scores, the group is a tail.
    """
    p, q = np.meshgrid(first, second, indexing="ij")
    low, high = np.fmin(p, q), np.fmax(p, q)
    odds = p * q / ((1.0 - p) * (1.0 - q))
    of_groups = np.maximum(low * (1.0 - high) / (high * (1.0 - low)), np.minimum(odds, 1.0 / odds))
    of_tails = np.exp(-(ndtri(low) ** 2)) / (2.0 * math.pi * low * (1.0 - low))
    scores = np.isnan(p).astype(int) + np.isnan(q)
    return np.asarray(np.select([scores == 0, scores == 1], [of_groups, of_tails], 1.0))


def most_said(limits: Sequence[float]) -> tuple[int, float]:
    """Returns the number of pairs to speak of, and their limit.

    Each of them has that limit or a smaller one, so what holds at it holds for each. Of all limits the one is taken
    that rules out most: the number of pairs times what is left of association above it. Others are of pairs of which
    nothing is said.
    """
    known = np.sort([limit for limit in limits if limit <= 1.0])
    if not len(known):
        return 0, 1.0
    at = int(np.argmax(np.arange(1, len(known) + 1) * (1.0 - known)))
    return at + 1, float(known[at])


# Before a run ---------------------------------------------------------------------------------------------------------


class Foreseen:
    """Sketches of all pairs of a table, before a run.

    Args:
        schema: of the table.
        missing: share of missing values of each column; all others are taken to be equally frequent.
        rows: n.
        mu2: of the sketches, before many raise it.
        width: most entries of a sketch.
        triples: most combinations of three columns that are sketched beside all pairs.
    """

    def __init__(
        self, schema: Schema, missing: Mapping[str, float], rows: int, mu2: float, width: int, triples: int
    ) -> None:
        self.domain, self.rows, self.mu2, self.width = schema.domain, rows, mu2, width
        every, names = list(combinations(self.domain, 2)), list(self.domain)
        self.pairs, self.triples = len(every), min(triples, math.comb(len(names), 3))
        self._some = every[:: -(-len(every) // _MOST_PAIRS)] if every else []
        orders, self._masses = {name: places(schema, name) for name in names}, dict[str, Floats]()
        for name in names:
            size, gone = self.domain[name], len(schema.columns[name].sides)
            absent = missing.get(name, 0.0) if gone else 0.0
            known = np.full(size - gone, (1.0 - absent) / (size - gone))
            self._masses[name] = np.append(known, np.full(gone, absent / max(1, gone)))
        few = {name: few_groups(self._masses[name], orders[name], 1.0 / math.sqrt(max(1, rows))) for name in names}
        self._contrasts = {name: Contrasts.of(self._masses[name], orders[name], few[name]) for name in names}
        self._most = {name: float(few[name].max()) for name in names}

    def said(self, looked: int) -> tuple[int, float]:
        """Returns number and limit (`most_said`) of the pairs to speak of.

        `looked` says how many are looked at.
        """
        count, least = most_said(self.limits(looked))
        return round(count * looked / len(self._some)), max(LEAST_LINK, least)

    def most(self) -> int:
        """Returns the most pairs of which nine in ten show weak links.

        Weak is what is just called a link.
        """
        few, many = 0, self.pairs + 1
        while many - few > 1:
            middle = (few + many) // 2
            shown = float(np.mean(np.array(self.limits(middle)) <= LEAST_LINK))
            few, many = (middle, many) if shown >= POWER else (few, middle)
        return few

    def limits(self, looked: int) -> list[float]:
        """Returns the limits of some pairs that stand for all.

        So many pairs are looked at, without combinations of three columns unless they are all.
        """
        sketched = {2: float(looked)} | ({3: float(self.triples)} if looked == self.pairs and self.triples else {})
        # Of a workload of triples each holds three pairs.
        queries = {2: 3.0 * sketched.get(3, 0.0) / looked, 3: 1.0}
        sketched = as_pairs(sketched, weight_of_pairs(queries))
        mu2 = self.mu2 * more_for_many(self.mu2, sketched, self.rows, self.width)
        sizes = sketched_sizes(mu2, sketched, self.rows, self.width)
        sketched = {size: count for size, count in sketched.items() if size in sizes}
        entries = width_of(mu2, sketched, self.rows, self.width)
        shapes = [group_counts(self.domain, pair, entries) for pair in self._some]
        spreads = [math.prod(1.0 - 1.0 / g for g in shape) for shape in shapes]
        squared = looked * math.fsum(spreads) / len(spreads)  # sensitivity
        squared += sketched.get(3, 0.0) * (1.0 - entries ** (-1.0 / 3.0)) ** 3
        grouping, limits = grouping_of(self.domain, self._some, entries, self._masses), list[float]()
        for pair, shape, spread in zip(self._some, shapes, spreads, strict=True):
            noises = math.prod(g - 1 for g in shape)
            if not noises:  # a column of one value
                limits.append(math.inf)
                continue
            variance = (squared / mu2 / self.rows + spread / noises) / self.rows
            sides = self._contrasts[pair[0]], self._contrasts[pair[1]]
            groups = [grouping[key] for key in zip(pair, shape, strict=True)]
            lengths = sketched_lengths(sides, groups, needed(noises, CHANCE / looked) * variance)
            limits.append(limit(sides, lengths, max(1.0, min(self._most[name] for name in pair))))
        return limits
