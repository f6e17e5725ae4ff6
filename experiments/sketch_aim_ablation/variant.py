"""sketch_aim with each of its choices taken back, one at a time: `mechanism: {name: ...variant:Variant, even: true}`.

Every client of it answers what sketch_aim's answers, and counts in place of residuals. What a row pays follows from the
layouts below, as in the mechanism itself; nothing here is meant for real rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedsyn.inference import Hierarchy
from fedsyn.inference.shrinkage import Departure
from fedsyn.mechanism import (
    COUNTS,
    Call,
    Clique,
    Contribution,
    Field,
    Layout,
    Measurement,
    ModelView,
    ProtocolError,
    Summed,
    answers,
    most_cells,
)
from fedsyn.plugins.clients.sketch_aim import (
    FINEST,
    Residuals,
    SketchAimClient,
    SketchAimContract,
    SketchAimOptions,
    Sketches,
    Weight,
)
from fedsyn.plugins.strategies.sketch_aim import Part, SketchAim, Sketched, expanded, in_cells, integer_weights
from fedsyn.selection.indif import clique_key, sign_bits, splitmix64
from fedsyn.selection.planning import MeasurementPlan, ModelErrors
from fedsyn.selection.resolution import Ladders
from fedsyn.selection.sketches import Sketcher, make_sketcher
from fedsyn.table.counting.marginals import count_sparse_many

# Cells whose signs are expanded at the same time: 64 of them fill 8 MB.
_CELLS_AT_ONCE = 1 << 14
# Marginals of an evenly divided run.
_EVEN = 20


class VariantOptions(SketchAimOptions):
    """Options of sketch_aim, and what each of its choices may be replaced by.

    Attributes:
        sketch: 'interactions', as sketch_aim; 'groups': coarse marginals; 'count': CountSketch; 'signs': a +-1/sqrt(k)
            projection.
        sizes: numbers of attributes of the cliques that may be sketched.
        even: twenty marginals, as many in each round and all with the same noise, in place of a planned division.
        resolution: what is measured comes in groups of values, as few as the 'noise' allows, or always in all 'cells'.
        one_way: what the plan buys of one-way marginals: 'flat', cells; 'hierarchical', blocks of 1, 2, 4, ... values.
        always: sketches also where they could not show anything.
        room: where the model is full, a plan by gain for room is weighed against the plan by gain alone.
        staged: the plan of round t fills t/T of the tree; else of all.
        forest: the first plan begins with a spanning forest.
        many: many sketches have a larger share of the budget.
        doubt: a mean of triples' sketches that noise alone could give is not believed.
        weights: sketches of pairs have less noise than those of triples, as more queries need them.
        residuals: chosen marginals are measured without their one-way parts; else as counts.
        factors: hidden factors, and an order for values that have none, are looked for in interactions of pairs.
    """

    sketch: Literal["interactions", "groups", "count", "signs"] = "interactions"
    sizes: tuple[int, ...] = Field(default=(2, 3), min_length=1)
    even: bool = False
    resolution: Literal["noise", "cells"] = "noise"
    one_way: Literal["hierarchical", "flat"] = "flat"
    always: bool = False
    room: bool = True
    staged: bool = True
    forest: bool = True
    many: bool = True
    doubt: bool = True
    weights: bool = True
    residuals: bool = True
    factors: bool = True

    @property
    def finds_factors(self) -> bool:
        return self.factors and self.sketch == "interactions"

    @property
    def is_grouped(self) -> bool:
        """Whether sketches put neighbouring values together."""
        return self.sketch in ("interactions", "groups")


@dataclass(frozen=True)
class Signs(Sketcher):
    """k signs for each cell: a +-1/sqrt(k) projection without its factor, r = sqrt(k).

    E ||x S||^2 = r^2 ||x||^2 over the seed for every x, with variance at most 2 r^4 ||x||^4 / k (Alon, Matias & Szegedy
    1999): they see an error of any shape. Nothing is grouped.
    """

    seed: int = 0

    signed: ClassVar[bool] = True

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return (self.width,) * len(self.cliques)

    @property
    def row_norm(self) -> float:
        return sqrt(self.width)

    @cached_property
    def row_norms(self) -> tuple[float, ...]:
        return (self.row_norm,) * len(self.cliques)

    def unit(self, i: int) -> float:
        return self.row_norm

    def of_rows(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        sparse = count_sparse_many(codes, self.domain, self.cliques)
        parts = [np.rint(self._project(i, one.cells, one.counts)) for i, one in enumerate(sparse)]
        return np.concatenate(parts).astype(np.int64)

    def of_marginal(self, i: int, values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        flat = self.coarse(i, values)
        return self._project(i, np.arange(len(flat)), flat) / self.row_norm

    def together(
        self, coarse: Sequence[npt.NDArray[np.float64]]
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        """One by one: each has signs of its own."""
        for i, table in enumerate(coarse):
            yield np.array([i]), table[None], self.of_marginal(i, table)[None]

    def coarse(self, i: int, values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Returns the marginal itself: no cells share a group."""
        return np.asarray(values, np.float64).ravel()

    def _project(
        self, i: int, cells: npt.NDArray[np.integer], values: npt.NDArray[np.number]
    ) -> npt.NDArray[np.float64]:
        """Sums value * row of S over cells; exact for integer values whose sums stay below 2^53."""
        k, key = self.lengths[i], clique_key(self.seed, self.cliques[i])
        counters: npt.NDArray[np.uint64] = np.asarray(cells).astype(np.uint64)
        out = np.zeros(k)
        for start in range(0, len(counters), _CELLS_AT_ONCE):
            some, weight = counters[start : start + _CELLS_AT_ONCE], values[start : start + _CELLS_AT_ONCE]
            bits = sign_bits(key, some, k)
            # Summed as one minus twice the bits, in a fixed order: einsum and not BLAS, whose order depends on threads.
            out += np.asarray(weight, np.float64).sum() - 2.0 * np.einsum("i,ij->j", weight, bits.astype(np.float64))
        return out


