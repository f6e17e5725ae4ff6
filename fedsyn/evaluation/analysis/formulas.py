"""What is asked: `readmitted ~ age + ward`, or one column's mean or proportions. Read by patsy, names checked first."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.evaluation.analysis.estimators import NEEDED, Estimator, Linear, Logit, Means, estimator_of
from fedsyn.evaluation.analysis.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

_ONE = re.compile(r"\s*(?:(mean|proportion)\s*\(\s*(.+?)\s*\)|([^~]+?))\s*")
_NONE_LEFT = "every row has a missing value in one of the formula's columns"
# More proportions than that nobody reads.
_MOST_VALUES = 100
# Names that a formula may have beside columns: patsy's own and numpy's.
_KNOWN = frozenset(
    {"C", "I", "Q", "np", "Treatment", "Sum", "Poly", "bs", "cr", "cc", "center", "standardize", "scale"}
)


@dataclass(frozen=True)
class Term:
    """One row of a result.

    Attributes:
        name: as it is shown.
        columns: of the table, that its estimate depends on beyond the outcome's.
    """

    name: str
    columns: frozenset[str]


class Question:
    """What is estimated, the same in every table.

    Attributes:
        terms: k of them.
        outcome: columns of the outcome; empty for one column by itself.
        about: what is modelled, in words.
        estimator: by which.
    """

    terms: tuple[Term, ...]
    outcome: frozenset[str]
    about: str
    estimator: Estimator

    def matrices(self, frame: pd.DataFrame) -> tuple[Floats, Floats]:
        """(n,) outcome and (n, k) terms of one table; rows with a missing value are left out."""
        raise NotImplementedError

    def estimates(self, frames: Sequence[pd.DataFrame]) -> tuple[Floats, Floats]:
        """(m, k) estimates and variances, table by table."""
        names, found = [term.name for term in self.terms], []
        for number, frame in enumerate(frames, 1):
            with _in_table(number, len(frames)):
                y, X = self.matrices(frame)
                if not isinstance(self.estimator, Means):
                    _require_rank(X, names)
                found.append(self.estimator.estimate(y, X, names))
        return np.stack([q for q, _ in found]), np.stack([v for _, v in found])


class OneColumn(Question):
    """A numeric column's mean, or the proportion of each value of another one."""

    def __init__(self, column: str, tables: Tables, proportion: bool) -> None:
        import pandas as pd

        self.column, self.outcome = column, frozenset[str]()
        self.estimator, self.values = Means(), None
        is_number = _is_numeric(tables.frames[0][column])
        if proportion or not is_number:
            parts = [pd.Series(frame[column].dropna().unique()) for frame in tables.frames]
            self.values = sorted(pd.concat(parts).unique().tolist(), key=str)
            if len(self.values) > _MOST_VALUES:
                raise ConfigError(f"'{column}' has {len(self.values):,} values, too many for proportions; bin it first")
            self.about = f"proportions of {column}"
            self.terms = tuple(Term(f"{column} = {value}", frozenset({column})) for value in self.values)
        else:
            self.about, self.terms = f"mean of {column}", (Term(column, frozenset({column})),)

    def matrices(self, frame: pd.DataFrame) -> tuple[Floats, Floats]:
        given = frame[self.column].dropna()
        if len(given) < 2:
            raise DataError(f"'{self.column}' has fewer than two values that are not missing")
        if self.values is None:
            return np.zeros(len(given)), given.to_numpy(np.float64)[:, None]
        return np.zeros(len(given)), np.stack([(given == value).to_numpy(np.float64) for value in self.values], axis=1)


