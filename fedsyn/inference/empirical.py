"""A model that is a table of rows: what GUM leaves, behind the interface of `Model`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.errors import InputError, ProtocolError
from fedsyn.inference.mixture import MixtureModel
from fedsyn.inference.model import Model, checked_cells, checked_codes, checked_total, packed_head, read_head
from fedsyn.randomness import RandomSource
from fedsyn.table.counting.marginals import count

_FORMAT = "rows 1"


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
        """Marginal over any clique, in counts: float64 of shape `domain.shape_of(clique)`, summing to `total`."""
        return self.project_many([clique])[0]

    def project_many(self, cliques: Iterable[Sequence[str]]) -> list[np.ndarray]:
        """`project` for each clique, in one pass over the rows."""
        scale = self.total / len(self.codes)
        return [counts * scale for counts in count(self.codes, self.domain, list(cliques))]

    def probability_at(self, clique: Sequence[str], cells: np.ndarray) -> np.ndarray:
        """(m,) share of the rows that fall into each cell; `cells` (m, |clique|), columns in the clique's order."""
        cells = checked_cells(clique, cells)
        own = self.codes[:, list(self.domain.axes(clique))]
        both = np.zeros(len(own) + len(cells), dtype=np.int64)
        size = 1
        for column in range(len(clique)):
            values = self.domain[clique[column]]
            if size > 2**62 // values:  # number the cells that occur before the index overflows
                occurring, both = np.unique(both, return_inverse=True)
                size = len(occurring)
            both *= values
            both += np.concatenate([own[:, column], cells[:, column].astype(np.int64)])
            size *= values
        occurring, both = np.unique(both, return_inverse=True)
        counts = np.bincount(both[: len(own)], minlength=len(occurring))
        return counts[both[len(own) :]] / len(own)

    def log_likelihood(self, codes: np.ndarray) -> np.ndarray:
        """(n,) natural log of each row's share of the table; -inf for a row that the table does not hold."""
        codes = checked_codes(self.domain, codes)
        with np.errstate(divide="ignore"):
            logs: np.ndarray = np.log(self.probability_at(self.domain.attributes, codes))
            return logs

    def sample(self, n: int, rng: RandomSource) -> np.ndarray:
        """(n, d) rows in random order: every row of the table floor(n / rows) times, the rest without replacement.

        With as many rows as the table has, it is the table itself, shuffled. Only `rng.random(size)` is called.
        """
        rows = len(self.codes)
        extra = np.argsort(np.asarray(rng.random(rows)), kind="stable")[: n % rows]
        index = np.concatenate([np.tile(np.arange(rows), n // rows), extra])
        sampled: np.ndarray = self.codes[index[np.argsort(np.asarray(rng.random(n)), kind="stable")]]
        return sampled

    # ------------------------------------------------------------------ other forms

    def conditioned(self, masks: Mapping[str, npt.ArrayLike]) -> EmpiricalModel:
        """The rows in which each named attribute has one of its allowed values.

        Args:
            masks: attribute -> (size,) boolean, True for the values allowed.

        Raises:
            ValueError: no such attribute, or a mask of another shape.
            InputError: no row meets the condition.
        """
        kept = np.ones(len(self.codes), dtype=bool)
        for name, allowed in self.domain.conditions(masks).items():
            kept &= allowed[self.codes[:, self.domain.axes((name,))[0]]]
        if not kept.any():
            raise InputError(f"no row of this model, which is a table, meets the condition on {', '.join(masks)}")
        return EmpiricalModel(self.domain, self.codes[kept], self.total * float(kept.mean()))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays for an npz file or a message: `model` (uint8, JSON) and `codes`."""
        return {"model": packed_head(self.domain, self.total, _FORMAT), "codes": self.codes.copy()}

    @classmethod
    def from_arrays(cls, domain: Domain, arrays: Mapping[str, np.ndarray]) -> EmpiricalModel:
        """The model that `to_arrays` described.

        Raises:
            ProtocolError: the arrays are malformed or belong to another domain.
        """
        try:
            return cls(domain, arrays["codes"], read_head(domain, arrays, (_FORMAT,))["total"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("the model that was received is malformed") from error


#: Whatever a run may end with.
AnyModel = Model | EmpiricalModel | MixtureModel


def read_model(domain: Domain, arrays: Mapping[str, np.ndarray]) -> AnyModel:
    """The model that either kind's `to_arrays` described; ProtocolError as theirs."""
    if "probabilities" in arrays:
        return MixtureModel.from_arrays(domain, arrays)
    return (EmpiricalModel if "codes" in arrays else Model).from_arrays(domain, arrays)
