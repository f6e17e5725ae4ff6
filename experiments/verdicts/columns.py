"""Whether verdicts on columns are right where the loss is known: python -m experiments.verdicts.columns --side tuning

The rows of a table of `experiments/held_out` are real. As many are drawn from them again, as a perfect model would,
and one column of these has lost a quarter of what is called lost (so it is to be called kept), three quarters (changed)
or one and a half of it (lost): of its mean, of its standard deviation, or of its largest category's share. Numbers are
taken as they are, in bins of equal width, and once more with a log-normal tail, in the same order.

A threshold can be no stricter than chance. Chosen is the strictest round one with which, on the tuning side and from
1,000 rows on, 95% of the perfect model's columns are called kept, and 85% of those with a loss what they are.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata

from experiments.held_out.held_tables import TABLES, available, row_counts, rows_of
from fedsyn import yamlio
from fedsyn.evaluation.verdict import LOST, judged

Floats = npt.NDArray[np.float64]
#: What was to be chosen from: a loss that a person would call lost, in its own unit.
CHOICES = {
    "mean": (0.05, 0.1, 0.2, 0.4),
    "spread": tuple(map(math.log, (1.1, 1.25, 1.5, 2.0))),
    "share": (0.05, 0.1, 0.2),
}
#: Part of it that is lost -> what that is to be called.
PARTS = {0.0: "kept", 0.25: "kept", 0.75: "changed", 1.5: "lost"}


def losses(real: Floats, made: Floats, kind: str, planted: float) -> float:
    """The loss of a kind that the drawn values have after so much of it was planted."""
    if kind == "mean":
        return abs(float(made.mean() - real.mean()) / float(real.std()) + planted)
    if kind == "spread":
        return abs(math.log(float(made.std()) / float(real.std())) + planted)
    top = np.bincount(real.astype(np.int64)).argmax()
    return abs(float((made == top).mean() - (real == top).mean()) - planted)


def called(loss: float, lost: float) -> str:
    """What a loss is called where so much is lost: `fedsyn.evaluation.verdict` with that threshold."""
    return judged("", [("mean", loss / lost * LOST["mean"], "")]).state


def outcomes(name: str, rows: int, most: int = 12) -> Iterator[tuple[str, float, float, bool]]:
    """(kind, threshold, part of it that is lost, whether it is called so) of each column, and of as many draws."""
    table, rng = rows_of(name), np.random.default_rng(rows)
    codes = table.train[:rows]
    for axis, column in enumerate(table.domain.attributes[:most]):
        ordered = column in table.domain.ordered
        real = codes[:, axis] + (rng.random(rows) if ordered else 0.0)
        tail = [np.exp(norm.ppf((rankdata(real) - 0.5) / rows))] if ordered else []
        for values in (real, *tail):
            made = rng.choice(values, rows)
            for kind in ("mean", "spread") if ordered else ("share",):
                for lost in CHOICES[kind]:
                    for part, word in PARTS.items():
                        yield kind, lost, part, called(losses(values, made, kind, part * lost), lost) == word


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("tuning", "judging"), default="tuning")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml, which is of the judging side")
    options = parser.parse_args()
    right: Counter[tuple[str, float, bool, float]] = Counter()
    every: Counter[tuple[str, float, bool, float]] = Counter()
    for name, table in TABLES.items():
        if table.side == options.side and available(name):
            for rows in row_counts(name):
                for kind, lost, part, good in outcomes(name, rows):
                    right[kind, lost, rows >= 1000, part] += good
                    every[kind, lost, rows >= 1000, part] += 1
    print(
        "| lost beyond | rows | columns | "
        + " | ".join(f"{part:g} of it: {word}" for part, word in PARTS.items())
        + " |"
    )
    print("|---" * (3 + len(PARTS)) + "|")
    good, asked = True, yamlio.read_mapping(Path(__file__).with_name("expected.yaml"))["columns"]
    for kind, choices in CHOICES.items():
        for lost in choices if options.side == "tuning" else (LOST[kind],):
            for many in (True, False):
                shares = [right[kind, lost, many, part] / max(1, every[kind, lost, many, part]) for part in PARTS]
                words = f"{kind} {math.exp(lost) if kind == 'spread' else lost:.3g}" + ", chosen" * (lost == LOST[kind])
                cells = " | ".join(f"{share:.0%}" for share in shares)
                print(f"| {words} | {'≥' if many else '<'} 1,000 | {every[kind, lost, many, 0.0]} | {cells} |")
                if many and lost == LOST[kind]:
                    good = good and shares[0] >= asked["chance"] and min(shares[1:]) >= asked["planted"]
    print("as expected" if good else "NOT as expected")
    return int(options.check and not good)


if __name__ == "__main__":
    sys.exit(main())
