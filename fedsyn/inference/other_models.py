"""Models without potentials: the rows that GUM leaves, and mixtures of products.

Both answer what `Model` answers where runs, metrics and reports ask. A generator of columns that are independent given
its noise is a mixture of products.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain, Floats
from fedsyn.errors import InputError, ProtocolError
from fedsyn.inference.model import Model, checked_cells, checked_codes, checked_total, packed_head, read_head
from fedsyn.randomness import RandomSource
from fedsyn.table.counting.marginals import count

_MIXTURE_FORMAT = "mixture 1"
_AT_ONCE = 1 << 22  # numbers of an intermediate array
_FEWEST_ROWS = 1 << 16  # drawn at once


class MixtureModel:
    """A mixture of products, `p(x) = Σ_m w_m Π_j p_mj(x_j)`.

    It is scaled to `total` records, and answers what `Model` answers where runs, metrics and reports ask, exactly: the
    density of a mixture is a sum.

    Args:
        domain: attributes of the table, without structural zeros.
        probabilities: (M, C) of each component, the attributes' values one after the other, C in all.
        weights: (M,) non-negative; None: all alike.
        total: records that the model stands for.

    Raises:
        ValueError: probabilities that do not fit the domain or do not sum to 1, or a total that is not positive.
    """

    def __init__(
        self, domain: Domain, probabilities: npt.ArrayLike, total: float, weights: npt.ArrayLike | None = None
    ) -> None:
        table = np.asarray(probabilities, dtype=np.float32)
        cells = sum(domain.shape)
        if table.ndim != 2 or table.shape[1] != cells or len(table) == 0 or len(domain) == 0:
            raise ValueError("a mixture needs one row of probabilities per component, over all values of a domain")
        if domain.zeros:
            raise ValueError("a mixture of products knows no structural zeros")
        if not np.isfinite(table).all() or (table < 0).any():
            raise ValueError("probabilities must be finite and not negative")
        self.total = checked_total(total)
        masses = np.ones(len(table)) if weights is None else np.asarray(weights, dtype=np.float64)
        if masses.shape != (len(table),) or not np.isfinite(masses).all() or (masses < 0).any() or not masses.sum() > 0:
            raise ValueError("a mixture needs one non-negative weight per component, and not all 0")
        self.domain = domain
        self.info = None
        whole = float(masses.sum())  # weights that were read back stay what they were to the last bit
        self.weights = masses.copy() if abs(whole - 1.0) < 1e-12 else masses / whole
        self.probabilities = table
        bounds = np.cumsum([0, *domain.shape])
        self._slices = [slice(a, b) for a, b in pairwise(bounds)]
        for array in (self.weights, self.probabilities):
            array.flags.writeable = False
        if any(abs(part.sum(axis=1) - 1.0).max() > 1e-4 for part in self._parts):
            raise ValueError("the probabilities of each attribute must sum to 1")

    def __repr__(self) -> str:
        return f"MixtureModel({len(self.domain)} attributes, {len(self.weights)} components, total={self.total:.6g})"

    @cached_property
    def _parts(self) -> list[Floats]:
        """Probabilities of each attribute in every component, (M, size).

        They are float64, and sum to 1 to a double's precision.
        """
        parts = [self.probabilities[:, columns].astype(np.float64) for columns in self._slices]
        return [part / np.maximum(part.sum(axis=1, keepdims=True), 1e-300) for part in parts]

    # ------------------------------------------------------------------ answers

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """One clique of all attributes: a mixture factorises into nothing smaller."""
        return (self.domain.attributes,)

    def project(self, clique: Sequence[str]) -> np.ndarray:
        """Returns the marginal over any clique, in counts.

        It is float64 of shape `domain.shape_of(clique)`, summing to `total`.
        """
        parts = [self._parts[axis] for axis in self.domain.axes(tuple(clique))]
        if not parts:
            return np.array(self.total)
        if len(parts) == 1:
            return np.asarray(self.total * (self.weights @ parts[0]))
        *first, last = parts
        left = math.prod(part.shape[1] for part in first)
        table = np.zeros((left, last.shape[1]))
        for some in self._blocks(left):
            product = self.weights[some, None]
            for part in first:
                product = (product[:, :, None] * part[some][:, None, :]).reshape(len(product), -1)
            table += product.T @ last[some]
        return self.total * table.reshape(self.domain.shape_of(tuple(clique)))

    def project_many(self, cliques: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Projects onto one clique after the other."""
        return map(self.project, cliques)

    def probability_at(self, clique: Sequence[str], cells: np.ndarray) -> Floats:
        """Returns the probability of each cell, (m,).

        `cells` is (m, |clique|), with columns in the clique's order.
        """
        cells = checked_cells(clique, cells)
        return np.exp(self._log(self.domain.axes(tuple(clique)), cells))

    def log_likelihood(self, codes: np.ndarray) -> Floats:
        """Returns the natural log of each row's probability, (n,)."""
        codes = checked_codes(self.domain, codes)
        return self._log(range(len(self.domain)), codes)

    def _log(self, axes: Sequence[int], cells: np.ndarray) -> Floats:
        with np.errstate(divide="ignore"):
            logs = [np.ascontiguousarray(np.log(self._parts[axis]).T) for axis in axes]
            weights = np.log(self.weights)
        out = np.empty(len(cells))
        step = max(1, _AT_ONCE // len(weights))
        for start in range(0, len(cells), step):
            some = cells[start : start + step]
            sums = np.tile(weights, (len(some), 1))
            for column, log in enumerate(logs):
                sums += log[some[:, column]]
            largest = sums.max(axis=1)
            shifted = np.where(np.isfinite(largest), largest, 0.0)
            with np.errstate(divide="ignore"):
                out[start : start + step] = shifted + np.log(np.exp(sums - shifted[:, None]).sum(axis=1))
        return out

    def sample(self, n: int, rng: RandomSource) -> np.ndarray:
        """Draws independent rows, (n, d).

        Each draws a component, then each attribute by itself. Only `rng.random` is called.
        """
        out = np.empty((n, len(self.domain)), np.min_scalar_type(max(self.domain.shape, default=1) - 1))
        ends = np.cumsum(self.weights)
        for start in range(0, n, _FEWEST_ROWS):
            rows = out[start : start + _FEWEST_ROWS]
            which = np.searchsorted(ends[:-1] / ends[-1], np.asarray(rng.random(len(rows))), side="right")
            for axis, cumulated in enumerate(self._cumulated):
                uniform = np.asarray(rng.random(len(rows)))
                rows[:, axis] = (cumulated[which] <= uniform[:, None]).sum(axis=1)
        return out

    @cached_property
    def _cumulated(self) -> list[Floats]:
        """Cumulated probabilities of each attribute's values but the last.

        They are (M, size - 1).
        """
        return [np.cumsum(part, axis=1)[:, :-1] for part in self._parts]

    def _blocks(self, width: int) -> Iterator[slice]:
        step = max(1, _AT_ONCE // max(1, width))
        return (slice(start, start + step) for start in range(0, len(self.weights), step))

    # ------------------------------------------------------------------ other forms

    def conditioned(self, masks: Mapping[str, npt.ArrayLike]) -> MixtureModel:
        """Returns the distribution for allowed values of some attributes.

        Args:
            masks: attribute -> (size,) boolean, True for the values allowed.

        Raises:
            ValueError: no such attribute, or a mask of another shape.
            InputError: the condition has probability 0.
        """
        return self.weighted({name: allowed.astype(float) for name, allowed in self.domain.conditions(masks).items()})

    def weighted(self, factors: Mapping[str, Floats]) -> MixtureModel:
        """Returns the distribution with values weighted by factors.

        A factor, at most 1, says how much of its value's probability is left.
        """
        weights, probabilities = self.weights.copy(), self.probabilities.copy()
        for name, factor in factors.items():
            axis = self.domain.axes((name,))[0]
            products = self._parts[axis] * factor
            share = products.sum(axis=1)
            weights *= share
            # A component that the condition leaves nothing of keeps its probabilities, and has no weight.
            left = products / np.where(share > 0, share, 1.0)[:, None]
            probabilities[:, self._slices[axis]] = np.where(share[:, None] > 0, left, self._parts[axis])
        if not weights.sum() > 0:
            raise InputError(f"no row of this model meets the condition on {', '.join(factors)}")
        return MixtureModel(self.domain, probabilities, self.total * float(weights.sum()), weights)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns arrays for an npz file or a message.

        They are `model` (uint8, JSON), `probabilities` and `weights`.
        """
        head = packed_head(self.domain, self.total, _MIXTURE_FORMAT)
        return {"model": head, "probabilities": self.probabilities.copy(), "weights": self.weights.copy()}

    @classmethod
    def from_arrays(cls, domain: Domain, arrays: Mapping[str, np.ndarray]) -> MixtureModel:
        """Reads the model that `to_arrays` described.

        Raises:
            ProtocolError: the arrays are malformed or belong to another domain.
        """
        try:
            head = read_head(domain, arrays, (_MIXTURE_FORMAT,))
            return cls(domain, arrays["probabilities"], head["total"], arrays["weights"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("the model that was received is malformed") from error


# Tables of rows -------------------------------------------------------------------------------------------------------


_ROWS_FORMAT = "rows 1"
#: Rows, and cells of them, that are made to stand for a released total, which may be any number. So many rows show
#: shares to the last ten-millionth, and so many cells of a byte or two fit into memory.
MOST_FITTED, MOST_CELLS = 2**24, 10**9


def rows_for(domain: Domain, total: float) -> int:
    """Returns how many rows stand for a total.

    They are as many, at least one, and no more than can be fitted: ever more rows would show the same marginals, no
    better than they were measured.
    """
    return max(1, min(round(total), MOST_FITTED, MOST_CELLS // max(1, len(domain))))


class EmpiricalModel:
    """The distribution of a table's rows, scaled to `total` records.

    It answers what `Model` answers where runs, metrics and reports ask. It has no density outside its rows: a row that
    is not in the table has probability 0 and log likelihood -inf, so that `nll` over held-out rows is infinite (null
    in metrics.json) unless every one of them occurs. Nothing is smoothed: any finite number would be the smoothing's.

    Args:
        domain: attributes of the table.
        codes: (n, d) integer codes, n at least 1; kept as they are, in the smallest unsigned type.
        total: records that the model stands for; None for n.

    Raises:
        ValueError: codes that do not fit the domain, no rows, or a total that is not positive and finite.
    """

    def __init__(self, domain: Domain, codes: np.ndarray, total: float | None = None) -> None:
        codes = np.asarray(codes)
        if codes.ndim != 2 or codes.shape[1] != len(domain) or codes.dtype.kind not in "ui":
            raise ValueError("codes must be integers with one column for each attribute of the domain")
        if len(codes) == 0:
            raise ValueError("a model that is a table needs at least one row")
        if len(domain) and ((codes < 0).any() or (codes >= np.array(domain.shape)).any()):
            raise ValueError("codes must lie within the domain")
        self.total = checked_total(len(codes) if total is None else total)
        self.domain = domain
        self.codes = codes.astype(np.min_scalar_type(max(domain.shape, default=1) - 1))
        self.codes.flags.writeable = False
        self.info = None

    def __repr__(self) -> str:
        return f"EmpiricalModel({len(self.domain)} attributes, {len(self.codes)} rows, total={self.total:.6g})"

    # ------------------------------------------------------------------ answers

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """One clique of all attributes: a table factorises into nothing smaller."""
        return (self.domain.attributes,)

    def project(self, clique: Sequence[str]) -> np.ndarray:
        """Returns the marginal over any clique, in counts.

        It is float64 of shape `domain.shape_of(clique)`, summing to `total`.
        """
        return next(self.project_many([clique]))

    def project_many(self, cliques: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Projects onto each clique, in one pass over the rows."""
        scale = self.total / len(self.codes)
        return (counts * scale for counts in count(self.codes, self.domain, list(cliques)))

    def probability_at(self, clique: Sequence[str], cells: np.ndarray) -> np.ndarray:
        """Returns the share of the rows in each cell, (m,).

        `cells` is (m, |clique|), with columns in the clique's order.
        """
        cells = checked_cells(clique, cells)
        rows = self.codes[:, list(self.domain.axes(clique))]
        both = np.zeros(len(rows) + len(cells), dtype=np.int64)
        size = 1
        for column in range(len(clique)):
            values = self.domain[clique[column]]
            if size > 2**62 // values:  # number the cells that occur before the index overflows
                occurring, both = np.unique(both, return_inverse=True)
                size = len(occurring)
            both *= values
            both += np.concatenate([rows[:, column], cells[:, column].astype(np.int64)])
            size *= values
        occurring, both = np.unique(both, return_inverse=True)
        counts = np.bincount(both[: len(rows)], minlength=len(occurring))
        return counts[both[len(rows) :]] / len(rows)

    def log_likelihood(self, codes: np.ndarray) -> np.ndarray:
        """Returns the natural log of each row's share of the table, (n,).

        A row that the table does not hold has -inf.
        """
        codes = checked_codes(self.domain, codes)
        with np.errstate(divide="ignore"):
            logs: np.ndarray = np.log(self.probability_at(self.domain.attributes, codes))
            return logs

    def sample(self, n: int, rng: RandomSource) -> np.ndarray:
        """Draws rows of the table in random order, (n, d).

        Every row comes floor(n / rows) times, and the rest is drawn without replacement: with as many rows as the table
        has, it is the table itself, shuffled. Only `rng.random(size)` is called.
        """
        rows = len(self.codes)
        extra = np.argsort(np.asarray(rng.random(rows)), kind="stable")[: n % rows]
        index = np.concatenate([np.tile(np.arange(rows), n // rows), extra])
        sampled: np.ndarray = self.codes[index[np.argsort(np.asarray(rng.random(n)), kind="stable")]]
        return sampled

    # ------------------------------------------------------------------ other forms

    def conditioned(self, masks: Mapping[str, npt.ArrayLike]) -> EmpiricalModel:
        """Keeps the rows that have allowed values of some attributes.

        Args:
            masks: attribute -> (size,) boolean, True for the values allowed.

        Raises:
            ValueError: no such attribute, or a mask of another shape.
            InputError: no row meets the condition.
        """
        meets = np.ones(len(self.codes), dtype=bool)
        for name, allowed in self.domain.conditions(masks).items():
            meets &= allowed[self.codes[:, self.domain.axes((name,))[0]]]
        if not meets.any():
            raise InputError(f"no row of this model, which is a table, meets the condition on {', '.join(masks)}")
        return EmpiricalModel(self.domain, self.codes[meets], self.total * float(meets.mean()))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns arrays for an npz file or a message.

        They are `model` (uint8, JSON) and `codes`.
        """
        return {"model": packed_head(self.domain, self.total, _ROWS_FORMAT), "codes": self.codes.copy()}

    @classmethod
    def from_arrays(cls, domain: Domain, arrays: Mapping[str, np.ndarray]) -> EmpiricalModel:
        """Reads the model that `to_arrays` described.

        Raises:
            ProtocolError: the arrays are malformed or belong to another domain.
        """
        try:
            return cls(domain, arrays["codes"], read_head(domain, arrays, (_ROWS_FORMAT,))["total"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("the model that was received is malformed") from error


#: Whatever a run may end with.
AnyModel = Model | EmpiricalModel | MixtureModel


def read_model(domain: Domain, arrays: Mapping[str, np.ndarray]) -> AnyModel:
    """Reads the model of any kind; ProtocolError as `from_arrays` raises it."""
    if "probabilities" in arrays:
        return MixtureModel.from_arrays(domain, arrays)
    return (EmpiricalModel if "codes" in arrays else Model).from_arrays(domain, arrays)
