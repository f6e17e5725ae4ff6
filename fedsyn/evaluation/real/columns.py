"""Single columns of a table beside those of real rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedsyn.evaluation.real.between import with_between
from fedsyn.evaluation.real.reading import SHARED, Cells, Integers, Notation, Reading
from fedsyn.evaluation.record import percent, short
from fedsyn.evaluation.scores import Codes, Floats, Moments, closeness
from fedsyn.evaluation.verdict import LOST, Judged, judged
from fedsyn.lazy import pd
from fedsyn.table.schema import Schema

#: Fewer rows, half of one tail, are nothing that a use needs: lost, they change a column.
_NEEDED_TAIL = 0.005
#: The largest part of a loss that only changes a column.
_CHANGED = 0.75


class Share(NamedTuple):
    """A value's share of the real and of the synthetic rows."""

    label: str
    real: float
    synthetic: float

    @property
    def moved(self) -> float:
        """Change of the share."""
        return abs(self.real - self.synthetic)


@dataclass(frozen=True, kw_only=True)
class ColumnScore:
    """One column.

    Attributes:
        name: of the column.
        score: 1 - total variation distance of the real and the synthetic marginal: 1 is equal, 0 is disjoint.
        moved: share of the rows that fall into another group of values than in the real table.
        common: of the values that many real rows share, the one whose share moved most; None: there is none.
        missing: share of rows without a value.
        new: share of the synthetic rows with a word that no real row has, or a number beyond all of theirs, less the
            share of real rows whose word nobody shares.
        gone: share of the real rows whose word no synthetic row has.
        unlike: share of the synthetic numbers that no real row has, less the share of real numbers that nobody shares.
        moments: mean and standard deviation of the real values and of the synthetic ones; None without order.
        spread: by how much the logarithm of the standard deviation changed, beyond what chance and one row do.
        tail: share of rows beyond the middle 98% of the real ones; None without order.
        tail_lost: how much of it is lost, beyond what chance does.
        rare: of the words that fewer rows share, the one that lost most of them; None: none lost more than by chance.
        rare_lost: how much of it is lost, beyond what chance does.
        decimals: most digits after the point, real and synthetic; None: not of numbers, or more than six.
        ordered: whether its values are numbers or dates; plain: whether they are numbers.
        by_schema: whether the schema of the table loses as much of the real rows, without any noise.
        codes: how many codes the schema of the table has for it; 0: not known.
        of: what shares are of: 'rows', or 'people' of a fact of each person.
        labels: of values, and of cells of numbers of equal width by the least number, in order.
        real, synthetic: shares of the rows that have each.
    """

    name: str
    score: float
    moved: float
    common: Share | None
    missing: Share
    new: float
    gone: float
    unlike: float
    moments: tuple[Moments, Moments] | None
    spread: float
    tail: Share | None
    tail_lost: float
    rare: Share | None
    rare_lost: float
    decimals: tuple[int | None, int | None]
    ordered: bool
    plain: bool
    labels: tuple[str, ...]
    real: tuple[float, ...]
    synthetic: tuple[float, ...]
    by_schema: bool = False
    codes: int = 0
    of: str = "rows"

    def judged(self) -> Judged:
        """Returns what became of the column, by the worst of its losses."""
        return judged(self.name, self.losses())

    def losses(self) -> list[tuple[str, float, str]]:
        """Returns the column's losses: kind, amount, words each."""
        nobody = "no real row" if self.of == "rows" else "no real person"
        what = "numbers beyond all real ones, or words" if self.ordered else f"words that {nobody} has"
        losses = [("other", self.new, f"{percent(self.new)} of its {self.of} hold {what}")]
        losses.append(("rows", self.moved, f"{percent(self.moved)} of its {self.of} fall into another group of values"))
        losses += [] if self.moments is None else _of_moments(*self.moments, self.spread, self.plain, self.of)
        if self.tail is not None:
            was, now = map(percent, self.tail[1:])
            least = 1.0 if self.tail.real >= _NEEDED_TAIL else _CHANGED * LOST["tail"]
            lost = min(self.tail_lost, least)
            losses.append(("tail", lost, f"{was} of the real {self.of} lie far out, and {now} of its {self.of} do"))
        # Numbers that no real row has are no loss of a mean: they are said, and the column has moved at most.
        where = "stand in no real row" if self.of == "rows" else "no real person has"
        unlike = f"{percent(self.unlike)} of its numbers {where}{self._digits()}"
        losses.append(("other", min(self.unlike, _CHANGED * LOST["other"]), unlike))
        for share in filter(None, (self.common, self.rare, self.missing)):
            words = "it was missing in" if share is self.missing else f"{share.label!r} had"
            then = "is in" if share is self.missing else "has"
            kind, amount = "share", share.moved
            if share is self.rare:
                kind, amount = "tail", min(self.rare_lost, _CHANGED * LOST["tail"])
            became = f"{percent(share.real)} of the {self.of} and {then} {percent(share.synthetic)}"
            losses.append((kind, amount, f"{words} {became}"))
        return losses

    def _digits(self) -> str:
        """Returns a clause on digits after the point.

        Empty where they are as many.
        """
        real, synthetic = self.decimals
        if real == synthetic or real is None:
            return ""
        return f" (real ones have {real} decimals at most, these {'more than six' if synthetic is None else synthetic})"


