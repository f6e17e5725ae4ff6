"""Intervals from the holders' noisy sums.

What is known of the table's distance from all holders' rows.

Each interval holds the exact figure with probability 95% at least, over the noise and nothing else: the bounds in
`statistics.py` hold for every table and every way to spread rows over holders. Where the row count is noisy too, half
of the 5% is kept for it and the worst count of its interval is taken: a quarter for the count of this sum alone, a
quarter for its mean with the released sizes, weighed by their noise. Which of the two is used depends on whether a
released size may have been cut off below (it is at least 1); whichever it is, one of them has missed. Of a share, such
as an accuracy, the noise of both counts is taken together, and each of the two has half of the 5%.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fedsyn.evaluation.federated.question import TableQuestion
from fedsyn.evaluation.federated.statistics import UNIT, Entries, rounding
from fedsyn.evaluation.record import FEDERATED_FILE, Evaluation, percent, sentence
from fedsyn.notebook import Bar, View

#: Probability with which an interval may miss.
MISS = 0.05


@dataclass(frozen=True)
class Interval:
    """Interval of a figure.

    Attributes:
        value: of several holders the upper bound without its allowance for noise (of an accuracy: the figure itself).
        low, high: what holds the figure in 95% of runs at least.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class FederatedQuality(Evaluation):
    """Quality by the holders' noisy sums.

    It was paid for, and may be published.

    Attributes:
        figures: name -> interval.
        holders: that answered.
        notes: what was not asked, and why.
        held_out: share of the holders' rows that the run did without, to test the classifier on.
        confidence: probability with which an interval holds its figure, at least.
        of: what holders counted: 'rows', or 'people', of each of whom they have one record.
    """

    FILE = FEDERATED_FILE
    LABEL = "asked"

    figures: Mapping[str, Interval]
    holders: int
    notes: tuple[str, ...] = ()
    held_out: float = 0.0
    confidence: float = 1.0 - MISS
    of: str = "rows"

    def sentence(self) -> str:
        """Returns the interval of the workload's error, as one clause."""
        error = self.figures.get("workload_error")
        if error is None:
            return "its holders said nothing of how good it is"
        which = "its holder says" if self.holders == 1 else f"its {self.holders:,} holders say"
        interval = f"{percent(self.confidence)} interval"
        return f"{which} that its workload error is {error.low:.3g} to {error.high:.3g} ({interval})"

    def explained(self) -> tuple[str, ...]:
        """Returns what the figures are of."""
        tested = f"No {self.of} were held out"
        if self.held_out:
            share = percent(self.held_out)
            tested = f"The classifier was tested on {share} of their {self.of}, which the run did without"
        compared = "The holders compared the table with the rows that it was made from"
        if self.of == "people":
            compared = (
                "The holders compared records of the table's people with one record of each of their own people, which "
                "it was made from ('next ...' is the row after). However many rows somebody has, that is one record, "
                "in the figures and in the noise"
            )
        text = (
            f"{compared}. {tested}. What they counted was "
            "summed with noise, and the run's budget paid for it. These figures may be published."
        )
        several = (
            f"The distances of several holders add up to more than the distance of all their {self.of} together. The "
            "last column is that sum. An interval reaches down to what is certain."
        )
        return (text, several) if self.holders > 1 else (text,)

    def _view(self) -> View:
        intervals = [(name, figure.low, figure.high) for name, figure in self.figures.items()]
        rows = [(name, f"{low:.4g}", f"{high:.4g}") for name, low, high in intervals]
        bars = [Bar(name, (low + high) / 2, low, high) for name, low, high in intervals]
        notes, measure = (*self.explained(), *map(sentence, self.notes)), "figure, with its interval"
        return View(sentence(self.sentence()), ("figure", "from", "to"), rows, notes, measure, bars)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        facts = super().to_dict() | {"rows": "training"}
        return facts if self.held_out else {name: value for name, value in facts.items() if name != "held_out"}


