"""Marginal distributions of a model, and a client's distances from them.

A simulation's pooled table may take the model's place.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from fedsyn.config import InferenceNode
from fedsyn.domain import Clique, Codes, Domain, Floats, Integers
from fedsyn.errors import ProtocolError
from fedsyn.inference import EmpiricalModel, Model, model_size, pass_cost
from fedsyn.settings import CELLS_AT_ONCE
from fedsyn.table.counting.marginals import cell_strides, count, groups_within, runs_of

# Totals of the models that a message may bring. Counts of a total near 5e-324 are so coarse that they would no longer
# sum to it, and `l1_distances` takes what was not touched to be one minus what was.
_TOTALS = (1e-6, 2.0**63)
# Log potentials of such a model: sums of larger ones could overflow, and a client without rows would not notice.
_LARGEST_POTENTIAL = 1e150


# Cells of a marginal that costs less to keep than to form again: 32 kB.
_FEW_CELLS = 1 << 12
# How far such a model may exceed `inference.max_cells` and `max_message_passing_cost`, which a server keeps for all
# cliques that it asks for. Where some of their sums were not opened the model has fewer, and as elimination orders are
# heuristics, its tree can be larger: 4.5 times the cells and 11 times the cost in the worst of 66,000 random parts of
# full structures.
MODEL_ROOM = 16


class ModelView:
    """Marginals of one model as probabilities, each computed once.

    Several clients of a simulation share a process, and all of a round's cohort ask for the same marginals of the same
    model. `ModelView.of` keeps the last two models of a process, found by the hash of their bytes: sharing saves work
    and changes no bit of a result.

    Args:
        model: whose marginals are asked for.
        at_once: `inference.max_cells_at_once`. No more cells are formed together, and no more are kept; single cells
            are computed of a larger marginal.
    """

    _views: OrderedDict[bytes, ModelView] = OrderedDict()  # noqa: RUF012 - a cache, shared on purpose

    def __init__(self, model: Model, at_once: int = CELLS_AT_ONCE) -> None:
        self.model, self.at_once = model, at_once
        self._marginals: dict[Clique, Floats] = {}
        self._kept = 0  # cells of them
        self._effective: dict[Clique, float] = {}
        self._flat: tuple[FlatLayout, Floats] | None = None

    @classmethod
    def of(cls, domain: Domain, arrays: Sequence[npt.NDArray[np.generic]], node: InferenceNode) -> ModelView:
        """Returns the view of a model that arrived as arrays (`pack_model`).

        Args:
            domain: of the schema.
            arrays: of the message.
            node: `inference` of the configuration, whose limits bound what is taken (see `check_model_size`).

        Raises:
            ProtocolError: as `unpack_model`.
        """
        _check_types(arrays)
        digest = hashlib.sha256(repr((domain, node)).encode())
        for array in arrays:
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).data)
        key = digest.digest()
        view = cls._views.get(key)
        if view is None:
            view = cls._views[key] = cls(unpack_model(domain, arrays, node), node.max_cells_at_once)
            while len(cls._views) > 2:
                cls._views.popitem(last=False)
        return view

    def each(self, cliques: Sequence[Clique], *, carried: bool = False) -> Iterator[Floats]:
        """Yields flat marginal distributions of the cliques, in order.

        Those of few cells are kept while there is room: they are asked for again, one by one.

        Args:
            cliques: whose marginals.
            carried: whether `effective_cells` will be asked for. Of a marginal of three attributes or more that is not
                kept they are counted now; pairs that are formed together have other last bits than one by one.
        """
        for part in formed_together(self.model.domain, tuple(cliques), self.at_once):
            known = [self._marginals.get(clique) for clique in part.cliques]
            missing = [clique for clique, marginal in zip(part.cliques, known, strict=True) if marginal is None]
            formed = iter(self.model.project_many(missing))
            for clique, marginal in zip(part.cliques, known, strict=True):
                if marginal is None:
                    marginal = next(formed).ravel()
                    marginal /= self.model.total
                    if len(marginal) <= _FEW_CELLS:
                        self._keep(clique, marginal)
                    elif carried and len(clique) > 2 and len(marginal) <= self.at_once:
                        self._effective[clique] = effective_cells(marginal)
                yield marginal

    def _keep(self, clique: Clique, marginal: Floats) -> None:
        if clique not in self._marginals and self._kept + len(marginal) <= self.at_once:
            self._marginals[clique] = marginal
            self._kept += len(marginal)

    def probabilities(self, cliques: Sequence[Clique]) -> list[Floats]:
        """Returns flat marginal distributions of the cliques, in order.

        They are kept while there is room.
        """
        missing = [q for q in dict.fromkeys(cliques) if q not in self._marginals]
        found = dict(zip(missing, self.each(missing), strict=True))
        for clique, marginal in found.items():
            self._keep(clique, marginal)
        return [found[q] if q in found else self._marginals[q] for q in cliques]

    def flat(self, layout: FlatLayout) -> Floats:
        """Returns marginal distributions of many cliques as one vector.

        They are in the layout's order. The last vector is kept for the next client, and nothing else: a wide table has
        hundreds of thousands of marginals.
        """
        if self._flat is None or self._flat[0] is not layout:
            marginals = self.model.project_many(layout.cliques)
            self._flat = (layout, np.concatenate([m.ravel() for m in marginals]) / self.model.total)
        return self._flat[1]

    def probability_at(self, clique: Clique, cells: Codes) -> Floats:
        """Returns probabilities of single cells of a marginal, (m,).

        `cells` are (m, |q|) codes. The marginal may be too large to form.
        """
        return self.model.probability_at(clique, cells)

    def effective_cells(self, cliques: Sequence[Clique]) -> Floats:
        """Returns the effective cells of each marginal, (m,).

        Each is computed once, by the function `effective_cells`. A marginal that is too large to form takes the product
        of its attributes' effective cells, which is exact where they are independent.
        """
        domain = self.model.domain
        missing = [q for q in dict.fromkeys(cliques) if q not in self._effective]
        for part in formed_together(domain, tuple(missing), self.at_once):
            small = [part.cliques[i] for i in part.small]
            for clique, marginal in zip(small, self.probabilities(small), strict=True):
                self._effective[clique] = effective_cells(marginal)
        for clique in missing:
            if clique not in self._effective:
                parts = [effective_cells(p) for p in self.probabilities([(name,) for name in clique])]
                self._effective[clique] = math.prod(parts)
        return np.array([self._effective[q] for q in cliques])


@dataclass(frozen=True)
class Part:
    """Some of many cliques.

    Attributes:
        cliques: as many as have `max_cells_at_once` cells together; a larger one is by itself.
        small: positions of those that have no more.
    """

    cliques: list[Clique]
    small: list[int]


def formed_together(domain: Domain, cliques: tuple[Clique, ...], at_once: int) -> list[Part]:
    """Returns the cliques part by part, in order.

    Parts of many cliques are kept: clients of a simulation that share a process are asked about the same ones.
    """
    return (_many_together if len(cliques) > 1 else _many_together.__wrapped__)(domain, cliques, at_once)


@lru_cache(maxsize=8)
def _many_together(domain: Domain, cliques: tuple[Clique, ...], at_once: int) -> list[Part]:
    sizes = [domain.size(clique) for clique in cliques]
    return [
        Part([cliques[i] for i in part], [k for k, i in enumerate(part) if sizes[i] <= at_once])
        for part in groups_within(at_once, range(len(cliques)), sizes.__getitem__)
    ]


def pooled_view(codes: Codes, domain: Domain) -> ModelView:
    """Returns the pooled table's exact marginals behind a model's interface.

    Only oracles in simulations may use it.
    """
    return ModelView(EmpiricalModel(domain, codes))  # type: ignore[arg-type]


def pack_model(model: Model) -> list[npt.NDArray[np.generic]]:
    """Returns a model as arrays for a message.

    The arrays' names come first, as one JSON text in bytes, then the arrays in that order.
    """
    arrays = model.to_arrays()
    names = np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)
    return [names, *arrays.values()]


def unpack_model(domain: Domain, arrays: Sequence[npt.NDArray[np.generic]], node: InferenceNode) -> Model:
    """Reads a model that `pack_model` packed.

    Raises ProtocolError if the arrays are no model of this domain, or one that is too large. For a model that is too
    large nothing is allocated and nothing calibrated.
    """
    _check_types(arrays)
    with _readable():
        named, cliques = _announced(domain, arrays)
    check_model_size(domain, cliques, node)
    with _readable():
        model = Model.from_arrays(domain, named)
    if not _TOTALS[0] <= model.total <= _TOTALS[1]:
        raise ProtocolError("the request's model stands for an impossible number of records")
    if any(np.abs(table).max(initial=0.0) > _LARGEST_POTENTIAL for table in model.rank_potentials().values()):
        raise ProtocolError("the request's model has potentials that are too large to add up")
    return model


def check_model_size(domain: Domain, cliques: Sequence[Clique], node: InferenceNode) -> None:
    """Raises ProtocolError if a message's model has too large a junction tree.

    The bounds are `MODEL_ROOM` times those of `inference`, or what the schema's one-way marginals need by themselves.
    The tree is not built where the attributes that cliques join are too many: a clique of the tree has at most log2 of
    its cells attributes of two values and more, and a graph of d vertices without a larger one, once triangulated, has
    fewer than d times as many edges.
    """
    cells = max(MODEL_ROOM * node.max_cells, model_size(domain, []))
    cost = max(MODEL_ROOM * node.max_message_passing_cost, pass_cost(domain, [(name,) for name in domain]))
    fits = all(domain.size(clique) <= cells for clique in cliques)
    if fits:
        several = {name for name in domain if domain[name] > 1}
        joined = {pair for clique in cliques for pair in combinations(sorted(several.intersection(clique)), 2)}
        fits = len(joined) <= len(domain) * math.log2(cells) and model_size(domain, list(joined)) <= cells
    if not fits or pass_cost(domain, cliques) > cost:
        raise ProtocolError(
            "the request's model is larger than inference.max_cells and max_message_passing_cost of this run allow"
        )


def _check_types(arrays: Sequence[npt.NDArray[np.generic]]) -> None:
    """Raises ProtocolError unless arrays have the types that `pack_model` gives them.

    So none is converted.
    """
    if [(array.dtype.kind, array.dtype.itemsize, array.ndim) for array in arrays] != [("u", 1, 1)] * 2 + [("f", 8, 1)]:
        raise ProtocolError("the request's model cannot be read: it needs the arrays of one model and no others")


@contextmanager
def _readable() -> Iterator[None]:
    """Turns whatever goes wrong while reading a model into ProtocolError.

    The error quotes nothing of the model.
    """
    try:
        yield
    except Exception as error:
        raise ProtocolError(f"the request's model cannot be read ({type(error).__name__})") from None


def _announced(
    domain: Domain, arrays: Sequence[npt.NDArray[np.generic]]
) -> tuple[dict[str, npt.NDArray[np.generic]], list[Clique]]:
    """Returns the arrays by name, and the cliques that they announce.

    It raises ValueError, TypeError or KeyError where they do not fit.
    """
    known = set(domain)
    named = dict(zip(json.loads(arrays[0].tobytes()), arrays[1:], strict=True))
    head = json.loads(named["model"].tobytes())
    if (tuple(head["attributes"]), tuple(head["shape"])) != (domain.attributes, domain.shape):
        raise ValueError("another domain")
    if "conditions" in head or "hidden" in head:
        raise ValueError("a part of a distribution, or one with hidden attributes")
    measured, structural = ([tuple(clique) for clique in head[key]] for key in ("cliques", "structural_cliques"))
    if len(structural) > len(domain):  # a junction forest has no more cliques: nobody needs room for more
        raise ValueError("more structural cliques than attributes")
    if any(len(set(clique)) != len(clique) or not known.issuperset(clique) for clique in measured + structural):
        raise ValueError("a clique that names an attribute twice, or one that there is not")
    if sum(domain.size(clique) for clique in measured) != len(named["potentials"]):  # Python integers
        raise ValueError("potentials of another size than the cliques")
    return named, measured + structural


def effective_cells(probabilities: Floats) -> float:
    """Returns how many cells carry a distribution.

    It is (sum over cells of sqrt(p))^2, the exponential of the Renyi entropy of order 1/2: 1 for one cell, n_q for the
    uniform distribution. A fit knows the total and that no cell is negative, so the noise on the many nearly empty
    cells of a large marginal does not reach the model: the noise that does is that of about as many cells, and n_q is a
    penalty far too large for sparse marginals.
    """
    roots = np.maximum(probabilities, 0.0)
    return float(np.sqrt(roots, out=roots).sum()) ** 2


def effective_cells_of_each(tables: Floats) -> Floats:
    """Returns the effective cells of (m, cells) distributions, (m,)."""
    return np.array([float(root) ** 2 for root in np.sqrt(np.maximum(tables, 0.0)).sum(axis=1)])


def flat_cells(codes: Codes, domain: Domain, clique: Clique, columns: dict[str, Integers]) -> Integers:
    """Returns the flat cell of each row in a marginal, (n,).

    `columns` keeps the columns already widened.
    """
    flat = np.zeros(len(codes), np.int64)
    for name, axis in zip(clique, domain.axes(clique), strict=True):
        if name not in columns:
            columns[name] = codes[:, axis].astype(np.int64)
        flat *= domain[name]
        flat += columns[name]
    return flat


# Distances ------------------------------------------------------------------------------------------------------------


# Cell numbers that are held at a time, 8 bytes each.
_AT_ONCE = 1 << 20


def touched_distances(
    codes: Codes, domain: Domain, cliques: Sequence[Clique], marginals: Sequence[Floats], size: float
) -> Floats:
    """Returns ||M_q(D) - size * p_q||_1 of each clique q, in records.

    Outside of the touched cells, p_q has what is left to 1.

    Args:
        codes: (n, d) rows.
        domain: their domain.
        cliques: m cliques of fewer than 2^53 cells each.
        marginals: their distributions, flat; each sums to 1.
        size: number of records to scale the distributions to.

    Returns:
        (m,) float64; sums are pairwise, exact to a few units in the last place.
    """
    n = len(codes)
    if n == 0:
        return np.full(len(cliques), float(size))
    distances = np.empty(len(cliques))
    columns = codes.T.astype(np.float64)  # BLAS is fast, and exact up to 2^53 in any order of addition
    strides = cell_strides(domain, tuple(domain.axes(clique) for clique in cliques))
    step = max(1, _AT_ONCE // n)
    for start in range(0, len(cliques), step):
        block = slice(start, start + step)
        cells = (strides[block] @ columns).astype(np.int64)
        distances[block] = _of_cells(cells, marginals[block], size)
    return distances


def _of_cells(cells: Integers, marginals: Sequence[Floats], size: float) -> Floats:
    """Returns distances, from the rows' flat cells in m marginals, (m, n)."""
    distinct, counts, bounds = runs_of(cells)
    starts = bounds[:-1]
    touched = np.concatenate([p[distinct[bounds[i] : bounds[i + 1]]] for i, p in enumerate(marginals)])
    inside = np.add.reduceat(np.abs(counts - size * touched), starts)
    outside = np.maximum(0.0, 1.0 - np.add.reduceat(touched, starts))
    return np.asarray(inside + size * outside)


