"""The client half of sketch_aim, and its contract: exact one-way marginals, sketches, chosen marginals, for sums only.

The server half is `strategies/sketch_aim.py`; docs/mechanisms/sketch_aim.md describes the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import fsum, prod, sqrt
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from fedsyn.aggregation import Contribution
from fedsyn.config import InferenceNode, RunConfig
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.inference.capacity import Capacity
from fedsyn.privacy import PrivacyStatement, gaussian_rho, sigma_for_rho
from fedsyn.privacy.release import COUNTS, TWICE
from fedsyn.protocol.client import OneWay, TableClient, answers
from fedsyn.protocol.common import Marginals
from fedsyn.protocol.contract import Contract, require
from fedsyn.protocol.plan import Foreseen, ForeseenSum, Planned, largest_measured, most_cells
from fedsyn.selection.coarse import Coarse
from fedsyn.selection.groups import grouping_of, has_order, pack_grouping
from fedsyn.selection.rows import ARRANGING, arranging_share, shows_nothing
from fedsyn.selection.sketches import Interactions, Sketcher, make_sketcher
from fedsyn.settings import Node
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.residuals import cost, dimensions, times_cells
from fedsyn.wire.envelope import Arrays
from fedsyn.wire.holder import Call
from fedsyn.wire.requests import AnyCandidates, CandidateIndices, Layout, Request, SomeCandidates, SumRequest

#: What is summed, for the statement.
SUMS = (
    "once, one vector of {d} one-way marginals, and {looks} of sketches, each at mu^2 = S^2/sigma^2, with S^2 the sum "
    "of their squared sensitivities; in each of {m} rounds one vector of what chosen marginals have beyond their "
    "one-way parts, at S^2/sigma^2 likewise"
)
#: The same where each client takes part in some rounds only.
SUMS_OF_COHORTS = (
    "in the first round {d} one-way marginals at mu^2 = 1/sigma^2 each and one vector of sketches at S^2/sigma^2, with "
    "S^2 the sum of their squared sensitivities; in any other one vector of {d} one-way and the chosen marginals with "
    "weights c, at (sum of c^2)/sigma^2"
)
#: Largest of the integer weights by which one request gives its marginals different noise.
FINEST = 16
Weight = Annotated[int, Field(strict=True, ge=1, le=FINEST)]
# What a round is taken to spend at least, of an even part of the rounds' budget; its noise is the root of it larger.
_SMALLEST_ROUND = 1e-4
#: Largest multiple that one row adds to one entry: the entries of 2^31 rows stay within 64 bits.
LARGEST_MULTIPLE = 1 << 31


class SketchAimOptions(Node):
    """Options of sketch_aim. How many marginals are measured, which, and with how much noise each, is planned.

    Attributes:
        rounds: T, sums of chosen marginals.
        one_way_share: share of the budget (mu^2) for the first look at the d one-way marginals; the plan buys more.
        sketch_share: share of the budget for the sketches; the rest is planned, but for what it takes to put values
            without an order in one (`SketchAimContract.arranging_share`).
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


@dataclass(frozen=True)
class SketchScales:
    """How the budget is divided before the first request.

    Attributes:
        one_way: standard deviation of the noise on the first one-way marginals, in multiples of their joint L2
            sensitivity.
        per_sensitivity: of the sketches, likewise.
        planned: mu^2 that is left for the rounds.
        arranging: of the first sketches, which put values in an order, as `per_sensitivity`.
    """

    one_way: float
    per_sensitivity: float
    planned: float
    arranging: float = math.inf

    @classmethod
    def of(cls, mu2: float, options: SketchAimOptions, choice: bool = True, arranging: float = 0.0) -> SketchScales:
        """Where there is nothing to choose from, the one-way marginals get all of mu^2; `arranging`: a share of it."""
        if not choice:
            return cls(1.0 / sqrt(mu2), math.inf, 0.0)
        left = 1.0 - options.one_way_share - options.sketch_share - arranging
        first = 1.0 / sqrt(arranging * mu2) if arranging else math.inf
        one_way, sketches = 1.0 / sqrt(options.one_way_share * mu2), 1.0 / sqrt(options.sketch_share * mu2)
        return cls(one_way, sketches, left * mu2, first)