@dataclass(frozen=True)
class HolderSums:
    """The released vector, in rows.

    Attributes:
        question, entries: what was asked.
        values: entry -> its noisy sum, in rows (divided by what one row moves it by).
        noise: entry -> standard deviation of its noise, in rows.
        own: sum of n_k over the contributors.
        off: standard deviation of its noise: 0 if it is their true row count; infinite: of no known noise.
        holders: contributors.
    """

    question: TableQuestion
    entries: Entries
    values: Mapping[str, float]
    noise: Mapping[str, float]
    own: float
    off: float
    holders: int

    @classmethod
    def of(
        cls,
        question: TableQuestion,
        entries: Entries,
        array: npt.NDArray[np.float64],
        sigma: float,
        rows: float,
        off: float,
        holders: int,
    ) -> HolderSums:
        """Returns the sums of an opened vector.

        Args: the question, the vector, the deviation of its noise, and what `HolderSums` says.
        """
        parts = list(zip(entries.names, entries.moves, array, strict=True))
        values = {name: float(value) / move for name, move, value in parts}
        return cls(question, entries, values, {name: sigma / move for name, move, _ in parts}, rows, off, holders)

    @property
    def quantile(self) -> float:
        """Quantile of a standard normal variable's absolute value."""
        return float(ndtri(1.0 - (MISS if self.off == 0.0 else MISS / 2.0) / 2.0))

    @property
    def count(self) -> tuple[float, float]:
        """Row count as far as it is known, with its noise.

        The noise is a standard deviation.
        """
        if self.off == 0.0:
            return self.own, 0.0
        value, noise = self.values["rows"], self.noise["rows"]
        if math.isfinite(self.off):
            weight = noise**2 / (noise**2 + self.off**2)
            value = weight * self.own + (1.0 - weight) * value
            noise = noise * self.off / math.hypot(noise, self.off)
        return value, noise

    @property
    def counts(self) -> tuple[float, float]:
        """Between which the row count lies."""
        value, noise = self.count
        if noise == 0.0:
            return value, value
        off = float(ndtri(1.0 - MISS / 8.0)) * noise
        return max(1.0, value - off), max(1.0, value + off)

    def worst(self, of: Callable[[float], float], best: Callable[[float, float], float]) -> float:
        """Returns the extreme of a function over the row counts.

        Each here is monotone on either side of `own`.
        """
        low, high = self.counts
        extreme = of(low)
        for n in (high, min(max(self.own, low), high)):
            extreme = best(extreme, of(n))
        return extreme

    def overlap(self, name: str, lost: float, noise: float | None = None, value: float | None = None) -> Interval:
        """Interval of 1 - overlap with the pooled rows, 0 to 1.

        Only the holders' own overlaps are used.

        With n' = `own` for n: min(N, n' p) <= min(N, n p) + (n' - n)+ p, and the other way round.
        """
        noise, value = self.noise[name] if noise is None else noise, self.values[name] if value is None else value
        off, rows = self.quantile * noise, self.own
        high = self.worst(lambda n: (n - (value - off) + max(rows - n, 0.0)) / n, max)
        low = 0.0
        if self.holders == 1:  # the holder's overlap is everybody's
            most = value + off + lost + 1.0 / min(self.entries.moves)
            low = self.worst(lambda n: (n - most - max(n - rows, 0.0)) / n, min)
        return _within((rows - value) / max(1.0, rows), low, high, 1.0)

    def intervals(self) -> dict[str, Interval]:
        """Every figure by its name."""
        q_lost, lost = rounding(self.question, self.holders)
        distance = self.overlap("own overlap", q_lost)
        most = self.values["whole overlap"] + self.quantile * self.noise["whole overlap"] + self.holders / UNIT * 2.0
        below = self.worst(lambda n: (n - most - max(n - self.own, 0.0)) / n, min)
        low = max(distance.low, below, 0.0)
        intervals = {"workload_error": _within(2.0 * distance.value, 2.0 * low, 2.0 * distance.high, 2.0)}
        if "boxes" in self.values:
            intervals["range_query_error"] = self.boxes()
        if "correct" in self.values:
            intervals["accuracy"] = self.accuracy()
        names = self.question.domain.attributes
        scores = [f"column {i}" for i in range(len(names))]
        noise = math.sqrt(math.fsum(self.noise[s] ** 2 for s in scores)) / len(scores)
        mean = math.fsum(self.values[s] for s in scores) / len(scores)
        whole = math.fsum(lost) / len(scores)
        intervals["column_score"] = _score(self.overlap("", whole, noise, mean))
        for name, score, loss in zip(names, scores, lost, strict=True):
            intervals[f"column_score: {name}"] = _score(self.overlap(score, loss))
        return intervals

    def boxes(self) -> Interval:
        """Interval of the boxes' mean distance in shares.

        |share of the pooled rows - share of the table|.

        | |N - n s| - |N - n' s| | <= |n - n'| s for each box.
        """
        boxes, rows = self.question.boxes, self.own
        scale, mean = boxes.depth / len(boxes), float(self.question.shares.mean())
        value, off = self.values["boxes"] * scale, self.quantile * self.noise["boxes"] * scale
        cut = self.holders * (1.0 / UNIT * scale + 1e-3)  # thresholds are rounded, the entry is cut
        high = self.worst(lambda n: (value + off + cut + abs(n - rows) * mean) / n, max)
        low = 0.0
        if self.holders == 1:
            low = self.worst(lambda n: (value - off - cut - abs(n - rows) * mean) / n, min)
        return _within(value / max(1.0, rows), low, high, 1.0)

    def accuracy(self) -> Interval:
        """Interval of the accuracy on held-out rows, or on all.

        The two ways to know a noisy count share the misses.
        """
        if "tested" in self.values:
            return self.share_of("correct", self.values["tested"], self.noise["tested"], MISS)
        return self.share_of("correct", *self.count, MISS if self.off == 0.0 else MISS / 2.0)

    def share_of(self, name: str, rows: float, rows_noise: float, miss: float) -> Interval:
        """Interval of shares that fit an entry and a row number.

        All shares a that an entry C and the number of rows T do not contradict (Fieller 1954).

        C - a T is off its mean, 0 at the true share, by normal noise of variance s_C^2 + a^2 s_T^2: the entries of a
        sum and the released sizes have noise of their own.
        """
        z, right = float(ndtri(1.0 - miss / 2.0)), self.values[name]
        noise, count_noise = z * self.noise[name], z * rows_noise
        a, b, c = rows**2 - count_noise**2, right * rows, right**2 - noise**2
        if rows <= count_noise or b * b < a * c:  # so few rows that any share is possible
            return Interval(min(max(right / max(rows, 1.0), 0.0), 1.0), 0.0, 1.0)
        root = math.sqrt(b * b - a * c)
        return _within(right / rows, (b - root) / a, (b + root) / a, 1.0)


def _within(value: float, low: float, high: float, most: float) -> Interval:
    low = min(max(low, 0.0), most)
    high = min(max(high, low), most)
    return Interval(min(max(value, low), high), low, high)


def _score(distance: Interval) -> Interval:
    return Interval(1.0 - distance.value, 1.0 - distance.high, 1.0 - distance.low)
