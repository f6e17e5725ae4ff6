"""Densities of numbers inside the bins of an ordered column.

They follow from the counts of the bins themselves.

A bin says how many values it holds and not where. Two neighbours say more: the exponential density that gives both
their counts has a rate, exact where the column is exponential. The rates at a bin's two edges give that inside it. At
an end towards which the density falls it goes on as the generalised Pareto density that gives the counts of the last
three bins (Pickands 1975: what the tails of nearly all distributions come to), so a wide last bin is not full to its
bound. Tables of an analysis take its index from more rows, and go on with how it changed on the way. Between bins that
are both fuller, or both emptier, nothing is known, and the density is even.

The counts are released values, so this is post-processing: no row is read, no noise is drawn, no privacy is spent. No
number leaves its bin, so the counts of all bins stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsyn.domain import Codes, Flags, Floats

#: Two codes for each of n rows -> (n,) log of how much likelier the row is with the second than with the first.
Odds = Callable[[Codes, Codes], Floats]

#: Steepest rate inside a bin, in bins: beyond it nearly all values stand at one edge. Of what is uncertain, the most.
_STEEPEST, _MOST_OPEN = 30.0, 2.0
_FLAT = 1e-9  # a rate that is none
#: Indices of a tail: nearly even, up to a mean that is still finite. And how far one may be off, `lean` = 1, where one
#: bin held all: it goes with the root of a bin's share. In 6, 10, 16, 32 and 64 equally full bins of nineteen families
#: (normal, t, Pareto, beta, mixtures) the index that the tail's mean asks for is off by 0.27, 0.16, 0.12, 0.11 and 0.07
#: (root mean square), 0.4 to 0.6 of what this gives; that of numbers from -1 to 1 is 0.58.
_INDICES, INDEX_OPEN = (-0.99, 0.9), 1.1
# An index changes on the way out, that of a normal from -0.31 to -0.15: beyond the last edge it has gone on by so much
# of what it changed over a doubling before, times -log of the share beyond (as one that goes with the inverse of that
# does), and by no more than `_MOST_CHANGE`. What is open then, `lean` = 1, is this and a part of the change. Chosen on
# twelve columns (normal, t, gamma, beta, Pareto, mixed). On twelve others the mean of the last of 32 or 16 bins is off
# by 1.3 and 1.1%, at the median, where three bins gave 3.5 and 6.4% (experiments/honest_intervals/honest_tails.py).
_GOES_ON, _LEFT_OPEN, _CHANGE_OPEN = 0.22, 0.025, 0.25
_MOST_CHANGE = 0.2
# Few rows tell less of an index than what is usual: the mean and the standard deviation over these columns' tails.
_USUAL, _SPREAD = -0.2, 0.3
# How far in bins tell of a tail, as a share of the rows, and how many times as much lies beyond the next edge at most.
_HALF, _WIDEST = 0.5, 3.0
_HALVINGS = 60
# What the rows of a bin have in common is a mixture of so many.
_POINTS = 32


class Inside:
    """Densities inside bins, given the counts of the bins.

    At `place`, 0 to 1 from a lower edge, the density goes with (1 + index rate place)^(-1/index - 1), or with
    exp(-rate place) where the index is 0; in a `flipped` bin the same from the upper edge down.

    >>> Inside(np.array([0.0, 1.0, 2.0, 10.0]), np.array([400.0, 200.0, 200.0])).rates.round(2).tolist()
    [0.69, 0.69, 5.55]

    Args:
        edges: (bins + 1,) ascending.
        counts: (bins,) records of each; one record is taken for the least.
        lean: -1 to 1, where in the range of what the counts leave open; 0 is the middle. None: of a table by itself,
            whose tails keep the index of their last bins.
        atoms: (bins,) bins of a single value. They say nothing of the density of the others, which are taken to be
            each other's neighbours.
    """

    def __init__(self, edges: Floats, counts: Floats, lean: float | None = None, atoms: Flags | None = None) -> None:
        counts = np.maximum(np.asarray(counts, np.float64), 1.0)
        self._counts = counts
        self._mixture: Floats | None = None
        self.rates, self.indices = np.zeros(len(counts)), np.zeros(len(counts))
        self.flipped = np.zeros(len(counts), dtype=bool)
        rest = np.ones(len(counts), dtype=bool) if atoms is None else ~atoms
        if rest.any():
            self.rates[rest], self.indices[rest], self.flipped[rest] = _densities(
                np.diff(edges)[rest], counts[rest], lean
            )
        self._whole = -np.expm1(-self._risen(np.arange(len(counts)), 1.0))

    def _risen(self, bins: Codes, place: Floats | float) -> Floats:
        """-log of what a density without an end leaves beyond a place."""
        rate, index = self.rates[bins], self.indices[bins]
        with np.errstate(divide="ignore", invalid="ignore"):
            power = np.log1p(np.maximum(index * rate * place, -1.0)) / index
        return np.asarray(np.where(index == 0, rate * place, power))

    def share(self, bins: Codes, place: Floats) -> Floats:
        """Returns the share of values below a place, (n,).

        The values are those of each bin, and the place is one of that bin.
        """
        flipped, whole = self.flipped[bins], self._whole[bins]
        below = -np.expm1(-self._risen(bins, np.where(flipped, 1.0 - place, place)))
        below = np.where(whole == 0, place, below / np.where(whole == 0, 1.0, whole))
        return np.asarray(np.clip(np.where(flipped, 1.0 - below, below), 0.0, 1.0))

    def place(self, bins: Codes, share: Floats) -> Floats:
        """Returns the places below which these shares lie, (n,).

        Places go from 0 to 1, and shares are of each bin's values. This is the inverse of `share`.
        """
        rate, index, flipped = self.rates[bins], self.indices[bins], self.flipped[bins]
        with np.errstate(divide="ignore", invalid="ignore"):
            risen = -np.log1p(-np.where(flipped, 1.0 - share, share) * self._whole[bins])
            places = np.where(index == 0, risen, np.expm1(index * risen) / index) / rate
        places = np.where(rate == 0, share, np.where(flipped, 1.0 - places, places))
        return np.asarray(np.clip(places, 0.0, 1.0))

    def link(self, codes: Codes, moved: Floats) -> None:
        """Links numbers to the rest of their rows from now on.

        `codes` are of rows as the released model has them, and `moved` by the rest of these (`Links`).

        Let F be the share of records below a value, and log P(rest of the row | value) linear in log(F / (1 - F))
        between a bin's two neighbours: in the tails that is linear in the log of the share beyond, as a logistic model
        of an exponential column has it, or one of the logarithm of a heavy one. Its slope is what `odds` say, less the
        counts' own odds, over the difference of the neighbours' means. A number u of 0 to 1 then has a density inside
        its bin that goes with exp(slope u), in the last and the first bin with a power of 1 - u or u: to first order
        that of a logistic, or an extreme value, moved by the slope. Over all rows of a bin the moved ones are a
        mixture, and their share of it is even again: the bin's density stays what its counts say.
        """
        here = codes < len(self._counts)
        bins, moved = codes[here], moved[here]
        self._mixture = np.full((len(self._counts), _POINTS), np.nan)
        for bin_ in np.unique(bins).tolist():
            self._mixture[bin_] = np.quantile(moved[bins == bin_], (np.arange(_POINTS) + 0.5) / _POINTS)

    def linked(self, codes: Codes, uniform: Floats, moved: Floats) -> Floats:
        """Returns (n,) numbers of 0 to 1, moved by their rows.

        They are even over the rows of a bin. The rest of a row makes its number larger or smaller.
        """
        from scipy.special import expit, logit  # a schema is read without SciPy

        if self._mixture is None:
            return uniform
        last = len(self._counts) - 1
        bins, numbers = np.minimum(codes, last), np.empty_like(uniform)
        mixture = self._mixture[bins]
        with np.errstate(divide="ignore", over="ignore"):
            for rows, latent, below in (
                (bins == last, lambda u: np.log(-np.log1p(-u)), lambda z: -np.expm1(-np.exp(z))),
                ((bins > 0) & (bins < last), logit, expit),
                ((bins == 0) & (last > 0), lambda u: -np.log(-np.log(u)), lambda z: np.exp(-np.exp(-z))),
            ):
                at = latent(uniform[rows]) + moved[rows]
                numbers[rows] = below(at[:, None] - mixture[rows]).mean(axis=1)
        return np.where(np.isnan(numbers), uniform, np.minimum(numbers, np.nextafter(1.0, 0.0)))

    def steps(self) -> tuple[Codes, Codes, Floats]:
        """Returns the neighbours of each bin, and factors.

        Log odds between the neighbours, times the factor, are how far a number is moved.
        """
        from scipy.special import logit, xlogy

        counts, bins = self._counts, np.arange(len(self._counts))
        low, high = np.maximum(bins - 1, 0), np.minimum(bins + 1, len(bins) - 1)
        if len(bins) == 1:
            return low, high, np.zeros(1)
        below = np.append(0.0, np.minimum(np.cumsum(counts) / counts.sum(), 1.0))
        mean = np.diff(xlogy(below, below) + xlogy(1.0 - below, 1.0 - below)) / np.diff(below)
        span = np.diff(logit(below)) / 2.0
        span[0] = span[-1] = 1.0
        return low, high, np.asarray(span / (mean[high] - mean[low]))


def _densities(widths: Floats, counts: Floats, lean: float | None) -> tuple[Floats, Floats, Flags]:
    """Returns rates and indices of neighbouring bins, and which are flipped."""
    rates, indices, flipped = np.zeros(len(counts)), np.zeros(len(counts)), np.zeros(len(counts), dtype=bool)
    if len(counts) > 1 and (widths > 0).all():
        between = _rates(counts, widths)
        before, after = np.append(_beyond(between), between), np.append(between, _beyond(between[::-1]))
        rates = _limited(before, after, lean or 0.0, widths)
    if len(counts) > 2 and (widths > 0).all():
        if between[-1] > 0:
            rates[-1], indices[-1] = _tail(counts, widths, lean)
        if between[0] < 0:
            rates[0], indices[0] = _tail(counts[::-1], widths[::-1], lean)
            flipped[0] = True
    rates[np.abs(rates) < _FLAT] = 0.0
    return rates, indices, flipped


def _rates(counts: Floats, widths: Floats) -> Floats:
    """Returns rates of exponential densities, (bins - 1,).

    Each density gives the counts of two neighbours.
    """
    both = np.stack([widths[:-1], widths[1:]])
    logs = np.log(both)
    ratio = np.log(counts[:-1] / counts[1:])
    high = _STEEPEST / both.min(axis=0)
    low = -high
    for _ in range(_HALVINGS):
        rate = (low + high) / 2.0
        risen = rate * both
        first, second = _log_mass(risen, logs)
        short = first + risen[0] - second < ratio
        low, high = np.where(short, rate, low), np.where(short, high, rate)
    return np.asarray((low + high) / 2.0)


def _log_mass(risen: Floats, log_width: Floats) -> Floats:
    """Log of the integral of exp(-rate x) from 0 to a width.

    Args:
        risen: rate times width.
        log_width: its log.
    """
    steep = np.maximum(np.abs(risen), 1e-12)
    return np.asarray(np.maximum(-risen, 0.0) + log_width + np.log(-np.expm1(-steep) / steep))


def _beyond(between: Floats) -> float:
    """Returns the rate at the outer edge of the first bin.

    It lies on the line through the next two rates.
    """
    return float(2.0 * between[0] - between[1]) if len(between) > 1 else float(between[0])


def _limited(before: Floats, after: Floats, lean: float, widths: Floats) -> Floats:
    """Returns rates inside bins, in bins, from those at their edges.

    A rate is the mean of the two, at most twice the smaller, and zero at a turn.
    """
    least = np.minimum(np.abs(before), np.abs(after))
    middle = np.where(before * after > 0, np.sign(before) * np.minimum(np.abs(before + after) / 2.0, 2.0 * least), 0.0)
    open_ = np.minimum(np.minimum(np.abs(before - after) / 2.0, least) * widths, _MOST_OPEN)
    return np.asarray(np.clip(middle * widths + lean * open_, -_STEEPEST, _STEEPEST))


def _tail(counts: Floats, widths: Floats, lean: float | None) -> tuple[float, float]:
    """Returns rate and index inside the last bin.

    Both follow from the counts of all bins. The rate is in bins.
    """
    if lean is None:
        counts, widths = counts[-3:], widths[-3:]
    # Of inner edges, outermost first: records beyond them, -log of their share, and how far in they are.
    beyond = np.cumsum(counts[::-1])
    left = np.append(np.log(counts.sum() / beyond[:-1]), 0.0)
    inward = np.append(0.0, np.cumsum(widths[-2::-1]))
    used, triples = np.arange(3), None if lean is None else _triples(left[:-1])
    index = _index(left[used], inward[used])
    if lean is not None:
        variance, open_ = _variance(left, beyond, used), INDEX_OPEN * float(np.sqrt(counts[-3:].mean() / counts.sum()))
        if triples is not None:
            near, far = (_index(left[some], inward[some]) for some in triples)
            times = min(_GOES_ON * float(left[0]), 1.0) * float(
                np.log(2.0) / np.mean(left[triples[0]] - left[triples[1]])
            )
            change = times * (near - far)
            index, open_ = near + min(max(change, -_MOST_CHANGE), _MOST_CHANGE), _LEFT_OPEN + _CHANGE_OPEN * abs(change)
            parts = ((1.0 + times, triples[0]), (times, triples[1]))
            variance = sum(factor**2 * _variance(left, beyond, some) for factor, some in parts)
            used = used[:2]
        known = 1.0 / (1.0 + variance / _SPREAD**2)
        index = (
            known * index
            + (1.0 - known) * _USUAL
            + lean * float(np.sqrt(open_**2 + 3 * known * (1 - known) * variance))
        )
    index = min(max(index, _INDICES[0]), _INDICES[1])
    span, risen = float(inward[used[-1]]), float(left[0] - left[used[-1]])
    scale = span / _grown(index, risen) + index * span
    return (float(widths[-1] / scale), index) if scale > 0 else (0.0, 0.0)


def _variance(left: Floats, beyond: Floats, edges: Codes) -> float:
    """Returns the sampling variance of an index.

    The index is that of three edges. To first order: of rows beyond two edges the inner one's share varies by itself.
    """
    apart = -np.diff(left[edges])
    return float((-np.diff(1.0 / beyond[edges]) / apart**2).sum() / apart.mean() ** 2)


def _triples(left: Floats) -> tuple[Codes, Codes] | None:
    """Returns two triples of inner edges, the second a doubling further in.

    Beyond each edge of a triple lies the same multiple of what lies beyond the one before; beyond the innermost of all
    are half of the rows at most. None where there are too few edges for it.
    """
    step = min((left[0] - np.log(2.0 / _HALF)) / 2.0, np.log(_WIDEST))
    wanted = left[0] - np.arange(3) * step
    near, far = (np.abs(left - at[:, None]).argmin(axis=1) for at in (wanted, wanted - np.log(2.0)))
    apart = all((np.diff(some) > 0).all() for some in (near, far)) and (far > near).all()
    return (near, far) if apart else None


def _index(left: Floats, inward: Floats) -> float:
    """Returns the index of a tail with three edges, outermost first.

    Args:
        left: (3,) -log of the shares beyond them.
        inward: (3,) how far in they are.
    """
    near, far = inward[2] - inward[1], inward[2] - inward[0]
    first, second = float(left[1] - left[2]), float(left[0] - left[2])
    low, high = _INDICES
    for _ in range(_HALVINGS):
        index = (low + high) / 2.0
        scale = near / _grown(index, first)
        short = index * far / scale <= -1.0 or _grown(index, second) > far / scale
        low, high = (low, index) if short else (index, high)
    return index


def _grown(index: float, left: float) -> float:
    """Returns how far the tail goes, in scales.

    It goes until this much is left: (e^(index left) - 1) / index.
    """
    return float(np.expm1(index * left) / index) if abs(index) > 1e-9 else left