def _of_moments(real: Moments, synthetic: Moments, spread: float, plain: bool, of: str) -> list[tuple[str, float, str]]:
    """Returns the losses of a mean and a standard deviation.

    `spread` is that of the standard deviation; `plain` says that the values are numbers, of rows or people (`of`).
    Where real values do not differ, the mean is measured by the synthetic standard deviation.
    """
    (mean, sd), (synthetic_mean, synthetic_sd) = real, synthetic
    if not sd:
        off = abs(synthetic_mean - mean) / synthetic_sd if synthetic_sd else 10.0 * (mean != synthetic_mean)
        now = number(synthetic_mean)
        now = f"{synthetic_mean:.7g}" if now == number(mean) else now  # 2019.7 is no 2020
        ends = (number(mean), now) if plain else ("one value", "another")
        return [("mean", min(off, 10.0), f"all real {of} have {ends[0]}, and its mean is {ends[1]}")]
    off = abs(synthetic_mean - mean) / sd
    words = f"its mean moved by {off:.2f} standard deviations"
    ends = number(mean), number(synthetic_mean)
    moved = f"{words}, from {ends[0]} to {ends[1]}" if plain and ends[0] != ends[1] else words
    turned = f"its standard deviation is {synthetic_sd / sd:.2f} times the real one"
    return [("mean", off, moved), ("spread", spread, turned)]


def number(value: float) -> str:
    """A moment, as people write it.

    >>> number(45.236), number(1962.4), number(125_000.0)
    ('45.24', '1962', '125,000')
    """
    if abs(value) < 1_000:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.0f}"  # a year has no comma


# Made of the tables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReadColumn:
    """One column of all tables, while it is compared."""

    notation: Notation
    tables: list[Cells]
    reading: Reading
    codes: list[Codes]

    @classmethod
    def of(cls, series: Sequence[pd.Series], whose: Integers | None = None) -> ReadColumn:
        """Reads the column; the first table is the real one.

        `whose` says which person each real row is of, where that is not one each.
        """
        notation = Notation.of(series[0])
        tables = [notation.cells(one) for one in series]
        tables[0] = replace(tables[0], whose=whose)
        reading = Reading.of(notation, tables[0])
        dtype = np.min_scalar_type(reading.size)
        return cls(notation, tables, reading, [reading.codes(cells).astype(dtype) for cells in tables])


class Through(NamedTuple):
    """A column of real rows, and what a schema makes of it.

    No noise is added.
    """

    real: pd.Series
    made: pd.Series
    codes: int


def through_schema(schema: Schema, real: pd.DataFrame, rng: np.random.Generator) -> Mapping[str, Through]:
    """Returns columns of real rows as a schema gives them back.

    Empty where the rows lack a column, or the schema can take none of them.
    """
    if not set(schema.needed) <= set(real.columns):
        return {}
    codes = schema.encode(real)  # without the rows that the schema cannot take
    if not len(codes):
        return {}
    made = schema.decode(codes, rng)
    names = [name for name in made if name in real.columns]
    sizes = {name: column.size for name, column in schema.columns.items()}  # what is computed has no codes
    tables, names = with_between([real[names], made[names]], names)
    return {name: Through(tables[0][name], tables[1][name], sizes.get(name, 0)) for name in names}