# Distances of very many marginals ---------------------------------------------------------------------------------


class FlatLayout:
    """Places of many marginals in one vector, grouped by their length.

    Attributes:
        cliques: m cliques.
        sizes: (m,) cells of each.
        bounds: (m + 1,) first cell of each.
    """

    def __init__(self, domain: Domain, cliques: tuple[Clique, ...]) -> None:
        self.domain, self.cliques = domain, cliques
        self.sizes = np.array([domain.size(q) for q in cliques], np.int64)
        self.bounds = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def groups(self) -> list[tuple[Integers, Integers]]:
        """Marginals of each number of cells.

        Each entry is (positions of k marginals, places of their cells), the latter (k, cells).
        """
        which = [np.flatnonzero(self.sizes == cells) for cells in np.unique(self.sizes)]
        return [(some, self.bounds[some][:, None] + np.arange(self.sizes[some[0]])) for some in which]

    @cached_property
    def by_length(self) -> list[tuple[Integers, Integers]]:
        """Cliques of each number of attributes.

        Each entry is (positions of k cliques, their domain columns), the latter (k, length).
        """
        lengths = np.array([len(q) for q in self.cliques], np.int64)
        which = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        return [(some, np.array([self.domain.axes(self.cliques[i]) for i in some])) for some in which]

    def sums(self, values: Floats) -> Floats:
        """Returns the sum of each marginal's cells, (m,).

        The bits are those of summing each by itself.
        """
        out = np.empty(len(self.sizes))
        for which, places in self.groups:
            out[which] = values[places].sum(axis=1)
        return out


