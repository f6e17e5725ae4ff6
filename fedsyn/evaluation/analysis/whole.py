"""`fedsyn.analyse`: one estimator in every table, combined.

The result carries the notes that a reader needs beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsyn.domain import Floats
from fedsyn.errors import ConfigError
from fedsyn.evaluation.analysis.censoring import Censored, settled
from fedsyn.evaluation.analysis.combining import Combined, combine
from fedsyn.evaluation.analysis.estimators import Estimator
from fedsyn.evaluation.analysis.formulas import Question, columns_in, question_of
from fedsyn.evaluation.analysis.persons import ONE_EACH, Per, shown, standing_for, with_changes, with_next
from fedsyn.evaluation.analysis.result import Analysis
from fedsyn.evaluation.analysis.tables import SyntheticTables, tables_of
from fedsyn.evaluation.record import percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from fedsyn.table.schema.frames import AnyFrame

# An interval that is so much narrower with more tables is said to be so.
_NARROWER = 0.2
# A tenth of a variance moves an interval's width by a twentieth: from there on it is said what it rests on. Where a bin
# has more than a third of a column's, its tail follows from nearly nothing: exact counts gave a slope within twice what
# was open for it in half of ten columns, else in 58 of 62 (experiments/honest_intervals/honest_tails.py).
_MUCH, _TOO_MUCH = 0.1, 1 / 3
# Of what an estimate owes to the inside of bins, as much counts as a standard deviation: from exact counts of eight
# kinds of pairs in 16 and 32 bins, errors of slopes have a spread of 0.9 to 1.0 then, on eight others the same
# (experiments/honest_intervals/honest_links.py). And tables that tell it.
_UNKNOWN, _LOOKED = 0.25, 4


def analyse(
    tables: str | Path | Sequence[AnyFrame | str | Path] | SyntheticTables,
    formula: str,
    model: str | Estimator | None = None,
    *,
    level: float = 0.95,
    censored: Censored | None = None,
    per: Per | None = None,
) -> Analysis:
    """Estimates means, proportions or a regression from several synthetic tables.

    The intervals account for the noise.

    Args:
        tables: the folder that `fedsyn sample RUN --tables 20 --out DIR` made, or a list of DataFrames or paths.
        formula: "readmitted ~ age + ward" as in R (formulaic), "age" or "mean(age)", "ward" or "proportion(ward)". A
            name such as hours-per-week stands as it is.
        model: "ols", "logit" or an `Estimator`; None: logistic for an outcome of two values, else linear.
        level: of the intervals.
        censored: how to treat censored values (<0.5) of a numeric column: "bound" takes each for its bound,
            "leave_out" leaves their rows out. Without it a column that has any is refused. Codes for missing values
            are missing.
        per: of a run for persons, what counts once: a "row", or a "person", by one of its rows. None: a row where the
            formula has a column that differs between the rows of a person. `change(x)` in a formula is the next
            row's value minus this one's.

    Returns:
        A result that prints as a table; `to_frame()` has its figures.

    Raises:
        InputError: one table only (only a naive interval would be possible), an unknown column, a formula or table for
            which there is no such estimate, or statsmodels is missing.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level: expected a probability between 0 and 1, such as 0.95, found {level!r}")
    synthetic = tables_of(tables)
    formula = with_changes(formula, synthetic)
    columns, averaged = columns_in(formula, synthetic.columns)
    synthetic, treated = settled(synthetic, with_next(columns, synthetic), censored, averaged)
    synthetic, counting = shown(synthetic, columns, per)
    question = question_of(formula, synthetic, model)
    estimates, variances = question.estimates(synthetic.frames)
    inside = _inside_bins(question, synthetic, estimates)
    combined = combine(estimates, variances, ratio=synthetic.ratio, inside=inside)
    pairs, wide = _not_held(question, synthetic), _wide_bins(question, synthetic)
    notes = [
        *counting,
        *treated,
        *_of_tables(synthetic, combined),
        *_of_few(combined),
        *_of_bins(wide, combined),
        *_of_pairs(pairs),
    ]
    notes += [
        *_of_missing(question, synthetic, "people" if ONE_EACH in counting else "rows"),
        *_of_left_out(question, synthetic),
    ]
    names = tuple(term.name for term in question.terms)
    is_unheld = bool(pairs) or any(each.share > _TOO_MUCH for each in wide)
    return Analysis(question.about, names, combined, level, frozenset(names if is_unheld else ()), tuple(notes))


