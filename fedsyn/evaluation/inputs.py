"""A metric, and what it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError
from fedsyn.table.counting.workload import Workload
from fedsyn.version import installing

if TYPE_CHECKING:
    from fedsyn.table.schema import BinnedColumn, Schema

#: Package -> its project, and the extra that brings it.
PROJECTS = {"sklearn": ("scikit-learn", "evaluation"), "xgboost": ("XGBoost", "papers"), "ot": ("POT", "papers")}


@dataclass(frozen=True, eq=False)
class ColumnRange:
    """The numbers that the codes of a numeric column stand for.

    Attributes:
        values: (cardinality,) float64, ascending: the middle of each bin (of an integer column: of its integers);
            NaN at the end for the missing category, where there is one.
        lower, upper: the column's public bounds.
    """

    values: np.ndarray
    lower: float
    upper: float


def column_ranges(schema: Schema) -> dict[str, ColumnRange]:
    """Returns the range of each ordered column.

    Every other attribute is categorical, also where its categories are numbers.
    """
    from fedsyn.table.schema import BinnedColumn

    return {
        name: ColumnRange(bin_middles(column), *column.span)
        for name, column in schema.columns.items()
        if isinstance(column, BinnedColumn)
    }


def bin_middles(column: BinnedColumn) -> np.ndarray:
    """Returns the middle of each bin, (size,) float64.

    Whole columns get the middle of a bin's integers, the missing category NaN.
    """
    return np.append(column.middles, np.full(len(column.sides), np.nan))


def label_values(schema: Schema, label: str) -> np.ndarray | None:
    """The number that each code of the label stands for, for `rmse`.

    Returns:
        (cardinality,) float64: the middle of each bin of a numeric column (of an integer column: of its
        integers), or the categories where all of them are numbers; NaN for the missing category. None for
        other columns.
    """
    from fedsyn.table.schema import BinnedColumn

    column = schema.columns[label]
    if isinstance(column, BinnedColumn):
        return bin_middles(column)
    if any(isinstance(value, bool | str) for value in column.values):
        return None
    values = np.array([float(value) for value in column.values])
    return np.append(values, np.full(len(column.sides), np.nan))


class EvaluatedModel(Protocol):
    """The part of `fedsyn.inference.Model` that metrics use."""

    def project_many(self, cliques: Sequence[Clique]) -> Iterable[np.ndarray]: ...

    def probability_at(self, clique: Clique, cells: np.ndarray) -> np.ndarray: ...

    def log_likelihood(self, codes: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationInput:
    """Everything that metrics may look at.

    Codes are integer arrays with columns in the order of `domain`.

    Attributes:
        train: (n, d) codes of the pooled training table.
        domain: attributes and cardinalities.
        workload: weighted cliques.
        test: (m, d) codes of the held-out rows, or None.
        model: the estimated distribution, or None for a mechanism that has none.
        synthetic: (s, d) codes of the synthetic table, or None.
        partition: row indices (into `train`) of each client, an array or a range, or None.
        label: the attribute that classifiers predict, or None.
        label_values: (cardinality of the label,) number that each label code stands for, NaN for a missing
            value; None where the label is not numeric. See `label_values`.
        ranges: attribute -> range, for the numeric attributes; the others are categorical. See `column_ranges`.
        test_numbers: (m, len(ranges)) values of the held-out rows before binning, in the order of `ranges`, NaN where
            missing; None: only the codes are known. See `fedsyn.table.schema.encoding.Block`.
        cache: results that several metrics share; leave it alone.
    """

    train: np.ndarray
    domain: Domain
    workload: Workload
    test: np.ndarray | None = None
    model: EvaluatedModel | None = None
    synthetic: np.ndarray | None = None
    partition: Sequence[np.ndarray | range] | None = None
    label: str | None = None
    label_values: np.ndarray | None = None
    ranges: Mapping[str, ColumnRange] = field(default_factory=dict)
    test_numbers: np.ndarray | None = None
    cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, schema: Schema, **parts: Any) -> EvaluationInput:
        """Returns the input of a table of this schema.

        The schema has its domain, label and ranges; `parts`: the others.
        """
        label = schema.label
        values = None if label is None else label_values(schema, label)
        return cls(domain=schema.domain, label=label, label_values=values, ranges=column_ranges(schema), **parts)

    @property
    def has_test(self) -> bool:
        return self.test is not None and self.test.shape[0] > 0

    @property
    def label_axis(self) -> int:
        """The label's column among the codes."""
        assert self.label is not None
        return self.domain.axes((self.label,))[0]

    def test_positions(self) -> np.ndarray:
        """`positions` of the held-out rows, (m, d) float64.

        Rows stand at their own numbers where those are known.
        """
        assert self.test is not None
        result = self.positions(self.test)
        if self.test_numbers is not None:
            for numbers, (name, column) in zip(self.test_numbers.T, self.ranges.items(), strict=True):
                known, axis = np.isfinite(numbers), self.domain.axes((name,))[0]
                result[known, axis] = np.clip(numbers[known].astype(np.float64), column.lower, column.upper)
        return result

    def positions(self, codes: np.ndarray) -> np.ndarray:
        """(n, d) float64: where each value stands, for distances and ranges.

        The middle of the bin on a numeric attribute (-inf: missing), the code itself on a categorical one.
        """
        result = codes.astype(np.float64)
        for name, column in self.ranges.items():
            axis = self.domain.axes((name,))[0]
            result[:, axis] = np.where(np.isfinite(column.values), column.values, -np.inf)[codes[:, axis]]
        return result


