"""Formulas: `readmitted ~ age + ward`, or one column's mean.

A column of categories has proportions. Read by formulaic, names first.
"""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.evaluation.analysis.estimators import NEEDED, Estimator, Linear, Logit, Means, Quantile, estimator_of
from fedsyn.evaluation.analysis.tables import WEIGHT, SyntheticTables
from fedsyn.output import first_of, watched

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

_ONE = re.compile(
    r"\s*(?:(mean|proportion|median|quantile)\s*\(\s*(.+?)(?:(?<=\S)\s*,\s*([\d.]+))?\s*\)|([^~]+?))\s*", re.DOTALL
)
_NONE_LEFT = "every row has a missing value in one of the formula's columns"
# Fewer rows of a value say nothing of it, and the share of a table's rows that may be left out for it.
_FEW, _LEFT_OUT = 10, 0.1
# More proportions than that nobody reads.
_MOST_VALUES = 100
# Names that `_readable` gives to columns.
_OWN = re.compile(r"_column\d+_")
# Words of Python in a formula.
_PYTHON = frozenset({"in", "True", "False", "not"})
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
# A comparison's yes and no are categories.
_AS_CATEGORY = ".astype(object)"
_OF_SUMS = ("+", "-", "(", ")", "{", "}")
_ARITHMETIC = ("+", "-", "*", "/", "**")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "in")


@dataclass(frozen=True)
class Term:
    """One row of a result.

    Attributes:
        name: as it is shown.
        columns: of the table, that its estimate depends on beyond the outcome's.
        parts: of a sum that is estimated by least squares, its columns one by one; empty: they count together.
    """

    name: str
    columns: frozenset[str]
    parts: Sequence[frozenset[str]] = ()


class Question:
    """An estimand, the same in every table.

    Attributes:
        terms: k of them.
        outcome: columns of the outcome; empty for one column by itself.
        parts: of the outcome, of which each is estimated as if alone: of least squares of a sum, its columns.
        about: what is modelled, in words.
        estimator: by which.
        left_out: columns of text -> values whose rows are left out, as some table has too few of them.
    """

    terms: tuple[Term, ...]
    outcome: frozenset[str]
    parts: Sequence[frozenset[str]]
    about: str
    estimator: Estimator
    left_out: Mapping[str, Sequence[str]] = MappingProxyType({})

    @property
    def averages(self) -> bool:
        """True where it averages numbers.

        Then it matters where they lie inside bins.
        """
        return True

    @property
    def columns(self) -> frozenset[str]:
        """All columns that it looks at."""
        return self.outcome.union(*(term.columns for term in self.terms))

    def matrices(self, frame: pd.DataFrame) -> tuple[Floats, Floats, Floats | None]:
        """Returns one table's outcome (n,), terms (n, k) and weights (n,).

        There are none where each row stands for itself. Rows with a missing value are left out.
        """
        raise NotImplementedError

    def estimates(self, frames: Sequence[pd.DataFrame]) -> tuple[Floats, Floats]:
        """(m, k) estimates and variances, table by table."""
        names, estimates = [term.name for term in self.terms], []
        for number, frame in enumerate(watched(frames, "estimating"), 1):
            with _in_table(number, len(frames)):
                y, X, weights = self.matrices(frame)
                if self.outcome:
                    _require_rank(X, names)
                estimates.append(self.estimator.estimate(y, X, names, weights))
        return np.stack([q for q, _ in estimates]), np.stack([v for _, v in estimates])


