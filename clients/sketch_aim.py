"""The client half of sketch_aim, and its contract.

Clients contribute exact one-way marginals, sketches and chosen marginals, only to sums.

The server half is `strategies/sketch_aim.py`; docs/mechanisms/sketch_aim.md describes the mechanism.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from math import fsum, prod, sqrt
from statistics import fmean
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from fedsyn.config import InferenceNode
from fedsyn.inference.capacity import Capacity
from fedsyn.mechanism import (
    COUNTS,
    TWICE,
    AnyCandidates,
    Arrays,
    Call,
    CandidateIndices,
    Clique,
    ConfigError,
    Contract,
    Contribution,
    Domain,
    Field,
    Layout,
    Node,
    OneWay,
    PrivacyStatement,
    ProtocolError,
    RunConfig,
    SomeCandidates,
    Step,
    SumRequest,
    TableClient,
    answers,
    largest_measured,
    most_cells,
    require,
)
from fedsyn.selection.coarse import CoarseMarginals, grouping_of, has_order, pack_grouping
from fedsyn.selection.sketches import (
    ARRANGING,
    Interactions,
    Sketcher,
    arranging_share,
    as_pairs,
    make_sketcher,
    more_for_many,
    shows_nothing,
    weight_of_pairs,
)
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.sums import cost, dimensions, times_cells
from fedsyn.table.counting.workload import subsets

#: Largest of the integer weights by which one request gives its marginals different noise.
FINEST = 16
Weight = Annotated[int, Field(strict=True, ge=1, le=FINEST)]
# What a round is taken to spend at least, of an even part of the rounds' budget; its noise is the root of it larger.
_SMALLEST_ROUND = 1e-4
#: Largest multiple that one row adds to one entry: the entries of 2^31 rows stay within 64 bits.
LARGEST_MULTIPLE = 1 << 31


class SketchAimOptions(Node):
    """Options of sketch_aim.

    The plan decides how many marginals are measured, which, and with how much noise each.

    Attributes:
        rounds: T, sums of chosen marginals.
        one_way_share: share of the budget (mu^2) for the first look at the d one-way marginals; the plan buys more.
        sketch_share: share of the budget for the sketches, of many more (`SketchAimContract.sketch_share`); the rest is
            planned, but for what it takes to put values without an order in one (`SketchAimContract.arranging_share`).
        width: k, most entries of a sketch; fewer where they would drown in noise.
        iterations: most iterations of the fit after each round; it ends when noise explains what is left.
        final_iterations: of the last fit.
    """

    rounds: int = Field(default=5, ge=1, le=10_000)
    one_way_share: float = Field(default=0.1, gt=0, lt=1)
    sketch_share: float = Field(default=0.1, gt=0, lt=1)
    width: int = Field(default=64, ge=4, le=65536)
    iterations: int = Field(default=300, ge=1)
    final_iterations: int = Field(default=300, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> SketchAimOptions:
        if self.one_way_share + self.sketch_share >= 1.0 - ARRANGING:
            raise ValueError(f"one_way_share and sketch_share must be less than {1.0 - ARRANGING:g} together")
        return self


@lru_cache(maxsize=4)
def _taken_alone(domain: Domain, max_cells: int, max_pass: float, cliques: tuple[Clique, ...]) -> list[int]:
    """Returns positions of the cliques that a model can take by themselves.

    A clique with an attribute of one value is left out.
    """
    fits = Capacity(domain, InferenceNode(max_cells=max_cells, max_message_passing_cost=max_pass)).test()
    return [i for i, clique in enumerate(cliques) if min(domain.shape_of(clique)) > 1 and fits(clique)]


def residual_weights(budgets: Sequence[float], shapes: Sequence[tuple[int, ...]]) -> tuple[list[int], float]:
    """Returns integers c that divide a budget, and the vector's noise.

    The division is right up to rounding; the noise spends the budget.

    Noise of sigma on c G R M is noise of sigma / (c G) on R M, at a price of (c G)^2 t / sigma^2 for the share t of the
    dimensions: c G is in proportion to the root of budget / t. The largest is `FINEST` times the most cells, so that
    rounding moves the smallest by little.

    Args:
        budgets: mu^2 of each, positive.
        shapes: of the marginals, each with a residual.

    Returns:
        c of each; sigma, a hair larger than the budget's, so that no rounding of sums goes beyond it.
    """
    cells = [prod(shape) for shape in shapes]
    roots = [sqrt(b * g / dimensions(shape)) for b, g, shape in zip(budgets, cells, shapes, strict=True)]
    unit = FINEST * max(cells) / max(roots)
    weights = [max(1, round(unit * root / g)) for root, g in zip(roots, cells, strict=True)]
    squared = sum(c * c * g * dimensions(shape) for c, g, shape in zip(weights, cells, shapes, strict=True))
    return weights, sqrt(squared / sum(budgets)) * (1.0 + 1e-13)


class SketchAimContract(Contract):
    Options = SketchAimOptions
    accountant = "gaussian"
    #: Numbers of attributes of the cliques that may be sketched: others are judged by the sketches of their parts.
    sizes: ClassVar[tuple[int, ...]] = (2, 3)
    statement = PrivacyStatement(
        public="{public}",
        trust="{trust}",
        server_sees="noisy sums of one-way marginals, sketches and chosen marginals; {server}",
        client_sees="groups of neighbouring values, the chosen cliques and their weights: functions of released values",
        cost="{cost}; what rounds measure, and how, is chosen from released values behind a filter that adds up mu^2",
    )

    # The plan ---------------------------------------------------------------------------------------------------------

    def plan(self, rho: float, rows: float = math.inf) -> Iterable[Step]:
        """Divides the budget between first look, sketches and rounds.

        One-way marginals and sketches are bought once, at their shares; all rounds share what is left. A first look
        that is asked for alone may take everything, since nothing is asked after it. Sketches that put values in an
        order come before the others, and take at most `ARRANGING` from the rounds.
        """
        options = self.options
        if self.config.federation.max_participations is not None:
            return self._plan_of_cohorts(rho)
        alone = Step(FirstLook, rho, where={"alone": True}, says="where sketches would show nothing")
        if not self.sketchable:
            return [Step(FirstLook, rho, where={"alone": False}), alone]
        one_way = Step(FirstLook, options.one_way_share * rho, where={"alone": False})
        if self.below_noise_level(self.sketchable, rows):
            return [one_way, alone]
        share, least = self.sketch_share(rows), options.sketch_share
        steps = [one_way, alone, Step(Sketches, share * rho, least=least * rho if share > least else None)]
        arranging = self.arranging_share(rows)  # of fewer rows it is larger, or nothing
        if arranging or (self.unordered and rows == math.inf):
            steps.append(Step(Arrangement, ARRANGING * rho, least=arranging * rho or None, says="out of the rounds'"))
        rounds, left = options.rounds, self.rho_of_rounds(rho, least if rows == math.inf else share)
        return [*steps, Step(self.measuring, left, least=left * _SMALLEST_ROUND / rounds, times=rounds)]

    def rho_of_rounds(self, rho: float, sketches: float, arranging: float = 0.0) -> float:
        """Returns the rho that all rounds have together.

        `sketches` is the share of the sketches, `arranging` the share that went into an order for values without one.
        """
        options: SketchAimOptions = self.options
        return (1.0 - options.one_way_share - sketches - arranging) * rho

    def sketch_share(self, rows: float) -> float:
        """Returns the share of the budget for the sketches.

        It is the option `sketch_share`, and more for many sketches (`more_for_many`): up to half of what the first look
        and an order leave.

        Args:
            rows: n, public or released.
        """
        options: SketchAimOptions = self.options
        mu2 = 2.0 * self.budget.mechanism * options.sketch_share
        wanted = options.sketch_share * more_for_many(mu2, self.as_pairs(self.sketchable), rows, options.width)
        return max(options.sketch_share, min(wanted, 0.5 * (1.0 - ARRANGING - options.one_way_share)))

    def _plan_of_cohorts(self, rho: float) -> Iterable[Step]:
        """Divides the budget where a client takes part in m rounds.

        A row of a client that takes part in j <= m rounds pays for j of them, each of which costs at most 1/m of the
        budget: in the first round half of that for the d one-way marginals and half for ONE vector of sketches; in any
        other the whole, for ONE vector of one-way and chosen marginals. Every sum adds Gaussian noise, and which of
        them a client is in depends on no row, so what concerns its rows is one Gaussian mechanism with mu^2 = the sum
        of Delta^2/sigma^2 over those rounds, however cliques and weights followed from what was released before (Smith
        & Thakurta 2022). Other cohorts' releases do not depend on the row at all.
        """
        rounds, d = self.options.rounds, len(self.domain)
        most = self.paid(rounds)
        each = rho / most
        cells = sum(self.domain.shape) + most_cells(self)
        first = [Step(FirstLook, 0.5 * each / d, arrays=d, paid=most, times=rounds)]
        if self.sketchable:
            first.append(Step(Sketches, 0.5 * each, paid=most, times=rounds))
        return [*first, Step(MeasureAll, each, least=each / (d + cells), paid=most, times=rounds)]

    def below_noise_level(self, which: Sequence[int], rows: float) -> bool:
        """Returns whether sketches of these candidates would show nothing at `rows` rows.

        In that case only the first look is asked for.
        """
        if self.config.federation.max_participations is not None:
            return False
        sizes = [len(self.candidates.cliques[i]) for i in which]
        return shows_nothing(2.0 * self.budget.mechanism * self.options.sketch_share, sizes.count(min(sizes)), rows)

    @classmethod
    def check(cls, config: RunConfig) -> None:
        super().check(config)
        require(
            config.federation.max_participations is None or cls.options_of(config).rounds > 1,
            "federation.max_participations: 'sketch_aim' chooses after the first round's cohort and measures later; "
            "set mechanism.rounds to 2 or more, or leave max_participations out",
        )

    @property
    def measuring(self) -> type[Residuals]:
        """The request by which rounds measure."""
        return Residuals

    @cached_property
    def factors(self) -> tuple[int, ...] | None:
        """Factor f of each attribute in the first look; None: plain counts.

        The multiple of the attribute's size nearest to `FINEST` times the largest, so that all marginals have about the
        same noise in records.
        """
        shape = self.domain.shape
        most = max(shape, default=1)
        if most == 1 or self.config.federation.max_participations is not None:  # one value each: nothing to tell
            return None
        return tuple(max(1, round(FINEST * most / g)) * g for g in shape)

    @cached_property
    def sketchable(self) -> list[int]:
        """Candidates that may be sketched: a public fact.

        They have one of the `sizes`, and the model can take each by itself. An attribute of one value has no
        association with any other.
        """
        node = self.config.inference
        alone = _taken_alone(self.domain, node.max_cells, node.max_message_passing_cost, self.candidates.cliques)
        return [i for i in alone if len(self.candidates.cliques[i]) in self.sizes]

    @cached_property
    def weight_of_pairs(self) -> float:
        """Noise of triples' sketches over that of pairs, from the public workload."""
        asked, held = dict[Clique, float](), dict[int, list[float]]()
        for query, weight in zip(self.workload.cliques, self.workload.weights, strict=True):
            for part in subsets(query):
                asked[part] = asked.get(part, 0.0) + weight
        for clique in (self.candidates.cliques[i] for i in self.sketchable):
            held.setdefault(len(clique), []).append(asked[clique])
        return weight_of_pairs({size: fmean(weights) for size, weights in held.items()})

    def as_pairs(self, which: Sequence[int]) -> dict[int, float]:
        """Counts candidates by what their sketches cost, in those of pairs."""
        return as_pairs(Counter(len(self.candidates.cliques[i]) for i in which), self.weight_of_pairs)

    @cached_property
    def unordered(self) -> tuple[str, ...]:
        """Attributes without an order, of which a sketch shows every value.

        They are in pairs that may be sketched. Cohorts are not asked twice, so in their runs there are none.
        """
        if self.config.federation.max_participations is not None:
            return ()
        pairs = [q for q in (self.candidates.cliques[i] for i in self.sketchable) if len(q) == 2]
        few, paired = math.isqrt(self.options.width), {name for pair in pairs for name in pair}
        return tuple(n for n in self.domain if n in paired and not has_order(self.domain, n) and self.domain[n] <= few)

    def arranged(self, which: Sequence[int]) -> list[int]:
        """Returns those of some candidates that are pairs with an `unordered` attribute."""
        names, cliques = set(self.unordered), self.candidates.cliques
        return [i for i in which if len(cliques[i]) == 2 and names.intersection(cliques[i])]

    def arranging_share(self, rows: float) -> float:
        """Returns the share of the budget that orders values without an order.

        `rows` is a public or released number.
        """
        cliques, which = self.candidates.cliques, self.sketchable
        pairs = [cliques[i] for i in self.arranged(which)]
        few, named = math.isqrt(self.options.width), {name for pair in pairs for name in pair}
        sizes = {name: min(self.domain[name], few) for name in self.domain if name in named}
        both, every = [(sizes[a], sizes[b]) for a, b in pairs], sum(len(cliques[i]) == 2 for i in which)
        return arranging_share(2.0 * self.budget.mechanism, both, list(sizes.values()), rows, every)

    def sketcher(self, cliques: Sequence[Clique], width: int, arrays: Arrays | Sequence[npt.NDArray[Any]]) -> Sketcher:
        """The sketches of some cliques, the same on server and clients.

        Args:
            cliques: whose they are.
            width: most entries of each.
            arrays: the packed groups.
        """
        cliques = tuple(cliques)
        if not cliques or not all(len(q) in self.sizes for q in cliques):
            raise ProtocolError("parameter 'cliques' names a clique that these options do not sketch, or none")
        if width > self.options.width:
            raise ProtocolError(f"parameter 'width' must be at most {self.options.width}")
        return self._sketcher(cliques, width, arrays)

    def _sketcher(
        self, cliques: tuple[Clique, ...], width: int, arrays: Arrays | Sequence[npt.NDArray[Any]]
    ) -> Sketcher:
        if len(arrays) != 1:
            raise ProtocolError("the request does not bring the groups of the sketches, or more than them")
        return make_sketcher(Interactions, self.domain, cliques, width, *arrays, self.weight_of_pairs)

    def groups(
        self,
        cliques: Sequence[Clique],
        width: int,
        mass: Mapping[str, npt.NDArray[np.float64]],
        scores: Mapping[str, npt.NDArray[np.float64]] | None = None,
    ) -> list[npt.NDArray[Any]]:
        """Returns the packed groups that a request for sketches brings.

        A group holds neighbouring values; all have about equal mass.
        """
        return [pack_grouping(grouping_of(self.domain, cliques, width, mass, scores))]