def column_score(name: str, column: ReadColumn, through: Through | None, of: str = "rows") -> ColumnScore:
    """Returns the score of a column.

    It says whether the schema alone loses as much. `of` is what is counted.
    """
    (real, made), reading = column.tables[:2], column.reading
    p, q = (np.bincount(codes, minlength=reading.size) / max(1, len(codes)) for codes in column.codes[:2])
    one, other = (np.bincount(reading.groups, share).astype(np.float64) for share in (p, q))
    drawn = reading.drawn(real)
    x, y = (drawn.counted(cells) / max(1, len(cells.at)) for cells in (real, made))
    shown = (x > 0) | (y > 0)
    (tail, tail_lost), (rare, rare_lost) = _tail(real, made), _rare(column, p, q)
    score = ColumnScore(
        name=name,
        score=closeness(p, q),
        moved=1.0 - closeness(one, other),
        common=max(_common(column, p, q), key=lambda share: share.moved, default=None),
        missing=Share("missing", short(real.missing), short(made.missing)),
        new=short(max(0.0, float(q[-1]) + _beyond(real, made) - reading.unshared)),
        gone=short(sum(n for word, n in real.counts.items() if word not in made.counts) / max(1, len(real.at))),
        unlike=short(_unlike(real, made)) if reading.ordered else 0.0,
        moments=_moments(real, made) if reading.ordered else None,
        spread=_spread(real.known, made.known),
        tail=tail,
        tail_lost=tail_lost,
        rare=rare,
        rare_lost=rare_lost,
        decimals=(_decimals(real), _decimals(made)) if reading.plain else (None, None),
        ordered=reading.ordered,
        plain=reading.plain,
        labels=tuple(label for label, seen in zip(drawn.labels, shown, strict=True) if seen),
        real=tuple(map(short, x[shown])),
        synthetic=tuple(map(short, y[shown])),
        codes=through.codes if through else 0,
        of=of,
    )
    if through is None or score.judged().state != "lost":
        return score
    alone = column_score(name, ReadColumn.of([through.real, through.made]), None)
    return replace(score, by_schema=alone.judged().state == "lost")


def _common(column: ReadColumn, p: Floats, q: Floats) -> list[Share]:
    """Returns the values that many rows of either table share.

    The most frequent word is among them, however few rows have it.
    """
    reading, (real, synthetic) = column.reading, column.tables[:2]
    many = reading.single & (np.maximum(p, q) > SHARED)
    if not reading.ordered and reading.words:
        many[int(np.argmax(np.where(reading.single, p, -1.0)))] = True
    common = [Share(reading.labels[at], short(p[at]), short(q[at])) for at in np.flatnonzero(many).tolist()]
    known, held = synthetic.held
    for number, rows in zip(known, held, strict=True) if len(known) and held.max() > SHARED * len(synthetic.at) else ():
        if rows > SHARED * len(synthetic.at) and number not in reading.lows[reading.alone]:
            shares = float((real.known == number).sum()) / max(1, len(real.at)), rows / len(synthetic.at)
            common.append(Share(reading.texts(np.array([number]))[0], *map(short, shares)))
    return common


def _beyond(real: Cells, synthetic: Cells) -> float:
    """Returns the share of rows beyond all real numbers."""
    if not len(real.known):
        return 0.0
    return float(((synthetic.known < real.known.min()) | (synthetic.known > real.known.max())).sum()) / max(
        1, len(synthetic.at)
    )


def _unlike(real: Cells, synthetic: Cells) -> float:
    """Returns the share of new numbers, beyond what chance gives.

    A new row of the same kind has one with a chance of about the share of rows whose number nobody shares (Good 1953,
    after Turing).
    """
    known, alone = real.held[0], real.unshared[np.isfinite(real.numbers)]
    if not len(known) or not len(synthetic.known):
        return 0.0
    return max(0.0, float((~np.isin(synthetic.known, known)).mean()) - float(alone.mean()))


def _moments(real: Cells, synthetic: Cells) -> tuple[Moments, Moments] | None:
    """Returns mean and standard deviation of both tables.

    None where one has no number.
    """
    if not len(real.known) or not len(synthetic.known):
        return None
    return (float(real.known.mean()), float(real.known.std())), (
        float(synthetic.known.mean()),
        float(synthetic.known.std()),
    )


