"""What a number of rows lets sketches show: public numbers, worked out before anything is asked.

mu^2 is what the sketches have of the budget: noise of sigma = S / mu on a vector that one row moves by S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, sqrt

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri

# The mean-square contingency (phi^2) of a pair that one standard deviation of a sketch's noise may hide. Chosen on the
# tuning side of experiments/held_out.
_HIDDEN = 0.1
#: The largest share of the budget that goes into finding an order, where no pair has one of its own, and the
#: correlations of the weakest factor whose order must be found: half of a column's own variance.
ARRANGING, ARRANGED = 0.3, 0.5


def width_of(mu2: float, sketched: Mapping[int, float], rows: float, most: int) -> int:
    """Entries of a sketch, a public number: as many as still show an association, and enough for any interaction.

    A pair of mean-square contingency phi^2 puts n^2 phi^2 / k of squared distance between a sketch of k groups of equal
    mass and independence. Of its noise (sqrt(k) - 1)^2 dimensions are left, so that of the distance has a standard
    deviation of sqrt(2) (sqrt(k) - 1) sigma^2, where sigma^2 = S^2 / mu^2 and S^2 = sum (1 - k^(-1/j))^j over the
    sketches of j attributes (`Interactions`).

    Args:
        mu2: of the sketches.
        sketched: number of attributes -> how many sketches have as many.
        rows: n, public or released.
        most: the option `width`.
    """
    fewest = min(most, 1 << min(sketched, default=2))
    for k in range(most, fewest, -1):
        squared = fsum(c2 * (1.0 - k ** (-1.0 / size)) ** size for size, c2 in sketched.items())
        if _HIDDEN * rows * rows / k >= sqrt(2.0) * (sqrt(k) - 1.0) * squared / mu2:
            return k
    return fewest


def sketched_sizes(mu2: float, sketched: Mapping[int, float], rows: float, most: int) -> list[int]:
    """The numbers of attributes whose cliques are sketched, smallest first; public, as `width_of`, with its arguments.

    Pairs, or what is smallest, always; a size of j more where the sketches, its own among them, then still have the 2^j
    entries below which j attributes have no interaction.
    """
    chosen = sorted(sketched)[:1]
    for size in sorted(sketched)[1:]:
        if width_of(mu2, {s: sketched[s] for s in [*chosen, size]}, rows, most) < 2**size:
            break
        chosen.append(size)
    return chosen


def shows_nothing(mu2: float, sketches: int, rows: float) -> bool:
    """Whether even a perfect association would drown: then nothing is sketched, and all of the budget is for one look.

    A public number: the comparison of `width_of` at the fewest groups, k = 2^j, which leave one dimension of noise,
    n^2 phi^2 / k against sqrt(2) (m / k) / mu^2 for m sketches, at the largest phi^2 that there is: two halves that
    always go together have 1, and so have j halves the last of which is the parity of the others.
    """
    return rows * rows < sqrt(2.0) * sketches / mu2


def weakest_shown(mu2: float, pairs: int, rows: float, chance: float) -> npt.NDArray[np.float64]:
    """(pairs,) the weakest association (Cramér's V) that stands out of the sketches' noise, of 1, 2, ... pairs.

    Of k pairs, each in halves of equal mass (`shows_nothing`), one has a squared distance of (n V)^2 / 4 and noise of
    sigma^2 = k / (4 mu^2) in one dimension; with chance / k its square is beyond the quantile of chi-squared.
    """
    k = np.arange(1, pairs + 1)
    return np.asarray(np.sqrt(k * chdtri(1, chance / k) / mu2) / rows)


def arranging_share(
    mu2: float, pairs: Sequence[tuple[int, int]], sizes: Sequence[int], rows: float, sketched: int
) -> float:
    """Return the share of the budget that finds an order for values that have none.

    Of columns with g values each that one factor links, with correlations of `ARRANGED`, the matrix of all pairs has an
    eigenvalue of ARRANGED n sum(1/g); noise of sigma in every entry has one of 2 sqrt(N) sigma, N the sum of g - 1. The
    share makes the first twice the second: the eigenvector then has a squared correlation of 15/16 with that of the
    rows (Benaych-Georges & Nadakuditi 2011). An order helps the pairs of such columns alone, so the most is
    `ARRANGING` times their share of all pairs. Where it takes more than twice that, nothing would be found, and nothing
    is looked for.

    Args:
        mu2: of the whole budget.
        pairs: values of both attributes of each sketched pair that has a column without an order.
        sizes: values of each attribute in them.
        rows: n, public or released.
        sketched: pairs that are sketched.
    """
    if not pairs or rows <= 0:
        return 0.0
    squared = fsum((1.0 - 1.0 / g) * (1.0 - 1.0 / h) for g, h in pairs)
    noise = 2.0 * sqrt(sum(g - 1 for g in sizes) * squared / mu2)
    share = (2.0 * noise / (ARRANGED * rows * fsum(1.0 / g for g in sizes))) ** 2
    most = ARRANGING * len(pairs) / sketched
    return min(share, most) if share <= 2.0 * most else 0.0


__all__ = ["ARRANGED", "ARRANGING", "arranging_share", "shows_nothing", "sketched_sizes", "weakest_shown", "width_of"]