def _not_held(question: Question, tables: SyntheticTables) -> list[str]:
    """Returns column groups that the model was not fitted to.

    A term rests on its columns together with the outcome's, and on those of every other term, from which it is told
    apart. The coefficients of a regression are estimated together: one that is wrong moves those of every column that
    goes along with its own, and the intercept. So all of them rest on all of these.

    Least squares of after - before are the difference of those of each: they rest on each beside the terms, and their
    variance on both together.
    """
    columns = [part for term in question.terms if term.columns for part in term.parts or [term.columns]]
    wanted = [each | part for part in question.parts for each in columns or [frozenset[str]()]]
    wanted += [first | second for some in (columns, question.parts) for first, second in combinations(some, 2)]
    missing = [each for each in dict.fromkeys(wanted) if not tables.holds(each)]
    return [" × ".join(sorted(each | tables.given)) for each in missing]


def _inside_bins(question: Question, tables: SyntheticTables, estimates: Floats) -> Floats | float:
    """Returns the variance that bins leave open, (k,).

    A number inside a bin was not measured, and how it goes along with the rest of its row follows from the bins beside
    it. What an estimate owes to that is its difference from the estimate with numbers shuffled inside their bins. A
    quarter of it counts as a standard deviation. (With numbers at the means of their bins an outcome and a term take
    from a slope, and give to it, and little may be left of both.)
    """
    bins = {name: edges for name, edges in tables.bins.items() if name in question.columns}
    if not question.outcome or not bins:
        return 0.0
    rng = np.random.default_rng(0)
    some = [_shuffled(frame, bins, rng) for frame in tables.frames[:_LOOKED]]
    moved = np.mean(estimates[:_LOOKED] - question.estimates(some)[0], axis=0)
    return np.asarray((_UNKNOWN * moved) ** 2)


def _shuffled(frame: pd.DataFrame, bins: Mapping[str, Sequence[float]], rng: np.random.Generator) -> pd.DataFrame:
    """Shuffles numbers inside their bins."""
    out = {}
    for name, edges in bins.items():
        numbers = frame[name].to_numpy(copy=True)
        here = np.flatnonzero(frame[name].notna())
        codes = np.searchsorted(np.asarray(edges)[1:-1], numbers[here].astype(np.float64), side="right")
        numbers[here[np.argsort(codes, kind="stable")]] = numbers[here[np.lexsort((rng.random(len(here)), codes))]]
        out[name] = numbers
    return frame.assign(**out)


def _of_few(combined: Combined) -> list[str]:
    """Returns a warning where more tables would narrow an interval."""
    narrower = 1.0 - 1.0 / float(np.max(combined.widened))
    if narrower < _NARROWER:
        return []
    return [f"More tables, or larger ones, would make an interval up to {percent(narrower)} narrower. Draw more."]


@dataclass(frozen=True)
class _WideBin:
    """One bin with a `share` of a column's variance inside."""

    name: str
    low: float
    high: float
    share: float


