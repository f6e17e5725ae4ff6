"""Graphical model with log potentials on cliques, calibrated on first use."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain, Flags, Zeros
from fedsyn.errors import InputError, ProtocolError
from fedsyn.inference.calibrate import Calibrator
from fedsyn.inference.junction_tree import JunctionTree, axes_of, bits, build_tree
from fedsyn.inference.project import TreeProjector
from fedsyn.inference.sampling import deal_independently, sample_rows
from fedsyn.randomness import RandomSource

_FORMAT, _CONDITIONED_FORMAT, _HIDDEN_FORMAT = 1, 2, 3
_MOST_HIDDEN = 1 << 16  # cells of all hidden attributes of a model
_CELLS_AT_ONCE = 1 << 22
#: Hidden attributes of a model.
MOST_FACTORS = 3
NO_ROW = "the domain's structural zeros leave no possible row"


@dataclass(frozen=True)
class FitInfo:
    """Record of one estimation.

    Attributes:
        iterations: iterations made.
        loss: 1/2 sum ||(M(p) - y)/sigma||^2 over the given measurements at the result.
        converged: whether the tolerance was met before the iterations ran out.
        history: loss at the start and after each iteration (over merged measurements, up to a constant: it excludes
            the disagreement between repeated measurements of one clique).
    """

    iterations: int
    loss: float
    converged: bool
    history: tuple[float, ...] = field(default=(), repr=False)


class Model:
    """A distribution over a domain, scaled to `total` records.

    p(x) = exp(sum_q theta_q(x_q)) / Z over the cliques q that carry potentials; an attribute in none is uniform. A row
    in an impossible cell of the domain has probability exactly 0, is never sampled, and is in no marginal.
    Attributes that the domain hides are summed over: rows, samples and likelihoods are of the others.
    Every answer is deterministic: the same model gives the same bits, in any process and with any number of threads.

    Args:
        domain: all attributes.
        potentials: finite log potentials by clique, each of shape `domain.shape_of(clique)`.
        total: records that the model stands for, positive.
        structural_cliques: cliques that get a place in the junction tree without a potential, so that projecting onto
            them is a sum.
        info: record of the estimation.
        conditions: attribute -> (size,) boolean, the values to which the distribution is restricted; see `conditioned`.

    Raises:
        ValueError: potentials that are not finite, a total that is not positive, a condition of another shape.
    """

    def __init__(
        self,
        domain: Domain,
        potentials: Mapping[Clique, np.ndarray],
        total: float,
        *,
        structural_cliques: Iterable[Clique] = (),
        info: FitInfo | None = None,
        conditions: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        self.domain = domain
        self.total = checked_total(total)
        self.info = info
        axes = axes_of(domain)
        tables: dict[int, np.ndarray] = {}
        for clique, values in potentials.items():
            mask = axes.mask(clique)
            if mask:
                table = to_rank_order(domain, clique, np.asarray(values, dtype=np.float64))
                tables[mask] = tables[mask] + table if mask in tables else np.array(table, order="C")
        if not all(np.isfinite(table).all() for table in tables.values()):
            raise ValueError("potentials must be finite")
        self._tables = {mask: tables[mask] for mask in sorted(tables)}
        self._structural = tuple(sorted({axes.mask(clique) for clique in structural_cliques} - {0}))
        self._conditions = domain.conditions(conditions or {})
        self._calibrator: Calibrator | None = None
        self._projector: TreeProjector | None = None

    @classmethod
    def calibrated(cls, domain: Domain, calibrator: Calibrator, total: float, *, info: FitInfo | None = None) -> Model:
        """Wraps a calibrator that has run on its tree.

        The calibrator belongs to the model from now on.
        """
        model = cls(domain, {}, total, info=info)
        views = calibrator.views(calibrator.theta.copy())
        model._tables = dict(zip(calibrator.factors, views, strict=True))
        model._calibrator = calibrator
        return model

    # ------------------------------------------------------------------ parts

    @property
    def _tree(self) -> JunctionTree:
        return build_tree(axes_of(self.domain), [*self._tables, *self._structural, *self._zeros])

    @property
    def _zeros(self) -> dict[int, Flags]:
        """Impossible cells by mask: the domain's, and those outside the conditions."""
        axes = axes_of(self.domain)
        out = dict(axes.zeros)
        for name, mask in self._conditions.items():
            key = axes.mask((name,))
            out[key] = out[key] | ~mask if key in out else ~mask
        return out

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """Maximal cliques of the junction tree.

        Each is in domain order; together they cover the domain.
        """
        axes = axes_of(self.domain)
        return tuple(axes.clique(mask) for mask in self._tree.cliques)

    @property
    def potentials(self) -> dict[Clique, np.ndarray]:
        """Copies of the log potentials, cliques and axes in domain order."""
        axes = axes_of(self.domain)
        return {
            axes.clique(mask): from_rank_order(self.domain, axes.clique(mask), table).copy()
            for mask, table in self._tables.items()
        }

    def rank_potentials(self) -> dict[int, np.ndarray]:
        """Returns the log potentials by mask, axes by rank.

        Engines hand them on in this form. They must not be written to.
        """
        return dict(self._tables)

    @property
    def log_partition(self) -> float:
        """Natural log of Z = sum_x exp(sum_q theta_q(x_q))."""
        return self._calibrated().log_partition

    def _calibrated(self) -> Calibrator:
        if self._calibrator is None:
            calibrator = Calibrator(self._tree, tuple(self._tables), self._zeros)
            for view, table in zip(calibrator.views(calibrator.theta), self._tables.values(), strict=True):
                view[...] = table
            calibrator.run()
            if not calibrator.is_possible:
                raise ValueError(NO_ROW)
            self._calibrator = calibrator
        return self._calibrator

    def _query(self) -> TreeProjector:
        if self._projector is None:
            self._projector = TreeProjector(self._calibrated())
        return self._projector

    def __getstate__(self) -> dict[str, Any]:
        # Compiled passes hold views into their own buffers, which a pickle would tear apart.
        return {**self.__dict__, "_calibrator": None, "_projector": None}

    def __repr__(self) -> str:
        return f"Model({len(self.domain)} attributes, {len(self._tables)} potentials, total={self.total:.6g})"

    # ------------------------------------------------------------------ answers

    def project(self, clique: Sequence[str]) -> np.ndarray:
        """Returns the marginal over any clique, in counts.

        Args:
            clique: distinct attributes, in any order; () gives the total.

        Returns:
            float64 array of shape `domain.shape_of(clique)`, axes in the given order, summing to `total`.

        Raises:
            ValueError: an attribute is unknown, or named twice.
        """
        if len(set(clique)) != len(clique):
            raise ValueError("a clique names an attribute twice")
        try:
            mask = axes_of(self.domain).mask(clique)
        except KeyError as error:
            raise ValueError(f"no attribute {error}; a clique is a sequence of names, such as ('age', 'sex')") from None
        table = self._query().project(mask) if mask else np.ones(())
        marginal: np.ndarray = np.multiply(from_rank_order(self.domain, clique, table), self.total, order="C")
        return marginal

    def project_many(self, cliques: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Projects onto one clique after the other.

        What several need is computed once. Two attributes that no potential connects are independent: the product of
        their own marginals. Of very many pairs those across the tree are formed together, before the first is yielded.
        """
        axes, query, cliques = axes_of(self.domain), self._query(), list(cliques)
        swept = query.project_pairs(axes.mask(clique) for clique in cliques if len(set(clique)) == 2)
        for clique in cliques:
            ranks = [axes.rank[name] for name in clique]
            if len(ranks) == 2 and query.tree.roots[ranks[0]] != query.tree.roots[ranks[1]]:
                first, second = (query.project(1 << rank) for rank in ranks)
                yield np.multiply.outer(first, second) * self.total
            elif len(ranks) == 2 and (table := swept.get(1 << ranks[0] | 1 << ranks[1])) is not None:
                yield np.multiply(table if ranks[0] < ranks[1] else table.T, self.total, order="C")
            else:
                yield self.project(clique)

    def probability_at(self, clique: Sequence[str], cells: np.ndarray) -> np.ndarray:
        """Returns probabilities of some cells of a clique.

        It forms the whole marginal only where that is cheaper; a clique across the tree costs, per cell, the cells of
        the separators on the way.

        Args:
            clique: distinct attributes.
            cells: (m, len(clique)) integer values, columns in the order of the clique.

        Returns:
            (m,) float64 probabilities (not counts).
        """
        cells = checked_cells(clique, cells)
        axes = axes_of(self.domain)
        mask = axes.mask(clique)
        if mask == 0:
            return np.ones(len(cells))
        columns = {axes.rank[name]: cells[:, i].astype(np.intp) for i, name in enumerate(clique)}
        return self._query().at(mask, columns)

    def log_likelihood(self, codes: np.ndarray) -> np.ndarray:
        """Returns the natural-log probability of each row.

        It adds potentials and forms no ratios of marginals: a row that the model holds nearly impossible gets its (very
        negative) value and never 0/0. A row in an impossible cell gets -inf.

        Args:
            codes: (n, d) integers, columns in domain order.

        Returns:
            (n,) float64.
        """
        codes = checked_codes(self.domain, codes)
        most = max(1, _CELLS_AT_ONCE // math.prod(size for _, size in self.domain.hidden))
        parts = [self._log_likelihood(codes[start : start + most]) for start in range(0, max(1, len(codes)), most)]
        return np.concatenate(parts)

    @property
    def neighbours(self) -> dict[str, list[str]]:
        """Other attributes that share a potential with each.

        Through hidden ones all do.
        """
        axes = axes_of(self.domain)
        cliques = [tuple(self.domain)] if axes.hidden else [axes.clique(mask) for mask in self._tables]
        beside: dict[str, set[str]] = {name: set() for name in self.domain}
        for clique in cliques:
            for name in beside.keys() & set(clique):
                beside[name] |= {*clique} - {name}
        return {name: [other for other in self.domain if other in some] for name, some in beside.items()}

    def log_odds(self, codes: np.ndarray, attribute: str, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Returns the log odds of rows between two values of an attribute.

        All other values stay as they are.

        Args:
            codes: (n, d) integers, columns in domain order.
            attribute: whose value is changed.
            low, high: (n,) values of it.

        Returns:
            (n,) float64, log P(row with high) - log P(row with low); 0 where either is impossible.
        """
        axes, likelihoods = axes_of(self.domain), []
        wanted = None if axes.hidden else 1 << axes.rank[attribute]  # other potentials are equal on both sides
        for value in (low, high):
            rows = codes.copy()
            rows[:, self.domain.axes((attribute,))[0]] = value
            likelihoods.append(self.log_likelihood(rows) if wanted is None else self._log_likelihood(rows, wanted))
        with np.errstate(invalid="ignore"):
            return np.asarray(np.nan_to_num(likelihoods[1] - likelihoods[0], nan=0.0, posinf=0.0, neginf=0.0))

    def _log_likelihood(self, codes: np.ndarray, wanted: int = -1) -> np.ndarray:
        """Sums the potentials that share an attribute with `wanted`."""
        axes = axes_of(self.domain)
        hidden = tuple(bits(axes.hidden))
        out = np.full((len(codes), *(axes.sizes[rank] for rank in hidden)), -self.log_partition)
        for mask, table in self._tables.items():
            if not mask & wanted:
                continue
            ranks = sorted(bits(mask), key=lambda rank: axes.hidden >> rank & 1)
            part = table.transpose([bits(mask).index(rank) for rank in ranks])
            columns = tuple(codes[:, axes.order[rank]] for rank in ranks if not axes.hidden >> rank & 1)
            part = part[columns] if columns else part[None]
            out += part.reshape(len(part), *(axes.sizes[rank] if mask >> rank & 1 else 1 for rank in hidden))
        if hidden:
            out = np.asarray(np.logaddexp.reduce(out.reshape(len(codes), -1), axis=1))
        barred = self.domain.violated(codes)
        for name, values in self._conditions.items():
            barred |= ~values[codes[:, self.domain.axes((name,))[0]]]
        out[barred] = -np.inf
        return out

    def sample(self, n: int, rng: RandomSource, *, independent: bool = False) -> np.ndarray:
        """Draws synthetic rows whose marginals follow the model's up to rounding.

        Args:
            n: number of rows.
            rng: source of randomness; only `random(size)` is called.
            independent: rows drawn each for itself instead, as variances of estimates take them for.

        Returns:
            (n, d) codes in the smallest unsigned integer type that holds every value, columns in domain order.
        """
        rows = sample_rows(self._query(), n, rng, deal_independently if independent else None)
        dtype = np.min_scalar_type(max(self.domain.shape, default=1) - 1)
        out = np.empty((n, len(self.domain)), dtype=dtype)
        for rank, column in enumerate(axes_of(self.domain).order):
            if column < len(self.domain):
                out[:, column] = rows[:, rank]
        return out

    # ------------------------------------------------------------------ other forms

    def with_total(self, total: float) -> Model:
        """Returns the same distribution with another total.

        It shares everything computed so far.
        """
        other = object.__new__(Model)
        other.__dict__.update(self.__dict__)
        other.total = checked_total(total)
        return other

    def conditioned(self, masks: Mapping[str, npt.ArrayLike]) -> Model:
        """Returns the exact conditional distribution for allowed values.

        Each named attribute has one of its allowed values.

        >>> domain = Domain(("ward", "smoker"), (2, 2))
        >>> model = Model(domain, {("ward", "smoker"): np.log([[8.0, 2.0], [5.0, 5.0]])}, 20.0)
        >>> in_ward = model.conditioned({"ward": [True, False]})
        >>> round(in_ward.total, 6), in_ward.project(("ward", "smoker")).round(6).tolist()
        (10.0, [[8.0, 2.0], [0.0, 0.0]])

        Args:
            masks: attribute -> (size,) boolean, True for the values allowed.

        Returns:
            A model whose total is the number of records that the condition holds for. A rare condition costs no
            accuracy: logarithms of probabilities are compared.

        Raises:
            ValueError: no such attribute, or a mask of another shape.
            InputError: the condition has probability 0.
        """
        present, added = self._conditions, self.domain.conditions(masks)
        allowed = {
            **present,
            **{name: mask & present[name] if name in present else mask for name, mask in added.items()},
        }
        structural = [axes_of(self.domain).clique(mask) for mask in self._structural]
        other = Model(self.domain, self.potentials, self.total, structural_cliques=structural, conditions=allowed)
        try:
            share = math.exp(min(0.0, other.log_partition - self.log_partition))
        except ValueError:
            share = 0.0
        if not share * self.total > 0:
            raise InputError(f"no row can meet the condition on {', '.join(masks)}: its probability is 0")
        other.total = share * self.total
        return other

    def to_mbi(self) -> Any:
        """Returns this model as a `MarkovRandomField` of Private-PGM's package mbi.

        Its constraints are the structural zeros and the conditions; hidden attributes come after the table's. It needs
        the extra `pgm`.
        """
        from fedsyn.inference.mbi_forms import random_field

        potentials = self.potentials
        marginals = {clique: self.project(clique) for clique in potentials}
        zeros = (*self.domain.zeros, *(Zeros((name,), ~mask) for name, mask in self._conditions.items()))
        return random_field(replace(self.domain, zeros=zeros), potentials, marginals, self.total)

    @classmethod
    def from_mbi(cls, theirs: Any, domain: Domain | None = None) -> Model:
        """Reads a `MarkovRandomField` of mbi's.

        Its constraints, and cells with a potential of minus infinity, become structural zeros.

        Args:
            theirs: a model of mbi's that has potentials.
            domain: of the model, such as a schema's; None: as mbi has it.

        Raises:
            ValueError: a model without potentials, or of another domain.
        """
        from fedsyn.inference.mbi_forms import parts_of_field

        return cls(*parts_of_field(theirs, domain))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns arrays for an npz file or a message.

        They are `model` (uint8, JSON) and `potentials` (float64); `info` is left out.
        """
        axes = axes_of(self.domain)
        head: dict[str, Any] = {
            "cliques": [axes.clique(mask) for mask in self._tables],
            "structural_cliques": [axes.clique(mask) for mask in self._structural],
        }
        if self._conditions:
            head["conditions"] = {name: np.flatnonzero(mask).tolist() for name, mask in self._conditions.items()}
        format_ = _CONDITIONED_FORMAT if self._conditions else _FORMAT
        if self.domain.hidden:
            head["hidden"], format_ = list(self.domain.hidden), _HIDDEN_FORMAT
        tables = [np.zeros(0), *(table.ravel() for table in self._tables.values())]
        return {"model": packed_head(self.domain, self.total, format_, **head), "potentials": np.concatenate(tables)}

    @classmethod
    def from_arrays(cls, domain: Domain, arrays: Mapping[str, np.ndarray]) -> Model:
        """Reads the model that `to_arrays` described, bit for bit.

        Structural zeros are the given domain's.

        Raises:
            ProtocolError: the arrays are malformed or belong to another domain.
        """
        try:
            head = read_head(domain, arrays, (_FORMAT, _CONDITIONED_FORMAT, _HIDDEN_FORMAT))
            domain = replace(domain, hidden=hidden_of(head))
            flat = np.asarray(arrays["potentials"], dtype=np.float64).ravel()
            axes = axes_of(domain)
            cliques = [tuple(clique) for clique in head["cliques"]]
            sizes = [domain.size(clique) for clique in cliques]
            if sum(sizes) != len(flat):
                raise ProtocolError("the model's potentials do not have the size of its cliques")
            parts = np.split(flat, np.cumsum(sizes)[:-1]) if cliques else []
            potentials = {}
            for clique, part in zip(cliques, parts, strict=True):
                table = part.reshape(axes.shape(axes.mask(clique)))
                potentials[clique] = from_rank_order(domain, clique, table)
            structural = [tuple(clique) for clique in head["structural_cliques"]]
            allowed = {} if head["format"] == _FORMAT else head.get("conditions", {})
            conditions = {name: np.isin(np.arange(domain[name]), values) for name, values in allowed.items()}
            return cls(domain, potentials, head["total"], structural_cliques=structural, conditions=conditions)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError("the model that was received is malformed") from error


def packed_head(domain: Domain, total: float, format_: int | str, **more: Any) -> np.ndarray:
    """Returns the head of a model's arrays, (n,) uint8 JSON.

    It goes under the key `model`, and holds format, domain, total and the entries of `more`.
    """
    head = {
        "format": format_,
        "attributes": list(domain.attributes),
        "shape": list(domain.shape),
        "total": total.hex(),
        **more,
    }
    return np.frombuffer(json.dumps(head).encode(), dtype=np.uint8).copy()


def read_head(domain: Domain, arrays: Mapping[str, np.ndarray], formats: Sequence[int | str]) -> dict[str, Any]:
    """Returns the head of a model's arrays, with its total as number.

    Raises:
        ProtocolError: another format, or another domain.
        AttributeError, KeyError, TypeError, ValueError: it is malformed.
    """
    head: dict[str, Any] = json.loads(np.asarray(arrays["model"], dtype=np.uint8).tobytes())
    if head["format"] not in formats:
        raise ProtocolError(f"unknown model format {head['format']!r}; this version reads {formats[0]!r}")
    if (tuple(head["attributes"]), tuple(head["shape"])) != (domain.attributes, domain.shape):
        raise ProtocolError("the model belongs to another domain than the schema's")
    return {**head, "total": float.fromhex(head["total"])}


def hidden_of(head: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Returns the hidden attributes that a model's head names.

    It raises ValueError if no model here can have them.
    """
    if head.get("format") != _HIDDEN_FORMAT:
        return ()
    hidden = tuple((str(name), int(size)) for name, size in head["hidden"])
    if len(hidden) > MOST_FACTORS or math.prod(max(1, size) for _, size in hidden) > _MOST_HIDDEN:
        raise ValueError("more hidden attributes, or of more values, than a model has")
    return hidden


def checked_total(total: float) -> float:
    """Returns the total of a model, checked.

    It raises ValueError unless the total is positive and finite.
    """
    if not (math.isfinite(total) and total > 0):
        raise ValueError("the total of a model must be positive and finite")
    return float(total)


def checked_cells(clique: Sequence[str], cells: np.ndarray) -> np.ndarray:
    """Returns cells of a clique, (m, |clique|); ValueError for another shape."""
    cells = np.asarray(cells)
    if cells.ndim != 2 or cells.shape[1] != len(clique) or len(set(clique)) != len(clique):
        raise ValueError("cells must have one column for each of the clique's distinct attributes")
    return cells


def checked_codes(domain: Domain, codes: np.ndarray) -> np.ndarray:
    """Returns codes of a domain, (n, d); ValueError for another shape."""
    codes = np.asarray(codes)
    if codes.ndim != 2 or codes.shape[1] != len(domain):
        raise ValueError("codes must have one column for each attribute of the domain")
    return codes


def to_rank_order(domain: Domain, clique: Sequence[str], table: np.ndarray) -> np.ndarray:
    """Returns a view of a clique's table with its axes by rank.

    It raises ValueError for a wrong shape or a repeated attribute.
    """
    if len(set(clique)) != len(clique):
        raise ValueError("a clique names an attribute twice")
    if table.shape != domain.shape_of(clique):
        raise ValueError(f"table of shape {table.shape} for a clique of shape {domain.shape_of(clique)}")
    rank = axes_of(domain).rank
    order = sorted(range(len(clique)), key=lambda axis: rank[clique[axis]])
    return table.transpose(order)


def from_rank_order(domain: Domain, clique: Sequence[str], table: np.ndarray) -> np.ndarray:
    """Returns a table with its axes in the clique's order, a view."""
    rank = axes_of(domain).rank
    order = sorted(range(len(clique)), key=lambda axis: rank[clique[axis]])
    return table.transpose(np.argsort(order))
