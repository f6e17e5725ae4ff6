"""Numbers of rows that lie as far apart as gaps say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Flags, Floats, Integers

#: Draws what lies between rows and the next ones, NaN where it is not known: positions, least and largest gaps, and
#: rates by which longer ones are less likely, as exp(-rate gap) -> gaps.
Draws = Callable[[Integers, Floats, Floats, Floats], Floats]
_Bounds = tuple[Floats, Floats]
#: Log odds of what cannot be.
NEVER = -50.0
# So many rows of a person in one bin hold few gaps that fit by chance; and how often rates are moved for them.
_CROWDED, _MOVES = 12, 4


def spaced(
    counts: Integers,
    numbers: npt.NDArray[Any],
    ends: _Bounds,
    gaps: Draws,
    least: Floats | None = None,
) -> npt.NDArray[Any]:
    """Returns numbers of rows that keep their gaps and their bins.

    Neighbours lie as far apart as gaps say that are drawn for them, inside their bins. The first number of a person is
    the one that is given, if all that follow can keep their gaps then; else it is any from which they can. Where bins
    and gaps contradict each other, bins hold, and no number goes back.

    >>> spaced(np.array([3]), np.array([2, 90, 95]), (np.array([0.0, 0, 100]), np.array([99.0, 99, 199])),
    ...        lambda here, *_: np.array([7.0, 14.0])[here]).tolist()
    [79, 86, 100]

    Args:
        counts: (persons,) rows of each.
        numbers: (rows,) inside their bins, of one person after the other.
        ends: (rows,) least and largest number of each row's bin; NaN where a row has no number.
        gaps: draws what lies between neighbours.
        least: (rows,) the least from the row before; None: zero.
    """
    low, high = (end.copy() for end in ends)
    apart = np.zeros(len(low)) if least is None else least
    first, out, known = np.cumsum(counts) - counts, numbers.astype(np.float64), ~np.isnan(low)
    if least is not None:
        _make_room(counts, (low, high), least)
    most = high
    drawn, (low, high) = _fitting(counts, (low, high), apart, gaps)
    # A first number that lies elsewhere goes to the same share of what is left of its bin.
    start = first[(counts > 0) & known[np.minimum(first, len(out) - 1)]] if len(out) else first[:0]
    bins, left = (ends[0][start], ends[1][start]), (low[start], high[start])
    out[start] = put_between(out[start], bins, left, whole=numbers.dtype.kind != "f")
    for at in range(1, int(counts.max(initial=0))):
        here = (first + at)[counts > at]
        here = here[known[here] & known[here - 1]]
        off = np.where(np.isnan(drawn[here]), out[here], out[here - 1] + drawn[here])
        nearest = np.minimum(out[here - 1] + apart[here], np.maximum(most[here], out[here - 1]))
        out[here] = np.maximum(np.clip(off, low[here], high[here]), nearest)
    return np.asarray(out.astype(numbers.dtype))


def put_between(numbers: Floats, bins: _Bounds, left: _Bounds, *, whole: bool) -> Floats:
    """Returns numbers that lie in what is left of their bins.

    One that lies elsewhere goes to the same share of what is left.

    >>> bins, left = (np.zeros(2), np.full(2, 99.0)), (np.full(2, 79.0), np.full(2, 98.0))
    >>> put_between(np.array([2.0, 90]), bins, left, whole=True)
    array([79., 90.])

    Args:
        numbers: (n,) inside their bins.
        bins: (n,) least and largest number of each one's bin.
        left: (n,) the least and the largest that it may be; NaN where nobody knows, and it stays.
        whole: whether all numbers are whole.
    """
    width = bins[1] - bins[0]
    share = np.divide(numbers - bins[0], width, out=np.zeros(len(width)), where=width > 0)
    moved = left[0] + share * (left[1] - left[0])
    return np.where((numbers < left[0]) | (numbers > left[1]), np.rint(moved) if whole else moved, numbers)


def _fitting(counts: Integers, ends: _Bounds, least: Floats, draws: Draws) -> tuple[Floats, _Bounds]:
    """Draws gaps that can all be kept.

    Each is drawn by itself. Where those of a person do not fit together, such as two of sixty days in a bin of ninety,
    each is drawn again among those that the others leave, along the person and back (one sweep of Gibbs sampling). So
    they come nearly as if all had been drawn until they fit; a second sweep costs more than it brings. Where a person
    has many rows in one bin, the gaps between them are made to fit first (`_crowded`): a sweep would leave most of them
    nothing.

    Args:
        counts: (persons,) rows of each.
        ends: (rows,) least and largest number of each row.
        least: (rows,) the least gaps.
        draws: draws gaps.

    Returns:
        (rows,) gaps from the row before, and where a number may lie for all later ones to be kept.
    """
    whose = np.repeat(np.arange(len(counts)), counts)
    here = np.flatnonzero(whose[1:] == whose[:-1])
    gaps = np.full(len(whose), np.nan)
    none = np.zeros(len(whose))
    gaps[here + 1] = draws(here, *_between(here, ends, ends, least), none[here])
    rates = _crowded(here, gaps, ends, least, draws)
    first = np.cumsum(counts) - counts

    def turn(going: Flags, bounds: _Bounds, other: _Bounds, *, ahead: bool, every: bool) -> Flags:
        """Draws gaps again, row by row, and returns whose."""
        again, steps = np.zeros(len(counts), bool), range(int(counts.max(initial=1)) - 1)
        for at in steps if ahead else reversed(steps):
            persons = np.flatnonzero(going & (counts > at + 1))
            here = first[persons] + at
            off = ~np.isnan(gaps[here + 1])
            off &= every or ~_kept(here, gaps, bounds, ahead=ahead)
            if off.any():
                here, again[persons[off]] = here[off], True
                between = _between(here, *((bounds, other) if ahead else (other, bounds)), least)
                gaps[here + 1] = draws(here, *between, rates[here])
                _kept(here, gaps, bounds, ahead=ahead)
        return again

    later = ends[0].copy(), ends[1].copy()
    going = turn(counts > 1, later, ends, ahead=False, every=False)
    if going.any():
        earlier = ends[0].copy(), ends[1].copy()
        turn(going, earlier, later, ahead=True, every=True)
        for bound, end in zip(later, ends, strict=True):
            bound[going[whose]] = end[going[whose]]
        turn(going, later, earlier, ahead=False, every=True)
    return gaps, later


def _crowded(here: Integers, gaps: Floats, ends: _Bounds, least: Floats, draws: Draws) -> Floats:
    """Draws gaps again, in place, where many share one bin.

    Gaps that are drawn by themselves and have to add up to no more than a bin is wide go, the more of them there are,
    as if each were less likely by exp(-rate gap), with the rate by which they are expected to fill the bin (Gibbs'
    conditioning principle). Of exponential gaps with mean S / m it is m / width - m / S, which is added until they fit.
    What then is still too long is made shorter by a factor.

    Args:
        here: (n,) positions of the rows that have a next one.
        gaps: (rows,) from the row before.
        ends: (rows,) least and largest number of each row.
        least: (rows,) the least gaps.
        draws: draws gaps.

    Returns:
        (rows,) the rates.
    """
    (low, high), rates = ends, np.zeros(len(gaps))
    inside = (low[here] == low[here + 1]) & (high[here] == high[here + 1]) & ~np.isnan(gaps[here + 1])
    here = here[inside]
    stretch = np.cumsum(np.diff(here, prepend=-1) != 1)  # rows of one person in one bin
    many = np.bincount(stretch)[stretch] >= _CROWDED - 1
    here, stretch = here[many], np.unique(stretch[many], return_inverse=True)[1]
    size = np.bincount(stretch)
    width = np.zeros(len(size))
    width[stretch] = high[here] - low[here]
    rate, bounds = np.zeros(len(size)), _between(here, ends, ends, least)
    # In others a sweep leaves most gaps what was drawn for them.
    crowded = (np.bincount(stretch, gaps[here + 1]) > 2.0 * width) & (width > 0.0)
    for _ in range(_MOVES):
        total = np.bincount(stretch, gaps[here + 1])
        crowded &= total > width
        if not crowded.any():
            break
        rate[crowded] += size[crowded] / width[crowded] - size[crowded] / total[crowded]
        again = crowded[stretch]
        gaps[here[again] + 1] = draws(here[again], bounds[0][again], bounds[1][again], rate[stretch[again]])
    # So much of a bin lies, on average, between the first and the last of some numbers in it.
    total, share = np.bincount(stretch, gaps[here + 1]), np.ones(len(size))
    over = crowded & (total > width)
    share[over] = (width * size / (size + 2.0))[over] / total[over]
    gaps[here + 1] = np.maximum(gaps[here + 1] * share[stretch], least[here + 1])
    rates[here] = rate[stretch]
    return rates


def _between(here: Integers, ends: _Bounds, after: _Bounds, least: Floats) -> _Bounds:
    """Returns the least and the largest gaps to next rows.

    Args:
        here: (n,) positions of the rows.
        ends: (rows,) where their numbers may lie.
        after: (rows,) where those of the next ones may.
        least: (rows,) the least gaps.
    """
    return np.maximum(after[0][here + 1] - ends[1][here], least[here + 1]), after[1][here + 1] - ends[0][here]


def _kept(here: Integers, gaps: Floats, ends: _Bounds, *, ahead: bool) -> Flags:
    """Tightens bounds of rows to numbers that keep gaps.

    Bounds are changed in place. Returns where there are such numbers; bounds stay where there are none.

    Args:
        here: (n,) positions of rows that have a next one.
        gaps: (rows,) from the row before.
        ends: (rows,) least and largest number of each row.
        ahead: whether bounds of the next rows are tightened; else those of the rows.
    """
    (low, high), at, other = ends, here + ahead, here + (not ahead)
    move = gaps[here + 1] if ahead else -gaps[here + 1]
    begin, stop = np.maximum(low[at], low[other] + move), np.minimum(high[at], high[other] + move)
    kept = np.asarray(begin <= stop)  # and not where anything is NaN
    low[at[kept]], high[at[kept]] = begin[kept], stop[kept]
    return kept


def _make_room(counts: Integers, ends: tuple[Floats, Floats], least: Floats) -> None:
    """Tightens bounds of rows, in place, for least gaps beside them.

    Bounds stay where there is no such room.
    """
    first, (low, high) = np.cumsum(counts) - counts, ends
    begin, stop, known = low.copy(), high.copy(), ~np.isnan(low)
    for at in range(int(counts.max(initial=0)) - 2, -1, -1):
        here = (first + at)[counts > at + 1]
        stop[here] = np.fmin(stop[here], stop[here + 1] - least[here + 1])
    for at in range(1, int(counts.max(initial=0))):
        here = (first + at)[counts > at]
        begin[here] = np.fmax(begin[here], begin[here - 1] + least[here])
    fine = known & (begin <= stop)
    low[fine], high[fine] = begin[fine], stop[fine]
