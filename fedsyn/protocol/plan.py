"""A run's plan: the steps of a mechanism, stated once.

Each step says what it may cost one row.

A mechanism says how it divides its budget in one function (`Contract.plan`). Five things follow from the steps that it
returns: the noise that the server half asks for, the least noise that a client accepts, whether the run could finish
(`fedsyn.protocol.room`), what `fedsyn explain` prints, and the line on costs in the privacy statement.

A client checks a request by the plan of the run's whole configuration, not by what is left in its own ledger: all
clients hold a server to the same numbers. Where scales are chosen on the way (budget annealing) a step names the most
that the rule can come to; beyond that only the budget's filter binds, and that always does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsyn.errors import ProtocolError, refuse
from fedsyn.output import counted
from fedsyn.privacy import Ledger, epsilon_for_rho, sigma_for_rho
from fedsyn.privacy.budget import ROUNDING_ROOM
from fedsyn.wire.requests import Layout, Request

#: Both sides compute the same numbers on their own machines, from a budget less what was paid before.
_ROOM = 1.0 + 4.0 * ROUNDING_ROOM


@dataclass(frozen=True)
class Step:
    """One kind of request in a plan.

    Attributes:
        request: its record.
        rho: zCDP that one row pays, at most, for each array (or choice) of a request.
        arrays: the most arrays of one request; None: as many as its layout has a row in, each for `rho`.
        beside: rho of what a client releases by itself to answer one request.
        least: the least rho of an array; None: `rho` itself, so that the noise is fixed.
        paid: the most requests that one row pays for; infinite: only the budget limits them.
        times: the most requests of a run, over all cohorts; to each client, where every one is asked alone.
        where: parameters by which a request belongs to this step, where two steps have the same record.
        says: when it is asked for, if not always; the record says what it costs (`Request.costs`).
    """

    request: type[Request]
    rho: float
    arrays: int | None = 1
    beside: float = 0.0
    least: float | None = None
    paid: float = 1.0
    times: int = 1
    where: Mapping[str, Any] = field(default_factory=dict)
    says: str = ""

    @property
    def sigma(self) -> float:
        """The least noise on an array of sensitivity 1."""
        return sigma_for_rho(self.rho)

    @property
    def epsilon(self) -> float:
        """The largest epsilon of a choice."""
        return epsilon_for_rho(self.rho)

    @property
    def first_rho(self) -> float:
        """Least rho of an array or a choice.

        An annealed run begins with it.
        """
        return self.rho if self.least is None else self.least

    @property
    def first_sigma(self) -> float:
        """The most noise on an array of sensitivity 1."""
        return sigma_for_rho(self.first_rho)

    @property
    def first_epsilon(self) -> float:
        """The smallest epsilon of a choice."""
        return epsilon_for_rho(self.first_rho)

    def once(self, layout: Layout | None = None) -> float:
        """Returns the rho that one request costs a row at most.

        `layout` counts the arrays if the step leaves their number open.
        """
        arrays = self.arrays
        if arrays is None:
            arrays = 1 if layout is None else layout.count
        return arrays * self.rho + self.beside

    def noise(self, layout: Layout) -> float:
        """Returns the least noise on each array of a request.

        `layout` is that of the request.
        """
        return self.sigmas(layout)[0]

    def sigmas(self, layout: Layout) -> tuple[float, float]:
        """Returns the least and the most noise on each array.

        The arrays are those of a sum or of an opening with this layout.
        """
        most = self.once(layout) / layout.count
        least = most * (self.first_rho / self.rho)
        return sigma_for_rho(most, layout.sensitivity), sigma_for_rho(least, layout.sensitivity)

    def matches(self, request: Request) -> bool:
        """Returns whether a request belongs to this step."""
        named = (getattr(request, name) == value for name, value in self.where.items())
        return type(request) is self.request and all(named)

    def sentence(self, whole: float) -> str:
        """Returns the step's frequency and its share, in words.

        The share is that of a whole rho.
        """
        often = "once" if self.times == 1 else f"at most {counted(self.times, 'time')}"
        price = f"{self.once() / whole:.3g} of the budget"
        if self.arrays is None:
            price = f"at most {price} for each marginal"
        elif self.times > 1:
            price = f"{price} together" if self.paid == 1 else f"at most {price} each"
        if self.arrays is not None and self.arrays > 1:
            price += f" for {counted(self.arrays, 'choice' if self.request.kind == 'ask' else 'marginal')}"
        return ", ".join([often, price] + [self.says] * bool(self.says))


def allowed(steps: Iterable[Step], request: Request, layout: Layout | None) -> tuple[float, float]:
    """Returns the most rho for one request, and for its name.

    It is the rho of one row, and zero if no step has the request.
    """
    matching = [step for step in steps if step.matches(request)]
    once = [step.once(layout) for step in matching]
    return max(once, default=0.0), math.fsum(rho * step.paid for rho, step in zip(once, matching, strict=True))


def require_planned(steps: Sequence[Step], request: Request, layout: Layout | None, rho: float, ledger: Ledger) -> None:
    """Refuses a request that costs one row more than planned.

    It looks at public facts only. What shares of noise cost beyond a Gaussian's (`Release.extra`) is no part of a plan,
    and is left out.

    Args:
        steps: of the plan.
        request: as it was read.
        layout: of a sum, computed by the client itself.
        rho: that it costs a row.
        ledger: the client's, with what was charged under the request's name.

    Raises:
        ProtocolError: it does; nothing was charged.
    """
    once, in_all = allowed(steps, request, layout)
    refuse(not rho <= once * _ROOM, f"'{request.name}' asks for less noise than the run's plan has for it")
    if in_all < math.inf:
        before = (ledger.unit.row_rho(release) for release in ledger.releases if release.name == request.name)
        if not math.fsum([rho, *before]) <= in_all * _ROOM:
            raise ProtocolError(
                f"'{request.name}' was asked as often as the run's plan has it, or for more than is left of it"
            )


def most_cells(contract: Any) -> int:
    """Bounds the cells of all marginals of one request.

    They are marginals that a model can take together: each lies in a clique of the junction tree, and those have
    `inference.max_cells` cells in all. A clique of j attributes, of two values or more each, has at most C(j, k) / 2^(j
    - k) times its own cells in its parts of k attributes; the largest of these factors (j < 2 k) for every k are added
    up. Nor are there more cells than all candidates have.
    """
    candidates, most = contract.candidates, contract.config.inference.max_cells
    sizes = range(1, 1 + max(map(len, candidates.cliques), default=1))
    factor = sum(max(math.comb(j, k) / 2.0 ** (j - k) for j in range(k, 2 * k)) for k in sizes)
    fitting = [cells for cells in candidates.cells.tolist() if cells <= most]
    return max(1, int(min(math.fsum(fitting), factor * most)))


def largest_measured(contract: Any) -> int:
    """Returns the cells of the largest candidate that a model can take."""
    most = contract.config.inference.max_cells
    return int(max((cells for cells in contract.candidates.cells.tolist() if cells <= most), default=1))
