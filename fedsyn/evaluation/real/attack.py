"""A membership attack by the distance to the closest row.

The attack is on a synthetic table.

Who was in the training table? The attacker holds rows that were and rows that were not, and guesses that those near a
synthetic row were. If training rows lie nearer than held-out ones, the table remembers rows. The attack knows the
table alone, not the model, and is one of many: that it fails shows no privacy. The guarantee is the ledger's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsyn.evaluation.inputs import sample_rows
from fedsyn.evaluation.real.reading import Readings
from fedsyn.evaluation.scores import Codes, Floats

MOST_ATTACKED = 1000  # rows of each kind
_COMPARISONS = 300_000_000  # of one cell with another, by which the synthetic rows are limited
_FEWEST_SYNTHETIC = 1000
_BLOCK = 1 << 21  # distances that are held at a time


@dataclass(frozen=True)
class Attack:
    """Success of the attack in telling training rows from held-out ones.

    Attributes:
        auc: probability that a training row lies nearer than a held-out one; ties count one half, 0.5 is guessing.
        lower, upper: its 95% confidence interval (DeLong et al. 1988).
        rows: attacked rows of each kind.
        synthetic: synthetic rows that were searched.
        copies: share of the attacked training rows that occur in the table, code for code.
        copies_held_out: the same of the held-out rows, which occur there by chance alone.
    """

    auc: float
    lower: float
    upper: float
    rows: int
    synthetic: int
    copies: float
    copies_held_out: float

    def words(self) -> str:
        """Returns what the attack found out, as a clause."""
        if self.lower <= 0.5:
            return "this attack cannot tell training rows from others"
        if self.auc < 0.6:
            return "this attack tells training rows from others a little better than by guessing"
        return "this attack tells training rows from others: the table remembers rows"


def membership(
    readings: Readings, real: Codes, holdout: Codes, synthetic: Codes, rng: np.random.Generator
) -> Attack | None:
    """Attacks at most 1,000 rows of each kind.

    Returns None where a table has fewer than two rows.

    The distance of two rows adds up, over the columns, |difference| after scaling to [0, 1] where there is an order
    and 0 or 1 elsewhere, also between a number and a missing value.

    Args:
        readings: of the codes.
        real: (n, d) training rows.
        holdout: (m, d) rows that were not trained on.
        synthetic: (s, d) the table under attack.
        rng: chooses the rows.
    """
    attacked = min(MOST_ATTACKED, len(real), len(holdout))
    if attacked < 2 or len(synthetic) == 0:
        return None
    limit = max(_FEWEST_SYNTHETIC, _COMPARISONS // (2 * attacked * max(1, real.shape[1])))
    sample = sample_rows(synthetic, limit, rng)
    near = _closest(readings, sample_rows(real, attacked, rng), sample)
    far = _closest(readings, sample_rows(holdout, attacked, rng), sample)
    auc, lower, upper = auc_interval(-near, -far)
    copies = [float(np.mean(distances == 0)) for distances in (near, far)]
    return Attack(auc, lower, upper, attacked, len(sample), *copies)


def auc_interval(positive: Floats, negative: Floats) -> tuple[float, float, float]:
    """Returns the AUC of two samples of scores, and its interval.

    95%, from DeLong's variance.

    >>> [round(value, 3) for value in auc_interval(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.5, 2.5]))]
    [0.667, 0.133, 1.0]
    """
    ordered_negative, ordered_positive = np.sort(negative), np.sort(positive)
    # Of each score, the share of the other sample that it beats; ties count one half.
    wins = _beaten(positive, ordered_negative)
    losses = 1 - _beaten(negative, ordered_positive)
    auc = float(wins.mean())
    variance = float(wins.var(ddof=1) / wins.size + losses.var(ddof=1) / losses.size)
    half = 1.96 * math.sqrt(variance)
    return auc, max(0.0, auc - half), min(1.0, auc + half)


def _beaten(scores: Floats, ordered: Floats) -> Floats:
    below = np.searchsorted(ordered, scores, side="left") + np.searchsorted(ordered, scores, side="right")
    result: Floats = below / (2 * len(ordered))
    return result


def _closest(readings: Readings, rows: Codes, table: Codes) -> npt.NDArray[np.float64]:
    """(rows,) distance of each row to the nearest row of a table."""
    from scipy.spatial.distance import cdist  # which a fit does without

    (near, near_codes), (table_points, table_codes) = _points(readings, rows), _points(readings, table)
    step = max(1, _BLOCK // len(table))
    result = np.empty(len(rows))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        total = cdist(near[part], table_points, "cityblock")
        total += near_codes.shape[1] * cdist(near_codes[part], table_codes, "hamming") if near_codes.size else 0.0
        result[part] = total.min(axis=1)
    return result


def _points(readings: Readings, rows: Codes) -> tuple[Floats, Floats]:
    """Returns rows as points for the L1 distance.

    Numbers and dates as points, and the codes of all other columns.

    A number x in [0, 1] is (x, 1 - x) / 2, so two of them are |x - y| apart; a missing one is (-1, -1) / 4, which lies
    at a distance of 1 from every number.
    """
    known, codes = [np.zeros((len(rows), 0))], [np.zeros((len(rows), 0))]
    for axis, name in enumerate(readings.domain):
        at = readings.places(name)
        if at is None:
            codes.append(rows[:, axis, None].astype(np.float64))
        else:
            x = _scaled(at)[rows[:, axis]]
            known.append(np.where(np.isfinite(x), np.stack([x, 1.0 - x]) / 2.0, -0.25).T)
    return np.concatenate(known, axis=1), np.concatenate(codes, axis=1)


def _scaled(at: Floats) -> Floats:
    """Places in [0, 1]; NaN of a missing value."""
    known = np.isfinite(at)
    low, high = (at[known].min(), at[known].max()) if known.any() else (0.0, 0.0)
    return np.where(known, (at - low) / ((high - low) or 1.0), np.nan)
