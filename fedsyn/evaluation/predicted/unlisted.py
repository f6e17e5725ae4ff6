"""Share of the rows whose value a schema does not list.

Where a column has `unlisted: true`, what it cannot place has a code of its own, which a mechanism measures like any
other. The released model's marginal of that code is the share, and the noise of what was measured says how far it may
be off: both are post-processing, and public.

*Interval.* A fit keeps what least squares would, so the variance of the code's count is one over the summed precisions
of the measurements that hold the column. One of them with noise sigma in each of its cells adds up c cells for the
code: c sigma^2. Where it counted a part f of N rows only, a share p of these scatters about the share of all, by
N p (1 - p) (1 - f) / f as in a draw without replacement. The number of rows that a share is of is known to sqrt(cells)
sigma, of the best measurement, or better.

*Said to be there.* Of k such columns without any such row, the chance that noise takes one of them for filled is at
most one in twenty: its count must exceed the noise's quantile of 1 - 0.05 / k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from fedsyn.domain import Domain
from fedsyn.evaluation.record import percent
from fedsyn.evaluation.verdict import CHANCE
from fedsyn.inference import AnyModel, Evidence
from fedsyn.inference.measurements import Measurement
from fedsyn.output import first_of
from fedsyn.table.schema import BinnedColumn, Schema

#: The interval holds the share in nine runs of ten.
_QUANTILE = NormalDist().inv_cdf(0.95)
#: A share without an interval is named where it rounds to one in a hundred.
_LEAST = 0.005


@dataclass(frozen=True)
class UnlistedShare:
    """Share of the rows whose value of a column is not listed.

    Attributes:
        column: its name.
        value: the model's share.
        low, high: where it is in nine runs of ten; None where nothing was released that says so.
        seen: whether it is beyond what noise makes of a column without such rows.
        ordered: whether the column holds numbers or dates.
    """

    column: str
    value: float
    low: float | None
    high: float | None
    seen: bool
    ordered: bool

    def sentence(self, of: str = "rows") -> str:
        """Returns the share as one clause, of rows or people."""
        whose, doubt = f"model's {of}", ", and nothing released says how far that is off"
        if self.low is not None and self.high is not None:
            whose, doubt = of, f" ({percent(self.low)} to {percent(self.high)} in nine runs of ten)"
        about = f"about {percent(self.value)} of the {whose}"
        return f"{about} hold values of '{self.column}' that the schema does not list{doubt}"


def unlisted_shares(schema: Schema, model: AnyModel, evidence: Evidence | None) -> tuple[UnlistedShare, ...]:
    """Returns the share of each column with `unlisted: true`.

    Args:
        schema: of the model.
        model: the last one of a run, as it was released.
        evidence: what it was made from; None where the mechanism released no marginals.
    """
    names = [name for name, column in schema.columns.items() if column.unlisted]
    measurements = () if evidence is None else evidence.measurements
    totals = [m.count * m.sigma**2 for m in measurements if m.noises is None and not m.beyond and m.share >= 1.0]
    shares = []
    for name, marginal in zip(names, model.project_many([(name,) for name in names]), strict=True):
        value, ordered = float(marginal[-1]) / model.total, isinstance(schema.columns[name], BinnedColumn)
        variance = _variance(name, value, model.total, model.domain, measurements)
        if variance is None:
            shares.append(UnlistedShare(name, round(value, 4), None, None, value >= _LEAST, ordered))
            continue
        noise = math.sqrt(variance) / model.total
        around = _QUANTILE * math.hypot(noise, value * math.sqrt(min(totals, default=0.0)) / model.total)
        low, high = max(0.0, value - around), min(1.0, value + around)
        seen = value > noise * NormalDist().inv_cdf(1.0 - CHANCE / len(names))
        shares.append(UnlistedShare(name, round(value, 6), round(low, 6), round(high, 6), seen, ordered))
    return tuple(shares)


def _variance(
    name: str, share: float, rows: float, domain: Domain, measurements: Sequence[Measurement]
) -> float | None:
    """Returns the variance of the count of a column's last code.

    Returns None where no measurement tells the code from others.
    """
    precision = 0.0
    for m in measurements:
        if name not in m.clique or m.beyond or m.noises is not None:
            continue
        axis, shape = m.clique.index(name), domain.shape_of(m.clique)
        if m.groups is not None:
            if (m.groups[axis] == m.groups[axis][-1]).sum() > 1:  # counted together with listed values
                continue
            shape = tuple(int(groups.max()) + 1 for groups in m.groups)
        others = math.prod(shape) // shape[axis]
        precision += 1.0 / (others * m.sigma**2 + rows * share * (1.0 - share) * (1.0 - m.share) / m.share)
    return 1.0 / precision if precision else None


def clauses(shares: Sequence[UnlistedShare], of: str = "rows") -> list[str]:
    """Returns a clause on each seen share, and one on the others."""
    seen = [one.sentence(of) for one in shares if one.seen]
    rest = [one for one in shares if not one.seen and one.high is not None]
    if not rest:
        return seen
    names = first_of([f"'{one.column}'" for one in rest], 3)
    most = max(one.high or 0.0 for one in rest)
    return [
        *seen,
        f"fewer than {percent(most, up=True)} of the {of} hold values of {names} that the schema does not list",
    ]
