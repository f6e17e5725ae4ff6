"""Places in time of the rows of a person.

A model of records has steps: a row's bin of the column that gives the order, and the next one's. Steps tell badly how
fast a person goes through the bins: that depends on the number of rows, of many rows most stand in the bin of the row
before, and noise in the few steps out of it adds up along the person, whose rows then stand in the first bin or the
last. Gaps between rows tell it, and so does arithmetic: all rows lie within the column's bounds. What steps tell is
when: of visits each summer, that the next ones are in summer.

So each row has a position inside its bin, and a step is as likely as the model says, times how much more likely it is
from there, with this person's gaps, than gaps make it on average over the positions and persons of which the model
says it. What a model says of a step and of the gap in it are two noisy answers to how far it goes, and they disagree: a
panel of firms with a row each year had a third of its steps inside one year. The gap's answer is the plainer one, so
steps are first fitted to the gaps.

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
from fedsyn.inference.other_models import AnyModel
from fedsyn.runs.gaps import NEVER
from fedsyn.table.schema import Schema
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.persons import COUNT, GAP, next_name, places

# Less than any share, or width, that there is; and a share that is as good as none.
_LEAST, _TINY = 1e-12, 1e-3
# Share of a step that gaps rule out and the model does not.
_UNLIKELY = 1e-6
# Places in a bin of which one is taken, and positions in a bin for a mean over it.
_PLACES, _POSITIONS = 8, 16
# Rates by which longer gaps are less likely, in parts of one over the mean gap.
_RATES = np.geomspace(1e-3, 1e4, 400)
# Rounds of fitting steps to gaps.
_ROUNDS = 10
# Cells of a table of steps by numbers of rows, or by gaps.
_STEPS_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class Span:
    """Places of persons' first and last rows so far.

    Attributes:
        counts: (persons,) codes of their numbers of rows.
        absent: (persons,) rows without a number, which come last.
        first: (persons,) position of the first row; changed in place.
        last: (persons,) position of the last row; changed in place.
    """

    counts: Integers
    absent: Integers
    first: Floats
    last: Floats


class Timeline:
    """Weighs steps to rows beside others, and draws their positions.

    Gaps that have to fit into what is left, the more of them there are, go as if longer ones were less likely by
    exp(-rate gap), with the rate by which they are expected to fill it (Gibbs' conditioning principle). Of exponential
    gaps with mean S / m it is m / width - m / S.

    Args:
        column: that gives the order.
        gaps: between a row and the next one.
        shares: (numbers of rows, gaps) how often each gap follows, by their codes.
        steps: (numbers of rows, bins, bins) how often a row is in one bin and the next one in another.
        values: (numbers of rows, values) how often a row has each value of the column, by their codes.
        busy: (numbers of rows,) which of them are more than there are bins.
    """

    def __init__(
        self,
        column: BinnedColumn,
        gaps: BinnedColumn,
        shares: Floats,
        steps: Floats,
        values: Floats,
        busy: Flags,
    ) -> None:
        self.column, self.bins, self.busy = column, len(column.edges) - 1, busy
        values = np.maximum(values, 0.0)
        self.absent = values[:, self.bins :].sum(axis=1) / np.maximum(values.sum(axis=1), _LEAST)
        # A whole number stands in the middle of its unit.
        self.middle = 0.5 if column.whole else 0.0
        self.edges = np.append(column.ends[0], column.ends[1][-1] + 2.0 * self.middle).astype(np.float64)
        # Positions of the edges: of the others, and of the busy ones.
        self.speeds, self.marks = np.ones(self.bins), np.tile(self.edges - self.edges[0], (2, 1))
        self.low, self.high = (np.asarray(end, np.float64) for end in gaps.ends)
        self.middles, self.widths = 0.5 * (self.low + self.high), np.maximum(self.high - self.low, _LEAST)
        shares = np.maximum(shares[:, : len(self.low)], _LEAST)
        self.logs = np.log(shares / shares.sum(axis=1, keepdims=True))
        self.means = np.maximum(np.exp(self.logs) @ self.middles, _LEAST)
        self._tilted()
        steps = np.maximum(steps, 0.0)
        self.beyond = {True: self._beyond(steps, ahead=True), False: self._beyond(steps.swapaxes(1, 2), ahead=False)}

    @classmethod
    def of(cls, schema: Schema, model: AnyModel) -> Timeline | None:
        """Returns the timeline of records with gaps.

        None if their steps are too many.

        Args:
            schema: of the records.
            model: of them.
        """
        assert schema.rows.persons is not None
        name = str(schema.rows.persons.order)
        column, count, gaps = schema.rows.columns[name], schema.columns[COUNT], schema.columns[GAP]
        assert isinstance(column, BinnedColumn) and isinstance(count, BinnedColumn) and isinstance(gaps, BinnedColumn)
        if max(count.size, gaps.size) * len(column.edges) ** 2 > _STEPS_AT_ONCE:
            return None
        sides = (name, next_name(name))
        ones = [(COUNT, side) for side in sides]
        shares, pairs, *both = model.project_many([(COUNT, GAP), (*ones[0], sides[1]), *ones])
        bins, kept = len(column.edges) - 1, [places(schema.columns[side]) for side in sides]
        values = both[0][:, kept[0]] + both[1][:, kept[1]]  # rows without a number come last: few are a record's own
        steps = pairs[:, kept[0][:bins]][:, :, kept[1][:bins]]
        return cls(column, gaps, shares, steps, values, np.resize(count.edges[:-1] > bins, count.size))

    def _beyond(self, steps: Floats, *, ahead: bool) -> Floats:
        """Returns log weights of steps, (numbers of rows, from, to).

        They do not depend on positions, and take out what steps say of numbers of rows and what gaps make of a step on
        average.
        """
        # By the model: of each number of rows, and of all together.
        started, shares = np.maximum(steps.sum(axis=2), _LEAST), np.exp(self.logs)
        own, every = steps / started[:, :, None], steps.sum(axis=0) / started.sum(axis=0)[:, None]
        # By gaps: from positions all over the bin. Each gap by itself, (gaps, from, to).
        gaps, codes = np.divmod(np.arange(len(self.low) * self.bins), self.bins)
        alone, size = np.eye(len(self.low))[gaps], (len(self.low), self.bins, self.bins)
        by_gaps = np.zeros(size)
        for share in (np.arange(_POSITIONS) + 0.5) / _POSITIONS:
            positions = self.marks[0, codes] + share * np.diff(self.marks[0])[codes]
            leads = np.exp(self._steps(np.zeros_like(codes), positions, alone, ahead=ahead)).reshape(size)
            # Those that lead out of the column are none of the person's.
            inside = shares @ leads.sum(axis=2)
            by_gaps += ((started / inside).T @ shares / started.sum(axis=0)[:, None] / _POSITIONS).T[:, :, None] * leads
        mean = by_gaps.sum(axis=0)
        every = _as_far(every, by_gaps / mean, started.sum(axis=0), started.sum(axis=1) @ shares)
        return np.asarray(np.log((every + _TINY) / (own + _TINY)) - np.log(mean + _TINY))

    def hastened(self, wanted: Floats, drawn: Floats) -> Timeline:
        """Returns a timeline that goes faster where rows are too many.

        Args:
            wanted: (bins,) shares of the rows of busy persons.
            drawn: (bins,) shares of theirs that were drawn with these speeds.
        """
        out, speeds = copy(self), np.log(self.speeds) + 0.5 * np.log((drawn + _TINY) / (wanted + _TINY))
        out.speeds = np.exp(speeds - wanted @ speeds)
        out.marks = np.stack([self.marks[0], np.append(0.0, np.cumsum(np.diff(self.edges) / out.speeds))])
        return out

    # Places -----------------------------------------------------------------------------------------------------------

    def positions(self, counts: Integers, codes: Integers, rng: np.random.Generator) -> Floats:
        """Draws positions inside bins, (n,).

        Args:
            counts: (n,) codes of persons' numbers of rows.
            codes: (n,) the bins.
            rng: draws.
        """
        numbers = np.asarray(self.column.draw(codes, rng)[0], np.float64) + self.middle
        others, busy = (np.interp(numbers, self.edges, marks) for marks in self.marks)
        return np.asarray(np.where(self.busy[counts], busy, others))

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

    def fit(self, counts: Integers, positions: Floats, before: Floats, most: Integers) -> Floats:
        """Returns log odds of places by how well rows fit, (n, places).

        The other rows of a person stand before this one, or after it. The best place has 0. The probability that m gaps
        fit into a width is exp(min over rates r of r width + m log E exp(-r gap)), but for smaller factors (Cramér's
        theorem). Of exponential gaps with mean S / m it falls by m (log(S / width) - 1 + width / S) where S is more
        than the width; of rows a year apart hardly ever one more fits than there are years.

        Args:
            counts: (n,) codes of persons' numbers of rows.
            positions: (n,) of the rows.
            before: (n, places) others before them.
            most: (n,) the most others before them.
        """
        odds = np.zeros(before.shape)
        for rows, ahead in ((before, False), (most[:, None] + 1.0 - before, True)):
            left = np.maximum(self._left(counts, positions, ahead=ahead) - self.middle, 0.0)[:, None]
            each = left / np.maximum(rows, _LEAST)
            for code in np.unique(counts):
                some = counts == code
                rates = np.interp(-each[some], -self.tilts[1][code], self.tilts[0][code])
                odds[some] += rates * left[some] + rows[some] * np.interp(
                    rates, self.tilts[0][code], self.tilts[2][code]
                )
        return np.asarray(odds - odds.max(axis=1, keepdims=True))

    def _tilted(self) -> None:
        """Tabulates mean gaps by rates.

        Rates, means and log E exp(-rate gap) are (numbers of rows, rates).
        """
        rates = np.append(0.0, _RATES)[None, :] / self.means[:, None]
        shares, tilts = np.exp(self.logs), (rates, np.empty(rates.shape), np.empty(rates.shape))
        for at, rate in enumerate(rates.T):
            # Gaps are even in a bin: (1 - exp(-x)) / x of its weight is left, and their mean lies 1/x - 1/(exp(x) - 1)
            # of its width above its low end.
            x = np.maximum(rate[:, None] * self.widths, 1e-6)
            parts = shares * np.exp(-rate[:, None] * self.low) * -np.expm1(-x) / x
            total = np.maximum(parts.sum(axis=1), _LEAST)
            places = self.low + self.widths * (1.0 / x - np.exp(-x) / -np.expm1(-x))
            tilts[1][:, at], tilts[2][:, at] = (parts * places).sum(axis=1) / total, np.log(total)
        # They fall, but for what floating point adds.
        self.tilts = rates, np.minimum.accumulate(tilts[1], axis=1), tilts[2]

    # Steps ------------------------------------------------------------------------------------------------------------

    def shares(self, counts: Integers, positions: Floats, rows: Integers, *, ahead: bool) -> Floats:
        """Returns weights of gaps to rows beside others, (n, gaps).

        Args:
            counts: (n,) codes of persons' numbers of rows.
            positions: (n,) of the others.
            rows: (n,) rows that are still to come on that side, with these; all of them fit into what is left.
            ahead: whether they come after the others.
        """
        left = np.maximum(self._left(counts, positions, ahead=ahead), _LEAST)
        rates = np.maximum((rows + 1) / left - 1.0 / self.means[counts], 0.0)
        logs = self.logs[counts] - rates[:, None] * self.middles
        return np.asarray(np.exp(logs - logs.max(axis=1, keepdims=True)))

    def odds(
        self, counts: Integers, codes: Integers, positions: Floats, shares: Floats, absent: Flags, *, ahead: bool
    ) -> Floats:
        """Returns log weights of the values of rows beside others, (n, values).

        Args:
            counts: (n,) codes of persons' numbers of rows.
            codes: (n,) bins of the others; -1: they have no number.
            positions: (n,) of the others.
            shares: (n, gaps) weights of the gaps between.
            absent: (n,) which rows have no number.
            ahead: whether they come after the others.
        """
        steps = self._steps(counts, positions, shares, ahead=ahead)
        steps += np.where(codes[:, None] < 0, 0.0, self.beyond[ahead][counts, codes])
        steps = np.maximum(steps - steps.max(axis=1, keepdims=True), 0.6 * NEVER)
        others = np.where(absent[:, None], 0.0, np.full((len(codes), self.column.size - self.bins), NEVER))
        return np.concatenate([np.where(absent[:, None], NEVER, steps), others], axis=1)

    def moved(
        self,
        counts: Integers,
        codes: Integers,
        positions: Floats,
        shares: Floats,
        rng: np.random.Generator,
        *,
        ahead: bool,
    ) -> Floats:
        """Draws positions of rows beside others, in their bins, (n,).

        Args:
            counts: (n,) codes of persons' numbers of rows.
            codes: (n,) bins of the rows.
            positions: (n,) of the others.
            shares: (n, gaps) weights of the gaps between.
            rng: draws.
            ahead: whether they come after the others.
        """
        each, marks = np.arange(len(codes)), self._marks(counts)
        begin, end = marks[each, codes] - positions, marks[each, codes + 1] - positions
        near, far = (begin, end) if ahead else (-end, -begin)
        near = np.maximum(near, 0.0)
        # A bin for each gap, of those that lead there, and a number inside of it.
        low, high = np.maximum(self.low, near[:, None]), np.minimum(self.high, far[:, None])
        parts = np.where(self.high > self.low, (high - low) / self.widths, high >= low)
        weights = shares * np.maximum(parts, 0.0)
        known = weights.sum(axis=1) > _LEAST
        drawn = one_of(weights, rng.random(len(codes)))
        low, high = np.where(known, low[each, drawn], near), np.where(known, high[each, drawn], np.maximum(far, near))
        gaps = low + rng.random(len(codes)) * (high - low)
        return np.asarray(positions + gaps if ahead else positions - gaps)

    def _steps(self, counts: Integers, positions: Floats, shares: Floats, *, ahead: bool) -> Floats:
        """Returns log shares of bins to which gaps lead, (n, bins)."""
        below = np.concatenate([np.zeros((len(shares), 1)), shares.cumsum(axis=1)], axis=1)
        # How many gaps are shorter than the way to each edge.
        marks = self._marks(counts) - positions[:, None]
        far = np.maximum(marks if ahead else -marks, 0.0)
        at = np.maximum(np.searchsorted(self.low, far) - 1, 0)
        part = np.minimum((far - self.low[at]) / self.widths[at], 1.0)
        shorter = np.take_along_axis(below, at, axis=1) + np.take_along_axis(shares, at, axis=1) * part
        shorter = np.where(far > self.low[at], shorter, 0.0) / below[:, -1:]
        return np.asarray(np.log(np.maximum(np.diff(shorter, axis=1) * (1.0 if ahead else -1.0), 0.0) + _UNLIKELY))

    def _left(self, counts: Integers, positions: Floats, *, ahead: bool) -> Floats:
        """Returns the way to the end, or to the start, (n,)."""
        return np.asarray(np.maximum(self._marks(counts)[:, -1] - positions if ahead else positions, 0.0))

    def _marks(self, counts: Integers) -> Floats:
        """Returns positions of the edges, (n, bins + 1)."""
        return np.asarray(self.marks[self.busy[counts].astype(np.intp)])


def _as_far(every: Floats, parts: Floats, started: Floats, wanted: Floats) -> Floats:
    """Returns shares of steps, (from, to), that have the released gaps.

    Steps with a gap are taken more often, or less, until they have as many of it (iterative proportional fitting). What
    they say of bins that are as far away stays, such as a season, and so does what one wide bin of gaps leaves open.

    Args:
        every: (from, to) share of each bin.
        parts: (gaps, from, to) share of each gap, of a step.
        started: (from,) how often a step begins there.
        wanted: (gaps,) how often each follows.
    """
    wanted, started, little = wanted / wanted.sum(), started / started.sum(), _TINY / len(wanted)
    factors, out = np.ones(len(wanted)), every
    for _ in range(_ROUNDS):
        weights = np.einsum("g,gab->ab", factors, parts)
        out = every * weights
        out /= np.maximum(out.sum(axis=1, keepdims=True), _LEAST)
        # Of each step the gaps by these factors.
        share = out * started[:, None] / np.maximum(weights, _LEAST)
        found = factors * np.einsum("gab,ab->g", parts, share)
        factors *= (wanted + little) / (found + little)
    return out