class Regression(Question):
    """A formula with an outcome; terms and levels are those of all tables together, so every table has the same."""

    def __init__(self, formula: str, tables: Tables, model: str | Estimator | None) -> None:
        patsy = _patsy()
        frames = tables.frames
        columns = list(frames[0].columns)
        quoted = _quoted(formula, columns)
        _require_names(quoted, columns)
        used = list(_columns_of(quoted, columns))
        _require_few_levels(used, frames)

        def parts() -> Iterator[dict[str, Any]]:
            for number, frame in enumerate(frames, 1):
                with _in_table(number, len(frames)):
                    yield _complete(frame, used)

        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                self._left, self._right = patsy.incr_dbuilders(quoted, parts, patsy.EvalEnvironment([{"np": np}]))
        except DataError:
            raise
        except Exception as error:  # whatever the functions in a formula raise
            raise ConfigError(f"formula '{formula}': {_first_line(error)}") from None
        self._used, self._patsy = used, patsy
        outcomes = self._left.column_names
        kinds = [factor.type for factor in self._left.factor_infos.values()]
        is_category = kinds == ["categorical"]
        self._take_second = is_category and len(outcomes) == 2
        if len(outcomes) != 1 and not self._take_second:
            raise ConfigError(
                f"formula '{formula}': the outcome has {len(outcomes)} values, and must be numeric or have two; "
                "for one of them: (column == 'value') ~ ..."
            )
        name = _shown(outcomes[-1])
        self.outcome = frozenset(_columns_of(" ".join(f.name() for t in self._left.terms for f in t.factors), columns))
        self._levels: tuple[float, float] | None = (0.0, 1.0) if self._take_second else self._two(frames)
        self.estimator = estimator_of(model) if model is not None else (Logit() if self._levels else Linear())
        if isinstance(self.estimator, Logit) and self._levels is None:
            raise ConfigError(
                f"model logit: '{name}' has more than two values; choose ols, or one value: ({name} == 1)"
            )
        self.about = f"{self.estimator.title} of {self._said(name)}"
        if both := self.outcome & frozenset(_columns_of(quoted.partition("~")[2], columns)):
            raise ConfigError(f"formula '{formula}': {_some(sorted(both))} is on both sides")
        for term, where in self._right.term_slices.items():
            if where.start == where.stop:
                raise DataError(f"'{_shown(term.name())}' has one value in all tables: leave it out")
        self.terms = tuple(
            Term(_shown(column), frozenset(_columns_of(" ".join(f.name() for f in term.factors), columns)))
            for term, where in self._right.term_slices.items()
            for column in self._right.column_names[where]
        )

    def _said(self, name: str) -> str:
        if not isinstance(self.estimator, Logit) or self._take_second:
            return name
        assert self._levels is not None
        return f"{name} = {self._levels[1]:g}"

    def _two(self, frames: Sequence[pd.DataFrame]) -> tuple[float, float] | None:
        """The two values of a numeric outcome over all tables, if it has only two."""
        found: set[float] = set()
        for frame in frames:
            found |= set(np.unique(self._matrix(self._left, frame)).tolist())
            if len(found) > 2:
                return None
        low, *high = sorted(found)
        if not high:
            raise DataError("the outcome has one value in all tables")
        return low, high[0]

    def _matrix(self, design: Any, frame: pd.DataFrame) -> Floats:
        return np.asarray(self._built([design], frame)[0], np.float64)

    def _built(self, designs: list[Any], frame: pd.DataFrame) -> list[Any]:
        data = _complete(frame, self._used)
        try:
            with np.errstate(divide="ignore", invalid="ignore"):  # `matrices` says what comes of it
                missing = self._patsy.NAAction(NA_types=[])  # no value is; what a function makes of some is an error
                built: list[Any] = self._patsy.build_design_matrices(designs, data, NA_action=missing)
        except Exception as error:  # as above
            raise DataError(_first_line(error)) from None
        return built

    def matrices(self, frame: pd.DataFrame) -> tuple[Floats, Floats]:
        left, right = (np.asarray(part, np.float64) for part in self._built([self._left, self._right], frame))
        y = left[:, -1]
        for name, values in (("the outcome", y), *zip((term.name for term in self.terms), right.T, strict=True)):
            if not np.isfinite(values).all():
                raise DataError(f"{name} is infinite or no number in some rows")
        if isinstance(self.estimator, Logit) and self._levels is not None:
            y = (y == self._levels[1]).astype(np.float64)
        if y.min() == y.max():
            raise DataError("the outcome has one value")
        return y, right


def question_of(formula: str, tables: Tables, model: str | Estimator | None = None) -> Question:
    """What a formula asks of these tables.

    Raises:
        ConfigError: a formula that cannot be read, an unknown column, a model that does not fit the outcome.
    """
    if "~" in formula:
        return Regression(formula, tables, model)
    columns = list(tables.frames[0].columns)
    found = _ONE.fullmatch(formula)
    name = (found[2] or found[3]).strip("'\"") if found else formula
    if model is not None:
        raise ConfigError(f"model: '{formula}' has no outcome; write OUTCOME ~ {name}")
    if name not in columns:
        raise ConfigError(_unknown(name, columns))
    if found is not None and found[1] == "mean" and not _is_numeric(tables.frames[0][name]):
        raise ConfigError(f"'{name}' has no mean: its values are not numbers; write proportion({name})")
    return OneColumn(name, tables, proportion=found is not None and found[1] == "proportion")


# Names -------------------------------------------------------------------------------------------------------------


