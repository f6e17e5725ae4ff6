"""Two looks at the same noisy sketches, with independent noise.

What is planned from noisy numbers flatters itself on them: the plan follows their noise. So one look plans and the
other judges.

**The split.** Let y = x + z, with x the exact sketches and z their Gaussian noise of covariance C. Draw w once more
with this covariance, from public coins. The noises z + w and z - w have the covariance C - C = 0 between them, and
together they are Gaussian: they are independent, each of covariance 2 C. So whatever was planned or fitted from y + w,
and from other releases, y - w says without bias how far it is off (Oliveira, Lei and Tibshirani 2021, "Unbiased risk
estimation in the normal means problem via coupled bootstrap techniques").

**Privacy.** Both are functions of y and of coins that no row touches: they are post-processing, and cost nothing.

**Discrete noise.** A secure sum adds discrete Gaussian noise, or a sum of such shares. The covariance between the two
noises is 0 all the same. Beyond that, a discrete Gaussian of standard deviation s on the integers has the moments of
the continuous one up to a relative error near exp(-2 pi^2 s^2), and the noise of sketches is tens to thousands of
integers wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from fedsyn.domain import Floats
from fedsyn.randomness import RandomSource
from fedsyn.selection.sketches import Sketcher


def halves(
    sketcher: Sketcher, values: Sequence[Floats], sigma: float, coins: RandomSource
) -> tuple[list[Floats], list[Floats], float]:
    """Splits opened sketches into two looks, and returns their noise.

    Args:
        sketcher: that made them.
        values: opened, one vector per sketch.
        sigma: standard deviation of their noise before weights.
        coins: what the further noise is drawn from.

    Returns:
        y + w, y - w, and the standard deviation of the noise in either, before weights.
    """
    drawn = sketcher.split(sigma * coins.standard_normal(sketcher.length))
    one, other = ([y + sign * w for y, w in zip(values, drawn, strict=True)] for sign in (1.0, -1.0))
    return one, other, sqrt(2.0) * sigma
