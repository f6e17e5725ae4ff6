"""Coefficients of named regressions, real beside synthetic.

As synthpop's `compare` shows them: both estimates, their 95% intervals, the overlap of these (Karr, Kohnen, Oganian,
Reiter & Sanil 2006, "A Framework for Evaluating the Utility of Data Altered to Protect Confidentiality", section 3) and
the difference in standard errors of the real one. The intervals are those of one table taken for real rows:
what somebody would report who did not know. `fedsyn.analyse` knows of the noise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fedsyn.errors import ConfigError, DataError, InputError
from fedsyn.evaluation.analysis.estimators import Logit
from fedsyn.evaluation.analysis.formulas import Question, columns_in, question_of
from fedsyn.evaluation.analysis.tables import SyntheticTables
from fedsyn.evaluation.real.reading import Notation
from fedsyn.evaluation.record import percent, sentence
from fedsyn.evaluation.verdict import CHANCE, LEAST_LINK, LOST, Judged, judged
from fedsyn.table.schema import BinnedColumn
from fedsyn.table.schema.binned import NUMBERS

if TYPE_CHECKING:
    import pandas as pd

#: Columns beside the label in the regression of a table for which nobody named one.
STRONGEST = 3
# Linked columns that are tried for it.
_TRIED = 8
#: Rows of either table, evenly spaced, that it is of. So many tell a coefficient from its half, of three, if it is a
#: twentieth of a standard deviation: half of the weakest link (the root of n is 2.8 times `_beyond(3)` over it).
_LABEL_ROWS = 20_000
_DAY = 86_400e6  # of moments and times of day, in microseconds
# A number as people write it; a code begins with a zero.
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_TWO_SIDED = float(ndtri(0.975))
# Standard deviation of the logistic distribution, the unit of the scale that log odds are on.
_LOGISTIC = math.pi / math.sqrt(3)


@dataclass(frozen=True)
class Coefficient:
    """One coefficient of a regression in both tables.

    Attributes:
        name: of the term.
        real, synthetic: estimates.
        real_error, synthetic_error: robust standard errors.
        scale: what makes of a coefficient a standardised one: the term's standard deviation over the outcome's.
        wider: the synthetic interval's width over the real one's, were both tables of one size.
    """

    name: str
    real: float
    synthetic: float
    real_error: float
    synthetic_error: float
    scale: float
    wider: float

    def interval(self, real: bool) -> tuple[float, float]:
        """Returns the 95% interval of one table."""
        middle, error = (self.real, self.real_error) if real else (self.synthetic, self.synthetic_error)
        return middle - _TWO_SIDED * error, middle + _TWO_SIDED * error

    def both(self) -> tuple[tuple[float, tuple[float, float]], ...]:
        """Returns the real and the synthetic estimate, each with its interval."""
        return (self.real, self.interval(True)), (self.synthetic, self.interval(False))

    @property
    def overlap(self) -> float:
        """Mean share that the two intervals have in common.

        1 is the same interval; below 0 they lie apart.
        """
        (low, high), (low_, high_) = self.interval(True), self.interval(False)
        common = min(high, high_) - max(low, low_)
        return 0.5 * (common / (high - low) + common / (high_ - low_))

    @property
    def difference(self) -> float:
        """Synthetic minus real estimate, in standard errors of the real one."""
        return (self.synthetic - self.real) / self.real_error

    def moved(self, among: int) -> bool:
        """Returns whether the tables differ beyond chance.

        One of 20 regressions of `among` terms has a false alarm.
        """
        error = math.hypot(self.real_error, self.synthetic_error)
        return abs(self.synthetic - self.real) > _beyond(among) * error

    def told(self, among: int) -> bool:
        """Returns whether fresh rows would tell a coefficient from its half."""
        return 0.5 * abs(self.real) > _beyond(among) * math.sqrt(2.0) * self.real_error

    def losses(self, among: int) -> list[tuple[str, float, str]]:
        """Returns losses as `verdict.judged` reads them.

        They are empty where real rows leave the coefficient open.

        A difference beyond chance counts as the share of the larger coefficient that the smaller one is, if real rows
        show the coefficient or the synthetic one is no weak link. An interval counts that is too wide to tell what the
        real one tells.
        """
        told = self.told(among)
        found = [("link", 0.0, "")] if told else []
        most = max(abs(self.real), abs(self.synthetic))
        shown = abs(self.real) > _beyond(among) * self.real_error or most * self.scale >= LEAST_LINK
        if self.moved(among) and shown:
            gone = min(1.0, 1.0 - self.real * self.synthetic / most**2)
            found.append(
                ("link", gone, f"the coefficient of {self.name} went from {self.real:.3g} to {self.synthetic:.3g}")
            )
        if told and not replace(self, real_error=self.wider * self.real_error).told(among):
            words = f"the interval of {self.name} is {self.wider:.1f} times as wide"
            found.append(("spread", math.log(self.wider), words))
        return found


@dataclass(frozen=True)
class RegressionScore:
    """A regression on real rows and on synthetic ones.

    Attributes:
        formula: as it was named.
        about: what is modelled, in words.
        named: whether somebody asked for it; otherwise it is the label's.
        coefficients: all but the intercept.
        failed: why the synthetic table has no such coefficients; empty where it has.
    """

    formula: str
    about: str
    named: bool
    coefficients: tuple[Coefficient, ...] = ()
    failed: str = ""

    def judged(self) -> Judged | None:
        """Returns what became of the regression, by its worst coefficient.

        Returns None where real rows tell no coefficient from a half of it, and none has moved.
        """
        if self.failed:
            return Judged(self.formula, 1.0 / LOST["link"], self.failed)
        among = len(self.coefficients)
        losses = [loss for one in self.coefficients for loss in one.losses(among)]
        return judged(self.formula, losses) if losses else None

    def rows(self) -> list[tuple[str, ...]]:
        """Returns each term with both estimates, intervals and their overlap."""
        return [
            (
                one.name,
                *(_with_interval(*both) for both in one.both()),
                percent(one.overlap),
                f"{one.difference:+.1f}",
            )
            for one in self.coefficients
        ]

    def words(self) -> str:
        """Returns a clause on the coefficients."""
        found, name = self.judged(), f"the regression {self.formula}"
        if self.failed:
            return f"{name} cannot be estimated from the table. {sentence(self.failed)}".removesuffix(".")
        if found is None:
            return f"{name} has too few real rows to be judged"
        overlaps = [one.overlap for one in self.coefficients]
        apart = sum(overlap <= 0 for overlap in overlaps)
        text = f"{apart} of {len(overlaps)} intervals lie apart"
        text = text if apart else f"its intervals overlap by {percent(float(np.mean(overlaps)))}"
        return f"{name} {found.became} ({found.why or text})"


def regressions(
    named: Sequence[str],
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    label: str | None,
    strongest: Sequence[str],
    notations: Mapping[str, Notation],
) -> tuple[RegressionScore, ...] | str:
    """Estimates regressions in both tables.

    They are those that somebody named, else that of the label. Returns a text where nobody named one and the label has
    none.

    Args:
        named: formulas such as `sbp ~ age + arm`, as `fedsyn.analyse` reads them.
        real, synthetic: tables as they are written. Rows with a missing value are left out.
        label: column to predict.
        strongest: columns that are linked to it, the strongest first.
        notations: of the columns.

    Raises:
        ConfigError: a formula cannot be read, names an unknown column, or needs a package that is missing.
        DataError: the real rows have no such estimates.
    """
    if named:
        tables = _Tables(real, synthetic, notations)
        return tuple(_score(formula, _alone(formula, tables), tables, named=True) for formula in named)
    if label is None:
        return "needs a label, or a regression that you name: OUTCOME ~ COLUMN + COLUMN"
    real, synthetic = (table.iloc[:: -(-len(table) // _LABEL_ROWS)] for table in (real, synthetic))
    tables = _Tables(real, synthetic, notations)
    chosen, why, best = list[str](), f"no column is linked to {label}", None
    for name in strongest[:_TRIED]:
        try:
            formula = _default(label, tables, [*chosen, name])
            best = formula, _alone(formula, tables)
        except InputError as error:  # such as of a column that says the same as one before it
            why = str(error)
            continue
        chosen.append(name)
        if len(chosen) == STRONGEST:
            break
    return why if best is None else (_score(*best, tables, named=False),)


class _Tables:
    """Real and synthetic rows.

    A column is read once, when a formula names it. It has numbers or words, as in real rows.
    """

    def __init__(self, real: pd.DataFrame, synthetic: pd.DataFrame, notations: Mapping[str, Notation]) -> None:
        self.raw, self.notations = (real, synthetic), notations
        self._read: dict[str, list[npt.NDArray[Any]]] = {}

    def of(self, formula: str) -> list[pd.DataFrame]:
        """Returns both tables with the formula's columns read."""
        names = columns_in(formula, list(self.raw[0].columns))[0]
        for name in names:
            if name not in self._read:
                self._read[name] = self._column(name)
        return [table.assign(**{n: self._read[n][at] for n in names}) for at, table in enumerate(self.raw)]

    def _column(self, name: str) -> list[npt.NDArray[Any]]:
        notation = self.notations[name]
        tables = [notation.cells(table[name]) for table in self.raw]
        words = {word for word, rows in tables[0].counts.items() if rows}
        numbers = isinstance(notation.column, BinnedColumn) or all(map(_NUMBER.fullmatch, words))
        if not numbers:
            return [np.array([*cells.words, None], object)[cells.at] for cells in tables]
        # Dates are days since the first real one: microseconds since 1970 would all but repeat the intercept.
        plain = not isinstance(notation.column, BinnedColumn) or notation.column.scale[0] == NUMBERS
        start = 0.0 if plain else float(tables[0].known.min(initial=np.inf))
        values = []
        for cells in tables:
            known = [float(word) if _NUMBER.fullmatch(word) else np.nan for word in cells.words]
            found = np.where(np.isnan(cells.numbers), np.array([*known, np.nan])[cells.at], cells.numbers)
            values.append(found if plain else (found - start) / _DAY)
        return values