@dataclass(frozen=True)
class CountSketch(Signs):
    """A public hash sends each cell to one of k buckets with a sign (Charikar, Chen & Farach-Colton 2002): r = 1."""

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(min(self.width, self.domain.size(q)) for q in self.cliques)

    @property
    def row_norm(self) -> float:
        return 1.0

    def _project(
        self, i: int, cells: npt.NDArray[np.integer], values: npt.NDArray[np.number]
    ) -> npt.NDArray[np.float64]:
        k = self.lengths[i]
        if k == self.domain.size(self.cliques[i]):
            return np.bincount(cells, values, k).astype(np.float64, copy=False)
        drawn = splitmix64(clique_key(self.seed, self.cliques[i]), np.asarray(cells).astype(np.uint64))
        bucket = ((drawn >> np.uint64(32)) * np.uint64(k)) >> np.uint64(32)
        sign = 1.0 - 2.0 * (drawn & np.uint64(1)).astype(np.float64)
        return np.bincount(bucket.astype(np.int64), sign * values, k).astype(np.float64, copy=False)


class Weighed(Residuals):
    """Some candidates' marginals as counts, each times a weight of its own, one after the other, as ONE vector."""

    name = "measure-counts"
    leaves = "chosen marginals, each times its weight, in a sum"
    costs = "one vector of L2 sensitivity S = sqrt(sum of c_q^2): mu^2 = S^2/sigma^2; all rounds share what is left"

    weights: Annotated[list[Weight], Field(min_length=1)]

    def layout(self, contract: Any, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Groups are a function of values: whatever they are, a row is in one cell of each coarse marginal, too.

        So the vector moves by exactly sqrt(sum of c_q^2) in L2, a clique that is counted in several ways as often.
        """
        super().layout(contract, arrays)  # as many weights as cliques
        norm, cells = sqrt(sum(c * c for c in self.weights)), sum(self.coarse(contract, arrays).lengths)
        return Layout.of_vector(cells, norm, magnitude=float(max(self.weights)), replaced=COUNTS)

    @classmethod
    def largest(cls, contract: Any) -> Iterable[Layout]:
        cells = 2 * most_cells(contract)
        return [Layout.of_vector(cells, float(FINEST), magnitude=float(FINEST), replaced=COUNTS)]

    def of_rows(self, contract: Any, arrays: Any, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        counts = self.coarse(contract, arrays).of_rows(codes)
        return np.concatenate([c * table.ravel() for c, table in zip(self.weights, counts, strict=True)])


def blocks(tree: Hierarchy) -> list[npt.NDArray[np.int64]]:
    """Return, for each resolution, the block of each cell; a cell without order is its own block."""
    alone = np.arange(tree.size - tree.ordered)
    found = [np.arange(tree.ordered) // width for width in tree.widths]
    return [np.concatenate([own, (own[-1] + 1 if len(own) else 0) + alone]) for own in found]


class VariantContract(SketchAimContract):
    """sketch_aim's, with the requests and sketches of the variant."""

    Options = VariantOptions
    options: VariantOptions

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.options.sizes

    @property
    def measuring(self) -> type[Residuals]:
        return Residuals if self.options.residuals else Weighed

    def below_noise_level(self, which: Sequence[int], rows: float) -> bool:
        return not self.options.always and super().below_noise_level(which, rows)

    def sketch_share(self, rows: float) -> float:
        return super().sketch_share(rows) if self.options.many else self.options.sketch_share

    @cached_property
    def weight_of_pairs(self) -> float:
        return super().weight_of_pairs if self.options.weights else 1.0

    @cached_property
    def factors(self) -> tuple[int, ...] | None:
        return super().factors if self.options.residuals else None

    @cached_property
    def unordered(self) -> tuple[str, ...]:
        return super().unordered if self.options.finds_factors else ()

    def groups(self, cliques: Any, width: int, mass: Any, scores: Any = None) -> list[npt.NDArray[Any]]:
        return super().groups(cliques, width, mass, scores) if self.options.is_grouped else []

    def _sketcher(self, cliques: Any, width: int, arrays: Any) -> Sketcher:
        kind = self.options.sketch
        if kind == "interactions":
            return super()._sketcher(cliques, width, arrays)
        if len(arrays) != self.options.is_grouped:
            raise ProtocolError("the request does not bring the groups of the sketches, or more than them")
        if kind == "groups":
            return make_sketcher(Sketcher, self.domain, cliques, width, *arrays)
        return (CountSketch if kind == "count" else Signs)(self.domain, cliques, width, {})


class VariantClient(SketchAimClient):
    """Contributes to sums and selects nothing."""

    Contract = VariantContract

    @answers(Weighed)
    def measure(self, call: Call[Weighed]) -> Contribution:
        """The chosen marginals, exact integers, each times its weight."""
        layout = call.request.layout(self.contract, call.arrays)
        return Contribution.of_vector(call.request.of_rows(self.contract, call.arrays, self.codes), layout)


class Variant(SketchAim):
    """sketch_aim, with what its options replace."""

    Client = VariantClient
    options: VariantOptions

    def link(self, sketched: Sketched, measurements: Sequence[Measurement], left: float) -> Sketched:
        if self.options.finds_factors:
            return super().link(sketched, measurements, left)
        return sketched

    def sketches_of(self, request: Sketches, sums: Summed) -> Sketched:
        self.sketches = super().sketches_of(request, sums)
        if not self.options.doubt:
            self.sketches = replace(self.sketches, doubt=0.0)
        return self.sketches

    def shrinkage_of(self, departures: Mapping[Clique, Departure], measurements: Iterable[Measurement]) -> float | None:
        """Returns the shrinkage, from sketches by groups; the others do not tell it."""
        return super().shrinkage_of(departures, measurements) if self.options.is_grouped else None

    def missed(self, sketched: Sketched, view: ModelView) -> npt.NDArray[np.float64]:
        """As sketch_aim; sketches of whole marginals see the errors of their parts again, which are taken off."""
        if self.options.sketch == "interactions":
            return super().missed(sketched, view)
        place = {q: i for i, q in enumerate(self.candidates.cliques)}
        parts = np.zeros(len(place))
        squared = dict(zip(sketched.sketcher.cliques, sketched.errors(view), strict=True))
        for clique in sorted(squared, key=len):
            own = float(squared[clique])
            if len(clique) > 2:
                own -= float(self.planner.inside(parts)[place[clique]])
            parts[place[clique]] = max(0.0, own)
        return parts

    def divided(self, errors: ModelErrors, new: Sequence[int], left: float, t: int) -> dict[int, float]:
        if not self.options.even:
            return super().divided(errors, new, left, t)
        new = new[: -(-_EVEN // self.options.rounds)]
        self.capacity.add([self.candidates.cliques[i] for i in new])
        return dict.fromkeys(new, left / (self.options.rounds - t + 1) / max(1, len(new)))

    def best(self, errors: ModelErrors, eligible: Sequence[int], share: float, budget: float) -> MeasurementPlan:
        if self.options.room:
            return super().best(errors, eligible, share, budget)
        return self.planner.best(errors, eligible, self.room(share), budget)

    def forest_first(self, errors: ModelErrors, eligible: Sequence[int], share: float, budget: float) -> list[int]:
        return (super().forest_first if self.options.forest else self.chosen)(errors, eligible, share, budget)

    def share_of_tree(self, t: int) -> float:
        return super().share_of_tree(t) if self.options.staged else 1.0

    # What is asked for ------------------------------------------------------------------------------------------------

    @cached_property
    def resolutions(self) -> Ladders:
        if self.options.residuals:
            return super().resolutions
        assert self.model is not None
        return Ladders(self.domain, {name: self.model.project((name,)) for name in self.domain})

    def graded(self, errors: ModelErrors) -> ModelErrors:
        found = super().graded(errors)
        if not self.options.residuals:
            found = replace(found, costs=errors.costs)
        if self.options.resolution == "cells":
            found = replace(found, ladder=errors.ladder, rows=errors.rows, steps=errors.steps)
        return found

    def parts(self, plan: Mapping[int, float]) -> list[Part]:
        """As sketch_aim, or one attribute at all resolutions of its hierarchy.

        The resolutions share mu^2 as the squares of the hierarchy's weights: one row pays what it paid for cells.
        """
        found: list[Part] = []
        for i, budget in plan.items():
            clique = self.candidates.cliques[i]
            if len(clique) > 1 or self.options.one_way == "flat":
                found += super().parts({i: budget})
                continue
            tree = Hierarchy.binary(self.domain[clique[0]], self.domain.ordered.get(clique[0], 0))
            shares = np.square(tree.weights) / tree.sensitivity**2
            pairs = zip(blocks(tree), shares, strict=True)
            found += [(i, (groups,), budget * float(share)) for groups, share in pairs]
        return found

    def request(
        self, which: list[int], budgets: list[float], shapes: Sequence[tuple[int, ...]], grouped: bool
    ) -> tuple[Residuals, float]:
        """As sketch_aim, or counts: each has its 1/sigma^2, up to the rounding of its weight.

        Their sum is kept: sum of c^2 / sigma^2, less a hair, so that no rounding of sums goes beyond the budget.
        """
        if self.options.residuals:
            return super().request(which, budgets, shapes, grouped)
        weights = integer_weights(budgets)
        sigma = sqrt(sum(c * c for c in weights) / sum(budgets)) * (1.0 + 1e-13)
        return Weighed(shapes=[list(s) for s in shapes] if grouped else [], cliques=which, weights=weights), sigma

    def opened_residuals(self, sums: Summed, request: Residuals, groups: list[npt.NDArray[Any]]) -> list[Measurement]:
        """The marginals inside an opened vector, residuals or counts."""
        if not isinstance(request, Weighed) or not self.is_open(sums, "marginals"):
            return super().opened_residuals(sums, request, groups)
        factor, coarse, found = self.expansion(sums), request.coarse(self.contract, groups), []
        parts = zip(coarse.cliques, request.weights, coarse.split(sums.arrays[0]), coarse.groups, strict=True)
        for clique, weight, part, own in parts:
            one = expanded(clique, part / weight, (sums.sigmas[0] / weight) ** 2, self.total, factor)
            found.append(replace(one, groups=None if in_cells(own) else own))
        return found