_layouts: deque[FlatLayout] = deque(maxlen=8)


def flat_layout(domain: Domain, cliques: Sequence[Clique]) -> FlatLayout:
    """Returns the layout of some marginals; the last few are kept.

    They are found by comparison, not by a hash, which would read every name each time.
    """
    wanted = tuple(cliques)
    for layout in _layouts:
        if layout.cliques == wanted and layout.domain == domain:
            return layout
    _layouts.appendleft(FlatLayout(domain, wanted))
    return _layouts[0]


# Counts of tables of this process that may be asked for again: those of a simulation's clients, round after round.
_KEPT_BYTES = 1 << 28
_kept: OrderedDict[tuple[bytes, Domain], dict[Clique, npt.NDArray[np.int32]]] = OrderedDict()


def flat_counts(codes: Codes, layout: FlatLayout) -> npt.NDArray[np.int32]:
    """Returns counts of many marginals as one vector, and keeps them.

    A table does not change in a run, but is asked for the same counts, or most of them, in every round. They are found
    by a hash of the rows, and the oldest are dropped.
    """
    if len(codes) >= 1 << 31:
        raise ValueError("too many rows for counts of 32 bits")
    digest = hashlib.blake2b(np.ascontiguousarray(codes).data, digest_size=32)
    digest.update(repr((codes.dtype.str, codes.shape)).encode())
    key = (digest.digest(), layout.domain)
    known = _kept.setdefault(key, {})
    _kept.move_to_end(key)
    new = [clique for clique in layout.cliques if clique not in known]
    if new:
        for clique, counts in zip(new, count(codes, layout.domain, new), strict=True):
            known[clique] = counts.ravel().astype(np.int32)
        while (
            sum(vector.nbytes for table in _kept.values() for vector in table.values()) > _KEPT_BYTES and len(_kept) > 1
        ):
            _kept.popitem(last=False)
    return np.concatenate([np.zeros(0, np.int32), *(known[clique] for clique in layout.cliques)])
