"""Tables of a sweep for people.

One lists every combination of the axes; others have the mechanisms in their rows, the budgets in their columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsyn.evaluation.real.metrics import INDEPENDENT, all_metrics
from fedsyn.evaluation.report.tables import Table, plus_minus
from fedsyn.output import counted
from fedsyn.sweep.results import Results, Summary, text

#: The paired test calls two results different where chance alone would part them so far in fewer than one of so many.
_LEVEL = 0.05
TIES = (
    "Bold: the best where all else is equal, and what a paired t test over the seeds (5%) does not tell from it; "
    "nothing where it tells nothing apart."
)
_BASELINE = "independent columns, no noise (not private)"


@dataclass(frozen=True)
class SummaryTable(Table):
    """The table of a sweep for people.

    It has axes, seeds, and mean ± standard deviation of every metric.

    Attributes:
        axes: how many columns are axes and seeds.
    """

    axes: int = 0


def summary_table(results: Results) -> SummaryTable:
    """Returns a table of the metrics that people look at.

    Costs are in summary.csv.
    """
    metrics, label = results.shown_metrics, results.label
    head = [*map(results.named, results.main_axes), "seeds"]
    rows = []
    for summary in results.summaries:
        cells = [plus_minus(summary.mean(name), summary.sd(name)) for name in metrics]
        rows.append([*(label(text(summary.axes[key])) for key in results.main_axes), _seeds(summary), *cells])
    bold = {(row, len(head) + column) for column, name in enumerate(metrics) for row in best(results, name)}
    head += map(label, metrics)
    return SummaryTable(head, rows, "Mean ± standard deviation over the seeds", bold, axes=len(head) - len(metrics))


def grid_tables(results: Results) -> list[Table]:
    """Returns tables of one metric each.

    The compared axis goes down, the main axis across. There is one for each setting of all other axes, and none where
    only one axis varies.
    """
    main, compared = results.main, results.compared
    if main is None or compared is None or main == compared:
        return []
    groups: dict[tuple[str, ...], dict[tuple[str, str], int]] = {}
    others = [key for key in results.main_axes if key not in (main, compared)]
    for position, summary in enumerate(results.summaries):
        place = (text(summary.axes[compared]), text(summary.axes[main]))
        groups.setdefault(tuple(text(summary.axes[key]) for key in others), {})[place] = position
    return [
        _grid(
            results, metric, places, [f"{results.named(k)} {results.label(v)}" for k, v in zip(others, at, strict=True)]
        )
        for metric in results.shown_metrics
        for at, places in groups.items()
    ]


def _grid(results: Results, metric: str, places: Mapping[tuple[str, str], int], at: Sequence[str]) -> Table:
    """Returns the table of a metric in one setting.

    Args:
        results: of the sweep.
        metric: its name.
        places: (compared, main) -> position of the summary.
        at: the other axes' values, in words.
    """
    assert results.main is not None and results.compared is not None
    down, across = (list(dict.fromkeys(place[i] for place in places)) for i in (0, 1))
    summaries, bold = results.summaries, best(results, metric)
    rows = [[results.label(one), *(_cell(summaries, places.get((one, x)), metric) for x in across)] for one in down]
    marked = {(i, 1 + j) for i, one in enumerate(down) for j, x in enumerate(across) if places.get((one, x)) in bold}
    if any(f"{INDEPENDENT}_{metric}" in summaries[position].values for position in places.values()):
        columns = [[summaries[p] for (_, at_x), p in places.items() if at_x == x] for x in across]
        name = results.label(INDEPENDENT)
        rows.append([_BASELINE if name == INDEPENDENT else name, *(_baseline(column, metric) for column in columns)])
    most = max(summaries[position].cells for position in places.values())
    what = [results.label(metric), *at, f"mean ± standard deviation over {counted(most, 'seed')}"]
    head = [results.named(results.compared), *(f"{results.named(results.main)} {results.label(x)}" for x in across)]
    return Table(head, rows, ", ".join(what), marked)


def _cell(summaries: Sequence[Summary], position: int | None, metric: str) -> str:
    if position is None:
        return ""
    summary = summaries[position]
    said = plus_minus(summary.mean(metric), summary.sd(metric))
    return said if summary.done == summary.cells else f"{said} ({_seeds(summary)} seeds)"


def _seeds(summary: Summary) -> str:
    return f"{summary.done}" if summary.done == summary.cells else f"{summary.done} of {summary.cells}"


def _baseline(column: Sequence[Summary], metric: str) -> str:
    """Returns the baseline of the runs in a column.

    Each seed has one value: runs of one seed have the same rows, unless another axis gives them others.
    """
    of_seed = {seed: value for one in column for seed, value in one.by_seed(f"{INDEPENDENT}_{metric}").items()}
    values = np.array([*of_seed.values()])
    return (
        plus_minus(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan) if of_seed else ""
    )


# What is set in bold --------------------------------------------------------------------------------------------------


def best(results: Results, metric: str) -> set[int]:
    """Returns positions of the best summaries and their ties.

    Each is the best of the summaries that differ from it in the compared axis alone, or a paired test over the seeds
    does not tell it from the best. Where the test tells nothing apart, as with one seed, there is no best.
    """
    known = all_metrics()
    if metric not in known or metric == "heterogeneity":
        return set()
    groups: dict[tuple[str, ...], list[int]] = {}
    for position, summary in enumerate(results.summaries):
        if math.isfinite(summary.mean(metric)):
            key = tuple(text(summary.axes[axis]) for axis in results.main_axes if axis != results.compared)
            groups.setdefault(key, []).append(position)
    sign = 1.0 if known[metric].lower_is_better else -1.0
    return {position for group in groups.values() for position in _best_of(results.summaries, group, metric, sign)}


def _best_of(summaries: Sequence[Summary], group: Sequence[int], metric: str, sign: float) -> Iterator[int]:
    first = summaries[min(group, key=lambda position: sign * summaries[position].mean(metric))]
    tied = [position for position in group if not differ(first.by_seed(metric), summaries[position].by_seed(metric))]
    return iter(tied if len(tied) < len(group) else ())


def differ(one: Mapping[int | None, float], other: Mapping[int | None, float]) -> bool:
    """Returns whether a paired t test tells two results apart.

    It pairs values of the same seed. It needs two seeds at least, and says nothing of fewer.
    """
    common = [seed for seed in one if seed in other]
    differences = np.array([one[seed] - other[seed] for seed in common])
    if len(common) < 2 or not differences.any():
        return False
    if np.ptp(differences) == 0.0:
        return True
    from scipy import stats  # slow to import, and only tables need it

    return bool(stats.ttest_1samp(differences, 0.0).pvalue < _LEVEL)
