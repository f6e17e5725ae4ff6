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

from fedsyn.errors import ProtocolError
from fedsyn.privacy import Ledger
from fedsyn.privacy.budget import ROUNDING_ROOM

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
    if not rho <= planned.once * _ROOM:
        raise ProtocolError(f"'{name}' asks for less noise than the run's plan has for it")
    if planned.in_all < math.inf:
        before = (ledger.unit.row_rho(release) for release in ledger.releases if release.name == name)
        if not math.fsum([rho, *before]) <= planned.in_all * _ROOM:
            raise ProtocolError(f"'{name}' was asked as often as the run's plan has it, or for more than is left of it")


__all__ = ["Planned", "require_planned"]