@lru_cache(maxsize=4)
def _taken_alone(domain: Domain, max_cells: int, max_pass: float, cliques: tuple[Clique, ...]) -> list[int]:
    """Which cliques a model can take by themselves; not those of an attribute of one value."""
    fits = Capacity(domain, InferenceNode(max_cells=max_cells, max_message_passing_cost=max_pass)).test()
    return [i for i, clique in enumerate(cliques) if min(domain.shape_of(clique)) > 1 and fits(clique)]


def residual_weights(budgets: Sequence[float], shapes: Sequence[tuple[int, ...]]) -> tuple[list[int], float]:
    """Integers c that divide a budget, up to rounding, and the noise on the vector that spends it.

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


@dataclass(frozen=True)
class CohortBudget:
    """The noise of each sum, where a client takes part in at most m rounds.

    A row of a client that takes part in j <= m rounds pays for j of them, each of which costs at most 1/m of the
    budget: in the first round half of that for the d one-way marginals and half for ONE vector of sketches; in any
    other the whole, for ONE vector of one-way and chosen marginals. Every sum adds Gaussian noise, and which of them a
    client is in depends on no row, so what concerns its rows is one Gaussian mechanism with mu^2 = the sum of
    Delta^2/sigma^2 over those rounds, however cliques and weights followed from what was released before (Smith &
    Thakurta 2022). Other cohorts' releases do not depend on the row at all.

    Attributes:
        each: zCDP of one round, for one row.
        attributes: d.
        most: m.
    """

    each: float
    attributes: int
    most: int

    @classmethod
    def of(cls, rho: float, attributes: int, most: int) -> CohortBudget:
        return cls(rho / most, attributes, most)

    @property
    def first_one_way(self) -> float:
        """Standard deviation of the one-way marginals of the first round, in records."""
        return sigma_for_rho(0.5 * self.each / self.attributes)

    @property
    def per_sensitivity(self) -> float:
        """Standard deviation of the sketches, in multiples of their joint L2 sensitivity."""
        return sigma_for_rho(0.5 * self.each)

    def later(self, sensitivity: float) -> float:
        """Standard deviation of a later cohort's vector of that L2 sensitivity."""
        return sigma_for_rho(self.each, sensitivity)

    def planned(self, name: str, layout: Layout | None) -> Planned | None:
        """The most that each of the mechanism's requests may cost a row: in one round, and in all m."""
        if layout is None:
            return None
        once = {
            Marginals.name: 0.0,  # of the other schedule
            "one-way": self.attributes * gaussian_rho(self.first_one_way),
            "sketch": gaussian_rho(self.per_sensitivity),
            MeasureAll.name: self.each,
        }.get(name)
        return None if once is None else Planned(once, self.most * once)


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
        cost="{sums}, chosen from released values behind a filter that adds up mu^2: exactly one Gaussian mechanism; "
        "noise drawn by {noise}",
        sampler="{sampler}",
    )

    general_words: ClassVar[dict[str, object]] = {"sums": SUMS.format(d="`d`", m="`m`", looks="one or two")}

    def words(self) -> dict[str, object]:
        sums = SUMS if self.config.federation.max_participations is None else SUMS_OF_COHORTS
        looks = "one or two" if self.unordered else "one"
        return {"sums": sums.format(d=len(self.domain), m=self.options.rounds, looks=looks)}

    def planned(self, request: Request, layout: Layout | None) -> Planned | None:
        """One-way marginals and sketches once at their shares; all rounds together what is left.

        Sketches that put values in an order come before the others, at no more than `ARRANGING`.

        One-way marginals that are asked for alone may have everything: nothing is left to ask with after that.
        """
        if self.config.federation.max_participations is not None:
            return self.budget_of_cohorts(self.budget.mechanism).planned(request.name, layout)
        options = self.options
        scales = SketchScales.of(2.0 * self.budget.mechanism, options, bool(self.sketchable))
        if isinstance(request, FirstLook) and request.alone:
            return Planned(self.budget.mechanism, self.budget.mechanism)
        if isinstance(request, OneWay):
            return Planned(gaussian_rho(scales.one_way), gaussian_rho(scales.one_way))
        if not isinstance(request, Sketches | Residuals):
            return Planned(0.0) if isinstance(request, MeasureAll) else None
        if not self.sketchable:
            return Planned(0.0)
        if isinstance(request, Arrangement):
            most = ARRANGING * self.budget.mechanism if self.unordered else 0.0
            return Planned(most, most)
        if isinstance(request, Sketches):
            return Planned(gaussian_rho(scales.per_sensitivity), gaussian_rho(scales.per_sensitivity))
        return Planned(scales.planned / 2.0, scales.planned / 2.0)

    def foreseen(self, rows: int) -> Iterable[Foreseen]:
        """First look, sketches of all that may be sketched, and in the rounds as many cells as a model can take.

        A residual's values are at most c G of a row, c G being `FINEST` times the most cells of a marginal, or half of
        its own cells more (`residual_weights`); a row moves the vector by half of that at least.
        """
        options = self.options
        scales = SketchScales.of(2.0 * self.budget.mechanism, options, bool(self.sketchable))
        cohorts = self.config.federation.max_participations is not None
        budget = self.budget_of_cohorts(self.budget.mechanism)
        first = FirstLook(alone=False).layout(self, ())
        once = self.planned(FirstLook(alone=False), first)
        assert once is not None
        yield ForeseenSum.of(
            OneWay.name, first, self.budget.mechanism, part=min(1.0, once.once / self.budget.mechanism)
        )
        if cohorts:
            if self.sketchable:
                yield from self._foreseen_sketches(Sketches, self.sketchable, gaussian_rho(budget.per_sensitivity))
            yield self._weighed_of_all(budget.each, options.rounds)
            return
        if not self.sketchable or self.below_noise_level(self.sketchable, rows):
            return
        if share := self.arranging_share(rows):  # of fewer rows it is larger
            pairs, part = self.arranged(self.sketchable), share / ARRANGING
            yield from self._foreseen_sketches(Arrangement, pairs, ARRANGING * self.budget.mechanism, part)
        yield from self._foreseen_sketches(Sketches, self.sketchable, gaussian_rho(scales.per_sensitivity))
        yield from self._foreseen_rounds(scales.planned / 2.0, options.rounds, _SMALLEST_ROUND / options.rounds)

    def _foreseen_rounds(self, rho: float, times: int, part: float) -> Iterable[Foreseen]:
        for cells in (2, largest_measured(self)):
            most = (FINEST + 0.5) * cells
            if most > LARGEST_MULTIPLE:
                raise ConfigError(
                    f"a marginal of {cells:,} cells is too large to be measured without its parts: lower "
                    f"inference.max_cells; allowed: {int(LARGEST_MULTIPLE / (FINEST + 0.5)):,} or less"
                )
            layout = Layout.of_vector(
                2 * most_cells(self),
                most / 2.0,
                signed=True,
                magnitude=most,
            )
            yield ForeseenSum.of(Residuals.name, layout, rho, times=times, part=part)

    def below_noise_level(self, which: Sequence[int], rows: float) -> bool:
        """Whether sketches of these candidates show nothing at this size: then only the first look is asked for."""
        if self.config.federation.max_participations is not None:
            return False
        sizes = [len(self.candidates.cliques[i]) for i in which]
        return shows_nothing(2.0 * self.budget.mechanism * self.options.sketch_share, sizes.count(min(sizes)), rows)

    def _foreseen_sketches(
        self, kind: type[Sketches], which: list[int], rho: float, part: float = 1.0
    ) -> Iterable[Foreseen]:
        cliques = [self.candidates.cliques[i] for i in which]
        even = {name: np.ones(size) for name, size in zip(self.domain, self.domain.shape, strict=True)}
        request = kind(cliques=which, width=self.options.width)
        layout = request.layout(self, self.groups(cliques, request.width, even))
        yield ForeseenSum.of(kind.name, layout, rho, part=part)
        # Of one clique alone, whose values are as large and whose noise is smallest.
        alone = Layout.of_vector(layout.length, 0.25 * layout.magnitude, signed=True, magnitude=layout.magnitude)
        yield ForeseenSum.of(kind.name, alone, rho, part=part)

    def _weighed_of_all(self, rho: float, times: int) -> ForeseenSum:
        cells = sum(self.domain.shape) + most_cells(self)
        layout = Layout.of_vector(cells, float(FINEST), magnitude=float(FINEST), replaced=COUNTS)
        return ForeseenSum.of(MeasureAll.name, layout, rho, times=times, part=1.0 / (len(self.domain) + cells))

    def budget_of_cohorts(self, rho: float) -> CohortBudget:
        """How rho is divided where clients take part in some rounds only."""
        return CohortBudget.of(rho, len(self.domain), self.paid(self.options.rounds))

    @classmethod
    def check(cls, config: RunConfig) -> None:
        super().check(config)
        require(
            config.federation.max_participations is None or cls.options_of(config).rounds > 1,
            "federation.max_participations: 'sketch_aim' chooses after the first round's cohort and measures later; "
            "set mechanism.rounds to 2 or more, or leave max_participations out",
        )

    @cached_property
    def factors(self) -> tuple[int, ...] | None:
        """f of each attribute in the first look: its values' multiple nearest to `FINEST` times the most; None: counts.

        So all marginals have about the same noise in records.
        """
        shape = self.domain.shape
        most = max(shape, default=1)
        if most == 1 or self.config.federation.max_participations is not None:  # one value each: nothing to tell
            return None
        return tuple(max(1, round(FINEST * most / g)) * g for g in shape)

    @cached_property
    def sketchable(self) -> list[int]:
        """Candidates that may be sketched, a public fact: of such a size, that the model can take by themselves.

        An attribute of one value has no association with any other.
        """
        node = self.config.inference
        alone = _taken_alone(self.domain, node.max_cells, node.max_message_passing_cost, self.candidates.cliques)
        return [i for i in alone if len(self.candidates.cliques[i]) in self.sizes]

    @cached_property
    def unordered(self) -> tuple[str, ...]:
        """Attributes in pairs that may be sketched whose codes have no order, and of which a sketch shows each value.

        Cohorts are not asked twice, so theirs stay without.
        """
        if self.config.federation.max_participations is not None:
            return ()
        pairs = [q for q in (self.candidates.cliques[i] for i in self.sketchable) if len(q) == 2]
        few, paired = math.isqrt(self.options.width), {name for pair in pairs for name in pair}
        return tuple(n for n in self.domain if n in paired and not has_order(self.domain, n) and self.domain[n] <= few)

    def arranged(self, which: Sequence[int]) -> list[int]:
        """The pairs among some candidates with an attribute whose values are to be put in an order."""
        names, cliques = set(self.unordered), self.candidates.cliques
        return [i for i in which if len(cliques[i]) == 2 and names.intersection(cliques[i])]

    def arranging_share(self, rows: float) -> float:
        """Share of the budget that puts values without an order in one, where rows are as many; a public number."""
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
        return make_sketcher(Interactions, self.domain, cliques, width, *arrays)

    def groups(
        self,
        cliques: Sequence[Clique],
        width: int,
        mass: Mapping[str, npt.NDArray[np.float64]],
        scores: Mapping[str, npt.NDArray[np.float64]] | None = None,
    ) -> list[npt.NDArray[Any]]:
        """Return what a request for sketches brings: the packed groups of neighbouring values of equal mass."""
        return [pack_grouping(grouping_of(self.domain, cliques, width, mass, scores))]