class OneColumn(Question):
    """A numeric column's mean or quantile, or each value's proportion in another."""

    def __init__(self, column: str, tables: SyntheticTables, proportion: bool, share: float | None = None) -> None:
        import pandas as pd

        self.column, self.outcome = column, frozenset[str]()
        self.parts = [self.outcome]
        self.estimator, self.values = Means() if share is None else Quantile(share), None
        is_number = _is_numeric(tables.frames[0][column])
        if proportion or not is_number:
            parts = [pd.Series(frame[column].dropna().unique()) for frame in tables.frames]
            self.values = sorted(pd.concat(parts).unique().tolist(), key=str)
            if len(self.values) > _MOST_VALUES:
                raise ConfigError(f"'{column}' has {len(self.values):,} values, too many for proportions; bin it first")
            self.about = f"proportions of {column}"
            self.terms = tuple(Term(f"{column} = {value}", frozenset({column})) for value in self.values)
        else:
            self.about = f"mean of {column}" if share is None else f"quantile {share:g} of {column}"
            self.terms = (Term(column, frozenset({column})),)

    @property
    def averages(self) -> bool:
        return self.values is None and isinstance(self.estimator, Means)

    def matrices(self, frame: pd.DataFrame) -> tuple[Floats, Floats, Floats | None]:
        entries = frame[self.column].dropna()
        weights = frame[WEIGHT][entries.index].to_numpy(np.float64) if WEIGHT in frame else None
        if len(entries) < 2:
            raise DataError(f"'{self.column}' has fewer than two values that are not missing")
        if self.values is None:
            values = entries.to_numpy(np.float64)
            return values, values[:, None], weights
        marks = np.stack([(entries == value).to_numpy(np.float64) for value in self.values], axis=1)
        return np.zeros(len(entries)), marks, weights