def _alone(formula: str, tables: _Tables) -> Question:
    """Returns the estimand of a formula, which the real rows have."""
    if "~" not in formula:
        raise ConfigError(f"regression '{formula}' has no outcome; write it as OUTCOME ~ COLUMN + COLUMN")
    real, _ = tables.of(formula)
    try:
        alone = question_of(formula, SyntheticTables([real]))
        alone.estimates([real])
    except DataError as error:
        raise DataError(f"regression '{formula}' of the real rows: {str(error).split(' of 1: ')[-1]}") from None
    return alone


def _score(formula: str, alone: Question, tables: _Tables, named: bool) -> RegressionScore:
    coefficients: tuple[Coefficient, ...] = ()
    failed, both = "", tables.of(formula)
    try:
        coefficients = _coefficients(question_of(formula, SyntheticTables(both), alone.estimator), *both)
    except InputError as error:  # the real rows alone had none
        failed = str(error).split(" of 2: ")[-1]
    return RegressionScore(formula, alone.about, named, coefficients, failed)


def _coefficients(question: Question, real: pd.DataFrame, synthetic: pd.DataFrame) -> tuple[Coefficient, ...]:
    estimates, variances = question.estimates([real, synthetic])
    errors = np.sqrt(variances)
    (y, X, _), (other, _, _) = question.matrices(real), question.matrices(synthetic)
    spread = _LOGISTIC if isinstance(question.estimator, Logit) else float(y.std())
    wider = errors[1] / errors[0] * math.sqrt(len(other) / len(y))
    return tuple(
        Coefficient(
            name=term.name,
            real=float(estimates[0, at]),
            synthetic=float(estimates[1, at]),
            real_error=float(errors[0, at]),
            synthetic_error=float(errors[1, at]),
            scale=float(X[:, at].std()) / spread,
            wider=float(wider[at]),
        )
        for at, term in enumerate(question.terms)
        if term.columns  # all but the intercept
    )


def _default(label: str, tables: _Tables, others: Sequence[str]) -> str:
    """Returns the regression of a label on other columns.

    A label of several words is its most frequent word, and the rest.
    """
    import pandas as pd

    outcome = _quoted(label)
    values = tables.of(outcome)[0][label]
    if not pd.api.types.is_numeric_dtype(values) and values.nunique() > 2:
        outcome = f"({outcome} == {str(values.mode()[0])!r})"
    return f"{outcome} ~ {' + '.join(map(_quoted, others))}"


def _with_interval(estimate: float, interval: tuple[float, float]) -> str:
    return f"{estimate:.3g} ({interval[0]:.3g} to {interval[1]:.3g})"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


def _beyond(among: int) -> float:
    """Returns standard errors that chance stays within.

    In 19 of 20 regressions it moves none of the `among` coefficients by more.
    """
    return float(-ndtri(0.5 * CHANCE / among))
