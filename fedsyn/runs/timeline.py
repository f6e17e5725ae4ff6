"""Places in time of the rows of a person.

Steps between bins tell badly how fast a person goes through them: how fast depends on the number of rows, of many rows
most stand in the bin of the row before, and noise in the few steps out of it adds up along the person, whose rows then
stand in the first bin or the last. Gaps between rows tell it, and so does arithmetic: all rows lie within the column's
bounds. So a person's gaps are drawn given the number of rows, as if they had been drawn until the rest of them fits,
and bins follow. What else is in a row is drawn beside its bin.

Who has more rows than there are bins goes through all of them, so that the records' values say where rows are rare: a
gap takes such a person further there. Each bin has a speed, found as the weights of steps are, with which rows have the
records' values; positions are measured in what a row goes at speed 1. For others noise in these values would bend gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import numpy as np

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.inference.conditional import one_of
from fedsyn.runs.gaps import NEVER, put_between
from fedsyn.table.schema.binned import BinnedColumn

# Less than any share, or width, that there is; and a share of rows that is as good as none.
_LEAST, _TINY = 1e-12, 1e-3
# Places in a bin of which one is taken.
_PLACES = 8


@dataclass(frozen=True, eq=False)
class Span:
    """Places of persons' first and last rows so far.

    Attributes:
        counts: (persons,) codes of their numbers of rows.
        first: (persons,) position of the first row; changed in place.
        last: (persons,) position of the last row; changed in place.
    """

    counts: Integers
    first: Floats
    last: Floats


class Timeline:
    """Draws positions of rows beside others.

    Gaps that have to fit into what is left, the more of them there are, go as if longer ones were less likely by
    exp(-rate gap), with the rate by which they are expected to fill it (Gibbs' conditioning principle). Of exponential
    gaps with mean S / m it is m / width - m / S.

    Args:
        column: that gives the order.
        gaps: between a row and the next one.
        shares: (numbers of rows, gaps) how often each gap follows, by their codes.
        values: (numbers of rows, values) how often a row has each value of the column, by their codes.
        busy: (numbers of rows,) which of them are more than there are bins.
    """

    def __init__(self, column: BinnedColumn, gaps: BinnedColumn, shares: Floats, values: Floats, busy: Flags) -> None:
        self.column, self.gaps, self.bins, self.busy = column, gaps, len(column.edges) - 1, busy
        self.edges = np.append(column.ends[0], column.ends[1][-1]).astype(np.float64)
        # Positions of the edges: of all others, and of the busy ones.
        self.speeds, self.positions_of_edges = np.ones(self.bins), np.tile(self.edges - self.edges[0], (2, 1))
        (self.low, self.high), shares = gaps.ends, np.maximum(shares[:, : len(gaps.ends[0])], _LEAST)
        shares = shares / shares.sum(axis=1, keepdims=True)
        self.middles = 0.5 * (self.low + self.high)
        values = np.maximum(values, 0.0)
        self.absent = values[:, self.bins :].sum(axis=1) / np.maximum(values.sum(axis=1), _LEAST)
        self.logs, self.means = np.log(shares), np.maximum(shares @ self.middles, _LEAST)

    def hastened(self, wanted: Floats, drawn: Floats) -> Timeline:
        """Returns a timeline that goes faster where rows are too many.

        Args:
            wanted: (bins,) shares of the rows of busy persons.
            drawn: (bins,) shares of theirs that were drawn with these speeds.
        """
        out, speeds = copy(self), np.log(self.speeds) + 0.5 * np.log((drawn + _TINY) / (wanted + _TINY))
        out.speeds = np.exp(speeds - wanted @ speeds)
        out.positions_of_edges = np.stack(
            [self.positions_of_edges[0], np.append(0.0, np.cumsum(np.diff(self.edges) / out.speeds))]
        )
        return out

    def positions(self, counts: Integers, codes: Integers, rng: np.random.Generator) -> Floats:
        """Draws positions inside bins, (n,), for codes of numbers of rows and of bins."""
        numbers = np.asarray(self.column.draw(codes, rng)[0], np.float64)
        others, busy = (np.interp(numbers, self.edges, edges) for edges in self.positions_of_edges)
        return np.asarray(np.where(self.busy[counts], busy, others))

    def codes(self, counts: Integers, positions: Floats, rng: np.random.Generator) -> Integers:
        """Returns the codes of rows, (n,).

        It is the bin of a row's position, or that of a missing value, as often as these are missing.

        Args:
            counts: (n,) codes of persons' numbers of rows.
            positions: (n,) of the rows.
            rng: draws.
        """
        others, busy = (np.searchsorted(edges, positions, side="right") - 1 for edges in self.positions_of_edges)
        found = np.clip(np.where(self.busy[counts], busy, others), 0, self.bins - 1)
        return np.where(rng.random(len(found)) < self.absent[counts], self.bins, found) if self.absent.any() else found

    def fit(self, counts: Integers, positions: Floats, before: Floats, most: Integers) -> Floats:
        """Returns log odds of places by how well rows fit, (n, places).

        The other rows of a person stand before this one, or after it. The best place has 0. Of
        exponential gaps with mean S / m the probability that they fit falls by m (log(S / width) - 1 + width / S), the
        rate function of their sum, where S is more than the width.

        Args:
            counts: (n,) codes of persons' numbers of rows.
            positions: (n,) of the rows.
            before: (n, places) others before them.
            most: (n,) the most others before them.
        """
        odds = np.zeros(before.shape)
        for rows, ahead in ((before, False), (most[:, None] + 1.0 - before, True)):
            total = np.maximum(rows, _LEAST) * self.means[counts][:, None]
            share = np.minimum(np.maximum(self._left(counts, positions, ahead=ahead), _LEAST)[:, None] / total, 1.0)
            odds -= rows * (share - 1.0 - np.log(share))
        return np.asarray(odds - odds.max(axis=1, keepdims=True))

    def places(
        self,
        counts: Integers,
        positions: Floats,
        edges: Floats,
        most: Integers,
        drawn: Callable[[Floats], Integers],
        rng: np.random.Generator,
    ) -> Integers:
        """Draws how many rows stand before others, (n,).

        Args:
            counts: (n,) codes of persons' numbers of rows.
            positions: (n,) of the others.
            edges: of the bins of such numbers.
            most: (n,) the most rows before them.
            drawn: draws a bin of each, with log weights (n, bins) beside what the model says.
            rng: draws.
        """
        # A bin, by its middle.
        low, high = edges[:-1], np.minimum(edges[1:] - 1.0, most[:, None])
        weights = self.fit(counts, positions, np.minimum(0.5 * (low + high), most[:, None]), most)
        bins = drawn(np.where(low > most[:, None], NEVER, np.maximum(weights, 0.6 * NEVER)))
        # One of some places in it.
        least, last = low[bins][:, None], np.take_along_axis(high, bins[:, None], axis=1)
        some = np.minimum(np.floor(least + rng.random((len(bins), _PLACES)) * (last - least + 1.0)), last)
        one = one_of(np.exp(self.fit(counts, positions, some, most)), rng.random(len(bins)))
        return np.asarray(some[np.arange(len(bins)), one], np.int64)

    def moved(
        self,
        counts: Integers,
        positions: Floats,
        rows: Integers,
        rng: np.random.Generator,
        allowed: Flags | None = None,
        *,
        ahead: bool,
    ) -> Floats:
        """Draws where rows stand beside others, (n,).

        Args:
            counts: (n,) codes of persons' numbers of rows.
            positions: (n,) of the others.
            rows: (n,) rows that are still to come on that side, with this one.
            rng: draws.
            allowed: (n, values) where they may stand, by codes of the column; None: anywhere.
            ahead: whether they come after the others.
        """
        # Rates with which all that are still to come fit into what is left.
        left = self._left(counts, positions, ahead=ahead)
        rates = np.maximum((rows + 1) / np.maximum(left, _LEAST) - 1.0 / self.means[counts], 0.0)
        # A bin for each gap; where nothing is left, the least.
        logs = self.logs[counts] - rates[:, None] * self.middles
        logs[self.low > left[:, None]] = -np.inf
        logs[np.isinf(logs).all(axis=1), 0] = 0.0
        drawn = one_of(np.exp(logs - logs.max(axis=1, keepdims=True)), rng.random(len(logs)))
        # A number inside of it, and of what is left.
        low, high = self.low[drawn], self.high[drawn]
        gaps = np.asarray(self.gaps.draw(drawn, rng)[0], np.float64)
        gaps = put_between(gaps, (low, high), (low, np.minimum(high, left)), whole=self.gaps.whole)
        gaps = np.minimum(gaps, left)
        moved = np.asarray(positions + gaps if ahead else positions - gaps)
        return moved if allowed is None else self._within(moved, allowed[:, : self.bins], self._edges(counts))

    def _within(self, positions: Floats, allowed: Flags, edges: Floats) -> Floats:
        """Returns positions, moved into what is allowed from the first bin to the last."""
        each = np.arange(len(edges))
        low, high = edges[each, allowed.argmax(axis=1)], edges[each, self.bins - allowed[:, ::-1].argmax(axis=1)]
        # The end of a bin is the begin of the next one.
        inside = np.clip(positions, low, np.nextafter(high, low))
        return np.where(allowed.any(axis=1), inside, positions)

    def _edges(self, counts: Integers) -> Floats:
        return np.asarray(self.positions_of_edges[self.busy[counts].astype(np.intp)])

    def _left(self, counts: Integers, positions: Floats, *, ahead: bool) -> Floats:
        """Returns the way to the end, or to the start, (n,)."""
        return np.asarray(np.maximum(self._edges(counts)[:, -1] - positions if ahead else positions, 0.0))