class Regression(Question):
    """A formula with an outcome.

    Terms and levels are those of all tables together, so every table has the same.
    """

    def __init__(self, formula: str, tables: SyntheticTables, model: str | Estimator | None) -> None:
        import pandas as pd

        formulaic = _formulaic()
        frames = tables.frames
        # Every name in the formula must be a column, or known to the parser.
        text, self._names = _readable(formula, tables.columns)
        words = set(_words(text))
        for word in words - self._names.keys() - formulaic.transforms.TRANSFORMS.keys() - _PYTHON:
            raise ConfigError(_unknown(word, list(self._names.values())))  # before anything is evaluated
        self._used = [name for name in self._names if name in words]
        _require_few_levels([self._names[name] for name in self._used], frames)
        # Rows with rare values are left out, but not for columns that the formula compares with values.
        compared = {self._names[name] for name in self._used if re.search(rf"\b{name}\b\s*(?:[=!<>]|in\b)", text)}
        self.left_out = _rare([self._names[name] for name in self._used], frames, compared)
        whole = []
        for number, frame in enumerate(frames, 1):
            with _in_table(number, len(frames)):
                whole.append(self._complete(frame))
        try:
            parser = formulaic.parser.DefaultFormulaParser(feature_flags={"TWOSIDED"})
            read = formulaic.Formula(_braced(_subtracted(text)), _parser=parser)
            # no value is missing, and `matrices` says what a function makes of some; columns in patsy's order
            spec = formulaic.ModelSpec.from_spec(
                read, na_action="ignore", output="numpy", cluster_by="numerical_factors"
            )
            built = self._built(spec, pd.concat(whole, ignore_index=True))
        except Exception as error:  # whatever the parser and the functions in a formula raise
            raise ConfigError(f"formula '{formula}': {self._shown(_first_line(error))}") from None
        self._spec = built.model_spec
        # The outcome is numeric or has two values, and the estimator has to suit it.
        left, right = self._spec.lhs, self._spec.rhs
        outcomes = left.column_names
        take_second = len(outcomes) == 2 and len(left.factor_contrasts) == len(left.terms) == 1
        if len(outcomes) != 1 and not take_second:
            raise ConfigError(
                f"formula '{formula}': the outcome has {len(outcomes)} values, and must be numeric or have two; "
                "for one of them: (column == 'value') ~ ..."
            )
        name = self._shown(outcomes[-1])
        self._levels = (0.0, 1.0) if take_second else _two(np.asarray(built.lhs))
        self.estimator = estimator_of(model) if model is not None else (Logit() if self._levels else Linear())
        if isinstance(self.estimator, Logit) and self._levels is None:
            raise ConfigError(
                f"model logit: '{name}' has more than two values; choose ols, or one value: ({name} == 1)"
            )
        value = f" = {self._levels[1]:g}" if self._levels and not take_second else ""
        self.about = f"{self.estimator.title} of {name}{value if isinstance(self.estimator, Logit) else ''}"
        # Terms, none of which may hold the outcome or be constant.
        self.outcome, self.parts = self._outcome(text.partition("~")[0])
        if both := self.outcome & self._columns(" + ".join(map(str, right.term_slices))):
            raise ConfigError(f"formula '{formula}': {first_of(sorted(both), 20)} is on both sides")
        if empty := [term for term, where in right.term_slices.items() if where.start == where.stop]:
            raise DataError(f"'{self._shown(str(empty[0]))}' has one value in all tables: leave it out")
        self.terms = tuple(
            Term(self._shown(column), columns, self._parts(str(term), columns))
            for term, where in right.term_slices.items()
            for columns in [self._columns(str(term))]
            for column in right.column_names[where]
        )

    def _outcome(self, text: str) -> tuple[frozenset[str], list[frozenset[str]]]:
        """Returns the outcome's columns, and its parts.

        Each part is estimated as if alone, as least squares do with the columns of a sum.
        """
        columns = self._columns(text)
        return columns, self._parts(text, columns) or [columns]

    def _parts(self, text: str, columns: frozenset[str]) -> list[frozenset[str]]:
        """Returns the columns of a sum under least squares, one by one.

        There are none of anything else.
        """
        is_sum = isinstance(self.estimator, Linear) and _is_sum(text, self._names)
        return [frozenset({name}) for name in sorted(columns)] if is_sum else []

    def _columns(self, text: str) -> frozenset[str]:
        """Returns the columns that a part of the formula reads.

        It does not matter how they are written. Names are read here: formulaic does not count one with an attribute
        (`ward.isin(...)`) as a variable.
        """
        return frozenset(self._names[word] for word in _words(text.strip()) if word in self._names)

    def _shown(self, text: str) -> str:
        """Returns a text with the names of columns as people know them."""
        return re.sub(_OWN, lambda match: self._names.get(match[0], match[0]), text.replace(_AS_CATEGORY, ""))

    def _complete(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns the rows that miss no value of these columns.

        A comparison with a missing value would be no, not missing.
        """
        import pandas as pd

        weights = [WEIGHT] if WEIGHT in frame else []
        rows = frame[[*(self._names[name] for name in self._used), *weights]].dropna()
        for name, values in self.left_out.items():
            rows = rows[~rows[name].isin(values)]
        if not len(rows):
            raise DataError(_NONE_LEFT)
        columns = {name: _plain(rows[self._names[name]]) for name in self._used} | {w: _plain(rows[w]) for w in weights}
        return pd.DataFrame(columns, index=range(len(rows)))

    def _built(self, spec: Any, frame: pd.DataFrame) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            return spec.get_model_matrix(frame, context={})

    def matrices(self, frame: pd.DataFrame) -> tuple[Floats, Floats, Floats | None]:
        try:
            rows = self._complete(frame)
            built = self._built(self._spec, rows)
        except DataError:
            raise
        except Exception as error:  # as above
            raise DataError(self._shown(_first_line(error))) from None
        y, right = np.asarray(built.lhs, np.float64)[:, -1], np.asarray(built.rhs, np.float64)
        for name, values in (("the outcome", y), *zip((term.name for term in self.terms), right.T, strict=True)):
            if not np.isfinite(values).all():
                raise DataError(f"{name} is infinite or no number in some rows")
        if isinstance(self.estimator, Logit) and self._levels is not None:
            y = (y == self._levels[1]).astype(np.float64)
        if y.min() == y.max():
            raise DataError("the outcome has one value")
        return y, right, rows[WEIGHT].to_numpy(np.float64) if WEIGHT in rows else None


def _two(outcome: npt.NDArray[Any]) -> tuple[float, float] | None:
    """Returns the two values of a numeric outcome.

    None where it has more than two over all tables.
    """
    values = np.unique(outcome.astype(np.float64))
    if len(values) == 1:
        raise DataError("the outcome has one value in all tables")
    return (float(values[0]), float(values[1])) if len(values) == 2 else None


def question_of(formula: str, tables: SyntheticTables, model: str | Estimator | None = None) -> Question:
    """Returns the estimand of a formula over these tables.

    Raises:
        ConfigError: a formula that cannot be read, an unknown column, a model that does not fit the outcome.
    """
    if "~" in formula:
        return Regression(formula, tables, model)
    columns = tables.columns
    what, name, share = _one(formula)
    if model is not None:
        raise ConfigError(f"model: '{formula}' has no outcome; write OUTCOME ~ {name}")
    if name not in columns:
        raise ConfigError(_unknown(name, columns))
    if what in ("mean", "median", "quantile") and not _is_numeric(tables.frames[0][name]):
        raise ConfigError(f"'{name}' has no {what}: its values are not numbers; write proportion({name})")
    return OneColumn(name, tables, what == "proportion", share)


def _one(formula: str) -> tuple[str | None, str, float | None]:
    """Reads a formula without an outcome.

    Returns what is asked of the column, its name, and the share of a quantile."""
    match = _ONE.fullmatch(formula)
    if match is None:
        return None, formula, None
    what, share = match[1], match[3]
    if (what == "quantile") != (share is not None):
        raise ConfigError(f"formula '{formula}': a quantile needs a share, and nothing else does: quantile(age, 0.9)")
    try:
        at = 0.5 if what == "median" else float(share) if share else None
    except ValueError:
        raise ConfigError(f"formula '{formula}': the share '{share}' is not a number") from None
    return what, (match[2] or match[4]).strip("'\""), at


def columns_in(formula: str, columns: Sequence[str]) -> tuple[list[str], bool]:
    """Returns the columns of a formula, and whether it averages them.

    It does not where proportions are asked for.
    """
    if "~" in formula:
        text, names = _readable(formula, columns)
        words = set(_words(text))
        return [column for name, column in names.items() if name in words], True
    what, name, _ = _one(formula)
    return [name] if name in columns else [], what != "proportion"


# Names -------------------------------------------------------------------------------------------------------------


def _readable(formula: str, columns: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Returns the formula in names that Python can read.

    The second result has the column of each name.

    So `hours-per-week` does not become a difference; Q('hours-per-week') and `hours-per-week` mean the same.
    """
    names, awkward = {}, {}
    for i, column in enumerate(columns):
        name = column if column.isidentifier() and not keyword.iskeyword(column) else f"_column{i}_"
        names[name] = column
        if name != column:
            awkward[column] = name
    text = re.sub(r"\bQ\(\s*(['\"])(.*?)\1\s*\)|`(.*?)`", r"\2\3", formula.replace("\n", " "))
    if awkward:
        pattern = "|".join(map(re.escape, sorted(awkward, key=len, reverse=True)))
        text = re.sub(rf"(?<![\w\"'])({pattern})(?![\w\"'])", lambda match: awkward[match[1]], text)
    return text, names


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        raise ConfigError(f"formula '{text}' cannot be read: brackets or quotes do not match") from None
    if any(re.match(r"\w*f\w*['\"]", token.string, re.IGNORECASE) for token in tokens):
        raise ConfigError(f"formula '{text}' has a text that Python would evaluate: leave out the f before its quote")
    return tokens


def _words(text: str) -> Iterator[str]:
    """The names in a formula, without attributes and the names of arguments."""
    tokens = _tokens(text)
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        if (
            token.type == tokenize.NAME
            and not (before and before.string == ".")
            and not (after and after.string == "=")
        ):
            yield token.string


def _is_sum(text: str, names: Mapping[str, str]) -> bool:
    """Returns whether a formula's side is a sum or difference of columns."""
    words = [token.string for token in _tokens(text.strip()) if token.string.strip()]
    return all(word in names or word in _OF_SUMS for word in words)


def _subtracted(text: str) -> str:
    """Puts arithmetic of the outcome in braces.

    To R after - before is a difference. formulaic would take it for a list of terms, and leave the second one out.
    """
    left, _, right = text.partition("~")
    if any(token.type == tokenize.OP and token.string in _ARITHMETIC for token in _tokens(left.strip())):
        left = "{" + left.strip().removeprefix("{").removesuffix("}") + "} "
    return f"{left}~{right}"


def _braced(text: str) -> str:
    """Returns the formula with comparisons in braces, not brackets.

    formulaic marks so what is Python's.
    """
    letters, opened = list(text), list[tuple[int, bool]]()
    compared = set[int]()
    before = ""
    for token in _tokens(text):
        at, name = token.start[1], token.string
        if name in _OPENING:
            opened.append((at, name == "(" and not before.isidentifier() and all(free for _, free in opened)))
        elif name in _CLOSING and opened:
            start, free = opened.pop()
            if free and start in compared:
                letters[start], letters[at] = "{(", f"){_AS_CATEGORY}}}"
        elif name in _COMPARISONS and opened:
            compared.add(opened[-1][0])
        before = name
    return "".join(letters)


def _require_few_levels(columns: Sequence[str], frames: Sequence[pd.DataFrame]) -> None:
    """Refuses text with too many values to be categories.

    Dates are an example.
    """
    for name in columns:
        if not _is_numeric(frames[0][name]) and (levels := frames[0][name].nunique()) > _MOST_VALUES:
            raise ConfigError(f"'{name}' has {levels:,} values that are not numbers, too many for categories; bin them")


def _rare(columns: Sequence[str], frames: Sequence[pd.DataFrame], compared: Collection[str]) -> dict[str, list[str]]:
    """Returns values of text that some table has too rarely.

    Such a value is in fewer than `_FEW` complete rows. Columns in `compared`, which the formula compares with values,
    keep all of theirs.

    Its coefficient could not be estimated in every table, as of `other`, which every draft adds to text and
    hardly any row holds. Without their rows another value may be rare, so it is looked again until none is. None are
    returned where they have more than `_LEFT_OUT` of a table's rows: somebody has to decide that.
    """
    rows = [frame[list(columns)].dropna() for frame in frames]
    fewest = [(1.0 - _LEFT_OUT) * len(table) for table in rows]
    out: dict[str, list[str]] = {}
    texts = [name for name in columns if name not in compared and not _is_numeric(frames[0][name])]
    while True:
        some = {}
        for name in texts:
            counts = [table[name].value_counts() for table in rows]
            some[name] = {v for each in counts for v in each.index if min(c.get(v, 0) for c in counts) < _FEW}
        if not any(some.values()):
            return out if all(len(table) >= least for table, least in zip(rows, fewest, strict=True)) else {}
        for name in filter(some.get, texts):
            out[name] = sorted([*out.get(name, []), *some[name]], key=str)
            rows = [table[~table[name].isin(some[name])] for table in rows]


def _unknown(word: str, columns: Sequence[str]) -> str:
    return f"'{word}' is not a column{nearest(word, columns)}; columns: {first_of(columns, 20)}"


# The rest ------------------------------------------------------------------------------------------------------------


@contextmanager
def _in_table(number: int, count: int) -> Iterator[None]:
    """Says which table lacks something."""
    try:
        yield
    except DataError as error:
        raise DataError(f"table {number} of {count}: {error}") from None


def _plain(column: pd.Series[Any]) -> npt.NDArray[Any]:
    """Returns a column as numpy's own numbers, or as objects.

    formulaic takes objects for categories.
    """
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
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
        names = first_of(empty or constant[1:], 3)
        raise DataError(f"no row tells anything of {names}: leave it out or merge values")
    scale = np.abs(X).max(axis=0)
    if np.linalg.matrix_rank((X / scale).T @ (X / scale), hermitian=True) < X.shape[1]:
        left = np.abs(np.diagonal(np.linalg.qr(X / scale, mode="r")))
        raise DataError(f"{names[int(left.argmin())]} is a combination of the terms before it: leave it out")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _formulaic() -> Any:
    try:
        import formulaic
        import formulaic.transforms
    except ImportError:
        raise ConfigError(NEEDED) from None
    return formulaic
