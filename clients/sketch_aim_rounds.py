"""What a round of sketch_aim asks for: what chosen marginals have beyond their one-way parts."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, prod, sqrt
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedsyn.counting.residues import cost, dimensions, times_cells
from fedsyn.domain import Clique
from fedsyn.errors import ProtocolError
from fedsyn.plugins.clients.sketch_aim_cohorts import FINEST
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.contract import Contract
from fedsyn.selection.coarse import Coarse
from fedsyn.wire.envelope import Arrays
from fedsyn.wire.requests import AnyCandidates, Layout, SumRequest

#: Largest multiple that one row adds to one entry: the entries of 2^31 rows stay within 64 bits.
LARGEST_MULTIPLE = 1 << 31


class FirstLook(OneWay):
    """All one-way marginals, at their share of the budget; or alone, with nothing asked after them."""

    costs = "one vector of L2 sensitivity S: mu^2 = S^2/sigma^2; with cohorts one array each, mu^2 = 1/sigma^2"

    alone: Annotated[bool, Field(strict=True, description="they may have all of the budget")]

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """ONE vector of what each marginal has beyond the total, or the marginals as they are.

        Of g values and a multiple f of g, one row adds f times a column of the projection of `residues`: f^2 (1 - 1/g)
        in squared L2 norm, whatever its value, and no more than f to one entry.
        """
        factors = _factors(contract)
        if factors is None:
            return super().layout(contract, arrays)
        squared = fsum(f * f * cost((g,)) for f, g in zip(factors, contract.domain.shape, strict=True))
        cells = sum(contract.domain.shape)
        return Layout.of_vector(cells, sqrt(squared), signed=True, magnitude=float(max(factors)))

    def of_counts(self, factors: Sequence[int], counts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        """The vector of a table with these one-way marginals."""
        parts = [f // len(own) * times_cells(own) for f, own in zip(factors, counts, strict=True)]
        return np.concatenate(parts).astype(np.int64, copy=False)


class Residues(SumRequest):
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
        Field(min_length=1, description="c of each; the residue, a fraction of cells, is multiplied by them too"),
    ]

    def chosen(self, contract: Contract) -> list[Clique]:
        return [contract.candidates.cliques[i] for i in self.cliques]

    def coarse(self, contract: Contract, arrays: Arrays | Sequence[npt.NDArray[Any]]) -> Coarse | None:
        """The cliques in groups of values; None: in all their cells."""
        if len(arrays) != bool(self.shapes):
            raise ProtocolError("the request does not bring the groups of its marginals, or more than them")
        return Coarse.unpack(contract.domain, self.chosen(contract), self.shapes, arrays[0]) if self.shapes else None

    def made(self, contract: Contract, arrays: Arrays | Sequence[npt.NDArray[Any]]) -> Coarse:
        """The cliques in groups of values; where none came along, each value is its own."""
        domain, cliques = contract.domain, self.chosen(contract)
        own = [tuple(np.arange(size) for size in domain.shape_of(q)) for q in cliques]
        return self.coarse(contract, arrays) or Coarse.in_groups(domain, cliques, own)

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """The vector moves by exactly S in L2, for every row and whatever the groups.

        A row is in one cell of each marginal, and adds c G R e to the vector there: e the unit table of that cell, R
        the projection of `fedsyn.counting.residues`, whose columns all have the squared norm dimensions / G. So
        S^2 = sum of (c G)^2 dimensions / G = sum of c^2 G dimensions. No entry moves by more than c G.
        """
        if len(self.weights) != len(self.cliques):
            raise ProtocolError("parameter 'weights' must have one weight for each of 'cliques'")
        shapes = self.made(contract, arrays).shapes
        if max(c * prod(shape) for c, shape in zip(self.weights, shapes, strict=True)) > LARGEST_MULTIPLE:
            raise ProtocolError(f"parameter 'weights' times the marginal's cells must be at most {LARGEST_MULTIPLE}")
        return Layout.of_vector(
            sum(map(prod, shapes)),
            sqrt(sum(c * c * prod(shape) * dimensions(shape) for c, shape in zip(self.weights, shapes, strict=True))),
            signed=True,
            magnitude=float(max(c * prod(shape) for c, shape in zip(self.weights, shapes, strict=True))),
        )

    def of_rows(self, contract: Contract, arrays: Arrays, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The vector of a table, (n, d) codes: exact integers."""
        counts = self.made(contract, arrays).of_rows(codes)
        parts = [c * times_cells(table).ravel() for c, table in zip(self.weights, counts, strict=True)]
        return np.concatenate(parts).astype(np.int64, copy=False)


def first_factors(shape: Sequence[int]) -> tuple[int, ...] | None:
    """f of each attribute: the multiple of its values nearest to `FINEST` times the largest; None: nothing to tell.

    So all marginals have about the same noise in records.
    """
    most = max(shape, default=1)
    return tuple(max(1, round(FINEST * most / g)) * g for g in shape) if most > 1 else None


def _factors(contract: Any) -> tuple[int, ...] | None:
    """Returns the factors of sketch_aim's contract, which knows whether counts are asked for."""
    factors: tuple[int, ...] | None = contract.factors
    return factors


def residue_weights(
    budgets: Sequence[float], shapes: Sequence[tuple[int, ...]], finest: int
) -> tuple[list[int], float]:
    """Integers c that divide a budget, up to rounding, and the noise on the vector that spends it.

    Noise of sigma on c G R M is noise of sigma / (c G) on R M, at a price of (c G)^2 t / sigma^2 for the share t of the
    dimensions: c G is in proportion to the root of budget / t. The largest is `finest` times the most cells, so that
    rounding moves the smallest by little.

    Args:
        budgets: mu^2 of each, positive.
        shapes: of the marginals, each with a residue.
        finest: levels of a weight.

    Returns:
        c of each; sigma, a hair larger than the budget's, so that no rounding of sums goes beyond it.
    """
    cells = [prod(shape) for shape in shapes]
    roots = [sqrt(b * g / dimensions(shape)) for b, g, shape in zip(budgets, cells, shapes, strict=True)]
    unit = finest * max(cells) / max(roots)
    weights = [max(1, round(unit * root / g)) for root, g in zip(roots, cells, strict=True)]
    squared = sum(c * c * g * dimensions(shape) for c, g, shape in zip(weights, cells, shapes, strict=True))
    return weights, sqrt(squared / sum(budgets)) * (1.0 + 1e-13)


__all__ = ["LARGEST_MULTIPLE", "FirstLook", "Residues", "first_factors", "residue_weights"]