class FirstLook(OneWay):
    """All one-way marginals, at their share of the budget.

    They may cost all of it where nothing is asked after them (`alone`).
    """

    costs = "one vector of L2 sensitivity S: mu^2 = S^2/sigma^2; with cohorts one array each, mu^2 = 1/sigma^2"

    alone: Annotated[bool, Field(strict=True, description="they may have all of the budget")]

    def layout(self, contract: Any, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout of ONE vector of residuals, or of plain marginals.

        A residual is what a marginal has beyond the total. With g values and a multiple f of g, one row adds f times a
        column of the projection of `residuals`: f^2 (1 - 1/g) in squared L2 norm, whatever its value, and no more than
        f to one entry.
        """
        factors: tuple[int, ...] | None = contract.factors
        if factors is None:
            return super().layout(contract, arrays)
        squared = fsum(f * f * cost((g,)) for f, g in zip(factors, contract.domain.shape, strict=True))
        cells = sum(contract.domain.shape)
        return Layout.of_vector(cells, sqrt(squared), signed=True, magnitude=float(max(factors)))

    @classmethod
    def largest(cls, contract: Any) -> Iterable[Layout]:
        return [cls(alone=False).layout(contract, ())]


class Sketches(SumRequest):
    """The sketches of some candidates, one after the other, as ONE vector."""

    name = "sketch"
    leaves = "sketches of its marginals, linear in its rows, in a sum"
    costs = "one vector of L2 sensitivity S = sqrt(sum of r^2): mu^2 = S^2/sigma^2, once"

    cliques: SomeCandidates
    width: Annotated[int, Field(strict=True, ge=4, le=65536)]

    def sketcher(self, contract: SketchAimContract, arrays: Sequence[npt.NDArray[Any]]) -> Sketcher:
        return contract.sketcher([contract.candidates.cliques[i] for i in self.cliques], self.width, arrays)

    def layout(self, contract: SketchAimContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout of the sketches, with their exact sensitivity.

        One row adds one row of each public matrix. Every row of a matrix has the same norm r, whatever groups the
        server names, so the vector moves by exactly sqrt(sum of r^2) in L2.
        """
        sketcher = self.sketcher(contract, arrays)
        return Layout.of_vector(
            sketcher.length,
            sketcher.sensitivity,
            signed=sketcher.signed,
            magnitude=sketcher.magnitude,
            replaced=TWICE if sketcher.signed else COUNTS,
        )

    @classmethod
    def sketched(cls, contract: SketchAimContract) -> Sequence[int]:
        """Returns the candidates that may be sketched."""
        return contract.sketchable

    @classmethod
    def largest(cls, contract: SketchAimContract) -> Iterable[Layout]:
        """Returns layouts of all sketches, and of one clique's.

        One clique alone has values as large as all, and the smallest noise.
        """
        which, domain = cls.sketched(contract), contract.domain
        even = {name: np.ones(size) for name, size in zip(domain, domain.shape, strict=True)}
        groups = contract.groups([contract.candidates.cliques[i] for i in which], contract.options.width, even)
        every = cls(cliques=list(which), width=contract.options.width).layout(contract, groups)
        largest = every.magnitude
        return [every, Layout.of_vector(every.length, 0.25 * largest, signed=True, magnitude=largest)]


class Arrangement(Sketches):
    """Sketches of pairs, by which values without an order get one.

    They come before all other sketches.
    """

    name = "arrange"

    @classmethod
    def sketched(cls, contract: SketchAimContract) -> Sequence[int]:
        """Returns the pairs with an attribute without an order."""
        return contract.arranged(contract.sketchable)


class Residuals(SumRequest):
    """Residuals of candidates' marginals beyond their parts, as ONE vector.

    A residual is beyond one-way marginals and total.
    """

    name = "measure"
    leaves = "what chosen marginals have beyond their one-way marginals and total, each times an integer, in a sum"
    costs = (
        "one vector of L2 sensitivity S = sqrt(sum of c_q^2 G_q D_q), G_q the cells of a marginal and D_q the "
        "dimensions beyond its parts: mu^2 = S^2/sigma^2; all rounds share what is left"
    )

    shapes: Annotated[
        list[list[Annotated[int, Field(strict=True, ge=1)]]],
        Field(description="groups of each attribute of each clique, which come along; none: every value is its own"),
    ]
    cliques: AnyCandidates
    weights: Annotated[
        list[Annotated[int, Field(strict=True, ge=1, le=LARGEST_MULTIPLE)]],
        Field(min_length=1, description="c of each; the residual, a fraction of cells, is multiplied by them too"),
    ]

    def chosen(self, contract: Contract) -> list[Clique]:
        return [contract.candidates.cliques[i] for i in self.cliques]

    def coarse(self, contract: Contract, arrays: Arrays | Sequence[npt.NDArray[Any]]) -> CoarseMarginals:
        """Returns the cliques in groups of values.

        Where no groups came along, each value is a group of its own.
        """
        if len(arrays) != bool(self.shapes):
            raise ProtocolError("the request does not bring the groups of its marginals, or more than them")
        domain, cliques = contract.domain, self.chosen(contract)
        if self.shapes:
            return CoarseMarginals.unpack(domain, cliques, self.shapes, arrays[0])
        return CoarseMarginals.in_groups(domain, cliques, [tuple(map(np.arange, domain.shape_of(q))) for q in cliques])

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout of a vector that moves by exactly S.

        S is in L2, the same for every row and whatever the groups.

        A row is in one cell of each marginal, and adds c G R e to the vector there: e the unit table of that cell, R
        the projection of `fedsyn.table.counting.sums`, whose columns all have the squared norm dimensions / G. So
        S^2 = sum of (c G)^2 dimensions / G = sum of c^2 G dimensions. No entry moves by more than c G.
        """
        if len(self.weights) != len(self.cliques):
            raise ProtocolError("parameter 'weights' must have one weight for each of 'cliques'")
        shapes = self.coarse(contract, arrays).shapes
        cells = [prod(shape) for shape in shapes]
        largest = max(c * g for c, g in zip(self.weights, cells, strict=True))
        if largest > LARGEST_MULTIPLE:
            raise ProtocolError(f"parameter 'weights' times the marginal's cells must be at most {LARGEST_MULTIPLE}")
        squared = sum(c * c * g * dimensions(shape) for c, g, shape in zip(self.weights, cells, shapes, strict=True))
        return Layout.of_vector(sum(cells), sqrt(squared), signed=True, magnitude=float(largest))

    @classmethod
    def largest(cls, contract: Contract) -> Iterable[Layout]:
        """Returns layouts of as many cells as fit a model.

        One is of marginals of two cells, one of the largest.

        A residual's values are at most c G of a row, c G being `FINEST` times the most cells of a marginal, or half of
        its own cells more (`residual_weights`); a row moves the vector by half of that at least.
        """
        for cells in (2, largest_measured(contract)):
            most = (FINEST + 0.5) * cells
            if most > LARGEST_MULTIPLE:
                raise ConfigError(
                    f"a marginal of {cells:,} cells is too large to be measured without its parts: lower "
                    f"inference.max_cells; allowed: {int(LARGEST_MULTIPLE / (FINEST + 0.5)):,} or less"
                )
            yield Layout.of_vector(2 * most_cells(contract), most / 2.0, signed=True, magnitude=most)

    def of_rows(self, contract: Contract, arrays: Arrays, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The vector of a table, (n, d) codes: exact integers."""
        counts = self.coarse(contract, arrays).of_rows(codes)
        parts = [c * times_cells(table).ravel() for c, table in zip(self.weights, counts, strict=True)]
        return np.concatenate(parts).astype(np.int64, copy=False)


class MeasureAll(SumRequest):
    """One-way and chosen marginals, each times its weight, as ONE vector."""

    name = "measure-all"
    leaves = "the counts of every attribute and of the chosen cliques, each times its weight, in a sum"
    costs = "one vector of L2 sensitivity S = sqrt(sum of c^2): mu^2 = S^2/sigma^2, a round's share of the budget"

    one_way: Annotated[list[Weight], Field(min_length=1, description="weights of the attributes")]
    cliques: CandidateIndices
    weights: list[Weight]

    def measured(self, contract: Contract) -> list[Clique]:
        """All marginals, in the order of the vector."""
        return [(name,) for name in contract.domain] + [contract.candidates.cliques[i] for i in self.cliques]

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns the layout, with sensitivity S = sqrt(sum of c^2).

        A row is in one cell of each marginal, so it moves the vector by exactly S in L2.
        """
        if len(self.weights) != len(self.cliques):
            raise ProtocolError("parameter 'weights' must have one weight for each of 'cliques'")
        if len(self.one_way) != len(contract.domain):
            raise ProtocolError("parameter 'one_way' must have one weight for each attribute")
        weights, cells = [*self.one_way, *self.weights], sum(map(contract.domain.size, self.measured(contract)))
        squared = sum(c * c for c in weights)
        return Layout.of_vector(cells, sqrt(squared), magnitude=float(max(weights)), replaced=COUNTS)

    @classmethod
    def largest(cls, contract: Contract) -> Iterable[Layout]:
        cells = sum(contract.domain.shape) + most_cells(contract)
        return [Layout.of_vector(cells, float(FINEST), magnitude=float(FINEST), replaced=COUNTS)]


class SketchAimClient(TableClient):
    """Contributes to sums and selects nothing."""

    Contract = SketchAimContract
    contract: SketchAimContract

    @answers(FirstLook)
    def one_way(self, call: Call[Any]) -> Contribution:
        """Contributes one-way marginals, or integer multiples of their residuals.

        A multiple is f times what a marginal has beyond the total.
        """
        factors, domain = self.contract.factors, self.domain
        if factors is None:
            return super().one_way(call)
        counts = count(self.codes, domain, [(name,) for name in domain])
        parts = [f // len(marginal) * times_cells(marginal) for f, marginal in zip(factors, counts, strict=True)]
        vector = np.concatenate(parts).astype(np.int64, copy=False)
        return Contribution.of_vector(vector, call.layout)

    @answers(Arrangement)
    def arrange(self, call: Call[Any]) -> Contribution:
        """Contributes the sketches of an `Arrangement`."""
        return self.sketch(call)

    @answers(Sketches)
    def sketch(self, call: Call[Any]) -> Contribution:
        """The sketches of its rows, exact integers."""
        vector = call.request.sketcher(self.contract, call.arrays).of_rows(self.codes)
        return Contribution.of_vector(np.asarray(vector), call.layout)

    @answers(Residuals)
    def measure_residuals(self, call: Call[Residuals]) -> Contribution:
        """Contributes the chosen marginals' residuals: exact integers."""
        layout = call.layout  # which refuses what does not fit, before a row is counted
        return Contribution.of_vector(call.request.of_rows(self.contract, call.arrays, self.codes), layout)

    @answers(MeasureAll)
    def measure_all(self, call: Call[MeasureAll]) -> Contribution:
        """All one-way and the chosen marginals, exact integers, each times its weight."""
        request = call.request
        plain = Layout.of_marginals(self.domain, request.measured(self.contract))
        counted, weights = self.marginals(plain), np.array([*request.one_way, *request.weights], np.int64)
        which = np.searchsorted(plain.offsets, counted.cells, side="right") - 1
        return Contribution(counted.cells, counted.values * weights[which], (0,), call.layout)