class FirstLook(OneWay):
    """All one-way marginals, at their share of the budget; or alone, with nothing asked after them."""

    costs = "one vector of L2 sensitivity S: mu^2 = S^2/sigma^2; with cohorts one array each, mu^2 = 1/sigma^2"

    alone: Annotated[bool, Field(strict=True, description="they may have all of the budget")]

    def layout(self, contract: Any, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """ONE vector of what each marginal has beyond the total, or the marginals as they are.

        Of g values and a multiple f of g, one row adds f times a column of the projection of `residuals`: f^2 (1 - 1/g)
        in squared L2 norm, whatever its value, and no more than f to one entry.
        """
        factors: tuple[int, ...] | None = contract.factors
        if factors is None:
            return super().layout(contract, arrays)
        squared = fsum(f * f * cost((g,)) for f, g in zip(factors, contract.domain.shape, strict=True))
        cells = sum(contract.domain.shape)
        return Layout.of_vector(cells, sqrt(squared), signed=True, magnitude=float(max(factors)))


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
        """One row adds one row of each public matrix, so the vector moves by sqrt(sum of r^2) in L2, exactly.

        Whatever groups the server names: every row of a matrix has the same norm r.
        """
        sketcher = self.sketcher(contract, arrays)
        return Layout.of_vector(
            sketcher.length,
            sketcher.sensitivity,
            signed=sketcher.signed,
            magnitude=sketcher.magnitude,
            replaced=TWICE if sketcher.signed else COUNTS,
        )


class Arrangement(Sketches):
    """Sketches of pairs before all others, that put values without an order in one."""

    name = "arrange"


class Residuals(SumRequest):
    """What some candidates' marginals have beyond their one-way marginals and total, as ONE vector."""

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

    def coarse(self, contract: Contract, arrays: Arrays | Sequence[npt.NDArray[Any]]) -> Coarse:
        """The cliques in groups of values; where none came along, each value is its own."""
        if len(arrays) != bool(self.shapes):
            raise ProtocolError("the request does not bring the groups of its marginals, or more than them")
        domain, cliques = contract.domain, self.chosen(contract)
        if self.shapes:
            return Coarse.unpack(domain, cliques, self.shapes, arrays[0])
        return Coarse.in_groups(domain, cliques, [tuple(map(np.arange, domain.shape_of(q))) for q in cliques])

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """The vector moves by exactly S in L2, for every row and whatever the groups.

        A row is in one cell of each marginal, and adds c G R e to the vector there: e the unit table of that cell, R
        the projection of `fedsyn.table.counting.residuals`, whose columns all have the squared norm dimensions / G. So
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

    def of_rows(self, contract: Contract, arrays: Arrays, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The vector of a table, (n, d) codes: exact integers."""
        counts = self.coarse(contract, arrays).of_rows(codes)
        parts = [c * times_cells(table).ravel() for c, table in zip(self.weights, counts, strict=True)]
        return np.concatenate(parts).astype(np.int64, copy=False)


class MeasureAll(SumRequest):
    """All one-way marginals and those of some candidates, each times a weight of its own, as ONE vector."""

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
        """A row is in one cell of each marginal, so it moves the vector by exactly sqrt(sum of c^2) in L2."""
        if len(self.weights) != len(self.cliques):
            raise ProtocolError("parameter 'weights' must have one weight for each of 'cliques'")
        if len(self.one_way) != len(contract.domain):
            raise ProtocolError("parameter 'one_way' must have one weight for each attribute")
        weights, cells = [*self.one_way, *self.weights], sum(map(contract.domain.size, self.measured(contract)))
        squared = sum(c * c for c in weights)
        return Layout.of_vector(cells, sqrt(squared), magnitude=float(max(weights)), replaced=COUNTS)


class SketchAimClient(TableClient):
    """Contributes to sums and selects nothing."""

    Contract = SketchAimContract
    contract: SketchAimContract

    @answers(FirstLook)
    def one_way(self, call: Call[Any]) -> Contribution:
        """Every exact one-way marginal, or f times what it has beyond the total: exact integers."""
        factors, domain = self.contract.factors, self.domain
        if factors is None:
            return super().one_way(call)
        counts = count(self.codes, domain, [(name,) for name in domain])
        parts = [f // len(own) * times_cells(own) for f, own in zip(factors, counts, strict=True)]
        vector = np.concatenate(parts).astype(np.int64, copy=False)
        return Contribution.of_vector(vector, call.layout)

    @answers(Arrangement)
    def arrange(self, call: Call[Any]) -> Contribution:
        """As `sketch`."""
        return self.sketch(call)

    @answers(Sketches)
    def sketch(self, call: Call[Any]) -> Contribution:
        """The sketches of its rows, exact integers."""
        vector = call.request.sketcher(self.contract, call.arrays).of_rows(self.codes)
        return Contribution.of_vector(np.asarray(vector), call.layout)

    @answers(Residuals)
    def measure_residuals(self, call: Call[Residuals]) -> Contribution:
        """What the chosen marginals have beyond their one-way parts, exact integers."""
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
