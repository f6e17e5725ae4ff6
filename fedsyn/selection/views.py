"""Marginal distributions to compare a client's rows with: those of a model, or of a simulation's pooled table."""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedsyn.counting.marginals import count
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError
from fedsyn.inference import Model

# Marginals of more cells than this are not formed to be read at a few cells: single cells are computed instead.
DENSE_CELLS = 4_000_000
# Totals of the models that a message may bring. Counts of a total near 5e-324 are so coarse that they would no longer
# sum to it, and `l1_distances` takes what was not touched to be one minus what was.
_TOTALS = (1e-6, 2.0**63)
# Log potentials of such a model: sums of larger ones could overflow, and a client without rows would not notice.
_LARGEST_POTENTIAL = 1e150


class MarginalView(Protocol):
    """Marginal distributions to compare a client's rows with."""

    def probabilities(self, cliques: Sequence[Clique]) -> list[npt.NDArray[np.float64]]: ...

    def probability_at(self, clique: Clique, cells: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]: ...


class ModelView:
    """Marginals of one model as probabilities, each computed once.

    Several clients of a simulation share a process, and all of a round's cohort ask for the same marginals of the same
    model. `ModelView.of` keeps the last two models of a process, found by the hash of their bytes: sharing saves work
    and changes no bit of a result.
    """

    _views: OrderedDict[bytes, ModelView] = OrderedDict()  # noqa: RUF012 - a cache, shared on purpose

    def __init__(self, model: Model) -> None:
        self.model = model
        self._marginals: dict[Clique, npt.NDArray[np.float64]] = {}
        self._effective: dict[Clique, float] = {}

    @classmethod
    def of(cls, domain: Domain, arrays: Sequence[npt.NDArray[np.generic]]) -> ModelView:
        """The view of a model that arrived as arrays (see `pack_model`)."""
        digest = hashlib.sha256(repr(domain).encode())
        for array in arrays:
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).data)
        key = digest.digest()
        view = cls._views.get(key)
        if view is None:
            view = cls._views[key] = cls(unpack_model(domain, arrays))
            while len(cls._views) > 2:
                cls._views.popitem(last=False)
        return view

    def probabilities(self, cliques: Sequence[Clique]) -> list[npt.NDArray[np.float64]]:
        """Flat marginal distributions of the cliques, in order."""
        missing = [q for q in dict.fromkeys(cliques) if q not in self._marginals]
        for clique, marginal in zip(missing, self.model.project_many(missing), strict=True):
            self._marginals[clique] = marginal.ravel() / self.model.total
        return [self._marginals[q] for q in cliques]

    def probability_at(self, clique: Clique, cells: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
        """(m,) probabilities of single cells, (m, |q|) codes, of a marginal that is too large to form."""
        return self.model.probability_at(clique, cells)

    def effective_cells(self, cliques: Sequence[Clique]) -> npt.NDArray[np.float64]:
        """(m,) effective support of each marginal, see `effective_cells`; each computed once.

        A marginal that is too large to form takes the product of its attributes' supports, which is exact where they
        are independent.
        """
        domain = self.model.domain
        missing = [q for q in dict.fromkeys(cliques) if q not in self._effective]
        small = [q for q in missing if domain.size(q) <= DENSE_CELLS]
        for clique, marginal in zip(small, self.probabilities(small), strict=True):
            self._effective[clique] = effective_cells(marginal)
        for clique in missing:
            if clique not in self._effective:
                parts = [effective_cells(p) for p in self.probabilities([(name,) for name in clique])]
                self._effective[clique] = math.prod(parts)
        return np.array([self._effective[q] for q in cliques])


class PooledView:
    """The exact marginals of a simulation's pooled table behind the interface of a model's. For oracles only."""

    def __init__(self, codes: npt.NDArray[np.integer], domain: Domain) -> None:
        self.codes, self.domain = codes, domain
        self._marginals: dict[Clique, npt.NDArray[np.float64]] = {}

    def probabilities(self, cliques: Sequence[Clique]) -> list[npt.NDArray[np.float64]]:
        missing = [q for q in dict.fromkeys(cliques) if q not in self._marginals]
        for clique, counts in zip(missing, count(self.codes, self.domain, missing), strict=True):
            self._marginals[clique] = counts.ravel() / max(1, len(self.codes))
        return [self._marginals[q] for q in cliques]

    def probability_at(self, clique: Clique, cells: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
        flat = np.ravel_multi_index(tuple(cells.T), self.domain.shape_of(clique))
        own = flat_cells(self.codes, self.domain, clique, {})
        values, counts = np.unique(own, return_counts=True)
        at = np.minimum(np.searchsorted(values, flat), len(values) - 1)
        return np.where(values[at] == flat, counts[at], 0) / max(1, len(self.codes))


def pack_model(model: Model) -> list[npt.NDArray[np.generic]]:
    """A model as arrays for a message: the names as one JSON text in bytes, then the arrays in that order."""
    arrays = model.to_arrays()
    names = np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)
    return [names, *arrays.values()]


def unpack_model(domain: Domain, arrays: Sequence[npt.NDArray[np.generic]]) -> Model:
    """Inverse of `pack_model`; ProtocolError if the arrays are not a model of this domain."""
    try:
        names = json.loads(np.asarray(arrays[0], np.uint8).tobytes().decode())
        model = Model.from_arrays(domain, dict(zip(names, arrays[1:], strict=True)))
    except Exception as error:
        raise ProtocolError(f"the request's model cannot be read ({type(error).__name__})") from None
    if not _TOTALS[0] <= model.total <= _TOTALS[1]:
        raise ProtocolError("the request's model stands for an impossible number of records")
    if any(np.abs(table).max(initial=0.0) > _LARGEST_POTENTIAL for table in model.rank_potentials().values()):
        raise ProtocolError("the request's model has potentials that are too large to add up")
    return model


def effective_cells(probabilities: npt.NDArray[np.float64]) -> float:
    """(sum over cells of sqrt(p))^2: how many cells carry a distribution; 1 for one cell, n_q for the uniform one.

    The exponential of its Renyi entropy of order 1/2. A fit knows the total and that no cell is negative, so the noise
    on the many nearly empty cells of a large marginal does not reach the model: the noise that does is that of about
    so many cells, and n_q is a penalty far too large for sparse marginals.
    """
    return float(np.sqrt(np.maximum(probabilities, 0.0)).sum()) ** 2


def flat_cells(
    codes: npt.NDArray[np.integer], domain: Domain, clique: Clique, columns: dict[str, npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    """(n,) flat cell of each row in the clique's marginal; `columns` keeps the columns already widened."""
    flat = np.zeros(len(codes), np.int64)
    for name, axis in zip(clique, domain.axes(clique), strict=True):
        if name not in columns:
            columns[name] = codes[:, axis].astype(np.int64)
        flat *= domain[name]
        flat += columns[name]
    return flat
