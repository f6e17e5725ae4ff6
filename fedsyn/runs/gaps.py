"""Numbers of rows that lie as far apart as gaps say."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Floats, Integers


def spaced(
    counts: Integers,
    numbers: npt.NDArray[Any],
    ends: tuple[Floats, Floats],
    gaps: Floats,
    least: Floats | None = None,
) -> npt.NDArray[Any]:
    """Returns numbers of rows that keep their gaps and their bins.

    Neighbours lie as far apart as gaps say, inside their bins. The first number of a person is the one that is given,
    if all that follow can keep their gaps then; else it is any from which they can. Where bins and gaps contradict each
    other, bins hold, and no number goes back.

    >>> spaced(np.array([3]), np.array([2, 90, 95]), (np.array([0.0, 0, 100]), np.array([99.0, 99, 199])),
    ...        np.array([np.nan, 7, 14])).tolist()
    [79, 86, 100]

    Args:
        counts: (persons,) rows of each.
        numbers: (rows,) inside their bins, of one person after the other.
        ends: (rows,) least and largest number of each row's bin; NaN where a row has no number.
        gaps: (rows,) from the row before; NaN where it is not known.
        least: (rows,) the least that they may be; None: zero.
    """
    low, high = (end.copy() for end in ends)
    apart = np.zeros(len(gaps)) if least is None else least
    gaps = np.maximum(gaps, apart)
    first, out, known = np.cumsum(counts) - counts, numbers.astype(np.float64), ~np.isnan(low)
    if least is not None:
        _make_room(counts, (low, high), least)
    most = high.copy()
    for at in range(int(counts.max(initial=0)) - 2, -1, -1):  # where a number may lie for all later gaps to be kept
        here = (first + at)[counts > at + 1]
        begin, stop = low[here + 1] - gaps[here + 1], high[here + 1] - gaps[here + 1]
        begin, stop = np.maximum(low[here], begin), np.minimum(high[here], stop)
        kept = begin <= stop  # and not where anything is NaN
        low[here[kept]], high[here[kept]] = begin[kept], stop[kept]
    # A first number that lies elsewhere goes to the same share of what is left of its bin.
    start = first[(counts > 0) & known[np.minimum(first, len(out) - 1)]] if len(out) else first[:0]
    width = ends[1][start] - ends[0][start]
    share = np.divide(out[start] - ends[0][start], width, out=np.zeros(len(start)), where=width > 0)
    moved = low[start] + share * (high[start] - low[start])
    moved = moved if numbers.dtype.kind == "f" else np.rint(moved)
    out[start] = np.where((out[start] >= low[start]) & (out[start] <= high[start]), out[start], moved)
    for at in range(1, int(counts.max(initial=0))):
        here = (first + at)[counts > at]
        here = here[known[here] & known[here - 1]]
        off = np.where(np.isnan(gaps[here]), out[here], out[here - 1] + gaps[here])
        nearest = np.minimum(out[here - 1] + apart[here], np.maximum(most[here], out[here - 1]))
        out[here] = np.maximum(np.clip(off, low[here], high[here]), nearest)
    return np.asarray(out.astype(numbers.dtype))


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