def _wide_bins(question: Question, tables: SyntheticTables) -> list[_WideBin]:
    """Returns bins that hold much of a column's variance.

    Each is the worst of a column whose numbers are averaged. Proportions and quantiles average none.
    """
    if not question.averages:
        return []
    out = []
    for name in sorted(question.columns & tables.bins.keys()):
        edges = np.asarray(tables.bins[name])
        values = np.concatenate([frame[name].dropna().to_numpy(np.float64) for frame in tables.frames[:_LOOKED]])
        if len(values) < 2 or values.min() == values.max():
            continue
        codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        rows, sums = (np.bincount(codes, weights, len(edges) - 1) for weights in (None, values))
        off = (values - (sums / np.maximum(rows, 1))[codes]) ** 2
        shares = np.bincount(codes, off, len(edges) - 1) / float(((values - values.mean()) ** 2).sum())
        worst = int(shares.argmax())
        if shares[worst] > _MUCH:
            out.append(_WideBin(name, edges[worst], edges[worst + 1], float(shares[worst])))
    return out


def _of_bins(wide: list[_WideBin], combined: Combined) -> list[str]:
    """Returns warnings on wide bins.

    It warns of intervals that come from bins for the most part, too.
    """
    notes = []
    if (np.asarray(combined.inside) > combined.variance / 2).any():
        notes.append(
            "More than half of an interval's variance is of where numbers lie inside their bins, which was not "
            "measured and does not shrink with more rows: finer bins would narrow it."
        )
    for each in wide:
        where = f"{percent(each.share)} of the variance of {each.name} is inside one bin, {each.low:g} to {each.high:g}"
        if each.share > _TOO_MUCH:
            notes.append(
                f"* {where}, too wide to know where its values lie. No interval here knows how far that is off."
            )
        else:
            notes.append(
                f"{where}: where its values lie there follows from the counts of other bins, not from a "
                "measurement. Finer bins there would tell."
            )
    return notes


def _of_pairs(pairs: list[str]) -> list[str]:
    if not pairs:
        return []
    return [
        f"* {', '.join(pairs)}: not measured value by value. What the tables say of it follows from groups of values "
        "or from other columns, and no interval here knows how far that is off."
    ]


def _of_missing(question: Question, tables: SyntheticTables, noun: str) -> list[str]:
    """Returns the share that is left out, as it misses a value."""
    names = sorted(question.columns)
    shares = np.zeros(len(names) + 1)
    for frame in tables.frames:
        missing, rows = frame[names].isna().to_numpy(), standing_for(frame, tables, names)
        missing = np.column_stack([missing, missing.any(axis=1)])
        shares += rows @ missing / max(float(rows.sum()), 1.0) / len(tables.frames)
    some = [(name, share) for name, share in zip(names, shares, strict=False) if share > 0]
    if not some:
        return []
    which = ", ".join(name if len(some) == 1 else f"{name} {percent(share)}" for name, share in some)
    return [f"{percent(float(shares[-1]))} of the {noun} are left out, as a value is missing: {which}."]


def _of_left_out(question: Question, tables: SyntheticTables) -> list[str]:
    """Returns warnings on values that some table has too rarely."""
    notes = []
    for name, values in question.left_out.items():
        most = max(float(frame[name].isin(values).mean()) for frame in tables.frames)
        which = " or ".join(map(repr, values))
        notes.append(
            f"Rows whose {name} is {which} are left out, up to {percent(most, up=True)} of a table: some table has "
            "fewer than ten."
        )
    return notes


def _of_tables(tables: SyntheticTables, combined: Combined) -> list[str]:
    notes = []
    if tables.real_rows is None:
        notes.append(
            "These tables came without what was released beside them. Each is taken for its own draw of the posterior, "
            "of as many rows as the real table, and every pair of columns for measured; if not so, the intervals are "
            "wrong. Pass the folder of fedsyn sample RUN --tables 20 --out DIR, or the list of "
            "Synthesizer.sample(tables=20) as it is: merging or saving its tables loses these facts."
        )
    # A posterior's tables differ by more than `ratio` times this besides; small ones may differ less by chance.
    if np.mean((1 + 1 / combined.tables) * combined.between < combined.within) > 0.5 and tables.ratio >= 1:
        notes.append(
            "The tables differ less from each other than the rows of one: they look like samples of ONE model, and "
            "then these intervals are as narrow as those of rows without noise."
        )
    return notes