def _quoted(formula: str, columns: Sequence[str]) -> str:
    """Put column names that are not Python names into Q(...), so that `hours-per-week` does not become a difference."""
    awkward = sorted(
        (name for name in columns if not name.isidentifier() or keyword.iskeyword(name)), key=len, reverse=True
    )
    if not awkward:
        return formula
    pattern = "|".join(map(re.escape, awkward))
    return re.sub(rf"(?<![\w\"'])({pattern})(?![\w\"'])", lambda found: f"Q({found[1]!r})", formula)


def _words(formula: str) -> Iterator[tuple[str, bool]]:
    """(word, whether it is a string) of what may be columns: names, but no calls, attributes or keywords; Q('name')."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(formula.replace("~", "+")).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        raise ConfigError(f"formula '{formula}' cannot be read: brackets or quotes do not match") from None
    for i, token in enumerate(tokens):
        after = tokens[i + 1].string if i + 1 < len(tokens) else ""
        if token.type == tokenize.STRING and [t.string for t in tokens[max(0, i - 2) : i]] == ["Q", "("]:
            yield token.string.strip("'\""), True
        elif token.type == tokenize.NAME and after not in ("(", "=") and not (i and tokens[i - 1].string == "."):
            yield token.string, False


def _columns_of(text: str, columns: Sequence[str]) -> Iterator[str]:
    """The columns that a formula or a part of one names, each once."""
    words = {word for word, _ in _words(text)}
    return (name for name in columns if name in words)


def _require_names(formula: str, columns: Sequence[str]) -> None:
    for word, is_text in _words(formula):
        if not is_text and word not in columns and word not in _KNOWN and word not in ("in", "True", "False", "not"):
            raise ConfigError(_unknown(word, columns))


def _require_few_levels(columns: Sequence[str], frames: Sequence[pd.DataFrame]) -> None:
    """Refuse text with too many distinct values to be categories, such as dates."""
    for name in columns:
        if not _is_numeric(frames[0][name]) and (found := frames[0][name].nunique()) > _MOST_VALUES:
            raise ConfigError(f"'{name}' has {found:,} values that are not numbers, too many for categories; bin them")


def _unknown(word: str, columns: Sequence[str]) -> str:
    return f"'{word}' is not a column{nearest(word, columns)}; columns: {_some(columns)}"


def _some(names: Sequence[str], most: int = 20) -> str:
    """Names for a message, not all of very many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _shown(name: str) -> str:
    """A term's name as people read it: without Q(...)."""
    return re.sub(r"Q\(['\"](.+?)['\"]\)", r"\1", name)


# The rest ------------------------------------------------------------------------------------------------------------


@contextmanager
def _in_table(number: int, count: int) -> Iterator[None]:
    """Says which table lacks something."""
    try:
        yield
    except DataError as error:
        raise DataError(f"table {number} of {count}: {error}") from None


def _complete(frame: pd.DataFrame, used: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """The rows that miss no value of these columns: a comparison with a missing value would be no, not missing."""
    rows = frame[list(used)].dropna()
    if not len(rows):
        raise DataError(_NONE_LEFT)
    return {name: _plain(rows[name]) for name in used}


def _plain(column: pd.Series[Any]) -> npt.NDArray[Any]:
    """A column as numpy's own numbers, booleans or objects, which is what patsy knows."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        return np.asarray(column)
    if _is_numeric(column):
        return np.asarray(column.to_numpy(np.float64, na_value=np.nan))
    return np.asarray(column.astype(object).where(column.notna(), None))


def _is_numeric(column: pd.Series[Any]) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column))


def _require_rank(X: Floats, names: Sequence[str]) -> None:
    """Refuses terms that say nothing, or that others say already."""
    if len(X) <= X.shape[1]:
        raise DataError(f"{len(X)} rows without missing values are too few for {X.shape[1]} terms")
    constant = [name for name, column in zip(names, X.T, strict=True) if column.min() == column.max()]
    empty = [name for name, column in zip(names, X.T, strict=True) if not column.any()]
    if empty or len(constant) > 1:
        names = _some(empty or constant[1:], 3)
        raise DataError(f"no row tells anything of {names}: leave it out or merge values")
    scale = np.abs(X).max(axis=0)
    if np.linalg.matrix_rank((X / scale).T @ (X / scale), hermitian=True) < X.shape[1]:
        raise DataError("a term is a combination of the others: leave one out")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].removeprefix("Error evaluating factor: ")


def _patsy() -> Any:
    try:
        import patsy
    except ImportError:
        raise ConfigError(NEEDED) from None
    return patsy