def _spread(real: Floats, synthetic: Floats) -> float:
    """Returns the change of a standard deviation's logarithm, beyond chance.

    Of a long tail a single row may decide. So what changes least counts, with and without the farthest row of either
    table, less one standard error.
    """
    if not len(real) or not len(synthetic):
        return 0.0
    logs, errors = zip(*map(_log_spreads, (real, synthetic)), strict=True)
    apart = min(abs(a - b) if math.isfinite(a - b) else 10.0 * (a != b) for a in logs[0] for b in logs[1])
    return short(min(10.0, max(0.0, apart - math.hypot(*errors))))


def _log_spreads(values: Floats) -> tuple[list[float], float]:
    """Returns logarithms of the standard deviation, and an error.

    They are with and without the farthest row.

    The error is the root of (kurtosis - 1) / 4n.
    """
    apart = values - values.mean()
    squared, rest = float((apart**2).mean()), np.delete(values, int(np.argmax(np.abs(apart))))
    if not squared:
        return [-math.inf], 0.0
    kurtosis = float(((apart**2 / squared) ** 2).mean())
    spreads = [math.sqrt(squared), float(rest.std()) if len(rest) else 0.0]
    return [math.log(sd) for sd in spreads if sd > 0], math.sqrt(max(0.0, kurtosis - 1.0) / (4.0 * len(values)))


def _tail(real: Cells, synthetic: Cells) -> tuple[Share | None, float]:
    """Returns the share of rows far out, and its loss.

    Far out is beyond the middle 98% of the real rows: two percent of them, one of a column with one tail, fewer where
    values tie. A limit of the middle that few rows reach or pass is far out as well, if that is lost rather.

    Of counts, so two standard errors are allowed for: fresh rows that lose a quarter beyond one would call 1 to 6% of
    columns moved whose tails have 60 to 10 rows, beyond two 0.04 to 0.5%. A use needs all of few columns.
    """
    if not len(real.known) or not len(synthetic.known):
        return None, 0.0
    low, high = np.quantile(real.known, [0.01, 0.99])
    ends = (real.known <= low).mean() <= SHARED, (real.known >= high).mean() <= SHARED
    wider = [np.nextafter(low, np.inf) if ends[0] else low, np.nextafter(high, -np.inf) if ends[1] else high]
    found = []
    for below, above in ((low, high), wider):
        was, now = (float(((x.known < below) | (x.known > above)).mean()) for x in (real, synthetic))
        lost = _lost(was, now, len(real.known), len(synthetic.known), 2.0) if was else 0.0
        found.append((Share("far out", short(was), short(now)) if was else None, short(lost)))
    return max(found, key=lambda one: one[1])


def _rare(column: ReadColumn, p: Floats, q: Floats) -> tuple[Share | None, float]:
    """Returns the rare word that lost most, and its loss.

    The shares of codes are p in the real rows, and q. A table has hundreds of such words, so two and a half standard
    errors are allowed for. Fresh rows call one changed once in 1.5 million times or less: so do the probabilities of
    two Poisson variables of one mean. One of 23 rows is seen to be gone.
    """
    rows, reading = [len(codes) for codes in column.codes[:2]], column.reading
    words = np.arange(len(reading.lows), len(reading.lows) + len(reading.words))
    lost = {int(at): _lost(float(p[at]), float(q[at]), rows[0], rows[1], 2.5) for at in words[(p[words] <= SHARED)]}
    worst = max(lost, key=lost.__getitem__, default=None)
    if worst is None or not lost[worst]:
        return None, 0.0
    return Share(reading.labels[worst], short(float(p[worst])), short(float(q[worst]))), short(lost[worst])


def _lost(was: float, now: float, rows: int, synthetic_rows: int, errors: float) -> float:
    """Returns which part of a share is lost, beyond some standard errors.

    Each table's number of rows of that kind is a Poisson variable.
    """
    error = math.sqrt((1.0 / rows + 1.0 / synthetic_rows) / was)
    return max(0.0, 1.0 - now / was - errors * error)


def _decimals(cells: Cells) -> int | None:
    """Returns the most digits after the point, of some of the numbers."""
    some = np.unique(cells.known)[:: max(1, len(cells.known) // 2000)]
    near = 1e-9 * np.maximum(1.0, np.abs(some))
    return next((d for d in range(7) if (np.abs(np.round(some, d) - some) <= near).all()), None)
