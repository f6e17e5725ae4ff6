"""What a run's plan asks of one row at most: public numbers, by which a client refuses less noise than was agreed.

A mechanism with fixed rounds divides its budget before the first request. Its contract says so in one function, which
the server half draws its scales from and the client half checks them with: no number stands twice. Where scales are
chosen on the way (budget annealing) the contract bounds them by the most that the rule can ever ask; beyond that only
the budget's filter binds, and that always does.

A client reckons with the run's configuration, not with what is left in its own ledger: a plan is the same for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedsyn.errors import ProtocolError, refuse
from fedsyn.privacy import Ledger, sigma_for_rho
from fedsyn.privacy.budget import ROUNDING_ROOM
from fedsyn.selection.terms import Terms
from fedsyn.wire.requests import Layout

#: Both sides compute the same numbers on their own machines, from a budget less what was paid before.
_ROOM = 1.0 + 4.0 * ROUNDING_ROOM


@dataclass(frozen=True)
class Planned:
    """The most that a plan asks of one row, in zCDP.

    Attributes:
        once: rho of one request.
        in_all: rho of all requests of this name in a run; infinite: only the budget limits them.
    """

    once: float
    in_all: float = math.inf


@dataclass(frozen=True)
class ForeseenSum:
    """A sum that the plan may have, at its largest: what `fedsyn.protocol.room` asks the run's protocol about.

    Attributes:
        name: of the request.
        layout: at its longest, and with the largest `magnitude` for its sensitivity.
        sigma: the least noise that it may have, and the most.
        times: how often it is asked for, at most.
    """

    name: str
    layout: Layout
    sigma: tuple[float, float]
    times: int = 1

    @classmethod
    def of(cls, name: str, layout: Layout, rho: float, *, times: int = 1, part: float = 1.0) -> ForeseenSum:
        """A sum that costs one row rho at most, and the share `part` of that at least."""
        least = sigma_for_rho(rho / layout.count, layout.sensitivity)
        return cls(name, layout, (least, least / math.sqrt(part)), times)


@dataclass(frozen=True)
class ForeseenChoice:
    """A choice from a store, with the terms by which its scores are largest."""

    name: str
    terms: Terms
    epsilon: float


@dataclass(frozen=True)
class ForeseenOpening:
    """Marginals that a store may open: how many, their cells together, and the least noise that they may have."""

    name: str
    count: int
    cells: int
    sigma: float


Foreseen = ForeseenSum | ForeseenChoice | ForeseenOpening


def most_cells(contract: Any) -> int:
    """Bound on the cells of all marginals of one request that a model can take together.

    Each lies in a clique of the junction tree, and those have `inference.max_cells` cells in all. A clique of j
    attributes, of two values or more each, has at most C(j, k) / 2^(j - k) times its own cells in its parts of k
    attributes; the largest of these factors (j < 2 k) for every k, added up. Nor are there more than all candidates'.
    """
    candidates, most = contract.candidates, contract.config.inference.max_cells
    sizes = range(1, 1 + max(map(len, candidates.cliques), default=1))
    factor = sum(max(math.comb(j, k) / 2.0 ** (j - k) for j in range(k, 2 * k)) for k in sizes)
    fitting = [cells for cells in candidates.cells.tolist() if cells <= most]
    return max(1, int(min(math.fsum(fitting), factor * most)))


def largest_measured(contract: Any) -> int:
    """Cells of the largest candidate that a model can take."""
    most = contract.config.inference.max_cells
    return int(max((cells for cells in contract.candidates.cells.tolist() if cells <= most), default=1))


def require_planned(planned: Planned, name: str, rho: float, ledger: Ledger) -> None:
    """Refuses a request that costs one row more than the run's plan says; looks at public facts only.

    What shares of noise cost beyond a Gaussian's (`Release.extra`) is no part of a plan, and is left out.

    Args:
        planned: of the request.
        name: of the request, as it stands in the ledger.
        rho: that it costs a row.
        ledger: the client's, with what was charged under that name.

    Raises:
        ProtocolError: it does; nothing was charged.
    """
    refuse(not rho <= planned.once * _ROOM, f"'{name}' asks for less noise than the run's plan has for it")
    if planned.in_all < math.inf:
        before = (ledger.unit.row_rho(release) for release in ledger.releases if release.name == name)
        if not math.fsum([rho, *before]) <= planned.in_all * _ROOM:
            raise ProtocolError(f"'{name}' was asked as often as the run's plan has it, or for more than is left of it")