@dataclass(frozen=True)
class Metric:
    """A number that says how good a run is.

    Attributes:
        name: its key in metrics.json.
        compute: the number.
        summary: one line for documentation and command line.
        lower_is_better: direction, for tables and plots.
        needs: the parts of an `EvaluationInput` that must be there.
        packages: import names of the optional packages that it uses.
    """

    name: str
    compute: Callable[[EvaluationInput], float]
    summary: str
    lower_is_better: bool = True
    needs: frozenset[str] = frozenset()
    packages: tuple[str, ...] = ()

    @property
    def better(self) -> str:
        """The better end, in a word."""
        return "lower" if self.lower_is_better else "higher"

    def require(
        self,
        has_test: bool,
        label: str | None,
        *,
        numeric_label: bool | None = None,
        has_model: bool | None = None,
        has_partition: bool | None = None,
        attributes: int | None = None,
        numeric_attributes: int | None = None,
    ) -> None:
        """Refuses, before a run starts, what cannot be computed at its end.

        Args:
            has_test: rows are held out.
            label: the label attribute, None where there is none.
            numeric_label: the label stands for numbers (`label_values` is not None); here and below, None: not known
                yet.
            has_model: the mechanism estimates a model.
            has_partition: the pooled rows are split into simulated clients.
            attributes: number of attributes.
            numeric_attributes: number of those that are numeric, which is the size of `EvaluationInput.ranges`.

        Raises:
            ConfigError: something that the metric needs is missing, a package included.
        """
        missing = {
            "test": None if has_test else "needs held-out rows: set data.test_fraction above 0",
            "label": None if label is not None else "needs a label: set data.label",
            "label_values": "needs a numeric label" if numeric_label is False else None,
            "model": "needs a mechanism that estimates a model" if has_model is False else None,
            "partition": "needs a simulation, which splits one table into clients" if has_partition is False else None,
            "two_attributes": _too_few("attributes", attributes, 2),
            "three_attributes": _too_few("attributes", attributes, 3),
            "two_numeric": _too_few("numeric attributes", numeric_attributes, 2),
        }
        for need in sorted(self.needs):
            if missing.get(need) is not None:
                raise ConfigError(f"evaluation: '{self.name}' {missing[need]}")
        for package in self.packages:
            if find_spec(package) is None:
                project, extra = PROJECTS[package]
                raise ConfigError(
                    f"evaluation: '{self.name}' needs {project}, which is not installed: {installing(extra)}"
                )


def _too_few(what: str, number: int | None, needed: int) -> str | None:
    return f"needs at least {needed} {what}: the table has {number}" if number is not None and number < needed else None


def sample_rows(codes: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Draws different rows, in their order.

    All of them where the table has no more.
    """
    if codes.shape[0] <= rows:
        return codes
    return codes[np.sort(rng.choice(codes.shape[0], rows, replace=False))]
