"""Chooses the number of groups in which a clique is measured.

A marginal's noise is that of the groups that carry it. What groups leave unseen of a dependence follows from released
one-way marginals by a model of the dependence:

- Of an attribute with an order, it is linear in the rank of the value. Groups of neighbouring values keep the share of
  the rank's variance that lies between them: about 1 - 1/g^2 for g groups of equal mass.
- Of one without an order, each value has an effect of its own, drawn alike and independently. Groups keep (sum over
  groups of sum p^2 / P - sum p^2) / (1 - sum p^2), P a group's mass: nearly all where only rare values share a group.
- Of one that determines other columns the dependence may be theirs: each of their values has such an effect, and the
  values that share one are a grouping, too. These models and the one above count alike.

A dependence of several attributes is a product of such effects, so of its squared norm the groups keep the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log, pi, prod, sqrt

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain, Floats, Integers
from fedsyn.selection.coarse import groupings
from fedsyn.selection.views import effective_cells
from fedsyn.table.counting.sums import cost, sums_of_groups

# Numbers of groups that are looked at: a factor of about the root of 2 from one to the next, and all values at last.
_COUNTS = (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64)


@dataclass(frozen=True, eq=False)
class Rung:
    """One grouping of an attribute's values.

    Attributes:
        groups: (size,) group of each value.
        count: of groups.
        kept: share of the squared norm of a dependence that the groups keep, 0 to 1.
        carried: groups that carry the attribute's mass, (sum of sqrt(P))^2.
    """

    groups: Integers
    count: int
    kept: float
    carried: float


@dataclass(frozen=True, eq=False)
class Ladder:
    """Ways to measure one clique, from the coarsest to all cells.

    Attributes:
        counts: (k, attributes) groups of each attribute.
        carried: (k,) cells that carry noise.
        unseen: (k,) share of the L1 norm of a dependence that is left unseen.
        costs: (k,) squared L2 norm of what one row adds to what is measured: 1 of counts, less of residuals.
    """

    counts: Integers
    carried: Floats
    unseen: Floats
    costs: Floats

    def missed(self, distance: float, rows: float, cells: float, variance: float) -> Floats:
        """Returns the share of the L1 error that each step leaves, (k,).

        1 is the error without a measurement, 0 that of all cells.

        The arguments are those of the function `missed`.
        """
        hidden = np.maximum(0.0, 1.0 - np.minimum(self.carried, cells) / cells)
        hidden[-1] = 0.0
        return missed(np.array(distance), rows, np.array(cells), np.array(variance), self.unseen**2, hidden)


def missed(distance: Floats, rows: float, cells: Floats, variance: Floats, unseen: Floats, hidden: Floats) -> Floats:
    """Returns the share of the L1 error that a grouping leaves.

    1 is the error of leaving the clique out. The arrays broadcast.

    Beside the dependence a table of n rows is as rough as their number makes it: drawn by chance, each of S cells has a
    variance of v = n / S, together an L1 norm of sqrt(2/pi n S). Groups that leave c of S cells apart do not see
    1 - c/S of its square. Measured with noise of variance s^2, v / (v + s^2) of it is found and the rest not told from
    noise; that much more is missed by groups than by cells.

    Args:
        distance: L1 norm of the dependence, in records.
        rows: n.
        cells: S, that carry the marginal.
        variance: s^2, of the noise on a cell where all cells are measured.
        unseen: share of the squared L1 norm of a dependence that the groups leave unseen.
        hidden: 1 - c/S.
    """
    # Roughness by chance that the measurement would find, and the dependence itself.
    chance = 2.0 / pi * rows * cells * rows / (rows + cells * variance)
    squared = distance**2
    return np.asarray(np.sqrt((unseen * squared + chance * hidden) / np.maximum(squared + chance, 1e-300)))


class Ladders:
    """Groupings of one table's attributes, from released values only.

    Args:
        domain: of the table.
        mass: each attribute's one-way distribution, from released values.
        beyond: whether residuals are measured (`fedsyn.table.counting.sums`); else counts.
    """

    def __init__(self, domain: Domain, mass: Mapping[str, npt.NDArray[np.floating]], *, beyond: bool = False) -> None:
        self.domain, self.beyond = domain, beyond
        self._mass = {name: _distribution(mass[name]) for name in domain}
        self._rungs: dict[str, list[Rung]] = {}
        self._steepness: dict[str, list[float]] = {}
        self._ladders: dict[Clique, Ladder] = {}

    def rungs(self, name: str) -> list[Rung]:
        """Returns the groupings of one attribute, coarsest first.

        The last one has a group for each value.
        """
        if name not in self._rungs:
            size, ordered = self.domain[name], self.domain.ordered.get(name, 0)
            ways = [*_groupings(self._mass[name], ordered), *map(np.array, self.domain.coarser.get(name, ()))]
            by_count = {int(groups.max()) + 1: groups for groups in ways}
            coarse = [self._rung(name, by_count[count]) for count in sorted(by_count) if 1 < count < size]
            finest = self._rung(name, np.arange(size))
            self._rungs[name] = [*coarse, Rung(finest.groups, size, 1.0, finest.carried)]
        return self._rungs[name]

    def steepness(self, name: str) -> list[float]:
        """Returns the relative gain from each grouping to the next.

        It is log growth of what is kept per log growth of the cells.
        """
        if name not in self._steepness:
            self._steepness[name] = [_steepness(rung, finer) for rung, finer in pairwise(self.rungs(name))]
        return self._steepness[name]

    def _rung(self, name: str, groups: Integers) -> Rung:
        p, ordered = self._mass[name], self.domain.ordered.get(name, 0)
        masses = sums_of_groups(groups, p)
        shares = [_kept_of_effects(p, groups, np.array(coarser)) for coarser in self.domain.coarser.get(name, ())]
        if ordered > 2:
            shares.append(_kept_of_ranks(p[:ordered], np.unique(groups[:ordered], return_inverse=True)[1]))
        else:
            shares.append(_kept_of_effects(p, groups, np.arange(len(p))))
        return Rung(groups, len(masses), float(np.mean(shares)), effective_cells(masses))

    def ladder(self, clique: Clique) -> Ladder:
        """Returns a clique's ladder.

        Each step refines the attribute with which the dependence kept grows most per cell.
        """
        if clique not in self._ladders:
            # Start at the coarsest groupings; refine one attribute at a time.
            every, steepness = [self.rungs(name) for name in clique], [self.steepness(name) for name in clique]
            at, steps = [0] * len(clique), []
            while True:
                now = [rungs[j] for rungs, j in zip(every, at, strict=True)]
                retained, carried = prod([r.kept for r in now]), prod([r.carried for r in now])
                steps.append(([r.count for r in now], carried, sqrt(max(0.0, 1.0 - retained))))
                open_ = [a for a, j in enumerate(at) if j + 1 < len(every[a])]
                if not open_:
                    break
                at[max(open_, key=lambda a: steepness[a][at[a]])] += 1
            counts, carried_, unseen = zip(*steps, strict=True)
            costs = [cost(step_counts) if self.beyond else 1.0 for step_counts in counts]
            self._ladders[clique] = Ladder(np.array(counts), np.array(carried_), np.array(unseen), np.array(costs))
        return self._ladders[clique]

    def groups(self, clique: Clique, step: int) -> tuple[Integers, ...]:
        """Returns the groups of values at one step of a ladder.

        Each attribute has the group of each of its values.
        """
        counts = self.ladder(clique).counts[step]
        return tuple(
            next(rung.groups for rung in self.rungs(name) if rung.count == count)
            for name, count in zip(clique, counts, strict=True)
        )


def _steepness(rung: Rung, finer: Rung) -> float:
    return (log(max(finer.kept, 1e-9)) - log(max(rung.kept, 1e-9))) / max(log(finer.carried / rung.carried), 1e-9)


def _distribution(values: npt.NDArray[np.floating]) -> Floats:
    positive = np.maximum(np.asarray(values, np.float64).ravel(), 0.0) + 1e-12
    return np.asarray(positive / positive.sum())


def _groupings(p: Floats, ordered: int) -> list[Integers]:
    """Returns groupings of equal mass into fewer groups than values.

    Neighbours share a group if there is an order, otherwise values of similar mass. Values without a place in the order
    (a missing value) keep groups of their own.
    """
    extra = len(p) - ordered if ordered > 2 else 0
    inner = len(p) - extra
    order = np.arange(inner) if ordered > 2 else np.argsort(-p, kind="stable")
    ways = []
    for cut in groupings(p[order], [count for count in _COUNTS if count < inner]):
        groups = np.empty(len(p), np.int64)
        groups[order] = cut
        groups[inner:] = cut[-1] + 1 + np.arange(extra)
        ways.append(groups)
    return ways


def _kept_of_ranks(p: Floats, groups: Integers) -> float:
    """Returns the share of the rank's variance that lies between groups."""
    masses = sums_of_groups(groups, p)
    ranks = np.cumsum(p) - 0.5 * p
    centre = float(np.sum(p * ranks) / p.sum())
    means = np.bincount(groups, p * ranks) / masses
    whole = float(np.sum(p * (ranks - centre) ** 2))
    return float(np.sum(masses * (means - centre) ** 2)) / whole if whole > 0 else 1.0


def _kept_of_effects(p: Floats, groups: Integers, effects: Integers) -> float:
    """Returns the share of independent effects' variance between groups.

    It is an expectation; values may share an effect.
    """
    pairs, which = np.unique(groups * (int(effects.max()) + 1) + effects, return_inverse=True)
    both, within = np.bincount(which, p), np.bincount(groups, p)[pairs // (int(effects.max()) + 1)]
    alone, between = float(np.sum(np.bincount(effects, p) ** 2)), float(np.sum(both**2 / within))
    return (between - alone) / (1.0 - alone) if alone < 1.0 else 1.0
